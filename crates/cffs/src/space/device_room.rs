//! What a thin device below can still store: a log disk has less space than bytes.
//!
//! Free fragments are places, and on such a device there are many more places than space. So who reserves fragments or blocks
//! needs both. What must fit besides is everything that is not written yet: dirty data at its worst, reserved blocks, and the metadata
//! of the running transaction, for which there is a *margin* that only the file system itself may use. So no writeback or
//! commit finds the device full, and there is room to delete.

use crate::cache::Cache;
use crate::format::extent::{UNWRITTEN_UNIT, node_capacity};
use cffs_device::{Device, DeviceSpace};
use std::sync::Arc;

/// Fragments reserved at once from which on they are taken to lie next to each other. Fewer can be in a unit of the device each.
const CONTIGUOUS_FRAGS: u64 = 64;
/// Units that a contiguous run may touch beyond those that it fills.
const RUN_ENDS: u64 = 16;
/// Pieces in which what is reserved as contiguous may be allocated, each of which begins and ends in a unit of its own.
pub(super) const PIECES_MAX: usize = RUN_ENDS as usize / 2;

/// Who asks for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A program.
    Program,
    /// A program that gets the file system's reserve too.
    Privileged,
    /// A write to preallocated space, for metadata and for ends that share a unit with something else, and who gives space back: what is kept is there
    /// for it, and a half of the margin.
    Kept,
    /// The file system, for its own metadata: the margin is there for it.
    FileSystem,
}

impl Asker {
    pub(super) fn of(privileged: bool) -> Asker {
        if privileged { Asker::Privileged } else { Asker::Program }
    }
}

/// What has its places, or has reserved them, and will want space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserved {
    /// Fragments of data: of dirty data that has no place yet, and of data that will be dirty in a moment or never.
    pub(super) frags: u64,
    pub(super) blocks: u64,
    /// Units of [`UNWRITTEN_UNIT`] bytes of what is allocated and was never written.
    pub(super) unwritten: u64,
}

/// The limit that a thin device sets.
pub(super) struct DeviceRoom {
    cache: Arc<Cache>,
    /// Bytes that one commit may write at most, and open transactions add to it.
    pub(super) margin: u64,
    /// Share of the device that only privileged users get, in 1/10,000.
    pub(super) reserve_bp: u32,
    /// Bytes of data that is not dirty in the cache and will be written ([`super::copies`]).
    claimed: u64,
    /// Room is kept for what was never written.
    pub(super) keeps_unwritten: bool,
    /// Bytes that the device loses when it begins to keep what is overwritten, and from now on nobody is promised ([`super::keep_old`]).
    pub(super) withheld: Option<u64>,
}

impl DeviceRoom {
    /// `None` for a device that has a place for each of its bytes.
    pub(super) fn of(cache: &Arc<Cache>) -> Option<DeviceRoom> {
        let device = cache.device();
        let space = device.space()?;
        let margin = (device.atomic_max() as u64).max(64 << cache.geometry().block_shift);
        let margin = margin / space.unit * space.unit_cost;
        Some(DeviceRoom {
            cache: cache.clone(),
            margin,
            reserve_bp: 0,
            claimed: 0,
            keeps_unwritten: false,
            withheld: None,
        })
    }

    pub(super) fn space(&self) -> DeviceSpace {
        let none = DeviceSpace { unit: 4096, unit_cost: 4096, ..DeviceSpace::default() };
        let mut space = self.cache.device().space().unwrap_or(none);
        if let Some(bytes) = self.withheld {
            space.keeps_old = true;
            space.total = space.total.saturating_sub(bytes);
            space.free = space.free.saturating_sub(bytes);
        }
        space
    }

    /// Bytes that so many fragments of data take at most.
    fn cost_of_frags(&self, s: &DeviceSpace, frags: u64) -> u64 {
        let bytes = frags.saturating_mul(self.cache.geometry().frag_size() as u64);
        let filled = bytes.div_ceil(s.unit);
        let units = if frags < CONTIGUOUS_FRAGS { filled.max(frags) } else { filled + RUN_ENDS };
        units.saturating_mul(s.unit_cost)
    }

    fn cost_of_blocks(&self, s: &DeviceSpace, blocks: u64) -> u64 {
        let units = (self.cache.geometry().block_size() as u64).div_ceil(s.unit);
        blocks.saturating_mul(units).saturating_mul(s.unit_cost)
    }

    /// Claims what so many fragments take; returns the bytes.
    pub(super) fn claim(&mut self, frags: u64) -> u64 {
        let bytes = self.cost_of_frags(&self.space(), frags);
        self.claimed += bytes;
        bytes
    }

    pub(super) fn unclaim(&mut self, bytes: u64) {
        debug_assert!(self.claimed >= bytes, "{bytes} of {} claimed bytes given back", self.claimed);
        self.claimed = self.claimed.saturating_sub(bytes);
    }

    /// Bytes that dirty data may take when it is written: each fragment could be in a unit of its own.
    fn dirty_cost(&self, s: &DeviceSpace) -> u64 {
        let frag = self.cache.geometry().frag_size() as u64;
        (self.cache.dirty_data() as u64).div_ceil(frag.min(s.unit)).saturating_mul(s.unit_cost)
    }

    /// From now on keeps room for what was never written, if there is room for all of it; so that who comes with more than that keeps nothing of what others may use.
    pub(super) fn keep_unwritten(&mut self, reserved: Reserved) {
        let s = self.space();
        self.keeps_unwritten = s.keeps_room;
        self.keeps_unwritten &= self.promised(&s, reserved) <= s.free;
    }

