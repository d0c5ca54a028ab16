//! Writes a new file system.

use super::options::MkfsOptions;
use super::plan::plan;
use crate::error::{Error, Result};
use crate::format::ag::{AG_FREE_FRAGS, BITMAP_BITS, BITMAP_INDEX, set_bits};
use crate::format::log::{LOG_HEADER_AREA, LOG_HEADER_SIZE, LOG_HEADER_SLOTS, LogHeader};
use crate::format::system::{COUNT_FREE_FRAGS, COUNTERS_LEN, Counters};
use crate::format::{
    BlockAddr, BlockId, BlockKind, FileType, Geometry, Inode, LAST_SYSTEM_INO, ROOT_INO, Superblock, init_block,
    put_u64, seal,
};
use crate::superblocks::{backup_ags, write_superblock};
use cffs_device::{Device, IoKind};

const MIB: u64 = 1 << 20;
/// Bytes at the start of the device in which other file systems and partition tables keep their signatures
/// (the farthest is that of btrfs, at 64 KiB).
const WIPE_START: u64 = 128 << 10;
/// Bytes at the end with signatures (backup partition table, RAID, ZFS and others' labels).
const WIPE_END: u64 = 64 << 10;
/// Zeroed at the start of the log's circular part, so that nothing old looks like the first transaction.
const LOG_WIPE: u64 = 64 << 10;

/// Fragments of the whole file system that are free right after [`mkfs`].
fn free_at_first(g: &Geometry, used_in_ag0: u64) -> u64 {
    let headers = (g.ag_count - 1) * g.ag_header_blocks() * g.frags_per_block();
    g.total_frags() - used_in_ag0 - headers
}

/// Collects blocks that follow each other into writes of at most 1 MiB.
struct BlockWriter<'a> {
    dev: &'a dyn Device,
    block_size: usize,
    next: BlockAddr,
    buf: Vec<u8>,
}

impl BlockWriter<'_> {
    fn push(&mut self, block: &[u8]) -> Result<()> {
        self.buf.extend_from_slice(block);
        self.next += 1;
        if self.buf.len() >= MIB as usize { self.flush() } else { Ok(()) }
    }
    /// Goes on at another block.
    fn go_to(&mut self, block: BlockAddr) -> Result<()> {
        if block != self.next {
            self.flush()?;
            self.next = block;
        }
        Ok(())
    }
    fn flush(&mut self) -> Result<()> {
        let start = self.next - (self.buf.len() / self.block_size) as u64;
        if !self.buf.is_empty() {
            self.dev.write_at(IoKind::Meta, start * self.block_size as u64, &self.buf)?;
            self.buf.clear();
        }
        Ok(())
    }
}

fn system_inode(ino: u64, o: &MkfsOptions, now: i64) -> Inode {
    if ino == ROOT_INO {
        let mut root = Inode::new(ino, FileType::Directory.mode_bits() | 0o755, now);
        (root.nlink, root.parent, root.uid, root.gid) = (2, ROOT_INO, o.root_uid, o.root_gid);
        root
    } else {
        Inode::new(ino, FileType::Regular.mode_bits() | 0o600, now)
    }
}

