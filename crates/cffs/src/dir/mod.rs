//! Directories: names, the blocks of entries that hold them, and the hash index of large ones.
//!
//! The file of a directory is a sparse array of entry blocks ([`crate::format::dirblock`]); a directory that needs more
//! than [`UNINDEXED_BLOCKS`] of them also has an index ([`crate::format::dirindex`]) whose buckets stand at logical block
//! [`DIR_BLOCKS_MAX`] and after. Small directories are searched through a map of their names in memory, which takes up one
//! block after the other, with those near it, until the name is found; large ones read one bucket and one block of entries for a name.
//!
//! # What is valid on the device
//!
//! * The size is the end of the last entry block. Every block allocated below it is an entry block (it may be empty
//!   where it could not be given back); blocks not allocated are holes, left by blocks that lost their last entry.
//! * Bucket `n` is allocated for every `n` below `index_buckets`.
//! * Blocks allocated behind the size, and behind the last bucket, are reserved for growth: they belong to the
//!   directory and count in `frags`, but nothing was written there and nobody reads them. Large directories reserve an
//!   eighth of their blocks, at most 256, so that they consist of few extents.
//! * An index with an overflowed bucket does not know all names; lookups that miss in it search all blocks.
//! * Removing the last name or orphan of a directory leaves it with size 0, no index and no blocks. (It may get an empty
//!   block from a creation that failed later, and keep blocks that could not be given back; see [`release`].)
//!
//! # Who calls
//!
//! The caller holds the lock of the directory, exclusively for changes, and writes the inode back afterwards.
//! Everything that may fail for want of space happens in [`prepare_insert`], before there is anything to undo: it may
//! have added a block or split a bucket, so the inode is to be written back even if nothing is inserted in the end.

mod blocks;
mod context;
mod index;
mod list;
mod relocate;
#[cfg(test)]
mod tests;

pub use context::{DirCtx, UNINDEXED_BLOCKS};
pub use list::{has_orphans, read};
pub use relocate::{
    AHEAD_BOUND, EmbeddedInode, block_to_move, blocks_ahead, blocks_of, give_back_ahead, log_bytes_for_relocate,
    relocate,
};

use crate::cache::BufRef;
use crate::error::{Error, Result};
use crate::format::dirblock::{self, BlockEdit, DIR_BLOCKS_MAX, ENTRY_HEADER, Entry, EntryKind, NewEntry, entry_len};
use crate::format::log::RECORD_HEADER;
use crate::format::{
    BlockAddr, BlockId, BlockKind, FileType, Geometry, Ino, Inode, META_HEADER_SIZE, NAME_MAX, dirindex,
};
use crate::journal::Txn;
use crate::node::{Cursor, DirState, NameMap, damaged};
use crate::placement::DirAllocator;
use crate::space::Space;
use blocks::{Change, Growth};

/// A name that was found. It stays good while the directory is locked, also across insertion of other names.
#[derive(Clone)]
pub struct Found {
    /// Block within the directory.
    pub lblock: u64,
    /// Its address.
    pub block: BlockAddr,
    /// Byte offset of the entry.
    pub offset: usize,
    /// Embedded or external.
    pub kind: EntryKind,
    /// Inode number.
    pub ino: Ino,
    /// Type of the file.
    pub file_type: FileType,
    hash: u32,
    buf: BufRef,
}

impl Found {
    /// The block of the entry.
    pub fn buf(&self) -> &BufRef {
        &self.buf
    }
}

/// A place for a name, reserved by [`prepare_insert`].
pub struct Slot {
    /// Block within the directory.
    pub lblock: u64,
    /// Its address.
    pub block: BlockAddr,
    /// Byte offset of the entry to be.
    pub offset: usize,
    /// The block was added to the directory for this name.
    pub new_block: bool,
    hash: u32,
    need: usize,
    buf: BufRef,
    /// Held so that the change of the index cannot fail any more.
    bucket: Option<BufRef>,
}

