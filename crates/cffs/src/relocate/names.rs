//! Moving blocks of directories, with the inodes embedded in them, and of the inode tables.

use super::stretch::Item;
use super::{MoveCtx, meta};
use crate::dir::{self, EmbeddedInode};
use crate::error::{Error, Result};
use crate::format::inode::{INLINE_MAX, INODE_CORE_SIZE};
use crate::format::{BlockAddr, FragAddr, Run};
use crate::inode::InodeLocation;
use crate::node::{self, Locked, Node};
use crate::reservation::Reservation;
use std::ops::Range;
use std::sync::Arc;

/// Free runs in which no block is found, before the search ends.
const SEARCHES_IN_VAIN: usize = 16;

/// New places for blocks: allocated, in no transaction yet.
pub(super) struct Places {
    /// One for each block.
    pub blocks: Vec<BlockAddr>,
    reservation: Reservation,
}

impl Places {
    fn none(cx: &MoveCtx<'_>) -> Places {
        let reservation = cx.file.space.reservation(None, false);
        reservation.start_use();
        Places { blocks: Vec::new(), reservation }
    }

    /// Reserves so many blocks more; false if there are too few.
    fn reserve(&self, blocks: u64) -> Result<bool> {
        match self.reservation.reserve_blocks(blocks, false) {
            Err(Error::NoSpace) => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }

    /// As runs, in the order of the blocks.
    pub fn all<'a>(&'a self, cx: &'a MoveCtx<'_>) -> impl Iterator<Item = Run> + 'a {
        self.blocks.iter().map(|b| run(cx, *b))
    }

    /// Gives all of it back.
    pub fn cancel(self, cx: &MoveCtx<'_>) {
        self.blocks.iter().for_each(|b| cx.file.space.cancel_meta(&self.reservation, run(cx, *b)));
    }
}

fn run(cx: &MoveCtx<'_>, block: BlockAddr) -> Run {
    let g = cx.file.cache.geometry();
    Run { start: g.frag_of_block(block), len: g.frags_per_block() }
}

/// Allocates places for blocks near a block, in free runs that are long or lie close together. `None` if there is too little
/// space. Of each group so many fragments are filled. Those of a table begin with a group, if there is room for that: who needs a
/// free inode reads its map and then the first block with a free slot, which come with one request.
pub(super) fn allocate(cx: &MoveCtx<'_>, items: &[Item], near: BlockAddr, filled: u64) -> Result<Option<Places>> {
    let mut places = Places::none(cx);
    // An extent of the directory may be cut: a node of the tree is rarely needed, and its absence stops the move.
    if !places.reserve(items.len() as u64 + 1)? {
        return Ok(None);
    }
    let aligned = items.first().is_some_and(|i| meta::is_table(i.ino));
    match fill(cx, &mut places, items.len(), near, filled, aligned) {
        Ok(true) => Ok(Some(places)),
        outcome => {
            places.cancel(cx);
            outcome.map(|_| None)
        }
    }
}

/// Allocates so many blocks; false if there is too little space.
fn fill(
    cx: &MoveCtx<'_>,
    places: &mut Places,
    blocks: usize,
    near: BlockAddr,
    filled: u64,
    aligned: bool,
) -> Result<bool> {
    let space = cx.file.space;
    let g = cx.file.cache.geometry();
    let per = g.frags_per_block();
    let mut at: FragAddr = g.frag_of_block(near);
    let mut window = at..at;
    let mut searches = 0;
    while places.blocks.len() < blocks {
        if let Some(run) = space.alloc_meta_in(&places.reservation, window.clone(), 1)? {
            places.blocks.push(g.block_of_frag(run.start));
            window.start = run.end();
            if window.start % g.group_frags() >= filled {
                window.start = window.start.next_multiple_of(g.group_frags());
            }
            continue;
        }
        searches += 1;
        let left = (blocks - places.blocks.len()) as u64 * per;
        let Some(least) = space.min_run_length(g.block_of_frag(at), left, g.frag_of_block(g.group_blocks()))? else {
            return Ok(false);
        };
        // A run of blocks may begin and end with a part of one.
        let Some(free) = space.next_free_run(at, least.max(2 * per - 1))? else { return Ok(false) };
        if searches > blocks + SEARCHES_IN_VAIN {
            return Ok(false); // others take what is found
        }
        let group = free.start.next_multiple_of(g.group_frags());
        let length = left / filled * g.group_frags() + left % filled;
        let begins = aligned && places.blocks.is_empty() && group + length <= free.end();
        (window, at) = (if begins { group } else { free.start }..free.end(), free.end());
    }
    Ok(true)
}

/// Allocates a place for each block in the first of its windows that has room. Returns which blocks have one.
pub(super) fn allocate_in(
    cx: &MoveCtx<'_>,
    items: &[Item],
    windows: &[Vec<Range<FragAddr>>],
) -> Result<(Places, Vec<usize>)> {
    let (mut places, mut placed) = (Places::none(cx), Vec::new());
    for (n, windows) in windows.iter().enumerate().take(items.len()) {
        if !places.reserve(1)? {
            break;
        }
        for window in windows {
            match cx.file.space.alloc_meta_in(&places.reservation, window.clone(), 1) {
                Ok(None) => continue,
                Ok(Some(run)) => places.blocks.push(cx.file.cache.geometry().block_of_frag(run.start)),
                Err(e) => {
                    places.cancel(cx);
                    return Err(e);
                }
            }
            placed.push(n);
            break;
        }
    }
    Ok((places, placed))
}

