//! Making snapshots and clones, deleting them, and opening them.

use super::names::{Named, check_new, find, naming, sources};
use cffs::device::Device;
use cffs::{Error, Fs, MountOptions, Result};
use cffs_logdisk::{LogDisk, MAIN_BRANCH};
use std::sync::Arc;

/// Memory for the metadata of a snapshot that is compared.
const CACHE: usize = 32 << 20;
/// Entries of dead lists that a step of a deletion gives back.
const DELETE_ENTRIES: usize = 4096;

/// Makes a snapshot of what was written so far, also to the file system of the main branch if that is in use; it is durable. Returns its number.
///
/// # Errors
/// [`Error::Invalid`] if the name cannot be used or is taken, or there is too little space; those of the log disk.
pub fn create(disk: &LogDisk, fs: Option<&Fs>, name: &str) -> Result<u64> {
    let _naming = naming();
    check_new(disk, name)?;
    let id = make(disk, fs, MAIN_BRANCH, name)?;
    disk.make_durable()?;
    Ok(id)
}

/// Makes a snapshot of a branch. The file system that uses the disk has promised space of it, and nobody is to lose what was promised.
pub(super) fn make(disk: &LogDisk, fs: Option<&Fs>, branch: u32, name: &str) -> Result<u64> {
    let Some(fs) = fs else { return Ok(disk.snapshot(branch, name)?) };
    loop {
        let costs = disk.snapshot_costs();
        match fs.snapshot_device(costs, || Ok(disk.snapshot_for(branch, name, costs)?)) {
            Err(Error::Io(e)) if e.kind() == std::io::ErrorKind::ResourceBusy => {}
            made => return made,
        }
    }
}

/// Deletes a snapshot or a clone. Its space comes back by [`LogDisk::delete_step`].
///
/// # Errors
/// [`Error::Invalid`] if there is none, or it is in use; those of the log disk.
pub fn delete(disk: &LogDisk, name: &str) -> Result<()> {
    let named = find(disk, name)?;
    let attempt = || match named {
        Named::Snapshot(id) => disk.delete_snapshot(id),
        Named::Clone(branch) => disk.delete_branch(branch),
    };
    let branch = match named {
        Named::Snapshot(id) => disk.snapshots().iter().find(|s| s.id == id).map(|s| s.branch),
        Named::Clone(_) => None,
    };
    let mut deleted = attempt();
    if deleted.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ResourceBusy) {
        // A clone of it may have been deleted just now.
        while disk.delete_step(DELETE_ENTRIES)? {}
        deleted = attempt();
    }
    match deleted {
        Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
            Error::invalid(format!("'{name}' is mounted, or has clones: unmount it, or delete these first"))
        }
        other => {
            other?;
            if let Some(branch) = branch {
                // With the last one of those that were received from there.
                drop_unused(disk, branch)?;
            }
            Ok(disk.make_durable()?)
        }
    }
}

/// Gives the space of all that was deleted back, and makes that durable.
///
/// # Errors
/// Those of the log disk.
pub fn finish_deletions(disk: &LogDisk) -> Result<()> {
    while disk.delete_step(DELETE_ENTRIES)? {}
    Ok(disk.checkpoint()?)
}

/// Makes a writable clone of a snapshot; it is durable. Returns its number.
///
/// # Errors
/// [`Error::Invalid`] if there is no such snapshot, or the name of the clone cannot be used or is taken; those of the log disk.
pub fn clone(disk: &LogDisk, name: &str, clone: &str) -> Result<u32> {
    let _naming = naming();
    check_new(disk, clone)?;
    let Named::Snapshot(id) = find(disk, name)? else {
        return Error::invalid(format!("'{name}' is a clone, and only snapshots are cloned"));
    };
    let branch = disk.clone_snapshot(id, clone)?;
    disk.make_durable()?;
    Ok(branch)
}

/// A snapshot, which cannot be written, or a clone as a device.
///
/// # Errors
/// [`Error::Invalid`] if there is none; those of the log disk.
pub fn device(disk: &LogDisk, name: &str) -> Result<Arc<dyn Device>> {
    Ok(match find(disk, name)? {
        Named::Snapshot(id) => Arc::new(disk.open_snapshot(id)?.to_be_mounted()),
        Named::Clone(branch) => Arc::new(disk.branch(branch)?.to_be_mounted()),
    })
}

/// A snapshot or clone as a file system that is only read.
///
/// # Errors
/// Those of [`device`] and [`Fs::open`].
pub fn open(disk: &LogDisk, name: &str) -> Result<Arc<Fs>> {
    let options = MountOptions::default().read_only(true).background(false).cache_bytes(CACHE);
    Fs::open(device(disk, name)?, None, options)
}

/// Deletes a branch for received snapshots that has none.
pub(super) fn drop_unused(disk: &LogDisk, branch: u32) -> Result<()> {
    let is_source = sources(disk).iter().any(|(b, _)| *b == branch);
    if !is_source || disk.snapshots().iter().any(|s| s.branch == branch) {
        return Ok(());
    }
    // Those that were deleted just now are still in the way.
    while disk.delete_step(DELETE_ENTRIES)? {}
    Ok(disk.delete_branch(branch)?)
}
