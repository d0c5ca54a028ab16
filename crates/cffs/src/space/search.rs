//! The order in which allocation groups are searched.
//!
//! First come the groups near the goal, then all groups from the rotor on. A virgin group is opened only when the open
//! ones have nothing.

use super::free_space::Space;
use super::group::Group;
use crate::cache::BufRef;
use crate::error::{Error, Result};
use std::sync::atomic::Ordering;

/// Groups from the goal on that are searched for all that is wanted before a virgin group is opened.
pub(super) const NEAR_GROUPS: usize = 8;

/// What a search has loaded.
#[derive(Default)]
struct Loads {
    /// A bitmap was read without success.
    in_vain: bool,
    /// The groups whose bitmaps were prefetched last, and the blocks.
    fetched: Vec<u64>,
    held: Vec<BufRef>,
}

impl Space {
    /// Runs `f` on groups in search order from `goal_ag` until it finds something. Damaged groups are skipped. A failed
    /// read is returned only if nothing is found elsewhere.
    pub(super) fn search<R>(
        &self,
        goal_ag: u64,
        near_only: bool,
        mut f: impl FnMut(&Group, bool) -> Result<Option<R>>,
    ) -> Result<Option<R>> {
        let mut failed = None;
        let mut loads = Loads::default();
        let mut visit = |ag: u64| match f(&self.group(ag), ag == goal_ag) {
            Ok(found) => found,
            Err(Error::Corrupt(_)) => None,
            Err(e) => {
                failed.get_or_insert(e);
                None
            }
        };
        loop {
            let end = self.usable();
            // A goal beyond the open groups does not open any.
            let goal = goal_ag.min(self.open.load(Ordering::Acquire).min(end) - 1);
            let near = (goal..end).take(NEAR_GROUPS).chain([end - 1]);
            if let Some((_, found)) = self.visit_in_turn(near, &mut loads, &mut visit) {
                return Ok(Some(found));
            }
            if near_only {
                return Ok(None);
            }
            let rotor = self.rotor.load(Ordering::Relaxed).min(end - 1);
            let all = (rotor..end).chain(0..rotor);
            if let Some((ag, found)) = self.visit_in_turn(all, &mut loads, &mut visit) {
                self.rotor.store(ag, Ordering::Relaxed);
                return Ok(Some(found));
            }
            if self.usable() == end {
                return failed.map_or(Ok(None), Err);
            }
            // A group was opened meanwhile, by this search or by another. So the next one is usable too.
        }
    }

    /// Visits groups until one has something, and returns which. After a bitmap was read without success, the bitmaps
    /// of the next groups are prefetched together, because the search will probably read them too.
    fn visit_in_turn<R>(
        &self,
        ags: impl Iterator<Item = u64> + Clone,
        loads: &mut Loads,
        mut visit: impl FnMut(u64) -> Option<R>,
    ) -> Option<(u64, R)> {
        let mut rest = ags;
        loop {
            let from_here = rest.clone();
            let ag = rest.next()?;
            let group = self.group(ag);
            let to_load = !group.is_virgin() && !group.is_loaded();
            if to_load && loads.in_vain && !loads.fetched.contains(&ag) {
                let next = from_here.take(NEAR_GROUPS).map(|ag| self.group(ag));
                let next: Vec<_> = next.filter(|g| !g.is_virgin() && !g.is_loaded()).collect();
                // Held until the end of the search at most.
                loads.held = self.cache.prefetch_batch(next.iter().filter_map(|g| g.bitmap_run(&self.g)));
                loads.fetched = next.iter().map(|g| g.ag()).collect();
            }
            if let Some(found) = visit(ag) {
                return Some((ag, found));
            }
            loads.in_vain |= to_load && group.is_loaded();
        }
    }
}
