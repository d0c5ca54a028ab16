//! Walking through a directory in the order of its blocks.

use super::{DirCtx, DirState, blocks};
use crate::cache::BufRef;
use crate::error::Result;
use crate::format::Inode;
use crate::format::dirblock::{self, Entry};

/// Position of an entry, for [`read`]: never 0, as entries stand behind the header of their block.
fn cookie_of(lblock: u64, offset: usize) -> u64 {
    lblock << 16 | offset as u64
}

/// Calls `f` with the names that stand after position `cookie` (0 for all of them), in order, each with its own position
/// and its block, until `f` returns false.
///
/// Entries keep their positions for life, so a walk in several calls shows every name that is there throughout exactly
/// once, whatever happens in between; the entry at `cookie` may be gone. `f` sees a copy of the entry and may lock the
/// block. A damaged block is an error where the walk meets it.
pub fn read(
    cx: &DirCtx<'_>,
    inode: &Inode,
    state: &DirState,
    cookie: u64,
    f: &mut dyn FnMut(&Entry<'_>, u64, &BufRef) -> Result<bool>,
) -> Result<()> {
    let (first, offset) = (cookie >> 16, (cookie & 0xffff) as usize);
    let end = blocks::size_blocks(cx, inode);
    let mut copy = Vec::new();
    // Up to here the listing is read ahead of, if it is at all.
    let mut asked = if cx.cache.looks_ahead() { 0 } else { end };
    blocks::for_each(cx, inode, state, first..end, &mut |lblock, addr| {
        if lblock >= asked && cx.cache.peek(addr).is_none() {
            asked = blocks::read_ahead(cx, inode, state, lblock..end)?;
        }
        let buf = blocks::read_sequential(cx, inode, lblock, addr)?;
        {
            let b = buf.read();
            let free = dirblock::free_bytes(&b);
            if free >= b.len() / 4 {
                state.saw_room(lblock, free);
            }
            copy.clear();
            copy.extend_from_slice(&b);
        }
        let after = if lblock == first { offset } else { 0 };
        for e in dirblock::entries(&copy).filter(|e| e.offset > after && e.is_name()) {
            if !f(&e, cookie_of(lblock, e.offset), &buf)? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// Whether orphans stand in the blocks of a directory.
pub fn has_orphans(cx: &DirCtx<'_>, inode: &Inode, state: &DirState) -> Result<bool> {
    let mut found = false;
    let end = blocks::size_blocks(cx, inode);
    blocks::for_each(cx, inode, state, 0..end, &mut |lblock, addr| {
        found = dirblock::orphans(&blocks::read_at(cx, inode, lblock, addr)?.read()) > 0;
        Ok(!found)
    })?;
    Ok(found)
}
