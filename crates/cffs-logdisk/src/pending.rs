//! What was written and is in no batch yet, or of which batches have patches only.

use crate::batch::Logical;
use crate::extent::BLOCK_BYTES;
use crate::patch::Patch;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Blocks and discarded ranges of the batch that is open. Discards count before the blocks.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) blocks: BTreeMap<Logical, Box<[u8]>>,
    /// What some of these blocks were when the last batch ended, as far as that is known.
    pub(crate) bases: BTreeMap<Logical, Box<[u8]>>,
    /// Blocks that were written since then.
    changed: BTreeSet<Logical>,
    /// When batches got the last patches of the others.
    patched_at: BTreeMap<Logical, u64>,
    /// Batches with patches so far.
    batches: u64,
    /// Batches have patches of blocks that are not written yet: they must be before a checkpoint, and before others take the room for them.
    pub(crate) patched: bool,
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

    /// Adds a block, which was `base` when the last batch ended, if that is known.
    pub(crate) fn write(&mut self, at: Logical, block: Box<[u8]>, base: Option<Box<[u8]>>) {
        self.extents += self.new_runs(at);
        self.changed.insert(at);
        let base = if self.is_discarded(at) { Some(vec![0; BLOCK_BYTES].into()) } else { base };
        if self.blocks.insert(at, block).is_none()
            && let Some(base) = base
        {
            self.bases.insert(at, base);
        }
    }

    /// Blocks that are what they were when the last batch ended count as not written since then, and those of which no batch has patches are not pending.
    /// Zeros that were written where something was discarded are more than the discard: of that a new map may know nothing.
    pub(crate) fn forget_unchanged(&mut self) {
        let is_same = |at: &&Logical| {
            self.bases.get(at).is_some_and(|base| self.blocks.get(at) == Some(base)) && !self.is_discarded(**at)
        };
        let same: Vec<Logical> = self.changed.iter().filter(is_same).copied().collect();
        for at in &same {
            self.changed.remove(at);
            if !self.patched_at.contains_key(at) {
                self.blocks.remove(at);
                self.bases.remove(at);
            }
        }
        if !same.is_empty() && self.discards.is_empty() {
            self.count_extents();
        }
    }

    /// Patches that make the blocks what they are of what they were, and the blocks that are to be written whole because that is not known, or
    /// hardly longer; or because no batch has patches of them yet and no `new` ones are wanted.
    pub(crate) fn patches(&self, new: bool) -> (Vec<(Logical, Patch)>, Vec<Logical>) {
        let (mut patches, mut whole) = (Vec::new(), Vec::new());
        for (at, block) in self.changed.iter().filter_map(|at| self.blocks.get_key_value(at)) {
            let base = self.bases.get(at).filter(|_| new || self.patched_at.contains_key(at));
            match base.and_then(|base| Patch::within(BLOCK_BYTES / 2, base, block)) {
                Some(patch) => patches.push((*at, patch)),
                None => whole.push(*at),
            }
        }
        (patches, whole)
    }

    /// How many blocks were written since the last batch.
    pub(crate) fn changed(&self) -> usize {
        self.changed.len()
    }

    /// So many of the blocks that were not written since the last batch, those first that have not changed for longest.
    pub(crate) fn coldest(&self, blocks: usize) -> impl Iterator<Item = Logical> {
        let unchanged = self.patched_at.iter().filter(|(at, _)| !self.changed.contains(at));
        let mut all: Vec<(u64, Logical)> = unchanged.map(|(at, when)| (*when, *at)).collect();
        all.sort_unstable();
        all.into_iter().take(blocks).map(|(_, at)| at)
    }

    /// A batch has these blocks, patches of the others, and what was discarded.
    pub(crate) fn was_patched(&mut self, whole: &[Logical]) {
        for at in whole {
            self.blocks.remove(at);
            self.bases.remove(at);
            self.patched_at.remove(at);
        }
        self.batches += 1;
        for at in std::mem::take(&mut self.changed) {
            if let Some(block) = self.blocks.get(&at) {
                self.bases.insert(at, block.clone());
                self.patched_at.insert(at, self.batches);
            }
        }
        self.discards.clear();
        (self.discarded, self.patched) = (0, !self.blocks.is_empty());
        self.count_extents();
    }

    /// Counts the runs of the blocks anew, if nothing was discarded.
    fn count_extents(&mut self) {
        self.extents = runs(self.blocks.keys());
    }

    /// Runs of some of the blocks, in ascending order, and of the others.
    pub(crate) fn runs_without(&self, some: &[Logical]) -> usize {
        let others = self.blocks.keys().filter(|at| some.binary_search(at).is_err());
        runs(some.iter()) + runs(others)
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
            self.bases.remove(k);
            self.changed.remove(k);
            self.patched_at.remove(k);
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

    /// Blocks that were written since the last batch and of which it is not known what they were.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = Logical> {
        self.changed.iter().copied().filter(|at| !self.bases.contains_key(at))
    }

    /// Ranges of blocks (first, number) in order, together with what is pending of a branch within a range.
    pub(crate) fn with_blocks(&self, branch: u32, range: Range<u64>, ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let at = |block| Logical { branch, block };
        let mut all: Vec<(u64, u64)> =
            self.blocks.range(at(range.start)..at(range.end)).map(|(k, _)| (k.block, 1)).collect();
        all.extend_from_slice(ranges);
        all.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (first, n) in all {
            match joined.last_mut() {
                Some(last) if first <= last.0 + last.1 => last.1 = last.1.max(first + n - last.0),
                _ => joined.push((first, n)),
            }
        }
        joined
    }

    pub(crate) fn is_discarded(&self, at: Logical) -> bool {
        let before = self.discards.range(..=at).next_back();
        before.is_some_and(|(k, &end)| k.branch == at.branch && at.block < end)
    }
}

