//! `cffs convert`: a file system in another layout.
//!
//! The new image is made with the settings of the old one, everything is copied by the engine, and then both are read and compared. Where the
//! blocks are is chosen anew, as for any copy. The old image is opened for reading only.

mod compare;
mod copy;

use crate::fsck::check_image;
use crate::image::{EngineResultExt, Image, LogArgs};
use crate::mkfs::{self, Layout, MkfsArgs};
use crate::size::{human, parse_size};
use anyhow::{Context, bail};
use cffs::device::{Device, OpenMode};
use cffs::{Fs, MountOptions, QuotaLimits, Tune};
use cffs_fuse::snapshots;
use clap::{Args, ValueHint};
use copy::Copy;
use std::ffi::OsString;
use std::path::PathBuf;

/// Copy a file system into a new image with another layout
///
/// Everything in it comes along: names, hard links, contents, holes and preallocated space, owners, modes, access and modification times, extended attributes, access control
/// lists, flags, projects, quotas, keys, label, reserve and mount options. Inode numbers, change times and birth times are new, and so is the
/// UUID. Snapshots stay behind: --snapshot copies one of them. In the end both are read and compared. The old image is only read, and must not be mounted.
#[derive(Args, Debug)]
pub struct ConvertArgs {
    /// What the new image is made of
    #[arg(long, value_enum)]
    layout: Layout,
    /// Size of the new image, if it is a file [default: that of the old one]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// With --layout=log: size of the file system on the log disk [default: 16 times the image]
    #[arg(long, value_name = "SIZE")]
    thin: Option<String>,
    /// With --layout=log: how data and metadata are compressed: none, lz4, zstd or zstd:LEVEL [default: as the old one]
    #[arg(long, value_name = "none|lz4|zstd[:LEVEL]")]
    compress: Option<String>,
    /// Copy this snapshot or clone
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
    /// Overwrite what the new image has, also a file system
    #[arg(short = 'F', long)]
    force: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Image to copy
    image: PathBuf,
    /// Image or device to make
    #[arg(value_hint = ValueHint::AnyPath)]
    new_image: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: &ConvertArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let at = args.image.display().to_string();
    let mut image = Image::open(&args.image, &args.log, OpenMode::READ_ONLY)?;
    let left_behind = image.log_disk.as_deref().map_or(0, |disk| snapshots::list(disk).len());
    if let Some(name) = &args.snapshot {
        image = image.at_snapshot(name)?;
    }
    let old_len = image.file.len();
    let source = image.mount(MountOptions::default().read_only(true).background(false))?;
    let existed = args.new_image.exists();
    let made = MkfsArgs::of(mkfs_list(args, &source, old_len)).and_then(|list| mkfs::make(&list)?.close());
    let done = made.and_then(|()| fill(args, &source));
    let closed = source.close().about(|| &at);
    if done.is_err() && !existed && args.new_image.exists() {
        // Half a copy is worse than none. The error that led here is what the user needs to see.
        let _ = std::fs::remove_file(&args.new_image);
    }
    let (files, bytes) = done?;
    closed?;
    eprintln!("{files} names, {} copied and compared", human(bytes));
    if left_behind > 0 && args.snapshot.is_none() {
        eprintln!("{at}: {left_behind} snapshots and clones stay behind; `--snapshot` copies one");
    }
    Ok(0)
}

