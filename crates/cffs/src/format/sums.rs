//! Checksums of file data: one CRC32C for each fragment, in tables at the start of each allocation group.
//!
//! A table block has the sums of so many fragments that follow each other; all fragments of a block have theirs in the same
//! table block. It exists if its bit in the header of the allocation group is set. A sum of [`NONE`] says that nothing is
//! known of a fragment.

use super::crc::crc32c;
use super::{META_HEADER_SIZE, META_SPECIFIC, get_u32};

/// Offset in a table block of its number within the allocation group (`u64`).
pub const SUMS_INDEX: usize = META_SPECIFIC;
/// Bytes of a sum.
pub const SUM_SIZE: usize = 4;
/// In place of a sum: what the fragment holds is not known.
pub const NONE: u32 = 0;
/// Offset in the header of an allocation group of the bits that say which table blocks exist.
pub const AG_SUM_BLOCKS: usize = META_HEADER_SIZE + 8;

/// The sum of a fragment: its CRC32C, and all ones where that is [`NONE`].
#[inline]
pub fn sum_of(fragment: &[u8]) -> u32 {
    match crc32c(fragment) {
        NONE => u32::MAX,
        sum => sum,
    }
}

/// Byte offset in a table block of its `n`th sum.
#[inline]
pub fn sum_offset(n: u64) -> usize {
    META_HEADER_SIZE + n as usize * SUM_SIZE
}

/// The `n`th sum of a table block.
#[inline]
pub fn get(block: &[u8], n: u64) -> u32 {
    get_u32(block, sum_offset(n))
}

/// Whether the header of an allocation group says that a table block exists.
pub fn exists(header: &[u8], index: u64) -> bool {
    header[AG_SUM_BLOCKS + (index / 8) as usize] >> (index % 8) & 1 == 1
}

/// Changes what the header of an allocation group says of a table block.
pub fn set_exists(header: &mut [u8], index: u64, exists: bool) {
    let (byte, bit) = (AG_SUM_BLOCKS + (index / 8) as usize, 1 << (index % 8));
    if exists {
        header[byte] |= bit;
    } else {
        header[byte] &= !bit;
    }
}

/// Most table blocks that the header of an allocation group has bits for.
pub fn blocks_max(block_size: usize) -> u64 {
    (block_size - AG_SUM_BLOCKS) as u64 * 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_contents_have_the_sum_that_stands_for_none() {
        assert_ne!(sum_of(&[]), NONE, "the checksum of nothing is zero");
        assert_eq!(sum_of(&[]), u32::MAX);
        assert_eq!(sum_of(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn bits_of_the_header_are_each_their_own() {
        let mut header = vec![0; 512];
        let all = blocks_max(512);
        for i in (0..all).step_by(7) {
            set_exists(&mut header, i, true);
        }
        assert!((0..all).all(|i| exists(&header, i) == (i % 7 == 0)));
        set_exists(&mut header, 14, false);
        assert!(!exists(&header, 14) && exists(&header, 21));
        assert!(header[..AG_SUM_BLOCKS].iter().all(|b| *b == 0));
    }
}
