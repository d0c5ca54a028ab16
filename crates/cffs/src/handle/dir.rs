//! Open directories, and what can be done by path from them.

use super::entries::Entries;
use super::file::{File, OpenOptions};
use super::inode::InodeRef;
use super::walk::{LastLink, Target, walk};
use crate::error::{Error, Result};
use crate::format::{FileType, Ino};
use crate::fs::{Attr, Caller, Fs, RenameFlags, SetAttr};
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Permissions of directories that are made here.
const DIR_MODE: u16 = 0o755;

/// An open directory. All paths that its methods are given begin here.
#[derive(Debug)]
pub struct Dir {
    inode: InodeRef,
    caller: Caller,
}

impl Fs {
    /// The root directory, for the superuser; [`Dir::as_caller`] makes it another user's.
    pub fn root(self: &Arc<Self>) -> Result<Dir> {
        Ok(Dir { inode: InodeRef::root(self)?, caller: Caller::ROOT })
    }
}

impl Dir {
    /// The same directory for another user: the owner of what is created, who may not use the reserve unless privileged.
    pub fn as_caller(self, caller: Caller) -> Dir {
        Dir { caller, ..self }
    }

    /// The file system, for operations by number.
    pub fn fs(&self) -> &Arc<Fs> {
        &self.inode.fs
    }

    /// The number of its inode, for the operations by number of [`Fs`]. It is good as long as the handle is.
    pub fn ino(&self) -> Ino {
        self.inode.ino
    }