/// The options of mkfs that make an image like the old one.
fn mkfs_list(args: &ConvertArgs, source: &Fs, old_len: u64) -> Vec<OsString> {
    let (sb, g) = (source.superblock(), source.geometry());
    let mut list: Vec<OsString> = vec!["mkfs".into()];
    let mut option = |name: &str, value: String| list.push(format!("--{name}={value}").into());
    let log = args.layout == Layout::Log;
    let block = if log { g.block_size().max(4096) } else { g.block_size() };
    option("layout", if log { "log" } else { "plain" }.into());
    option("block-size", block.to_string());
    if block == g.block_size() {
        option("fragment-size", g.frag_size().to_string());
    }
    option("group-size", g.group_size().to_string());
    option("reserve", format!("{}", f64::from(sb.reserve_bp) / 100.0));
    option("label", sb.label_str());
    let kinds: Vec<&str> = source.quota_kinds().iter().map(|kind| kind.name()).collect();
    if !kinds.is_empty() {
        option("quota", kinds.join(","));
    }
    if !log && sb.has_data_sums() {
        option("data-sums", "on".into());
    }
    // A device has its size; so has a file that is there.
    let size = args.size.or((!args.new_image.exists()).then_some(old_len));
    if let Some(size) = size {
        option("size", size.to_string());
    }
    for (name, value) in [("thin", &args.thin), ("compress", &args.compress)] {
        if let Some(value) = value {
            option(name, value.clone());
        }
    }
    let old = crate::mount_options::compression_of(&sb.mount_options_str());
    if log && args.compress.is_none() && old != cffs_logdisk::Compression::None {
        option("compress", crate::compression::compression_name(old));
    }
    if args.force {
        list.push("--force".into());
    }
    for (flag, is_set) in [("--no-embed", !sb.embeds_inodes()), ("--no-group", !sb.groups_files())] {
        if is_set {
            list.push(flag.into());
        }
    }
    list.push("--".into());
    list.push(args.new_image.clone().into());
    list
}

/// Copies everything into the new image, and compares. Returns the number of names, and bytes of contents.
fn fill(args: &ConvertArgs, source: &Fs) -> anyhow::Result<(u64, u64)> {
    let name = args.new_image.display().to_string();
    let target =
        Image::open(&args.new_image, &LogArgs::default(), OpenMode::READ_WRITE)?.mount(MountOptions::default())?;
    let total = contents_of(source);
    let copied = copy_all(source, &target, total);
    let closed = target.close().about(|| &name);
    let counts = copied.with_context(|| name.clone())?;
    closed?;
    // The image is opened again, for reading: what is compared has to be on it.
    drop(target);
    let image = Image::open(&args.new_image, &LogArgs::default(), OpenMode::READ_ONLY)?;
    if !check_image(&image, &name)?.is_clean() {
        bail!("{name}: the check finds something wrong with the new image: this is a bug");
    }
    let target = image.mount(MountOptions::default().read_only(true).background(false))?;
    let same = compare::compare(source, &target, total).and_then(|()| same_quotas(source, &target));
    target.close().about(|| &name)?;
    same.with_context(|| name)?;
    Ok(counts)
}

/// About how many bytes files have, for the progress bar.
fn contents_of(fs: &Fs) -> u64 {
    let space = fs.statfs();
    space.total.saturating_sub(space.free).saturating_mul(space.frag_size.into())
}

fn copy_all(source: &Fs, target: &Fs, total: u64) -> anyhow::Result<(u64, u64)> {
    let mut copy = Copy::new(source, target, total);
    copy.run()?;
    // Now that nothing can be refused because of them.
    for kind in source.quota_kinds() {
        target.set_quota_grace(kind, source.quota_grace(kind)?)?;
        for status in source.quota_list(kind)? {
            if status.limits != QuotaLimits::default() && status.id != 0 {
                target.set_quota(kind, status.id, status.limits)?;
            }
        }
    }
    let sb = source.superblock();
    let has = crate::mount_options::split(&target.superblock().mount_options_str());
    // How a log disk compresses is what the new image says of itself.
    let of_layout = |option: &String| option.starts_with("compress=");
    let kept = crate::mount_options::split(&sb.mount_options_str()).into_iter().filter(|o| !of_layout(o));
    let options: Vec<String> = kept.chain(has.into_iter().filter(of_layout)).filter(|o| !o.is_empty()).collect();
    target.tune(&Tune::default().mount_options(Some(options.join(","))))?;
    Ok((copy.files(), copy.bytes))
}

fn same_quotas(source: &Fs, target: &Fs) -> anyhow::Result<()> {
    for kind in source.quota_kinds() {
        let limits = |fs: &Fs| -> cffs::Result<Vec<(u32, QuotaLimits)>> {
            let all = fs.quota_list(kind)?.into_iter().map(|q| (q.id, q.limits));
            Ok(all.filter(|(_, limits)| *limits != QuotaLimits::default()).collect())
        };
        if limits(source)? != limits(target)? || source.quota_grace(kind)? != target.quota_grace(kind)? {
            bail!("the copy differs from the original in {} quotas", kind.name());
        }
    }
    Ok(())
}
