//! A disk of our own making, as a file: what reads, writes and flushes that
//! file arrives at a [`Medium`], which decides what such a disk does.
//!
//! The file is served through FUSE without the page cache, so that a request
//! of a program is a request of the disk (the kernel splits what is larger
//! than 1 MiB). It works for anything that opens a file: cffs itself, a loop
//! device with a kernel file system on it, a checker.

mod counting;
mod timed_disk;

pub use counting::{Counted, Counters, Sparse};
pub use timed_disk::{Args as DiskArgs, TimedDisk, run_disk};

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::cleanup::{Cleanup, Guard};
use crate::mount_table::{is_mounted, unmount_when_idle};

/// What a disk does with its requests. Several come at once.
pub trait Medium: Send + Sync + 'static {
    /// Its size in bytes.
    fn len(&self) -> u64;
    /// Fills `buf` from `offset` on; the range lies on the disk.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Takes `data` at `offset`; the range lies on the disk.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Makes every write durable that was answered before.
    fn flush(&self) -> io::Result<()>;
}

const ROOT: INodeNo = INodeNo(1);
const FILE: INodeNo = INodeNo(2);
const NAME: &str = "disk";
/// Nothing but us changes the attributes.
const TTL: Duration = Duration::from_secs(3600);
/// The largest request the kernel passes on whole.
const MAX_REQUEST: u32 = 1 << 20;
/// As many as a kernel has requests in the background for such a mount.
const THREADS: usize = 64;

/// The one file, as fuser sees it.
struct DiskFile<M> {
    medium: Arc<M>,
    since: SystemTime,
}

impl<M: Medium> DiskFile<M> {
    fn attr(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match ino {
            ROOT => (FileType::Directory, 0o500, 0),
            FILE => (FileType::RegularFile, 0o600, self.medium.len()),
            _ => return None,
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind,
            perm,
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or_else(|| rustix::io::Errno::IO.raw_os_error()))
}

impl<M: Medium> Filesystem for DiskFile<M> {
    fn init(&mut self, _req: &Request, kernel: &mut KernelConfig) -> io::Result<()> {
        for flag in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_MAX_PAGES] {
            // An old kernel splits more.
            let _ = kernel.add_capabilities(flag);
        }
        if let Err(nearest) = kernel.set_max_write(MAX_REQUEST) {
            let _ = kernel.set_max_write(nearest);
        }
        let _ = kernel.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attr(FILE) {
            Some(attr) if parent == ROOT && name == NAME => reply.entry(&TTL, &attr, Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    // A disk keeps its size; programs that set the length it has anyway are content.
    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.attr(ino) {
            Some(attr) if size.is_none_or(|size| size == attr.size) => reply.attr(&TTL, &attr),
            Some(_) => reply.error(Errno::EPERM),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = u64::from(size).min(self.medium.len().saturating_sub(offset));
        let mut buf = vec![0; len as usize];
        match self.medium.read(offset, &mut buf) {
            Ok(()) => reply.data(&buf),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset + data.len() as u64 > self.medium.len() {
            return reply.error(Errno::ENOSPC);
        }
        match self.medium.write(offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    // A close is no flush.
    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        match self.medium.flush() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let entries =
            [(ROOT, FileType::Directory, "."), (ROOT, FileType::Directory, ".."), (FILE, FileType::RegularFile, NAME)];
        for (i, (ino, kind, name)) in entries.into_iter().enumerate().skip(offset as usize) {
            if reply.add(ino, i as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

/// A disk that is being served; taken down when dropped.
#[derive(Debug)]
pub struct Served {
    dir: PathBuf,
    guard: Option<Guard>,
    session: Option<fuser::BackgroundSession>,
}

impl Served {
    /// Serves `medium` as a file in `dir`, an empty directory.
    ///
    /// # Errors
    /// When nothing can be mounted there.
    pub fn start(medium: Arc<impl Medium>, dir: &Path) -> Result<Served> {
        let mut config = fuser::Config::default();
        config.mount_options =
            vec![MountOption::FSName("cffs-lab-disk".into()), MountOption::Subtype("cffs-lab-disk".into())];
        config.n_threads = Some(THREADS);
        let file = DiskFile { medium, since: SystemTime::now() };
        let session = fuser::spawn_mount(file, dir, &config)
            .with_context(|| format!("cannot serve a disk at {}", dir.display()))?;
        let guard = Guard::new(Cleanup::Unmount(dir.to_path_buf()));
        Ok(Served { dir: dir.to_path_buf(), guard: Some(guard), session: Some(session) })
    }

    /// The file that is the disk.
    pub fn file(&self) -> PathBuf {
        self.dir.join(NAME)
    }

    /// Ends it, saying so if that goes wrong. The kernel may let go of the file a moment after a loop device over it is gone.
    ///
    /// # Errors
    /// When the file is still in use.
    pub fn stop(mut self) -> Result<()> {
        unmount_when_idle(&self.dir, Duration::from_secs(30))?;
        if let Some(guard) = self.guard.take() {
            guard.disarm();
        }
        if let Some(session) = self.session.take() {
            session.join().context("the thread that served the disk failed")?;
        }
        Ok(())
    }

    /// Serves until somebody unmounts it.
    ///
    /// # Errors
    /// When serving failed.
    pub fn wait(mut self) -> Result<()> {
        let result = match self.session.take() {
            Some(session) => session.join().context("the thread that served the disk failed"),
            None => Ok(()),
        };
        if let Some(guard) = self.guard.take().filter(|_| !is_mounted(&self.dir)) {
            guard.disarm();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs_testenv::{Need, have};
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_file_is_a_disk_that_keeps_and_counts() {
        if !have(&[Need::Root, Need::Fuse]) {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("disk");
        std::fs::create_dir(&dir).unwrap();
        let medium = Arc::new(Counted::new(Sparse::create(&temp.path().join("image"), 8 << 20).unwrap()));
        let served = Served::start(medium.clone(), &dir).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(served.file()).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 8 << 20);
        let before = medium.counters();
        file.write_all_at(&[7; 300_000], 12_345).unwrap();
        let mut back = vec![0; 300_002];
        file.read_exact_at(&mut back, 12_344).unwrap();
        assert!(back[0] == 0 && back[300_001] == 0 && back[1..300_001].iter().all(|b| *b == 7));
        file.sync_all().unwrap();
        let seen = medium.counters() - before;
        assert_eq!(
            (seen.read_bytes, seen.written_bytes, seen.flushes),
            (300_002, 300_000, 1),
            "every byte passes once, none from a cache: {seen:?}"
        );
        assert!(seen.reads <= 2 && seen.writes <= 2, "requests are not cut up: {seen:?}");
        assert_eq!(
            file.write_at(&[1], 8 << 20).unwrap_err().raw_os_error(),
            Some(rustix::io::Errno::NOSPC.raw_os_error())
        );
        assert!(file.set_len(1).is_err(), "a disk keeps its size");
        drop(file);
        served.stop().unwrap();
        assert!(!is_mounted(&dir));
    }
}
