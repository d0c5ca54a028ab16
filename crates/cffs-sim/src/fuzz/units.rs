//! What stands on an image: structures with a checksum of their own, and the fields in them.

use cffs::device::{Device, IoKind};
use cffs::format::dirblock::ENTRY_HEADER;
use cffs::format::geometry::INODE_SLOT_SIZE;
use cffs::format::inode::INODE_CORE_SIZE;
use cffs::format::log::{
    LOG_HEADER_AREA, LOG_HEADER_SIZE, LOG_HEADER_SLOTS, RECORD_HEADER, TXN_HEADER, txn_crc_ok, txn_header,
};
use cffs::format::superblock::SUPERBLOCK_SIZE;
use cffs::format::{
    BlockKind, META_CRC, META_HEADER_SIZE, align8, block_seq, get_u16, get_u32, get_u64, put_u32, seal,
};
use cffs::journal::{log_extent, read_header};
use cffs::mkfs::backup_ags;
use cffs::{Geometry, Superblock};
use std::sync::Arc;

/// What a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitKind {
    /// The superblock or a copy.
    Super,
    /// A metadata block.
    Meta(BlockKind),
    /// The header of the log.
    LogHeader,
    /// A transaction that is to be replayed.
    Txn,
}

/// A run of bytes with one checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// What it is.
    pub kind: UnitKind,
    /// Number of the device.
    pub device: usize,
    /// Byte offset on it.
    pub at: u64,
    /// Bytes.
    pub len: usize,
}

impl Unit {
    /// Reads it.
    pub fn read(&self, devices: &[Arc<dyn Device>]) -> Vec<u8> {
        let mut b = vec![0; self.len];
        devices[self.device].read_at(IoKind::Meta, self.at, &mut b).expect("a device in memory");
        b
    }

    /// Writes it.
    pub fn write(&self, devices: &[Arc<dyn Device>], bytes: &[u8]) {
        devices[self.device].write_at(IoKind::Meta, self.at, bytes).expect("a device in memory");
    }

    /// Makes the checksum right, and nothing else. What claims to be of another kind than it was keeps the same form.
    pub fn reseal(&self, b: &mut [u8]) {
        match self.kind {
            UnitKind::Meta(_) => seal(b, block_seq(b)),
            UnitKind::Super => crc_at(&mut b[..SUPERBLOCK_SIZE], 8),
            UnitKind::LogHeader => crc_at(&mut b[..LOG_HEADER_SIZE], 8),
            UnitKind::Txn => {
                // As long as it says it is; what it says may be nonsense.
                let len = usize::try_from(get_u64(b, 24)).unwrap_or(usize::MAX);
                let len = if (TXN_HEADER..=b.len()).contains(&len) { len } else { b.len() };
                crc_at(&mut b[..len], 4);
            }
        }
    }

    /// Fields: byte offset and length. Of damaged bytes as many as can be made out.
    pub fn fields(&self, b: &[u8]) -> Vec<(usize, usize)> {
        let mut out = Vec::new();
        match self.kind {
            UnitKind::Super => {
                out.extend([(12, 4), (120, 1), (121, 1), (122, 1), (123, 1), (208, 4), (212, 4)]);
                out.extend((96..120).step_by(8).map(|o| (o, 8)));
                out.extend((128..208).step_by(8).map(|o| (o, 8)));
                out.extend([(16, 8), (32, 8), (216, 8), (224, 8), (232, 8), (256, 8)]);
            }
            UnitKind::LogHeader => out.extend([(0, 8), (16, 8), (24, 8), (32, 8), (40, 8)]),
            UnitKind::Txn => txn_fields(b, &mut out),
            UnitKind::Meta(kind) => {
                out.extend([(0, 4), (8, 8), (16, 8), (24, 8), (32, 8)]);
                meta_fields(kind, b, &mut out);
            }
        }
        out.retain(|(at, len)| at + len <= b.len());
        out
    }
}

fn crc_at(b: &mut [u8], at: usize) {
    put_u32(b, at, 0);
    let crc = cffs::format::crc32c(b);
    put_u32(b, at, crc);
}

