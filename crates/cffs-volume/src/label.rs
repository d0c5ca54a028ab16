//! The superblocks of a member on its device: two copies, written one after the other, so that one is always whole.

use crate::superblock::{BLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, has_magic};
use cffs_device::{Device, IoKind, Purpose};
use std::io;

/// Sectors longer than this would make the structures in front of the data overlap.
pub(crate) const SECTOR_MAX: u32 = 64 << 10;

/// Reads a block at a place that is aligned to any sector size.
pub(crate) fn read_block(device: &dyn Device, offset: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; BLOCK_BYTES.max(device.sector_size() as usize)];
    device.read_at(IoKind::Super, offset, &mut bytes)?;
    bytes.truncate(BLOCK_BYTES);
    Ok(bytes)
}

/// Writes a block, and zeros up to the end of its sector.
pub(crate) fn write_block(device: &dyn Device, offset: u64, block: &[u8]) -> io::Result<()> {
    let mut bytes = block.to_vec();
    bytes.resize(BLOCK_BYTES.max(device.sector_size() as usize), 0);
    device.write_at(IoKind::Super, offset, &bytes)
}

/// What stands in front of the data of a member.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) superblock: Superblock,
    /// Which of the two copies is to be written first next time: the one that is older or damaged.
    pub(crate) next_copy: usize,
}

/// The superblock of a device; `None` if it has none at all.
///
/// # Errors
/// `InvalidData` if neither copy is whole; those of the device if neither can be read.
pub(crate) fn read_label(device: &dyn Device) -> io::Result<Option<Label>> {
    if device.sector_size() > SECTOR_MAX || device.len() < SUPERBLOCK_OFFSETS[1] + u64::from(SECTOR_MAX) {
        return Ok(None);
    }
    let mut best: Option<Label> = None;
    let (mut error, mut damaged) = (None, None);
    for (copy, &offset) in SUPERBLOCK_OFFSETS.iter().enumerate() {
        match read_block(device, offset) {
            Err(e) => error = Some(e),
            Ok(bytes) => match Superblock::decode(&bytes) {
                Ok(sb) if best.as_ref().is_none_or(|b| b.superblock.sequence < sb.sequence) => {
                    best = Some(Label { superblock: sb, next_copy: 1 - copy });
                }
                Ok(_) => {}
                Err(why) if has_magic(&bytes) => damaged = Some(why),
                Err(_) => {}
            },
        }
    }
    match (best, damaged, error) {
        (Some(label), ..) => Ok(Some(label)),
        (None, Some(why), _) => Err(io::Error::new(io::ErrorKind::InvalidData, why)),
        (None, None, Some(e)) => Err(e),
        (None, None, None) => Ok(None),
    }
}

impl Label {
    /// Writes one or both copies and makes them durable, the older first. If the first cannot be written, the other one stays as it was.
    pub(crate) fn write(&mut self, device: &dyn Device, copies: usize) -> io::Result<()> {
        // Whatever has shown that a member is gone, or brought it back.
        let _purpose = Purpose::Checkpoint.scope();
        self.superblock.sequence += 1;
        let block = self.superblock.encode();
        for _ in 0..copies {
            write_block(device, SUPERBLOCK_OFFSETS[self.next_copy], &block)?;
            device.flush()?;
            self.next_copy = 1 - self.next_copy;
        }
        Ok(())
    }
}

/// Makes a device one that is no member.
pub(crate) fn erase_label(device: &dyn Device) -> io::Result<()> {
    let _purpose = Purpose::Checkpoint.scope();
    for offset in SUPERBLOCK_OFFSETS {
        write_block(device, offset, &[])?;
    }
    device.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::{DATA_OFFSET, Entry, Kind, Uuid};
    use cffs_device::{FailingDevice, Fault, MemoryDevice, Operation};
    use std::sync::Arc;

    fn label() -> Label {
        let entry =
            Entry { uuid: Uuid([1; 16]), data_len: 1 << 20, in_sync: true, outgoing: false, last_generation: 0 };
        let superblock = Superblock {
            volume: Uuid([9; 16]),
            kind: Kind::Concat,
            index: 0,
            generation: 1,
            sequence: 0,
            data_offset: DATA_OFFSET,
            unit: 0,
            region: 0,
            created: 0,
            members: vec![entry],
        };
        Label { superblock, next_copy: 0 }
    }

    #[test]
    fn either_copy_is_enough_and_neither_is_an_error() {
        for sector in [512, 4096, 65536] {
            let device = MemoryDevice::with_sector_size(4 << 20, sector);
            assert!(read_label(&device).unwrap().is_none());
            let mut label = label();
            label.write(&device, 2).unwrap();
            for offset in SUPERBLOCK_OFFSETS {
                let copy = device.duplicate();
                write_block(&copy, offset, &[0xff; 4096]).unwrap();
                assert_eq!(read_label(&copy).unwrap().unwrap().superblock, label.superblock);
            }
            for offset in SUPERBLOCK_OFFSETS {
                let mut bytes = read_block(&device, offset).unwrap();
                bytes[100] ^= 1;
                write_block(&device, offset, &bytes).unwrap();
            }
            assert_eq!(read_label(&device).unwrap_err().kind(), io::ErrorKind::InvalidData);
            erase_label(&device).unwrap();
            assert!(read_label(&device).unwrap().is_none());
        }
    }

    #[test]
    fn a_write_that_fails_anywhere_leaves_the_old_or_the_new() {
        for n in 1..=2 {
            let device = Arc::new(FailingDevice::new(Arc::new(MemoryDevice::new(4 << 20))));
            let mut label = label();
            label.write(&device, 2).unwrap();
            device.set(Operation::Write, Fault::nth(n));
            label.superblock.generation = 2;
            assert!(label.write(&device, 2).is_err());
            let found = read_label(&device).unwrap().unwrap();
            assert_eq!(found.superblock.generation, n);
            // The next one goes to the copy that is not the newest.
            let mut label = found;
            label.superblock.generation = 3;
            device.set(Operation::Write, Fault::nth(2));
            assert!(label.write(&device, 2).is_err());
            assert_eq!(read_label(&device).unwrap().unwrap().superblock.generation, 3);
        }
    }
}
