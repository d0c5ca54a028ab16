//! Free runs for what is written together: as few and as long as free space has them, in the order of the device.
//!
//! A single file costs one request wherever it goes. What comes in one writeback and is read in one walk costs a request
//! for each run of free space that it is put into, so the longest runs are worth looking for; and taken in order they cost
//! short ways of the arm.

use super::alloc::NEAR_GROUPS;
use super::{Run, Space};
use crate::error::{Error, Result};
use crate::format::{BlockAddr, FragAddr};
use std::sync::atomic::Ordering;

impl Space {
    /// Allocation groups that are open, from that of a place on around the end, at most [`NEAR_GROUPS`].
    fn around(&self, goal: FragAddr) -> impl Iterator<Item = u64> + use<> {
        let open = self.open.load(Ordering::Acquire).max(1);
        let first = self.g.ag_of(self.g.block_of_frag(goal.min(self.g.total_frags() - 1))).min(open - 1);
        (first..open).chain(0..first).take(NEAR_GROUPS)
    }

    /// How short the free runs are, in fragments, that have to be used when `need` fragments go into the longest ones near
    /// `goal`; at most `enough`: longer ones are as good as that. `None` where allocation groups that were never used have
    /// longer ones, or where there is too little.
    pub fn run_length(&self, goal: BlockAddr, need: u64, enough: u64) -> Result<Option<u64>> {
        let enough = enough.min(need);
        let mut lens: Vec<u32> = Vec::new();
        let mut shortest = None;
        for ag in self.around(self.g.frag_of_block(goal)) {
            match self.with(&self.group(ag), |set| set.longest(need, &mut lens)) {
                // A damaged allocation group has nothing to offer.
                Ok(()) | Err(Error::Corrupt(_)) => {}
                Err(e) => return Err(e),
            }
            lens.sort_unstable_by(|a, b| b.cmp(a));
            let mut sum = 0;
            let last = lens.iter().position(|len| {
                sum += u64::from(*len);
                sum >= need
            });
            let Some(last) = last else { continue };
            lens.truncate(last + 1);
            shortest = Some(u64::from(lens[last]));
            if shortest >= Some(enough) {
                return Ok(Some(enough));
            }
        }
        Ok(shortest.filter(|_| self.open.load(Ordering::Acquire) >= self.g.ag_count))
    }

    /// The first free run of at least `min` fragments from a place on, around the end of what [`Space::run_length`] looks
    /// at. It is not allocated.
    pub fn next_run(&self, from: FragAddr, min: u64) -> Result<Option<Run>> {
        let min = u32::try_from(min).unwrap_or(u32::MAX).max(1);
        let first = self.around(from).next();
        // The rest of the first one, the others, and its beginning.
        for (n, ag) in self.around(from).chain(first).enumerate() {
            let group = self.group(ag);
            let offset = if n == 0 { from.saturating_sub(group.start()).min(u64::from(u32::MAX)) as u32 } else { 0 };
            match self.with(&group, |set| set.find_run(offset, min)) {
                Ok(Some((start, end))) => {
                    return Ok(Some(Run { start: group.start() + u64::from(start), len: u64::from(end - start) }));
                }
                Ok(None) | Err(Error::Corrupt(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }
}
