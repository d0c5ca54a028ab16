//! Blocks that were written in part a short time ago: who writes the next part of one needs the rest of it, and would have to read that.
//!
//! So it is where a file system has fragments shorter than a block, and each is made durable by itself.

use crate::batch::Logical;
use crate::extent::{BLOCK_BYTES, SECTOR_BYTES};
use std::collections::BTreeMap;

const SECTORS: u64 = BLOCK_BYTES as u64 / SECTOR_BYTES as u64;
const _: () = assert!(SECTORS == u8::BITS as u64);

/// Most blocks.
const BLOCKS_MAX: usize = 256;

/// What is in these blocks now, in two generations: when the younger is half of the bound, the older goes.
#[derive(Default)]
pub(crate) struct Partly {
    young: BTreeMap<Logical, Box<[u8]>>,
    old: BTreeMap<Logical, Box<[u8]>>,
}

impl Partly {
    pub(crate) fn get(&self, at: Logical) -> Option<Box<[u8]>> {
        self.young.get(&at).or_else(|| self.old.get(&at)).cloned()
    }

    /// A block was written in part, and is this now.
    pub(crate) fn put(&mut self, at: Logical, block: Box<[u8]>) {
        self.old.remove(&at);
        if self.young.len() >= BLOCKS_MAX / 2 && !self.young.contains_key(&at) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(at, block);
    }

    /// A block was written as a whole.
    pub(crate) fn forget(&mut self, at: Logical) {
        self.young.remove(&at);
        self.old.remove(&at);
    }

    /// Blocks were discarded.
    pub(crate) fn forget_range(&mut self, branch: u32, start: u64, end: u64) {
        let at = |block| Logical { branch, block };
        for map in [&mut self.young, &mut self.old] {
            while let Some(key) = map.range(at(start)..at(end)).next().map(|(key, _)| *key) {
                map.remove(&key);
            }
        }
    }
}

/// What pieces have of the blocks that one of them has in part, by sector: several may have all of a block together.
pub(crate) struct Covered(BTreeMap<u64, u8>);

impl Covered {
    /// Pieces are offset and length. Those that follow each other are whole sectors together.
    pub(crate) fn by(pieces: impl Iterator<Item = (u64, usize)>) -> Covered {
        let mut covered = Covered(BTreeMap::new());
        let mut run = 0..0;
        for (at, len) in pieces {
            if at != run.end {
                covered.add(run.start, run.end);
                run = at..at;
            }
            run.end += len as u64;
        }
        covered.add(run.start, run.end);
        covered
    }

    fn add(&mut self, start: u64, end: u64) {
        let block = BLOCK_BYTES as u64;
        // Only the first and the last block of a run can be incomplete.
        let first = start / block;
        for number in [first, end.saturating_sub(1).max(start) / block] {
            let (from, to) = (start.max(number * block), end.min((number + 1) * block));
            if from >= to || to - from == block {
                continue;
            }
            let sector = u64::from(SECTOR_BYTES);
            let (from, to) = ((from % block).div_ceil(sector), (to - number * block) / sector);
            let mask = (from..to).fold(0, |mask, n| mask | 1 << n);
            *self.0.entry(number).or_default() |= mask;
        }
    }

    /// Whether all of a block that a piece has something of is written.
    pub(crate) fn is_whole(&self, block: u64) -> bool {
        self.0.get(&block).is_none_or(|sectors| *sectors == u8::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_a_block_together_or_they_do_not() {
        let whole = |pieces: &[(u64, usize)]| {
            let covered = Covered::by(pieces.iter().copied());
            [0, 1, 2].map(|block| covered.is_whole(block))
        };
        assert_eq!(whole(&[(0, 12288)]), [true; 3]);
        assert_eq!(whole(&[(512, 12288 - 1024)]), [false, true, false]);
        assert_eq!(whole(&[(512, 12288 - 1024), (0, 512)]), [true, true, false]);
        assert_eq!(whole(&[(3072, 1024), (0, 3072), (4096, 512), (5120, 3072)]), [true, false, true]);
        // Buffers of a request need not be whole sectors; one after the other they are.
        assert_eq!(whole(&[(0, 100), (100, 3996), (4096, 1000), (5096, 24)]), [true, false, true]);
        assert_eq!(whole(&[(1024, 1024), (1024, 1024), (0, 1024)]), [false, true, true]);
    }

    #[test]
    fn it_has_what_was_written_last_within_its_bound() {
        let mut partly = Partly::default();
        let at = |block| Logical { branch: 1, block };
        for block in 0..10_000u64 {
            partly.put(at(block), block.to_le_bytes().into());
            partly.put(at(block), (block + 1).to_le_bytes().into());
            assert_eq!(partly.get(at(block)).unwrap()[..], (block + 1).to_le_bytes());
            assert!(partly.young.len() + partly.old.len() <= BLOCKS_MAX);
        }
        assert!(partly.get(at(0)).is_none() && partly.get(at(9_900)).is_some());
        partly.forget(at(9_999));
        partly.forget_range(1, 9_890, 9_901);
        partly.forget_range(2, 0, 20_000);
        let there: Vec<bool> = [9_999, 9_998, 9_901, 9_900, 9_890].map(|block| partly.get(at(block)).is_some()).into();
        assert_eq!(there, [false, true, true, false, false]);
    }
}
