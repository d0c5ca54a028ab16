//! The model with the open files of a test: applies operations and says what the engine must answer.

use crate::model::acl::LISTS;
use crate::model::{Fail, Id, Model, NewFile, ROOT, Result};
use crate::ops::{Op, Path, SLOTS, Special, colocation_value};
use crate::pattern;
use cffs::{COLOCATION_ATTRIBUTE, Caller, FileType, Ino, RenameFlags, SetAttr, TimeSpec};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// What a successful operation answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing.
    Done,
    /// The operation did not apply (a slot is empty or taken): the engine is not asked.
    Skipped,
    /// A file, with its attributes.
    File(Id),
    /// Contents.
    Bytes(Vec<u8>),
    /// So much was written.
    Written(usize),
    /// Names of a directory.
    Names(BTreeMap<Vec<u8>, Id>),
    /// Where data and holes are from this offset on is for the runner to judge by this file's contents.
    Seek(Id, u64),
    /// The start of a listing of this directory.
    ListStart(Id),
    /// The rest of a listing: names that must come, and names that may (they were made or removed in between).
    ListRest(BTreeSet<Vec<u8>>, BTreeSet<Vec<u8>>),
}

/// A listing under way.
#[derive(Clone, Debug)]
struct Listing {
    dir: Id,
    entries: BTreeMap<Vec<u8>, u64>,
}

/// Model and open files.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The file system.
    pub model: Model,
    /// Open files.
    pub slots: [Option<Id>; SLOTS],
    listing: Option<Listing>,
    /// Files made durable by the last operation.
    pub synced: Vec<Id>,
    /// The file whose contents the last operation may have changed.
    pub written: Option<Id>,
}

/// Permissions that an operation may set on a file: set-id bits on files are the kernel's business.
pub fn settable(perm: u16, is_dir: bool) -> u16 {
    if is_dir { perm & 0o3777 } else { perm & 0o1777 }
}

/// The caller with a user number.
pub fn caller(uid: u32) -> Caller {
    Caller { uid, gid: uid }
}

/// Target of a symbolic link of some length.
pub fn link_target(len: usize) -> Vec<u8> {
    (0..len).map(|i| b'a' + (i % 26) as u8).collect()
}

/// File type of a special file.
pub fn special_type(special: Special) -> FileType {
    match special {
        Special::Fifo => FileType::Fifo,
        Special::Socket => FileType::Socket,
        Special::Char => FileType::CharDevice,
        Special::Block => FileType::BlockDevice,
    }
}

enum Start {
    At(Id),
    EmptySlot,
}

impl State {
    fn start(&self, path: &Path) -> Start {
        match path.base() {
            None => Start::At(ROOT),
            Some(slot) => self.slots[slot].map_or(Start::EmptySlot, Start::At),
        }
    }

    fn walk(&self, from: Id, names: &[Vec<u8>]) -> Result<Id> {
        names.iter().try_fold(from, |dir, name| self.model.lookup(dir, name))
    }

    /// The file of a path; `None` when its open file is not open.
    pub fn resolve(&self, path: &Path) -> Option<Result<Id>> {
        match self.start(path) {
            Start::At(id) => Some(self.walk(id, &path.names())),
            Start::EmptySlot => None,
        }
    }

    fn with_file(&mut self, path: &Path, f: impl FnOnce(&mut State, Id) -> Result<Outcome>) -> Result<Outcome> {
        match self.resolve(path) {
            Some(id) => f(self, id?),
            None => Ok(Outcome::Skipped),
        }
    }

    /// Directory and name of a path that ends in a name.
    fn parent(&self, path: &Path) -> Option<Result<(Id, Vec<u8>)>> {
        let Start::At(start) = self.start(path) else {
            return None;
        };
        let mut names = path.names();
        let name = names.pop()?;
        Some(self.walk(start, &names).map(|dir| (dir, name)))
    }

    fn with_parent(
        &mut self,
        path: &Path,
        f: impl FnOnce(&mut Model, Id, &[u8]) -> Result<Outcome>,
    ) -> Result<Outcome> {
        match self.parent(path) {
            Some(at) => {
                let (dir, name) = at?;
                f(&mut self.model, dir, &name)
            }
            None => Ok(Outcome::Skipped),
        }
    }

    fn create(&mut self, uid: u32, path: &Path, what: NewFile<'_>, perm: u16) -> Result<Outcome> {
        let made =
            self.with_parent(path, |m, dir, name| m.create(caller(uid), dir, name, what, perm).map(Outcome::File))?;
        if let Outcome::File(id) = made {
            self.written = Some(id);
        }
        Ok(made)
    }

    fn tmpfile(&mut self, slot: usize, dir: &Path, perm: u16, uid: u32) -> Result<Outcome> {
        self.with_file(dir, |s, dir| {
            if s.slots[slot].is_some() {
                return Ok(Outcome::Skipped);
            }
            let id = s.model.tmpfile(caller(uid), dir, settable(perm, false))?;
            (s.slots[slot], s.written) = (Some(id), Some(id));
            Ok(Outcome::File(id))
        })
    }

