//! Long writes past the cache: from the memory of the program that writes straight to the device.
//!
//! By way of pages ([`super::bulk`]) every byte is copied once, and goes out from buffers of one block each. Where the
//! device is as fast as a copy, that copy is what a long file waits for. Here whole blocks go to their place before the
//! write returns, and nothing of them is in memory then:
//!
//! - *Into a hole or at the end* this is a writeback of its own, in the same order: places in memory, the data, then a
//!   transaction that tells of them and of the new size. All that the file had in pages went before, so the size on the
//!   device never covers what is not there. At the end of a file that is growing already the transaction comes later, for
//!   many writes at once ([`super::deferred`]).
//! - *Over what is written* the node stays locked meanwhile, since readers would see the one or the other. There is nothing
//!   to tell but times.
//!
//! Whatever is not that plain, and all that fails, goes by way of pages, which know all cases and how errors are told.

use super::{FileCtx, deferred, reserve_tree, reserve_tree_for, writeback};
use crate::cache::{DataRun, Source};
use crate::error::Result;
use crate::extent::{self, Mapping};
use crate::format::InodeFormat;
use crate::inode::{Node, NodeState};
use crate::space::Run;
use std::ops::Range;
use std::sync::Arc;
use writeback::Job;

/// What is to be written, in whole blocks.
struct Blocks<'a> {
    first: u64,
    data: &'a [u8],
    frags: Range<u64>,
    end: u64,
}

/// Writes whole blocks at a time that becomes the file's; false, and nothing has happened, if it is not that plain. With a part
/// of a block at its end a write goes by way of pages as a whole: after a crash the file has all of its length or none.
/// [`Node::resize`] is held, and the node is not locked.
pub fn write(cx: &FileCtx<'_>, node: &Arc<Node>, offset: u64, data: &[u8], privileged: bool, now: i64) -> bool {
    let g = *cx.cache.geometry();
    let bs = g.block_size();
    if data.is_empty() || !data.len().is_multiple_of(bs) || !offset.is_multiple_of(bs as u64) {
        return false;
    }
    let (fpb, first) = (g.frags_per_block(), offset >> g.block_shift);
    let frags = first * fpb..(first + (data.len() / bs) as u64) * fpb;
    let blocks = Blocks { first, data, frags, end: offset + data.len() as u64 };
    for in_the_way in [true, false] {
        if let Some(written) = over(cx, node, &blocks, now) {
            return written;
        }
        match take(cx, node, &blocks, privileged, now) {
            Taken::Job(job) => return send(cx, node, job),
            Taken::NotYet if in_the_way => {
                // An error is kept for fsync, and what was to go first is there still.
                let _ = writeback::write_back(cx, vec![node.clone()]);
            }
            Taken::NotYet | Taken::Nothing => break,
        }
    }
    false
}

/// Cuts bytes that go to a run of the device into requests.
fn add_runs<'a>(cx: &FileCtx<'_>, runs: &mut Vec<DataRun<'a>>, frag: u64, bytes: &'a [u8]) {
    let g = cx.cache.geometry();
    let bs = g.block_size();
    let most = (cx.cache.max_request() / bs).max(1) * bs;
    let mut frag = frag;
    for part in bytes.chunks(most) {
        runs.push(DataRun { frag, bytes: Source::Caller(part), from: 0, len: part.len(), keep: false });
        frag += (part.len() >> g.frag_shift) as u64;
    }
}

