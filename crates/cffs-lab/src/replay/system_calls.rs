//! Repeats operations with system calls below a mount point, each in the thread that it had.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cffs::trace::{Kind, Listed};
use cffs::{ColocationKey, ROOT_INO};
use rustix::fs::{
    AtFlags, FallocateFlags, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::engine::contents;
use super::names::Names;
use super::outcome::Differences;
use super::workload::{Op, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, StartTree, Workload};

/// Files that are open at once, at most.
const OPEN_MAX: usize = 512;
/// Threads at most; those of a longer recording share them.
const THREADS_MAX: usize = 64;

/// Whether a file can have this name. A trace is somebody else's perhaps, and what it names is to be below the mount point.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|b| matches!(b, b'/' | 0))
}

fn join(root: &Path, path: &[&[u8]]) -> PathBuf {
    path.iter().fold(root.to_path_buf(), |mut all, name| {
        all.push(OsStr::from_bytes(name));
        all
    })
}

/// Makes the tree that was there at the beginning below `root`, which may have a key of co-location.
///
/// # Errors
/// Those of the system calls.
pub fn build(root: &Path, tree: &StartTree, key: Option<&ColocationKey>) -> Result<()> {
    if let Some(key) = key {
        rustix::fs::setxattr(root, cffs::COLOCATION_ATTRIBUTE, key.to_string().as_bytes(), XattrFlags::empty())?;
    }
    let mut made: HashMap<u64, PathBuf> = HashMap::from([(ROOT_INO, root.to_path_buf())]);
    let pattern = contents(1 << 20);
    for (directory, e) in tree.in_order() {
        let Some(dir) = made.get(&directory) else { continue };
        if !is_name(&e.name) {
            bail!("the trace is damaged: no file can be called '{}'", e.name.escape_ascii());
        }
        let path = dir.join(OsStr::from_bytes(&e.name));
        build_entry(&path, e, made.get(&e.inode), &pattern)
            .with_context(|| format!("cannot make {} of the tree of the trace", path.display()))?;
        made.insert(e.inode, path);
    }
    rustix::fs::syncfs(File::open(root)?)?;
    Ok(())
}

fn build_entry(path: &Path, e: &Listed, there: Option<&PathBuf>, pattern: &[u8]) -> std::io::Result<()> {
    if let Some(there) = there {
        return std::fs::hard_link(there, path);
    }
    let mode = Mode::from_raw_mode(e.mode & 0o7777);
    match e.mode & S_IFMT {
        S_IFDIR => rustix::fs::mkdir(path, mode)?,
        S_IFLNK => rustix::fs::symlink(OsStr::from_bytes(&vec![b'x'; e.size.clamp(1, 4095) as usize]), path)?,
        S_IFREG => {
            let file = File::from(rustix::fs::open(path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, mode)?);
            let written = if e.size > 4096 { e.size.min(e.space) } else { e.size };
            let mut at = 0;
            while at < written {
                let n = (written - at).min(pattern.len() as u64) as usize;
                std::os::unix::fs::FileExt::write_all_at(&file, &pattern[..n], at)?;
                at += n as u64;
            }
            if written < e.size {
                file.set_len(e.size)?;
            }
        }
        other => {
            let kind = rustix::fs::FileType::from_raw_mode(other);
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0)?;
        }
    }
    Ok(())
}

