//! Blocks: what a block says it is, and its contents by that.

use super::inode::{inode_value, type_name};
use super::value::hex;
use super::{Dumper, Fields, Value, problems};
use crate::error::{Error, Result};
use crate::format::ag::{BITMAP_BITS, BITMAP_INDEX, ag_free, free_runs};
use crate::format::dirblock::{self, DIR_FREE, DIR_LBLOCK, DIR_NAMES, DIR_ORPHANS, ENTRY_HEADER};
use crate::format::dirindex::{self, BUCKET_COUNT, BUCKET_FLAGS, BUCKET_NUMBER, BUCKET_OVERFLOWED, PAIR_SIZE};
use crate::format::extent::{
    Child, EXTENT_SIZE, Extent, NODE_COUNT, NODE_LEVEL, node_capacity, node_entry, node_header,
};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::quota::{QUOTA_LBLOCK, records};
use crate::format::system::Counters;
use crate::format::table::{LOCATOR_SIZE, Location, TABLE_LBLOCK, TABLE_USED, TableShape, map_count};
use crate::format::xattr::{ChainBlock, XATTR_INDEX, XATTR_NEXT, XATTR_USED, Xattr, decode_list};
use crate::format::*;
use crate::journal::log_extent;

/// Bytes of something unknown that are shown.
const SHOWN: usize = 256;

