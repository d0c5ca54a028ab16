//! Snapshots of a mounted file system in the log layout.

use super::request::{Request, SnapshotEntry};
use crate::mount_state::MountState;
use cffs::device::Device;
use cffs::{Error, Fs, Result};
use cffs_logdisk::{LogDisk, MAIN_BRANCH, SnapshotInfo};
use serde_json::Value;

fn value(of: impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(of).map_err(|e| Error::Io(e.into()))
}

/// Carries out a request for snapshots.
pub(super) fn carry_out(shared: &MountState, fs: &Fs, request: &Request) -> Result<Value> {
    let Some(disk) = shared.log_disk() else {
        return Error::invalid("the file system has not the log layout: it has no snapshots (mkfs --layout=log)");
    };
    match request {
        Request::SnapshotList => value(list(disk)),
        Request::SnapshotCreate { name } => {
            check_new(disk, name)?;
            // Everything that was done before the call is in it, and it is durable when the call returns.
            fs.sync()?;
            let id = disk.snapshot(MAIN_BRANCH, name)?;
            disk.flush()?;
            value(id)
        }
        Request::SnapshotDelete { name } => {
            disk.delete_snapshot(find(disk, name)?.id)?;
            value(disk.flush()?)
        }
        Request::SnapshotClone { name, clone } => {
            check_new(disk, clone)?;
            let branch = disk.clone_snapshot(find(disk, name)?.id, clone)?;
            disk.flush()?;
            value(branch)
        }
        Request::SnapshotDiff { from, to } => {
            let from = find(disk, from)?.id;
            let to = match to {
                Some(to) => Some(find(disk, to)?.id),
                None => {
                    fs.sync()?;
                    None
                }
            };
            value(disk.diff(from, to)?)
        }
        _ => Err(Error::Unsupported),
    }
}

/// All snapshots and clones, in the order in which they were made.
fn list(disk: &LogDisk) -> Vec<SnapshotEntry> {
    let snapshots = disk.snapshots();
    let name_of = |id: u64| snapshots.iter().find(|s| s.id == id).map(|s| s.name.clone());
    let clones = disk.branches().into_iter().filter(|b| b.branch != MAIN_BRANCH).map(|b| SnapshotEntry {
        id: b.branch.into(),
        name: b.name,
        clone_of: b.origin.and_then(name_of),
    });
    let of_main = snapshots.iter().filter(|s| s.branch == MAIN_BRANCH);
    let mut all: Vec<SnapshotEntry> =
        of_main.map(|s| SnapshotEntry { id: s.id, name: s.name.clone(), clone_of: None }).chain(clones).collect();
    all.sort_by_key(|e| e.id);
    all
}

fn find(disk: &LogDisk, name: &str) -> Result<SnapshotInfo> {
    let found = disk.snapshots().into_iter().find(|s| s.branch == MAIN_BRANCH && s.name == name);
    found.ok_or_else(|| Error::Invalid(format!("there is no snapshot '{name}'")))
}

fn check_new(disk: &LogDisk, name: &str) -> Result<()> {
    if name.is_empty() || name.contains(['/', '\0', '\n']) {
        return Error::invalid("the name of a snapshot is not empty, and has no slash and no line break");
    }
    if list(disk).iter().any(|e| e.name == name) {
        return Error::invalid(format!("there is a snapshot or clone '{name}' already"));
    }
    Ok(())
}
