//! Making a file system, and reading the superblock of one.
//!
//! The cost does not depend on the size of the device: only allocation group 0 is written, and copies of the
//! superblock in group 1 and in the last one. All other groups stay as they are until space is first needed in them.

use crate::device::{Device, IoKind};
use crate::error::{Error, Result};
use crate::format::ag::{AG_FREE_FRAGS, BITMAP_BITS, BITMAP_INDEX, set_bits};
use crate::format::geometry::{
    BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, FRAGMENT_SIZE_MIN, GROUP_SIZE_MAX, GROUP_SIZE_MIN, INODE_SLOT_SIZE,
};
use crate::format::log::{LOG_HEADER_AREA, LOG_HEADER_SIZE, LOG_HEADER_SLOTS, LogHeader};
use crate::format::superblock::{
    COMPAT_DIRS_WITH_DATA, COMPAT_NO_GROUP, FORMAT_VERSION, INCOMPAT_DATA_SUMS, INCOMPAT_EXTERNAL_LOG,
    INCOMPAT_NO_EMBED, LABEL_MAX, MAGIC, MOUNT_OPTIONS_MAX, SUPERBLOCK_SIZE, State,
};
use crate::format::system::{COUNT_FREE_FRAGS, COUNTERS_LEN, Counters};
use crate::format::{
    BlockAddr, BlockId, BlockKind, Corrupt, FileType, Geometry, Inode, LAST_SYSTEM_INO, META_HEADER_SIZE, QuotaKind,
    ROOT_INO, Superblock, init_block, put_u64, seal, sums,
};

const MIB: u64 = 1 << 20;
/// Bytes at the start of the device in which other file systems and partition tables keep their signatures
/// (the farthest is that of btrfs, at 64 KiB).
const WIPE_START: u64 = 128 << 10;
/// Bytes at the end with signatures (backup partition table, RAID, ZFS and others' labels).
const WIPE_END: u64 = 64 << 10;
/// Largest internal log. More would not help: it is replayed at mount, and that has to take about a second.
const LOG_MAX: u64 = crate::format::geometry::LOG_SIZE_MAX;
/// Zeroed at the start of the log's circular part, so that nothing old looks like the first transaction.
const LOG_WIPE: u64 = 64 << 10;

/// What a new file system is to be like.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MkfsOptions {
    /// Block size in bytes: a power of two, 512 to 65536.
    pub block_size: u32,
    /// Fragment size in bytes: a power of two, an eighth of the block to a block, 512 or more. `None`: a quarter of the
    /// block, at least a sector of the device.
    pub frag_size: Option<u32>,
    /// Group size in bytes: a power of two, 16 KiB to 4 MiB, at least a block.
    pub group_size: u32,
    /// Size of the log in bytes. `None`: 1/64 of the device, 4 MiB to 128 MiB, at most a quarter of the device; of an
    /// external log device all, at most 128 MiB.
    pub log_bytes: Option<u64>,
    /// Name of the file system, at most 64 bytes.
    pub label: String,
    /// Identity. `None`: random.
    pub uuid: Option<[u8; 16]>,
    /// Key of the directory hash. `None`: random.
    pub hash_seed: Option<[u64; 2]>,
    /// Share of the space kept for privileged users, in 1/10,000.
    pub reserve_bp: u32,
    /// Inodes in chunks outside the directories.
    pub no_embed: bool,
    /// Conventional placement instead of groups.
    pub no_group: bool,
    /// Directory blocks stand in the data groups (the 1997 placement).
    pub dirs_with_data: bool,
    /// Checksums of file data.
    pub data_sums: bool,
    /// Quotas to keep.
    pub quota: Vec<QuotaKind>,
    /// Time of creation in nanoseconds since 1970. `None`: now.
    pub now_ns: Option<i64>,
    /// Bytes of the device to use. `None`: all.
    pub size: Option<u64>,
    /// Size of an allocation group in blocks. `None`: chosen from the device's size.
    pub ag_blocks: Option<u64>,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
}

