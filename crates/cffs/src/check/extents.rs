//! Walks the extent map of an inode, and claims what it maps.

use super::checker::Checker;
use super::report::Class;
use crate::format::extent::{
    Child, EXTENT_LEN_MAX, EXTENT_SIZE, Extent, LOGICAL_END, TREE_HEIGHT_MAX, node_entry, node_header,
};
use crate::format::{BlockAddr, BlockId, BlockKind, Corrupt, Inode, InodeFormat};
use std::fmt::Display;

/// Decodes a sealed tree node: its level, and its entries as extents or children.
pub(super) enum Node {
    /// A leaf.
    Leaf(Vec<Extent>),
    /// An inner node; its children have this level.
    Inner(Vec<Child>, u16),
}

pub(super) fn decode_node(block: &[u8], level: u16) -> Result<Node, Corrupt> {
    let (found, count) = node_header(block)?;
    if found != level {
        return Err(Corrupt(format!("level {found} where {level} belongs")));
    }
    let entries = (0..count).map(|i| &block[node_entry(i)..node_entry(i) + EXTENT_SIZE]);
    Ok(if level == 0 {
        Node::Leaf(entries.map(Extent::decode).collect())
    } else {
        Node::Inner(entries.map(Child::decode).collect(), level - 1)
    })
}

enum Frame {
    Extents { list: std::vec::IntoIter<Extent>, high: u64 },
    Children { list: std::iter::Peekable<std::vec::IntoIter<Child>>, level: u16, high: u64 },
}

/// The walk. It yields valid extents in order; what is wrong becomes a problem and is left out.
pub(super) struct MapWalk {
    ino: u64,
    stack: Vec<Frame>,
    /// End of the extents so far: all further ones must start here or later.
    at: u64,
    /// Fragments mapped and in tree nodes so far.
    pub(super) frags: u64,
    /// Nothing was left out.
    pub(super) complete: bool,
}

impl MapWalk {
    pub(super) fn new(inode: &Inode) -> MapWalk {
        let frame = match &inode.format {
            InodeFormat::Inline(_) => None,
            InodeFormat::Extents(list) => Some(Frame::Extents { list: list.clone().into_iter(), high: LOGICAL_END }),
            InodeFormat::Tree { height, children } => Some(Frame::Children {
                list: children.clone().into_iter().peekable(),
                level: u16::from(*height) - 1,
                high: LOGICAL_END,
            }),
        };
        MapWalk { ino: inode.ino, stack: Vec::from_iter(frame), at: 0, frags: 0, complete: true }
    }

    fn bad(&mut self, ck: &mut Checker<'_>, class: Class, text: impl Display) {
        self.complete = false;
        ck.inode_problem(class, self.ino, text);
    }

    /// The next extent, and whether its space had no owner so far.
    pub(super) fn next(&mut self, ck: &mut Checker<'_>) -> Option<(Extent, bool)> {
        loop {
            match self.stack.last_mut()? {
                Frame::Extents { list, high } => {
                    let high = *high;
                    let Some(e) = list.next() else {
                        self.stack.pop();
                        continue;
                    };
                    if let Some(found) = self.extent(ck, e, high) {
                        return Some(found);
                    }
                }
                Frame::Children { list, level, high } => {
                    let (level, mut bound) = (*level, *high);
                    let Some(child) = list.next() else {
                        self.stack.pop();
                        continue;
                    };
                    if let Some(next) = list.peek() {
                        bound = bound.min(next.key);
                    }
                    self.child(ck, child, level, bound);
                }
            }
        }
    }

    fn extent(&mut self, ck: &mut Checker<'_>, e: Extent, high: u64) -> Option<(Extent, bool)> {
        let end = e.logical.saturating_add(e.len);
        if e.len == 0 || e.len > EXTENT_LEN_MAX || e.logical < self.at || end > high {
            let what = format_args!(
                "extent of {} fragments at fragment {} is empty, out of order or outside its node",
                e.len, e.logical
            );
            self.bad(ck, Class::Extent, what);
            return None;
        }
        self.at = end;
        if !ck.g.contains(e.start, e.len) {
            let what = format_args!("extent at fragment {} lies at {}, outside the file system", e.logical, e.start);
            self.bad(ck, Class::Extent, what);
            return None;
        }
        self.frags += e.len;
        ck.findings.counts.extents += 1;
        ck.inventory.unwritten += e.unwritten_units(ck.g.frag_shift);
        let fresh = ck.ownership.claim(e.start, e.len, self.ino);
        Some((e, fresh))
    }

