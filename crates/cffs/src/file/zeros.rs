//! Writing zeros over space that was allocated ahead, when the extent tree cannot grow.
//!
//! A write into the middle of an unwritten extent cuts it in pieces, and the pieces may need a block for the extent tree. On
//! a full device there is none, and space that was allocated ahead must take writes all the same. So the rest of the extent
//! is written with zeros, and the whole of it becomes written: the tree stays as large as it is. ext4 does the same. It
//! costs time once for each extent, and no space is kept back for it.

use super::FileCtx;
use super::direct::add_runs;
use super::unit::{Change, Origin, Pending, Unit};
use super::writeback::{write_back, write_units};
use crate::error::{Error, Result};
use crate::extent::{self, Mapping};
use crate::format::{Extent, Geometry, InodeFormat, Run};
use crate::node::{Node, NodeState};
use crate::space::Over;
use cffs_buf::AlignedBuf;
use std::ops::Range;
use std::sync::Arc;

/// Zeros in memory, in bytes, whatever the length of the extent.
const ZEROS_LEN: usize = 1 << 20;

/// Makes written what is unwritten in a range of fragments and below the end of the file, extent by extent. False if there is
/// nothing of that kind. [`Node::write_lock`] is held, and the node is not locked.
///
/// Behind the end of the file no written extent may lie, so an extent that reaches beyond it is cut there. That adds an
/// extent, and does not happen if it has no room.
pub fn write_zeros(cx: &FileCtx<'_>, node: &Arc<Node>, frags: Range<u64>) -> Result<bool> {
    if next_unwritten(cx, &node.state.read(), &frags, frags.start)?.is_none() {
        return Ok(false);
    }
    // The size on the device grows with the mapping, and must not cover missing data.
    write_back(cx, vec![node.clone()])?;
    let zeros = AlignedBuf::zeroed(ZEROS_LEN);
    let (mut at, mut any) = (frags.start, false);
    while let Some(unit) = prepare(cx, node, &frags, at, &zeros)? {
        at = unit.extents[0].extent.end();
        write_units(cx, vec![unit])?;
        any = true;
    }
    Ok(any)
}

/// The first piece of an unwritten extent, at `from` or later, that can become written.
fn next_unwritten(cx: &FileCtx<'_>, st: &NodeState, frags: &Range<u64>, from: u64) -> Result<Option<Extent>> {
    if matches!(st.inode.format, InodeFormat::Inline(_)) {
        return Ok(None);
    }
    let end = size_end(cx.cache.geometry(), st);
    let mut at = from;
    while at < frags.end.min(end) {
        match extent::lookup(cx.cache, &st.inode, at)? {
            Mapping::Hole { until } => at = until,
            Mapping::Data(e) if e.unwritten => {
                let fits = e.end() <= end || extent::has_room(cx.cache, &st.inode, at..at + 1, 1)?;
                return Ok(fits.then_some(Extent { len: e.end().min(end) - e.logical, ..e }));
            }
            Mapping::Data(e) => at = e.end(),
        }
    }
    Ok(None)
}

/// The fragment at which the last block of the file ends.
fn size_end(g: &Geometry, st: &NodeState) -> u64 {
    g.frags_for(st.inode.size).next_multiple_of(g.frags_per_block())
}

/// A writeback of zeros over the next extent, which has begun.
fn prepare<'a>(
    cx: &FileCtx<'_>,
    node: &Arc<Node>,
    frags: &Range<u64>,
    from: u64,
    zeros: &'a [u8],
) -> Result<Option<Unit<'a>>> {
    let (guard, mut under_way) = node.lock_for_writeback();
    let st = &*guard;
    if st.freed {
        return Err(Error::Stale);
    }
    // What the writeback has left is in the way.
    if !st.data.is_mapped() {
        return Ok(None);
    }
    let Some(e) = next_unwritten(cx, st, frags, from)? else { return Ok(None) };
    // They take space of a thin device like data, and what there is may be promised to others.
    let claim = cx.space.claim_unwritten(e.len);
    let whole = e.whole_units(cx.cache.geometry().frag_shift);
    let kept = whole.end - whole.start;
    cx.space.check_overwrite(Over { written: 0, kept, ends: e.len - kept }, false)?;
    let mut unit = Unit::new(node.clone(), Origin::Zeros, st.inode.size);
    unit.claim = Some(claim);
    let shift = cx.cache.geometry().frag_shift;
    let (mut start, mut left) = (e.start, e.len << shift);
    while left > 0 {
        let part = &zeros[..left.min(zeros.len() as u64) as usize];
        add_runs(cx, &mut unit.runs, start, part);
        start += part.len() as u64 >> shift;
        left -= part.len() as u64;
    }
    if cx.sums.is_some() {
        unit.overwritten.push(Run { start: e.start, len: e.len });
    }
    unit.extents.push(Pending { extent: e, change: Change::Convert });
    under_way.begin_alone();
    Ok(Some(unit))
}
