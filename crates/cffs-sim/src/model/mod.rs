//! The reference model: what a file system does, in the simplest data structures that can do it.
//!
//! Files are known by model numbers ([`Id`]), which are never used again. The runner relates them to the inode numbers
//! of the engine. POSIX does not say which error is returned when several apply, so a failing operation returns all
//! that do ([`Fail`]); the engine must return one of them.

pub mod acl;
mod content;
mod inode;
mod namespace;
mod removed;

pub use content::Content;
pub use inode::{Body, Entry, Id, Inode, ROOT, Time};
pub use namespace::{Namespace, Node as NamespaceNode};

use cffs::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE, FLAGS, FLAGS_INHERITED, FLAGS_OF_DIRS};
use cffs::{
    Caller, FILE_SIZE_MAX, Fallocate, FileType, LINK_MAX, NAME_MAX, RenameFlags, SYMLINK_MAX, SetAttr, TimeSpec,
};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// Flags that keep a file as it is.
const LOCKS: u32 = FLAG_IMMUTABLE | FLAG_APPEND;

/// The error numbers of which an operation must return one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fail(pub Vec<Errno>);

impl From<Errno> for Fail {
    fn from(e: Errno) -> Fail {
        Fail(vec![e])
    }
}

/// Result of an operation of the model.
pub type Result<T> = std::result::Result<T, Fail>;

/// Collects the errors that apply.
struct Checks(Vec<Errno>);

impl Checks {
    fn new() -> Checks {
        Checks(Vec::new())
    }
    fn refuse_if(&mut self, condition: bool, e: Errno) {
        if condition {
            self.0.push(e);
        }
    }
    fn done(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Fail(self.0)) }
    }
}

/// What to create.
#[derive(Clone, Debug)]
pub enum NewFile<'a> {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link with its target.
    Symlink(&'a [u8]),
    /// A device, pipe or socket, with its device number.
    Special(FileType, u32),
}

/// The file system.
#[derive(Clone, Debug)]
pub struct Model {
    inodes: BTreeMap<Id, Inode>,
    removed: removed::Removed,
    next_id: Id,
    clock: u64,
    /// What ranges that are collapsed or inserted consist of, in bytes.
    pub block_size: u64,
}

impl Default for Model {
    fn default() -> Self {
        Model::new()
    }
}

impl Model {
    /// Owner and group of each directory that is gone, but for the files that may stand in its blocks.
    pub fn kept_directories(&self) -> impl Iterator<Item = (u32, u32)> {
        self.removed.kept.values().copied()
    }

    /// An empty file system: a root directory.
    pub fn new() -> Model {
        let body = Body::Dir { entries: BTreeMap::new(), parent: ROOT };
        let root = Inode {
            body,
            file_type: FileType::Directory,
            perm: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            xattrs: BTreeMap::new(),
            flags: 0,
            nlink: 2,
            linkable: false,
            refs: 0,
            mtime: Time::Step(0),
            ctime: Time::Step(0),
            changed: 0,
        };
        let inodes = BTreeMap::from([(ROOT, root)]);
        Model { inodes, removed: Default::default(), next_id: ROOT + 1, clock: 0, block_size: 4096 }
    }

    /// Advances the clock: times and changes of one operation carry the same step.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A file. The caller has it from a lookup and its reference.
    pub fn get(&self, id: Id) -> &Inode {
        &self.inodes[&id]
    }

    /// A file, if it still exists.
    pub fn find(&self, id: Id) -> Option<&Inode> {
        self.inodes.get(&id)
    }

    /// All files, with those that have no name left.
    pub fn inodes(&self) -> impl Iterator<Item = (Id, &Inode)> {
        self.inodes.iter().map(|(id, i)| (*id, i))
    }

    fn inode(&mut self, id: Id) -> &mut Inode {
        self.inodes.get_mut(&id).expect("a file that the caller refers to")
    }

