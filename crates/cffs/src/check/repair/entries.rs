//! Damaged directory blocks: entries that can be read stay in their places, the rest becomes free.
//!
//! Entries of a block with the right checksum are believed as far as they make sense. In a block with a wrong checksum, or
//! behind a break of the chain, an entry counts only if the hash stored with its name is that of the name.

use crate::format::dirblock::{
    DIR_FREE, DIR_LBLOCK, DIR_NAMES, DIR_ORPHANS, ENTRY_HEADER, EntryKind, check_name, entries, validate,
};
use crate::format::dirindex::name_hash;
use crate::format::extent::{Child, EXTENT_SIZE, Extent};
use crate::format::inode::{INLINE_LEAST, INODE_CORE_SIZE, INODE_XATTRS, XATTR_BLOCK_BITS};
use crate::format::{
    BlockId, FILE_SIZE_MAX, FileType, Geometry, Inode, META_HEADER_SIZE, align8, block_seq, get_u16, get_u32, get_u64,
    init_block, put_u16, put_u32, put_u64,
};

/// A directory block that was put together again.
pub(super) struct Rebuilt {
    pub(super) block: Vec<u8>,
    /// Inodes whose names could not be kept.
    pub(super) nameless: Vec<Inode>,
}

/// The part of the block that one entry takes.
struct Piece {
    from: usize,
    len: usize,
    kind: EntryKind,
}

/// Rebuilds a directory block from its bytes. `trusted`: its checksum is right. `None` if it contains nothing useful.
pub(super) fn rebuild(
    block: &[u8],
    id: BlockId,
    lblock: u64,
    seed: [u64; 2],
    g: &Geometry,
    trusted: bool,
) -> Option<Rebuilt> {
    let pieces = find(block, seed, g, trusted);
    let mut out = vec![0; block.len()];
    init_block(&mut out, g.fsid, id);
    put_u64(&mut out, 32, block_seq(block));
    put_u64(&mut out, DIR_LBLOCK, lblock);
    let mut nameless = Vec::new();
    // Ends of the entries that stay; a gap too small for a free entry goes to the one before it.
    let mut at = META_HEADER_SIZE;
    let mut last: Option<usize> = None;
    for p in pieces {
        let mut bytes = block[p.from..p.from + p.len].to_vec();
        put_u16(&mut bytes, 0, p.len as u16);
        bytes[2] = bytes[2] & 0xf0 | p.kind as u8;
        match mend(&mut bytes, seed, g) {
            Mended::Keep => {}
            Mended::Nameless(inode) => {
                nameless.push(*inode);
                continue;
            }
            Mended::Drop => continue,
        }
        let mut from = p.from;
        match (from - at, last) {
            (0, _) => {}
            (1..ENTRY_HEADER, Some(before)) => put_u16(&mut out, before, (from - before) as u16),
            (1..ENTRY_HEADER, None) => from = at,
            (gap, _) => put_u16(&mut out, at, gap as u16),
        }
        out[from..from + p.len].copy_from_slice(&bytes);
        last = Some(from);
        at = from + p.len;
    }
    match (out.len() - at, last) {
        (0, _) => {}
        (1..ENTRY_HEADER, Some(before)) => {
            let len = out.len() - before;
            put_u16(&mut out, before, len as u16);
        }
        (gap, _) => put_u16(&mut out, at, gap as u16),
    }
    set_counts(&mut out);
    let empty = last.is_none() && nameless.is_empty();
    ((trusted || !empty) && validate(&out).is_ok()).then_some(Rebuilt { block: out, nameless })
}

/// Sets the counts in the header to those of the entries.
pub(super) fn set_counts(block: &mut [u8]) {
    let (mut free, mut names, mut orphans) = (0, 0, 0);
    for e in entries(block) {
        match e.kind {
            EntryKind::Free => free += e.len,
            EntryKind::Orphan => orphans += 1,
            _ => names += 1,
        }
    }
    put_u32(block, DIR_FREE, free as u32);
    put_u16(block, DIR_NAMES, names);
    put_u16(block, DIR_ORPHANS, orphans);
}

/// Finds the entries. Behind the first invalid one, every place at which an entry could begin is tried.
fn find(block: &[u8], seed: [u64; 2], g: &Geometry, trusted: bool) -> Vec<Piece> {
    let (mut at, mut out, mut chained) = (META_HEADER_SIZE, Vec::new(), trusted);
    while at + ENTRY_HEADER <= block.len() {
        if let Some(len) = entry_len_at(block, at, seed, g, chained) {
            // A length that is too large hides the entries that follow.
            let hidden = (at + ENTRY_HEADER..at + len)
                .step_by(8)
                .skip_while(|o| *o < at + least_len(block, at, seed, g))
                .find(|o| entry_len_at(block, *o, seed, g, false).is_some());
            let len = hidden.map_or(len, |o| o - at);
            if let Some(kind) = kind_at(block, at, seed) {
                out.push(Piece { from: at, len, kind });
            }
            at += len;
            continue;
        }
        let len = get_u16(block, at) as usize;
        let free = block[at + 2] & 0xf == 0 && len >= ENTRY_HEADER && len.is_multiple_of(8) && len <= block.len() - at;
        let ends_well = |end: usize| {
            end == block.len()
                || entry_len_at(block, end, seed, g, true).is_some()
                || end + ENTRY_HEADER <= block.len() && block[end + 2] & 0xf == 0
        };
        if chained && free && ends_well(at + len) {
            at += len;
        } else {
            chained = false;
            at += 8;
        }
    }
    out
}

