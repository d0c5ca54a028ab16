//! Moving metadata other than blocks of directories: nodes of extent trees, attribute blocks, and blocks of the inode tables.

use super::MoveCtx;
use super::stretch::Item;
use crate::error::{Error, Result};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::inode::{INLINE_MAX, INODE_CORE_SIZE};
use crate::format::{
    BlockAddr, BlockId, BlockKind, Corrupt, EXTERNAL_INO, FragAddr, Geometry, Ino, Inode, LOCATOR_INO,
    META_HEADER_SIZE, Run,
};
use crate::inode::InodeLocation;
use crate::inode::table::SlotTable;
use crate::node::{self, Locked, Node};
use crate::reservation::Reservation;
use crate::{dir, extent, xattr};
use std::ops::Range;
use std::sync::Arc;

/// Log bytes of an inode.
const INODE_BYTES: usize = INODE_CORE_SIZE + INLINE_MAX + 64;
/// Log bytes of an entry of the locator table.
const LOCATOR_BYTES: usize = 96;

/// A block of metadata, by what leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetaBlock {
    /// A node of the extent tree of an inode, on the path to a logical fragment. Of a table too, by the number of its inode.
    Node { ino: Ino, key: u64, addr: BlockAddr },
    /// The attribute blocks of an inode, which move together.
    Attributes { ino: Ino },
    /// A block of a table, by its number in the table.
    Table { ino: Ino, lblock: u64, addr: BlockAddr },
    /// The blocks that a directory has allocated ahead. Nothing is in them, so they are given back.
    Ahead { ino: Ino, blocks: u64 },
}

impl MetaBlock {
    /// How many blocks that are.
    pub fn blocks(&self) -> u64 {
        if let MetaBlock::Ahead { blocks, .. } = self { *blocks } else { 1 }
    }

    /// A block of a table as something that is moved with others.
    pub fn as_item(&self, g: &Geometry) -> Option<Item> {
        if let MetaBlock::Table { ino, lblock, addr } = *self { Some(Item::block(g, ino, lblock, addr)) } else { None }
    }
}

/// Calls `f` with the metadata of an inode that is outside of it, and where it is.
pub(super) fn of_inode(cx: &MoveCtx<'_>, ino: Ino, f: &mut dyn FnMut(MetaBlock, &[BlockAddr])) -> Result<()> {
    let node = cx.inodes.get(cx.file.cache, ino)?;
    let st = node.state.read();
    if st.freed {
        return Ok(());
    }
    extent::for_each_node(cx.file.cache, &st.inode, |key, addr| f(MetaBlock::Node { ino, key, addr }, &[addr]))?;
    if st.inode.xattr_block != 0 {
        let chain = xattr::read_chain(cx.file.cache, &st.inode)?;
        let blocks: Vec<BlockAddr> = chain.blocks.iter().map(|b| b.addr()).collect();
        f(MetaBlock::Attributes { ino }, &blocks);
    }
    if let Some(state) = &st.dir {
        let blocks = dir::blocks_ahead(&cx.dir, &st.inode, state)?;
        if (1..=dir::AHEAD_BOUND).contains(&blocks.len()) {
            f(MetaBlock::Ahead { ino, blocks: blocks.len() as u64 }, &blocks);
        }
    }
    Ok(())
}

/// Calls `f` with the blocks of the inode tables, and the nodes of their extent trees.
pub(super) fn of_tables(cx: &MoveCtx<'_>, f: &mut dyn FnMut(MetaBlock, &[BlockAddr])) -> Result<()> {
    let cache = cx.file.cache;
    for (ino, table) in [(LOCATOR_INO, &cx.inodes.locator), (EXTERNAL_INO, &cx.inodes.external)] {
        for (lblock, addr) in table.blocks(cache)? {
            f(MetaBlock::Table { ino, lblock, addr }, &[addr]);
        }
        extent::for_each_node(cache, &table.inode(), |key, addr| f(MetaBlock::Node { ino, key, addr }, &[addr]))?;
    }
    Ok(())
}

