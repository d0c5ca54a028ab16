//! How much can still be written.
//!
//! Two sums. What lives must fit with something left over: the cleaner needs room to copy into, a checkpoint room for nodes, and
//! both need segments that are mostly dead to be worth cleaning. And what is written next must find free segments,
//! for which the cleaner runs before a writer when it must.

use crate::extent::BLOCK_BYTES;
use crate::state::State;

/// What a block is taken to cost: itself, its entry in the map and in a summary.
pub(crate) const BLOCK_COST: u64 = BLOCK_BYTES as u64 + 128;
/// Segments that only the cleaner and checkpoints may take.
pub(crate) const CLEANER_SEGMENTS: u64 = 6;
/// Segments that never count as space.
const SPARE_SEGMENTS: u64 = 10;

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
        let spare = (SPARE_SEGMENTS * segment).max(capacity / 16);
        let usable = capacity.saturating_sub(overhead + spare);
        let pending = self.pending.blocks.len() as u64 * BLOCK_COST + self.reserved;
        let free = usable.saturating_sub(self.usage.live + pending);
        Space { usable, live: self.usage.live, pending, free }
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
