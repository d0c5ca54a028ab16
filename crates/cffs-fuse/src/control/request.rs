//! Requests and what answers them, as JSON.

use crate::views::ViewOptions;
use cffs::{QuotaGrace, QuotaKind, QuotaLimits, RegroupOptions, ScrubOptions, TrimRange, Tune};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;

/// Bytes of a trace after which an answer to [`Request::TraceRead`] ends with the buffer of a thread.
pub const TRACE_READ_BYTES: usize = 1 << 20;

/// A request to a mounted file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The counters, as an object: those of the engine ([`cffs::stats::FsStats`]), and under `fuse` the process that serves
    /// the mount and the messages it got, by kind.
    Stats,
    /// What is mounted and how: a [`MountInfo`].
    Info,
    /// Makes everything durable, as syncfs(2) does; Linux passes that on to mounts of type `fuseblk` alone, from 6.18 on.
    Sync,
    /// The kinds of quota that the file system keeps: a list of [`QuotaKind`].
    QuotaKinds,
    /// Usage and limits of one user, group or project, or of all: a list of [`cffs::QuotaStatus`]. A caller who may not
    /// change the file system gets the caller's own only.
    QuotaReport {
        /// User, group or project.
        kind: QuotaKind,
        /// Its number; all if it is missing.
        id: Option<u32>,
    },
    /// Sets limits; the answer is a [`cffs::QuotaStatus`].
    QuotaSet {
        /// User, group or project.
        kind: QuotaKind,
        /// Which one; not 0.
        id: u32,
        /// The new limits, all of them.
        limits: QuotaLimits,
    },
    /// The lengths of grace periods, a [`QuotaGrace`]. Sets them first, if given.
    QuotaGrace {
        /// User, group or project.
        kind: QuotaKind,
        /// New lengths.
        set: Option<QuotaGrace>,
    },
    /// Assigns files to a project. The answer is the number of files that still existed.
    QuotaProject {
        /// The project.
        project: u32,
        /// Inode numbers, and for each whether it is a directory whose new files inherit the project.
        files: Vec<(u64, bool)>,
    },
    /// Changes settings in the superblock, as [`cffs::Fs::tune`]. The answer is a [`Tuned`].
    Tune(Tune),
    /// Makes the file system larger, as [`cffs::Fs::grow`]: to `size` bytes, or to the present size of the device. The
    /// answer is a [`cffs::Grown`].
    Grow {
        /// Size in bytes.
        size: Option<u64>,
    },
    /// Discards free space on the device, as [`cffs::Fs::trim`]. The answer is the number of bytes.
    Trim(TrimRange),
    /// Begins to read and verify all metadata, and data that has checksums, in the background, as [`cffs::Fs::scrub`]; one at a time.
    ScrubStart(ScrubOptions),
    /// The progress of the running scrub, or the result of the last one: a [`cffs::ScrubStatus`], null if there was
    /// none since the mount.
    ScrubStatus,
    /// Stops the running scrub. The answer is that of [`Request::ScrubStatus`].
    ScrubStop,
    /// Begins to bring files and directories back together that have come apart, in the background, as
    /// [`cffs::Fs::regroup`]; one at a time.
    RegroupStart(RegroupOptions),
    /// The progress of the running regroup, or the result of the last one: a [`cffs::RegroupStatus`], null if there was
    /// none since the mount.
    RegroupStatus,
    /// Stops the running regroup. The answer is that of [`Request::RegroupStatus`].
    RegroupStop,
    /// Begins to record, as [`cffs::trace::Tracer::start`]. The answer is the number of the recording.
    TraceStart {
        /// As [`cffs::trace::Classes`] is written.
        classes: String,
        /// Names are obfuscated, as [`cffs::Fs::obfuscate_trace`].
        #[serde(default)]
        scramble: bool,
        /// Fail with EBUSY where somebody records already.
        #[serde(default)]
        yields: bool,
    },
    /// Directories of inodes, for people to read. The answer is a list of inode, directory and its path; those that are not known
    /// are left out, and so are all after the first 1,000.
    Places {
        /// Inodes.
        inodes: Vec<u64>,
    },
    /// Where a directory and its files lie: a [`cffs::layout::Listed`].
    Layout {
        /// Its inode.
        directory: u64,
        /// Its path, which the answer has too.
        path: String,
    },
    /// The names in a directory, for the beginning of a recording whose classes are still `none`. The answer is a text: a frame
    /// ([`cffs::trace::Listing`]) in hexadecimal digits. Fails with EBUSY if another recording has begun.
    TraceListing {
        /// The number of the recording.
        recording: u64,
        /// Its inode.
        directory: u64,
        /// Where the piece before said that the next one begins; 0 at first.
        position: u64,
    },
    /// Records other classes from now on; `none` ends it. The answer is null. Fails with EBUSY if another recording has begun.
    TraceClasses {
        /// The number of the recording.
        recording: u64,
        /// As [`cffs::trace::Classes`] is written.
        classes: String,
        /// Before that everything is written, and dropped from memory: [`cffs::Fs::cool`].
        #[serde(default)]
        cold: bool,
    },
    /// Takes what was recorded. The answer is a text: frames of a trace ([`cffs::trace::frame`]) in hexadecimal digits. With fewer
    /// than [`TRACE_READ_BYTES`] it has everything up to this request, which is traced as well. Fails with EBUSY if another
    /// recording has begun.
    TraceRead {
        /// The number of the recording.
        recording: u64,
    },
    /// How many requests of devices have begun while they were recorded, and have not ended; what waits for the thread that reads ahead counts as
    /// well. The answer is a number. Fails with EBUSY if another recording has begun.
    TraceInFlight {
        /// The number of the recording.
        recording: u64,
    },
    /// The snapshots and clones of a file system in the log layout, in the order in which they were made: a list of
    /// [`SnapshotEntry`](crate::snapshots::SnapshotEntry).
    SnapshotList,
    /// Makes everything durable, and a snapshot of it. The answer is its number.
    SnapshotCreate {
        /// Its name, which no other has.
        name: String,
    },
    /// Deletes a snapshot or clone; its space comes back in the background.
    SnapshotDelete {
        /// Its name.
        name: String,
    },
    /// Makes a writable clone of a snapshot. The answer is its number.
    SnapshotClone {
        /// Name of the snapshot.
        name: String,
        /// Name of the clone.
        clone: String,
    },
    /// What differs between two snapshots, or a snapshot and now: a list of [`Difference`](crate::snapshots::Difference).
    SnapshotDiff {
        /// Name of the earlier one.
        from: String,
        /// Name of the later one; now if it is missing.
        to: Option<String>,
    },
    /// Begins to send a snapshot, or what differs from an earlier one, through a pipe. The answer is the number of the work.
    SnapshotSend {
        /// Its name.
        name: String,
        /// Name of the earlier one.
        from: Option<String>,
        /// What the receiver has told to go on with ([`Unfinished::token`](crate::snapshots::Unfinished::token)).
        token: Option<String>,
        /// The descriptor of the pipe in the process that asks; it may be closed when the answer is there.
        fd: u32,
    },
    /// Begins to receive a snapshot through a pipe. The answer is the number of the work.
    SnapshotReceive {
        /// What it is called here; as it is called there if this is missing.
        name: Option<String>,
        /// The descriptor of the pipe in the process that asks; it may be closed when the answer is there.
        fd: u32,
    },
    /// Begins to mount a snapshot or clone beside the file system, by the process that serves that. It ends with it at the latest. The answer is the
    /// number of the work.
    SnapshotMount {
        /// Its name. Without one, a temporary snapshot of everything that was done before is mounted, which nobody else sees, and which goes
        /// with the mount.
        name: Option<String>,
        /// The directory to mount it on, from the root directory on.
        dir: PathBuf,
        /// How.
        options: ViewOptions,
    },
    /// How work that one of the last three has begun ended: a [`JobOutcome`](crate::JobOutcome), null while it lasts.
    SnapshotOutcome {
        /// The number of the work.
        job: u64,
    },
    /// Streams that have begun to come and are not complete: a list of [`Unfinished`](crate::snapshots::Unfinished).
    SnapshotUnfinished,
    /// Forgets what has come of these. The answer is how many there were.
    SnapshotAbandon,
    /// The volume that the file system is on: a [`VolumeReport`](crate::volume::VolumeReport), null if it is on a single device.
    VolumeStatus,
    /// Adds a device to the mirror, or a member that is missing, and fills it in the background. The answer is the identity of the member.
    VolumeAdd {
        /// Absolute path of the device or file.
        path: PathBuf,
        /// It becomes a new member though it is one of this or another volume.
        overwrite: bool,
        /// Most bytes to copy in a second.
        rate: Option<u64>,
    },
    /// Removes a member of the mirror.
    VolumeRemove {
        /// Its identity.
        member: String,
    },
    /// Begins to put a device in the place of a member of the mirror, in the background.
    VolumeReplace {
        /// Identity of the old member, which stays until the new one has everything.
        old: String,
        /// Absolute path of the new device or file.
        path: PathBuf,
        /// As for [`Request::VolumeAdd`].
        overwrite: bool,
        /// Most bytes to copy in a second.
        rate: Option<u64>,
    },
    /// Begins to bring members of the mirror up to date, in the background, if that was stopped or has failed.
    VolumeResync {
        /// Most bytes to copy in a second.
        rate: Option<u64>,
    },
    /// Begins to compare the members of the mirror, in the background.
    VolumeCompare {
        /// Most bytes to compare in a second.
        rate: Option<u64>,
    },
    /// Stops what is done with the members. The answer is that of [`Request::VolumeStatus`].
    VolumeStop,
}

