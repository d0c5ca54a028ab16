//! `cffs mkfs`: makes a file system.

use crate::compression::{compression_name, parse_compression};
use crate::device::open_device;
use crate::image::engine_error;
use crate::log_layout::{self, LogLayout};
use crate::members::summary;
use crate::mkfs_volume::{Created, VolumeArgs};
use crate::overwrite::refuse_if_taken;
use crate::size::{human, parse_size, parse_size_u32};
use crate::text::print_json;
use anyhow::{Context, anyhow, bail};
use cffs::device::{Device, FileDevice, MemoryDevice, OpenMode, Probe, probe_group_size};
use cffs::mkfs::{log_bytes_min, plan, random_uuid};
use cffs::{Geometry, MkfsOptions, QuotaKind, Superblock, mkfs};
use cffs_fuse::volume::VolumeReport;
use cffs_logdisk::Compression;
use cffs_volume::Volume;
use clap::{Args, FromArgMatches, ValueEnum};
use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// Make a cffs file system on a device or in an image file
///
/// Times the device and chooses the group, the unit in which files are moved together, to fit it. Refuses an image that
/// is in use, and without --force one that holds a file system, a partition table or the like.
#[derive(Args, Debug)]
pub struct MkfsArgs {
    /// Size of the file system; makes a sparse image file if there is none yet [default: all of the device]
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Unit of metadata and of device transfers: a power of two from 512 to 64K
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = parse_size_u32)]
    block_size: u32,
    /// Unit of allocation: a power of two from an eighth of the block to the block [default: a quarter of the block]
    ///
    /// 512 bytes take as long as 1K and save 256 bytes for each file on average, but double the bitmaps and checksums: for
    /// trees of small files.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_u32)]
    fragment_size: Option<u32>,
    /// Unit of co-location: a power of two from 16K to 4M, or auto to time the device and take the size from which on
    /// transferring takes longer than the request itself; twice that, up to 1M, with --compress
    #[arg(long, value_name = "auto|SIZE", default_value = "auto", value_parser = parse_group_size)]
    group_size: GroupSize,
    /// Size of the log [default: a 64th of the file system, 4M to 128M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    journal_size: Option<u64>,
    /// Name of the file system, at most 64 bytes
    #[arg(short = 'L', long, default_value = "")]
    label: String,
    /// Identity of the file system [default: random]
    #[arg(long, value_parser = parse_uuid)]
    uuid: Option<[u8; 16]>,
    /// Share of the space that only root may use, in percent
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = parse_reserve)]
    reserve: u32,
    /// File or device for the log, instead of a place in the file system
    #[arg(long, value_name = "FILE")]
    log_device: Option<PathBuf>,
    /// Put inodes into chunks of their own instead of the directories (for comparison)
    #[arg(long)]
    no_embed: bool,
    /// Place small files as conventional file systems do, instead of in groups (for comparison)
    #[arg(long)]
    no_group: bool,
    /// Where directory blocks go: into groups of their own, or into the first data group as in 1997
    #[arg(long, value_enum, default_value = "grouped")]
    dir_blocks: DirBlocks,
    /// Keep checksums of file data, so that data that is not what was written is an error when it is read
    #[arg(long, value_name = "on|off", value_enum, default_value = "off", default_missing_value = "on", num_args = 0..=1,
          require_equals = true)]
    data_sums: Switch,
    /// Quotas to keep: user, group, project, separated by commas
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = crate::quota::parse_kind)]
    quota: Vec<QuotaKind>,
    /// What the image is made of: the file system alone, or a log disk with the file system on it, which writes whatever comes one
    /// behind the other, and has snapshots and compression
    #[arg(long, value_enum, default_value = "plain")]
    layout: Layout,
    /// With --layout=log: size of the file system on the log disk, as a multiple of 4K; what can be stored depends on the image
    /// [default: 16 times the image]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    thin: Option<u64>,
    /// With --layout=log: how data and metadata are compressed where that pays: none, lz4, zstd or zstd:LEVEL; becomes a default
    /// mount option [default: none]
    #[arg(long, value_name = "none|lz4|zstd[:LEVEL]", value_parser = parse_compression)]
    compress: Option<Compression>,
    /// Overwrite what is there, also a file system
    #[arg(short = 'F', long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    volume: VolumeArgs,
    /// Device or image file
    image: PathBuf,
    /// With --mirror, --stripe or --concat: the other members of the volume
    #[arg(value_name = "MEMBER")]
    more: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum GroupSize {
    Auto,
    Bytes(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Layout {
    /// The file system alone
    Plain,
    /// A log disk with the file system on it
    Log,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum DirBlocks {
    /// Directory blocks of a subtree share groups of their own
    Grouped,
    /// Directory blocks stand in the data groups
    WithData,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Switch {
    On,
    Off,
}

fn parse_group_size(text: &str) -> Result<GroupSize, String> {
    if text == "auto" { Ok(GroupSize::Auto) } else { parse_size_u32(text).map(GroupSize::Bytes) }
}

pub fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    let bad = || format!("'{text}' is not a uuid: write it as 01234567-89ab-cdef-0123-456789abcdef");
    let b = text.as_bytes();
    let dashes = [8, 13, 18, 23];
    if b.len() != 36 || !b.iter().enumerate().all(|(i, c)| dashes.contains(&i) == (*c == b'-')) {
        return Err(bad());
    }
    let digits: Option<Vec<u8>> = text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let digits = digits.ok_or_else(bad)?;
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Ok(uuid)
}

/// Percent, in 1/10,000.
pub fn parse_reserve(text: &str) -> Result<u32, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.0..=50.0).contains(&percent) => Ok((percent * 100.0).round() as u32),
        _ => Err(format!("'{text}' is not a share: write percent from 0 to 50")),
    }
}

