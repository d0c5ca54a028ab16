//! Changing the mapping of a file: inserting, removing and converting extents.

use super::list;
use super::lookup::impossible;
use super::node::{entries, entry, possible};
use super::tree::{Edit, Pool, descend};
use crate::error::{Error, Result};
use crate::format::extent::{EXTENT_LEN_MAX, LOGICAL_END};
use crate::format::{Extent, FragAddr, Inode, InodeFormat, Run};
use crate::journal::Txn;
use crate::space::Space;
use std::cell::Cell;
use std::ops::Range;

/// Most extents of a file that are mapped in one transaction.
pub const MAPPED_PER_TXN: usize = 16;

/// Maps an allocated extent: bitmap and extents change in one transaction. After an error both are unchanged, and the
/// run still belongs to the caller.
///
/// # Errors
/// Those of [`insert`] and of reading the bitmap.
pub fn map(txn: &Txn<'_>, space: &Space, inode: &mut Inode, e: Extent) -> Result<()> {
    let run = Run { start: e.start, len: e.len };
    space.commit_alloc(txn, run)?;
    insert(txn, space, inode, e).inspect_err(|_| space.uncommit_alloc(txn, run))
}

/// Inserts an extent, merged with its neighbours where possible. Its range must be a hole.
///
/// [`Error::NoSpace`] if the tree needs a block and there is none. Nothing has changed then.
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
            let unwritten = space.unwritten_change(list, &new);
            let mut edit = Edit { txn, space, inode };
            let mut pool = Pool::new(txn, space, goal, edit.nodes_for_list(new.len())?)?;
            edit.set_list(new, &mut pool)?;
            space.note_unwritten(unwritten);
        }
        InodeFormat::Tree { .. } => {
            let path = descend(txn.cache(), inode, e.logical)?;
            let (lo, hi) = (path.leaf().lo, path.leaf().hi);
            let old: Vec<Extent> = entries(&path.leaf().buf.read());
            let (new, at_end) = list::insert(&old, e).ok_or_else(taken)?;
            // The next leaf's key is only a bound: the extent may reach beyond it, into the hole before that leaf's
            // first extent.
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
            space.note_unwritten(space.unwritten_change(&old, &new));
        }
    }
    inode.frags = inode.frags.saturating_add(e.len);
    Ok(())
}

/// Removes what is mapped in the range, from its end towards its start, at most `limit_extents` extents (or parts of
/// one) per call. Pushes data runs to `freed`, for the caller to free; frees blocks of the tree itself. True if there
/// may be more.
///
/// [`Error::NoSpace`] only if the range lies inside a single extent and the tree needs a block for the second piece.
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
        let unwritten = space.unwritten_change(list, &new);
        let mut edit = Edit { txn, space, inode };
        let mut pool = Pool::new(txn, space, goal, edit.nodes_for_list(new.len())?)?;
        edit.set_list(new, &mut pool)?;
        space.note_unwritten(unwritten);
        release_runs(inode, freed, runs);
        return Ok(more);
    }
    let mut probe = range.end - 1;
    let mut more = false;
    let mut touched = false;
    while matches!(inode.format, InodeFormat::Tree { .. }) {
        let path = descend(txn.cache(), inode, probe)?;
        // If all children of a node begin behind the probe, the search went to the first of them, and everything from
        // the node's own lower bound on is done.
        let done_from = path.steps.iter().rev().map(|s| s.lo).find(|lo| *lo <= probe).unwrap_or(0);
        let old: Vec<Extent> = entries(&path.leaf().buf.read());
        let (new, runs, left) = list::remove(&old, &range, limit);
        if !runs.is_empty() {
            let goal = txn.cache().geometry().block_of_frag(old[0].start);
            let mut edit = Edit { txn, space, inode };
            edit.prepare_removal(&path)?;
            let mut pool = Pool::new(txn, space, goal, edit.nodes_needed(&path, new.len())?)?;
            edit.set_leaf(&path, &new, false, &mut pool)?;
            space.note_unwritten(space.unwritten_change(&old, &new));
            limit -= runs.len();
            release_runs(inode, freed, runs);
            touched = true;
        }
        more = left || (limit == 0 && done_from > range.start);
        if more || done_from <= range.start {
            break;
        }
        probe = done_from - 1;
    }
    if touched {
        let mut edit = Edit { txn, space, inode };
        edit.merge_nodes(range.start.saturating_sub(1))?;
        edit.merge_nodes(range.end)?;
        edit.shrink_root()?;
    }
    Ok(more)
}

