//! Locality hints: where the small files, or the directories, of a directory lie, as far as cached directory blocks say.
//!
//! Embedded inodes show it without a request: the block with an entry has the inodes of its neighbours, and the
//! directory's other blocks stand next to that one. A group read so knows which part of a group is the directory's, and a
//! walk how far the blocks of the directories reach that it comes to next.

use super::InodeLocation;
use crate::cache::{Buf, Cache, DirExtents};
use crate::format::dirblock::{Entry, EntryKind, entries};
use crate::format::{BlockAddr, BlockId, BlockKind, FileType, Geometry, Inode, InodeFormat};
use crate::format::{block_owner, get_u32, verify_block, verify_contents};
use std::ops::Range;

/// Blocks of the directory that are looked at, on each side of the one with the entry.
const DIR_BLOCKS: u64 = 8;

/// Where those of one type, up to a size, lie that have their entries around the inode at `location`. `None` if that inode is not
/// embedded, or the block with its entry is not cached. Makes no request, because the caller is about to make one.
pub fn dir_extents(cache: &Cache, location: InodeLocation, file_type: FileType, size_max: u64) -> Option<DirExtents> {
    let InodeLocation::Embedded { block: own, .. } = location else { return None };
    let dir = block_owner(&cache.peek(own)?.read());
    let mut blocks = Vec::new();
    let mut add =
        |addr| add_extents(cache, BlockId { kind: BlockKind::Dir, addr, owner: dir }, file_type, size_max, &mut blocks);
    if !add(own) {
        return None;
    }
    (own + 1..own + DIR_BLOCKS).find(|a| !add(*a));
    (own.saturating_sub(DIR_BLOCKS)..own).rev().find(|a| !add(*a));
    blocks.sort_unstable_by_key(|r| r.start);
    blocks.dedup_by(|next, before| {
        let joins = next.start <= before.end;
        if joins {
            before.end = before.end.max(next.end);
        }
        joins
    });
    Some(DirExtents { dir, blocks })
}

/// The blocks where the first and the last small file begin that have their inodes in a block, if it is one of a directory. What is damaged is
/// reported when it is asked for, and counts for nothing here.
pub fn files_of(g: &Geometry, buf: &Buf) -> Option<[BlockAddr; 2]> {
    let bytes = buf.read();
    let id = BlockId { kind: BlockKind::Dir, addr: buf.addr(), owner: block_owner(&bytes) };
    if get_u32(&bytes, 0) != id.kind as u32 {
        return None;
    }
    if !buf.is_verified() {
        verify_block(&bytes, g.fsid, id).and_then(|()| verify_contents(&bytes, id.kind)).ok()?;
        buf.set_verified(true);
    }
    let mut files = entries(&bytes).filter(|e| e.kind == EntryKind::Embedded && e.file_type == Some(FileType::Regular));
    let first = files.next()?;
    let block = |e: &Entry<'_>| {
        let inode = Inode::decode(&bytes[e.inode_offset()..e.offset + e.len]).ok()?;
        let InodeFormat::Extents(list) = &inode.format else { return None };
        let x =
            list.first().filter(|x| inode.size <= g.group_size() as u64 && x.len > 0 && g.contains(x.start, x.len))?;
        Some(g.block_of_frag(x.start))
    };
    Some([block(&first)?, block(files.last().as_ref().unwrap_or(&first))?])
}

/// Adds the blocks of the files in a directory block; false if it is not cached, or not of this directory.
fn add_extents(
    cache: &Cache,
    id: BlockId,
    file_type: FileType,
    size_max: u64,
    out: &mut Vec<Range<BlockAddr>>,
) -> bool {
    // Nothing counts as used: nobody has asked for the names.
    let Some(buf) = cache.peek(id.addr) else { return false };
    let g = cache.geometry();
    let bytes = buf.read();
    if block_owner(&bytes) != id.owner || get_u32(&bytes, 0) != id.kind as u32 {
        return false;
    }
    let sound = || verify_block(&bytes, g.fsid, id).and_then(|()| verify_contents(&bytes, id.kind));
    if !buf.is_verified() && sound().is_err() {
        return false;
    }
    for e in entries(&bytes).filter(|e| e.kind == EntryKind::Embedded && e.file_type == Some(file_type)) {
        let room = e.inode_offset()..e.offset + e.len;
        let Ok(inode) = Inode::decode(&bytes[room]) else { continue };
        if inode.size > size_max {
            continue;
        }
        let InodeFormat::Extents(list) = &inode.format else { continue };
        // A damaged inode with a right checksum is reported when its file is asked for; here it counts for nothing.
        for x in list.iter().filter(|x| !x.unwritten && x.len > 0 && g.contains(x.start, x.len)) {
            out.push(g.block_of_frag(x.start)..g.block_of_frag(x.start + x.len - 1) + 1);
        }
    }
    true
}
