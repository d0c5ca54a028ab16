//! Block devices behind one trait: what a file system needs of storage, and nothing more.
//!
//! [`Device`] is a positioned, exact transfer in whole sectors. [`FileDevice`] is an image file or a block device,
//! [`MemoryDevice`] is memory; the others wrap a device: they count ([`CountingDevice`]), fail on request
//! ([`FailingDevice`]), keep what is written to themselves ([`OverlayDevice`]) or can be stopped ([`StoppableDevice`]). [`probe_group_size`] times a device.
//! [`Purpose`] says why requests are made.
//! [`check_read`], [`check_write`] and [`clip_discard`] are for whoever writes another one.
#![forbid(unsafe_code)]

/// For tests that try the orders in which threads can run, the locks are shuttle's.
#[cfg(shuttle)]
extern crate cffs_shuttle as parking_lot;

mod counting;
mod device;
mod failing;
mod file;
mod forward;
mod lock;
mod memory;
mod overlay;
mod probe;
mod purpose;
mod range;
mod stoppable;

pub use counting::{CountingDevice, DeviceStats, KindStats, Latency, PurposeStats};
pub use device::{Device, IoKind, ReadRequest, WriteRequest};
pub use failing::{FailingDevice, Fault, Operation};
pub use file::{Direct, FileDevice, Lock, OpenMode};
pub use memory::MemoryDevice;
pub use overlay::OverlayDevice;
pub use probe::{FALLBACK_GROUP_SIZE, Probe, ProbeSample, choose_group_size, probe_group_size};
pub use purpose::{Purpose, PurposeScope};
pub use range::{check_read, check_write, clip_discard};
pub use stoppable::StoppableDevice;