impl Dumper<'_> {
    /// Whatever is at a block address.
    pub fn block(&self, addr: BlockAddr) -> Result<Value> {
        if addr >= self.g.total_blocks {
            return Error::invalid(format!(
                "block {addr} lies outside the file system, which has {} blocks (0 to {})",
                self.g.total_blocks,
                self.g.total_blocks - 1
            ));
        }
        let mut f = Fields::new();
        f.put("block", addr);
        let within = addr % self.g.ag_blocks;
        f.put("group", self.g.ag_of(addr));
        let bytes = match self.read(addr) {
            Ok(bytes) => bytes,
            Err(e) => {
                problems(&mut f, vec![format!("cannot be read: {e}")]);
                return Ok(f.into());
            }
        };
        if let Some(bits) = self.used_bits(addr) {
            f.put("fragments_in_use", bits);
        }
        let (log_at, log_len) = log_extent(&self.sb);
        let at = addr << self.g.block_shift;
        if within == 0 && bytes[..8] == superblock::MAGIC {
            f.put("kind", "superblock");
            f.append(super::volume::superblock_fields(&bytes));
        } else if self.sb.log_start != 0 && (log_at..log_at + log_len).contains(&at) {
            f.put("kind", if at == log_at { "log header" } else { "log" });
            f.put("bytes", self.shown(&bytes));
        } else if BlockKind::from_magic(get_u32(&bytes, 0)).is_some() {
            f.append(self.meta(addr, &bytes, None));
        } else if bytes.iter().all(|b| *b == 0) {
            f.put("kind", "zeros");
        } else {
            f.put("kind", "contents of a file, or space that is not in use");
            f.put("bytes", self.shown(&bytes));
        }
        Ok(f.into())
    }

    fn shown(&self, bytes: &[u8]) -> Vec<String> {
        let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
        bytes[..end.min(SHOWN)].chunks(32).map(hex).collect()
    }

    /// By the bitmap; `None` where that cannot be read.
    fn used_bits(&self, addr: BlockAddr) -> Option<String> {
        let (ag, fpb) = (self.g.ag_of(addr), self.g.frags_per_block());
        let bit = self.g.frag_of_block(addr - self.g.ag_start(ag));
        let bits = self.g.bits_per_bitmap();
        let id = BlockId { kind: BlockKind::Bitmap, addr: self.g.bitmap_block(ag, bit / bits), owner: ag };
        let block = self.read(id.addr).ok()?;
        verify_block(&block, self.g.fsid, id).ok()?;
        let used = |i: u64| block[BITMAP_BITS + ((bit + i) % bits / 8) as usize] >> ((bit + i) % 8) & 1 == 1;
        // Bits of a block never lie across two bitmap blocks: both sizes are multiples of eight.
        Some((0..fpb).map(|i| if used(i) { '1' } else { '0' }).collect())
    }

    /// A block that is referred to as this; contents that do not belong there are shown all the same.
    pub(super) fn meta_at(&self, id: BlockId) -> Fields {
        let mut f = Fields::new();
        f.put("block", id.addr);
        match self.read(id.addr) {
            Err(e) => problems(&mut f, vec![format!("cannot be read: {e}")]),
            Ok(bytes) => drop(f.append(self.meta(id.addr, &bytes, Some(id)))),
        }
        f
    }

    /// Header and contents of a metadata block.
    pub(super) fn meta(&self, addr: BlockAddr, bytes: &[u8], expected: Option<BlockId>) -> Fields {
        let mut f = Fields::new();
        let magic = get_u32(bytes, 0);
        let kind = BlockKind::from_magic(magic);
        let zeros = kind.is_none() && bytes.iter().all(|b| *b == 0);
        match kind {
            Some(kind) => f.put("kind", kind.name()),
            None if zeros => f.put("kind", "zeros"),
            None => f.put("kind", "unknown").put("magic", Value::hex(magic, 8)),
        };
        let mut wrong = Vec::new();
        if kind.is_some() {
            f.put("checksum_ok", crc_ok(bytes));
            f.put("owner", block_owner(bytes));
            f.put("sequence", block_seq(bytes));
        }
        let id = expected.or(kind.map(|kind| BlockId { kind, addr, owner: block_owner(bytes) }));
        if let Some(Err(c)) = id.map(|id| verify_block(bytes, self.g.fsid, id)) {
            wrong.push(c.0);
        }
        if let Some(kind) = kind {
            f.append(self.contents(kind, addr, bytes, &mut wrong));
        } else if !zeros {
            f.put("bytes", self.shown(bytes));
        }
        problems(&mut f, wrong);
        f
    }

    fn contents(&self, kind: BlockKind, addr: BlockAddr, b: &[u8], wrong: &mut Vec<String>) -> Fields {
        let mut f = Fields::new();
        match kind {
            BlockKind::AgHeader => {
                f.put("free_fragments", ag_free(b));
                if self.g.data_sums {
                    f.put(
                        "checksum_tables",
                        (0..self.g.sum_blocks()).filter(|i| sums::exists(b, *i)).collect::<Vec<_>>(),
                    );
                }
            }
            BlockKind::DataSums => {
                let (index, ag) = (get_u64(b, sums::SUMS_INDEX), self.g.ag_of(addr));
                f.put("index", index);
                let first = index.saturating_mul(self.g.sums_per_block());
                let first = self.g.frag_of_block(self.g.ag_start(ag)).saturating_add(first);
                let known = (0..self.g.sums_per_block()).filter(|i| sums::get(b, *i) != sums::NONE).map(|i| {
                    let mut sum = Fields::new();
                    sum.put("fragment", first.saturating_add(i)).put("sum", Value::hex(sums::get(b, i), 8));
                    sum
                });
                f.put("sums", known.collect::<Vec<_>>());
            }
            BlockKind::Bitmap => {
                let index = get_u64(b, BITMAP_INDEX);
                f.put("index", index);
                let ag = self.g.ag_of(addr);
                let first = index.saturating_mul(self.g.bits_per_bitmap());
                let frags = self.g.ag_len(ag) * self.g.frags_per_block();
                let here = frags.saturating_sub(first).min(self.g.bits_per_bitmap());
                let runs =
                    runs(&b[BITMAP_BITS..], here, self.g.frag_of_block(self.g.ag_start(ag)).saturating_add(first));
                f.append(runs);
            }
            BlockKind::Counters => drop(f.append(counters(&Counters::decode(b)))),
            BlockKind::SystemInodes | BlockKind::ExternalInodes => {
                if kind == BlockKind::ExternalInodes {
                    f.put("number", get_u64(b, TABLE_LBLOCK)).put("slots_in_use", get_u32(b, TABLE_USED));
                }
                let mut list = Vec::new();
                for offset in (META_HEADER_SIZE..).step_by(INODE_SLOT_SIZE) {
                    let Some(slot) = b.get(offset..offset + INODE_SLOT_SIZE) else { break };
                    if get_u64(slot, 0) != 0 {
                        let mut s = Fields::new();
                        s.put("offset", offset).append(inode_value(slot));
                        list.push(s);
                    }
                }
                f.put("inodes", list);
            }
            BlockKind::Dir => drop(f.append(dir_block(b, wrong))),
            BlockKind::DirIndex => {
                f.put("bucket", get_u32(b, BUCKET_NUMBER)).put("pairs_in_use", get_u32(b, BUCKET_COUNT));
                f.put("overflowed", get_u32(b, BUCKET_FLAGS) & BUCKET_OVERFLOWED != 0);
                wrong.extend(dirindex::validate(b).err().map(|c| c.0));
                let n = (get_u32(b, BUCKET_COUNT) as usize).min(dirindex::bucket_capacity(b.len()));
                let pairs = b[META_HEADER_SIZE..][..n * PAIR_SIZE].chunks_exact(PAIR_SIZE).map(|p| {
                    let mut pair = Fields::new();
                    pair.put("hash", Value::hex(get_u32(p, 0), 8)).put("in_block", get_u32(p, 4));
                    pair
                });
                f.put("pairs", pairs.collect::<Vec<_>>());
            }
            BlockKind::ExtentNode => {
                let level = get_u16(b, NODE_LEVEL);
                f.put("level", level).put("entries_in_use", get_u16(b, NODE_COUNT));
                wrong.extend(node_header(b).err().map(|c| c.0));
                let n = (get_u16(b, NODE_COUNT) as usize).min(node_capacity(b.len()));
                let entries = (0..n).map(|i| &b[node_entry(i)..node_entry(i) + EXTENT_SIZE]);
                if level == 0 {
                    f.put("extents", entries.map(|e| extent(&Extent::decode(e))).collect::<Vec<_>>());
                } else {
                    f.put("children", entries.map(|e| child(&Child::decode(e))).collect::<Vec<_>>());
                }
            }
            BlockKind::Locator => {
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
            BlockKind::TableMap => {
                let number = get_u64(b, TABLE_LBLOCK);
                f.put("number", number);
                let counts = (0..(b.len() - META_HEADER_SIZE) / 2).filter_map(|i| {
                    let n = map_count(b, META_HEADER_SIZE + i * 2);
                    let mut count = Fields::new();
                    count.put("in_block", number.saturating_add(1 + i as u64)).put("slots_in_use", u64::from(n));
                    (n > 0).then_some(count)
                });
                f.put("counts", counts.collect::<Vec<_>>());
            }
            BlockKind::Xattr => {
                f.put("next", get_u64(b, XATTR_NEXT)).put("number", get_u32(b, XATTR_INDEX));
                f.put("list_bytes", get_u32(b, XATTR_USED));
                wrong.extend(ChainBlock::decode(b).err().map(|c| c.0));
                let used = (get_u32(b, XATTR_USED) as usize).min(b.len() - META_HEADER_SIZE);
                let mut list = Vec::new();
                let piece = &b[META_HEADER_SIZE..META_HEADER_SIZE + used];
                // Entries may lie across the end of a block; the chain as a whole shows those.
                let whole = decode_list(piece, false, &mut list).is_ok();
                f.put("attributes", list.iter().map(attribute).collect::<Vec<_>>());
                if !whole {
                    f.put("bytes", self.shown(piece));
                }
            }
            BlockKind::Quota => {
                let number = get_u64(b, QUOTA_LBLOCK);
                f.put("number", number);
                let shift = self.g.frag_shift;
                f.put("records", records(b, number).map(|(id, r)| quota(id, &r, shift)).collect::<Vec<_>>());
            }
        }
        f
    }
}

