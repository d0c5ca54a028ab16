//! Settings of a log disk.

use cffs_device::Observed;

/// How extents are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4: fast.
    Lz4,
    /// Zstandard with a level from 1 to 19.
    Zstd(i32),
}

/// Longest group that a file system is given because what is compressed is shorter.
const GROUP_BYTES_MAX: u32 = 1 << 20;

impl Compression {
    /// How many bytes a file system had better move together, where so many fit the device: what pays to be compressed is half as long, or
    /// less, so a request brings twice as much.
    pub fn group_bytes(self, fits: u32) -> u32 {
        match self {
            Compression::None => fits,
            Compression::Lz4 | Compression::Zstd(_) => fits.max(fits.saturating_mul(2).min(GROUP_BYTES_MAX)),
        }
    }
}

/// How the cleaner chooses segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CleanPolicy {
    /// The one with the fewest live bytes. Copies go where new data goes.
    Greedy,
    /// The one with the best ratio of space gained, times its age, to bytes read and copied (Rosenblum and Ousterhout 1992). Copies
    /// have segments of their own.
    CostBenefit,
    /// The one with the best ratio of space gained, times the root of its age, to bytes copied. What has survived one cleaning has segments of
    /// its own, and what has survived more.
    #[default]
    Generations,
}

/// Settings of an open log disk; none of them is stored.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Nothing is written to the store: no recovery is made durable, writes fail.
    pub read_only: bool,
    /// Go on without what was written last where that cannot be read, which is an error otherwise.
    pub lose_end: bool,
    /// Open also what a rebuilding has made, before it is [marked](crate::LogDisk::mark_lost) which blocks are lost: they read as zeros, as if nothing had
    /// ever been written there. For who marks them.
    pub unmarked: bool,
    /// Nodes of the maps kept in memory, 4 to 8 KiB each: so many clean ones, and as many changed ones, after which a checkpoint is made. At least
    /// 16. Where overwrites are at random, a changed node that has to be stored before others in it change costs as much as a block.
    pub cache_nodes: usize,
    /// Most bytes that are written before a batch ends without a flush. It ends before if a segment does, but not with an atomic write: behind that
    /// mostly comes a flush.
    pub batch_bytes: usize,
    /// Bytes of log after which a checkpoint is made. Bounds the work of recovery.
    pub checkpoint_bytes: u64,
    /// Compression of what is written from now on.
    pub compression: Compression,
    /// How the cleaner chooses.
    pub policy: CleanPolicy,
    /// Who learns of what it does for many, also while it is opened. Of the requests of its store that learns by itself.
    pub observed: Observed,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions {
            read_only: false,
            lose_end: false,
            unmarked: false,
            cache_nodes: 4096,
            batch_bytes: 4 << 20,
            checkpoint_bytes: 256 << 20,
            compression: Compression::None,
            policy: CleanPolicy::default(),
            observed: Observed::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compressed_has_longer_groups_within_bounds() {
        let of = |fits| [Compression::None, Compression::Lz4, Compression::Zstd(3)].map(|c| c.group_bytes(fits));
        assert_eq!(of(256 << 10), [256 << 10, 512 << 10, 512 << 10]);
        assert_eq!(of(1 << 20), [1 << 20; 3]);
        assert_eq!(of(4 << 20), [4 << 20; 3], "it is never made shorter");
    }
}
