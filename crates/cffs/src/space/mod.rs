//! Free space: which fragments are free, who gets them, and how many are promised.
//!
//! Allocation has two steps. [`Space::alloc_near`] and its relatives take a run out of the free extents in memory;
//! nothing changes on the device. [`Space::commit_alloc`] sets the bits in the bitmap, in the transaction that makes
//! something point to the run. [`Space::cancel`] undoes the first step. [`Space::free`] clears the bits at once, but the
//! run can be allocated again only when the transaction is durable ([`Space::on_commit`]): until then a crash would
//! bring its old owner back.
//!
//! Allocation groups load when first needed. Those that were never used are not on the device at all: they are opened
//! in order (group `n` only when all before it are open), and the first `commit_alloc` in one writes header and bitmap
//! of it and of all open ones before it, so that the counter of initialized groups stays a high-water mark.

mod free_set;
mod group;
mod grow;
pub mod layout;
pub mod run;
#[cfg(test)]
pub(crate) mod tests;

pub use run::Run;

use crate::cache::{AddrMap, Cache};
use crate::error::{Error, Result};
use crate::format::extent::EXTENT_LEN_MAX;
use crate::format::log::RECORD_HEADER;
use crate::format::system::Counters;
use crate::format::{BlockAddr, Corrupt, FragAddr, LiveGeometry};
use crate::journal::Txn;
use group::Group;
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Groups from the goal on that are searched for all that is wanted before an unused group is opened.
const NEAR_GROUPS: usize = 8;
/// Groups that keep their bitmap blocks in memory beside the cache; the oldest gives them back.
const HELD_GROUPS: usize = 64;
/// Log bytes around a range of a block: record header, range header, rounding at both ends.
const RANGE_OVERHEAD: usize = RECORD_HEADER + 16 + 16;

/// The accounts. One lock for all, so that every look at them adds up.
struct Books {
    /// Free fragments: those in the free extents and those whose freeing is not durable yet.
    available: u64,
    reserved: u64,
    /// Freed, but not durable yet.
    pending: u64,
    committed: Counters,
}

/// The free space of a file system.
pub struct Space {
    cache: Arc<Cache>,
    g: Arc<LiveGeometry>,
    groups: RwLock<AddrMap<u64, Arc<Group>>>,
    books: Mutex<Books>,
    /// Fragments that only privileged users get, and their share of the whole in 1/10,000.
    root_reserve: AtomicU64,
    reserve_bp: AtomicU32,
    /// Groups that are on the device or open in memory; the one after them is the next to be opened.
    open: AtomicU64,
    /// Where a search beyond the near groups last succeeded, and the next one begins.
    roam: AtomicU64,
    /// Serializes the initialization of groups on the device.
    init: Mutex<()>,
    held: Mutex<VecDeque<Arc<Group>>>,
}

impl Space {
    /// Free space as the counters have it. Reads nothing: groups load when first needed.
    ///
    /// `reserve_bp` is the share of the whole that only privileged users get, in 1/10,000.
    pub fn load(cache: Arc<Cache>, counters: Counters, reserve_bp: u32) -> Result<Space> {
        let g = cache.live_geometry();
        if counters.free_frags > g.total_frags() {
            let what = format!("counters: {} of {} fragments free", counters.free_frags, g.total_frags());
            return Err(Corrupt(what).into());
        }
        if counters.ags == 0 || counters.ags > g.ag_count {
            let what = format!("counters: {} of {} allocation groups initialized", counters.ags, g.ag_count);
            return Err(Corrupt(what).into());
        }
        if g.ag_blocks > layout::AG_FRAGS_MAX / g.frags_per_block() {
            let what = format!("superblock: allocation groups of {} blocks are too large", g.ag_blocks);
            return Err(Corrupt(what).into());
        }
        let space = Space {
            cache,
            g,
            groups: RwLock::default(),
            books: Mutex::new(Books { available: counters.free_frags, reserved: 0, pending: 0, committed: counters }),
            root_reserve: AtomicU64::new(0),
            reserve_bp: AtomicU32::new(0),
            open: AtomicU64::new(counters.ags),
            roam: AtomicU64::new(0),
            init: Mutex::default(),
            held: Mutex::default(),
        };
        space.set_root_reserve(reserve_bp);
        Ok(space)
    }

    /// Sizes and places, to be kept.
    pub(crate) fn live_geometry(&self) -> Arc<LiveGeometry> {
        self.g.clone()
    }

