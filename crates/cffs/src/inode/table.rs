//! Slotted tables: the inode locator table and the external inode table (UNIX C-FFS 1998, sections 2.1.5 and 2.1.6).
//!
//! See [`mod@crate::format::table`] for the shape. Which blocks have room is kept in memory once the maps were read. The
//! tables shrink by giving back blocks without used slots, and fill the holes that this leaves before they grow.

mod relocate;

use super::free_slots::FreeSlots;
use crate::addr_map::AddrMap;
use crate::cache::{BufRef, Cache};
use crate::error::{Error, Result};
use crate::extent;
use crate::format::Run;
use crate::format::dirblock::BlockEdit;
use crate::format::table::{self, TABLE_LBLOCK, TABLE_USED, TableShape};
use crate::format::{
    BlockAddr, BlockId, BlockKind, Corrupt, Extent, Geometry, Ino, Inode, InodeFormat, get_u64, put_u16, put_u32,
    put_u64,
};
use crate::journal::Txn;
use crate::space::Space;
use parking_lot::Mutex;

/// Places of blocks that are remembered.
const PLACES_MAX: usize = 1 << 18;

/// A table of fixed-size records.
pub struct SlotTable {
    kind: BlockKind,
    shape: TableShape,
    /// Blocks that are added together: a chunk.
    chunk: u64,
    state: Mutex<TableState>,
}

/// What [`SlotTable::grow`] came to.
enum Grown {
    /// A new table block.
    Block(u64),
    /// None: blocks of this neighbourhood have room.
    RoomNear(u64),
}

