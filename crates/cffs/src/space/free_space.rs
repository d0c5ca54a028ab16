//! The free space of a file system: its allocation groups and their accounting.

use super::accounting::Accounting;
use super::alloc_group::AllocGroup;
use super::aside::Aside;
use super::begun::Begun;
use super::device_room::{Asker, DeviceRoom};
use super::free_set::FreeSet;
use super::in_use::part_in_use;
use super::layout;
use crate::addr_map::AddrMap;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::format::LongestRuns;
use crate::format::extent::UNWRITTEN_UNIT;
use crate::format::system::Counters;
use crate::format::{Corrupt, Geometry, LiveGeometry, Run};
use crate::reservation::{QuotaPool, Reservation, SpacePool};
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Groups whose bitmap blocks are pinned, so that the cache does not evict them.
const PINNED_AGS: usize = 64;

/// The free space of a file system.
pub struct Space {
    pub(super) cache: Arc<Cache>,
    pub(super) g: Arc<LiveGeometry>,
    pub(super) groups: RwLock<AddrMap<u64, Arc<AllocGroup>>>,
    pub(super) accounting: Mutex<Accounting>,
    /// The device has less space than places: known without the lock, for the others, which have nothing to ask then.
    pub(super) thin: bool,
    /// The counters have what was never written.
    pub(super) counts_unwritten: bool,
    /// Fragments of the units in which such a device stores; 1 for all others.
    pub(super) unit_frags: u64,
    /// Where small data went last, on such a device.
    pub(super) begun: Mutex<Begun>,
    /// Share of the whole that only privileged users get, in 1/10,000.
    pub(super) reserve_bp: AtomicU32,
    /// What was known of the longest free runs at the last unmount. Loaded AGs know better.
    pub(super) longest_runs_known: LongestRuns,
    /// AGs that there were then.
    pub(super) ags_at_mount: u64,
    /// The first AG that was not on the device at mount.
    first_virgin: u64,
    /// Groups before this one are loaded.
    loaded_to: AtomicU64,
    /// AGs that are on the device or open in memory. The AG with this number is the next to be opened.
    pub(super) open: AtomicU64,
    /// Rotor: the AG where a search beyond the near AGs last succeeded, and where the next one begins.
    pub(super) rotor: AtomicU64,
    /// Rotor of best-fit searches beyond the near AGs.
    pub(super) best_fit_rotor: AtomicU64,
    /// Where the next search for a gap begins ([`super::units`]).
    pub(super) next_gap: AtomicU64,
    /// Serializes the initialization of AGs on the device.
    pub(super) init: Mutex<()>,
    /// Groups whose bitmap blocks are pinned.
    pinned: Mutex<VecDeque<Arc<AllocGroup>>>,
    /// Held while a free run is being discarded, and therefore not among the free extents.
    pub(super) trimming: Mutex<()>,
    /// What is kept free while a part of the device is being emptied.
    pub(super) aside: Mutex<Option<Aside>>,
    /// Held shared while data becomes dirty that needs no space because it overwrites other data ([`super::keep_old`]).
    pub(super) overwriting: RwLock<()>,
    /// Held while a snapshot of the device is made.
    pub(super) keeping_old: Mutex<()>,
}

impl Space {
    /// Loads the free space as the counters describe it. Reads nothing: AGs load when they are first needed.
    ///
    /// `longest_runs_known`: what the superblock says of AGs that nobody has loaded. `reserve_bp` is the share of the whole that only privileged users get, in 1/10,000.
    pub fn load(
        cache: Arc<Cache>,
        counters: Counters,
        longest_runs_known: LongestRuns,
        reserve_bp: u32,
    ) -> Result<Space> {
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
        if counters.unwritten > (g.total_frags() << g.frag_shift) / UNWRITTEN_UNIT {
            let what =
                format!("counters: {} units were never written, in {} fragments", counters.unwritten, g.total_frags());
            return Err(Corrupt(what).into());
        }
        if g.ag_blocks > layout::AG_FRAGS_MAX / g.frags_per_block() {
            let what = format!("superblock: allocation groups of {} blocks are too large", g.ag_blocks);
            return Err(Corrupt(what).into());
        }
        let mut accounting = Accounting::new(g.frags_per_block(), counters, virgin_blocks(&g, counters.ags));
        accounting.device = DeviceRoom::of(&cache);
        let unit_frags = accounting.device.as_ref().map_or(1, |device| device.space().unit >> g.frag_shift).max(1);
        cache.set_part_in_use(part_in_use);
        let space = Space {
            ags_at_mount: g.ag_count,
            cache,
            g,
            groups: RwLock::default(),
            thin: accounting.device.is_some(),
            counts_unwritten: false,
            unit_frags,
            begun: Mutex::default(),
            accounting: Mutex::new(accounting),
            reserve_bp: AtomicU32::new(0),
            longest_runs_known,
            first_virgin: counters.ags,
            loaded_to: AtomicU64::new(0),
            open: AtomicU64::new(counters.ags),
            rotor: AtomicU64::new(0),
            best_fit_rotor: AtomicU64::new(0),
            next_gap: AtomicU64::new(0),
            init: Mutex::default(),
            pinned: Mutex::default(),
            trimming: Mutex::default(),
            aside: Mutex::default(),
            overwriting: RwLock::default(),
            keeping_old: Mutex::default(),
        };
        space.set_root_reserve(reserve_bp);
        Ok(space)
    }

