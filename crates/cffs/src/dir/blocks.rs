//! The blocks of a directory: where they are, new ones, and giving them back.

use super::{DirCtx, DirState, UNINDEXED_BLOCKS};
use crate::cache::{BufRef, LocalityHint};
use crate::error::{Error, Result};
use crate::extent::{self, Mapping};
use crate::format::dirblock::{self, DIR_BLOCKS_MAX, DIR_LBLOCK};
use crate::format::{BlockAddr, BlockId, BlockKind, Extent, FileType, Inode, extent::LOGICAL_END, get_u64};
use crate::inode::locality::dir_extents;
use crate::journal::Txn;
use crate::node::damaged;
use crate::placement::DirAllocator;
use crate::space::Space;
use std::ops::Range;

/// Size from which on blocks are allocated ahead.
const AHEAD_FROM: u64 = 32;
/// Most blocks that are allocated ahead.
const AHEAD_MAX: u64 = 256;
/// Blocks that a directory may lose at its end before the blocks allocated ahead are given back.
const AHEAD_SLACK: u64 = 8;
/// Extents that one search for a hole passes.
const HOLE_STEPS: usize = 64;
/// Extents removed in one call when everything goes.
const EXTENTS_AT_ONCE: usize = 64;
/// Most blocks that are looked up ahead of a listing.
const LISTED_AHEAD_MAX: usize = 1024;

/// Blocks to allocate beyond the one that is needed, for `blocks` there are.
pub(super) fn ahead(blocks: u64) -> u64 {
    if blocks < AHEAD_FROM { 0 } else { (blocks / 8).min(AHEAD_MAX) }
}

/// About the largest number of blocks that are given back at once.
pub(super) const FREED_BOUND: usize = (AHEAD_MAX + 2 * AHEAD_SLACK) as usize;

/// Blocks of entries (holes included).
pub(super) fn size_blocks(cx: &DirCtx<'_>, inode: &Inode) -> u64 {
    let shift = cx.cache.geometry().block_shift;
    inode.size.div_ceil(1 << shift).min(DIR_BLOCKS_MAX)
}

pub(super) fn set_size_blocks(cx: &DirCtx<'_>, inode: &mut Inode, blocks: u64) {
    inode.size = blocks << cx.cache.geometry().block_shift;
}

/// A run of blocks of the directory, or how far the hole reaches.
enum Piece {
    Blocks { lblock: u64, len: u64, block: BlockAddr },
    Hole { until: u64 },
}

fn piece(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, lblock: u64) -> Result<Piece> {
    let g = cx.cache.geometry();
    let per = g.frags_per_block();
    match extent::lookup(cx.cache, inode, lblock * per)? {
        Mapping::Hole { until } => Ok(Piece::Hole { until: until.div_ceil(per) }),
        Mapping::Data(e) => {
            if (e.logical | e.start | e.len) % per != 0 || e.unwritten || !g.contains(e.start, e.len) {
                return damaged(inode.ino, format_args!("extent at fragment {} does not hold blocks", e.logical));
            }
            let (first, len, block) = (e.logical / per, e.len / per, g.block_of_frag(e.start));
            state.map.write().add(first, len, block);
            Ok(Piece::Blocks { lblock: first, len, block })
        }
    }
}

/// Device block of a block of the directory; `None` in a hole.
pub(super) fn resolve(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, lblock: u64) -> Result<Option<BlockAddr>> {
    if let Some(block) = state.map.read().get(lblock) {
        return Ok(Some(block));
    }
    Ok(match piece(cx, inode, state, lblock)? {
        Piece::Blocks { lblock: first, block, .. } => Some(block + (lblock - first)),
        Piece::Hole { .. } => None,
    })
}

/// Calls `f` with the blocks that exist in a range, in order, until it returns false.
pub(super) fn for_each(
    cx: &DirCtx<'_>,
    inode: &Inode,
    state: &DirState,
    range: Range<u64>,
    f: &mut dyn FnMut(u64, BlockAddr) -> Result<bool>,
) -> Result<()> {
    let mut at = range.start;
    while at < range.end {
        match piece(cx, inode, state, at)? {
            Piece::Hole { until } => at = until.max(at + 1),
            Piece::Blocks { lblock, len, block } => {
                let end = (lblock + len).min(range.end);
                while at < end {
                    if !f(at, block + (at - lblock))? {
                        return Ok(());
                    }
                    at += 1;
                }
            }
        }
    }
    Ok(())
}

/// The first hole of a range, if it shows up soon, and how far the search came.
pub(super) fn first_hole(
    cx: &DirCtx<'_>,
    inode: &Inode,
    state: &DirState,
    range: Range<u64>,
) -> Result<(Option<u64>, u64)> {
    let mut at = range.start;
    for _ in 0..HOLE_STEPS {
        if at >= range.end {
            break;
        }
        match piece(cx, inode, state, at)? {
            Piece::Hole { .. } => return Ok((Some(at), at)),
            Piece::Blocks { lblock, len, .. } => at = lblock + len,
        }
    }
    Ok((None, at.min(range.end)))
}