    /// Like [`State::with_file`], for an operation on contents: skipped where the path names neither a regular file
    /// nor a directory, as the kernel does not ask the engine there.
    fn with_contents(&mut self, path: &Path, act: impl FnOnce(&mut State, Id) -> Result<Outcome>) -> Result<Outcome> {
        self.with_file(path, |s, id| match s.model.get(id).file_type {
            FileType::Regular | FileType::Directory => act(s, id),
            _ => Ok(Outcome::Skipped),
        })
    }

    fn setattr(&mut self, path: &Path, set: impl FnOnce(&Model, Id) -> SetAttr) -> Result<Outcome> {
        self.with_file(path, |s, id| {
            let set = set(&s.model, id);
            s.model.setattr(id, set).map(|()| Outcome::File(id))
        })
    }

    /// Applies an operation.
    pub fn apply(&mut self, op: &Op) -> Result<Outcome> {
        self.model.tick();
        self.synced.clear();
        self.written = None;
        match op {
            Op::Create { path, perm, uid } => self.create(*uid, path, NewFile::Regular, settable(*perm, false)),
            Op::Tmpfile { slot, dir, perm, uid } => self.tmpfile(*slot, dir, *perm, *uid),
            Op::Mkdir { path, perm, uid } => self.create(*uid, path, NewFile::Directory, settable(*perm, true)),
            Op::Mknod { path, special, rdev } => {
                self.create(0, path, NewFile::Special(special_type(*special), *rdev), 0o600)
            }
            Op::Symlink { path, len } => self.create(0, path, NewFile::Symlink(&link_target(*len)), 0o777),
            Op::Readlink { path } => self.with_file(path, |s, id| s.model.readlink(id).map(Outcome::Bytes)),
            Op::Link { from, to } => self.with_file(from, |s, id| {
                s.with_parent(to, |m, dir, name| m.link(id, dir, name).map(|()| Outcome::File(id)))
            }),
            Op::Unlink { path } => self.with_parent(path, |m, dir, n| m.unlink(dir, n).map(|()| Outcome::Done)),
            Op::Rmdir { path } => self.with_parent(path, |m, dir, n| m.rmdir(dir, n).map(|()| Outcome::Done)),
            Op::Rename { from, to, flags } => self.rename(from, to, *flags),
            Op::Write { path, offset, len, tag } => self.with_contents(path, |s, id| {
                let data = pattern::bytes(*tag, *offset, *len);
                s.written = Some(id);
                s.model.write(id, *offset, &data).map(Outcome::Written)
            }),
            Op::Fallocate { path, what, offset, len } => self.with_contents(path, |s, id| {
                s.written = Some(id);
                s.model.fallocate(id, *what, *offset, *len).map(|()| Outcome::File(id))
            }),
            Op::Copy { from, to, offset, to_offset, len } => self.copy((from, *offset), (to, *to_offset), *len),
            Op::Truncate { path, size } => self.with_contents(path, |s, id| {
                s.written = Some(id);
                s.model.setattr(id, SetAttr::default().size(Some(*size)))?;
                Ok(Outcome::File(id))
            }),
            Op::Read { path, offset, len } => {
                self.with_contents(path, |s, id| s.model.read(id, *offset, *len).map(Outcome::Bytes))
            }
            Op::Seek { path, offset } => self.with_file(path, |s, id| {
                let applies = s.model.get(id).content().is_some_and(|c| *offset < c.size());
                Ok(if applies { Outcome::Seek(id, *offset) } else { Outcome::Skipped })
            }),
            Op::Readdir { path, .. } => self.with_file(path, |s, id| match s.model.get(id).entries() {
                Some(e) => Ok(Outcome::Names(e.iter().map(|(n, e)| (n.clone(), e.id)).collect())),
                None => Err(Errno::NOTDIR.into()),
            }),
            Op::ListStart { path, .. } => self.list_start(path),
            Op::ListRest => Ok(self.list_rest()),
            Op::Lookup { path } => self.with_file(path, |_, id| Ok(Outcome::File(id))),
            Op::Chmod { path, perm } => {
                self.setattr(path, |m, id| SetAttr::default().perm(Some(settable(*perm, m.get(id).is_dir()))))
            }
            Op::Chown { path, uid, gid } => {
                self.setattr(path, |_, _| SetAttr::default().uid(Some(*uid)).gid(Some(*gid)))
            }
            Op::SetXattr { path, name, len, tag } => self.with_file(path, |s, id| {
                s.model.set_xattr(id, name, pattern::bytes(*tag, 0, *len)).map(|()| Outcome::File(id))
            }),
            Op::Colocate { path, value } => self.with_file(path, |s, id| {
                let is_dir = s.model.get(id).file_type == FileType::Directory;
                let value = colocation_value(*value, is_dir).into_bytes();
                s.model.set_xattr(id, COLOCATION_ATTRIBUTE, value).map(|()| Outcome::File(id))
            }),
            Op::RemoveXattr { path, name } => {
                self.with_file(path, |s, id| s.model.remove_xattr(id, name).map(|()| Outcome::File(id)))
            }
            Op::Acl { path, default, list } => self.with_file(path, |s, id| {
                match LISTS.get(*list) {
                    Some(entries) => s.model.set_acl(id, *default, entries),
                    None => s.model.remove_acl(id, *default),
                }
                .map(|()| Outcome::File(id))
            }),
            Op::Flags { path, flags } => {
                self.with_file(path, |s, id| s.model.set_flags(id, *flags).map(|()| Outcome::File(id)))
            }
            Op::Utime { path, mtime } => {
                self.setattr(path, |_, _| SetAttr::default().mtime(Some(TimeSpec::At(*mtime))))
            }
            Op::Fsync { path } | Op::Fdatasync { path } => self.with_file(path, |s, id| {
                s.synced.push(id);
                Ok(Outcome::Done)
            }),
            Op::Sync => {
                self.synced.extend(self.model.inodes().map(|(id, _)| id));
                Ok(Outcome::Done)
            }
            Op::Open { slot, path } => self.open(*slot, path),
            Op::Close { slot } => Ok(match self.slots[*slot].take() {
                Some(id) => {
                    self.model.release(id);
                    Outcome::Done
                }
                None => Outcome::Skipped,
            }),
            Op::Remount { .. } => {
                self.slots = [None; SLOTS];
                self.listing = None;
                self.model.release_all();
                self.synced.extend(self.model.inodes().map(|(id, _)| id));
                Ok(Outcome::Done)
            }
            // The runner compares everything with what it was before.
            Op::Regroup { path, .. } => self.with_file(path, |s, id| match s.model.get(id).entries() {
                Some(_) => Ok(Outcome::Done),
                None => Err(Fail(vec![Errno::NOTDIR])),
            }),
            // Nothing that a program sees, but for statfs.
            Op::Grow { .. } | Op::Trim => Ok(Outcome::Done),
            Op::CreateMany { .. } | Op::UnlinkMany { .. } => panic!("expanded before"),
        }
    }

