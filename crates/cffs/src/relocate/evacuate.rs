//! Evacuation: everything that can be moved goes out of some parts of the device, into gaps elsewhere.

use super::control::{Control, Progress};
use super::meta::{self, MetaBlock};
use super::pace::Uncommitted;
use super::stretch::Item;
use super::walk::{Visitor, external, walk};
use super::{MoveCtx, files, names};
use crate::error::{Error, Result};
use crate::format::{BlockAddr, Extent, FragAddr, Geometry, Ino, ROOT_INO};
use crate::space::SetAside;
use std::ops::Range;

/// Items that are moved together, at most, and their bytes.
const BATCH_ITEMS: usize = 128;
const BATCH_BYTES: u64 = 4 << 20;
/// A batch has at most one in so many parts of the free space: while it is under way, it takes that space twice.
const BATCH_DIVISOR: u64 = 16;

/// Where files go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gaps {
    /// Those that are read one after the other go into one gap, as many as it has room for, so they stay together: the shortest one that has room for
    /// all, or else the longest.
    InOrder,
    /// Each goes into the gap that fits it best, so the longest ones are left for the next files.
    BestFit,
}

/// Moves what can be moved out of these parts. Nobody allocates there meanwhile, unless there is no other space.
///
/// # Errors
/// Those of the device and the journal, and what [`Control::check`] returns.
pub(super) fn run(
    cx: &MoveCtx<'_>,
    parts: &[Range<FragAddr>],
    budget: u64,
    gaps: Gaps,
    control: &dyn Control,
    progress: &mut Progress,
) -> Result<()> {
    let hold = cx.file.space.hold(parts.to_vec());
    hold.renew()?;
    let g = *cx.file.cache.geometry();
    let batch = (BATCH_BYTES.min(control.most_at_once()) >> g.frag_shift)
        .min(cx.file.space.free_frags() / BATCH_DIVISOR)
        .max(1);
    let mut e = Evacuation {
        cx: *cx,
        g,
        parts,
        hold,
        batch,
        budget,
        gaps,
        control,
        progress,
        data: Vec::new(),
        data_frags: 0,
        names: Vec::new(),
        uncommitted: Uncommitted::default(),
        seen: (0, 0),
    };
    walk(cx, ROOT_INO, &mut e)?;
    external(cx, &mut e)?;
    e.move_data()?;
    e.move_names()?;
    let mut tables = Vec::new();
    meta::of_tables(cx, &mut |block, at| tables.extend(e.is_inside(at).then_some(block)))?;
    e.move_meta(tables)?;
    e.uncommitted.commit(cx)?;
    e.hold.renew()
}

struct Evacuation<'a> {
    cx: MoveCtx<'a>,
    g: Geometry,
    parts: &'a [Range<FragAddr>],
    hold: SetAside<'a>,
    /// Most fragments of a batch.
    batch: u64,
    /// Most bytes to move.
    budget: u64,
    gaps: Gaps,
    control: &'a dyn Control,
    progress: &'a mut Progress,
    data: Vec<Item>,
    data_frags: u64,
    names: Vec<Item>,
    uncommitted: Uncommitted,
    /// Directories and files of this walk.
    seen: (u64, u64),
}

