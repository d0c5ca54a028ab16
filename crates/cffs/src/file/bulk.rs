//! Many whole blocks at once: a long write to a range where the file has no pages yet.
//!
//! Page by page, each block would query the space accounting, the extents and the tree of pages several times. Here
//! each is queried once for all blocks. Cases that are not plain (existing pages, preallocated space, too little space)
//! are left to [`super::dirty_page`], which handles all of them.

use super::FileCtx;
use super::reserve::{needs, reserve_tree_for};
use crate::error::{Error, Result};
use crate::format::InodeFormat;
use crate::node::{NodeState, PAGE_OVERHEAD, Page};
use crate::reservation::BlocksFrom;
use crate::space::Over;
use cffs_buf::AlignedBuf;
use std::sync::Arc;

/// Most blocks taken at once. It bounds what is reserved ahead of need.
const BLOCKS_MAX: usize = 1024;

/// Puts the whole blocks at the start of `data` into new pages from `first` on. Returns the number of bytes taken; 0 if
/// the case is not plain.
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
    // As for one page: a write to preallocated space may use the reserve for the extent tree.
    let privileged = privileged || need.places == 0;
    let all = st.data.pages_reserved + st.data.pages_splits + need.places;
    let _overwriting = match cx.space.check_overwrite(Over::written(n * fpb - need.places), privileged) {
        Err(Error::NoSpace) => return Ok(0),
        outcome => outcome?,
    };
    let reserved = st.data.reservation(cx.space).reserve(need.places, privileged).and_then(|()| {
        reserve_tree_for(cx, st, all, n, BlocksFrom::of(privileged)).inspect_err(|_| st.data.release(need.places))
    });
    match reserved {
        Ok(()) => {}
        // There is no space for so many blocks at once. Page by page there may be space for some.
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
    cx.cache.tracer().note_dirty(st.inode.ino, n as usize * bs);
    cx.cache.add_dirty_data(n as usize * (bs + PAGE_OVERHEAD));
    Ok(n as usize * bs)
}