/// Last block that exists below `lblock`.
fn last_below(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, lblock: u64) -> Result<Option<u64>> {
    let (mut end, mut window) = (lblock, 1);
    while end > 0 {
        let start = end.saturating_sub(window);
        let mut last = None;
        for_each(cx, inode, state, start..end, &mut |l, _| {
            last = Some(l);
            Ok(true)
        })?;
        if last.is_some() {
            return Ok(last);
        }
        (end, window) = (start, window * 4);
    }
    Ok(None)
}

/// A block of entries at a known address.
pub(super) fn read_at(cx: &DirCtx<'_>, inode: &Inode, lblock: u64, addr: BlockAddr) -> Result<BufRef> {
    read_for(cx, inode, lblock, addr, false)
}

/// The same where the directory is listed from end to end.
pub(super) fn read_sequential(cx: &DirCtx<'_>, inode: &Inode, lblock: u64, addr: BlockAddr) -> Result<BufRef> {
    read_for(cx, inode, lblock, addr, true)
}

fn read_for(cx: &DirCtx<'_>, inode: &Inode, lblock: u64, addr: BlockAddr, sequential: bool) -> Result<BufRef> {
    let id = BlockId { kind: BlockKind::Dir, addr, owner: inode.ino };
    let buf = match cx.cache.cached_meta(id)? {
        Some(buf) => buf,
        None => {
            let small = UNINDEXED_BLOCKS << cx.cache.geometry().block_shift;
            let extents = || dir_extents(cx.cache, cx.location, FileType::Directory, small);
            let extents = if inode.size <= small { extents() } else { None };
            cx.cache.read_meta_near(id, &LocalityHint { extents, sequential })?
        }
    };
    let found = get_u64(&buf.read(), DIR_LBLOCK);
    if found != lblock {
        return damaged(inode.ino, format_args!("block {addr} is number {found}, expected {lblock}"));
    }
    Ok(buf)
}

/// A block of entries that must exist.
pub(super) fn read(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, lblock: u64) -> Result<BufRef> {
    match resolve(cx, inode, state, lblock)? {
        Some(addr) => read_at(cx, inode, lblock, addr),
        None => damaged(inode.ino, format_args!("block {lblock} is missing")),
    }
}

/// Reads ahead what a listing comes to behind the first block of a range, which is missing: whole groups, as the listing will. Returns the first block
/// that was not asked for.
pub(super) fn read_ahead(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, range: Range<u64>) -> Result<u64> {
    let (mut lblocks, mut addrs) = (Vec::new(), Vec::new());
    let mut end = range.end;
    for_each(cx, inode, state, range, &mut |lblock, addr| {
        if lblocks.len() == LISTED_AHEAD_MAX {
            end = lblock;
            return Ok(false);
        }
        lblocks.push(lblock);
        addrs.push(addr);
        Ok(true)
    })?;
    let asked = cx.cache.readahead_groups_of(&addrs);
    Ok(lblocks.get(asked).copied().unwrap_or(end))
}

/// What changes of a directory's blocks need.
#[derive(Clone, Copy)]
pub(super) struct Change<'a> {
    pub(super) cx: &'a DirCtx<'a>,
    pub(super) txn: &'a Txn<'a>,
    pub(super) space: &'a Space,
    pub(super) state: &'a DirState,
}

/// The same, and the allocator of new blocks.
pub(super) struct Growth<'a> {
    pub(super) change: Change<'a>,
    pub(super) allocator: &'a dyn DirAllocator,
}

/// Makes sure that a block of the directory's address space is allocated, with up to `want` from there on. The caller
/// initializes it.
pub(super) fn claim(grow: &Growth<'_>, inode: &mut Inode, lblock: u64, want: u64) -> Result<BlockAddr> {
    let Change { cx, txn, space, state } = grow.change;
    let until = match piece(cx, inode, state, lblock)? {
        Piece::Blocks { lblock: first, block, .. } => return Ok(block + (lblock - first)),
        Piece::Hole { until } => until,
    };
    let region_end = if lblock < DIR_BLOCKS_MAX { DIR_BLOCKS_MAX } else { 2 * DIR_BLOCKS_MAX };
    if lblock >= region_end {
        return Err(Error::NoSpace);
    }
    let want = want.min(until - lblock).min(region_end - lblock);
    let before = match lblock {
        0 | DIR_BLOCKS_MAX => None,
        n => resolve(cx, inode, state, n - 1)?,
    };
    let reservation = txn.reservation();
    let Some(run) = grow.allocator.allocate_dir_blocks(&reservation, inode, before.map(|b| b + 1), want, 1)? else {
        return Err(Error::NoSpace);
    };
    let g = cx.cache.geometry();
    let per = g.frags_per_block();
    debug_assert!((run.start | run.len) % per == 0 && run.len > 0 && run.len <= want * per);
    let e = Extent { logical: lblock * per, start: run.start, len: run.len, unwritten: false };
    extent::map(txn, space, inode, e).inspect_err(|_| space.cancel_meta(&reservation, run))?;
    let block = g.block_of_frag(run.start);
    state.map.write().add(lblock, run.len / per, block);
    state.forget_buckets(&(lblock..lblock + run.len / per));
    Ok(block)
}

