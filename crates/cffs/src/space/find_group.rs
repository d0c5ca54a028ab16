//! Finding groups, the unit of placement, by how much of them is free. Nothing is allocated here.

use super::free_space::Space;
use crate::error::Result;
use crate::format::{BlockAddr, FragAddr, Run};
use std::sync::atomic::Ordering;

impl Space {
    /// First block of a wholly free group at or after `goal`, or else before it. Allocates nothing: a second call finds
    /// the same group.
    pub fn find_free_group(&self, goal: BlockAddr) -> Result<Option<BlockAddr>> {
        if self.g.ag_blocks
            < self.g.group_of(self.g.ag_header_blocks() + self.g.group_blocks() - 1) + self.g.group_blocks()
        {
            return Ok(None); // not even a virgin allocation group has one
        }
        let goal = self.g.frag_of_block(goal.min(self.g.total_blocks - 1));
        let goal_ag = self.g.ag_of(self.g.block_of_frag(goal));
        let group_frags = self.g.frag_of_block(self.g.group_blocks());
        let mut wrapped = false;
        let found = self.search_among(
            goal_ag,
            false,
            |ag| self.may_have_run(*ag, group_frags),
            |group, here| {
                // The first visit of the goal's group begins at the goal, later ones at its start.
                let from =
                    if here && !std::mem::replace(&mut wrapped, true) { (goal - group.start()) as u32 } else { 0 };
                let found = self.with_free_set(group, |set| set.find_group(from))?;
                Ok(found.map(|offset| group.start() + u64::from(offset)))
            },
        )?;
        Ok(found.map(|frag| self.g.block_of_frag(frag)))
    }

    /// As [`Space::find_free_group`], for several groups: the first of `want` adjacent free groups, or of as many as
    /// there are. Searches the loaded allocation groups from the goal on; if they have no free group, all.
    pub fn find_free_groups(&self, goal: BlockAddr, want: u64) -> Result<Option<BlockAddr>> {
        let goal_frag = self.g.frag_of_block(goal.min(self.g.total_blocks - 1));
        let goal_ag = self.g.ag_of(self.g.block_of_frag(goal_frag));
        let mut best: Option<(FragAddr, u32)> = None;
        if want > 1 {
            let found = self.search(goal_ag, true, |group, here| {
                if !here && (group.is_virgin() || !group.is_loaded()) {
                    return Ok(None);
                }
                let from = if here { (goal_frag - group.start()) as u32 } else { 0 };
                let want = want as u32;
                let found = self.with_free_set(group, |set| {
                    let behind = set.find_groups(from, want);
                    // A group at the goal continues the open group: nothing is better.
                    let next = behind.filter(|(start, len)| *len >= want || here && *start == from);
                    next.map(|(start, _)| (start, want)).or_else(|| set.find_groups(0, want))
                })?;
                let Some((start, len)) = found else { return Ok(None) };
                let found = (group.start() + u64::from(start), len);
                best = best.filter(|(_, most)| *most >= len).or(Some(found));
                Ok((len >= want).then_some(found))
            })?;
            best = found.or(best);
        }
        match best {
            Some((frag, _)) => Ok(Some(self.g.block_of_frag(frag))),
            None => self.find_free_group(goal),
        }
    }

    /// The group near `goal` with the most free fragments, and their number. For when no group is wholly free. Searches
    /// the allocation groups from the goal on and stops at the first that has a group with a quarter free.
    pub fn emptiest_group(&self, goal: BlockAddr) -> Result<Option<(BlockAddr, u64)>> {
        let goal = self.g.frag_of_block(goal.min(self.g.total_blocks - 1));
        let goal_ag = self.g.ag_of(self.g.block_of_frag(goal));
        let enough = self.g.frag_of_block(self.g.group_blocks()) / 4;
        let mut best: Option<(FragAddr, u64)> = None;
        let found = self.search(goal_ag, true, |group, here| {
            let from = if here { (goal - group.start()) as u32 } else { 0 };
            let Some((start, free)) = self.with_free_set(group, |set| set.emptiest_group(from))? else {
                return Ok(None);
            };
            let here = (group.start() + u64::from(start), u64::from(free));
            best = best.filter(|(_, most)| *most >= here.1).or(Some(here));
            Ok(best.filter(|(_, most)| *most >= enough))
        })?;
        Ok(found.or(best).map(|(frag, free)| (self.g.block_of_frag(frag), free)))
    }

    /// The fullest group near `goal` with at least `least` free fragments; emptier ones are left to larger files.
    /// Searches the loaded allocation groups from the goal on and stops at the first that has such a group.
    pub fn fullest_group(&self, goal: BlockAddr, least: u64) -> Result<Option<BlockAddr>> {
        let goal = self.g.frag_of_block(goal.min(self.g.total_blocks - 1));
        let goal_ag = self.g.ag_of(self.g.block_of_frag(goal));
        let least = u32::try_from(least).unwrap_or(u32::MAX);
        let found = self.search(goal_ag, true, |group, here| {
            if group.is_virgin() || !group.is_loaded() {
                return Ok(None);
            }
            let from = if here { (goal - group.start()) as u32 } else { 0 };
            let found = self.with_free_set(group, |set| set.fullest_group(from, least))?;
            Ok(found.map(|start| group.start() + u64::from(start)))
        })?;
        Ok(found.map(|frag| self.g.block_of_frag(frag)))
    }

    /// Free fragments of a group.
    pub fn free_in_group(&self, group: BlockAddr) -> Result<u64> {
        let frag = self.g.frag_of_block(group);
        let of = self.alloc_group_of(Run { start: frag, len: 1 })?;
        self.with_free_set(&of, |set| u64::from(set.group_free((frag - of.start()) as u32)))
    }

    /// Runs `f` if all fragments in `start..end` are free. They lie in one allocation group. Nobody allocates one of
    /// them while `f` runs.
    pub(crate) fn if_free<R>(&self, start: FragAddr, end: FragAddr, f: impl FnOnce() -> R) -> Result<Option<R>> {
        if start >= end {
            return Ok(Some(f()));
        }
        let group = self.alloc_group_of(Run { start, len: end - start })?;
        let (start, end) = ((start - group.start()) as u32, (end - group.start()) as u32);
        self.with_free_set(&group, |set| set.is_free(start, end).then(f))
    }

    /// Whether all fragments in `start..end` are free. They lie in one allocation group. Of one that was never used, the first block counts as used:
    /// there may be a copy of the superblock.
    pub(crate) fn is_free(&self, start: FragAddr, end: FragAddr) -> Result<bool> {
        let ag = self.g.ag_of(self.g.block_of_frag(start));
        if ag >= self.open.load(Ordering::Acquire) {
            return Ok(start >= self.g.frag_of_block(self.g.ag_start(ag) + 1));
        }
        Ok(self.if_free(start, end, || ())?.is_some())
    }
}