/// The options of the file system as the command line gives them.
fn options_of(args: &MkfsArgs) -> MkfsOptions {
    let options = MkfsOptions::default()
        .block_size(args.block_size)
        .frag_size(args.fragment_size)
        .log_bytes(args.journal_size)
        .label(args.label.clone())
        .uuid(args.uuid)
        .reserve_bp(args.reserve)
        .no_embed(args.no_embed)
        .no_group(args.no_group)
        .dirs_with_data(args.dir_blocks == DirBlocks::WithData)
        .data_sums(args.data_sums == Switch::On)
        .quota(args.quota.clone())
        // As mkfs.ext4 -E root_owner: who may write to the image owns what is in it.
        .root_uid(rustix::process::geteuid().as_raw())
        .root_gid(rustix::process::getegid().as_raw());
    match args.group_size {
        GroupSize::Bytes(n) => options.group_size(n),
        GroupSize::Auto => options,
    }
}

impl MkfsArgs {
    /// What a command line says, the name of the program first.
    pub fn of(list: Vec<OsString>) -> anyhow::Result<MkfsArgs> {
        let command = MkfsArgs::augment_args(clap::Command::new("mkfs"));
        // The first line says it all; what follows is of the usage of another command.
        let told = |e: clap::Error| anyhow!("{}", e.to_string().lines().next().unwrap_or_default());
        let matches = command.try_get_matches_from(list).map_err(told)?;
        MkfsArgs::from_arg_matches(&matches).map_err(told)
    }
}

/// A file system that was made.
pub struct Made {
    superblock: Superblock,
    geometry: Geometry,
    probe: Option<Probe>,
    layout: Option<LogLayout>,
    volume: Option<Arc<Volume>>,
}

impl Made {
    /// Lets go of it.
    pub fn close(self) -> anyhow::Result<()> {
        drop(self.layout);
        self.volume.map_or(Ok(()), |volume| volume.close().map_err(|e| anyhow!(e)))
    }
}

/// Runs the subcommand.
pub fn run(args: &MkfsArgs) -> anyhow::Result<u8> {
    let made = make(args)?;
    report(args, &made)?;
    made.close().with_context(|| args.image.display().to_string())?;
    Ok(0)
}

