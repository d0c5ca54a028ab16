//! From a file's logical fragments to fragments on the device.
//!
//! A few extents stand in the inode itself; more of them in a B+tree whose root is in the inode. Every function works
//! on the inode in memory and, within the caller's transaction, on the tree's nodes; writing the inode back is the
//! caller's part. `Inode::frags` is kept: data and nodes. What comes from the device is checked: a damaged tree is an
//! [`Error::Corrupt`] that names the inode.

mod list;
mod node;
mod shift;
#[cfg(test)]
mod tests;
mod tree;

use crate::cache::{BufRef, Cache};
use crate::error::{Error, Result};
use crate::format::Run;
use crate::format::extent::{EXTENT_LEN_MAX, LOGICAL_END, node_capacity};
use crate::format::{BlockAddr, Corrupt, Extent, Geometry, Inode, InodeFormat};
use crate::journal::Txn;
use crate::space::Space;
use node::{count, entries, entry, possible, upper_bound};
pub use shift::{shift_down, shift_up, split};
use std::ops::Range;
use tree::{Edit, Pool, descend};

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

fn impossible(inode: &Inode, e: &Extent) -> Error {
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

/// Whether a node of the tree stands at this block, on the way to logical fragment `key`.
pub(crate) fn has_node(cache: &Cache, inode: &Inode, key: u64, block: BlockAddr) -> Result<bool> {
    if !matches!(inode.format, InodeFormat::Tree { .. }) {
        return Ok(false);
    }
    Ok(descend(cache, inode, key)?.steps.iter().any(|s| s.buf.addr() == block))
}

/// Calls `f` with every extent that overlaps the range, whole, in order.
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

/// The last extents of a file, at most `limit`, the last first; those that end at or before `from` are left out.
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
                // As in [`remove`]: what lies behind the bound of the first node that begins at the probe was looked at.
                let looked_at = path.steps.iter().rev().map(|s| s.lo).find(|lo| *lo <= probe).unwrap_or(0);
                if looked_at <= from {
                    break;
                }
                probe = looked_at - 1;
            }
        }
    }
    Ok(out)
}

fn inline_contents<T>(inode: &Inode) -> Result<T> {
    Error::invalid(format!("inode {} has inline contents and no extents", inode.ino))
}

/// Extents of a file that are mapped in one transaction, at most.
pub const EXTENTS_PER_TXN: usize = 16;

/// Gives an inode an extent that was allocated for it: bitmap and extents change together. After an error both are as they
/// were, and the run is still the caller's.
///
/// # Errors
/// As [`insert`], and what reading the bitmap brings.
pub fn map(txn: &Txn<'_>, space: &Space, inode: &mut Inode, e: Extent) -> Result<()> {
    let run = Run { start: e.start, len: e.len };
    space.commit_alloc(txn, run)?;
    insert(txn, space, inode, e).inspect_err(|_| space.uncommit_alloc(txn, run))
}

/// Adds an extent, joined with its neighbours where they continue each other. Its range must be a hole.
///
/// [`Error::NoSpace`] when the tree needs a block and there is none; nothing has changed then.
pub fn insert(txn: &Txn<'_>, space: &Space, inode: &mut Inode, e: Extent) -> Result<()> {
    let g = *txn.cache().geometry();
    if e.len == 0 || e.len > EXTENT_LEN_MAX || e.logical >= LOGICAL_END || !possible(&g, &e) {
        return Error::invalid(format!("extent of {} fragments at {} to be inserted", e.len, e.logical));
    }
    let goal = g.block_of_frag(e.start);
    let taken = || Error::Invalid(format!("extent at fragment {} overlaps an extent", e.logical));
    match &inode.format {
        InodeFormat::Inline(_) => return inline_contents(inode),
        InodeFormat::Extents(list) => {
            let (new, _) = list::insert(list, e).ok_or_else(taken)?;
            let mut edit = Edit { txn, space, inode };
            let mut pool = Pool::new(txn, space, goal, edit.nodes_for_list(new.len())?)?;
            edit.set_list(new, &mut pool)?;
        }
        InodeFormat::Tree { .. } => {
            let path = descend(txn.cache(), inode, e.logical)?;
            let (lo, hi) = (path.leaf().lo, path.leaf().hi);
            let old: Vec<Extent> = entries(&path.leaf().buf.read());
            let (new, at_end) = list::insert(&old, e).ok_or_else(taken)?;
            // The next leaf's key is only a bound: the extent may reach over it into the hole before its first extent.
            let next = if e.end() > hi {
                let next = descend(txn.cache(), inode, hi)?;
                if entry::<Extent>(&next.leaf().buf.read(), 0).logical < e.end() {
                    return Err(taken());
                }
                Some(next)
            } else {
                None
            };
            let mut edit = Edit { txn, space, inode };
            let mut pool = Pool::new(txn, space, goal, edit.nodes_needed(&path, new.len())?)?;
            if let Some(next) = next {
                edit.raise_keys(&next, hi, e.end())?;
            }
            if e.logical < lo {
                edit.lower_keys(&path, e.logical)?;
            }
            edit.set_leaf(&path, &new, at_end && hi >= LOGICAL_END, &mut pool)?;
        }
    }
    inode.frags = inode.frags.saturating_add(e.len);
    Ok(())
}

