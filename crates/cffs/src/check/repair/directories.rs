//! The walk through all directories: corrects their blocks, entries and counts, and claims their space.

use super::entries::{rebuild, set_counts};
use super::extent_map::{Map, join};
use super::findings::{Known, inode_place};
use super::inodes::{Numbered, Role};
use super::repairer::Repairer;
use super::volume::BlockError;
use crate::check::Class;
use crate::check::dirs::shown;
use crate::error::Result;
use crate::format::dirblock::{
    DIR_BLOCKS_MAX, DIR_LBLOCK, EntryKind, Plain, entries, known_entry, make_link, remove, set_link, validate,
};
use crate::format::dirindex::name_hash;
use crate::format::{
    BlockAddr, BlockId, BlockKind, Extent, FileType, Ino, Inode, InodeFormat, get_u64, put_u32, put_u64,
};
use std::ops::Range;

/// Useless blocks of a directory after which the rest of it is given up. Otherwise the repair would read a petabyte that an
/// image maps to zeros.
const USELESS_MAX: u64 = 1 << 16;
/// Blocks behind the size of a directory that are read, because the size may be wrong.
const BEHIND_MAX: u64 = 4096;

/// The action for an entry.
enum EntryAction {
    Keep,
    Remove,
    MakeLink,
    Disconnect(Box<Inode>),
}

/// A name of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) hash: u32,
    pub(super) lblock: u32,
    pub(super) offset: u32,
    pub(super) block: BlockAddr,
}

#[derive(Default)]
struct DirContents {
    names: Vec<Name>,
    subdirs: u32,
    children: Vec<Ino>,
}

/// A block of a directory: its number in it, and its address.
struct DirBlock {
    dir: Ino,
    lblock: u64,
    addr: BlockAddr,
    /// Its checksum is wrong.
    guessed: bool,
}

impl DirBlock {
    fn place(&self) -> String {
        format!("directory {}, block {}", self.dir, self.addr)
    }
}

enum DirBlockUse {
    /// In use, with entries.
    Live,
    /// Preallocated behind the size and never written.
    Ahead,
    /// Not a block of this directory.
    Gone,
}

