//! Blocks that were written a short time ago and are soon written again: who writes the next part of one needs the rest of it, and who writes it again
//! what it was.
//!
//! So it is where a file system has fragments shorter than a block, and each is made durable by itself; and where it changes a few bytes in the same blocks
//! for each file that it makes durable, or each time that it makes all durable.

use crate::batch::Logical;
use std::collections::BTreeMap;

/// Why a block is written again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// A part of it was written, or few others with it.
    Part,
    /// It was in an atomic write, as the metadata of a file system is.
    Commit,
}

impl Again {
    /// Most blocks of a generation. The metadata of one commit must not take the place of the rest of them.
    fn most(self) -> usize {
        match self {
            Again::Part => 128,
            Again::Commit => 512,
        }
    }
}

/// Blocks in two generations: when the younger has its most, the older goes.
#[derive(Default)]
struct Generations {
    young: BTreeMap<Logical, Box<[u8]>>,
    old: BTreeMap<Logical, Box<[u8]>>,
}

/// What is in these blocks now, by why they are written again. No block is there twice: who writes one has taken it.
#[derive(Default)]
pub(crate) struct Recent([Generations; 2]);

impl Recent {
    pub(crate) fn get(&self, at: Logical) -> Option<Box<[u8]>> {
        self.0.iter().flat_map(|g| [&g.young, &g.old]).find_map(|blocks| blocks.get(&at)).cloned()
    }

    /// A block is written. Returns what it was, if that is known.
    pub(crate) fn take(&mut self, at: Logical) -> Option<Box<[u8]>> {
        self.0.iter_mut().flat_map(|g| [&mut g.young, &mut g.old]).find_map(|blocks| blocks.remove(&at))
    }

    /// It was written, is this now, and is soon written again.
    pub(crate) fn put(&mut self, at: Logical, block: Box<[u8]>, again: Again) {
        let generations = &mut self.0[again as usize];
        if generations.young.len() >= again.most() {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(at, block);
    }

    /// Blocks were discarded.
    pub(crate) fn forget_range(&mut self, branch: u32, start: u64, end: u64) {
        let at = |block| Logical { branch, block };
        for map in self.0.iter_mut().flat_map(|g| [&mut g.young, &mut g.old]) {
            while let Some(key) = map.range(at(start)..at(end)).next().map(|(key, _)| *key) {
                map.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_was_written_last_within_its_bound() {
        let mut recent = Recent::default();
        let at = |block| Logical { branch: 1, block };
        let has = |recent: &Recent, block| recent.get(at(block)).map(|b| u64::from_le_bytes((*b).try_into().unwrap()));
        for block in 0..10_000u64 {
            for value in [block, block + 1] {
                assert_eq!(recent.take(at(block)).is_some(), value > block);
                recent.put(at(block), value.to_le_bytes().into(), Again::Part);
                assert_eq!(has(&recent, block), Some(value));
            }
            let [parts, commits] = &recent.0;
            assert!(parts.young.len() + parts.old.len() <= 256 && commits.young.is_empty());
        }
        assert!(has(&recent, 0).is_none() && has(&recent, 9_900).is_some());
        assert_eq!(recent.take(at(9_999)).unwrap()[..], 10_000u64.to_le_bytes());
        recent.forget_range(1, 9_890, 9_901);
        recent.forget_range(2, 0, 20_000);
        let there: Vec<bool> = [9_999, 9_998, 9_901, 9_900, 9_890].map(|block| has(&recent, block).is_some()).into();
        assert_eq!(there, [false, true, true, false, false]);
    }

    #[test]
    fn commits_leave_the_parts_of_blocks_and_a_block_is_there_once() {
        let mut recent = Recent::default();
        let at = |block| Logical { branch: 1, block };
        recent.put(at(5), vec![1].into(), Again::Part);
        (100..10_000).for_each(|block| recent.put(at(block), vec![2].into(), Again::Commit));
        assert_eq!(recent.get(at(5)).unwrap()[..], [1]);
        assert!(recent.get(at(9_600)).is_some() && recent.get(at(8_000)).is_none());
        for (block, was, is, again) in [(9_999, 2, 3, Again::Part), (5, 1, 4, Again::Commit)] {
            assert_eq!(recent.take(at(block)).unwrap()[..], [was]);
            recent.put(at(block), vec![is].into(), again);
            assert_eq!(recent.take(at(block)).unwrap()[..], [is]);
            assert!(recent.take(at(block)).is_none(), "not as it was before");
        }
    }
}