/// Runs of fragments in use and free, from `first` on the device on.
fn runs(bits: &[u8], len: u64, first: u64) -> Fields {
    let (mut used, mut free, mut at, mut free_total) = (Vec::new(), Vec::new(), 0, 0);
    let run = |start: u64, len: u64| {
        let mut r = Fields::new();
        r.put("first", first.saturating_add(start)).put("fragments", len);
        r
    };
    for (start, n) in free_runs(bits, len) {
        if start > at {
            used.push(run(at, start - at));
        }
        free.push(run(start, n));
        free_total += n;
        at = start + n;
    }
    if at < len {
        used.push(run(at, len - at));
    }
    let mut f = Fields::new();
    f.put("fragments", len).put("free_fragments", free_total).put("in_use", used).put("free", free);
    f
}

pub(super) fn counters(c: &Counters) -> Fields {
    let mut f = Fields::new();
    f.put("free_fragments", c.free_frags).put("inodes", c.inodes).put("groups_initialized", c.ags);
    f.put("first_orphan", c.orphan_head).put("blocks", c.blocks);
    f
}

pub(super) fn extent(e: &Extent) -> Fields {
    let mut f = Fields::new();
    f.put("logical", e.logical).put("first", e.start).put("fragments", e.len);
    if e.unwritten {
        f.put("unwritten", true);
    }
    f
}

pub(super) fn child(c: &Child) -> Fields {
    let mut f = Fields::new();
    f.put("logical", c.key).put("node", c.block);
    f
}

