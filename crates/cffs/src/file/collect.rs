//! Collecting the dirty pages of a file for a writeback, and allocating extents for them.

use super::FileCtx;
use super::reserve::preceding;
use super::retry::{Reclaim, with_space};
use super::unit::{Change, Origin, Pending, Unit};
use crate::cache::{DataRun, Source};
use crate::error::{Error, Result};
use crate::extent::{self, Mapping};
use crate::format::Run;
use crate::format::{Corrupt, Extent, FileType, InodeFormat};
use crate::node::{Node, NodeState};
use crate::placement::STREAM_MIN;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most bytes of a file beyond those being written for which free space is looked for.
pub(super) const AHEAD_MAX: u64 = 32 << 20;

/// Collects the dirty pages of a file and allocates extents for them. Returns `None` if nothing is dirty. With
/// `for_log` new blocks are created in the cache, for data that is written through the journal. An error is kept for
/// fsync.
pub(super) fn collect(cx: &FileCtx<'_>, node: &Arc<Node>, for_log: bool) -> Result<Option<Unit<'static>>> {
    with_space(cx, Reclaim::Commit, || collect_once(cx, node, for_log)).inspect_err(|e| {
        node.state.write().data.error.get_or_insert(e.duplicate());
    })
}

fn collect_once(cx: &FileCtx<'_>, node: &Arc<Node>, for_log: bool) -> Result<Option<Unit<'static>>> {
    let (mut guard, mut under_way) = node.lock_for_writeback();
    let st = &mut *guard;
    if !may_be_written(node, st) {
        return Ok(None);
    }
    let accessed = node.pending_atime.swap(i64::MIN, Ordering::Relaxed);
    if accessed > st.inode.atime {
        st.inode.atime = accessed;
        st.dirty = true;
    }
    if st.data.is_mapped() && !st.dirty {
        return Ok(None);
    }
    let mut unit = Unit::new(node.clone(), Origin::Pages, st.inode.size);
    unit.keep = !cx.cache.is_large(st.inode.size);
    unit.pages = st.data.take_dirty();
    if !st.data.deferred.is_empty() {
        debug_assert!(unit.pages.is_empty(), "pages of a file that has deferred extents");
        unit.origin = Origin::Deferred;
        unit.extents = st.data.deferred.extents().iter().copied().map(Pending::map).collect();
        under_way.begin_alone();
        return Ok(Some(unit));
    }
    if !unit.pages.is_empty() {
        begin(cx, st, &mut unit, for_log)?;
    }
    under_way.begin_alone();
    Ok(Some(unit))
}

/// Whether data of the file goes to the device. A file without a name is freed with its last reference. Until then its data must be able to leave
/// memory.
fn may_be_written(node: &Node, st: &NodeState) -> bool {
    !st.freed && (!st.orphan || node.refs.load(Ordering::Acquire) > 0)
}

/// Allocates extents for the pages that a unit has taken. After an error they are dirty again.
fn begin(cx: &FileCtx<'_>, st: &mut NodeState, unit: &mut Unit<'_>, for_log: bool) -> Result<()> {
    let in_flight = unit.pages.iter().map(|p| p.reserved).sum();
    unit.note_begun(st, in_flight);
    unit.reservation = Some(st.data.reservation(cx.space).split(in_flight));
    allocate(cx, st, unit, for_log).inspect_err(|_| unit.abort(cx, st))
}

/// The same for a writeback beside others of the same file, which is long: so many pages at most, in the order of the file. `None` if none
/// can begin now, or there is nothing to take; it waits for nobody.
pub(super) fn collect_beside(cx: &FileCtx<'_>, node: &Arc<Node>, most: usize) -> Result<Option<Unit<'static>>> {
    let mut guard = node.state.write();
    let st = &mut *guard;
    let mut under_way = node.under_way.lock();
    let long = st.inode.size > cx.placement.small_max() && st.data.deferred.is_empty();
    if !under_way.may_join() || !long || !may_be_written(node, st) {
        return Ok(None);
    }
    let (pages, left) = st.data.take_full(cx.cache.geometry(), st.disk_size, most);
    if pages.is_empty() {
        return Ok(None);
    }
    let until = left.map_or(u64::MAX, |index| index << cx.cache.geometry().block_shift);
    let mut unit = Unit::new(node.clone(), Origin::Pages, st.inode.size.min(until).max(st.disk_size));
    unit.keep = !cx.cache.is_large(st.inode.size);
    unit.pages = pages;
    begin(cx, st, &mut unit, false)?;
    let turn = under_way.next();
    st.data.allocated.extend(unit.extents.iter().filter(|p| p.change == Change::Map).map(|p| (turn, p.extent)));
    unit.turn = Some(turn);
    under_way.join();
    Ok(Some(unit))
}

/// A piece of a file that has no extent.
struct Unmapped {
    logical: u64,
    len: u64,
}

/// Allocates extents for the pages of a unit, and lists what is to be written where.
fn allocate(cx: &FileCtx<'_>, st: &NodeState, unit: &mut Unit<'_>, for_log: bool) -> Result<()> {
    if let Some(bytes) = inline_contents(st) {
        unit.inline = Some(bytes);
        return Ok(());
    }
    let unmapped = list_mapped(cx, st, unit)?;
    // A device that has lost a write may show other extents than it did when the bytes were written.
    let need: u64 = unmapped.iter().map(|u| u.len).sum();
    let reserved: u64 = unit.pages.iter().map(|p| p.reserved).sum();
    if need > reserved {
        let what = format!(
            "inode {}: {need} dirty fragments have no extent, {reserved} had none when they were written",
            st.inode.ino
        );
        return Err(Corrupt(what).into());
    }
    for Unmapped { mut logical, mut len } in unmapped {
        while len > 0 {
            let run = allocate_part(cx, st, unit, logical, len, for_log)?.ok_or(Error::NoSpace)?;
            unit.add_allocated(Extent { logical, start: run.start, len: run.len, unwritten: false });
            add_runs(cx, st, unit, logical, run);
            logical += run.len;
            len -= run.len;
        }
    }
    // Parts of unwritten extents were listed before the new ones.
    unit.extents.sort_unstable_by_key(|p| p.extent.logical);
    Ok(())
}

/// The contents of a file that fit into its inode, if it has no extents.
fn inline_contents(st: &NodeState) -> Option<Vec<u8>> {
    let no_extents = match &st.inode.format {
        InodeFormat::Inline(_) => true,
        InodeFormat::Extents(list) => list.is_empty(),
        InodeFormat::Tree { .. } => false,
    };
    let fits = st.inode.file_type() == FileType::Regular && st.inode.size as usize <= st.inode.data_room();
    if !no_extents || !fits {
        return None;
    }
    let mut bytes = vec![0; st.inode.size as usize];
    if let Some(p) = st.data.pages.get(&0) {
        let n = bytes.len().min(p.bytes.len());
        bytes[..n].copy_from_slice(&p.bytes[..n]);
    }
    Some(bytes)
}

/// Lists what the pages of a unit overwrite, and the parts of unwritten extents that become written by that. Returns the
/// pieces that have no extent.
fn list_mapped(cx: &FileCtx<'_>, st: &NodeState, unit: &mut Unit<'_>) -> Result<Vec<Unmapped>> {
    let g = *cx.cache.geometry();
    let fs = g.frag_size();
    let mut unmapped: Vec<Unmapped> = Vec::new();
    let mut mapped: Vec<(u64, Run)> = Vec::new();
    // Where the unwritten extent of the last part ends. Each part is of one extent, so that it is in one leaf.
    let mut part_of = 0;
    for p in &unit.pages {
        let base = (p.index << g.block_shift) >> g.frag_shift;
        let mut at = base + (p.dirty.start / fs) as u64;
        let end = base + p.dirty.end.div_ceil(fs) as u64;
        while at < end {
            let found = match &st.inode.format {
                InodeFormat::Inline(_) => Mapping::Hole { until: end },
                _ => extent::lookup(cx.cache, &st.inode, at)?,
            };
            let until = match found {
                Mapping::Hole { until } => {
                    let until = until.min(end);
                    match unmapped.last_mut() {
                        Some(u) if u.logical + u.len == at => u.len += until - at,
                        _ => unmapped.push(Unmapped { logical: at, len: until - at }),
                    }
                    until
                }
                Mapping::Data(e) => {
                    let until = e.end().min(end);
                    let run = Run { start: e.start + (at - e.logical), len: until - at };
                    if e.unwritten {
                        match unit.extents.last_mut() {
                            Some(c) if c.extent.end() == at && part_of == e.end() => c.extent.len += run.len,
                            _ => {
                                let extent = Extent { logical: at, start: run.start, len: run.len, unwritten: true };
                                unit.extents.push(Pending { extent, change: Change::Convert });
                            }
                        }
                        part_of = e.end();
                    }
                    mapped.push((at, run));
                    until
                }
            };
            at = until;
        }
    }
    for (logical, run) in mapped {
        add_runs(cx, st, unit, logical, run);
        if cx.sums.is_some() {
            unit.overwritten.push(run);
        }
    }
    Ok(unmapped)
}

/// Allocates a run for the beginning of a piece.
fn allocate_part(
    cx: &FileCtx<'_>,
    st: &NodeState,
    unit: &mut Unit<'_>,
    logical: u64,
    len: u64,
    for_log: bool,
) -> Result<Option<Run>> {
    let parent = st.inode.parent;
    if st.inode.size <= cx.placement.small_max() {
        let (belongs_to, _) = cx.placement.unit(&st.inode);
        return cx.placement.allocate_small(belongs_to, len, for_log.then_some(cx.cache), &mut unit.fresh);
    }
    let new = || unit.extents.iter().filter(|p| p.change == Change::Map);
    let after = match new().next_back() {
        Some(p) => Some(p.run().end()),
        None => preceding(cx, st, logical)?,
    };
    // A file that is long already may well grow by as much again. Holes do not make a file long.
    let shift = cx.cache.geometry().frag_shift;
    let in_flight = st.data.allocated.iter().map(|(_, e)| e.len).sum::<u64>();
    let has = st.inode.frags + in_flight + new().map(|p| p.extent.len).sum::<u64>();
    let so_far = if logical << shift < STREAM_MIN { 0 } else { logical.min(has) << shift };
    if so_far < STREAM_MIN {
        cx.placement.allocate_large(parent, after, len)
    } else {
        cx.placement.allocate_stream(parent, after, len, so_far.min(AHEAD_MAX) >> shift)
    }
}

/// Lists the bytes of a run of logical fragments, page by page.
fn add_runs(cx: &FileCtx<'_>, st: &NodeState, unit: &mut Unit<'_>, logical: u64, run: Run) {
    let g = cx.cache.geometry();
    let (fs, fpb) = (g.frag_size(), g.frags_per_block());
    let mut at = logical;
    while at < logical + run.len {
        let page = at / fpb;
        let n = ((page + 1) * fpb).min(logical + run.len) - at;
        if let Some(p) = st.data.pages.get(&page) {
            unit.runs.push(DataRun {
                frag: run.start + (at - logical),
                bytes: Source::Page(p.bytes.clone()),
                from: (at - page * fpb) as usize * fs,
                len: n as usize * fs,
                keep: unit.keep,
            });
        }
        at += n;
    }
}
