//! The placement of one mounted file system.

use super::batch::{Batch, BatchCursor, LONG_RUN_GROUPS, ROOM_DIVISOR};
use super::scatter::Scatter;
use super::table::{DirPlacement, Table};
use crate::addr_map::AddrMap;
use crate::cache::Cache;
use crate::colocation::{self, ColocationKey, Order};
use crate::error::Result;
use crate::format::superblock::COMPAT_DIRS_WITH_DATA;
use crate::format::{BlockAddr, FragAddr, Ino, Inode, LiveGeometry, Run, Superblock};
use crate::space::Space;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Space is scarce where less than one in this many parts is free. Then long free runs are worth more than co-location
/// of isolated files.
pub(super) const SCARCE_DIVISOR: u64 = 4;
/// Room is left in groups of at least so many bytes.
const ROOM_GROUP_MIN: u64 = 128 << 10;
/// A group that is partly in use is opened only if at least one in this many parts is free.
pub(super) const EMPTY_DIVISOR: u64 = 8;

/// Placement of one mounted file system.
pub struct Placement {
    pub(super) space: Arc<Space>,
    pub(super) geo: Arc<LiveGeometry>,
    /// Small files are grouped.
    pub(super) grouping: bool,
    /// Directory blocks go into the groups of file data.
    pub(super) dirs_with_data: bool,
    /// Small directories share the groups of their parents.
    pub(super) subtrees: bool,
    pub(super) table: Mutex<Table>,
    /// Fragments of a stripe of the device ([`cffs_device::Device::stripe`]), 0 for none.
    pub(super) stripe: FragAddr,
    /// Bytes allocated for programs since maintenance looked.
    allocated: AtomicU64,
    /// Random placement, for experiments.
    pub(super) scatter: Option<Mutex<Scatter>>,
}

impl Placement {
    /// The policy that the superblock asks for. With a seed in `scatter`, files of a file system without groups are
    /// placed at random. With `subtrees`, small directories share the groups of their parents.
    pub fn new(space: Arc<Space>, sb: &Superblock, scatter: Option<u64>, subtrees: bool) -> Placement {
        let geo = space.live_geometry();
        Placement {
            stripe: space.stripe_frags(),
            space,
            geo,
            grouping: sb.groups_files(),
            dirs_with_data: sb.compat & COMPAT_DIRS_WITH_DATA != 0,
            subtrees,
            table: Mutex::default(),
            allocated: AtomicU64::new(0),
            scatter: scatter.map(|seed| Mutex::new(Scatter::new(seed))),
        }
    }

    /// Files up to this many bytes are small: they are grouped.
    pub fn small_max(&self) -> u64 {
        self.geo.group_size() as u64
    }

    /// Tracks a directory: its parent, the group of its last file, and the key that it names. A key that cannot be read is
    /// none.
    pub fn track(&self, cache: &Cache, dir: &Inode) {
        let key = if dir.has_xattrs() { colocation::key_of(cache, dir).unwrap_or(None) } else { None };
        self.track_keyed(dir, key);
    }

    /// Tracks a directory that names this key.
    pub(super) fn track_keyed(&self, dir: &Inode, key: Option<ColocationKey>) {
        let valid = dir.hint.is_multiple_of(self.geo.group_blocks()) && dir.hint < self.geo.total_blocks;
        let hint = if valid { dir.hint } else { 0 };
        let mut t = self.table.lock();
        t.track(dir.ino, dir.parent, hint, self.own_group_min());
        t.has_keys |= key.is_some();
        if let Some(d) = t.dirs.get_mut(&dir.ino) {
            d.key = key.map(Box::new);
        }
    }

    /// The key that holds in a directory, as far as the directories above it are known.
    pub fn key(&self, dir: Ino) -> ColocationKey {
        self.table.lock().key(dir).cloned().unwrap_or_default()
    }

    /// Whether the key of a directory is that it is learned from reads; `None` if the directory is not tracked and should be.
    /// False, too, where somebody else holds the table, and where there is no room for more directories: nobody who reads
    /// waits for that, or takes the room of those who write.
    pub fn learns(&self, dir: Ino) -> Option<bool> {
        let Some(t) = self.table.try_lock() else { return Some(false) };
        match t.dirs.get(&dir) {
            Some(d) if d.tracked => Some(t.key(dir) == Some(&ColocationKey::Learned)),
            _ if t.is_half_full() => Some(false),
            _ => None,
        }
    }

