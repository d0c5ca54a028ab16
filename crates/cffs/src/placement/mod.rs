//! Where things go.
//!
//! **Co-locating** (C-FFS 1997, section 3.2; keyed by directory as in UNIX C-FFS 1998, section 2.3): small files fill the
//! open group of their *placement directory*, in the order in which writeback hands them over, which is the order of the name space.
//! A directory is its own placement directory once its files have filled half a group; before that it shares its parent's, so that a
//! tree of many small directories still fills groups. Directory blocks have groups of their own beside the data, shared
//! in the same way, so that a walk over the tree reads names and inodes alone.
//!
//! **Conventional** (`--no-group`): the first free place from the start of the directory's allocation group on, as FFS.
//!
//! Files larger than a group get block-aligned extents away from the groups in either case (FFS clustering, 1995).
//!
//! All of this is a hint: nothing else in the file system depends on where something is.

mod dir_allocator;
#[cfg(test)]
mod tests;

pub use dir_allocator::DirAllocator;

use crate::cache::{AddrMap, BufRef, Cache};
use crate::error::Result;
use crate::format::Run;
use crate::format::extent::EXTENT_LEN_MAX;
use crate::format::{BlockAddr, FragAddr, Ino, Inode, LiveGeometry, ROOT_INO, Superblock};
use crate::reservation::Reservation;
use crate::space::Space;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Bytes from which on a file takes the longest free runs: it is not one of many of its length that all find a tight gap.
pub const STREAM_MIN: u64 = 8 << 20;
/// Directories whose placement is tracked_groups; beyond that the oldest knowledge is dropped.
const TRACKED_DIRS_MAX: usize = 65_536;
/// Steps up the tree that the search for the directory whose groups are used takes.
const ASCENT_MAX: usize = 64;

/// A partly used group is opened if it has at least one in so many parts free.
const EMPTY_SHARE: u64 = 8;
/// Space is scarce where less than one in so many parts of it is free: long free runs are then worth more than that files of one
/// directory that come one at a time lie together.
const SCARCE_SHARE: u64 = 4;
/// For what comes together so many free groups one after the other are looked for at most.
const BATCH_GROUPS_MAX: u64 = 16;
/// Groups of a directory that are tracked_groups, to be filled again when files in them have gone.
const GROUPS_MAX: usize = 32;
/// The same of all directories together, 8 bytes each; beyond that all are forgotten but the open ones.
const TRACKED_GROUPS_MAX: usize = 131_072;
/// Free runs of so many groups are as good as longer ones: a transfer is no longer.
const LONG_RUN_GROUPS: u64 = 4;
/// A new position costs as much as one in so many parts of a group: at the knee a request far away costs a whole one, and a
/// writeback goes through the device in order. What a read takes along between two pieces of a directory is as long.
const SEEK_SHARE: u64 = 2;
/// Free runs that are looked at for one file.
const RUN_TRIES: usize = 16;

/// What is known of a directory's placement.
#[derive(Clone, Default)]
struct DirPlacement {
    parent: Ino,
    /// Open group for file data, 0 for none.
    data_group: BlockAddr,
    /// Open group for directory blocks.
    dir_group: BlockAddr,
    /// The groups for file data that were open last, the newest at the end.
    groups: Vec<BlockAddr>,
    /// Bytes of small files placed for this directory.
    data_bytes: u64,
    /// Bytes that the writeback under way has yet to place for it.
    batch_bytes: u64,
    /// Its part of the writeback under way goes into long free runs, with that of others.
    batched: bool,
    /// Bytes of directory blocks placed for it.
    dir_bytes: u64,
}

/// The way of a writeback of many small files through the long free runs.
struct BatchCursor {
    /// The runs it comes to next, with what is left of them.
    runs: VecDeque<Run>,
    /// Behind those it takes all runs of at least so many fragments, from a place on; `None` where the runs were chosen.
    then: Option<(FragAddr, u64)>,
}

impl BatchCursor {
    fn has_more(&self) -> bool {
        !self.runs.is_empty() || self.then.is_some()
    }
}

#[derive(Default)]
struct Table {
    dirs: AddrMap<Ino, DirPlacement>,
    /// Where the next large extent is looked for, by allocation group.
    large: AddrMap<u64, FragAddr>,
    /// The open group in which the writeback under way placed its last small file.
    last: Option<BlockAddr>,
    /// Fragments that the writeback under way has yet to place in long free runs, and how far it is.
    batch_frags: u64,
    batch_cursor: Option<BatchCursor>,
    /// Groups that are tracked_groups for all directories.
    tracked_groups: usize,
    /// Open groups for directory blocks, and whose they are.
    dir_groups: AddrMap<BlockAddr, Ino>,
}

