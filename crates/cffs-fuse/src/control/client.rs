//! The client side of the control channel.

use super::frame::{BODY_MAX, Frame};
use super::request::{MountInfo, Refusal, Reply, Request};
use cffs_buf::control_ioctl;
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Why a request could not be made or was refused.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The path is not on a mounted cffs.
    #[error("{}: not on a mounted cffs: name the directory that one is mounted on", .0.display())]
    NotMounted(PathBuf),
    /// The process that served the mount has ended.
    #[error(
        "{}: nobody serves this mount any more: its process has ended, or was killed; unmount it (`umount -l` where it is in use), and \
         mount it again, which recovers what was committed", .0.display()
    )]
    Gone(PathBuf),
    /// The path could not be opened, or the mount does not answer.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The program that serves the mount has another version of the protocol.
    #[error("{}: the mount is served by another version of cffs: unmount it and mount it again", .0.display())]
    Version(PathBuf),
    /// The file system refused the request.
    #[error("{}: {}", .path.display(), .refusal.message)]
    Refused {
        /// The path.
        path: PathBuf,
        /// The error in its reply.
        refusal: Refusal,
    },
}

impl ControlError {
    /// The errno(3) of the error, if it has one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            ControlError::NotMounted(_) => Some(Errno::NOTTY.raw_os_error()),
            ControlError::Gone(_) => Some(Errno::NOTCONN.raw_os_error()),
            ControlError::Io { error, .. } => error.raw_os_error(),
            ControlError::Version(_) => None,
            ControlError::Refused { refusal, .. } => Some(refusal.errno),
        }
    }
}

/// A mounted file system, for requests.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    file: File,
}

impl Control {
    /// Opens the file system that contains this directory or regular file. Fails if that is not a mounted cffs.
    pub fn open(path: &Path) -> Result<Control, ControlError> {
        let failed = |error| failed(path, error);
        // Opening a pipe would wait for a process at its other end.
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        if !kind.is_dir() && !kind.is_file() {
            return Err(ControlError::NotMounted(path.to_owned()));
        }
        let control = Control { path: path.to_owned(), file: File::open(path).map_err(failed)? };
        // A first request shows whether the file system understands requests.
        control.info()?;
        Ok(control)
    }

    /// Sends a request. Returns the result that its documentation names.
    pub fn call<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ControlError> {
        match serde_json::from_slice(&self.exchange(request)?) {
            Ok(Reply::Ok(value)) => serde_json::from_value(value).map_err(|_| ControlError::Version(self.path.clone())),
            Ok(Reply::Error(refusal)) => Err(ControlError::Refused { path: self.path.clone(), refusal }),
            Err(_) => Err(ControlError::Version(self.path.clone())),
        }
    }

    /// What is mounted and how.
    pub fn info(&self) -> Result<MountInfo, ControlError> {
        self.call(&Request::Info)
    }

    /// The counters.
    pub fn stats(&self) -> Result<Value, ControlError> {
        self.call(&Request::Stats)
    }

    /// The whole text of the reply.
    fn exchange(&self, request: &Request) -> Result<Vec<u8>, ControlError> {
        let body = serde_json::to_vec(request).map_err(|e| self.failed(e.into()))?;
        if body.len() > BODY_MAX {
            return Err(self.failed(io::Error::new(io::ErrorKind::InvalidInput, "the request is too long")));
        }
        let mut text = Vec::new();
        let mut send = Frame { ticket: 0, position: 0, body: &body };
        loop {
            let mut buffer = send.encode().ok_or_else(|| ControlError::Version(self.path.clone()))?;
            control_ioctl(&self.file, &mut buffer).map_err(|e| self.failed(e))?;
            let got = Frame::decode(&buffer[..]).ok_or_else(|| ControlError::Version(self.path.clone()))?;
            text.extend_from_slice(got.body);
            if text.len() as u64 >= got.position || got.body.is_empty() {
                return Ok(text);
            }
            send = Frame { ticket: got.ticket, position: text.len() as u64, body: &[] };
        }
    }

    fn failed(&self, error: io::Error) -> ControlError {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOTTY | Errno::NOSYS | Errno::OPNOTSUPP) => ControlError::NotMounted(self.path.clone()),
            Some(Errno::INVAL) => ControlError::Version(self.path.clone()),
            _ => failed(&self.path, error),
        }
    }
}

fn failed(path: &Path, error: io::Error) -> ControlError {
    let path = path.to_owned();
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        // The first is what all calls get afterwards, the second one what was under way gets.
        Some(Errno::NOTCONN | Errno::CONNABORTED) => ControlError::Gone(path),
        _ => ControlError::Io { path, error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_mount_is_named() {
        let tmp = tempfile::tempdir().unwrap();
        for path in [tmp.path(), Path::new("/proc"), Path::new("/dev/null")] {
            let e = Control::open(path).unwrap_err();
            assert!(matches!(e, ControlError::NotMounted(_)), "{e:?}");
            assert!(e.to_string().contains(path.to_str().unwrap()) && e.to_string().contains("not on a mounted cffs"));
            assert_eq!(e.errno(), Some(Errno::NOTTY.raw_os_error()));
        }
        let e = Control::open(&tmp.path().join("missing")).unwrap_err();
        assert_eq!(e.errno(), Some(Errno::NOENT.raw_os_error()));
    }
}