    /// What a small file is placed with: its directory, or what a key or its own attribute says; and its place there, if it has
    /// one.
    pub fn unit(&self, file: &Inode) -> (Ino, u64) {
        let mark = colocation::mark_of(file).unwrap_or(None);
        let mut t = self.table.lock();
        if mark.is_none() && !t.has_keys {
            return (file.parent, 0);
        }
        let key = t.key(file.parent).cloned().unwrap_or_default();
        // What is written now was last used now, and nobody knows yet what it is read with.
        let now = file.mtime.max(file.atime);
        match colocation::unit_of(&key, mark.as_ref(), file, now, None) {
            Some((unit, order)) if self.grouping => {
                // Few files share the groups of their directory.
                t.unit(unit).parent = file.parent;
                (unit, if let Order::Place(at) = order { at } else { 0 })
            }
            _ => (file.parent, 0),
        }
    }

    /// Whether a directory is tracked.
    pub fn is_tracked(&self, dir: Ino) -> bool {
        self.table.lock().dirs.get(&dir).is_some_and(|d| d.tracked)
    }

    /// Stops tracking a directory that was removed.
    pub fn untrack(&self, dir: Ino) {
        self.table.lock().untrack(dir);
    }

    /// The group to store in a directory's inode.
    pub fn hint(&self, dir: Ino) -> BlockAddr {
        self.table.lock().dirs.get(&dir).map_or(0, |d| d.data_group)
    }

    /// Announces a writeback: how many bytes of small files it will allocate for each directory, or other unit.
    ///
    /// A directory that gets enough for groups of its own has them from its first file on, and begins where the
    /// directory before it ends. If a directory, or several that share groups, gets more than some groups, its files go
    /// into long free runs.
    pub fn begin_batch(&self, sizes: &AddrMap<Ino, u64>) {
        let mut t = self.table.lock();
        t.batch = Batch { announced: true, ..Batch::default() };
        let limit = self.own_group_min();
        let mut by_group_dir: AddrMap<Ino, u64> = AddrMap::default();
        for (dir, bytes) in sizes {
            *by_group_dir.entry(self.group_dir(&t, *dir, |d| d.data_bytes >= limit)).or_default() += bytes;
        }
        for (dir, bytes) in sizes {
            let group_dir = self.group_dir(&t, *dir, |d| d.data_bytes >= limit);
            let batched = self.grouping && by_group_dir[&group_dir] > LONG_RUN_GROUPS * self.geo.group_size() as u64;
            if let Some(d) = t.dirs.get_mut(dir) {
                d.batch_bytes = *bytes;
                d.batched = batched;
                t.batch.frags += if batched { self.geo.frags_for(*bytes) } else { 0 };
            }
        }
    }

    /// Ends the writeback that [`Placement::begin_batch`] announced.
    pub fn end_batch(&self, sizes: &AddrMap<Ino, u64>) {
        let mut t = self.table.lock();
        t.batch = Batch::default();
        for dir in sizes.keys() {
            if let Some(d) = t.dirs.get_mut(dir) {
                d.batch_bytes = 0;
                d.batched = false;
            }
        }
    }

    /// The directories to look at in maintenance: those that got new small files or blocks since the last call, each with all
    /// that shares its groups. With them the bytes that were allocated, for whatever.
    pub fn take_decay(&self) -> (Vec<Ino>, u64) {
        let limit = self.own_group_min();
        let dirs = self.table.lock().take_decayed(|t, dir| self.group_dir(t, dir, |d| d.data_bytes >= limit));
        (dirs, self.allocated.swap(0, Ordering::Relaxed))
    }

    /// A file of a directory has another place now than it lies in.
    pub fn note_decay(&self, dir: Ino) {
        self.table.lock().dirs.entry(dir).or_default().decayed = true;
    }

    /// Counts what was allocated for a program: it pays for maintenance.
    pub(super) fn counted(&self, run: Option<Run>) -> Option<Run> {
        self.allocated.fetch_add(run.map_or(0, |r| r.len) << self.geo.frag_shift, Ordering::Relaxed);
        run
    }

