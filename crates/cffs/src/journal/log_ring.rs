//! Where the log lies on its device, and how much of it one commit may take.

use crate::format::Superblock;

/// Recovery takes nothing for a transaction that has more than one of so many parts of the log: its memory is bounded.
pub(crate) const COMMIT_SHARE_MAX: u64 = 4;

/// Byte offset of the log on its device, and its length in bytes.
pub fn log_extent(sb: &Superblock) -> (u64, u64) {
    (sb.log_start << sb.block_shift, sb.log_blocks << sb.block_shift)
}