/// The fields of an inode whose room begins at `at`.
fn inode_fields(at: usize, room: usize, out: &mut Vec<(usize, usize)>) {
    for (o, len) in [(0, 8), (8, 4), (12, 2), (14, 1), (15, 1), (16, 4), (20, 4), (24, 4), (28, 4), (32, 8), (40, 8)] {
        out.push((at + o, len));
    }
    out.extend((48..=88).step_by(8).map(|o| (at + o, 8)));
    out.extend([(at + 95, 1), (at + 96, 4), (at + 100, 4), (at + 104, 8), (at + 112, 8)]);
    out.extend((INODE_CORE_SIZE..room.saturating_sub(7)).step_by(8).map(|o| (at + o, 8)));
}

fn meta_fields(kind: BlockKind, b: &[u8], out: &mut Vec<(usize, usize)>) {
    let words = |out: &mut Vec<(usize, usize)>, from: usize, to: usize, n: usize| {
        out.extend((from..to).step_by(n).map(|o| (o, n)));
    };
    match kind {
        BlockKind::AgHeader => {
            out.push((64, 8));
            words(out, 72, 96, 8);
        }
        BlockKind::DataSums => {
            out.push((40, 8));
            words(out, 64, b.len().min(64 + 256), 4);
        }
        BlockKind::Counters => words(out, 64, 104, 8),
        BlockKind::Bitmap => {
            out.push((40, 8));
            words(out, 64, b.len().min(64 + 256), 8);
        }
        BlockKind::SystemInodes | BlockKind::ExternalInodes => {
            out.extend([(40, 8), (48, 4)]);
            for at in (META_HEADER_SIZE..b.len() + 1 - INODE_SLOT_SIZE).step_by(INODE_SLOT_SIZE) {
                inode_fields(at, INODE_CORE_SIZE + 64, out);
            }
        }
        BlockKind::Dir => {
            out.extend([(40, 8), (48, 4), (52, 2), (54, 2)]);
            let mut at = META_HEADER_SIZE;
            while at + ENTRY_HEADER <= b.len() {
                out.extend([(at, 2), (at + 2, 1), (at + 3, 1), (at + 4, 4), (at + 8, 8), (at + 16, 1), (at + 17, 2)]);
                let (len, name) = (get_u16(b, at) as usize, align8(b[at + 3] as usize));
                let room = len.saturating_sub(ENTRY_HEADER + name);
                if room >= INODE_CORE_SIZE {
                    inode_fields(at + ENTRY_HEADER + name, room, out);
                }
                if len < ENTRY_HEADER {
                    break;
                }
                at += len;
            }
        }
        BlockKind::DirIndex => {
            words(out, 40, 52, 4);
            words(out, 64, b.len().min(64 + 8 * get_u32(b, 44) as usize), 4);
        }
        BlockKind::ExtentNode => {
            words(out, 40, 44, 2);
            words(out, 64, b.len().min(64 + 16 * get_u16(b, 42) as usize + 16), 8);
        }
        BlockKind::Locator => {
            out.extend([(40, 8), (48, 4)]);
            for at in (64..b.len() - 15).step_by(16) {
                out.extend([(at, 8), (at + 8, 4), (at + 12, 4)]);
            }
        }
        BlockKind::TableMap => {
            out.push((40, 8));
            words(out, 64, 128, 2);
        }
        BlockKind::Xattr => {
            out.extend([(40, 8), (48, 4), (52, 4)]);
            words(out, 64, 128, 4);
        }
        BlockKind::Quota => {
            out.push((40, 8));
            words(out, 64, b.len(), 8);
        }
    }
}

fn txn_fields(b: &[u8], out: &mut Vec<(usize, usize)>) {
    out.extend([(0, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 8)]);
    let payload = usize::try_from(get_u64(b, 32)).unwrap_or(0).min(b.len().saturating_sub(TXN_HEADER));
    let end = TXN_HEADER + payload;
    let mut at = TXN_HEADER;
    while at + RECORD_HEADER <= end {
        out.extend([(at, 1), (at + 1, 1), (at + 2, 2), (at + 4, 4), (at + 8, 8)]);
        let n = get_u16(b, at + 2) as usize;
        let table = at + RECORD_HEADER;
        if b[at] != 1 || n > 8192 || table + align8(n * 4) > end {
            at = table;
            continue;
        }
        let mut bytes = 0;
        for i in 0..n {
            out.extend([(table + i * 4, 2), (table + i * 4 + 2, 2)]);
            bytes += get_u16(b, table + i * 4 + 2) as usize * 8;
        }
        let body = table + align8(n * 4);
        out.extend((body..end.min(body + bytes.min(64))).step_by(8).map(|o| (o, 8)));
        at = body + bytes;
    }
}

