//! The contents of metadata blocks, by their kind. They need not be valid: what is wrong with them goes to `wrong`.

use super::entries::{RawEntry, entry_chain};
use super::inode::{inode_value, type_name};
use super::records::{attribute, child, counters, extent, location, quota};
use crate::format::ag::{BITMAP_BITS, BITMAP_INDEX, ag_free, free_runs};
use crate::format::dirblock::{self, DIR_FREE, DIR_LBLOCK, DIR_NAMES, DIR_ORPHANS};
use crate::format::dirindex::{self, BUCKET_COUNT, BUCKET_FLAGS, BUCKET_NUMBER, BUCKET_OVERFLOWED, PAIR_SIZE};
use crate::format::extent::{
    Child, EXTENT_SIZE, Extent, NODE_COUNT, NODE_LEVEL, node_capacity, node_entry, node_header,
};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::quota::{QUOTA_LBLOCK, records};
use crate::format::system::Counters;
use crate::format::table::{LOCATOR_SIZE, TABLE_LBLOCK, TABLE_USED, TableShape, map_count};
use crate::format::xattr::{ChainBlock, XATTR_INDEX, XATTR_NEXT, XATTR_USED, decode_list};
use crate::format::*;
use cffs_values::{Fields, Value, hex};

/// Bytes of something unknown that are shown.
const SHOWN: usize = 256;

/// The first bytes of something unknown, without the zeros at its end, in hexadecimal.
pub(super) fn first_bytes(bytes: &[u8]) -> Vec<String> {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
    bytes[..end.min(SHOWN)].chunks(32).map(hex).collect()
}

/// What stands in a block behind its header.
pub(super) fn contents(f: &mut Fields, g: &Geometry, id: (BlockKind, BlockAddr), b: &[u8], wrong: &mut Vec<String>) {
    let (kind, addr) = id;
    match kind {
        BlockKind::AgHeader => group_header(f, g, b),
        BlockKind::DataSums => data_sums(f, g, addr, b),
        BlockKind::Bitmap => bitmap(f, g, addr, b),
        BlockKind::Counters => counters(f, &Counters::decode(b)),
        BlockKind::SystemInodes => inode_slots(f, b),
        BlockKind::ExternalInodes => {
            f.put("number", get_u64(b, TABLE_LBLOCK)).put("slots_in_use", get_u32(b, TABLE_USED));
            inode_slots(f, b);
        }
        BlockKind::Dir => dir_block(f, b, wrong),
        BlockKind::DirIndex => index_bucket(f, b, wrong),
        BlockKind::ExtentNode => extent_node(f, b, wrong),
        BlockKind::Locator => locator(f, b, wrong),
        BlockKind::TableMap => table_map(f, b),
        BlockKind::Xattr => xattr_block(f, b, wrong),
        BlockKind::Quota => quota_block(f, g, b),
    }
}

fn group_header(f: &mut Fields, g: &Geometry, b: &[u8]) {
    f.put("free_fragments", ag_free(b));
    if g.data_sums {
        f.put("checksum_tables", (0..g.sum_blocks()).filter(|i| sums::exists(b, *i)).collect::<Vec<_>>());
    }
}

fn data_sums(f: &mut Fields, g: &Geometry, addr: BlockAddr, b: &[u8]) {
    let (index, ag) = (get_u64(b, sums::SUMS_INDEX), g.ag_of(addr));
    f.put("index", index);
    let first = index.saturating_mul(g.sums_per_block());
    let first = g.frag_of_block(g.ag_start(ag)).saturating_add(first);
    let known = (0..g.sums_per_block()).filter(|i| sums::get(b, *i) != sums::NONE);
    f.put_list("sums", known, |sum, i| {
        sum.put("fragment", first.saturating_add(i)).put("sum", Value::hex(sums::get(b, i), 8));
    });
}

fn bitmap(f: &mut Fields, g: &Geometry, addr: BlockAddr, b: &[u8]) {
    let index = get_u64(b, BITMAP_INDEX);
    f.put("index", index);
    let ag = g.ag_of(addr);
    let first = index.saturating_mul(g.bits_per_bitmap());
    let frags = g.ag_len(ag) * g.frags_per_block();
    let here = frags.saturating_sub(first).min(g.bits_per_bitmap());
    runs(f, &b[BITMAP_BITS..], here, g.frag_of_block(g.ag_start(ag)).saturating_add(first));
}

fn inode_slots(f: &mut Fields, b: &[u8]) {
    let slots =
        (META_HEADER_SIZE..).step_by(INODE_SLOT_SIZE).map_while(|at| Some((at, b.get(at..at + INODE_SLOT_SIZE)?)));
    f.put_list("inodes", slots.filter(|(_, slot)| get_u64(slot, 0) != 0), |s, (offset, slot)| {
        s.put("offset", offset).append(inode_value(slot));
    });
}

fn index_bucket(f: &mut Fields, b: &[u8], wrong: &mut Vec<String>) {
    f.put("bucket", get_u32(b, BUCKET_NUMBER)).put("pairs_in_use", get_u32(b, BUCKET_COUNT));
    f.put("overflowed", get_u32(b, BUCKET_FLAGS) & BUCKET_OVERFLOWED != 0);
    wrong.extend(dirindex::validate(b).err().map(|c| c.0));
    let n = (get_u32(b, BUCKET_COUNT) as usize).min(dirindex::bucket_capacity(b.len()));
    f.put_list("pairs", b[META_HEADER_SIZE..][..n * PAIR_SIZE].chunks_exact(PAIR_SIZE), |pair, p| {
        pair.put("hash", Value::hex(get_u32(p, 0), 8)).put("in_block", get_u32(p, 4));
    });
}