impl Request {
    /// Whether only root and the user who mounted may send it.
    pub fn changes(&self) -> bool {
        match self {
            Request::Stats | Request::Info | Request::Sync => false,
            Request::ScrubStatus | Request::RegroupStatus => false,
            Request::QuotaKinds | Request::QuotaReport { .. } => false,
            Request::QuotaGrace { set, .. } => set.is_some(),
            Request::QuotaSet { .. } | Request::QuotaProject { .. } => true,
            Request::Tune(_) | Request::Grow { .. } | Request::Trim(_) => true,
            Request::ScrubStart(_) | Request::ScrubStop => true,
            Request::RegroupStart(_) | Request::RegroupStop => true,
            Request::TraceStart { .. } | Request::TraceListing { .. } => true,
            // They tell of names that not everybody may see.
            Request::Places { .. } | Request::Layout { .. } => true,
            Request::TraceClasses { .. } | Request::TraceRead { .. } | Request::TraceInFlight { .. } => true,
            Request::SnapshotList => false,
            Request::SnapshotCreate { .. } | Request::SnapshotDelete { .. } | Request::SnapshotClone { .. } => true,
            Request::VolumeStatus => false,
            Request::VolumeAdd { .. } | Request::VolumeRemove { .. } | Request::VolumeReplace { .. } => true,
            Request::VolumeResync { .. } | Request::VolumeCompare { .. } | Request::VolumeStop => true,
            // It tells of names that not everybody may see, and reads everything.
            Request::SnapshotDiff { .. } | Request::SnapshotSend { .. } => true,
            Request::SnapshotReceive { .. } | Request::SnapshotMount { .. } => true,
            Request::SnapshotOutcome { .. } => true,
            Request::SnapshotUnfinished | Request::SnapshotAbandon => true,
        }
    }
}