impl Table {
    /// A group is open for the data of a directory.
    fn open(&mut self, group_dir: Ino, group: BlockAddr) {
        if self.tracked_groups >= TRACKED_GROUPS_MAX {
            self.dirs.values_mut().for_each(|o| o.groups = Vec::new());
            self.tracked_groups = 0;
        }
        let o = self.dirs.entry(group_dir).or_default();
        if o.data_group != group {
            let before = o.groups.len();
            o.groups.retain(|g| *g != group);
            if o.groups.len() >= GROUPS_MAX {
                o.groups.remove(0);
            }
            o.groups.push(group);
            self.tracked_groups = (self.tracked_groups + o.groups.len()).saturating_sub(before);
        }
        o.data_group = group;
        self.last = Some(group);
    }

    /// A group is open for the blocks of a directory, and of those that share it.
    fn open_for_dirs(&mut self, group_dir: Ino, group: BlockAddr) {
        let before = std::mem::replace(&mut self.dirs.entry(group_dir).or_default().dir_group, group);
        self.close_for_dirs(group_dir, before);
        self.dir_groups.insert(group, group_dir);
    }

    fn close_for_dirs(&mut self, group_dir: Ino, group: BlockAddr) {
        if self.dir_groups.get(&group) == Some(&group_dir) {
            self.dir_groups.remove(&group);
        }
    }

    /// Something is forgotten of all directories but those that `kept` wants.
    fn retain(&mut self, kept: impl Fn(Ino, &DirPlacement) -> bool) {
        self.dirs.retain(|ino, o| kept(*ino, o));
        self.tracked_groups = self.dirs.values().map(|o| o.groups.len()).sum();
        let dirs = &self.dirs;
        self.dir_groups.retain(|_, group_dir| dirs.contains_key(group_dir));
    }
}

/// Placement of one mounted file system.
pub struct Placement {
    space: Arc<Space>,
    geo: Arc<LiveGeometry>,
    grouping: bool,
    dirs_with_data: bool,
    subtrees: bool,
    table: Mutex<Table>,
    scatter: Option<Mutex<Scatter>>,
}

/// What the conventional placement of the 1997 measurements remembers.
struct Scatter {
    random: u64,
    /// Where the newest file of each directory ends, and whether the next one goes there.
    last: HashMap<Ino, (FragAddr, bool)>,
}

impl Scatter {
    /// Where to look for the next file of a directory: from `start`, or within `frags` from there.
    fn start(&mut self, dir: Ino, start: FragAddr, frags: u64) -> FragAddr {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        match self.last.get(&dir) {
            Some((end, true)) => *end,
            _ => start + self.random % frags.max(1),
        }
    }

    fn placed(&mut self, dir: Ino, end: FragAddr) {
        let (last, beside) = self.last.entry(dir).or_default();
        (*last, *beside) = (end, !*beside);
    }
}

impl Placement {
    /// The policy that the superblock asks for; `scatter` and `subtrees` as in [`MountOptions`](crate::fs::api::MountOptions).
    pub fn new(space: Arc<Space>, sb: &Superblock, scatter: Option<u64>, subtrees: bool) -> Placement {
        let geo = space.live_geometry();
        let dirs_with_data = sb.compat & crate::format::superblock::COMPAT_DIRS_WITH_DATA != 0;
        let scatter = scatter.map(|seed| Mutex::new(Scatter { random: seed | 1, last: HashMap::new() }));
        Placement {
            space,
            geo,
            grouping: sb.groups_files(),
            dirs_with_data,
            subtrees,
            table: Mutex::default(),
            scatter,
        }
    }

    /// Files up to this size are grouped.
    pub fn small_max(&self) -> u64 {
        self.geo.group_size() as u64
    }

