//! Writeback: allocate extents, write the data, then commit the mapping.
//!
//! A commit only makes mappings durable whose data left for the device before. An fsync of a small file allocates in
//! the same way, but its data goes into the log with the transaction ([`super::log_write`]).
//!
//! With data checksums, they are stored after the data and before the mapping is committed. Checksums of data that is
//! overwritten in place are invalidated during the write (see [`crate::sums`]).

use super::unit::{Origin, Unit};
use super::{FileCtx, collect, mapping};
use crate::addr_map::AddrMap;
use crate::cache::DataRun;
use crate::error::{Error, Result};
use crate::format::Run;
use crate::format::{FileType, Ino, InodeFormat};
use crate::inode;
use crate::node::Node;
use crate::sums::{ChecksumRun, PinnedTables, Sums};
use crate::trace::Dirtied;
use cffs_device::Purpose;
use std::sync::Arc;

/// Data written in one go, in bytes. Bounds the memory that writeback holds on to.
const BATCH_BYTES: usize = 32 << 20;

/// The order of the name space: by what files are placed with, which is their directory mostly, then by position in the directory.
fn name_space_order(cx: &FileCtx<'_>, node: &Node) -> ((Ino, u64), Ino, u64, usize) {
    let st = node.state.read();
    let unit = cx.placement.unit(&st.inode);
    match st.location {
        inode::InodeLocation::Embedded { block, entry, .. } => (unit, st.inode.parent, block, entry),
        inode::InodeLocation::External { block, offset } => (unit, st.inode.parent, block, offset),
        inode::InodeLocation::System => ((0, 0), 0, 0, 0),
    }
}

/// Writes back the data of these nodes, allocating in the order of the name space. Errors are kept in the nodes for
/// fsync, and the first one is returned too.
pub fn write_back(cx: &FileCtx<'_>, nodes: Vec<Arc<Node>>) -> Result<()> {
    if nodes.is_empty() {
        return Ok(());
    }
    let _purpose = Purpose::Writeback.scope_if_none();
    let (_span, dirtied) = cx.writeback_span(&nodes);
    let mut ordered: Vec<_> = nodes.into_iter().map(|n| (name_space_order(cx, &n), n)).collect();
    ordered.sort_by_key(|(k, _)| *k);
    let sizes = new_small_files(cx, ordered.iter().map(|(_, n)| n));
    cx.placement.begin_batch(&sizes);
    let outcome = write_ordered(cx, ordered.into_iter().map(|(_, n)| n), &dirtied);
    cx.placement.end_batch(&sizes);
    outcome
}

/// Bytes of the fragments that new small files will have, by directory or other unit.
fn new_small_files<'a>(cx: &FileCtx<'_>, nodes: impl Iterator<Item = &'a Arc<Node>>) -> AddrMap<Ino, u64> {
    let g = *cx.cache.geometry();
    let mut sizes = AddrMap::default();
    for node in nodes {
        let st = node.state.read();
        let allocated = !matches!(&st.inode.format, InodeFormat::Inline(_)) && st.inode.frags > 0;
        let size = st.inode.size;
        if !allocated && size <= cx.placement.small_max() && st.inode.file_type() == FileType::Regular {
            let (unit, _) = cx.placement.unit(&st.inode);
            *sizes.entry(unit).or_default() += g.frags_for(size) << g.frag_shift;
        }
    }
    sizes
}

/// Data of a file that is to be written while other data of the file is on its way.
pub struct Batch {
    unit: Unit<'static>,
    dirtied: Dirtied,
    bytes: usize,
}

