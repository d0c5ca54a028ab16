//! Finding free space: the searches over allocation groups.

use super::class::AllocationClass;
use super::group::Group;
use super::{Run, Space};
use crate::cache::BufRef;
use crate::error::{Error, Result};
use crate::format::extent::EXTENT_LEN_MAX;
use crate::format::{BlockAddr, FragAddr};
use crate::reservation::Reservation;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Groups from the goal on that are searched for all that is wanted before an unused group is opened.
pub(super) const NEAR_GROUPS: usize = 8;
/// A gap that is at most so many times as long as what goes into it is a tight one.
const BEST_FIT_SLACK: u32 = 4;
/// Times that a search is repeated whose find was promised to others in between.
const RETRIES: usize = 8;
/// Times that a search is repeated while space turned up where it had looked already.
const SEARCHES_MAX: usize = 100;

/// What a search came upon.
enum Found {
    Run(Run),
    /// There is space, but it is promised to others.
    Reserved,
}

/// What a search has loaded.
#[derive(Default)]
struct Loads {
    /// A group, of which nothing was of use.
    in_vain: bool,
    /// Groups whose bitmaps were fetched last, and what came.
    fetched: Vec<u64>,
    held: Vec<BufRef>,
}

/// What is looked for: so many fragments near a place.
#[derive(Clone, Copy)]
struct AllocationRequest {
    goal: FragAddr,
    want: u32,
    min: u32,
    align: u32,
}

