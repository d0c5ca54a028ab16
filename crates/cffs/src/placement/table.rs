//! The directories whose placement is in memory, and their open groups.

use super::batch::Batch;
use crate::addr_map::AddrMap;
use crate::colocation::{self, ColocationKey};
use crate::format::{BlockAddr, FragAddr, Ino, ROOT_INO};
use std::collections::BTreeSet;

/// Directories whose placement is tracked. Beyond that the older ones are dropped.
const TRACKED_DIRS_MAX: usize = 65_536;
/// Groups tracked for all directories together, 8 bytes each. Beyond that all are dropped but the open ones.
pub(super) const TRACKED_GROUPS_MAX: usize = 131_072;
/// Groups tracked for one directory, to be filled again when files in them are removed.
pub(super) const GROUPS_MAX: usize = 32;
/// Most directories that are visited on the way to the root.
const ASCENT_MAX: usize = 64;

/// Placement of one directory, or of files that something else has in common.
#[derive(Clone, Default)]
pub(super) struct DirPlacement {
    pub parent: Ino,
    /// Its inode was looked at.
    pub tracked: bool,
    /// Open group for file data, 0 for none.
    pub data_group: BlockAddr,
    /// Open group for directory blocks, 0 for none.
    pub dir_group: BlockAddr,
    /// The last groups for file data, the newest at the end.
    pub groups: Vec<BlockAddr>,
    /// Bytes of small files allocated for this directory.
    pub data_bytes: u64,
    /// Bytes that the writeback under way still has to allocate for it.
    pub batch_bytes: u64,
    /// Its part of the writeback under way goes into long free runs (batch allocation).
    pub batched: bool,
    /// Bytes of directory blocks allocated for it.
    pub dir_bytes: u64,
    /// It got new files or blocks since maintenance looked at it.
    pub decayed: bool,
    /// The key that it names for all that is below it.
    pub key: Option<Box<ColocationKey>>,
}

/// What placement keeps in memory.
#[derive(Default)]
pub(super) struct Table {
    /// Directories were dropped that maintenance has to look at.
    pub decayed_dropped: bool,
    pub dirs: AddrMap<Ino, DirPlacement>,
    /// Goal of the next large extent, by allocation group.
    pub large: AddrMap<u64, FragAddr>,
    /// The writeback under way.
    pub batch: Batch,
    /// Groups tracked for all directories.
    pub tracked_groups: usize,
    /// A directory has named a key.
    pub has_keys: bool,
    /// Open groups for directory blocks, and their directories.
    pub dir_groups: AddrMap<BlockAddr, Ino>,
}

impl Table {
    /// Makes a group the open one for the data of a directory.
    pub fn open(&mut self, dir: Ino, group: BlockAddr) {
        if self.tracked_groups >= TRACKED_GROUPS_MAX {
            self.dirs.values_mut().for_each(|d| d.groups = Vec::new());
            self.tracked_groups = 0;
        }
        let d = self.dirs.entry(dir).or_default();
        if d.data_group != group {
            let before = d.groups.len();
            d.groups.retain(|g| *g != group);
            if d.groups.len() >= GROUPS_MAX {
                d.groups.remove(0);
            }
            d.groups.push(group);
            self.tracked_groups = (self.tracked_groups + d.groups.len()).saturating_sub(before);
        }
        d.data_group = group;
        self.batch.last_group = Some(group);
    }

    /// Makes a group the open one for the blocks of a directory and of those that share it.
    pub fn open_for_dirs(&mut self, dir: Ino, group: BlockAddr) {
        let before = std::mem::replace(&mut self.dirs.entry(dir).or_default().dir_group, group);
        self.close_for_dirs(dir, before);
        self.dir_groups.insert(group, dir);
    }

    fn close_for_dirs(&mut self, dir: Ino, group: BlockAddr) {
        if self.dir_groups.get(&group) == Some(&dir) {
            self.dir_groups.remove(&group);
        }
    }

    /// Tracks a directory. `hint` is the group of its files as its inode has it, 0 for none. A directory with such a
    /// group has allocated `own_group_min` bytes or more.
    pub fn track(&mut self, dir: Ino, parent: Ino, hint: BlockAddr, own_group_min: u64) {
        if self.dirs.len() >= TRACKED_DIRS_MAX {
            self.retain(|ino, d| ino == ROOT_INO || (d.data_bytes > 0 && d.parent != 0));
            if self.dirs.len() >= TRACKED_DIRS_MAX {
                self.retain(|_, _| false);
            }
        }
        let d = self.dirs.entry(dir).or_default();
        d.parent = parent;
        d.tracked = true;
        if d.data_group == 0 && hint != 0 {
            d.data_group = hint;
            let before = std::mem::replace(&mut d.groups, vec![hint]).len();
            d.data_bytes = d.data_bytes.max(own_group_min);
            self.tracked_groups = (self.tracked_groups + 1).saturating_sub(before);
        }
    }

