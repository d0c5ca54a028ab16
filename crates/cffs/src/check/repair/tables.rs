//! System inodes, the external inode table, and the inode locator table, which is written anew from the inodes found.

use super::extent_map::{Map, join};
use super::findings::inode_place;
use super::repairer::{Repairer, no_space};
use super::volume::BlockError;
use crate::check::Class;
use crate::error::Result;
use crate::format::table::{TABLE_LBLOCK, TableShape, encode_count};
use crate::format::{BlockAddr, BlockId, BlockKind, Ino, Inode, block_seq, get_u64, init_block, put_u64};
use std::collections::BTreeMap;

/// Extents of a table that are read ahead.
const EXTENTS_AHEAD: usize = 16;

/// The blocks that a table maps.
pub(super) struct TableBlocks {
    pub(super) map: Map,
    /// Blocks that say they are the table's, by their number.
    pub(super) good: BTreeMap<u64, BlockAddr>,
    /// Blocks with a wrong checksum: number, address, bytes.
    pub(super) damaged: Vec<(u64, BlockAddr, Vec<u8>)>,
}

impl Repairer<'_> {
    /// Reads the blocks of a table.
    pub(super) fn table_blocks(&mut self, inode: &Inode, kind: BlockKind, shape: TableShape) -> TableBlocks {
        let map = self.read_map(inode);
        let fpb = self.g.frags_per_block();
        let (mut good, mut damaged) = (BTreeMap::new(), Vec::new());
        let mut useless = 0u64;
        // The extents of a table lie scattered: some are read ahead.
        let mut coming = map.extents.iter().map(|e| e.start / fpb);
        coming.by_ref().take(EXTENTS_AHEAD).for_each(|addr| self.vol.want(addr));
        'blocks: for e in &map.extents {
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
                    // The map is useless, so nothing behind it is read.
                    break 'blocks;
                }
            }
        }
        TableBlocks { map, good, damaged }
    }

    /// Writes the maps of a table and the table's inode. `blocks`: the table's blocks, which stay where they are.
    pub(super) fn finish_table(
        &mut self,
        ino: Ino,
        shape: TableShape,
        counts: &BTreeMap<u64, u16>,
        blocks: &mut BTreeMap<u64, BlockAddr>,
        old: Map,
    ) -> Result<()> {
        let place = inode_place(ino);
        let mut maps: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        // An existing block needs its map block even if nothing in it is in use.
        for (data, count) in counts.iter().filter(|(d, c)| **c > 0 || blocks.contains_key(&shape.block_of_data(**d))) {
            let (lblock, offset) = shape.map_of_data(*data);
            let b = maps.entry(lblock).or_insert_with(|| vec![0; self.g.block_size()]);
            b[offset..offset + 2].copy_from_slice(&encode_count(*count));
        }
        let stale: Vec<u64> =
            blocks.keys().copied().filter(|l| shape.data_of_block(*l).is_none() && !maps.contains_key(l)).collect();
        for lblock in stale {
            if let Some(addr) = blocks.remove(&lblock) {
                self.space.release_block(addr);
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
                        return Err(no_space("a map of a table"));
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
        let extents = join(blocks.iter().map(|(l, b)| self.block_extent(*l, *b)).collect());
        let Some(mut inode) = self.load(ino) else { return Ok(()) };
        let before = inode.clone();
        inode.xattr_block = 0;
        if old.wrong.is_some() || join(old.extents.clone()) != extents {
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
}
