//! Unmapped blocks: metadata blocks that name their owner but that no map leads to. They are reattached to their owners.

use super::extent_map::{Map, add_extents, cut_out, join};
use super::findings::{Disconnected, inode_place};
use super::repairer::Repairer;
use crate::check::{Class, Phase};
use crate::error::Result;
use crate::format::dirblock::{DIR_LBLOCK, EntryKind, entries, validate};
use crate::format::extent::{EXTENT_SIZE, LOGICAL_END, NODE_LEVEL, node_entry, node_header};
use crate::format::table::TABLE_LBLOCK;
use crate::format::{
    BlockAddr, BlockKind, EXTERNAL_INO, Extent, FIRST_USER_INO, FileType, Ino, Inode, ROOT_INO, block_owner, block_seq,
    crc_ok, get_u16, get_u32, get_u64, put_u64,
};
use std::collections::{BTreeMap, BTreeSet};

/// Unmapped blocks by kind.
#[derive(Default)]
pub(super) struct UnmappedBlocks {
    /// Directory, logical block: address and sequence number.
    dirs: BTreeMap<Ino, BTreeMap<u64, (BlockAddr, u64)>>,
    /// Directories whose inodes are embedded in those blocks.
    inside: BTreeSet<Ino>,
    leaves: BTreeMap<Ino, Vec<BlockAddr>>,
    external: BTreeMap<u64, BlockAddr>,
}

