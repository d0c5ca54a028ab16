//! A logical disk that is a log, behind the trait [`cffs_device::Device`].
//!
//! Whatever is written goes into *segments* that are written once and never changed; a map says which segment has which
//! logical block. A flush ends a *batch*, which after a crash counts as a whole or not at all, and only if all before it do. Because nothing is
//! overwritten, a snapshot is a second reference to the map.
//!
//! From below:
//!
//! - [`SegmentStore`]: where segments are. [`ImageStore`] has slots on a device, [`MemoryStore`] objects in memory.
//! - `batch`: the summary that describes a batch; `log`: where the next one goes; `packer`: blocks become batches.
//! - `tree`: B+trees of nodes that are copied when they change; `layouts`: what is in each of them.
//! - `usage`: what of each segment is still used; `catalog`: branches and snapshots.
//! - `state`: what each entry of a batch does. Writing and recovery do it by the same code, so that a recovered disk is what it was.
//! - `checkpoint`: what is in memory is stored; `recovery`: the checkpoint and the batches behind it.
//! - `around`: what lies around what is read, for the reads after it.
//! - `check`: counts everything anew and compares; `scrub`: reads and verifies; `mend`: moves what damaged summaries do not describe; `survey`, `rebuild`, `remains`: the disk from its
//!   segments alone.
//! - `space`: what is free, and what must be. `evacuate`: what lives in a segment. `cleaner`: makes room; `snapshots`: makes and deletes them; `disk`: the device, `shared`: what its branches and snapshots have in common; `stream`: snapshots
//!   through a pipe; `dump`: what is there, field by field.
//!
//! # Why it is as it is
//!
//! - **A block has a birth address** (segment and ordinal), and a snapshot's map keeps it for good. A block that a snapshot refers to is moved
//!   by a *forward* from its birth to where it is, so cleaning never touches the maps of snapshots. A forward is only looked
//!   for if the segment of the birth is gone, because until then the block is still there.
//! - **Storing the usage changes the usage.** So the bitmaps and the table of segments are stored first, and what storing
//!   them has changed is in the checkpoint's own record. Opening applies it again.
//! - **Ids of segments have the sequence number of the root in them** instead of a count of slots: an image can grow, and an
//!   id is never given out twice, because a slot is given out again only after another root.
//! - **A summary announces one next segment for all streams**, and where each stream goes on. So the place of
//!   the next batch is one of at most five, and no slot needs a header.
//! - **Several batches can count together**: each but the last says that the next one belongs to it. So what is written atomically need not
//!   fit a segment.
//! - **Entries of dead lists are ordered by version**, so that deleting a snapshot reads only those that become free. Two
//!   lists become one by copying the shorter.
//! - **One lock for the state**: it is held while the log is written or cleaned, and not while data is read, the store is flushed, or deleted
//!   segments are discarded. A deleted segment that is needed before it was discarded is not discarded any more.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

/// For tests that try the orders in which threads can run, the locks are shuttle's.
#[cfg(shuttle)]
extern crate cffs_shuttle as parking_lot;

mod around;
mod arrange;
mod batch;
mod cache;
mod catalog;
mod check;
mod checkpoint;
mod cleaner;
mod codec;
mod compress;
mod contents;
mod copies;
mod covered;
#[cfg(test)]
mod decode_tests;
mod disk;
pub mod dump;
mod evacuate;
mod extent;
#[cfg(test)]
mod hostile_tests;
mod kept;
mod layouts;
mod log;
mod mend;
mod mounts;
mod options;
mod packer;
mod patch;
mod patches;
mod pending;
mod read;
mod rebuild;
mod recent;
mod record;
mod recount;
mod recovery;
mod remains;
mod reserved;
mod root;
mod scan;
mod scrub;
mod shared;
mod snapshots;
mod space;
mod state;
mod stats;
mod store;
mod stream;
mod survey;
mod tree;
mod usage;
mod writer;

pub use batch::{NAME_BYTES_MAX, NewerVersion};
pub use catalog::MAIN_BRANCH;
pub use cleaner::CleanReport;
pub use disk::{BranchDevice, BranchInfo, DiffPage, LogDisk, SnapshotDevice, SnapshotInfo};
pub use extent::{BLOCK_BYTES, SECTOR_BYTES};
pub use mend::{MendReport, SummaryReport};
pub use options::{CleanPolicy, Compression, LogOptions};
pub use rebuild::{RebuildReport, rebuild, recover_image};
pub use recovery::{LOGICAL_BYTES_MAX, UnreadableEnd};
pub use remains::has_remains;
pub use scrub::ScrubReport;
pub use space::Space;
pub use stats::LogStats;
pub use store::{
    Get, ImageOptions, ImageStore, MemoryStore, NO_SEGMENT, ROOT_BYTES_MAX, SegmentId, SegmentStore, StoreRoot,
};
pub use stream::{Outgoing, Progress, ReceiveReport, Receiver, SendReport, SnapshotKey, StreamHeader, send};
