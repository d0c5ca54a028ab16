//! System inodes, the external inode table, and the inode locator table, which is written anew from the inodes found.

use super::entries::mend_inode;
use super::maps::Map;
use super::volume::BlockError;
use super::walk::{Numbered, Role, inode_place};
use super::{Class, Disconnected, Known, Repairer};
use crate::error::Result;
use crate::format::dirblock::{EntryKind, entries, validate};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::quota::{QUOTA_LBLOCK, place};
use crate::format::table::{LOCATOR_SIZE, Location, TABLE_LBLOCK, TABLE_USED, TableShape, encode_count};
use crate::format::{
    BlockAddr, BlockId, BlockKind, EXTERNAL_INO, Extent, FIRST_USER_INO, FileType, Ino, Inode, InodeFormat,
    LAST_SYSTEM_INO, LOCATOR_INO, META_HEADER_SIZE, QuotaKind, ROOT_INO, block_seq, get_u32, get_u64, init_block,
    put_u32, put_u64, verify_block,
};
use std::collections::BTreeMap;

/// The locator table as it stood before the repair: a old_locator, asked where structures contradict each other.
#[derive(Default)]
pub(super) struct OldLocator {
    blocks: BTreeMap<u64, BlockAddr>,
    /// The block asked last.
    last: Option<(u64, Vec<u8>)>,
}

/// Extents of a table that are read ahead.
const EXTENTS_AHEAD: usize = 16;

/// The map of a table; its good blocks by their number; and blocks with a wrong checksum.
type TableBlocks = (Map, BTreeMap<u64, BlockAddr>, Vec<(u64, BlockAddr, Vec<u8>)>);

