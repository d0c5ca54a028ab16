//! Allocation in memory: takes runs out of the free extents.

use super::alloc_group::AllocGroup;
use super::class::AllocationClass;
use super::free_set::FreeSet;
use super::free_space::Space;
use super::search::NEAR_AGS;
use crate::error::{Error, Result};
use crate::format::extent::EXTENT_LEN_MAX;
use crate::format::{BlockAddr, FragAddr, Run};
use crate::reservation::Reservation;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Best fit uses a free extent only if it is at most this many times as long as what is allocated in it.
const BEST_FIT_SLACK: u32 = 4;
/// Repetitions of a search whose result was reserved by others in between.
const RETRIES: usize = 8;
/// Repetitions of a search while space was freed behind it.
const SEARCHES_MAX: usize = 100;

/// Result of a search.
pub(super) enum Found {
    Run(Run),
    /// There is space, but others have reserved it.
    Reserved,
}

impl Found {
    pub(super) fn run(self) -> Option<Run> {
        match self {
            Found::Run(run) => Some(run),
            Found::Reserved => None,
        }
    }
}

/// What is to be allocated: between `min` and `want` fragments near `goal`, aligned to `1 << align`.
#[derive(Clone, Copy)]
struct AllocationRequest<'a> {
    goal: FragAddr,
    want: u32,
    min: u32,
    align: u32,
    class: AllocationClass<'a>,
}

impl Space {
    /// Allocates a run of `want` fragments for data near `goal`, at any alignment; or one of at least `min` if there is
    /// none. A run is never longer than an extent. The fragments must be reserved ([`crate::reservation`]); allocating
    /// them ends their reservation. `None`: not even `min` fragments anywhere; a commit may change that
    /// ([`Space::freed_since`]).
    pub fn alloc_near(&self, goal: FragAddr, want: u64, min: u64) -> Result<Option<Run>> {
        self.alloc(goal, want, min, 0, AllocationClass::Data)
    }

    /// As [`Space::alloc_near`], in whole aligned blocks. The run and its reservation are in fragments.
    pub fn alloc_blocks_near(&self, goal: BlockAddr, want_blocks: u64, min: u64) -> Result<Option<Run>> {
        self.alloc_blocks(goal, want_blocks, min, AllocationClass::Data)
    }

    /// As [`Space::alloc_blocks_near`], for metadata: from the reservation, and beyond that from space that nobody has
    /// reserved. While the reservation has blocks, at least one is found.
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

    fn alloc(
        &self,
        goal: FragAddr,
        want: u64,
        min: u64,
        align: u32,
        class: AllocationClass<'_>,
    ) -> Result<Option<Run>> {
        // No search can find more than a virgin AG has. The limit is in whole blocks, so that the next run is
        // aligned.
        let most = self.g.frag_of_block(self.g.ag_blocks.saturating_sub(self.g.ag_header_blocks()));
        let want = want.min(most).min(EXTENT_LEN_MAX >> 3 << 3);
        if want == 0 || min > want {
            return Ok(None);
        }
        let goal = goal.min(self.g.total_frags() - 1);
        let request = AllocationRequest { goal, want: want as u32, min: min.max(1) as u32, align, class };
        let found = self.alloc_unless_freed(request)?;
        if found.is_some() {
            return Ok(found);
        }
        // The space may be out of the free extents because it is being discarded, or kept free.
        self.with_trim_paused(|| self.alloc_unless_freed(request))
    }