struct TableState {
    inode: Inode,
    changed: bool,
    /// Where there are free slots; `None` until the maps were read.
    free_slots: Option<FreeSlots>,
    /// Where the blocks of the file are.
    places: AddrMap<u64, BlockAddr>,
    /// Where the search for a free slot goes on in the block that was last allocated from.
    next_slot: (u64, u64),
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
            free_slots: None,
            places: AddrMap::default(),
            next_slot: (u64::MAX, 0),
        };
        SlotTable { kind, shape, chunk: chunk_records.div_ceil(shape.per_block).max(1), state: Mutex::new(state) }
    }

    /// Arithmetic of the table.
    pub fn shape(&self) -> &TableShape {
        &self.shape
    }

    /// Calls `f` with the inode of the table as it is now.
    pub(crate) fn with_inode<T>(&self, f: impl FnOnce(&Inode) -> T) -> T {
        f(&self.state.lock().inode)
    }

    /// Most bytes that [`SlotTable::alloc`] or [`SlotTable::free`] log.
    pub fn log_bytes(&self, g: &Geometry, space: &Space) -> usize {
        // A chunk comes with its map, or goes with its neighbours, what was left at the end of the table, and maps.
        let blocks = 3 * self.chunk as usize + 8;
        let tree = extent::log_bytes_for_insert(g, space, &self.state.lock().inode);
        // A few changes of the map of extents, and a level that came meanwhile.
        4 * tree + 6 * (g.block_size() + 64) + blocks * (200 + space.log_bytes(g.frags_per_block())) + 512
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
                if st.places.len() >= PLACES_MAX {
                    st.places.clear();
                }
                st.places.insert(lblock, block);
                Ok(Some(block))
            }
        }
    }

    /// Number of table blocks up to the table's end.
    fn end(&self, cache: &Cache, st: &TableState) -> u64 {
        self.data_from(st.inode.size >> cache.geometry().block_shift)
    }

    /// The first table block at or behind a block of the file.
    fn data_from(&self, lblock: u64) -> u64 {
        self.shape.data_of_block(lblock).unwrap_or_else(|| lblock / (self.shape.per_map + 1) * self.shape.per_map)
    }

    /// What table blocks count as near each other: with chunks, those of one allocation group.
    fn near(&self, g: &Geometry, block: BlockAddr) -> u64 {
        if self.chunk > 1 { g.ag_of(block) } else { 0 }
    }

    /// Whether a block with so many slots in use has a free one.
    fn has_room(&self, data: u64, count: u16) -> bool {
        // The numbers below the first user inode are not given out.
        let low = if self.kind == BlockKind::Locator && data == 0 { crate::format::FIRST_USER_INO } else { 0 };
        u64::from(count) + low < self.shape.per_block
    }

    /// Reads how full the blocks are, as far as that is not known.
    fn load<'a>(&self, cache: &Cache, st: &'a mut TableState) -> Result<&'a mut FreeSlots> {
        if st.free_slots.is_none() {
            st.free_slots = Some(self.scan(cache, st)?);
        }
        Ok(st.free_slots.get_or_insert_default())
    }

    fn scan(&self, cache: &Cache, st: &mut TableState) -> Result<FreeSlots> {
        let g = cache.geometry();
        let blocks = st.inode.size >> g.block_shift;
        if blocks > g.total_blocks {
            // Holes are filled before a table grows, so it never has more blocks than fit the device.
            let what = format!("table {}: {blocks} blocks on a device of {}", st.inode.ino, g.total_blocks);
            return Err(Corrupt(what).into());
        }
        // The map of extents is needed whole, and what lies around its nodes is not.
        let _nodes = match &st.inode.format {
            InodeFormat::Tree { children, .. } => {
                let nodes = children.iter().map(|c| c.block).filter(|block| *block < g.total_blocks);
                cache.prefetch_batch(nodes.map(|block| block..block + 1))
            }
            _ => Vec::new(),
        };
        let mut rooms = FreeSlots::default();
        let mut map: Option<(u64, BufRef)> = None;
        let mut at = 0;
        while at < blocks {
            let e = match extent::lookup(cache, &st.inode, g.frag_of_block(at))? {
                extent::Mapping::Data(e) => e,
                extent::Mapping::Hole { until } => {
                    let until = until.div_ceil(g.frags_per_block()).min(blocks);
                    rooms.add_hole(self.data_from(at)..self.data_from(until));
                    at = until;
                    continue;
                }
            };
            let end = e.end().div_ceil(g.frags_per_block()).min(blocks);
            while at < end {
                let addr = self.place(cache, st, at)?;
                let addr = addr.ok_or_else(|| Corrupt(format!("table {}: block {at} is missing", st.inode.ino)))?;
                match self.shape.data_of_block(at) {
                    None => {
                        let id = self.id(st, BlockKind::TableMap, addr);
                        // Of a short table what lies around its map is needed next.
                        let buf = if blocks <= g.group_blocks() {
                            cache.read_meta(id)?
                        } else {
                            cache.read_meta_alone(id)?
                        };
                        map = Some((at, buf));
                    }
                    Some(data) => {
                        let (number, offset) = self.shape.map_of_data(data);
                        let Some((_, buf)) = map.as_ref().filter(|(n, _)| *n == number) else {
                            return Err(
                                Corrupt(format!("table {}: map block {number} is missing", st.inode.ino)).into()
                            );
                        };
                        if self.has_room(data, table::map_count(&buf.read(), offset)) {
                            rooms.add(self.near(g, addr), data);
                        }
                    }
                }
                at += 1;
            }
        }
        Ok(rooms)
    }

    /// The map that counts a table block.
    fn map(&self, cache: &Cache, st: &mut TableState, data: u64) -> Result<(BufRef, usize)> {
        let (map, at) = self.shape.map_of_data(data);
        let addr = self.place(cache, st, map)?;
        let addr = addr.ok_or_else(|| Corrupt(format!("table {}: map block {map} is missing", st.inode.ino)))?;
        Ok((cache.read_meta(self.id(st, BlockKind::TableMap, addr))?, at))
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
        space.prepare_commit(run)?;
        extent::insert(txn, space, &mut st.inode, e)?;
        space.commit_alloc(txn, run)?;
        let buf = txn.init_block(self.id(st, kind, addr));
        txn.write(&buf, TABLE_LBLOCK, &lblock.to_le_bytes());
        st.places.insert(lblock, addr);
        st.inode.size = st.inode.size.max((lblock + 1) << g.block_shift);
        st.changed = true;
        Ok(buf)
    }

    /// Counts a slot of table block `data`, which stands at `addr`, in (or out).
    fn count(&self, txn: &Txn<'_>, st: &mut TableState, data: u64, buf: &BufRef, up: bool) -> Result<u16> {
        let cache = txn.cache();
        let (map, at) = self.map(cache, st, data)?;
        let old = table::map_count(&map.read(), at);
        let new = if up { old.saturating_add(1) } else { old.saturating_sub(1) };
        put_u16(txn.edit(&map).range(at, 2), 0, new);
        put_u32(txn.edit(buf).range(TABLE_USED, 4), 0, u32::from(new));
        let near = self.near(cache.geometry(), buf.addr());
        match (self.has_room(data, old), self.has_room(data, new)) {
            (true, false) => self.load(cache, st)?.remove(near, data),
            (false, true) => self.load(cache, st)?.add(near, data),
            _ => {}
        }
        Ok(new)
    }

    /// First free slot of a block by its contents.
    fn free_slot(&self, st: &TableState, data: u64, buf: &BufRef) -> Option<u64> {
        let b = buf.read();
        let from = if st.next_slot.0 == data { st.next_slot.1 } else { 0 };
        let free = |slot: &u64| {
            let at = self.shape.place(data * self.shape.per_block + slot).1;
            // The numbers below the first user inode are not given out.
            let reserved = self.kind == BlockKind::Locator && data == 0 && *slot < crate::format::FIRST_USER_INO;
            !reserved && b[at..at + self.shape.record].iter().all(|x| *x == 0)
        };
        (from..self.shape.per_block).chain(0..from).find(|s| free(s))
    }

    /// Reads what [`SlotTable::alloc`] looks at first, if the table is no longer than one map tells of: to find out where there is room in a longer
    /// one takes more than a few requests, for which others would wait.
    pub fn load_ahead(&self, cache: &Cache) -> Result<()> {
        let mut guard = self.state.lock();
        let st = &mut *guard;
        if st.inode.size >> cache.geometry().block_shift > self.shape.per_map + 1 {
            return Ok(());
        }
        let Some(data) = self.load(cache, st)?.anywhere() else { return Ok(()) };
        let lblock = self.shape.block_of_data(data);
        let Some(addr) = self.place(cache, st, lblock)? else { return Ok(()) };
        self.read_to_give(cache, st, addr).map(drop)
    }

    /// A table block to take slots from. One of the locator has those of hundreds of files, so the next one is not about to be needed.
    fn read_to_give(&self, cache: &Cache, st: &TableState, addr: BlockAddr) -> Result<BufRef> {
        let id = self.id(st, self.kind, addr);
        if self.kind == BlockKind::Locator { cache.read_meta_alone(id) } else { cache.read_meta(id) }
    }

    /// Takes a free slot; with chunks, in one of the allocation group of `goal` where there is one, else in a new one
    /// near it, and anywhere if there is no space for that. The record is the caller's to write in the same transaction.
    /// After an error everything is as it was, but that the table may have grown.
    pub fn alloc(&self, txn: &Txn<'_>, space: &Space, goal: BlockAddr) -> Result<SlotRef> {
        let mut guard = self.state.lock();
        let st = &mut *guard;
        let near = self.near(txn.cache().geometry(), goal);
        if let Some(slot) = self.slot(txn, st, |rooms| rooms.near(near))? {
            return Ok(slot);
        }
        if self.load(txn.cache(), st)?.partial {
            st.free_slots = None;
            if let Some(slot) = self.slot(txn, st, |rooms| rooms.near(near))? {
                return Ok(slot);
            }
        }
        let mut slots_elsewhere = true;
        loop {
            match self.grow(txn, space, st, goal, slots_elsewhere) {
                Ok(Grown::Block(data)) => return self.slot(txn, st, |_| Some(data))?.ok_or(Error::NoSpace),
                Ok(Grown::RoomNear(other)) => {
                    if let Some(slot) = self.slot(txn, st, |rooms| rooms.near(other))? {
                        return Ok(slot);
                    }
                    slots_elsewhere = false;
                }
                Err(Error::NoSpace) => return self.slot(txn, st, FreeSlots::anywhere)?.ok_or(Error::NoSpace),
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes a slot of a block that `choose` chooses, until it chooses none.
    fn slot(
        &self,
        txn: &Txn<'_>,
        st: &mut TableState,
        choose: impl Fn(&FreeSlots) -> Option<u64>,
    ) -> Result<Option<SlotRef>> {
        let cache = txn.cache();
        while let Some(data) = choose(self.load(cache, st)?) {
            let lblock = self.shape.block_of_data(data);
            let addr = self.place(cache, st, lblock)?;
            let addr = addr.ok_or_else(|| Corrupt(format!("table {}: block {lblock} is missing", st.inode.ino)))?;
            let buf = self.read_to_give(cache, st, addr)?;
            match self.free_slot(st, data, &buf) {
                Some(slot) => return self.give(txn, st, data, slot, buf).map(Some),
                None => {
                    tracing::warn!("table {}: block {data} is fuller than its map says", st.inode.ino);
                    let near = self.near(cache.geometry(), addr);
                    self.load(cache, st)?.remove(near, data);
                }
            }
        }
        Ok(None)
    }

    fn give(&self, txn: &Txn<'_>, st: &mut TableState, data: u64, slot: u64, buf: BufRef) -> Result<SlotRef> {
        self.count(txn, st, data, &buf, true)?;
        st.next_slot = (data, slot + 1);
        let index = data * self.shape.per_block + slot;
        let offset = self.shape.place(index).1;
        // A slot of zeros is free to the next who looks: it must not look so until its owner has written the record.
        put_u64(txn.edit(&buf).range(offset, 8), 0, u64::MAX);
        Ok(SlotRef { index, offset, buf })
    }

    /// Adds a chunk, or what of it there is space for in one piece, in a hole or at the end; returns its first block. Nothing
    /// is added if the space that is found lies elsewhere, with `slots_elsewhere`, and there is room there: where an
    /// allocation group is full each of its new inodes would get a chunk.
    fn grow(
        &self,
        txn: &Txn<'_>,
        space: &Space,
        st: &mut TableState,
        goal: BlockAddr,
        slots_elsewhere: bool,
    ) -> Result<Grown> {
        let cache = txn.cache();
        let g = *cache.geometry();
        let end = self.end(cache, st);
        let (data, most) = match self.load(cache, st)?.hole() {
            Some(hole) => (hole.start, hole.end - hole.start),
            None => (end, u64::MAX),
        };
        let wanted = self.near(&g, goal);
        let before = data.checked_sub(1).and_then(|d| st.places.get(&self.shape.block_of_data(d)).copied());
        let goal = if self.chunk == 1 { before.map_or(goal, |a| a + 1) } else { goal };
        // A chunk stays within what one map describes, so that one map block at most is added with it.
        let left = self.shape.per_map - data % self.shape.per_map;
        let reservation = txn.reservation();
        let want = self.chunk.min(left).min(most);
        let run = space.alloc_meta_near(&reservation, goal, want, 1)?.ok_or(Error::NoSpace)?;
        let (chunk, blocks) = (g.block_of_frag(run.start), g.block_of_frag(run.len));
        let release_from = |from: u64| {
            let start = g.frag_of_block(chunk + from);
            if start < run.end() {
                space.cancel_meta(&reservation, Run { start, len: run.end() - start });
            }
        };
        let found = self.near(&g, chunk);
        if slots_elsewhere && found != wanted && self.load(cache, st)?.near(found).is_some() {
            release_from(0);
            return Ok(Grown::RoomNear(found));
        }
        self.add_map_for(txn, space, st, data, goal).inspect_err(|_| release_from(0))?;
        for i in 0..blocks {
            let lblock = self.shape.block_of_data(data + i);
            if let Err(e) = self.add_block(txn, space, st, lblock, self.kind, chunk + i) {
                release_from(i);
                if i == 0 {
                    return Err(e);
                }
                break;
            }
            let near = self.near(&g, chunk + i);
            let rooms = self.load(cache, st)?;
            rooms.fill(data + i, 1);
            rooms.add(near, data + i);
        }
        Ok(Grown::Block(data))
    }

    fn add_map_for(&self, txn: &Txn<'_>, space: &Space, st: &mut TableState, data: u64, goal: BlockAddr) -> Result<()> {
        let (map, _) = self.shape.map_of_data(data);
        if self.place(txn.cache(), st, map)?.is_none() {
            let reservation = txn.reservation();
            let run = space.alloc_meta_near(&reservation, goal, 1, 1)?.ok_or(Error::NoSpace)?;
            let addr = txn.cache().geometry().block_of_frag(run.start);
            self.add_block(txn, space, st, map, BlockKind::TableMap, addr)
                .inspect_err(|_| space.cancel_meta(&reservation, run))?;
        }
        Ok(())
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
        match cache.read_meta(id) {
            // What was read is old if the block was moved meanwhile.
            Ok(buf) if self.state.lock().places.get(&lblock) == Some(&addr) => Ok(Some((buf, offset))),
            // The block may have been freed meanwhile, because nobody needs a reference to look for a number.
            _ => self.find_locked(cache, lblock, offset),
        }
    }

    /// As [`SlotTable::find`], while no block comes or goes.
    fn find_locked(&self, cache: &Cache, lblock: u64, offset: usize) -> Result<Option<(BufRef, usize)>> {
        let mut st = self.state.lock();
        let Some(addr) = self.place(cache, &mut st, lblock)? else { return Ok(None) };
        Ok(Some((cache.read_meta(self.id(&st, self.kind, addr))?, offset)))
    }

    /// Number of the record at a place on the device.
    pub fn index_at(&self, buf: &BufRef, offset: usize) -> Option<u64> {
        let lblock = get_u64(&buf.read(), TABLE_LBLOCK);
        let slot = offset.checked_sub(crate::format::META_HEADER_SIZE)? / self.shape.record;
        Some(self.shape.data_of_block(lblock)? * self.shape.per_block + slot as u64)
    }

    /// Gives a slot back: its record becomes zeros, and blocks without used slots are freed. On a full device a block in
    /// the middle of an extent may stay, since cutting the extent in two can need a block itself: it is used again, or goes
    /// with its neighbours.
    pub fn free(&self, txn: &Txn<'_>, space: &Space, index: u64) -> Result<()> {
        let cache = txn.cache();
        let mut guard = self.state.lock();
        let st = &mut *guard;
        let (lblock, offset) = self.shape.place(index);
        let data = index / self.shape.per_block;
        let missing = || Corrupt(format!("table: record {index} is not there"));
        let addr = self.place(cache, st, lblock)?.ok_or_else(missing)?;
        let buf = cache.read_meta(self.id(st, self.kind, addr))?;
        self.load(cache, st)?;
        txn.edit(&buf).range(offset, self.shape.record).fill(0);
        let left = self.count(txn, st, data, &buf, false)?;
        if st.next_slot.0 == data {
            st.next_slot.1 = st.next_slot.1.min(index % self.shape.per_block);
        }
        drop(buf);
        if left == 0 {
            self.remove_around(txn, space, st, data)?;
            self.trim(txn, space, st)?;
        }
        Ok(())
    }

    /// What [`Table::free`] of a slot needs to read. While it is held, freeing does not fail.
    pub fn prepare_free(&self, cache: &Cache, index: u64) -> Result<Vec<BufRef>> {
        let st = &mut *self.state.lock();
        let (lblock, _) = self.shape.place(index);
        let missing = || Corrupt(format!("table: record {index} is not there"));
        let addr = self.place(cache, st, lblock)?.ok_or_else(missing)?;
        let block = cache.read_meta(self.id(st, self.kind, addr))?;
        self.load(cache, st)?;
        let (map, _) = self.map(cache, st, index / self.shape.per_block)?;
        let (own, _) = cache.geometry().system_inode(st.inode.ino);
        let own = cache.read_meta(BlockId { kind: BlockKind::SystemInodes, addr: own, owner: 0 })?;
        Ok(vec![block, map, own])
    }

    /// Whether a table block exists and is known to have no slot in use.
    fn is_empty(&self, cache: &Cache, st: &mut TableState, data: u64) -> bool {
        if !matches!(self.place(cache, st, self.shape.block_of_data(data)), Ok(Some(_))) {
            return false;
        }
        self.map(cache, st, data).is_ok_and(|(map, at)| table::map_count(&map.read(), at) == 0)
    }

    /// Frees a table block without used slots, with empty neighbours: the rest of its chunk.
    fn remove_around(&self, txn: &Txn<'_>, space: &Space, st: &mut TableState, data: u64) -> Result<()> {
        let cache = txn.cache();
        let first = data / self.shape.per_map * self.shape.per_map;
        let end = (first + self.shape.per_map).min(self.end(cache, st));
        let most = self.chunk.max(2);
        let (mut from, mut to) = (data, data + 1);
        while to - from < most && from > first && self.is_empty(cache, st, from - 1) {
            from -= 1;
        }
        while to - from < most && to < end && self.is_empty(cache, st, to) {
            to += 1;
        }
        let lblocks = self.shape.block_of_data(from)..self.shape.block_of_data(to - 1) + 1;
        if !self.remove_blocks(txn, space, st, lblocks)? {
            return Ok(());
        }
        self.load(cache, st)?.add_hole(from..to);
        // The map goes with the last block that it describes.
        let all_holes = self.load(cache, st)?.hole_before(end).is_some_and(|start| start <= first);
        let (map, _) = self.shape.map_of_data(data);
        if all_holes {
            self.remove_blocks(txn, space, st, map..map + 1)?;
        }
        Ok(())
    }

    /// Takes back what lies behind the last used slot, at most a chunk and some, and sets the size.
    fn trim(&self, txn: &Txn<'_>, space: &Space, st: &mut TableState) -> Result<()> {
        let cache = txn.cache();
        let g = *cache.geometry();
        let mut end = self.end(cache, st);
        for _ in 0..self.chunk + 2 {
            if let Some(start) = self.load(cache, st)?.hole_before(end) {
                end = start;
            }
            if end == 0 || !self.is_empty(cache, st, end - 1) {
                break;
            }
            let lblock = self.shape.block_of_data(end - 1);
            if !self.remove_blocks(txn, space, st, lblock..lblock + 1)? {
                break;
            }
            end -= 1;
            self.load(cache, st)?.add_hole(end..end + 1);
        }
        if let Some(start) = self.load(cache, st)?.hole_before(end) {
            end = start;
        }
        let keep = if end == 0 { 0 } else { self.shape.block_of_data(end - 1) + 1 };
        // Maps behind the last table block go with it.
        let mut map = keep.div_ceil(self.shape.per_map + 1) * (self.shape.per_map + 1);
        let mut keep_map = keep;
        while map < st.inode.size >> g.block_shift {
            let logical = g.frag_of_block(map);
            let Ok(mapping) = extent::lookup(cache, &st.inode, logical) else {
                keep_map = st.inode.size >> g.block_shift;
                break;
            };
            if let extent::Mapping::Hole { until } = mapping {
                let next = (until / g.frags_per_block()).max(map + 1);
                map = next.div_ceil(self.shape.per_map + 1) * (self.shape.per_map + 1);
                continue;
            }
            if !self.remove_blocks(txn, space, st, map..map + 1)? {
                keep_map = map + 1;
            }
            map += self.shape.per_map + 1;
        }
        let size = keep.max(keep_map) << g.block_shift;
        if size != st.inode.size {
            st.inode.size = size;
            st.changed = true;
            let end = self.end(cache, st);
            self.load(cache, st)?.cut(end);
        }
        Ok(())
    }

    /// Frees blocks of the file, without gaps between them. False if the map of extents had no space to be cut, or if something
    /// cannot be read: then nothing has changed.
    fn remove_blocks(
        &self,
        txn: &Txn<'_>,
        space: &Space,
        st: &mut TableState,
        lblocks: std::ops::Range<u64>,
    ) -> Result<bool> {
        let cache = txn.cache();
        let g = *cache.geometry();
        let logical = g.frag_of_block(lblocks.start)..g.frag_of_block(lblocks.end);
        let mut places = Vec::new();
        let mut prepare = || {
            for lblock in lblocks.clone() {
                if let Some(addr) = self.place(cache, st, lblock)? {
                    space.prepare_free(Run { start: g.frag_of_block(addr), len: g.frags_per_block() })?;
                    places.push((lblock, addr));
                }
            }
            extent::nodes_of(cache, &st.inode, logical.clone())
        };
        let keep = |e: &Error| {
            tracing::debug!("blocks {lblocks:?} of a table stay, empty: {e}");
            Ok(false)
        };
        let _held = match prepare() {
            Ok(held) => held,
            Err(e) => return keep(&e),
        };
        let mut freed = Vec::new();
        match extent::remove(txn, space, &mut st.inode, logical, usize::MAX, &mut freed) {
            Ok(_) => {}
            Err(e) if freed.is_empty() => return keep(&e),
            Err(e) => return Err(e),
        }
        for (lblock, addr) in places {
            txn.free_block(addr);
            st.places.remove(&lblock);
            if let Some(data) = self.shape.data_of_block(lblock) {
                let near = self.near(&g, addr);
                self.load(cache, st)?.remove(near, data);
            }
        }
        for run in freed {
            space.free(txn, run)?;
        }
        st.changed = true;
        Ok(true)
    }

    /// Writes the table's own inode if it changed. Called at the end of each transaction that used the table.
    pub fn store_inode(&self, txn: &Txn<'_>) -> Result<()> {
        let mut st = self.state.lock();
        if std::mem::take(&mut st.changed) {
            store_system_inode(txn, &st.inode)?;
            if st.inode.ino == crate::format::EXTERNAL_INO {
                // metadata=sync: nothing but the table's map leads to an inode that a name only numbers.
                txn.write_ordered(txn.cache().geometry().system_inode(st.inode.ino).0);
            }
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
    let inode = super::image::read_inode(cache.geometry(), &buf.read()[offset..])?;
    if inode.ino != ino {
        return Err(Corrupt(format!("system inode {ino}: inode {} is in its place", inode.ino)).into());
    }
    Ok(inode)
}

/// Writes an inode of the system area.
pub fn store_system_inode(txn: &Txn<'_>, inode: &Inode) -> Result<()> {
    let (addr, offset) = txn.cache().geometry().system_inode(inode.ino);
    let buf = txn.cache().read_meta(BlockId { kind: BlockKind::SystemInodes, addr, owner: 0 })?;
    super::image::write_inode(txn, &buf, offset, inode, false);
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