/// Removes what is allocated in the range, from its end towards its start, at most `limit_extents` extents (or parts
/// of one) per call. Data runs are pushed to `freed` for the caller to free; blocks of the tree are freed here. True if
/// there may be more.
///
/// [`Error::NoSpace`] only when the range lies inside a single extent and the tree needs a block for the second piece.
pub fn remove(
    txn: &Txn<'_>,
    space: &Space,
    inode: &mut Inode,
    range: Range<u64>,
    limit_extents: usize,
    freed: &mut Vec<Run>,
) -> Result<bool> {
    let range = range.start..range.end.min(LOGICAL_END);
    let mut limit = limit_extents.max(1);
    if range.is_empty() {
        return Ok(false);
    }
    if let InodeFormat::Extents(list) = &inode.format {
        let g = txn.cache().geometry();
        if let Some(bad) = list.iter().find(|e| !possible(g, e)) {
            return Err(impossible(inode, bad));
        }
        let (new, runs, more) = list::remove(list, &range, limit);
        let goal = list.first().map_or(0, |e| g.block_of_frag(e.start));
        let mut edit = Edit { txn, space, inode };
        let mut pool = Pool::new(txn, space, goal, edit.nodes_for_list(new.len())?)?;
        edit.set_list(new, &mut pool)?;
        give(inode, freed, runs);
        return Ok(more);
    }
    let mut probe = range.end - 1;
    let mut more = false;
    let mut touched = false;
    while matches!(inode.format, InodeFormat::Tree { .. }) {
        let path = descend(txn.cache(), inode, probe)?;
        // Where the search went on to the first of a node's children because all begin behind the probe, everything
        // from the node's own bound on was looked at.
        let looked_at = path.steps.iter().rev().map(|s| s.lo).find(|lo| *lo <= probe).unwrap_or(0);
        let old: Vec<Extent> = entries(&path.leaf().buf.read());
        let (new, runs, left) = list::remove(&old, &range, limit);
        if !runs.is_empty() {
            let goal = txn.cache().geometry().block_of_frag(old[0].start);
            let mut edit = Edit { txn, space, inode };
            edit.prepare_removal(&path)?;
            let mut pool = Pool::new(txn, space, goal, edit.nodes_needed(&path, new.len())?)?;
            edit.set_leaf(&path, &new, false, &mut pool)?;
            limit -= runs.len();
            give(inode, freed, runs);
            touched = true;
        }
        more = left || (limit == 0 && looked_at > range.start);
        if more || looked_at <= range.start {
            break;
        }
        probe = looked_at - 1;
    }
    if touched {
        let mut edit = Edit { txn, space, inode };
        edit.join_nodes(range.start.saturating_sub(1))?;
        edit.join_nodes(range.end)?;
        edit.shrink_root()?;
    }
    Ok(more)
}

fn give(inode: &mut Inode, freed: &mut Vec<Run>, runs: Vec<Run>) {
    let frags: u64 = runs.iter().map(|r| r.len).sum();
    inode.frags = inode.frags.saturating_sub(frags);
    freed.extend(runs);
}

/// Marks what is allocated in the range as unwritten, or as written; as far as one leaf reaches. Returns the logical
/// fragment from which on the rest of the range is still to be done, the range's end if nothing is.
///
/// [`Error::NoSpace`] when the pieces that come up need a block and there is none; nothing has changed then.
pub fn convert(txn: &Txn<'_>, space: &Space, inode: &mut Inode, range: Range<u64>, unwritten: bool) -> Result<u64> {
    let g = *txn.cache().geometry();
    match &inode.format {
        InodeFormat::Inline(_) => inline_contents(inode),
        InodeFormat::Extents(list) => {
            if let Some(new) = list::convert(list, &range, unwritten) {
                let goal = list.first().map_or(0, |e| g.block_of_frag(e.start));
                let mut edit = Edit { txn, space, inode };
                let mut pool = Pool::new(txn, space, goal, edit.nodes_for_list(new.len())?)?;
                edit.set_list(new, &mut pool)?;
            }
            Ok(range.end)
        }
        InodeFormat::Tree { .. } => {
            let path = descend(txn.cache(), inode, range.start.min(LOGICAL_END - 1))?;
            let end = path.leaf().hi;
            let old: Vec<Extent> = entries(&path.leaf().buf.read());
            if let Some(new) = list::convert(&old, &range, unwritten) {
                let mut edit = Edit { txn, space, inode };
                let mut pool =
                    Pool::new(txn, space, g.block_of_frag(old[0].start), edit.nodes_needed(&path, new.len())?)?;
                edit.set_leaf(&path, &new, false, &mut pool)?;
            }
            Ok(if end >= LOGICAL_END { range.end } else { end.min(range.end) })
        }
    }
}

