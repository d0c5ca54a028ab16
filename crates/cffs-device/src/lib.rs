//! Block devices behind one trait: what a file system needs of storage, and nothing more.
//!
//! [`Device`] is a positioned, exact transfer in whole sectors. [`FileDevice`] is an image file or a block device,
//! [`MemoryDevice`] is memory; the others wrap a device: they count ([`CountingDevice`]), fail on request
//! ([`FailingDevice`]), keep what is written to themselves ([`OverlayDevice`]) or can be stopped ([`StoppableDevice`]). [`probe_group_size`] times a device.
//! [`Purpose`] says why requests are made, and an [`Observer`] learns of them: also of those that a device makes of others ([`ObservedDevice`]).
//! [`check_read`], [`check_write`] and [`clip_discard`] are for whoever writes another one.
#![forbid(unsafe_code)]

/// For tests that try the orders in which threads can run, the locks are shuttle's.
#[cfg(shuttle)]
extern crate cffs_shuttle as parking_lot;

mod counters;
mod counting;
mod device;
mod failing;
mod file;
mod forward;
mod in_flight;
mod lock;
mod memory;
mod observed;
mod observer;
mod overlay;
mod probe;
mod purpose;
mod queue;
mod range;
mod request;
mod stoppable;

pub use counters::{DeviceStats, DiskStats, KindStats, Latency, PurposeStats};
pub use counting::CountingDevice;
pub use device::{Device, DeviceSpace, ReadRequest, WriteRequest};
pub use failing::{FailingDevice, Fault};
pub use file::{Direct, FileDevice, Lock, OpenMode};
pub use memory::MemoryDevice;
pub use observed::{Disk, ObservedDevice};
pub use observer::{ForWhom, Observed, Observer, Part, Work, WorkScope};
pub use overlay::OverlayDevice;
pub use probe::{FALLBACK_GROUP_SIZE, Probe, ProbeSample, choose_group_size, probe_group_size};
pub use purpose::{OnBehalf, Purpose, PurposeScope};
pub use range::{check_read, check_write, clip_discard};
pub use request::{IoKind, Operation};
pub use stoppable::StoppableDevice;
