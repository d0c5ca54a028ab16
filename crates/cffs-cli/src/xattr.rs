//! Extended attributes of files outside of images.

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest list of names, and longest value, in bytes.
const MOST: usize = 65_536;

/// The attributes of a file, a symbolic link itself; none where the file system has no such thing.
pub fn read(path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; MOST];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        other => other?,
    };
    let mut all = BTreeMap::new();
    let mut value = vec![0; MOST];
    for name in names[..len].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        match rustix::fs::lgetxattr(path, name, &mut value[..]) {
            Ok(n) => {
                all.insert(name.to_vec(), value[..n].to_vec());
            }
            // Removed meanwhile, or not for us to see.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(all)
}

/// Sets an attribute of `at` or, with a name, of what has this name in the directory `at`.
pub fn write(at: BorrowedFd<'_>, name: Option<&OsStr>, attribute: &[u8], value: &[u8]) -> rustix::io::Result<()> {
    // By descriptor, as the rest of the export: nobody can put a symbolic link in the way.
    match name {
        None => rustix::fs::fsetxattr(at, attribute, value, XattrFlags::empty()),
        Some(name) => {
            let mut path = format!("/proc/self/fd/{}/", at.as_raw_fd()).into_bytes();
            path.extend_from_slice(name.as_bytes());
            rustix::fs::lsetxattr(path, attribute, value, XattrFlags::empty())
        }
    }
}
