//! The engine with the open files of a test: applies operations as a program would, by looking paths up.

use crate::log_layout;
use crate::model::acl;
use crate::model_driver;
use crate::ops::{Op, Path, RegroupHow, SLOTS, colocation_value};
use crate::pattern;
use crate::requests::Requests;
use crate::walk::{Held, read};
use crate::{
    disk::Trace,
    setup::{Mounted, Setup},
};
use cffs::{
    Attr, COLOCATION_ATTRIBUTE, Caller, DirEntry, Error, FileType, Fs, Ino, MetadataMode, ROOT_INO, Regroup,
    RegroupOutcome, Result, SetAttr, SetXattr, TimeSpec,
};
use cffs_logdisk::LogDisk;
use cffs_volume::Volume;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

/// What the engine answered.
#[derive(Debug)]
pub enum Reply {
    /// Nothing.
    Done,
    /// A file.
    File(Attr),
    /// Contents.
    Bytes(Vec<u8>),
    /// So much was written.
    Written(usize),
    /// Entries of a directory, in pieces as they came.
    Names(Vec<DirEntry>),
    /// Next data and next hole.
    Seek(Option<u64>, Option<u64>),
    /// The rest of a listing, and the names that its start had shown.
    ListRest(Vec<DirEntry>, BTreeSet<Vec<u8>>),
    /// What no answer may be: something that only the engine knows does not add up.
    Wrong(String),
}

/// Operations after which a forgetful setup forgets.
const FORGETS_EVERY: u64 = 3;

struct Listing {
    dir: Ino,
    cookie: u64,
    seen: BTreeSet<Vec<u8>>,
}

/// Engine and open files.
pub struct EngineDriver {
    /// The file system.
    pub fs: Arc<Fs>,
    requests: Requests,
    /// Open files.
    pub slots: [Option<Ino>; SLOTS],
    trace: Trace,
    setup: Setup,
    log_disk: Option<Arc<LogDisk>>,
    volume: Option<Arc<Volume>>,
    listing: Option<Listing>,
    /// Operations until now.
    applied: u64,
}

impl EngineDriver {
    /// Mounts.
    pub fn mount(setup: Setup, trace: &Trace) -> Result<EngineDriver> {
        let Mounted { fs, log_disk, volume } = setup.mount_with_below(trace)?;
        let requests = Requests::of(&fs, trace);
        let (slots, trace) = ([None; SLOTS], trace.clone());
        Ok(EngineDriver { fs, requests, slots, trace, setup, log_disk, volume, listing: None, applied: 0 })
    }

    /// Compares what the engine says of its requests.
    pub fn verify_requests(&mut self) -> std::result::Result<(), String> {
        self.requests.verify(&self.fs, &self.trace)
    }

