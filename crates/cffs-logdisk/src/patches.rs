//! Blocks that recovery puts together: what batches have of them, patch by patch.

use crate::batch::Logical;
use crate::codec::crc32c;
use crate::extent::BLOCK_BYTES;
use crate::patch::Patch;
use std::collections::BTreeMap;

/// Most blocks of which batches have patches only.
pub(crate) const PATCHED_MAX: usize = 768;

/// What batches have changed of blocks, one patch upon the other.
#[derive(Default)]
pub(crate) struct Patches {
    blocks: BTreeMap<Logical, Patched>,
}

/// All that is known of a block.
struct Patched {
    crc: u32,
    bytes: Box<[u8]>,
    known: Box<[bool]>,
}

impl Patches {
    /// Whether there is room for one more block: nobody writes patches of more than [`PATCHED_MAX`].
    pub(crate) fn add(&mut self, at: Logical, patch: &Patch) -> bool {
        if self.blocks.len() >= PATCHED_MAX && !self.blocks.contains_key(&at) {
            return false;
        }
        let nothing = || Patched { crc: 0, bytes: vec![0; BLOCK_BYTES].into(), known: vec![false; BLOCK_BYTES].into() };
        let block = self.blocks.entry(at).or_insert_with(nothing);
        block.crc = patch.crc;
        for (first, bytes) in &patch.parts {
            let first = usize::from(*first);
            block.bytes[first..first + bytes.len()].copy_from_slice(bytes);
            block.known[first..first + bytes.len()].fill(true);
        }
        true
    }

    /// These blocks are something else from now on.
    pub(crate) fn forget(&mut self, at: Logical, blocks: u64) {
        if self.is_empty() {
            return;
        }
        let end = Logical { block: at.block.saturating_add(blocks), ..at };
        let gone: Vec<Logical> = self.blocks.range(at..end).map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| {
            self.blocks.remove(key);
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// A checkpoint: before it all blocks were written whole.
    pub(crate) fn forget_all(&mut self) {
        self.blocks.clear();
    }

    /// The next block, and what it was changed to.
    pub(crate) fn pop(&mut self) -> Option<(Logical, Overlay)> {
        self.blocks.pop_first().map(|(at, block)| (at, Overlay(block)))
    }
}

/// All that has changed of a block.
pub(crate) struct Overlay(Patched);

impl Overlay {
    /// Changes the block. Whether it is then what it was.
    pub(crate) fn lay_over(&self, block: &mut [u8]) -> bool {
        let Patched { crc, bytes, known } = &self.0;
        let changed = block.iter_mut().zip(bytes.iter().zip(known.iter())).filter(|(_, (_, known))| **known);
        changed.for_each(|(byte, (new, _))| *byte = *new);
        crc32c(block) == *crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(block: u64) -> Logical {
        Logical { branch: 0, block }
    }

    #[test]
    fn patches_lead_from_any_version_to_the_last_one() {
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..200 {
            let mut block = vec![0; BLOCK_BYTES];
            rng.fill(&mut block);
            let (mut base, mut patches) = (block.clone(), Patches::default());
            for _ in 0..rng.usize(1..6) {
                let old = block.clone();
                for _ in 0..rng.usize(1..40) {
                    let from = rng.usize(0..BLOCK_BYTES);
                    let to = rng.usize(from..BLOCK_BYTES.min(from + 60)) + 1;
                    rng.fill(&mut block[from..to]);
                }
                assert!(patches.add(at(1), &Patch::between(&old, &block)));
            }
            let (key, overlay) = patches.pop().unwrap();
            assert_eq!(key, at(1));
            // Another block is told by the checksum.
            let mut other = base.clone();
            let untouched = (0..BLOCK_BYTES).find(|&i| !overlay.0.known[i]).unwrap();
            other[untouched] ^= 1;
            assert!(!overlay.lay_over(&mut other));
            assert!(overlay.lay_over(&mut base) && base == block);
        }
    }

    #[test]
    fn what_was_written_anew_has_no_patches() {
        let patch = Patch { crc: 1, parts: vec![(0, vec![1])] };
        let mut patches = Patches::default();
        assert!((0..10).all(|block| patches.add(at(block), &patch)));
        patches.forget(at(2), 3);
        patches.forget(Logical { branch: 1, block: 0 }, 100);
        patches.forget(at(8), u64::MAX);
        let left: Vec<u64> = std::iter::from_fn(|| patches.pop()).map(|(at, _)| at.block).collect();
        assert_eq!(left, [0, 1, 5, 6, 7]);
        assert!((0..PATCHED_MAX as u64).all(|block| patches.add(at(block), &patch)));
        assert!(patches.add(at(1), &patch) && !patches.add(at(999), &patch));
        patches.forget_all();
        assert!(patches.pop().is_none());
    }
}