    /// Repeats an allocation that fails while others free space, because a search takes many steps. `None`: there was a
    /// moment without enough space.
    fn alloc_unless_freed(&self, request: AllocationRequest<'_>) -> Result<Option<Run>> {
        for _ in 0..SEARCHES_MAX {
            let before = self.accounting.lock().epoch;
            let found = self.alloc_once(request)?;
            if found.is_some() || self.accounting.lock().epoch == before {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn alloc_once(&self, request: AllocationRequest<'_>) -> Result<Option<Run>> {
        match self.find(request)? {
            None => return Ok(None),
            Some(Found::Run(run)) => return Ok(Some(run)),
            Some(Found::Reserved) => {}
        }
        // Nearly full: the remaining free blocks are reserved. Data goes into blocks that are partly used.
        let shift = self.g.block_shift - self.g.frag_shift;
        let mut now = request;
        for _ in 0..RETRIES {
            if request.align == 0
                && let Some(run) = self.find_partial(now)?
            {
                return Ok(Some(run));
            }
            let Some(unreserved) = self.unreserved_frags(request)? else { return Ok(None) };
            now = AllocationRequest { want: unreserved.min(request.want.into()) as u32, align: shift, ..now };
            match self.find(now)? {
                None => return Ok(None),
                Some(Found::Run(run)) => return Ok(Some(run)),
                Some(Found::Reserved) => {} // reserved in between
            }
        }
        Ok(None)
    }

    /// Fragments of the blocks that a request may take, `min` or more. Loads AGs until it knows that many; `None` if
    /// there are fewer.
    fn unreserved_frags(&self, request: AllocationRequest<'_>) -> Result<Option<u64>> {
        let shift = self.g.block_shift - self.g.frag_shift;
        loop {
            let (unreserved, more) = {
                let accounting = self.accounting.lock();
                (accounting.limit(request.class) << shift, accounting.wants_blocks(request.class))
            };
            if unreserved >= u64::from(request.min) {
                return Ok(Some(unreserved));
            }
            if !more || !self.load_another()? {
                return Ok(None);
            }
        }
    }

    /// All that is wanted, near the goal or far away; else the largest piece of `min` or more.
    fn find(&self, request: AllocationRequest<'_>) -> Result<Option<Found>> {
        let AllocationRequest { goal, want, min, align, class } = request;
        let goal_ag = self.g.ag_of(self.g.block_of_frag(goal));
        let goal_offset = |group: &AllocGroup, here: bool| if here { (goal - group.start()) as u32 } else { 0 };
        let near = self.search(goal_ag, true, |group, here| {
            let goal = goal_offset(group, here);
            self.with_free_set(group, |set| {
                let start = set.find_fit(goal, want, align)?;
                self.take(group, set, start, want, class)
            })
        })?;
        if near.is_some() {
            return Ok(near);
        }
        self.search(goal_ag, false, |group, here| {
            let goal = goal_offset(group, here);
            self.with_free_set(group, |set| {
                let fit = set.find_fit(goal, want, align).map(|start| (start, want));
                let (start, len) = fit.or_else(|| set.find_largest(min, align))?;
                self.take(group, set, start, len.min(want), class)
            })
        })
    }

    /// Free fragments of blocks that are not wholly free: all data may use them.
    fn find_partial(&self, request: AllocationRequest<'_>) -> Result<Option<Run>> {
        let goal_ag = self.g.ag_of(self.g.block_of_frag(request.goal));
        let found = self.search(goal_ag, false, |group, _| {
            self.with_free_set(group, |set| {
                let (start, len) = set.find_partial(request.want, request.min)?;
                self.take(group, set, start, len, AllocationClass::Data)
            })
        })?;
        Ok(found.and_then(Found::run))
    }

    /// Takes `start..start + len` out of the free extents of an AG, if the accounting allows it.
    pub(super) fn take(
        &self,
        group: &AllocGroup,
        set: &mut FreeSet,
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

    /// Best fit for a large file: whole aligned blocks of data in the shortest free extent of an allocation group near
    /// `goal` that has `blocks` blocks and is not several times as long. The file fills a gap that one like it has
    /// left, and long runs last. Searches only AGs that are loaded. Reservations end as with [`Space::alloc_near`].
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
            self.with_free_set(group, |set| {
                let start = set.find_best_fit_aligned(want, shift, want.saturating_mul(BEST_FIT_SLACK))?;
                self.take(group, set, start, want, AllocationClass::Data)
            })
        })?;
        Ok(found.and_then(Found::run))
    }

    /// Allocates exactly `blocks` blocks of data in one run near `goal`, or anywhere. Unlike [`Space::alloc_blocks_near`] it looks at
    /// all allocation groups that may have it, and takes no piece where one of them has the whole. Reservations end as with [`Space::alloc_near`].
    pub fn alloc_blocks_whole(&self, goal: BlockAddr, blocks: u64) -> Result<Option<Run>> {
        let shift = self.g.block_shift - self.g.frag_shift;
        let most = self.g.ag_blocks.saturating_sub(self.g.ag_header_blocks());
        let Some(want) = u32::try_from(blocks << shift).ok().filter(|_| (1..=most).contains(&blocks)) else {
            return Ok(None);
        };
        let goal = goal.min(self.g.total_blocks - 1);
        let worth = |ag: &u64| self.may_have_run(*ag, u64::from(want));
        let found = self.search_among(self.g.ag_of(goal), false, worth, |group, here| {
            let from = if here { ((goal << shift) - group.start()) as u32 } else { 0 };
            self.with_free_set(group, |set| {
                let start = set.find_fit(from, want, shift)?;
                self.take(group, set, start, want, AllocationClass::Data)
            })
        })?;
        Ok(found.and_then(Found::run))
    }

    /// Best fit for small files: `frags` fragments of data at the start of the shortest free extent whose length is in
    /// `room`, except in AGs that `kept` excludes. Searches only loaded allocation groups: those from the goal on,
    /// and as many others, which change when nothing is left in them. Reservations end as with [`Space::alloc_near`].
    pub fn alloc_best_fit(
        &self,
        goal: BlockAddr,
        frags: u64,
        room: Range<u64>,
        kept: impl Fn(BlockAddr) -> bool,
    ) -> Result<Option<Run>> {
        let clamp = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let (want, lens) = (clamp(frags), clamp(room.start)..clamp(room.end));
        if want > lens.start {
            return Ok(None);
        }
        let find = |group: &AllocGroup, set: &FreeSet| {
            set.find_best_fit(lens.clone(), |start| {
                kept(self.g.group_of(self.g.block_of_frag(group.start() + u64::from(start))))
            })
        };
        let end = self.usable();
        let near = self.g.ag_of(goal.min(self.g.total_blocks - 1)).min(end - 1);
        let far = self.best_fit_rotor.load(Ordering::Relaxed) % end;
        let mut best: Option<(u32, usize, u64)> = None;
        let mut found_far = false;
        let is_near = |ag: u64| (ag + end - near) % end < NEAR_AGS as u64;
        let near_ones = (near..end).chain(0..near).take(NEAR_AGS);
        let far_ones = (far..end).take(NEAR_AGS).filter(|ag| !is_near(*ag));
        for (n, ag) in near_ones.chain(far_ones).enumerate() {
            let group = self.alloc_group(ag);
            if group.is_virgin() || !group.is_loaded() {
                continue;
            }
            let found = match self.with_free_set(&group, |set| find(&group, set)) {
                Ok(found) => found,
                // Damaged allocation groups are not used.
                Err(Error::Corrupt(_)) => None,
                Err(e) => return Err(e),
            };
            found_far |= found.is_some() && !is_near(ag);
            // Of equally short extents the nearest.
            best = best.into_iter().chain(found.map(|(_, len)| (len, n, ag))).min();
        }
        if !found_far {
            self.best_fit_rotor.store((far + NEAR_AGS as u64) % end, Ordering::Relaxed);
        }
        let Some((_, _, ag)) = best else { return Ok(None) };
        let group = self.alloc_group(ag);
        // Others may have allocated it meanwhile.
        let found = self.with_free_set(&group, |set| {
            let (start, _) = find(&group, set)?;
            self.take(&group, set, start, want, AllocationClass::Data)
        })?;
        Ok(found.and_then(Found::run))
    }

    /// Allocates whole blocks of data exactly from `start` on, as far as they are free, at most `want` fragments.
    /// Reservations end as with [`Space::alloc_near`].
    pub fn alloc_from(&self, start: FragAddr, want: u64) -> Result<Option<Run>> {
        let shift = self.g.block_shift - self.g.frag_shift;
        let ag = self.g.ag_of(self.g.block_of_frag(start));
        if ag >= self.open.load(Ordering::Acquire) || !start.is_multiple_of(1 << shift) {
            return Ok(None);
        }
        let group = self.alloc_group(ag);
        let from = (start - group.start()) as u32;
        let found = self.with_free_set(&group, |set| {
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

    /// Allocates exactly `want` fragments of data inside the window, densely packed, at the first place there is.
    /// Reservations end as with [`Space::alloc_near`].
    pub fn alloc_in(&self, window: Range<FragAddr>, want: u64) -> Result<Option<Run>> {
        self.alloc_inside(window, want, want, 0, AllocationClass::Data)
    }

    /// Allocates exactly `want` blocks of metadata inside the window (of fragments), at the first place there is.
    pub fn alloc_meta_in(&self, reservation: &Reservation, window: Range<FragAddr>, want: u64) -> Result<Option<Run>> {
        let shift = self.g.block_shift - self.g.frag_shift;
        let want = want.min(self.g.total_blocks) << shift;
        self.alloc_inside(window, want, want, shift, AllocationClass::Meta(reservation))
    }

    /// The first `want` of `room` free fragments inside a window.
    pub(super) fn alloc_inside(
        &self,
        window: Range<FragAddr>,
        want: u64,
        room: u64,
        align: u32,
        class: AllocationClass<'_>,
    ) -> Result<Option<Run>> {
        let end = window.end.min(self.g.total_frags());
        let (Ok(want), Ok(room)) = (u32::try_from(want), u32::try_from(room)) else { return Ok(None) };
        if window.start >= end || want == 0 {
            return Ok(None);
        }
        let window = window.start..end;
        let first = self.g.ag_of(self.g.block_of_frag(window.start));
        let last = self.g.ag_of(self.g.block_of_frag(end - 1)).min(self.usable() - 1);
        for ag in first..=last {
            let group = self.alloc_group(ag);
            let part = group.clip(&window);
            let found = self.with_free_set(&group, |set| {
                let start = set.find_in(part.start, part.end, room, align)?;
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
}
