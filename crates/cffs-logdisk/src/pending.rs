//! What was written and is in no batch yet.

use crate::batch::Logical;
use std::collections::BTreeMap;

/// Blocks and discarded ranges of the batch that is open. Discards count before the blocks.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) blocks: BTreeMap<Logical, Box<[u8]>>,
    /// Start -> first block behind the range.
    pub(crate) discards: BTreeMap<Logical, u64>,
    /// Extents that the batch writes, cuts or takes away, or somewhat more.
    pub(crate) extents: usize,
    /// Of these, those that are taken away: each of their blocks may die elsewhere.
    pub(crate) discarded: usize,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.discards.is_empty()
    }

    pub(crate) fn write(&mut self, at: Logical, block: Box<[u8]>) {
        self.extents += self.new_runs(at);
        self.blocks.insert(at, block);
    }

    /// Runs of blocks that a block adds.
    pub(crate) fn new_runs(&self, at: Logical) -> usize {
        let before = at.block.checked_sub(1).map(|block| Logical { block, ..at });
        usize::from(!before.is_some_and(|b| self.blocks.contains_key(&b)) && !self.blocks.contains_key(&at))
    }

    /// Adds a range with so many extents, joined with those that it touches.
    pub(crate) fn discard(&mut self, branch: u32, start: u64, end: u64, extents: usize) {
        self.extents += extents + 2;
        self.discarded += extents;
        let at = |block| Logical { branch, block };
        let inside: Vec<Logical> = self.blocks.range(at(start)..at(end)).map(|(k, _)| *k).collect();
        inside.iter().for_each(|k| {
            self.blocks.remove(k);
        });
        let (mut first, mut last) = (start, end);
        if let Some((k, &e)) = self.discards.range(..at(start)).next_back()
            && k.branch == branch
            && e >= start
        {
            first = k.block;
        }
        let joined: Vec<Logical> = self.discards.range(at(first)..=at(end)).map(|(k, _)| *k).collect();
        for k in joined {
            if let Some(e) = self.discards.remove(&k) {
                last = last.max(e);
            }
        }
        self.discards.insert(at(first), last);
    }

    pub(crate) fn is_discarded(&self, at: Logical) -> bool {
        let before = self.discards.range(..=at).next_back();
        before.is_some_and(|(k, &end)| k.branch == at.branch && at.block < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_blocks_count_after_them() {
        let mut p = Pending::default();
        let at = |block| Logical { branch: 1, block };
        p.write(at(5), vec![1].into());
        p.discard(1, 3, 6, 1);
        assert!(p.blocks.is_empty());
        p.discard(1, 10, 12, 1);
        p.discard(2, 6, 10, 1);
        p.discard(1, 6, 10, 1);
        assert_eq!(
            p.discards.iter().map(|(k, &e)| (k.branch, k.block, e)).collect::<Vec<_>>(),
            [(1, 3, 12), (2, 6, 10)]
        );
        assert!(p.is_discarded(at(3)) && p.is_discarded(at(11)) && !p.is_discarded(at(12)) && !p.is_discarded(at(2)));
        p.write(at(5), vec![1].into());
        assert_eq!(p.blocks.len(), 1);
    }

    #[test]
    fn equals_a_set() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let mut p = Pending::default();
            let mut set = [false; 64];
            for _ in 0..12 {
                let start = rng.u64(0..63);
                let end = rng.u64(start + 1..=64);
                p.discard(0, start, end, 1);
                set[start as usize..end as usize].fill(true);
            }
            for (i, &s) in set.iter().enumerate() {
                assert_eq!(p.is_discarded(Logical { branch: 0, block: i as u64 }), s);
            }
        }
    }
}