/// Moves a block out of some parts of the device. Returns how many fragments have moved: none if there is no place, or if it has
/// changed.
///
/// # Errors
/// Those of the device and the journal.
pub(super) fn relocate(cx: &MoveCtx<'_>, block: MetaBlock, avoid: &[Range<FragAddr>]) -> Result<u64> {
    let reservation = cx.file.space.reservation(None, false);
    // An extent tree may be cut, and then needs a node.
    match reservation.reserve_blocks(2, false) {
        Err(Error::NoSpace) => return Ok(0),
        outcome => outcome?,
    }
    reservation.start_use();
    let outcome = match block {
        MetaBlock::Attributes { ino } => relocate_attributes(cx, ino, avoid, &reservation),
        MetaBlock::Ahead { ino, blocks } => give_back_ahead(cx, ino, blocks as usize, &reservation),
        _ => {
            let Some(to) = cx.file.space.alloc_meta_gap(&reservation, avoid)? else { return Ok(0) };
            let outcome = relocate_to(cx, block, cx.file.cache.geometry().block_of_frag(to.start), &reservation);
            if !matches!(outcome, Ok(true)) {
                cx.file.space.cancel_meta(&reservation, to);
            }
            outcome.map(|moved| if moved { to.len } else { 0 })
        }
    };
    match outcome {
        // Gone, damaged, or without room for a node: it stays where it is.
        Err(Error::Stale | Error::NoSpace | Error::Corrupt(_)) => Ok(0),
        outcome => outcome,
    }
}

/// Whether this is the inode of a table.
pub(super) fn is_table(ino: Ino) -> bool {
    matches!(ino, LOCATOR_INO | EXTERNAL_INO)
}

/// Moves a block of a table that is an item. False if it has changed.
pub(super) fn relocate_item(cx: &MoveCtx<'_>, item: &Item, to: BlockAddr, reservation: &Reservation) -> Result<bool> {
    let g = cx.file.cache.geometry();
    let Some(from) = item.runs.first() else { return Ok(false) };
    let lblock = g.block_of_frag(item.logical.start);
    let block = MetaBlock::Table { ino: item.ino, lblock, addr: g.block_of_frag(from.start) };
    relocate_to(cx, block, to, reservation)
}

fn relocate_to(cx: &MoveCtx<'_>, block: MetaBlock, to: BlockAddr, reservation: &Reservation) -> Result<bool> {
    match block {
        MetaBlock::Node { ino, key, addr } => match table(cx, ino) {
            Some(table) => relocate_table_node(cx, table, key, [addr, to], reservation),
            None => relocate_node(cx, ino, key, [addr, to], reservation),
        },
        MetaBlock::Table { ino: LOCATOR_INO, lblock, addr } => {
            relocate_in_table(cx, &cx.inodes.locator, lblock, [addr, to], &[], reservation)
        }
        MetaBlock::Table { lblock, addr, .. } => relocate_external(cx, lblock, [addr, to], reservation),
        MetaBlock::Attributes { .. } | MetaBlock::Ahead { .. } => Ok(false),
    }
}

fn table<'a>(cx: &MoveCtx<'a>, ino: Ino) -> Option<&'a SlotTable> {
    match ino {
        LOCATOR_INO => Some(&cx.inodes.locator),
        EXTERNAL_INO => Some(&cx.inodes.external),
        _ => None,
    }
}

fn relocate_node(
    cx: &MoveCtx<'_>,
    ino: Ino,
    key: u64,
    [from, to]: [BlockAddr; 2],
    reservation: &Reservation,
) -> Result<bool> {
    let node = cx.inodes.get(cx.file.cache, ino)?;
    let bytes = extent::log_bytes_for_relocate_node(cx.file.cache.geometry(), cx.file.space) + INODE_BYTES;
    let txn = cx.file.journal.begin(bytes)?;
    txn.draw_on(reservation);
    let mut st = node.state.write();
    if st.freed {
        return Ok(false);
    }
    // A damaged bitmap is found only when the old place is freed.
    txn.begin_critical();
    if !extent::relocate_node(&txn, cx.file.space, &mut st.inode, key, from, to)? {
        txn.end_critical();
        return Ok(false);
    }
    node::store(&txn, &mut st)?;
    txn.end_critical();
    Ok(true)
}

