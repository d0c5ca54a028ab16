//! A reference to an inode that releases itself.

use crate::error::Result;
use crate::format::{FileType, Ino, ROOT_INO};
use crate::fs::{Attr, Fs};
use std::fmt;
use std::sync::Arc;

/// One reference to an inode.
pub(super) struct InodeRef {
    pub(super) fs: Arc<Fs>,
    pub(super) ino: Ino,
    pub(super) file_type: FileType,
}

impl InodeRef {
    /// Adopts the reference that an operation handed out with the attributes.
    pub(super) fn adopt(fs: &Arc<Fs>, attr: &Attr) -> InodeRef {
        InodeRef { fs: fs.clone(), ino: attr.ino, file_type: attr.file_type }
    }

    /// The root directory.
    pub(super) fn root(fs: &Arc<Fs>) -> Result<InodeRef> {
        Ok(Self::adopt(fs, &fs.reference(ROOT_INO)?))
    }

    /// One more reference to the same inode.
    pub(super) fn duplicate(&self) -> Result<InodeRef> {
        Ok(Self::adopt(&self.fs, &self.fs.reference(self.ino)?))
    }

    /// The file with this name in this directory.
    pub(super) fn child(&self, name: &[u8]) -> Result<InodeRef> {
        Ok(Self::adopt(&self.fs, &self.fs.lookup(self.ino, name)?))
    }

    /// The directory above this directory; the root's is the root.
    pub(super) fn parent(&self) -> Result<InodeRef> {
        Ok(Self::adopt(&self.fs, &self.fs.reference(self.fs.parent(self.ino)?)?))
    }

    pub(super) fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }
}

impl fmt::Debug for InodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeRef").field("ino", &self.ino).field("file_type", &self.file_type).finish_non_exhaustive()
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        self.fs.forget(self.ino, 1);
    }
}
