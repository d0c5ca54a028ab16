//! The superblock of a device and its copies: read, checked, written, and looked for.

use crate::copies::newest_copy;
use crate::error::{Error, Result};
use crate::format::geometry::{BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, GROUP_SIZE_MAX, GROUP_SIZE_MIN};
use crate::format::superblock::{MAGIC, SUPERBLOCK_SIZE};
use crate::format::{Corrupt, Geometry, Superblock};
use cffs_device::{Device, IoKind};

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

/// Reads and checks the superblock of a device: that it is one, that its numbers make sense, and that the device is as
/// large as it says.
pub fn read_superblock(dev: &dyn Device) -> Result<Superblock> {
    let read =
        read_sector(dev, 0).map(|read| read.map(|bytes| newest_superblock(dev, 0, 0, bytes.len()).unwrap_or(bytes)));
    let Some(bytes) = read? else {
        return Err(Corrupt(format!("not a cffs file system (the device has only {} bytes)", dev.len())).into());
    };
    let sb = match Superblock::decode(&bytes) {
        Ok(sb) => sb,
        Err(Corrupt(what)) => {
            // A version or feature of the future says so itself; damage deserves a look for the copies.
            let copies = if Superblock::is_whole(&bytes) { Vec::new() } else { find_copies(dev) };
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

/// The superblock of an allocation group as the newest copy of the device has it: of a mirror, one of the members. A write of another one that
/// went astray there does not count.
fn newest_superblock(dev: &dyn Device, ag: u64, at: u64, len: usize) -> Option<Vec<u8>> {
    let of_ag = |bytes: &[u8]| Superblock::decode(bytes).ok().filter(|sb| sb.copy == ag);
    let age = |bytes: &[u8]| of_ag(bytes).map(|sb| (sb.mount_count, sb.mounted));
    newest_copy(dev, IoKind::Super, at, len, &age).map(|bytes| bytes.to_vec())
}

/// Reads the superblock copy of an allocation group of a known file system.
pub fn read_superblock_copy(dev: &dyn Device, g: &Geometry, ag: u64) -> Result<Superblock> {
    let at = g.ag_start(ag) << g.block_shift;
    let bytes = read_sector(dev, at)?.ok_or_else(|| Corrupt(format!("superblock copy {ag}: beyond the end")))?;
    let bytes = newest_superblock(dev, ag, at, bytes.len()).unwrap_or(bytes);
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

/// Looks for superblock copies where [`mkfs`](fn@crate::mkfs) puts group 1 by default, and where the damaged primary says that groups begin. Each comes
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