fn height(inode: &Inode) -> usize {
    match &inode.format {
        InodeFormat::Tree { height, .. } => *height as usize,
        _ => 0,
    }
}

/// Most blocks that the tree can grow by when `extents` extents are inserted, whatever their order. `places` is the number
/// of nodes of one level, at most, that they go to: neighbours in the file go to the same one.
///
/// A node that is split has half of its entries afterwards and takes as many before it is split again; the last node of a
/// level, which stays full when it is split at its end, is followed by an empty one. So beyond the nodes that were full at
/// first, one for each place, a level grows by two nodes for each node full of entries and by one for what was appended.
pub fn worst_case_blocks(g: &Geometry, inode: &Inode, places: u64, extents: u64) -> u64 {
    let (capacity, root) = (node_capacity(g.block_size()) as u64, inode.root_capacity() as u64);
    let half = capacity.div_ceil(2);
    let grown = |entries: u64| entries / half + entries / capacity;
    // Nodes when a root (or a list) that is full and `more` entries become a level of their own.
    let new_level = |more: u64| {
        let first = (root + 1).div_ceil(capacity);
        let full = if root + 1 >= half { first } else { 0 };
        first + full + grown(root + more)
    };
    // Inline contents make way for a list.
    let listed = match &inode.format {
        InodeFormat::Extents(list) => Some(list.len() as u64),
        InodeFormat::Inline(_) => Some(0),
        InodeFormat::Tree { .. } => None,
    };
    let (mut blocks, mut more, mut in_root) = (0, extents, listed.unwrap_or(0));
    if let InodeFormat::Tree { height, children } = &inode.format {
        for _ in 0..*height {
            more = more.min(places + grown(more) + 1);
            blocks += more;
        }
        in_root = children.len() as u64;
    }
    while more > 0 && in_root + more > root {
        more = new_level(more);
        blocks += more;
        in_root = 0;
    }
    blocks
}

/// The nodes of the tree that have extents of a range, and those beside them: removing the range reads nothing else while
/// they are held.
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

/// Whether up to `extents` extents can be inserted into a range, no longer than a few blocks, without a new node.
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

/// Log bytes of a whole node with its record.
fn node_log_bytes(g: &Geometry) -> usize {
    g.block_size() + 64
}

/// Most log bytes that one [`insert`] needs, the inode left out.
pub fn log_bytes_for_insert(g: &Geometry, space: &Space, inode: &Inode) -> usize {
    log_bytes_for_growth(g, space, inode, 1)
}

/// Most log bytes that one [`convert`] needs, the inode left out.
pub fn log_bytes_for_convert(g: &Geometry, space: &Space, inode: &Inode) -> usize {
    log_bytes_for_growth(g, space, inode, 2)
}

/// Most log bytes that it takes to make a leaf, or the inode's own list, longer by `more`.
fn log_bytes_for_growth(g: &Geometry, space: &Space, inode: &Inode, more: usize) -> usize {
    if let InodeFormat::Extents(list) = &inode.format
        && list.len() + more <= inode.root_capacity()
    {
        return 0;
    }
    let root_nodes = (inode.root_capacity() + 2).div_ceil(node_capacity(g.block_size()));
    let new = height(inode) + root_nodes;
    // Every node on the way is rewritten, and its new neighbour written; another way may get new keys.
    let nodes = 2 * height(inode) + new;
    nodes * node_log_bytes(g) + new * space.log_bytes(g.frags_per_block()) + space.log_bytes_for_next_init()
}

/// Most log bytes that one [`remove`] of up to `limit` extents needs, the inode and the freeing of the data left out.
pub fn log_bytes_for_remove(g: &Geometry, space: &Space, inode: &Inode, limit: usize) -> usize {
    let height = height(inode);
    // Nodes within the range go away; the ways along its two ends and their neighbours are rewritten.
    let kept = 4 * height * node_log_bytes(g);
    let freed = if height == 0 { 0 } else { (limit + 4) * height };
    kept + freed * (space.log_bytes(g.frags_per_block()) + 64) + log_bytes_for_insert(g, space, inode)
}

/// Most log bytes that [`shift_down`] or [`shift_up`] of so many leaves needs, the inode left out.
pub fn log_bytes_for_shift(g: &Geometry, inode: &Inode, leaves: usize) -> usize {
    leaves * height(inode) * node_log_bytes(g)
}