/// Repeats everything below `root`, in as many threads as there were: an operation begins when all have ended that had ended before
/// it began. With `pauses` not before its time either.
///
/// # Errors
/// A thread cannot be started.
pub fn repeat_all(root: &Path, w: &Workload, pauses: bool) -> Result<Differences> {
    let caller = Caller {
        root: root.to_path_buf(),
        names: Mutex::new(Names::new(&w.tree)),
        open: Mutex::default(),
        buffer: contents(w.longest()),
    };
    let order = Order::new(&w.ops);
    let differences = Mutex::new(Differences::default());
    let threads = w.threads.clamp(1, THREADS_MAX);
    let began = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        for thread in 0..threads {
            let (caller, order, differences) = (&caller, &order, &differences);
            let work = move || {
                for (n, op) in w.ops.iter().enumerate().filter(|(_, op)| op.thread % threads == thread) {
                    order.wait(n);
                    if pauses {
                        std::thread::sleep(Duration::from_nanos(op.start).saturating_sub(began.elapsed()));
                    }
                    let outcome = caller.repeat(op);
                    lock(differences).compare(op, outcome);
                    order.ended(n);
                }
            };
            std::thread::Builder::new().name(format!("replay-{thread}")).spawn_scoped(scope, work)?;
        }
        Ok(())
    })?;
    Ok(differences.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which operation may begin.
struct Order {
    /// Of each operation: how many had ended before it began.
    before: Vec<usize>,
    /// Of each operation: its place in the order of ends.
    place: Vec<usize>,
    /// Which places have ended, and how many from the first on without a gap.
    state: Mutex<(Vec<bool>, usize)>,
    changed: Condvar,
}

impl Order {
    fn new(ops: &[Op]) -> Order {
        let mut by_end: Vec<usize> = (0..ops.len()).collect();
        by_end.sort_by_key(|n| (ops[*n].end, *n));
        let mut place = vec![0; ops.len()];
        by_end.iter().enumerate().for_each(|(p, n)| place[*n] = p);
        let ends: Vec<u64> = by_end.iter().map(|n| ops[*n].end).collect();
        // Never itself, nor what began after it.
        let before = ops.iter().map(|op| ends.partition_point(|end| *end < op.start)).collect();
        Order { before, place, state: Mutex::new((vec![false; ops.len()], 0)), changed: Condvar::new() }
    }

    fn wait(&self, n: usize) {
        let mut state = lock(&self.state);
        while state.1 < self.before[n] {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn ended(&self, n: usize) {
        let (ended, first) = &mut *lock(&self.state);
        ended[self.place[n]] = true;
        while ended.get(*first).copied().unwrap_or(false) {
            *first += 1;
        }
        self.changed.notify_all();
    }
}

/// Makes the calls.
struct Caller {
    root: PathBuf,
    names: Mutex<Names>,
    open: Mutex<HashMap<u64, Arc<OwnedFd>>>,
    buffer: Vec<u8>,
}

impl Caller {
    /// Repeats one. Returns the errno of its failure, 0 if there is none; `None`: its file is not known.
    fn repeat(&self, op: &Op) -> Option<u64> {
        match self.try_repeat(op) {
            Ok(()) => Some(0),
            Err(Unknown::File) => None,
            Err(Unknown::Not(e)) => Some(e.raw_os_error().unsigned_abs().into()),
        }
    }

    fn path(&self, inode: u64) -> Result<PathBuf, Unknown> {
        lock(&self.names).path(inode).map(|path| join(&self.root, &path)).ok_or(Unknown::File)
    }

    fn below(&self, directory: u64, name: &[u8]) -> Result<PathBuf, Unknown> {
        if !is_name(name) {
            return Err(Unknown::Not(Errno::INVAL));
        }
        Ok(self.path(directory)?.join(OsStr::from_bytes(name)))
    }

    /// The file of an inode, open as far as it can be.
    fn file(&self, inode: u64) -> Result<Arc<OwnedFd>, Unknown> {
        if let Some(file) = lock(&self.open).get(&inode) {
            return Ok(file.clone());
        }
        let path = self.path(inode)?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(&path, flags | OFlags::RDWR, Mode::empty())
            .or_else(|_| rustix::fs::open(&path, flags | OFlags::RDONLY, Mode::empty()))?;
        Ok(self.keep(inode, file))
    }

    fn keep(&self, inode: u64, file: OwnedFd) -> Arc<OwnedFd> {
        let mut open = lock(&self.open);
        if open.len() >= OPEN_MAX {
            // Those with a name can be opened again.
            let names = lock(&self.names);
            open.retain(|inode, _| names.place(*inode).is_none());
        }
        let file = Arc::new(file);
        open.insert(inode, file.clone());
        file
    }

    fn made(&self, op: &Op) {
        lock(&self.open).remove(&op.detail.inode);
        lock(&self.names).add(op.args[0], op.detail.name(0), op.detail.inode);
    }

    fn try_repeat(&self, op: &Op) -> Result<(), Unknown> {
        let (d, [a, b, len]) = (&op.detail, op.args);
        let name = d.name(0);
        let mode = Mode::from_raw_mode(d.number(0) as u32 & 0o7777);
        match op.kind {
            Kind::Lookup if name.is_empty() => drop(rustix::fs::lstat(self.path(a)?)?),
            Kind::Lookup => {
                rustix::fs::lstat(self.below(a, name)?)?;
                if d.inode != 0 {
                    lock(&self.names).add(a, name, d.inode);
                }
            }
            Kind::Getattr => drop(self.attributes(a)?),
            Kind::Setattr => self.set_attributes(op)?,
            // The kernel lists in pieces of its own.
            Kind::Readdir if b == 0 => self.list(a)?,
            Kind::Readlink => drop(rustix::fs::readlink(self.path(a)?, Vec::new())?),
            Kind::Read => drop(rustix::io::pread(&*self.file(a)?, &mut vec![0; len as usize][..], b)?),
            Kind::Write => drop(rustix::io::pwrite(&*self.file(a)?, &self.buffer[..len as usize], b)?),
            Kind::Create => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
                let file = rustix::fs::open(self.below(a, name)?, flags, mode)?;
                self.made(op);
                self.keep(d.inode, file);
            }
            Kind::Mknod => {
                let kind = rustix::fs::FileType::from_raw_mode(d.number(0) as u32 & S_IFMT);
                // Without its number: what is opened and written here later is no device of this machine.
                rustix::fs::mknodat(rustix::fs::CWD, self.below(a, name)?, kind, mode, 0)?;
                self.made(op);
            }
            Kind::Mkdir => {
                rustix::fs::mkdir(self.below(a, name)?, mode)?;
                self.made(op);
            }
            Kind::Symlink => {
                let target = vec![b'x'; d.number(3).clamp(1, 4095) as usize];
                rustix::fs::symlink(OsStr::from_bytes(&target), self.below(a, name)?)?;
                self.made(op);
            }
            Kind::Tmpfile => {
                let file = rustix::fs::open(self.path(a)?, OFlags::TMPFILE | OFlags::RDWR, mode)?;
                self.keep(d.inode, file);
            }
            Kind::Link => self.link(op)?,
            Kind::Unlink | Kind::Rmdir => {
                let path = self.below(a, name)?;
                if op.kind == Kind::Unlink {
                    rustix::fs::unlink(path)?
                } else {
                    rustix::fs::rmdir(path)?
                }
                lock(&self.names).remove(a, name);
            }
            Kind::Rename => {
                let (from, to) = (self.below(a, name)?, self.below(b, d.name(1))?);
                let exchange = d.number(0) & 2 != 0;
                let mut flags = RenameFlags::empty();
                flags.set(RenameFlags::NOREPLACE, d.number(0) & 1 != 0);
                flags.set(RenameFlags::EXCHANGE, exchange);
                rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, flags)?;
                lock(&self.names).rename((a, name), (b, d.name(1)), exchange);
            }
            Kind::Fallocate => {
                let flags = match d.number(0) {
                    0 => FallocateFlags::empty(),
                    1 => FallocateFlags::KEEP_SIZE,
                    2 => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    3 => FallocateFlags::ZERO_RANGE,
                    4 => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
                    5 => FallocateFlags::COLLAPSE_RANGE,
                    _ => FallocateFlags::INSERT_RANGE,
                };
                rustix::fs::fallocate(&*self.file(a)?, flags, b, len)?;
            }
            Kind::Copy => {
                let (from, to) = (self.file(a)?, self.file(b)?);
                let (mut at, mut to_at) = (d.number(0), d.number(1));
                rustix::fs::copy_file_range(&*from, Some(&mut at), &*to, Some(&mut to_at), len as usize)?;
            }
            Kind::Seek => {
                let from = if d.number(0) == 0 { SeekFrom::Data(b) } else { SeekFrom::Hole(b) };
                rustix::fs::seek(&*self.file(a)?, from)?;
            }
            Kind::Fsync => rustix::fs::fsync(&*self.file(a)?)?,
            Kind::Sync => rustix::fs::syncfs(&*self.file(ROOT_INO)?)?,
            Kind::Getxattr => {
                let mut value = Vec::with_capacity(1 << 16);
                let room = rustix::buffer::spare_capacity(&mut value);
                match OsStr::from_bytes(name) {
                    name if name.is_empty() => rustix::fs::llistxattr(self.path(a)?, room)?,
                    name => rustix::fs::lgetxattr(self.path(a)?, name, room)?,
                };
            }
            Kind::Setxattr if !name.is_empty() => {
                let (path, name) = (self.path(a)?, OsStr::from_bytes(name));
                match d.number(0) {
                    u64::MAX => rustix::fs::lremovexattr(path, name)?,
                    len => {
                        let other = &self.buffer[..(len as usize).min(self.buffer.len())];
                        let value = if d.name(1).is_empty() { other } else { d.name(1) };
                        rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())?;
                    }
                }
            }
            Kind::Forget => drop(lock(&self.open).remove(&a)),
            _ => {}
        }
        Ok(())
    }

    fn attributes(&self, inode: u64) -> Result<(), Unknown> {
        let open = lock(&self.open).get(&inode).cloned();
        match open {
            Some(file) => rustix::fs::fstat(&*file)?,
            None => rustix::fs::lstat(self.path(inode)?)?,
        };
        Ok(())
    }

    fn link(&self, op: &Op) -> Result<(), Unknown> {
        let to = self.below(op.args[0], op.detail.name(0))?;
        match self.path(op.args[1]) {
            Ok(from) => rustix::fs::link(from, to)?,
            // A file without a name gets one.
            Err(_) => {
                let file = lock(&self.open).get(&op.args[1]).cloned().ok_or(Unknown::File)?;
                rustix::fs::linkat(&*file, "", rustix::fs::CWD, to, AtFlags::EMPTY_PATH)?;
            }
        }
        lock(&self.names).add(op.args[0], op.detail.name(0), op.args[1]);
        Ok(())
    }

    fn set_attributes(&self, op: &Op) -> Result<(), Unknown> {
        let (inode, d) = (op.args[0], &op.detail);
        let has = |bit: u32| d.number(0) >> bit & 1 != 0;
        if has(3) {
            rustix::fs::ftruncate(&*self.file(inode)?, d.number(4))?;
        }
        if has(1) || has(2) {
            let id = |bit, n| has(bit).then_some(d.number(n) as u32);
            let (uid, gid) = (id(1, 2).map(Uid::from_raw), id(2, 3).map(Gid::from_raw));
            rustix::fs::chownat(rustix::fs::CWD, self.path(inode)?, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if has(0) {
            rustix::fs::chmod(self.path(inode)?, Mode::from_raw_mode(d.number(1) as u32))?;
        }
        if has(4) || has(5) {
            let time = |bit| Timespec { tv_sec: 0, tv_nsec: if has(bit) { UTIME_NOW } else { UTIME_OMIT } };
            let times = Timestamps { last_access: time(4), last_modification: time(5) };
            rustix::fs::utimensat(rustix::fs::CWD, self.path(inode)?, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    fn list(&self, directory: u64) -> Result<(), Unknown> {
        let dir = rustix::fs::open(self.path(directory)?, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut buffer = Vec::with_capacity(32 << 10);
        let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            entry?;
        }
        Ok(())
    }
}

/// Why an operation was not repeated as it was.
enum Unknown {
    /// Nobody knows the name of its file.
    File,
    /// It failed.
    Not(Errno),
}

impl From<Errno> for Unknown {
    fn from(e: Errno) -> Unknown {
        Unknown::Not(e)
    }
}
