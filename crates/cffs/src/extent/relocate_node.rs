//! Moving nodes of the extent tree to other blocks.

use super::node;
use super::tree::descend;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::format::dirblock::BlockEdit;
use crate::format::extent::{Child, LOGICAL_END};
use crate::format::{BlockAddr, BlockId, BlockKind, Geometry, Inode, InodeFormat, META_SPECIFIC, Run};
use crate::journal::Txn;
use crate::space::Space;

/// Calls `f` with each node of the tree: a logical fragment on the path to it, and its block.
pub fn for_each_node(cache: &Cache, inode: &Inode, mut f: impl FnMut(u64, BlockAddr)) -> Result<()> {
    if !matches!(inode.format, InodeFormat::Tree { .. }) {
        return Ok(());
    }
    // Nodes of the last path, which the next one shares above some level.
    let mut last: Vec<BlockAddr> = Vec::new();
    let mut at = 0;
    while at < LOGICAL_END {
        let path = descend(cache, inode, at)?;
        for (depth, step) in path.steps.iter().enumerate() {
            if last.get(depth) != Some(&step.buf.addr()) {
                f(step.lo, step.buf.addr());
            }
        }
        last = path.steps.iter().map(|s| s.buf.addr()).collect();
        at = path.leaf().hi;
    }
    Ok(())
}

/// Most log bytes that [`relocate_node`] needs, without the inode.
pub fn log_bytes_for_relocate_node(g: &Geometry, space: &Space) -> usize {
    let bits = 2 * space.log_bytes(g.frags_per_block()) + space.log_bytes_for_next_init();
    2 * (g.block_size() + 64) + 64 + bits
}

/// Moves the node at block `from`, which is on the path to `key`, to an allocated block. The caller stores the inode. False if there is
/// no such node.
///
/// # Errors
/// Those of reading. Nothing has changed then.
pub fn relocate_node(
    txn: &Txn<'_>,
    space: &Space,
    inode: &mut Inode,
    key: u64,
    from: BlockAddr,
    to: BlockAddr,
) -> Result<bool> {
    if !matches!(inode.format, InodeFormat::Tree { .. }) {
        return Ok(false);
    }
    let g = *txn.cache().geometry();
    let path = descend(txn.cache(), inode, key)?;
    let Some(depth) = path.steps.iter().position(|s| s.buf.addr() == from) else { return Ok(false) };
    let run = |block| Run { start: g.frag_of_block(block), len: g.frags_per_block() };
    // What the bitmap needs is read before, because after the first change nothing may fail.
    space.prepare_free(run(from))?;
    space.prepare_commit(run(to))?;
    space.commit_alloc(txn, run(to))?;
    let new = txn.init_block(BlockId { kind: BlockKind::ExtentNode, addr: to, owner: inode.ino });
    {
        let old = path.steps[depth].buf.read();
        let len = old.len() - META_SPECIFIC;
        txn.edit(&new).range(META_SPECIFIC, len).copy_from_slice(&old[META_SPECIFIC..]);
    }
    match depth.checked_sub(1).map(|up| &path.steps[up]) {
        Some(up) => {
            let mut list: Vec<Child> = node::entries(&up.buf.read());
            list[up.index].block = to;
            node::write(txn, &up.buf, (path.steps.len() - depth) as u16, &list);
        }
        None => match &mut inode.format {
            InodeFormat::Tree { children, .. } => children[path.root_index].block = to,
            _ => return Err(Error::Stale),
        },
    }
    txn.free_block(from);
    space.free(txn, run(from))?;
    Ok(true)
}
