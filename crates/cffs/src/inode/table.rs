//! Slotted tables: the inode locator table and the external inode table (UNIX C-FFS 1998, sections 2.1.5 and 2.1.6).
//!
//! See [`mod@crate::format::table`] for the shape. How full each block is is kept in memory once the maps were read; the
//! tables shrink by giving back blocks without used slots.

use crate::cache::{AddrMap, BufRef, Cache};
use crate::error::{Error, Result};
use crate::extent;
use crate::format::dirblock::BlockEdit;
use crate::format::table::{self, TABLE_LBLOCK, TABLE_USED, TableShape};
use crate::format::{
    BlockAddr, BlockId, BlockKind, Corrupt, Extent, Geometry, Ino, Inode, get_u64, put_u16, put_u32, put_u64,
};
use crate::journal::Txn;
use crate::space::{Run, Space};
use parking_lot::Mutex;

/// A table of fixed-size records.
pub struct SlotTable {
    kind: BlockKind,
    shape: TableShape,
    /// Blocks that are added together: a chunk.
    chunk: u64,
    state: Mutex<TableState>,
}

struct TableState {
    inode: Inode,
    changed: bool,
    /// Slots in use of each table block; `None` until the maps were read.
    counts: Option<Vec<u16>>,
    /// No block before this one has a free slot.
    first_room: usize,
    /// Where the blocks of the file are.
    places: AddrMap<u64, BlockAddr>,
    /// Where the search for a free slot goes on in the block that was last allocated from.
    next_slot: (usize, u64),
}

/// A slot given out by [`SlotTable::alloc`].
#[derive(Clone)]
pub struct SlotRef {
    /// Number of the record.
    pub index: u64,
    /// The block it stands in.
    pub buf: BufRef,
    /// Byte offset in the block.
    pub offset: usize,
}

impl SlotTable {
    /// The table whose system inode is given.
    pub fn new(g: &Geometry, kind: BlockKind, record: usize, chunk_records: u64, inode: Inode) -> SlotTable {
        let shape = TableShape::new(g.block_size(), record);
        let state = TableState {
            inode,
            changed: false,
            counts: None,
            first_room: 0,
            places: AddrMap::default(),
            next_slot: (usize::MAX, 0),
        };
        SlotTable { kind, shape, chunk: chunk_records.div_ceil(shape.per_block).max(1), state: Mutex::new(state) }
    }

    /// Arithmetic of the table.
    pub fn shape(&self) -> &TableShape {
        &self.shape
    }

    /// Most bytes that [`SlotTable::alloc`] or [`SlotTable::free`] log.
    pub fn log_bytes(&self, g: &Geometry, space: &Space) -> usize {
        let blocks = self.chunk as usize + 2;
        let tree = extent::log_bytes_for_insert(g, space, &self.state.lock().inode);
        // Two inserts into the map of extents at most, and a level that came meanwhile.
        2 * tree + 6 * (g.block_size() + 64) + blocks * (200 + space.log_bytes(g.frags_per_block())) + 512
    }

    /// Most blocks that [`SlotTable::alloc`] takes.
    pub fn blocks_for_growth(&self) -> u64 {
        self.chunk + 3
    }

    fn id(&self, st: &TableState, kind: BlockKind, addr: BlockAddr) -> BlockId {
        BlockId { kind, addr, owner: st.inode.ino }
    }

    /// Device block of a block of the file, if it exists.
    fn place(&self, cache: &Cache, st: &mut TableState, lblock: u64) -> Result<Option<BlockAddr>> {
        if let Some(b) = st.places.get(&lblock) {
            return Ok(Some(*b));
        }
        let g = cache.geometry();
        let logical = g.frag_of_block(lblock);
        match extent::lookup(cache, &st.inode, logical)? {
            extent::Mapping::Hole { .. } => Ok(None),
            extent::Mapping::Data(e) => {
                let frag = e.start + (logical - e.logical);
                if !frag.is_multiple_of(g.frags_per_block()) {
                    return Err(Corrupt(format!("table {}: block {lblock} is not aligned", st.inode.ino)).into());
                }
                let block = g.block_of_frag(frag);
                st.places.insert(lblock, block);
                Ok(Some(block))
            }
        }
    }