    /// The geometry, which changes when the file system grows.
    pub(crate) fn live_geometry(&self) -> Arc<LiveGeometry> {
        self.g.clone()
    }

    /// An empty reservation of this space; see [`Reservation::new`].
    pub fn reservation(self: &Arc<Self>, quota: Option<Arc<dyn QuotaPool>>, privileged: bool) -> Reservation {
        Reservation::new(self.clone(), quota, privileged)
    }

    /// While the guard lives, nobody reserves space whose freeing is not durable yet, so that an operation that waits
    /// for a commit finds the space it waited for.
    pub fn freeze_reservations(&self) -> ReservationFreeze<'_> {
        self.accounting.lock().freezes += 1;
        ReservationFreeze(self)
    }

    /// Fragments of a stripe of the device; 0 where it has none, or not in whole blocks.
    pub(crate) fn stripe_frags(&self) -> u64 {
        let stripe = self.cache.device().stripe();
        if stripe.is_multiple_of(self.g.block_size() as u64) { stripe >> self.g.frag_shift } else { 0 }
    }

    /// Fragments in a block.
    pub(crate) fn frags_per_block(&self) -> u64 {
        self.g.frags_per_block()
    }

    /// Free fragments, including reserved ones and those whose freeing is not durable yet.
    pub fn free_frags(&self) -> u64 {
        self.accounting.lock().available
    }

    /// Reserved fragments, including those of reserved blocks.
    pub fn reserved(&self) -> u64 {
        self.accounting.lock().reserved_total()
    }

    /// Free and reserved fragments, read together.
    pub fn free_and_reserved(&self) -> (u64, u64) {
        let accounting = self.accounting.lock();
        (accounting.available, accounting.reserved_total())
    }

    /// Fragments kept for privileged users.
    pub fn root_reserve(&self) -> u64 {
        self.accounting.lock().root_reserve
    }

    /// Fragments that become allocatable with the next commit.
    pub fn pending_frees(&self) -> u64 {
        self.accounting.lock().pending
    }

    /// The present free-space epoch, to be passed to [`Space::freed_since`].
    pub fn epoch(&self) -> FreeSpaceEpoch {
        FreeSpaceEpoch(self.accounting.lock().epoch)
    }

    /// Whether an allocation that failed after this epoch may succeed when it is repeated after a commit: freed space
    /// waits for the commit, or space was freed while the search was under way.
    pub fn freed_since(&self, moment: FreeSpaceEpoch) -> bool {
        let accounting = self.accounting.lock();
        accounting.pending > 0 || accounting.epoch != moment.0
    }

    /// The counters as the transactions so far leave them.
    pub fn counters(&self) -> Counters {
        self.accounting.lock().counters
    }

    /// Changes the counters that are not about space: inodes and orphan list.
    pub fn with_counters<R>(&self, f: impl FnOnce(&mut Counters) -> R) -> R {
        f(&mut self.accounting.lock().counters)
    }

    /// An AG that is open, or the next one, which is opened.
    #[inline]
    pub(super) fn alloc_group(&self, ag: u64) -> Arc<AllocGroup> {
        if let Some(group) = self.groups.read().get(&ag) {
            return group.clone();
        }
        let mut groups = self.groups.write();
        // Below `open` an AG that is not in the table is on the device: opening one puts it there.
        let virgin = ag >= self.open.load(Ordering::Acquire);
        let group = groups.entry(ag).or_insert_with(|| Arc::new(AllocGroup::new(&self.g, ag, virgin)));
        self.open.fetch_max(ag + 1, Ordering::AcqRel);
        group.clone()
    }

    /// An AG that is loaded, or known to be damaged.
    pub(super) fn loaded_group(&self, ag: u64) -> Option<Arc<AllocGroup>> {
        let group = self.groups.read().get(&ag).cloned();
        group.filter(|group| group.is_loaded())
    }

    /// Whether there are AGs that nothing was ever written to.
    pub(crate) fn has_virgin_groups(&self) -> bool {
        self.open.load(Ordering::Acquire) < self.g.ag_count
    }

    /// Number of AGs that can be used now: all open ones and the next.
    pub(super) fn usable(&self) -> u64 {
        (self.open.load(Ordering::Acquire) + 1).min(self.g.ag_count)
    }

    /// The open AG that contains the run.
    pub(super) fn alloc_group_of(&self, run: Run) -> Result<Arc<AllocGroup>> {
        let bad = |what: &str| Err(Error::Corrupt(Corrupt(format!("{run}: {what}"))));
        if run.len == 0 || !self.g.contains(run.start, run.len) {
            return bad("not in the file system");
        }
        let ag = self.g.ag_of(self.g.block_of_frag(run.start));
        if ag >= self.open.load(Ordering::Acquire) {
            return bad("its allocation group was never used");
        }
        let group = self.alloc_group(ag);
        if run.end() > group.end() {
            return bad("reaches over the end of its allocation group");
        }
        Ok(group)
    }

    /// Runs `f` on the free extents of an AG.
    #[inline]
    pub(super) fn with_free_set<R>(&self, group: &AllocGroup, f: impl FnOnce(&mut FreeSet) -> R) -> Result<R> {
        let loaded = |set: &FreeSet| {
            // The free blocks of virgin AGs were counted at mount.
            if group.ag() < self.first_virgin {
                self.accounting.lock().loaded(set.frags(), set.blocks());
            }
        };
        group.with(&self.cache, loaded, f)
    }

    /// Reserves blocks. May load AGs until enough free ones are known.
    fn reserve_blocks_for(&self, n: u64, asker: Asker) -> Result<()> {
        while self.accounting.lock().reserve_blocks(n, asker)? > 0 {
            if !self.load_another()? {
                return Err(Error::NoSpace);
            }
        }
        Ok(())
    }

    /// Loads one more AG that is on the device. False when all are loaded.
    pub(super) fn load_another(&self) -> Result<bool> {
        loop {
            let ag = self.loaded_to.load(Ordering::Acquire);
            if ag >= self.first_virgin {
                return Ok(false);
            }
            let group = self.alloc_group(ag);
            let news = !group.is_loaded();
            match self.with_free_set(&group, |_| ()) {
                Ok(()) | Err(Error::Corrupt(_)) => {}
                Err(e) => return Err(e),
            }
            self.loaded_to.fetch_max(ag + 1, Ordering::AcqRel);
            if news {
                return Ok(true);
            }
        }
    }

    /// Pins the blocks of an AG. Unpins those of the oldest AG if too many are pinned.
    pub(super) fn pin(&self, group: Arc<AllocGroup>) {
        let oldest = {
            let mut pinned = self.pinned.lock();
            pinned.push_back(group);
            (pinned.len() > PINNED_AGS).then(|| pinned.pop_front()).flatten()
        };
        if let Some(group) = oldest {
            group.unpin();
        }
    }
}

