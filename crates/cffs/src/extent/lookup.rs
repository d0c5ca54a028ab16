//! Reading the mapping of a file.

use super::node::{count, entries, entry, possible, upper_bound};
use super::tree::descend;
use crate::cache::{BufRef, Cache};
use crate::error::{Error, Result};
use crate::format::extent::{LOGICAL_END, node_capacity};
use crate::format::{BlockAddr, Corrupt, Extent, Inode, InodeFormat};
use std::ops::Range;

/// What a logical fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Part of this extent (all of which is given).
    Data(Extent),
    /// Not allocated.
    Hole {
        /// First logical fragment after the hole: the next extent's, or [`LOGICAL_END`].
        until: u64,
    },
}

pub(super) fn impossible(inode: &Inode, e: &Extent) -> Error {
    let what = format!("inode {}: extent at fragment {} lies outside the file system", inode.ino, e.logical);
    Error::Corrupt(Corrupt(what))
}

/// The mapping of a logical fragment. Inline contents count as a hole.
pub fn lookup(cache: &Cache, inode: &Inode, logical: u64) -> Result<Mapping> {
    match &inode.format {
        InodeFormat::Inline(_) => Ok(Mapping::Hole { until: LOGICAL_END }),
        InodeFormat::Extents(list) => {
            let at = list.partition_point(|e| e.logical <= logical);
            if let Some(e) = at.checked_sub(1).map(|i| list[i]).filter(|e| e.end() > logical) {
                return if possible(cache.geometry(), &e) { Ok(Mapping::Data(e)) } else { Err(impossible(inode, &e)) };
            }
            Ok(Mapping::Hole { until: list.get(at).map_or(LOGICAL_END, |e| e.logical) })
        }
        InodeFormat::Tree { .. } => {
            let mut probe = logical;
            loop {
                let path = descend(cache, inode, probe)?;
                let leaf = path.leaf();
                let block = leaf.buf.read();
                let at = upper_bound::<Extent>(&block, logical);
                if let Some(e) = at.checked_sub(1).map(|i| entry::<Extent>(&block, i)).filter(|e| e.end() > logical) {
                    return Ok(Mapping::Data(e));
                }
                if at < count(&block) {
                    return Ok(Mapping::Hole { until: entry::<Extent>(&block, at).logical });
                }
                if leaf.hi >= LOGICAL_END {
                    return Ok(Mapping::Hole { until: LOGICAL_END });
                }
                // Leaves are never empty, so the next one ends the loop.
                probe = leaf.hi;
            }
        }
    }
}

/// Whether a node of the tree is at this block, on the path to logical fragment `key`.
pub(crate) fn has_node(cache: &Cache, inode: &Inode, key: u64, block: BlockAddr) -> Result<bool> {
    if !matches!(inode.format, InodeFormat::Tree { .. }) {
        return Ok(false);
    }
    Ok(descend(cache, inode, key)?.steps.iter().any(|s| s.buf.addr() == block))
}

/// Calls `f` with every extent that overlaps the range, whole and in order.
pub fn for_each(
    cache: &Cache,
    inode: &Inode,
    range: Range<u64>,
    mut f: impl FnMut(Extent) -> Result<()>,
) -> Result<()> {
    let wanted = |e: &Extent| e.end() > range.start && e.logical < range.end;
    match &inode.format {
        InodeFormat::Inline(_) => {}
        InodeFormat::Extents(list) => {
            for e in list.iter().filter(|e| wanted(e)) {
                if !possible(cache.geometry(), e) {
                    return Err(impossible(inode, e));
                }
                f(*e)?;
            }
        }
        InodeFormat::Tree { .. } => {
            let mut at = range.start;
            while at < range.end.min(LOGICAL_END) {
                let path = descend(cache, inode, at)?;
                let list: Vec<Extent> = entries(&path.leaf().buf.read());
                for e in list.into_iter().filter(&wanted) {
                    f(e)?;
                }
                at = path.leaf().hi;
            }
        }
    }
    Ok(())
}

/// The last extents of a file, at most `limit`, in descending order, without those that end at or before `from`.
pub fn last(cache: &Cache, inode: &Inode, from: u64, limit: usize) -> Result<Vec<Extent>> {
    let mut out = Vec::new();
    match &inode.format {
        InodeFormat::Inline(_) => {}
        InodeFormat::Extents(list) => {
            for e in list.iter().rev().filter(|e| e.end() > from).take(limit) {
                if !possible(cache.geometry(), e) {
                    return Err(impossible(inode, e));
                }
                out.push(*e);
            }
        }
        InodeFormat::Tree { .. } => {
            let mut probe = LOGICAL_END - 1;
            while out.len() < limit {
                let path = descend(cache, inode, probe)?;
                let list: Vec<Extent> = entries(&path.leaf().buf.read());
                out.extend(list.into_iter().rev().filter(|e| e.end() > from).take(limit - out.len()));
                // As in `remove`: the part behind the lower bound of the first node that begins before the probe is
                // done.
                let done_from = path.steps.iter().rev().map(|s| s.lo).find(|lo| *lo <= probe).unwrap_or(0);
                if done_from <= from {
                    break;
                }
                probe = done_from - 1;
            }
        }
    }
    Ok(out)
}

/// The nodes of the tree with extents of a range, and their neighbours. While they are held, removing the range reads
/// nothing else.
pub fn nodes_of(cache: &Cache, inode: &Inode, range: Range<u64>) -> Result<Vec<BufRef>> {
    let mut held = Vec::new();
    if !matches!(inode.format, InodeFormat::Tree { .. }) {
        return Ok(held);
    }
    let mut at = range.start.saturating_sub(1);
    loop {
        let path = descend(cache, inode, at)?;
        let end = path.leaf().hi;
        held.extend(path.steps.into_iter().map(|s| s.buf));
        if end > range.end || end >= LOGICAL_END {
            break;
        }
        at = end;
    }
    Ok(held)
}

/// Whether up to `extents` extents fit into a range of at most a few blocks without a new node.
pub fn has_room(cache: &Cache, inode: &Inode, range: Range<u64>, extents: u64) -> Result<bool> {
    match &inode.format {
        InodeFormat::Inline(_) => Ok(extents <= inode.root_capacity() as u64),
        InodeFormat::Extents(list) => Ok(list.len() as u64 + extents <= inode.root_capacity() as u64),
        InodeFormat::Tree { .. } => {
            let path = descend(cache, inode, range.start)?;
            let entries = count(&path.leaf().buf.read()) as u64;
            Ok(path.leaf().hi >= range.end && entries + extents <= node_capacity(cache.geometry().block_size()) as u64)
        }
    }
}
