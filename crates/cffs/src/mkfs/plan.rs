//! The layout of a new file system: checks the options, and chooses sizes and places.

use super::options::MkfsOptions;
use super::random::{now_ns, random, random_uuid};
use crate::error::{Error, Result};
use crate::format::LongestRuns;
use crate::format::geometry::log_bytes_min;
use crate::format::geometry::{
    BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, FRAGMENT_SIZE_MIN, GROUP_SIZE_MAX, GROUP_SIZE_MIN, INODE_SLOT_SIZE,
};
use crate::format::superblock::{
    COMPAT_DIRS_WITH_DATA, COMPAT_NO_GROUP, FORMAT_VERSION, INCOMPAT_DATA_SUMS, INCOMPAT_EXTERNAL_LOG,
    INCOMPAT_NO_EMBED, LABEL_MAX, MOUNT_OPTIONS_MAX, RO_COMPAT_UNWRITTEN, State,
};
use crate::format::{Geometry, LAST_SYSTEM_INO, META_HEADER_SIZE, Superblock, sums};
use cffs_device::Device;

const MIB: u64 = 1 << 20;
/// Largest internal log. More would not help: it is replayed at mount, and that has to take about a second.
const LOG_MAX: u64 = crate::format::geometry::LOG_SIZE_MAX;

fn power_of_two(what: &str, value: u32, min: u32, max: u32) -> Result<u32> {
    if !value.is_power_of_two() || value < min || value > max {
        return Error::invalid(format!("{what} of {value} bytes: must be a power of two from {min} to {max}"));
    }
    Ok(value.trailing_zeros())
}

/// The superblock that [`mkfs`](fn@crate::mkfs) would write, with every option checked. Touches no device.
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
        ro_compat: o.quota.iter().fold(0, |bits, kind| bits | kind.feature())
            | if dev.space().is_some() { RO_COMPAT_UNWRITTEN } else { 0 },
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
        maintenance_credit: 0,
        mount_options: [0; MOUNT_OPTIONS_MAX],
        longest_runs: LongestRuns::UNKNOWN,
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
    // Four times the log, because a log of more than a quarter of the device would be a waste.
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
            // The log lies in allocation group 0 as a whole, and leaves half of it to files.
            default.max((2 * (internal >> shift)).next_multiple_of(group_blocks))
        }
    };
    if sb.ag_blocks == 0 || !sb.ag_blocks.is_multiple_of(group_blocks) || sb.ag_blocks > (64 << 30) / bs {
        return Error::invalid(format!(
            "allocation group of {} blocks: must be a multiple of the group ({group_blocks} blocks), at most 64 GiB",
            sb.ag_blocks
        ));
    }
    let header = group_header_blocks(sb, o)?;
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
        None => place_internal_log(sb, o, log_min, fixed, room),
        Some(_) if room == 0 => too_small((fixed + group_blocks + 1) << shift),
        Some(log) => size_external_log(sb, o, log_min, log),
    }
}

/// Blocks of the header of an allocation group, with its bitmap and tables of data checksums. Plain arithmetic, because the
/// superblock is not complete yet.
fn group_header_blocks(sb: &Superblock, o: &MkfsOptions) -> Result<u64> {
    let (bs, group_blocks) = (u64::from(o.block_size), u64::from(o.group_size / o.block_size));
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
    Ok(header)
}

/// Places the log behind the fixed blocks of allocation group 0, which has `room` blocks for it.
fn place_internal_log(sb: &mut Superblock, o: &MkfsOptions, log_min: u64, fixed: u64, room: u64) -> Result<()> {
    let (bs, shift, size) = (u64::from(o.block_size), sb.block_shift, sb.total_blocks << sb.block_shift);
    let half_of_ag0 = (sb.ag_blocks.min(sb.total_blocks) / 2) << shift;
    let default = (size / 64).clamp(4 * MIB, 128 * MIB).min(size / 4).min(half_of_ag0).max(log_min);
    sb.log_blocks = o.log_bytes.unwrap_or(default).div_ceil(bs);
    if sb.log_blocks > room {
        return Error::invalid(format!(
            "log of {} blocks: allocation group 0 has room for {room}; make the log smaller or the group larger",
            sb.log_blocks
        ));
    }
    sb.log_start = fixed;
    Ok(())
}

/// Chooses the size of a log on a device of its own.
fn size_external_log(sb: &mut Superblock, o: &MkfsOptions, log_min: u64, log: &dyn Device) -> Result<()> {
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
    sb.log_blocks = bytes >> sb.block_shift;
    sb.log_uuid = sb.uuid;
    Ok(())
}
