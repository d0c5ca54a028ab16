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

/// Snapshots are made of the file system itself.
fn refuse_without_file_system(view: &LogView) -> Result<()> {
    let what = match view {
        LogView::FileSystem => return Ok(()),
        LogView::Alone(view) | LogView::Attached(view) => format!("the snapshot or clone '{view}'"),
        LogView::Temporary => "the file system as it was when this was mounted".into(),
    };
    Error::invalid(format!(
        "this is {what}: snapshots are made of the file system itself, so mount that, or name the image"
    ))
}

/// Carries out a request for snapshots.
pub(super) fn carry_out(shared: &MountState, fs: &Fs, asker: Asker, request: &Request) -> Result<Value> {
    let Some(disk) = shared.log_disk() else {
        return Error::invalid("the file system has not the log layout: it has no snapshots (mkfs --layout=log)");
    };
    match request {
        Request::SnapshotList => value(snapshots::list(disk)),
        Request::SnapshotCreate { name } => {
            refuse_without_file_system(shared.view())?;
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
            let what = match shared.view() {
                LogView::Attached(view) => Some(format!("'{view}'")),
                LogView::Temporary => Some("the file system as it was when this was mounted".into()),
                LogView::FileSystem | LogView::Alone(_) => None,
            };
            if let Some(what) = what {
                return Error::invalid(format!(
                    "this is {what}, mounted beside its file system: name the directory of that, or the image"
                ));
            }
            if name.is_none() {
                refuse_without_file_system(shared.view())?;
            }
            let (views, disk, image, fs) = (shared.views.clone(), disk.clone(), shared.image().to_owned(), shared.fs());
            let (name, dir, options) = (name.clone(), dir.clone(), options.clone());
            // Not here: the directory may be one of this very mount, and whoever looks at it waits for this process.
            value(shared.jobs.begin(move || {
                let mounted = match name {
                    Some(name) => views.mount(&disk, &image, &name, &dir, &options),
                    None => views.mount_now(&disk, &fs, &image, &dir, &options),
                };
                drop(fs);
                let why = |e| match e {
                    Error::Invalid(why) => why,
                    other => other.to_string(),
                };
                (mounted.map(|()| JobOutcome::Mounted).map_err(why), None)
            })?)
        }
        Request::SnapshotOutcome { job } => value(shared.jobs.outcome(*job)?),
        Request::SnapshotUnfinished => value(snapshots::unfinished(disk)?),
        Request::SnapshotAbandon => value(snapshots::abandon(disk)?),
        _ => Err(Error::Unsupported),
    }
}
