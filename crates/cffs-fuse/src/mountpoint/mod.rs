//! Mounting and unmounting: by system calls, or by fusermount3 for users other than root.
//!
//! A mount is of type `fuse` (`attach`), or of type `fuseblk` where there is a block device that the kernel knows it by
//! (`block_mount`): then the kernel passes sync(2) on (from Linux 6.18), and umount(2) waits until everything is on the device. An image in a
//! file gets a loop device for that (`loop_device`).
//!
//! What is at a path can be another file system by the time a session ends, if `umount` and a new mount came first. So a
//! mount is identified by its device number (`unmount`).

mod attach;
mod block_mount;
mod loop_device;
mod table;
mod unmount;

pub(crate) use attach::attach;
pub use block_mount::BlockMount;
pub(crate) use block_mount::{attributes, join};
pub(crate) use loop_device::{LOOP_MAJOR, backing_file};
pub(crate) use table::{Mounted, mounts};
pub use unmount::Unmounter;
pub(crate) use unmount::{Event, readahead_file};

use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Checks a mount point; returns its absolute path without links.
pub(crate) fn check(dir: &Path) -> Result<PathBuf, String> {
    let name = dir.display();
    let describe = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => format!("mount point {name} does not exist"),
        _ if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            format!("mount point {name} has a dead mount on it; remove it with 'umount {name}' first")
        }
        _ => format!("mount point {name}: {e}"),
    };
    let path = dir.canonicalize().map_err(describe)?;
    let meta = std::fs::metadata(&path).map_err(describe)?;
    if !meta.is_dir() {
        return Err(format!("mount point {name} is not a directory"));
    }
    if path.as_os_str() == OsStr::from_bytes(b"/") {
        return Err("mount point / is the root of the system".into());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_checked() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(check(&tmp.path().join("missing")).unwrap_err().contains("does not exist"));
        assert!(check(&file).unwrap_err().contains("is not a directory"));
        assert!(check(Path::new("/")).unwrap_err().contains("root of the system"));
        assert_eq!(check(tmp.path()).unwrap(), tmp.path().canonicalize().unwrap());
    }
}
