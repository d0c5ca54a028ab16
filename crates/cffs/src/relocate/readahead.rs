//! Reading what is about to move: files that lie near each other with one request.

use super::MoveCtx;
use super::control::Control;
use super::stretch::Item;
use crate::error::Result;
use crate::file::relocate;
use crate::format::BlockAddr;
use std::ops::Range;

/// Bytes of blocks that are read ahead of their move.
const AHEAD_BYTES: u64 = 4 << 20;
/// These are at most such a part of the cache, because they must still be there when their turn comes.
const CACHE_DIVISOR: u64 = 8;
/// What lies between two blocks is read along if it is at most such a part of a group: to transfer a whole one takes about as long as a request.
const GAP_DIVISOR: u64 = 2;

/// Brings files into the cache before they move, a part of a list after the other. That they are there is only a hope: whoever
/// reads them meets what has changed, or could not be read.
pub(super) struct Readahead<'a> {
    items: Vec<&'a Item>,
    /// How many of them were read, and how many were looked at.
    read: usize,
    done: usize,
    /// Blocks that were read for the move alone, in order.
    brought: Vec<Range<BlockAddr>>,
}

impl<'a> Readahead<'a> {
    /// Nothing yet of what moves in this order.
    pub fn new(items: Vec<&'a Item>) -> Readahead<'a> {
        Readahead { items, read: 0, done: 0, brought: Vec::new() }
    }

    /// Whether a block is in the cache for the move alone, or was.
    pub fn has_brought(&self, block: BlockAddr) -> bool {
        let behind = self.brought.partition_point(|run| run.start <= block);
        behind > 0 && self.brought[behind - 1].contains(&block)
    }

    /// The next item is about to be read: if it was not looked at yet, it comes with those that follow it.
    pub fn next(&mut self, cx: &MoveCtx<'_>, control: &dyn Control) {
        self.read += 1;
        if self.read <= self.done {
            return;
        }
        let g = *cx.file.cache.geometry();
        let most = AHEAD_BYTES.min(cx.file.cache.limit() as u64 / CACHE_DIVISOR).min(control.most_at_once());
        let mut left = most >> g.block_shift;
        let mut blocks = Vec::new();
        // All that was brought before has been read.
        self.brought.clear();
        while let Some(item) = self.items.get(self.done) {
            // A long one is read in long requests by itself, and one that cannot be found says so when it is read.
            let of_item =
                if item.frags() << g.frag_shift > most { Vec::new() } else { blocks_of(cx, item).unwrap_or_default() };
            if of_item.len() as u64 > left && self.done >= self.read {
                break;
            }
            left = left.saturating_sub(of_item.len() as u64);
            blocks.extend(of_item);
            self.done += 1;
        }
        blocks.sort_unstable();
        blocks.dedup();
        blocks.retain(|block| cx.file.cache.peek(*block).is_none());
        self.bring(cx, &blocks, control);
    }

    fn bring(&mut self, cx: &MoveCtx<'_>, blocks: &[BlockAddr], control: &dyn Control) {
        let g = *cx.file.cache.geometry();
        let at_once = control.most_at_once();
        // Where each byte takes its time, none is read in vain.
        let gap = if at_once == u64::MAX { g.group_blocks() / GAP_DIVISOR } else { 0 };
        let mut left = blocks;
        while !left.is_empty() {
            control.give_way();
            let read = cx.file.cache.read_across(left, gap, at_once >> g.block_shift);
            left = &left[read.count..];
            self.brought.extend(read.blocks);
        }
    }
}

/// The blocks that an item's data is in. None if it would not move as it is now.
fn blocks_of(cx: &MoveCtx<'_>, item: &Item) -> Result<Vec<BlockAddr>> {
    let g = *cx.file.cache.geometry();
    let node = cx.inodes.get(cx.file.cache, item.ino)?;
    let extents = relocate::extents_to_move(&cx.file, &node, &node.state.read(), &item.logical)?;
    // It may have grown meanwhile, and a damaged file may map what is outside of the device.
    let is_right = extents.iter().map(|e| e.len).sum::<u64>() == item.frags()
        && extents.iter().all(|e| g.contains(e.start, e.len));
    let written = extents.iter().filter(|e| is_right && !e.unwritten);
    Ok(written.flat_map(|e| relocate::blocks_of(&g, e)).collect())
}
