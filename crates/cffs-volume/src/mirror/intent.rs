//! What is in memory of the write-intent bitmap.

use crate::regions::Regions;
use std::collections::BTreeMap;

/// How a region is used.
#[derive(Default)]
pub(super) struct Use {
    /// Writes under way.
    pub(super) in_flight: u32,
    /// The epoch in which the last write ended.
    pub(super) last: u64,
}

/// Which regions may differ between the members.
pub(super) struct Intent {
    /// Those of the bitmap on the members.
    pub(super) durable: Regions,
    /// Regions that were written since the mirror was opened and are in `durable`, or are going to be.
    pub(super) uses: BTreeMap<u32, Use>,
    /// Number of flushes that have begun.
    pub(super) epoch: u64,
}

/// The bitmap on the members.
pub(super) struct IntentIo {
    pub(super) sequence: u64,
    /// The copy to write next. The other one is durable.
    pub(super) next_copy: usize,
}

impl Intent {
    pub(super) fn new(durable: Regions) -> Self {
        Intent { durable, uses: BTreeMap::new(), epoch: 1 }
    }

    /// A write to these regions begins. Says whether the bitmap has all of them.
    pub(super) fn begin(&mut self, regions: impl Iterator<Item = u32>) -> bool {
        let mut all = true;
        for r in regions {
            self.uses.entry(r).or_default().in_flight += 1;
            all &= self.durable.contains(r);
        }
        all
    }

    /// A write to these regions has ended.
    pub(super) fn end(&mut self, regions: impl Iterator<Item = u32>) {
        for r in regions {
            if let Some(used) = self.uses.get_mut(&r) {
                used.in_flight = used.in_flight.saturating_sub(1);
                used.last = self.epoch;
            }
        }
    }

    /// What the bitmap must have: what it has, and where writes are under way.
    pub(super) fn wanted(&self) -> Regions {
        let mut set = self.durable.clone();
        self.uses.iter().filter(|(_, used)| used.in_flight > 0).for_each(|(r, _)| set.insert(*r));
        set
    }

    /// Takes out the regions that `keep` does not hold, without writes under way, and whose last write ended more than `idle` epochs
    /// before `flushed`. Says whether there were any.
    pub(super) fn remove_idle(&mut self, flushed: u64, idle: u64, keep: impl Fn(u32) -> bool) -> bool {
        let is_idle =
            |r: &u32| self.uses.get(r).is_none_or(|u| u.in_flight == 0 && u.last.saturating_add(idle) < flushed);
        let clear: Vec<u32> = self.durable.iter().filter(|r| is_idle(r) && !keep(*r)).collect();
        for r in &clear {
            self.durable.remove(*r);
            self.uses.remove(r);
        }
        !clear.is_empty()
    }
}