/// Bytes of log that [`prepare_insert`] and [`insert`] use at most (first use of an allocation group left out).
pub fn log_bytes_for_insert(g: &Geometry) -> usize {
    let bs = g.block_size();
    // Either the index is built (eight bytes for each name in eight blocks of the smallest entries, and some buckets),
    // or a bucket is split. The map of extents changes in two places: for entries and for buckets.
    let build = UNINDEXED_BLOCKS as usize * bs / 24 * dirindex::PAIR_SIZE + 4096;
    build.max(2 * bs + 512) + entry_len(NAME_MAX, 2048) + 512 + 2 * log_bytes_of_map(g)
}

/// Bytes of log that [`remove`], [`orphan`] or [`remove_orphan`] use at most.
pub fn log_bytes_for_remove(g: &Geometry) -> usize {
    // A bucket merged; blocks given back (a revocation for each) at the end of the entries and of the index.
    g.block_size() + 512 + 2 * (blocks::FREED_BOUND * RECORD_HEADER + log_bytes_of_map(g))
}

/// A change of the extent map (nodes on a path of the tree, and new ones), and of the free-space bitmap. Nodes of large
/// blocks are far from full: a directory has few extents for its size.
fn log_bytes_of_map(g: &Geometry) -> usize {
    (4 * g.block_size()).min(32 << 10) + 2048
}

/// Whether an entry with a name and an inode of this size fits into a block at all.
pub fn fits(g: &Geometry, name_len: usize, inode_room: usize) -> bool {
    entry_len(name_len, inode_room) <= g.block_size() - META_HEADER_SIZE
}

/// Whether a directory has no names.
pub fn is_empty(inode: &Inode) -> bool {
    inode.aux == 0
}

fn found(lblock: u64, buf: &BufRef, e: &Entry<'_>) -> Option<Found> {
    Some(Found {
        lblock,
        block: buf.addr(),
        offset: e.offset,
        kind: e.kind,
        ino: e.ino,
        file_type: e.file_type?,
        hash: e.hash,
        buf: buf.clone(),
    })
}

/// Looks for a name in one block.
fn find_in(state: &DirState, lblock: u64, buf: &BufRef, hash: u32, name: &[u8]) -> Option<Found> {
    let b = buf.read();
    let hit = dirblock::find(&b, hash, name).and_then(|e| found(lblock, buf, &e));
    let free = dirblock::free_bytes(&b);
    if free >= b.len() / 4 {
        state.saw_room(lblock, free);
    }
    hit
}

/// Finds a name.
///
/// A damaged block is an error only for names that might be in it.
pub fn lookup(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, name: &[u8]) -> Result<Option<Found>> {
    let blocks = blocks::size_blocks(cx, inode);
    if blocks == 0 {
        return Ok(None);
    }
    let hash = cx.hash(name);
    if inode.index_buckets > 0 {
        lookup_indexed(cx, inode, state, hash, name)
    } else if blocks <= UNINDEXED_BLOCKS {
        lookup_small(cx, inode, state, hash, name)
    } else {
        search_all(cx, inode, state, hash, name)
    }
}

fn lookup_indexed(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, hash: u32, name: &[u8]) -> Result<Option<Found>> {
    let bucket = index::bucket(cx, inode, state, hash)?;
    let (candidates, overflowed) = index::candidates(&bucket, hash);
    let mut error = None;
    for lblock in candidates {
        match blocks::read(cx, inode, state, lblock) {
            Ok(buf) => {
                if let Some(f) = find_in(state, lblock, &buf, hash, name) {
                    return Ok(Some(f));
                }
            }
            Err(e) => error = Some(e),
        }
    }
    match error {
        Some(e) => Err(e),
        None if overflowed => search_all(cx, inode, state, hash, name),
        None => Ok(None),
    }
}

/// Looks among the names that are known, and then at one block more. Blocks of a directory that grew may lie far apart, on a log
/// above all, so none of those is read that comes after the name.
fn lookup_small(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, hash: u32, name: &[u8]) -> Result<Option<Found>> {
    let end = blocks::size_blocks(cx, inode);
    loop {
        let known_to = {
            let names = state.names.read();
            let hit = names.as_ref().map(|names| find_known(cx, inode, state, names.find(hash), name)).transpose()?;
            if let Some(found) = hit.flatten() {
                return Ok(Some(found));
            }
            names.as_ref().map_or(0, |names| names.known_to)
        };
        if known_to >= end {
            return Ok(None);
        }
        if !know_names(cx, inode, state, known_to + 1) {
            return search_all(cx, inode, state, hash, name);
        }
    }
}