setters!(MkfsOptions {
    block_size: u32,
    frag_size: Option<u32>,
    group_size: u32,
    log_bytes: Option<u64>,
    label: String,
    uuid: Option<[u8; 16]>,
    hash_seed: Option<[u64; 2]>,
    reserve_bp: u32,
    no_embed: bool,
    no_group: bool,
    dirs_with_data: bool,
    data_sums: bool,
    quota: Vec<QuotaKind>,
    now_ns: Option<i64>,
    size: Option<u64>,
    ag_blocks: Option<u64>,
    root_uid: u32,
    root_gid: u32,
});

impl Default for MkfsOptions {
    fn default() -> Self {
        MkfsOptions {
            block_size: 4096,
            frag_size: None,
            group_size: 256 << 10,
            log_bytes: None,
            label: String::new(),
            uuid: None,
            hash_seed: None,
            reserve_bp: 500,
            no_embed: false,
            no_group: false,
            dirs_with_data: false,
            data_sums: false,
            quota: Vec::new(),
            now_ns: None,
            size: None,
            ag_blocks: None,
            root_uid: 0,
            root_gid: 0,
        }
    }
}

/// Smallest log in bytes: the header area, and room for the largest transactions. One may reserve a fifth of the log,
/// so that others can go on while it is written, and a rename that splits directory blocks, index buckets, table chunks
/// and extent trees at once reserves a little more than 50 blocks: 72 blocks to the fifth. Never below 1 MiB, where every few hundred
/// operations would have to wait for a checkpoint.
pub fn log_bytes_min(block_size: u32) -> u64 {
    (LOG_HEADER_AREA + 360 * u64::from(block_size)).max(MIB)
}

fn power_of_two(what: &str, value: u32, min: u32, max: u32) -> Result<u32> {
    if !value.is_power_of_two() || value < min || value > max {
        return Error::invalid(format!("{what} of {value} bytes: must be a power of two from {min} to {max}"));
    }
    Ok(value.trailing_zeros())
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut b = [0; N];
    let mut done = 0;
    while done < N {
        let n = rustix::rand::getrandom(&mut b[done..], rustix::rand::GetRandomFlags::empty())
            .map_err(std::io::Error::from)?;
        done += n;
    }
    Ok(b)
}

/// The time, in nanoseconds since 1970.
pub(crate) fn now_ns() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
}

/// A number that nobody can know beforehand.
pub(crate) fn random_u32() -> Result<u32> {
    Ok(u32::from_ne_bytes(random()?))
}

