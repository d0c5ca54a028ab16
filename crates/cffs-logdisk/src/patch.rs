//! Blocks of which a batch has only the bytes that have changed.
//!
//! A file system makes a small file durable by changing a few bytes in each of some blocks. Whole, these blocks are many times as long as the file.
//! So a flush stores what differs from what was durable before, and the blocks stay in memory until they are written whole: with
//! others of their kind, when there is a checkpoint, or when the room is needed. After a crash they are put together again.

use crate::codec::{Fields, PutFields, corrupt, crc32c, varint_bytes};
use crate::extent::BLOCK_BYTES;
use std::io;

/// Bytes of a part in a summary besides its own, at least.
const PART_BYTES: usize = 2;

/// What has changed of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// CRC32C of the block as it is then.
    pub(crate) crc: u32,
    /// First byte and bytes, in ascending order, with a gap in between.
    pub(crate) parts: Vec<(u16, Vec<u8>)>,
}

impl Patch {
    /// What makes one block the other, if that takes no more bytes than this.
    pub(crate) fn within(most: usize, old: &[u8], new: &[u8]) -> Option<Patch> {
        // Cheap, and for most blocks of which it is too much this tells it.
        if old.iter().zip(new).filter(|(a, b)| a != b).count() > most {
            return None;
        }
        Some(Patch::between(old, new)).filter(|patch| patch.bytes() <= most)
    }

    /// What makes one block the other.
    pub(crate) fn between(old: &[u8], new: &[u8]) -> Patch {
        // Most of a block is as it was.
        const STEP: usize = 64;
        let steps = old.chunks(STEP).zip(new.chunks(STEP)).enumerate().filter(|(_, (a, b))| a != b);
        let changed =
            steps.flat_map(|(n, (a, b))| (0..b.len()).filter(move |&i| a[i] != b[i]).map(move |i| n * STEP + i));
        let mut parts: Vec<(u16, Vec<u8>)> = Vec::new();
        for i in changed {
            match parts.last_mut() {
                // A part of its own would take more than the bytes in between.
                Some((first, bytes)) if i - (usize::from(*first) + bytes.len()) <= PART_BYTES => {
                    let end = usize::from(*first) + bytes.len();
                    bytes.extend_from_slice(&new[end..=i]);
                }
                _ => parts.push((i as u16, vec![new[i]])),
            }
        }
        Patch { crc: crc32c(new), parts }
    }

    /// Bytes in a summary.
    pub(crate) fn bytes(&self) -> usize {
        let parts = self.gaps().map(|(gap, bytes)| varint_bytes(gap) + varint_bytes(bytes.len() as u64) + bytes.len());
        4 + varint_bytes(self.parts.len() as u64) + parts.sum::<usize>()
    }

