//! Runs of blocks that a transfer is under way of.
//!
//! Until it has ended nobody else may read or write them on the device: one would see, or leave, a part of the other. Runs
//! and not single blocks, because a long write claims thousands of them, and does nothing else with them.

use crate::format::BlockAddr;
use std::collections::BTreeMap;
use std::ops::Range;

/// Runs of blocks without common ones: the first block of each, and the one behind its last.
#[derive(Default)]
pub(super) struct Claims(BTreeMap<BlockAddr, BlockAddr>);

impl Claims {
    /// Claims a run of which nothing is claimed.
    pub(super) fn add(&mut self, run: Range<BlockAddr>) {
        debug_assert!(!run.is_empty() && self.first_in(run.clone()).is_none(), "{run:?} is claimed twice");
        self.0.insert(run.start, run.end);
    }

    /// Makes a claimed run longer, by blocks that are not claimed.
    pub(super) fn extend(&mut self, run: Range<BlockAddr>, end: BlockAddr) {
        debug_assert!(self.first_in(run.end..end).is_none(), "{:?} is claimed twice", run.end..end);
        let before = self.0.insert(run.start, end);
        debug_assert_eq!(before, Some(run.end), "{run:?} is not what was claimed");
    }

    /// Ends the claim of a run, as a whole.
    pub(super) fn remove(&mut self, run: Range<BlockAddr>) {
        let end = self.0.remove(&run.start);
        debug_assert_eq!(end, Some(run.end), "{run:?} is not what was claimed");
    }

    /// Whether the block is claimed.
    pub(super) fn holds(&self, addr: BlockAddr) -> bool {
        self.last_in(addr..addr + 1).is_some()
    }

    /// The last claimed block of a run.
    pub(super) fn last_in(&self, run: Range<BlockAddr>) -> Option<BlockAddr> {
        let (_, end) = self.0.range(..run.end).next_back()?;
        (!run.is_empty() && *end > run.start).then(|| run.end.min(*end) - 1)
    }

    /// The first claimed block of a run.
    pub(super) fn first_in(&self, run: Range<BlockAddr>) -> Option<BlockAddr> {
        if self.holds(run.start) {
            return (!run.is_empty()).then_some(run.start);
        }
        self.0.range(run).next().map(|(first, _)| *first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_found_from_every_side() {
        let mut claims = Claims::default();
        claims.add(10..20);
        claims.add(20..21);
        claims.add(30..40);
        let held: Vec<_> = (0..50).filter(|a| claims.holds(*a)).collect();
        assert_eq!(held, (10..21).chain(30..40).collect::<Vec<_>>());
        // Against a look at each block.
        for (start, end) in (0..50).flat_map(|s| (s..=50).map(move |e| (s, e))) {
            let run = start..end;
            assert_eq!(claims.first_in(run.clone()), run.clone().find(|a| claims.holds(*a)), "{run:?}");
            assert_eq!(claims.last_in(run.clone()), run.clone().rev().find(|a| claims.holds(*a)), "{run:?}");
        }
        claims.extend(20..21, 25);
        assert!(claims.holds(24) && !claims.holds(25));
        claims.remove(20..25);
        assert!(claims.holds(19) && !claims.holds(20) && claims.first_in(20..30).is_none());
        claims.remove(10..20);
        assert_eq!(claims.first_in(0..50), Some(30));
    }
}
