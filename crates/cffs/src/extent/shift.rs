//! Moving all extents from some place on towards the start of the file or away from it, as collapsing and inserting
//! ranges need it. The order of the extents stays, so the tree keeps its shape: leaves are rewritten in place, and keys
//! follow them. Nothing is allocated, so nothing can run out of space half way.

use super::lookup::impossible;
use super::node::{self, entries, entry, possible};
use super::tree::{Edit, Path, descend};
use crate::error::Result;
use crate::format::extent::{Child, LOGICAL_END};
use crate::format::{Extent, Inode, InodeFormat};
use crate::journal::Txn;
use crate::space::Space;

/// Moves the extents of an inode without a tree. False if it has one.
fn shift_list(txn: &Txn<'_>, inode: &mut Inode, moved: impl Fn(&Extent) -> Extent) -> Result<bool> {
    if let InodeFormat::Extents(list) = &inode.format {
        if let Some(bad) = list.iter().find(|e| !possible(txn.cache().geometry(), e)) {
            return Err(impossible(inode, bad));
        }
        inode.format = InodeFormat::Extents(list.iter().map(moved).collect());
    }
    Ok(!matches!(inode.format, InodeFormat::Tree { .. }))
}

/// Moves extents that begin at or behind `from` by `by` fragments towards the start of the file, at most `leaves`
/// leaves, beginning with that of `from`. The `by` fragments before `from` are a hole. Returns where to continue;
/// `None` when all are moved.
pub fn shift_down(
    txn: &Txn<'_>,
    space: &Space,
    inode: &mut Inode,
    from: u64,
    by: u64,
    leaves: usize,
) -> Result<Option<u64>> {
    let moved = |e: &Extent| Extent { logical: e.logical - if e.logical >= from { by } else { 0 }, ..*e };
    if shift_list(txn, inode, moved)? {
        return Ok(None);
    }
    let mut at = from;
    for _ in 0..leaves.max(1) {
        let path = descend(txn.cache(), inode, at)?;
        let old: Vec<Extent> = entries(&path.leaf().buf.read());
        let new: Vec<Extent> = old.iter().map(moved).collect();
        let (lo, hi) = (path.leaf().lo, path.leaf().hi);
        if new[0].logical < lo {
            Edit { txn, space, inode }.lower_keys(&path, new[0].logical)?;
        }
        node::write(txn, &path.leaf().buf, 0, &new);
        if hi >= LOGICAL_END {
            return Ok(None);
        }
        at = hi;
    }
    Ok(Some(at))
}

/// Moves extents that begin at or behind `from` by `by` fragments away from the start of the file, at most `leaves`
/// leaves, beginning with the last one that begins below `below`. No extent lies across `from`, and none is moved
/// beyond the largest file size. Returns the `below` to continue with; `None` when all are moved.
pub fn shift_up(
    txn: &Txn<'_>,
    space: &Space,
    inode: &mut Inode,
    from: u64,
    by: u64,
    below: u64,
    leaves: usize,
) -> Result<Option<u64>> {
    let moved = |e: &Extent| Extent { logical: e.logical + if e.logical >= from { by } else { 0 }, ..*e };
    if shift_list(txn, inode, moved)? {
        return Ok(None);
    }
    let mut below = below;
    for _ in 0..leaves.max(1) {
        let path = descend(txn.cache(), inode, below - 1)?;
        let old: Vec<Extent> = entries(&path.leaf().buf.read());
        let new: Vec<Extent> = old.iter().map(moved).collect();
        let all = old[0].logical >= from;
        let border = left_border(inode, &path);
        if let (true, Some(border)) = (all, border) {
            Edit { txn, space, inode }.raise_keys(&path, border, new[0].logical)?;
        }
        node::write(txn, &path.leaf().buf, 0, &new);
        match border {
            Some(border) if all && border > from => below = border,
            _ => return Ok(None),
        }
    }
    Ok(Some(below))
}

/// The key that separates a leaf from the one before it; `None` for the first leaf.
fn left_border(inode: &Inode, path: &Path) -> Option<u64> {
    for step in path.steps.iter().rev().skip(1) {
        if step.index > 0 {
            return Some(entry::<Child>(&step.buf.read(), step.index).key);
        }
    }
    match &inode.format {
        InodeFormat::Tree { children, .. } if path.root_index > 0 => Some(children[path.root_index].key),
        _ => None,
    }
}
