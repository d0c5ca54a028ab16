//! A loop device for an image in a file.
//!
//! The kernel knows a mount of type `fuseblk` by a block device. For an image in a file that is a loop device which shows
//! this file. Nobody reads or writes through it: the engine works on the file, as fast as without it and with the same lock.
//! The kernel frees the loop device when its last user closes it, which is the mount, however that ends.

use cffs_buf::{configure_loop_device, free_loop_device};
use rustix::fs::{major, minor};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const CONTROL: &str = "/dev/loop-control";
/// How often another program may be faster in taking the free loop device.
const TRIES: usize = 64;
/// The major number of loop devices.
pub(crate) const LOOP_MAJOR: u32 = 7;

/// A loop device that is freed when this and all other users have closed it.
#[derive(Debug)]
pub(super) struct LoopDevice {
    /// Its device file.
    pub(super) path: PathBuf,
    /// Keeps it until the mount has opened it.
    _file: File,
}

/// Opens a device file, which must be the loop device of this number.
fn open_device(path: &Path, number: u32, read_only: bool) -> io::Result<File> {
    let file = File::options().read(true).write(!read_only).open(path)?;
    let rdev = file.metadata()?.rdev();
    if (major(rdev), minor(rdev)) != (LOOP_MAJOR, number) {
        return Err(io::Error::other(format!("{} is not loop device {number}", path.display())));
    }
    Ok(file)
}

/// Makes a loop device for the file `image`.
pub(super) fn attach(image: &Path, read_only: bool) -> io::Result<LoopDevice> {
    // The file is opened once more, because the lock on the image belongs to the open file of the engine: it must not
    // outlive the process that serves the mount.
    let backing = File::options().read(true).write(!read_only).open(image)?;
    let control = File::options().read(true).write(true).open(CONTROL)?;
    for _ in 0..TRIES {
        let number = free_loop_device(&control)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let file = open_device(&path, number, read_only)?;
        match configure_loop_device(&file, &backing, image.as_os_str().as_bytes(), read_only) {
            Ok(()) => return Ok(LoopDevice { path, _file: file }),
            Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "other programs take each free loop device"))
}

/// The file that a loop device shows; `None` if it is free.
pub(crate) fn backing_file(minor: u32) -> Option<PathBuf> {
    let mut text = std::fs::read(format!("/sys/dev/block/{LOOP_MAJOR}:{minor}/loop/backing_file")).ok()?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    Some(std::ffi::OsString::from_vec(text).into())
}
