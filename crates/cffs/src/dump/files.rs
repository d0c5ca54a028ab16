//! Files: finding an inode by number or path, and what belongs to it.

use super::dumper::Dumper;
use super::entries::entry_chain;
use super::inode::inode_value;
use super::records::{attribute, location};
use crate::error::{Error, Result};
use crate::format::dirblock::DIR_BLOCKS_MAX;
use crate::format::extent::{Child, EXTENT_SIZE, Extent, NODE_COUNT, node_capacity, node_entry};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::table::{LOCATOR_SIZE, Location, TableShape};
use crate::format::xattr::{ChainBlock, chain_max, decode_list};
use crate::format::*;
use cffs_values::{Fields, Value};
use std::collections::HashSet;

/// A file of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// By its inode number.
    Number(Ino),
    /// By its path from the root.
    Path(Vec<u8>),
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Which::Number(n) => write!(f, "inode {n}"),
            Which::Path(p) => write!(f, "{}", String::from_utf8_lossy(p)),
        }
    }
}

/// Where an inode was found, and its bytes.
struct Found {
    place: Fields,
    bytes: Vec<u8>,
}

impl Found {
    fn value(&self) -> Fields {
        let mut f = self.place.clone();
        f.append(inode_value(&self.bytes));
        f
    }

    fn inode(&self) -> Result<Inode> {
        Ok(Inode::decode(&self.bytes)?)
    }
}

/// Where the parts of a file are, as far as they can be followed.
#[derive(Default)]
struct Map {
    extents: Vec<Extent>,
    /// Nodes of the extent tree, a node before those below it.
    nodes: Vec<BlockAddr>,
    wrong: Vec<String>,
}

