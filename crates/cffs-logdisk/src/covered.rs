//! Whether pieces that are written together are whole blocks.

use crate::extent::{BLOCK_BYTES, SECTOR_BYTES};
use std::collections::BTreeMap;

const SECTORS: u64 = BLOCK_BYTES as u64 / SECTOR_BYTES as u64;
const _: () = assert!(SECTORS == u8::BITS as u64);

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

    /// The blocks of which they have a part only.
    pub(crate) fn in_part(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied().filter(|number| !self.is_whole(*number))
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
}