impl SpacePool for Space {
    fn reserve_frags(&self, n: u64, privileged: bool) -> Result<()> {
        self.accounting.lock().reserve(n, privileged)
    }

    fn release_frags(&self, n: u64) {
        self.accounting.lock().unreserve(n);
    }

    fn reserve_blocks(&self, n: u64, privileged: bool) -> Result<()> {
        self.reserve_blocks_for(n, Asker::of(privileged))
    }

    fn reserve_kept_blocks(&self, n: u64) -> Result<()> {
        self.reserve_blocks_for(n, Asker::Kept)
    }

    fn release_blocks(&self, n: u64) {
        self.accounting.lock().unreserve_blocks(n);
    }
}

/// Free blocks of the AGs from `first` on, which are virgin.
fn virgin_blocks(g: &Geometry, first: u64) -> u64 {
    if first >= g.ag_count {
        return 0;
    }
    let blocks = |ag: u64| g.block_of_frag(layout::initial_ag_free(g, ag));
    // All AGs but the last have the same length.
    (g.ag_count - 1 - first) * blocks(first) + blocks(g.ag_count - 1)
}

/// A point in the history of free space; see [`Space::epoch`].
#[derive(Clone, Copy, Debug)]
pub struct FreeSpaceEpoch(u64);

/// Guard of [`Space::freeze_reservations`].
pub struct ReservationFreeze<'a>(&'a Space);

impl Drop for ReservationFreeze<'_> {
    fn drop(&mut self) {
        self.0.accounting.lock().freezes -= 1;
    }
}