/// Makes the file system.
pub fn make(args: &MkfsArgs) -> anyhow::Result<Made> {
    let image = args.image.as_path();
    let name = image.display().to_string();
    let mut options = options_of(args);
    refuse_contradictions(args)?;
    let group = if let GroupSize::Bytes(bytes) = args.group_size { Some(bytes) } else { None };
    args.volume.check(image, &args.more, group)?;
    if args.layout == Layout::Log {
        options = options.log_bytes(Some(log_bytes_min(args.block_size)));
    }
    let log = match &args.log_device {
        None => None,
        Some(path) => {
            let log = open_device(path, OpenMode::READ_WRITE)?;
            refuse_if_taken(path, &log, args.force)?;
            Some(log)
        }
    };
    let log_dev = || log.as_ref().map(|l| l as &dyn Device);

    let mut created = Created::default();
    let measure = |dev: &FileDevice| probe_group_size(dev).with_context(|| format!("{name}: cannot time the device"));
    let auto = args.group_size == GroupSize::Auto;
    let (below, volume, probe): (Arc<dyn Device>, Option<Arc<Volume>>, Option<Probe>) = match args.volume.kind() {
        None => {
            let dev = single(args, log_dev(), &options, &mut created)?;
            let probe = if auto { Some(measure(&dev)?) } else { None };
            (Arc::new(dev), None, probe)
        }
        Some(kind) => {
            let mut plan = args.volume.plan(kind, image, &args.more, args.size, args.force)?;
            check(file_system_bytes(args, plan.len)?, log_dev(), &options, &plan.sectors, &name)?;
            plan.make_files(&mut created)?;
            for dev in plan.files() {
                fit_sectors(args, dev)?;
            }
            let mut probe = match plan.files().next() {
                Some(dev) if auto => Some(measure(dev)?),
                _ => None,
            };
            if let Some(probe) = &mut probe {
                probe.group_size = plan.fitting_group(probe.group_size);
            }
            let volume = plan.make()?;
            (volume.clone(), Some(volume), probe)
        }
    };
    if let Some(probe) = &probe {
        let group = args.compress.unwrap_or_default().group_bytes(probe.group_size);
        options.group_size = group.max(options.block_size);
    }
    let layout = if args.layout == Layout::Log {
        let uuid = args.uuid.map_or_else(random_uuid, Ok)?;
        options = options.uuid(Some(uuid));
        let (bytes, compression) = (file_system_bytes(args, below.len())?, args.compress.unwrap_or_default());
        Some(LogLayout::make(below.clone(), uuid, bytes, compression).with_context(|| name.clone())?)
    } else {
        log_layout::forget(&*below)?;
        None
    };
    let dev: Arc<dyn Device> = match &layout {
        Some(layout) => layout.disk.clone(),
        None => below,
    };
    // A small file system cannot have the group that the device deserves.
    while probe.is_some() && options.group_size > 16 << 10 && plan(&*dev, log_dev(), &options).is_err() {
        options.group_size /= 2;
    }
    let mut sb = mkfs(&*dev, log_dev(), &options).map_err(|e| engine_error(e, &name))?;
    if let Some(layout) = &layout {
        sb = layout.finish(sb).with_context(|| name.clone())?;
    }
    created.0.clear();
    let geometry = Geometry::new(&sb).map_err(|e| anyhow!("{name}: {e}"))?;
    Ok(Made { superblock: sb, geometry, probe, layout, volume })
}

/// Opens or makes the one file or device that the file system is on.
fn single(
    args: &MkfsArgs,
    log: Option<&dyn Device>,
    options: &MkfsOptions,
    created: &mut Created,
) -> anyhow::Result<FileDevice> {
    let image = args.image.as_path();
    let name = image.display().to_string();
    let exists = match fs::metadata(image) {
        Ok(_) => true,
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Err(e) => return Err(e).with_context(|| name.clone()),
    };
    let dev = if exists {
        let dev = open_device(image, OpenMode::READ_WRITE)?;
        refuse_if_taken(image, &dev, args.force)?;
        let len = args.size.unwrap_or(dev.len());
        if len == 0 {
            bail!("{name}: the file is empty: say with --size how large the file system is to be");
        }
        if dev.is_block_device() && len > dev.len() {
            bail!("{name}: the device has {} bytes, {len} do not fit: leave out --size", dev.len());
        }
        check(file_system_bytes(args, len)?, log, options, &dev, &name)?;
        if len != dev.len() {
            dev.set_len(len)?;
        }
        dev
    } else {
        let Some(len) = args.size else {
            bail!("{name}: no such file or device: to make an image file, say with --size how large, as in --size 4G");
        };
        check(file_system_bytes(args, len)?, log, options, &MemoryDevice::new(len), &name)?;
        let dev = FileDevice::create(image, len, OpenMode::READ_WRITE)?;
        created.0.push(image.to_owned());
        dev
    };
    fit_sectors(args, &dev)?;
    Ok(dev)
}