fn relocate_attributes(
    cx: &MoveCtx<'_>,
    ino: Ino,
    avoid: &[Range<FragAddr>],
    reservation: &Reservation,
) -> Result<u64> {
    let (cache, space) = (cx.file.cache, cx.file.space);
    let g = *cache.geometry();
    let node = cx.inodes.get(cache, ino)?;
    let first = |chain: &xattr::Chain| chain.blocks.first().map(|b| b.addr());
    let before = xattr::read_chain(cache, &node.state.read().inode)?;
    let blocks = before.blocks.len();
    reservation.reserve_blocks(blocks as u64, false)?;
    let mut runs = Vec::with_capacity(blocks);
    for _ in 0..blocks {
        match space.alloc_meta_gap(reservation, avoid) {
            Ok(Some(run)) => runs.push(run),
            outcome => {
                runs.into_iter().for_each(|run| space.cancel_meta(reservation, run));
                return outcome.map(|_| 0);
            }
        }
    }
    let fresh = xattr::Fresh::of(space, reservation, runs)?;
    let bytes = xattr::log_bytes(&g, space, 0, blocks) + xattr::log_bytes(&g, space, blocks, 0);
    let txn = cx.file.journal.begin(bytes + INODE_BYTES + space.log_bytes_for_init())?;
    txn.draw_on(reservation);
    let mut st = node.state.write();
    if st.freed {
        return Ok(0);
    }
    let chain = xattr::read_chain(cache, &st.inode)?;
    if blocks == 0 || chain.blocks.len() != blocks || first(&chain) != first(&before) {
        return Ok(0);
    }
    if xattr::blocks_for(&g, &chain.list) != blocks {
        return Err(Corrupt(format!("inode {ino}: its attributes take fewer blocks than they have")).into());
    }
    txn.begin_critical();
    xattr::relocate_chain(&txn, space, &mut st.inode, &chain, fresh)?;
    node::store(&txn, &mut st)?;
    txn.end_critical();
    Ok(g.frag_of_block(blocks as u64))
}

fn give_back_ahead(cx: &MoveCtx<'_>, ino: Ino, most: usize, reservation: &Reservation) -> Result<u64> {
    let (cache, space) = (cx.file.cache, cx.file.space);
    let g = *cache.geometry();
    let node = cx.inodes.get(cache, ino)?;
    let bytes = dir::log_bytes_for_remove(&g) + most * space.log_bytes(g.frags_per_block()) + INODE_BYTES;
    let txn = cx.file.journal.begin(bytes)?;
    txn.draw_on(reservation);
    let st = &mut *node.state.write();
    let Some(state) = st.dir.as_ref().filter(|_| !st.freed && !st.orphan) else { return Ok(0) };
    let blocks = dir::blocks_ahead(&cx.dir, &st.inode, state)?;
    if blocks.len() > most {
        return Ok(0);
    }
    // What the bitmap needs is read before, because after the mapping nothing may fail.
    for block in &blocks {
        space.prepare_free(Run { start: g.frag_of_block(*block), len: g.frags_per_block() })?;
    }
    txn.begin_critical();
    let given_back = dir::give_back_ahead(&cx.dir, &txn, space, &mut st.inode, state)?;
    node::store(&txn, st)?;
    txn.end_critical();
    Ok(if given_back { g.frag_of_block(blocks.len() as u64) } else { 0 })
}

/// Inodes of a block of the external table: byte offset and number of each.
fn inodes_in(bytes: &[u8]) -> Vec<(usize, Ino)> {
    let slots = bytes[META_HEADER_SIZE..].chunks_exact(INODE_SLOT_SIZE);
    let used = slots.enumerate().filter(|(_, slot)| slot.iter().any(|b| *b != 0));
    let decoded = used.map(|(n, slot)| {
        // What is no inode has no node either, so its block stays.
        let ino = Inode::decode(slot).map_or(0, |inode| inode.ino);
        (META_HEADER_SIZE + n * INODE_SLOT_SIZE, ino)
    });
    decoded.collect()
}

/// Numbers of the inodes in the external table.
pub(super) fn external_inodes(cx: &MoveCtx<'_>) -> Result<Vec<Ino>> {
    let table = &cx.inodes.external;
    let mut all = Vec::new();
    for (lblock, addr) in table.blocks(cx.file.cache)? {
        if table.shape().data_of_block(lblock).is_some() {
            let id = BlockId { kind: BlockKind::ExternalInodes, addr, owner: EXTERNAL_INO };
            // What cannot be read cannot be moved.
            if let Ok(buf) = cx.file.cache.read_meta(id) {
                all.extend(inodes_in(&buf.read()).into_iter().map(|(_, ino)| ino));
            }
        }
    }
    Ok(all)
}

