//! Where the log lies on its device, and how much of it one commit may take.

use crate::format::Superblock;

/// A commit takes at most this part of the log: one quarter. Recovery believes no longer one, so its memory is bounded.
pub(crate) const COMMIT_DIVISOR: u64 = 4;

/// Byte offset of the log on its device, and its length in bytes.
pub fn log_extent(sb: &Superblock) -> (u64, u64) {
    (sb.log_start << sb.block_shift, sb.log_blocks << sb.block_shift)
}
