//! What has lost its place: blocks that say whose they are but that nobody maps, and inodes without a name.

use super::maps::{add_extents, join};
use super::walk::inode_place;
use super::{Class, Disconnected, Known, Repairer};
use crate::error::Result;
use crate::format::dirblock::{
    DIR_LBLOCK, EntryKind, NewEntry, Plain, entries, entry_len, find_space, format_empty, insert, validate,
};
use crate::format::dirindex::name_hash;
use crate::format::extent::{EXTENT_LEN_MAX, EXTENT_SIZE, LOGICAL_END, NODE_LEVEL, node_entry, node_header};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::table::{TABLE_LBLOCK, TABLE_USED};
use crate::format::{
    BlockAddr, BlockId, BlockKind, EXTERNAL_INO, Extent, FIRST_USER_INO, FileType, Ino, Inode, InodeFormat,
    META_HEADER_SIZE, ROOT_INO, block_owner, block_seq, crc_ok, get_u16, get_u32, get_u64, init_block, put_u32,
    put_u64,
};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Name of the directory for what has lost its name.
const LOST_FOUND: &str = "lost+found";

/// Blocks that nobody maps, by what they say they are.
#[derive(Default)]
pub(super) struct UnmappedBlocks {
    /// Directory, logical block: address and sequence number.
    dirs: BTreeMap<Ino, BTreeMap<u64, (BlockAddr, u64)>>,
    /// Directories whose inodes stand in those blocks.
    inside: BTreeSet<Ino>,
    leaves: BTreeMap<Ino, Vec<BlockAddr>>,
    external: BTreeMap<u64, BlockAddr>,
}