/// The superblock before and after a change, encoded as on the device ([`cffs::Superblock::decode`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuned {
    /// Before.
    pub before: Vec<u8>,
    /// After.
    pub after: Vec<u8>,
}

/// What is mounted and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountInfo {
    /// Version of the program that serves the mount.
    pub program: String,
    /// The process that serves it.
    pub pid: i32,
    /// The user it belongs to.
    pub uid: u32,
    /// The image or device.
    pub image: String,
    /// The superblock as it is in memory now, encoded as on the device ([`cffs::Superblock::decode`]).
    pub superblock: Vec<u8>,
    /// Whether the image has the log layout.
    #[serde(default)]
    pub log_layout: bool,
    /// Whether nothing can be written.
    pub read_only: bool,
    /// Why it became read-only, if that was an error.
    pub failure: Option<String>,
    /// Space in bytes, as in statvfs(3).
    pub total_bytes: u64,
    /// Free bytes, those for privileged users included.
    pub free_bytes: u64,
    /// Free bytes for everybody.
    pub available_bytes: u64,
    /// What has been recorded since the mount and waits for the first who begins a recording, as [`cffs::trace::Classes`] is written.
    #[serde(default)]
    pub traced_since_mount: String,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// As errno(3).
    pub errno: i32,
    /// What was wrong and what to do, for people.
    pub message: String,
}

/// The content of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// Done.
    Ok(Value),
    /// Not done.
    Error(Refusal),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_readable_json() {
        let json = |r: &Request| serde_json::to_string(r).unwrap();
        assert_eq!(json(&Request::Stats), r#"{"op":"stats"}"#);
        assert_eq!(serde_json::from_str::<Request>(r#"{"op":"sync"}"#).unwrap(), Request::Sync);
        assert!(serde_json::from_str::<Request>(r#"{"op":"nosuch"}"#).is_err());
        let grow = Request::Grow { size: Some(5) };
        assert_eq!(json(&grow), r#"{"op":"grow","size":5}"#);
        assert_eq!(serde_json::from_str::<Request>(r#"{"op":"grow"}"#).unwrap(), Request::Grow { size: None });
        let trim = Request::Trim(TrimRange { start: 1, len: u64::MAX, min_len: 2 });
        assert_eq!(serde_json::from_str::<Request>(&json(&trim)).unwrap(), trim);
        let tune = Request::Tune(Tune::default().uuid(Some([7; 16])).label(Some("x".into())));
        assert_eq!(serde_json::from_str::<Request>(&json(&tune)).unwrap(), tune);
        let scrub = Request::ScrubStart(ScrubOptions::default().rate(Some(7)).metadata_only(true));
        assert_eq!(json(&scrub), r#"{"op":"scrub-start","rate":7,"metadata_only":true}"#);
        assert_eq!(serde_json::from_str::<Request>(&json(&scrub)).unwrap(), scrub);
        assert!(scrub.changes() && !Request::ScrubStatus.changes());
        let regroup = Request::RegroupStart(RegroupOptions::default().directories(vec![1]).budget(Some(9)));
        assert_eq!(serde_json::from_str::<Request>(&json(&regroup)).unwrap(), regroup);
        let short = serde_json::from_str::<Request>(r#"{"op":"regroup-start","directories":[1],"budget":9}"#);
        assert_eq!(short.unwrap(), regroup);
        let all = serde_json::from_str::<Request>(r#"{"op":"regroup-start"}"#);
        assert_eq!(all.unwrap(), Request::RegroupStart(RegroupOptions::default()));
        assert!(regroup.changes() && !Request::RegroupStatus.changes());
        assert!([grow, trim, tune].iter().all(Request::changes) && !Request::Info.changes());
    }
}