/// A record of the locator table; `None` for one that is free.
pub(super) fn location(bytes: &[u8], ino: Ino, block_size: usize) -> Option<Fields> {
    let mut f = Fields::new();
    f.put("inode", ino);
    let (state, block, offset) = match Location::decode(bytes, ino, block_size) {
        Ok(Location::Free) => return None,
        Ok(Location::Embedded { block, offset }) => ("embedded", block, offset),
        Ok(Location::External { block, offset }) => ("external", block, offset),
        Err(c) => {
            problems(&mut f, vec![c.0]);
            ("damaged", get_u64(bytes, 0), get_u32(bytes, 8) as usize)
        }
    };
    f.put("state", state).put("in_block", block).put("offset", offset);
    Some(f)
}

pub(super) fn attribute(x: &Xattr) -> Fields {
    let mut f = Fields::new();
    f.put("name", Value::Bytes(x.full_name())).put("value_hex", hex(&x.value));
    f
}

fn quota(id: u32, r: &QuotaRecord, frag_shift: u32) -> Fields {
    let mut f = Fields::new();
    let bytes = |frags: u64| frags.saturating_mul(1 << frag_shift);
    f.put("id", id).put("bytes", bytes(r.frags)).put("inodes", r.inodes);
    f.put("soft_bytes", bytes(r.soft_frags)).put("hard_bytes", bytes(r.hard_frags));
    f.put("soft_inodes", r.soft_inodes).put("hard_inodes", r.hard_inodes);
    if id == 0 {
        f.put("grace_bytes_ns", r.frags_deadline as u64).put("grace_inodes_ns", r.inodes_deadline as u64);
    } else {
        f.put_some("bytes_deadline", (r.frags_deadline != 0).then_some(Value::Time(r.frags_deadline)));
        f.put_some("inodes_deadline", (r.inodes_deadline != 0).then_some(Value::Time(r.inodes_deadline)));
    }
    f
}

/// The entries as far as their chain can be followed.
fn dir_block(b: &[u8], wrong: &mut Vec<String>) -> Fields {
    let mut f = Fields::new();
    f.put("number", get_u64(b, DIR_LBLOCK)).put("free_bytes", get_u32(b, DIR_FREE));
    f.put("names", get_u16(b, DIR_NAMES)).put("orphans", get_u16(b, DIR_ORPHANS));
    wrong.extend(dirblock::validate(b).err().map(|c| c.0));
    let mut list = Vec::new();
    for e in entry_chain(b) {
        list.push(entry(b, &e));
    }
    f.put("entries", list);
    f
}

/// An entry whose length, and the length of whose name, are possible.
pub(crate) struct RawEntry<'a> {
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) file_type: u8,
    pub(crate) name: &'a [u8],
}

impl RawEntry<'_> {
    pub(super) fn is_name(&self) -> bool {
        self.kind == 1 || self.kind == 2
    }
    pub(crate) fn inode_offset(&self) -> usize {
        self.offset + ENTRY_HEADER + align8(self.name.len())
    }
}

/// Follows the chain of a block that need not be valid, up to where it breaks.
pub(crate) fn entry_chain(b: &[u8]) -> impl Iterator<Item = RawEntry<'_>> {
    let mut offset = META_HEADER_SIZE;
    std::iter::from_fn(move || {
        let head = b.get(offset..offset + ENTRY_HEADER)?;
        let (len, tag, name_len) = (get_u16(head, 0) as usize, head[2], head[3] as usize);
        let possible = len.is_multiple_of(8) && len >= ENTRY_HEADER + align8(name_len) && len <= b.len() - offset;
        let name = b.get(offset + ENTRY_HEADER..offset + ENTRY_HEADER + name_len).filter(|_| possible)?;
        let e = RawEntry { offset, len, kind: tag & 0xf, file_type: tag >> 4, name };
        offset += len;
        Some(e)
    })
}

fn entry(b: &[u8], e: &RawEntry<'_>) -> Fields {
    let mut f = Fields::new();
    f.put("offset", e.offset).put("length", e.len);
    let kind = ["free", "embedded", "link", "orphan"].get(e.kind as usize);
    f.put("kind", kind.map_or_else(|| format!("unknown ({})", e.kind), |k| (*k).to_string()));
    if e.kind == 0 {
        return f;
    }
    f.put("type", type_name(e.file_type)).put("inode", get_u64(b, e.offset + 8));
    f.put("hash", Value::hex(get_u32(b, e.offset + 4), 8)).put("name", Value::Bytes(e.name.to_vec()));
    if e.kind != 2 {
        f.put("embedded", inode_value(&b[e.inode_offset()..e.offset + e.len]));
    }
    f
}
