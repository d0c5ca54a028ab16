//! `cffs info`: what an image is and how well things lie in it.

use crate::fsck::check_image;
use crate::image::{Image, LogArgs};
use crate::size::human;
use crate::text::{print_json, printable, time_string};
use crate::volume::print_volume;
use anyhow::Context;
use cffs::check::Report;
use cffs::device::OpenMode;
use cffs::format::superblock::State;
use cffs::{Geometry, Superblock};
use cffs_fuse::control::{Control, MountInfo, Request};
use cffs_fuse::volume::VolumeReport;
use cffs_logdisk::LogDisk;
use clap::Args;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::PathBuf;

/// Show geometry, space, features and layout of an image
///
/// For the directory that an image is mounted on: the same as it is now, without what takes a look at all directories.
#[derive(Args, Debug)]
pub struct InfoArgs {
    /// Leave out what takes a look at all directories: counts and layout
    #[arg(short, long)]
    quick: bool,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Device or image file, or directory of a mount
    #[arg(value_name = "IMAGE|DIR")]
    image: PathBuf,
}

/// The name of a state.
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Clean => "clean",
        State::Journaled => "mounted, or not unmounted: the next mount replays the log",
        State::Unjournaled => "not unmounted from a mode without journal: needs fsck",
        State::Error => "an error was found while it was mounted: needs fsck",
    }
}

/// How full groups are: the classes of [`cffs::check::Layout::group_fill`].
const FILL: [&str; 6] = ["empty", "to 25%", "to 50%", "to 75%", "below 100%", "full"];

/// Runs the subcommand.
pub fn run(args: &InfoArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    if args.image.is_dir() {
        return of_mount(args);
    }
    let image = Image::open(&args.image, &args.log, OpenMode::READ_ONLY)?;
    let report = if args.quick { None } else { Some(check_image(&image, &args.image.display().to_string())?) };
    let (sb, g) = (&image.superblock, &image.geometry);
    if args.json {
        let mut value = to_json(&image.path.to_string_lossy(), sb, g, report.as_ref(), image.log_disk.is_some());
        if let Value::Object(all) = &mut value {
            all.insert("image_layout".into(), json!(layout_name(image.log_disk.is_some())));
            all.insert("log_disk".into(), json!(image.log_disk.as_deref().map(log_disk_json)));
            all.insert("volume".into(), json!(image.volume.as_deref().map(VolumeReport::of)));
        }
        print_json(&value)?;
    } else {
        let mut out = io::stdout().lock();
        if let Some(volume) = &image.volume {
            print_volume(&mut out, &VolumeReport::of(volume))?;
        }
        if let Some(disk) = &image.log_disk {
            let (space, n) = (disk.space(), cffs_fuse::snapshots::count(disk));
            let (usable, free) = (human(space.usable), human(space.free));
            writeln!(out, "image        log layout: stores {usable}, {free} of it free; {n} snapshots")?;
        }
        print(&mut out, sb, g, report.as_ref(), image.log_disk.is_some())?;
        out.flush()?;
    }
    Ok(0)
}

/// What is stored on a log disk.
pub fn log_disk_json(disk: &LogDisk) -> Value {
    let (space, stats) = (disk.space(), disk.stats());
    let all = cffs_fuse::snapshots::list(disk);
    let clones = all.iter().filter(|e| e.clone_of.is_some()).count();
    json!({
        "usable_bytes": space.usable,
        "live_bytes": space.live,
        "free_bytes": space.free,
        "segments": stats.segments,
        "used_bytes": stats.used,
        "snapshots": all.len() - clones,
        "clones": clones,
    })
}

fn of_mount(args: &InfoArgs) -> anyhow::Result<u8> {
    let control = Control::open(&args.image)?;
    let info = control.info()?;
    let volume: Option<VolumeReport> = control.call(&Request::VolumeStatus)?;
    let decoded = Superblock::decode(&info.superblock).and_then(|sb| Ok((Geometry::new(&sb)?, sb)));
    let (g, sb) = decoded.with_context(|| args.image.display().to_string())?;
    if args.json {
        let mut value = to_json(&info.image, &sb, &g, None, info.log_layout);
        if let (Value::Object(all), Ok(Value::Object(mut mount))) = (&mut value, serde_json::to_value(&info)) {
            mount.remove("superblock");
            all.insert("mount".into(), mount.into());
            all.insert("image_layout".into(), json!(layout_name(info.log_layout)));
            all.insert("volume".into(), json!(volume));
        }
        print_json(&value)?;
    } else {
        let mut out = io::stdout().lock();
        if let Some(volume) = &volume {
            print_volume(&mut out, volume)?;
        }
        print(&mut out, &sb, &g, None, info.log_layout)?;
        print_mount(&mut out, &info)?;
        out.flush()?;
    }
    Ok(0)
}

fn print_mount(out: &mut impl Write, info: &MountInfo) -> io::Result<()> {
    writeln!(out, "free         {}, {} of it for everybody", human(info.free_bytes), human(info.available_bytes))?;
    writeln!(out, "image        {}", printable(info.image.as_bytes()))?;
    let mode = if info.read_only { "read-only" } else { "for reading and writing" };
    if let Some(failure) = &info.failure {
        writeln!(out, "failed       {}", printable(failure.as_bytes()))?;
        writeln!(out, "             nothing is written any more; remove the cause, unmount, and mount again")?;
    }
    writeln!(out, "now mounted  {mode} by process {} of user {} (cffs {})", info.pid, info.uid, info.program)
}

