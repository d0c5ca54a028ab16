//! The slotted tables: external inodes and the inode locator; and the orphan list.

use super::checker::{Checker, DAMAGED_BLOCKS_MAX};
use super::extents::BlockMap;
use super::inventory::{External, Found, Role, place};
use super::pool::{Ahead, Context};
use super::reader::Block;
use super::report::{Class, Phase};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::table::{LOCATOR_SIZE, Location, TABLE_LBLOCK, TableShape, map_count, used};
use crate::format::{
    BlockAddr, BlockId, BlockKind, EXTERNAL_INO, FileType, Ino, Inode, LOCATOR_INO, META_HEADER_SIZE, get_u64,
};
use std::collections::HashMap;

/// A map block of a table: the counts of the table blocks that it covers.
struct Map {
    first_data: u64,
    block: Option<Block>,
    /// Blocks that were found. Those with a count that were not found are missing.
    seen: Vec<bool>,
}

/// A table block with its number among the table blocks, and whether its checksum and identity are right.
type TableBlock = (u64, BlockAddr, Block);

impl Checker<'_> {
    /// Calls `f` with each block of a table that is in use, in order, after checking it against its map.
    fn read_table(
        &mut self,
        table: &Inode,
        kind: BlockKind,
        shape: TableShape,
        mut f: impl FnMut(&mut Self, TableBlock) -> u64,
    ) {
        let blocks = BlockMap::read(self, table);
        self.check_space(table, blocks.frags, blocks.complete);
        let bad_block = if kind == BlockKind::Locator { Class::LocatorBlock } else { Class::ExternalBlock };
        let end = table.size.div_ceil(self.g.block_size() as u64);
        let device = self.g.total_blocks;
        if end > device {
            let what = format_args!("size {} on a device of {device} blocks", table.size);
            self.inode_problem(Class::InodeSize, table.ino, what);
        }
        let mut map: Option<Map> = None;
        let mut damaged = 0;
        let owner = table.ino;
        let read = move |context: &Context<'_>, (lblock, addr): (u64, BlockAddr)| {
            let kind = if shape.data_of_block(lblock).is_none() { BlockKind::TableMap } else { kind };
            // Blocks behind the end are ignored.
            let beyond = lblock >= end.min(context.fetch.geometry().total_blocks);
            let block = if beyond { Err(String::new()) } else { context.fetch.meta(BlockId { kind, addr, owner }) };
            (lblock, addr, block)
        };
        for (lblock, addr, read) in Ahead::new(self.pool, blocks.blocks(), self.pool.piece_blocks(), read) {
            // Holes are filled before a table grows, so it never has more blocks than the device.
            if lblock >= end.min(device) {
                let what = format_args!("size {} but there is a block {lblock}", table.size);
                self.inode_problem(Class::InodeSize, table.ino, what);
                break;
            }
            if damaged >= DAMAGED_BLOCKS_MAX {
                self.inode_problem(bad_block, table.ino, "too many damaged blocks: the rest is not read");
                break;
            }
            self.note_block_read(addr);
            let Some(data) = shape.data_of_block(lblock) else {
                self.finish_map(table.ino, map.take());
                map = Some(self.take_map(table.ino, (lblock, addr, read), shape, &mut damaged));
                continue;
            };
            let first_data = data / shape.per_map * shape.per_map;
            if map.as_ref().is_none_or(|m| m.first_data != first_data) {
                self.finish_map(table.ino, map.take());
                map = Some(Map { first_data, block: None, seen: Vec::new() });
                let missing = shape.map_of_data(data).0;
                self.inode_problem(Class::TableMap, table.ino, format_args!("map {missing} is missing"));
            }
            let counted = map.as_mut().map_or(0, |m| m.take_count(data, shape));
            let block = match read {
                Ok(b) if get_u64(&b, TABLE_LBLOCK) == lblock => b,
                Ok(b) => {
                    let found = get_u64(&b, TABLE_LBLOCK);
                    let what = format_args!("block at {addr} is number {found} instead of {lblock}");
                    self.inode_problem(bad_block, table.ino, what);
                    damaged += 1;
                    continue;
                }
                Err(what) => {
                    self.inode_problem(bad_block, table.ino, what);
                    damaged += 1;
                    continue;
                }
            };
            let says = u64::from(used(&block));
            let has = f(self, (data, addr, block));
            if has != says {
                let what = format_args!("block at {addr} says {says} slots are in use, but {has} are");
                self.inode_problem(Class::TableCount, table.ino, what);
            }
            if has != counted {
                let what = format_args!("the map says {counted} slots are in use in block {lblock}, but {has} are");
                self.inode_problem(Class::TableCount, table.ino, what);
            }
        }
        self.finish_map(table.ino, map);
    }

    fn take_map(
        &mut self,
        table: Ino,
        (lblock, addr, read): (u64, BlockAddr, Result<Block, String>),
        shape: TableShape,
        damaged: &mut u64,
    ) -> Map {
        let first_data = lblock / (shape.per_map + 1) * shape.per_map;
        let block = match read {
            Ok(b) if get_u64(&b, TABLE_LBLOCK) == lblock => Some(b),
            Ok(b) => {
                let found = get_u64(&b, TABLE_LBLOCK);
                let what = format_args!("map at block {addr} is number {found} instead of {lblock}");
                self.inode_problem(Class::TableMap, table, what);
                None
            }
            Err(what) => {
                self.inode_problem(Class::TableMap, table, what);
                None
            }
        };
        *damaged += u64::from(block.is_none());
        let seen = if block.is_some() { vec![false; shape.per_map as usize] } else { Vec::new() };
        Map { first_data, block, seen }
    }

    /// Reports blocks that have a count in the map and do not exist.
    fn finish_map(&mut self, table: Ino, map: Option<Map>) {
        let Some(Map { first_data, block: Some(block), seen }) = map else { return };
        for (i, seen) in seen.into_iter().enumerate() {
            let count = map_count(&block, META_HEADER_SIZE + i * 2);
            if !seen && count != 0 {
                let what = format_args!(
                    "the map says {count} slots are in use in table block {}, which is missing",
                    first_data + i as u64
                );
                self.inode_problem(Class::TableCount, table, what);
            }
        }
    }

    /// Goes through the external inode table.
    pub(super) fn check_external(&mut self, table: &Inode) {
        let shape = TableShape::new(self.g.block_size(), INODE_SLOT_SIZE);
        self.read_table(table, BlockKind::ExternalInodes, shape, |ck, (_, addr, block)| {
            let mut in_use = 0;
            for slot in 0..shape.per_block as usize {
                let offset = META_HEADER_SIZE + slot * INODE_SLOT_SIZE;
                let bytes = &block[offset..offset + INODE_SLOT_SIZE];
                if get_u64(bytes, 0) == 0 {
                    continue;
                }
                in_use += 1;
                match Inode::decode(bytes) {
                    Ok(inode) => ck.add_external(&inode, addr, offset as u32),
                    Err(c) => ck.problem(
                        Class::InodeDamaged,
                        format_args!("external inode table, block {addr}, byte {offset}"),
                        c.0,
                    ),
                }
            }
            ck.progress(Phase::External, ck.inventory.register.list.len() as u64, ck.inventory.expected);
            in_use
        });
        self.inventory.external.sort_unstable_by_key(|e| e.ino);
    }

    fn add_external(&mut self, inode: &Inode, block: BlockAddr, offset: u32) {
        let found = Found { ino: inode.ino, block, offset, external: true };
        let Some(data) = self.check_inode(inode, found, Role::External) else { return };
        let file_type = inode.file_type();
        if inode.is_dir() {
            self.inventory.external_dirs.insert(inode.ino, inode.clone());
        }
        self.inventory.external.push(External { ino: inode.ino, nlink: inode.nlink, names: 0, file_type, place: data });
    }

    /// Position in the list of external inodes.
    pub(super) fn external_index(&self, ino: Ino) -> Option<usize> {
        self.inventory.external.binary_search_by_key(&ino, |e| e.ino).ok()
    }

    /// Compares the link counts of external inodes with the names found.
    pub(super) fn check_links(&mut self) {
        for i in 0..self.inventory.external.len() {
            let e = self.inventory.external[i];
            // The count of a directory follows from its subdirectories; that there is one name was seen in the walk.
            if e.file_type != FileType::Directory && e.nlink != e.names {
                let what = format_args!("link count {}, but {} names refer to it", e.nlink, e.names);
                self.inode_problem(Class::InodeLinks, e.ino, what);
            }
            if e.file_type == FileType::Directory && e.nlink == 0 && e.names > 0 {
                self.inode_problem(Class::InodeLinks, e.ino, "link count 0, but a name refers to it");
            }
        }
    }

    /// Follows the list of orphans.
    pub(super) fn check_orphans(&mut self, head: Ino) {
        let mut left: HashMap<Ino, Ino> = self.inventory.register.orphans.iter().copied().collect();
        let mut at = head;
        while at != 0 {
            let Some(next) = left.remove(&at) else {
                let what = if self.inventory.register.orphans.iter().any(|o| o.0 == at) {
                    "is on it twice"
                } else {
                    "is no orphan"
                };
                self.problem(Class::OrphanList, "orphan list", format_args!("inode {at} {what}"));
                break;
            };
            at = next;
        }
        let mut lost: Vec<Ino> = left.into_keys().collect();
        lost.sort_unstable();
        for ino in lost {
            self.inode_problem(Class::OrphanList, ino, "an inode without a name that is not on the orphan list");
        }
    }

    /// Compares the locator table with the inodes found.
    pub(super) fn check_locator(&mut self, table: &Inode) {
        let shape = TableShape::new(self.g.block_size(), LOCATOR_SIZE);
        let mut inodes = std::mem::take(&mut self.inventory.register.list);
        inodes.sort_unstable_by_key(|f| f.ino);
        let mut next = 0;
        let total = inodes.len() as u64;
        self.read_table(table, BlockKind::Locator, shape, |ck, (data, addr, block)| {
            let first = data * shape.per_block;
            while next < inodes.len() && inodes[next].ino < first {
                ck.not_located(inodes[next]);
                next += 1;
            }
            let mut in_use = 0;
            for slot in 0..shape.per_block {
                let ino = first + slot;
                let offset = META_HEADER_SIZE + slot as usize * LOCATOR_SIZE;
                let bytes = &block[offset..offset + LOCATOR_SIZE];
                let found = inodes.get(next).filter(|f| f.ino == ino).copied();
                next += usize::from(found.is_some());
                let said = match Location::decode(bytes, ino, ck.g.block_size()) {
                    Ok(said) => said,
                    Err(c) => {
                        in_use += 1;
                        ck.problem(Class::LocatorWrong, format_args!("locator table, block {addr}"), c.0);
                        continue;
                    }
                };
                in_use += u64::from(said != Location::Free);
                ck.compare_location(ino, said, found);
            }
            ck.progress(Phase::Locator, next as u64, total);
            in_use
        });
        for f in &inodes[next..] {
            self.not_located(*f);
        }
        self.inventory.register.list = inodes;
    }

    fn not_located(&mut self, f: Found) {
        let what = format_args!("at {}, but missing in the locator table", place(f));
        self.inode_problem(Class::LocatorMissing, f.ino, what);
    }

    fn compare_location(&mut self, ino: Ino, said: Location, found: Option<Found>) {
        let is = found.map_or(Location::Free, |f| {
            let (block, offset) = (f.block, f.offset as usize);
            if f.external { Location::External { block, offset } } else { Location::Embedded { block, offset } }
        });
        match (said, found) {
            _ if said == is => {}
            (Location::Free, Some(f)) => self.not_located(f),
            (_, None) => self.inode_problem(
                Class::LocatorStale,
                ino,
                format_args!("the locator table says {said:?}, but the inode was not found"),
            ),
            (_, Some(_)) => self.inode_problem(
                Class::LocatorWrong,
                ino,
                format_args!("the locator table says {said:?}, but it is {is:?}"),
            ),
        }
    }

    /// The two tables, read as inodes.
    pub(super) fn table_inodes(&mut self) -> [Option<Inode>; 2] {
        [EXTERNAL_INO, LOCATOR_INO].map(|ino| {
            let inode = self.read_system_inode(ino)?;
            self.check_xattr(&inode);
            Some(inode)
        })
    }
}

impl Map {
    /// The count of a table block, which counts as found from now on.
    fn take_count(&mut self, data: u64, shape: TableShape) -> u64 {
        let Some(block) = &self.block else { return 0 };
        let i = (data - self.first_data) as usize;
        self.seen[i] = true;
        let (_, offset) = shape.map_of_data(data);
        u64::from(map_count(block, offset))
    }
}