    /// Bytes that what was never written takes when it is: the data.
    fn unwritten_cost(&self, s: &DeviceSpace, reserved: Reserved) -> u64 {
        if !self.keeps_unwritten {
            return 0;
        }
        reserved.unwritten.saturating_mul(UNWRITTEN_UNIT.div_ceil(s.unit)).saturating_mul(s.unit_cost)
    }

    /// Blocks that are kept besides for so many units: nodes of extent trees. In the worst order of writes each fragment becomes an extent of its own, and
    /// nodes are half full; nodes above them are few.
    pub(super) fn nodes_for(&self, unwritten: u64) -> u64 {
        let g = self.cache.geometry();
        let extents = unwritten.saturating_mul((UNWRITTEN_UNIT >> g.frag_shift).max(1));
        (extents.saturating_mul(3)).div_ceil(node_capacity(g.block_size()) as u64)
    }

    /// Bytes that everything takes that is on its way to the device, at its worst.
    fn on_its_way(&self, s: &DeviceSpace, reserved: Reserved) -> u64 {
        // Dirty data has its places reserved, unless it has had them before; and it is counted at its worst.
        let data = self.dirty_cost(s).max(self.cost_of_frags(s, reserved.frags));
        data.saturating_add(self.cost_of_blocks(s, reserved.blocks)).saturating_add(self.claimed)
    }

    /// Bytes that everything takes that is promised to somebody, at its worst. Dirty data in preallocated space counts twice until it is
    /// written back.
    fn promised(&self, s: &DeviceSpace, reserved: Reserved) -> u64 {
        self.on_its_way(s, reserved).saturating_add(self.kept_for_unwritten(s, reserved))
    }

    fn kept_for_unwritten(&self, s: &DeviceSpace, reserved: Reserved) -> u64 {
        let nodes = if self.keeps_unwritten { self.nodes_for(reserved.unwritten) } else { 0 };
        let nodes = self.cost_of_blocks(s, nodes);
        self.unwritten_cost(s, reserved).saturating_add(nodes)
    }

    /// Whether preallocated space can be written: all that is promised can be stored.
    pub(super) fn has_unwritten(&self, reserved: Reserved) -> bool {
        let s = self.space();
        let promised = self.on_its_way(&s, reserved).saturating_add(self.unwritten_cost(&s, reserved));
        promised <= s.free && (self.reserve(&s, reserved, 0, true) || self.cache.device().reserve(promised, false))
    }

    /// Whether all that is promised can be stored, and the next commits.
    pub(super) fn keeps_promises(&self, reserved: Reserved) -> bool {
        let s = self.space();
        self.promised(&s, reserved).saturating_add(2 * self.margin) <= s.free
    }

    /// Bytes that can be stored besides what is reserved and dirty already.
    fn left(&self, s: &DeviceSpace, reserved: Reserved, asker: Asker) -> u64 {
        let kept = self.kept_for_unwritten(s, reserved).saturating_add(2 * self.margin);
        let kept = match asker {
            Asker::Program => kept.saturating_add(s.total / 10_000 * u64::from(self.reserve_bp)),
            Asker::Privileged => kept,
            Asker::Kept => self.unwritten_cost(s, reserved).saturating_add(self.margin),
            // What is dirty in preallocated space must not seem to take the margin.
            Asker::FileSystem => 0,
        };
        s.free.saturating_sub(self.on_its_way(s, reserved).saturating_add(kept))
    }

    /// Whether so many fragments and blocks can be stored besides what is reserved and dirty already. If so, the device has reserved them.
    pub(super) fn affords(&self, frags: u64, blocks: u64, reserved: Reserved, asker: Asker) -> bool {
        let s = self.space();
        let asked = self.cost_of_frags(&s, frags).saturating_add(self.cost_of_blocks(&s, blocks));
        let is_left = asked <= self.left(&s, reserved, asker);
        // The margin is reserved already, and what is kept.
        is_left && (matches!(asker, Asker::FileSystem | Asker::Kept) || self.reserve(&s, reserved, asked, false))
    }

    /// Has the device reserve what is promised, and so many bytes more: there may be other file systems on its store. Whether it has.
    fn reserve(&self, s: &DeviceSpace, reserved: Reserved, more: u64, or_less: bool) -> bool {
        let bytes = self.promised(s, reserved).saturating_add(2 * self.margin).saturating_add(more);
        self.cache.device().reserve(bytes, or_less)
    }

    /// The device learns what is promised now, after something was written.
    pub(super) fn renew(&self, reserved: Reserved) {
        self.reserve(&self.space(), reserved, 0, true);
    }

    /// Nothing is promised any more.
    pub(super) fn end(&self) {
        self.cache.device().reserve(0, true);
    }

    /// Blocks that can be stored beyond those that are reserved.
    pub(super) fn affordable_blocks(&self, reserved: Reserved, asker: Asker) -> u64 {
        let s = self.space();
        self.left(&s, reserved, asker) / self.cost_of_blocks(&s, 1).max(1)
    }

    /// Bytes in all, and free ones.
    pub(super) fn totals(&self, reserved: Reserved) -> (u64, u64) {
        let s = self.space();
        let dirty = (self.cache.dirty_data() as u64).div_ceil(s.unit).saturating_mul(s.unit_cost);
        let unwritten = self.kept_for_unwritten(&s, reserved);
        let taken = dirty + self.claimed + self.cost_of_blocks(&s, reserved.blocks) + 2 * self.margin;
        (s.total, s.free.saturating_sub(taken.saturating_add(unwritten)))
    }
}