impl Dumper<'_> {
    fn find(&self, which: &Which) -> Result<Found> {
        match which {
            Which::Number(ino) => self.find_number(*ino),
            Which::Path(path) => self.find_path(path),
        }
    }

    fn slot(&self, kind: BlockKind, owner: u64, block: BlockAddr, offset: usize, end: usize) -> Result<Found> {
        let b = self.read(block)?;
        let mut place = Fields::of("in_block", block);
        place.put("offset", offset);
        let wrong = verify_block(&b, self.g.fsid, BlockId { kind, addr: block, owner }).err();
        place.problems_as("block_problems", wrong.map(|c| c.0));
        let bytes = b.get(offset..end.min(b.len())).unwrap_or_default().to_vec();
        Ok(Found { place, bytes })
    }

    fn find_number(&self, ino: Ino) -> Result<Found> {
        if (1..=LAST_SYSTEM_INO).contains(&ino) {
            let (block, offset) = self.g.system_inode(ino);
            return self.slot(BlockKind::SystemInodes, 0, block, offset, offset + INODE_SLOT_SIZE);
        }
        let nowhere = |what: String| {
            Error::Corrupt(Corrupt(format!("inode {ino}: {what}; if it has a name, give its path instead")))
        };
        let record = self.locator_record(ino).map_err(|e| nowhere(e.to_string()))?;
        match Location::decode(&record, ino, self.g.block_size()).map_err(|c| nowhere(c.0))? {
            Location::Free => {
                Error::invalid(format!("there is no inode {ino}: its record in the locator table is free"))
            }
            Location::Embedded { block, offset } => {
                let b = self.read(block).map_err(|e| nowhere(e.to_string()))?;
                let e = entry_chain(&b).find(|e| e.offset == offset).map(|e| (e.inode_offset(), e.offset + e.len));
                let (at, end) = e.ok_or_else(|| {
                    nowhere(format!("the locator table says byte {offset} of block {block}, where no entry begins"))
                })?;
                self.slot(BlockKind::Dir, block_owner(&b), block, at, end)
            }
            Location::External { block, offset } => {
                self.slot(BlockKind::ExternalInodes, EXTERNAL_INO, block, offset, offset + INODE_SLOT_SIZE)
            }
        }
    }

    /// The bytes of a record of the locator table.
    fn locator_record(&self, ino: Ino) -> Result<Vec<u8>> {
        let table = self.find_number(LOCATOR_INO)?.inode()?;
        let (lblock, offset) = TableShape::new(self.g.block_size(), LOCATOR_SIZE).place(ino);
        let addr = self
            .block_of(&table, lblock)
            .ok_or_else(|| Corrupt(format!("the locator table has no block {lblock}, where its record would be")))?;
        let b = self.read(addr)?;
        verify_block(&b, self.g.fsid, BlockId { kind: BlockKind::Locator, addr, owner: LOCATOR_INO })?;
        Ok(b[offset..offset + LOCATOR_SIZE].to_vec())
    }

    fn find_path(&self, path: &[u8]) -> Result<Found> {
        let mut at = self.find_number(ROOT_INO)?;
        let mut so_far = Vec::new();
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".") {
            let here = || String::from_utf8_lossy(if so_far.is_empty() { b"/" } else { &so_far }).into_owned();
            let dir = at.inode().map_err(|e| Corrupt(format!("{}: {e}", here())))?;
            if !dir.is_dir() {
                return Error::invalid(format!("{}: not a directory", here()));
            }
            let found = self.find_name(&dir, name);
            let shown = String::from_utf8_lossy(name).into_owned();
            at = match found {
                Some(found) => found.map_err(|e| Corrupt(format!("{shown} in {}: {e}", here())))?,
                None => return Error::invalid(format!("{}: no {shown} in what can be read of it", here())),
            };
            so_far.push(b'/');
            so_far.extend_from_slice(name);
        }
        Ok(at)
    }

    /// Looks for a name in all blocks of a directory that can be read, good or not.
    fn find_name(&self, dir: &Inode, name: &[u8]) -> Option<Result<Found>> {
        for (_, addr) in self.file_blocks(&self.map(dir)).filter(|(l, _)| *l < DIR_BLOCKS_MAX) {
            let Ok(b) = self.read(addr) else { continue };
            if get_u32(&b, 0) != BlockKind::Dir as u32 || block_owner(&b) != dir.ino {
                continue;
            }
            if let Some(e) = entry_chain(&b).find(|e| e.is_name() && e.name == name) {
                return Some(match e.kind {
                    1 => self.slot(BlockKind::Dir, dir.ino, addr, e.inode_offset(), e.offset + e.len),
                    _ => self.find_number(get_u64(&b, e.offset + 8)),
                });
            }
        }
        None
    }

    fn map(&self, inode: &Inode) -> Map {
        let mut map = Map::default();
        match &inode.format {
            InodeFormat::Inline(_) => {}
            InodeFormat::Extents(list) => self.add_extents(&mut map, list.iter().copied()),
            InodeFormat::Tree { height, children } => {
                let mut seen = HashSet::new();
                let mut stack: Vec<(BlockAddr, u8)> = children.iter().rev().map(|c| (c.block, height - 1)).collect();
                while let Some((addr, level)) = stack.pop() {
                    if addr == 0 || addr >= self.g.total_blocks {
                        map.wrong.push(format!("extent tree node at block {addr}, outside the file system"));
                    } else if !seen.insert(addr) {
                        map.wrong.push(format!("extent tree node at block {addr} is in the tree twice"));
                    } else {
                        map.nodes.push(addr);
                        self.follow_node(&mut map, &mut stack, addr, level, inode.ino);
                    }
                }
            }
        }
        map
    }

    fn follow_node(&self, map: &mut Map, stack: &mut Vec<(BlockAddr, u8)>, addr: BlockAddr, level: u8, owner: Ino) {
        let b = match self.read(addr) {
            Ok(b) if get_u32(&b, 0) == BlockKind::ExtentNode as u32 => b,
            Ok(_) => return map.wrong.push(format!("block {addr} is no extent tree node")),
            Err(e) => return map.wrong.push(format!("extent tree node at block {addr}: {e}")),
        };
        map.wrong.extend(
            verify_block(&b, self.g.fsid, BlockId { kind: BlockKind::ExtentNode, addr, owner }).err().map(|c| c.0),
        );
        let n = (get_u16(&b, NODE_COUNT) as usize).min(node_capacity(b.len()));
        let entries = (0..n).map(|i| &b[node_entry(i)..node_entry(i) + EXTENT_SIZE]);
        // The level by the parent counts: so the depth is bounded whatever the node says.
        if level == 0 {
            self.add_extents(map, entries.map(Extent::decode));
        } else {
            stack.extend(entries.rev().map(|e| (Child::decode(e).block, level - 1)));
        }
    }

    fn add_extents(&self, map: &mut Map, list: impl Iterator<Item = Extent>) {
        for e in list {
            if !self.g.contains(e.start, e.len) {
                map.wrong
                    .push(format!("extent at fragment {} lies at {}, outside the file system", e.logical, e.start));
            } else {
                map.extents.push(e);
            }
        }
    }

    /// Blocks of a directory or table: number within the file, address. As many as the device has at most.
    fn file_blocks<'m>(&self, map: &'m Map) -> impl Iterator<Item = (u64, BlockAddr)> + use<'m> {
        let fpb = self.g.frags_per_block();
        let runs = map.extents.iter().map(move |e| (e.logical / fpb, e.start / fpb, e.len / fpb));
        runs.flat_map(|(l, start, n)| (0..n).map(move |i| (l + i, start + i))).take(self.g.total_blocks as usize)
    }

    fn block_of(&self, inode: &Inode, lblock: u64) -> Option<BlockAddr> {
        let map = self.map(inode);
        let fpb = self.g.frags_per_block();
        let frag = lblock * fpb;
        let e = map.extents.iter().find(|e| e.logical <= frag && frag < e.end())?;
        Some((e.start + (frag - e.logical)) / fpb)
    }

    /// An inode with where it stands.
    pub fn inode(&self, which: &Which) -> Result<Value> {
        Ok(self.find(which)?.value().into())
    }

    /// The extents of a file: those in the inode, or the nodes of its tree.
    pub fn extents(&self, which: &Which) -> Result<Value> {
        let found = self.find(which)?;
        let mut f = found.value();
        let inode = found.inode()?;
        let map = self.map(&inode);
        let id = |addr| BlockId { kind: BlockKind::ExtentNode, addr, owner: inode.ino };
        if !map.nodes.is_empty() {
            f.put("nodes", map.nodes.iter().map(|addr| self.meta_at(id(*addr))).collect::<Vec<_>>());
        }
        f.problems_as("map_problems", map.wrong);
        Ok(f.into())
    }

    /// A directory: its inode, blocks with their entries, index.
    pub fn directory(&self, which: &Which) -> Result<Value> {
        let found = self.find(which)?;
        let inode = found.inode()?;
        if !inode.is_dir() {
            return Error::invalid(format!("{which}: not a directory"));
        }
        let mut f = Fields::of("inode", found.value());
        let map = self.map(&inode);
        let (entry_blocks, buckets) = (inode.size / self.g.block_size() as u64, u64::from(inode.index_buckets));
        let (mut blocks, mut index) = (Vec::new(), Vec::new());
        for (lblock, addr) in self.file_blocks(&map) {
            // What lies behind the size, and behind the last bucket, was allocated ahead and never written.
            if lblock < entry_blocks.min(DIR_BLOCKS_MAX) {
                blocks.push(self.meta_at(BlockId { kind: BlockKind::Dir, addr, owner: inode.ino }));
            } else if (DIR_BLOCKS_MAX..DIR_BLOCKS_MAX + buckets).contains(&lblock) {
                index.push(self.meta_at(BlockId { kind: BlockKind::DirIndex, addr, owner: inode.ino }));
            }
        }
        f.put("blocks", blocks);
        if buckets > 0 {
            f.put("index", index);
        }
        f.problems_as("map_problems", map.wrong);
        Ok(f.into())
    }

    /// The extended attributes of a file: those in the inode and the chain of blocks.
    pub fn xattrs(&self, which: &Which) -> Result<Value> {
        let inode = self.find(which)?.inode()?;
        let mut f = Fields::of("inode", inode.ino);
        let (mut own, mut wrong) = (Vec::new(), Vec::new());
        wrong.extend(decode_list(&inode.xattrs, true, &mut own).err().map(|c| c.0));
        f.put_list("in_inode", &own, attribute);
        let (mut blocks, mut list, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        let mut addr = inode.xattr_block;
        while addr != 0 {
            if !seen.insert(addr) || seen.len() > chain_max(self.g.block_size()) {
                wrong.push("the chain does not end".into());
                break;
            }
            if addr >= self.g.total_blocks {
                wrong.push(format!("block {addr} of the chain lies outside the file system"));
                break;
            }
            blocks.push(self.meta_at(BlockId { kind: BlockKind::Xattr, addr, owner: inode.ino }));
            let next = self.read(addr).map_err(|e| e.to_string()).and_then(|b| {
                if get_u32(&b, 0) != BlockKind::Xattr as u32 {
                    return Err(format!("block {addr} of the chain is something else"));
                }
                let head = ChainBlock::decode(&b).map_err(|c| c.0)?;
                list.extend_from_slice(&b[META_HEADER_SIZE..META_HEADER_SIZE + head.used]);
                Ok(head.next)
            });
            addr = next.unwrap_or_else(|what| {
                wrong.push(what);
                0
            });
        }
        if !blocks.is_empty() {
            let mut all = Vec::new();
            wrong.extend(decode_list(&list, false, &mut all).err().map(|c| c.0));
            f.put_list("in_chain", &all, attribute).put("blocks", blocks);
        }
        f.problems(wrong);
        Ok(f.into())
    }

    /// The inode locator table (2), the external inode table (3) or a quota file (4 to 6): all its blocks. Those of a slotted
    /// table with records of so many bytes have maps among them.
    fn table(&self, mut f: Fields, ino: Ino, kind: BlockKind, record: Option<usize>) -> Result<Value> {
        let found = self.find_number(ino)?;
        let shape = record.map(|bytes| TableShape::new(self.g.block_size(), bytes));
        let is_map = |lblock| shape.is_some_and(|s| s.data_of_block(lblock).is_none());
        f.put("inode", found.value());
        if let Ok(inode) = found.inode() {
            let map = self.map(&inode);
            let blocks = self.file_blocks(&map).map(|(lblock, addr)| {
                self.meta_at(BlockId {
                    kind: if is_map(lblock) { BlockKind::TableMap } else { kind },
                    addr,
                    owner: ino,
                })
            });
            f.put("blocks", blocks.collect::<Vec<_>>());
            f.problems_as("map_problems", map.wrong);
        }
        Ok(f.into())
    }

    /// The inode locator table.
    pub fn locator(&self) -> Result<Value> {
        self.table(Fields::new(), LOCATOR_INO, BlockKind::Locator, Some(LOCATOR_SIZE))
    }

    /// What the locator table says of one inode.
    pub fn locator_of(&self, ino: Ino) -> Result<Value> {
        if ino <= LAST_SYSTEM_INO {
            return Error::invalid(format!("inode {ino} stands in the system area, not in the locator table"));
        }
        let record = self.locator_record(ino)?;
        let mut f = Fields::of("inode", ino);
        match location(&record, ino, self.g.block_size()) {
            Some(fields) => return Ok(fields.into()),
            None => f.put("state", "free"),
        };
        Ok(f.into())
    }

    /// The external inode table.
    pub fn external(&self) -> Result<Value> {
        self.table(Fields::new(), EXTERNAL_INO, BlockKind::ExternalInodes, Some(INODE_SLOT_SIZE))
    }

    /// The quota file of a kind.
    pub fn quota(&self, kind: QuotaKind) -> Result<Value> {
        let mut f = Fields::of("quota", kind.name());
        f.put("kept", self.sb.has_quota(kind));
        self.table(f, kind.ino(), BlockKind::Quota, None)
    }
}