/// A name at one of some remembered places.
fn find_known(
    cx: &DirCtx<'_>,
    inode: &Inode,
    state: &DirState,
    places: impl Iterator<Item = (u64, usize)>,
    name: &[u8],
) -> Result<Option<Found>> {
    for (lblock, offset) in places {
        let buf = blocks::read(cx, inode, state, lblock)?;
        let b = buf.read();
        if let Some(e) = entry_known(&b, offset).filter(|e| e.is_name() && e.name == name) {
            return Ok(found(lblock, &buf, &e));
        }
    }
    Ok(None)
}

/// The entry at a remembered place. A device that answers differently the second time must not make us read out of
/// bounds.
fn entry_known(block: &[u8], offset: usize) -> Option<Entry<'_>> {
    if offset + ENTRY_HEADER + NAME_MAX <= block.len() {
        Some(dirblock::known_entry(block, offset))
    } else {
        dirblock::entry_at(block, offset)
    }
}

/// Reads the names of a small directory that are in blocks before `until`, unless they are known, and those in the next ones as far as
/// each is near the one before: an arm would come back for them. False where a block that cannot be read makes that impossible.
fn know_names(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, until: u64) -> bool {
    let mut known = state.names.write();
    let names = known.get_or_insert_default();
    let end = blocks::size_blocks(cx, inode);
    if names.known_to == 0 {
        // Where all blocks are, now that the map of extents is at hand: it may be gone when the next one is wanted. What is wrong
        // with it is said when that block is.
        let _ = blocks::for_each(cx, inode, state, 0..end, &mut |_, _| Ok(true));
    }
    let mut hints = state.room_hints.lock();
    let mut last = None;
    while names.known_to < end {
        let lblock = names.known_to;
        let is_wanted = lblock < until;
        let Ok(addr) = blocks::resolve(cx, inode, state, lblock) else { return !is_wanted };
        if !is_wanted && !last.zip(addr).is_some_and(|(last, addr)| cx.cache.is_near(last, addr)) {
            break;
        }
        if let Some(addr) = addr {
            let Ok(buf) = blocks::read_at(cx, inode, lblock, addr) else { return !is_wanted };
            let b = buf.read();
            for e in dirblock::entries(&b).filter(|e| e.is_name()) {
                names.insert(e.hash, lblock, e.offset);
            }
            if !hints.seeded {
                hints.note(lblock, dirblock::free_bytes(&b));
            }
            last = Some(addr);
        }
        names.known_to += 1;
    }
    hints.seeded |= names.known_to >= end;
    true
}

/// Searches every block.
fn search_all(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, hash: u32, name: &[u8]) -> Result<Option<Found>> {
    let (mut hit, mut error) = (None, None);
    let end = blocks::size_blocks(cx, inode);
    blocks::for_each(cx, inode, state, 0..end, &mut |lblock, addr| {
        match blocks::read_at(cx, inode, lblock, addr) {
            Ok(buf) => hit = find_in(state, lblock, &buf, hash, name),
            Err(e) => error = Some(e),
        }
        Ok(hit.is_none())
    })?;
    match (hit, error) {
        (None, Some(e)) => Err(e),
        (hit, _) => Ok(hit),
    }
}

/// Finds or makes room for a name of `name` with `inode_room` bytes for an inode.
///
/// Whatever can fail fails here; the directory is valid afterwards in any case, but `inode` may have changed also when
/// this fails, and must be written back in the same transaction. Nothing else may happen to the directory before the slot's [`insert`]: whoever replaces a name inserts the new one first, then removes the old one.
#[expect(clippy::too_many_arguments, reason = "the layers below are passed one by one")]
pub fn prepare_insert(
    cx: &DirCtx<'_>,
    txn: &Txn<'_>,
    space: &Space,
    allocator: &dyn DirAllocator,
    inode: &mut Inode,
    state: &DirState,
    name: &[u8],
    inode_room: usize,
) -> Result<Slot> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    if let Err(what) = dirblock::check_name(name) {
        return Error::invalid(what);
    }
    if !fits(cx.cache.geometry(), name.len(), inode_room) {
        return Err(Error::NameTooLong);
    }
    let need = entry_len(name.len(), inode_room);
    let hash = cx.hash(name);
    let grow = Growth { change: Change { cx, txn, space, state }, allocator };
    let (lblock, buf, offset, new_block) = match find_room(cx, inode, state, need)? {
        Some((lblock, buf, offset)) => (lblock, buf, offset, false),
        None => {
            let (lblock, buf) = add_block(&grow, inode)?;
            (lblock, buf, META_HEADER_SIZE, true)
        }
    };
    let bucket = if inode.index_buckets > 0 {
        index::grow(&grow, inode);
        Some(index::bucket(cx, inode, state, hash)?)
    } else {
        None
    };
    Ok(Slot { lblock, block: buf.addr(), offset, new_block, hash, need, buf, bucket })
}