    /// Reads how full the blocks are.
    fn load<'a>(&self, cache: &Cache, st: &'a mut TableState) -> Result<&'a mut Vec<u16>> {
        if st.counts.is_none() {
            let blocks = st.inode.size >> cache.geometry().block_shift;
            let mut counts = Vec::new();
            let mut map = 0;
            while map < blocks {
                let end = (map + 1 + self.shape.per_map).min(blocks);
                let in_map = (end - map - 1) as usize;
                match self.place(cache, st, map)? {
                    None => counts.resize(counts.len() + in_map, 0),
                    Some(addr) => {
                        let buf = cache.read_meta(self.id(st, BlockKind::TableMap, addr))?;
                        let b = buf.read();
                        let first = counts.len() as u64;
                        for i in 0..in_map as u64 {
                            let (_, at) = self.shape.map_of_data(first + i);
                            counts.push(table::map_count(&b, at));
                        }
                    }
                }
                map = end;
            }
            st.counts = Some(counts);
        }
        Ok(st.counts.get_or_insert_default())
    }

    /// Adds a block to the file.
    fn add_block(
        &self,
        txn: &Txn<'_>,
        space: &Space,
        st: &mut TableState,
        lblock: u64,
        kind: BlockKind,
        addr: BlockAddr,
    ) -> Result<BufRef> {
        let g = *txn.cache().geometry();
        let run = Run { start: g.frag_of_block(addr), len: g.frags_per_block() };
        let e = Extent { logical: g.frag_of_block(lblock), start: run.start, len: run.len, unwritten: false };
        extent::insert(txn, space, &mut st.inode, e)?;
        space.commit_alloc(txn, run)?;
        let buf = txn.init_block(self.id(st, kind, addr));
        txn.write(&buf, TABLE_LBLOCK, &lblock.to_le_bytes());
        st.places.insert(lblock, addr);
        st.inode.size = st.inode.size.max((lblock + 1) << g.block_shift);
        st.changed = true;
        Ok(buf)
    }

    /// Counts a slot of table block `data` in (or out).
    fn count(&self, txn: &Txn<'_>, st: &mut TableState, data: usize, buf: &BufRef, up: bool) -> Result<u16> {
        let cache = txn.cache();
        let (map, at) = self.shape.map_of_data(data as u64);
        let addr = self.place(cache, st, map)?;
        let addr = addr.ok_or_else(|| Corrupt(format!("table {}: map block {map} is missing", st.inode.ino)))?;
        let map_buf = cache.read_meta(self.id(st, BlockKind::TableMap, addr))?;
        let counts = self.load(cache, st)?;
        let old = counts[data];
        let new = if up { old + 1 } else { old.saturating_sub(1) };
        counts[data] = new;
        put_u16(txn.edit(&map_buf).range(at, 2), 0, new);
        put_u32(txn.edit(buf).range(TABLE_USED, 4), 0, u32::from(new));
        Ok(new)
    }

    /// First free slot of a block by its contents.
    fn free_slot(&self, st: &TableState, data: usize, buf: &BufRef) -> Option<u64> {
        let b = buf.read();
        let from = if st.next_slot.0 == data { st.next_slot.1 } else { 0 };
        let free = |slot: &u64| {
            let at = self.shape.place(data as u64 * self.shape.per_block + slot).1;
            // The numbers below the first user inode are not given out.
            let reserved = self.kind == BlockKind::Locator && data == 0 && *slot < crate::format::FIRST_USER_INO;
            !reserved && b[at..at + self.shape.record].iter().all(|x| *x == 0)
        };
        (from..self.shape.per_block).chain(0..from).find(|s| free(s))
    }

    /// Takes a free slot, near `goal` where a new block is needed and, with chunks, in a chunk of the same allocation
    /// group where there is one. The record is the caller's to write in the same
    /// transaction.
    pub fn alloc(&self, txn: &Txn<'_>, space: &Space, goal: BlockAddr) -> Result<SlotRef> {
        let cache = txn.cache();
        let g = *cache.geometry();
        let mut guard = self.state.lock();
        let st = &mut *guard;
        let full = self.shape.per_block as u16;
        let low = if self.kind == BlockKind::Locator { crate::format::FIRST_USER_INO as u16 } else { 0 };
        let room = |data: usize, count: u16| count + if data == 0 { low } else { 0 } < full;
        let mut from = st.first_room;
        loop {
            let counts = self.load(cache, st)?;
            let len = counts.len();
            let Some(data) = (from..len).find(|d| room(*d, counts[*d])) else { break };
            from = data + 1;
            let lblock = self.shape.block_of_data(data as u64);
            let addr = self.place(cache, st, lblock)?;
            if self.chunk > 1 && addr.is_none_or(|a| g.ag_of(a) != g.ag_of(goal)) {
                continue; // not near the directory
            }
            if self.chunk == 1 {
                st.first_room = data;
            }
            let buf = match addr {
                Some(a) => cache.read_meta(self.id(st, self.kind, a))?,
                None => {
                    let addr = self.take_blocks(txn, space, goal, 1)?;
                    self.add_map_for(txn, space, st, data, goal)?;
                    self.add_block(txn, space, st, lblock, self.kind, addr)?
                }
            };
            let Some(slot) = self.free_slot(st, data, &buf) else {
                tracing::warn!("table {}: block {data} is fuller than its map says", st.inode.ino);
                self.load(cache, st)?[data] = full;
                continue;
            };
            return self.give(txn, st, data, slot, buf);
        }
        self.grow(txn, space, st, goal)
    }

    fn give(&self, txn: &Txn<'_>, st: &mut TableState, data: usize, slot: u64, buf: BufRef) -> Result<SlotRef> {
        self.count(txn, st, data, &buf, true)?;
        st.next_slot = (data, slot + 1);
        let index = data as u64 * self.shape.per_block + slot;
        let offset = self.shape.place(index).1;
        // A slot of zeros is free to the next who looks: it must not look so until its owner has written the record.
        put_u64(txn.edit(&buf).range(offset, 8), 0, u64::MAX);
        Ok(SlotRef { index, offset, buf })
    }

    fn take_blocks(&self, txn: &Txn<'_>, space: &Space, goal: BlockAddr, blocks: u64) -> Result<BlockAddr> {
        let run = space.alloc_meta_near(&txn.purse(), goal, blocks, blocks)?.ok_or(Error::NoSpace)?;
        Ok(run.start / (run.len / blocks))
    }

    fn add_map_for(
        &self,
        txn: &Txn<'_>,
        space: &Space,
        st: &mut TableState,
        data: usize,
        goal: BlockAddr,
    ) -> Result<()> {
        let (map, _) = self.shape.map_of_data(data as u64);
        if self.place(txn.cache(), st, map)?.is_none() {
            let addr = self.take_blocks(txn, space, goal, 1)?;
            self.add_block(txn, space, st, map, BlockKind::TableMap, addr)?;
        }
        Ok(())
    }

    /// Adds a chunk at the end and takes its first slot.
    fn grow(&self, txn: &Txn<'_>, space: &Space, st: &mut TableState, goal: BlockAddr) -> Result<SlotRef> {
        let cache = txn.cache();
        let data = self.load(cache, st)?.len();
        let last = st.places.get(&self.shape.block_of_data((data as u64).saturating_sub(1))).copied();
        let goal = if self.chunk == 1 { last.map_or(goal, |a| a + 1) } else { goal };
        // A chunk stays within what one map describes, so that one map block at most is added with it.
        let left = self.shape.per_map - data as u64 % self.shape.per_map;
        let blocks = self.chunk.min(left);
        let chunk = self.take_blocks(txn, space, goal, blocks)?;
        self.add_map_for(txn, space, st, data, goal)?;
        let mut first = None;
        for i in 0..blocks as usize {
            let lblock = self.shape.block_of_data((data + i) as u64);
            let buf = self.add_block(txn, space, st, lblock, self.kind, chunk + i as u64)?;
            self.load(cache, st)?.push(0);
            first.get_or_insert(buf);
        }
        let buf = first.ok_or(Error::NoSpace)?;
        let slot = if self.kind == BlockKind::Locator && data == 0 { crate::format::FIRST_USER_INO } else { 0 };
        self.give(txn, st, data, slot, buf)
    }

    /// The block and offset of a record; `None` if its block does not exist.
    pub fn find(&self, cache: &Cache, index: u64) -> Result<Option<(BufRef, usize)>> {
        let (lblock, offset) = self.shape.place(index);
        let mut st = self.state.lock();
        if lblock >= st.inode.size >> cache.geometry().block_shift {
            return Ok(None);
        }
        let Some(addr) = self.place(cache, &mut st, lblock)? else { return Ok(None) };
        let id = self.id(&st, self.kind, addr);
        drop(st);
        Ok(Some((cache.read_meta(id)?, offset)))
    }

    /// Number of the record at a place on the device.
    pub fn index_at(&self, buf: &BufRef, offset: usize) -> Option<u64> {
        let lblock = get_u64(&buf.read(), TABLE_LBLOCK);
        let slot = offset.checked_sub(crate::format::META_HEADER_SIZE)? / self.shape.record;
        Some(self.shape.data_of_block(lblock)? * self.shape.per_block + slot as u64)
    }

    /// Gives a slot back: its record becomes zeros, and a block (a chunk of them one by one) without used slots is freed.
    pub fn free(&self, txn: &Txn<'_>, space: &Space, index: u64) -> Result<()> {
        let cache = txn.cache();
        let g = *cache.geometry();
        let mut guard = self.state.lock();
        let st = &mut *guard;
        let (lblock, offset) = self.shape.place(index);
        let data = (index / self.shape.per_block) as usize;
        let missing = || Corrupt(format!("table: record {index} is not there"));
        let addr = self.place(cache, st, lblock)?.ok_or_else(missing)?;
        let buf = cache.read_meta(self.id(st, self.kind, addr))?;
        self.load(cache, st)?;
        txn.edit(&buf).range(offset, self.shape.record).fill(0);
        let left = self.count(txn, st, data, &buf, false)?;
        st.first_room = st.first_room.min(data);
        if st.next_slot.0 == data {
            st.next_slot.1 = st.next_slot.1.min(index % self.shape.per_block);
        }
        if left == 0 {
            self.remove_block(txn, space, st, lblock)?;
            // What follows the last used slot goes, with the blocks of a chunk that were never used.
            let mut end = self.load(cache, st)?.len();
            while end > 0 && self.load(cache, st)?[end - 1] == 0 {
                end -= 1;
                self.load(cache, st)?.pop();
                self.remove_block(txn, space, st, self.shape.block_of_data(end as u64))?;
            }
            let end = end as u64;
            let keep = if end == 0 { 0 } else { self.shape.block_of_data(end - 1) + 1 };
            // Maps behind the last table block go with it.
            let mut map = keep.div_ceil(self.shape.per_map + 1) * (self.shape.per_map + 1);
            while map < st.inode.size >> g.block_shift {
                if self.place(cache, st, map)?.is_some() {
                    self.remove_block(txn, space, st, map)?;
                }
                map += self.shape.per_map + 1;
            }
            st.inode.size = keep << g.block_shift;
            st.first_room = st.first_room.min(end as usize);
        }
        Ok(())
    }

    fn remove_block(&self, txn: &Txn<'_>, space: &Space, st: &mut TableState, lblock: u64) -> Result<()> {
        let g = *txn.cache().geometry();
        let Some(addr) = self.place(txn.cache(), st, lblock)? else { return Ok(()) };
        txn.free_block(addr);
        let logical = g.frag_of_block(lblock);
        let mut freed = Vec::new();
        extent::remove(txn, space, &mut st.inode, logical..logical + g.frags_per_block(), usize::MAX, &mut freed)?;
        for run in freed {
            space.free(txn, run)?;
        }
        st.places.remove(&lblock);
        st.changed = true;
        Ok(())
    }

    /// Writes the table's own inode if it changed. Called at the end of each transaction that used the table.
    pub fn store_inode(&self, txn: &Txn<'_>) -> Result<()> {
        let mut st = self.state.lock();
        if std::mem::take(&mut st.changed) {
            store_system_inode(txn, &st.inode)?;
        }
        Ok(())
    }

    /// A copy of the table's inode.
    pub fn inode(&self) -> Inode {
        self.state.lock().inode.clone()
    }
}

