//! `cffs regroup`: brings files and directories back together that have come apart, mounted or not.

mod directories;
mod report;
mod runner;

use crate::exit::{self, ExitCodeExt, with_code};
use crate::image::LogArgs;
use crate::mount_or_image::MountOrImage;
use crate::progress::{Progress, Steps};
use crate::size::parse_size;
use anyhow::anyhow;
use cffs::{RegroupOptions, RegroupOutcome, RegroupStatus};
use cffs_fuse::control::{Control, Request};
use clap::Args;
use report::Format;
use runner::Runner;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const EXIT_CODES: &str = "\
Exit codes:
  0   Everything was looked at, or the budget was used (with --background: it runs)
  8   The regroup could not be done, or not to the end
  16  Wrong usage
  32  Interrupted: what was moved stays moved";

/// How often to ask how far it is.
const INTERVAL: Duration = Duration::from_millis(200);

/// Bring files and directories back together that have come apart
///
/// Space that files leave is filled by others, so what is read together is spread over the device after a while. A regroup
/// moves small files of a directory next to each other, and directory blocks next to those of their neighbours, where that
/// saves requests. What is in order already stays where it is, so a second regroup moves little or nothing.
///
/// Of a mounted file system (a directory) the process that serves the mount does it, while the file system is in use. Of an
/// image or device that is not mounted this command does it, alone. Each move has happened or not, also after a crash.
///
/// It takes root, or the user who mounted. An interrupt stops it.
#[derive(Args, Debug)]
#[command(after_long_help = EXIT_CODES, override_usage = "cffs regroup [OPTIONS] [PATH]... <DIR|IMAGE>")]
pub struct RegroupArgs {
    /// Most bytes to move
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    budget: Option<u64>,
    /// Most bytes to read and write in a second
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    rate: Option<u64>,
    /// Move nothing: print what would be gained
    #[arg(long)]
    dry_run: bool,
    /// Bring large files into one piece each, and leave small files and directories where they are
    ///
    /// A file that is longer than a group and lies in pieces of less than 8 MiB on average is moved to where it has at most half as
    /// many.
    #[arg(long)]
    large: bool,
    /// Bring free space into long runs, so that a tenth of the device lies in the fewest of them, and leave files in order as they are
    ///
    /// What is in the way goes into gaps elsewhere, small files too: bring those together before, not afterwards. With --large, large
    /// files go into the runs that were made. It takes the whole file system, and no PATH.
    #[arg(long)]
    free_space: bool,
    /// Return at once; --status tells how far it is. Of a mount only
    #[arg(long)]
    background: bool,
    /// Only tell how far the regroup of a mount is that runs, or what the last one came to
    #[arg(long, conflicts_with_all = ["budget", "rate", "dry_run", "large", "free_space", "background"])]
    status: bool,
    /// Only stop the regroup of a mount that runs
    #[arg(long, conflicts_with_all = ["budget", "rate", "dry_run", "large", "free_space", "background", "status"])]
    stop: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
    /// The mount point, or the image or device. Before it the directories to bring together, with all that is below them: of a
    /// mount by their paths, or their paths from DIR on; of an image by their paths in it. Without any: the whole file system
    #[arg(value_name = "[PATH]... DIR|IMAGE", num_args = 1.., required = true)]
    paths: Vec<PathBuf>,
}

/// Parses a limit in bytes, of which there must be some.
fn parse_limit(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("nothing would ever be moved: give at least 1".into()),
        bytes => Ok(bytes),
    }
}

/// Settings of the engine, but for the directories.
fn options(args: &RegroupArgs) -> RegroupOptions {
    RegroupOptions::default()
        .budget(args.budget)
        .rate(args.rate)
        .dry_run(args.dry_run)
        .large(args.large)
        .free_space(args.free_space)
}

