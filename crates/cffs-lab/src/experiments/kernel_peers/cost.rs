//! What is measured, and what it cost.

use cffs_disk::Counters;

/// Bytes of the disk: a little more than the least that xfs takes.
pub const BYTES: u64 = 384 << 20;
/// What is measured, in this order.
pub const WORK: [&str; 8] = [
    "unpack",
    "cold read",
    "tree walk",
    "overwrite",
    "create + fsync",
    "remove",
    "large file: write",
    "large file: read",
];
/// What a part of the work cost.
#[derive(Debug)]
pub struct Cost {
    /// Until it was synced.
    pub work: Counters,
    /// With the mount before it and the unmount.
    pub whole: Counters,
    /// Why this is not what a cold mount takes.
    pub warm: Option<String>,
}

/// Costs of the work.
pub type Costs = [Cost; WORK.len()];