    /// Drops a directory.
    pub fn untrack(&mut self, dir: Ino) {
        if let Some(d) = self.dirs.remove(&dir) {
            self.tracked_groups = self.tracked_groups.saturating_sub(d.groups.len());
            self.close_for_dirs(dir, d.dir_group);
        }
    }

    /// Drops all directories but those that `keep` selects.
    fn retain(&mut self, keep: impl Fn(Ino, &DirPlacement) -> bool) {
        let dropped = &mut self.decayed_dropped;
        self.dirs.retain(|ino, d| {
            let kept = keep(*ino, d);
            *dropped |= !kept && d.decayed;
            kept
        });
        self.tracked_groups = self.dirs.values().map(|d| d.groups.len()).sum();
        let dirs = &self.dirs;
        self.dir_groups.retain(|_, dir| dirs.contains_key(dir));
    }

    /// A directory and those above it, as far as they are tracked.
    fn ancestors(&self, dir: Ino) -> impl Iterator<Item = (Ino, &DirPlacement)> {
        let tracked = |ino: Ino| self.dirs.get(&ino).map(|d| (ino, d));
        let above = move |(ino, d): &(Ino, &DirPlacement)| {
            if d.parent == 0 || d.parent == *ino { None } else { tracked(d.parent) }
        };
        std::iter::successors(tracked(dir), above).take(ASCENT_MAX)
    }

    /// The directory whose groups a directory uses: the nearest from it upwards that has groups of its own, or the last
    /// one.
    pub fn group_dir(&self, dir: Ino, has_own: impl Fn(&DirPlacement) -> bool) -> Ino {
        let ends = |ino: Ino, d: &DirPlacement| ino == ROOT_INO || has_own(d) || d.parent == 0 || d.parent == ino;
        self.ancestors(dir).find(|(ino, d)| ends(*ino, d)).map_or(ROOT_INO, |(ino, _)| ino)
    }

    /// What is kept of a unit that is no directory.
    pub fn unit(&mut self, unit: Ino) -> &mut DirPlacement {
        if self.dirs.len() >= TRACKED_DIRS_MAX && !self.dirs.contains_key(&unit) {
            // Their files are found through their directories, so nothing is lost but open groups.
            let dropped = self.decayed_dropped;
            self.retain(|unit, _| colocation::is_directory(unit));
            self.decayed_dropped = dropped;
        }
        self.dirs.entry(unit).or_default()
    }

    /// Whether half of the directories that can be tracked are.
    pub fn is_half_full(&self) -> bool {
        self.dirs.len() >= TRACKED_DIRS_MAX / 2
    }

    /// The key that holds in a directory.
    pub fn key(&self, dir: Ino) -> Option<&ColocationKey> {
        let mut above = self.ancestors(dir).filter(|_| self.has_keys);
        above.find_map(|(_, d)| d.key.as_deref())
    }

    /// The directories that got new files or blocks since the last call. In place of each one stands the directory whose
    /// groups it uses, and of those that lie below each other the highest.
    pub fn take_decayed(&mut self, group_dir: impl Fn(&Table, Ino) -> Ino) -> Vec<Ino> {
        let decayed = self.dirs.iter_mut().filter_map(|(ino, d)| std::mem::take(&mut d.decayed).then_some(*ino));
        let decayed: Vec<Ino> = decayed.filter(|unit| colocation::is_directory(*unit)).collect();
        if std::mem::take(&mut self.decayed_dropped) {
            return vec![ROOT_INO];
        }
        let units: BTreeSet<Ino> = decayed.into_iter().map(|d| group_dir(self, d)).collect();
        let below = |dir: Ino| self.ancestors(dir).skip(1).any(|(above, _)| units.contains(&above));
        units.iter().copied().filter(|d| !below(*d)).collect()
    }

    /// The open data group of the nearest directory from `dir` upwards.
    pub fn open_group_above(&self, dir: Ino) -> Option<BlockAddr> {
        self.ancestors(dir).map(|(_, d)| d.data_group).find(|group| *group != 0)
    }

    /// The open group, for data or directory blocks, of the nearest directory from `dir` upwards.
    pub fn any_group_above(&self, dir: Ino) -> Option<BlockAddr> {
        self.ancestors(dir).flat_map(|(_, d)| [d.data_group, d.dir_group]).find(|group| *group != 0)
    }
}