    fn rename(&mut self, from: &Path, to: &Path, flags: RenameFlags) -> Result<Outcome> {
        let (Some(from), Some(to)) = (self.parent(from), self.parent(to)) else {
            return Ok(Outcome::Skipped);
        };
        // The runner resolves `from` first.
        let ((from_dir, from), (to_dir, to)) = (from?, to?);
        self.model.rename(from_dir, &from, to_dir, &to, flags).map(|()| Outcome::Done)
    }

    fn copy(&mut self, (from, offset): (&Path, u64), (to, to_offset): (&Path, u64), len: u64) -> Result<Outcome> {
        self.with_file(from, |s, from| {
            s.with_file(to, |s, to| {
                let regular = |id| s.model.get(id).file_type == FileType::Regular;
                if !regular(from) || !regular(to) {
                    return Ok(Outcome::Skipped);
                }
                s.written = Some(to);
                s.model.copy(from, offset, to, to_offset, len).map(Outcome::Written)
            })
        })
    }

    fn open(&mut self, slot: usize, path: &Path) -> Result<Outcome> {
        self.with_file(path, |s, id| {
            if s.slots[slot].is_some() || path.is_open_file() {
                return Ok(Outcome::Skipped);
            }
            s.slots[slot] = Some(id);
            s.model.hold(id);
            Ok(Outcome::File(id))
        })
    }

    fn list_start(&mut self, path: &Path) -> Result<Outcome> {
        self.with_file(path, |s, id| {
            if s.listing.is_some() || path.is_open_file() {
                return Ok(Outcome::Skipped);
            }
            let entries = s.model.get(id).entries().ok_or(Fail(vec![Errno::NOTDIR]))?;
            let entries = entries.iter().map(|(n, e)| (n.clone(), e.serial)).collect();
            s.model.hold(id);
            s.listing = Some(Listing { dir: id, entries });
            Ok(Outcome::ListStart(id))
        })
    }

    fn list_rest(&mut self) -> Outcome {
        let Some(listing) = self.listing.take() else {
            return Outcome::Skipped;
        };
        let now = self.model.get(listing.dir).entries().expect("a directory");
        let (mut must, mut may) = (BTreeSet::new(), BTreeSet::new());
        for (name, entry) in now {
            let lasted = listing.entries.get(name) == Some(&entry.serial);
            if lasted {
                must.insert(name.clone())
            } else {
                may.insert(name.clone())
            };
        }
        self.model.release(listing.dir);
        Outcome::ListRest(must, may)
    }

    /// The namespace by the engine's numbers.
    pub fn namespace(&self, inos: &BTreeMap<Id, Ino>) -> crate::model::Namespace {
        self.model.namespace(inos)
    }
}
