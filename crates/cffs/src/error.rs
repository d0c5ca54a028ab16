//! The engine's error type.

use crate::format::Corrupt;
use std::io;

/// Why an operation failed. [`Error::errno`] is what a system call would return.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such file or directory.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDir,
    /// Something other than a directory was needed.
    #[error("is a directory")]
    IsDir,
    /// The directory still has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// No space is left; for unprivileged callers, none except the reserve.
    #[error("no space left on the file system")]
    NoSpace,
    /// A quota is used up.
    #[error("disk quota exceeded")]
    Quota,
    /// A rename or link into a directory of another project.
    #[error("the directory belongs to another project")]
    CrossDevice,
    /// An invalid argument; the text says which.
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// The name is longer than 255 bytes.
    #[error("file name too long")]
    NameTooLong,
    /// The file would become larger than the largest possible.
    #[error("file too large")]
    FileTooLarge,
    /// A path leads through more than 40 symbolic links.
    #[error("too many levels of symbolic links")]
    TooManySymlinks,
    /// A file that is open for reading alone was written, or the other way round.
    #[error("file not open for this operation")]
    NotOpenForThis,
    /// The link count is at its limit.
    #[error("too many links")]
    TooManyLinks,
    /// Only the owner or a privileged user may do this, or the file's kind or flags forbid it (EPERM).
    #[error("operation not permitted")]
    NotPermitted,
    /// The file's permissions do not allow it, or only directories have a default access control list (EACCES).
    #[error("permission denied")]
    Denied,
    /// The value of an extended attribute is longer than 65,536 bytes.
    #[error("value of an extended attribute too long")]
    ValueTooLong,
    /// The name of an extended attribute is longer than 255 bytes.
    #[error("name of an extended attribute too long")]
    AttributeNameTooLong,
    /// Mounted read-only, or turned read-only after an error.
    #[error("read-only file system")]
    ReadOnly,
    /// The file system was shut down ([`crate::Fs::shutdown`]): nothing is read or written any more (EIO).
    #[error("the file system was shut down")]
    ShutDown,
    /// The handle's file is gone.
    #[error("stale file handle")]
    Stale,
    /// No such attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// No data (or hole) at or after the position.
    #[error("no data beyond this position")]
    NoDataBeyond,
    /// Not available on this file system.
    #[error("operation not supported")]
    Unsupported,
    /// In use; the text says what.
    #[error("{0}")]
    Busy(String),
    /// A structure on the device is damaged; the text says which and where.
    #[error("file system is damaged: {0}")]
    Corrupt(#[from] Corrupt),
    /// The device failed, or refused what was asked of it.
    #[error("{}{}", prefix(.0), .0)]
    Io(#[source] io::Error),
}

/// What stands before the text of a device. What one of ours refuses, for a reason that its text says, is no failure of it.
fn prefix(e: &io::Error) -> &'static str {
    use io::ErrorKind::{InvalidInput, NotFound, ReadOnlyFilesystem, StorageFull, Unsupported};
    let refused = matches!(e.kind(), InvalidInput | NotFound | ReadOnlyFilesystem | StorageFull | Unsupported);
    if refused && e.raw_os_error().is_none() { "" } else { "input/output error: " }
}

/// An [`Error`] that was converted to [`io::Error`] is restored.
impl From<io::Error> for Error {
    fn from(e: io::Error) -> Error {
        e.downcast::<Error>().unwrap_or_else(Error::Io)
    }
}

/// An I/O error of the device stays the same. Any other error gets the kind of its errno, with the [`Error`] inside.
impl From<Error> for io::Error {
    fn from(e: Error) -> io::Error {
        match e {
            Error::Io(e) => e,
            e => io::Error::new(io::Error::from_raw_os_error(e.errno()).kind(), e),
        }
    }
}

/// Result of an engine operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The error number of errno(3).
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        let e = match self {
            Error::NotFound => Errno::NOENT,
            Error::Exists => Errno::EXIST,
            Error::NotDir => Errno::NOTDIR,
            Error::IsDir => Errno::ISDIR,
            Error::NotEmpty => Errno::NOTEMPTY,
            Error::NoSpace => Errno::NOSPC,
            Error::Quota => Errno::DQUOT,
            Error::CrossDevice => Errno::XDEV,
            Error::Invalid(_) => Errno::INVAL,
            Error::NameTooLong => Errno::NAMETOOLONG,
            Error::FileTooLarge => Errno::FBIG,
            Error::TooManySymlinks => Errno::LOOP,
            Error::NotOpenForThis => Errno::BADF,
            Error::TooManyLinks => Errno::MLINK,
            Error::NotPermitted => Errno::PERM,
            Error::Denied => Errno::ACCESS,
            Error::ValueTooLong => Errno::TOOBIG,
            Error::AttributeNameTooLong => Errno::RANGE,
            Error::ReadOnly => Errno::ROFS,
            Error::Stale => Errno::STALE,
            Error::NoAttribute => Errno::NODATA,
            Error::NoDataBeyond => Errno::NXIO,
            Error::Unsupported => Errno::OPNOTSUPP,
            Error::Busy(_) => Errno::BUSY,
            // The file system below an image file is full, not broken.
            Error::Io(e) if e.kind() == io::ErrorKind::StorageFull => Errno::NOSPC,
            Error::Io(e) if e.kind() == io::ErrorKind::QuotaExceeded => Errno::DQUOT,
            Error::Corrupt(_) | Error::Io(_) | Error::ShutDown => Errno::IO,
        };
        e.raw_os_error()
    }

    /// Shorthand for [`Error::Invalid`].
    pub fn invalid<T>(what: impl Into<String>) -> Result<T> {
        Err(Error::Invalid(what.into()))
    }

    /// A copy to hand to a second waiter. I/O errors keep their kind and text.
    pub fn duplicate(&self) -> Error {
        match self {
            Error::Io(e) => Error::Io(io::Error::new(e.kind(), e.to_string())),
            Error::Corrupt(c) => Error::Corrupt(c.clone()),
            Error::Invalid(s) => Error::Invalid(s.clone()),
            Error::Busy(s) => Error::Busy(s.clone()),
            Error::NotFound => Error::NotFound,
            Error::Exists => Error::Exists,
            Error::NotDir => Error::NotDir,
            Error::IsDir => Error::IsDir,
            Error::NotEmpty => Error::NotEmpty,
            Error::NoSpace => Error::NoSpace,
            Error::Quota => Error::Quota,
            Error::CrossDevice => Error::CrossDevice,
            Error::NameTooLong => Error::NameTooLong,
            Error::FileTooLarge => Error::FileTooLarge,
            Error::TooManySymlinks => Error::TooManySymlinks,
            Error::NotOpenForThis => Error::NotOpenForThis,
            Error::TooManyLinks => Error::TooManyLinks,
            Error::NotPermitted => Error::NotPermitted,
            Error::Denied => Error::Denied,
            Error::ValueTooLong => Error::ValueTooLong,
            Error::AttributeNameTooLong => Error::AttributeNameTooLong,
            Error::ReadOnly => Error::ReadOnly,
            Error::Stale => Error::Stale,
            Error::ShutDown => Error::ShutDown,
            Error::NoAttribute => Error::NoAttribute,
            Error::NoDataBeyond => Error::NoDataBeyond,
            Error::Unsupported => Error::Unsupported,
        }
    }
}
