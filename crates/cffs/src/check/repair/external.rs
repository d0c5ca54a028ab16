//! The external inode table.

use super::entries::mend_inode;
use super::findings::{Disconnected, Known, inode_place};
use super::inodes::{Numbered, Role};
use super::repairer::{Repairer, no_space};
use super::tables::TableBlocks;
use crate::check::Class;
use crate::error::Result;
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::table::{TABLE_LBLOCK, TABLE_USED, TableShape};
use crate::format::{
    BlockAddr, BlockId, BlockKind, EXTERNAL_INO, FileType, Ino, Inode, InodeFormat, META_HEADER_SIZE, block_seq,
    get_u32, get_u64, init_block, put_u32, put_u64,
};
use std::collections::BTreeMap;

impl Repairer<'_> {
    pub(super) fn external_shape(&self) -> TableShape {
        TableShape::new(self.g.block_size(), INODE_SLOT_SIZE)
    }

    /// The external inode table: its blocks, and the inodes in them.
    pub(super) fn external_table(&mut self) -> Result<()> {
        let shape = self.external_shape();
        let Some(inode) = self.load(EXTERNAL_INO) else { return Ok(()) };
        let TableBlocks { map, good, damaged } = self.table_blocks(&inode, BlockKind::ExternalInodes, shape);
        self.claim_nodes(&map);
        if map.wrong.is_some() {
            self.evidence.damaged_maps.insert(EXTERNAL_INO);
        }
        self.found.external_map = map;
        self.found.external_blocks.clear();
        for (lblock, addr) in good {
            if !self.space.claim_meta(addr) {
                continue;
            }
            self.found.external_blocks.insert(lblock, addr);
            if shape.data_of_block(lblock).is_some() {
                let block = self.vol.get(addr).unwrap_or_default();
                self.external_block(lblock, addr, block, false)?;
            }
        }
        for (lblock, addr, block) in damaged {
            if shape.data_of_block(lblock).is_none()
                || self.space.meta.overlaps(self.g.frag_of_block(addr), self.g.frag_of_block(addr + 1))
            {
                continue;
            }
            let place = format!("external inode table, block {addr}");
            let what = "its checksum does not match".to_string();
            if get_u64(&block, 16) != addr || get_u64(&block, 8) != self.g.fsid {
                self.must_fix(Class::ExternalBlock, &place, what, "give it up")?;
                continue;
            }
            self.must_fix(Class::ExternalBlock, &place, what, "keep the inodes that can be read")?;
            self.space.claim_meta(addr);
            self.found.external_blocks.insert(lblock, addr);
            self.external_block(lblock, addr, block, true)?;
        }
        Ok(())
    }

    pub(super) fn external_block(&mut self, lblock: u64, addr: BlockAddr, old: Vec<u8>, guessed: bool) -> Result<()> {
        let shape = self.external_shape();
        let place = format!("external inode table, block {addr}");
        let mut new = vec![0; self.g.block_size()];
        init_block(&mut new, self.g.fsid, BlockId { kind: BlockKind::ExternalInodes, addr, owner: EXTERNAL_INO });
        put_u64(&mut new, 32, block_seq(&old));
        put_u64(&mut new, TABLE_LBLOCK, lblock);
        let mut in_use = 0;
        for slot in 0..shape.per_block {
            let offset = META_HEADER_SIZE + slot as usize * INODE_SLOT_SIZE;
            let mut bytes = old[offset..offset + INODE_SLOT_SIZE].to_vec();
            if get_u64(&bytes, 0) == 0 {
                continue;
            }
            let Some(mut inode) = mend_inode(&mut bytes, None, &self.g) else {
                let what = format!("the inode in slot {slot} cannot be read");
                self.must_fix(Class::InodeDamaged, &place, what, "free the slot")?;
                continue;
            };
            if Inode::decode(&old[offset..offset + INODE_SLOT_SIZE]).is_err() {
                let what = format!("inode {} is damaged", inode.ino);
                self.must_fix(Class::InodeDamaged, &place, what, "keep the valid fields")?;
            }
            let owner = inode.ino;
            match self.number(&mut inode, addr, offset as u32, &place)? {
                Numbered::Same | Numbered::Another => {}
                Numbered::Remove | Numbered::Link => continue,
            }
            let owner = if inode.is_dir() { inode.ino } else { owner };
            if !self.contents(&mut inode, owner, Role::External)? {
                continue;
            }
            inode.encode(&mut new[offset..offset + inode.encoded_len()]);
            in_use += 1;
            let file_type = inode.file_type();
            self.register(
                &inode,
                Known { block: addr, offset: offset as u32, external: true, file_type, names: 0, ..Known::of(&inode) },
            );
            if guessed {
                self.evidence.guessed.insert(inode.ino);
            }
        }
        put_u32(&mut new, TABLE_USED, in_use);
        if get_u32(&old, TABLE_USED) != in_use {
            let what = format!("says {} slots are in use, but {in_use} are", get_u32(&old, TABLE_USED));
            self.must_fix(Class::TableCount, &place, what, "correct it")?;
        }
        self.vol.put(addr, new);
        Ok(())
    }

    /// After the walk: link counts of external inodes, and those that no name leads to.
    pub(super) fn external_links(&mut self) -> Result<()> {
        let list: Vec<(Ino, Known)> = {
            let mut list: Vec<(Ino, Known)> =
                self.found.inodes.iter().filter(|(_, k)| k.external).map(|(i, k)| (*i, *k)).collect();
            list.sort_unstable_by_key(|(i, _)| *i);
            list
        };
        for (ino, k) in list {
            let dir = k.file_type == FileType::Directory;
            let Some(mut inode) = self.load(ino) else { continue };
            let place = inode_place(ino);
            if k.names == 0 || self.found.unreachable_roots.contains(&ino) {
                if inode.nlink == 0 && !self.has_names(&inode) {
                    self.must_fix(
                        Class::OrphanList,
                        &place,
                        "it has no name".into(),
                        "free it, as the next mount would",
                    )?;
                    self.free_slot(&k);
                    self.found.inodes.remove(&ino);
                    continue;
                }
                let class = if dir { Class::DirUnreachable } else { Class::InodeLinks };
                self.must_fix(class, &place, "no name refers to it".into(), "give it a name in lost+found")?;
                if !self.vol.surveying {
                    let lost = Disconnected { inode: None, ino, file_type: k.file_type, from: 0, name: None };
                    self.found.disconnected.push(lost);
                }
                continue;
            }
            if !dir && inode.nlink != k.names {
                let what = format!("link count {}, but {} names refer to it", inode.nlink, k.names);
                if self.fix(Class::InodeLinks, &place, what, "correct it")? {
                    inode.nlink = k.names;
                    self.store(&inode);
                }
            }
        }
        Ok(())
    }

    /// Directories of the external table that the walk from the root did not reach: the roots of lost subtrees.
    pub(super) fn unreachable_roots(&mut self) -> Vec<Ino> {
        let mut lost: Vec<Ino> = self
            .found
            .inodes
            .iter()
            .filter(|(i, k)| k.external && k.file_type == FileType::Directory && !self.found.walked.contains(i))
            .map(|(i, _)| *i)
            .collect();
        lost.sort_unstable();
        // Directories whose parent is lost too are found below it. In a circle any one of them will do.
        lost.sort_by_key(|ino| {
            self.load(*ino).is_some_and(|i| lost_has(&self.found.inodes, &self.found.walked, i.parent))
        });
        lost
    }

    pub(super) fn free_slot(&mut self, k: &Known) {
        let Ok(mut b) = self.vol.get(k.block) else { return };
        let at = k.offset as usize;
        b[at..at + INODE_SLOT_SIZE].fill(0);
        let used = get_u32(&b, TABLE_USED).saturating_sub(1);
        put_u32(&mut b, TABLE_USED, used);
        self.vol.put(k.block, b);
    }

    /// Maps and inode of the external table, as its blocks demand.
    pub(super) fn finish_external(&mut self) -> Result<()> {
        let shape = self.external_shape();
        let mut counts = BTreeMap::new();
        for (lblock, addr) in self.found.external_blocks.clone() {
            if let Some(data) = shape.data_of_block(lblock) {
                let used = self.vol.get(addr).map_or(0, |b| get_u32(&b, TABLE_USED));
                counts.insert(data, used as u16);
            }
        }
        let (map, mut blocks) = (std::mem::take(&mut self.found.external_map), self.found.external_blocks.clone());
        self.finish_table(EXTERNAL_INO, shape, &counts, &mut blocks, map)
    }

    /// Puts an inode into a free slot of the external table.
    pub(super) fn place_external(&mut self, inode: &mut Inode) -> Result<()> {
        let shape = self.external_shape();
        if inode.encoded_len() > INODE_SLOT_SIZE {
            // Only targets of symbolic links are that long.
            inode.inline_len = INODE_SLOT_SIZE - crate::format::inode::INODE_CORE_SIZE;
            if let InodeFormat::Inline(data) = &mut inode.format {
                data.truncate(inode.inline_len);
                inode.size = data.len() as u64;
            }
        }
        let list: Vec<(u64, BlockAddr)> = self.found.external_blocks.iter().map(|(l, a)| (*l, *a)).collect();
        let with_room = list.iter().rev().filter(|(l, _)| shape.data_of_block(*l).is_some()).find_map(|(_, addr)| {
            let b = self.vol.get(*addr).ok()?;
            (u64::from(get_u32(&b, TABLE_USED)) < shape.per_block).then_some((*addr, b))
        });
        let (addr, mut b) = match with_room {
            Some(found) => found,
            None => {
                let Some(addr) = self.alloc_meta() else { return Err(no_space("the external inode table")) };
                let next = list.iter().filter_map(|(l, _)| shape.data_of_block(*l)).max().map_or(0, |d| d + 1);
                let lblock = shape.block_of_data(next);
                let mut b = vec![0; self.g.block_size()];
                init_block(&mut b, self.g.fsid, BlockId { kind: BlockKind::ExternalInodes, addr, owner: EXTERNAL_INO });
                put_u64(&mut b, TABLE_LBLOCK, lblock);
                self.found.external_blocks.insert(lblock, addr);
                (addr, b)
            }
        };
        let Some(offset) = (0..shape.per_block as usize)
            .map(|s| META_HEADER_SIZE + s * INODE_SLOT_SIZE)
            .find(|o| get_u64(&b, *o) == 0)
        else {
            return Err(no_space("the external inode table"));
        };
        inode.encode(&mut b[offset..offset + inode.encoded_len()]);
        let used = get_u32(&b, TABLE_USED) + 1;
        put_u32(&mut b, TABLE_USED, used);
        self.vol.put(addr, b);
        let known = Known {
            block: addr,
            offset: offset as u32,
            external: true,
            file_type: inode.file_type(),
            names: 1,
            ..Known::of(inode)
        };
        self.register(inode, known);
        Ok(())
    }
}

fn lost_has(
    inodes: &std::collections::HashMap<Ino, Known>,
    walked: &std::collections::HashSet<Ino>,
    parent: Ino,
) -> bool {
    !walked.contains(&parent) && inodes.get(&parent).is_some_and(|k| k.external && k.file_type == FileType::Directory)
}
