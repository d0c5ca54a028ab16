//! Where a run of logical blocks is stored.

use crate::codec::{Fields, PutFields, corrupt};
use crate::store::SegmentId;
use std::io;

/// Bytes of a logical block, the unit of mapping.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of a sector of a log disk.
pub const SECTOR_BYTES: u32 = 512;
/// Longest extent that is stored plain, in blocks.
pub(crate) const EXTENT_BLOCKS_MAX: u32 = 64;
/// Longest compressed extent, in blocks.
pub(crate) const UNIT_BLOCKS_MAX: u32 = 16;

/// How the bytes of an extent are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Codec {
    Plain = 0,
    Lz4 = 1,
    Zstd = 2,
}

impl Codec {
    pub(crate) fn from_byte(b: u8) -> io::Result<Self> {
        match b {
            0 => Ok(Codec::Plain),
            1 => Ok(Codec::Lz4),
            2 => Ok(Codec::Zstd),
            _ => Err(corrupt(format!("codec {b} is not known"))),
        }
    }
}

/// A block by where it was first written: segment and ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Birth {
    pub(crate) segment: u64,
    pub(crate) ordinal: u32,
}

/// Blocks in a segment: all of a stored unit, or a part of it.
///
/// A unit is what was stored in one piece. Plain, any part of it can be read alone; compressed, it is read as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: SegmentId,
    /// Number of the first block within its segment. Every block that is written to a segment gets the next number.
    pub(crate) ordinal: u32,
    /// Byte in the segment where the first block (plain) or the unit (compressed) begins.
    pub(crate) offset: u32,
    pub(crate) codec: Codec,
    /// Bytes of the unit; for plain extents those of the part.
    pub(crate) stored: u32,
    /// Blocks of the unit; for plain extents those of the part.
    pub(crate) unit_blocks: u32,
    /// Blocks of the unit before the first one; 0 for plain extents.
    pub(crate) index: u32,
    /// CRC32C of each block (plain), or of the stored bytes of the unit (compressed).
    pub(crate) crcs: Vec<u32>,
}

impl Place {
    /// The first block's segment and ordinal.
    pub(crate) fn birth(&self) -> Birth {
        Birth { segment: self.segment, ordinal: self.ordinal }
    }

    pub(crate) fn part(&self, skip: u32, blocks: u32) -> Place {
        let mut part = self.clone();
        part.ordinal += skip;
        if self.codec == Codec::Plain {
            part.offset += skip * BLOCK_BYTES as u32;
            part.stored = blocks * BLOCK_BYTES as u32;
            part.unit_blocks = blocks;
            part.crcs = self.crcs[skip as usize..(skip + blocks) as usize].to_vec();
        } else {
            part.index += skip;
        }
        part
    }

    /// The bytes of the store that `blocks` blocks from the first on account for. The parts of a unit add up to it exactly.
    pub(crate) fn share(&self, blocks: u32) -> u64 {
        if self.codec == Codec::Plain {
            return u64::from(blocks) * BLOCK_BYTES as u64;
        }
        let up_to = |n: u32| u64::from(self.stored) * u64::from(n) / u64::from(self.unit_blocks.max(1));
        up_to(self.index + blocks) - up_to(self.index)
    }
}

/// A run of blocks with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) blocks: u32,
    /// The version that was current when the blocks were written: a snapshot refers to them only if its version is not lower.
    pub(crate) version: u64,
    pub(crate) place: Place,
}

impl Extent {
    pub(crate) fn part(&self, skip: u32, blocks: u32) -> Extent {
        Extent { blocks, version: self.version, place: self.place.part(skip, blocks) }
    }

    pub(crate) fn share(&self) -> u64 {
        self.place.share(self.blocks)
    }

    pub(crate) fn encoded_bytes(&self) -> usize {
        36 + 4 * self.place.crcs.len()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let p = &self.place;
        out.put_u8(p.codec as u8);
        out.put_u8(p.unit_blocks as u8);
        out.put_u8(p.index as u8);
        out.put_u8(self.blocks as u8);
        out.put_u32(p.stored);
        out.put_u64(self.version);
        out.put_u64(p.segment);
        out.put_u32(p.ordinal);
        out.put_u32(p.offset);
        out.put_u32(0);
        p.crcs.iter().for_each(|&c| out.put_u32(c));
    }

    pub(crate) fn decode(f: &mut Fields<'_>) -> io::Result<Self> {
        let codec = Codec::from_byte(f.u8()?)?;
        let (unit_blocks, index, blocks) = (u32::from(f.u8()?), u32::from(f.u8()?), u32::from(f.u8()?));
        let (stored, version, segment, ordinal, offset) = (f.u32()?, f.u64()?, f.u64()?, f.u32()?, f.u32()?);
        f.u32()?;
        check_shape(codec, blocks, stored, unit_blocks, index)?;
        if ordinal.checked_add(unit_blocks).is_none() || offset.checked_add(stored).is_none() {
            return Err(corrupt("an extent lies outside of any segment"));
        }
        let n = if codec == Codec::Plain { blocks } else { 1 };
        let crcs = (0..n).map(|_| f.u32()).collect::<io::Result<_>>()?;
        let place = Place { segment, ordinal, offset, codec, stored, unit_blocks, index, crcs };
        Ok(Extent { blocks, version, place })
    }
}

/// Whether the lengths of an extent agree with each other.
pub(crate) fn check_shape(codec: Codec, blocks: u32, stored: u32, unit_blocks: u32, index: u32) -> io::Result<()> {
    let good = match codec {
        Codec::Plain => {
            (1..=EXTENT_BLOCKS_MAX).contains(&blocks)
                && stored == blocks * BLOCK_BYTES as u32
                && unit_blocks == blocks
                && index == 0
        }
        _ => {
            (1..=UNIT_BLOCKS_MAX).contains(&unit_blocks)
                && blocks >= 1
                && index + blocks <= unit_blocks
                && (1..unit_blocks * BLOCK_BYTES as u32).contains(&stored)
        }
    };
    if good { Ok(()) } else { Err(corrupt("the lengths of an extent contradict each other")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_unit_add_up() {
        let place = Place {
            segment: 1,
            ordinal: 10,
            offset: 512,
            codec: Codec::Lz4,
            stored: 1001,
            unit_blocks: 7,
            index: 0,
            crcs: vec![5],
        };
        let sum: u64 = (0..7).map(|i| place.part(i, 1).share(1)).sum();
        assert_eq!(sum, 1001);
        assert_eq!(place.part(2, 3).share(3) + place.part(0, 2).share(2) + place.part(5, 2).share(2), 1001);
    }

    #[test]
    fn bytes_and_back() {
        let place = Place {
            segment: u64::MAX - 1,
            ordinal: 10,
            offset: 512,
            codec: Codec::Plain,
            stored: 3 * 4096,
            unit_blocks: 3,
            index: 0,
            crcs: vec![5, 6, 7],
        };
        let extent = Extent { blocks: 3, version: 99, place };
        for e in [extent.clone(), extent.part(1, 2), extent.part(2, 1)] {
            let mut out = Vec::new();
            e.encode(&mut out);
            assert_eq!(out.len(), e.encoded_bytes());
            assert_eq!(Extent::decode(&mut Fields::new(&out)).unwrap(), e);
        }
    }
}