impl Repairer<'_> {
    /// Looks through the space that is marked as used but that nobody claims.
    fn find_unmapped(&mut self) -> UnmappedBlocks {
        let mut unmapped = UnmappedBlocks::default();
        let fpb = self.g.frags_per_block();
        let ags = self.groups_in_use();
        for ag in 0..ags {
            let first = (self.g.ag_start(ag) + self.g.ag_header_blocks()) * fpb;
            let end = (self.g.ag_start(ag) + self.g.ag_len(ag)) * fpb;
            for (s, e) in self.used.gaps(first, end) {
                let mut frag = s.next_multiple_of(fpb);
                while frag + fpb <= e {
                    if self.old_bit(frag) != Some(false) && !self.fixed.overlaps(frag, frag + fpb) {
                        self.note_unmapped(frag / fpb, &mut unmapped);
                    }
                    frag += fpb;
                }
            }
            self.report_progress(super::Phase::Lost, ag + 1, ags);
        }
        unmapped
    }

    fn note_unmapped(&mut self, addr: BlockAddr, unmapped: &mut UnmappedBlocks) {
        let Ok(b) = self.vol.get(addr) else { return };
        if get_u64(&b, 8) != self.g.fsid || get_u64(&b, 16) != addr || !crc_ok(&b) {
            return;
        }
        let owner = block_owner(&b);
        if (FIRST_USER_INO..=self.ino_max).contains(&owner) {
            // New numbers are others than these.
            self.max_ino = self.max_ino.max(owner);
        }
        match BlockKind::from_magic(get_u32(&b, 0)) {
            Some(BlockKind::Dir) if validate(&b).is_ok() && entries(&b).any(|e| e.kind != EntryKind::Free) => {
                for e in entries(&b).filter(|e| e.kind == EntryKind::Embedded && e.ino != owner) {
                    if e.file_type == Some(FileType::Directory) {
                        unmapped.inside.insert(e.ino);
                    }
                    if e.ino <= self.ino_max {
                        self.max_ino = self.max_ino.max(e.ino);
                    }
                }
                if self.tried_blocks.contains(&addr) {
                    return;
                }
                let (lblock, seq) = (get_u64(&b, DIR_LBLOCK), block_seq(&b));
                let slot = unmapped.dirs.entry(owner).or_default().entry(lblock).or_insert((addr, seq));
                if seq > slot.1 {
                    *slot = (addr, seq);
                }
            }
            _ if self.tried_blocks.contains(&addr) => {}
            Some(BlockKind::ExtentNode) if get_u16(&b, NODE_LEVEL) == 0 => {
                unmapped.leaves.entry(owner).or_default().push(addr);
            }
            Some(BlockKind::ExternalInodes) if owner == EXTERNAL_INO => {
                unmapped.external.insert(get_u64(&b, TABLE_LBLOCK), addr);
            }
            _ => {}
        }
    }

    /// Gives unmapped blocks back to those whose maps have lost them; and, with `unknown`, makes directories anew for blocks of
    /// directories that are gone. True if anything was found.
    pub(super) fn reattach(&mut self, unknown: bool) -> Result<bool> {
        let unmapped = self.find_unmapped();
        let before = self.vol.changes;
        let damaged = self.damaged_maps.contains(&EXTERNAL_INO);
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
            if self.damaged_maps.contains(&ino) {
                self.reattach_leaves(ino, leaves)?;
            }
        }
        let mut without_inode = Vec::new();
        for (ino, blocks) in unmapped.dirs {
            let mut list: Vec<(u64, BlockAddr)> = blocks.into_iter().map(|(l, (a, _))| (l, a)).collect();
            if ino == ROOT_INO || self.inodes.contains_key(&ino) {
                if !self.damaged_maps.contains(&ino) {
                    // The map looks whole: only what the locator table knows is more than a remnant.
                    list.retain(|(_, addr)| {
                        let block = self.vol.get(*addr).unwrap_or_default();
                        self.located_entries(*addr, &block)
                    });
                }
                if !list.is_empty() {
                    self.reattach_blocks(ino, list)?;
                }
            } else if (FIRST_USER_INO..=self.ino_max).contains(&ino)
                && !self.disconnected_inos.contains(&ino)
                && !unmapped.inside.contains(&ino)
                && !self.stands_elsewhere(ino, 0, 0)
            {
                without_inode.push((ino, list));
            }
        }
        if unknown && self.vol.changes == before {
            // What was found so far may lead to them.
            for (ino, list) in without_inode {
                self.recreate_directory(ino, list)?;
            }
        }
        Ok(self.vol.changes != before)
    }

    /// Blocks of the external table whose number is not possible get another one, behind all others: which number it is
    /// does not matter, since inodes are found through the locator table.
    fn possible_numbers(&mut self, blocks: Vec<(u64, BlockAddr)>) -> Vec<(u64, BlockAddr)> {
        let shape = self.external_shape();
        let most = self.g.total_blocks;
        let known = self.external_blocks.keys().chain(blocks.iter().map(|(l, _)| l)).copied();
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

    fn block_extent(&self, lblock: u64, addr: BlockAddr) -> Extent {
        let fpb = self.g.frags_per_block();
        Extent { logical: lblock * fpb, start: addr * fpb, len: fpb, unwritten: false }
    }

    /// Blocks of a directory or table whose map has lost them.
    fn reattach_blocks(&mut self, ino: Ino, blocks: Vec<(u64, BlockAddr)>) -> Result<()> {
        let Some(mut inode) = self.load(ino) else { return Ok(()) };
        let map = self.read_map(&inode);
        let mut list = map.extents.clone();
        let fpb = self.g.frags_per_block();
        let bs = self.g.block_size() as u64;
        let (mut added, mut end) = (0, inode.size);
        for (lblock, addr) in blocks {
            self.tried_blocks.insert(addr);
            if lblock >= LOGICAL_END / fpb / 2 {
                continue;
            }
            let e = self.block_extent(lblock, addr);
            // What the map has there now may be nothing of this file.
            if let Some(i) = list.iter().position(|l| l.logical < e.end() && e.logical < l.end()) {
                let there = list[i].start + e.logical.saturating_sub(list[i].logical);
                let known = list[i].logical <= e.logical && self.meta.overlaps(there, there + fpb);
                if known {
                    continue;
                }
                cut_out(&mut list, e.logical, e.end());
            }
            if add_extents(&mut list, [e]) > 0 {
                added += 1;
                end = end.max((lblock + 1) * bs);
                self.claim_meta(addr);
            }
        }
        if added == 0 {
            return Ok(());
        }
        let what = format!("{added} blocks of it are mapped by nobody");
        self.must_fix(Class::Extent, &inode_place(ino), what, "map them again")?;
        self.set_map(&mut inode, &map, list)?;
        inode.size = end;
        self.store(&inode);
        Ok(())
    }

    /// Leaves of the extent tree of a file whose upper nodes are gone.
    fn reattach_leaves(&mut self, ino: Ino, leaves: Vec<BlockAddr>) -> Result<()> {
        let Some(mut inode) = self.load(ino) else { return Ok(()) };
        let map = self.read_map(&inode);
        let mut list = map.extents.clone();
        let mut added = 0;
        for addr in leaves {
            self.tried_blocks.insert(addr);
            let Ok(b) = self.vol.get(addr) else { continue };
            let Ok((_, count)) = node_header(&b) else { continue };
            for i in 0..count {
                let e = Extent::decode(&b[node_entry(i)..node_entry(i) + EXTENT_SIZE]);
                let possible = (1..=EXTENT_LEN_MAX).contains(&e.len)
                    && e.end() <= LOGICAL_END
                    && self.g.contains(e.start, e.len)
                    && !self.used.overlaps(e.start, e.start + e.len)
                    && !self.fixed.overlaps(e.start, e.start + e.len);
                if possible && (!inode.is_dir() || self.is_of_directory(ino, &e)) && add_extents(&mut list, [e]) > 0 {
                    self.claim_data(e.start, e.len);
                    added += 1;
                }
            }
        }
        if added == 0 {
            return Ok(());
        }
        let what = format!("{added} of its extents stand in nodes that nothing leads to");
        self.must_fix(Class::ExtentNode, &inode_place(ino), what, "map them again")?;
        self.set_map(&mut inode, &map, list)?;
        self.store(&inode);
        Ok(())
    }

    /// Whether the blocks of an extent say that they are this directory's. Others would be given up by the next walk over it,
    /// which would leave their node to be found again.
    fn is_of_directory(&mut self, ino: Ino, e: &Extent) -> bool {
        let blocks = self.g.block_of_frag(e.start)..self.g.block_of_frag(e.start + e.len);
        !blocks.is_empty()
            && blocks.into_iter().all(|addr| {
                let named = |b: &[u8]| BlockKind::from_magic(get_u32(b, 0)).is_some() && block_owner(b) == ino;
                self.vol.get(addr).is_ok_and(|b| named(&b))
            })
    }

    /// A directory that has lost its inode, with the blocks that are left of it.
    fn recreate_directory(&mut self, ino: Ino, blocks: Vec<(u64, BlockAddr)>) -> Result<()> {
        let mut real = false;
        for (_, addr) in &blocks {
            self.tried_blocks.insert(*addr);
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
            self.claim_meta(e.start / fpb);
        }
        (inode.nlink, inode.size) = (2, end * self.g.block_size() as u64);
        self.set_map(&mut inode, &super::maps::Map::default(), join(list))?;
        self.give_name(Disconnected {
            ino,
            file_type: FileType::Directory,
            inode: Some(Box::new(inode)),
            from: 0,
            name: None,
        })
    }

    /// Claims everything below inodes that wait for a name, so that nothing of it is given out.
    pub(super) fn claim_disconnected(&mut self) {
        let mut stack: Vec<Inode> = self.disconnected.iter().filter_map(|l| l.inode.as_deref().cloned()).collect();
        let mut seen = HashSet::new();
        let fpb = self.g.frags_per_block();
        while let Some(inode) = stack.pop() {
            if !seen.insert(inode.ino) {
                continue;
            }
            let map = self.read_map(&inode);
            for node in &map.nodes {
                self.claim_meta(*node);
            }
            for block in self.xattr_blocks(&inode) {
                self.used.insert(block * fpb, (block + 1) * fpb);
            }
            for e in &map.extents {
                self.used.insert(e.start, e.start + e.len);
                if !inode.is_dir() {
                    continue;
                }
                for addr in e.start / fpb..(e.start + e.len) / fpb {
                    let Ok(b) = self.vol.meta(BlockId { kind: BlockKind::Dir, addr, owner: inode.ino }) else {
                        continue;
                    };
                    if validate(&b).is_err() {
                        continue;
                    }
                    let embedded = entries(&b).filter(|e| e.kind == EntryKind::Embedded);
                    stack.extend(embedded.filter_map(|e| Inode::decode(&b[e.inode_offset()..e.offset + e.len]).ok()));
                }
            }
        }
    }

    /// Gives names in lost+found to all inodes that wait for one.
    pub(super) fn reconnect(&mut self) -> Result<()> {
        for lost in std::mem::take(&mut self.disconnected) {
            self.give_name(lost)?;
        }
        Ok(())
    }

    fn give_name(&mut self, lost: Disconnected) -> Result<()> {
        if self.vol.surveying {
            return Ok(());
        }
        let Some(dir) = self.lost_and_found()? else { return Err(super::no_space("lost+found")) };
        let mut n = 0;
        let name = loop {
            let name = if n == 0 { format!("#{}", lost.ino) } else { format!("#{}-{n}", lost.ino) };
            if self.find_name(dir, name.as_bytes()).is_none() {
                break name;
            }
            n += 1;
        };
        let mut text = format!("found as {LOST_FOUND}/{name}");
        if let Some(old) = &lost.name {
            text += &format!(", was {old:?} in directory {}", lost.from);
        }
        self.note(Class::DirUnreachable, &inode_place(lost.ino), "it had no name".into(), &text);
        self.named += 1;
        let Some(mut inode) = lost.inode else {
            return self.insert_name(dir, name.as_bytes(), lost.ino, lost.file_type, None);
        };
        inode.parent = dir;
        inode.hint = 0;
        if !inode.is_dir() {
            inode.nlink = 1;
        }
        if self.sb.embeds_inodes() && inode.encoded_len() + 64 < self.g.block_size() - META_HEADER_SIZE {
            self.insert_name(dir, name.as_bytes(), lost.ino, lost.file_type, Some(&inode))
        } else {
            self.place_external(&mut inode)?;
            self.insert_name(dir, name.as_bytes(), lost.ino, lost.file_type, None)
        }
    }

    /// The directory lost+found in the root; made if it is not there.
    fn lost_and_found(&mut self) -> Result<Option<Ino>> {
        let mut name = LOST_FOUND.to_string();
        for n in 1.. {
            match self.find_name(ROOT_INO, name.as_bytes()) {
                Some((ino, FileType::Directory)) if self.load(ino).is_some() => return Ok(Some(ino)),
                None => break,
                Some(_) if n > 99 => return Ok(None),
                Some(_) => name = format!("{LOST_FOUND}.{n}"),
            }
        }
        let ino = self.new_ino();
        let mut inode = Inode::new(ino, FileType::Directory.mode_bits() | 0o700, self.now);
        (inode.nlink, inode.parent) = (2, ROOT_INO);
        self.note(Class::DirUnreachable, &inode_place(ino), format!("there is no /{name}"), "make it");
        if self.sb.embeds_inodes() {
            self.insert_name(ROOT_INO, name.as_bytes(), ino, FileType::Directory, Some(&inode))?;
        } else {
            self.place_external(&mut inode)?;
            self.insert_name(ROOT_INO, name.as_bytes(), ino, FileType::Directory, None)?;
        }
        Ok(Some(ino))
    }

    /// The blocks of a directory that are valid, in order.
    fn entry_blocks(&mut self, inode: &Inode) -> Vec<(u64, BlockAddr)> {
        let fpb = self.g.frags_per_block();
        let blocks = inode.size / self.g.block_size() as u64;
        let map = self.read_map(inode);
        let mut out = Vec::new();
        for e in map.extents.iter().filter(|e| (e.logical | e.start | e.len).is_multiple_of(fpb)) {
            for n in 0..e.len / fpb {
                let (lblock, addr) = (e.logical / fpb + n, e.start / fpb + n);
                if lblock >= blocks {
                    return out;
                }
                out.push((lblock, addr));
            }
        }
        out
    }

    fn entry_block(&mut self, dir: Ino, addr: BlockAddr) -> Option<Vec<u8>> {
        let b = self.vol.meta(BlockId { kind: BlockKind::Dir, addr, owner: dir }).ok()?;
        validate(&b).is_ok().then_some(b)
    }

    fn find_name(&mut self, dir: Ino, name: &[u8]) -> Option<(Ino, FileType)> {
        let inode = self.load(dir)?;
        let hash = name_hash(self.sb.hash_seed, name);
        for (_, addr) in self.entry_blocks(&inode) {
            let Some(b) = self.entry_block(dir, addr) else { continue };
            if let Some(e) = crate::format::dirblock::find(&b, hash, name) {
                return Some((e.ino, e.file_type?));
            }
        }
        None
    }

    /// Enters a name. The next walk corrects counts and index.
    fn insert_name(
        &mut self,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        file_type: FileType,
        inode: Option<&Inode>,
    ) -> Result<()> {
        let Some(mut d) = self.load(dir) else { return Err(super::no_space("lost+found")) };
        let hash = name_hash(self.sb.hash_seed, name);
        let inode_room = inode.map_or(0, Inode::encoded_len);
        let new = NewEntry { name, hash, ino, file_type, inode, inode_room };
        let need = entry_len(name.len(), inode_room);
        let blocks = self.entry_blocks(&d);
        // The last blocks are those with room.
        for (_, addr) in blocks.iter().rev().take(4) {
            let Some(mut b) = self.entry_block(dir, *addr) else { continue };
            if let Some(offset) = find_space(&b, need) {
                insert(&mut Plain(&mut b), offset, &new);
                self.vol.put(*addr, b);
                self.note_place(inode, *addr, offset);
                return Ok(());
            }
        }
        let Some(addr) = self.alloc_meta() else { return Err(super::no_space("a directory block")) };
        let lblock = d.size.div_ceil(self.g.block_size() as u64);
        let mut b = vec![0; self.g.block_size()];
        init_block(&mut b, self.g.fsid, BlockId { kind: BlockKind::Dir, addr, owner: dir });
        format_empty(&mut Plain(&mut b), lblock);
        let Some(offset) = find_space(&b, need) else { return Err(super::no_space("an entry")) };
        insert(&mut Plain(&mut b), offset, &new);
        self.vol.put(addr, b);
        let map = self.read_map(&d);
        let mut list = map.extents.clone();
        let e = self.block_extent(lblock, addr);
        // Blocks allocated ahead make way.
        cut_out(&mut list, e.logical, e.end());
        add_extents(&mut list, [e]);
        self.set_map(&mut d, &map, list)?;
        d.size = (lblock + 1) * self.g.block_size() as u64;
        self.store(&d);
        self.note_place(inode, addr, offset);
        Ok(())
    }

    /// Notes where an inode stands that was entered just now, so that it can be read again.
    fn note_place(&mut self, inode: Option<&Inode>, block: BlockAddr, offset: usize) {
        if let Some(i) = inode {
            let known = Known { block, offset: offset as u32, file_type: i.file_type(), names: 1, ..Known::of(i) };
            self.register(i, known);
        }
    }

    /// Puts an inode into a free slot of the external table.
    fn place_external(&mut self, inode: &mut Inode) -> Result<()> {
        let shape = self.external_shape();
        if inode.encoded_len() > INODE_SLOT_SIZE {
            // Only targets of symbolic links are that long.
            inode.inline_len = INODE_SLOT_SIZE - crate::format::inode::INODE_CORE_SIZE;
            if let InodeFormat::Inline(data) = &mut inode.format {
                data.truncate(inode.inline_len);
                inode.size = data.len() as u64;
            }
        }
        let list: Vec<(u64, BlockAddr)> = self.external_blocks.iter().map(|(l, a)| (*l, *a)).collect();
        let with_room = list.iter().rev().filter(|(l, _)| shape.data_of_block(*l).is_some()).find_map(|(_, addr)| {
            let b = self.vol.get(*addr).ok()?;
            (u64::from(get_u32(&b, TABLE_USED)) < shape.per_block).then_some((*addr, b))
        });
        let (addr, mut b) = match with_room {
            Some(found) => found,
            None => {
                let Some(addr) = self.alloc_meta() else { return Err(super::no_space("the external inode table")) };
                let next = list.iter().filter_map(|(l, _)| shape.data_of_block(*l)).max().map_or(0, |d| d + 1);
                let lblock = shape.block_of_data(next);
                let mut b = vec![0; self.g.block_size()];
                init_block(&mut b, self.g.fsid, BlockId { kind: BlockKind::ExternalInodes, addr, owner: EXTERNAL_INO });
                put_u64(&mut b, TABLE_LBLOCK, lblock);
                self.external_blocks.insert(lblock, addr);
                (addr, b)
            }
        };
        let Some(offset) = (0..shape.per_block as usize)
            .map(|s| META_HEADER_SIZE + s * INODE_SLOT_SIZE)
            .find(|o| get_u64(&b, *o) == 0)
        else {
            return Err(super::no_space("the external inode table"));
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

/// Takes a range of logical fragments out of a list of extents.
fn cut_out(list: &mut Vec<Extent>, from: u64, to: u64) {
    let mut out = Vec::with_capacity(list.len() + 1);
    for e in list.drain(..) {
        if e.end() <= from || e.logical >= to {
            out.push(e);
            continue;
        }
        if e.logical < from {
            out.push(Extent { len: from - e.logical, ..e });
        }
        if e.end() > to {
            out.push(Extent { logical: to, start: e.start + (to - e.logical), len: e.end() - to, ..e });
        }
    }
    *list = out;
}
