//! Placement of small files.
//!
//! A grouped file is offered to a list of policies, best first ([`Placement::allocate_grouped`]). A file that is
//! allocated alone (isolated) costs one request wherever it goes, so it fills gaps; files of one batch go where there
//! is room for all of them.

use super::batch::{BEST_RUN_GROUPS, BatchCursor};
use super::policy::{EMPTY_DIVISOR, Placement, SCARCE_DIVISOR};
use super::table::Table;
use crate::cache::{BufRef, Cache};
use crate::colocation;
use crate::error::Result;
use crate::format::{BlockAddr, Ino, Run};

/// Most adjacent free groups that are looked for at once.
const BATCH_GROUPS_MAX: u64 = 16;

/// Where less than one in so many parts of the space is free, few groups are wholly free.
const FEW_DIVISOR: u64 = 2 * SCARCE_DIVISOR;

/// A small file to be placed.
struct SmallFile {
    dir: Ino,
    /// Length in fragments.
    frags: u64,
    /// Fragments that the writeback under way will allocate for the directory after this file.
    to_follow: u64,
    /// The directory whose groups are used.
    group_dir: Ino,
    /// The open group, 0 for none.
    group: BlockAddr,
    /// Where a search begins without an open group.
    goal: BlockAddr,
}

impl SmallFile {
    fn isolated(&self) -> bool {
        self.to_follow == 0
    }

    /// Fragments of the file and of what follows it.
    fn with_batch(&self) -> u64 {
        self.frags + self.to_follow
    }
}

/// Allocates a run for a file if it can; otherwise the next policy is asked.
type Policy = fn(&Placement, &mut Table, &SmallFile) -> Result<Option<Run>>;