/// Kind of the entry at a place. An entry that is marked as free, or has an unknown kind, but has a name with the right
/// hash, is taken for what it looks like, because freeing an entry clears its header.
fn kind_at(block: &[u8], at: usize, seed: [u64; 2]) -> Option<EntryKind> {
    match block[at + 2] & 0xf {
        1 => return Some(EntryKind::Embedded),
        2 => return Some(EntryKind::Link),
        3 => return Some(EntryKind::Orphan),
        _ => {}
    }
    let (name, ino) = (name_at(block, at)?, get_u64(block, at + 8));
    if ino == 0 || check_name(name).is_err() || get_u32(block, at + 4) != name_hash(seed, name) {
        return None;
    }
    let embedded = Inode::decode(&block[at + ENTRY_HEADER + align8(name.len())..]).is_ok_and(|i| i.ino == ino);
    Some(if embedded { EntryKind::Embedded } else { EntryKind::Link })
}

/// The name at a place, if there is one of at least a byte within the block.
fn name_at(block: &[u8], at: usize) -> Option<&[u8]> {
    let len = block[at + 3] as usize;
    let name = block.get(at + ENTRY_HEADER..at + ENTRY_HEADER + len).filter(|n| !n.is_empty())?;
    (at + ENTRY_HEADER + align8(len) <= block.len()).then_some(name)
}

/// Bytes that an entry takes at least: header, name, inode.
fn least_len(block: &[u8], at: usize, seed: [u64; 2], g: &Geometry) -> usize {
    let name = ENTRY_HEADER + align8(block[at + 3] as usize);
    if kind_at(block, at, seed) == Some(EntryKind::Link) {
        return name;
    }
    let Some(room) = block.get(at + name..) else { return name };
    let mut room = room.to_vec();
    mend_inode(&mut room, None, g).map_or(name, |i| name + i.encoded_len())
}

/// Length of the entry at a place, if there is one. `chained`: an entry must begin here, so more errors are tolerated.
fn entry_len_at(block: &[u8], at: usize, seed: [u64; 2], g: &Geometry, chained: bool) -> Option<usize> {
    if at + ENTRY_HEADER > block.len() {
        return None;
    }
    let (said, tag, name) = (get_u16(block, at) as usize, block[at + 2], name_at(block, at)?);
    let kind = kind_at(block, at, seed)?;
    let named = get_u32(block, at + 4) == name_hash(seed, name);
    if !named && !chained {
        return None;
    }
    let parts = ENTRY_HEADER + align8(name.len());
    let fits = said.is_multiple_of(8) && said >= parts && said <= block.len() - at;
    let file_type = FileType::from_mode(u16::from(tag >> 4) << 12);
    if kind == EntryKind::Link {
        let good = named || check_name(name).is_ok();
        if get_u64(block, at + 8) == 0 || file_type.is_none() && !chained || !good {
            return None;
        }
        return Some(if fits { said } else { parts });
    }
    let room = &block[at + parts..if fits { at + said } else { block.len() }];
    let inode = if let Ok(inode) = Inode::decode(room) {
        inode
    } else if chained && fits {
        let mut room = room.to_vec();
        mend_inode(&mut room, file_type, g)?
    } else if named {
        // The length may be the wrong field.
        Inode::decode(&block[at + parts..]).ok()?
    } else {
        return None;
    };
    if !chained && inode.ino != get_u64(block, at + 8) {
        return None;
    }
    let need = parts + inode.encoded_len();
    if fits && said >= need { Some(said) } else { Some(need).filter(|n| at + n <= block.len()) }
}

enum Mended {
    Keep,
    Nameless(Box<Inode>),
    Drop,
}

