//! Free space: which fragments are free, who gets them, and how many are promised.
//!
//! Allocation has two steps. [`Space::alloc_near`] and its relatives take a run out of the free extents in memory;
//! nothing changes on the device. [`Space::commit_alloc`] sets the bits in the bitmap, in the transaction that makes
//! something point to the run. [`Space::cancel`] undoes the first step. [`Space::free`] clears the bits at once, but the
//! run can be allocated again only when the transaction is durable ([`Space::on_commit`]): until then a crash would
//! bring its old owner back.
//!
//! Whoever will need space later, and must not be told then that there is none, gets a promise first: of fragments
//! or of whole blocks ([`crate::reservation`]). See [`accounting`] for what the promises rest on.
//!
//! Allocation groups load when first needed. Those that were never used are not on the device at all: they are opened
//! in order (group `n` only when all before it are open), and the first `commit_alloc` in one writes header and bitmap
//! of it and of all open ones before it, so that the counter of initialized groups stays a high-water mark.

mod accounting;
mod alloc;
mod batch;
mod class;
mod free_set;
mod group;
mod grow;
pub mod layout;
#[cfg(test)]
pub(crate) mod tests;
mod trim;

pub use crate::format::Run;

use crate::cache::{AddrMap, Cache};
use crate::error::{Error, Result};
use crate::format::log::RECORD_HEADER;
use crate::format::system::Counters;
use crate::format::{Corrupt, Geometry, LiveGeometry};
use crate::journal::Txn;
use crate::reservation::{QuotaPool, Reservation, SpacePool};
use accounting::Accounting;
use free_set::FreeSet;
use group::Group;
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Groups that keep their bitmap blocks in memory beside the cache; the oldest gives them back.
const PINNED_GROUPS: usize = 64;
/// Log bytes around a range of a block: record header, range header, rounding at both ends.
const RANGE_OVERHEAD: usize = RECORD_HEADER + 16 + 16;

