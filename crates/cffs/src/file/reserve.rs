//! What a write reserves: space for bytes without extents, and blocks for the extent tree.

use super::{FileCtx, deferred};
use crate::error::Result;
use crate::extent::{self, Mapping};
use crate::format::{Extent, InodeFormat};
use crate::node::NodeState;
use crate::reservation::BlocksFrom;
use std::ops::Range;

/// Adjusts the reservation for the extent tree to the worst case of the dirty pages.
pub(crate) fn reserve_tree(cx: &FileCtx<'_>, st: &mut NodeState, privileged: bool) -> Result<()> {
    let frags = st.data.pages_reserved + st.data.pages_splits;
    reserve_tree_for(cx, st, frags, 1, BlocksFrom::of(privileged))
}

/// The same for `frags` new extents at most, with `more` pages in one run to come.
pub(super) fn reserve_tree_for(
    cx: &FileCtx<'_>,
    st: &mut NodeState,
    frags: u64,
    more: u64,
    from: BlocksFrom,
) -> Result<()> {
    let g = cx.cache.geometry();
    // Extents in flight or deferred change the tree before these pages do, so they are included.
    let earlier = st.data.in_flight + st.data.deferred.extents().len() as u64;
    let need = extent::worst_case_blocks(g, &st.inode, st.data.places(g, more), frags + earlier);
    st.data.reservation(cx.space).set_blocks(need, from)
}

/// What it takes to write a range of a file.
#[derive(Clone, Copy, Default)]
pub(super) struct Needs {
    /// Fragments without an extent.
    pub(super) places: u64,
    /// Fragments that were never written, in whole units of a thin device, for which it keeps room.
    pub(super) unwritten: u64,
    /// Other fragments that were never written, in units that have nothing yet, as far as that is known.
    pub(super) ends: u64,
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
                        if e.unwritten {
                            n.splits += 2;
                            add_unwritten(cx, st, &e, at..e.end().min(frags.end), &mut n)?;
                        }
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

/// Adds what writing a part of an unwritten extent takes.
fn add_unwritten(cx: &FileCtx<'_>, st: &NodeState, e: &Extent, frags: Range<u64>, needs: &mut Needs) -> Result<()> {
    if !cx.space.is_thin() {
        return Ok(());
    }
    let whole = e.whole_units(cx.cache.geometry().frag_shift);
    let logical = |frag: u64| (frag.max(e.start) - e.start + e.logical).min(e.end());
    let inside = |range: Range<u64>| range.end.min(frags.end).saturating_sub(range.start.max(frags.start));
    let (first, last) = (e.logical..logical(whole.start), logical(whole.end.max(whole.start))..e.end());
    needs.unwritten += inside(first.end..last.start);
    // What shares a unit with written data of the file is stored with it.
    let is_written = |at: Option<u64>, place: Option<u64>| -> Result<bool> {
        let (Some(at), Some(place)) = (at, place) else { return Ok(false) };
        Ok(match extent::lookup(cx.cache, &st.inode, at)? {
            Mapping::Data(x) => !x.unwritten && x.start + (at - x.logical) == place,
            Mapping::Hole { .. } => false,
        })
    };
    let (ahead, behind) = (inside(first.clone()), inside(last.clone()));
    let mut stored_ahead = ahead == 0 || is_written(e.logical.checked_sub(1), e.start.checked_sub(1))?;
    let mut stored_behind = behind == 0 || is_written(Some(e.end()), Some(e.start + e.len))?;
    if whole.start > e.start + e.len {
        // All of it is in one unit.
        let either = stored_ahead || is_written(Some(e.end()), Some(e.start + e.len))?;
        (stored_ahead, stored_behind) = (either, either);
    }
    needs.ends += if stored_ahead { 0 } else { ahead } + if stored_behind { 0 } else { behind };
    Ok(())
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