    /// Whether what is moved leaves room for what will be written among it: where enough is free, and groups are so large that
    /// the room takes in most files. Elsewhere new files would lie in small gaps.
    pub fn leaves_room(&self) -> bool {
        self.geo.group_size() as u64 >= ROOM_GROUP_MIN
            && self.space.free_frags() >= self.geo.total_frags() / SCARCE_DIVISOR
    }

    /// The fragments of a group that are filled where room is left.
    pub fn filled_of_group(&self) -> u64 {
        self.group_frags() - self.group_frags() / ROOM_DIVISOR
    }

    /// As [`Placement::plan_together`]; room is left, of which none is used.
    ///
    /// # Errors
    /// Those of reading bitmaps.
    pub fn plan_with_room(&self, near: BlockAddr, frags: u64, least: u64) -> Result<Option<BatchCursor>> {
        let with_room = (frags * self.group_frags()).div_ceil(self.filled_of_group());
        Ok(self.plan_together(near, with_room, least)?.map(|plan| plan.leaving_room(&self.geo)))
    }

    /// Plans places for files that are moved together, `frags` fragments in all, near a block: in free runs of at least `least`
    /// fragments; where that is no more than a long run, as a batch, in long free runs or in those that cost least. `None` if
    /// there are none, or virgin allocation groups have longer runs.
    ///
    /// # Errors
    /// Those of reading bitmaps.
    pub fn plan_together(&self, near: BlockAddr, frags: u64, least: u64) -> Result<Option<BatchCursor>> {
        if least > LONG_RUN_GROUPS * self.group_frags() {
            return BatchCursor::plan_in_long_runs(&self.space, &self.geo, near, frags, least);
        }
        BatchCursor::plan(&self.space, &self.geo, near, frags, LONG_RUN_GROUPS)
    }

    /// Allocates the next file of such a plan, in one run. `unit`: so many fragments, from this file on, are to lie in one group, if they
    /// may and hardly any space is left out for that. Returns the rest of the plan, if there is more of it.
    ///
    /// # Errors
    /// Those of reading bitmaps.
    pub fn allocate_planned(
        &self,
        plan: BatchCursor,
        frags: u64,
        unit: u64,
    ) -> Result<(Option<BatchCursor>, Option<Run>)> {
        plan.allocate_in_unit(&self.space, frags, (unit > 0).then(|| (self.group_frags(), unit)))
    }

    /// Goal for a new inode chunk of a directory (`--no-embed`).
    pub fn inode_goal(&self, dir: Ino) -> BlockAddr {
        self.goal(&self.table.lock(), dir)
    }

    /// A directory with this many bytes has groups of its own.
    pub(super) fn own_group_min(&self) -> u64 {
        self.geo.group_size() as u64 / 2
    }

    /// The directory whose groups a directory uses. `has_own` says which have groups of their own.
    pub(super) fn group_dir(&self, t: &Table, dir: Ino, has_own: impl Fn(&DirPlacement) -> bool) -> Ino {
        if self.subtrees { t.group_dir(dir, has_own) } else { dir }
    }

    /// Where the search for a directory's space begins ([`Placement::goal`]).
    pub(crate) fn goal_of(&self, dir: Ino) -> BlockAddr {
        self.goal(&self.table.lock(), dir)
    }

    /// Where the search for a directory's space begins: its open group, the nearest one above it, or the start of the
    /// data in allocation group 0.
    pub(super) fn goal(&self, t: &Table, dir: Ino) -> BlockAddr {
        t.any_group_above(dir).unwrap_or_else(|| self.geo.fixed_blocks_of_ag0())
    }

    /// Fragments of a group.
    pub(super) fn group_frags(&self) -> u64 {
        self.geo.frag_of_block(self.geo.group_blocks())
    }

    /// The fragments of `groups` groups from `group` on.
    pub(super) fn window(&self, group: BlockAddr, groups: u64) -> Range<FragAddr> {
        let end = (group + groups * self.geo.group_blocks()).min(self.geo.total_blocks);
        self.geo.frag_of_block(group)..self.geo.frag_of_block(end)
    }
}
