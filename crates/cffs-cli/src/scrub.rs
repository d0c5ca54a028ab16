//! `cffs scrub`: has the process that serves a mount verify what is on the device.

use crate::exit::{self, ExitCodeExt, with_code};
use crate::progress::Steps;
use crate::size::{human, parse_size};
use crate::text::{print_json, printable};
use anyhow::{Context, anyhow};
use cffs::{ScrubOptions, ScrubOutcome, ScrubStatus};
use cffs_fuse::control::{Control, Request};
use clap::Args;
use serde_json::json;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const EXIT_CODES: &str = "\
Exit codes:
  0   Nothing is wrong (with --background: it runs)
  4   Something is wrong: what, is printed; unless it is contents of files only, unmount and run cffs fsck
  8   The scrub could not be done, or not to the end
  16  Wrong usage
  32  Interrupted";

/// How often to ask how far it is.
const INTERVAL: Duration = Duration::from_millis(200);

/// Verify all metadata of a mounted file system, and data that has checksums
///
/// Reads every block of metadata from the device, not from memory, and checks what it says of itself: kind, checksum,
/// place, owner, contents; and where memory has the block too, that the device has the same. The file system is in use
/// meanwhile. What is wrong is printed, logged by the process that serves the mount, and noted in the superblock, so that
/// the file system counts as in need of fsck. The log, which is replaced all the time, is not read.
///
/// Where data of files has checksums (mkfs --data-sums) it is read too and compared with them. What is not what was written
/// is named by inode, bytes and, where that is known, path. Nothing puts it right: write such files anew, from a backup.
///
/// In the log layout all that the log disk stores has checksums, and all of it is read, also what only snapshots have.
///
/// On a mirror each copy is read, and what is wrong in one comes from another; `cffs volume DIR scrub` compares the members as well.
///
/// It takes root, or the user who mounted. An interrupt stops it.
#[derive(Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub struct ScrubArgs {
    /// Most bytes to read in a second
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    rate: Option<u64>,
    /// Leave out the data of files
    #[arg(long)]
    metadata_only: bool,
    /// Return at once; --status tells how far it is
    #[arg(long)]
    background: bool,
    /// Only tell how far the scrub is that runs, or what the last one came to
    #[arg(long, conflicts_with_all = ["rate", "metadata_only", "background"])]
    status: bool,
    /// Only stop the scrub that runs
    #[arg(long, conflicts_with_all = ["rate", "metadata_only", "background", "status"])]
    stop: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Any directory of the mount
    dir: PathBuf,
}

impl ScrubArgs {
    /// A whole scrub of a mount.
    pub fn of(dir: &Path, rate: Option<u64>) -> ScrubArgs {
        ScrubArgs {
            rate,
            metadata_only: false,
            background: false,
            status: false,
            stop: false,
            json: false,
            dir: dir.to_owned(),
        }
    }
}