/// Runs of blocks side by side, of blocks in ascending order.
fn runs<'a>(blocks: impl Iterator<Item = &'a Logical>) -> usize {
    let mut last = None;
    let begins = |at: &&Logical| last.replace(**at).is_none_or(|l| l.branch != at.branch || l.block + 1 != at.block);
    blocks.filter(begins).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_blocks_count_after_them() {
        let mut p = Pending::default();
        let at = |block| Logical { branch: 1, block };
        p.write(at(5), vec![1].into(), None);
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
        p.write(at(5), vec![1].into(), None);
        assert_eq!(p.blocks.len(), 1);
        assert!(p.bases[&at(5)].iter().all(|b| *b == 0), "it was discarded before it was written");
    }

    #[test]
    fn a_batch_has_what_changed_since_the_last_one() {
        let at = |block| Logical { branch: 0, block };
        let block = |byte: u8, at: usize| -> Box<[u8]> {
            let mut block = vec![1; BLOCK_BYTES];
            block[at] = byte;
            block.into()
        };
        let mut p = Pending::default();
        p.write(at(1), block(2, 0), Some(block(1, 0)));
        p.write(at(2), block(2, 0), None);
        p.write(at(3), vec![9; BLOCK_BYTES].into(), Some(block(1, 0)));
        p.write(at(4), block(2, 7), Some(block(1, 0)));
        let (patches, whole) = p.patches(true);
        assert_eq!(
            patches.iter().map(|(at, p)| (at.block, p.parts.clone())).collect::<Vec<_>>(),
            [(1, vec![(0, vec![2])]), (4, vec![(7, vec![2])])]
        );
        assert_eq!(whole, [at(2), at(3)]);
        assert_eq!(p.with_blocks(0, 2..9, &[(4, 3), (9, 1)]), [(2, 5), (9, 1)]);
        assert_eq!([p.runs_without(&whole), p.runs_without(&[])], [3, 1]);
        p.discard(0, 9, 12, 1);
        p.was_patched(&whole);
        assert!(p.patched && p.discards.is_empty());
        assert_eq!((p.extents, p.discarded), (2, 0));
        assert_eq!(p.patches(true), (vec![], vec![]), "nothing has changed");
        // From now on the base is what the patch has made.
        p.write(at(1), block(3, 0), Some(vec![7; BLOCK_BYTES].into()));
        assert_eq!(p.patches(true).0.len(), 1);
        assert_eq!(p.patches(true).0[0].1.parts, [(0, vec![3])]);
        assert_eq!(p.coldest(9).collect::<Vec<_>>(), [at(4)], "the other has changed");
        p.was_patched(&[]);
        assert_eq!(p.coldest(9).collect::<Vec<_>>(), [at(4), at(1)]);
        assert_eq!(p.coldest(1).collect::<Vec<_>>(), [at(4)]);
        p.discard(0, 1, 2, 1);
        assert!(p.bases.contains_key(&at(4)) && !p.bases.contains_key(&at(1)));
        assert_eq!(p.coldest(9).collect::<Vec<_>>(), [at(4)]);
        p.was_patched(&[at(4)]);
        assert!(!p.patched && p.is_empty());
    }

    #[test]
    fn what_is_as_it_was_is_not_written_but_for_zeros_behind_a_discard() {
        let at = |block| Logical { branch: 0, block };
        let full = |byte| -> Box<[u8]> { vec![byte; BLOCK_BYTES].into() };
        let mut p = Pending::default();
        (1..4).for_each(|block| p.write(at(block), full(1), Some(full(2))));
        p.write(at(4), full(3), Some(full(3)));
        p.forget_unchanged();
        assert_eq!((p.blocks.len(), p.changed(), p.extents), (3, 3, 1));
        // Of 2 there is a patch, so what the batch has of it is to be written whole one day.
        p.was_patched(&[at(1), at(3)]);
        p.write(at(2), full(1), None);
        p.discard(0, 7, 9, 1);
        p.write(at(7), full(0), Some(full(5)));
        p.write(at(8), full(1), Some(full(1)));
        p.forget_unchanged();
        assert_eq!(p.blocks.keys().copied().collect::<Vec<_>>(), [at(2), at(7), at(8)]);
        assert_eq!(p.changed(), 2);
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