impl Batch {
    /// Bytes that are to be written.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Takes full pages of a file, so many at most, that no other writeback has taken, for [`write_beside`]. `None` if there are none, or
/// somebody waits for the file to be idle. Waits for nobody.
///
/// # Errors
/// Those of allocating. The pages are dirty again.
pub fn begin_beside(cx: &FileCtx<'_>, node: &Arc<Node>, most: usize) -> Result<Option<Batch>> {
    let Some(mut unit) = collect::collect_beside(cx, node, most)? else { return Ok(None) };
    let dirtied = cx.dirtied(std::slice::from_ref(node));
    unit.for_whom = dirtied.of(node.ino);
    Ok(Some(Batch { bytes: unit.bytes(), unit, dirtied }))
}

/// Writes such data, and commits its mapping after those that began before. Errors are kept in the node for fsync.
pub fn write_beside(cx: &FileCtx<'_>, batch: Batch) {
    let _purpose = Purpose::Writeback.scope_if_none();
    let Batch { unit, dirtied, .. } = batch;
    let _span = cx.writeback_span_for(1, &dirtied);
    // It is in the node.
    let _ = write_units(cx, vec![unit]);
}

fn write_ordered(cx: &FileCtx<'_>, nodes: impl Iterator<Item = Arc<Node>>, dirtied: &Dirtied) -> Result<()> {
    let mut first_error = None;
    let mut units = Vec::new();
    let mut bytes = 0;
    let mut iter = nodes.peekable();
    while let Some(node) = iter.next() {
        // What is on its way is waited for next. Until then this is on its way too.
        if node.under_way.lock().is_joinable()
            && let Ok(Some(batch)) = begin_beside(cx, &node, usize::MAX)
        {
            write_beside(cx, batch);
        }
        match collect::collect(cx, &node, false) {
            Ok(Some(mut unit)) => {
                unit.for_whom = dirtied.of(node.ino);
                bytes += unit.bytes();
                units.push(unit);
            }
            Ok(None) => {}
            Err(e) => {
                tracing::error!("writeback of inode {}: {e}", node.ino);
                first_error.get_or_insert(e);
            }
        }
        if bytes >= BATCH_BYTES || iter.peek().is_none() {
            bytes = 0;
            if let Err(e) = write_units(cx, std::mem::take(&mut units)) {
                first_error.get_or_insert(e);
            }
        }
    }
    first_error.map_or(Ok(()), Err)
}

/// Writes the data of units and commits their mapping. An error of the device in one unit's data fails that unit alone.
/// The last error is returned.
pub(super) fn write_units(cx: &FileCtx<'_>, units: Vec<Unit<'_>>) -> Result<()> {
    commit_all(cx, store(cx, units, FlushedBy::Commit))
}

/// Who makes data durable before something points to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FlushedBy {
    /// The commit of the transaction that maps it.
    Commit,
    /// Whoever writes it, before that transaction begins.
    Writer,
}

/// Units whose data was written, and how that went. Their mapping is not committed yet.
#[derive(Default)]
pub(super) struct Stored<'a> {
    units: Vec<(Unit<'a>, Result<()>)>,
    /// The last error of a unit that was given up before.
    failed: Option<Error>,
}

