//! Where new blocks of directories go.

use crate::error::Result;
use crate::format::{BlockAddr, Inode, Run};
use crate::reservation::Reservation;

/// Decides where new blocks of directories go.
pub trait DirAllocator {
    /// Allocates (in memory, see [`Space::alloc_meta_near`]) between `min` and `want_blocks` blocks in one run. `goal`
    /// is the address behind the directory's preceding block, where there is one.
    fn allocate_dir_blocks(
        &self,
        reservation: &Reservation,
        dir: &Inode,
        goal: Option<BlockAddr>,
        want_blocks: u64,
        min: u64,
    ) -> Result<Option<Run>>;
}
