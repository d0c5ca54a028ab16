//! Removed directories that a file system may still have to keep.
//!
//! A file that is open without a name may stand in the blocks of the directory it was removed from. If that directory is
//! removed as well, a file system may keep it until the file goes, and its owner is charged for it. Nobody can see it, but
//! in the quotas.

use super::inode::{Id, Inode};
use std::collections::BTreeMap;

/// What is known of files without a name.
#[derive(Clone, Debug, Default)]
pub(super) struct Removed {
    /// The directory that a file had its last name in.
    from: BTreeMap<Id, Id>,
    /// Owner and group of the directories that are gone but for that.
    pub(super) kept: BTreeMap<Id, (u32, u32)>,
}

impl Removed {
    /// The last name of `id` was one in `dir`.
    pub fn unnamed(&mut self, id: Id, dir: Id) {
        self.from.insert(id, dir);
    }

    /// A file without a name that nobody refers to any more.
    pub fn gone(&mut self, id: Id, inode: &Inode) {
        if inode.is_dir() {
            self.kept.insert(id, (inode.uid, inode.gid));
        } else {
            self.from.remove(&id);
        }
        // A directory in whose blocks nothing can stand goes, and its own place is free then.
        while let Some(&empty) = self.kept.keys().find(|dir| !self.from.values().any(|d| d == *dir)) {
            self.kept.remove(&empty);
            self.from.remove(&empty);
        }
    }
}
