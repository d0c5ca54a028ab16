//! Open files.

use super::inode::InodeRef;
use crate::error::{Error, Result};
use crate::format::Ino;
use crate::fs::{Attr, Caller, SetAttr};
use std::io::{self, Read, Seek, SeekFrom, Write};

/// How a file is opened, as [`std::fs::OpenOptions`] says it.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct OpenOptions {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) append: bool,
    pub(super) truncate: bool,
    pub(super) create: bool,
    pub(super) create_new: bool,
    pub(super) mode: u16,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Nothing is set; a new file gets the permissions `0o644`.
    pub const fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let writes = self.write || self.append;
        if !self.read && !writes {
            return Error::invalid("a file is opened to be read, written or appended to");
        }
        if (self.create || self.create_new) && !writes || self.truncate && !self.write {
            return Error::invalid("a file that is only read is neither created nor truncated");
        }
        if self.append && self.truncate {
            return Error::invalid("a file is either truncated or appended to");
        }
        Ok(())
    }
}

/// Gives the options a setter for each field.
macro_rules! const_setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        impl OpenOptions {
            $(
                $(#[$doc])*
                pub const fn $name(mut self, $name: $type) -> Self {
                    self.$name = $name;
                    self
                }
            )*
        }
    };
}

const_setters! {
    /// The file can be read.
    read: bool,
    /// The file can be written.
    write: bool,
    /// Every write goes to the end of the file. Writes of two handles that append at the same time may overlap.
    append: bool,
    /// What is in the file is removed. Needs [`OpenOptions::write`].
    truncate: bool,
    /// The file is created if it is not there. Needs `write` or `append`.
    create: bool,
    /// The file is created, and must not be there. Needs `write` or `append`.
    create_new: bool,
    /// Permission bits (12) of a file that is created.
    mode: u16,
}

/// An open regular file with a position, as [`std::fs::File`].
///
/// What is written is in memory at first; [`File::sync_all`] makes it durable. Dropping the handle loses nothing, but
/// reports nothing either.
#[derive(Debug)]
pub struct File {
    inode: InodeRef,
    caller: Caller,
    options: OpenOptions,
    position: u64,
}

impl File {
    pub(super) fn new(inode: InodeRef, caller: Caller, options: OpenOptions) -> File {
        File { inode, caller, options, position: 0 }
    }

    /// The number of its inode, for the operations by number of [`Fs`](crate::Fs). It is good as long as the handle is.
    pub fn ino(&self) -> Ino {
        self.inode.ino
    }

    /// Attributes.
    pub fn metadata(&self) -> Result<Attr> {
        self.inode.fs.getattr(self.inode.ino)
    }

    /// Changes attributes.
    pub fn set_attributes(&self, set: SetAttr) -> Result<Attr> {
        self.inode.fs.setattr(self.caller, self.inode.ino, set)
    }

    /// Cuts the file, or extends it with zeros that take no space.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.writable()?;
        self.set_attributes(SetAttr::default().size(Some(size))).map(drop)
    }

    /// Reads from a position, and returns how many bytes: less than asked for only at the end of the file. The handle's
    /// own position stays.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if !self.options.read {
            return Err(Error::NotOpenForThis);
        }
        self.inode.fs.read(self.inode.ino, offset, buf)
    }

    /// Writes to a position, and returns how many bytes were taken. The handle's own position stays.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.writable()?;
        self.inode.fs.write(self.caller, self.inode.ino, offset, data)
    }

    /// Makes contents, attributes and names durable. Reports an error of an earlier writeback, once.
    pub fn sync_all(&self) -> Result<()> {
        self.inode.fs.fsync(self.inode.ino, false)
    }

    fn writable(&self) -> Result<()> {
        if self.options.write || self.options.append { Ok(()) } else { Err(Error::NotOpenForThis) }
    }

    fn size(&self) -> Result<u64> {
        Ok(self.metadata()?.size)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.read_at(buf, self.position)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.options.append {
            self.position = self.size()?;
        }
        let n = self.write_at(data, self.position)?;
        self.position += n as u64;
        Ok(n)
    }

    /// Does nothing, as for [`std::fs::File`]: see [`File::sync_all`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(n) => Some(n),
            SeekFrom::Current(n) => self.position.checked_add_signed(n),
            SeekFrom::End(n) => self.size()?.checked_add_signed(n),
        };
        let outside = || Error::Invalid("a position before the start of the file".into());
        self.position = position.ok_or_else(outside)?;
        Ok(self.position)
    }
}
