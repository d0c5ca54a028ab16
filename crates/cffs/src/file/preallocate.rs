//! Space without contents: preallocating, punching holes, zeroing, collapsing and inserting ranges.
//!
//! Preallocated space is an *unwritten* extent: it has its place and reads as zeros. Writeback marks it as written in
//! the transaction that follows the data (see [`super::writeback`]), so a crash never exposes old bytes.
//!
//! Each step here is a transaction of its own. Between steps the file is consistent, though the operation may be
//! incomplete. The caller holds [`Node::write_lock`] and an [`Exclusive`], and no page of the file overlaps the changed
//! range.

use super::buffered::dirty_page;
use super::mapping;
use super::reserve::{needs, preceding};
use super::retry::{Reclaim, with_space};
use super::unit::{Origin, Unit};
use super::{FileCtx, truncate};
use crate::error::{Error, Result};
use crate::extent::{self, MAPPED_PER_TXN, Mapping};
use crate::format::Run;
use crate::format::extent::LOGICAL_END;
use crate::format::inode::{INLINE_MAX, INODE_CORE_SIZE};
use crate::format::{Extent, InodeFormat};
use crate::node::{self, Node, NodeState};
use crate::reservation::{BlocksFrom, Reservation};
use std::ops::Range;
use std::sync::Arc;

/// Leaves of an extent tree shifted in one transaction, at most.
const LEAVES_PER_TXN: usize = 256;

/// Keeps all pages of the file out of writeback while it lives.
pub struct Exclusive<'a>(&'a Node);

