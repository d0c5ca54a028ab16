//! Free areas: a part of the device is emptied, so that it becomes one long free run.
//!
//! What is in it goes into gaps elsewhere. That brings nothing together by itself; the next stretches go into the area. Programs
//! may allocate in it meanwhile: what is free stays free for them.

use super::control::Control;
use super::stretch::Item;
use super::walk::{Visitor, walk};
use super::{MoveCtx, files, names};
use crate::error::{Error, Result};
use crate::format::{BlockAddr, Extent, FragAddr, Geometry, Ino, ROOT_INO};
use std::collections::VecDeque;
use std::ops::Range;

/// An area has at least so many groups.
const AREA_GROUPS_MIN: u64 = 4;
/// One in so many parts of an area has to be free already: to move more costs more than it gives.
const FREE_DIVISOR: u64 = 10;
/// An area is at most so long for the free space that there is: what is in it has to find gaps elsewhere. Longer areas leave
/// fewer places where the order of the name space is broken.
const AREA_PARTS: (u64, u64) = (2, 3);
/// Items that are moved together, at most, and their bytes.
const BATCH_ITEMS: usize = 128;
const BATCH_BYTES: u64 = 4 << 20;

/// The part of an allocation group, a few groups long, that is emptied with the least effort, for so many fragments.
/// `None` if all of them are too full.
pub(super) fn choose_area(cx: &MoveCtx<'_>, wanted: u64) -> Result<Option<Range<BlockAddr>>> {
    let space = cx.file.space;
    let g = *cx.file.cache.geometry();
    let (blocks, group_frags) = (g.group_blocks(), g.frag_of_block(g.group_blocks()));
    let (free, reserved) = space.free_and_reserved();
    let most =
        free.saturating_sub(reserved).saturating_sub(space.root_reserve()) * AREA_PARTS.0 / AREA_PARTS.1 / group_frags;
    let in_ag = (g.ag_blocks.saturating_sub(g.ag_header_blocks()) / blocks).saturating_sub(1);
    let groups = wanted.div_ceil(group_frags).max(AREA_GROUPS_MIN).min(most).min(in_ag);
    if groups < AREA_GROUPS_MIN {
        return Ok(None);
    }
    let mut best: Option<(u64, BlockAddr)> = None;
    for ag in 0..space.counters().ags.min(g.ag_count) {
        let first = (g.ag_start(ag) + g.ag_header_blocks()).next_multiple_of(blocks);
        let first = if ag == 0 { first.max(g.fixed_blocks_of_ag0().next_multiple_of(blocks)) } else { first };
        let end = g.ag_start(ag) + g.ag_len(ag);
        // Free fragments of the groups up to this one, as many as an area has.
        let mut window: VecDeque<u64> = VecDeque::new();
        let mut sum = 0;
        for group in (first..end).step_by(blocks as usize).take_while(|group| group + blocks <= end) {
            // Damaged allocation groups are not used.
            let free = space.free_in_group(group).unwrap_or(0);
            window.push_back(free);
            sum += free;
            if window.len() as u64 > groups {
                sum -= window.pop_front().unwrap_or(0);
            }
            if window.len() as u64 == groups && best.is_none_or(|(most, _)| sum > most) {
                best = Some((sum, group + blocks - groups * blocks));
            }
        }
    }
    let enough = groups * group_frags / FREE_DIVISOR;
    Ok(best.filter(|(free, _)| *free >= enough).map(|(_, start)| start..start + groups * blocks))
}

/// Moves everything that can be moved out of an area. Returns how many fragments were moved, at most `budget` of them.
///
/// # Errors
/// Those of the device and the journal, and what [`Control::check`] returns.
pub(super) fn empty(cx: &MoveCtx<'_>, area: Range<BlockAddr>, budget: u64, control: &dyn Control) -> Result<u64> {
    let g = *cx.file.cache.geometry();
    let frags = g.frag_of_block(area.start)..g.frag_of_block(area.end);
    let mut emptier = Emptier {
        cx: *cx,
        g,
        area,
        frags,
        control,
        data: Vec::new(),
        data_frags: 0,
        names: Vec::new(),
        moved: 0,
        budget,
    };
    walk(cx, ROOT_INO, &mut emptier)?;
    emptier.move_data()?;
    emptier.move_names()?;
    cx.file.journal.commit()?;
    Ok(emptier.moved)
}

struct Emptier<'a> {
    cx: MoveCtx<'a>,
    g: Geometry,
    area: Range<BlockAddr>,
    frags: Range<FragAddr>,
    control: &'a dyn Control,
    data: Vec<Item>,
    data_frags: u64,
    names: Vec<Item>,
    moved: u64,
    budget: u64,
}

impl Emptier<'_> {
    fn may_move(&self, items: &[Item]) -> bool {
        let frags: u64 = items.iter().map(Item::frags).sum();
        frags > 0 && self.moved + frags <= self.budget
    }

    fn move_data(&mut self) -> Result<()> {
        let items = std::mem::take(&mut self.data);
        self.data_frags = 0;
        if self.may_move(&items) {
            let places = files::allocate_outside(&self.cx, &items, &self.area)?;
            let (moved, _) = files::relocate(&self.cx, &items, places, self.control)?;
            self.finish_batch(moved)?;
        }
        Ok(())
    }

    fn move_names(&mut self) -> Result<()> {
        let items = std::mem::take(&mut self.names);
        if self.may_move(&items) {
            let places = names::allocate_outside(&self.cx, &items, &self.area)?;
            let blocks = ignore_no_space(names::relocate(&self.cx, &items, places))?;
            self.control.pace((2 * blocks) << self.g.block_shift);
            self.finish_batch(self.g.frag_of_block(blocks))?;
        }
        Ok(())
    }

    fn finish_batch(&mut self, moved: u64) -> Result<()> {
        self.moved += moved;
        self.cx.file.journal.commit()?;
        self.control.check()
    }
}

/// Without a block for a tree nothing has moved.
fn ignore_no_space<T: Default>(outcome: Result<T>) -> Result<T> {
    match outcome {
        Err(Error::NoSpace) => Ok(T::default()),
        outcome => outcome,
    }
}

impl Visitor for Emptier<'_> {
    fn directory(&mut self, _ino: Ino) -> Result<bool> {
        self.control.check()?;
        Ok(self.moved < self.budget)
    }

    fn wants(&self) -> [bool; 2] {
        [true, true]
    }

    fn block(&mut self, dir: Ino, lblock: u64, addr: BlockAddr) -> Result<()> {
        if self.area.contains(&addr) {
            self.names.push(Item::block(&self.g, dir, lblock, addr));
        }
        if self.names.len() >= BATCH_ITEMS { self.move_names() } else { Ok(()) }
    }

    fn file(&mut self, ino: Ino, _size: u64, extents: &[Extent]) -> Result<()> {
        for e in extents {
            let (start, end) = (e.start.max(self.frags.start), (e.start + e.len).min(self.frags.end));
            // A long extent goes in pieces, which bound the memory that a move takes.
            let mut at = start;
            let most = (BATCH_BYTES.min(self.control.most_at_once()) >> self.g.frag_shift).max(1);
            while at < end {
                let len = (end - at).min(most);
                let part = Extent { logical: e.logical + (at - e.start), start: at, len, ..*e };
                self.data.push(Item::extent(ino, &part));
                self.data_frags += len;
                at += len;
                if self.data.len() >= BATCH_ITEMS || self.data_frags << self.g.frag_shift >= BATCH_BYTES {
                    self.move_data()?;
                }
            }
        }
        Ok(())
    }
}
