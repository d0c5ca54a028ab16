//! Extent maps: what of one makes sense, who else claims it, and writing one anew.

use super::Repairer;
use super::volume::BlockError;
use crate::error::Result;
use crate::format::extent::{
    Child, EXTENT_LEN_MAX, EXTENT_SIZE, Extent, LOGICAL_END, NODE_COUNT, node_capacity, node_entry, set_node_header,
};
use crate::format::{
    BlockAddr, BlockId, BlockKind, FragAddr, Geometry, Ino, Inode, InodeFormat, block_owner, get_u16, get_u64,
    init_block,
};
use std::collections::HashSet;

/// What an inode maps.
#[derive(Default)]
pub(super) struct Map {
    /// Extents in order that lie within the file system and outside its fixed areas.
    pub(super) extents: Vec<Extent>,
    /// Nodes of the tree with the right identity.
    pub(super) nodes: Vec<BlockAddr>,
    /// Something was left out or guessed: the map has to be written anew.
    pub(super) wrong: Option<String>,
    /// Nodes are missing: more of the map may stand somewhere.
    pub(super) lost_nodes: bool,
    /// Extents come from a node with a wrong checksum.
    pub(super) guessed: bool,
}

impl Map {
    pub(super) fn frags(&self, g: &Geometry) -> u64 {
        total(&self.extents) + self.nodes.len() as u64 * g.frags_per_block()
    }
}

fn total(extents: &[Extent]) -> u64 {
    extents.iter().map(|e| e.len).sum()
}

/// Level, entries of a node: as far as they fit.
fn node_entries(block: &[u8]) -> Vec<[u8; EXTENT_SIZE]> {
    let count = (get_u16(block, NODE_COUNT) as usize).min(node_capacity(block.len()));
    let entry = |i| block[node_entry(i)..node_entry(i) + EXTENT_SIZE].try_into().expect("sixteen bytes");
    (0..count).map(entry).collect()
}

