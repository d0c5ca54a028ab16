//! Moving data of a file: writeback to a better place.
//!
//! A move reads the data where it is ([`read`]), and goes through [`super::writeback`] as any other unit ([`Move`]): the data is
//! written to the new place, its checksums are stored, and one transaction changes extents, bitmap and inode. The old
//! place is freed by the same transaction.
//!
//! Between the two nothing is locked, so a program waits for the reading of its own file at most, as beside any reader.
//! Every write of the file's data counts in [`Node::data_version`] when it begins. If the count has changed, or the mapping is another, the move is given up: the
//! file stays where it is.
//!
//! Data has to be durable before something durable points to it, which a commit sees to with a flush of its own. Programs that
//! commit often would each wait for that. So where they go first a move flushes its data itself, many files at once, and switches their
//! mappings afterwards.

use super::unit::{Change, Origin, Pending, Unit};
use super::writeback::{FlushedBy, Stored};
use super::{FileCtx, writeback};
use crate::cache::{DataRun, DataVerifier, Source};
use crate::error::Result;
use crate::extent;
use crate::format::{BlockAddr, Extent, FileType, Geometry, Run};
use crate::node::{Node, NodeState};
use crate::reservation::Reservation;
use cffs_buf::AlignedBuf;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Data that was read to be moved.
pub struct Copied {
    node: Arc<Node>,
    version: u64,
    /// Extents as they are, or parts of them, and the bytes of those that are written.
    parts: Vec<(Extent, Option<Arc<AlignedBuf>>)>,
    /// All of it was cached, and not for the move alone.
    cached: bool,
}

impl Copied {
    /// Whether it is of the same file as other data.
    pub fn is_of_same_file(&self, other: &Copied) -> bool {
        Arc::ptr_eq(&self.node, &other.node)
    }

    /// Number of fragments.
    pub fn frags(&self) -> u64 {
        self.parts.iter().map(|(e, _)| e.len).sum()
    }
}

/// The parts of extents that lie in a range of fragments. None if they cannot be moved now: the file is being written back, waits to be freed, or
/// is no regular file (any more).
///
/// # Errors
/// Those of reading the extent tree.
pub fn extents_to_move(cx: &FileCtx<'_>, node: &Node, st: &NodeState, range: &Range<u64>) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    // While the node is locked no writeback begins. One that has begun may be overwriting what would be read.
    // The number may have gone to another inode since the caller found it: to a directory, whose blocks move otherwise.
    if st.inode.file_type() != FileType::Regular || st.freed || st.orphan || node.under_way.is_busy() {
        return Ok(extents);
    }
    extent::for_each(cx.cache, &st.inode, range.clone(), |e| {
        extents.push(e.part(range));
        Ok(())
    })?;
    Ok(extents)
}

/// The blocks that an extent lies in.
pub fn blocks_of(g: &Geometry, e: &Extent) -> Range<BlockAddr> {
    g.block_of_frag(e.start)..g.block_of_frag(e.start + e.len - 1) + 1
}

/// Reads what the file has in a range of fragments. `None` if it cannot be moved now: it is being written back, waits to be
/// freed, has nothing there, or is no regular file (any more). A block that `is_brought` is cached for the move alone.
///
/// # Errors
/// Those of reading, also of data that does not match its checksums: what cannot be verified stays where it is.
pub fn read(
    cx: &FileCtx<'_>,
    node: &Arc<Node>,
    range: Range<u64>,
    is_brought: &dyn Fn(BlockAddr) -> bool,
) -> Result<Option<Copied>> {
    let st = node.state.read();
    let version = node.data_version.load(Ordering::Relaxed);
    let extents = extents_to_move(cx, node, &st, &range)?;
    if extents.is_empty() {
        return Ok(None);
    }
    let is_cached = |block| cx.cache.peek(block).is_some() && !is_brought(block);
    let cached = extents.iter().all(|e| blocks_of(cx.cache.geometry(), e).all(is_cached));
    let mut parts = Vec::with_capacity(extents.len());
    for e in extents {
        let bytes = if e.unwritten { None } else { Some(Arc::new(read_extent(cx, &st, &e)?)) };
        parts.push((e, bytes));
    }
    drop(st);
    Ok(Some(Copied { node: node.clone(), version, parts, cached }))
}

