//! Blocks of which a batch has only the bytes that have changed.
//!
//! A file system makes a small file durable by changing a few bytes in each of some blocks. Whole, these blocks are many times as long as the file.
//! So a small flush stores what differs from what was durable before, and the blocks stay in memory until they are written whole: with
//! many others, when there is a checkpoint, or when the room is needed. After a crash they are put together again.

use crate::codec::crc32c;

/// Bytes of a part in a summary besides its own.
pub(crate) const PART_BYTES: usize = 4;

/// What has changed of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// CRC32C of the block as it is then.
    pub(crate) crc: u32,
    /// First byte and bytes, in ascending order, with a gap in between.
    pub(crate) parts: Vec<(u16, Vec<u8>)>,
}

impl Patch {
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

    /// Bytes of the parts in a summary.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| PART_BYTES + bytes.len()).sum()
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
        for i in [0, 5, 11, 4095] {
            new[i] = 7;
        }
        let patch = Patch::between(&old, &new);
        assert_eq!(patch.parts, [(0, vec![7, 0, 0, 0, 0, 7]), (11, vec![7]), (4095, vec![7])]);
        assert_eq!(patch.bytes(), 3 * PART_BYTES + 8);
        assert_eq!(Patch::between(&new, &new).parts, []);
        assert_eq!(Patch::between(&old, &[1; BLOCK_BYTES]).bytes(), PART_BYTES + BLOCK_BYTES);
    }
}
