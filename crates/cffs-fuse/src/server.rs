//! Messages that fuser reads from `/dev/fuse`, and their answers.

use crate::convert;
use crate::kernel;
use crate::ops::{Credentials, Found, Ops, Reply};
use crate::worker_pool::WorkerPool;
use crate::xattr::Bytes;
use cffs::Attr;
use cffs_buf::AlignedBuf;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The file system as fuser sees it.
pub(crate) struct Server {
    ops: Arc<Ops>,
    worker_pool: Arc<WorkerPool>,
}

thread_local! {
    /// Buffer for the reply to a READ. It is kept, so that it is zeroed once and not for each message. Long reads go
    /// directly to it.
    static BUFFER: RefCell<AlignedBuf> = const { RefCell::new(AlignedBuf::empty()) };
}

fn who(req: &Request) -> Credentials {
    Credentials { uid: req.uid(), gid: req.gid(), pid: req.pid() }
}

fn reply_empty(result: Reply<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

fn reply_bytes(result: Reply<Bytes>, reply: ReplyXattr) {
    match result {
        Ok(Bytes::Size(n)) => reply.size(n),
        Ok(Bytes::All(bytes)) => reply.data(&bytes),
        Err(e) => reply.error(e),
    }
}

/// Replies to OPEN and OPENDIR.
fn reply_open(keep: Reply<bool>, flags: FopenFlags, reply: ReplyOpen) {
    match keep {
        Ok(true) => reply.opened(FileHandle(0), flags | FopenFlags::FOPEN_KEEP_CACHE),
        Ok(false) => reply.opened(FileHandle(0), flags & FopenFlags::FOPEN_NOFLUSH),
        Err(e) => reply.error(e),
    }
}

impl Server {
    pub(crate) fn new(ops: Arc<Ops>) -> Server {
        let worker_pool = WorkerPool::new(ops.config.threads.max(1));
        Server { ops, worker_pool }
    }

    fn ttl(&self) -> &Duration {
        &self.ops.config.ttl
    }

    fn reply_entry(&self, result: Reply<Attr>, reply: ReplyEntry) {
        match result {
            Ok(a) => reply.entry(self.ttl(), &convert::attr(&a), Generation(u64::from(a.generation))),
            Err(e) => reply.error(e),
        }
    }

    fn reply_attr(&self, result: Reply<Attr>, reply: ReplyAttr) {
        match result {
            Ok(a) => reply.attr(self.ttl(), &convert::attr(&a)),
            Err(e) => reply.error(e),
        }
    }
}

impl Filesystem for Server {
    fn init(&mut self, _req: &Request, kernel: &mut KernelConfig) -> std::io::Result<()> {
        let mut capabilities = kernel::negotiate(kernel, &self.ops.config);
        if self.ops.shared.strict_atime() {
            (capabilities.no_open, capabilities.no_opendir) = (false, false);
        }
        self.ops.agreed(capabilities);
        Ok(())
    }

    fn destroy(&mut self) {
        self.ops.shared.end();
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _entered = self.worker_pool.enter();
        match self.ops.lookup(parent.0, name.as_bytes()) {
            Ok(Found::Entry(a)) => self.reply_entry(Ok(a), reply),
            Ok(Found::Uncached(a)) => {
                reply.entry_with_ttls(self.ttl(), &Duration::ZERO, &convert::attr(&a), Generation(0));
            }
            Ok(Found::Nothing) => reply.entry(self.ttl(), &convert::no_entry(), Generation(0)),
            Err(e) => reply.error(e),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let _entered = self.worker_pool.enter();
        self.ops.forget(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let _entered = self.worker_pool.enter();
        self.reply_attr(self.ops.getattr(ino.0), reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        // Only the file system sets the change time. The kernel sends one only with its writeback cache.
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _entered = self.worker_pool.enter();
        let set = convert::set_attr(mode, uid, gid, size, atime, mtime);
        self.reply_attr(self.ops.setattr(who(req), ino.0, set), reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let _entered = self.worker_pool.enter();
        match self.ops.readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(e),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let _entered = self.worker_pool.enter();
        self.reply_entry(self.ops.mknod(who(req), parent.0, name.as_bytes(), mode, umask, rdev), reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let _entered = self.worker_pool.enter();
        self.reply_entry(self.ops.mkdir(who(req), parent.0, name.as_bytes(), mode, umask), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _entered = self.worker_pool.enter();
        reply_empty(self.ops.unlink(parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _entered = self.worker_pool.enter();
        reply_empty(self.ops.rmdir(parent.0, name.as_bytes()), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _entered = self.worker_pool.enter();
        let target = target.as_os_str().as_bytes();
        self.reply_entry(self.ops.symlink(who(req), parent.0, name.as_bytes(), target), reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _entered = self.worker_pool.enter();
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        reply_empty(self.ops.rename(who(req), from, to, flags.bits()), reply);
    }

    fn link(&self, req: &Request, ino: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        let _entered = self.worker_pool.enter();
        self.reply_entry(self.ops.link(who(req), ino.0, new_parent.0, new_name.as_bytes()), reply);
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _entered = self.worker_pool.enter();
        reply_open(self.ops.open(), FopenFlags::FOPEN_NOFLUSH, reply);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _entered = self.worker_pool.enter();
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size as usize {
                *buffer = AlignedBuf::zeroed(size as usize);
            }
            let buffer = &mut buffer[..size as usize];
            match self.ops.read(ino.0, offset, buffer) {
                Ok(n) => reply.data(&buffer[..n]),
                Err(e) => reply.error(e),
            }
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _entered = self.worker_pool.enter();
        let privileges_fall = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        match self.ops.write(who(req), ino.0, offset, data, privileges_fall) {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(e),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        let _entered = self.worker_pool.enter();
        reply.error(self.ops.flush());
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _entered = self.worker_pool.enter();
        self.ops.release();
        reply.ok();
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let _entered = self.worker_pool.enter();
        reply_empty(self.ops.fsync(ino.0, data_only), reply);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _entered = self.worker_pool.enter();
        reply_open(self.ops.opendir(), FopenFlags::FOPEN_CACHE_DIR, reply);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _entered = self.worker_pool.enter();
        let listed = self.ops.readdir(ino.0, offset, false, &mut |e| {
            reply.add(INodeNo(e.ino), e.next, convert::file_type(e.file_type), OsStr::from_bytes(e.name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let _entered = self.worker_pool.enter();
        let mut added = 0usize;
        let listed = self.ops.readdir(ino.0, offset, true, &mut |e| {
            let name = OsStr::from_bytes(e.name);
            match e.attr {
                Some(a) => {
                    let generation = Generation(u64::from(a.generation));
                    let full = reply.add(INodeNo(a.ino), e.next, name, self.ttl(), &convert::attr(a), generation);
                    added += usize::from(!full);
                    full
                }
                // For these two entries the kernel uses nothing but number and type.
                None => {
                    let mut a = convert::no_entry();
                    (a.ino, a.kind) = (INodeNo(e.ino), convert::file_type(e.file_type));
                    reply.add(a.ino, e.next, name, &Duration::ZERO, &a, Generation(0))
                }
            }
        });
        match listed {
            Ok(()) => reply.ok(),
            // The reply contains entries for which references were taken, so it is sent. The next message gets the
            // error.
            Err(_) if added > 0 => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        let _entered = self.worker_pool.enter();
        self.ops.releasedir();
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let _entered = self.worker_pool.enter();
        reply_empty(self.ops.fsyncdir(ino.0, data_only), reply);
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let _entered = self.worker_pool.enter();
        match self.ops.statfs(ino.0) {
            Ok(s) => {
                let name_max = cffs::NAME_MAX as u32;
                reply.statfs(
                    s.total,
                    s.free,
                    s.available,
                    s.inodes,
                    s.inodes_free,
                    s.block_size,
                    name_max,
                    s.frag_size,
                );
            }
            Err(e) => reply.error(e),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let _entered = self.worker_pool.enter();
        match self.ops.create(who(req), parent.0, name.as_bytes(), mode, umask) {
            Ok(a) => {
                let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
                let generation = Generation(u64::from(a.generation));
                reply.created(self.ttl(), &convert::attr(&a), generation, FileHandle(0), flags);
            }
            Err(e) => reply.error(e),
        }
    }

    fn lseek(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let _entered = self.worker_pool.enter();
        match self.ops.lseek(ino.0, offset, whence) {
            Ok(at) => reply.offset(i64::try_from(at).unwrap_or(i64::MAX)),
            Err(e) => reply.error(e),
        }
    }

    // Asked once only: after ENOSYS the kernel answers these itself (EOPNOTSUPP, or by copying through the page cache).

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        let _entered = self.worker_pool.enter();
        reply.error(self.ops.unsupported());
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let _entered = self.worker_pool.enter();
        reply_empty(self.ops.set_attribute(who(req), ino.0, name.as_bytes(), value, flags), reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _entered = self.worker_pool.enter();
        reply_bytes(self.ops.get_attribute(ino.0, name.as_bytes(), size), reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _entered = self.worker_pool.enter();
        reply_bytes(self.ops.list_attributes(who(req), ino.0, size), reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _entered = self.worker_pool.enter();
        reply_empty(self.ops.remove_attribute(who(req), ino.0, name.as_bytes()), reply);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _entered = self.worker_pool.enter();
        reply_empty(self.ops.fallocate(who(req), ino.0, offset, length, mode), reply);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let _entered = self.worker_pool.enter();
        match self.ops.copy(who(req), (ino_in.0, offset_in), (ino_out.0, offset_out), len) {
            Ok(n) => reply.written(n),
            Err(e) => reply.error(e),
        }
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        let _entered = self.worker_pool.enter();
        reply.error(self.ops.unsupported());
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        let _entered = self.worker_pool.enter();
        match self.ops.ioctl(who(req), ino.0, cmd, in_data, out_size as usize) {
            Ok(answer) => reply.ioctl(0, &answer),
            Err(e) => reply.error(e),
        }
    }
}
