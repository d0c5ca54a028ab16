//! The system area: counters, and the inodes that have no directory (root, tables, quota files).

use super::{META_HEADER_SIZE, get_u64};

/// Offset of the number of free fragments (`u64`).
pub const COUNT_FREE_FRAGS: usize = META_HEADER_SIZE;
/// Offset of the number of inodes in use (`u64`).
pub const COUNT_INODES: usize = META_HEADER_SIZE + 8;
/// Offset of the number of allocation groups initialized so far (`u64`); those after them hold nothing yet.
pub const COUNT_AGS: usize = META_HEADER_SIZE + 16;
/// Offset of the head of the orphan list (`u64` inode number, 0 if empty).
pub const ORPHAN_HEAD: usize = META_HEADER_SIZE + 24;
/// Offset of the size of the file system in blocks (`u64`), as the other counters and the bitmaps have it. Differs from
/// the superblock's while the file system grows; 0 means the superblock's.
pub const COUNT_BLOCKS: usize = META_HEADER_SIZE + 32;
/// Offset of how much space was never written (`u64`), in [`Extent::unwritten_units`](super::Extent::unwritten_units); 0 where that is not counted.
pub const COUNT_UNWRITTEN: usize = META_HEADER_SIZE + 40;
/// Bytes of all counters, from [`COUNT_FREE_FRAGS`] on.
pub const COUNTERS_LEN: usize = 48;

/// The counters, decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Free fragments.
    pub free_frags: u64,
    /// Inodes in use, system inodes left out, root included.
    pub inodes: u64,
    /// Allocation groups initialized.
    pub ags: u64,
    /// First orphan.
    pub orphan_head: u64,
    /// Size of the file system in blocks that the free space is counted for; 0: the superblock's.
    pub blocks: u64,
    /// Whole units of 4096 bytes of the device in extents that are allocated and were never written. 0 where that is not counted.
    pub unwritten: u64,
}

impl Counters {
    /// Decodes a counters block.
    pub fn decode(block: &[u8]) -> Counters {
        Counters {
            free_frags: get_u64(block, COUNT_FREE_FRAGS),
            inodes: get_u64(block, COUNT_INODES),
            ags: get_u64(block, COUNT_AGS),
            orphan_head: get_u64(block, ORPHAN_HEAD),
            blocks: get_u64(block, COUNT_BLOCKS),
            unwritten: get_u64(block, COUNT_UNWRITTEN),
        }
    }
    /// The bytes that stand from [`COUNT_FREE_FRAGS`] on.
    pub fn encode(&self) -> [u8; COUNTERS_LEN] {
        let mut b = [0; COUNTERS_LEN];
        let words = [self.free_frags, self.inodes, self.ags, self.orphan_head, self.blocks, self.unwritten];
        for (i, v) in words.into_iter().enumerate() {
            b[i * 8..i * 8 + 8].copy_from_slice(&v.to_le_bytes());
        }
        b
    }
}