    /// Opens a file to read it.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true))
    }

    /// Creates a file, or empties the one that is there, to write it.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().write(true).create(true).truncate(true))
    }

    /// Opens or creates a regular file. Fails with [`Error::IsDir`] for a directory, [`Error::Invalid`] for another file
    /// that is not a regular one, or for options that contradict each other.
    pub fn open_with(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        options.check()?;
        // Twice if another thread creates or removes the file in between.
        for _ in 0..16 {
            let last = if options.create_new { LastLink::Keep } else { LastLink::Follow };
            let target = self.walk(path.as_ref(), last)?;
            let missing = target.name.is_some() && target.found.is_none();
            if !missing && options.create_new {
                return Err(Error::Exists);
            }
            let inode = match missing && (options.create || options.create_new) {
                false => target.existing()?,
                true if target.wants_dir => return Err(Error::IsDir),
                true => {
                    let (dir, name) = target.into_name()?;
                    match dir.fs.create(self.caller, dir.ino, &name, options.mode) {
                        Err(Error::Exists) => continue,
                        made => InodeRef::adopt(&dir.fs, &made?),
                    }
                }
            };
            return self.opened(inode, options, !missing);
        }
        Err(Error::Stale)
    }

    fn opened(&self, inode: InodeRef, options: OpenOptions, existed: bool) -> Result<File> {
        match inode.file_type {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDir),
            _ => return Error::invalid("not a regular file"),
        }
        let file = File::new(inode, self.caller, options);
        if options.truncate && existed {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Opens a directory.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir> {
        let inode = self.walk(path.as_ref(), LastLink::Follow)?.existing()?;
        if inode.is_dir() { Ok(Dir { inode, caller: self.caller }) } else { Err(Error::NotDir) }
    }

    /// All of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open(path)?;
        // Piece by piece: the size may be anything on a damaged image.
        let piece = file.metadata()?.size.clamp(1 << 12, 1 << 20) as usize;
        let mut out = Vec::new();
        loop {
            let len = out.len();
            out.resize(len + piece, 0);
            let n = file.read_at(&mut out[len..], len as u64)?;
            out.truncate(len + n);
            if n == 0 {
                return Ok(out);
            }
        }
    }

    /// Creates a file with these contents, or replaces the contents of the one that is there.
    pub fn write(&self, path: impl AsRef<Path>, data: impl AsRef<[u8]>) -> Result<()> {
        Ok(self.create(path)?.write_all(data.as_ref())?)
    }

    /// Makes a directory.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<Dir> {
        let (dir, name) = self.walk(path.as_ref(), LastLink::Keep)?.into_new()?;
        let attr = dir.fs.mkdir(self.caller, dir.ino, &name, DIR_MODE)?;
        Ok(Dir { inode: InodeRef::adopt(&dir.fs, &attr), caller: self.caller })
    }

    /// Makes a directory, and those above it that are not there. It may be there already.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<Dir> {
        let path = path.as_ref();
        match self.open_dir(path) {
            Err(Error::NotFound) => {}
            found => return found,
        }
        if let Some(above) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            drop(self.create_dir_all(above)?);
        }
        match self.create_dir(path) {
            Err(Error::Exists) => self.open_dir(path),
            made => made,
        }
    }

    /// Makes a symbolic link. Its target may be anything.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let (dir, name) = self.walk(path.as_ref(), LastLink::Keep)?.into_new()?;
        let attr = dir.fs.symlink(self.caller, dir.ino, &name, target.as_ref().as_os_str().as_bytes())?;
        dir.fs.forget(attr.ino, 1);
        Ok(())
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let link = self.walk(path.as_ref(), LastLink::Keep)?.existing()?;
        Ok(std::ffi::OsString::from_vec(link.fs.readlink(link.ino)?).into())
    }

    /// Gives a file of this directory one more name, in a directory of the same file system.
    pub fn hard_link(&self, file: impl AsRef<Path>, to_dir: &Dir, to: impl AsRef<Path>) -> Result<()> {
        self.same_fs(to_dir)?;
        let file = self.walk(file.as_ref(), LastLink::Keep)?.existing()?;
        let (dir, name) = to_dir.walk(to.as_ref(), LastLink::Keep)?.into_new()?;
        let attr = dir.fs.link(self.caller, file.ino, dir.ino, &name)?;
        dir.fs.forget(attr.ino, 1);
        Ok(())
    }

    /// Gives a file of this directory another name, in a directory of the same file system. A file that has the name is
    /// replaced; after a crash the name stands for the old one or the new one, whole.
    pub fn rename(&self, from: impl AsRef<Path>, to_dir: &Dir, to: impl AsRef<Path>) -> Result<()> {
        self.same_fs(to_dir)?;
        let (from_dir, from) = self.walk(from.as_ref(), LastLink::Keep)?.into_name()?;
        let (to_dir, to) = to_dir.walk(to.as_ref(), LastLink::Keep)?.into_name()?;
        from_dir.fs.rename(self.caller, from_dir.ino, &from, to_dir.ino, &to, RenameFlags::default())
    }

    /// Removes a name of anything but a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let (dir, name) = self.walk(path.as_ref(), LastLink::Keep)?.into_name()?;
        dir.fs.unlink(dir.ino, &name)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let (dir, name) = self.walk(path.as_ref(), LastLink::Keep)?.into_name()?;
        dir.fs.rmdir(dir.ino, &name)
    }

    /// Attributes of a file; of what a symbolic link leads to.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Attr> {
        let inode = self.walk(path.as_ref(), LastLink::Follow)?.existing()?;
        inode.fs.getattr(inode.ino)
    }

    /// Attributes of a file; of a symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Attr> {
        let inode = self.walk(path.as_ref(), LastLink::Keep)?.existing()?;
        inode.fs.getattr(inode.ino)
    }

    /// Changes attributes of a file; of a symbolic link itself.
    pub fn set_attributes(&self, path: impl AsRef<Path>, set: SetAttr) -> Result<Attr> {
        let inode = self.walk(path.as_ref(), LastLink::Keep)?.existing()?;
        inode.fs.setattr(self.caller, inode.ino, set)
    }

    /// The entries of this directory: names and types.
    pub fn entries(&self) -> Result<Entries> {
        Ok(Entries::new(self.inode.duplicate()?, false))
    }

    /// The entries of this directory with their attributes, which mostly stand beside the names.
    pub fn entries_with_attributes(&self) -> Result<Entries> {
        Ok(Entries::new(self.inode.duplicate()?, true))
    }

    /// Makes the names in this directory durable; for the root, everything in the file system.
    pub fn sync(&self) -> Result<()> {
        self.inode.fs.fsync(self.inode.ino, false)
    }

    fn walk(&self, path: &Path, last: LastLink) -> Result<Target> {
        walk(&self.inode, path.as_os_str().as_bytes(), last)
    }

    fn same_fs(&self, other: &Dir) -> Result<()> {
        if Arc::ptr_eq(&self.inode.fs, &other.inode.fs) { Ok(()) } else { Err(Error::CrossDevice) }
    }
}
