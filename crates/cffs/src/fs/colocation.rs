//! What small files are placed with: keys of directories, lists of files that are read together.
//!
//! Both are stored as one attribute, so programs can set them on a mount without this library.

use super::{Caller, Fs, SetXattr};
use crate::colocation::{self, ColocationKey, Mark};
use crate::error::{Error, Result};
use crate::format::{FileType, Ino, ROOT_INO};
use crate::relocate::DEPTH_MAX;
use crate::trace::Kind;
use std::hash::{DefaultHasher, Hash, Hasher};

impl Fs {
    /// The key that holds in a directory, and the directory that names it; that is the root where none does.
    ///
    /// # Errors
    /// [`Error::NotDir`], [`Error::Stale`], and those of reading directories.
    pub fn colocation_key(&self, dir: Ino) -> Result<(ColocationKey, Ino)> {
        let _span = self.span(Kind::Getxattr, [dir, 0, 0]);
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            let node = self.node(at)?;
            let st = node.state.read();
            if st.freed {
                return Err(Error::Stale);
            }
            if !st.inode.is_dir() {
                return Err(Error::NotDir);
            }
            if let Some(key) = colocation::key_of(&self.cache, &st.inode)? {
                return Ok((key, at));
            }
            if at == ROOT_INO {
                break;
            }
            at = st.inode.parent;
        }
        Ok((ColocationKey::default(), ROOT_INO))
    }

    /// Sets the key by which the small files in a directory are placed together, and in all directories below it that name none
    /// themselves. `None`: it names none any more. Files that are there already move with the next regroup. It is stored as the
    /// attribute `user.cffs.colocate`. The caller has checked permissions.
    ///
    /// # Errors
    /// [`Error::NotDir`], and those of [`Fs::setxattr`].
    pub fn set_colocation_key(&self, c: Caller, dir: Ino, key: Option<&ColocationKey>) -> Result<()> {
        let _span = self.span(Kind::Setxattr, [dir, 0, 0]);
        if !self.node(dir)?.state.read().inode.is_dir() {
            return Err(Error::NotDir);
        }
        match key {
            Some(key) => self.set_colocation(c, dir, key.to_string()),
            None => match self.removexattr(c, dir, COLOCATION_ATTRIBUTE.as_bytes()) {
                Err(Error::NoAttribute) => Ok(()),
                outcome => outcome,
            },
        }
    }

    /// These files are read together, in this order, from whatever directories they come: the next regroup brings them next to each
    /// other. A file belongs to the last list that it was named in. It is stored as the attribute `user.cffs.colocate` of each
    /// file. The caller has checked permissions.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no regular file, before anything is changed; those of [`Fs::setxattr`].
    pub fn read_together(&self, c: Caller, files: &[Ino]) -> Result<()> {
        let _span = self.span(Kind::Setxattr, [files.first().copied().unwrap_or(0), 0, 0]);
        for file in files {
            let node = self.node(*file)?;
            let st = node.state.read();
            if !matches!(st.inode.file_type(), FileType::Regular) {
                return Error::invalid("only regular files can be placed together");
            }
        }
        let Some(first) = files.first() else { return Ok(()) };
        for (file, value) in files.iter().zip(list_values(*first)) {
            self.set_colocation(c, *file, value)?;
        }
        Ok(())
    }

    fn set_colocation(&self, c: Caller, ino: Ino, value: String) -> Result<()> {
        self.setxattr(c, ino, COLOCATION_ATTRIBUTE.as_bytes(), value.as_bytes(), SetXattr::default())
    }

    /// Tells placement of a directory, and of those above it, what their inodes say: after a mount, and when it has dropped
    /// some, it does not know them. What cannot be read is left out. Nothing is locked.
    pub(super) fn track_path(&self, dir: Ino) {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if self.placement.is_tracked(at) {
                return;
            }
            let Ok(node) = self.node(at) else { return };
            let st = node.state.read();
            if st.freed || !st.inode.is_dir() {
                return;
            }
            self.placement.track(&self.cache, &st.inode);
            at = st.inode.parent;
        }
    }

    /// Whether new files in a directory are placed by the process that makes them: it is to be told with [`Fs::note_creator`] then.
    pub fn places_by_process(&self, dir: Ino) -> bool {
        self.placement.key(dir) == ColocationKey::Process
    }

    /// Tells which process has made a file, before its first data is written back: it is stored with that.
    pub fn note_creator(&self, file: Ino, process: u32) {
        let Ok(node) = self.node(file) else { return };
        let mut st = node.state.write();
        // Elsewhere the field has another meaning.
        if st.inode.file_type() == FileType::Regular && !st.orphan && !st.freed {
            st.inode.hint = process.into();
        }
    }
}

/// Values of the attribute [`COLOCATION_ATTRIBUTE`] for the files of a new list, one after the other: for programs that set it on a
/// mount. `first` is the number of its first file.
pub fn list_values(first: Ino) -> impl Iterator<Item = String> {
    // No other list has the same first file and time.
    let mut hasher = DefaultHasher::new();
    (first, super::now()).hash(&mut hasher);
    let list = format!("{:016x}", hasher.finish());
    (0..).map(move |at| Mark::List { list: list.clone(), at }.to_string())
}

/// Name of the extended attribute with the key of a directory, or the list of a file.
pub const COLOCATION_ATTRIBUTE: &str = "user.cffs.colocate";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::xattr::{COLOCATE, Namespace};

    #[test]
    fn the_attribute_is_the_one_that_placement_reads() {
        assert_eq!(COLOCATION_ATTRIBUTE.as_bytes(), [Namespace::User.prefix(), COLOCATE].concat());
        let values: Vec<String> = list_values(1 << 40).take(2).collect();
        assert!(values.iter().all(|v| colocation::is_valid(v.as_bytes(), false)), "{values:?}");
        assert_ne!(values[0], values[1]);
    }
}
