//! Mounts of type `fuseblk`, made with the mount API of Linux 5.2: first the super block, which claims the block device, and
//! much later its place in the directory tree.
//!
//! So the engine opens the device while the kernel already keeps others from it, and nobody sees a mount that cannot be used
//! yet. The connection answers messages only after that; until then nobody can reach the mount to send one.

use super::attach::open_connection;
use super::loop_device;
use crate::config::MountConfig;
use rustix::fd::AsFd as _;
use rustix::fs::{CWD, major, minor};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_create_exclusive,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const FSTYPE: &str = "fuseblk";
/// The block size that the kernel sets on the block device; it transfers nothing by itself.
const BLOCK_SIZE: &str = "4096";

/// Loop devices that are tried for one mount. Each failure takes somebody who looks for a mount there at that moment.
const LOOP_DEVICES_TRIED: usize = 8;

/// A mount that no directory shows yet. The kernel keeps its block device from other users. Dropping it ends it.
#[derive(Debug)]
pub struct BlockMount {
    mount: OwnedFd,
    fuse: OwnedFd,
    device: (u32, u32),
}

impl BlockMount {
    /// Claims a block device, which nobody else may have claimed, not even this process (with `O_EXCL`).
    ///
    /// # Errors
    /// `ResourceBusy` if the device is mounted or claimed, or if the kernel forbids writing to mounted devices and a
    /// program has it open for that. Others where there is no `fuseblk`, or not for this user.
    pub fn of_device(device: &Path, config: &MountConfig, read_only: bool) -> io::Result<BlockMount> {
        let rdev = std::fs::metadata(device)?.rdev();
        let fuse = open_connection()?;
        let mut options = config.data_options();
        let user = rustix::process::getuid().as_raw();
        let group = rustix::process::getgid().as_raw();
        options.extend([
            format!("fd={}", fuse.as_raw_fd()),
            "rootmode=40000".into(),
            format!("user_id={user}"),
            format!("group_id={group}"),
            "subtype=cffs".into(),
            format!("blksize={BLOCK_SIZE}"),
        ]);
        if read_only {
            options.push("ro".into());
        }
        // Exclusively: otherwise the kernel would take the super block of a mount that has lost its server.
        let mount = make(device, &options, true, attributes(config, read_only))?;
        Ok(BlockMount { mount, fuse, device: (major(rdev), minor(rdev)) })
    }

    /// Gives an image in a file a loop device, and claims that. The loop device goes away with the mount. What is read and
    /// written through it is up to the page cache: who opens the image reads and writes the file itself.
    ///
    /// # Errors
    /// As [`BlockMount::of_device`]; and where there are no loop devices, or not for this user.
    pub fn of_file(image: &Path, config: &MountConfig, read_only: bool) -> io::Result<BlockMount> {
        // Who looks for a mount on a device that has none any more ([`join`]) makes the kernel take it for one in use for that moment, and the device
        // may have become this one. All that were tried are kept until one is good, or the same one would come again.
        let mut tried = Vec::new();
        loop {
            let device = loop_device::attach(image, read_only)?;
            match BlockMount::of_device(&device.path, config, read_only) {
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy && tried.len() + 1 < LOOP_DEVICES_TRIED => {
                    tried.push(device);
                }
                outcome => return outcome,
            }
        }
    }

    /// The device number (major, minor) of the block device.
    pub fn device(&self) -> (u32, u32) {
        self.device
    }

    /// Shows it at `dir`; returns the connection to the kernel.
    pub(crate) fn attach(self, dir: &Path) -> io::Result<OwnedFd> {
        place(&self.mount, dir)?;
        Ok(self.fuse)
    }
}

/// The flags of a mount that are its own, not its super block's.
pub(crate) fn attributes(config: &MountConfig, read_only: bool) -> MountAttrFlags {
    let mut flags = MountAttrFlags::empty();
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, read_only);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !config.suid);
    flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, !config.dev);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, !config.exec);
    flags
}

/// One more mount of the super block that `device` has already, for [`place`].
///
/// # Errors
/// `ResourceBusy` if one of them is read-only and the other is not, as for any file system; `InvalidInput` if it is not
/// mounted (any more).
pub(crate) fn join(device: &Path, read_only: bool, attributes: MountAttrFlags) -> io::Result<AttachLater> {
    let options = if read_only { vec!["ro".to_owned()] } else { Vec::new() };
    make(device, &options, false, attributes).map(AttachLater)
}

/// A mount that no directory shows yet, of a super block that others show.
#[derive(Debug)]
pub(crate) struct AttachLater(OwnedFd);

impl AttachLater {
    /// Shows it at `dir`.
    pub(crate) fn attach(self, dir: &Path) -> io::Result<()> {
        place(&self.0, dir)
    }
}

/// A mount with a new super block if `exclusive`, otherwise with the one that there is.
fn make(device: &Path, options: &[String], exclusive: bool, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen(FSTYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
    let explain = |e: rustix::io::Errno| {
        // The context has the kernel's own words.
        let mut text = [0; 512];
        let n = rustix::io::read(&context, &mut text).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..n]);
        let e = io::Error::from(e);
        match text.trim() {
            "" => e,
            text => io::Error::new(e.kind(), format!("{e} ({text})")),
        }
    };
    fsconfig_set_string(context.as_fd(), "source", device).map_err(explain)?;
    for option in options {
        match option.split_once('=') {
            Some((name, value)) => fsconfig_set_string(context.as_fd(), name, value),
            None => fsconfig_set_flag(context.as_fd(), option.as_str()),
        }
        .map_err(explain)?;
    }
    if exclusive { fsconfig_create_exclusive(context.as_fd()) } else { fsconfig_create(context.as_fd()) }
        .map_err(explain)?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(explain)
}

fn place(mount: &OwnedFd, dir: &Path) -> io::Result<()> {
    move_mount(mount, "", CWD, dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("move_mount(2) to {}: {e}", dir.display())))
}