    /// A directory is known: its parent, and the group its files were last placed in.
    pub fn track(&self, dir: &Inode) {
        let mut t = self.table.lock();
        if t.dirs.len() >= TRACKED_DIRS_MAX {
            t.retain(|ino, o| ino == ROOT_INO || (o.data_bytes > 0 && o.parent != 0));
            if t.dirs.len() >= TRACKED_DIRS_MAX {
                t.retain(|_, _| false);
            }
        }
        let valid = dir.hint.is_multiple_of(self.geo.group_blocks()) && dir.hint < self.geo.total_blocks;
        let o = t.dirs.entry(dir.ino).or_default();
        o.parent = dir.parent;
        if o.data_group == 0 && valid && dir.hint != 0 {
            o.data_group = dir.hint;
            let before = std::mem::replace(&mut o.groups, vec![dir.hint]).len();
            // It had a group of its own, so it had own_group_min its parent's.
            o.data_bytes = o.data_bytes.max(self.own_group_min());
            t.tracked_groups = (t.tracked_groups + 1).saturating_sub(before);
        }
    }

    /// A directory is gone.
    pub fn untrack(&self, dir: Ino) {
        let mut t = self.table.lock();
        if let Some(o) = t.dirs.remove(&dir) {
            t.tracked_groups = t.tracked_groups.saturating_sub(o.groups.len());
            t.close_for_dirs(dir, o.dir_group);
        }
    }

    /// The group to remember in a directory's inode.
    pub fn hint(&self, dir: Ino) -> BlockAddr {
        self.table.lock().dirs.get(&dir).map_or(0, |o| o.data_group)
    }

    /// A writeback begins that brings so many bytes of small files for each of these directories. One that gets enough for
    /// groups of its own has them from its first file on, and begins where the directory before it ends. What is more than
    /// some groups, of a directory or of several that share groups, goes into long free runs.
    pub fn begin_batch(&self, coming: &AddrMap<Ino, u64>) {
        let mut t = self.table.lock();
        t.last = None;
        t.batch_cursor = None;
        t.batch_frags = 0;
        let limit = self.own_group_min();
        let mut sizes: AddrMap<Ino, u64> = AddrMap::default();
        for (dir, bytes) in coming {
            *sizes.entry(self.group_dir(&t, *dir, |o| o.data_bytes >= limit)).or_default() += bytes;
        }
        for (dir, bytes) in coming {
            let group_dir = self.group_dir(&t, *dir, |o| o.data_bytes >= limit);
            let batched = self.grouping && sizes[&group_dir] > LONG_RUN_GROUPS * self.geo.group_size() as u64;
            if let Some(o) = t.dirs.get_mut(dir) {
                o.batch_bytes = *bytes;
                o.batched = batched;
                t.batch_frags += if batched { self.geo.frags_for(*bytes) } else { 0 };
            }
        }
    }

    /// That writeback is over.
    pub fn end_batch(&self, coming: &AddrMap<Ino, u64>) {
        let mut t = self.table.lock();
        t.last = None;
        t.batch_cursor = None;
        t.batch_frags = 0;
        for dir in coming.keys() {
            if let Some(o) = t.dirs.get_mut(dir) {
                o.batch_bytes = 0;
                o.batched = false;
            }
        }
    }

    fn own_group_min(&self) -> u64 {
        self.geo.group_size() as u64 / 2
    }

    fn group_dir(&self, t: &Table, dir: Ino, own: impl Fn(&DirPlacement) -> bool) -> Ino {
        if !self.subtrees {
            return dir;
        }
        let mut at = dir;
        for _ in 0..ASCENT_MAX {
            match t.dirs.get(&at) {
                Some(o) if at == ROOT_INO || own(o) || o.parent == 0 || o.parent == at => return at,
                Some(o) => at = o.parent,
                None => return ROOT_INO,
            }
        }
        ROOT_INO
    }

