//! Committing the mapping: the only way in which written data or preallocated space becomes part of a file.
//!
//! Every write (writeback, a direct write, a write through the journal, earlier direct writes with deferred extents)
//! ends as a [`Unit`] with pending extents. One transaction changes bitmap, extents and inode together. It commits
//! after the data has left for the device, so that nothing on the device points to missing data.

use super::FileCtx;
use super::unit::{Change, Origin, Pending, Unit};
use crate::error::Result;
use crate::extent::{self, MAPPED_PER_TXN, Mapping};
use crate::format::inode::{INLINE_MAX, INODE_CORE_SIZE};
use crate::format::{Extent, FragAddr, InodeFormat, Run};
use crate::journal::Txn;
use crate::node::{self, Node, NodeState};
use std::sync::atomic::Ordering;

/// Log bytes of a revocation.
const REVOKE_BYTES: usize = 64;

/// Most bytes that committing these extents logs.
pub(super) fn log_bytes(cx: &FileCtx<'_>, node: &Node, extents: &[Pending]) -> usize {
    let g = cx.cache.geometry();
    let st = node.state.read();
    let inode = &st.inode;
    // A part of an extent may leave a remainder on both sides.
    let more = extents.iter().map(|p| 1 + usize::from(p.change != Change::Map)).sum::<usize>();
    let simple = matches!(&inode.format, InodeFormat::Extents(l) if l.len() + more <= inode.root_capacity())
        || matches!(inode.format, InodeFormat::Inline(_)) && more <= inode.root_capacity();
    let insert = if simple {
        0
    } else {
        // The tree may get a root and a level while these are inserted.
        extent::log_bytes_for_convert(g, cx.space, inode) + 4 * (g.block_size() + 64) + 4 * cx.space.log_bytes(64)
    };
    let moves = |p: &Pending| matches!(p.change, Change::Move(_));
    let freed = |p: &&Pending| moves(p);
    // What moves frees as much as it allocates, with a revocation, and may leave nodes of the tree to be merged.
    let relocate = if simple { 0 } else { extent::log_bytes_for_relocate(g, cx.space, inode) };
    let of_moves: usize =
        extents.iter().filter(freed).map(|p| cx.space.log_bytes(p.extent.len) + REVOKE_BYTES + relocate).sum();
    let bits = extents.iter().map(|p| cx.space.log_bytes(p.extent.len) + insert).sum::<usize>() + of_moves;
    INODE_CORE_SIZE + INLINE_MAX + 64 + bits + cx.space.log_bytes_for_init()
}

/// Whether all of these extents fit one transaction. A single extent always does.
pub(super) fn fits_one_txn(cx: &FileCtx<'_>, node: &Node, extents: &[Pending]) -> bool {
    extents.len() < 2 || log_bytes(cx, node, extents) <= txn_bytes_max(cx)
}

fn txn_bytes_max(cx: &FileCtx<'_>) -> usize {
    // A crash between two transactions shows a size that the file never had. An atomic commit has no others waiting for its
    // room: it takes what fits the half that is kept for transactions that are open.
    cx.journal.reserve_max() / if cx.journal.is_atomic() { 2 } else { 4 }
}

/// Commits the mapping of a unit whose data is in place, in as many transactions as that takes. After an error the unit
/// holds what is not committed.
pub(super) fn commit(cx: &FileCtx<'_>, unit: &mut Unit<'_>) -> Result<()> {
    let node = unit.node.clone();
    if let Origin::Direct { deferred_until: Some(until), .. } = unit.origin {
        let mut st = node.state.write();
        if st.freed {
            unit.abort(cx, &mut st);
        } else {
            set_size_and_times(&mut st, unit, unit.size);
            defer(cx, &mut st, unit, until);
        }
        return Ok(());
    }
    if cx.lazy && unit.extents.is_empty() && unit.inline.is_none() {
        let mut st = node.state.write();
        if !st.freed && st.disk_size == unit.size && st.inode.size == unit.size {
            // Everything was overwritten in place. Only the times of the inode have changed, and it stays dirty.
            unit.finish(cx, &mut st);
            return Ok(());
        }
    }
    loop {
        let mut n = unit.extents.len().min(MAPPED_PER_TXN);
        while !fits_one_txn(cx, &node, &unit.extents[..n]) {
            n /= 2;
        }
        let _on_behalf = unit.on_behalf();
        let txn = cx.journal.begin(log_bytes(cx, &node, &unit.extents[..n]))?;
        let mut st = node.state.write();
        if st.freed {
            // The file was removed meanwhile. Another inode may be at its old location.
            unit.abort(cx, &mut st);
            return Ok(());
        }
        if let Origin::Moved { version } = unit.origin
            && (node.data_version.load(Ordering::Relaxed) != version || !is_as_copied(cx, &st, &unit.extents[..n])?)
        {
            // Somebody wrote to the file meanwhile, or changed its mapping. It stays where it is.
            unit.abort(cx, &mut st);
            return Ok(());
        }
        if n == unit.extents.len() {
            return commit_in(cx, &txn, &mut st, unit);
        }
        let end = unit.extents.get(n).map_or(unit.size, |p| p.extent.logical << cx.cache.geometry().frag_shift);
        map_extents(cx, &txn, &mut st, unit, n)?;
        // The size covers everything before the next extent, because no extent may lie beyond the size on the device.
        st.disk_size = st.disk_size.max(end.min(unit.size));
        node::store(&txn, &mut st)?;
    }
}