/// Makes one entry consistent in itself.
fn mend(e: &mut [u8], seed: [u64; 2], g: &Geometry) -> Mended {
    let (tag, name_len) = (e[2], e[3] as usize);
    let kind = tag & 0xf;
    let name_end = ENTRY_HEADER + name_len;
    let named = check_name(&e[ENTRY_HEADER..name_end]).is_ok();
    let hash = name_hash(seed, &e[ENTRY_HEADER..name_end]);
    if kind == EntryKind::Link as u8 {
        if !named || get_u64(e, 8) == 0 {
            return Mended::Drop;
        }
        if FileType::from_mode(u16::from(tag >> 4) << 12).is_none() {
            // The walk puts the type of the inode here.
            e[2] = kind | (FileType::Regular as u8) << 4;
        }
        put_u32(e, 4, hash);
        return Mended::Keep;
    }
    let parts = ENTRY_HEADER + align8(name_len);
    let Some(mut inode) = mend_inode(&mut e[parts..], FileType::from_mode(u16::from(tag >> 4) << 12), g) else {
        return Mended::Drop;
    };
    if inode.encoded_len() + parts > e.len() {
        return Mended::Drop;
    }
    if !named {
        inode.nlink = inode.nlink.max(1);
        return Mended::Nameless(Box::new(inode));
    }
    inode.encode(&mut e[parts..parts + inode.encoded_len()]);
    put_u32(e, 4, hash);
    put_u64(e, 8, inode.ino);
    e[2] = kind | (inode.file_type() as u8) << 4;
    Mended::Keep
}

/// Changes bytes that are no valid inode until they are one, if enough of it is left. `hint`: the type in the entry.
pub(super) fn mend_inode(room: &mut [u8], hint: Option<FileType>, g: &Geometry) -> Option<Inode> {
    if let Ok(inode) = Inode::decode(room) {
        return Some(inode);
    }
    if room.len() < INODE_CORE_SIZE || get_u64(room, 0) == 0 {
        return None;
    }
    let most = (room.len() - INODE_CORE_SIZE) / 8;
    if room[15] as usize > most {
        room[15] = most.min(255) as u8;
    }
    if area_of_contents(room) < INLINE_LEAST {
        room[15] = most.min(255) as u8;
        if area_of_contents(room) < INLINE_LEAST {
            let chain = get_u64(room, INODE_XATTRS) & ((1 << XATTR_BLOCK_BITS) - 1);
            put_u64(room, INODE_XATTRS, chain);
        }
    }
    let mode = get_u16(room, 12);
    if FileType::from_mode(mode).is_none() {
        put_u16(room, 12, hint?.mode_bits() | mode & 0o7777);
    }
    if let Ok(inode) = Inode::decode(room) {
        return Some(inode);
    }
    let dir = FileType::from_mode(get_u16(room, 12)) == Some(FileType::Directory);
    let (inline_len, format, size) = (room[15] as usize * 8, room[14], get_u64(room, 32));
    if size > FILE_SIZE_MAX {
        put_u64(room, 32, 0);
    }
    let area = room[INODE_CORE_SIZE..INODE_CORE_SIZE + inline_len].to_vec();
    let extents = leading_extents(&area, g);
    let children = leading_children(&area, g);
    if format == 1 && !dir {
        // The length of inline contents is wrong. They end with the last byte that is not zero.
        let len = area.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
        put_u64(room, 32, len as u64);
    } else if children > 0 && ((3..=10).contains(&format) || extents == 0) {
        room[14] = if (3..=10).contains(&format) { format } else { 3 };
        room[INODE_CORE_SIZE + children * EXTENT_SIZE..INODE_CORE_SIZE + inline_len].fill(0);
    } else if extents == 0 && format != 2 && !dir && size > 0 && size <= inline_len as u64 {
        room[14] = 1;
    } else {
        room[14] = 2;
        room[INODE_CORE_SIZE + extents * EXTENT_SIZE..INODE_CORE_SIZE + inline_len].fill(0);
    }
    Inode::decode(room).ok()
}

/// Bytes of the inline area that extended attributes leave.
fn area_of_contents(room: &[u8]) -> usize {
    (room[15] as usize).saturating_sub((get_u64(room, INODE_XATTRS) >> XATTR_BLOCK_BITS) as usize) * 8
}

/// How many extents from the start of an inline area make sense.
fn leading_extents(area: &[u8], g: &Geometry) -> usize {
    let mut end = 0;
    let good = |slot: &[u8]| {
        let e = Extent::decode(slot);
        let ok = e.len > 0
            && e.logical >= end
            && e.end() <= crate::format::extent::LOGICAL_END
            && g.contains(e.start, e.len);
        end = e.end();
        ok
    };
    area.chunks_exact(EXTENT_SIZE).map(good).take_while(|ok| *ok).count()
}

fn leading_children(area: &[u8], g: &Geometry) -> usize {
    let mut last: Option<u64> = None;
    let good = |slot: &[u8]| {
        let c = Child::decode(slot);
        let ok = c.block != 0 && c.block < g.total_blocks && last.is_none_or(|k| c.key > k);
        last = Some(c.key);
        ok
    };
    area.chunks_exact(EXTENT_SIZE).map(good).take_while(|ok| *ok).count()
}