impl Repairer<'_> {
    fn system_block_id(&self, ino: Ino) -> BlockId {
        BlockId { kind: BlockKind::SystemInodes, addr: self.g.system_inode(ino).0, owner: 0 }
    }

    /// Makes the system inodes something that can be worked with.
    pub(super) fn system_inodes(&mut self) -> Result<()> {
        let per = self.g.inodes_per_block();
        for first in (ROOT_INO..=LAST_SYSTEM_INO).step_by(per as usize) {
            let id = self.system_block_id(first);
            let last = (first + per - 1).min(LAST_SYSTEM_INO);
            let (old, trusted, what) = match self.vol.meta(id) {
                Ok(b) => (b, true, None),
                Err(BlockError::Damaged(what, b)) => (b, false, Some(what)),
                Err(bad) => (vec![0; self.g.block_size()], false, Some(bad.text())),
            };
            let mut new = vec![0; self.g.block_size()];
            init_block(&mut new, self.g.fsid, id);
            put_u64(&mut new, 32, block_seq(&old));
            if let Some(what) = what {
                self.must_fix(
                    Class::SystemInode,
                    &format!("system inodes {first} to {last}"),
                    what,
                    "write the block anew",
                )?;
            }
            for ino in first..=last {
                let offset = self.g.system_inode(ino).1;
                let slot = &old[offset..offset + INODE_SLOT_SIZE];
                let inode = self.system_inode(ino, slot, trusted)?;
                inode.encode(&mut new[offset..offset + inode.encoded_len()]);
            }
            if !trusted || new[64..] != old[64..] {
                self.vol.put(id.addr, new);
            }
        }
        Ok(())
    }

    fn system_inode(&mut self, ino: Ino, slot: &[u8], trusted: bool) -> Result<Inode> {
        let want = if ino == ROOT_INO { FileType::Directory } else { FileType::Regular };
        let mut bytes = slot.to_vec();
        if get_u64(&bytes, 0) != ino && trusted {
            // The number alone may be what is wrong.
            put_u64(&mut bytes, 0, ino);
        }
        let place = inode_place(ino);
        if Inode::decode(slot).is_err() {
            bytes[15] = (crate::format::inode::INLINE_DEFAULT / 8) as u8;
        }
        let found = mend_inode(&mut bytes, Some(want), &self.g).filter(|i| i.ino == ino);
        let found = found.map(|i| {
            let mode = i.mode & 0o7777 | want.mode_bits();
            if i.mode == mode { (i, false) } else { (Inode { mode, ..i }, true) }
        });
        let same = |i: &Inode| Inode::decode(slot).is_ok_and(|old| old == *i);
        let found = found.map(|(i, changed)| match i.format {
            // Nothing that could be the contents of a table.
            InodeFormat::Inline(_) => (Inode { format: InodeFormat::Extents(Vec::new()), size: 0, ..i }, true),
            _ => (i, changed),
        });
        let mut inode = match found {
            Some((i, false)) if same(&i) => i,
            Some((i, _)) => {
                self.must_fix(Class::SystemInode, &place, "it is damaged".into(), "keep what makes sense")?;
                self.damaged_maps.insert(ino);
                i
            }
            None => {
                self.must_fix(Class::SystemInode, &place, "it cannot be read".into(), "make it anew, empty")?;
                self.damaged_maps.insert(ino);
                let bits = if ino == ROOT_INO { 0o755 } else { 0o600 };
                let mut i = Inode::new(ino, want.mode_bits() | bits, self.now);
                if ino == ROOT_INO {
                    (i.nlink, i.parent) = (2, ROOT_INO);
                }
                i
            }
        };
        let inline = crate::format::inode::INLINE_DEFAULT;
        if inode.inline_len < inline {
            let what = format!("inline area of {} bytes", inode.inline_len);
            self.must_fix(Class::SystemInode, &place, what, "make it as long as that of others")?;
            inode.inline_len = inline;
        }
        if inode.encoded_len() > INODE_SLOT_SIZE {
            inode.inline_len = crate::format::inode::INLINE_DEFAULT;
        }
        if ino != ROOT_INO && inode.has_xattrs() {
            // They would take room from its map.
            let what = "extended attributes of a system file".to_string();
            self.must_fix(Class::SystemInode, &place, what, "remove them")?;
            self.damaged_maps.insert(ino);
            (inode.xattrs, inode.xattr_block) = (Vec::new(), 0);
        }
        if ino != ROOT_INO && inode.nlink != 1 {
            let what = format!("link count {} of a system file", inode.nlink);
            if self.fix(Class::InodeLinks, &place, what, "make it 1")? {
                inode.nlink = 1;
            }
        }
        Ok(inode)
    }

    /// Quota files: their blocks stay as far as they say that they are theirs. What the records count is not looked at:
    /// where anything else was wrong they are marked to be counted again, which the next mount does.
    pub(super) fn quota_files(&mut self) -> Result<()> {
        let (bs, fpb) = (self.g.block_size() as u64, self.g.frags_per_block());
        let last_block = place(self.g.block_size(), u32::MAX).0;
        for kind in QuotaKind::ALL {
            let Some(mut inode) = self.load(kind.ino()) else { continue };
            let (before, name) = (inode.clone(), inode_place(kind.ino()));
            if inode.aux > 1
                && self.fix(Class::InodeField, &name, format!("auxiliary field {}", inode.aux), "clear it")?
            {
                inode.aux = 0;
            }
            self.contents_of_system_file(&mut inode)?;
            let map = self.read_map(&inode);
            let (mut keep, mut wrong, mut end) = (Vec::new(), map.wrong.clone(), 0);
            for node in &map.nodes {
                self.claim_meta(*node);
            }
            let mut useless = 0;
            for e in &map.extents {
                for n in 0..e.len / fpb {
                    let (lblock, addr) = (e.logical / fpb + n, e.start / fpb + n);
                    let whole = (e.logical | e.start | e.len).is_multiple_of(fpb) && !e.unwritten;
                    let good = whole && useless < 1 << 14 && lblock <= last_block && {
                        let id = BlockId { kind: BlockKind::Quota, addr, owner: inode.ino };
                        self.vol.meta(id).is_ok_and(|b| get_u64(&b, QUOTA_LBLOCK) == lblock) && self.claim_meta(addr)
                    };
                    if good {
                        keep.push(Extent { logical: lblock * fpb, start: addr * fpb, len: fpb, unwritten: false });
                        end = (lblock + 1) * bs;
                    } else {
                        useless += 1;
                        wrong.get_or_insert(format!("block {addr} is none of its blocks"));
                        if useless > 1 << 14 {
                            break;
                        }
                    }
                }
            }
            if self.vol.surveying {
                continue;
            }
            if let Some(what) = wrong {
                self.must_fix(Class::QuotaBlock, &name, what, "leave out what is not in order")?;
                self.set_map(&mut inode, &map, super::maps::join(keep))?;
                inode.aux = 0;
            } else {
                inode.frags = map.frags(&self.g) + self.xattr_frags(&inode);
            }
            if inode.size < end {
                inode.size = end;
            }
            if inode != before {
                self.must_fix(Class::InodeSpace, &name, "size or space of a quota file is wrong".into(), "correct it")?;
                self.store(&inode);
            }
        }
        Ok(())
    }

    /// After all changes: quota records that were exact are to be counted again, if anything was changed.
    pub(super) fn recount_quotas(&mut self) -> Result<()> {
        for kind in QuotaKind::ALL {
            let Some(mut inode) = self.load(kind.ino()) else { continue };
            if self.sb.has_quota(kind) && inode.aux == 1 {
                let what = "what it counts may be wrong or have changed".to_string();
                if self.fix(Class::QuotaUsage, &inode_place(kind.ino()), what, "count again at the next mount")? {
                    inode.aux = 0;
                    self.store(&inode);
                }
            }
        }
        Ok(())
    }

    /// The blocks of a table that say they are its own, by their number; what else it maps is told.
    fn table_blocks(&mut self, inode: &Inode, kind: BlockKind, shape: TableShape) -> TableBlocks {
        let map = self.read_map(inode);
        let fpb = self.g.frags_per_block();
        let (mut good, mut damaged) = (BTreeMap::new(), Vec::new());
        let mut useless = 0u64;
        // The extents of a table lie scattered: some are read ahead.
        let mut coming = map.extents.iter().map(|e| e.start / fpb);
        coming.by_ref().take(EXTENTS_AHEAD).for_each(|addr| self.vol.want(addr));
        for e in &map.extents {
            if !(e.logical | e.start | e.len).is_multiple_of(fpb) {
                continue;
            }
            for n in 0..e.len / fpb {
                let (lblock, addr) = (e.logical / fpb + n, e.start / fpb + n);
                if n == 0 {
                    coming.by_ref().take(1).for_each(|addr| self.vol.want(addr));
                }
                // Holes are filled before a table grows, so it never has more blocks than the device.
                let possible = lblock < self.g.total_blocks;
                let kind = if shape.data_of_block(lblock).is_some() { kind } else { BlockKind::TableMap };
                match self.vol.meta(BlockId { kind, addr, owner: inode.ino }) {
                    Ok(b) if possible && get_u64(&b, TABLE_LBLOCK) == lblock => {
                        good.insert(lblock, addr);
                    }
                    Err(BlockError::Damaged(_, b)) if possible => {
                        useless += 1;
                        damaged.push((lblock, addr, b));
                    }
                    _ => useless += 1,
                }
                if useless > 1 << 14 {
                    // A map of nothing: what it leads to is not looked at any more.
                    return (map, good, damaged);
                }
            }
        }
        (map, good, damaged)
    }

    /// Reads the locator table as it is, to be asked later.
    pub(super) fn read_old_locator(&mut self) {
        let Some(inode) = self.load(LOCATOR_INO) else { return };
        let (map, good, _) = self.table_blocks(&inode, BlockKind::Locator, self.locator_shape());
        for node in &map.nodes {
            self.claim_meta(*node);
        }
        for addr in good.values() {
            self.claim_meta(*addr);
        }
        self.locator_map = map;
        self.old_locator = OldLocator { blocks: good, last: None };
    }

    fn locator_shape(&self) -> TableShape {
        TableShape::new(self.g.block_size(), LOCATOR_SIZE)
    }

    /// Where the locator table says an inode is; `None` if it cannot be asked.
    pub(super) fn located(&mut self, ino: Ino) -> Option<Location> {
        let (lblock, offset) = self.locator_shape().place(ino);
        if self.old_locator.last.as_ref().is_none_or(|(l, _)| *l != lblock) {
            let addr = *self.old_locator.blocks.get(&lblock)?;
            let block = self.vol.old(addr).ok()?;
            self.old_locator.last = Some((lblock, block));
        }
        let (_, block) = self.old_locator.last.as_ref()?;
        Location::decode(&block[offset..offset + LOCATOR_SIZE], ino, self.g.block_size()).ok()
    }

    /// Whether the locator table knows an entry of a directory block.
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

    /// The same, strictly: an entry with an inode stands where the locator table says.
    pub(super) fn located_entries(&mut self, addr: BlockAddr, block: &[u8]) -> bool {
        if validate(block).is_err() {
            return false;
        }
        let list: Vec<(Ino, usize)> =
            entries(block).filter(|e| e.kind == EntryKind::Embedded).map(|e| (e.ino, e.offset)).collect();
        list.into_iter().any(|(ino, offset)| self.located(ino) == Some(Location::Embedded { block: addr, offset }))
    }

    /// Whether an inode of a block of the external table stands where the locator table says.
    pub(super) fn located_slots(&mut self, addr: BlockAddr) -> bool {
        let Ok(block) = self.vol.get(addr) else { return false };
        let slots = (0..self.external_shape().per_block as usize).map(|s| META_HEADER_SIZE + s * INODE_SLOT_SIZE);
        let list: Vec<(Ino, usize)> = slots.map(|o| (get_u64(&block, o), o)).filter(|(ino, _)| *ino != 0).collect();
        list.into_iter().any(|(ino, offset)| self.located(ino) == Some(Location::External { block: addr, offset }))
    }

    /// Whether an inode really stands at another place, as the locator table says. The table may be what is old: where the inode
    /// stood before, its bytes are found until somebody else gets the space. So a block in free space counts only if the
    /// directory that it names maps it.
    pub(super) fn stands_elsewhere(&mut self, ino: Ino, block: BlockAddr, offset: u32) -> bool {
        match self.located(ino) {
            Some(Location::Embedded { block: b, offset: o }) if (b, o) != (block, offset as usize) => {
                let Ok(there) = self.vol.get(b) else { return false };
                let owner = crate::format::block_owner(&there);
                let id = BlockId { kind: BlockKind::Dir, addr: b, owner };
                verify_block(&there, self.g.fsid, id).is_ok()
                    && validate(&there).is_ok()
                    && entries(&there).any(|e| e.offset == o && e.ino == ino && e.kind == EntryKind::Embedded)
                    && (self.old_bit(self.g.frag_of_block(b)) != Some(false) || self.maps_block(owner, b))
            }
            _ => false,
        }
    }

    /// Whether a directory maps a block, as far as the directory has been met or the locator table knows where it is.
    fn maps_block(&mut self, dir: Ino, addr: BlockAddr) -> bool {
        let Some(inode) = self.load(dir).or_else(|| self.load_located(dir)) else { return false };
        let frag = self.g.frag_of_block(addr);
        inode.is_dir() && self.read_map(&inode).extents.iter().any(|e| (e.start..e.start + e.len).contains(&frag))
    }

    /// The inode that stands where the locator table says.
    fn load_located(&mut self, ino: Ino) -> Option<Inode> {
        let (block, offset, external) = match self.located(ino)? {
            Location::Embedded { block, offset } => (block, offset, false),
            Location::External { block, offset } => (block, offset, true),
            Location::Free => return None,
        };
        self.load_from(ino, block, offset, external)
    }

    pub(super) fn external_shape(&self) -> TableShape {
        TableShape::new(self.g.block_size(), INODE_SLOT_SIZE)
    }

    /// The external inode table: its blocks, and the inodes in them.
    pub(super) fn external_table(&mut self) -> Result<()> {
        let shape = self.external_shape();
        let Some(inode) = self.load(EXTERNAL_INO) else { return Ok(()) };
        let (map, good, damaged) = self.table_blocks(&inode, BlockKind::ExternalInodes, shape);
        for node in &map.nodes {
            self.claim_meta(*node);
        }
        if map.wrong.is_some() {
            self.damaged_maps.insert(EXTERNAL_INO);
        }
        self.external_map = map;
        self.external_blocks.clear();
        for (lblock, addr) in good {
            if !self.claim_meta(addr) {
                continue;
            }
            self.external_blocks.insert(lblock, addr);
            if shape.data_of_block(lblock).is_some() {
                let block = self.vol.get(addr).unwrap_or_default();
                self.external_block(lblock, addr, block, false)?;
            }
        }
        for (lblock, addr, block) in damaged {
            if shape.data_of_block(lblock).is_none()
                || self.meta.overlaps(self.g.frag_of_block(addr), self.g.frag_of_block(addr + 1))
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
            self.claim_meta(addr);
            self.external_blocks.insert(lblock, addr);
            self.external_block(lblock, addr, block, true)?;
        }
        Ok(())
    }

    fn external_block(&mut self, lblock: u64, addr: BlockAddr, old: Vec<u8>, guessed: bool) -> Result<()> {
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
                self.must_fix(Class::InodeDamaged, &place, what, "keep what makes sense")?;
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
                self.guessed.insert(inode.ino);
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
                self.inodes.iter().filter(|(_, k)| k.external).map(|(i, k)| (*i, *k)).collect();
            list.sort_unstable_by_key(|(i, _)| *i);
            list
        };
        for (ino, k) in list {
            let dir = k.file_type == FileType::Directory;
            let Some(mut inode) = self.load(ino) else { continue };
            let place = inode_place(ino);
            if k.names == 0 || self.unreachable_roots.contains(&ino) {
                if inode.nlink == 0 && !self.has_names(&inode) {
                    self.must_fix(
                        Class::OrphanList,
                        &place,
                        "it has no name".into(),
                        "free it, as the next mount would",
                    )?;
                    self.free_slot(&k);
                    self.inodes.remove(&ino);
                    continue;
                }
                let class = if dir { Class::DirUnreachable } else { Class::InodeLinks };
                self.must_fix(class, &place, "no name leads to it".into(), "give it a name in lost+found")?;
                if !self.vol.surveying {
                    let lost = Disconnected { inode: None, ino, file_type: k.file_type, from: 0, name: None };
                    self.disconnected.push(lost);
                }
                continue;
            }
            if !dir && inode.nlink != k.names {
                let what = format!("link count {}, but {} names lead to it", inode.nlink, k.names);
                if self.fix(Class::InodeLinks, &place, what, "correct it")? {
                    inode.nlink = k.names;
                    self.store(&inode);
                }
            }
        }
        Ok(())
    }

    /// Directories of the external table that the walk from the root did not come to: the tops of what is lost.
    pub(super) fn unreachable_roots(&mut self) -> Vec<Ino> {
        let mut lost: Vec<Ino> = self
            .inodes
            .iter()
            .filter(|(i, k)| k.external && k.file_type == FileType::Directory && !self.walked.contains(i))
            .map(|(i, _)| *i)
            .collect();
        lost.sort_unstable();
        // Those whose parent is lost as well are found below it; in a circle the first is as good as any.
        lost.sort_by_key(|ino| self.load(*ino).is_some_and(|i| lost_has(&self.inodes, &self.walked, i.parent)));
        lost
    }

    fn free_slot(&mut self, k: &Known) {
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
        for (lblock, addr) in self.external_blocks.clone() {
            if let Some(data) = shape.data_of_block(lblock) {
                let used = self.vol.get(addr).map_or(0, |b| get_u32(&b, TABLE_USED));
                counts.insert(data, used as u16);
            }
        }
        let (map, mut blocks) = (std::mem::take(&mut self.external_map), self.external_blocks.clone());
        self.finish_table(EXTERNAL_INO, shape, &counts, &mut blocks, map)
    }

    /// Writes the maps of a table and the table's inode. `blocks`: the blocks it has, which stay where they are.
    fn finish_table(
        &mut self,
        ino: Ino,
        shape: TableShape,
        counts: &BTreeMap<u64, u16>,
        blocks: &mut BTreeMap<u64, BlockAddr>,
        old: Map,
    ) -> Result<()> {
        let place = inode_place(ino);
        let mut maps: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        // A block that is there needs its map, also if nothing in it is in use.
        for (data, count) in counts.iter().filter(|(d, c)| **c > 0 || blocks.contains_key(&shape.block_of_data(**d))) {
            let (lblock, offset) = shape.map_of_data(*data);
            let b = maps.entry(lblock).or_insert_with(|| vec![0; self.g.block_size()]);
            b[offset..offset + 2].copy_from_slice(&encode_count(*count));
        }
        let stale: Vec<u64> =
            blocks.keys().copied().filter(|l| shape.data_of_block(*l).is_none() && !maps.contains_key(l)).collect();
        for lblock in stale {
            if let Some(addr) = blocks.remove(&lblock) {
                self.release_block(addr);
            }
        }
        for (lblock, mut b) in maps {
            let addr = match blocks.get(&lblock) {
                Some(addr) => *addr,
                None => {
                    self.must_fix(
                        Class::TableMap,
                        &place,
                        format!("map {lblock} is missing or damaged"),
                        "write it anew",
                    )?;
                    let Some(addr) = self.alloc_meta() else {
                        return Err(super::no_space("a map of a table"));
                    };
                    blocks.insert(lblock, addr);
                    addr
                }
            };
            init_block(&mut b, self.g.fsid, BlockId { kind: BlockKind::TableMap, addr, owner: ino });
            put_u64(&mut b, TABLE_LBLOCK, lblock);
            let now = self.vol.get(addr).unwrap_or_default();
            if now.len() == b.len() {
                put_u64(&mut b, 32, block_seq(&now));
            }
            if now.len() == b.len() && now[64..] != b[64..] {
                let what = format!("map {lblock} has wrong counts");
                if !self.fix(Class::TableCount, &place, what, "correct it")? {
                    continue;
                }
            }
            self.vol.put(addr, b);
        }
        let fpb = self.g.frags_per_block();
        let extents = blocks
            .iter()
            .map(|(l, b)| Extent { logical: l * fpb, start: b * fpb, len: fpb, unwritten: false })
            .collect();
        let extents = super::maps::join(extents);
        let Some(mut inode) = self.load(ino) else { return Ok(()) };
        let before = inode.clone();
        inode.xattr_block = 0;
        if old.wrong.is_some() || super::maps::join(old.extents.clone()) != extents {
            self.must_fix(Class::TableMap, &place, "its map of blocks is wrong".into(), "write it anew")?;
            self.set_map(&mut inode, &old, extents)?;
        } else {
            inode.frags = old.frags(&self.g);
        }
        inode.size = blocks.last_key_value().map_or(0, |(l, _)| l + 1) * self.g.block_size() as u64;
        if inode != before {
            self.must_fix(Class::InodeSpace, &place, "size or space of a table is wrong".into(), "correct it")?;
            self.store(&inode);
        }
        Ok(())
    }

    /// Writes the locator table anew, from the inodes that were found. The last structure that takes space.
    pub(super) fn rebuild_locator(&mut self) -> Result<()> {
        let shape = self.locator_shape();
        let mut inos: Vec<Ino> = self.inodes.keys().copied().filter(|i| *i >= FIRST_USER_INO).collect();
        inos.sort_unstable();
        let (map, mut blocks) = (std::mem::take(&mut self.locator_map), std::mem::take(&mut self.old_locator.blocks));
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
                    let Some(addr) = self.alloc_meta() else { return Err(super::no_space("the inode locator table")) };
                    blocks.insert(lblock, addr);
                    addr
                }
            };
            init_block(&mut b, self.g.fsid, BlockId { kind: BlockKind::Locator, addr, owner: LOCATOR_INO });
            put_u64(&mut b, TABLE_LBLOCK, lblock);
            put_u32(&mut b, TABLE_USED, chunk.len() as u32);
            for ino in chunk {
                let k = self.inodes[ino];
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
                put_u64(&mut b, 32, block_seq(&now));
            }
            if now.len() != b.len() || now[40..] != b[40..] {
                wrong += 1;
                self.vol.put(addr, b);
            }
            done += chunk.len() as u64;
            self.report_progress(super::Phase::Locator, done, total);
        }
        if wrong > 0 {
            let what = format!("{wrong} of its blocks are missing or wrong");
            self.must_fix(Class::LocatorWrong, "inode locator table", what, "write them anew")?;
        }
        let needed = |l: &u64| shape.data_of_block(*l).is_none_or(|d| counts.contains_key(&d));
        let unused: Vec<u64> = blocks.keys().copied().filter(|l| !needed(l)).collect();
        for lblock in unused {
            if let Some(addr) = blocks.remove(&lblock) {
                self.release_block(addr);
            }
        }
        self.finish_table(LOCATOR_INO, shape, &counts, &mut blocks, map)
    }
}

fn lost_has(
    inodes: &std::collections::HashMap<Ino, Known>,
    walked: &std::collections::HashSet<Ino>,
    parent: Ino,
) -> bool {
    !walked.contains(&parent) && inodes.get(&parent).is_some_and(|k| k.external && k.file_type == FileType::Directory)
}
