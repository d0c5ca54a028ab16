//! Moving blocks of a directory to another place, with the inodes embedded in them.

use super::{DirCtx, DirState, blocks};
use crate::cache::BufRef;
use crate::error::{Error, Result};
use crate::extent;
use crate::format::dirblock::{self, BlockEdit, DIR_BLOCKS_MAX, EntryKind};
use crate::format::{BlockAddr, BlockId, BlockKind, Geometry, Ino, Inode, META_SPECIFIC, Run};
use crate::journal::Txn;
use crate::space::Space;
use std::ops::Range;

/// An inode that moves with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddedInode {
    /// Its number.
    pub ino: Ino,
    /// Byte offset of its entry in the block.
    pub entry: usize,
    /// Byte offset of the inode in the block.
    pub inode: usize,
}

/// A block that can be moved.
pub struct MovableBlock {
    buf: BufRef,
    kind: BlockKind,
    lblock: u64,
    /// The inodes embedded in it.
    pub inodes: Vec<EmbeddedInode>,
}

impl MovableBlock {
    /// Where it is.
    pub fn addr(&self) -> BlockAddr {
        self.buf.addr()
    }
}

/// The blocks of a directory, those of its index behind the entries: number within the directory, and address.
pub fn blocks_of(cx: &DirCtx<'_>, inode: &Inode, state: &DirState) -> Result<Vec<(u64, BlockAddr)>> {
    let [entries, index] = ahead(cx, inode).map(|range| range.start);
    blocks_in(cx, inode, state, [0..entries, DIR_BLOCKS_MAX..index])
}

fn blocks_in(
    cx: &DirCtx<'_>,
    inode: &Inode,
    state: &DirState,
    ranges: [Range<u64>; 2],
) -> Result<Vec<(u64, BlockAddr)>> {
    let mut all = Vec::new();
    for range in ranges {
        blocks::for_each(cx, inode, state, range, &mut |lblock, addr| {
            all.push((lblock, addr));
            Ok(true)
        })?;
    }
    Ok(all)
}

/// About the most blocks that a directory has ahead, for its entries and for its index. One with more is damaged.
pub const AHEAD_BOUND: usize = 2 * blocks::FREED_BOUND;

/// Blocks that were allocated ahead, behind the entries and behind the index: nothing is in them.
pub fn blocks_ahead(cx: &DirCtx<'_>, inode: &Inode, state: &DirState) -> Result<Vec<BlockAddr>> {
    let blocks = blocks_in(cx, inode, state, ahead(cx, inode))?;
    Ok(blocks.into_iter().map(|(_, addr)| addr).collect())
}

/// Where they are: behind the entries, and behind the index.
fn ahead(cx: &DirCtx<'_>, inode: &Inode) -> [Range<u64>; 2] {
    let buckets = DIR_BLOCKS_MAX + u64::from(inode.index_buckets);
    [blocks::size_blocks(cx, inode)..DIR_BLOCKS_MAX, buckets..2 * DIR_BLOCKS_MAX]
}

/// Gives back what was allocated ahead, so that it is in nobody's way: the directory takes new blocks ahead when it grows. The
/// caller stores the directory, which is locked. Logs as much as [`super::remove`], and the bits of the blocks.
///
/// # Errors
/// Those of the device. Damage where the blocks are not in use.
pub fn give_back_ahead(
    cx: &DirCtx<'_>,
    txn: &Txn<'_>,
    space: &Space,
    inode: &mut Inode,
    state: &DirState,
) -> Result<bool> {
    let mut all = true;
    for range in ahead(cx, inode) {
        all &= blocks::punch(&blocks::Change { cx, txn, space, state }, inode, range)?;
    }
    Ok(all)
}

/// A block of the directory, for moving it. `None` if it is gone, or has an orphan, which is known by its place.
pub fn block_to_move(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, lblock: u64) -> Result<Option<MovableBlock>> {
    let buckets = DIR_BLOCKS_MAX..DIR_BLOCKS_MAX + u64::from(inode.index_buckets);
    if lblock >= blocks::size_blocks(cx, inode) && !buckets.contains(&lblock) {
        return Ok(None);
    }
    let Some(addr) = blocks::resolve(cx, inode, state, lblock)? else { return Ok(None) };
    if lblock >= DIR_BLOCKS_MAX {
        let buf = cx.cache.read_meta(BlockId { kind: BlockKind::DirIndex, addr, owner: inode.ino })?;
        return Ok(Some(MovableBlock { buf, kind: BlockKind::DirIndex, lblock, inodes: Vec::new() }));
    }
    let buf = blocks::read_at(cx, inode, lblock, addr)?;
    let inodes = {
        let b = buf.read();
        if dirblock::orphans(&b) > 0 {
            return Ok(None);
        }
        let embedded = dirblock::entries(&b).filter(|e| e.kind == EntryKind::Embedded);
        embedded.map(|e| EmbeddedInode { ino: e.ino, entry: e.offset, inode: e.inode_offset() }).collect()
    };
    Ok(Some(MovableBlock { buf, kind: BlockKind::Dir, lblock, inodes }))
}

/// Most bytes that [`relocate`] logs, with the places of `inodes` inodes in the locator table.
pub fn log_bytes_for_relocate(g: &Geometry, space: &Space, inode: &Inode, inodes: usize) -> usize {
    let tree = extent::log_bytes_for_relocate(g, space, inode);
    let bits = 2 * space.log_bytes(g.frags_per_block()) + space.log_bytes_for_next_init();
    g.block_size() + 512 + tree + bits + inodes * 96
}

/// Moves a block, whose directory is locked, to an allocated one. The caller stores the directory, and notes where the
/// embedded inodes are now.
///
/// # Errors
/// [`Error::NoSpace`] if the extent tree needs a block and there is none; errors of reading. Nothing has changed then.
pub fn relocate(
    cx: &DirCtx<'_>,
    txn: &Txn<'_>,
    space: &Space,
    inode: &mut Inode,
    state: &DirState,
    block: &MovableBlock,
    to: BlockAddr,
) -> Result<()> {
    let g = *cx.cache.geometry();
    let per = g.frags_per_block();
    let lblock = block.lblock;
    if blocks::resolve(cx, inode, state, lblock)? != Some(block.addr()) {
        return Err(Error::Stale);
    }
    let run = |addr| Run { start: g.frag_of_block(addr), len: per };
    let (old, new) = (run(block.addr()), run(to));
    // What the bitmap needs is read before, because after the mapping nothing may fail.
    space.prepare_free(old)?;
    space.prepare_commit(new)?;
    extent::relocate(txn, space, inode, lblock * per..(lblock + 1) * per, new.start)?;
    space.commit_alloc(txn, new)?;
    let buf = txn.init_block(BlockId { kind: block.kind, addr: to, owner: inode.ino });
    {
        let from = block.buf.read();
        let len = from.len() - META_SPECIFIC;
        txn.edit(&buf).range(META_SPECIFIC, len).copy_from_slice(&from[META_SPECIFIC..]);
    }
    txn.free_block(block.addr());
    space.free(txn, old)?;
    state.map.write().add(lblock, 1, to);
    state.forget_buckets(&(lblock..lblock + 1));
    Ok(())
}