fn read_extent(cx: &FileCtx<'_>, st: &NodeState, e: &Extent) -> Result<AlignedBuf> {
    let mut bytes = AlignedBuf::zeroed((e.len << cx.cache.geometry().frag_shift) as usize);
    let check = cx.sums.map(|sums| sums.reading(st.inode.ino));
    if let Some(check) = &check {
        check.set_position(e.start, e.logical);
    }
    cx.cache.read_data(e.start, &mut bytes, check.as_ref().map(|c| c as &dyn DataVerifier))?;
    Ok(bytes)
}

/// A move that is under way: data at its new places, which nothing points to yet.
pub struct Move {
    stored: Stored<'static>,
    moved: Arc<AtomicU64>,
    flushed_by: FlushedBy,
}

impl Move {
    /// Nothing yet. With `apart` it makes its data durable itself, so that no commit of others has to wait for that.
    pub fn new(apart: bool) -> Move {
        let flushed_by = if apart { FlushedBy::Writer } else { FlushedBy::Commit };
        Move { stored: Stored::default(), moved: Arc::default(), flushed_by }
    }

    /// Writes data to runs that were allocated out of `space`, as many fragments as the data has, in the same order. How that went is
    /// for [`Move::commit`] to say.
    pub fn write(&mut self, cx: &FileCtx<'_>, copied: Vec<(Copied, Vec<Run>)>, space: &Reservation) {
        let mut units = Vec::with_capacity(copied.len());
        for (of_file, runs) in copied {
            let tree = cx.space.reservation(None, false);
            let nodes = {
                let st = of_file.node.state.read();
                let pieces = (of_file.parts.len() + runs.len()) as u64;
                extent::worst_case_blocks(cx.cache.geometry(), &st.inode, pieces, 2 * pieces)
            };
            let origin = Origin::Moved { version: of_file.version };
            let mut unit = Unit::new(of_file.node.clone(), origin, 0);
            unit.reservation = Some(space.clone());
            unit.moved = Some(self.moved.clone());
            place(cx, &mut unit, of_file, &runs);
            if tree.reserve_blocks(nodes, false).is_err() {
                let node = unit.node.clone();
                unit.abort(cx, &mut node.state.write());
                continue;
            }
            unit.tree = Some(tree);
            units.push(unit);
        }
        if !units.is_empty() {
            self.stored.append(writeback::store(cx, units, self.flushed_by));
        }
    }

    /// Switches the mapping of everything that was written. Returns how many fragments were moved. What changed meanwhile stays where it is;
    /// its new place is reserved again.
    ///
    /// # Errors
    /// Those of the device and the journal. [`Error::NoSpace`](crate::Error::NoSpace) if an extent tree would need a block more, and there is
    /// none.
    pub fn commit(mut self, cx: &FileCtx<'_>) -> Result<u64> {
        if self.flushed_by == FlushedBy::Writer
            && !self.stored.is_empty()
            && let Err(e) = cx.journal.flush_copies()
        {
            self.stored.fail_all(&e);
        }
        writeback::commit_all(cx, self.stored)?;
        Ok(self.moved.load(Ordering::Relaxed))
    }
}

/// Assigns the data of a unit to the runs.
fn place(cx: &FileCtx<'_>, unit: &mut Unit<'static>, copied: Copied, runs: &[Run]) {
    let shift = cx.cache.geometry().frag_shift;
    let mut runs = runs.iter().copied();
    let mut to = Run { start: 0, len: 0 };
    for (e, bytes) in copied.parts {
        let mut done = 0;
        while done < e.len {
            if to.len == 0 {
                let Some(next) = runs.next() else { return };
                to = next;
            }
            let len = to.len.min(e.len - done);
            let extent = Extent { logical: e.logical + done, start: to.start, len, unwritten: e.unwritten };
            unit.extents.push(Pending { extent, change: Change::Move(e.start + done) });
            if let Some(bytes) = &bytes {
                unit.runs.push(DataRun {
                    frag: to.start,
                    bytes: Source::Page(bytes.clone()),
                    from: (done << shift) as usize,
                    len: (len << shift) as usize,
                    keep: copied.cached,
                });
            }
            to = Run { start: to.start + len, len: to.len - len };
            done += len;
        }
    }
}
