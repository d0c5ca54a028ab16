//! Placement of directory blocks.

use super::dir_allocator::DirAllocator;
use super::policy::{EMPTY_DIVISOR, Placement};
use crate::error::Result;
use crate::format::{BlockAddr, Inode, Run};
use crate::reservation::Reservation;

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
        let group_dir = self.group_dir(&t, dir.ino, |d| (if with_data { d.data_bytes } else { d.dir_bytes }) >= limit);
        let d = t.dirs.entry(dir.ino).or_default();
        d.dir_bytes += want_blocks << self.geo.block_shift;
        d.decayed = true;
        // A large directory grows in runs of its own size; groups are for the small ones.
        if want_blocks * 2 > self.geo.group_blocks() {
            return self.space.alloc_meta_near(reservation, near, want_blocks, min);
        }
        let group = t.dirs.get(&group_dir).map_or(0, |d| if with_data { d.data_group } else { d.dir_group });
        let in_group = |group| self.space.alloc_meta_in(reservation, self.window(group, 1), want_blocks);
        if group != 0
            && let Some(run) = in_group(group)?
        {
            return Ok(self.counted(Some(run)));
        }
        let from = if group != 0 { group + self.geo.group_blocks() } else { near };
        if let Some(next) = self.group_for_dirs(from)?
            && let Some(run) = in_group(next)?
        {
            if with_data {
                t.open(group_dir, next);
            } else {
                t.open_for_dirs(group_dir, next);
            }
            return Ok(self.counted(Some(run)));
        }
        drop(t);
        Ok(self.counted(self.space.alloc_meta_near(reservation, near, want_blocks, min)?))
    }
}

impl Placement {
    /// A free group near a block, or else the emptiest one if enough of it is free.
    fn group_for_dirs(&self, near: BlockAddr) -> Result<Option<BlockAddr>> {
        if let Some(free) = self.space.find_free_group(near)? {
            return Ok(Some(free));
        }
        let emptiest = self.space.emptiest_group(near)?;
        Ok(emptiest.filter(|(_, free)| *free >= self.group_frags() / EMPTY_DIVISOR).map(|(group, _)| group))
    }
}
