//! Changing the flags of a mount that is in use, as `mount -o remount` does.
//!
//! These flags are the kernel's. If a mount becomes read-only this way, the engine keeps running, and the mount can
//! become writable again. An engine that was opened read-only cannot, because it never writes to the image.

use crate::mountpoint::Unmounter;
use crate::stats_file::read_stats;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::io;
use std::path::Path;

/// What to change; `None` leaves a flag as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remount {
    /// Nothing can be changed.
    pub read_only: Option<bool>,
    /// See [`crate::MountConfig::suid`].
    pub suid: Option<bool>,
    /// See [`crate::MountConfig::dev`].
    pub dev: Option<bool>,
    /// See [`crate::MountConfig::exec`].
    pub exec: Option<bool>,
}

/// Changes the flags of the cffs mounted at `dir`. When a mount becomes read-only, everything is on the image on
/// return.
///
/// # Errors
/// - there is no cffs mounted at `dir`, or the caller is not root;
/// - `ResourceBusy`: it is to become read-only, and a program has a file open for writing;
/// - `ReadOnlyFilesystem`: it is to become writable, and was mounted read-only or has failed;
/// - what writing to the image reports.
pub fn remount(dir: &Path, change: Remount) -> io::Result<()> {
    let dir = dir.canonicalize()?;
    if !Unmounter::of(&dir)?.has_mount() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no cffs is mounted there"));
    }
    // mount(2) clears flags that are not given; it keeps only the mode of access times.
    let now = rustix::fs::statvfs(&dir)?.f_flag;
    let was_read_only = now.contains(StatVfsMountFlags::RDONLY);
    if change.read_only == Some(false) && was_read_only && engine_is_read_only(&dir)? {
        return Err(Errno::ROFS.into());
    }
    let read_only = change.read_only.unwrap_or(was_read_only);
    let opposite = |wanted: Option<bool>, now: bool| wanted.map_or(now, |on| !on);
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, read_only);
    flags.set(MountFlags::NOSUID, opposite(change.suid, now.contains(StatVfsMountFlags::NOSUID)));
    flags.set(MountFlags::NODEV, opposite(change.dev, now.contains(StatVfsMountFlags::NODEV)));
    flags.set(MountFlags::NOEXEC, opposite(change.exec, now.contains(StatVfsMountFlags::NOEXEC)));
    rustix::mount::mount_remount(&dir, flags, c"")?;
    if read_only {
        // The kernel has written back its page cache. An fsync of the root stands for syncfs(2).
        std::fs::File::open(&dir)?.sync_all()?;
    }
    Ok(())
}

fn engine_is_read_only(dir: &Path) -> io::Result<bool> {
    let stats: serde_json::Value = serde_json::from_str(&read_stats(dir)?).map_err(io::Error::other)?;
    Ok(stats["read_only"].as_bool().unwrap_or(false))
}