/// Small fragments are worth more than direct I/O in large sectors, where they were asked for.
fn fit_sectors(args: &MkfsArgs, dev: &FileDevice) -> anyhow::Result<()> {
    if dev.sector_size() > args.fragment_size.unwrap_or(args.block_size).min(args.block_size) {
        dev.use_buffered()?;
    }
    Ok(())
}

/// Refuses options that make no sense with the layout.
fn refuse_contradictions(args: &MkfsArgs) -> anyhow::Result<()> {
    let name = args.image.display();
    if args.layout == Layout::Plain {
        for (given, option) in [(args.thin.is_some(), "--thin"), (args.compress.is_some(), "--compress")] {
            if given {
                bail!("{name}: {option} is for the log layout: add --layout=log");
            }
        }
        return Ok(());
    }
    for (given, option, why) in [
        (
            args.journal_size.is_some(),
            "--journal-size",
            "commits are batches of the log disk, and have no log of their own",
        ),
        (
            args.log_device.is_some(),
            "--log-device",
            "commits are batches of the log disk, and have no log of their own",
        ),
        (args.data_sums == Switch::On, "--data-sums", "the log disk has checksums of all data anyway"),
    ] {
        if given {
            bail!("{name}: {option} makes no sense with --layout=log: {why}; leave it out");
        }
    }
    if args.block_size < 4096 {
        bail!("{name}: --layout=log takes blocks of 4K and more, because the log disk has none that are smaller");
    }
    if args.thin.is_some_and(|bytes| bytes % 4096 != 0 || bytes > cffs_logdisk::LOGICAL_BYTES_MAX) {
        bail!("{name}: --thin takes a multiple of 4K, at most 1E");
    }
    Ok(())
}

/// Bytes of the file system in an image of `len` bytes.
fn file_system_bytes(args: &MkfsArgs, len: u64) -> anyhow::Result<u64> {
    match args.layout {
        Layout::Plain => Ok(len),
        Layout::Log if len < log_layout::image_min(args.block_size) => {
            let (name, least) = (args.image.display(), human(log_layout::image_min(args.block_size)));
            bail!("{name}: an image with the log layout has at least {least}: take a larger one")
        }
        Layout::Log => Ok(args.thin.unwrap_or_else(|| log_layout::default_bytes(len))),
    }
}

/// Checks all options before anything is written. `sectors` is only asked for its size of sectors.
fn check(
    len: u64,
    log: Option<&dyn Device>,
    options: &MkfsOptions,
    sectors: &dyn Device,
    name: &str,
) -> anyhow::Result<()> {
    let like = MemoryDevice::with_sector_size(len, sectors.sector_size().min(options.block_size.clamp(512, 65536)));
    let smallest_group = options.clone().group_size(options.block_size.max(16 << 10));
    // With --group-size=auto the group is not known yet, but never an obstacle.
    let result = plan(&like, log, options).or_else(|e| plan(&like, log, &smallest_group).map_err(|_| e));
    result.map(drop).map_err(|e| engine_error(e, name))
}