/// A block with a free entry of `need` bytes, and the entry's offset, among those that are known.
fn find_room(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, need: usize) -> Result<Option<(u64, BufRef, usize)>> {
    let end = blocks::size_blocks(cx, inode);
    if end == 0 {
        return Ok(None);
    }
    let mut hints = state.room_hints.lock();
    if !hints.seeded {
        drop(hints);
        if inode.index_buckets == 0 && end <= UNINDEXED_BLOCKS {
            know_names(cx, inode, state, end);
        }
        hints = state.room_hints.lock();
        if !hints.seeded {
            hints.seeded = true;
            hints.note(end - 1, cx.cache.geometry().block_size());
        }
    }
    if let Some(c) = hints.cursor {
        match blocks::read(cx, inode, state, c.lblock) {
            Ok(buf) if c.room >= need => return Ok(Some((c.lblock, buf, c.offset))),
            Ok(buf) => {
                // Another place in the same block may do.
                hints.cursor = None;
                hints.note(c.lblock, blocks::usage(&buf).1);
            }
            Err(_) => hints.cursor = None,
        }
    }
    while let Some(lblock) = hints.candidate(need) {
        // A block that cannot be read is of no use here; who looks for its names hears of it.
        let Ok(buf) = blocks::read(cx, inode, state, lblock) else {
            hints.forget(lblock);
            continue;
        };
        match free_entry(&buf, need) {
            Ok((offset, room)) => {
                hints.set_cursor(Cursor { lblock, offset, room });
                return Ok(Some((lblock, buf, offset)));
            }
            Err(largest) => hints.note(lblock, largest),
        }
    }
    Ok(None)
}

/// Offset and length of a free entry of at least `need` bytes, or the length of the largest.
fn free_entry(buf: &BufRef, need: usize) -> std::result::Result<(usize, usize), usize> {
    let b = buf.read();
    let mut largest = 0;
    for e in dirblock::entries(&b).filter(|e| e.kind == EntryKind::Free) {
        if e.len >= need {
            return Ok((e.offset, e.len));
        }
        largest = largest.max(e.len);
    }
    Err(largest)
}

/// Adds an empty block to the directory, in a hole or at its end.
fn add_block(grow: &Growth<'_>, inode: &mut Inode) -> Result<(u64, BufRef)> {
    let Change { cx, txn, state, .. } = grow.change;
    let end = blocks::size_blocks(cx, inode);
    let lblock = match find_hole(cx, inode, state, end)? {
        Some(hole) => hole,
        None if end >= DIR_BLOCKS_MAX => return Err(Error::NoSpace),
        None => end,
    };
    if inode.index_buckets == 0 && end == UNINDEXED_BLOCKS && lblock == end {
        index::build(grow, inode)?;
    }
    let want = if lblock < end { 1 } else { 1 + blocks::ahead(end) };
    let addr = blocks::claim(grow, inode, lblock, want)?;
    let buf = txn.init_block(BlockId { kind: BlockKind::Dir, addr, owner: inode.ino });
    dirblock::format_empty(&mut txn.edit(&buf), lblock);
    if lblock >= end {
        blocks::set_size_blocks(cx, inode, lblock + 1);
    }
    let mut hints = state.room_hints.lock();
    hints.seeded = true;
    let room = cx.cache.geometry().block_size() - META_HEADER_SIZE;
    hints.set_cursor(Cursor { lblock, offset: META_HEADER_SIZE, room });
    drop(hints);
    if inode.index_buckets == 0 {
        let mut names = state.names.write();
        if end == 0 {
            *names = Some(NameMap::default());
        }
        // It is empty, so all of its names are known.
        if let Some(names) = names.as_mut().filter(|names| names.known_to == lblock) {
            names.known_to += 1;
        }
    }
    Ok((lblock, buf))
}