    fn entries_of(&self, dir: Id) -> Result<&BTreeMap<Vec<u8>, Entry>> {
        self.get(dir).entries().ok_or(Fail(vec![Errno::NOTDIR]))
    }

    fn dir_mut(&mut self, dir: Id) -> &mut BTreeMap<Vec<u8>, Entry> {
        match &mut self.inode(dir).body {
            Body::Dir { entries, .. } => entries,
            _ => panic!("checked to be a directory"),
        }
    }

    fn changed(&mut self, id: Id, mtime: bool) {
        let now = self.clock;
        let i = self.inode(id);
        i.ctime = Time::Step(now);
        i.changed = now;
        if mtime {
            i.mtime = Time::Step(now);
        }
    }

    fn insert(&mut self, dir: Id, name: &[u8], id: Id) {
        // Steps of the clock number operations; an operation makes at most two entries, under different names.
        let serial = self.clock;
        self.dir_mut(dir).insert(name.to_vec(), Entry { id, serial });
    }

    fn drop_if_unused(&mut self, id: Id) {
        if self.inodes.get(&id).is_some_and(|i| i.nlink == 0 && i.refs == 0)
            && let Some(inode) = self.inodes.remove(&id)
        {
            self.removed.gone(id, &inode);
        }
    }

    /// Takes a reference.
    pub fn hold(&mut self, id: Id) {
        self.inode(id).refs += 1;
    }

    /// Gives a reference back.
    pub fn release(&mut self, id: Id) {
        self.inode(id).refs -= 1;
        self.drop_if_unused(id);
    }

    /// Gives all references back, as unmounting does.
    pub fn release_all(&mut self) {
        self.inodes.retain(|_, i| {
            i.refs = 0;
            i.nlink > 0
        });
        self.removed = Default::default();
    }

    /// The file under a name.
    pub fn lookup(&self, dir: Id, name: &[u8]) -> Result<Id> {
        let entries = self.get(dir).entries();
        let mut checks = Checks::new();
        checks.refuse_if(entries.is_none(), Errno::NOTDIR);
        checks.refuse_if(name.len() > NAME_MAX, Errno::NAMETOOLONG);
        checks.done()?;
        entries.and_then(|e| e.get(name)).map(|e| e.id).ok_or(Fail(vec![Errno::NOENT]))
    }