/// Allocates places for blocks outside of an area, from its end on: for all of them, or for the first ones.
pub(super) fn allocate_outside(cx: &MoveCtx<'_>, items: &[Item], area: &Range<BlockAddr>) -> Result<Places> {
    let mut places = Places::none(cx);
    for _ in items {
        if !places.reserve(1)? {
            break;
        }
        let Some(run) = cx.file.space.alloc_meta_near(&places.reservation, area.end, 1, 1)? else { break };
        let block = cx.file.cache.geometry().block_of_frag(run.start);
        if area.contains(&block) {
            cx.file.space.cancel_meta(&places.reservation, run);
            break;
        }
        places.blocks.push(block);
    }
    Ok(places)
}

/// Allocates places for blocks outside of some parts of the device: for all of them, or for the first ones.
pub(super) fn allocate_gaps(cx: &MoveCtx<'_>, items: &[Item], avoid: &[Range<FragAddr>]) -> Result<Places> {
    let mut places = Places::none(cx);
    for _ in items {
        if !places.reserve(1)? {
            break;
        }
        let Some(run) = cx.file.space.alloc_meta_gap(&places.reservation, avoid)? else { break };
        places.blocks.push(cx.file.cache.geometry().block_of_frag(run.start));
    }
    Ok(places)
}

/// Moves blocks to their new places. Returns how many.
pub(super) fn relocate(cx: &MoveCtx<'_>, items: &[Item], places: Places) -> Result<u64> {
    let mut moved = 0;
    let mut failed = None;
    for (item, to) in items.iter().zip(&places.blocks) {
        let outcome = match failed {
            Some(_) => Ok(false),
            None if meta::is_table(item.ino) => meta::relocate_item(cx, item, *to, &places.reservation),
            None => relocate_block(cx, item, *to, &places.reservation),
        };
        match outcome {
            Ok(true) => {
                moved += 1;
                continue;
            }
            // Gone, damaged, or without room for a node: it stays where it is.
            Ok(false) | Err(Error::Stale | Error::NotDir | Error::NoSpace | Error::Corrupt(_)) => {}
            Err(e) => failed = Some(e),
        }
        cx.file.space.cancel_meta(&places.reservation, run(cx, *to));
    }
    failed.map_or(Ok(moved), Err)
}

fn relocate_block(cx: &MoveCtx<'_>, item: &Item, to: BlockAddr, reservation: &Reservation) -> Result<bool> {
    let (cache, space) = (cx.file.cache, cx.file.space);
    let lblock = cache.geometry().block_of_frag(item.logical.start);
    let dir = cx.inodes.get(cache, item.ino)?;
    let look = |st: &node::NodeState| {
        let Some(state) = &st.dir else { return Err(Error::NotDir) };
        if st.freed || st.orphan { Ok(None) } else { dir::block_to_move(&cx.dir, &st.inode, state, lblock) }
    };
    let (inodes, log_bytes) = {
        let st = dir.state.read();
        let Some(block) = look(&st)? else { return Ok(false) };
        let n = block.inodes.len();
        let bytes =
            dir::log_bytes_for_relocate(cache.geometry(), space, &st.inode, n) + INODE_CORE_SIZE + INLINE_MAX + 64;
        (block.inodes, bytes)
    };
    // In memory they stay where their nodes say, and whoever looks for one by number finds its node.
    let nodes = inodes.iter().map(|i| cx.inodes.get(cache, i.ino)).collect::<Result<Vec<Arc<Node>>>>()?;
    let _entries = inodes.iter().map(|i| cx.inodes.locator.find(cache, i.ino)).collect::<Result<Vec<_>>>()?;
    let txn = cx.file.journal.begin(log_bytes)?;
    txn.draw_on(reservation);
    let all: Vec<&Arc<Node>> = nodes.iter().chain([&dir]).collect();
    let mut locked = Locked::new(&all);
    let Some(block) = look(locked.get(dir.ino)?)? else { return Ok(false) };
    let from = block.addr();
    let here = |i: &EmbeddedInode| InodeLocation::Embedded { block: from, entry: i.entry, inode: i.inode };
    if block.inodes != inodes {
        return Ok(false);
    }
    for i in &inodes {
        let st = locked.get(i.ino)?;
        if st.freed || st.location != here(i) {
            return Ok(false);
        }
    }
    let st = locked.get(dir.ino)?;
    let Some(state) = &st.dir else { return Err(Error::NotDir) };
    dir::relocate(&cx.dir, &txn, space, &mut st.inode, state, &block, to)?;
    txn.begin_critical();
    for i in &inodes {
        let location = InodeLocation::Embedded { block: to, entry: i.entry, inode: i.inode };
        locked.get(i.ino)?.location = location;
        cx.inodes.relocate(&txn, i.ino, location)?;
    }
    node::store(&txn, locked.get(dir.ino)?)?;
    txn.end_critical();
    Ok(true)
}