    fn child(&mut self, ck: &mut Checker<'_>, child: Child, level: u16, high: u64) {
        let block = child.block;
        if child.key < self.at || child.key >= high {
            let what = format_args!("extent tree node at block {block} for fragment {} is out of order", child.key);
            self.bad(ck, Class::ExtentNode, what);
            return;
        }
        if block == 0 || block >= ck.g.total_blocks {
            self.bad(ck, Class::ExtentNode, format_args!("extent tree node at block {block}, outside the file system"));
            return;
        }
        self.frags += ck.g.frags_per_block();
        // A node with an owner is not read again, so the walk ends.
        if !ck.claim_block(block, self.ino) {
            self.complete = false;
            return;
        }
        match self.read(ck, block, level) {
            Ok(node) => {
                ck.findings.counts.extent_nodes += 1;
                self.at = child.key;
                let first = match &node {
                    Node::Leaf(list) => list.first().map(|e| e.logical),
                    Node::Inner(list, _) => list.first().map(|c| c.key),
                };
                if first.is_none() {
                    self.bad(ck, Class::ExtentNode, format_args!("extent tree node at block {block} is empty"));
                }
                debug_assert!(self.stack.len() <= TREE_HEIGHT_MAX as usize + 1);
                self.stack.push(match node {
                    Node::Leaf(list) => Frame::Extents { list: list.into_iter(), high },
                    Node::Inner(list, level) => Frame::Children { list: list.into_iter().peekable(), level, high },
                });
            }
            Err(what) => self.bad(ck, Class::ExtentNode, what),
        }
    }

    fn read(&mut self, ck: &mut Checker<'_>, block: BlockAddr, level: u16) -> Result<Node, String> {
        let id = BlockId { kind: BlockKind::ExtentNode, addr: block, owner: self.ino };
        let bytes = ck.meta(id)?;
        decode_node(&bytes, level).map_err(|c| format!("extent tree node at block {block}: {}", c.0))
    }
}

/// A run of whole blocks of a directory or table.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRun {
    /// First block within the file.
    pub(super) lblock: u64,
    /// Number of blocks.
    pub(super) len: u64,
    /// First block on the device.
    pub(super) block: BlockAddr,
}

/// The blocks of a directory or table that had no owner so far.
pub(super) struct BlockMap {
    pub(super) runs: Vec<BlockRun>,
    /// Fragments mapped and in tree nodes.
    pub(super) frags: u64,
    /// Nothing was left out.
    pub(super) complete: bool,
}

impl BlockMap {
    pub(super) fn read(ck: &mut Checker<'_>, inode: &Inode) -> BlockMap {
        let per = ck.g.frags_per_block();
        let mut walk = MapWalk::new(inode);
        let mut runs = Vec::new();
        let mut complete = true;
        while let Some((e, fresh)) = walk.next(ck) {
            if !(e.logical | e.start | e.len).is_multiple_of(per) || e.unwritten {
                complete = false;
                let what = format_args!("extent at fragment {} does not hold whole written blocks", e.logical);
                ck.inode_problem(Class::Extent, inode.ino, what);
            } else if fresh {
                runs.push(BlockRun { lblock: e.logical / per, len: e.len / per, block: e.start / per });
            } else {
                complete = false;
            }
        }
        BlockMap { runs, frags: walk.frags, complete: complete && walk.complete }
    }

    /// The blocks in order, each with its number within the file.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, BlockAddr)> + use<> {
        self.runs.clone().into_iter().flat_map(|r| (0..r.len).map(move |n| (r.lblock + n, r.block + n)))
    }

    /// Device block of a block of the file.
    pub(super) fn find(&self, lblock: u64) -> Option<BlockAddr> {
        let i = self.runs.partition_point(|r| r.lblock + r.len <= lblock);
        self.runs.get(i).filter(|r| r.lblock <= lblock).map(|r| r.block + (lblock - r.lblock))
    }
}