impl Space {
    /// Runs `f` on the groups in the order of a search from `goal_ag` until it finds something. A damaged group is
    /// passed over; a failed read ends the search only if nothing else is found.
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
            // A goal beyond what is open opens nothing by itself.
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
            // A group was opened meanwhile, by this search or by another: one more can be.
        }
    }

    /// Visits groups until there is something, and says where. A search that has read the bitmaps of one group in vain will
    /// read those of the next ones too: they are fetched together.
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
                // For as long as the search takes at most: what was not visited may go.
                loads.held = self.cache.prefetch_batch(next.iter().filter_map(|g| g.bitmap_run(&self.g)));
                loads.fetched = next.iter().map(|g| g.ag()).collect();
            }
            if let Some(found) = visit(ag) {
                return Some((ag, found));
            }
            loads.in_vain |= to_load && group.is_loaded();
        }
    }

    /// Takes `start..start + len` of a group out, if it may be taken.
    fn take(
        &self,
        group: &Group,
        set: &mut super::FreeSet,
        start: u32,
        len: u32,
        class: AllocationClass<'_>,
    ) -> Option<Found> {
        let lost = u64::from(set.blocks_lost(start, len));
        if !self.accounting.lock().take(len.into(), lost, class) {
            return Some(Found::Reserved);
        }
        let taken = set.take(start, len);
        debug_assert!(taken, "a search found what is not free");
        Some(Found::Run(Run { start: group.start() + u64::from(start), len: len.into() }))
    }

    fn alloc(
        &self,
        goal: FragAddr,
        want: u64,
        min: u64,
        align: u32,
        class: AllocationClass<'_>,
    ) -> Result<Option<Run>> {
        let found = self.alloc_exact(goal, want, min, align, class)?;
        if found.is_some() {
            return Ok(found);
        }
        // What is there may be out to be discarded.
        self.with_trim_paused(|| self.alloc_exact(goal, want, min, align, class))
    }

    /// A search takes many steps, and others take and give back between them. `None`: at one moment there was nothing.
    fn alloc_exact(
        &self,
        goal: FragAddr,
        want: u64,
        min: u64,
        align: u32,
        class: AllocationClass<'_>,
    ) -> Result<Option<Run>> {
        for _ in 0..SEARCHES_MAX {
            let before = self.accounting.lock().epoch;
            let found = self.alloc_now(goal, want, min, align, class)?;
            if found.is_some() || self.accounting.lock().epoch == before {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn alloc_now(
        &self,
        goal: FragAddr,
        want: u64,
        min: u64,
        align: u32,
        class: AllocationClass<'_>,
    ) -> Result<Option<Run>> {
        // More than an unused group has, no search can find; whole blocks, so that the next run starts at one.
        let most = self.g.frag_of_block(self.g.ag_blocks.saturating_sub(self.g.ag_header_blocks()));
        let want = want.min(most).min(EXTENT_LEN_MAX >> 3 << 3);
        if want == 0 || min > want {
            return Ok(None);
        }
        let goal = goal.min(self.g.total_frags() - 1);
        let mut request = AllocationRequest { goal, want: want as u32, min: min.max(1) as u32, align };
        match self.find(request, class)? {
            None => return Ok(None),
            Some(Found::Run(run)) => return Ok(Some(run)),
            Some(Found::Reserved) => {}
        }
        // Nearly full: the free blocks that are left are promised. Data goes between them.
        let shift = self.g.block_shift - self.g.frag_shift;
        for _ in 0..RETRIES {
            if align == 0
                && let Some(run) = self.find_partial(request)?
            {
                return Ok(Some(run));
            }
            // Groups that were not loaded yet may have blocks that nobody was promised.
            let spare = loop {
                let (spare, more) = {
                    let accounting = self.accounting.lock();
                    (accounting.limit(class) << shift, accounting.wants_blocks(class))
                };
                if spare >= u64::from(request.min) {
                    break spare;
                }
                if !more || !self.load_another()? {
                    return Ok(None);
                }
            };
            request = AllocationRequest { want: spare.min(want) as u32, align: shift, ..request };
            match self.find(request, class)? {
                None => return Ok(None),
                Some(Found::Run(run)) => return Ok(Some(run)),
                Some(Found::Reserved) => {} // somebody was faster
            }
        }
        Ok(None)
    }

    /// All that is wished for, near the goal or far away; else the largest piece of the minimum or more.
    fn find(&self, request: AllocationRequest, class: AllocationClass<'_>) -> Result<Option<Found>> {
        let AllocationRequest { goal, want, min, align } = request;
        let goal_ag = self.g.ag_of(self.g.block_of_frag(goal));
        let goal_offset = |group: &Group, here: bool| if here { (goal - group.start()) as u32 } else { 0 };
        let near = self.search(goal_ag, true, |group, here| {
            let goal = goal_offset(group, here);
            self.with(group, |set| {
                let start = set.find_fit(goal, want, align)?;
                self.take(group, set, start, want, class)
            })
        })?;
        if near.is_some() {
            return Ok(near);
        }
        self.search(goal_ag, false, |group, here| {
            let goal = goal_offset(group, here);
            self.with(group, |set| {
                let fit = set.find_fit(goal, want, align).map(|start| (start, want));
                let (start, len) = fit.or_else(|| set.find_largest(min, align))?;
                self.take(group, set, start, len.min(want), class)
            })
        })
    }

    /// Free fragments of blocks that are not wholly free: any data may have them.
    fn find_partial(&self, request: AllocationRequest) -> Result<Option<Run>> {
        let goal_ag = self.g.ag_of(self.g.block_of_frag(request.goal));
        let found = self.search(goal_ag, false, |group, _| {
            self.with(group, |set| {
                let (start, len) = set.find_partial(request.want, request.min)?;
                self.take(group, set, start, len, AllocationClass::Data)
            })
        })?;
        Ok(found.and_then(|found| if let Found::Run(run) = found { Some(run) } else { None }))
    }

    /// A free run of `want` fragments near `goal`, at any alignment; where there is none, one of `min` or more. Never
    /// more than fits into an extent. For data, to which as much was promised ([`crate::reservation`]); for what is found the
    /// promise ends. `None`: not even `min` anywhere; a commit may change that ([`Space::freed_since`]).
    pub fn alloc_near(&self, goal: FragAddr, want: u64, min: u64) -> Result<Option<Run>> {
        self.alloc(goal, want, min, 0, AllocationClass::Data)
    }

    /// Whole aligned blocks of data in the shortest free extent of an allocation group near `goal` that has so many, and not
    /// several times as many: a large file goes into the gap that one like it has left, and the long free runs last. Looks
    /// only at what is in memory. The promise of the run ends, as with [`Space::alloc_near`].
    pub fn alloc_blocks_best_fit(&self, goal: BlockAddr, blocks: u64) -> Result<Option<Run>> {
        let shift = self.g.block_shift - self.g.frag_shift;
        let Ok(want) = u32::try_from(blocks << shift) else { return Ok(None) };
        if want == 0 || u64::from(want) > EXTENT_LEN_MAX >> 3 << 3 {
            return Ok(None);
        }
        let goal_ag = self.g.ag_of(goal.min(self.g.total_blocks - 1));
        let found = self.search(goal_ag, true, |group, _| {
            if group.is_virgin() || !group.is_loaded() {
                return Ok(None);
            }
            self.with(group, |set| {
                let start = set.find_best_fit_aligned(want, shift, want.saturating_mul(BEST_FIT_SLACK))?;
                self.take(group, set, start, want, AllocationClass::Data)
            })
        })?;
        Ok(found.and_then(|found| if let Found::Run(run) = found { Some(run) } else { None }))
    }

    /// So many fragments of data at the beginning of the shortest free extent with a length in `room`, outside of the groups that
    /// are `kept`. Looks only at what is in memory, of allocation groups from the goal on and of as many others, which are others
    /// once there is nothing left in them. The promise of the run ends, as with [`Space::alloc_near`].
    pub fn alloc_best_fit(
        &self,
        goal: BlockAddr,
        frags: u64,
        room: Range<u64>,
        kept: impl Fn(BlockAddr) -> bool,
    ) -> Result<Option<Run>> {
        let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let (want, lens) = (short(frags), short(room.start)..short(room.end));
        if want > lens.start {
            return Ok(None);
        }
        let find = |group: &Group, set: &super::FreeSet| {
            set.find_best_fit(lens.clone(), |start| {
                kept(self.g.group_of(self.g.block_of_frag(group.start() + u64::from(start))))
            })
        };
        let end = self.usable();
        let near = self.g.ag_of(goal.min(self.g.total_blocks - 1)).min(end - 1);
        let far = self.best_fit_rotor.load(Ordering::Relaxed) % end;
        let mut best: Option<(u32, usize, u64)> = None;
        let mut found_far = false;
        let is_near = |ag: u64| (ag + end - near) % end < NEAR_GROUPS as u64;
        let near_ones = (near..end).chain(0..near).take(NEAR_GROUPS);
        let far_ones = (far..end).take(NEAR_GROUPS).filter(|ag| !is_near(*ag));
        for (n, ag) in near_ones.chain(far_ones).enumerate() {
            let group = self.group(ag);
            if group.is_virgin() || !group.is_loaded() {
                continue;
            }
            let found = match self.with(&group, |set| find(&group, set)) {
                Ok(found) => found,
                // A damaged allocation group has nothing to offer.
                Err(Error::Corrupt(_)) => None,
                Err(e) => return Err(e),
            };
            found_far |= found.is_some() && !is_near(ag);
            // Of those as short the nearest.
            best = best.into_iter().chain(found.map(|(_, len)| (len, n, ag))).min();
        }
        if !found_far {
            self.best_fit_rotor.store((far + NEAR_GROUPS as u64) % end, Ordering::Relaxed);
        }
        let Some((_, _, ag)) = best else { return Ok(None) };
        let group = self.group(ag);
        // Others may have taken it meanwhile.
        let found = self.with(&group, |set| {
            let (start, _) = find(&group, set)?;
            self.take(&group, set, start, want, AllocationClass::Data)
        })?;
        Ok(found.and_then(|found| if let Found::Run(run) = found { Some(run) } else { None }))
    }

    /// As [`Space::alloc_near`], in whole aligned blocks. The run, and the promise, are in fragments.
    pub fn alloc_blocks_near(&self, goal: BlockAddr, want_blocks: u64, min: u64) -> Result<Option<Run>> {
        self.alloc_blocks(goal, want_blocks, min, AllocationClass::Data)
    }

    /// As [`Space::alloc_blocks_near`], for metadata: out of what was promised to the reservation's owner, and beyond that of
    /// what is promised to nobody. While the reservation has blocks, one at least is found.
    pub fn alloc_meta_near(
        &self,
        reservation: &Reservation,
        goal: BlockAddr,
        want_blocks: u64,
        min: u64,
    ) -> Result<Option<Run>> {
        self.alloc_blocks(goal, want_blocks, min, AllocationClass::Meta(reservation))
    }

    fn alloc_blocks(&self, goal: BlockAddr, want: u64, min: u64, class: AllocationClass<'_>) -> Result<Option<Run>> {
        let shift = self.g.block_shift - self.g.frag_shift;
        let goal = goal.min(self.g.total_blocks - 1);
        let frags = |blocks: u64| blocks.min(self.g.total_blocks) << shift;
        self.alloc(goal << shift, frags(want), frags(min.max(1)), shift, class)
    }

    /// What is free from a block on, at most `want` fragments, in whole blocks. For data, to which as much was promised; for
    /// what is found the promise ends.
    pub fn alloc_from(&self, start: FragAddr, want: u64) -> Result<Option<Run>> {
        let shift = self.g.block_shift - self.g.frag_shift;
        let ag = self.g.ag_of(self.g.block_of_frag(start));
        if ag >= self.open.load(Ordering::Acquire) || !start.is_multiple_of(1 << shift) {
            return Ok(None);
        }
        let group = self.group(ag);
        let from = (start - group.start()) as u32;
        let found = self.with(&group, |set| {
            let (free, end) = set.next_extent(from)?;
            let len = u64::from(end - free).min(want).min(EXTENT_LEN_MAX) >> shift << shift;
            if free == from && len > 0 { self.take(&group, set, free, len as u32, AllocationClass::Data) } else { None }
        });
        match found {
            Ok(Some(Found::Run(run))) => Ok(Some(run)),
            Ok(None | Some(Found::Reserved)) | Err(Error::Corrupt(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Exactly `want` fragments of data inside the window: the first place there is, packed densely. They were promised, and
    /// their promise ends.
    pub fn alloc_in(&self, window: Range<FragAddr>, want: u64) -> Result<Option<Run>> {
        self.alloc_inside(window, want, 0, AllocationClass::Data)
    }

    /// Exactly `want` blocks of metadata inside the window (of fragments): the first place there is.
    pub fn alloc_meta_in(&self, reservation: &Reservation, window: Range<FragAddr>, want: u64) -> Result<Option<Run>> {
        let shift = self.g.block_shift - self.g.frag_shift;
        let want = want.min(self.g.total_blocks) << shift;
        self.alloc_inside(window, want, shift, AllocationClass::Meta(reservation))
    }

    fn alloc_inside(
        &self,
        window: Range<FragAddr>,
        want: u64,
        align: u32,
        class: AllocationClass<'_>,
    ) -> Result<Option<Run>> {
        let end = window.end.min(self.g.total_frags());
        let Ok(want) = u32::try_from(want) else { return Ok(None) };
        if window.start >= end || want == 0 {
            return Ok(None);
        }
        let window = window.start..end;
        let first = self.g.ag_of(self.g.block_of_frag(window.start));
        let last = self.g.ag_of(self.g.block_of_frag(end - 1)).min(self.usable() - 1);
        for ag in first..=last {
            let group = self.group(ag);
            let part = group.clip(&window);
            let found = self.with(&group, |set| {
                let start = set.find_in(part.start, part.end, want, align)?;
                self.take(&group, set, start, want, class)
            });
            match found {
                Ok(Some(Found::Run(run))) => return Ok(Some(run)),
                Ok(Some(Found::Reserved)) => return Ok(None),
                Ok(None) | Err(Error::Corrupt(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// First block of a wholly free group at or after `goal`, or else before it. It is not allocated: a second call
    /// finds it again.
    pub fn find_free_group(&self, goal: BlockAddr) -> Result<Option<BlockAddr>> {
        if self.g.ag_blocks
            < self.g.group_of(self.g.ag_header_blocks() + self.g.group_blocks() - 1) + self.g.group_blocks()
        {
            return Ok(None); // not even an unused allocation group has one
        }
        let goal = self.g.frag_of_block(goal.min(self.g.total_blocks - 1));
        let goal_ag = self.g.ag_of(self.g.block_of_frag(goal));
        let mut wrapped = false;
        let found = self.search(goal_ag, false, |group, here| {
            // The first visit of the goal's group looks behind the goal, later ones at all of it.
            let from = if here && !std::mem::replace(&mut wrapped, true) { (goal - group.start()) as u32 } else { 0 };
            let found = self.with(group, |set| set.find_group(from))?;
            Ok(found.map(|offset| group.start() + u64::from(offset)))
        })?;
        Ok(found.map(|frag| self.g.block_of_frag(frag)))
    }

    /// As [`Space::find_free_group`], for what takes several groups: where so many are free one after the other, or as many
    /// as there are. Looks at what is in memory of the allocation groups from the goal on; where those have no free group,
    /// anywhere.
    pub fn find_free_groups(&self, goal: BlockAddr, want: u64) -> Result<Option<BlockAddr>> {
        let goal_frag = self.g.frag_of_block(goal.min(self.g.total_blocks - 1));
        let goal_ag = self.g.ag_of(self.g.block_of_frag(goal_frag));
        let mut best: Option<(FragAddr, u32)> = None;
        if want > 1 {
            let found = self.search(goal_ag, true, |group, here| {
                if !here && (group.is_virgin() || !group.is_loaded()) {
                    return Ok(None);
                }
                let from = if here { (goal_frag - group.start()) as u32 } else { 0 };
                let want = want as u32;
                let found = self.with(group, |set| {
                    let behind = set.find_groups(from, want);
                    // The next group continues what is open: nothing is better.
                    let next = behind.filter(|(start, len)| *len >= want || here && *start == from);
                    next.map(|(start, _)| (start, want)).or_else(|| set.find_groups(0, want))
                })?;
                let Some((start, len)) = found else { return Ok(None) };
                let found = (group.start() + u64::from(start), len);
                best = best.filter(|(_, most)| *most >= len).or(Some(found));
                Ok((len >= want).then_some(found))
            })?;
            best = found.or(best);
        }
        match best {
            Some((frag, _)) => Ok(Some(self.g.block_of_frag(frag))),
            None => self.find_free_group(goal),
        }
    }

    /// The group near `goal` with the most free fragments, and how many those are. For when no group is wholly free: looks
    /// at the allocation groups from the goal on, and takes the first in which a group has a quarter free.
    pub fn emptiest_group(&self, goal: BlockAddr) -> Result<Option<(BlockAddr, u64)>> {
        let goal = self.g.frag_of_block(goal.min(self.g.total_blocks - 1));
        let goal_ag = self.g.ag_of(self.g.block_of_frag(goal));
        let enough = self.g.frag_of_block(self.g.group_blocks()) / 4;
        let mut best: Option<(FragAddr, u64)> = None;
        let found = self.search(goal_ag, true, |group, here| {
            let from = if here { (goal - group.start()) as u32 } else { 0 };
            let Some((start, free)) = self.with(group, |set| set.emptiest_group(from))? else { return Ok(None) };
            let here = (group.start() + u64::from(start), u64::from(free));
            best = best.filter(|(_, most)| *most >= here.1).or(Some(here));
            Ok(best.filter(|(_, most)| *most >= enough))
        })?;
        Ok(found.or(best).map(|(frag, free)| (self.g.block_of_frag(frag), free)))
    }

    /// The fullest group near `goal` with `least` free fragments or more: the emptier ones are left to what takes more. Looks at
    /// what is in memory of the allocation groups from the goal on, and takes the first that has such a group.
    pub fn fullest_group(&self, goal: BlockAddr, least: u64) -> Result<Option<BlockAddr>> {
        let goal = self.g.frag_of_block(goal.min(self.g.total_blocks - 1));
        let goal_ag = self.g.ag_of(self.g.block_of_frag(goal));
        let least = u32::try_from(least).unwrap_or(u32::MAX);
        let found = self.search(goal_ag, true, |group, here| {
            if group.is_virgin() || !group.is_loaded() {
                return Ok(None);
            }
            let from = if here { (goal - group.start()) as u32 } else { 0 };
            let found = self.with(group, |set| set.fullest_group(from, least))?;
            Ok(found.map(|start| group.start() + u64::from(start)))
        })?;
        Ok(found.map(|frag| self.g.block_of_frag(frag)))
    }

    /// Free fragments of a group.
    pub fn free_in_group(&self, group: BlockAddr) -> Result<u64> {
        let frag = self.g.frag_of_block(group);
        let of = self.group_of(Run { start: frag, len: 1 })?;
        self.with(&of, |set| u64::from(set.group_free((frag - of.start()) as u32)))
    }

    /// Runs `f` if nobody has any of the fragments from `start` on to before `end`, which lie in one allocation group.
    /// Nobody gets one of them while it runs.
    pub(crate) fn if_free<R>(&self, start: FragAddr, end: FragAddr, f: impl FnOnce() -> R) -> Result<Option<R>> {
        if start >= end {
            return Ok(Some(f()));
        }
        let group = self.group_of(Run { start, len: end - start })?;
        let (start, end) = ((start - group.start()) as u32, (end - group.start()) as u32);
        self.with(&group, |set| set.is_free(start, end).then(f))
    }
}