/// The superblock that [`mkfs`] would write, with every option checked. Touches no device.
pub fn plan(dev: &dyn Device, log_dev: Option<&dyn Device>, o: &MkfsOptions) -> Result<Superblock> {
    let block_shift = power_of_two("block size", o.block_size, BLOCK_SIZE_MIN, BLOCK_SIZE_MAX)?;
    if dev.sector_size() > o.block_size {
        return Error::invalid(format!(
            "block size of {} bytes: the device has sectors of {}",
            o.block_size,
            dev.sector_size()
        ));
    }
    let frag_least = (o.block_size / 8).max(FRAGMENT_SIZE_MIN);
    let frag_default = (o.block_size / 4).max(FRAGMENT_SIZE_MIN).max(dev.sector_size());
    let frag_size = o.frag_size.unwrap_or(frag_default);
    let frag_shift = power_of_two("fragment size", frag_size, frag_least, o.block_size)?;
    if frag_size < dev.sector_size() {
        return Error::invalid(format!(
            "fragment size of {frag_size} bytes: the device has sectors of {}",
            dev.sector_size()
        ));
    }
    let group_shift = power_of_two("group size", o.group_size, GROUP_SIZE_MIN.max(o.block_size), GROUP_SIZE_MAX)?;
    if o.reserve_bp > 5000 {
        return Error::invalid(format!(
            "reserve of {}/10000 of the space: at most half can be kept back",
            o.reserve_bp
        ));
    }
    if o.label.len() > LABEL_MAX || o.label.contains('\0') {
        return Error::invalid(format!("label {:?}: at most {LABEL_MAX} bytes, none of them zero", o.label));
    }
    if o.uuid == Some([0; 16]) {
        return Error::invalid("uuid of zeros: stands for no file system at all");
    }

    let bytes = dev.len().min(o.size.unwrap_or(u64::MAX));
    let total_blocks = (bytes >> block_shift).min((1 << 63) >> block_shift);
    let mut sb = Superblock {
        version: FORMAT_VERSION,
        uuid: o.uuid.map_or_else(random_uuid, Ok)?,
        label: [0; LABEL_MAX],
        compat: 0,
        ro_compat: o.quota.iter().fold(0, |bits, kind| bits | kind.feature()),
        incompat: 0,
        block_shift: block_shift as u8,
        frag_shift: frag_shift as u8,
        group_shift: group_shift as u8,
        state: State::Clean,
        copy: 0,
        total_blocks,
        ag_blocks: 0,
        log_start: 0,
        log_blocks: 0,
        log_uuid: [0; 16],
        sys_start: 0,
        hash_seed: match o.hash_seed {
            Some(seed) => seed,
            None => [u64::from_le_bytes(random()?), u64::from_le_bytes(random()?)],
        },
        reserve_bp: o.reserve_bp,
        mount_count: 0,
        created: o.now_ns.unwrap_or_else(now_ns),
        mounted: 0,
        metadata_fsid: 0,
        mount_options: [0; MOUNT_OPTIONS_MAX],
    };
    sb.label[..o.label.len()].copy_from_slice(o.label.as_bytes());
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    sb.incompat = bit(o.no_embed, INCOMPAT_NO_EMBED)
        | bit(log_dev.is_some(), INCOMPAT_EXTERNAL_LOG)
        | bit(o.data_sums, INCOMPAT_DATA_SUMS);
    sb.compat = bit(o.no_group, COMPAT_NO_GROUP) | bit(o.dirs_with_data, COMPAT_DIRS_WITH_DATA);

    let log_min = log_bytes_min(o.block_size);
    if let Some(bytes) = o.log_bytes.filter(|bytes| !(log_min..=LOG_MAX).contains(bytes)) {
        return Error::invalid(format!("log of {bytes} bytes: must be {log_min} to {LOG_MAX}"));
    }
    place(&mut sb, dev, log_dev, o, log_min)?;
    Ok(sb)
}

