//! Extent maps: their valid part, conflicts with other owners, and writing them anew.

use super::extent_map::{Map, join, total};
use super::repairer::Repairer;
use super::volume::BlockError;
use crate::check::Class;
use crate::error::Result;
use crate::format::extent::{
    Child, EXTENT_LEN_MAX, EXTENT_SIZE, Extent, LOGICAL_END, NODE_COUNT, node_capacity, node_entry, set_node_header,
};
use crate::format::{
    BlockAddr, BlockId, BlockKind, Ino, Inode, InodeFormat, block_owner, get_u16, get_u64, init_block,
};
use std::collections::HashSet;

/// Level, entries of a node: as far as they fit.
fn node_entries(block: &[u8]) -> Vec<[u8; EXTENT_SIZE]> {
    let count = (get_u16(block, NODE_COUNT) as usize).min(node_capacity(block.len()));
    let entry = |i| block[node_entry(i)..node_entry(i) + EXTENT_SIZE].try_into().expect("sixteen bytes");
    (0..count).map(entry).collect()
}

impl Repairer<'_> {
    /// Reads the map of an inode, without impossible extents. Nothing is claimed.
    pub(super) fn read_map(&mut self, inode: &Inode) -> Map {
        self.read_map_as(inode, inode.ino)
    }

    /// The same for an inode whose nodes carry another number.
    pub(super) fn read_map_as(&mut self, inode: &Inode, owner: Ino) -> Map {
        let mut map = Map::default();
        let mut at = 0;
        match &inode.format {
            InodeFormat::Inline(_) => {}
            InodeFormat::Extents(list) => self.read_extents(&mut map, list, &mut at, LOGICAL_END),
            InodeFormat::Tree { height, children } => {
                let mut seen = HashSet::new();
                let mut stack = vec![(children.clone(), u16::from(*height) - 1, LOGICAL_END, 0usize)];
                while let Some((list, level, high, next)) = stack.last_mut() {
                    let Some(child) = list.get(*next).copied() else {
                        stack.pop();
                        continue;
                    };
                    *next += 1;
                    let bound = list.get(*next).map_or(*high, |c| c.key.min(*high));
                    let level = *level;
                    if child.key < at || child.key >= bound {
                        map.wrong = Some(format!("extent tree node at block {} is out of order", child.block));
                        map.lost_nodes = true;
                        continue;
                    }
                    if child.block == 0 || child.block >= self.g.total_blocks || !seen.insert(child.block) {
                        map.wrong = Some(format!("extent tree node at block {} is impossible", child.block));
                        map.lost_nodes = true;
                        continue;
                    }
                    let Some(block) = self.node(&mut map, child.block, owner, level) else { continue };
                    let entries = node_entries(&block);
                    if entries.is_empty() {
                        map.wrong = Some(format!("extent tree node at block {} is empty", child.block));
                    }
                    at = child.key;
                    if level == 0 {
                        let list: Vec<Extent> = entries.iter().map(|e| Extent::decode(e)).collect();
                        self.read_extents(&mut map, &list, &mut at, bound);
                    } else {
                        let list: Vec<Child> = entries.iter().map(|e| Child::decode(e)).collect();
                        stack.push((list, level - 1, bound, 0));
                    }
                }
            }
        }
        map
    }

    /// A node, also one with a wrong checksum if its header says that it is this one.
    fn node(&mut self, map: &mut Map, addr: BlockAddr, owner: Ino, level: u16) -> Option<Vec<u8>> {
        let (what, block) = match self.vol.meta(BlockId { kind: BlockKind::ExtentNode, addr, owner }) {
            Ok(block) => {
                map.nodes.push(addr);
                let (found, count) = (get_u16(&block, crate::format::extent::NODE_LEVEL), get_u16(&block, NODE_COUNT));
                if found == level && count as usize <= node_capacity(block.len()) {
                    return Some(block);
                }
                let what = format!("extent tree node at block {addr}: level {found} with {count} entries");
                (what, Some(block))
            }
            Err(BlockError::Damaged(what, block)) => {
                let mine = crate::format::get_u32(&block, 0) == BlockKind::ExtentNode as u32
                    && get_u64(&block, 8) == self.g.fsid
                    && get_u64(&block, 16) == addr
                    && block_owner(&block) == owner
                    && get_u16(&block, crate::format::extent::NODE_LEVEL) == level;
                map.guessed |= mine;
                (what, mine.then_some(block))
            }
            Err(bad) => (bad.text(), None),
        };
        map.wrong = Some(what);
        map.lost_nodes |= block.is_none() || map.guessed;
        block
    }

    /// Whether a file can have an extent there. What a repair maps again must pass, because the next round drops all else.
    pub(super) fn is_possible_extent(&self, e: &Extent) -> bool {
        (1..=EXTENT_LEN_MAX).contains(&e.len)
            && e.logical.saturating_add(e.len) <= self.g.frags_for(crate::format::FILE_SIZE_MAX)
            && self.g.contains(e.start, e.len)
    }

    fn read_extents(&mut self, map: &mut Map, list: &[Extent], at: &mut u64, high: u64) {
        for e in list {
            let end = e.logical.saturating_add(e.len);
            if e.len == 0 || e.len > EXTENT_LEN_MAX || e.logical < *at || end > high {
                map.wrong = Some(format!("extent of {} fragments at fragment {} is impossible", e.len, e.logical));
                continue;
            }
            if end > self.g.frags_for(crate::format::FILE_SIZE_MAX) {
                map.wrong = Some(format!("extent at fragment {} lies behind the end of any file", e.logical));
                continue;
            }
            if !self.g.contains(e.start, e.len) {
                map.wrong = Some(format!("extent at fragment {} lies outside the file system", e.logical));
                continue;
            }
            *at = end;
            let pieces = self.space.outside_fixed(e.start, e.start + e.len);
            if pieces.len() != 1 || pieces[0] != (e.start, e.start + e.len) {
                map.wrong = Some(format!("extent at fragment {} lies in an area of the file system itself", e.logical));
            }
            for (s, t) in pieces {
                map.extents.push(Extent { logical: e.logical + (s - e.start), start: s, len: t - s, ..*e });
            }
        }
    }

    /// Writes a map into an inode: in the inode itself if it fits, else a new tree. `old` is what it had; its nodes become
    /// free. Extents that do not fit any more are lost, which is reported.
    pub(super) fn set_map(&mut self, inode: &mut Inode, old: &Map, extents: Vec<Extent>) -> Result<()> {
        let mut list = join(extents);
        for node in &old.nodes {
            self.space.release_block(*node);
        }
        let fpb = self.g.frags_per_block();
        let root = inode.root_capacity();
        let mut nodes = 0;
        inode.format = if list.len() <= root {
            InodeFormat::Extents(list.clone())
        } else {
            match self.write_tree(inode.ino, root, &list) {
                Some((format, count)) => {
                    nodes = count;
                    format
                }
                None => {
                    self.must_fix(
                        Class::Extent,
                        &format!("inode {}", inode.ino),
                        "no space for its extent tree".into(),
                        "keep the extents that fit into the inode",
                    )?;
                    list.truncate(root);
                    InodeFormat::Extents(list.clone())
                }
            }
        };
        inode.frags = total(&list) + nodes * fpb + self.xattr_frags(inode);
        Ok(())
    }

    /// Writes a tree from the leaves up.
    fn write_tree(&mut self, ino: Ino, root: usize, list: &[Extent]) -> Option<(InodeFormat, u64)> {
        if root == 0 {
            return None;
        }
        let capacity = node_capacity(self.g.block_size());
        let mut blocks = Vec::new();
        let mut level = 0u16;
        let mut entries: Vec<(u64, [u8; EXTENT_SIZE])> = list.iter().map(|e| (e.logical, e.encode())).collect();
        loop {
            let mut above = Vec::new();
            for chunk in entries.chunks(capacity) {
                let Some(addr) = self.alloc_meta() else {
                    blocks.iter().for_each(|b| self.space.release_block(*b));
                    return None;
                };
                blocks.push(addr);
                // A later walk may free it again. What it says is no evidence of anything lost.
                self.evidence.tried_blocks.insert(addr);
                let mut b = vec![0; self.g.block_size()];
                init_block(&mut b, self.g.fsid, BlockId { kind: BlockKind::ExtentNode, addr, owner: ino });
                set_node_header(&mut b, level, chunk.len());
                for (i, (_, bytes)) in chunk.iter().enumerate() {
                    b[node_entry(i)..node_entry(i) + EXTENT_SIZE].copy_from_slice(bytes);
                }
                self.vol.put(addr, b);
                above.push(Child { key: chunk[0].0, block: addr });
            }
            level += 1;
            if above.len() <= root {
                return Some((InodeFormat::Tree { height: level as u8, children: above }, blocks.len() as u64));
            }
            entries = above.iter().map(|c| (c.key, c.encode())).collect();
        }
    }
}
