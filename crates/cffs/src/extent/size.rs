//! How many blocks and log bytes changes of the mapping need at most.

use crate::format::extent::node_capacity;
use crate::format::{Geometry, Inode, InodeFormat};
use crate::space::Space;

pub(super) fn height(inode: &Inode) -> usize {
    match &inode.format {
        InodeFormat::Tree { height, .. } => *height as usize,
        _ => 0,
    }
}

/// Most blocks by which the tree can grow when `extents` extents are inserted in any order. `places` is the largest
/// number of nodes of one level that they go to; neighbours in the file go to the same node.
///
/// A node that is split has half of its entries afterwards, and takes as many again before the next split. The last
/// node of a level stays full when it is split at its end, and is followed by an empty one. So a level grows by one
/// node for each place where the node was full at first, by two nodes for each node full of entries, and by one for
/// what is appended.
pub fn worst_case_blocks(g: &Geometry, inode: &Inode, places: u64, extents: u64) -> u64 {
    let (capacity, root) = (node_capacity(g.block_size()) as u64, inode.root_capacity() as u64);
    let half = capacity.div_ceil(2);
    let grown = |entries: u64| entries / half + entries / capacity;
    // Number of nodes when a full root (or list) and `more` entries become a level of their own.
    let new_level = |more: u64| {
        let first = (root + 1).div_ceil(capacity);
        let full = if root + 1 >= half { first } else { 0 };
        first + full + grown(root + more)
    };
    // Inline contents are replaced by a list.
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

/// Log bytes of a whole node with its record.
fn node_log_bytes(g: &Geometry) -> usize {
    g.block_size() + 64
}

/// Most log bytes that one [`insert`](super::insert) needs, without the inode.
pub fn log_bytes_for_insert(g: &Geometry, space: &Space, inode: &Inode) -> usize {
    log_bytes_for_growth(g, space, inode, 1)
}

/// Most log bytes that one [`convert`](super::convert) needs, without the inode.
pub fn log_bytes_for_convert(g: &Geometry, space: &Space, inode: &Inode) -> usize {
    log_bytes_for_growth(g, space, inode, 2)
}

/// Most log bytes that are needed to add `more` entries to a leaf, or to the inode's own list.
fn log_bytes_for_growth(g: &Geometry, space: &Space, inode: &Inode, more: usize) -> usize {
    if let InodeFormat::Extents(list) = &inode.format
        && list.len() + more <= inode.root_capacity()
    {
        return 0;
    }
    let root_nodes = (inode.root_capacity() + 2).div_ceil(node_capacity(g.block_size()));
    let new = height(inode) + root_nodes;
    // Every node on the path and its new neighbour are written. A second path may get new keys.
    let nodes = 2 * height(inode) + new;
    nodes * node_log_bytes(g) + new * space.log_bytes(g.frags_per_block()) + space.log_bytes_for_next_init()
}

/// Most log bytes that one [`remove`](super::remove) of up to `limit` extents needs, without the inode and freeing the
/// data.
pub fn log_bytes_for_remove(g: &Geometry, space: &Space, inode: &Inode, limit: usize) -> usize {
    let height = height(inode);
    // Nodes within the range are freed. The paths along its two ends and their neighbours are rewritten.
    let kept = 4 * height * node_log_bytes(g);
    let freed = if height == 0 { 0 } else { (limit + 4) * height };
    kept + freed * (space.log_bytes(g.frags_per_block()) + 64) + log_bytes_for_insert(g, space, inode)
}

/// Most log bytes that one [`relocate`](super::relocate) needs, without the inode and freeing the data: a conversion, and
/// nodes that are merged afterwards.
pub fn log_bytes_for_relocate(g: &Geometry, space: &Space, inode: &Inode) -> usize {
    log_bytes_for_convert(g, space, inode) + log_bytes_for_remove(g, space, inode, 1)
}

/// Most log bytes that [`shift_down`](super::shift_down) or [`shift_up`](super::shift_up) of so many leaves needs,
/// without the inode.
pub fn log_bytes_for_shift(g: &Geometry, inode: &Inode, leaves: usize) -> usize {
    leaves * height(inode) * node_log_bytes(g)
}
