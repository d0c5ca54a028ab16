//! The write-intent bitmap: a set of regions, and its bytes.

use crate::superblock::{BLOCK_BYTES, COUNTER_MAX, REGION_MIN, REGIONS_MAX, Uuid, checksum, get, get_u32, get_u64};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"cffsVBM\x01";
const BITS: usize = 64;
/// Regions that a device is divided into, where they do not become too short or too long.
const REGIONS_WANTED: u64 = 4096;
/// Regions are not shorter than this by choice, in bytes.
const REGION_CHOSEN_MIN: u64 = 1 << 20;
/// Regions are not longer than this by choice, in bytes.
const REGION_CHOSEN_MAX: u64 = 64 << 20;

/// Bytes of a region for a mirror of `len` bytes.
pub(crate) fn choose_region(len: u64) -> u64 {
    let wanted = (len / REGIONS_WANTED).clamp(REGION_CHOSEN_MIN, REGION_CHOSEN_MAX);
    let least = len.div_ceil(REGIONS_MAX).max(REGION_MIN);
    wanted.max(least).next_power_of_two()
}

/// A set of regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Regions {
    words: Vec<u64>,
    count: u32,
    /// Regions in the set.
    len: u32,
}

impl Regions {
    /// None of `count` regions.
    pub(crate) fn none(count: u32) -> Self {
        Regions { words: vec![0; count.div_ceil(64) as usize], count, len: 0 }
    }

    /// All of `count` regions.
    pub(crate) fn all(count: u32) -> Self {
        let mut set = Self::none(count);
        (0..count).for_each(|r| set.insert(r));
        set
    }

    /// Number of regions that there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn contains(&self, region: u32) -> bool {
        self.words.get(region as usize / 64).is_some_and(|w| w >> (region % 64) & 1 == 1)
    }

    pub(crate) fn insert(&mut self, region: u32) {
        if region < self.count && !self.contains(region) {
            self.words[region as usize / 64] |= 1 << (region % 64);
            self.len += 1;
        }
    }

    pub(crate) fn remove(&mut self, region: u32) {
        if self.contains(region) {
            self.words[region as usize / 64] &= !(1 << (region % 64));
            self.len -= 1;
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::none(self.count);
    }

    /// Whether any of these is in the set.
    pub(crate) fn touches(&self, mut regions: Range<u32>) -> bool {
        self.len > 0 && regions.any(|r| self.contains(r))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.count).filter(|r| self.contains(*r))
    }

    pub(crate) fn insert_all(&mut self, other: &Regions) {
        other.iter().for_each(|r| self.insert(r));
    }

    /// The bytes of a copy of the bitmap.
    pub(crate) fn encode(&self, volume: Uuid, sequence: u64) -> Vec<u8> {
        let mut b = vec![0; BLOCK_BYTES];
        b[..8].copy_from_slice(MAGIC);
        b[12..16].copy_from_slice(&self.count.to_le_bytes());
        b[16..32].copy_from_slice(&volume.0);
        b[32..40].copy_from_slice(&sequence.to_le_bytes());
        for (i, word) in self.words.iter().enumerate() {
            b[BITS + i * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum(&b);
        b[8..12].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// The set and its sequence number, if the bytes are the bitmap of this volume with so many regions.
    pub(crate) fn decode(b: &[u8], volume: Uuid, count: u32) -> Option<(Self, u64)> {
        if b.len() != BLOCK_BYTES || !b.starts_with(MAGIC) || get_u32(b, 8) != checksum(b) {
            return None;
        }
        let sequence = get_u64(b, 32);
        if get_u32(b, 12) != count || get::<16>(b, 16) != volume.0 || sequence >= COUNTER_MAX {
            return None;
        }
        let mut set = Self::none(count);
        (0..count).filter(|r| get_u64(b, BITS + *r as usize / 64 * 8) >> (r % 64) & 1 == 1).for_each(|r| set.insert(r));
        Some((set, sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let mut rng = fastrand::Rng::with_seed(1);
        for count in [1, 63, 64, 65, 1000, REGIONS_MAX as u32] {
            let mut set = Regions::none(count);
            (0..count / 3 + 1).for_each(|_| set.insert(rng.u32(..count)));
            let bytes = set.encode(Uuid([3; 16]), 99);
            assert_eq!(Regions::decode(&bytes, Uuid([3; 16]), count), Some((set.clone(), 99)));
            assert_eq!(Regions::decode(&bytes, Uuid([4; 16]), count), None);
            assert_eq!(Regions::decode(&bytes, Uuid([3; 16]), count + 1), None);
            let mut bad = bytes.clone();
            bad[rng.usize(..BLOCK_BYTES)] ^= 1;
            assert_eq!(Regions::decode(&bad, Uuid([3; 16]), count), None);
            assert_eq!(set.iter().count() as u32, set.len());
            assert_eq!(Regions::all(count).len(), count);
        }
    }

    #[test]
    fn regions_fit_one_block() {
        for shift in 12..62 {
            for len in [1u64 << shift, (1 << shift) + 4096] {
                let region = choose_region(len);
                assert!(region.is_power_of_two() && len.div_ceil(region) <= REGIONS_MAX, "{len}: {region}");
            }
        }
        assert_eq!(choose_region(100 << 20), 1 << 20);
        assert_eq!(choose_region(100 << 30), 32 << 20);
        assert_eq!(choose_region(1 << 40), 64 << 20);
    }
}