/// Runs the subcommand.
pub fn run(args: &RegroupArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let Some((target, inside)) = args.paths.split_last() else {
        return Err(with_code(exit::fsck::USAGE, anyhow!("no directory or image was named")));
    };
    let name = target.display().to_string();
    let format = Format { name: &name, json: args.json };
    let usage = |why: &str| Err(with_code(exit::fsck::USAGE, anyhow!("{name}: {why}")));
    if (args.status || args.stop) && !inside.is_empty() {
        return usage("--status and --stop take one directory, because one regroup runs at a time");
    }
    if args.free_space && !inside.is_empty() {
        return usage("--free-space takes no PATH, because free space belongs to no directory");
    }
    if !target.is_dir() && (args.status || args.stop || args.background) {
        return usage("not a directory: --background, --status and --stop are for mounted file systems");
    }
    // Before anything begins, so that no signal ends the program half way.
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let runner = match MountOrImage::open(target, &args.log).exit_code(exit::fsck::OPERATIONAL)? {
        MountOrImage::Mounted(control) => {
            if args.status || args.stop {
                return ask(args, &control, format);
            }
            let found = directories::of_mount(target, inside).exit_code(exit::fsck::OPERATIONAL)?;
            let start = Request::RegroupStart(options(args).directories(found));
            control.call::<()>(&start).exit_code(exit::fsck::OPERATIONAL)?;
            if args.background {
                return Ok(0);
            }
            Runner::Mounted(control)
        }
        MountOrImage::Image(image) => {
            let inside: Vec<&OsStr> = inside.iter().map(|p| p.as_os_str()).collect();
            let paths: Vec<&[u8]> = inside.iter().map(|p| p.as_bytes()).collect();
            Runner::of_image(*image, &paths, options(args)).exit_code(exit::fsck::OPERATIONAL)?
        }
    };
    let status = wait(&runner, !inside.is_empty(), &interrupted);
    // An image is closed also after an error.
    let closed = runner.end(&name);
    let status = status.exit_code(exit::fsck::OPERATIONAL)?;
    closed.exit_code(exit::fsck::OPERATIONAL)?;
    format.print(&status)?;
    Ok(match status.outcome {
        Some(RegroupOutcome::Complete) => 0,
        Some(RegroupOutcome::Stopped) if interrupted.load(Ordering::Relaxed) => exit::fsck::CANCELLED,
        _ => exit::fsck::OPERATIONAL,
    })
}

/// Tells of the regroup of a mount that runs or was the last one, or stops it.
fn ask(args: &RegroupArgs, control: &Control, format: Format<'_>) -> anyhow::Result<u8> {
    let request = if args.stop { Request::RegroupStop } else { Request::RegroupStatus };
    let status: Option<RegroupStatus> = control.call(&request).exit_code(exit::fsck::OPERATIONAL)?;
    let none = || with_code(exit::fsck::OPERATIONAL, anyhow!("{}: no regroup since it was mounted", format.name));
    let status = status.ok_or_else(none)?;
    format.print(&status)?;
    Ok(if matches!(status.outcome, Some(RegroupOutcome::Failed(_))) { exit::fsck::OPERATIONAL } else { 0 })
}

/// Waits for the end, and shows how far it is. Stops it when the user wants that.
fn wait(runner: &Runner, part: bool, interrupted: &AtomicBool) -> anyhow::Result<RegroupStatus> {
    // How many inodes there are in all says nothing of a part.
    let (whole, subtree) = if part { (None, Some(Progress::new(None))) } else { (Some(Steps::new()), None) };
    let mut shown = 0;
    loop {
        if interrupted.load(Ordering::Relaxed) {
            return runner.stop();
        }
        let status = runner.status()?;
        if status.outcome.is_some() {
            return Ok(status);
        }
        if let Some(bar) = &whole {
            let done = status.directories + status.files;
            bar.show("regroup", done, status.inodes_total.max(done));
        }
        if let Some(bar) = &subtree {
            bar.bytes(status.bytes_moved - shown);
            shown = status.bytes_moved;
        }
        std::thread::sleep(INTERVAL);
    }
}
