//! Names in lost+found for inodes that have lost theirs.

use super::extent_map::{add_extents, blocks_of, cut_out};
use super::findings::{Disconnected, Known, inode_place};
use super::repairer::{Repairer, no_space};
use crate::check::Class;
use crate::error::Result;
use crate::format::dirblock::{
    EntryKind, NewEntry, Plain, entries, entry_len, find_space, format_empty, insert, validate,
};
use crate::format::dirindex::name_hash;
use crate::format::{BlockAddr, BlockId, BlockKind, FileType, Ino, Inode, META_HEADER_SIZE, ROOT_INO, init_block};
use std::collections::HashSet;

/// Name of the directory for what has lost its name.
const LOST_FOUND: &str = "lost+found";

impl Repairer<'_> {
    /// Claims everything below the inodes that wait for a name, so that none of it is allocated.
    pub(super) fn claim_disconnected(&mut self) {
        let mut stack: Vec<Inode> =
            self.found.disconnected.iter().filter_map(|l| l.inode.as_deref().cloned()).collect();
        let mut seen = HashSet::new();
        let fpb = self.g.frags_per_block();
        while let Some(inode) = stack.pop() {
            if !seen.insert(inode.ino) {
                continue;
            }
            let map = self.read_map(&inode);
            self.claim_nodes(&map);
            for block in self.xattr_blocks(&inode) {
                self.space.used.insert(block * fpb, (block + 1) * fpb);
            }
            for e in &map.extents {
                self.space.used.insert(e.start, e.start + e.len);
                if !inode.is_dir() {
                    continue;
                }
                for addr in e.start / fpb..(e.start + e.len) / fpb {
                    let Some(b) = self.entry_block(inode.ino, addr) else { continue };
                    let embedded = entries(&b).filter(|e| e.kind == EntryKind::Embedded);
                    stack.extend(embedded.filter_map(|e| Inode::decode(&b[e.inode_offset()..e.offset + e.len]).ok()));
                }
            }
        }
    }

    /// Gives names in lost+found to all inodes that wait for one.
    pub(super) fn reconnect(&mut self) -> Result<()> {
        for lost in std::mem::take(&mut self.found.disconnected) {
            self.give_name(lost)?;
        }
        Ok(())
    }

    pub(super) fn give_name(&mut self, lost: Disconnected) -> Result<()> {
        if self.vol.surveying {
            return Ok(());
        }
        let Some(dir) = self.lost_and_found()? else { return Err(no_space("lost+found")) };
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
    pub(super) fn lost_and_found(&mut self) -> Result<Option<Ino>> {
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
    pub(super) fn entry_blocks(&mut self, inode: &Inode) -> Vec<(u64, BlockAddr)> {
        let blocks = inode.size / self.g.block_size() as u64;
        let map = self.read_map(inode);
        blocks_of(&map.extents, self.g.frags_per_block()).take_while(|(lblock, _)| *lblock < blocks).collect()
    }

    pub(super) fn entry_block(&mut self, dir: Ino, addr: BlockAddr) -> Option<Vec<u8>> {
        let b = self.vol.meta(BlockId { kind: BlockKind::Dir, addr, owner: dir }).ok()?;
        validate(&b).is_ok().then_some(b)
    }

    pub(super) fn find_name(&mut self, dir: Ino, name: &[u8]) -> Option<(Ino, FileType)> {
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

    /// Inserts a name. The next walk corrects counts and index.
    pub(super) fn insert_name(
        &mut self,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        file_type: FileType,
        inode: Option<&Inode>,
    ) -> Result<()> {
        let Some(mut d) = self.load(dir) else { return Err(no_space("lost+found")) };
        let hash = name_hash(self.sb.hash_seed, name);
        let inode_room = inode.map_or(0, Inode::encoded_len);
        let new = NewEntry { name, hash, ino, file_type, inode, inode_room };
        let need = entry_len(name.len(), inode_room);
        let blocks = self.entry_blocks(&d);
        // Free space is most likely in the last blocks.
        for (_, addr) in blocks.iter().rev().take(4) {
            let Some(mut b) = self.entry_block(dir, *addr) else { continue };
            if let Some(offset) = find_space(&b, need) {
                insert(&mut Plain(&mut b), offset, &new);
                self.vol.put(*addr, b);
                self.note_place(inode, *addr, offset);
                return Ok(());
            }
        }
        let Some(addr) = self.alloc_meta() else { return Err(no_space("a directory block")) };
        let lblock = d.size.div_ceil(self.g.block_size() as u64);
        let mut b = vec![0; self.g.block_size()];
        init_block(&mut b, self.g.fsid, BlockId { kind: BlockKind::Dir, addr, owner: dir });
        format_empty(&mut Plain(&mut b), lblock);
        let Some(offset) = find_space(&b, need) else { return Err(no_space("an entry")) };
        insert(&mut Plain(&mut b), offset, &new);
        self.vol.put(addr, b);
        let map = self.read_map(&d);
        let mut list = map.extents.clone();
        let e = self.block_extent(lblock, addr);
        // The new block replaces a preallocated one.
        cut_out(&mut list, e.logical, e.end());
        add_extents(&mut list, [e]);
        self.set_map(&mut d, &map, list)?;
        d.size = (lblock + 1) * self.g.block_size() as u64;
        self.store(&d);
        self.note_place(inode, addr, offset);
        Ok(())
    }

    /// Registers the place of an inode that was just inserted, so that it can be read again.
    pub(super) fn note_place(&mut self, inode: Option<&Inode>, block: BlockAddr, offset: usize) {
        if let Some(i) = inode {
            let known = Known { block, offset: offset as u32, file_type: i.file_type(), names: 1, ..Known::of(i) };
            self.register(i, known);
        }
    }
}
