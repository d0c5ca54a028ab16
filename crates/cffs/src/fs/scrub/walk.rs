//! Inodes and their blocks. They are found through the locator table, so that none is missed however names move.

use super::{Place, Walk};
use crate::error::{Error, Result};
use crate::format::dirblock::{DIR_BLOCKS_MAX, EntryKind, entry_at};
use crate::format::extent::{Child, EXTENT_SIZE, Extent, node_entry, node_header};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::table::{LOCATOR_SIZE, Location, TableShape};
use crate::format::xattr::{ChainBlock, chain_max};
use crate::format::*;
use std::collections::HashSet;

/// Inodes that are verified together, in the order of their locations.
const BATCH: usize = 16_384;

/// A block of a table: its number within the file, and its address.
type TableBlock = (u64, BlockAddr);

impl Walk<'_> {
    /// Verifies the system files. Returns the blocks of the locator table.
    pub(super) fn tables(&mut self) -> Result<Vec<TableBlock>> {
        let mut locator = Vec::new();
        for ino in [LOCATOR_INO, EXTERNAL_INO].into_iter().chain(QuotaKind::ALL.map(QuotaKind::ino)) {
            let Some(inode) = self.system_inode(ino)? else { continue };
            let record = if ino == LOCATOR_INO { LOCATOR_SIZE } else { INODE_SLOT_SIZE };
            let shape = TableShape::new(self.g.block_size(), record);
            for (lblock, addr) in self.file_blocks(&inode)? {
                let kind = match ino {
                    LOCATOR_INO | EXTERNAL_INO if shape.data_of_block(lblock).is_none() => BlockKind::TableMap,
                    LOCATOR_INO => BlockKind::Locator,
                    EXTERNAL_INO => BlockKind::ExternalInodes,
                    _ => BlockKind::Quota,
                };
                if kind == BlockKind::Locator {
                    // Verified when its records are read.
                    locator.push((lblock, addr));
                } else {
                    self.meta(BlockId { kind, addr, owner: ino }, Place::Block(ino, lblock))?;
                }
            }
        }
        if let Some(root) = self.system_inode(ROOT_INO)? {
            self.inode(&root)?;
        }
        Ok(locator)
    }

    fn system_inode(&mut self, ino: Ino) -> Result<Option<Inode>> {
        let (addr, offset) = self.g.system_inode(ino);
        let id = BlockId { kind: BlockKind::SystemInodes, addr, owner: 0 };
        let Some(block) = self.meta(id, Place::Fixed)? else {
            // The block is newer in memory, or damaged and reported.
            return Ok(self.with_inode(ino, |inode| Ok(inode.clone())).ok());
        };
        match Inode::decode(&block[offset..offset + INODE_SLOT_SIZE]) {
            Ok(inode) => Ok(Some(inode)),
            Err(c) => {
                self.report(format!("system inode {ino}"), c.0, None, addr);
                Ok(None)
            }
        }
    }

    /// Verifies all inodes in the locator table.
    pub(super) fn inodes(&mut self, locator: &[TableBlock]) -> Result<()> {
        let shape = TableShape::new(self.g.block_size(), LOCATOR_SIZE);
        let mut batch: Vec<(BlockAddr, usize, bool, Ino)> = Vec::new();
        for (lblock, addr) in locator {
            let id = BlockId { kind: BlockKind::Locator, addr: *addr, owner: LOCATOR_INO };
            let Some(block) = self.meta(id, Place::Block(LOCATOR_INO, *lblock))? else { continue };
            let Some(data) = shape.data_of_block(*lblock) else { continue };
            let mut wrong = None;
            for slot in 0..shape.per_block {
                let ino = data.saturating_mul(shape.per_block).saturating_add(slot);
                let at = META_HEADER_SIZE + slot as usize * LOCATOR_SIZE;
                match Location::decode(&block[at..at + LOCATOR_SIZE], ino, self.g.block_size()) {
                    Ok(Location::Free) => {}
                    Ok(Location::Embedded { block, offset }) => batch.push((block, offset, false, ino)),
                    Ok(Location::External { block, offset }) => batch.push((block, offset, true, ino)),
                    Err(c) => wrong = Some(c.0),
                }
            }
            drop(block);
            if let Some(what) = wrong {
                self.report_block(id, Place::Block(LOCATOR_INO, *lblock), what);
            }
            if batch.len() >= BATCH {
                self.batch(&mut batch)?;
            }
        }
        self.batch(&mut batch)
    }

    fn batch(&mut self, batch: &mut Vec<(BlockAddr, usize, bool, Ino)>) -> Result<()> {
        batch.sort_unstable();
        for same in batch.chunk_by(|a, b| (a.0, a.2) == (b.0, b.2)) {
            let (addr, _, external, ino) = same[0];
            // The block itself names the directory that owns it. Whether the directory has the block is verified with
            // the directory.
            let owner = if external {
                EXTERNAL_INO
            } else {
                let read = self.reader.block(addr);
                read.map_or(0, |b| block_owner(&b))
            };
            let kind = if external { BlockKind::ExternalInodes } else { BlockKind::Dir };
            let block = self.meta(BlockId { kind, addr, owner }, Place::InodeLocation(ino))?;
            for (_, offset, _, ino) in same {
                let here = block.as_ref().and_then(|b| inode_at(b, *offset, external, *ino));
                match here.map_or_else(|| self.by_memory(*ino, addr), |inode| Ok(Some(inode)))? {
                    Some(inode) => self.inode(&inode)?,
                    None => self.check_stopped()?,
                }
            }
            let n = same.len() as u64;
            self.count(|s| s.inodes += n);
        }
        batch.clear();
        self.data()
    }

    /// An inode that is not where the device says, as it is in memory. It was moved or freed, is newer in memory, or is
    /// lost.
    fn by_memory(&mut self, ino: Ino, addr: BlockAddr) -> Result<Option<Inode>> {
        let look = |me: &Self| me.with_inode(ino, |inode| Ok(inode.clone()));
        match look(self) {
            Ok(inode) => return Ok(Some(inode)),
            Err(Error::Stale | Error::NotFound) => return Ok(None),
            Err(_) => {}
        }
        // The inode may have been on the move. What is wrong while the journal is quiesced is damage.
        match self.fs.journal.quiesce(|| look(self)) {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::Stale | Error::NotFound) => Ok(None),
            Err(e) => {
                self.report(format!("inode {ino}"), e.to_string(), Some(ino), addr);
                Ok(None)
            }
        }
    }

    /// Verifies the metadata of an inode, and notes where its data is if data is verified too.
    fn inode(&mut self, inode: &Inode) -> Result<()> {
        if inode.xattr_block != 0 {
            self.chain(inode)?;
        }
        if inode.is_dir() {
            let entry_blocks = (inode.size >> self.g.block_shift).min(DIR_BLOCKS_MAX);
            let buckets = DIR_BLOCKS_MAX..DIR_BLOCKS_MAX + u64::from(inode.index_buckets);
            for (lblock, addr) in self.file_blocks(inode)? {
                let kind = match lblock {
                    l if l < entry_blocks => BlockKind::Dir,
                    l if buckets.contains(&l) => BlockKind::DirIndex,
                    // Preallocated, never written.
                    _ => continue,
                };
                self.meta(BlockId { kind, addr, owner: inode.ino }, Place::Block(inode.ino, lblock))?;
            }
        } else if self.with_data {
            self.note_data(inode)?;
        } else if matches!(inode.format, InodeFormat::Tree { .. }) {
            self.extents(inode, &mut |_| ())?;
        }
        Ok(())
    }

    fn chain(&mut self, inode: &Inode) -> Result<()> {
        let (mut addr, mut index) = (inode.xattr_block, 0);
        while addr != 0 && index < chain_max(self.g.block_size()) {
            let id = BlockId { kind: BlockKind::Xattr, addr, owner: inode.ino };
            let Some(block) = self.meta(id, Place::Chain(inode.ino, index))? else { break };
            addr = ChainBlock::decode(&block).map_or(0, |c| c.next);
            index += 1;
        }
        Ok(())
    }

    /// The blocks of a directory or table, in logical order.
    fn file_blocks(&mut self, inode: &Inode) -> Result<Vec<TableBlock>> {
        let fpb = self.g.frags_per_block();
        let most = self.g.total_blocks;
        let mut list = Vec::new();
        self.extents(inode, &mut |e| {
            let whole = (e.logical | e.start | e.len).is_multiple_of(fpb) && !e.unwritten;
            if whole && (list.len() as u64) < most {
                list.extend((0..e.len / fpb).map(|i| (e.logical / fpb + i, e.start / fpb + i)));
            }
        })?;
        Ok(list)
    }

    /// Verifies the nodes of an inode's extent tree, and calls `f` with every extent.
    pub(super) fn extents(&mut self, inode: &Inode, f: &mut dyn FnMut(Extent)) -> Result<()> {
        let g = self.g;
        let mut take = |e: Extent| {
            if e.len > 0 && g.contains(e.start, e.len) {
                f(e);
            }
        };
        let (height, children) = match &inode.format {
            InodeFormat::Inline(_) => return Ok(()),
            InodeFormat::Extents(list) => {
                list.iter().copied().for_each(take);
                return Ok(());
            }
            InodeFormat::Tree { height, children } => (*height, children),
        };
        // No node is read twice, even if a damaged tree refers to one twice.
        let mut seen = HashSet::new();
        let mut stack: Vec<(Child, u8)> = children.iter().rev().map(|c| (*c, height - 1)).collect();
        while let Some((child, level)) = stack.pop() {
            if !seen.insert(child.block) {
                continue;
            }
            let id = BlockId { kind: BlockKind::ExtentNode, addr: child.block, owner: inode.ino };
            let Some(block) = self.meta(id, Place::Node(inode.ino, child.key))? else { continue };
            let count = node_header(&block).map_or(0, |(_, count)| count);
            let entries = (0..count).map(|i| &block[node_entry(i)..node_entry(i) + EXTENT_SIZE]);
            if level == 0 {
                entries.map(Extent::decode).for_each(&mut take);
            } else {
                stack.extend(entries.rev().map(|e| (Child::decode(e), level - 1)));
            }
        }
        Ok(())
    }
}

/// The inode with this number at an offset of a verified block.
fn inode_at(block: &[u8], offset: usize, external: bool, ino: Ino) -> Option<Inode> {
    let inode = if external {
        Inode::decode(block.get(offset..offset + INODE_SLOT_SIZE)?).ok()
    } else {
        let e = entry_at(block, offset).filter(|e| matches!(e.kind, EntryKind::Embedded | EntryKind::Orphan))?;
        Inode::decode(&block[e.inode_offset()..e.offset + e.len]).ok()
    };
    inode.filter(|i| i.ino == ino)
}