/// Writes over blocks that the file has all of, written. `None` if it has not; false if they are not to be written here.
fn over(cx: &FileCtx<'_>, node: &Node, blocks: &Blocks<'_>, now: i64) -> Option<bool> {
    let g = cx.cache.geometry();
    let fpb = g.frags_per_block();
    let mut guard = node.state.write();
    let st = &mut *guard;
    let Blocks { first, data, frags, end } = blocks;
    if *end > st.disk_size.min(st.inode.size) || matches!(st.inode.format, InodeFormat::Inline(_)) {
        return None;
    }
    let pages = st.data.pages.range(first..).next().is_some_and(|(i, _)| i * fpb < frags.end);
    if st.dead || pages {
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
    // With checksums a commit comes before the data; nobody may commit with a node locked.
    if cx.sums.is_some() || cx.cache.write_data(&mut runs).is_err() {
        return Some(false);
    }
    (st.inode.mtime, st.inode.ctime) = (now, now);
    st.dirty = true;
    Some(true)
}

#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
enum Taken<'a> {
    /// Not here.
    Nothing,
    /// Not before a writeback of the file: it has pages, or places that are to be told of first.
    NotYet,
    Job(Job<'a>),
}

/// Finds places for blocks where the file has none, and makes a writeback of them.
fn take<'a>(cx: &FileCtx<'_>, node: &Arc<Node>, blocks: &Blocks<'a>, privileged: bool, now: i64) -> Taken<'a> {
    let (mut guard, mut busy) = node.lock_for_writeback();
    let st = &mut *guard;
    let start = blocks.end - blocks.data.len() as u64;
    let inline = matches!(&st.inode.format, InodeFormat::Inline(d) if !d.is_empty());
    if st.dead || inline || start > st.inode.size || blocks.end <= cx.placement.small_max() {
        return Taken::Nothing;
    }
    let g = cx.cache.geometry();
    if !st.data.deferred.is_empty() && !st.data.deferred.continues_with(g, &blocks.frags) {
        return Taken::NotYet;
    }
    let Some(free_until) = free_until(cx, st, &blocks.frags) else { return Taken::Nothing };
    if !st.data.pages.is_empty() {
        return Taken::NotYet;
    }
    let places = blocks.frags.end - blocks.frags.start;
    let reservation = st.data.new_reservation(cx, privileged);
    if reservation.reserve(places, privileged).is_err() {
        return Taken::Nothing;
    }
    let pages = places / g.frags_per_block();
    if reserve_tree_for(cx, st, places, pages, privileged).is_err() {
        return Taken::Nothing;
    }
    st.data.in_flight = places;
    // With sums there is a transaction for each write anyway. A file without a list of extents gets one with the first that is
    // told.
    let at_end = start == deferred::written_size(st) && start == st.inode.size;
    let later = at_end && cx.sums.is_none() && !matches!(st.inode.format, InodeFormat::Inline(_));
    let size = st.inode.size.max(blocks.end);
    let mut job = Job::by_caller(node.clone(), size, blocks.first, reservation, now, later.then_some(free_until));
    if !matches!(place(cx, st, &mut job, blocks), Ok(true)) {
        writeback::abort(cx, st, &mut job);
        let _ = reserve_tree(cx, st, privileged); // less than before
        return Taken::Nothing;
    }
    *busy = true;
    Taken::Job(job)
}

/// Up to where nothing is mapped, if that is all of these fragments. What is deferred ends where they begin.
fn free_until(cx: &FileCtx<'_>, st: &NodeState, frags: &Range<u64>) -> Option<u64> {
    let known = st.data.deferred.free_until();
    let until = known.or_else(|| match extent::lookup(cx.cache, &st.inode, frags.start) {
        Ok(Mapping::Hole { until }) => Some(until),
        _ => None,
    });
    until.filter(|until| *until >= frags.end)
}

/// Places for all of the blocks; false if that takes more than one transaction can tell of, or there is no space.
fn place<'a>(cx: &FileCtx<'_>, st: &NodeState, job: &mut Job<'a>, blocks: &Blocks<'a>) -> Result<bool> {
    let g = *cx.cache.geometry();
    let Range { start, end } = blocks.frags;
    let mut after = match start.checked_sub(1) {
        None => None,
        Some(before) => match deferred::lookup(cx, st, before)? {
            Mapping::Data(e) => Some(e.start + (start - e.logical)),
            Mapping::Hole { .. } => None,
        },
    };
    // Holes do not make a file long.
    let has = st.inode.frags + st.data.deferred.frags() + (end - start);
    let so_far = blocks.end.min(has << g.frag_shift);
    let ahead = g.frag_of_block(so_far.min(writeback::AHEAD_MAX) >> g.block_shift);
    let (mut at, mut rest) = (start, blocks.data);
    while at < end {
        let placed = cx.placement.place_stream(st.inode.parent, after, end - at, ahead)?;
        let Some(run) = placed.map(|p| p.run) else { return Ok(false) };
        job.allocated(at, run);
        let whole = run.start.is_multiple_of(g.frags_per_block()) && run.len.is_multiple_of(g.frags_per_block());
        if !whole || job.extents.len() > writeback::EXTENTS_PER_TXN {
            return Ok(false);
        }
        let (here, more) = rest.split_at((run.len << g.frag_shift) as usize);
        add_runs(cx, &mut job.runs, run.start, here);
        (rest, at, after) = (more, at + run.len, Some(run.end()));
    }
    Ok(true)
}

/// Writes a job and tells of it; false after an error, with which the file is as it was.
fn send(cx: &FileCtx<'_>, node: &Arc<Node>, mut job: Job<'_>) -> bool {
    // Told of in parts, the file would have a part of what was written when the rest fails. One extent is no parts.
    if job.later.is_none()
        && job.extents.len() > 1
        && writeback::log_bytes_for_mapping(cx, node, &job.extents) > cx.journal.reserve_max() / 4
    {
        writeback::abort(cx, &mut node.state.write(), &mut job);
        writeback::end_writeback(node);
        return false;
    }
    writeback::write_jobs(cx, vec![job]).is_ok()
}
