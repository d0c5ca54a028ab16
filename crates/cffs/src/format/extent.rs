//! Extents: runs of fragments, 16 bytes each, alike in inodes and in extent tree leaves; and the tree's nodes.
//!
//! ```text
//! word 0: logical fragment (54 bits) | unwritten (1 bit, bit 54) | length, upper 9 bits
//! word 1: device fragment  (54 bits) | length, lower 10 bits
//! ```

use super::{
    BlockAddr, Corrupt, FragAddr, META_HEADER_SIZE, META_SPECIFIC, corrupt, get_u16, get_u64, put_u16, put_u64,
};
use std::ops::Range;

/// Bytes of an encoded extent or child pointer.
pub const EXTENT_SIZE: usize = 16;
/// Longest extent in fragments.
pub const EXTENT_LEN_MAX: u64 = (1 << 19) - 1;
/// First logical fragment that no file can have.
pub const LOGICAL_END: u64 = 1 << 54;
/// Bytes of the units in which [`Extent::unwritten_units`] counts.
pub const UNWRITTEN_UNIT: u64 = 4096;
/// Greatest height of an extent tree (a root in the inode with leaves below it has height 1).
pub const TREE_HEIGHT_MAX: u8 = 8;

/// A run of fragments of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First fragment within the file.
    pub logical: u64,
    /// First fragment on the device.
    pub start: FragAddr,
    /// Number of fragments, 1 to [`EXTENT_LEN_MAX`].
    pub len: u64,
    /// Allocated but never written: reads as zeros.
    pub unwritten: bool,
}

const MASK54: u64 = (1 << 54) - 1;

impl Extent {
    /// The whole units of [`UNWRITTEN_UNIT`] bytes of the device that the extent has, as fragments. `frag_shift` is the log2 of the fragment size.
    pub fn whole_units(&self, frag_shift: u32) -> Range<FragAddr> {
        let unit = (UNWRITTEN_UNIT >> frag_shift).max(1);
        let start = self.start.next_multiple_of(unit);
        start..((self.start + self.len) / unit * unit).max(start)
    }

    /// How much of the extent was never written, in units of [`UNWRITTEN_UNIT`] bytes: all of its whole ones, or none.
    pub fn unwritten_units(&self, frag_shift: u32) -> u64 {
        let whole = self.whole_units(frag_shift);
        if self.unwritten { ((whole.end - whole.start) << frag_shift) / UNWRITTEN_UNIT } else { 0 }
    }

    /// First logical fragment after the extent.
    #[inline]
    pub fn end(&self) -> u64 {
        self.logical + self.len
    }

    /// Whether it has something in a range of the file.
    #[inline]
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        self.logical < range.end && self.end() > range.start
    }

    /// The part in a range of the file, which it overlaps.
    pub fn part(&self, range: &Range<u64>) -> Extent {
        let (from, to) = (self.logical.max(range.start), self.end().min(range.end));
        Extent { logical: from, start: self.start + (from - self.logical), len: to - from, ..*self }
    }

    /// Encodes into 16 bytes.
    pub fn encode(&self) -> [u8; EXTENT_SIZE] {
        debug_assert!(self.logical < LOGICAL_END && self.start <= MASK54 && self.len <= EXTENT_LEN_MAX && self.len > 0);
        let w0 = self.logical | u64::from(self.unwritten) << 54 | (self.len >> 10) << 55;
        let w1 = self.start | (self.len & 0x3ff) << 54;
        let mut b = [0; EXTENT_SIZE];
        put_u64(&mut b, 0, w0);
        put_u64(&mut b, 8, w1);
        b
    }

    /// Decodes 16 bytes; whether the run lies on the device is for the caller to check.
    pub fn decode(b: &[u8]) -> Extent {
        let (w0, w1) = (get_u64(b, 0), get_u64(b, 8));
        Extent {
            logical: w0 & MASK54,
            start: w1 & MASK54,
            len: (w0 >> 55) << 10 | w1 >> 54,
            unwritten: w0 >> 54 & 1 == 1,
        }
    }
}

/// Pointer to a child node: smallest logical fragment below it, and its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// Smallest logical fragment that the child may hold.
    pub key: u64,
    /// Block of the child.
    pub block: BlockAddr,
}

impl Child {
    /// Encodes into 16 bytes.
    pub fn encode(&self) -> [u8; EXTENT_SIZE] {
        let mut b = [0; EXTENT_SIZE];
        put_u64(&mut b, 0, self.key);
        put_u64(&mut b, 8, self.block);
        b
    }
    /// Decodes 16 bytes.
    pub fn decode(b: &[u8]) -> Child {
        Child { key: get_u64(b, 0), block: get_u64(b, 8) }
    }
}

/// Offset in a tree node of its level (`u16`): 0 for a leaf.
pub const NODE_LEVEL: usize = META_SPECIFIC;
/// Offset in a tree node of its number of entries (`u16`).
pub const NODE_COUNT: usize = META_SPECIFIC + 2;

/// Entries that fit into a tree node.
pub fn node_capacity(block_size: usize) -> usize {
    (block_size - META_HEADER_SIZE) / EXTENT_SIZE
}

/// Level and number of entries of a tree node.
pub fn node_header(block: &[u8]) -> Result<(u16, usize), Corrupt> {
    let (level, count) = (get_u16(block, NODE_LEVEL), get_u16(block, NODE_COUNT) as usize);
    if count > node_capacity(block.len()) || level >= TREE_HEIGHT_MAX as u16 {
        return corrupt(format!("extent tree node: level {level} with {count} entries"));
    }
    Ok((level, count))
}

/// Sets level and number of entries.
pub fn set_node_header(block: &mut [u8], level: u16, count: usize) {
    put_u16(block, NODE_LEVEL, level);
    put_u16(block, NODE_COUNT, count as u16);
}

/// Byte offset of entry `i` in a tree node.
pub fn node_entry(i: usize) -> usize {
    META_HEADER_SIZE + i * EXTENT_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_survive_encoding_at_the_limits() {
        for len in [1, 1023, 1024, EXTENT_LEN_MAX] {
            for unwritten in [false, true] {
                let e = Extent { logical: LOGICAL_END - 1, start: MASK54, len, unwritten };
                assert_eq!(Extent::decode(&e.encode()), e);
                let e = Extent { logical: 0, start: 5, len, unwritten };
                assert_eq!(Extent::decode(&e.encode()), e);
            }
        }
    }
}