    /// Places `frags` fragments of a small file of directory `dir`. Less than asked for may be returned when free space
    /// is scattered; `None` when there is none.
    ///
    /// With a cache given, blocks that were wholly free before are put into it as zeros (and into `fresh`), so that nobody
    /// need read them: they are to be changed through the log at once.
    pub fn allocate_small(
        &self,
        dir: Ino,
        frags: u64,
        cache: Option<&Cache>,
        fresh: &mut Vec<BufRef>,
    ) -> Result<Option<Run>> {
        if !self.grouping {
            return self.allocate_first_fit(dir, frags);
        }
        let mut t = self.table.lock();
        let bytes = frags << self.geo.frag_shift;
        let o = t.dirs.entry(dir).or_default();
        o.data_bytes += bytes;
        o.batch_bytes = o.batch_bytes.saturating_sub(bytes);
        let limit = self.own_group_min();
        let group_dir = self.group_dir(&t, dir, |o| o.data_bytes + o.batch_bytes >= limit);
        let goal = self.goal(&t, dir);
        let mut group = t.dirs.get(&group_dir).map_or(0, |o| o.data_group);
        if group == 0 && self.subtrees {
            // What comes together is read together: the first files go where the last ones of the directory before went.
            group = t.last.or_else(|| self.open_group_above(&t, group_dir)).unwrap_or(0);
        }
        let gb = self.geo.group_blocks();
        if t.dirs.get(&dir).is_some_and(|o| o.batched)
            && let Some(run) = self.allocate_in_batch(&mut t, if group != 0 { group } else { goal }, frags)?
        {
            t.open(group_dir, self.geo.group_of(self.geo.block_of_frag(run.start)));
            return Ok(Some(self.install_fresh(run, cache, fresh)));
        }
        if group != 0
            && let Some(run) = self.space.alloc_in(self.window(group, 1), frags)?
        {
            t.open(group_dir, group);
            return Ok(Some(self.install_fresh(run, cache, fresh)));
        }
        let batch_bytes = t.dirs.get(&dir).map_or(0, |o| self.geo.frags_for(o.batch_bytes));
        if let Some((again, run)) = self.refill(&t, group_dir, frags, batch_bytes)? {
            if batch_bytes > 0 {
                t.open(group_dir, again);
            }
            return Ok(Some(self.install_fresh(run, cache, fresh)));
        }
        let near = if group != 0 { group + gb } else { goal };
        let group_frags = self.geo.frag_of_block(gb);
        if frags + batch_bytes <= group_frags
            && let Some(run) = self.best_fit_when_scarce(&t, near, frags, frags + batch_bytes)?
        {
            if batch_bytes > 0 {
                t.open(group_dir, self.geo.group_of(self.geo.block_of_frag(run.start)));
            }
            return Ok(Some(self.install_fresh(run, cache, fresh)));
        }
        // A tiny file that comes alone needs no group of its own. The fullest one with some room is opened: what is free in
        // it is of least use for anything else, and the emptier ones are there for what comes together.
        if frags + batch_bytes <= group_frags / EMPTY_SHARE
            && let Some(next) = self.space.fullest_group(near, group_frags / EMPTY_SHARE)?
            && let Some(run) = self.space.alloc_in(self.window(next, 1), frags)?
        {
            t.open(group_dir, next);
            return Ok(Some(self.install_fresh(run, cache, fresh)));
        }
        let want = (frags + batch_bytes).div_ceil(group_frags).min(BATCH_GROUPS_MAX);
        if let Some(next) = self.space.find_free_groups(near, want)? {
            // Next to the old one, a file may lie across the border: both groups are read anyway.
            let joined = group != 0 && next == group + gb;
            let found = match joined {
                true => self.space.alloc_in(self.window(group, 2), frags)?,
                false => self.space.alloc_in(self.window(next, 1), frags)?,
            };
            if let Some(run) = found {
                t.open(group_dir, next);
                return Ok(Some(self.install_fresh(run, cache, fresh)));
            }
        }
        // No free group is left. What is read with one request need not be free from end to end: the group with the most
        // space takes many files, where the nearest holes would take a file each.
        if let Some((next, free)) = self.space.emptiest_group(near)?
            && free >= group_frags / EMPTY_SHARE
            && let Some(run) = self.space.alloc_in(self.window(next, 1), frags)?
        {
            t.open(group_dir, next);
            return Ok(Some(self.install_fresh(run, cache, fresh)));
        }
        drop(t);
        // The nearest hole that takes all of it, else the largest piece there is.
        let at = self.geo.frag_of_block(if group != 0 { group } else { goal });
        self.space.alloc_near(at, frags, 1)
    }