/// A new identity: random, version 4 of RFC 9562.
pub fn random_uuid() -> Result<[u8; 16]> {
    let mut uuid: [u8; 16] = random()?;
    uuid[6] = uuid[6] & 0x0f | 0x40; // version 4, as RFC 9562 has it
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

/// Chooses allocation groups and log.
fn place(
    sb: &mut Superblock,
    dev: &dyn Device,
    log_dev: Option<&dyn Device>,
    o: &MkfsOptions,
    log_min: u64,
) -> Result<()> {
    let (bs, group_blocks) = (u64::from(o.block_size), u64::from(o.group_size / o.block_size));
    let (shift, size) = (sb.block_shift, sb.total_blocks << sb.block_shift);
    let internal = if log_dev.is_none() { o.log_bytes.unwrap_or(log_min) } else { 0 };
    let too_small = |need: u64| {
        Error::invalid(format!(
            "a device of {} bytes is too small: with this block size and log it takes at least {need}",
            dev.len().min(o.size.unwrap_or(u64::MAX))
        ))
    };
    // Four times the log, since a log that takes more than a quarter of the device is not what anybody wants.
    let need =
        if o.log_bytes.is_some() { internal * 2 } else { internal * 4 }.max(MIB).max(u64::from(o.group_size) * 4);
    if size < need {
        return too_small(need);
    }

    sb.ag_blocks = match o.ag_blocks {
        Some(n) => n,
        None => {
            let default =
                Geometry::default_ag_blocks(sb.total_blocks, shift.into(), sb.frag_shift.into(), sb.group_shift.into());
            // The log stands in group 0 as a whole, and should leave half of it to files.
            default.max((2 * (internal >> shift)).next_multiple_of(group_blocks))
        }
    };
    if sb.ag_blocks == 0 || !sb.ag_blocks.is_multiple_of(group_blocks) || sb.ag_blocks > (64 << 30) / bs {
        return Error::invalid(format!(
            "allocation group of {} blocks: must be a multiple of the group ({group_blocks} blocks), at most 64 GiB",
            sb.ag_blocks
        ));
    }
    // Plain arithmetic that does not look at the fields still to be found.
    let bits = (bs - META_HEADER_SIZE as u64) * 8;
    let frags = sb.ag_blocks << (sb.block_shift - sb.frag_shift);
    let tables = if o.data_sums { frags.div_ceil((bs - META_HEADER_SIZE as u64) / sums::SUM_SIZE as u64) } else { 0 };
    if tables > sums::blocks_max(bs as usize) {
        return Error::invalid(format!(
            "allocation group of {} blocks: with checksums of data it can have {} at most",
            sb.ag_blocks,
            (sums::blocks_max(bs as usize) * (bs - META_HEADER_SIZE as u64) / sums::SUM_SIZE as u64)
                >> (sb.block_shift - sb.frag_shift)
        ));
    }
    let header = 2 + frags.div_ceil(bits) + tables;
    if sb.ag_blocks < header + group_blocks {
        return Error::invalid(format!(
            "allocation group of {} blocks: {header} of them are its header, and a group ({group_blocks} blocks) must fit",
            sb.ag_blocks
        ));
    }
    let tail = sb.total_blocks % sb.ag_blocks;
    if sb.total_blocks > sb.ag_blocks && tail > 0 && tail < header + group_blocks {
        sb.total_blocks -= tail;
    }
    sb.sys_start = header;
    let per_block = (bs - META_HEADER_SIZE as u64) / INODE_SLOT_SIZE as u64;
    let fixed = header + 1 + LAST_SYSTEM_INO.div_ceil(per_block);
    let ag0 = sb.ag_blocks.min(sb.total_blocks);
    let room = ag0.saturating_sub(fixed + group_blocks);

    match log_dev {
        None => {
            let default = (size / 64).clamp(4 * MIB, 128 * MIB).min(size / 4).min((ag0 / 2) << shift).max(log_min);
            sb.log_blocks = o.log_bytes.unwrap_or(default).div_ceil(bs);
            if sb.log_blocks > room {
                return Error::invalid(format!(
                    "log of {} blocks: allocation group 0 has room for {room}; make the log smaller or the group larger",
                    sb.log_blocks
                ));
            }
            sb.log_start = fixed;
        }
        Some(log) => {
            if room == 0 {
                return too_small((fixed + group_blocks + 1) << shift);
            }
            let bytes = o.log_bytes.unwrap_or_else(|| log.len().min(128 * MIB));
            if bytes > log.len() || bytes < log_min {
                return Error::invalid(format!(
                    "external log of {bytes} bytes: the log device has {}, and at least {log_min} are needed",
                    log.len()
                ));
            }
            if log.sector_size() > 1 << sb.frag_shift {
                return Error::invalid(format!(
                    "external log: its device has sectors of {} bytes, larger than the fragment size of {}",
                    log.sector_size(),
                    1u64 << sb.frag_shift
                ));
            }
            sb.log_blocks = bytes >> shift;
            sb.log_uuid = sb.uuid;
        }
    }
    Ok(())
}

/// Fragments of the whole file system that are free right after [`mkfs`].
fn free_at_first(g: &Geometry, used_in_ag0: u64) -> u64 {
    let headers = (g.ag_count - 1) * g.ag_header_blocks() * g.frags_per_block();
    g.total_frags() - used_in_ag0 - headers
}

/// Collects blocks that follow each other into writes of at most 1 MiB.
struct Run<'a> {
    dev: &'a dyn Device,
    block_size: usize,
    next: BlockAddr,
    buf: Vec<u8>,
}

