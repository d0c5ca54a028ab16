//! Blocks that were written a short time ago, in part or with few others: who writes the next part of one needs the rest of it, and who
//! writes it again what it was.
//!
//! So it is where a file system has fragments shorter than a block, and each is made durable by itself; and where it changes a few bytes in the same blocks
//! for each file that it makes durable, or each time that it makes all durable.

use crate::batch::Logical;
use std::collections::BTreeMap;

/// Most blocks.
pub(crate) const BLOCKS_MAX: usize = 1024;

/// What is in these blocks now, in two generations: when the younger is half of the bound, the older goes.
#[derive(Default)]
pub(crate) struct Recent {
    young: BTreeMap<Logical, Box<[u8]>>,
    old: BTreeMap<Logical, Box<[u8]>>,
}

impl Recent {
    pub(crate) fn get(&self, at: Logical) -> Option<Box<[u8]>> {
        self.young.get(&at).or_else(|| self.old.get(&at)).cloned()
    }

    /// A block was written, and is this now. Returns what it was, if that is known.
    pub(crate) fn put(&mut self, at: Logical, block: Box<[u8]>) -> Option<Box<[u8]>> {
        let old = self.old.remove(&at);
        if self.young.len() >= BLOCKS_MAX / 2 && !self.young.contains_key(&at) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(at, block).or(old)
    }

    /// A block was written with many others. Returns what it was, if that is known.
    pub(crate) fn forget(&mut self, at: Logical) -> Option<Box<[u8]>> {
        let old = self.old.remove(&at);
        self.young.remove(&at).or(old)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_was_written_last_within_its_bound() {
        let mut recent = Recent::default();
        let at = |block| Logical { branch: 1, block };
        for block in 0..10_000u64 {
            assert!(recent.put(at(block), block.to_le_bytes().into()).is_none());
            let was = recent.put(at(block), (block + 1).to_le_bytes().into());
            assert_eq!(was.unwrap()[..], block.to_le_bytes());
            assert_eq!(recent.get(at(block)).unwrap()[..], (block + 1).to_le_bytes());
            assert!(recent.young.len() + recent.old.len() <= BLOCKS_MAX);
        }
        assert!(recent.get(at(0)).is_none() && recent.get(at(9_900)).is_some());
        assert_eq!(recent.forget(at(9_999)).unwrap()[..], 10_000u64.to_le_bytes());
        recent.forget_range(1, 9_890, 9_901);
        recent.forget_range(2, 0, 20_000);
        let there: Vec<bool> = [9_999, 9_998, 9_901, 9_900, 9_890].map(|block| recent.get(at(block)).is_some()).into();
        assert_eq!(there, [false, true, true, false, false]);
    }
}