/// A hole to fill. Small directories stay small; large ones grow at their end until half of them is holes.
fn find_hole(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, end: u64) -> Result<Option<u64>> {
    let allocated = inode.frags / cx.cache.geometry().frags_per_block();
    let small = inode.index_buckets == 0 && end <= UNINDEXED_BLOCKS;
    if !small && end < DIR_BLOCKS_MAX && end <= 2 * allocated + 2 * UNINDEXED_BLOCKS {
        return Ok(None);
    }
    let mut hints = state.room_hints.lock();
    if hints.hole_from >= end {
        hints.hole_from = 0;
    }
    let (hole, looked_to) = blocks::first_hole(cx, inode, state, hints.hole_from..end)?;
    hints.hole_from = looked_to;
    Ok(hole)
}

/// Gives up a prepared place: a block that was added for it goes again.
pub fn give_up(
    cx: &DirCtx<'_>,
    txn: &Txn<'_>,
    space: &Space,
    inode: &mut Inode,
    state: &DirState,
    slot: Slot,
) -> Result<()> {
    if slot.new_block {
        blocks::note_removal(&Change { cx, txn, space, state }, inode, slot.lblock, &slot.buf)?;
    }
    Ok(())
}

/// Puts a name into the place prepared for it. The hash of `new` is set here.
///
/// Updates the number of names, the size and the index of `inode`; the caller sets its times.
pub fn insert(
    cx: &DirCtx<'_>,
    txn: &Txn<'_>,
    inode: &mut Inode,
    state: &DirState,
    slot: Slot,
    new: &NewEntry<'_>,
) -> Result<BufRef> {
    let Slot { lblock, offset, hash, need, buf, bucket, .. } = slot;
    if entry_len(new.name.len(), new.inode_room) != need || cx.hash(new.name) != hash {
        return Error::invalid("a name other than the prepared one");
    }
    let entry = NewEntry { hash, ..*new };
    let len = {
        let mut b = txn.edit(&buf);
        dirblock::insert(&mut b, offset, &entry);
        dirblock::known_entry(b.bytes(), offset).len
    };
    inode.aux += 1;
    match bucket {
        Some(bucket) => index::add(txn, &bucket, hash, lblock),
        None => {
            if let Some(names) = state.names.write().as_mut().filter(|names| lblock < names.known_to) {
                names.insert(hash, lblock, offset);
            }
        }
    }
    state.room_hints.lock().used(lblock, offset, len);
    Ok(buf)
}

/// The bucket of a name that is about to go, if the directory has an index. The name is checked.
fn bucket_of_found(
    cx: &DirCtx<'_>,
    inode: &Inode,
    state: &DirState,
    found: &Found,
    name: &[u8],
) -> Result<Option<BufRef>> {
    {
        let b = found.buf.read();
        let e = entry_known(&b, found.offset);
        if !e.is_some_and(|e| e.is_name() && e.name == name && e.ino == found.ino) {
            return Err(Error::NotFound);
        }
    }
    if inode.index_buckets == 0 { Ok(None) } else { index::bucket(cx, inode, state, found.hash).map(Some) }
}

/// Takes a name out of the index or the map of names.
fn forget_name(txn: &Txn<'_>, inode: &mut Inode, state: &DirState, found: &Found, bucket: Option<&BufRef>) {
    inode.aux = inode.aux.saturating_sub(1);
    match bucket {
        Some(bucket) => index::remove(txn, bucket, found.hash, found.lblock),
        None => {
            if let Some(names) = &mut *state.names.write() {
                names.remove(found.hash, found.lblock, found.offset);
            }
        }
    }
}

/// Removes a name with its entry, and the blocks that are empty then.
///
/// Errors come before any change, but for devices that fail while space is given back.
pub fn remove(
    cx: &DirCtx<'_>,
    txn: &Txn<'_>,
    space: &Space,
    inode: &mut Inode,
    state: &DirState,
    found: &Found,
    name: &[u8],
) -> Result<()> {
    let bucket = bucket_of_found(cx, inode, state, found, name)?;
    forget_name(txn, inode, state, found, bucket.as_ref());
    drop(bucket);
    dirblock::remove(&mut txn.edit(&found.buf), found.offset);
    let change = Change { cx, txn, space, state };
    index::shrink(&change, inode)?;
    blocks::note_removal(&change, inode, found.lblock, &found.buf)
}