    /// The next place on the way of a writeback that batched, for a file of it. `None` where there are none.
    fn allocate_in_batch(&self, t: &mut Table, near: BlockAddr, frags: u64) -> Result<Option<Run>> {
        let batch_frags = t.batch_frags;
        t.batch_frags = batch_frags.saturating_sub(frags);
        let mut batch_cursor = match t.batch_cursor.take() {
            Some(batch_cursor) => batch_cursor,
            None => match self.start_batch(near, batch_frags.max(frags))? {
                Some(batch_cursor) => batch_cursor,
                None => return Ok(None),
            },
        };
        for _ in 0..RUN_TRIES {
            if let Some((from, least)) = batch_cursor.then
                && batch_cursor.runs.front().is_none_or(|run| run.len < frags)
            {
                let Some(next) = self.space.next_free_run(from, least.max(frags))? else { return Ok(None) };
                batch_cursor = BatchCursor { runs: VecDeque::from([next]), then: Some((next.end(), least)) };
            }
            // In their order: what follows each other in a directory is to do so on the device.
            let next = batch_cursor.runs.len().min(RUN_TRIES);
            let Some(at) = batch_cursor.runs.iter().take(next).position(|run| frags <= run.len) else {
                batch_cursor.runs.drain(..next);
                t.batch_cursor = Some(batch_cursor).filter(BatchCursor::has_more);
                return Ok(None);
            };
            batch_cursor.runs.drain(..at);
            let Run { start, len } = batch_cursor.runs[0];
            if let Some(run) = self.space.alloc_in(start..start + len, frags)? {
                batch_cursor.runs[0] = Run { start: run.end(), len: start + len - run.end() };
                if batch_cursor.runs[0].len == 0 {
                    batch_cursor.runs.pop_front();
                }
                t.batch_cursor = Some(batch_cursor).filter(BatchCursor::has_more);
                return Ok(Some(run));
            }
            // Others took what was there.
            batch_cursor.runs.pop_front();
        }
        // The next one looks anew.
        Ok(None)
    }

    /// The way through the free space near a place for so many fragments: long runs in their order, or where there are none such
    /// the runs that can be had at the least cost.
    fn start_batch(&self, near: BlockAddr, frags: u64) -> Result<Option<BatchCursor>> {
        let group = self.geo.frag_of_block(self.geo.group_blocks());
        let enough = LONG_RUN_GROUPS * group;
        let Some(least) = self.space.min_run_length(near, frags, enough)? else { return Ok(None) };
        if least >= enough.min(frags) {
            let then = Some((self.geo.frag_of_block(near), least));
            return Ok(Some(BatchCursor { runs: VecDeque::new(), then }));
        }
        let runs: VecDeque<Run> = self.space.cheapest_runs(near, frags, group / SEEK_SHARE)?.into();
        Ok(Some(BatchCursor { runs, then: None }).filter(BatchCursor::has_more))
    }

    /// The open group of the nearest directory above one.
    fn open_group_above(&self, t: &Table, dir: Ino) -> Option<BlockAddr> {
        let mut at = dir;
        for _ in 0..ASCENT_MAX {
            let o = t.dirs.get(&at)?;
            if o.data_group != 0 {
                return Some(o.data_group);
            }
            if o.parent == at || o.parent == 0 {
                return None;
            }
            at = o.parent;
        }
        None
    }

    /// A place in a group that a directory has filled before, if files in it have gone since: what is there is read with
    /// the file anyway. A file that comes alone costs one request wherever it goes, so it goes into the fullest such group
    /// that has a place for it: the emptier ones may become free as a whole. If more are `batch_bytes`, it takes a group with
    /// a place for them all, or one as empty as groups are on average, which is as good as others.
    fn refill(&self, t: &Table, group_dir: Ino, frags: u64, batch_bytes: u64) -> Result<Option<(BlockAddr, Run)>> {
        let Some(o) = t.dirs.get(&group_dir) else { return Ok(None) };
        let group_frags = self.geo.frag_of_block(self.geo.group_blocks());
        let average = self.space.free_frags() * group_frags / self.geo.total_frags().max(1);
        let least = average.min(frags + batch_bytes).max(frags);
        let mut again: Vec<(u64, BlockAddr)> = Vec::new();
        for group in o.groups.iter().filter(|g| **g != o.data_group) {
            // A damaged allocation group has nothing to offer.
            let free = self.space.free_in_group(*group).unwrap_or(0);
            if free >= least {
                again.push((free, *group));
            }
        }
        again.sort_unstable();
        for (_, group) in again {
            if let Some(run) = self.space.alloc_in(self.window(group, 1), frags)? {
                return Ok(Some((group, run)));
            }
        }
        Ok(None)
    }

    /// Where space is scarce, a place in the shortest free run with `room`: what comes alone costs one request wherever it goes,
    /// and the long runs, of which fewer are left each time that one is begun, are there for what comes together and for long
    /// files. The room in the open groups of directories is left to their blocks.
    fn best_fit_when_scarce(&self, t: &Table, near: BlockAddr, frags: u64, room: u64) -> Result<Option<Run>> {
        if self.space.free_frags() >= self.geo.total_frags() / SCARCE_SHARE {
            return Ok(None);
        }
        let most = self.geo.frag_of_block(self.geo.group_blocks());
        self.space.alloc_best_fit(near, frags, room..most, |group| t.dir_groups.contains_key(&group))
    }