/// Keeps the extents of a unit in the node until their mapping is committed. The data is in place.
fn defer(cx: &FileCtx<'_>, st: &mut NodeState, unit: &mut Unit<'_>, free_until: u64) {
    st.data.deferred.free_until = free_until;
    st.data.deferred.add(cx.cache.geometry(), unit.extents.drain(..).map(|p| p.extent));
    if let Some(reservation) = unit.reservation.take() {
        st.data.reservation(cx.space).merge(reservation);
    }
    unit.note_ended(st);
    st.dirty = true;
}

/// As [`commit`], in the transaction that is open.
pub(super) fn commit_in(cx: &FileCtx<'_>, txn: &Txn<'_>, st: &mut NodeState, unit: &mut Unit<'_>) -> Result<()> {
    map_extents(cx, txn, st, unit, unit.extents.len())?;
    if let Some(bytes) = unit.inline.take() {
        st.inode.format = InodeFormat::Inline(bytes);
    }
    set_size_and_times(st, unit, unit.size);
    // A file that is being truncated has extents up to a greater size on the device. The size of a directory is not set
    // here, because it may have shrunk since its times were taken.
    if st.dir.is_none() {
        st.disk_size = st.disk_size.max(unit.size);
    }
    unit.finish(cx, st);
    node::store(txn, st)
}

/// Makes what a direct write wrote part of the file, up to `size`.
fn set_size_and_times(st: &mut NodeState, unit: &Unit<'_>, size: u64) {
    if let Origin::Direct { mtime, .. } = unit.origin {
        st.inode.size = st.inode.size.max(size);
        (st.inode.mtime, st.inode.ctime) = (mtime, mtime);
    }
}

/// Maps the first `n` extents of a unit and removes them from it. After an error the inode is stored with the extents
/// mapped so far, because the extent tree and the root in the inode change together or not at all.
fn map_extents(cx: &FileCtx<'_>, txn: &Txn<'_>, st: &mut NodeState, unit: &mut Unit<'_>, n: usize) -> Result<()> {
    // The tree takes its blocks from what was reserved for it.
    match &unit.tree {
        Some(tree) => txn.draw_on(tree),
        None => txn.draw_on(st.data.reservation(cx.space)),
    }
    let inline = matches!(st.inode.format, InodeFormat::Inline(_)).then(|| st.inode.format.clone());
    if inline.is_some() && n > 0 {
        st.inode.format = InodeFormat::Extents(Vec::new());
    }
    let (mut mapped, mut frags) = (0, 0);
    let mut outcome = Ok(());
    for Pending { extent: e, change } in &unit.extents[..n] {
        outcome = match change {
            Change::Map => extent::map(txn, cx.space, &mut st.inode, *e),
            Change::Convert => make_written(txn, cx, st, *e),
            Change::Move(from) => relocate(txn, cx, st, *e, *from),
        };
        if outcome.is_err() {
            break;
        }
        mapped += 1;
        frags += if *change == Change::Map { e.len } else { 0 };
    }
    if let Some(moved) = &unit.moved {
        moved.fetch_add(unit.extents[..mapped].iter().map(|p| p.extent.len).sum(), Ordering::Relaxed);
    }
    let end = unit.extents.drain(..mapped).next_back().map_or(0, |p| p.extent.end());
    unit.note_committed(st, frags);
    if outcome.is_err() {
        match inline {
            Some(inline) if mapped == 0 => st.inode.format = inline,
            _ => {
                st.disk_size = st.disk_size.max((end << cx.cache.geometry().frag_shift).min(unit.size));
                set_size_and_times(st, unit, st.disk_size);
                node::store(txn, st)?;
            }
        }
    }
    outcome
}

/// Marks a part of an unwritten extent as written.
fn make_written(txn: &Txn<'_>, cx: &FileCtx<'_>, st: &mut NodeState, e: Extent) -> Result<()> {
    let mut at = e.logical;
    while at < e.end() {
        at = extent::convert(txn, cx.space, &mut st.inode, at..e.end(), false)?;
    }
    Ok(())
}

/// Whether the file has these parts where they were when they were copied.
fn is_as_copied(cx: &FileCtx<'_>, st: &NodeState, parts: &[Pending]) -> Result<bool> {
    for Pending { extent: e, change } in parts {
        let Change::Move(from) = *change else { continue };
        let same = match extent::lookup(cx.cache, &st.inode, e.logical)? {
            Mapping::Data(x) => {
                let here = x.start + (e.logical - x.logical);
                x.end() >= e.end() && x.unwritten == e.unwritten && here == from
            }
            Mapping::Hole { .. } => false,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(!st.orphan)
}

/// Moves a part of an extent from another place, which is freed.
fn relocate(txn: &Txn<'_>, cx: &FileCtx<'_>, st: &mut NodeState, e: Extent, from: FragAddr) -> Result<()> {
    let (old, new) = (Run { start: from, len: e.len }, Run { start: e.start, len: e.len });
    // What the bitmap needs is read before, because after the mapping nothing may fail.
    cx.space.prepare_free(old)?;
    cx.space.prepare_commit(new)?;
    extent::relocate(txn, cx.space, &mut st.inode, e.logical..e.end(), e.start)?;
    cx.space.commit_alloc(txn, new)?;
    txn.free_data(old);
    cx.space.free(txn, old)
}
