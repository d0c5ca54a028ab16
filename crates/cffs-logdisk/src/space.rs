//! How much can still be written.
//!
//! Two sums. What lives must fit with something left over: the cleaner needs room to copy into, a checkpoint room for nodes, and
//! both need segments that are mostly dead to be worth cleaning. And what is written next must find free segments,
//! for which the cleaner runs before a writer when it must.

use crate::extent::BLOCK_BYTES;
use crate::state::State;

/// What a block is taken to cost: itself, its entry in the map and in a summary.
pub(crate) const BLOCK_COST: u64 = BLOCK_BYTES as u64 + 128;
/// Segments that the open streams, and copies of the cleaner, may need at once.
const STREAM_SEGMENTS: u64 = 6;
/// Nodes of a checkpoint that are not counted while they come into memory: of the usage, the catalog and the dead lists.
const USAGE_NODES: u64 = 32;
/// Segments on top of the reserve that never count as space, so that there is always something worth cleaning.
const SPARE_SEGMENTS: u64 = 4;

/// Space of a log disk in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What data and map can take in all.
    pub usable: u64,
    /// What they take: all that some branch or snapshot refers to.
    pub live: u64,
    /// What has been written and is in no batch yet, and what is reserved.
    pub pending: u64,
    /// What can still be written, if nothing is overwritten.
    pub free: u64,
}

impl State {
    /// The space as it is.
    pub(crate) fn space(&self) -> Space {
        let segment = self.store.segment_bytes();
        let capacity = self.store.capacity();
        // Summaries, padding and the ends of segments.
        let overhead = capacity / segment * BLOCK_BYTES as u64 + capacity / 64;
        let spare = (self.cleaner_reserve() + SPARE_SEGMENTS * segment).max(capacity / 16);
        let usable = capacity.saturating_sub(overhead + spare);
        let pending = self.pending.blocks.len() as u64 * BLOCK_COST + self.reserved;
        let free = usable.saturating_sub(self.usage.live + pending);
        Space { usable, live: self.usage.live, pending, free }
    }

    /// Bytes that a checkpoint may take, in whole segments.
    pub(crate) fn checkpoint_need(&self) -> u64 {
        ((self.dirty_max() as u64 + USAGE_NODES) * BLOCK_BYTES as u64).next_multiple_of(self.store.segment_bytes())
    }

    /// Bytes of free segments that only the cleaner and checkpoints may take: for the checkpoint behind a batch, and for a
    /// round of the cleaner with its own.
    pub(crate) fn cleaner_reserve(&self) -> u64 {
        2 * self.checkpoint_need() + STREAM_SEGMENTS * self.store.segment_bytes()
    }

    /// Nodes in memory after which a checkpoint is made.
    pub(crate) fn dirty_max(&self) -> usize {
        let of_store = self.store.capacity() / 64 / BLOCK_BYTES as u64;
        (self.options.cache_nodes / 2).min(usize::try_from(of_store).unwrap_or(usize::MAX)).max(16)
    }

    /// Bytes of pending blocks after which a batch ends by itself.
    pub(crate) fn batch_max(&self) -> usize {
        let of_store = self.store.capacity() / 32;
        self.options.batch_bytes.min(usize::try_from(of_store).unwrap_or(usize::MAX)).max(BLOCK_BYTES)
    }
}