/// Makes a file system on `dev`, with its log on `log_dev` if given. Whatever was there is lost.
///
/// The old signatures go first and the new superblock comes last, so an interrupted run leaves no file system at all.
pub fn mkfs(dev: &dyn Device, log_dev: Option<&dyn Device>, o: &MkfsOptions) -> Result<Superblock> {
    for d in [Some(dev), log_dev].into_iter().flatten() {
        if d.read_only() {
            return Err(Error::ReadOnly);
        }
    }
    let sb = plan(dev, log_dev, o)?;
    let g = Geometry::new(&sb)?;
    let bs = g.block_size();

    wipe(dev)?;
    dev.flush()?;
    if let Some(log) = log_dev {
        wipe(log)?;
    }

    let fpb = g.frags_per_block();
    let internal_log = if sb.log_start > 0 { sb.log_blocks } else { 0 };
    let used = (g.fixed_blocks_of_ag0() + internal_log) * fpb;
    let ag_frags = g.ag_len(0) * fpb;
    let mut writer = BlockWriter { dev, block_size: bs, next: g.ag_header(0), buf: Vec::new() };
    let mut block = vec![0; bs];
    let start = |block: &mut Vec<u8>, kind, addr, owner| {
        block.fill(0);
        init_block(block, g.fsid, BlockId { kind, addr, owner });
    };

    start(&mut block, BlockKind::AgHeader, writer.next, 0);
    put_u64(&mut block, AG_FREE_FRAGS, ag_frags - used);
    seal(&mut block, 0);
    writer.push(&block)?;
    for index in 0..g.bitmap_blocks() {
        start(&mut block, BlockKind::Bitmap, writer.next, 0);
        put_u64(&mut block, BITMAP_INDEX, index);
        let first = index * g.bits_per_bitmap();
        let within = |frag: u64| frag.saturating_sub(first).min(g.bits_per_bitmap());
        set_bits(&mut block[BITMAP_BITS..], 0, within(used), true);
        set_bits(&mut block[BITMAP_BITS..], within(ag_frags), g.bits_per_bitmap(), true);
        seal(&mut block, 0);
        writer.push(&block)?;
    }
    // Tables of checksums come into being when they are needed.
    writer.go_to(g.counters_block())?;

    start(&mut block, BlockKind::Counters, writer.next, 0);
    let free_frags = free_at_first(&g, used);
    let counters = Counters { free_frags, inodes: 1, ags: 1, blocks: g.total_blocks, ..Counters::default() };
    block[COUNT_FREE_FRAGS..COUNT_FREE_FRAGS + COUNTERS_LEN].copy_from_slice(&counters.encode());
    seal(&mut block, 0);
    writer.push(&block)?;
    for first in (1..=LAST_SYSTEM_INO).step_by(g.inodes_per_block() as usize) {
        start(&mut block, BlockKind::SystemInodes, writer.next, 0);
        for ino in first..=(first + g.inodes_per_block() - 1).min(LAST_SYSTEM_INO) {
            let (addr, offset) = g.system_inode(ino);
            debug_assert_eq!(addr, writer.next);
            let inode = system_inode(ino, o, sb.created);
            inode.encode(&mut block[offset..offset + inode.encoded_len()]);
        }
        seal(&mut block, 0);
        writer.push(&block)?;
    }
    writer.flush()?;

    // Under a uuid that was used before, transactions of the old log could pass for new ones: number them otherwise.
    let seq = if o.uuid.is_some() { (sb.created / 1000).max(1) as u64 } else { 1 };
    write_log_header(log_dev.unwrap_or(dev), &sb, &g, seq)?;
    for ag in backup_ags(&g) {
        let copy = Superblock { copy: ag, ..sb.clone() };
        write_superblock(dev, &g, &copy)?;
    }
    if let Some(log) = log_dev {
        log.flush()?;
    }
    dev.flush()?;
    write_superblock(dev, &g, &sb)?;
    dev.flush()?;
    Ok(sb)
}

fn write_log_header(dev: &dyn Device, sb: &Superblock, g: &Geometry, seq: u64) -> Result<()> {
    let first = LogHeader::first(sb.fsid(), seq);
    let mut start = vec![0; (LOG_HEADER_AREA + LOG_WIPE) as usize];
    for h in [first, first.next(first.tail, first.tail_seq)] {
        let at = LOG_HEADER_SLOTS[h.slot()] as usize;
        start[at..at + LOG_HEADER_SIZE].copy_from_slice(&h.encode());
    }
    dev.write_at(IoKind::Super, sb.log_start << g.block_shift, &start)?;
    Ok(())
}

/// Zeroes the places where file systems, partition tables and volume managers put their signatures. The first sector alone
/// at first, with a superblock of ours: it must not lead to what is half gone.
fn wipe(dev: &dyn Device) -> Result<()> {
    let sector = u64::from(dev.sector_size());
    let end = dev.len() / sector * sector;
    let first = WIPE_START.next_multiple_of(sector).min(end);
    let last = end.saturating_sub(WIPE_END.next_multiple_of(sector)).max(first);
    let alone = sector.min(first);
    if alone > 0 {
        dev.write_at(IoKind::Super, 0, &vec![0; alone as usize])?;
        dev.flush()?;
    }
    for (from, to) in [(alone, first), (last, end)] {
        if from < to {
            dev.write_at(IoKind::Super, from, &vec![0; (to - from) as usize])?;
        }
    }
    Ok(())
}
