//! Slotted tables: files of fixed-size records in self-describing blocks, with maps of how full each block is.
//!
//! Block 0 of such a file is a map: a `u16` for each of the blocks that follow it, the number of slots in use there.
//! After the blocks that a map describes comes the next map (the thesis's locator table has the same shape, section
//! 2.1.5). A block without used slots need not exist. The inode locator table and the external inode table are both
//! slotted tables.

use super::{BlockAddr, Corrupt, Ino, META_HEADER_SIZE, META_SPECIFIC, corrupt, get_u16, get_u32, get_u64};
use super::{put_u16, put_u32, put_u64};

/// Offset in a table or map block of its block number within the file (`u64`).
pub const TABLE_LBLOCK: usize = META_SPECIFIC;
/// Offset in a table block of the number of slots in use (`u32`).
pub const TABLE_USED: usize = META_SPECIFIC + 8;
/// Bytes of a locator entry.
pub const LOCATOR_SIZE: usize = 16;

/// Arithmetic of one table: which block and which slot a record is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Bytes of a record.
    pub record: usize,
    /// Records in a block.
    pub per_block: u64,
    /// Blocks described by one map.
    pub per_map: u64,
}

impl TableShape {
    /// Shape of a table with records of so many bytes.
    pub fn new(block_size: usize, record: usize) -> TableShape {
        let room = block_size - META_HEADER_SIZE;
        TableShape { record, per_block: (room / record) as u64, per_map: (room / 2) as u64 }
    }
    /// Block (within the file) and byte offset of a record.
    pub fn place(&self, index: u64) -> (u64, usize) {
        let data = index / self.per_block;
        let slot = (index % self.per_block) as usize;
        (self.block_of_data(data), META_HEADER_SIZE + slot * self.record)
    }
    /// Block within the file of the `data`th table block.
    pub fn block_of_data(&self, data: u64) -> u64 {
        data + 1 + data / self.per_map
    }
    /// Map block within the file, and byte offset in it, that counts the `data`th table block.
    pub fn map_of_data(&self, data: u64) -> (u64, usize) {
        ((data / self.per_map) * (self.per_map + 1), META_HEADER_SIZE + (data % self.per_map) as usize * 2)
    }
    /// Number of the table block that stands at a block of the file; `None` for a map.
    pub fn data_of_block(&self, lblock: u64) -> Option<u64> {
        let (map, within) = (lblock / (self.per_map + 1), lblock % (self.per_map + 1));
        (within > 0).then(|| map * self.per_map + within - 1)
    }
}

/// Where an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The number is not in use.
    Free,
    /// In the directory block `block`, entry at byte `offset`.
    Embedded {
        /// Device block of the directory block.
        block: BlockAddr,
        /// Byte offset of the entry.
        offset: usize,
    },
    /// In a slot of the external inode table.
    External {
        /// Device block of the table block.
        block: BlockAddr,
        /// Byte offset of the slot.
        offset: usize,
    },
}

impl Location {
    /// Encodes: block `u64`, offset `u32`, state `u32` (0 free, 1 embedded, 2 external).
    pub fn encode(&self) -> [u8; LOCATOR_SIZE] {
        let mut b = [0; LOCATOR_SIZE];
        let (block, offset, state) = match *self {
            Location::Free => (0, 0, 0),
            Location::Embedded { block, offset } => (block, offset, 1),
            Location::External { block, offset } => (block, offset, 2),
        };
        put_u64(&mut b, 0, block);
        put_u32(&mut b, 8, offset as u32);
        put_u32(&mut b, 12, state);
        b
    }
    /// Decodes; whether an inode really is there is for the reader to check.
    pub fn decode(b: &[u8], ino: Ino, block_size: usize) -> Result<Location, Corrupt> {
        let (block, offset) = (get_u64(b, 0), get_u32(b, 8) as usize);
        let state = get_u32(b, 12);
        if state != 0 && (offset < META_HEADER_SIZE || offset % 8 != 0 || offset >= block_size) {
            return corrupt(format!("inode locator of {ino}: offset {offset}"));
        }
        match state {
            0 => Ok(Location::Free),
            1 => Ok(Location::Embedded { block, offset }),
            2 => Ok(Location::External { block, offset }),
            s => corrupt(format!("inode locator of {ino}: unknown state {s}")),
        }
    }
}

/// Slots in use of a table block.
pub fn used(block: &[u8]) -> u32 {
    get_u32(block, TABLE_USED)
}

/// A counter of a map block.
pub fn map_count(block: &[u8], offset: usize) -> u16 {
    get_u16(block, offset)
}

/// Encodes a counter of a map block.
pub fn encode_count(n: u16) -> [u8; 2] {
    let mut b = [0; 2];
    put_u16(&mut b, 0, n);
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_collide_and_invert() {
        for bs in [512, 4096, 65536] {
            for record in [LOCATOR_SIZE, 256] {
                let t = TableShape::new(bs, record);
                let mut last = (0, 0);
                for index in 0..t.per_block * (t.per_map + 3) {
                    let (block, offset) = t.place(index);
                    assert!((block, offset) > last && offset + record <= bs);
                    last = (block, offset);
                    let data = index / t.per_block;
                    assert_eq!(t.data_of_block(block), Some(data));
                    let (map, at) = t.map_of_data(data);
                    assert!(t.data_of_block(map).is_none() && at + 2 <= bs && map < block);
                }
            }
        }
    }
}
