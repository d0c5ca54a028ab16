//! The order in which allocation groups are searched.
//!
//! First come the AGs near the goal, then all AGs from the rotor on. A virgin AG is opened only when the open
//! ones have nothing.

use super::alloc_group::AllocGroup;
use super::free_space::Space;
use crate::cache::BufRef;
use crate::error::{Error, Result};
use crate::format::BlockAddr;
use std::sync::atomic::Ordering;

/// AGs from the goal on that are searched for all that is wanted before a virgin AG is opened.
pub(super) const NEAR_AGS: usize = 8;
/// AGs whose bitmaps are read before anybody needs them.
const READ_AHEAD_AGS: usize = 4;

/// What a search has loaded.
#[derive(Default)]
pub(super) struct Loads {
    /// A bitmap was read without success.
    in_vain: bool,
    /// The AGs whose bitmaps were prefetched last, and the blocks.
    fetched: Vec<u64>,
    held: Vec<BufRef>,
}

impl Space {
    /// Runs `f` on AGs in search order from `goal_ag` until it finds something. Damaged AGs are skipped. A failed
    /// read is returned only if nothing is found elsewhere.
    pub(super) fn search<R>(
        &self,
        goal_ag: u64,
        near_only: bool,
        f: impl FnMut(&AllocGroup, bool) -> Result<Option<R>>,
    ) -> Result<Option<R>> {
        self.search_among(goal_ag, near_only, |_| true, f)
    }

    /// The same among those AGs of which `worth` says so.
    pub(super) fn search_among<R>(
        &self,
        goal_ag: u64,
        near_only: bool,
        worth: impl Fn(&u64) -> bool,
        mut f: impl FnMut(&AllocGroup, bool) -> Result<Option<R>>,
    ) -> Result<Option<R>> {
        let mut failed = None;
        let mut loads = Loads::default();
        let mut visit = |group: &AllocGroup| match f(group, group.ag() == goal_ag) {
            Ok(found) => found,
            Err(Error::Corrupt(_)) => None,
            Err(e) => {
                failed.get_or_insert(e);
                None
            }
        };
        loop {
            let end = self.usable();
            // A goal beyond the open AGs does not open any.
            let goal = goal_ag.min(self.open.load(Ordering::Acquire).min(end) - 1);
            let near = (goal..end).take(NEAR_AGS).chain([end - 1]).filter(&worth);
            if let Some((_, found)) = self.visit_in_turn(near, &mut loads, &mut visit) {
                return Ok(Some(found));
            }
            if near_only {
                return Ok(None);
            }
            let rotor = self.rotor.load(Ordering::Relaxed).min(end - 1);
            let all = (rotor..end).chain(0..rotor).filter(&worth);
            if let Some((ag, found)) = self.visit_in_turn(all, &mut loads, &mut visit) {
                self.rotor.store(ag, Ordering::Relaxed);
                return Ok(Some(found));
            }
            if self.usable() == end {
                return failed.map_or(Ok(None), Err);
            }
            // An AG was opened meanwhile, by this search or by another. So the next one is usable too.
        }
    }

    /// Reads the bitmaps that an allocation near `goal` looks at, and one of `frags` fragments in one run where all AGs are searched for that;
    /// of [`READ_AHEAD_AGS`] at most. They are in the cache then, and count as loaded only when somebody needs them.
    pub(crate) fn read_bitmaps_ahead(&self, goal: BlockAddr, frags: u64, searches_all: bool) {
        let open = self.open.load(Ordering::Acquire);
        let near = self.g.ag_of(goal.min(self.g.total_blocks - 1)).min(open - 1);
        let group = self.g.frag_of_block(self.g.group_blocks());
        let is_long = |ag: &u64| *ag != near && searches_all && self.may_have_run(*ag, frags);
        let behind = (near + 1..open).filter(|ag| !is_long(ag) && self.may_have_run(*ag, group));
        let ags = [near].into_iter().chain((0..open).filter(&is_long)).chain(behind).take(READ_AHEAD_AGS);
        let groups = ags.map(|ag| self.alloc_group(ag)).filter(|group| !group.is_virgin() && !group.is_loaded());
        self.cache.prefetch_batch(groups.filter_map(|group| group.bitmap_run(&self.g)));
    }

    /// Visits AGs until one has something, and returns which. After a bitmap was read without success, the bitmaps
    /// of the next AGs are prefetched together, because the search will probably read them too.
    pub(super) fn visit_in_turn<R>(
        &self,
        ags: impl Iterator<Item = u64> + Clone,
        loads: &mut Loads,
        mut visit: impl FnMut(&AllocGroup) -> Option<R>,
    ) -> Option<(u64, R)> {
        let mut rest = ags;
        loop {
            let from_here = rest.clone();
            let ag = rest.next()?;
            let group = self.alloc_group(ag);
            let to_load = !group.is_virgin() && !group.is_loaded();
            if to_load && loads.in_vain && !loads.fetched.contains(&ag) {
                let next = from_here.take(NEAR_AGS).map(|ag| self.alloc_group(ag));
                let next: Vec<_> = next.filter(|g| !g.is_virgin() && !g.is_loaded()).collect();
                // Held until the end of the search at most.
                loads.held = self.cache.prefetch_batch(next.iter().filter_map(|g| g.bitmap_run(&self.g)));
                loads.fetched = next.iter().map(|g| g.ag()).collect();
            }
            if let Some(found) = visit(&group) {
                return Some((ag, found));
            }
            loads.in_vain |= to_load && group.is_loaded();
        }
    }
}
