//! Moving blocks of directories, with the inodes embedded in them.

use super::MoveCtx;
use super::stretch::Item;
use crate::dir::{self, EmbeddedInode};
use crate::error::{Error, Result};
use crate::format::inode::{INLINE_MAX, INODE_CORE_SIZE};
use crate::format::{BlockAddr, FragAddr, Run};
use crate::inode::InodeLocation;
use crate::node::{self, Locked, Node};
use crate::reservation::Reservation;
use std::sync::Arc;

/// New places for blocks: allocated, in no transaction yet.
pub(super) struct Places {
    /// One for each block.
    pub blocks: Vec<BlockAddr>,
    reservation: Reservation,
}

impl Places {
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
/// space.
pub(super) fn allocate(cx: &MoveCtx<'_>, items: &[Item], near: BlockAddr) -> Result<Option<Places>> {
    let space = cx.file.space;
    let g = cx.file.cache.geometry();
    let per = g.frags_per_block();
    let Some(mut places) = reserve(cx, items.len())? else { return Ok(None) };
    let mut at: FragAddr = g.frag_of_block(near);
    let mut window = at..at;
    while places.blocks.len() < items.len() {
        let left = (items.len() - places.blocks.len()) as u64 * per;
        if let Some(run) = space.alloc_meta_in(&places.reservation, window.clone(), 1)? {
            places.blocks.push(g.block_of_frag(run.start));
            window.start = run.end();
            continue;
        }
        let least = space.min_run_length(g.block_of_frag(at), left, g.frag_of_block(g.group_blocks()))?;
        let next = match least {
            // A run of blocks may begin and end with a part of one.
            Some(least) => space.next_free_run(at, least.max(2 * per - 1))?,
            None => None,
        };
        match next {
            Some(free) if free.start != window.start || free.end() != window.end => {
                window = free.start..free.end();
                at = free.end();
            }
            _ => {
                places.cancel(cx);
                return Ok(None);
            }
        }
    }
    Ok(Some(places))
}

/// Allocates places for blocks wherever there is one, from a block on. `None` if there is too little space.
pub(super) fn allocate_anywhere(cx: &MoveCtx<'_>, items: &[Item], near: BlockAddr) -> Result<Option<Places>> {
    let Some(mut places) = reserve(cx, items.len())? else { return Ok(None) };
    for _ in items {
        match cx.file.space.alloc_meta_near(&places.reservation, near, 1, 1)? {
            Some(run) => places.blocks.push(cx.file.cache.geometry().block_of_frag(run.start)),
            None => {
                places.cancel(cx);
                return Ok(None);
            }
        }
    }
    Ok(Some(places))
}

fn reserve(cx: &MoveCtx<'_>, blocks: usize) -> Result<Option<Places>> {
    let reservation = cx.file.space.reservation(None, false);
    // An extent of the directory may be cut: a node of the tree is rarely needed, and its absence stops the move.
    match reservation.reserve_blocks(blocks as u64 + 1, false) {
        Err(Error::NoSpace) => return Ok(None),
        outcome => outcome?,
    }
    reservation.start_use();
    Ok(Some(Places { blocks: Vec::with_capacity(blocks), reservation }))
}

/// Moves blocks to their new places. Returns how many.
pub(super) fn relocate(cx: &MoveCtx<'_>, items: &[Item], places: Places) -> Result<u64> {
    let mut moved = 0;
    let mut failed = None;
    for (item, to) in items.iter().zip(&places.blocks) {
        let outcome = if failed.is_some() { Ok(false) } else { relocate_block(cx, item, *to, &places.reservation) };
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
