//! The server side of the control channel: executes requests.

use super::asker::Asker;
use super::frame::Frame;
use super::quota;
use super::request::{MountInfo, Refusal, Reply, Request, Tuned};
use super::snapshot;
use super::trace;
use crate::log_disk::grow_log_disk;
use crate::mount_state::MountState;
use cffs::{Error, Fs, Result};
use cffs_buf::CONTROL_LEN;
use serde::Serialize;
use serde_json::Value;

/// Most inodes of a request whose directories are told.
const PLACES_MAX: usize = 1000;

/// Answers the request in the buffer of [`cffs_buf::CONTROL_IOCTL`]. `None` if it is no request.
pub(crate) fn answer(shared: &MountState, fs: &Fs, asker: Asker, buffer: &[u8]) -> Option<Box<[u8; CONTROL_LEN]>> {
    let frame = Frame::decode(buffer)?;
    if frame.ticket != 0 {
        return shared.answers().next(asker.uid, frame.ticket, frame.position);
    }
    let request: Request = serde_json::from_slice(frame.body).ok()?;
    let result = if request.changes() && !asker.may_change() {
        let message = "only root and the user who mounted the file system may do this".to_owned();
        Err((Error::NotPermitted.errno(), message))
    } else {
        carry_out(shared, fs, asker, &request).map_err(|e| (e.errno(), e.to_string()))
    };
    let reply = match result {
        Ok(value) => Reply::Ok(value),
        Err((errno, message)) => Reply::Error(Refusal { errno, message }),
    };
    shared.answers().first(asker.uid, serde_json::to_vec(&reply).ok()?)
}

fn json(value: impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::Io(e.into()))
}

fn carry_out(shared: &MountState, fs: &Fs, asker: Asker, request: &Request) -> Result<Value> {
    match request {
        Request::Stats => shared.stats(),
        Request::Info => json(info(shared, fs)),
        Request::Sync => json(fs.sync()?),
        Request::QuotaKinds
        | Request::QuotaReport { .. }
        | Request::QuotaSet { .. }
        | Request::QuotaGrace { .. }
        | Request::QuotaProject { .. } => quota::carry_out(fs, asker, request),
        Request::Tune(tune) => {
            let (before, after) = fs.tune(tune)?;
            json(Tuned { before: before.encode().to_vec(), after: after.encode().to_vec() })
        }
        Request::Grow { size } => json(match shared.log_disk() {
            Some(disk) => grow_log_disk(disk, *size)?,
            None => fs.grow(*size)?,
        }),
        Request::Trim(range) => json(fs.trim(*range)?),
        Request::ScrubStart(options) => json(shared.start_scrub(*options)?),
        Request::ScrubStatus => json(shared.scrub.status()),
        Request::ScrubStop => json(shared.scrub.stop()),
        Request::RegroupStart(options) => json(shared.start_regroup(options.clone())?),
        Request::RegroupStatus => json(shared.regroup.status()),
        Request::RegroupStop => json(shared.regroup.stop()),
        Request::Layout { directory, path } => json(cffs::layout::Listed::of(fs, *directory, path)?),
        Request::Places { inodes } => {
            let place = |ino: &u64| fs.directory_of(*ino).map(|(directory, path)| (*ino, directory, path));
            json(inodes.iter().take(PLACES_MAX).filter_map(place).collect::<Vec<_>>())
        }
        Request::TraceStart { .. }
        | Request::TraceListing { .. }
        | Request::TraceClasses { .. }
        | Request::TraceInFlight { .. }
        | Request::TraceRead { .. } => trace::carry_out(fs, request),
        Request::SnapshotList
        | Request::SnapshotCreate { .. }
        | Request::SnapshotDelete { .. }
        | Request::SnapshotClone { .. }
        | Request::SnapshotDiff { .. }
        | Request::SnapshotSend { .. }
        | Request::SnapshotReceive { .. }
        | Request::SnapshotMount { .. }
        | Request::SnapshotOutcome { .. }
        | Request::SnapshotUnfinished
        | Request::SnapshotAbandon => snapshot::carry_out(shared, fs, asker, request),
        Request::VolumeStatus => json(shared.members.report()),
        Request::VolumeAdd { path, overwrite, rate } => json(shared.members.add(path, *overwrite, *rate)?),
        Request::VolumeRemove { member } => json(shared.members.remove(member)?),
        Request::VolumeReplace { old, path, overwrite, rate } => {
            json(shared.members.replace(old, path, *overwrite, *rate)?)
        }
        Request::VolumeResync { rate } => json(shared.members.resync(*rate)?),
        Request::VolumeCompare { rate } => json(shared.compare_members(*rate)?),
        Request::VolumeStop => {
            shared.members.stop();
            json(shared.members.report())
        }
    }
}

fn info(shared: &MountState, fs: &Fs) -> MountInfo {
    let space = fs.statfs();
    let bytes = |frags: u64| frags * u64::from(space.frag_size);
    MountInfo {
        program: env!("CARGO_PKG_VERSION").into(),
        pid: rustix::process::getpid().as_raw_pid(),
        uid: rustix::process::geteuid().as_raw(),
        image: shared.image().to_owned(),
        superblock: fs.superblock().encode().to_vec(),
        log_layout: shared.log_disk().is_some(),
        read_only: fs.is_read_only(),
        failure: fs.failure().map(str::to_owned),
        total_bytes: bytes(space.total),
        free_bytes: bytes(space.free),
        available_bytes: bytes(space.available),
        traced_since_mount: fs.tracer().since_mount().to_string(),
    }
}
