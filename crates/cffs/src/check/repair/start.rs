//! Choosing the superblock for a repair.

use crate::check::reader::Reader;
use crate::error::{Error, Result};
use crate::format::dirblock::{entries, validate};
use crate::format::dirindex::name_hash;
use crate::format::geometry::{BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, GROUP_SIZE_MIN, INODE_SLOT_SIZE};
use crate::format::superblock::{MAGIC, SUPERBLOCK_SIZE, State};
use crate::format::system::Counters;
use crate::format::{
    BlockId, BlockKind, Corrupt, Geometry, Inode, InodeFormat, LAST_SYSTEM_INO, META_HEADER_SIZE, ROOT_INO, Superblock,
    block_addr, crc_ok, get_u32,
};
use crate::journal::current_header;
use crate::superblocks::{backup_ags, find_copies, read_superblock};
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind};

/// How far the device is searched for a copy of the superblock, in bytes: groups are at most 1 GiB, unless a log is larger.
const SEARCH_MAX: u64 = 2 << 30;

/// A superblock that can be used.
pub(crate) struct Choice {
    pub(crate) superblock: Superblock,
    pub(crate) g: Geometry,
    /// What is wrong with the primary, and the byte offset of the copy; `None` if it is the primary.
    pub(crate) instead: Option<(String, u64)>,
}

/// Copies of the superblock with their byte offsets: where they are by default, and elsewhere if there are none.
pub(crate) fn copies_of(dev: &dyn Device) -> Vec<(u64, Superblock)> {
    let mut copies = find_copies(dev);
    if copies.is_empty() {
        copies.extend(search_copy(dev));
    }
    copies
}

/// Bytes from the beginning of a device in which blocks of a file system are looked for.
const BEGINNING: usize = 4 << 20;

/// Whether a device has copies of a superblock at one of the usual places, or near its beginning a metadata block with the right checksum at the place that it
/// says: a file system whose superblocks are lost, as far as a short look tells.
pub fn has_remains(dev: &dyn Device) -> bool {
    if !find_copies(dev).is_empty() {
        return true;
    }
    let sector = dev.sector_size() as usize;
    let len = usize::try_from(dev.len()).unwrap_or(usize::MAX).min(BEGINNING) / sector * sector;
    let mut bytes = AlignedBuf::zeroed(len);
    if len == 0 || dev.read_at(IoKind::Super, 0, &mut bytes).is_err() {
        return false;
    }
    let is_block = |at: usize| {
        let block = &bytes[at..];
        if block.len() < META_HEADER_SIZE || BlockKind::from_magic(get_u32(block, 0)).is_none() {
            return false;
        }
        let size = (at as u64).checked_div(block_addr(block)).filter(|size| size * block_addr(block) == at as u64);
        let size = size.filter(|n| n.is_power_of_two() && SIZES.contains(n)).map(|n| n as usize);
        size.and_then(|n| block.get(..n)).is_some_and(crc_ok)
    };
    (0..len).step_by(*SIZES.start() as usize).any(is_block)
}

/// Sizes of blocks.
const SIZES: std::ops::RangeInclusive<u64> = BLOCK_SIZE_MIN as u64..=BLOCK_SIZE_MAX as u64;

/// The superblock to look at an image by: the primary, or where that is damaged the first usable copy.
pub(crate) fn usable_superblock(dev: &dyn Device) -> Result<Choice> {
    let primary = read_super(dev, 0).and_then(|b| {
        let superblock = Superblock::decode(&b)?;
        let g = Geometry::new(&superblock)?;
        Ok(Choice { superblock, g, instead: None })
    });
    primary.or_else(|e| {
        let usable = copies_of(dev).into_iter().find_map(|(at, sb)| Some((at, Geometry::new(&sb).ok()?, sb)));
        let Some((at, g, superblock)) = usable else { return Err(e) };
        Ok(Choice { superblock, g, instead: Some((e.to_string(), at)) })
    })
}

/// The bytes of a superblock at a byte offset.
pub(crate) fn read_super(dev: &dyn Device, at: u64) -> Result<Vec<u8>> {
    let sector = u64::from(dev.sector_size());
    let len = (SUPERBLOCK_SIZE as u64).max(sector);
    if !at.is_multiple_of(sector) || at.checked_add(len).is_none_or(|end| end > dev.len()) {
        return Err(Corrupt(format!("superblock: the device has {} bytes, none at {at}", dev.len())).into());
    }
    let mut b = AlignedBuf::zeroed(len as usize);
    dev.read_at(IoKind::Super, at, &mut b)?;
    Ok(b[..SUPERBLOCK_SIZE].to_vec())
}