impl Repairer<'_> {
    /// Reads the map of an inode, leaving out what cannot be. Nothing is claimed.
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
                        map.wrong = Some(format!("extent tree node at block {} cannot be there", child.block));
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

    fn read_extents(&mut self, map: &mut Map, list: &[Extent], at: &mut u64, high: u64) {
        for e in list {
            let end = e.logical.saturating_add(e.len);
            if e.len == 0 || e.len > EXTENT_LEN_MAX || e.logical < *at || end > high {
                map.wrong = Some(format!("extent of {} fragments at fragment {} cannot be there", e.len, e.logical));
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
            let pieces = self.outside_fixed(e.start, e.start + e.len);
            if pieces.len() != 1 || pieces[0] != (e.start, e.start + e.len) {
                map.wrong = Some(format!("extent at fragment {} lies in an area of the file system itself", e.logical));
            }
            for (s, t) in pieces {
                map.extents.push(Extent { logical: e.logical + (s - e.start), start: s, len: t - s, ..*e });
            }
        }
    }

    /// The parts of a run that are not headers of allocation groups, system area or log.
    fn outside_fixed(&self, start: FragAddr, end: FragAddr) -> Vec<(FragAddr, FragAddr)> {
        let g = &self.g;
        let fpb = g.frags_per_block();
        let (per, header) = (g.ag_blocks * fpb, g.ag_header_blocks() * fpb);
        let mut out = Vec::new();
        let mut at = start;
        while at < end {
            let ag_start = at / per * per;
            let first = at.max(ag_start + header);
            let stop = end.min(ag_start + per);
            if first < stop {
                out.extend(self.fixed.gaps(first, stop));
            }
            at = ag_start + per;
        }
        out
    }

    /// Claims a metadata block that says itself whose it is. False if it was claimed before, so that it is mapped twice.
    pub(super) fn claim_meta(&mut self, block: BlockAddr) -> bool {
        let (start, end) = (self.g.frag_of_block(block), self.g.frag_of_block(block + 1));
        if self.meta.overlaps(start, end) || self.fixed.overlaps(start, end) {
            return false;
        }
        self.meta.insert(start, end);
        self.claim_run(start, end);
        true
    }

    /// Claims what nothing but a map says belongs to somebody.
    pub(super) fn claim_data(&mut self, start: FragAddr, len: u64) {
        self.claim_run(start, start + len);
    }

    fn claim_run(&mut self, start: FragAddr, end: FragAddr) {
        let again: Vec<(FragAddr, FragAddr)> = self.used.within(start, end).collect();
        for (s, e) in again {
            self.shared.insert(s, e);
        }
        self.used.insert(start, end);
    }

    /// Takes space that nothing claims; at first what was free before the repair too, so that a copy never overwrites
    /// what an interrupted repair still needs.
    pub(super) fn alloc(&mut self, len: u64, align: u64) -> Option<FragAddr> {
        for old_too in [false, true] {
            let from = if old_too { 0 } else { self.alloc_cursor };
            for ag in self.g.ag_of(self.g.block_of_frag(from)).min(self.g.ag_count - 1)..self.g.ag_count {
                if let Some(at) = self.alloc_in(ag, len, align, old_too) {
                    self.used.insert(at, at + len);
                    if !old_too {
                        self.alloc_cursor = at + len;
                    }
                    return Some(at);
                }
            }
        }
        None
    }

    fn alloc_in(&mut self, ag: u64, len: u64, align: u64, old_too: bool) -> Option<FragAddr> {
        let fpb = self.g.frags_per_block();
        let first = (self.g.ag_start(ag) + self.g.ag_header_blocks()) * fpb;
        let end = (self.g.ag_start(ag) + self.g.ag_len(ag)) * fpb;
        let mut at = if old_too { first } else { first.max(self.alloc_cursor) };
        loop {
            // The log and the system area are in use as well.
            at = self.used.find_gap(at, end, len, align)?;
            if let Some((_, e)) = self.fixed.within(at, at + len).last() {
                at = e.next_multiple_of(align);
                continue;
            }
            if old_too {
                return Some(at);
            }
            match self.old_use(at, len) {
                None => return Some(at),
                Some(last) => at = (last + 1).next_multiple_of(align),
            }
        }
    }

    /// A whole block.
    pub(super) fn alloc_block(&mut self) -> Option<BlockAddr> {
        let fpb = self.g.frags_per_block();
        self.alloc(fpb, fpb).map(|f| f / fpb)
    }

    /// A whole block for metadata.
    pub(super) fn alloc_meta(&mut self) -> Option<BlockAddr> {
        let block = self.alloc_block()?;
        self.meta.insert(self.g.frag_of_block(block), self.g.frag_of_block(block + 1));
        Some(block)
    }

    pub(super) fn release_block(&mut self, block: BlockAddr) {
        let (start, end) = (self.g.frag_of_block(block), self.g.frag_of_block(block + 1));
        self.meta.remove(start, end);
        self.used.remove(start, end);
    }

    /// Writes a map into an inode: in the inode itself if it fits, else a new tree. `old` is what it had; its nodes become
    /// free. What does not fit any more is lost, and told.
    pub(super) fn set_map(&mut self, inode: &mut Inode, old: &Map, extents: Vec<Extent>) -> Result<()> {
        let mut list = join(extents);
        for node in &old.nodes {
            self.release_block(*node);
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
                        super::Class::Extent,
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
                    blocks.iter().for_each(|b| self.release_block(*b));
                    return None;
                };
                blocks.push(addr);
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

/// Joins extents that continue each other. They are in order and do not overlap.
pub(super) fn join(extents: Vec<Extent>) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::with_capacity(extents.len());
    for e in extents {
        match out.last_mut() {
            Some(l)
                if l.end() == e.logical
                    && l.start + l.len == e.start
                    && l.unwritten == e.unwritten
                    && l.len + e.len <= EXTENT_LEN_MAX =>
            {
                l.len += e.len;
            }
            _ => out.push(e),
        }
    }
    out
}

/// Puts extents into a list in order; what overlaps something there already is left out.
pub(super) fn add_extents(list: &mut Vec<Extent>, more: impl IntoIterator<Item = Extent>) -> u64 {
    let mut added = 0;
    for e in more {
        let i = list.partition_point(|l| l.end() <= e.logical);
        if list.get(i).is_none_or(|l| l.logical >= e.end()) {
            list.insert(i, e);
            added += 1;
        }
    }
    added
}
