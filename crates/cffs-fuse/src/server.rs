//! Answers the messages of the kernel.

use crate::config::MountConfig;
use crate::control::Asker;
use crate::convert;
use crate::crew::Crew;
use crate::ioctl;
use crate::kernel::{self, Abilities};
use crate::messages::Message;
use crate::ranges;
use crate::shared::Shared;
use crate::snapshot::{STATS_FILE, is_snapshot};
use cffs::error::{Error, Result};
use cffs::format::{Ino, ROOT_INO};
use cffs::fs::api::{Attr, Caller, RenameFlags as Rename};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Positions in a listing that the engine does not know: it counts from 64.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// The file system as fuser sees it.
pub(crate) struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) config: MountConfig,
    pub(crate) abilities: Abilities,
    crew: Arc<Crew>,
}

thread_local! {
    /// The answer to a READ; kept, so that it is cleared once and not for every message.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid() }
}

/// The name of the statistics belongs to us.
fn is_stats(parent: INodeNo, name: &OsStr) -> bool {
    parent.0 == ROOT_INO && name == STATS_FILE
}

fn reserved(parent: INodeNo, name: &OsStr) -> Result<()> {
    if is_stats(parent, name) { Err(Error::NotPermitted) } else { Ok(()) }
}

impl Server {
    pub(crate) fn new(shared: Arc<Shared>, config: &MountConfig) -> Server {
        let crew = Crew::new(config.threads.max(1));
        Server { shared, config: config.clone(), abilities: Abilities::default(), crew }
    }

    fn ttl(&self) -> &Duration {
        &self.config.ttl
    }

    fn reply_entry(&self, result: std::result::Result<Attr, Errno>, reply: ReplyEntry) {
        match result {
            Ok(a) => reply.entry(self.ttl(), &convert::attr(&a), Generation(u64::from(a.generation))),
            Err(e) => reply.error(e),
        }
    }

    fn reply_attr(&self, result: std::result::Result<Attr, Errno>, reply: ReplyAttr) {
        match result {
            Ok(a) => reply.attr(self.ttl(), &convert::attr(&a)),
            Err(e) => reply.error(e),
        }
    }

    pub(crate) fn unsupported(&self, reply: impl FnOnce(Errno)) {
        self.shared.count(Message::Unsupported);
        reply(Errno::ENOSYS);
    }
}