impl Run<'_> {
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
    let mut run = Run { dev, block_size: bs, next: g.ag_header(0), buf: Vec::new() };
    let mut block = vec![0; bs];
    let start = |block: &mut Vec<u8>, kind, addr, owner| {
        block.fill(0);
        init_block(block, g.fsid, BlockId { kind, addr, owner });
    };

    start(&mut block, BlockKind::AgHeader, run.next, 0);
    put_u64(&mut block, AG_FREE_FRAGS, ag_frags - used);
    seal(&mut block, 0);
    run.push(&block)?;
    for index in 0..g.bitmap_blocks() {
        start(&mut block, BlockKind::Bitmap, run.next, 0);
        put_u64(&mut block, BITMAP_INDEX, index);
        let first = index * g.bits_per_bitmap();
        let within = |frag: u64| frag.saturating_sub(first).min(g.bits_per_bitmap());
        set_bits(&mut block[BITMAP_BITS..], 0, within(used), true);
        set_bits(&mut block[BITMAP_BITS..], within(ag_frags), g.bits_per_bitmap(), true);
        seal(&mut block, 0);
        run.push(&block)?;
    }
    // Tables of checksums come into being when they are needed.
    run.go_to(g.counters_block())?;

    start(&mut block, BlockKind::Counters, run.next, 0);
    let free_frags = free_at_first(&g, used);
    let counters = Counters { free_frags, inodes: 1, ags: 1, orphan_head: 0, blocks: g.total_blocks };
    block[COUNT_FREE_FRAGS..COUNT_FREE_FRAGS + COUNTERS_LEN].copy_from_slice(&counters.encode());
    seal(&mut block, 0);
    run.push(&block)?;
    for first in (1..=LAST_SYSTEM_INO).step_by(g.inodes_per_block() as usize) {
        start(&mut block, BlockKind::SystemInodes, run.next, 0);
        for ino in first..=(first + g.inodes_per_block() - 1).min(LAST_SYSTEM_INO) {
            let (addr, offset) = g.system_inode(ino);
            debug_assert_eq!(addr, run.next);
            let inode = system_inode(ino, o, sb.created);
            inode.encode(&mut block[offset..offset + inode.encoded_len()]);
        }
        seal(&mut block, 0);
        run.push(&block)?;
    }
    run.flush()?;

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

/// Allocation groups that hold a copy of the superblock: 1 and the last one, where they exist.
pub fn backup_ags(g: &Geometry) -> impl Iterator<Item = u64> {
    let last = g.ag_count - 1;
    [1, last].into_iter().take(if last > 1 { 2 } else { last as usize })
}