fn extent_node(f: &mut Fields, b: &[u8], wrong: &mut Vec<String>) {
    let level = get_u16(b, NODE_LEVEL);
    f.put("level", level).put("entries_in_use", get_u16(b, NODE_COUNT));
    wrong.extend(node_header(b).err().map(|c| c.0));
    let n = (get_u16(b, NODE_COUNT) as usize).min(node_capacity(b.len()));
    let entries = (0..n).map(|i| &b[node_entry(i)..node_entry(i) + EXTENT_SIZE]);
    if level == 0 {
        f.put_list("extents", entries.map(Extent::decode), |f, e| extent(f, &e));
    } else {
        f.put_list("children", entries.map(Child::decode), |f, c| child(f, &c));
    }
}

fn locator(f: &mut Fields, b: &[u8], wrong: &mut Vec<String>) {
    let number = get_u64(b, TABLE_LBLOCK);
    f.put("number", number).put("slots_in_use", get_u32(b, TABLE_USED));
    let shape = TableShape::new(b.len(), LOCATOR_SIZE);
    let first = shape.data_of_block(number).map(|d| d.saturating_mul(shape.per_block));
    if first.is_none() {
        wrong.push(format!("block {number} of the table is a map's place"));
    }
    let mut list = Vec::new();
    for slot in 0..shape.per_block {
        let offset = META_HEADER_SIZE + slot as usize * LOCATOR_SIZE;
        let ino = first.unwrap_or(0).saturating_add(slot);
        list.extend(location(&b[offset..offset + LOCATOR_SIZE], ino, b.len()));
    }
    f.put("records", list);
}

fn table_map(f: &mut Fields, b: &[u8]) {
    let number = get_u64(b, TABLE_LBLOCK);
    f.put("number", number);
    let counts = (0..(b.len() - META_HEADER_SIZE) / 2).map(|i| (i as u64, map_count(b, META_HEADER_SIZE + i * 2)));
    f.put_list("counts", counts.filter(|(_, n)| *n > 0), |count, (i, n)| {
        count.put("in_block", number.saturating_add(1 + i)).put("slots_in_use", n);
    });
}

fn xattr_block(f: &mut Fields, b: &[u8], wrong: &mut Vec<String>) {
    f.put("next", get_u64(b, XATTR_NEXT)).put("number", get_u32(b, XATTR_INDEX));
    f.put("list_bytes", get_u32(b, XATTR_USED));
    wrong.extend(ChainBlock::decode(b).err().map(|c| c.0));
    let used = (get_u32(b, XATTR_USED) as usize).min(b.len() - META_HEADER_SIZE);
    let mut list = Vec::new();
    let piece = &b[META_HEADER_SIZE..META_HEADER_SIZE + used];
    // An entry may lie across the end of a block. The dump of the whole chain shows those.
    let whole = decode_list(piece, false, &mut list).is_ok();
    f.put_list("attributes", &list, attribute);
    if !whole {
        f.put("bytes", first_bytes(piece));
    }
}

fn quota_block(f: &mut Fields, g: &Geometry, b: &[u8]) {
    let number = get_u64(b, QUOTA_LBLOCK);
    f.put("number", number);
    f.put_list("records", records(b, number), |f, (id, r)| quota(f, id, &r, g.frag_shift));
}

/// Runs of fragments in use and free, from `first` on the device on.
fn runs(f: &mut Fields, bits: &[u8], len: u64, first: u64) {
    let free: Vec<(u64, u64)> = free_runs(bits, len).collect();
    let ends = free.iter().map(|(start, n)| start + n);
    let used = std::iter::once(0).chain(ends).zip(free.iter().map(|(start, _)| *start).chain([len]));
    let used = used.filter(|(from, to)| from < to).map(|(from, to)| (from, to - from));
    let run = |f: &mut Fields, (start, n): (u64, u64)| {
        f.put("first", first.saturating_add(start)).put("fragments", n);
    };
    f.put("fragments", len).put("free_fragments", free.iter().map(|(_, n)| n).sum::<u64>());
    f.put_list("in_use", used, run).put_list("free", free.iter().copied(), run);
}

/// The entries as far as their chain can be followed.
fn dir_block(f: &mut Fields, b: &[u8], wrong: &mut Vec<String>) {
    f.put("number", get_u64(b, DIR_LBLOCK)).put("free_bytes", get_u32(b, DIR_FREE));
    f.put("names", get_u16(b, DIR_NAMES)).put("orphans", get_u16(b, DIR_ORPHANS));
    wrong.extend(dirblock::validate(b).err().map(|c| c.0));
    f.put_list("entries", entry_chain(b), |f, e| entry(f, b, &e));
}

fn entry(f: &mut Fields, b: &[u8], e: &RawEntry<'_>) {
    f.put("offset", e.offset).put("length", e.len);
    let kind = ["free", "embedded", "link", "orphan"].get(e.kind as usize);
    f.put("kind", kind.map_or_else(|| format!("unknown ({})", e.kind), |k| (*k).to_string()));
    if e.kind == 0 {
        return;
    }
    f.put("type", type_name(e.file_type)).put("inode", get_u64(b, e.offset + 8));
    f.put("hash", Value::hex(get_u32(b, e.offset + 4), 8)).put("name", Value::Bytes(e.name.to_vec()));
    if e.kind != 2 {
        f.put("embedded", inode_value(&b[e.inode_offset()..e.offset + e.len]));
    }
}
