//! The superblock of an image: geometry, and the root. There are two; the newer that is whole counts.

use super::segment_store::ROOT_BYTES_MAX;
use crate::codec::{self, PutFields, corrupt, crc32c};
use cffs_values::{Fields, hex};
use std::io;

/// Bytes of a superblock.
pub(crate) const SUPERBLOCK_BYTES: usize = 4096;
/// Where the two are, in bytes.
pub(crate) const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 64 << 10];
const MAGIC: &[u8; 8] = b"cffsLOG\x01";
const VERSION: u32 = 1;
/// Most slots of an image; an id has 28 bits for the slot.
pub(super) const SLOTS_MAX: u64 = 1 << 28;
/// Roots that an image can have; an id has 36 bits for their number.
pub(super) const SEQUENCE_MAX: u64 = (1 << 36) - 1;
/// Range of slot sizes in bytes.
pub(super) const SLOT_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 30;

/// A superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(super) uuid: [u8; 16],
    pub(super) sequence: u64,
    pub(super) slot_bytes: u64,
    pub(super) slots: u64,
    pub(super) first_slot: u64,
    pub(super) root: Vec<u8>,
}

impl Superblock {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(SUPERBLOCK_BYTES);
        b.extend_from_slice(MAGIC);
        b.put_u32(0); // checksum, below
        b.put_u32(VERSION);
        b.extend_from_slice(&self.uuid);
        b.put_u64(self.sequence);
        b.put_u64(self.slot_bytes);
        b.put_u64(self.slots);
        b.put_u64(self.first_slot);
        b.put_u32(self.root.len() as u32);
        b.extend_from_slice(&self.root);
        b.resize(SUPERBLOCK_BYTES, 0);
        let crc = crc32c(&b);
        b[8..12].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Its fields but for the root.
    pub(crate) fn fields(&self) -> Fields {
        let mut f = Fields::of("uuid", hex(&self.uuid));
        f.put("sequence", self.sequence).put("slot_bytes", self.slot_bytes).put("slots", self.slots);
        f.put("first_slot", self.first_slot);
        f
    }

    /// The bytes of the root.
    pub(crate) fn root(&self) -> &[u8] {
        &self.root
    }

    /// Checks everything that can be checked without the device.
    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut f = codec::Fields::new(bytes);
        if bytes.len() != SUPERBLOCK_BYTES || f.bytes(8)? != MAGIC {
            return Err(corrupt("no superblock of a log disk"));
        }
        let crc = f.u32()?;
        let mut copy = bytes.to_vec();
        copy[8..12].fill(0);
        if crc32c(&copy) != crc {
            return Err(corrupt("the checksum of the superblock is wrong"));
        }
        let version = f.u32()?;
        if version != VERSION {
            return Err(corrupt(format!("the log disk has version {version}, this program knows {VERSION}")));
        }
        let uuid = f.uuid()?;
        let (sequence, slot_bytes, slots, first_slot) = (f.u64()?, f.u64()?, f.u64()?, f.u64()?);
        let n = f.count(1)?;
        if n > ROOT_BYTES_MAX || !SLOT_BYTES.contains(&slot_bytes) || slot_bytes % 4096 != 0 || slots > SLOTS_MAX {
            return Err(corrupt("the superblock has impossible sizes"));
        }
        if sequence >= SEQUENCE_MAX {
            return Err(corrupt("the superblock has an impossible sequence number"));
        }
        let end = slots.checked_mul(slot_bytes).and_then(|n| n.checked_add(first_slot));
        if end.is_none() || first_slot < SUPERBLOCK_OFFSETS[1] + SUPERBLOCK_BYTES as u64 || first_slot % 4096 != 0 {
            return Err(corrupt("the superblock has impossible sizes"));
        }
        Ok(Superblock { uuid, sequence, slot_bytes, slots, first_slot, root: f.bytes(n)?.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_is_seen() {
        let sb = Superblock {
            uuid: [3; 16],
            sequence: 9,
            slot_bytes: 1 << 20,
            slots: 100,
            first_slot: 1 << 20,
            root: vec![1, 2, 3],
        };
        let good = sb.encode();
        assert_eq!(Superblock::decode(&good).unwrap(), sb);
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 0x41;
            assert!(Superblock::decode(&bad).is_err(), "byte {i}");
        }
        assert!(Superblock::decode(&good[..100]).is_err());
    }

    #[test]
    fn impossible_sizes_with_a_good_checksum_are_errors() {
        let ok =
            Superblock { uuid: [0; 16], sequence: 1, slot_bytes: 1 << 20, slots: 4, first_slot: 1 << 20, root: vec![] };
        for bad in [
            Superblock { slot_bytes: 0, ..ok.clone() },
            Superblock { slot_bytes: u64::MAX, ..ok.clone() },
            Superblock { slots: u64::MAX, ..ok.clone() },
            Superblock { first_slot: 0, ..ok.clone() },
            Superblock { first_slot: u64::MAX - 4095, ..ok.clone() },
        ] {
            assert!(Superblock::decode(&bad.encode()).is_err(), "{bad:?}");
        }
    }
}
