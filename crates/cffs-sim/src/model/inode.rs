//! A file of the model.

use super::content::Content;
use cffs::FileType;
use std::collections::BTreeMap;

/// Number of a file in the model.
pub type Id = u64;
/// The root directory.
pub const ROOT: Id = 1;

/// A time, as far as it is known without the engine's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The current time at this step of the model's clock: as observed at its first observation, not before any other
    /// time of an earlier step.
    Step(u64),
    /// Exactly this.
    At(i64),
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file.
    pub id: Id,
    /// Identity of the entry itself: a name that was removed and made again has another one.
    pub serial: u64,
}

/// What differs between types of files.
#[derive(Clone, Debug)]
pub enum Body {
    /// A directory.
    Dir {
        /// The names.
        entries: BTreeMap<Vec<u8>, Entry>,
        /// The directory it is named in.
        parent: Id,
    },
    /// A regular file.
    File(Content),
    /// A symbolic link.
    Symlink(Vec<u8>),
    /// Anything else.
    Special,
}

/// A file of any type.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Contents.
    pub body: Body,
    /// Type.
    pub file_type: FileType,
    /// Permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Flags, as `FS_IOC_GETFLAGS` has them.
    pub flags: u32,
    /// Number of names; for a directory 2 and one for each subdirectory, 0 when removed.
    pub nlink: u32,
    /// Made without a name and still without one: it may get one.
    pub linkable: bool,
    /// References that keep it after its last name is gone.
    pub refs: u64,
    /// Modification time.
    pub mtime: Time,
    /// Change time.
    pub ctime: Time,
    /// Step of the clock when the inode's metadata, its names or (of a directory) its entries last changed.
    pub changed: u64,
}

impl Inode {
    /// The contents of a regular file.
    pub fn content(&self) -> Option<&Content> {
        match &self.body {
            Body::File(c) => Some(c),
            _ => None,
        }
    }
    /// The names in a directory.
    pub fn entries(&self) -> Option<&BTreeMap<Vec<u8>, Entry>> {
        match &self.body {
            Body::Dir { entries, .. } => Some(entries),
            _ => None,
        }
    }
    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir { .. })
    }
}
