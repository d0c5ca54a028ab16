//! Committing the mapping: the one way in which written data, and space that is allocated ahead, becomes a file's.
//!
//! Whatever wrote the data (writeback, a direct write, the journal, or earlier direct writes whose extents were deferred),
//! it ends as a [`Unit`] with pending extents. A transaction then changes bitmap, extents and inode together. The data
//! left for the device before the transaction commits, so nothing on the device points to data that is not there.

use super::FileCtx;
use super::unit::{Change, Origin, Pending, Unit};
use crate::error::Result;
use crate::extent::{self, EXTENTS_PER_TXN};
use crate::format::inode::{INLINE_MAX, INODE_CORE_SIZE};
use crate::format::{Extent, InodeFormat};
use crate::journal::Txn;
use crate::node::{self, Node, NodeState};

/// Most bytes that committing these extents logs.
pub(super) fn log_bytes(cx: &FileCtx<'_>, node: &Node, extents: &[Pending]) -> usize {
    let g = cx.cache.geometry();
    let st = node.state.read();
    let inode = &st.inode;
    // A part of an unwritten extent may leave a rest on both sides.
    let more = extents.iter().map(|p| 1 + usize::from(p.change == Change::Convert)).sum::<usize>();
    let simple = matches!(&inode.format, InodeFormat::Extents(l) if l.len() + more <= inode.root_capacity())
        || matches!(inode.format, InodeFormat::Inline(_)) && more <= inode.root_capacity();
    let insert = if simple {
        0
    } else {
        // The tree may get a root and a level while these are inserted.
        extent::log_bytes_for_convert(g, cx.space, inode) + 4 * (g.block_size() + 64) + 4 * cx.space.log_bytes(64)
    };
    let bits: usize = extents.iter().map(|p| cx.space.log_bytes(p.extent.len) + insert).sum();
    INODE_CORE_SIZE + INLINE_MAX + 64 + bits + cx.space.log_bytes_for_init()
}

/// Whether all of these extents are committed in one transaction. One extent always is.
pub(super) fn fits_one_txn(cx: &FileCtx<'_>, node: &Node, extents: &[Pending]) -> bool {
    extents.len() < 2 || log_bytes(cx, node, extents) <= txn_bytes_max(cx)
}

fn txn_bytes_max(cx: &FileCtx<'_>) -> usize {
    cx.journal.reserve_max() / 4
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
            // Overwritten: the inode has nothing new but times, and stays dirty.
            unit.finish(cx, &mut st);
            return Ok(());
        }
    }
    loop {
        let mut n = unit.extents.len().min(EXTENTS_PER_TXN);
        while !fits_one_txn(cx, &node, &unit.extents[..n]) {
            n /= 2;
        }
        let txn = cx.journal.begin(log_bytes(cx, &node, &unit.extents[..n]))?;
        let mut st = node.state.write();
        if st.freed {
            // Removed meanwhile: another inode may stand where it stood.
            unit.abort(cx, &mut st);
            return Ok(());
        }
        if n == unit.extents.len() {
            return commit_in(cx, &txn, &mut st, unit);
        }
        let end = unit.extents.get(n).map_or(unit.size, |p| p.extent.logical << cx.cache.geometry().frag_shift);
        map_extents(cx, &txn, &mut st, unit, n)?;
        // All before the next extent is written: no extent lies beyond the end that the device shows.
        st.disk_size = st.disk_size.max(end.min(unit.size));
        node::store(&txn, &mut st)?;
    }
}

/// The node keeps the extents of a unit, whose data is in place, until their mapping is committed.
fn defer(cx: &FileCtx<'_>, st: &mut NodeState, unit: &mut Unit<'_>, free_until: u64) {
    st.data.deferred.free_until = free_until;
    st.data.deferred.add(cx.cache.geometry(), unit.extents.drain(..).map(|p| p.extent));
    if let Some(reservation) = unit.reservation.take() {
        st.data.reservation(cx.space).merge(reservation);
    }
    (st.data.in_flight, st.data.taken) = (0, 0);
    st.dirty = true;
}

/// As [`commit`], in the transaction that is open.
pub(super) fn commit_in(cx: &FileCtx<'_>, txn: &Txn<'_>, st: &mut NodeState, unit: &mut Unit<'_>) -> Result<()> {
    map_extents(cx, txn, st, unit, unit.extents.len())?;
    if let Some(bytes) = unit.inline.take() {
        st.inode.format = InodeFormat::Inline(bytes);
    }
    set_size_and_times(st, unit, unit.size);
    // A file that is being cut has extents up to a greater size on the device. A directory's size is its own business:
    // it may have shrunk since its times were taken.
    if st.dir.is_none() {
        st.disk_size = st.disk_size.max(unit.size);
    }
    unit.finish(cx, st);
    node::store(txn, st)
}

/// What a direct write wrote is the file's from here on, up to `size`.
fn set_size_and_times(st: &mut NodeState, unit: &Unit<'_>, size: u64) {
    if let Origin::Direct { mtime, .. } = unit.origin {
        st.inode.size = st.inode.size.max(size);
        (st.inode.mtime, st.inode.ctime) = (mtime, mtime);
    }
}

/// Maps the first `n` extents of a unit and takes them from it. After an error the inode is stored with those that were
/// mapped before: the extent tree and the root in the inode change together or not at all.
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
        };
        if outcome.is_err() {
            break;
        }
        mapped += 1;
        frags += if *change == Change::Map { e.len } else { 0 };
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

/// A part of an unwritten extent has its contents.
fn make_written(txn: &Txn<'_>, cx: &FileCtx<'_>, st: &mut NodeState, e: Extent) -> Result<()> {
    let mut at = e.logical;
    while at < e.end() {
        at = extent::convert(txn, cx.space, &mut st.inode, at..e.end(), false)?;
    }
    Ok(())
}
