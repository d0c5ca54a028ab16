//! Long runs: the shortest free run that holds all of a large file, and the longest one for a file that fits none.
//!
//! These searches see all allocation groups that are open, because a file that is brought together may go anywhere.

use super::free_set::FreeSet;
use super::free_space::Space;
use super::search::Loads;
use crate::error::{Error, Result};
use crate::format::LongestRuns;
use crate::format::{FragAddr, Run};
use std::sync::atomic::Ordering;

/// What the free extents of an allocation group offer: a rank, of which the lowest wins, then start and length.
pub(super) type Offer = (u64, u32, u32);

impl Space {
    /// The best offer of those open allocation groups that are worth a look; `offer` gets what is free, and the first fragment. Returns the group too.
    /// Damaged ones are not used.
    pub(super) fn best_offer(
        &self,
        worth: impl Fn(u64) -> bool,
        offer: impl Fn(&FreeSet, FragAddr) -> Option<Offer>,
    ) -> Result<Option<(Offer, u64)>> {
        let mut best: Option<(Offer, u64)> = None;
        let groups = (0..self.open.load(Ordering::Acquire)).filter(|ag| worth(*ag));
        let failed = self.visit_in_turn(groups, &mut Loads::default(), |group| {
            match self.with_free_set(group, |set| offer(set, group.start())) {
                Ok(Some(found)) => best = best.into_iter().chain([(found, group.ag())]).min(),
                Ok(None) | Err(Error::Corrupt(_)) => {}
                Err(e) => return Some(e),
            }
            None
        });
        failed.map_or(Ok(best), |(_, e)| Err(e))
    }

    /// The shortest free run with room for `frags` fragments from the start of a block on; without one the longest run, in whole
    /// blocks. It is not allocated.
    pub fn run_for(&self, frags: u64) -> Result<Option<Run>> {
        let shift = self.g.block_shift - self.g.frag_shift;
        let want = u32::try_from(frags).unwrap_or(u32::MAX);
        let fits =
            |set: &FreeSet, _| set.shortest_with_room(want, shift).map(|(start, len)| (u64::from(len), start, len));
        let longest = |set: &FreeSet, _| {
            let (start, len) = set.find_largest(1, shift)?;
            Some((u64::from(u32::MAX - len), start, len))
        };
        let found = match self.best_offer(|ag| self.may_have_run(ag, frags), fits)? {
            Some(found) => Some(found),
            None => self.best_offer(|_| true, longest)?,
        };
        Ok(found.map(|((_, start, len), ag)| self.run_at(ag, start, len)))
    }

    pub(super) fn run_at(&self, ag: u64, start: u32, len: u32) -> Run {
        Run { start: self.g.frag_of_block(self.g.ag_start(ag)) + u64::from(start), len: u64::from(len) }
    }

    /// Of the AGs before this one the hint tells something. Of a virgin one it has what it has of those that share it.
    fn known_groups(&self) -> u64 {
        self.ags_at_mount.min(self.open.load(Ordering::Acquire))
    }

    /// Every free run of an AG has fewer fragments than this, by what was known at the mount. `None`: nothing was.
    pub(super) fn no_run_has(&self, ag: u64) -> Option<u64> {
        let bound = self.longest_runs_known.bound(ag, self.ags_at_mount).filter(|_| ag < self.known_groups());
        bound.map(|groups| self.g.frag_of_block(groups << self.g.group_shift >> self.g.block_shift))
    }

    /// Whether an AG may have a free run of so many fragments. Reads nothing: only of one that is not loaded it may be wrong.
    pub(super) fn may_have_run(&self, ag: u64, frags: u64) -> bool {
        self.no_run_has(ag).is_none_or(|bound| frags < bound) || self.loaded_group(ag).is_some()
    }

    /// What is known of the longest free runs, for the next mount. Reads nothing.
    pub(crate) fn longest_runs_at_most(&self) -> LongestRuns {
        let group = self.g.frag_of_block(self.g.group_blocks());
        let known = self.known_groups();
        LongestRuns::of(self.g.ag_count, |ag| match self.loaded_group(ag) {
            Some(loaded) => {
                let longest = self.with_free_set(&loaded, |set| set.find_largest(1, 0)).ok()?;
                Some(longest.map_or(0, |(_, len)| u64::from(len)) / group + 1)
            }
            None if ag < known => self.longest_runs_known.bound(ag, self.ags_at_mount),
            None => None,
        })
    }

    /// The longest free runs that together have `need` fragments, the longest first: all that there is, if that is less.
    pub fn longest_runs(&self, need: u64) -> Result<Vec<u64>> {
        let mut lens: Vec<u32> = Vec::new();
        for ag in 0..self.open.load(Ordering::Acquire) {
            match self.with_free_set(&self.alloc_group(ag), |set| set.longest(need, &mut lens)) {
                Ok(()) | Err(Error::Corrupt(_)) => {}
                Err(e) => return Err(e),
            }
        }
        // Allocation groups that nothing was written to are one run each.
        let virgin = self.open.load(Ordering::Acquire)..self.g.ag_count;
        let empty = virgin.map(|ag| self.g.frag_of_block(self.g.ag_len(ag) - self.g.ag_header_blocks()));
        let mut all: Vec<u64> = lens.into_iter().map(u64::from).chain(empty).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0;
        let enough = all.iter().position(|len| {
            sum += len;
            sum >= need
        });
        all.truncate(enough.map_or(all.len(), |last| last + 1));
        Ok(all)
    }
}
