//! Walks the tree of directories: blocks, names, and the inodes embedded in them.

use super::checker::{Checker, DAMAGED_BLOCKS_MAX};
use super::extents::BlockMap;
use super::inventory::{DataPlace, Found, Role};
use super::pool::{Ahead, Context, Ticket};
use super::reader::Block;
use super::report::{Class, Phase};
use crate::format::dirblock::{DIR_BLOCKS_MAX, DIR_LBLOCK, Entry, EntryKind, entries, known_entry, validate};
use crate::format::dirindex::name_hash_long;
use crate::format::{BlockAddr, BlockId, BlockKind, Extent, FileType, Ino, Inode, InodeFormat, get_u64};
use std::collections::BTreeMap;

/// A name of the directory being checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    /// As the entry has it.
    pub(super) hash: u32,
    /// Another hash of the name. Equal names have equal hashes, and other names almost never have.
    other: u32,
    pub(super) lblock: u32,
    offset: u32,
    block: BlockAddr,
}

/// Results of reading a directory.
#[derive(Default)]
struct Gathered {
    names: Vec<Name>,
    subdirs: u64,
    /// Subdirectories to walk, with the parent that they have to name.
    children: Vec<Inode>,
    /// Where the data of small files are, in the order of the names.
    places: Vec<DataPlace>,
    /// Every block below the size was read.
    complete: bool,
}

/// A block of a directory: its number within it, and its address.
type DirBlock = (u64, BlockAddr);

/// What a block of a directory says by itself.
struct Scanned {
    block: Block,
    entries: Vec<ScannedEntry>,
}

/// An entry that is not free.
struct ScannedEntry {
    offset: u32,
    /// Hash of the name, if it is one.
    hash: u64,
    /// The embedded inode.
    inode: Option<Inode>,
}

/// Result of reading a block.
type ScannedBlock = (DirBlock, Result<Scanned, String>);

/// Reads a block of a directory and decodes what is in it.
fn scan(context: &Context<'_>, dir: Ino, (lblock, addr): DirBlock) -> Result<Scanned, String> {
    let block = context.fetch.meta(BlockId { kind: BlockKind::Dir, addr, owner: dir })?;
    let found = get_u64(&block, DIR_LBLOCK);
    if found != lblock {
        return Err(format!("directory block at {addr} is number {found} instead of {lblock}"));
    }
    validate(&block).map_err(|c| c.0)?;
    let used = entries(&block).filter(|e| e.kind != EntryKind::Free);
    let entries = used.map(|e| ScannedEntry {
        offset: e.offset as u32,
        hash: if e.is_name() { name_hash_long(context.hash_seed, e.name) } else { 0 },
        inode: match e.kind {
            EntryKind::Link => None,
            _ => Inode::decode(&block[e.inode_offset()..e.offset + e.len]).ok(),
        },
    });
    Ok(Scanned { entries: entries.collect(), block })
}

/// A directory to check. Its first blocks may be being read already.
struct Pending {
    inode: Inode,
    begun: Option<Begun>,
    /// Reading ahead was skipped, and is not to begin.
    passed: bool,
}

struct Begun {
    blocks: Vec<DirBlock>,
    ticket: Ticket<Vec<ScannedBlock>>,
}