impl Placement {
    /// Allocates `frags` fragments for a small file of directory `dir`, or other unit. Returns less where free space is scattered, and
    /// `None` where there is none.
    ///
    /// If a cache is given, blocks that were wholly free are installed in it as zeros and pushed to `fresh`, so that
    /// nobody reads them. The caller changes them through the log at once.
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
        let file = self.describe(&mut t, dir, frags);
        if let Some(run) = self.allocate_grouped(&mut t, &file)? {
            self.install_fresh(run, cache, fresh);
            return Ok(self.counted(Some(run)));
        }
        drop(t);
        // The nearest free run that takes all of the file, else the largest piece there is.
        let near = if file.group != 0 { file.group } else { file.goal };
        Ok(self.counted(self.space.alloc_near(self.geo.frag_of_block(near), frags, 1)?))
    }

    /// Counts a new file of a directory, and finds its open group.
    fn describe(&self, t: &mut Table, dir: Ino, frags: u64) -> SmallFile {
        let bytes = frags << self.geo.frag_shift;
        let d = t.dirs.entry(dir).or_default();
        d.decayed = true;
        if !colocation::is_directory(dir) {
            let above = d.parent;
            t.dirs.entry(above).or_default().decayed = true;
        }
        let d = t.dirs.entry(dir).or_default();
        d.data_bytes += bytes;
        d.batch_bytes = d.batch_bytes.saturating_sub(bytes);
        let to_follow = self.geo.frags_for(d.batch_bytes);
        let limit = self.own_group_min();
        let group_dir = self.group_dir(t, dir, |d| d.data_bytes + d.batch_bytes >= limit);
        let goal = self.goal(t, dir);
        let mut group = t.dirs.get(&group_dir).map_or(0, |d| d.data_group);
        if group == 0 && self.subtrees {
            // Files of one batch are read together: the first ones go where the last ones of the directory before went.
            group = t.batch.last_group.or_else(|| t.open_group_above(group_dir)).unwrap_or(0);
        }
        SmallFile { dir, frags, to_follow, group_dir, group, goal }
    }

    fn allocate_grouped(&self, t: &mut Table, file: &SmallFile) -> Result<Option<Run>> {
        const POLICIES: [Policy; 9] = [
            Placement::in_gap,
            Placement::in_batch,
            Placement::in_open_group,
            Placement::behind_the_last,
            Placement::in_earlier_group,
            Placement::in_best_fit,
            Placement::in_fullest_group,
            Placement::in_free_groups,
            Placement::in_emptiest_group,
        ];
        for policy in POLICIES {
            if let Some(run) = policy(self, t, file)? {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    /// A gap where the device below has hardly any space elsewhere.
    fn in_gap(&self, _t: &mut Table, file: &SmallFile) -> Result<Option<Run>> {
        Ok(self.space.alloc_in_gap(file.frags))
    }

    /// Batch allocation: the next place in the long free runs, if the file is part of a large batch.
    fn in_batch(&self, t: &mut Table, file: &SmallFile) -> Result<Option<Run>> {
        if !t.dirs.get(&file.dir).is_some_and(|d| d.batched) {
            return Ok(None);
        }
        let left = t.batch.frags;
        t.batch.frags = left.saturating_sub(file.frags);
        let cursor = match t.batch.cursor.take() {
            Some(cursor) => Some(cursor),
            None => {
                let near = if file.group != 0 { file.group } else { file.goal };
                BatchCursor::plan(&self.space, &self.geo, near, left.max(file.frags), BEST_RUN_GROUPS)?
            }
        };
        let Some(cursor) = cursor else { return Ok(None) };
        let (cursor, run) = cursor.allocate(&self.space, file.frags)?;
        t.batch.cursor = cursor;
        if let Some(run) = run {
            t.open(file.group_dir, self.group_of(run));
        }
        Ok(run)
    }

    fn in_open_group(&self, t: &mut Table, file: &SmallFile) -> Result<Option<Run>> {
        if file.group == 0 { Ok(None) } else { self.allocate_in_group(t, file, file.group) }
    }

    /// Behind the last file of the writeback, if the open group has no room and the next one is free: what is written together
    /// needs no further request, while a gap of its length elsewhere does. Not where hardly any group is wholly free: they are left to
    /// those who need all of one.
    fn behind_the_last(&self, t: &mut Table, file: &SmallFile) -> Result<Option<Run>> {
        let next = self.next_group(file);
        let few_are_free = self.space.free_frags() < self.geo.total_frags() / FEW_DIVISOR;
        let goes_on = t.batch.announced && t.batch.last_group == Some(file.group);
        if !goes_on || few_are_free || next >= self.geo.total_blocks {
            return Ok(None);
        }
        // Damaged allocation groups are not used.
        if self.space.free_in_group(next).unwrap_or(0) < self.group_frags() {
            return Ok(None);
        }
        // A file may lie across the border, because both groups are read anyway.
        let run = self.space.alloc_small_in(self.window(file.group, 2), file.frags)?;
        if run.is_some() {
            t.open(file.group_dir, next);
        }
        Ok(run)
    }

    /// A place in an earlier group of the directory from which files were removed: its free space is read with the
    /// group anyway. An isolated file goes into the fullest such group, because the emptier ones may become wholly
    /// free. If more files follow, the group must have room for them all, or at least as much as groups have on
    /// average.
    fn in_earlier_group(&self, t: &mut Table, file: &SmallFile) -> Result<Option<Run>> {
        let Some(d) = t.dirs.get(&file.group_dir) else { return Ok(None) };
        let average = self.space.free_frags() * self.group_frags() / self.geo.total_frags().max(1);
        let least = average.min(file.with_batch()).max(file.frags);
        let mut groups: Vec<(u64, BlockAddr)> = Vec::new();
        for group in d.groups.iter().filter(|g| **g != d.data_group) {
            // Damaged allocation groups are not used.
            let free = self.space.free_in_group(*group).unwrap_or(0);
            if free >= least {
                groups.push((free, *group));
            }
        }
        groups.sort_unstable();
        for (_, group) in groups {
            if let Some(run) = self.space.alloc_small_in(self.window(group, 1), file.frags)? {
                if !file.isolated() {
                    t.open(file.group_dir, group);
                }
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    /// Where space is scarce, the shortest free run with room for the file and what follows it. Each long run that is
    /// broken up leaves one less for batches and long files. Open groups of directories are left to directory blocks.
    fn in_best_fit(&self, t: &mut Table, file: &SmallFile) -> Result<Option<Run>> {
        let most = self.group_frags();
        if file.with_batch() > most || self.space.free_frags() >= self.geo.total_frags() / SCARCE_DIVISOR {
            return Ok(None);
        }
        let near = self.next_group(file);
        let for_dirs = |group| t.dir_groups.contains_key(&group);
        let run = self.space.alloc_best_fit(near, file.frags, file.with_batch()..most, for_dirs)?;
        if let Some(run) = run.filter(|_| !file.isolated()) {
            t.open(file.group_dir, self.group_of(run));
        }
        Ok(run)
    }

    /// For a tiny file without many to follow, the fullest group with some room: its free space is of least use for
    /// anything else, and the emptier groups are left to batches.
    fn in_fullest_group(&self, t: &mut Table, file: &SmallFile) -> Result<Option<Run>> {
        let tiny = self.group_frags() / EMPTY_DIVISOR;
        if file.with_batch() > tiny {
            return Ok(None);
        }
        match self.space.fullest_group(self.next_group(file), tiny)? {
            Some(group) => self.allocate_in_group(t, file, group),
            None => Ok(None),
        }
    }

    fn in_free_groups(&self, t: &mut Table, file: &SmallFile) -> Result<Option<Run>> {
        let want = file.with_batch().div_ceil(self.group_frags()).min(BATCH_GROUPS_MAX);
        let next = self.next_group(file);
        let Some(free) = self.space.find_free_groups(next, want)? else { return Ok(None) };
        // A file may lie across the border of the open group and the next one, because both are read anyway.
        let window = if file.group != 0 && free == next { self.window(file.group, 2) } else { self.window(free, 1) };
        let run = self.space.alloc_small_in(window, file.frags)?;
        if run.is_some() {
            t.open(file.group_dir, free);
        }
        Ok(run)
    }

    /// Where no group is wholly free, the one with the most free space: it takes many files that are read with one
    /// request, while the nearest free runs would take one file each.
    fn in_emptiest_group(&self, t: &mut Table, file: &SmallFile) -> Result<Option<Run>> {
        let emptiest = self.space.emptiest_group(self.next_group(file))?;
        match emptiest.filter(|(_, free)| *free >= self.group_frags() / EMPTY_DIVISOR) {
            Some((group, _)) => self.allocate_in_group(t, file, group),
            None => Ok(None),
        }
    }

    /// Allocates in a group, and makes it the open one.
    fn allocate_in_group(&self, t: &mut Table, file: &SmallFile, group: BlockAddr) -> Result<Option<Run>> {
        let run = self.space.alloc_small_in(self.window(group, 1), file.frags)?;
        if run.is_some() {
            t.open(file.group_dir, group);
        }
        Ok(run)
    }

    /// The group after the open one, or the goal.
    fn next_group(&self, file: &SmallFile) -> BlockAddr {
        if file.group != 0 { file.group + self.geo.group_blocks() } else { file.goal }
    }

    fn group_of(&self, run: Run) -> BlockAddr {
        self.geo.group_of(self.geo.block_of_frag(run.start))
    }

    /// Installs the blocks of a new run in the cache as zeros, as far as they belong to the run alone.
    fn install_fresh(&self, run: Run, cache: Option<&Cache>, fresh: &mut Vec<BufRef>) {
        let Some(cache) = cache else { return };
        let fpb = self.geo.frags_per_block();
        let mut frag = run.start.next_multiple_of(fpb);
        while frag < run.end() {
            // The rest of the last block may belong to other files, because groups are shared and a full device is
            // filled wherever there is a gap. Their bytes may not be checkpointed yet and must not become zeros.
            let install = || cache.install_new(self.geo.block_of_frag(frag));
            if let Ok(Some(buf)) = self.space.if_free(run.end().min(frag + fpb), frag + fpb, install) {
                fresh.push(buf);
            }
            frag += fpb;
        }
    }

    /// Conventional placement: the first free run from the start of the directory's allocation group on.
    fn allocate_first_fit(&self, dir: Ino, frags: u64) -> Result<Option<Run>> {
        let ag = self.geo.ag_of(self.inode_goal(dir));
        let mut goal = self.geo.frag_of_block(self.geo.ag_start(ag));
        let mut scatter = self.scatter.as_ref().map(|s| s.lock());
        if let Some(scatter) = &mut scatter {
            goal = scatter.goal(dir, goal, self.geo.ag_len(ag) * self.geo.frags_per_block());
        }
        let run = self.space.alloc_near(goal, frags, 1)?;
        if let (Some(scatter), Some(run)) = (&mut scatter, run) {
            scatter.allocated(dir, run.end());
        }
        Ok(run)
    }
}
