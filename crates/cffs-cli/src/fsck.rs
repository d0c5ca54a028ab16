//! `cffs fsck`: checks an image.

use crate::exit::{self, ExitCodeExt, with_code};
use crate::image::{EngineResultExt, Image, LogArgs};
use crate::progress::Steps;
use crate::text::print_json;
use anyhow::anyhow;
use cffs::check::{CheckOptions, Report, check};
use cffs::device::{Device, OpenMode};
use cffs::format::superblock::State;
use cffs::fs::api::MountOptions;
use clap::Args;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::PathBuf;

const EXIT_CODES: &str = "\
Exit codes:
  0   Nothing is wrong
  1   The log was replayed, and nothing is wrong now
  4   Errors are left
  8   The check could not be done
  16  Wrong usage
  32  Interrupted";

/// Check a cffs image
///
/// Looks at every structure. This version finds damage but does not repair it. A log that is not empty, as after a
/// crash, is replayed: in memory with -n, otherwise on the image.
///
#[derive(Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub struct FsckArgs {
    /// Change nothing
    #[arg(short, conflicts_with_all = ["preen", "yes"])]
    no: bool,
    /// Do what is safe without asking: replay the log
    #[arg(short, visible_short_alias = 'a', conflicts_with = "yes")]
    preen: bool,
    /// Answer all questions with yes: replay the log
    #[arg(short)]
    yes: bool,
    /// Check even if the file system is marked clean
    #[arg(short)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Show progress; happens anyway on a terminal
    #[arg(short = 'C')]
    progress: bool,
    /// Accepted because fsck(8) has it; without effect
    #[arg(short = 'T', hide = true)]
    no_title: bool,
    /// Accepted because fsck(8) has it; without effect
    #[arg(short = 'V', hide = true)]
    verbose_fsck: bool,
    /// Accepted because fsck(8) has it; without effect
    #[arg(short = 'M', hide = true)]
    not_mounted: bool,
    /// Accepted because e2fsck(8) has it; without effect
    #[arg(short, hide = true)]
    verbose: bool,
    /// Accepted because e2fsck(8) has it; without effect
    #[arg(short, hide = true)]
    repair: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Device or image file
    image: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: &FsckArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let name = args.image.display().to_string();
    let log = args.log.log_device.as_deref();
    let interrupted = signal_hook::flag::register_conditional_shutdown;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A check changes nothing that would have to be brought to an end, so it may end anywhere.
        let always = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
        interrupted(signal, exit::fsck::CANCELLED.into(), always)?;
    }
    let mut image = Image::open(&args.image, log, OpenMode::READ_ONLY)?;
    // What -p is for at boot: a file system in order costs nothing.
    if args.preen && !args.force && !args.json && image.superblock.state == State::Clean {
        writeln!(io::stdout(), "{name}: clean")?;
        return Ok(0);
    }
    let mut replayed = false;
    if !args.no && (args.preen || args.yes) && image.superblock.state == State::Journaled {
        drop(image);
        let fs = Image::open(&args.image, log, OpenMode::READ_WRITE)?
            .mount(MountOptions { background: false, ..MountOptions::default() })?;
        fs.close().about(|| &name)?;
        drop(fs);
        replayed = true;
        image = Image::open(&args.image, log, OpenMode::READ_ONLY)?;
    }
    let report = check_image(&image, &name).exit_code(exit::fsck::OPERATIONAL)?;
    if args.json {
        print_json(&to_json(&report, &name, replayed)?)?;
    } else {
        print(&report, &name, replayed)?;
    }
    match (report.is_clean(), replayed) {
        (true, false) => Ok(0),
        (true, true) => Ok(exit::fsck::CORRECTED),
        (false, _) => Err(with_code(
            exit::fsck::ERRORS_LEFT,
            anyhow!(
                "{name}: {} problems: repair is not available in this version: mount it read-only and copy out what matters",
                report.problems_total
            ),
        )),
    }
}

/// Checks an open image.
pub fn check_image(image: &Image, name: &str) -> anyhow::Result<Report> {
    let steps = Steps::new();
    let log_dev = image.log_dev.clone().map(|d| d as std::sync::Arc<dyn Device>);
    let options = CheckOptions::default();
    let report =
        check(image.dev.clone(), log_dev, &options, &|phase, done, total| steps.show(phase.name(), done, total));
    report.about(|| name)
}

fn to_json(report: &Report, name: &str, replayed: bool) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(report)?;
    if let Value::Object(object) = &mut value {
        object.insert("image".into(), json!(name));
        object.insert("clean".into(), json!(report.is_clean()));
        object.insert("log_replayed_on_image".into(), json!(replayed));
    }
    Ok(value)
}

fn print(report: &Report, name: &str, replayed: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if replayed {
        writeln!(out, "{name}: the log was replayed")?;
    } else if report.replayed > 0 {
        writeln!(out, "{name}: checked as after a replay of its log ({} transactions)", report.replayed)?;
    }
    for problem in &report.problems {
        writeln!(out, "{name}: {problem}")?;
    }
    let listed = report.problems.len() as u64;
    if report.problems_total > listed {
        writeln!(out, "{name}: and {} problems more", report.problems_total - listed)?;
    }
    let c = &report.counts;
    let share = if c.frags_total > 0 { c.frags_used as f64 * 100.0 / c.frags_total as f64 } else { 0.0 };
    writeln!(
        out,
        "{name}: {}: {} files, {} directories, {} symbolic links, {} special files, {share:.1}% of the space in use",
        if report.is_clean() { "clean" } else { "DAMAGED" },
        c.files,
        c.dirs,
        c.symlinks,
        c.special,
    )?;
    out.flush()
}
