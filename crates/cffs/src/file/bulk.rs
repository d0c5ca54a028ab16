//! Many whole blocks at once: what a long write brings for places where the file has no pages yet.
//!
//! Page by page each block would ask the space accounting, the extents and the tree of pages several times over. Here they are asked
//! once. Whatever is not plain (pages that are there already, space allocated ahead, space that runs out) is left to
//! [`super::dirty_page`], which knows all cases.

use super::FileCtx;
use super::reserve::{needs, reserve_tree_for};
use crate::error::{Error, Result};
use crate::format::InodeFormat;
use crate::node::{NodeState, PAGE_OVERHEAD, Page};
use cffs_buf::AlignedBuf;
use std::sync::Arc;

/// Blocks taken at once: bounds what is reserved before it is needed.
const BLOCKS_MAX: usize = 1024;

/// Puts the whole blocks that `data` begins with into new pages from `first` on; returns how many bytes it took, 0 if it
/// is not that plain.
pub(super) fn write(cx: &FileCtx<'_>, st: &mut NodeState, first: u64, data: &[u8], privileged: bool) -> Result<usize> {
    let g = *cx.cache.geometry();
    let bs = g.block_size();
    let blocks = (data.len() / bs).min(BLOCKS_MAX);
    if blocks < 2 || matches!(&st.inode.format, InodeFormat::Inline(d) if !d.is_empty()) {
        return Ok(0);
    }
    let free_until = st.data.pages.range(first..).next().map_or(u64::MAX, |(i, _)| *i);
    let n = (blocks as u64).min(free_until - first);
    if n < 2 {
        return Ok(0);
    }
    let fpb = g.frags_per_block();
    let need = needs(cx, st, first * fpb..(first + n) * fpb)?;
    let each = match need.places {
        0 => 0,
        places if places == n * fpb => fpb,
        _ => return Ok(0),
    };
    if need.splits > 0 {
        return Ok(0);
    }
    // As for one page: what has its place can be written, for the tree the reserve is there.
    let privileged = privileged || need.places == 0;
    let all = st.data.pages_reserved + st.data.pages_splits + need.places;
    let reserved = st
        .data
        .reservation(cx.space)
        .reserve(need.places, privileged)
        .and_then(|()| reserve_tree_for(cx, st, all, n, privileged).inspect_err(|_| st.data.release(need.places)));
    match reserved {
        Ok(()) => {}
        // For so many at once; page by page there may be space for some.
        Err(Error::NoSpace | Error::Quota) => return Ok(0),
        Err(e) => return Err(e),
    }
    let mut joined = 0;
    if let Some(before) = first.checked_sub(1) {
        joined += u64::from(st.data.pages.contains_key(&before));
    }
    joined += u64::from(free_until == first + n);
    st.data.runs = (st.data.runs + 1).saturating_sub(joined);
    for (index, bytes) in (first..first + n).zip(data.chunks_exact(bs)) {
        let bytes = Arc::new(AlignedBuf::from_slice(bytes));
        st.data.pages.insert(index, Page { bytes, dirty: 0..bs, reserved: each, splits: 0, writing: false });
    }
    st.data.pages_reserved += need.places;
    cx.cache.add_dirty_data(n as usize * (bs + PAGE_OVERHEAD));
    Ok(n as usize * bs)
}