    /// The parts, and how far each is behind the end of the one before it.
    fn gaps(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut end = 0;
        self.parts.iter().map(move |(first, bytes)| {
            let gap = u64::from(*first) - end;
            end = u64::from(*first) + bytes.len() as u64;
            (gap, &bytes[..])
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.crc);
        out.put_varint(self.parts.len() as u64);
        for (gap, bytes) in self.gaps() {
            out.put_varint(gap);
            out.put_varint(bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
    }

    /// One in the form that nobody writes any more: numbers of fixed length, and places instead of gaps.
    pub(crate) fn decode_fixed(f: &mut Fields<'_>) -> io::Result<Patch> {
        let (crc, parts) = (f.u32()?, f.u16()?);
        let mut end = 0;
        let part = |_| {
            let (first, n) = (f.u16()?, f.u16()?);
            if n == 0 || usize::from(first) < end || usize::from(first) + usize::from(n) > BLOCK_BYTES {
                return Err(corrupt("a patch is no part of a block"));
            }
            end = usize::from(first) + usize::from(n);
            Ok((first, f.bytes(n.into())?.to_vec()))
        };
        Ok(Patch { crc, parts: (0..parts).map(part).collect::<io::Result<_>>()? })
    }

    pub(crate) fn decode(f: &mut Fields<'_>) -> io::Result<Patch> {
        let (crc, parts) = (f.u32()?, f.varint()?);
        let mut end = 0_u64;
        let part = |_| {
            let (gap, n) = (f.varint()?, f.varint()?);
            let first = end.saturating_add(gap);
            end = first.saturating_add(n);
            if n == 0 || end > BLOCK_BYTES as u64 {
                return Err(corrupt("a patch is no part of a block"));
            }
            Ok((first as u16, f.bytes(n as usize)?.to_vec()))
        };
        Ok(Patch { crc, parts: (0..parts).map(part).collect::<io::Result<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::BLOCK_BYTES;

    #[test]
    fn parts_that_are_near_each_other_are_one() {
        let old = [0u8; BLOCK_BYTES];
        let mut new = old;
        for i in [0, 3, 7, 4095] {
            new[i] = 7;
        }
        let patch = Patch::between(&old, &new);
        assert_eq!(patch.parts, [(0, vec![7, 0, 0, 7]), (7, vec![7]), (4095, vec![7])]);
        // The gap to the last takes a byte more.
        assert_eq!(patch.bytes(), 5 + 3 * PART_BYTES + 1 + 6);
        assert_eq!(Patch::between(&new, &new).parts, []);
        assert_eq!(Patch::between(&old, &[1; BLOCK_BYTES]).bytes(), 5 + PART_BYTES + 1 + BLOCK_BYTES);
    }

    #[test]
    fn patches_are_read_as_they_were_written_and_others_are_refused() {
        let mut rng = fastrand::Rng::with_seed(8);
        for _ in 0..500 {
            let (old, mut new) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
            for _ in 0..rng.usize(0..30) {
                let from = rng.usize(0..BLOCK_BYTES);
                new[from..BLOCK_BYTES.min(from + rng.usize(1..300))].fill(rng.u8(1..));
            }
            let patch = Patch::between(&old, &new);
            let mut bytes = Vec::new();
            patch.encode(&mut bytes);
            assert_eq!(bytes.len(), patch.bytes());
            assert_eq!(Patch::decode(&mut Fields::new(&bytes)).unwrap(), patch);
            assert!(Patch::decode(&mut Fields::new(&bytes[..bytes.len() - 1])).is_err());
            bytes[rng.usize(4..patch.bytes())] ^= 1 << rng.u8(0..8);
            if let Ok(other) = Patch::decode(&mut Fields::new(&bytes)) {
                let ends = other.parts.iter().map(|(first, bytes)| usize::from(*first) + bytes.len());
                assert!(ends.max().unwrap_or(0) <= BLOCK_BYTES);
            }
        }
        let fixed = |parts: &[(u16, u16)]| {
            let mut patch = vec![0; 4];
            patch.put_u16(parts.len() as u16);
            for (first, n) in parts {
                patch.put_u16(*first);
                patch.put_u16(*n);
                patch.resize(patch.len() + usize::from(*n), 1);
            }
            Patch::decode_fixed(&mut Fields::new(&patch))
        };
        assert_eq!(fixed(&[(3, 2), (4095, 1)]).unwrap().parts, [(3, vec![1, 1]), (4095, vec![1])]);
        assert!([[(3, 2), (4, 1)], [(3, 0), (4, 1)], [(3, 1), (4095, 2)]].iter().all(|parts| fixed(parts).is_err()));
        let refused = |gap, n: u64, bytes| {
            let mut patch = vec![0; 4];
            [1, gap, n].iter().for_each(|v| patch.put_varint(*v));
            patch.resize(patch.len() + bytes, 1);
            assert!(Patch::decode(&mut Fields::new(&patch)).is_err(), "{n} bytes behind {gap}");
        };
        refused(0, 0, 0);
        refused(4096, 1, 1);
        refused(u64::MAX, 1, 1);
        refused(1, u64::MAX, 100);
        refused(0, 4097, 5000);
        refused(1, 2, 1);
    }
}