impl Evacuation<'_> {
    fn is_inside(&self, blocks: &[BlockAddr]) -> bool {
        blocks.iter().any(|b| self.parts.iter().any(|part| part.contains(&self.g.frag_of_block(*b))))
    }

    fn has_budget_for(&self, frags: u64) -> bool {
        self.progress.bytes_moved.saturating_add(frags << self.g.frag_shift) <= self.budget
    }

    fn move_data(&mut self) -> Result<()> {
        let items = std::mem::take(&mut self.data);
        let frags = std::mem::take(&mut self.data_frags);
        if items.is_empty() || !self.has_budget_for(frags) {
            return Ok(());
        }
        let places = self.allocate(&items)?;
        let (moved, files) = files::relocate(&self.cx, &items, places, self.control)?;
        self.progress.files_moved += files;
        self.finish_batch(frags, moved)
    }

    /// New places.
    fn allocate(&self, items: &[Item]) -> Result<files::Places> {
        match self.gaps {
            Gaps::InOrder => files::allocate_gaps_in_order(&self.cx, items, self.parts),
            Gaps::BestFit => files::allocate_gaps(&self.cx, items, self.parts),
        }
    }

    fn move_names(&mut self) -> Result<()> {
        let items = std::mem::take(&mut self.names);
        let frags: u64 = items.iter().map(Item::frags).sum();
        if items.is_empty() || !self.has_budget_for(frags) {
            return Ok(());
        }
        let places = names::allocate_gaps(&self.cx, &items, self.parts)?;
        let blocks = unless_no_space(names::relocate(&self.cx, &items, places))?;
        self.progress.blocks_moved += blocks;
        self.control.pace((2 * blocks) << self.g.block_shift);
        self.finish_batch(frags, self.g.frag_of_block(blocks))
    }

    /// Blocks inside that an inode has besides its data.
    fn blocks_of(&self, ino: Ino) -> Result<Vec<MetaBlock>> {
        let mut found = Vec::new();
        match meta::of_inode(&self.cx, ino, &mut |block, at| found.extend(self.is_inside(at).then_some(block))) {
            // Gone, or damaged: what it has stays where it is.
            Ok(()) | Err(Error::Stale | Error::Corrupt(_) | Error::Io(_)) => Ok(found),
            Err(e) => Err(e),
        }
    }

    fn move_meta(&mut self, blocks: Vec<MetaBlock>) -> Result<()> {
        for block in blocks {
            let frags = self.g.frag_of_block(block.blocks());
            if self.has_budget_for(frags) {
                let moved = meta::relocate(&self.cx, block, self.parts)?;
                self.control.pace((2 * moved) << self.g.frag_shift);
                self.finish_batch(frags.max(moved), moved)?;
            }
        }
        Ok(())
    }

    fn finish_batch(&mut self, frags: u64, moved: u64) -> Result<()> {
        let bytes = moved << self.g.frag_shift;
        self.progress.bytes_moved += bytes;
        self.progress.bytes_kept += frags.saturating_sub(moved) << self.g.frag_shift;
        self.uncommitted.add(&self.cx, bytes)?;
        self.hold.renew()?;
        self.control.report(self.progress);
        self.control.check()
    }
}

/// Without a block for a tree nothing has moved.
fn unless_no_space<T: Default>(outcome: Result<T>) -> Result<T> {
    match outcome {
        Err(Error::NoSpace) => Ok(T::default()),
        outcome => outcome,
    }
}

impl Visitor for Evacuation<'_> {
    fn directory(&mut self, _ino: Ino) -> Result<bool> {
        self.control.check()?;
        self.seen.0 += 1;
        self.progress.directories = self.progress.directories.max(self.seen.0);
        Ok(self.progress.bytes_moved < self.budget)
    }

    fn wants(&self) -> [bool; 2] {
        [true, true]
    }

    fn wants_inodes(&self) -> bool {
        true
    }

    fn block(&mut self, dir: Ino, lblock: u64, addr: BlockAddr) -> Result<()> {
        if self.is_inside(&[addr]) {
            self.names.push(Item::block(&self.g, dir, lblock, addr));
        }
        if self.names.len() >= BATCH_ITEMS { self.move_names() } else { Ok(()) }
    }

    fn file(&mut self, ino: Ino, _size: u64, extents: &[Extent]) -> Result<()> {
        self.seen.1 += 1;
        self.progress.files = self.progress.files.max(self.seen.1);
        for e in extents {
            for part in self.parts {
                let (mut at, end) = (e.start.max(part.start), (e.start + e.len).min(part.end));
                // A long extent goes in pieces, which bound the memory that a move takes.
                while at < end {
                    let len = (end - at).min(self.batch);
                    let piece = Extent { logical: e.logical + (at - e.start), start: at, len, ..*e };
                    self.data.push(Item::extent(ino, &piece));
                    self.data_frags += len;
                    at += len;
                    if self.data.len() >= BATCH_ITEMS || self.data_frags >= self.batch {
                        self.move_data()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn inode(&mut self, ino: Ino) -> Result<()> {
        self.control.check()?;
        if self.blocks_of(ino)?.is_empty() {
            return Ok(());
        }
        // What leads to the blocks may change when the data moves.
        self.move_data()?;
        let found = self.blocks_of(ino)?;
        self.move_meta(found)
    }
}
