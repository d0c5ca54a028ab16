//! Direct writes: from the memory of the program straight to the device, without a copy in the cache.
//!
//! A write through pages ([`super::bulk`]) copies every byte once, and writes it from buffers of one block each. If the
//! device is as fast as that copy, a long write waits mainly for the copy. A direct write puts whole blocks in place
//! before it returns, and keeps none of them in memory:
//!
//! - *Into a hole or at the end* a direct write is a writeback of its own, in the same order: allocate extents, write
//!   the data, commit the mapping. All pages of the file are written back before, so that the size on the device never
//!   covers missing data. At the end of a growing file the mapping is committed later, for many writes at once
//!   ([`super::deferred`]).
//! - *Over written blocks* the node stays locked during the write, because readers must see either the old or the new
//!   contents. Only times change.
//!
//! Any other case, and any failure, falls back to pages, which handle all cases and report errors.

use super::collect::AHEAD_MAX;
use super::mapping;
use super::reserve::{preceding, reserve_tree, reserve_tree_for};
use super::unit::{Origin, Unit};
use super::{FileCtx, deferred, writeback};
use crate::cache::{DataRun, Source};
use crate::error::{Error, Result};
use crate::extent::{self, MAPPED_PER_TXN, Mapping};
use crate::format::Run;
use crate::format::{Extent, InodeFormat};
use crate::node::{Node, NodeState};
use crate::reservation::BlocksFrom;
use crate::space::Over;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What is to be written, in whole blocks.
struct Blocks<'a> {
    data: &'a [u8],
    frags: Range<u64>,
    end: u64,
}

/// Writes whole blocks directly, with `now` as the modification time. Returns false, with nothing changed, if that is
/// not possible. A write that ends in a part of a block goes through pages as a whole, because after a crash the file
/// must have all of its length or none. [`Node::write_lock`] is held, and the node is not locked.
pub fn write(cx: &FileCtx<'_>, node: &Arc<Node>, offset: u64, data: &[u8], privileged: bool, now: i64) -> bool {
    let g = *cx.cache.geometry();
    let bs = g.block_size();
    if data.is_empty() || !data.len().is_multiple_of(bs) || !offset.is_multiple_of(bs as u64) {
        return false;
    }
    let (fpb, first) = (g.frags_per_block(), offset >> g.block_shift);
    let frags = first * fpb..(first + (data.len() / bs) as u64) * fpb;
    let blocks = Blocks { data, frags, end: offset + data.len() as u64 };
    for may_write_back in [true, false] {
        if let Some(written) = overwrite(cx, node, &blocks, privileged, now) {
            return written;
        }
        match prepare(cx, node, &blocks, privileged, now) {
            Prepared::Unit(unit) => return send(cx, node, unit),
            Prepared::AfterWriteback if may_write_back => {
                // The error is kept for fsync, and the pages that failed stay dirty.
                let _ = writeback::write_back(cx, vec![node.clone()]);
            }
            Prepared::AfterWriteback | Prepared::No => break,
        }
    }
    false
}

/// Cuts bytes that go to a run of the device into requests.
pub(super) fn add_runs<'a>(cx: &FileCtx<'_>, runs: &mut Vec<DataRun<'a>>, frag: u64, bytes: &'a [u8]) {
    let g = cx.cache.geometry();
    let bs = g.block_size();
    let most = (cx.cache.max_request() / bs).max(1) * bs;
    let mut frag = frag;
    for part in bytes.chunks(most) {
        runs.push(DataRun { frag, bytes: Source::Caller(part), from: 0, len: part.len(), keep: false });
        frag += (part.len() >> g.frag_shift) as u64;
    }
}

/// Overwrites blocks if the file has all of them, and they are written. `None` if it has not; false if they cannot be
/// overwritten here.
fn overwrite(cx: &FileCtx<'_>, node: &Node, blocks: &Blocks<'_>, privileged: bool, now: i64) -> Option<bool> {
    let g = cx.cache.geometry();
    let fpb = g.frags_per_block();
    let mut guard = node.state.write();
    let st = &mut *guard;
    let Blocks { data, frags, end } = blocks;
    if *end > st.disk_size.min(st.inode.size) || matches!(st.inode.format, InodeFormat::Inline(_)) {
        return None;
    }
    let pages = st.data.pages.range(frags.start / fpb..).next().is_some_and(|(i, _)| i * fpb < frags.end);
    if st.freed || pages {
        return Some(false);
    }
    let mut runs = Vec::new();
    let mut at = frags.start;
    let mut rest = *data;
    while at < frags.end {
        let Ok(Mapping::Data(e)) = extent::lookup(cx.cache, &st.inode, at) else { return None };
        let run = Run { start: e.start + (at - e.logical), len: e.end().min(frags.end) - at };
        let whole = run.start.is_multiple_of(fpb) && run.len.is_multiple_of(fpb);
        if e.unwritten || !whole || cx.journal.data_in_log(run) {
            return Some(false);
        }
        let (here, after) = rest.split_at((run.len << g.frag_shift) as usize);
        add_runs(cx, &mut runs, run.start, here);
        (rest, at) = (after, e.end());
    }
    // What others were promised is not for this. If there is not twice as much, it goes through pages.
    let there = frags.end - frags.start;
    let _claim = cx.space.claim(there);
    if cx.space.check_overwrite(Over::written(there), privileged).is_err() {
        return Some(false);
    }
    node.data_version.fetch_add(1, Ordering::Relaxed);
    // With checksums a commit comes before the data, and nobody may commit while holding a node's lock.
    if cx.sums.is_some() || cx.cache.write_data(&mut runs.iter().collect::<Vec<_>>()).is_err() {
        return Some(false);
    }
    (st.inode.mtime, st.inode.ctime) = (now, now);
    st.dirty = true;
    Some(true)
}