/// Reads an inode of the system area.
pub fn load_system_inode(cache: &Cache, ino: Ino) -> Result<Inode> {
    let (addr, offset) = cache.geometry().system_inode(ino);
    let buf = cache.read_meta(BlockId { kind: BlockKind::SystemInodes, addr, owner: 0 })?;
    let inode = Inode::decode(&buf.read()[offset..])?;
    if inode.ino != ino {
        return Err(Corrupt(format!("system inode {ino}: inode {} is in its place", inode.ino)).into());
    }
    Ok(inode)
}

/// Writes an inode of the system area.
pub fn store_system_inode(txn: &Txn<'_>, inode: &Inode) -> Result<()> {
    let (addr, offset) = txn.cache().geometry().system_inode(inode.ino);
    let buf = txn.cache().read_meta(BlockId { kind: BlockKind::SystemInodes, addr, owner: 0 })?;
    super::write_inode(txn, &buf, offset, inode, false);
    Ok(())
}

/// The 16 bytes of a locator entry, changed only where they differ.
pub fn write_location(txn: &Txn<'_>, buf: &BufRef, offset: usize, to: &table::Location) {
    let new = to.encode();
    let mut e = txn.edit(buf);
    for (i, word) in new.chunks_exact(8).enumerate() {
        let at = offset + i * 8;
        if e.bytes()[at..at + 8] != *word {
            put_u64(e.range(at, 8), 0, get_u64(&new, i * 8));
        }
    }
}