fn report(args: &MkfsArgs, made: &Made) -> io::Result<()> {
    let (sb, g, probe, layout) = (&made.superblock, &made.geometry, made.probe.as_ref(), made.layout.as_ref());
    let volume = made.volume.as_deref();
    let log_bytes = sb.log_blocks << sb.block_shift;
    if args.json {
        let measured = probe.map(|p| {
            let samples: Vec<_> = p
                .samples
                .iter()
                .map(|s| json!({"bytes": s.size, "reads": s.reads, "median_us": s.median.as_secs_f64() * 1e6}))
                .collect();
            json!({
                "latency_us": p.latency.map(|l| l.as_secs_f64() * 1e6),
                "bytes_per_second": p.bandwidth,
                "reason": p.reason,
                "samples": samples,
            })
        });
        return print_json(&json!({
            "image": args.image.to_string_lossy(),
            "uuid": sb.uuid_str(),
            "label": sb.label_str(),
            "bytes": g.total_bytes(),
            "block_size": g.block_size(),
            "fragment_size": g.frag_size(),
            "group_size": g.group_size(),
            "allocation_groups": g.ag_count,
            "log_bytes": log_bytes,
            "external_log": sb.log_start == 0,
            "reserve_percent": f64::from(sb.reserve_bp) / 100.0,
            "features": sb.feature_names(),
            "measured": measured,
            "volume": volume.map(VolumeReport::of),
            "layout": if layout.is_some() { "log" } else { "plain" },
            "log_disk": layout.map(|l| json!({"usable_bytes": l.usable, "segment_bytes": l.segment_bytes})),
        }));
    }
    let mut out = io::stdout().lock();
    if let Some(p) = probe {
        writeln!(out, "measured   {}", p.reason)?;
        for s in &p.samples {
            let mb_s = s.size as f64 / s.median.as_secs_f64().max(1e-9) / 1e6;
            writeln!(
                out,
                "           {:>8} {:>10.1} µs {mb_s:>9.0} MB/s",
                human(s.size as u64),
                s.median.as_secs_f64() * 1e6
            )?;
        }
    }
    if let Some(volume) = volume {
        writeln!(out, "volume     {}", summary(volume))?;
    }
    let how = match (probe, args.compress.unwrap_or_default()) {
        (None, _) => "as asked for",
        (Some(_), Compression::None) => "chosen",
        (Some(_), _) => "chosen; longer, because it is compressed",
    };
    writeln!(out, "group      {} ({how})", human(g.group_size() as u64))?;
    writeln!(out, "block      {}, fragment {}", human(g.block_size() as u64), human(g.frag_size() as u64))?;
    writeln!(out, "size       {} in {} allocation groups", human(g.total_bytes()), g.ag_count)?;
    let place = if sb.log_start == 0 { " on a device of its own" } else { "" };
    match layout {
        Some(l) => {
            let how = args.compress.filter(|c| *c != Compression::None);
            let how = how.map_or(String::new(), |c| format!(", compressed with {}", compression_name(c)));
            let (usable, segment) = (human(l.usable), human(l.segment_bytes));
            writeln!(out, "layout     log: stores {usable} in segments of {segment}{how}")?;
        }
        None => writeln!(out, "log        {}{place}", human(log_bytes))?,
    }
    let features = sb.feature_names();
    if !features.is_empty() {
        writeln!(out, "features   {}", features.join(", "))?;
    }
    if !sb.label_str().is_empty() {
        writeln!(out, "label      {}", sb.label_str())?;
    }
    writeln!(out, "uuid       {}", sb.uuid_str())?;
    let others: Vec<String> = args.more.iter().map(|p| format!(", {}", p.display())).collect();
    let is = if others.is_empty() { "is" } else { "are" };
    writeln!(out, "{}{} {is} ready", args.image.display(), others.concat())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_and_shares() {
        let text = "01234567-89ab-cdef-0123-456789abcdef";
        assert_eq!(parse_uuid(text).unwrap()[..4], [0x01, 0x23, 0x45, 0x67]);
        for bad in ["", "0123456789abcdef0123456789abcdef", "01234567-89ab-cdef-0123-456789abcdeg", "0-1-2-3-4"] {
            assert!(parse_uuid(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_reserve("5"), Ok(500));
        assert_eq!(parse_reserve("0.25%"), Ok(25));
        for bad in ["-1", "51", "x", "", "nan", "inf"] {
            assert!(parse_reserve(bad).is_err(), "{bad}");
        }
    }
}