    /// The group, which is below `open` or next to be opened.
    #[inline]
    fn group(&self, ag: u64) -> Arc<Group> {
        if let Some(group) = self.groups.read().get(&ag) {
            return group.clone();
        }
        let mut groups = self.groups.write();
        // Below `open` a group that is not in the table is on the device: opening one puts it there.
        let virgin = ag >= self.open.load(Ordering::Acquire);
        let group = groups.entry(ag).or_insert_with(|| Arc::new(Group::new(&self.g, ag, virgin)));
        self.open.fetch_max(ag + 1, Ordering::AcqRel);
        group.clone()
    }

    /// One past the last group that can be used now: all that are open, and the next.
    fn usable(&self) -> u64 {
        (self.open.load(Ordering::Acquire) + 1).min(self.g.ag_count)
    }

    /// Runs `f` on the groups in the order of a search from `goal_ag` until it finds something. A damaged group is
    /// passed over; a failed read ends the search only if nothing else is found.
    fn search<R>(
        &self,
        goal_ag: u64,
        near_only: bool,
        mut f: impl FnMut(&Group, bool) -> Result<Option<R>>,
    ) -> Result<Option<R>> {
        let mut failed = None;
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
            let mut near = (goal..end).take(NEAR_GROUPS).chain([end - 1]);
            if let Some(found) = near.find_map(&mut visit) {
                return Ok(Some(found));
            }
            if near_only {
                return Ok(None);
            }
            let roam = self.roam.load(Ordering::Relaxed).min(end - 1);
            for ag in (roam..end).chain(0..roam) {
                if let Some(found) = visit(ag) {
                    self.roam.store(ag, Ordering::Relaxed);
                    return Ok(Some(found));
                }
            }
            if self.usable() == end {
                return failed.map_or(Ok(None), Err);
            }
            // A group was opened meanwhile, by this search or by another: one more can be.
        }
    }

    fn alloc(&self, goal: FragAddr, want: u64, min: u64, align: u32) -> Result<Option<Run>> {
        // More than an unused group has, no search can find; whole blocks, so that the next run starts at one.
        let most = self.g.frag_of_block(self.g.ag_blocks.saturating_sub(self.g.ag_header_blocks()));
        let want = want.min(most).min(EXTENT_LEN_MAX >> 3 << 3);
        if want == 0 || min > want {
            return Ok(None);
        }
        let (want, min) = (want as u32, min.max(1) as u32);
        let goal = goal.min(self.g.total_frags() - 1);
        let goal_ag = self.g.ag_of(self.g.block_of_frag(goal));
        let goal_offset = |group: &Group, here: bool| if here { (goal - group.start()) as u32 } else { 0 };
        let take =
            |group: &Group, start: u32, len: u32| Run { start: group.start() + u64::from(start), len: len.into() };
        let mut run = self.search(goal_ag, true, |group, here| {
            let goal = goal_offset(group, here);
            group.with(&self.cache, |set| {
                let start = set.find_fit(goal, want, align)?;
                set.take(start, want).then(|| take(group, start, want))
            })
        })?;
        if run.is_none() {
            run = self.search(goal_ag, false, |group, here| {
                let goal = goal_offset(group, here);
                group.with(&self.cache, |set| {
                    let fit = set.find_fit(goal, want, align).map(|start| (start, want));
                    let (start, len) = fit.or_else(|| set.find_largest(min, align))?;
                    let len = len.min(want);
                    set.take(start, len).then(|| take(group, start, len))
                })
            })?;
        }
        Ok(run.inspect(|run| self.taken(*run)))
    }

    fn taken(&self, run: Run) {
        let mut books = self.books.lock();
        books.available = books.available.saturating_sub(run.len);
    }

    /// A free run of `want` fragments near `goal`, at any alignment; where there is none, one of `min` or more. Never
    /// more than fits into an extent. `None`: not even `min` anywhere; while [`Space::pending_frees`] is not 0, a
    /// commit may change that.
    pub fn alloc_near(&self, goal: FragAddr, want: u64, min: u64) -> Result<Option<Run>> {
        self.alloc(goal, want, min, 0)
    }

    /// As [`Space::alloc_near`], in whole aligned blocks. The run is in fragments.
    pub fn alloc_blocks_near(&self, goal: BlockAddr, want_blocks: u64, min: u64) -> Result<Option<Run>> {
        let shift = self.g.block_shift - self.g.frag_shift;
        let goal = goal.min(self.g.total_blocks - 1);
        let frags = |blocks: u64| blocks.min(self.g.total_blocks) << shift;
        self.alloc(goal << shift, frags(want_blocks), frags(min.max(1)), shift)
    }

    /// Exactly `want` fragments inside the window: the first place there is, packed densely.
    pub fn alloc_in(&self, window: Range<FragAddr>, want: u64) -> Result<Option<Run>> {
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
            let found = group.with(&self.cache, |set| {
                let start = set.find_in(part.start, part.end, want)?;
                set.take(start, want).then_some(start)
            });
            match found {
                Ok(None) | Err(Error::Corrupt(_)) => {}
                Ok(Some(start)) => {
                    let run = Run { start: group.start() + u64::from(start), len: want.into() };
                    self.taken(run);
                    return Ok(Some(run));
                }
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
            let found = group.with(&self.cache, |set| set.find_group(from))?;
            Ok(found.map(|offset| group.start() + u64::from(offset)))
        })?;
        Ok(found.map(|frag| self.g.block_of_frag(frag)))
    }

    /// Runs `f` if nobody has any of the fragments from `start` on to before `end`, which lie in one allocation group.
    /// Nobody gets one of them while it runs.
    pub(crate) fn if_free<R>(&self, start: FragAddr, end: FragAddr, f: impl FnOnce() -> R) -> Result<Option<R>> {
        if start >= end {
            return Ok(Some(f()));
        }
        let group = self.group_of(Run { start, len: end - start })?;
        let (start, end) = ((start - group.start()) as u32, (end - group.start()) as u32);
        group.with(&self.cache, |set| set.is_free(start, end).then(f))
    }

    /// Gives back what an allocation returned and no transaction has committed.
    pub fn cancel(&self, run: Run) {
        if self.give_back(run) {
            self.books.lock().available += run.len;
        }
    }

    fn give_back(&self, run: Run) -> bool {
        let Ok(group) = self.group_of(run) else {
            tracing::error!("{run} given back: not in the file system");
            return false;
        };
        let start = (run.start - group.start()) as u32;
        match group.with(&self.cache, |set| set.insert(start, run.len as u32)) {
            Ok(true) => true,
            Ok(false) => {
                tracing::error!("{run} given back: at least one is free already");
                false
            }
            Err(e) => {
                tracing::error!("{run} given back: {e}");
                false
            }
        }
    }

    /// The group that the run lies in, if it lies in one that is open.
    fn group_of(&self, run: Run) -> Result<Arc<Group>> {
        let bad = |what: &str| Err(Error::Corrupt(Corrupt(format!("{run}: {what}"))));
        if run.len == 0 || !self.g.contains(run.start, run.len) {
            return bad("not in the file system");
        }
        let ag = self.g.ag_of(self.g.block_of_frag(run.start));
        if ag >= self.open.load(Ordering::Acquire) {
            return bad("its allocation group was never used");
        }
        let group = self.group(ag);
        if run.end() > group.end() {
            return bad("reaches over the end of its allocation group");
        }
        Ok(group)
    }

    /// Brings into memory what [`Space::commit_alloc`] of an allocated run will change, so that it will not fail.
    pub(crate) fn prepare_commit(&self, run: Run) -> Result<()> {
        let group = self.group_of(run)?;
        if !group.is_virgin() && group.prepare(&self.cache, run)? {
            self.hold(group);
        }
        Ok(())
    }

    /// Brings into memory what [`Space::free`] of a used run will change, so that it will not fail.
    pub(crate) fn prepare_free(&self, run: Run) -> Result<()> {
        let group = self.group_of(run)?;
        group.with(&self.cache, |_| ())?;
        if !group.is_virgin() && group.prepare(&self.cache, run)? {
            self.hold(group);
        }
        Ok(())
    }

    /// Marks an allocated run as used, in the transaction that makes something point to it.
    pub fn commit_alloc(&self, txn: &Txn<'_>, run: Run) -> Result<()> {
        let group = self.group_of(run)?;
        if group.is_virgin() {
            self.init_groups(txn, group.ag());
        }
        let held = group.mark(txn, run, true)?;
        {
            let counters = &mut self.books.lock().committed;
            counters.free_frags = counters.free_frags.saturating_sub(run.len);
        }
        if held {
            self.hold(group);
        }
        Ok(())
    }

    /// Puts the groups up to `ag` that are not on the device there. All of them are open.
    fn init_groups(&self, txn: &Txn<'_>, ag: u64) {
        let _serialized = self.init.lock();
        let first = self.books.lock().committed.ags;
        for n in first..=ag {
            self.group(n).init(txn);
            self.books.lock().committed.ags = n + 1;
        }
    }

    /// Marks a used run as free. It can be allocated again when the transaction is durable.
    pub fn free(&self, txn: &Txn<'_>, run: Run) -> Result<()> {
        let group = self.group_of(run)?;
        let bad = |what: &str| Err(Error::Corrupt(Corrupt(format!("{run} to be freed: {what}"))));
        if group.is_virgin() {
            return bad("its allocation group was never used");
        }
        if layout::is_fixed(&self.g, run.start..run.end()) {
            return bad("part of the file system's own structures");
        }
        // Loaded before the bits are cleared: a later load would take the run for allocatable before the commit.
        group.with(&self.cache, |_| ())?;
        let held = group.mark(txn, run, false)?;
        txn.note_freed(run);
        {
            let books = &mut *self.books.lock();
            books.available += run.len;
            books.pending += run.len;
            books.committed.free_frags = books.committed.free_frags.saturating_add(run.len);
        }
        if held {
            self.hold(group);
        }
        Ok(())
    }

    fn hold(&self, group: Arc<Group>) {
        let oldest = {
            let mut held = self.held.lock();
            held.push_back(group);
            (held.len() > HELD_GROUPS).then(|| held.pop_front()).flatten()
        };
        if let Some(group) = oldest {
            group.release_blocks();
        }
    }

    /// Makes freed runs allocatable. The journal calls it when the transaction that carried the frees is durable.
    pub fn on_commit(&self, freed: Vec<Run>) {
        for run in freed {
            let back = self.give_back(run);
            let books = &mut *self.books.lock();
            books.pending = books.pending.saturating_sub(run.len);
            if !back {
                books.available = books.available.saturating_sub(run.len);
            }
        }
    }

    /// Promises `n` fragments. Unprivileged callers leave the reserve alone.
    pub fn reserve(&self, n: u64, privileged: bool) -> Result<()> {
        let books = &mut *self.books.lock();
        let kept = if privileged { 0 } else { self.root_reserve() };
        let taken = books.reserved.saturating_add(kept).saturating_add(n);
        if taken > books.available {
            return Err(Error::NoSpace);
        }
        books.reserved += n;
        Ok(())
    }

    /// Fragments in a block.
    pub(crate) fn frags_per_block(&self) -> u64 {
        self.g.frags_per_block()
    }

    /// Takes a promise back: the fragments were allocated, or are not needed.
    pub fn unreserve(&self, n: u64) {
        let books = &mut *self.books.lock();
        debug_assert!(books.reserved >= n, "{n} of {} fragments unreserved", books.reserved);
        books.reserved = books.reserved.saturating_sub(n);
    }

    /// Free fragments, promised ones and those freed but not durable included.
    pub fn free_frags(&self) -> u64 {
        self.books.lock().available
    }

    /// Promised fragments.
    pub fn reserved(&self) -> u64 {
        self.books.lock().reserved
    }

    /// Fragments kept for privileged users.
    pub fn root_reserve(&self) -> u64 {
        self.root_reserve.load(Ordering::Relaxed)
    }

    /// Fragments that become allocatable with the next commits.
    pub fn pending_frees(&self) -> u64 {
        self.books.lock().pending
    }

    /// The counters as the transactions so far leave them.
    pub fn counters(&self) -> Counters {
        self.books.lock().committed
    }

    /// Changes the counters that are not about space: inodes and orphan list.
    pub fn with_counters<R>(&self, f: impl FnOnce(&mut Counters) -> R) -> R {
        f(&mut self.books.lock().committed)
    }

    /// Most log bytes that [`Space::commit_alloc`] or [`Space::free`] of a run of this length needs, first use of a
    /// group left out.
    pub fn log_bytes(&self, frags: u64) -> usize {
        let blocks = frags.div_ceil(self.g.bits_per_bitmap()) + 1;
        // The header's count, and the bits.
        2 * RANGE_OVERHEAD + frags.div_ceil(8) as usize + blocks as usize * RANGE_OVERHEAD
    }

    /// Most log bytes that initializing the open groups needs that are not on the device: 0 nearly always. A
    /// transaction that commits what was allocated before it began adds this to its reservation.
    pub fn log_bytes_for_init(&self) -> usize {
        let (first, open) = (self.counters().ags, self.open.load(Ordering::Acquire));
        (first..open).map(|ag| self.log_bytes_for_group(ag)).sum()
    }

    /// The same for a transaction that allocates only after it has begun: that may open one more group.
    pub fn log_bytes_for_next_init(&self) -> usize {
        let (first, usable) = (self.counters().ags, self.usable());
        (first..usable).map(|ag| self.log_bytes_for_group(ag)).sum()
    }

    fn log_bytes_for_group(&self, ag: u64) -> usize {
        let blocks = self.g.bitmap_blocks();
        // The bits that are set: the file system's own structures, and what lies beyond the end of the last group.
        let bits = blocks * self.g.bits_per_bitmap() - layout::initial_ag_free(&self.g, ag);
        bits.div_ceil(8) as usize + (blocks as usize + 1) * (3 * RANGE_OVERHEAD)
    }
}