impl Repairer<'_> {
    /// Walks a directory and all below it.
    pub(super) fn walk_tree(&mut self, top: Ino, parent: Ino) -> Result<()> {
        let mut stack = vec![(top, parent)];
        while let Some((ino, parent)) = stack.pop() {
            let children = self.directory(ino, parent)?;
            stack.extend(children.into_iter().rev().map(|c| (c, ino)));
            self.report_tree_progress();
        }
        Ok(())
    }

    fn directory(&mut self, ino: Ino, parent: Ino) -> Result<Vec<Ino>> {
        let Some(mut inode) = self.load(ino) else {
            self.found.incomplete = true;
            return Ok(Vec::new());
        };
        if !self.found.walked.insert(ino) {
            return Ok(Vec::new());
        }
        let before = inode.clone();
        let map = self.read_map(&inode);
        self.claim_nodes(&map);
        let mut keep = Vec::new();
        let mut got = DirContents::default();
        let mut wrong = map.wrong.clone();
        let size = self.directory_blocks(&inode, &map, &mut keep, &mut wrong, &mut got)?;
        self.note_map(ino, &map);
        if let Some(what) = wrong {
            self.evidence.damaged_maps.insert(ino);
            self.must_fix(Class::Extent, &inode_place(ino), what, "write the map of the directory anew")?;
            self.planned.maps.insert(ino, join(keep));
        } else {
            let frags = map.frags(&self.g) + self.xattr_frags(&inode);
            if inode.frags != frags {
                let what = format!("says {} fragments are allocated, but {frags} are", inode.frags);
                if self.fix(Class::InodeSpace, &inode_place(ino), what, "correct it")? {
                    inode.frags = frags;
                }
            }
        }
        self.duplicates(ino, &mut got)?;
        if inode.size != size {
            let what = format!("size {} instead of {size}", inode.size);
            if self.fix(Class::DirSize, &inode_place(ino), what, "correct it")? {
                inode.size = size;
            }
        }
        let count = got.names.len() as u64;
        if inode.aux != count {
            let what = format!("says it has {} entries, but there are {count}", inode.aux);
            if self.fix(Class::DirCount, &inode_place(ino), what, "correct it")? {
                inode.aux = count;
            }
        }
        let links = 2 + got.subdirs;
        if inode.nlink != links {
            let what = format!("link count {} instead of {links}", inode.nlink);
            if self.fix(Class::InodeLinks, &inode_place(ino), what, "correct it")? {
                inode.nlink = links;
            }
        }
        if inode.parent != parent {
            let what = format!("names {} as its parent, but is in {parent}", inode.parent);
            if self.fix(Class::DirParent, &inode_place(ino), what, "correct it")? {
                inode.parent = parent;
            }
        }
        if !self.index_is_right(&inode, &map, &mut got.names) {
            self.planned.indexes.push(ino);
        }
        if inode != before {
            self.store(&inode);
        }
        Ok(got.children)
    }

    /// Goes through the blocks of a directory. Returns the size that it has.
    fn directory_blocks(
        &mut self,
        inode: &Inode,
        map: &Map,
        keep: &mut Vec<Extent>,
        wrong: &mut Option<String>,
        got: &mut DirContents,
    ) -> Result<u64> {
        let (bs, fpb) = (self.g.block_size() as u64, self.g.frags_per_block());
        let by_size = inode.size.div_ceil(bs);
        let (mut useless, mut end) = (0, 0);
        let mut looks = BEHIND_MAX;
        for e in &map.extents {
            if !(e.logical | e.start | e.len).is_multiple_of(fpb) || e.unwritten {
                wrong.get_or_insert(format!("extent at fragment {} does not hold whole written blocks", e.logical));
                continue;
            }
            let (first, addr, count) = (e.logical / fpb, e.start / fpb, e.len / fpb);
            let mut n = 0;
            while n < count {
                let lblock = first + n;
                let one = self.block_extent(lblock, addr + n);
                let looked_at = lblock < DIR_BLOCKS_MAX && lblock < by_size.saturating_add(BEHIND_MAX);
                if !looked_at || useless >= USELESS_MAX {
                    if lblock < by_size.min(DIR_BLOCKS_MAX) {
                        wrong.get_or_insert("too many useless blocks: the rest is given up".into());
                        break;
                    }
                    if useless < USELESS_MAX && self.has_entries_of(inode.ino, addr + n..addr + count, &mut looks) {
                        wrong.get_or_insert(format!(
                            "block {} has entries, which are not mapped so far behind",
                            addr + n
                        ));
                        break;
                    }
                    // Index buckets and preallocated blocks.
                    let to = if lblock < DIR_BLOCKS_MAX { count.min(DIR_BLOCKS_MAX - first) } else { count };
                    let rest = Extent { len: (to - n) * fpb, ..one };
                    self.space.claim_data(rest.start, rest.len);
                    keep.push(rest);
                    n = to;
                    continue;
                }
                let block = DirBlock { dir: inode.ino, lblock, addr: addr + n, guessed: false };
                match self.directory_block(block, lblock < by_size, got)? {
                    DirBlockUse::Live => {
                        keep.push(one);
                        end = lblock + 1;
                    }
                    DirBlockUse::Ahead => {
                        self.space.claim_data(one.start, one.len);
                        keep.push(one);
                    }
                    DirBlockUse::Gone => {
                        useless += 1;
                        wrong.get_or_insert(format!("block {} does not belong to it", addr + n));
                    }
                }
                n += 1;
            }
        }
        Ok(end * bs)
    }

    /// Whether one of the blocks contains entries of the directory, according to the locator table. `looks`: how many
    /// more blocks of this directory are read, because its index may have many, and a hostile map may contain the same
    /// ones repeatedly.
    fn has_entries_of(&mut self, ino: Ino, blocks: Range<BlockAddr>, looks: &mut u64) -> bool {
        for addr in blocks.take(*looks as usize) {
            *looks -= 1;
            let id = BlockId { kind: BlockKind::Dir, addr, owner: ino };
            if self.vol.meta(id).is_ok_and(|block| self.located_entries(addr, &block)) {
                return true;
            }
        }
        false
    }

    /// One block of entries.
    fn directory_block(&mut self, mut at: DirBlock, within: bool, got: &mut DirContents) -> Result<DirBlockUse> {
        let DirBlock { dir, lblock, addr, .. } = at;
        let mut block = match self.vol.meta(BlockId { kind: BlockKind::Dir, addr, owner: dir }) {
            Ok(b) if get_u64(&b, DIR_LBLOCK) == lblock && validate(&b).is_ok() => b,
            Ok(b) if within || self.confirmed_block(addr, &b) => {
                let what = match validate(&b) {
                    Err(c) => c.0,
                    Ok(()) => format!("number {} instead of {lblock}", get_u64(&b, DIR_LBLOCK)),
                };
                let how = ("keep the valid entries", "give the block up");
                let Some(block) = self.rebuilt(&at, &b, what, how)? else { return Ok(DirBlockUse::Gone) };
                block
            }
            Err(BlockError::Damaged(what, b)) if within => {
                at.guessed = true;
                let how = ("keep the entries that can be read", "give the block up: no entry can be read");
                let Some(block) = self.rebuilt(&at, &b, what, how)? else { return Ok(DirBlockUse::Gone) };
                block
            }
            Err(bad) if within => {
                self.must_fix(Class::DirBlock, &at.place(), bad.text(), "give the block up")?;
                return Ok(DirBlockUse::Gone);
            }
            _ => return Ok(DirBlockUse::Ahead),
        };
        if !within && !self.confirmed_block(addr, &block) {
            return Ok(DirBlockUse::Ahead);
        }
        if !self.space.claim_meta(addr) {
            let what = "is mapped twice".to_string();
            self.must_fix(Class::FragmentsShared, &at.place(), what, "keep it in one place")?;
            return Ok(DirBlockUse::Gone);
        }
        self.entries_of(&at, &mut block, got)?;
        self.vol.put(addr, block);
        Ok(DirBlockUse::Live)
    }

    /// Puts a damaged block together again, or gives it up. `how`: what is said of the one and of the other.
    fn rebuilt(&mut self, at: &DirBlock, b: &[u8], what: String, how: (&str, &str)) -> Result<Option<Vec<u8>>> {
        let id = BlockId { kind: BlockKind::Dir, addr: at.addr, owner: at.dir };
        let rebuilt = rebuild(b, id, at.lblock, self.sb.hash_seed, &self.g, !at.guessed);
        self.must_fix(Class::DirBlock, &at.place(), what, if rebuilt.is_some() { how.0 } else { how.1 })?;
        Ok(rebuilt.map(|r| {
            r.nameless.into_iter().for_each(|inode| self.disconnect(at.dir, None, inode));
            r.block
        }))
    }

    /// The entries of a valid block.
    fn entries_of(&mut self, at: &DirBlock, block: &mut [u8], got: &mut DirContents) -> Result<()> {
        let DirBlock { dir, lblock, addr, .. } = *at;
        let offsets: Vec<usize> = entries(block).filter(|e| e.kind != EntryKind::Free).map(|e| e.offset).collect();
        for offset in offsets {
            let e = known_entry(block, offset);
            let (kind, said, hash) = (e.kind, e.hash, name_hash(self.sb.hash_seed, e.name));
            let shown = shown(e.name);
            let action = if kind == EntryKind::Link {
                self.link(dir, block, offset, &shown, got)?
            } else {
                self.embedded(at, block, offset, got)?
            };
            let place = || format!("directory {dir}");
            match action {
                EntryAction::Keep | EntryAction::MakeLink => {
                    if let EntryAction::MakeLink = action {
                        make_link(&mut Plain(block), offset);
                    }
                    let is_name = known_entry(block, offset).is_name();
                    let mut hash_kept = said;
                    if is_name && said != hash {
                        let what = format!("name {shown:?} has hash {said:#010x} instead of {hash:#010x}");
                        if self.fix(Class::NameHash, &place(), what, "correct it")? {
                            put_u32(block, offset + 4, hash);
                            hash_kept = hash;
                        }
                    }
                    if is_name {
                        let name = Name { hash: hash_kept, lblock: lblock as u32, offset: offset as u32, block: addr };
                        got.names.push(name);
                    }
                }
                EntryAction::Remove => remove(&mut Plain(block), offset),
                EntryAction::Disconnect(inode) => {
                    self.disconnect(dir, Some(shown), *inode);
                    remove(&mut Plain(block), offset);
                }
            }
        }
        // `remove` has changed the counts according to the kinds that it found.
        set_counts(block);
        Ok(())
    }

    /// A name that leads to an inode elsewhere.
    fn link(
        &mut self,
        dir: Ino,
        block: &mut [u8],
        offset: usize,
        shown: &str,
        got: &mut DirContents,
    ) -> Result<EntryAction> {
        let e = known_entry(block, offset);
        let (ino, said) = (e.ino, e.file_type);
        let place = format!("directory {dir}");
        let Some(k) = self.found.inodes.get_mut(&ino).filter(|k| k.external) else {
            let what = format!("name {shown:?} refers to inode {ino}, which does not exist");
            self.must_fix(Class::NameDangling, &place, what, "remove the name")?;
            return Ok(EntryAction::Remove);
        };
        let file_type = k.file_type;
        if file_type == FileType::Directory && (k.names > 0 || ino == dir) {
            let what = format!("name {shown:?} is a second name of directory {ino}");
            self.must_fix(Class::InodeLinks, &place, what, "remove the name")?;
            return Ok(EntryAction::Remove);
        }
        k.names += 1;
        if said != Some(file_type) {
            let what = format!("name {shown:?} is of type {said:?}, inode {ino} of {file_type:?}");
            if self.fix(Class::InodeType, &place, what, "correct the name")? {
                set_link(&mut Plain(block), offset, ino, file_type);
            }
        }
        if file_type == FileType::Directory {
            got.subdirs += 1;
            got.children.push(ino);
        }
        Ok(EntryAction::Keep)
    }

    /// An inode in a directory entry.
    fn embedded(
        &mut self,
        b: &DirBlock,
        block: &mut [u8],
        offset: usize,
        got: &mut DirContents,
    ) -> Result<EntryAction> {
        let (addr, place) = (b.addr, b.place());
        let e = known_entry(block, offset);
        let (at, room_end, orphan) = (e.inode_offset(), e.offset + e.len, e.kind == EntryKind::Orphan);
        let has_name = crate::format::dirblock::check_name(e.name).is_ok();
        let Ok(mut inode) = Inode::decode(&block[at..room_end]) else { return Ok(EntryAction::Remove) };
        if orphan {
            if inode.nlink == 0 && !self.has_names(&inode) {
                let what = format!("inode {} has no name", inode.ino);
                self.must_fix(Class::OrphanList, &place, what, "free it, as the next mount would")?;
                return Ok(EntryAction::Remove);
            }
            let what = format!("inode {} has link count {} but no name", inode.ino, inode.nlink);
            self.must_fix(Class::InodeLinks, &place, what, "give it a name in lost+found")?;
            return Ok(EntryAction::Disconnect(Box::new(inode)));
        }
        debug_assert!(has_name);
        let before = inode.clone();
        let mut owner = inode.ino;
        match self.number(&mut inode, addr, offset as u32, &place)? {
            Numbered::Same => {}
            Numbered::Another => {}
            Numbered::Remove => return Ok(EntryAction::Remove),
            Numbered::Link => return Ok(EntryAction::MakeLink),
        }
        if inode.is_dir() {
            owner = inode.ino;
        }
        let role = Role::Named;
        let (external, file_type) = (false, inode.file_type());
        self.register(
            &inode,
            Known { block: addr, offset: offset as u32, external, file_type, names: 1, ..Known::of(&inode) },
        );
        if b.guessed {
            self.evidence.guessed.insert(inode.ino);
        }
        if !self.contents(&mut inode, owner, role)? {
            self.found.inodes.remove(&inode.ino);
            return Ok(EntryAction::Remove);
        }
        if inode != before {
            put_u64(block, offset + 8, inode.ino);
            inode.encode(&mut block[at..at + inode.encoded_len()]);
        }
        if inode.is_dir() {
            got.subdirs += 1;
            got.children.push(inode.ino);
            // The directory is walked soon.
            if let InodeFormat::Extents(list) = &inode.format
                && let Some(e) = list.first()
            {
                self.vol.want(self.g.block_of_frag(e.start));
            }
        }
        Ok(EntryAction::Keep)
    }

    /// Names that occur twice in a directory: the later one moves to lost+found.
    fn duplicates(&mut self, dir: Ino, got: &mut DirContents) -> Result<()> {
        got.names.sort_unstable();
        let mut drop = Vec::new();
        for same in got.names.chunk_by(|a, b| a.hash == b.hash).filter(|s| s.len() > 1) {
            let mut seen = std::collections::HashSet::new();
            for n in same {
                let Ok(block) = self.vol.get(n.block) else { continue };
                if validate(&block).is_err() {
                    continue;
                }
                let name = known_entry(&block, n.offset as usize).name.to_vec();
                if !seen.insert(name.clone()) {
                    drop.push((*n, name));
                }
            }
        }
        for (n, name) in drop {
            let shown = shown(&name);
            let what = format!("name {shown:?} occurs twice");
            self.must_fix(Class::NameDuplicate, &format!("directory {dir}"), what, "move the second to lost+found")?;
            if self.vol.surveying {
                continue;
            }
            let Ok(mut block) = self.vol.get(n.block) else { continue };
            let e = known_entry(&block, n.offset as usize);
            let (ino, at, end, kind) = (e.ino, e.inode_offset(), e.offset + e.len, e.kind);
            if kind == EntryKind::Embedded
                && let Ok(inode) = Inode::decode(&block[at..end])
            {
                self.disconnect(dir, Some(shown), inode);
            } else if let Some(k) = self.found.inodes.get_mut(&ino) {
                k.names = k.names.saturating_sub(1);
            }
            remove(&mut Plain(&mut block), n.offset as usize);
            self.vol.put(n.block, block);
            got.names.retain(|m| *m != n);
        }
        Ok(())
    }

    /// Whether a directory that should have no names has some all the same.
    pub(super) fn has_names(&mut self, inode: &Inode) -> bool {
        if !inode.is_dir() || inode.size == 0 {
            return false;
        }
        let map = self.read_map(inode);
        let fpb = self.g.frags_per_block();
        let blocks = inode.size / self.g.block_size() as u64;
        let inside = map.extents.iter().filter(|e| (e.logical | e.start | e.len).is_multiple_of(fpb));
        let list = inside.flat_map(|e| e.start / fpb..e.start / fpb + (e.len / fpb).min(blocks));
        let has_name = |addr| self.entry_block(inode.ino, addr).is_some_and(|b| entries(&b).any(|e| e.is_name()));
        list.take(BEHIND_MAX as usize).any(has_name)
    }
}