/// Bytes at the start of the device in which metadata are looked for; and the start of each allocation group.
const SCAN: u64 = 24 << 20;

/// Everything with a checksum on these devices.
pub fn find_units(devices: &[Arc<dyn Device>], sb: &Superblock, g: &Geometry) -> Vec<Unit> {
    let bs = g.block_size();
    let mut units = vec![Unit { kind: UnitKind::Super, device: 0, at: 0, len: SUPERBLOCK_SIZE }];
    for ag in backup_ags(g) {
        units.push(Unit {
            kind: UnitKind::Super,
            device: 0,
            at: g.ag_start(ag) << g.block_shift,
            len: SUPERBLOCK_SIZE,
        });
    }
    let log_device = devices.len() - 1;
    let (log_at, log_len) = log_extent(sb);
    let in_log = |at: u64| log_device == 0 && (log_at..log_at + log_len).contains(&at);
    let heads =
        (0..g.ag_count).flat_map(|ag| (g.ag_start(ag)..g.ag_start(ag) + g.ag_header_blocks()).collect::<Vec<_>>());
    let mut blocks: Vec<u64> =
        (0..g.total_blocks.min(SCAN.max(log_at + log_len + (8 << 20)) >> g.block_shift)).collect();
    blocks.extend(heads);
    blocks.sort_unstable();
    blocks.dedup();
    let mut b = vec![0; bs];
    for addr in blocks {
        let at = addr << g.block_shift;
        if in_log(at) {
            continue;
        }
        devices[0].read_at(IoKind::Meta, at, &mut b).expect("a device in memory");
        let Some(kind) = BlockKind::from_magic(get_u32(&b, 0)) else { continue };
        if get_u64(&b, 16) == addr && get_u64(&b, 8) == g.fsid && get_u32(&b, META_CRC) != 0 {
            units.push(Unit { kind: UnitKind::Meta(kind), device: 0, at, len: bs });
        }
    }
    units.extend(LOG_HEADER_SLOTS.map(|slot| Unit {
        kind: UnitKind::LogHeader,
        device: log_device,
        at: log_at + slot,
        len: LOG_HEADER_SIZE,
    }));
    units.extend(transactions(devices, sb, g).into_iter().map(|(at, len)| Unit {
        kind: UnitKind::Txn,
        device: log_device,
        at,
        len,
    }));
    units
}

/// The transactions that count, as byte offset on the log's device and length; one that wraps ends the list.
pub fn transactions(devices: &[Arc<dyn Device>], sb: &Superblock, g: &Geometry) -> Vec<(u64, usize)> {
    let dev = &devices[devices.len() - 1];
    let (at, len) = log_extent(sb);
    let ring = len - LOG_HEADER_AREA;
    let mut out = Vec::new();
    let Ok(h) = read_header(&**dev, sb) else { return out };
    let (mut pos, mut seq, unit) = (h.tail, h.tail_seq, g.frag_size() as u64);
    let mut first = vec![0; g.frag_size()];
    while pos.is_multiple_of(unit) && pos + first.len() as u64 <= ring {
        dev.read_at(IoKind::Meta, at + LOG_HEADER_AREA + pos, &mut first).expect("a device in memory");
        let Some(t) =
            txn_header(&first, g.fsid, seq, ring).filter(|t| t.len > 0 && t.len % unit == 0 && pos + t.len <= ring)
        else {
            break;
        };
        let mut all = vec![0; t.len as usize];
        dev.read_at(IoKind::Meta, at + LOG_HEADER_AREA + pos, &mut all).expect("a device in memory");
        if !txn_crc_ok(&all) {
            break;
        }
        out.push((at + LOG_HEADER_AREA + pos, all.len()));
        pos += t.len;
        seq += 1;
    }
    out
}
