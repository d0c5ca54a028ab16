//! The trait through which directories allocate blocks.

use crate::error::Result;
use crate::format::{BlockAddr, Inode, Run};
use crate::reservation::Reservation;

/// Allocates blocks for directories.
pub trait DirAllocator {
    /// Allocates a run of `min` to `want_blocks` blocks, in memory only (see [`crate::space::Space::alloc_meta_near`]).
    /// `goal` is the address after the directory's preceding block, if there is one.
    fn allocate_dir_blocks(
        &self,
        reservation: &Reservation,
        dir: &Inode,
        goal: Option<BlockAddr>,
        want_blocks: u64,
        min: u64,
    ) -> Result<Option<Run>>;
}
