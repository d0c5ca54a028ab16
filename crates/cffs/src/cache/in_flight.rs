//! Ranges of blocks with a transfer in flight.
//!
//! Until the transfer has ended nobody else may read or write these blocks on the device, because one transfer would see, or
//! leave, a part of the other. Ranges and not single blocks, because a long write covers thousands of them.

use crate::format::BlockAddr;
use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges of blocks: the first block of each, and the one behind its last.
#[derive(Default)]
pub(super) struct InFlight(BTreeMap<BlockAddr, BlockAddr>);

impl InFlight {
    /// Adds a range of which no block is in flight.
    pub(super) fn add(&mut self, range: Range<BlockAddr>) {
        debug_assert!(!range.is_empty() && self.first_in(range.clone()).is_none(), "{range:?} is in flight already");
        self.0.insert(range.start, range.end);
    }

    /// Makes a range longer, by blocks that are not in flight.
    pub(super) fn extend(&mut self, range: Range<BlockAddr>, end: BlockAddr) {
        debug_assert!(self.first_in(range.end..end).is_none(), "{:?} is in flight already", range.end..end);
        let before = self.0.insert(range.start, end);
        debug_assert_eq!(before, Some(range.end), "{range:?} is not a range that was added");
    }

    /// Removes a range, as a whole: its transfer has ended.
    pub(super) fn remove(&mut self, range: Range<BlockAddr>) {
        let end = self.0.remove(&range.start);
        debug_assert_eq!(end, Some(range.end), "{range:?} is not a range that was added");
    }

    /// Whether a transfer of the block is in flight.
    pub(super) fn contains(&self, addr: BlockAddr) -> bool {
        self.last_in(addr..addr + 1).is_some()
    }

    /// The last block of a range that is in flight.
    pub(super) fn last_in(&self, range: Range<BlockAddr>) -> Option<BlockAddr> {
        let (_, end) = self.0.range(..range.end).next_back()?;
        (!range.is_empty() && *end > range.start).then(|| range.end.min(*end) - 1)
    }

    /// The first block of a range that is in flight.
    pub(super) fn first_in(&self, range: Range<BlockAddr>) -> Option<BlockAddr> {
        if self.contains(range.start) {
            return (!range.is_empty()).then_some(range.start);
        }
        self.0.range(range).next().map(|(first, _)| *first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_from_every_side() {
        let mut in_flight = InFlight::default();
        in_flight.add(10..20);
        in_flight.add(20..21);
        in_flight.add(30..40);
        let held: Vec<_> = (0..50).filter(|a| in_flight.contains(*a)).collect();
        assert_eq!(held, (10..21).chain(30..40).collect::<Vec<_>>());
        // Against a look at each block.
        for (start, end) in (0..50).flat_map(|s| (s..=50).map(move |e| (s, e))) {
            let range = start..end;
            assert_eq!(in_flight.first_in(range.clone()), range.clone().find(|a| in_flight.contains(*a)), "{range:?}");
            assert_eq!(
                in_flight.last_in(range.clone()),
                range.clone().rev().find(|a| in_flight.contains(*a)),
                "{range:?}"
            );
        }
        in_flight.extend(20..21, 25);
        assert!(in_flight.contains(24) && !in_flight.contains(25));
        in_flight.remove(20..25);
        assert!(in_flight.contains(19) && !in_flight.contains(20) && in_flight.first_in(20..30).is_none());
        in_flight.remove(10..20);
        assert_eq!(in_flight.first_in(0..50), Some(30));
    }
}
