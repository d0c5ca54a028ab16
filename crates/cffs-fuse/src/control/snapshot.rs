//! Snapshots of a mounted file system in the log layout.

use super::asker::Asker;
use super::request::Request;
use crate::config::LogView;
use crate::jobs::JobOutcome;
use crate::mount_state::MountState;
use crate::snapshots;
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
            if let LogView::Alone(view) | LogView::Attached(view) = shared.view() {
                return Error::invalid(format!(
                    "this is the snapshot or clone '{view}': snapshots are made of the file system itself, so mount that, or name the image"
                ));
            }
            // Everything that was done before the call is in it.
            value(snapshots::create(disk, Some(fs), name)?)
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
            let what = (name.clone(), from.clone(), token.clone());
            value(shared.jobs.send(disk.clone(), what, asker.pid, *fd)?)
        }
        Request::SnapshotReceive { name, fd } => {
            value(shared.jobs.receive((disk.clone(), Some(shared.fs())), name.clone(), asker.pid, *fd)?)
        }
        Request::SnapshotMount { name, dir, options } => {
            if let LogView::Attached(view) = shared.view() {
                return Error::invalid(format!(
                    "this is '{view}', mounted beside its file system: name the directory of that, or the image"
                ));
            }
            let (views, disk, image) = (shared.views.clone(), disk.clone(), shared.image().to_owned());
            let (name, dir, options) = (name.clone(), dir.clone(), options.clone());
            // Not here: the directory may be one of this very mount, and whoever looks at it waits for this process.
            value(shared.jobs.begin(move || {
                let mounted = views.mount(&disk, &image, &name, &dir, &options);
                (mounted.map(|()| JobOutcome::Mounted).map_err(|e| e.to_string()), None)
            })?)
        }
        Request::SnapshotOutcome { job } => value(shared.jobs.outcome(*job)?),
        Request::SnapshotUnfinished => value(snapshots::unfinished(disk)?),
        Request::SnapshotAbandon => value(snapshots::abandon(disk)?),
        _ => Err(Error::Unsupported),
    }
}