    fn window(&self, group: BlockAddr, groups: u64) -> std::ops::Range<FragAddr> {
        let end = (group + groups * self.geo.group_blocks()).min(self.geo.total_blocks);
        self.geo.frag_of_block(group)..self.geo.frag_of_block(end)
    }

    /// Makes blocks of a run that was taken, and in which nobody else has anything, in the cache.
    fn install_fresh(&self, run: Run, cache: Option<&Cache>, fresh: &mut Vec<BufRef>) -> Run {
        let fpb = self.geo.frags_per_block();
        let mut frag = run.start.next_multiple_of(fpb);
        while let Some(cache) = cache.filter(|_| frag < run.end()) {
            // Of the last block others may have the rest: groups are shared, and a full disk is filled wherever there is
            // a hole. Their bytes, perhaps not home yet, must not become zeros.
            let install = || cache.install_new(self.geo.block_of_frag(frag));
            if let Ok(Some(buf)) = self.space.if_free(run.end().min(frag + fpb), frag + fpb, install) {
                fresh.push(buf);
            }
            frag += fpb;
        }
        run
    }

    /// Where a directory's things are looked for first: its own group, or the nearest one above it, or the start of the
    /// data of allocation group 0.
    fn goal(&self, t: &Table, dir: Ino) -> BlockAddr {
        let mut at = dir;
        for _ in 0..ASCENT_MAX {
            let Some(o) = t.dirs.get(&at) else { break };
            if let Some(group) = [o.data_group, o.dir_group].into_iter().find(|g| *g != 0) {
                return group;
            }
            if o.parent == at || o.parent == 0 {
                break;
            }
            at = o.parent;
        }
        self.geo.fixed_blocks_of_ag0()
    }

    fn allocate_first_fit(&self, dir: Ino, frags: u64) -> Result<Option<Run>> {
        let ag = self.geo.ag_of(self.goal(&self.table.lock(), dir));
        let mut start = self.geo.frag_of_block(self.geo.ag_start(ag));
        let mut scatter = self.scatter.as_ref().map(|s| s.lock());
        if let Some(scatter) = &mut scatter {
            start = scatter.start(dir, start, self.geo.ag_len(ag) * self.geo.frags_per_block());
        }
        let run = self.space.alloc_near(start, frags, 1)?;
        if let (Some(scatter), Some(run)) = (&mut scatter, run) {
            scatter.placed(dir, run.end());
        }
        Ok(run)
    }

    /// Places a part of a large file: in whole blocks, behind `after` if that is free, else where the large files of the
    /// directory's allocation group are.
    pub fn allocate_large(&self, dir: Ino, after: Option<FragAddr>, frags: u64) -> Result<Option<Run>> {
        let fpb = self.geo.frags_per_block();
        let mut t = self.table.lock();
        let ag = self.geo.ag_of(self.goal(&t, dir));
        let middle = self.geo.frag_of_block(self.geo.ag_start(ag) + self.geo.ag_len(ag) / 2);
        let goal = after.or_else(|| t.large.get(&ag).copied()).unwrap_or(middle);
        let whole = (frags / fpb).min(EXTENT_LEN_MAX / fpb);
        if after.is_none()
            && let Some(run) = self.space.alloc_blocks_best_fit(self.geo.block_of_frag(goal), whole)?
        {
            return Ok(Some(run));
        }
        let run = if whole > 0 {
            self.space.alloc_blocks_near(self.geo.block_of_frag(goal + fpb - 1), whole, 1)?
        } else {
            None
        };
        let run = match run {
            Some(run) => Some(run),
            None => self.space.alloc_near(goal, frags.min(fpb), 1)?,
        };
        if let Some(run) = run {
            t.large.insert(ag, run.end());
        }
        Ok(run)
    }