    /// The directory above.
    pub fn parent(&self, dir: Id) -> Result<Id> {
        match self.get(dir).body {
            Body::Dir { parent, .. } => Ok(parent),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// True if `id` is `top` or lies below it.
    fn within(&self, mut id: Id, top: Id) -> bool {
        loop {
            if id == top {
                return true;
            }
            // A directory that was removed while open may have outlived the one above it.
            match self.find(id).map(|i| &i.body) {
                Some(Body::Dir { parent, .. }) if id != ROOT => id = *parent,
                _ => return false,
            }
        }
    }

    /// Errors of making a name.
    fn check_new_name(&self, dir: Id, name: &[u8], checks: &mut Checks) {
        let entries = self.get(dir).entries();
        checks.refuse_if(entries.is_none(), Errno::NOTDIR);
        checks.refuse_if(name.len() > NAME_MAX, Errno::NAMETOOLONG);
        checks.refuse_if(entries.is_some_and(|e| e.contains_key(name)), Errno::EXIST);
        checks.refuse_if(self.get(dir).nlink == 0, Errno::NOENT);
        self.check_flags(dir, FLAG_IMMUTABLE, checks);
    }

    fn check_flags(&self, id: Id, flags: u32, checks: &mut Checks) {
        checks.refuse_if(self.get(id).flags & flags != 0, Errno::PERM);
    }

    /// Sets the flags of a file or directory.
    pub fn set_flags(&mut self, id: Id, flags: u32) -> Result<()> {
        let allowed = match self.get(id).file_type {
            FileType::Directory => FLAGS,
            FileType::Regular => FLAGS & !FLAGS_OF_DIRS,
            _ => 0,
        };
        if !matches!(self.get(id).file_type, FileType::Directory | FileType::Regular) || flags & !allowed != 0 {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.changed(id, false);
        self.inode(id).flags = flags;
        Ok(())
    }

    /// Creates a file of any type.
    pub fn create(&mut self, c: Caller, dir: Id, name: &[u8], what: NewFile<'_>, perm: u16) -> Result<Id> {
        let mut checks = Checks::new();
        self.check_new_name(dir, name, &mut checks);
        if let NewFile::Symlink(target) = what {
            checks.refuse_if(target.len() > SYMLINK_MAX, Errno::NAMETOOLONG);
        }
        checks.done()?;
        let id = self.make(c, dir, what, perm);
        self.insert(dir, name, id);
        if self.get(id).is_dir() {
            self.inode(dir).nlink += 1;
        }
        self.changed(dir, true);
        Ok(id)
    }

    /// Creates a regular file without a name, and holds it.
    pub fn tmpfile(&mut self, c: Caller, dir: Id, perm: u16) -> Result<Id> {
        let mut checks = Checks::new();
        checks.refuse_if(!self.get(dir).is_dir(), Errno::NOTDIR);
        checks.refuse_if(self.get(dir).nlink == 0, Errno::NOENT);
        self.check_flags(dir, FLAG_IMMUTABLE, &mut checks);
        checks.done()?;
        let id = self.make(c, dir, NewFile::Regular, perm);
        let i = self.inode(id);
        (i.nlink, i.linkable, i.refs) = (0, true, 1);
        Ok(id)
    }

    /// A file that nothing names yet, with what it has from the directory that it is made in.
    fn make(&mut self, c: Caller, dir: Id, what: NewFile<'_>, perm: u16) -> Id {
        let (body, file_type, rdev) = match what {
            NewFile::Regular => (Body::File(Content::default()), FileType::Regular, 0),
            NewFile::Directory => (Body::Dir { entries: BTreeMap::new(), parent: dir }, FileType::Directory, 0),
            NewFile::Symlink(target) => (Body::Symlink(target.to_vec()), FileType::Symlink, 0),
            NewFile::Special(t, rdev) => {
                let device = matches!(t, FileType::CharDevice | FileType::BlockDevice);
                (Body::Special, t, if device { rdev } else { 0 })
            }
        };
        let is_dir = file_type == FileType::Directory;
        let above = self.get(dir);
        let set_gid = above.perm & 0o2000 != 0;
        let gid = if set_gid { above.gid } else { c.gid };
        let perm = if file_type == FileType::Symlink {
            0o777
        } else if set_gid && is_dir {
            perm | 0o2000
        } else {
            perm
        };
        let flags = match file_type {
            FileType::Directory => above.flags & FLAGS_INHERITED,
            FileType::Regular => above.flags & FLAGS_INHERITED & !FLAGS_OF_DIRS,
            _ => 0,
        };
        let id = self.next_id;
        self.next_id += 1;
        let now = Time::Step(self.clock);
        let inode = Inode {
            body,
            file_type,
            perm,
            uid: c.uid,
            gid,
            rdev,
            xattrs: BTreeMap::new(),
            flags,
            nlink: if is_dir { 2 } else { 1 },
            linkable: false,
            refs: 0,
            mtime: now,
            ctime: now,
            changed: self.clock,
        };
        self.inodes.insert(id, inode);
        if file_type != FileType::Symlink {
            let perm = self.inherit_acl(dir, id, perm);
            self.inode(id).perm = perm;
        }
        id
    }

    /// Another name for a file.
    pub fn link(&mut self, id: Id, dir: Id, name: &[u8]) -> Result<()> {
        let mut checks = Checks::new();
        self.check_new_name(dir, name, &mut checks);
        let file = self.get(id);
        checks.refuse_if(file.is_dir(), Errno::PERM);
        checks.refuse_if(file.nlink == 0 && !file.linkable, Errno::NOENT);
        checks.refuse_if(file.nlink >= LINK_MAX, Errno::MLINK);
        self.check_flags(id, LOCKS, &mut checks);
        checks.done()?;
        self.insert(dir, name, id);
        let i = self.inode(id);
        (i.nlink, i.linkable) = (i.nlink + 1, false);
        self.changed(id, false);
        self.changed(dir, true);
        Ok(())
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&mut self, dir: Id, name: &[u8]) -> Result<()> {
        let id = self.lookup(dir, name)?;
        let mut checks = Checks::new();
        checks.refuse_if(self.get(id).is_dir(), Errno::ISDIR);
        self.check_flags(id, LOCKS, &mut checks);
        self.check_flags(dir, LOCKS, &mut checks);
        checks.done()?;
        self.remove(dir, name, id);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, dir: Id, name: &[u8]) -> Result<()> {
        let id = self.lookup(dir, name)?;
        let mut checks = Checks::new();
        checks.refuse_if(!self.entries_of(id)?.is_empty(), Errno::NOTEMPTY);
        self.check_flags(id, LOCKS, &mut checks);
        self.check_flags(dir, LOCKS, &mut checks);
        checks.done()?;
        self.remove(dir, name, id);
        Ok(())
    }

    fn remove(&mut self, dir: Id, name: &[u8], id: Id) {
        self.dir_mut(dir).remove(name);
        self.unnamed(dir, id);
        self.changed(dir, true);
    }

    /// Accounts for a name in `dir` that `id` has lost.
    fn unnamed(&mut self, dir: Id, id: Id) {
        self.changed(id, false);
        if self.get(id).is_dir() {
            self.inode(id).nlink = 0;
            self.inode(dir).nlink -= 1;
        } else {
            self.inode(id).nlink -= 1;
        }
        if self.get(id).nlink == 0 {
            self.removed.unnamed(id, dir);
        }
        self.drop_if_unused(id);
    }

    /// Renames, replaces, or swaps.
    pub fn rename(&mut self, from_dir: Id, from: &[u8], to_dir: Id, to: &[u8], flags: RenameFlags) -> Result<()> {
        let mut checks = Checks::new();
        checks.refuse_if(flags.no_replace && flags.exchange, Errno::INVAL);
        checks.refuse_if(from.len() > NAME_MAX || to.len() > NAME_MAX, Errno::NAMETOOLONG);
        let (sources, targets) = (self.get(from_dir).entries(), self.get(to_dir).entries());
        checks.refuse_if(sources.is_none() || targets.is_none(), Errno::NOTDIR);
        let source = sources.and_then(|s| s.get(from)).map(|e| e.id);
        let target = targets.and_then(|t| t.get(to)).map(|e| e.id);
        checks.refuse_if(source.is_none(), Errno::NOENT);
        checks.refuse_if(flags.no_replace && target.is_some(), Errno::EXIST);
        checks.refuse_if(flags.exchange && target.is_none(), Errno::NOENT);
        checks.refuse_if(target.is_none() && self.get(to_dir).nlink == 0, Errno::NOENT);
        let Some(source) = source else {
            return checks.done();
        };
        if target == Some(source) {
            // Two names of one file (or one name): nothing happens.
            return checks.done();
        }
        let source_is_dir = self.get(source).is_dir();
        self.check_flags(source, LOCKS, &mut checks);
        self.check_flags(from_dir, LOCKS, &mut checks);
        self.check_flags(to_dir, if target.is_some() { LOCKS } else { FLAG_IMMUTABLE }, &mut checks);
        if let Some(target) = target {
            self.check_flags(target, LOCKS, &mut checks);
        }
        checks.refuse_if(source_is_dir && self.within(to_dir, source), Errno::INVAL);
        if let Some(target) = target {
            let target_is_dir = self.get(target).is_dir();
            if flags.exchange {
                checks.refuse_if(target_is_dir && self.within(from_dir, target), Errno::INVAL);
            } else {
                checks.refuse_if(source_is_dir && !target_is_dir, Errno::NOTDIR);
                checks.refuse_if(!source_is_dir && target_is_dir, Errno::ISDIR);
                let full = self.get(target).entries().is_some_and(|e| !e.is_empty());
                checks.refuse_if(full, Errno::NOTEMPTY);
            }
        }
        checks.done()?;
        self.dir_mut(from_dir).remove(from);
        if let Some(target) = target {
            self.dir_mut(to_dir).remove(to);
            if flags.exchange {
                self.insert(from_dir, from, target);
                self.moved(target, to_dir, from_dir);
            } else {
                self.unnamed(to_dir, target);
            }
        }
        self.insert(to_dir, to, source);
        self.moved(source, from_dir, to_dir);
        self.changed(from_dir, true);
        self.changed(to_dir, true);
        Ok(())
    }

    fn moved(&mut self, id: Id, from_dir: Id, to_dir: Id) {
        if let Body::Dir { parent, .. } = &mut self.inode(id).body {
            *parent = to_dir;
            self.inode(from_dir).nlink -= 1;
            self.inode(to_dir).nlink += 1;
        }
        self.changed(id, false);
    }

    /// Target of a symbolic link.
    pub fn readlink(&self, id: Id) -> Result<Vec<u8>> {
        match &self.get(id).body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn content(&self, id: Id) -> Result<&Content> {
        match &self.get(id).body {
            Body::File(c) => Ok(c),
            Body::Dir { .. } => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Reads; returns the bytes there were.
    pub fn read(&self, id: Id, offset: u64, len: usize) -> Result<Vec<u8>> {
        let content = self.content(id)?;
        let mut buf = vec![0; len];
        let n = content.read(offset, &mut buf);
        buf.truncate(n);
        Ok(buf)
    }

    /// Writes; returns how much.
    pub fn write(&mut self, id: Id, offset: u64, data: &[u8]) -> Result<usize> {
        let size = self.content(id)?.size();
        let mut checks = Checks::new();
        self.check_flags(id, FLAG_IMMUTABLE, &mut checks);
        if !data.is_empty() && offset != size {
            self.check_flags(id, FLAG_APPEND, &mut checks);
        }
        let too_far = offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_SIZE_MAX);
        checks.refuse_if(too_far && !data.is_empty(), Errno::FBIG);
        checks.done()?;
        if data.is_empty() {
            return Ok(0);
        }
        if let Body::File(c) = &mut self.inode(id).body {
            c.write(offset, data);
        }
        // Not `changed`: contents have promises of their own.
        let now = Time::Step(self.clock);
        let i = self.inode(id);
        (i.mtime, i.ctime) = (now, now);
        Ok(data.len())
    }

    /// Changes the space of a range.
    pub fn fallocate(&mut self, id: Id, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        let size = self.content(id)?.size();
        let end = offset.checked_add(len).filter(|e| *e <= FILE_SIZE_MAX);
        let whole = offset.is_multiple_of(self.block_size) && len.is_multiple_of(self.block_size);
        let mut checks = Checks::new();
        checks.refuse_if(len == 0, Errno::INVAL);
        let locks = if matches!(what, Fallocate::Allocate { .. }) { FLAG_IMMUTABLE } else { LOCKS };
        self.check_flags(id, locks, &mut checks);
        checks.refuse_if(end.is_none(), Errno::FBIG);
        match what {
            Fallocate::Collapse => checks.refuse_if(!whole || end.is_some_and(|e| e >= size), Errno::INVAL),
            Fallocate::Insert => {
                checks.refuse_if(!whole || offset >= size, Errno::INVAL);
                checks.refuse_if(size.checked_add(len).is_none_or(|s| s > FILE_SIZE_MAX), Errno::FBIG);
            }
            _ => {}
        }
        checks.done()?;
        let end = offset + len;
        if let Body::File(c) = &mut self.inode(id).body {
            match what {
                Fallocate::Allocate { .. } => {}
                Fallocate::PunchHole | Fallocate::Zero { .. } => c.zero(offset, end),
                Fallocate::Collapse => c.collapse(offset, end),
                Fallocate::Insert => c.insert(offset, len),
            }
            let grows =
                Fallocate::Allocate { keep_size: false } == what || Fallocate::Zero { keep_size: false } == what;
            if grows && end > size {
                c.resize(end);
            }
        }
        let now = Time::Step(self.clock);
        let i = self.inode(id);
        (i.mtime, i.ctime) = (now, now);
        Ok(())
    }

    /// Copies between files; returns how much.
    pub fn copy(&mut self, from: Id, offset: u64, to: Id, to_offset: u64, len: u64) -> Result<usize> {
        let source = self.content(from)?.clone();
        self.content(to)?;
        let len = len.min(source.size().saturating_sub(offset));
        let mut checks = Checks::new();
        checks.refuse_if(to_offset.checked_add(len).is_none_or(|e| e > FILE_SIZE_MAX), Errno::FBIG);
        checks.refuse_if(from == to && offset.abs_diff(to_offset) < len, Errno::INVAL);
        if len > 0 {
            self.check_flags(to, FLAG_IMMUTABLE, &mut checks);
            if to_offset != self.content(to)?.size() {
                self.check_flags(to, FLAG_APPEND, &mut checks);
            }
        }
        checks.done()?;
        if len == 0 {
            return Ok(0);
        }
        if let Body::File(c) = &mut self.inode(to).body {
            c.copy(&source, offset, to_offset, len);
        }
        let now = Time::Step(self.clock);
        let i = self.inode(to);
        (i.mtime, i.ctime) = (now, now);
        Ok(len as usize)
    }

    fn check_xattr(&self, id: Id, name: &str) -> Result<()> {
        let has_user = matches!(self.get(id).file_type, FileType::Regular | FileType::Directory);
        let locked = self.get(id).flags & LOCKS != 0;
        if locked || name.starts_with("user.") && !has_user { Err(Errno::PERM.into()) } else { Ok(()) }
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, id: Id, name: &str, value: Vec<u8>) -> Result<()> {
        self.check_xattr(id, name)?;
        self.changed(id, false);
        self.inode(id).xattrs.insert(name.to_owned(), value);
        Ok(())
    }

    /// Removes one.
    pub fn remove_xattr(&mut self, id: Id, name: &str) -> Result<()> {
        self.check_xattr(id, name)?;
        if self.inode(id).xattrs.remove(name).is_none() {
            return Err(Errno::NODATA.into());
        }
        self.changed(id, false);
        Ok(())
    }

    /// Changes attributes.
    pub fn setattr(&mut self, id: Id, set: SetAttr) -> Result<()> {
        let mut checks = Checks::new();
        self.check_flags(id, LOCKS, &mut checks);
        if let Some(size) = set.size {
            if let Err(Fail(any)) = self.content(id) {
                checks.0.extend(any);
            } else if size > FILE_SIZE_MAX {
                checks.0.extend([Errno::FBIG, Errno::INVAL]);
            }
        }
        checks.done()?;
        self.changed(id, set.size.is_some());
        if let Some(perm) = set.perm {
            self.chmod_acl(id, perm);
        }
        let i = self.inode(id);
        if let (Some(size), Body::File(c)) = (set.size, &mut i.body) {
            c.resize(size);
        }
        i.perm = set.perm.unwrap_or(i.perm);
        i.uid = set.uid.unwrap_or(i.uid);
        i.gid = set.gid.unwrap_or(i.gid);
        let now = i.ctime;
        match set.mtime {
            Some(TimeSpec::Now) => i.mtime = now,
            Some(TimeSpec::At(t)) => i.mtime = Time::At(t),
            None => {}
        }
        Ok(())
    }
}
