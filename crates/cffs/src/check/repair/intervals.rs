//! Sets of fragments as joined runs.

use crate::format::FragAddr;
use std::collections::BTreeMap;

/// A set of fragments. Runs that touch are one run, so memory follows the number of gaps, not the number of files.
#[derive(Clone, Debug, Default)]
pub(super) struct Intervals(BTreeMap<FragAddr, FragAddr>);

impl Intervals {
    /// Adds a run.
    pub(super) fn insert(&mut self, start: FragAddr, end: FragAddr) {
        if start >= end {
            return;
        }
        let (mut s, mut e) = (start, end);
        while let Some((&a, &b)) = self.0.range(..=e).next_back().filter(|(_, b)| **b >= s) {
            self.0.remove(&a);
            (s, e) = (s.min(a), e.max(b));
        }
        self.0.insert(s, e);
    }

    /// Takes a run out.
    pub(super) fn remove(&mut self, start: FragAddr, end: FragAddr) {
        let hit: Vec<(FragAddr, FragAddr)> = self.runs_touching(start, end).collect();
        for (a, b) in hit {
            self.0.remove(&a);
            if a < start {
                self.0.insert(a, start);
            }
            if b > end {
                self.0.insert(end, b);
            }
        }
    }

    fn runs_touching(&self, start: FragAddr, end: FragAddr) -> impl Iterator<Item = (FragAddr, FragAddr)> + '_ {
        let before = self.0.range(..start).next_back().filter(|(_, e)| **e > start);
        before.into_iter().chain(self.0.range(start..end.max(start))).map(|(s, e)| (*s, *e))
    }

    /// The parts of a range that are in the set, in order.
    pub(super) fn within(&self, start: FragAddr, end: FragAddr) -> impl Iterator<Item = (FragAddr, FragAddr)> + '_ {
        self.runs_touching(start, end).map(move |(s, e)| (s.max(start), e.min(end)))
    }

    /// Whether any of a range is in the set.
    pub(super) fn overlaps(&self, start: FragAddr, end: FragAddr) -> bool {
        self.runs_touching(start, end).next().is_some()
    }

    /// The parts of a range that are not in the set, in order.
    pub(super) fn gaps(&self, start: FragAddr, end: FragAddr) -> Vec<(FragAddr, FragAddr)> {
        let (mut at, mut out) = (start, Vec::new());
        for (s, e) in self.within(start, end) {
            if s > at {
                out.push((at, s));
            }
            at = e;
        }
        if at < end {
            out.push((at, end));
        }
        out
    }

    /// First gap of at least `len` fragments at a multiple of `align`, within a range.
    pub(super) fn find_gap(&self, start: FragAddr, end: FragAddr, len: u64, align: u64) -> Option<FragAddr> {
        let mut at = start.next_multiple_of(align);
        for (s, e) in self.within(start, end) {
            if s >= at && s - at >= len {
                return Some(at);
            }
            at = at.max(e.next_multiple_of(align));
        }
        (at < end && end - at >= len).then_some(at)
    }

    /// The last fragment of the set.
    pub(super) fn last(&self) -> Option<FragAddr> {
        self.0.last_key_value().map(|(_, e)| e - 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn equals_a_set(ops in proptest::collection::vec((any::<bool>(), 0u64..300, 1u64..40), 1..60)) {
            let (mut set, mut model) = (Intervals::default(), BTreeSet::new());
            for (add, start, len) in ops {
                if add {
                    set.insert(start, start + len);
                    model.extend(start..start + len);
                } else {
                    set.remove(start, start + len);
                    model.retain(|f| !(start..start + len).contains(f));
                }
            }
            let all: Vec<u64> = set.within(50, 250).flat_map(|(s, e)| s..e).collect();
            prop_assert_eq!(&all, &model.range(50..250).copied().collect::<Vec<_>>());
            let free: Vec<u64> = set.gaps(50, 250).into_iter().flat_map(|(s, e)| s..e).collect();
            prop_assert_eq!(free, (50..250).filter(|f| !model.contains(f)).collect::<Vec<_>>());
            for (len, align) in [(1, 1), (4, 4), (7, 2)] {
                let fits = |at: &u64| (*at..at + len).all(|f| !model.contains(&f));
                let want = (50..=250 - len).filter(|at| at % align == 0).find(fits);
                prop_assert_eq!(set.find_gap(50, 250, len, align), want);
            }
            prop_assert_eq!(set.last(), model.last().copied());
            prop_assert_eq!(set.is_empty(), model.is_empty());
            prop_assert_eq!(set.overlaps(100, 120), model.range(100..120).next().is_some());
        }
    }
}
