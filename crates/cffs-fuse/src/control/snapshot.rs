//! Snapshots of a mounted file system in the log layout.

use super::asker::Asker;
use super::request::Request;
use crate::mount_state::MountState;
use crate::snapshots;
use crate::transfers::Job;
use cffs::{Error, Fs, Result};
use serde_json::Value;

fn value(of: impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(of).map_err(|e| Error::Io(e.into()))
}

/// Carries out a request for snapshots.
pub(super) fn carry_out(shared: &MountState, fs: &Fs, asker: Asker, request: &Request) -> Result<Value> {
    let Some(disk) = shared.log_disk() else {
        return Error::invalid("the file system has not the log layout: it has no snapshots (mkfs --layout=log)");
    };
    match request {
        Request::SnapshotList => value(snapshots::list(disk)),
        Request::SnapshotCreate { name } => {
            // Everything that was done before the call is in it.
            fs.sync()?;
            value(snapshots::create(disk, name)?)
        }
        Request::SnapshotDelete { name } => value(snapshots::delete(disk, name)?),
        Request::SnapshotClone { name, clone } => value(snapshots::clone(disk, name, clone)?),
        Request::SnapshotDiff { from, to } => {
            let from = snapshots::open(disk, from)?;
            match to {
                Some(to) => value(snapshots::differences(&from, &*snapshots::open(disk, to)?)?),
                None => value(snapshots::differences(&from, fs)?),
            }
        }
        Request::SnapshotSend { name, from, token, fd } => {
            let job = Job::Send(name.clone(), from.clone(), token.clone());
            value(shared.transfers.start(disk.clone(), job, asker.pid, *fd)?)
        }
        Request::SnapshotReceive { name, fd } => {
            value(shared.transfers.start(disk.clone(), Job::Receive(name.clone()), asker.pid, *fd)?)
        }
        Request::SnapshotTransfer { transfer } => value(shared.transfers.outcome(*transfer)?),
        Request::SnapshotUnfinished => value(snapshots::unfinished(disk)?),
        Request::SnapshotAbandon => value(snapshots::abandon(disk)?),
        _ => Err(Error::Unsupported),
    }
}
