//! The inode locator table: read as it was before the repair, and rebuilt from the inodes that were found.

use super::findings::OldLocator;
use super::repairer::{Repairer, no_space};
use super::tables::TableBlocks;
use crate::check::{Class, Phase};
use crate::error::Result;
use crate::format::dirblock::{Entry, EntryKind, entries, validate};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::table::{LOCATOR_SIZE, Location, TABLE_LBLOCK, TABLE_USED, TableShape};
use crate::format::{
    BlockAddr, BlockId, BlockKind, FIRST_USER_INO, Ino, Inode, LOCATOR_INO, META_HEADER_SIZE, block_seq, get_u64,
    init_block, put_u32, put_u64, seal, verify_block,
};
use std::cmp::Ordering;
use std::collections::BTreeMap;

impl Repairer<'_> {
    /// Reads the locator table as it was before the repair.
    pub(super) fn read_old_locator(&mut self) {
        let Some(inode) = self.load(LOCATOR_INO) else { return };
        let TableBlocks { map, good, .. } = self.table_blocks(&inode, BlockKind::Locator, self.locator_shape());
        self.claim_nodes(&map);
        for addr in good.values() {
            self.space.claim_meta(*addr);
        }
        self.found.locator_map = map;
        self.found.old_locator = OldLocator { blocks: good, last: None };
    }

    pub(super) fn locator_shape(&self) -> TableShape {
        TableShape::new(self.g.block_size(), LOCATOR_SIZE)
    }

    /// Location of an inode according to the locator table; `None` if the table cannot be used.
    pub(super) fn located(&mut self, ino: Ino) -> Option<Location> {
        let (lblock, offset) = self.locator_shape().place(ino);
        if self.found.old_locator.last.as_ref().is_none_or(|(l, _)| *l != lblock) {
            let addr = *self.found.old_locator.blocks.get(&lblock)?;
            let block = self.vol.old(addr).ok()?;
            self.found.old_locator.last = Some((lblock, block));
        }
        let (_, block) = self.found.old_locator.last.as_ref()?;
        Location::decode(&block[offset..offset + LOCATOR_SIZE], ino, self.g.block_size()).ok()
    }

    /// Whether the locator table confirms an entry of a directory block, or cannot tell.
    pub(super) fn confirmed_block(&mut self, addr: BlockAddr, block: &[u8]) -> bool {
        if validate(block).is_err() {
            return false;
        }
        let list: Vec<(Ino, usize, EntryKind)> =
            entries(block).filter(|e| e.kind != EntryKind::Free).map(|e| (e.ino, e.offset, e.kind)).collect();
        list.into_iter().any(|(ino, at, kind)| match (self.located(ino), kind) {
            (Some(Location::Embedded { block, offset }), _) => block == addr && offset == at,
            (Some(Location::External { .. }), EntryKind::Link) | (None, _) => true,
            _ => false,
        })
    }

    /// Whether an entry with an inode is exactly at the location in the locator table.
    pub(super) fn located_entries(&mut self, addr: BlockAddr, block: &[u8]) -> bool {
        if validate(block).is_err() {
            return false;
        }
        let list: Vec<(Ino, usize)> =
            entries(block).filter(|e| e.kind == EntryKind::Embedded).map(|e| (e.ino, e.offset)).collect();
        list.into_iter().any(|(ino, offset)| self.located(ino) == Some(Location::Embedded { block: addr, offset }))
    }

    /// Whether an inode of a block of the external table is at the location in the locator table.
    pub(super) fn located_slots(&mut self, addr: BlockAddr) -> bool {
        let Ok(block) = self.vol.get(addr) else { return false };
        let slots = (0..self.external_shape().per_block as usize).map(|s| META_HEADER_SIZE + s * INODE_SLOT_SIZE);
        let list: Vec<(Ino, usize)> = slots.map(|o| (get_u64(&block, o), o)).filter(|(ino, _)| *ino != 0).collect();
        list.into_iter().any(|(ino, offset)| self.located(ino) == Some(Location::External { block: addr, offset }))
    }

    /// Whether an inode has another location: that of its later entry, where two were found, or the one in the locator table. The
    /// table may be outdated: the bytes of an inode remain at its former location until the space is reused.
    pub(super) fn stands_elsewhere(&mut self, ino: Ino, block: BlockAddr, offset: u32) -> bool {
        let at = match self.evidence.later_entries.get(&ino) {
            Some(&at) => at,
            None => match self.located(ino) {
                Some(Location::Embedded { block, offset }) => (block, offset as u32),
                _ => return false,
            },
        };
        at != (block, offset) && self.stands_at(ino, at)
    }

    /// Whether an entry with the inode is there, in a block of a directory. What counts is that this directory maps the block; the
    /// bitmap, which may be as old as the locator table, counts only where that cannot be told.
    fn stands_at(&mut self, ino: Ino, (block, offset): (BlockAddr, u32)) -> bool {
        let Ok(there) = self.vol.get(block) else { return false };
        let owner = crate::format::block_owner(&there);
        let id = BlockId { kind: BlockKind::Dir, addr: block, owner };
        let is_it = |e: &Entry<'_>| e.offset == offset as usize && e.ino == ino && e.kind == EntryKind::Embedded;
        verify_block(&there, self.g.fsid, id).is_ok()
            && validate(&there).is_ok()
            && entries(&there).any(|e| is_it(&e))
            && self.maps_block(owner, block).unwrap_or_else(|| self.old_bit(self.g.frag_of_block(block)) != Some(false))
    }

    /// Notes, before anything is changed, which of the entries of one inode has changed later, if the inodes and the blocks agree on it: where a
    /// write was lost that took the inode out of the directory from which it was renamed, and the locator table is as old, the old entry looks as
    /// good as the new one.
    pub(super) fn note_later_entry(&mut self, inode: &Inode, here: (BlockAddr, u32), there: (BlockAddr, u32)) {
        let there = self.evidence.later_entries.get(&inode.ino).copied().unwrap_or(there);
        if here == there || !self.vol.surveying {
            return;
        }
        let Some(other) = self.load_from(inode.ino, there.0, there.1 as usize, false) else { return };
        let mut seq = |block| self.vol.get(block).map_or(0, |bytes| block_seq(&bytes));
        let (ours, theirs) = (seq(here.0), seq(there.0));
        let identity = |i: &Inode| (i.generation, i.btime, i.file_type());
        let later = match inode.ctime.cmp(&other.ctime) {
            Ordering::Greater if ours >= theirs => here,
            Ordering::Less if ours <= theirs => there,
            _ => return,
        };
        if identity(&other) == identity(inode) {
            self.evidence.later_entries.insert(inode.ino, later);
        }
    }

    /// Whether a directory maps a block; `None` if its inode was not found so far, also not by the locator table, or if
    /// its map is damaged and does not lead there.
    fn maps_block(&mut self, dir: Ino, addr: BlockAddr) -> Option<bool> {
        let inode = self.load(dir).or_else(|| self.load_located(dir))?;
        let frag = self.g.frag_of_block(addr);
        let map = self.read_map(&inode);
        let mapped = inode.is_dir() && map.extents.iter().any(|e| (e.start..e.start + e.len).contains(&frag));
        let whole = map.wrong.is_none() && !self.evidence.damaged_maps.contains(&dir);
        (mapped || whole).then_some(mapped)
    }

    /// The inode at the location in the locator table.
    pub(super) fn load_located(&mut self, ino: Ino) -> Option<Inode> {
        let (block, offset, external) = match self.located(ino)? {
            Location::Embedded { block, offset } => (block, offset, false),
            Location::External { block, offset } => (block, offset, true),
            Location::Free => return None,
        };
        self.load_from(ino, block, offset, external)
    }

    /// Rebuilds the locator table from the inodes that were found. No structure allocates space after it.
    pub(super) fn rebuild_locator(&mut self) -> Result<()> {
        let shape = self.locator_shape();
        let mut inos: Vec<Ino> = self.found.inodes.keys().copied().filter(|i| *i >= FIRST_USER_INO).collect();
        inos.sort_unstable();
        let (map, mut blocks) =
            (std::mem::take(&mut self.found.locator_map), std::mem::take(&mut self.found.old_locator.blocks));
        let mut counts = BTreeMap::new();
        let total = inos.len() as u64;
        let mut done = 0;
        let mut wrong = 0u64;
        for chunk in inos.chunk_by(|a, b| a / shape.per_block == b / shape.per_block) {
            let data = chunk[0] / shape.per_block;
            let lblock = shape.block_of_data(data);
            counts.insert(data, chunk.len() as u16);
            let mut b = vec![0; self.g.block_size()];
            let addr = match blocks.get(&lblock) {
                Some(addr) => *addr,
                None => {
                    let Some(addr) = self.alloc_meta() else { return Err(no_space("the inode locator table")) };
                    blocks.insert(lblock, addr);
                    addr
                }
            };
            init_block(&mut b, self.g.fsid, BlockId { kind: BlockKind::Locator, addr, owner: LOCATOR_INO });
            put_u64(&mut b, TABLE_LBLOCK, lblock);
            put_u32(&mut b, TABLE_USED, chunk.len() as u32);
            for ino in chunk {
                let k = self.found.inodes[ino];
                let (block, offset) = (k.block, k.offset as usize);
                let at = if k.external {
                    Location::External { block, offset }
                } else {
                    Location::Embedded { block, offset }
                };
                let (_, offset) = shape.place(*ino);
                b[offset..offset + LOCATOR_SIZE].copy_from_slice(&at.encode());
            }
            let now = self.vol.get(addr).unwrap_or_default();
            if now.len() == b.len() {
                let seq = block_seq(&now);
                seal(&mut b, seq);
            }
            // A damaged block may have the right contents under a wrong checksum.
            if now != b {
                wrong += 1;
                self.vol.put(addr, b);
            }
            done += chunk.len() as u64;
            self.report_progress(Phase::Locator, done, total);
        }
        if wrong > 0 {
            let what = format!("{wrong} of its blocks are missing or wrong");
            self.must_fix(Class::LocatorWrong, "inode locator table", what, "write them anew")?;
        }
        let needed = |l: &u64| shape.data_of_block(*l).is_none_or(|d| counts.contains_key(&d));
        let unused: Vec<u64> = blocks.keys().copied().filter(|l| !needed(l)).collect();
        for lblock in unused {
            if let Some(addr) = blocks.remove(&lblock) {
                self.space.release_block(addr);
            }
        }
        self.finish_table(LOCATOR_INO, shape, &counts, &mut blocks, map)
    }
}