impl Repairer<'_> {
    /// Searches the space that the old bitmaps mark as used but that nothing claims.
    fn find_unmapped(&mut self) -> UnmappedBlocks {
        let mut unmapped = UnmappedBlocks::default();
        let fpb = self.g.frags_per_block();
        let ags = self.groups_in_use();
        for ag in 0..ags {
            let first = (self.g.ag_start(ag) + self.g.ag_header_blocks()) * fpb;
            let end = (self.g.ag_start(ag) + self.g.ag_len(ag)) * fpb;
            for (s, e) in self.space.used.gaps(first, end) {
                let mut frag = s.next_multiple_of(fpb);
                while frag + fpb <= e {
                    if self.old_bit(frag) != Some(false) && !self.space.fixed.overlaps(frag, frag + fpb) {
                        self.note_unmapped(frag / fpb, &mut unmapped);
                    }
                    frag += fpb;
                }
            }
            self.report_progress(Phase::Lost, ag + 1, ags);
        }
        unmapped
    }

    fn note_unmapped(&mut self, addr: BlockAddr, unmapped: &mut UnmappedBlocks) {
        let Ok(b) = self.vol.get(addr) else { return };
        if get_u64(&b, 8) != self.g.fsid || get_u64(&b, 16) != addr || !crc_ok(&b) {
            return;
        }
        let owner = block_owner(&b);
        if (FIRST_USER_INO..=self.g.inodes_max()).contains(&owner) {
            // New inodes must not get these numbers.
            self.evidence.max_ino = self.evidence.max_ino.max(owner);
        }
        match BlockKind::from_magic(get_u32(&b, 0)) {
            Some(BlockKind::Dir) if validate(&b).is_ok() && entries(&b).any(|e| e.kind != EntryKind::Free) => {
                for e in entries(&b).filter(|e| e.kind == EntryKind::Embedded && e.ino != owner) {
                    if e.file_type == Some(FileType::Directory) {
                        unmapped.inside.insert(e.ino);
                    }
                    if e.ino <= self.g.inodes_max() {
                        self.evidence.max_ino = self.evidence.max_ino.max(e.ino);
                    }
                }
                if self.evidence.tried_blocks.contains(&addr) {
                    return;
                }
                let (lblock, seq) = (get_u64(&b, DIR_LBLOCK), block_seq(&b));
                let slot = unmapped.dirs.entry(owner).or_default().entry(lblock).or_insert((addr, seq));
                if seq > slot.1 {
                    *slot = (addr, seq);
                }
            }
            _ if self.evidence.tried_blocks.contains(&addr) => {}
            Some(BlockKind::ExtentNode) if get_u16(&b, NODE_LEVEL) == 0 => {
                unmapped.leaves.entry(owner).or_default().push(addr);
            }
            Some(BlockKind::ExternalInodes) if owner == EXTERNAL_INO => {
                unmapped.external.insert(get_u64(&b, TABLE_LBLOCK), addr);
            }
            _ => {}
        }
    }

    /// Reattaches unmapped blocks to owners with damaged maps. With `unknown`, recreates directories that have blocks but no
    /// inode. True if anything was found.
    pub(super) fn reattach(&mut self, unknown: bool) -> Result<bool> {
        let unmapped = self.find_unmapped();
        let before = self.vol.changes;
        let damaged = self.evidence.damaged_maps.contains(&EXTERNAL_INO);
        let external: Vec<(u64, BlockAddr)> = unmapped
            .external
            .iter()
            .map(|(l, a)| (*l, *a))
            .filter(|(_, a)| damaged || self.located_slots(*a))
            .collect();
        if !external.is_empty() {
            let external = self.possible_numbers(external);
            self.reattach_blocks(EXTERNAL_INO, external)?;
        }
        for (ino, leaves) in unmapped.leaves {
            if self.evidence.damaged_maps.contains(&ino) {
                self.reattach_leaves(ino, leaves)?;
            }
        }
        let mut without_inode = Vec::new();
        for (ino, blocks) in unmapped.dirs {
            let mut list: Vec<(u64, BlockAddr)> = blocks.into_iter().map(|(l, (a, _))| (l, a)).collect();
            if ino == ROOT_INO || self.found.inodes.contains_key(&ino) {
                if !self.evidence.damaged_maps.contains(&ino) {
                    // The map looks complete, so blocks are remnants unless the locator table refers to them.
                    list.retain(|(_, addr)| {
                        let block = self.vol.get(*addr).unwrap_or_default();
                        self.located_entries(*addr, &block)
                    });
                }
                if !list.is_empty() {
                    self.reattach_blocks(ino, list)?;
                }
            } else if (FIRST_USER_INO..=self.g.inodes_max()).contains(&ino)
                && !self.found.disconnected_inos.contains(&ino)
                && !unmapped.inside.contains(&ino)
                && !self.stands_elsewhere(ino, 0, 0)
            {
                without_inode.push((ino, list));
            }
        }
        if unknown && self.vol.changes == before {
            // Only if nothing else was found, because what was found may lead to them.
            for (ino, list) in without_inode {
                self.recreate_directory(ino, list)?;
            }
        }
        Ok(self.vol.changes != before)
    }

    /// Gives blocks of the external table with an impossible number another one, behind all others. Any number will do,
    /// because inodes are found through the locator table.
    fn possible_numbers(&mut self, blocks: Vec<(u64, BlockAddr)>) -> Vec<(u64, BlockAddr)> {
        let shape = self.external_shape();
        let most = self.g.total_blocks;
        let known = self.found.external_blocks.keys().chain(blocks.iter().map(|(l, _)| l)).copied();
        let mut next = known.filter(|l| *l < most).filter_map(|l| shape.data_of_block(l)).max().map_or(0, |d| d + 1);
        let mut out = Vec::with_capacity(blocks.len());
        for (lblock, addr) in blocks {
            if lblock < most && shape.data_of_block(lblock).is_some() {
                out.push((lblock, addr));
                continue;
            }
            let lblock = shape.block_of_data(next);
            next += 1;
            if let Ok(mut b) = self.vol.get(addr) {
                put_u64(&mut b, TABLE_LBLOCK, lblock);
                self.vol.put(addr, b);
                out.push((lblock, addr));
            }
        }
        out
    }

    pub(super) fn block_extent(&self, lblock: u64, addr: BlockAddr) -> Extent {
        let fpb = self.g.frags_per_block();
        Extent { logical: lblock * fpb, start: addr * fpb, len: fpb, unwritten: false }
    }

    /// Maps blocks of a directory or table again.
    fn reattach_blocks(&mut self, ino: Ino, blocks: Vec<(u64, BlockAddr)>) -> Result<()> {
        let Some(mut inode) = self.load(ino) else { return Ok(()) };
        let map = self.read_map(&inode);
        let mut list = map.extents.clone();
        let fpb = self.g.frags_per_block();
        let bs = self.g.block_size() as u64;
        let (mut added, mut end) = (0, inode.size);
        for (lblock, addr) in blocks {
            self.evidence.tried_blocks.insert(addr);
            if lblock >= LOGICAL_END / fpb / 2 {
                continue;
            }
            let e = self.block_extent(lblock, addr);
            if !self.is_possible_extent(&e) {
                continue;
            }
            // What is mapped there now may belong to another file or table.
            if let Some(i) = list.iter().position(|l| l.logical < e.end() && e.logical < l.end()) {
                let there = list[i].start + e.logical.saturating_sub(list[i].logical);
                let mine = |b: Vec<u8>| block_owner(&b) == ino;
                if list[i].logical <= e.logical
                    && self.space.meta.overlaps(there, there + fpb)
                    && self.vol.get(self.g.block_of_frag(there)).is_ok_and(mine)
                {
                    continue;
                }
                cut_out(&mut list, e.logical, e.end());
            }
            if add_extents(&mut list, [e]) > 0 {
                added += 1;
                end = end.max((lblock + 1) * bs);
                self.space.claim_meta(addr);
            }
        }
        if added == 0 {
            return Ok(());
        }
        let what = format!("{added} of its blocks are not mapped");
        self.must_fix(Class::Extent, &inode_place(ino), what, "map them again")?;
        self.set_map(&mut inode, &map, list)?;
        inode.size = end;
        self.store(&inode);
        Ok(())
    }

    /// Maps the extents of unmapped leaves of a file's extent tree again.
    fn reattach_leaves(&mut self, ino: Ino, leaves: Vec<BlockAddr>) -> Result<()> {
        let Some(mut inode) = self.load(ino) else { return Ok(()) };
        let map = self.read_map(&inode);
        let mut list = map.extents.clone();
        let mut added = 0;
        for addr in leaves {
            self.evidence.tried_blocks.insert(addr);
            let Ok(b) = self.vol.get(addr) else { continue };
            let Ok((_, count)) = node_header(&b) else { continue };
            for i in 0..count {
                let e = Extent::decode(&b[node_entry(i)..node_entry(i) + EXTENT_SIZE]);
                let possible = self.is_possible_extent(&e)
                    && !self.space.used.overlaps(e.start, e.start + e.len)
                    && !self.space.fixed.overlaps(e.start, e.start + e.len);
                if possible && (!inode.is_dir() || self.is_of_directory(ino, &e)) && add_extents(&mut list, [e]) > 0 {
                    self.space.claim_data(e.start, e.len);
                    added += 1;
                }
            }
        }
        if added == 0 {
            return Ok(());
        }
        let what = format!("{added} of its extents are in nodes that its tree does not refer to");
        self.must_fix(Class::ExtentNode, &inode_place(ino), what, "map them again")?;
        self.set_map(&mut inode, &map, list)?;
        self.store(&inode);
        Ok(())
    }

    /// Whether all blocks of an extent name this directory as their owner. The next walk would drop others from the map.
    fn is_of_directory(&mut self, ino: Ino, e: &Extent) -> bool {
        let blocks = self.g.block_of_frag(e.start)..self.g.block_of_frag(e.start + e.len);
        !blocks.is_empty()
            && blocks.into_iter().all(|addr| {
                let named = |b: &[u8]| BlockKind::from_magic(get_u32(b, 0)).is_some() && block_owner(b) == ino;
                self.vol.get(addr).is_ok_and(|b| named(&b))
            })
    }

    /// Creates an inode for a directory that has lost its own, with the blocks that are left of it.
    fn recreate_directory(&mut self, ino: Ino, blocks: Vec<(u64, BlockAddr)>) -> Result<()> {
        let mut real = false;
        for (_, addr) in &blocks {
            self.evidence.tried_blocks.insert(*addr);
            let block = self.vol.get(*addr).unwrap_or_default();
            real |= self.scavenging || self.confirmed_block(*addr, &block);
        }
        if !real {
            return Ok(());
        }
        let mut inode = Inode::new(ino, FileType::Directory.mode_bits() | 0o700, self.now);
        let fpb = self.g.frags_per_block();
        let usable = blocks.iter().filter(|(l, _)| *l < crate::format::dirblock::DIR_BLOCKS_MAX);
        let list: Vec<Extent> = usable.clone().map(|(l, a)| self.block_extent(*l, *a)).collect();
        let end = usable.map(|(l, _)| l + 1).max().unwrap_or(0);
        let what = format!("{} blocks of a directory without an inode", blocks.len());
        self.must_fix(Class::DirUnreachable, &inode_place(ino), what, "make its inode anew, in lost+found")?;
        for e in &list {
            self.space.claim_meta(e.start / fpb);
        }
        (inode.nlink, inode.size) = (2, end * self.g.block_size() as u64);
        self.set_map(&mut inode, &Map::default(), join(list))?;
        self.give_name(Disconnected {
            ino,
            file_type: FileType::Directory,
            inode: Some(Box::new(inode)),
            from: 0,
            name: None,
        })
    }
}