/// The free space of a file system.
pub struct Space {
    cache: Arc<Cache>,
    g: Arc<LiveGeometry>,
    groups: RwLock<AddrMap<u64, Arc<Group>>>,
    accounting: Mutex<Accounting>,
    /// Share of the whole that only privileged users get, in 1/10,000.
    reserve_bp: AtomicU32,
    /// The first group that was not on the device at mount.
    first_virgin: u64,
    /// Groups before this one are loaded.
    loaded_to: AtomicU64,
    /// Groups that are on the device or open in memory; the one after them is the next to be opened.
    open: AtomicU64,
    /// Where a search beyond the near groups last succeeded, and the next one begins.
    rotor: AtomicU64,
    /// Where a search for gaps looks beside the near groups.
    best_fit_rotor: AtomicU64,
    /// Serializes the initialization of groups on the device.
    init: Mutex<()>,
    held: Mutex<VecDeque<Arc<Group>>>,
    /// Held while a free run is out of the free extents to be discarded.
    trimming: Mutex<()>,
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
        if counters.inodes > g.inodes_max() {
            let what = format!("counters: {} inodes, there is room for {}", counters.inodes, g.inodes_max());
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
        let accounting = Accounting::new(g.frags_per_block(), counters, virgin_blocks(&g, counters.ags));
        let space = Space {
            cache,
            g,
            groups: RwLock::default(),
            accounting: Mutex::new(accounting),
            reserve_bp: AtomicU32::new(0),
            first_virgin: counters.ags,
            loaded_to: AtomicU64::new(0),
            open: AtomicU64::new(counters.ags),
            rotor: AtomicU64::new(0),
            best_fit_rotor: AtomicU64::new(0),
            init: Mutex::default(),
            held: Mutex::default(),
            trimming: Mutex::default(),
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

    /// Runs `f` on the free extents of a group.
    #[inline]
    fn with<R>(&self, group: &Group, f: impl FnOnce(&mut FreeSet) -> R) -> Result<R> {
        let loaded = |set: &FreeSet| {
            // What was never used before the mount was counted then.
            if group.ag() < self.first_virgin {
                self.accounting.lock().free_blocks += set.blocks();
            }
        };
        group.with(&self.cache, loaded, f)
    }

    /// Gives back what an allocation of data returned and no transaction has committed. The fragments are promised to the
    /// caller again.
    pub fn cancel(&self, run: Run) {
        if !self.return_run(run, |accounting, _| accounting.refund_data(run.len)) {
            // Lost until the next mount. The caller ends the promise all the same.
            self.accounting.lock().reserved_frags += run.len;
        }
    }

    /// Gives back whole blocks that were allocated for metadata, to the reservation they came out of.
    pub fn cancel_meta(&self, reservation: &Reservation, run: Run) {
        self.return_run(run, |accounting, blocks| {
            accounting.available += run.len;
            accounting.refund_blocks(blocks, reservation);
        });
    }

    /// Puts a run into the free extents. `note` is told of the blocks that are wholly free since, with the accounting open.
    fn return_run(&self, run: Run, note: impl FnOnce(&mut Accounting, u64)) -> bool {
        let Ok(group) = self.group_of(run) else {
            tracing::error!("{run} given back: not in the file system");
            return false;
        };
        let start = (run.start - group.start()) as u32;
        let put = |set: &mut FreeSet| {
            let blocks = set.insert(start, run.len as u32).map(u64::from)?;
            let accounting = &mut *self.accounting.lock();
            accounting.free_blocks += blocks;
            accounting.epoch += 1;
            note(accounting, blocks);
            Some(())
        };
        match self.with(&group, put) {
            Ok(Some(())) => true,
            Ok(None) => {
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
        self.with(&group, |_| ())?;
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
            let counters = &mut self.accounting.lock().committed;
            counters.free_frags = counters.free_frags.saturating_sub(run.len);
        }
        if held {
            self.hold(group);
        }
        Ok(())
    }

    /// Puts an open group on the device, if it is not there.
    pub(crate) fn ensure_initialized(&self, txn: &Txn<'_>, ag: u64) {
        if ag >= self.counters().ags && ag < self.open.load(Ordering::Acquire) {
            self.init_groups(txn, ag);
        }
    }

    /// Puts the groups up to `ag` that are not on the device there. All of them are open.
    fn init_groups(&self, txn: &Txn<'_>, ag: u64) {
        let _serialized = self.init.lock();
        let first = self.accounting.lock().committed.ags;
        for n in first..=ag {
            self.group(n).init(txn);
            self.accounting.lock().committed.ags = n + 1;
        }
    }

    /// Takes [`Space::commit_alloc`] back in the same transaction: the run is allocated in memory alone again.
    pub(crate) fn uncommit_alloc(&self, txn: &Txn<'_>, run: Run) {
        match self.group_of(run).and_then(|group| group.mark(txn, run, false)) {
            Ok(_) => {
                let counters = &mut self.accounting.lock().committed;
                counters.free_frags = counters.free_frags.saturating_add(run.len);
            }
            // The bits were set a moment ago, in blocks that the transaction holds.
            Err(e) => txn.fail("an allocation cannot be taken back", &e),
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
        self.with(&group, |_| ())?;
        let held = group.mark(txn, run, false)?;
        txn.note_freed(run);
        {
            let accounting = &mut *self.accounting.lock();
            accounting.available += run.len;
            accounting.pending += run.len;
            accounting.committed.free_frags = accounting.committed.free_frags.saturating_add(run.len);
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
            (held.len() > PINNED_GROUPS).then(|| held.pop_front()).flatten()
        };
        if let Some(group) = oldest {
            group.release_blocks();
        }
    }

    /// Makes freed runs allocatable. The journal calls it when the transaction that carried the frees is durable.
    pub fn on_commit(&self, freed: Vec<Run>) {
        for run in freed {
            // In one step: what is not pending any more can be allocated.
            if !self.return_run(run, |accounting, _| accounting.pending = accounting.pending.saturating_sub(run.len)) {
                let accounting = &mut *self.accounting.lock();
                accounting.pending = accounting.pending.saturating_sub(run.len);
                accounting.available = accounting.available.saturating_sub(run.len);
            }
        }
    }

    /// An empty reservation of this space; see [`Reservation::new`].
    pub fn reservation(self: &Arc<Self>, quota: Option<Arc<dyn QuotaPool>>, privileged: bool) -> Reservation {
        Reservation::new(self.clone(), quota, privileged)
    }

    /// Loads one more group that is on the device; false when all are.
    fn load_another(&self) -> Result<bool> {
        loop {
            let ag = self.loaded_to.load(Ordering::Acquire);
            if ag >= self.first_virgin {
                return Ok(false);
            }
            let group = self.group(ag);
            let news = !group.is_loaded();
            match self.with(&group, |_| ()) {
                Ok(()) | Err(Error::Corrupt(_)) => {}
                Err(e) => return Err(e),
            }
            self.loaded_to.fetch_max(ag + 1, Ordering::AcqRel);
            if news {
                return Ok(true);
            }
        }
    }

    /// While the guard lives, space whose freeing is not durable is not promised to anybody: who waits for a commit finds
    /// its space then.
    pub fn freeze_reservations(&self) -> ReservationFreeze<'_> {
        self.accounting.lock().freezes += 1;
        ReservationFreeze(self)
    }

    /// Fragments in a block.
    pub(crate) fn frags_per_block(&self) -> u64 {
        self.g.frags_per_block()
    }

    /// Free fragments, promised ones and those freed but not durable included.
    pub fn free_frags(&self) -> u64 {
        self.accounting.lock().available
    }

    /// Promised fragments, those of promised blocks included.
    pub fn reserved(&self) -> u64 {
        self.accounting.lock().reserved_total()
    }

    /// Free fragments and the promised ones among them, of one moment.
    pub fn free_and_reserved(&self) -> (u64, u64) {
        let accounting = self.accounting.lock();
        (accounting.available, accounting.reserved_total())
    }

    /// Fragments kept for privileged users.
    pub fn root_reserve(&self) -> u64 {
        self.accounting.lock().root_reserve
    }

    /// Fragments that become allocatable with the next commits.
    pub fn pending_frees(&self) -> u64 {
        self.accounting.lock().pending
    }

    /// A moment to compare with later ([`Space::freed_since`]).
    pub fn epoch(&self) -> FreeSpaceEpoch {
        FreeSpaceEpoch(self.accounting.lock().epoch)
    }

    /// Whether a search that began at this moment, and found too little, may find more when it is repeated after a commit:
    /// freed space waits for one, or has become usable meanwhile behind the search's back.
    pub fn freed_since(&self, moment: FreeSpaceEpoch) -> bool {
        let accounting = self.accounting.lock();
        accounting.pending > 0 || accounting.epoch != moment.0
    }

    /// The counters as the transactions so far leave them.
    pub fn counters(&self) -> Counters {
        self.accounting.lock().committed
    }

    /// Changes the counters that are not about space: inodes and orphan list.
    pub fn with_counters<R>(&self, f: impl FnOnce(&mut Counters) -> R) -> R {
        f(&mut self.accounting.lock().committed)
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

impl SpacePool for Space {
    fn reserve_frags(&self, n: u64, privileged: bool) -> Result<()> {
        self.accounting.lock().reserve(n, privileged)
    }

    fn release_frags(&self, n: u64) {
        self.accounting.lock().unreserve(n);
    }

    /// May read bitmaps that were not needed before, until it has seen enough free blocks.
    fn reserve_blocks(&self, n: u64, privileged: bool) -> Result<()> {
        while self.accounting.lock().reserve_blocks(n, privileged)? > 0 {
            if !self.load_another()? {
                return Err(Error::NoSpace);
            }
        }
        Ok(())
    }

    fn release_blocks(&self, n: u64) {
        self.accounting.lock().unreserve_blocks(n);
    }
}

/// Whole free blocks of the groups from `first` on, which were never used.
fn virgin_blocks(g: &Geometry, first: u64) -> u64 {
    if first >= g.ag_count {
        return 0;
    }
    let blocks = |ag: u64| g.block_of_frag(layout::initial_ag_free(g, ag));
    // All but the last are alike.
    (g.ag_count - 1 - first) * blocks(first) + blocks(g.ag_count - 1)
}

/// See [`Space::epoch`].
#[derive(Clone, Copy, Debug)]
pub struct FreeSpaceEpoch(u64);

/// See [`Space::freeze_reservations`].
pub struct ReservationFreeze<'a>(&'a Space);

impl Drop for ReservationFreeze<'_> {
    fn drop(&mut self) {
        self.0.accounting.lock().freezes -= 1;
    }
}