fn relocate_external(cx: &MoveCtx<'_>, lblock: u64, places: [BlockAddr; 2], reservation: &Reservation) -> Result<bool> {
    let cache = cx.file.cache;
    if cx.inodes.external.shape().data_of_block(lblock).is_none() {
        return relocate_in_table(cx, &cx.inodes.external, lblock, places, &[], reservation);
    }
    let id = BlockId { kind: BlockKind::ExternalInodes, addr: places[0], owner: EXTERNAL_INO };
    let inodes = inodes_in(&cache.read_meta(id)?.read());
    // In memory they stay where their nodes say, and whoever looks for one by number finds its node.
    let nodes = inodes.iter().map(|(_, ino)| cx.inodes.get(cache, *ino)).collect::<Result<Vec<Arc<Node>>>>()?;
    let found: Vec<(usize, &Arc<Node>)> = inodes.iter().zip(&nodes).map(|((at, _), node)| (*at, node)).collect();
    relocate_in_table(cx, &cx.inodes.external, lblock, places, &found, reservation)
}

/// Moves a block of a table, and notes where the inodes in it are then.
fn relocate_in_table(
    cx: &MoveCtx<'_>,
    table: &SlotTable,
    lblock: u64,
    [from, to]: [BlockAddr; 2],
    inodes: &[(usize, &Arc<Node>)],
    reservation: &Reservation,
) -> Result<bool> {
    let (cache, space) = (cx.file.cache, cx.file.space);
    let _entries =
        inodes.iter().map(|(_, node)| cx.inodes.locator.find(cache, node.ino)).collect::<Result<Vec<_>>>()?;
    let bytes = table.log_bytes_for_relocate(cache.geometry(), space) + inodes.len() * LOCATOR_BYTES + 2 * INODE_BYTES;
    let txn = cx.file.journal.begin_alone(bytes)?;
    txn.draw_on(reservation);
    let all: Vec<&Arc<Node>> = inodes.iter().map(|(_, node)| *node).collect();
    let mut locked = Locked::new(&all);
    if table.inode().ino == EXTERNAL_INO && !is_as_read(cx, &mut locked, lblock, from, inodes)? {
        return Ok(false);
    }
    // A damaged bitmap is found only when the old place is freed.
    txn.begin_critical();
    if !table.relocate_block(&txn, space, lblock, from, to)? {
        txn.end_critical();
        return Ok(false);
    }
    for (offset, node) in inodes {
        let location = InodeLocation::External { block: to, offset: *offset };
        locked.get(node.ino)?.location = location;
        cx.inodes.relocate(&txn, node.ino, location)?;
    }
    table.store_inode(&txn)?;
    txn.end_critical();
    Ok(true)
}

/// Whether a block of the external table has these inodes and no others, and none of them is an orphan, which is known by its place.
fn is_as_read(
    cx: &MoveCtx<'_>,
    locked: &mut Locked<'_>,
    lblock: u64,
    from: BlockAddr,
    inodes: &[(usize, &Arc<Node>)],
) -> Result<bool> {
    if cx.inodes.external.shape().data_of_block(lblock).is_none() {
        return Ok(true);
    }
    let id = BlockId { kind: BlockKind::ExternalInodes, addr: from, owner: EXTERNAL_INO };
    let now = inodes_in(&cx.file.cache.read_meta(id)?.read());
    if !now.iter().copied().eq(inodes.iter().map(|(at, node)| (*at, node.ino))) {
        return Ok(false);
    }
    for (offset, node) in inodes {
        let st = locked.get(node.ino)?;
        let here = InodeLocation::External { block: from, offset: *offset };
        if st.freed || st.orphan || st.location != here {
            return Ok(false);
        }
    }
    Ok(true)
}

fn relocate_table_node(
    cx: &MoveCtx<'_>,
    table: &SlotTable,
    key: u64,
    [from, to]: [BlockAddr; 2],
    reservation: &Reservation,
) -> Result<bool> {
    let bytes = extent::log_bytes_for_relocate_node(cx.file.cache.geometry(), cx.file.space) + INODE_BYTES;
    let txn = cx.file.journal.begin(bytes)?;
    txn.draw_on(reservation);
    txn.begin_critical();
    let moved = table.relocate_node(&txn, cx.file.space, key, from, to)?;
    if moved {
        table.store_inode(&txn)?;
    }
    txn.end_critical();
    Ok(moved)
}