/// Writes a superblock to the block that its `copy` field names.
pub fn write_superblock(dev: &dyn Device, g: &Geometry, sb: &Superblock) -> Result<()> {
    let mut block = vec![0; g.block_size()];
    block[..SUPERBLOCK_SIZE].copy_from_slice(&sb.encode());
    dev.write_at(IoKind::Super, g.ag_start(sb.copy) << g.block_shift, &block)?;
    Ok(())
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

/// Reads and checks the superblock of a device: that it is one, that its numbers make sense, and that the device is as
/// large as it says.
pub fn read_superblock(dev: &dyn Device) -> Result<Superblock> {
    let Some(bytes) = read_sector(dev, 0)? else {
        return Err(Corrupt(format!("not a cffs file system (the device has only {} bytes)", dev.len())).into());
    };
    let sb = match Superblock::decode(&bytes) {
        Ok(sb) => sb,
        Err(Corrupt(what)) => {
            // A version or feature of the future says so itself; damage deserves a look for the copies.
            let damaged = bytes[..MAGIC.len()] != MAGIC || what.contains("checksum");
            let copies = if damaged { find_copies(dev) } else { Vec::new() };
            if copies.is_empty() {
                return Err(Corrupt(what).into());
            }
            let list: Vec<String> = copies.iter().map(|(at, _)| format!("byte {at}")).collect();
            let what = if bytes[..MAGIC.len()] == MAGIC { what } else { "superblock: overwritten".to_string() };
            return Err(Corrupt(format!("{what}; good copies stand at {}", list.join(" and "))).into());
        }
    };
    let g = Geometry::new(&sb)?;
    if sb.copy != 0 {
        return Err(Corrupt(format!("superblock: the copy of allocation group {} stands at the start", sb.copy)).into());
    }
    if dev.len() < g.total_bytes() {
        return Err(Corrupt(format!(
            "the device is truncated: it has {} bytes, the file system {}",
            dev.len(),
            g.total_bytes()
        ))
        .into());
    }
    if dev.sector_size() as usize > g.frag_size() {
        return Error::invalid(format!(
            "the device has sectors of {} bytes, larger than the file system's fragments of {}",
            dev.sector_size(),
            g.frag_size()
        ));
    }
    Ok(sb)
}

/// Reads the superblock copy of an allocation group of a known file system.
pub fn read_superblock_copy(dev: &dyn Device, g: &Geometry, ag: u64) -> Result<Superblock> {
    let at = g.ag_start(ag) << g.block_shift;
    let bytes = read_sector(dev, at)?.ok_or_else(|| Corrupt(format!("superblock copy {ag}: beyond the end")))?;
    Ok(Superblock::decode(&bytes)?)
}

/// The sector-aligned bytes at `at` that hold a superblock; `None` where the device has ended.
fn read_sector(dev: &dyn Device, at: u64) -> Result<Option<Vec<u8>>> {
    let len = SUPERBLOCK_SIZE.max(dev.sector_size() as usize);
    if !at.is_multiple_of(u64::from(dev.sector_size())) || at.checked_add(len as u64).is_none_or(|end| end > dev.len())
    {
        return Ok(None);
    }
    let mut bytes = vec![0; len];
    dev.read_at(IoKind::Super, at, &mut bytes)?;
    Ok(Some(bytes))
}

/// Looks for superblock copies where [`mkfs`] puts group 1 by default, and where the damaged primary says that groups begin. Each comes
/// with its byte offset on the device.
pub fn find_copies(dev: &dyn Device) -> Vec<(u64, Superblock)> {
    let mut places = std::collections::BTreeSet::new();
    if let Ok(Some(b)) = read_sector(dev, 0) {
        let (shift, blocks) = (u32::from(b[120]), crate::format::get_u64(&b, 136));
        let total = crate::format::get_u64(&b, 128);
        if (9..=16).contains(&shift) {
            places.extend(blocks.checked_mul(1 << shift));
            // The copy in the last group.
            let last = total.saturating_sub(1).checked_div(blocks).and_then(|last| last.checked_mul(blocks));
            places.extend(last.and_then(|block| block.checked_mul(1 << shift)));
        }
    }
    for block_shift in BLOCK_SIZE_MIN.trailing_zeros()..=BLOCK_SIZE_MAX.trailing_zeros() {
        for frag_shift in block_shift.saturating_sub(3).max(9)..=block_shift {
            for group_shift in GROUP_SIZE_MIN.trailing_zeros().max(block_shift)..=GROUP_SIZE_MAX.trailing_zeros() {
                let total = dev.len() >> block_shift;
                places.insert(Geometry::default_ag_blocks(total, block_shift, frag_shift, group_shift) << block_shift);
            }
        }
    }
    let mut found = Vec::new();
    for at in places.into_iter().filter(|at| *at > 0) {
        let Ok(Some(bytes)) = read_sector(dev, at) else { continue };
        let Ok(sb) = Superblock::decode(&bytes) else { continue };
        let Ok(g) = Geometry::new(&sb) else { continue };
        let copy = sb.copy;
        if !backup_ags(&g).any(|ag| ag == copy) || g.ag_start(copy) << g.block_shift != at {
            continue;
        }
        found.push((at, sb));
        for ag in backup_ags(&g).filter(|ag| *ag != copy) {
            if let Ok(copy) = read_superblock_copy(dev, &g, ag) {
                found.push((g.ag_start(ag) << g.block_shift, copy));
            }
        }
        break;
    }
    found
}

#[cfg(test)]
#[path = "mkfs_tests.rs"]
mod tests;
