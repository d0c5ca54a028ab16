//! Moving all extents from some place on towards the start of the file or away from it, as collapsing and inserting
//! ranges need it. The order of the extents stays, so the tree keeps its shape: leaves are rewritten in place, and keys
//! follow them. Nothing is allocated, so nothing can run out of space half way.

use super::list;
use super::node::{self, entries, entry, possible};
use super::tree::{Edit, Path, Pool, descend};
use crate::error::{Error, Result};
use crate::format::extent::{Child, LOGICAL_END};
use crate::format::{Corrupt, Extent, Inode, InodeFormat};
use crate::journal::Txn;
use crate::space::Space;

/// Splits the extent that contains the logical fragment `at` in its interior. Changes nothing if there is none.
///
/// [`Error::NoSpace`] if the tree needs a block and there is none. Nothing has changed then.
pub fn split(txn: &Txn<'_>, space: &Space, inode: &mut Inode, at: u64) -> Result<()> {
    let g = *txn.cache().geometry();
    match &inode.format {
        InodeFormat::Inline(_) => Ok(()),
        InodeFormat::Extents(old) => {
            let Some(new) = list::split(old, at) else { return Ok(()) };
            let goal = g.block_of_frag(new[0].start);
            let mut edit = Edit { txn, space, inode };
            let mut pool = Pool::new(txn, space, goal, edit.nodes_for_list(new.len())?)?;
            edit.set_list(new, &mut pool)
        }
        InodeFormat::Tree { .. } => {
            let path = descend(txn.cache(), inode, at)?;
            let old: Vec<Extent> = entries(&path.leaf().buf.read());
            let Some(new) = list::split(&old, at) else { return Ok(()) };
            let mut edit = Edit { txn, space, inode };
            let mut pool = Pool::new(txn, space, g.block_of_frag(old[0].start), edit.nodes_needed(&path, new.len())?)?;
            edit.set_leaf(&path, &new, false, &mut pool)
        }
    }
}

fn check(txn: &Txn<'_>, inode: &Inode, list: &[Extent]) -> Result<()> {
    match list.iter().find(|e| !possible(txn.cache().geometry(), e)) {
        Some(e) => {
            let what = format!("inode {}: extent at fragment {} lies outside the file system", inode.ino, e.logical);
            Err(Error::Corrupt(Corrupt(what)))
        }
        None => Ok(()),
    }
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
    match &inode.format {
        InodeFormat::Inline(_) => return Ok(None),
        InodeFormat::Extents(list) => {
            check(txn, inode, list)?;
            let new = list.iter().map(moved).collect();
            inode.format = InodeFormat::Extents(new);
            return Ok(None);
        }
        InodeFormat::Tree { .. } => {}
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
    match &inode.format {
        InodeFormat::Inline(_) => return Ok(None),
        InodeFormat::Extents(list) => {
            check(txn, inode, list)?;
            let new = list.iter().map(moved).collect();
            inode.format = InodeFormat::Extents(new);
            return Ok(None);
        }
        InodeFormat::Tree { .. } => {}
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