impl<'a> Exclusive<'a> {
    /// Waits for a writeback in progress. The caller holds no lock that writeback needs.
    pub fn new(node: &'a Node) -> Exclusive<'a> {
        node.under_way.wait().begin_alone();
        Exclusive(node)
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.under_way.end_alone();
    }
}

/// Reserves blocks for nodes of the extent tree, for `extents` new extents at `places` places. Quotas do not refuse
/// them.
fn reserve_nodes(cx: &FileCtx<'_>, st: &NodeState, places: u64, extents: u64, from: BlocksFrom) -> Result<Reservation> {
    let reservation = st.data.new_reservation(cx.space, true);
    let blocks = extent::worst_case_blocks(cx.cache.geometry(), &st.inode, places, extents);
    reservation.set_blocks(blocks, from)?;
    Ok(reservation)
}

/// Reserves nodes of the tree for a hole in the middle of an extent, which makes two of it. A full device has them: it gives space back.
pub fn reserve_for_cut(cx: &FileCtx<'_>, node: &Node) -> Result<Reservation> {
    reserve_nodes(cx, &node.state.read(), 2, 4, BlocksFrom::Kept)
}

/// Reserves space for a whole range, and nodes of the tree. What is allocated in the range is given back before that is used, so
/// quotas do not refuse as much.
pub fn reserve_for_all(cx: &FileCtx<'_>, node: &Node, frags: Range<u64>, privileged: bool) -> Result<Reservation> {
    let st = node.state.read();
    let reservation = reserve_nodes(cx, &st, 2, 4, BlocksFrom::Reserve)?;
    let places = frags.end - frags.start;
    let holes = needs(cx, &st, frags)?.places;
    cx.space.check_unwritten(places, privileged)?;
    reservation.reserve_beside(places, places - holes, privileged)?;
    Ok(reservation)
}

/// Reserves space for the holes in a range, and nodes of the tree for the extents that are cut at its ends.
pub fn reserve_for_range(cx: &FileCtx<'_>, node: &Node, frags: Range<u64>, privileged: bool) -> Result<Reservation> {
    let st = node.state.read();
    let reservation = reserve_nodes(cx, &st, 2, 4, BlocksFrom::Reserve)?;
    let places = needs(cx, &st, frags)?.places;
    cx.space.check_unwritten(places, privileged)?;
    reservation.reserve(places, privileged)?;
    Ok(reservation)
}

/// Log bytes of an inode that is stored.
fn log_bytes_inode() -> usize {
    INODE_CORE_SIZE + INLINE_MAX + 64
}

/// Allocates unwritten extents for every hole in a range of fragments. The space was reserved with
/// [`reserve_for_range`].
///
/// # Errors
/// [`Error::NoSpace`] if the extent tree finds no block; a part of the range may be allocated then.
pub fn allocate(cx: &FileCtx<'_>, node: &Arc<Node>, frags: Range<u64>, reservation: &Reservation) -> Result<()> {
    let mut at = frags.start;
    while at < frags.end {
        let (extents, next) = with_space(cx, Reclaim::Commit, || find_places(cx, node, at..frags.end))?;
        let len = extents.iter().map(|e| e.len).sum();
        // What has its places has no reservation any more, and does not count as unwritten before it is mapped.
        let _claim = cx.space.claim(len);
        let mut unit = Unit::new(node.clone(), Origin::Preallocated, node.state.read().disk_size);
        unit.reservation = Some(reservation.split(len));
        extents.into_iter().for_each(|e| unit.add_allocated(e));
        with_space(cx, Reclaim::Commit, || {
            let n = unit.extents.len() as u64;
            unit.tree = Some(reserve_nodes(cx, &node.state.read(), n, n, BlocksFrom::Reserve)?);
            mapping::commit(cx, &mut unit)
        })
        .inspect_err(|_| unit.abort(cx, &mut node.state.write()))?;
        at = next;
    }
    Ok(())
}

/// Allocates space for the first holes in the range. Returns the extents, and where to continue.
fn find_places(cx: &FileCtx<'_>, node: &Node, frags: Range<u64>) -> Result<(Vec<Extent>, u64)> {
    let g = cx.cache.geometry();
    let st = node.state.read();
    let small = st.inode.size.max(frags.end.saturating_mul(g.frag_size() as u64)) <= cx.placement.small_max();
    let mut at = frags.start;
    let mut found: Vec<Extent> = Vec::new();
    while at < frags.end && found.len() < MAPPED_PER_TXN {
        let hole = match extent::lookup(cx.cache, &st.inode, at) {
            Ok(Mapping::Hole { until }) => until.min(frags.end) - at,
            Ok(Mapping::Data(e)) => {
                at = e.end().min(frags.end);
                continue;
            }
            Err(e) => {
                cancel(cx, &found);
                return Err(e);
            }
        };
        let allocated = if small {
            let (unit, _) = cx.placement.unit(&st.inode);
            cx.placement.allocate_small(unit, hole, None, &mut Vec::new())
        } else {
            let before = preceding(cx, &st, at).unwrap_or(None);
            let after = found.last().filter(|e| e.end() == at).map(|e| e.start + e.len).or(before);
            cx.placement.allocate_large(st.inode.parent, after, hole)
        };
        match allocated {
            Ok(Some(run)) => {
                found.push(Extent { logical: at, start: run.start, len: run.len, unwritten: true });
                at += run.len;
            }
            // The extents found so far are committed first.
            Ok(None) if !found.is_empty() => break,
            Ok(None) => return Err(Error::NoSpace),
            Err(e) => {
                cancel(cx, &found);
                return Err(e);
            }
        }
    }
    Ok((found, at))
}

fn cancel(cx: &FileCtx<'_>, extents: &[Extent]) {
    extents.iter().for_each(|e| cx.space.cancel(Run { start: e.start, len: e.len }));
}

/// Frees what is allocated in a range of fragments. Nodes of the tree are reserved ([`reserve_for_cut`]).
pub fn remove(cx: &FileCtx<'_>, node: &Node, frags: Range<u64>, reservation: &Reservation) -> Result<()> {
    // Read everything first, so that a damaged tree or bitmap is noticed before anything has changed.
    extent::for_each(cx.cache, &node.state.read().inode, frags.clone(), |e| {
        cx.space.prepare_free(Run { start: e.start, len: e.len })
    })?;
    loop {
        let more = with_space(cx, Reclaim::Commit, || {
            let (limit, log_bytes) = truncate::plan(cx, &node.state.read().inode);
            let txn = cx.journal.begin(log_bytes)?;
            txn.draw_on(reservation);
            txn.begin_critical();
            let mut st = node.state.write();
            let mut freed = Vec::new();
            let more = extent::remove(&txn, cx.space, &mut st.inode, frags.clone(), limit, &mut freed)?;
            for run in freed {
                txn.free_data(run);
                cx.space.free(&txn, run)?;
            }
            node::store(&txn, &mut st)?;
            txn.end_critical();
            Ok(more)
        })?;
        if !more {
            return Ok(());
        }
    }
}

/// Marks what is allocated in a range of fragments as unwritten: it reads as zeros and keeps its place. Nodes of the
/// tree are reserved ([`reserve_for_cut`]).
pub fn make_unwritten(cx: &FileCtx<'_>, node: &Node, frags: Range<u64>, reservation: &Reservation) -> Result<()> {
    let mut at = frags.start;
    while at < frags.end {
        at = with_space(cx, Reclaim::Commit, || {
            let log_bytes = {
                let st = node.state.read();
                extent::log_bytes_for_convert(cx.cache.geometry(), cx.space, &st.inode) + log_bytes_inode()
            };
            let txn = cx.journal.begin(log_bytes)?;
            txn.draw_on(reservation);
            let mut st = node.state.write();
            let next = extent::convert(&txn, cx.space, &mut st.inode, at..frags.end, true)?;
            node::store(&txn, &mut st)?;
            Ok(next)
        })?;
    }
    Ok(())
}

/// Whether pages overlap a range of bytes.
pub fn has_pages(cx: &FileCtx<'_>, st: &NodeState, bytes: &Range<u64>) -> bool {
    let bs = cx.cache.geometry().block_size() as u64;
    st.data.pages.range(bytes.start / bs..bytes.end.div_ceil(bs)).next().is_some()
}

/// Zeros the bytes at the edges of a range that share a fragment with bytes outside. Returns the whole fragments that
/// remain inside; no page has bytes of them.
pub fn zero_edges(cx: &FileCtx<'_>, st: &mut NodeState, bytes: &Range<u64>, privileged: bool) -> Result<Range<u64>> {
    let g = *cx.cache.geometry();
    let (fs, bs) = (g.frag_size() as u64, g.block_size() as u64);
    let size = st.inode.size;
    let first = bytes.start.div_ceil(fs);
    // Nothing is kept behind the end of the file.
    let end = if bytes.end >= size { bytes.end.div_ceil(fs) } else { bytes.end / fs };
    if first > end {
        zero_bytes(cx, st, bytes.start..bytes.end.min(size), privileged)?;
        return Ok(first..first);
    }
    zero_bytes(cx, st, bytes.start..(first * fs).min(size), privileged)?;
    zero_bytes(cx, st, (end * fs).max(bytes.start)..bytes.end.min(size), privileged)?;
    // The pages created by this cover the rest of their blocks too.
    let mut inside = first..end;
    for index in [bytes.start / bs, (bytes.end - 1) / bs] {
        let Some(p) = st.data.pages.get_mut(&index) else { continue };
        let valid = p.bytes.len() as u64;
        let within = |at: u64| (at.max(index * bs) - index * bs).min(valid) as usize;
        Arc::make_mut(&mut p.bytes)[within(bytes.start)..within(bytes.end)].fill(0);
        let dirty = (index * bs + p.dirty.start as u64) / fs..(index * bs + p.dirty.end as u64).div_ceil(fs);
        // If both edges are in one block, the page also writes zeros between them.
        if dirty.start < inside.end && dirty.end > inside.start {
            inside.end = inside.start;
        }
    }
    Ok(inside)
}

/// Zeros bytes of one fragment, unless they are zeros already.
fn zero_bytes(cx: &FileCtx<'_>, st: &mut NodeState, bytes: Range<u64>, privileged: bool) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let g = *cx.cache.geometry();
    let index = bytes.start >> g.block_shift;
    let from = (bytes.start - (index << g.block_shift)) as usize;
    let to = from + (bytes.end - bytes.start) as usize;
    match extent::lookup(cx.cache, &st.inode, bytes.start >> g.frag_shift)? {
        Mapping::Data(e) if !e.unwritten => dirty_page(cx, st, index, from..to, Some(&vec![0; to - from]), privileged),
        _ => Ok(()),
    }
}

/// The number of leaves of the extent tree that one step can shift, and the log bytes for them.
fn leaves(cx: &FileCtx<'_>, node: &Node) -> (usize, usize) {
    let g = cx.cache.geometry();
    let bytes = |n| extent::log_bytes_for_shift(g, &node.state.read().inode, n) + log_bytes_inode();
    let n = (cx.journal.reserve_max() / 2 / bytes(1)).clamp(1, LEAVES_PER_TXN);
    (n, bytes(n))
}

/// Moves everything from fragment `from` on towards the start by `by` fragments, into a hole, and makes the file
/// shorter by as much. The file has no pages.
pub fn shift_down(cx: &FileCtx<'_>, node: &Node, from: u64, by: u64) -> Result<()> {
    let mut at = Some(from);
    while let Some(from) = at {
        let (leaves, log_bytes) = leaves(cx, node);
        let txn = cx.journal.begin(log_bytes)?;
        txn.begin_critical();
        let mut st = node.state.write();
        at = extent::shift_down(&txn, cx.space, &mut st.inode, from, by, leaves)?;
        if at.is_none() {
            let bytes = by << cx.cache.geometry().frag_shift;
            st.inode.size -= bytes;
            st.disk_size = st.inode.size;
        }
        node::store(&txn, &mut st)?;
        txn.end_critical();
    }
    Ok(())
}

/// Moves everything from fragment `from` on away from the start by `by` fragments, and makes the file longer by as
/// much. The file has no pages.
pub fn shift_up(cx: &FileCtx<'_>, node: &Node, from: u64, by: u64) -> Result<()> {
    let end = extent::last(cx.cache, &node.state.read().inode, 0, 1)?.first().map_or(0, |e| e.end());
    if end + by > LOGICAL_END {
        // Preallocated space behind the end of the file is removed.
        let size = node.state.read().inode.size;
        let nodes = reserve_for_cut(cx, node)?;
        remove(cx, node, cx.cache.geometry().frags_for(size)..LOGICAL_END, &nodes)?;
    }
    with_space(cx, Reclaim::Commit, || {
        let nodes = reserve_nodes(cx, &node.state.read(), 1, 2, BlocksFrom::Reserve)?;
        let log_bytes = {
            let st = node.state.read();
            extent::log_bytes_for_convert(cx.cache.geometry(), cx.space, &st.inode) + log_bytes_inode()
        };
        let txn = cx.journal.begin(log_bytes)?;
        txn.draw_on(&nodes);
        let mut st = node.state.write();
        extent::split(&txn, cx.space, &mut st.inode, from)?;
        node::store(&txn, &mut st)
    })?;
    let mut below = Some(LOGICAL_END);
    let mut longer = by << cx.cache.geometry().frag_shift;
    while let Some(end) = below {
        let (leaves, log_bytes) = leaves(cx, node);
        let txn = cx.journal.begin(log_bytes)?;
        txn.begin_critical();
        let mut st = node.state.write();
        // The size grows first, so that no extent lies behind it.
        st.inode.size += std::mem::take(&mut longer);
        st.disk_size = st.inode.size;
        below = extent::shift_up(&txn, cx.space, &mut st.inode, from, by, end, leaves)?;
        node::store(&txn, &mut st)?;
        txn.end_critical();
    }
    Ok(())
}

/// Whether anything is allocated behind the end of the file.
pub fn has_space_behind_end(cx: &FileCtx<'_>, st: &NodeState) -> Result<bool> {
    if matches!(st.inode.format, InodeFormat::Inline(_)) {
        return Ok(false);
    }
    let end = cx.cache.geometry().frags_for(st.inode.size);
    Ok(!extent::last(cx.cache, &st.inode, end, 1)?.is_empty())
}