    /// Operations on empty slots are skipped, unless the model has missed another file of theirs first, which a device that fails may have left.
    fn start(&self, path: &Path) -> Result<Held<'_>> {
        let ino = match path.base() {
            None => ROOT_INO,
            Some(slot) => self.slots[slot].ok_or(Error::NotFound)?,
        };
        Ok(Held::borrowed(&self.fs, ino))
    }

    fn walk(&self, path: &Path, names: &[Vec<u8>]) -> Result<Held<'_>> {
        names.iter().try_fold(self.start(path)?, |dir, name| {
            let attr = self.fs.lookup(dir.ino, name)?;
            Ok(Held::new(&self.fs, attr.ino))
        })
    }

    fn resolve(&self, path: &Path) -> Result<Held<'_>> {
        self.walk(path, &path.names())
    }

    fn parent(&self, path: &Path) -> Result<(Held<'_>, Vec<u8>)> {
        let mut names = path.names();
        let name = names.pop().expect("paths without a name are skipped");
        Ok((self.walk(path, &names)?, name))
    }

    fn made(&self, made: Result<Attr>) -> Result<Reply> {
        let attr = made?;
        drop(Held::new(&self.fs, attr.ino));
        Ok(Reply::File(attr))
    }

    fn setattr(&self, path: &Path, set: impl FnOnce(&Attr) -> SetAttr) -> Result<Reply> {
        let file = self.resolve(path)?;
        let set = set(&self.fs.getattr(file.ino)?);
        self.fs.setattr(Caller::ROOT, file.ino, set).map(Reply::File)
    }

    /// Attributes of the file of a path.
    pub fn attr(&self, path: &Path) -> Result<Attr> {
        self.fs.getattr(self.resolve(path)?.ino)
    }

    /// Lists from a position, at most `limit` entries, giving back all references.
    pub fn list(&self, dir: Ino, cookie: u64, attr: bool, limit: usize) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        let listed = self.fs.readdir(dir, cookie, attr, &mut |e| {
            let more = entries.len() < limit;
            if more {
                entries.push(e);
            }
            more
        });
        if attr {
            entries.iter().for_each(|e| self.fs.forget(e.ino, 1));
        }
        listed.map(|()| entries)
    }

    /// Deletes all snapshots of the log disk; false if there were none.
    ///
    /// # Errors
    /// Those of the log disk.
    pub fn delete_snapshots(&self) -> io::Result<bool> {
        self.log_disk.as_ref().map_or(Ok(false), |disk| log_layout::delete_snapshots(disk))
    }

    /// Applies an operation (one that the model has not skipped).
    pub fn apply(&mut self, op: &Op) -> Result<Reply> {
        let fs = &self.fs;
        self.applied += 1;
        if self.setup.forgetful && self.applied.is_multiple_of(FORGETS_EVERY) {
            fs.drop_caches();
        }
        if let (Some(layout), Some(disk)) = (self.setup.log_layout, &self.log_disk)
            && self.trace.faults().is_none()
        {
            layout.work(fs, disk, self.applied)?;
        }
        if let (Some(layout), Some(volume)) = (self.setup.volume, &self.volume) {
            layout.work(&self.trace, volume, self.applied)?;
        }
        match op {
            Op::Create { path, perm, uid } => {
                let (dir, name) = self.parent(path)?;
                let made = fs.create(model_driver::caller(*uid), dir.ino, &name, model_driver::settable(*perm, false));
                if let Ok(a) = &made
                    && fs.places_by_process(dir.ino)
                {
                    fs.note_creator(a.ino, 1 + uid % 3);
                }
                self.made(made)
            }
            Op::Tmpfile { slot, dir, perm, uid } => {
                let dir = self.resolve(dir)?;
                let perm = model_driver::settable(*perm, false);
                let made = fs.tmpfile(model_driver::caller(*uid), dir.ino, perm)?;
                drop(dir);
                self.slots[*slot] = Some(made.ino);
                Ok(Reply::File(made))
            }
            Op::Mkdir { path, perm, uid } => {
                let (dir, name) = self.parent(path)?;
                self.made(fs.mkdir(model_driver::caller(*uid), dir.ino, &name, model_driver::settable(*perm, true)))
            }
            Op::Mknod { path, special, rdev } => {
                let (dir, name) = self.parent(path)?;
                self.made(fs.mknod(Caller::ROOT, dir.ino, &name, model_driver::special_type(*special), 0o600, *rdev))
            }
            Op::Symlink { path, len } => {
                let (dir, name) = self.parent(path)?;
                self.made(fs.symlink(Caller::ROOT, dir.ino, &name, &model_driver::link_target(*len)))
            }
            Op::Readlink { path } => fs.readlink(self.resolve(path)?.ino).map(Reply::Bytes),
            Op::Link { from, to } => {
                let file = self.resolve(from)?;
                let (dir, name) = self.parent(to)?;
                self.made(fs.link(Caller::ROOT, file.ino, dir.ino, &name))
            }
            Op::Unlink { path } => {
                let (dir, name) = self.parent(path)?;
                fs.unlink(dir.ino, &name).map(|()| Reply::Done)
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.parent(path)?;
                fs.rmdir(dir.ino, &name).map(|()| Reply::Done)
            }
            Op::Rename { from, to, flags } => {
                let (from_dir, from) = self.parent(from)?;
                let (to_dir, to) = self.parent(to)?;
                fs.rename(Caller::ROOT, from_dir.ino, &from, to_dir.ino, &to, *flags).map(|()| Reply::Done)
            }
            Op::Write { path, offset, len, tag } => {
                let file = self.resolve(path)?;
                let data = crate::pattern::bytes(*tag, *offset, *len);
                fs.write(Caller::ROOT, file.ino, *offset, &data).map(Reply::Written)
            }
            Op::Fallocate { path, what, offset, len } => {
                let file = self.resolve(path)?;
                fs.fallocate(Caller::ROOT, file.ino, *what, *offset, *len)?;
                fs.getattr(file.ino).map(Reply::File)
            }
            Op::Copy { from, to, offset, to_offset, len } => {
                let (from, to) = (self.resolve(from)?, self.resolve(to)?);
                let copied = fs.copy_range(Caller::ROOT, from.ino, *offset, to.ino, *to_offset, *len)?;
                Ok(Reply::Written(copied as usize))
            }
            Op::Truncate { path, size } => self.setattr(path, |_| SetAttr::default().size(Some(*size))),
            Op::Read { path, offset, len } => {
                let file = self.resolve(path)?;
                // For two processes, so that it is a habit at once.
                for process in 1..=2 {
                    fs.note_read(process, file.ino, 0, 1);
                    fs.note_read(process, file.ino, *offset, *len);
                }
                read(fs, file.ino, *offset, *len).map(Reply::Bytes)
            }
            Op::Seek { path, offset } => self.seek(path, *offset),
            Op::Readdir { path, attr } => self.readdir(path, *attr),
            Op::ListStart { path, count } => self.list_start(path, *count),
            Op::ListRest => self.list_rest(),
            Op::Lookup { path } => fs.getattr(self.resolve(path)?.ino).map(Reply::File),
            Op::Chmod { path, perm } => self.setattr(path, |a| {
                SetAttr::default().perm(Some(model_driver::settable(*perm, a.file_type == cffs::FileType::Directory)))
            }),
            Op::Chown { path, uid, gid } => self.setattr(path, |_| SetAttr::default().uid(Some(*uid)).gid(Some(*gid))),
            Op::SetXattr { path, name, len, tag } => {
                let (file, value) = (self.resolve(path)?, pattern::bytes(*tag, 0, *len));
                fs.setxattr(Caller::ROOT, file.ino, name.as_bytes(), &value, SetXattr::default())?;
                fs.getattr(file.ino).map(Reply::File)
            }
            Op::Colocate { path, value } => {
                let file = self.resolve(path)?;
                let value = colocation_value(*value, fs.getattr(file.ino)?.file_type == FileType::Directory);
                let name = COLOCATION_ATTRIBUTE.as_bytes();
                fs.setxattr(Caller::ROOT, file.ino, name, value.as_bytes(), SetXattr::default())?;
                fs.getattr(file.ino).map(Reply::File)
            }
            Op::RemoveXattr { path, name } => {
                let file = self.resolve(path)?;
                fs.removexattr(Caller::ROOT, file.ino, name.as_bytes())?;
                fs.getattr(file.ino).map(Reply::File)
            }
            Op::Acl { path, default, list } => self.set_acl(path, *default, *list),
            Op::Flags { path, flags } => fs.set_flags(Caller::ROOT, self.resolve(path)?.ino, *flags).map(Reply::File),
            Op::Utime { path, mtime } => self.setattr(path, |_| SetAttr::default().mtime(Some(TimeSpec::At(*mtime)))),
            Op::Fsync { path } => fs.fsync(self.resolve(path)?.ino, false).map(|()| Reply::Done),
            Op::Fdatasync { path } => fs.fsync(self.resolve(path)?.ino, true).map(|()| Reply::Done),
            Op::Sync => fs.sync().map(|()| Reply::Done),
            Op::Open { slot, path } => self.open(*slot, path),
            Op::Close { slot } => {
                let ino = self.slots[*slot].take().expect("skipped when empty");
                self.forget(ino);
                Ok(Reply::Done)
            }
            Op::Remount { forget } => self.remount(*forget),
            Op::Regroup { path, how } => self.regroup(path, *how),
            Op::Trim => fs.trim(cffs::TrimRange::default()).map(|_| Reply::Done),
            Op::Grow { percent } => self.grow(*percent),
            Op::CreateMany { .. } | Op::UnlinkMany { .. } => panic!("expanded before"),
        }
    }

    fn seek(&self, path: &Path, offset: u64) -> Result<Reply> {
        let file = self.resolve(path)?;
        let found = |at: Result<u64>| match at {
            Err(Error::NoDataBeyond) => Ok(None),
            at => at.map(Some),
        };
        let data = found(self.fs.seek_data(file.ino, offset))?;
        Ok(Reply::Seek(data, found(self.fs.seek_hole(file.ino, offset))?))
    }

    /// Lists all names, in pieces that become longer.
    fn readdir(&self, path: &Path, attr: bool) -> Result<Reply> {
        let dir = self.resolve(path)?;
        let (mut all, mut cookie, mut piece) = (Vec::new(), 0, 1);
        loop {
            let some = self.list(dir.ino, cookie, attr, piece)?;
            let Some(last) = some.last() else {
                return Ok(Reply::Names(all));
            };
            cookie = last.cookie;
            all.extend(some);
            piece *= 3;
        }
    }

    fn list_start(&mut self, path: &Path, count: usize) -> Result<Reply> {
        let dir = self.resolve(path)?;
        let some = self.list(dir.ino, 0, false, count)?;
        let cookie = some.last().map_or(0, |e| e.cookie);
        let ino = dir.keep();
        let seen = some.into_iter().map(|e| e.name).collect();
        self.listing = Some(Listing { dir: ino, cookie, seen });
        Ok(Reply::Done)
    }

    fn list_rest(&mut self) -> Result<Reply> {
        let listing = self.listing.take().expect("skipped without a start");
        let rest = self.list(listing.dir, listing.cookie, true, usize::MAX);
        self.forget(listing.dir);
        Ok(Reply::ListRest(rest?, listing.seen))
    }

    fn set_acl(&self, path: &Path, default: bool, list: usize) -> Result<Reply> {
        let (file, name) = (self.resolve(path)?, if default { acl::DEFAULT } else { acl::ACCESS }.as_bytes());
        match acl::LISTS.get(list) {
            Some(entries) => {
                let value = acl::encode(entries);
                self.fs.setxattr(Caller::ROOT, file.ino, name, &value, SetXattr::default())?;
            }
            None => self.fs.removexattr(Caller::ROOT, file.ino, name)?,
        }
        self.fs.getattr(file.ino).map(Reply::File)
    }

    fn open(&mut self, slot: usize, path: &Path) -> Result<Reply> {
        let file = self.resolve(path)?;
        let attr = self.fs.getattr(file.ino)?;
        let ino = file.keep();
        self.slots[slot] = Some(ino);
        Ok(Reply::File(attr))
    }

    fn remount(&mut self, forget: bool) -> Result<Reply> {
        if forget {
            self.forget_all();
        }
        self.fs.close()?;
        (self.slots, self.listing) = ([None; SLOTS], None);
        // The old one is dropped by the assignment, after the new one is there.
        let mounted = self.setup.mount_with_below(&self.trace)?;
        (self.fs, self.log_disk, self.volume) = (mounted.fs, mounted.log_disk, mounted.volume);
        self.requests = Requests::of(&self.fs, &self.trace);
        Ok(Reply::Done)
    }

    fn grow(&self, percent: u8) -> Result<Reply> {
        let made = self.setup.made.unwrap_or(self.setup.device);
        let to = made + (self.setup.device - made) * u64::from(percent) / 100;
        if to > self.fs.geometry().total_bytes() {
            let grown = self.fs.grow(Some(to))?;
            let s = self.fs.statfs();
            assert_eq!(s.total * u64::from(s.frag_size), grown.to, "statfs follows");
        }
        Ok(Reply::Done)
    }

    /// Regroups. What is asserted here is what only the engine knows: the counts of statfs, and how it ended.
    fn regroup(&self, path: &Path, how: RegroupHow) -> Result<Reply> {
        let dir = self.resolve(path)?;
        let (fs, handle) = (&self.fs, Regroup::new());
        // What is dirty has a reservation for more than it takes, so counts are compared where nothing is.
        let exact = self.applied.is_multiple_of(2);
        if exact {
            fs.sync()?;
        }
        // Places, which are what moves; on a log disk statfs tells of space.
        let places = || {
            let [total, free, reserved] = fs.stats().space;
            (total, free - reserved)
        };
        let (before, per) = (places(), fs.geometry().frags_per_block());
        if how == RegroupHow::FreeSpace && fs.getattr(dir.ino)?.file_type != FileType::Directory {
            return Err(Error::NotDir); // it takes no directory, so it would not notice
        }
        let outcome = fs.regroup(&how.options(dir.ino), &handle);
        if self.setup.metadata != MetadataMode::Journal {
            // Refused, whatever the path is.
            assert!(matches!(outcome, Err(Error::Invalid(_) | Error::ReadOnly)), "without a journal: {outcome:?}");
            let is_dir = fs.getattr(dir.ino)?.file_type == FileType::Directory;
            return if is_dir { Ok(Reply::Done) } else { Err(Error::NotDir) };
        }
        outcome?;
        let status = handle.status();
        match status.outcome {
            Some(RegroupOutcome::Complete) => {}
            // The status has the error as a text only.
            Some(RegroupOutcome::Failed(text)) if text == Error::NoSpace.to_string() => return Err(Error::NoSpace),
            Some(RegroupOutcome::Failed(text)) => return Err(io::Error::other(format!("regroup: {text}")).into()),
            other => panic!("a regroup that nobody stopped ended as {other:?}"),
        }
        let after = places();
        assert_eq!(after.0, before.0, "the size after a regroup");
        if exact {
            // Trees of extents may have gained or lost nodes, which are blocks, and what was learned from reads is stored.
            let differs = before.1.abs_diff(after.1);
            let moves = status.files_moved + status.blocks_moved;
            // A file that is moved in parts may get a node for each piece.
            let pieces = if matches!(how, RegroupHow::Gains | RegroupHow::Always) {
                0
            } else {
                (status.bytes_moved + status.bytes_kept) / fs.geometry().frag_size() as u64
            };
            let most = per * (2 * (moves + pieces) + 1);
            if !differs.is_multiple_of(per) || differs > most {
                // Not a panic: what was lost of a bitmap is free twice.
                return Ok(Reply::Wrong(format!("free {before:?}, then {after:?}: {status:?}")));
            }
        }
        Ok(Reply::Done)
    }

    fn forget(&self, ino: Ino) {
        if ino != ROOT_INO {
            self.fs.forget(ino, 1);
        }
    }

    /// Drops all open files.
    pub fn forget_all(&mut self) {
        for slot in std::mem::take(&mut self.slots).into_iter().flatten() {
            self.forget(slot);
        }
        if let Some(listing) = self.listing.take() {
            self.forget(listing.dir);
        }
    }
}