#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
enum Prepared<'a> {
    /// A direct write is not possible.
    No,
    /// Only after a writeback of the file, which has pages or deferred extents in the way.
    AfterWriteback,
    Unit(Unit<'a>),
}

/// Allocates extents for blocks where the file has none, and makes a unit of them.
fn prepare<'a>(cx: &FileCtx<'_>, node: &Arc<Node>, blocks: &Blocks<'a>, privileged: bool, now: i64) -> Prepared<'a> {
    let (mut guard, mut under_way) = node.lock_for_writeback();
    let st = &mut *guard;
    let start = blocks.end - blocks.data.len() as u64;
    let inline = matches!(&st.inode.format, InodeFormat::Inline(d) if !d.is_empty());
    if st.freed || inline || start > st.inode.size || blocks.end <= cx.placement.small_max() {
        return Prepared::No;
    }
    let g = cx.cache.geometry();
    if !st.data.deferred.is_empty() && !st.data.deferred.continues_with(g, &blocks.frags) {
        return Prepared::AfterWriteback;
    }
    let Some(free_until) = free_until(cx, st, &blocks.frags) else { return Prepared::No };
    if !st.data.pages.is_empty() {
        return Prepared::AfterWriteback;
    }
    let frags = blocks.frags.end - blocks.frags.start;
    // Before it is reserved: if there is not twice as much, it goes through pages.
    let claim = cx.space.claim(frags);
    let reservation = st.data.new_reservation(cx.space, privileged);
    if reservation.reserve(frags, privileged).is_err()
        || reserve_tree_for(cx, st, frags, frags / g.frags_per_block(), BlocksFrom::of(privileged)).is_err()
    {
        return Prepared::No;
    }
    // With checksums each write takes a transaction anyway. A file without a list of extents gets one with its first
    // committed extent.
    let at_end = start == deferred::written_size(st) && start == st.inode.size;
    let later = at_end && cx.sums.is_none() && !matches!(st.inode.format, InodeFormat::Inline(_));
    let origin = Origin::Direct { mtime: now, deferred_until: later.then_some(free_until) };
    let mut unit = Unit::new(node.clone(), origin, st.inode.size.max(blocks.end));
    unit.reservation = Some(reservation);
    unit.claim = Some(claim);
    unit.note_begun(st, frags);
    if allocate(cx, st, &mut unit, blocks).is_err() {
        unit.abort(cx, st);
        let _ = reserve_tree(cx, st, privileged); // less than before
        return Prepared::No;
    }
    under_way.begin_alone();
    Prepared::Unit(unit)
}

/// The end of the hole that covers all of these fragments, `None` if something is mapped there. Deferred extents, if
/// there are any, end at the first of these fragments.
fn free_until(cx: &FileCtx<'_>, st: &NodeState, frags: &Range<u64>) -> Option<u64> {
    let known = st.data.deferred.free_until();
    let until = known.or_else(|| match extent::lookup(cx.cache, &st.inode, frags.start) {
        Ok(Mapping::Hole { until }) => Some(until),
        _ => None,
    });
    until.filter(|until| *until >= frags.end)
}

/// Allocates whole blocks for all of the data, with no more extents than one transaction can commit. An error if that
/// is not possible.
fn allocate<'a>(cx: &FileCtx<'_>, st: &NodeState, unit: &mut Unit<'a>, blocks: &Blocks<'a>) -> Result<()> {
    let g = *cx.cache.geometry();
    let Range { start, end } = blocks.frags;
    let mut after = preceding(cx, st, start)?;
    // Holes do not make a file long.
    let has = st.inode.frags + st.data.deferred.frags() + (end - start);
    let so_far = blocks.end.min(has << g.frag_shift);
    let ahead = g.frag_of_block(so_far.min(AHEAD_MAX) >> g.block_shift);
    let (mut at, mut rest) = (start, blocks.data);
    while at < end {
        let run = cx.placement.allocate_stream(st.inode.parent, after, end - at, ahead)?.ok_or(Error::NoSpace)?;
        unit.add_allocated(Extent { logical: at, start: run.start, len: run.len, unwritten: false });
        let whole = run.start.is_multiple_of(g.frags_per_block()) && run.len.is_multiple_of(g.frags_per_block());
        if !whole || unit.extents.len() > MAPPED_PER_TXN {
            return Err(Error::NoSpace);
        }
        let (here, more) = rest.split_at((run.len << g.frag_shift) as usize);
        add_runs(cx, &mut unit.runs, run.start, here);
        (rest, at, after) = (more, at + run.len, Some(run.end()));
    }
    Ok(())
}

/// Writes a unit and commits its mapping; false after an error, with which the file is as it was.
fn send(cx: &FileCtx<'_>, node: &Arc<Node>, mut unit: Unit<'_>) -> bool {
    // An error between two transactions would leave a part of the write in the file, so a commit that needs several is
    // refused.
    let deferred = matches!(unit.origin, Origin::Direct { deferred_until: Some(_), .. });
    if !deferred && !mapping::fits_one_txn(cx, node, &unit.extents) {
        unit.abort(cx, &mut node.state.write());
        unit.end();
        return false;
    }
    writeback::write_units(cx, vec![unit]).is_ok()
}