/// Chooses among the primary superblock and its copies the one that most of the file system agrees with.
pub(super) fn choose(dev: &dyn Device, log_dev: Option<&dyn Device>) -> Result<Choice> {
    let primary = read_superblock(dev);
    if let Err(Error::Corrupt(c)) = &primary
        && c.0.contains("use a newer")
    {
        // It is a newer format, not damage.
        return Err(Error::Corrupt(c.clone()));
    }
    let mut candidates: Vec<(Option<u64>, Superblock)> = Vec::new();
    if let Ok(sb) = &primary {
        writable(sb)?;
        candidates.push((None, sb.clone()));
    }
    let copies = if primary.is_err() { copies_of(dev) } else { find_copies(dev) };
    for (at, sb) in copies {
        let fits = Geometry::new(&sb).is_ok_and(|g| dev.len() >= g.total_bytes());
        if fits && dev.sector_size() <= 1 << sb.frag_shift && writable(&sb).is_ok() {
            candidates.push((Some(at), sb));
        }
    }
    let rate = |sb: &Superblock| {
        let agreeing = candidates.iter().filter(|(_, other)| same_file_system(sb, other)).count();
        agreement(dev, log_dev, sb) + agreeing as u32
    };
    let rated: Vec<u32> = candidates.iter().map(|(_, sb)| rate(sb)).collect();
    // The primary is the first, and wins where there is nothing to choose.
    let best = rated.iter().copied().max().and_then(|best| rated.iter().position(|r| *r == best));
    let Some((at, sb)) = best.map(|i| candidates.swap_remove(i)) else {
        return Err(primary.err().unwrap_or_else(|| Error::Invalid("no superblock".into())));
    };
    let g = Geometry::new(&sb)?;
    let instead = at.map(|at| match &primary {
        Err(e) => (e.to_string(), at),
        Ok(_) => ("it does not fit what is on the device".into(), at),
    });
    let superblock = match (&primary, at) {
        (_, None) => sb,
        // The state in which the file system was left is unknown.
        (Ok(old), Some(_)) => {
            let (label, mount_options) = (old.label, old.mount_options);
            Superblock {
                copy: 0,
                state: State::Error,
                label,
                mount_options,
                reserve_bp: old.reserve_bp.min(5000),
                ..sb
            }
        }
        (Err(_), Some(_)) => Superblock { copy: 0, state: State::Error, ..sb },
    };
    Ok(Choice { superblock, g, instead })
}

/// Whether this program may write to a file system with this superblock.
pub(super) fn writable(sb: &Superblock) -> Result<()> {
    match sb.unknown_ro_compat() {
        None => Ok(()),
        Some(names) => Error::invalid(format!("unknown feature {names}: use a newer program to repair this")),
    }
}

/// Looks for a copy wherever an allocation group can begin, because mkfs may have been given another size than its default.
fn search_copy(dev: &dyn Device) -> Option<(u64, Superblock)> {
    let end = dev.len().min(SEARCH_MAX);
    let step = GROUP_SIZE_MIN as usize;
    let mut buf = AlignedBuf::zeroed(1 << 20);
    for start in (0..end).step_by(buf.len()) {
        let len = ((end - start) as usize).min(buf.len()) / step * step;
        // An unreadable piece cannot hold a usable copy.
        if dev.read_at(IoKind::Super, start, &mut buf[..len]).is_err() {
            continue;
        }
        for (n, piece) in buf[..len].chunks_exact(step).enumerate() {
            let at = start + (n * step) as u64;
            let found = piece.starts_with(&MAGIC).then(|| Superblock::decode(piece).ok()).flatten();
            let fits = |sb: &Superblock| {
                Geometry::new(sb)
                    .is_ok_and(|g| backup_ags(&g).any(|ag| ag == sb.copy && g.ag_start(ag) << g.block_shift == at))
            };
            if let Some(sb) = found.filter(fits) {
                return Some((at, sb));
            }
        }
    }
    None
}

/// Whether two superblocks are of one file system: the fields that never change are equal.
fn same_file_system(a: &Superblock, b: &Superblock) -> bool {
    // Growing writes the copies first. The counters tell whether a size is possible.
    let expected = Superblock { total_blocks: b.total_blocks, ..a.as_in_copy(b) };
    expected == *b && a.fsid() == b.fsid()
}

/// How many structures are where a superblock says.
fn agreement(dev: &dyn Device, log_dev: Option<&dyn Device>, sb: &Superblock) -> u32 {
    let Ok(g) = Geometry::new(sb) else { return 0 };
    let reader = Reader::new(dev, g);
    let good = |kind, addr| u32::from(reader.meta(BlockId { kind, addr, owner: 0 }).is_ok());
    let mut points = good(BlockKind::AgHeader, g.ag_header(0)) + good(BlockKind::Bitmap, g.bitmap_block(0, 0));
    for first in (ROOT_INO..=LAST_SYSTEM_INO).step_by(g.inodes_per_block() as usize) {
        points += good(BlockKind::SystemInodes, g.system_inode(first).0);
    }
    let log = log_dev.unwrap_or(dev);
    points += u32::from(log_header(log, sb).is_ok());
    if let Ok(b) = reader.meta(BlockId { kind: BlockKind::Counters, addr: g.counters_block(), owner: 0 }) {
        points += 1 + u32::from(g.of_counters(&Counters::decode(&b)).is_ok());
    }
    points + u32::from(names_fit(&reader, sb, &g))
}

/// Whether names of the root have the hashes that the superblock's key gives.
fn names_fit(reader: &Reader<'_>, sb: &Superblock, g: &Geometry) -> bool {
    let (addr, offset) = g.system_inode(ROOT_INO);
    let Ok(block) = reader.meta(BlockId { kind: BlockKind::SystemInodes, addr, owner: 0 }) else { return false };
    let Ok(root) = Inode::decode(&block[offset..offset + INODE_SLOT_SIZE]) else { return false };
    let InodeFormat::Extents(list) = root.format else { return false };
    let Some(first) = list.first() else { return false };
    let id = BlockId { kind: BlockKind::Dir, addr: g.block_of_frag(first.start), owner: ROOT_INO };
    let Ok(block) = reader.meta(id) else { return false };
    validate(&block).is_ok() && entries(&block).any(|e| e.is_name() && e.hash == name_hash(sb.hash_seed, e.name))
}

/// Whether the log has a valid header; the error says what is wrong.
pub(super) fn log_header(log: &dyn Device, sb: &Superblock) -> std::result::Result<(), String> {
    current_header(log, sb).map(|_| ()).map_err(|e| e.to_string())
}