fn layout_name(log_layout: bool) -> &'static str {
    if log_layout { "log" } else { "plain" }
}

/// On a log disk each commit is one batch of it, and what is kept for a log of the file system is never used.
fn log_bytes(g: &Geometry, log_layout: bool) -> u64 {
    if log_layout { 0 } else { g.log_blocks << g.block_shift }
}

fn to_json(image: &str, sb: &Superblock, g: &Geometry, report: Option<&Report>, log_layout: bool) -> Value {
    let mut value = json!({
        "image": image,
        "label": sb.label_str(),
        "uuid": sb.uuid_str(),
        "version": sb.version,
        "state": format!("{:?}", sb.state).to_lowercase(),
        "features": sb.feature_names(),
        "created_ns": sb.created,
        "mounted_ns": sb.mounted,
        "mount_count": sb.mount_count,
        "bytes": g.total_bytes(),
        "block_size": g.block_size(),
        "fragment_size": g.frag_size(),
        "group_size": g.group_size(),
        "allocation_group_bytes": g.ag_blocks << g.block_shift,
        "allocation_groups": g.ag_count,
        "log_bytes": log_bytes(g, log_layout),
        "external_log": g.log_start == 0 && !log_layout,
        "reserve_percent": f64::from(sb.reserve_bp) / 100.0,
        "mount_options": sb.mount_options_str(),
    });
    if let (Some(r), Value::Object(object)) = (report, &mut value) {
        let c = &r.counts;
        object.insert(
            "space".into(),
            json!({
                "used_bytes": c.frags_used << g.frag_shift,
                "free_bytes": c.frags_total.saturating_sub(c.frags_used) << g.frag_shift,
            }),
        );
        object.insert("counts".into(), json!(c));
        let fill: serde_json::Map<String, Value> =
            FILL.iter().zip(r.layout.group_fill).map(|(name, n)| ((*name).to_owned(), json!(n))).collect();
        object.insert(
            "layout".into(),
            json!({
                "score": r.layout.score(),
                "co_location": r.layout.co_location(),
                "group_fill": fill,
                "virgin_groups": r.layout.virgin_groups,
            }),
        );
        object.insert("problems".into(), json!(r.problems_total));
    }
    value
}

fn print(
    out: &mut impl Write,
    sb: &Superblock,
    g: &Geometry,
    report: Option<&Report>,
    log_layout: bool,
) -> io::Result<()> {
    let features = sb.feature_names();
    writeln!(out, "label        {}", printable(sb.label_str().as_bytes()))?;
    writeln!(out, "uuid         {}", sb.uuid_str())?;
    writeln!(
        out,
        "format       version {}, {}",
        sb.version,
        if features.is_empty() { "no special features".into() } else { features.join(", ") }
    )?;
    writeln!(out, "state        {}", state_name(sb.state))?;
    writeln!(out, "made         {}", time_string(sb.created, false))?;
    match sb.mount_count {
        0 => writeln!(out, "mounted      never")?,
        n => writeln!(out, "mounted      {n} times, last {}", time_string(sb.mounted, false))?,
    }
    writeln!(
        out,
        "size         {} ({} blocks of {})",
        human(g.total_bytes()),
        g.total_blocks,
        human(g.block_size() as u64)
    )?;
    writeln!(out, "fragment     {}", human(g.frag_size() as u64))?;
    writeln!(out, "group        {}", human(g.group_size() as u64))?;
    writeln!(out, "allocation   {} groups of {}", g.ag_count, human(g.ag_blocks << g.block_shift))?;
    let place = if g.log_start == 0 { " on a device of its own" } else { "" };
    match log_bytes(g, log_layout) {
        0 => writeln!(out, "log          none but the log disk: each commit is a batch of it")?,
        bytes => writeln!(out, "log          {}{place}", human(bytes))?,
    }
    writeln!(out, "reserve      {}% for root", f64::from(sb.reserve_bp) / 100.0)?;
    if !sb.mount_options_str().is_empty() {
        writeln!(out, "options      {} by default", printable(sb.mount_options_str().as_bytes()))?;
    }
    if let Some(r) = report {
        let c = &r.counts;
        let free = c.frags_total.saturating_sub(c.frags_used);
        writeln!(out, "used         {}, free {}", human(c.frags_used << g.frag_shift), human(free << g.frag_shift))?;
        writeln!(
            out,
            "files        {} regular, {} directories, {} symbolic links, {} special; {} external links",
            c.files, c.dirs, c.symlinks, c.special, c.links
        )?;
        writeln!(out, "extents      {} in {} tree nodes beside the inodes", c.extents, c.extent_nodes)?;
        let share = |s: Option<f64>| s.map_or("nothing to tell".to_owned(), |s| format!("{:.1}%", s * 100.0));
        writeln!(out, "layout       {} of blocks follow their predecessor", share(r.layout.score()))?;
        writeln!(out, "             {} of small files share a group with a neighbour", share(r.layout.co_location()))?;
        let fill: Vec<String> = FILL.iter().zip(r.layout.group_fill).map(|(name, n)| format!("{n} {name}")).collect();
        writeln!(out, "groups       {}, {} never used", fill.join(", "), r.layout.virgin_groups)?;
        if !r.is_clean() {
            writeln!(out, "problems     {}: `cffs fsck -n` lists them", r.problems_total)?;
        }
    }
    Ok(())
}