/// Takes the name from an embedded inode, which stays in its place as an orphan.
pub fn orphan(
    cx: &DirCtx<'_>,
    txn: &Txn<'_>,
    inode: &mut Inode,
    state: &DirState,
    found: &Found,
    name: &[u8],
) -> Result<()> {
    if found.kind != EntryKind::Embedded {
        return Error::invalid("only an embedded inode becomes an orphan in its directory");
    }
    let bucket = bucket_of_found(cx, inode, state, found, name)?;
    forget_name(txn, inode, state, found, bucket.as_ref());
    dirblock::make_orphan(&mut txn.edit(&found.buf), found.offset);
    Ok(())
}

/// Makes the entry at `offset` of a block at least `len` bytes long. False, and nothing changes, where something else
/// stands behind it.
pub fn grow_entry(
    cx: &DirCtx<'_>,
    txn: &Txn<'_>,
    inode: &Inode,
    state: &DirState,
    block: BlockAddr,
    offset: usize,
    len: usize,
) -> Result<bool> {
    let buf = cx.cache.read_meta(BlockId { kind: BlockKind::Dir, addr: block, owner: inode.ino })?;
    if dirblock::grown_max(&buf.read(), offset) < len {
        return Ok(false);
    }
    dirblock::grow(&mut txn.edit(&buf), offset, len);
    let b = buf.read();
    let lblock = crate::format::get_u64(&b, dirblock::DIR_LBLOCK);
    let mut hints = state.room_hints.lock();
    // The place where the next name was to go may have been this one.
    hints.forget(lblock);
    hints.note(lblock, dirblock::free_bytes(&b));
    Ok(true)
}

/// Frees the place of an orphan, and the blocks that are empty then.
pub fn remove_orphan(
    cx: &DirCtx<'_>,
    txn: &Txn<'_>,
    space: &Space,
    inode: &mut Inode,
    state: &DirState,
    block: BlockAddr,
    offset: usize,
) -> Result<()> {
    let (buf, lblock) = find_orphan(cx, inode, state, block, offset)?;
    dirblock::remove(&mut txn.edit(&buf), offset);
    // The index may have stayed too large while orphans kept the directory from becoming empty.
    let change = Change { cx, txn, space, state };
    index::shrink(&change, inode)?;
    blocks::note_removal(&change, inode, lblock, &buf)
}

/// The block of an orphan, and its number in the directory. Once it was found, [`remove_orphan`] finds it too as long as the
/// block is held.
pub fn find_orphan(
    cx: &DirCtx<'_>,
    inode: &Inode,
    state: &DirState,
    block: BlockAddr,
    offset: usize,
) -> Result<(BufRef, u64)> {
    let buf = cx.cache.read_meta(BlockId { kind: BlockKind::Dir, addr: block, owner: inode.ino })?;
    let lblock = {
        let b = buf.read();
        if !dirblock::entry_at(&b, offset).is_some_and(|e| e.kind == EntryKind::Orphan) {
            return damaged(inode.ino, format_args!("no orphan at byte {offset} of block {block}"));
        }
        crate::format::get_u64(&b, dirblock::DIR_LBLOCK)
    };
    if lblock >= blocks::size_blocks(cx, inode) || blocks::resolve(cx, inode, state, lblock)? != Some(block) {
        return damaged(inode.ino, format_args!("block {block} is not its block {lblock}"));
    }
    Ok((buf, lblock))
}

/// Gives back the blocks that a directory without names and orphans may still have, before it goes itself.
pub fn release(cx: &DirCtx<'_>, txn: &Txn<'_>, space: &Space, inode: &mut Inode, state: &DirState) -> Result<()> {
    if inode.size == 0 && inode.frags == 0 {
        return Ok(());
    }
    if !is_empty(inode) {
        return Err(Error::NotEmpty);
    }
    blocks::release(&Change { cx, txn, space, state }, inode)
}