/// Gives back the blocks of a range. False when the map could not be changed (out of space for a node, or unreadable):
/// then nothing was.
pub(super) fn punch(change: &Change<'_>, inode: &mut Inode, range: Range<u64>) -> Result<bool> {
    let Change { cx, txn, space, state } = *change;
    let per = cx.cache.geometry().frags_per_block();
    let logical = range.start * per..(range.end.saturating_mul(per)).min(LOGICAL_END);
    loop {
        let mut freed = Vec::new();
        state.forget_buckets(&range);
        let outcome = extent::remove(txn, space, inode, logical.clone(), EXTENTS_AT_ONCE, &mut freed);
        let done = !freed.is_empty();
        for run in freed {
            let blocks = cx.cache.geometry().block_of_frag(run.start)..cx.cache.geometry().block_of_frag(run.end());
            blocks.for_each(|block| txn.free_block(block));
            space.free(txn, run)?;
        }
        match outcome {
            Ok(more) => {
                if !more {
                    state.map.write().remove(range);
                    return Ok(true);
                }
            }
            Err(e) if !done => {
                tracing::debug!("directory {} keeps empty blocks: {e}", inode.ino);
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
    }
}

/// How far to give back when the blocks from `end` to `from` go at the end of a region that began at `start`: with the
/// blocks allocated ahead behind them, unless growth may soon want those.
pub(super) fn trim_to(
    cx: &DirCtx<'_>,
    inode: &Inode,
    state: &DirState,
    start: u64,
    end: u64,
    from: u64,
    region_end: u64,
) -> u64 {
    let next = match piece(cx, inode, state, from) {
        Ok(Piece::Blocks { .. }) => from,
        Ok(Piece::Hole { until }) => until,
        Err(_) => return from,
    };
    let slack = if ahead(end - start) == 0 { 0 } else { AHEAD_SLACK };
    if next < region_end && next - end >= slack { region_end } else { from }
}

/// After an entry was removed from a block: remembers the room, or frees the block if it was the last entry.
pub(super) fn note_removal(change: &Change<'_>, inode: &mut Inode, lblock: u64, buf: &BufRef) -> Result<()> {
    let Change { cx, state, .. } = *change;
    let (used, free) = usage(buf);
    state.room_hints.lock().forget(lblock);
    if used {
        state.room_hints.lock().note(lblock, free);
        return Ok(());
    }
    let size = size_blocks(cx, inode);
    let (range, end) = if lblock + 1 < size {
        (lblock..lblock + 1, size)
    } else {
        let end = used_end(cx, inode, state, lblock);
        let to = if end == 0 {
            // Neither names nor orphans are left.
            2 * DIR_BLOCKS_MAX
        } else {
            trim_to(cx, inode, state, 0, end, lblock + 1, DIR_BLOCKS_MAX)
        };
        (end..to, end)
    };
    if !punch(change, inode, range.clone())? {
        state.room_hints.lock().note(lblock, free);
        return Ok(());
    }
    set_size_blocks(cx, inode, end);
    if end == 0 {
        inode.index_buckets = 0;
        state.reset();
        return Ok(());
    }
    let mut hints = state.room_hints.lock();
    hints.hole_from = hints.hole_from.min(lblock);
    if lblock + 1 == size {
        hints.forget_from(range.start);
    }
    Ok(())
}

/// Gives back everything that a directory without names and orphans has.
pub(super) fn release(change: &Change<'_>, inode: &mut Inode) -> Result<()> {
    let Change { cx, state, .. } = *change;
    if used_end(cx, inode, state, size_blocks(cx, inode)) > 0 {
        return Err(Error::NotEmpty);
    }
    if punch(change, inode, 0..2 * DIR_BLOCKS_MAX)? {
        set_size_blocks(cx, inode, 0);
        inode.index_buckets = 0;
        state.reset();
    }
    Ok(())
}

/// End of the last block in use below `lblock`. Empty blocks are there only where they could not be given back.
fn used_end(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, lblock: u64) -> u64 {
    let mut at = lblock;
    loop {
        match last_below(cx, inode, state, at) {
            Ok(None) => return 0,
            Ok(Some(last)) => {
                // One that cannot be read is not known to be empty.
                if !read(cx, inode, state, last).is_ok_and(|b| !usage(&b).0) {
                    return last + 1;
                }
                at = last;
            }
            Err(_) => return at,
        }
    }
}

/// Whether a block has names or orphans, and its free bytes.
pub(super) fn usage(buf: &BufRef) -> (bool, usize) {
    let b = buf.read();
    (dirblock::names(&b) + dirblock::orphans(&b) > 0, dirblock::free_bytes(&b))
}