pub(crate) fn reply_empty(result: std::result::Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

impl Filesystem for Server {
    fn init(&mut self, _req: &Request, kernel: &mut KernelConfig) -> std::io::Result<()> {
        self.abilities = kernel::negotiate(kernel, &self.config);
        if self.shared.strict_atime() {
            (self.abilities.no_open, self.abilities.no_opendir) = (false, false);
        }
        Ok(())
    }

    fn destroy(&mut self) {
        self.shared.end();
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _turn = self.crew.turn();
        if is_stats(parent, name) {
            match self.shared.stats_text() {
                // The attributes of a snapshot stay; the name means another one next time.
                Ok(text) => {
                    let a = self.shared.snapshots.make(text);
                    reply.entry_with_ttls(self.ttl(), &Duration::ZERO, &convert::attr(&a), Generation(0));
                }
                Err(e) => reply.error(Errno::from_i32(e.errno())),
            }
            return;
        }
        match self.shared.call(Message::Lookup, parent.0, |fs| fs.lookup(parent.0, name.as_bytes())) {
            Err(e) if e == Errno::ENOENT => reply.entry(self.ttl(), &convert::no_entry(), Generation(0)),
            result => self.reply_entry(result, reply),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let _turn = self.crew.turn();
        if is_snapshot(ino.0) {
            self.shared.snapshots.forget(ino.0);
        } else {
            // Nobody hears of an error here, and none of the engine's is one that matters.
            let _ = self.shared.call(Message::Forget, ino.0, |fs| {
                fs.forget(ino.0, nlookup);
                Ok(())
            });
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let _turn = self.crew.turn();
        let result = self.shared.call(Message::GetAttr, ino.0, |fs| {
            if is_snapshot(ino.0) { self.shared.snapshots.attr(ino.0).ok_or(Error::Stale) } else { fs.getattr(ino.0) }
        });
        self.reply_attr(result, reply);
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
        // The change time is the file system's own to set; the kernel sends one with its writeback cache only.
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _turn = self.crew.turn();
        let result = self.shared.call(Message::SetAttr, ino.0, |fs| {
            if is_snapshot(ino.0) {
                return Err(Error::NotPermitted);
            }
            let set = convert::set_attr(mode, uid, gid, size, atime, mtime);
            fs.setattr(caller(req), ino.0, self.drop_privileges(fs, req, ino, set)?)
        });
        self.reply_attr(result, reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let _turn = self.crew.turn();
        match self.shared.call(Message::ReadLink, ino.0, |fs| fs.readlink(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(e),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let _turn = self.crew.turn();
        let result = self.shared.call(Message::MkNod, parent.0, |fs| {
            reserved(parent, name)?;
            let perm = self.new_permissions(mode, umask);
            match convert::mode_type(mode) {
                None => Err(Error::Invalid(format!("mode {mode:o} has no file type"))),
                // open(O_CREAT) too: CREATE is declined.
                Some(cffs::format::FileType::Regular) => fs.create(caller(req), parent.0, name.as_bytes(), perm),
                Some(t) => fs.mknod(caller(req), parent.0, name.as_bytes(), t, perm, rdev),
            }
        });
        self.reply_entry(result, reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let _turn = self.crew.turn();
        let result = self.shared.call(Message::MkDir, parent.0, |fs| {
            reserved(parent, name)?;
            fs.mkdir(caller(req), parent.0, name.as_bytes(), self.new_permissions(mode, umask))
        });
        self.reply_entry(result, reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.crew.turn();
        let result = self.shared.call(Message::Unlink, parent.0, |fs| {
            reserved(parent, name)?;
            fs.unlink(parent.0, name.as_bytes())
        });
        reply_empty(result, reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.crew.turn();
        reply_empty(self.shared.call(Message::RmDir, parent.0, |fs| fs.rmdir(parent.0, name.as_bytes())), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _turn = self.crew.turn();
        let result = self.shared.call(Message::SymLink, parent.0, |fs| {
            reserved(parent, name)?;
            fs.symlink(caller(req), parent.0, name.as_bytes(), target.as_os_str().as_bytes())
        });
        self.reply_entry(result, reply);
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
        let _turn = self.crew.turn();
        let result = self.shared.call(Message::Rename, parent.0, |fs| {
            reserved(parent, name)?;
            reserved(new_parent, new_name)?;
            let known = RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE;
            if flags.bits() & !known.bits() != 0 || flags.contains(known) {
                return Err(Error::Invalid(format!("rename flags {:#x}", flags.bits())));
            }
            let flags = Rename {
                no_replace: flags.contains(RenameFlags::RENAME_NOREPLACE),
                exchange: flags.contains(RenameFlags::RENAME_EXCHANGE),
            };
            fs.rename(caller(req), parent.0, name.as_bytes(), new_parent.0, new_name.as_bytes(), flags)
        });
        reply_empty(result, reply);
    }

    fn link(&self, req: &Request, ino: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        let _turn = self.crew.turn();
        let result = self.shared.call(Message::Link, ino.0, |fs| {
            reserved(new_parent, new_name)?;
            if is_snapshot(ino.0) {
                return Err(Error::NotPermitted);
            }
            fs.link(caller(req), ino.0, new_parent.0, new_name.as_bytes())
        });
        self.reply_entry(result, reply);
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.crew.turn();
        self.shared.count(Message::Open);
        if self.abilities.no_open {
            reply.error(Errno::ENOSYS);
        } else {
            // With strictatime the pages go at each open, so that a READ tells of the access.
            let keep = if self.shared.strict_atime() { FopenFlags::empty() } else { FopenFlags::FOPEN_KEEP_CACHE };
            reply.opened(FileHandle(0), keep | FopenFlags::FOPEN_NOFLUSH);
        }
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
        let _turn = self.crew.turn();
        if is_snapshot(ino.0) {
            match self.shared.snapshots.text(ino.0) {
                Some(text) => {
                    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
                    let to = from.saturating_add(size as usize).min(text.len());
                    reply.data(&text.as_bytes()[from..to]);
                }
                None => reply.error(Errno::ESTALE),
            }
            return;
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size as usize {
                buffer.resize(size as usize, 0);
            }
            let buffer = &mut buffer[..size as usize];
            match self.shared.call(Message::Read, ino.0, |fs| fs.read(ino.0, offset, buffer)) {
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
        let _turn = self.crew.turn();
        let result = self.shared.call(Message::Write, ino.0, |fs| {
            if is_snapshot(ino.0) {
                return Err(Error::NotPermitted);
            }
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) && fs.clear_set_id(ino.0)? {
                self.shared.attributes_changed(ino);
            }
            fs.write(caller(req), ino.0, offset, data)
        });
        match result {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(e),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        let _turn = self.crew.turn();
        self.shared.count(Message::Flush);
        reply.error(Errno::ENOSYS);
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
        let _turn = self.crew.turn();
        self.shared.count(Message::Release);
        reply.ok();
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let _turn = self.crew.turn();
        let result = self
            .shared
            .call(Message::Fsync, ino.0, |fs| if is_snapshot(ino.0) { Ok(()) } else { fs.fsync(ino.0, data_only) });
        reply_empty(result, reply);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.crew.turn();
        self.shared.count(Message::OpenDir);
        if self.abilities.no_opendir {
            reply.error(Errno::ENOSYS);
        } else {
            let keep = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR;
            reply.opened(FileHandle(0), if self.shared.strict_atime() { FopenFlags::empty() } else { keep });
        }
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _turn = self.crew.turn();
        let result = self.shared.call(Message::ReadDir, ino.0, |fs| {
            let dir = fuser::FileType::Directory;
            if offset < DOT && reply.add(ino, DOT, dir, ".") {
                return Ok(());
            }
            if offset < DOT_DOT && reply.add(INodeNo(fs.parent(ino.0)?), DOT_DOT, dir, "..") {
                return Ok(());
            }
            fs.readdir(ino.0, engine_position(offset), false, &mut |e| {
                !reply.add(INodeNo(e.ino), e.cookie, convert::file_type(e.file_type), OsStr::from_bytes(&e.name))
            })
        });
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let _turn = self.crew.turn();
        let mut added = 0usize;
        let result = self.shared.call(Message::ReadDirPlus, ino.0, |fs| {
            // The kernel takes nothing but number and type from these two, and no reference.
            let mut dot = |ino: Ino, position: u64, name: &str| {
                let mut a = convert::no_entry();
                a.ino = INodeNo(ino);
                a.kind = fuser::FileType::Directory;
                reply.add(a.ino, position, name, &Duration::ZERO, &a, Generation(0))
            };
            if offset < DOT && dot(ino.0, DOT, ".") {
                return Ok(());
            }
            if offset < DOT_DOT && dot(fs.parent(ino.0)?, DOT_DOT, "..") {
                return Ok(());
            }
            fs.readdir(ino.0, engine_position(offset), true, &mut |e| {
                let Some(a) = &e.attr else { return false };
                let name = OsStr::from_bytes(&e.name);
                let generation = Generation(u64::from(a.generation));
                let full = reply.add(INodeNo(a.ino), e.cookie, name, self.ttl(), &convert::attr(a), generation);
                added += usize::from(!full);
                !full
            })
        });
        match result {
            Ok(()) => reply.ok(),
            // References are taken for what is in the reply already, so it has to go out; the error comes again with the
            // next message.
            Err(_) if added > 0 => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        let _turn = self.crew.turn();
        self.shared.count(Message::ReleaseDir);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let _turn = self.crew.turn();
        let result = self.shared.call(Message::FsyncDir, ino.0, |fs| {
            // Linux tells a FUSE server nothing of sync(2) and syncfs(2). This is the way to ask for the same: `sync DIR`
            // on the mount point.
            if ino.0 == ROOT_INO { fs.sync() } else { fs.fsync(ino.0, data_only) }
        });
        reply_empty(result, reply);
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let _turn = self.crew.turn();
        match self.shared.call(Message::StatFs, ino.0, |fs| Ok(fs.statfs())) {
            Ok(s) => {
                let name_max = cffs::format::NAME_MAX as u32;
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
        let _turn = self.crew.turn();
        if self.abilities.no_open {
            // MKNOD and an open without a message: one message, where CREATE brings a RELEASE with it.
            self.shared.count(Message::Create);
            reply.error(Errno::ENOSYS);
            return;
        }
        let result = self.shared.call(Message::Create, parent.0, |fs| {
            reserved(parent, name)?;
            fs.create(caller(req), parent.0, name.as_bytes(), self.new_permissions(mode, umask))
        });
        match result {
            Ok(a) => {
                let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
                reply.created(
                    self.ttl(),
                    &convert::attr(&a),
                    Generation(u64::from(a.generation)),
                    FileHandle(0),
                    flags,
                );
            }
            Err(e) => reply.error(e),
        }
    }

    fn lseek(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let _turn = self.crew.turn();
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let result = self.shared.call(Message::Lseek, ino.0, |fs| {
            // The kernel keeps the other kinds to itself.
            let (Ok(from), SEEK_DATA | SEEK_HOLE) = (u64::try_from(offset), whence) else {
                return Error::invalid(format!("seek to {offset}, whence {whence}"));
            };
            if is_snapshot(ino.0) {
                let size = self.shared.snapshots.attr(ino.0).ok_or(Error::Stale)?.size;
                return if from >= size {
                    Err(Error::NotFound)
                } else {
                    Ok(if whence == SEEK_DATA { from } else { size })
                };
            }
            if whence == SEEK_DATA { fs.seek_data(ino.0, from) } else { fs.seek_hole(ino.0, from) }
        });
        match result {
            Ok(at) => reply.offset(i64::try_from(at).unwrap_or(i64::MAX)),
            // Nothing from there on; lseek(2) has a number of its own for this.
            Err(e) if e == Errno::ENOENT => reply.error(Errno::ENXIO),
            Err(e) => reply.error(e),
        }
    }

    // Not asked twice: after ENOSYS the kernel answers these itself (EOPNOTSUPP, or by copying through the page cache).

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        let _turn = self.crew.turn();
        self.unsupported(|e| reply.error(e));
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
        let _turn = self.crew.turn();
        self.set_attribute(req, ino, name, value, flags, reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _turn = self.crew.turn();
        self.get_attribute(ino, name, size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _turn = self.crew.turn();
        self.list_attributes(req, ino, size, reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.crew.turn();
        self.remove_attribute(req, ino, name, reply);
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
        let _turn = self.crew.turn();
        reply_empty(
            ranges::fallocate(&self.shared, caller(req), ino.0, offset..offset.saturating_add(length), mode),
            reply,
        );
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
        let _turn = self.crew.turn();
        match ranges::copy(&self.shared, caller(req), (ino_in.0, offset_in), (ino_out.0, offset_out), len) {
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
        let _turn = self.crew.turn();
        self.unsupported(|e| reply.error(e));
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
        let _turn = self.crew.turn();
        let asker = Asker { uid: req.uid() };
        let out_size = out_size as usize;
        let call = ioctl::Call { asker, caller: caller(req), ino: ino.0, cmd, input: in_data, out_size };
        match ioctl::dispatch(&self.shared, &call) {
            Ok(answer) => reply.ioctl(0, &answer),
            Err(e) => reply.error(e),
        }
    }
}

/// Where the engine has to go on after `offset`.
fn engine_position(offset: u64) -> u64 {
    if offset <= DOT_DOT { 0 } else { offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_a_listing() {
        assert_eq!([0, 1, 2, 64, 65].map(engine_position), [0, 0, 0, 64, 65]);
    }
}