    /// Places a part of a large file of which more is coming piece by piece, perhaps `ahead` fragments more: behind `after` as
    /// far as that is free; then, if the file is long ([`STREAM_MIN`]), in the longest free runs, as many as this part takes, in the
    /// order of the device; else where there is room for `ahead` more. That room is not taken: who else looks for a place begins
    /// behind it, and the next piece finds it as long as space lasts.
    pub fn allocate_stream(&self, dir: Ino, after: Option<FragAddr>, frags: u64, ahead: u64) -> Result<Option<Run>> {
        let fpb = self.geo.frags_per_block();
        if let Some(after) = after.filter(|a| a.is_multiple_of(fpb)) {
            if let Some(run) = self.space.alloc_from(after, frags)? {
                return Ok(Some(run));
            }
            let long = STREAM_MIN >> self.geo.frag_shift;
            let need = frags.max(long);
            if ahead >= long
                && let Some(least) = self.space.min_run_length(self.geo.block_of_frag(after), need, need)?
                && let Some(found) = self.space.next_free_run(after, least)?
                && let Some(run) = self.take_blocks(found, frags)?
            {
                let mut t = self.table.lock();
                let ag = self.geo.ag_of(self.goal(&t, dir));
                t.large.insert(ag, found.end().min(run.end() + ahead));
                return Ok(Some(run));
            }
        }
        let room = self.space.reservation(None, false);
        let ahead = if room.reserve(ahead, false).is_ok() { ahead } else { 0 };
        let placed = self.allocate_large(dir, after, frags + ahead)?;
        Ok(placed.map(|run| {
            let len = run.len.min(frags);
            if run.len > len {
                self.space.cancel(Run { start: run.start + len, len: run.len - len });
            }
            Run { len, ..run }
        }))
    }

    /// The first whole blocks of a free run, at most so many fragments, if they are still to be had.
    fn take_blocks(&self, free: Run, frags: u64) -> Result<Option<Run>> {
        let fpb = self.geo.frags_per_block();
        let start = free.start.next_multiple_of(fpb);
        let len = free.end().saturating_sub(start).min(frags).min(EXTENT_LEN_MAX / fpb * fpb) / fpb * fpb;
        if len == 0 { Ok(None) } else { self.space.alloc_in(start..start + len, len) }
    }

    /// Where a new inode chunk of a directory goes (`--no-embed`).
    pub fn inode_goal(&self, dir: Ino) -> BlockAddr {
        let t = self.table.lock();
        self.goal(&t, dir)
    }
}

impl DirAllocator for Placement {
    fn allocate_dir_blocks(
        &self,
        reservation: &Reservation,
        dir: &Inode,
        goal: Option<BlockAddr>,
        want_blocks: u64,
        min: u64,
    ) -> Result<Option<Run>> {
        let mut t = self.table.lock();
        let near = goal.unwrap_or_else(|| self.goal(&t, dir.ino));
        if !self.grouping {
            return self.space.alloc_meta_near(reservation, near, want_blocks, min);
        }
        t.dirs.entry(dir.ino).or_default().parent = dir.parent;
        let with_data = self.dirs_with_data;
        let limit = self.own_group_min();
        let group_dir =
            self.group_dir(&t, dir.ino, |o| if with_data { o.data_bytes >= limit } else { o.dir_bytes >= limit });
        t.dirs.entry(dir.ino).or_default().dir_bytes += want_blocks << self.geo.block_shift;
        let group = t.dirs.get(&group_dir).map_or(0, |o| if with_data { o.data_group } else { o.dir_group });
        // A large directory grows in runs of its own size; groups are for the small ones.
        if want_blocks * 2 > self.geo.group_blocks() {
            return self.space.alloc_meta_near(reservation, near, want_blocks, min);
        }
        let in_window = |group| self.space.alloc_meta_in(reservation, self.window(group, 1), want_blocks);
        if group != 0
            && let Some(run) = in_window(group)?
        {
            return Ok(Some(run));
        }
        let gb = self.geo.group_blocks();
        let from = if group != 0 { group + gb } else { near };
        let group_frags = self.geo.frag_of_block(gb);
        let next = match self.space.find_free_group(from)? {
            Some(free) => Some(free),
            None => {
                let emptiest = self.space.emptiest_group(from)?;
                emptiest.filter(|(_, free)| *free >= group_frags / EMPTY_SHARE).map(|(group, _)| group)
            }
        };
        if let Some(next) = next
            && let Some(run) = in_window(next)?
        {
            if with_data {
                t.open(group_dir, next);
            } else {
                t.open_for_dirs(group_dir, next);
            }
            return Ok(Some(run));
        }
        drop(t);
        self.space.alloc_meta_near(reservation, near, want_blocks, min)
    }
}