impl Checker<'_> {
    /// Walks a registered directory and everything below it.
    pub(super) fn walk_tree(&mut self, top: Inode) {
        let mut stack = vec![Pending { inode: top, begun: None, passed: false }];
        while let Some(dir) = stack.pop() {
            self.begin_next(&mut stack);
            let children = self.check_dir(dir);
            stack.extend(children.into_iter().rev().map(|inode| Pending { inode, begun: None, passed: false }));
            self.progress(Phase::Tree, self.inventory.register.list.len() as u64, self.inventory.expected);
        }
    }

    /// Starts reading the first blocks of the next directories.
    fn begin_next(&self, stack: &mut [Pending]) {
        let next = stack.len().saturating_sub(self.pool.depth() * 4);
        for dir in stack[next..].iter_mut().rev().filter(|d| d.begun.is_none() && !d.passed) {
            let blocks = self.first_blocks(&dir.inode);
            if blocks.is_empty() {
                dir.passed = true;
                continue;
            }
            let (ino, list) = (dir.inode.ino, blocks.clone());
            let ticket = self.pool.spawn(move |context| list.into_iter().map(|b| (b, scan(context, ino, b))).collect());
            dir.begun = Some(Begun { blocks, ticket });
        }
    }

    /// The blocks of a directory that are read first, as far as they are known without claiming or reading anything.
    /// Whether they belong to the directory is verified later.
    fn first_blocks(&self, dir: &Inode) -> Vec<DirBlock> {
        let InodeFormat::Extents(list) = &dir.format else { return Vec::new() };
        let per = self.g.frags_per_block();
        let end = (dir.size >> self.g.block_shift).min(DIR_BLOCKS_MAX);
        let fits = |e: &&Extent| {
            (e.logical | e.start | e.len).is_multiple_of(per) && !e.unwritten && self.g.contains(e.start, e.len)
        };
        let blocks = list
            .iter()
            .take_while(fits)
            .flat_map(|e| (0..e.len / per).map(move |n| (e.logical / per + n, e.start / per + n)));
        blocks.take_while(|(lblock, _)| *lblock < end).take(self.pool.piece_blocks()).collect()
    }

    /// Checks one directory; returns its subdirectories.
    fn check_dir(&mut self, dir: Pending) -> Vec<Inode> {
        let Pending { inode: dir, begun, .. } = dir;
        let (dir, ino) = (&dir, dir.ino);
        let map = BlockMap::read(self, dir);
        self.check_space(dir, map.frags, map.complete);
        let bs = self.g.block_size() as u64;
        if !dir.size.is_multiple_of(bs) || dir.size / bs > DIR_BLOCKS_MAX {
            let what = format_args!("size {} is not a possible number of blocks", dir.size);
            self.inode_problem(Class::DirSize, ino, what);
        }
        // Blocks behind the size may be preallocated, and were never written.
        let blocks = (dir.size / bs).min(DIR_BLOCKS_MAX);
        let mut got = Gathered { complete: map.complete, ..Gathered::default() };
        let mut damaged = 0;
        let mut last = None;
        let mut list = map.blocks().take_while(move |(lblock, _)| *lblock < blocks);
        let (pool, piece) = (self.pool, self.pool.piece_blocks());
        let work = move |context: &Context<'_>, b: DirBlock| (b, scan(context, ino, b));
        let first: Vec<DirBlock> = list.by_ref().take(piece).collect();
        let ticket = match begun {
            Some(begun) if begun.blocks == first => Some(begun.ticket),
            begun => {
                begun.inspect(|b| pool.cancel(&b.ticket));
                let read = move |context: &Context<'_>| first.into_iter().map(|b| work(context, b)).collect();
                Some(pool.spawn(read))
            }
        };
        for ((lblock, addr), scanned) in Ahead::new(pool, list, piece, work).begun(ticket) {
            last = Some(lblock);
            self.note_block_read(addr);
            match scanned {
                Ok(scanned) => self.check_dir_block(dir, lblock, addr, scanned, &mut got),
                Err(what) => {
                    self.inode_problem(Class::DirBlock, ino, what);
                    got.complete = false;
                    damaged += 1;
                    if damaged >= DAMAGED_BLOCKS_MAX {
                        self.inode_problem(Class::DirBlock, ino, "too many damaged blocks: the rest is not read");
                        break;
                    }
                }
            }
        }
        if map.complete && last.map_or(0, |l| l + 1) != blocks && damaged < DAMAGED_BLOCKS_MAX {
            let what = format_args!("size {} although the last block is {last:?}", dir.size);
            self.inode_problem(Class::DirSize, ino, what);
        }
        if got.complete && dir.aux != got.names.len() as u64 {
            let what = format_args!("says it has {} entries, but there are {}", dir.aux, got.names.len());
            self.inode_problem(Class::DirCount, ino, what);
        }
        let links = if dir.nlink == 0 { 0 } else { 2 + got.subdirs };
        if got.complete && u64::from(dir.nlink) != links {
            self.inode_problem(Class::InodeLinks, ino, format_args!("link count {} instead of {links}", dir.nlink));
        }
        if dir.nlink == 0 && !got.names.is_empty() {
            self.inode_problem(Class::DirCount, ino, "removed, but not empty");
        }
        got.names.sort_unstable_by_key(|n| (n.hash, n.other, n.lblock, n.offset));
        self.find_duplicates(ino, &got.names);
        self.check_index(dir, &map, &mut got.names, got.complete);
        self.rate_places(&got.places);
        got.children
    }

    fn check_dir_block(&mut self, dir: &Inode, lblock: u64, addr: BlockAddr, scanned: Scanned, got: &mut Gathered) {
        let Scanned { block, entries } = scanned;
        for ScannedEntry { offset, hash, inode } in entries {
            let e = known_entry(&block, offset as usize);
            if e.is_name() {
                self.check_name(dir.ino, &e, hash as u32);
                let other = (hash >> 32) as u32;
                got.names.push(Name { hash: e.hash, other, lblock: lblock as u32, offset, block: addr });
                got.subdirs += u64::from(e.file_type == Some(FileType::Directory));
            }
            if e.kind == EntryKind::Link {
                self.findings.counts.links += 1;
                self.follow_link(dir.ino, &e, got);
            } else if let Some(inode) = inode {
                self.check_embedded(dir.ino, addr, &e, inode, got);
            }
        }
    }

    fn check_name(&mut self, dir: Ino, e: &Entry<'_>, hash: u32) {
        if hash != e.hash {
            let what = format_args!("name {:?} has hash {:#010x} instead of {hash:#010x}", shown(e.name), e.hash);
            self.inode_problem(Class::NameHash, dir, what);
        }
    }

    fn check_embedded(&mut self, dir: Ino, block: BlockAddr, e: &Entry<'_>, inode: Inode, got: &mut Gathered) {
        let found = Found { ino: e.ino, block, offset: e.offset as u32, external: false };
        let role = if e.kind == EntryKind::Orphan { Role::Orphan } else { Role::Named };
        let Some(place) = self.check_inode(&inode, found, role) else { return };
        if role == Role::Named {
            got.places.push(place);
        }
        if inode.is_dir() {
            self.check_parent(&inode, dir, role == Role::Named);
            got.children.push(inode);
        }
    }

    fn check_parent(&mut self, inode: &Inode, dir: Ino, named: bool) {
        if named && inode.parent != dir {
            let what = format_args!("names {} as its parent, but is in {dir}", inode.parent);
            self.inode_problem(Class::DirParent, inode.ino, what);
        }
    }

    fn follow_link(&mut self, dir: Ino, e: &Entry<'_>, got: &mut Gathered) {
        let Some(i) = self.external_index(e.ino) else {
            let what = format_args!("name {:?} refers to inode {}, which does not exist", shown(e.name), e.ino);
            self.inode_problem(Class::NameDangling, dir, what);
            return;
        };
        let target = &mut self.inventory.external[i];
        target.names += 1;
        let (target, first) = (*target, target.names == 1);
        got.places.push(target.place);
        if e.file_type != Some(target.file_type) {
            let what = format_args!(
                "name {:?} is of type {:?}, inode {} of {:?}",
                shown(e.name),
                e.file_type,
                e.ino,
                target.file_type
            );
            self.inode_problem(Class::InodeType, dir, what);
        }
        if target.file_type != FileType::Directory {
            return;
        }
        if !first {
            self.inode_problem(Class::InodeLinks, e.ino, format_args!("a directory with a second name in {dir}"));
        } else if let Some(inode) = self.inventory.external_dirs.remove(&e.ino) {
            self.check_parent(&inode, dir, true);
            got.children.push(inode);
        }
    }

    /// Walks directories in the external table that no name has led to.
    pub(super) fn walk_unreachable(&mut self) {
        for i in 0..self.inventory.external.len() {
            let e = self.inventory.external[i];
            // Those below another lost directory are found through it.
            if e.file_type != FileType::Directory || e.names > 0 {
                continue;
            }
            if e.nlink > 0 {
                self.inode_problem(Class::DirUnreachable, e.ino, "no name refers to this directory");
            }
            if let Some(inode) = self.inventory.external_dirs.remove(&e.ino) {
                self.walk_tree(inode);
            }
        }
    }

    fn find_duplicates(&mut self, dir: Ino, names: &[Name]) {
        let alike = |a: &Name, b: &Name| (a.hash, a.other) == (b.hash, b.other);
        for same in names.chunk_by(alike).filter(|same| same.len() > 1) {
            let mut seen: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            for n in same {
                let Ok(block) = self.pool.context.fetch.block(n.block) else { continue };
                let name = known_entry(&block, n.offset as usize).name;
                *seen.entry(name.to_vec()).or_default() += 1;
            }
            for (name, count) in seen.into_iter().filter(|(_, n)| *n > 1) {
                let what = format_args!("name {:?} occurs {count} times", shown(&name));
                self.inode_problem(Class::NameDuplicate, dir, what);
            }
        }
    }

    /// Counts the small files of a directory that share a group with the one before or after them.
    fn rate_places(&mut self, places: &[DataPlace]) {
        let small: Vec<DataPlace> = places.iter().copied().filter(|p| *p != DataPlace::None).collect();
        if small.len() < 2 {
            return;
        }
        for (i, p) in small.iter().enumerate() {
            let neighbours = [i.checked_sub(1).map(|j| small[j]), small.get(i + 1).copied()];
            self.findings.layout.small_files += 1;
            let shares = matches!(p, DataPlace::Group(_)) && neighbours.contains(&Some(*p));
            self.findings.layout.co_located += u64::from(shares);
        }
    }
}

/// A name for a message.
pub(super) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