fn release_runs(inode: &mut Inode, freed: &mut Vec<Run>, runs: Vec<Run>) {
    let frags: u64 = runs.iter().map(|r| r.len).sum();
    inode.frags = inode.frags.saturating_sub(frags);
    freed.extend(runs);
}

/// Marks what is mapped in the range as unwritten or as written, as far as one leaf reaches. Returns the logical
/// fragment where the rest of the range begins, which is the range's end if nothing is left.
///
/// [`Error::NoSpace`] if the new pieces need a block and there is none. Nothing has changed then.
pub fn convert(txn: &Txn<'_>, space: &Space, inode: &mut Inode, range: Range<u64>, unwritten: bool) -> Result<u64> {
    if let InodeFormat::Inline(_) = inode.format {
        return inline_contents(inode);
    }
    let end = rewrite(txn, space, inode, range.start, |list| list::convert(list, &range, unwritten))?;
    Ok(if end >= LOGICAL_END { range.end } else { end.min(range.end) })
}

/// Maps a range, which lies within one extent, to the fragments from `to` on. The fragments that it was mapped to are the
/// caller's to free. [`Inode::frags`] counts as many as before, but for nodes of the tree.
///
/// [`Error::NoSpace`] if the new pieces need a block and there is none. [`Error::Invalid`] if no extent covers the range.
/// Nothing has changed then.
pub fn relocate(txn: &Txn<'_>, space: &Space, inode: &mut Inode, range: Range<u64>, to: FragAddr) -> Result<()> {
    let g = *txn.cache().geometry();
    let e = Extent { logical: range.start, start: to, len: range.end.saturating_sub(range.start), unwritten: false };
    if range.is_empty() || e.len > EXTENT_LEN_MAX || !possible(&g, &e) {
        return Error::invalid(format!("fragments {range:?} to be moved to fragment {to}"));
    }
    let found = Cell::new(false);
    rewrite(txn, space, inode, range.start, |list| {
        let new = list::relocate(list, &range, to);
        found.set(new.is_some());
        new
    })?;
    if !found.get() {
        return Error::invalid(format!("fragments {range:?} to be moved are not in one extent"));
    }
    // Each of their steps fails before it changes anything, and a tree that stays larger than it need be is valid.
    let mut edit = Edit { txn, space, inode };
    if let Err(e) = edit.merge_nodes(range.start).and_then(|()| edit.shrink_root()) {
        tracing::debug!("the extent tree of inode {} keeps nodes: {e}", inode.ino);
    }
    Ok(())
}

/// Splits the extent that contains the logical fragment `at` in its interior. Changes nothing if there is none.
///
/// [`Error::NoSpace`] if the tree needs a block and there is none. Nothing has changed then.
pub fn split(txn: &Txn<'_>, space: &Space, inode: &mut Inode, at: u64) -> Result<()> {
    rewrite(txn, space, inode, at, |list| list::split(list, at)).map(drop)
}

/// Replaces the list of extents that the logical fragment `at` belongs to, that of the inode or of a leaf, by what `change`
/// makes of it; `None` leaves it. Returns where the list ends.
fn rewrite(
    txn: &Txn<'_>,
    space: &Space,
    inode: &mut Inode,
    at: u64,
    change: impl Fn(&[Extent]) -> Option<Vec<Extent>>,
) -> Result<u64> {
    let goal = |old: &[Extent]| old.first().map_or(0, |e| txn.cache().geometry().block_of_frag(e.start));
    match &inode.format {
        InodeFormat::Inline(_) => Ok(LOGICAL_END),
        InodeFormat::Extents(old) => {
            if let Some(new) = change(old) {
                let goal = goal(old);
                let unwritten = space.unwritten_change(old, &new);
                let mut edit = Edit { txn, space, inode };
                let mut pool = Pool::new(txn, space, goal, edit.nodes_for_list(new.len())?)?;
                edit.set_list(new, &mut pool)?;
                space.note_unwritten(unwritten);
            }
            Ok(LOGICAL_END)
        }
        InodeFormat::Tree { .. } => {
            let path = descend(txn.cache(), inode, at.min(LOGICAL_END - 1))?;
            let old: Vec<Extent> = entries(&path.leaf().buf.read());
            if let Some(new) = change(&old) {
                let mut edit = Edit { txn, space, inode };
                let mut pool = Pool::new(txn, space, goal(&old), edit.nodes_needed(&path, new.len())?)?;
                edit.set_leaf(&path, &new, false, &mut pool)?;
                space.note_unwritten(space.unwritten_change(&old, &new));
            }
            Ok(path.leaf().hi)
        }
    }
}

fn inline_contents<T>(inode: &Inode) -> Result<T> {
    Error::invalid(format!("inode {} has inline contents and no extents", inode.ino))
}