/// Runs the subcommand.
pub fn run(args: &ScrubArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let name = args.dir.display().to_string();
    let control = Control::open(&args.dir).exit_code(exit::fsck::OPERATIONAL)?;
    let asked = if args.status {
        Some(Request::ScrubStatus)
    } else if args.stop {
        Some(Request::ScrubStop)
    } else {
        None
    };
    if let Some(request) = asked {
        let status: Option<ScrubStatus> = control.call(&request).exit_code(exit::fsck::OPERATIONAL)?;
        let none = || with_code(exit::fsck::OPERATIONAL, anyhow!("{name}: no scrub since it was mounted"));
        return report(args, &name, &status.ok_or_else(none)?);
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let start = Request::ScrubStart(ScrubOptions::default().rate(args.rate).metadata_only(args.metadata_only));
    control.call::<()>(&start).exit_code(exit::fsck::OPERATIONAL)?;
    if args.background {
        return Ok(0);
    }
    let ask = |request| -> anyhow::Result<ScrubStatus> {
        let status: Option<ScrubStatus> = control.call(request).exit_code(exit::fsck::OPERATIONAL)?;
        status.with_context(|| format!("{name}: the scrub is gone: was it mounted anew?"))
    };
    let steps = Steps::new();
    let status = loop {
        if interrupted.load(Ordering::Relaxed) {
            break ask(&Request::ScrubStop)?;
        }
        let status = ask(&Request::ScrubStatus)?;
        if status.outcome.is_some() {
            break status;
        }
        steps.show("scrub", status.inodes, status.inodes_total.max(status.inodes));
        std::thread::sleep(INTERVAL);
    };
    drop(steps);
    let code = report(args, &name, &status)?;
    Ok(match code {
        exit::fsck::OPERATIONAL if interrupted.load(Ordering::Relaxed) => exit::fsck::CANCELLED,
        code if interrupted.load(Ordering::Relaxed) => code | exit::fsck::CANCELLED,
        code => code,
    })
}

/// Prints what a scrub came to; returns the exit code.
fn report(args: &ScrubArgs, name: &str, s: &ScrubStatus) -> anyhow::Result<u8> {
    if args.json {
        let mut value = serde_json::to_value(s)?;
        if let Some(object) = value.as_object_mut() {
            object.insert("mount".into(), json!(name));
            object.insert("running".into(), json!(s.outcome.is_none()));
        }
        print_json(&value)?;
    } else {
        let mut out = io::stdout().lock();
        for f in &s.findings {
            let path = f.path.as_ref().map_or(String::new(), |p| format!(" ({})", printable(p.as_bytes())));
            writeln!(out, "{name}: {}{path}: {}", f.object, printable(f.what.as_bytes()))?;
        }
        if s.findings_total > s.findings.len() as u64 {
            writeln!(out, "{name}: and {} more", s.findings_total - s.findings.len() as u64)?;
        }
        let how = match &s.outcome {
            None => format!("reads {}", s.phase),
            Some(ScrubOutcome::Complete) => "complete".into(),
            Some(ScrubOutcome::Stopped) => "stopped".into(),
            Some(ScrubOutcome::Failed(why)) => format!("failed: {why}"),
        };
        let (blocks, inodes, seconds) = (s.blocks, s.inodes, s.seconds);
        writeln!(
            out,
            "{name}: scrub {how}: {} problem{}; {blocks} blocks of {inodes} inodes verified, {} read in {seconds:.1} s",
            s.findings_total,
            if s.findings_total == 1 { "" } else { "s" },
            human(s.bytes)
        )?;
        if s.data_verified + s.data_unsummed + s.data_newer + s.data_failed > 0 {
            let [good, bad, none, newer] = [s.data_verified, s.data_failed, s.data_unsummed, s.data_newer].map(human);
            writeln!(
                out,
                "{name}: data: {good} have their checksums, {bad} have not, of {none} none is known, {newer} are newer in memory"
            )?;
        }
        if s.stored_verified > 0 {
            let stored = human(s.stored_verified);
            writeln!(out, "{name}: log disk: {stored} verified, with those of snapshots; {} damaged", s.stored_failed)?;
        }
        if s.repaired + s.data_differing > 0 {
            let differing = human(s.data_differing);
            writeln!(
                out,
                "{name}: copies: {} blocks and fragments were wrong in one and were repaired; in {differing} without checksums they differ",
                s.repaired
            )?;
        }
        out.flush()?;
    }
    if s.findings_total > 0 {
        if s.marked {
            eprintln!("cffs: {name}: needs a check: unmount it, and run cffs fsck");
        } else if s.findings.iter().all(|f| f.object == "log disk") {
            eprintln!("cffs: {name}: all files can be read: unmount it, and run cffs fsck -y to move what is there");
        } else {
            eprintln!("cffs: {name}: contents of files are damaged: write these anew, from a backup");
        }
        return Ok(exit::fsck::ERRORS_LEFT);
    }
    Ok(match s.outcome {
        Some(ScrubOutcome::Failed(_)) => exit::fsck::OPERATIONAL,
        Some(ScrubOutcome::Stopped) if !args.stop && !args.status => exit::fsck::OPERATIONAL,
        _ => 0,
    })
}
