//! What a write reserves: space for bytes without extents, and blocks for the extent tree.

use super::{FileCtx, deferred};
use crate::error::Result;
use crate::extent::{self, Mapping};
use crate::format::InodeFormat;
use crate::node::NodeState;
use std::ops::Range;

/// Adjusts the reservation for the extent tree to the worst case of the dirty pages.
pub(crate) fn reserve_tree(cx: &FileCtx<'_>, st: &mut NodeState, privileged: bool) -> Result<()> {
    let frags = st.data.pages_reserved + st.data.pages_splits;
    reserve_tree_for(cx, st, frags, 1, privileged)
}

/// The same for `frags` new extents at most, with `more` pages in one run to come.
pub(super) fn reserve_tree_for(
    cx: &FileCtx<'_>,
    st: &mut NodeState,
    frags: u64,
    more: u64,
    privileged: bool,
) -> Result<()> {
    let g = cx.cache.geometry();
    // Extents in flight or deferred change the tree before these pages do, so they are included.
    let earlier = st.data.in_flight + st.data.deferred.extents().len() as u64;
    let need = extent::worst_case_blocks(g, &st.inode, st.data.places(g, more), frags + earlier);
    st.data.reservation(cx.space).set_blocks(need, privileged)
}

/// What it takes to write a range of a file.
#[derive(Clone, Copy, Default)]
pub(super) struct Needs {
    /// Fragments without an extent.
    pub(super) places: u64,
    /// Most extents added by unwritten extents that become written in part.
    pub(super) splits: u64,
}

/// What writing a range of fragments takes.
pub(super) fn needs(cx: &FileCtx<'_>, st: &NodeState, frags: Range<u64>) -> Result<Needs> {
    let mut n = Needs::default();
    match &st.inode.format {
        InodeFormat::Extents(list) if list.is_empty() => n.places = frags.end - frags.start,
        InodeFormat::Inline(_) => n.places = frags.end - frags.start,
        _ => {
            let mut at = frags.start;
            while at < frags.end {
                match extent::lookup(cx.cache, &st.inode, at)? {
                    Mapping::Data(e) => {
                        n.splits += if e.unwritten { 2 } else { 0 };
                        at = e.end();
                    }
                    Mapping::Hole { until } => {
                        n.places += until.min(frags.end) - at;
                        at = until;
                    }
                }
            }
        }
    }
    Ok(n)
}

/// The device address that continues the extent before a fragment; `None` if there is a hole before it.
pub(super) fn preceding(cx: &FileCtx<'_>, st: &NodeState, logical: u64) -> Result<Option<u64>> {
    let Some(before) = logical.checked_sub(1) else { return Ok(None) };
    if let Some((_, e)) = st.data.allocated.iter().find(|(_, e)| (e.logical..e.end()).contains(&before)) {
        return Ok(Some(e.start + (logical - e.logical)));
    }
    Ok(match deferred::lookup(cx, st, before)? {
        Mapping::Data(e) => Some(e.start + (logical - e.logical)),
        Mapping::Hole { .. } => None,
    })
}