impl<'a> Stored<'a> {
    /// Adds more of them.
    pub(super) fn append(&mut self, mut more: Stored<'a>) {
        self.units.append(&mut more.units);
        self.failed = more.failed.or(self.failed.take());
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Nothing of it counts, because of an error.
    pub(super) fn fail_all(&mut self, e: &Error) {
        self.units.iter_mut().for_each(|(_, result)| *result = Err(e.duplicate()));
    }
}

/// Writes the data of units, and its checksums.
pub(super) fn store<'a>(cx: &FileCtx<'_>, mut units: Vec<Unit<'a>>, flushed_by: FlushedBy) -> Stored<'a> {
    let mut failed = None;
    let mut checksums: Vec<Vec<ChecksumRun>> = Vec::new();
    let mut tables = PinnedTables::default();
    let in_log = units.iter().flat_map(|u| &u.runs).any(|r| cx.journal.data_in_log(run_of(cx, r)));
    // A replay would undo what is written over logged data, so the log is emptied first.
    let mut written = if in_log { cx.journal.checkpoint() } else { Ok(()) };
    if let Some(sums) = cx.sums {
        units.retain_mut(|unit| match checksums_of(cx, sums, unit, &mut tables) {
            Ok(runs) => {
                checksums.push(runs);
                true
            }
            Err(e) => {
                failed = Some(fail(cx, unit, e));
                false
            }
        });
        let overwritten = || units.iter().flat_map(|u| u.overwritten.iter().copied());
        written = written.and_then(|()| sums.invalidate(cx.journal, &tables, overwritten()));
    }
    let mut results: Vec<Result<()>> = match written {
        Ok(()) => write_data(cx, &units, flushed_by),
        Err(e) => units.iter().map(|_| Err(e.duplicate())).collect(),
    };
    units.iter_mut().for_each(|u| u.runs.clear());
    if let Some(sums) = cx.sums {
        let of_written = checksums.iter().zip(&results).filter(|(_, r)| r.is_ok()).flat_map(|(runs, _)| runs);
        if let Err(e) = sums.store(cx.journal, &tables, &of_written.collect::<Vec<_>>()) {
            results.iter_mut().filter(|r| r.is_ok()).for_each(|r| *r = Err(e.duplicate()));
        }
    }
    Stored { units: units.into_iter().zip(results).collect(), failed }
}

/// Commits the mapping of units whose data was written. The last error is returned.
pub(super) fn commit_all(cx: &FileCtx<'_>, stored: Stored<'_>) -> Result<()> {
    let mut failed = stored.failed;
    for (mut unit, result) in stored.units {
        // In any case: an error is noted in turn as well.
        let turn = unit.wait_for_turn();
        match result.and(turn).and_then(|()| mapping::commit(cx, &mut unit)) {
            Ok(()) => unit.end(),
            Err(e) => failed = Some(fail(cx, &mut unit, e)),
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Writes the data of units as one batch, and says of each how it went. If the batch fails, each unit is written once
/// more by itself: the device does not say which request failed, and no file is to fail for the data of another.
fn write_data(cx: &FileCtx<'_>, units: &[Unit<'_>], flushed_by: FlushedBy) -> Vec<Result<()>> {
    let write = |units: &[Unit<'_>]| {
        let mut runs: Vec<&DataRun<'_>> = units.iter().flat_map(|u| &u.runs).collect();
        match flushed_by {
            FlushedBy::Commit => cx.cache.write_data(&mut runs),
            FlushedBy::Writer => cx.cache.write_copies(&mut runs),
        }
    };
    match write(units) {
        Err(_) if units.len() > 1 => units.iter().map(|u| write(std::slice::from_ref(u))).collect(),
        result => units.iter().map(|_| result.as_ref().copied().map_err(Error::duplicate)).collect(),
    }
}

fn run_of(cx: &FileCtx<'_>, r: &DataRun<'_>) -> Run {
    Run { start: r.frag, len: (r.len >> cx.cache.geometry().frag_shift) as u64 }
}

/// Ends a unit that failed. Data that may not be in place stays dirty, so that no later fsync reports it as written.
fn fail(cx: &FileCtx<'_>, unit: &mut Unit<'_>, e: Error) -> Error {
    let node = unit.node.clone();
    {
        let mut st = node.state.write();
        unit.abort(cx, &mut st);
        // For a direct write the program still has the bytes. They go through pages now. Zeros are no data of the program, and
        // data that did not move is where it was.
        if !matches!(unit.origin, Origin::Direct { .. } | Origin::Zeros | Origin::Moved { .. }) {
            tracing::error!("writeback of inode {}: {e}", node.ino);
            st.data.error.get_or_insert(e.duplicate());
        }
    }
    if unit.turn.is_some() {
        node.under_way.note_failed(&e);
    }
    unit.end();
    e
}

/// The checksums of the data of a unit. Pins the tables that contain them.
pub(super) fn checksums_of(
    cx: &FileCtx<'_>,
    sums: &Sums,
    unit: &Unit<'_>,
    tables: &mut PinnedTables,
) -> Result<Vec<ChecksumRun>> {
    let fs = cx.cache.geometry().frag_size();
    let mut all: Vec<ChecksumRun> = Vec::new();
    for r in &unit.runs {
        let mut checksums = ChecksumRun::of(r.frag, &r.bytes[r.from..r.from + r.len], fs);
        match all.last_mut() {
            Some(last) if last.frag + last.sums.len() as u64 == r.frag => last.sums.append(&mut checksums.sums),
            _ => all.push(checksums),
        }
    }
    for s in &all {
        sums.pin_or_create(cx.journal, tables, Run { start: s.frag, len: s.sums.len() as u64 })?;
    }
    Ok(all)
}

/// Commits the mapping of all deferred extents. [`Node::write_lock`] is held, so no others follow.
pub fn flush_deferred(cx: &FileCtx<'_>, node: &Arc<Node>) -> Result<()> {
    if node.state.read().data.deferred.is_empty() {
        return Ok(());
    }
    write_back(cx, vec![node.clone()])?;
    // Only those of a file without names and references stay, until it is freed.
    if node.state.read().data.deferred.is_empty() { Ok(()) } else { Err(Error::Stale) }
}
