//! Truncating files, and freeing all that they have.

use super::FileCtx;
use crate::error::Result;
use crate::extent;
use crate::format::Run;
use crate::format::extent::{EXTENT_LEN_MAX, LOGICAL_END};
use crate::format::inode::{INLINE_MAX, INODE_CORE_SIZE};
use crate::format::{Inode, InodeFormat};
use crate::inode::InodeLocation;
use crate::journal::Txn;
use crate::node::{self, NodeState};
use std::sync::Arc;

/// Most extents freed in one transaction. A file with more is cut in several, each of which stores the size that is left.
const FREED_PER_TXN: usize = 64;

/// How many extents one step frees, and the most bytes that it logs.
pub fn plan(cx: &FileCtx<'_>, inode: &Inode) -> (usize, usize) {
    let g = cx.cache.geometry();
    let each = cx.space.log_bytes(inode.frags.min(EXTENT_LEN_MAX)) + 128;
    let limit = (cx.journal.reserve_max() / 2 / each).clamp(1, FREED_PER_TXN);
    let bits = (limit * each).min(inode.frags as usize / 8 + limit * (cx.space.log_bytes(0) + 128));
    let core = INODE_CORE_SIZE + INLINE_MAX + 64;
    // The tree may have grown since the caller looked, so there is room for one more level.
    let slack = 8 * (g.block_size() + 64);
    (limit, extent::log_bytes_for_remove(g, cx.space, inode, limit) + bits + core + slack)
}

/// First logical fragment that a step removes: that of the `limit`th extent from the end, or `from` if there are fewer.
/// Reads everything that the removal needs, so that a damaged tree or bitmap is noticed before anything has changed.
fn cut_point(cx: &FileCtx<'_>, inode: &Inode, from: u64, limit: usize) -> Result<u64> {
    let last = extent::last(cx.cache, inode, from, limit)?;
    for e in &last {
        cx.space.prepare_free(Run { start: e.start, len: e.len })?;
    }
    if let InodeFormat::Extents(_) = inode.format {
        return Ok(from);
    }
    Ok(if last.len() == limit { last[limit - 1].logical.max(from) } else { from })
}

/// One step of truncating the file to `size`. Nothing of the file is in writeback, and nobody writes to it between
/// steps. Returns true if more steps are needed.
pub fn shrink_step(cx: &FileCtx<'_>, txn: &Txn<'_>, st: &mut NodeState, size: u64, limit: usize) -> Result<bool> {
    let g = *cx.cache.geometry();
    let bs = g.block_size() as u64;
    let (mut more, mut frees, mut disk_end) = (false, false, size);
    match &mut st.inode.format {
        InodeFormat::Inline(_) if size == 0 => st.inode.format = InodeFormat::Extents(Vec::new()),
        InodeFormat::Inline(d) => d.truncate(size as usize),
        _ => {
            // Extents are removed from the end, because the device must never show stale extents behind the end of a
            // file.
            let cut = cut_point(cx, &st.inode, g.frags_for(size), limit)?;
            let mut freed = Vec::new();
            more = extent::remove(txn, cx.space, &mut st.inode, cut..LOGICAL_END, limit, &mut freed)?;
            more |= cut > g.frags_for(size);
            disk_end = if more { (cut << g.frag_shift).max(size) } else { size };
            frees = !freed.is_empty();
            for run in freed {
                txn.free_data(run);
                cx.space.free(txn, run)?;
            }
        }
    }
    // Deferred extents lie behind the size on the device, and so behind the new size.
    debug_assert!(st.data.deferred.is_empty() || size <= st.disk_size, "a cut in what is deferred");
    st.data.drop_deferred(cx.space);
    // Pages beyond the end are dropped. The page that contains the end loses its tail.
    let first_gone = size.div_ceil(bs);
    let gone: Vec<u64> = st.data.pages.range(first_gone..).map(|(i, _)| *i).collect();
    gone.into_iter().for_each(|i| st.data.drop_page(cx.cache, i));
    let within = (size % bs) as usize;
    if within > 0
        && let Some(p) = st.data.pages.get_mut(&(size / bs))
    {
        let keep = within.div_ceil(g.frag_size()) * g.frag_size();
        if p.bytes.len() > keep {
            cx.cache.sub_dirty_data(p.bytes.len() - keep);
            Arc::make_mut(&mut p.bytes).resize_zeroed(keep);
        }
        if p.bytes.len() > within {
            Arc::make_mut(&mut p.bytes)[within..].fill(0);
        }
        p.dirty.end = p.dirty.end.min(keep);
        if p.dirty.start >= p.dirty.end {
            st.data.drop_page(cx.cache, size / bs);
        }
    }
    st.inode.size = size;
    st.disk_size = st.disk_size.min(disk_end);
    // If there is no space for a greater reservation it stays as it is. The inode must follow extents and bitmap in any
    // case.
    let _ = super::reserve::reserve_tree(cx, st, true);
    node::store(txn, st)?;
    // metadata=sync: as in FFS, an external inode is written when it loses space.
    if let (true, InodeLocation::External { block, .. }) = (frees, st.location) {
        txn.write_ordered(block);
    }
    Ok(more)
}
