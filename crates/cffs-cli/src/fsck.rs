//! `cffs fsck`: checks and repairs an image.

use crate::damage_as_zeros::DamageAsZeros;
use crate::device::open_device;
use crate::disk::open_disk;
use crate::exit::{self, ExitCodeExt, with_code};
use crate::fsck_log_disk::{self, LogDiskOutcome, Proposal, Wanted, discard_left_over, look_at_files};
use crate::image::{EngineResultExt, Image, LogArgs};
use crate::progress::Steps;
use crate::text::print_json;
use anyhow::{Context, anyhow};
use cffs::Error;
use cffs::check::repair::{Action, RepairOptions, Repaired, has_superblock, recover_log, repair};
use cffs::check::{CheckOptions, Report, check};
use cffs::device::{Device, OpenMode};
use cffs::format::superblock::State;
use cffs_logdisk::{LogDisk, Space};
use clap::Args;
use serde_json::{Value, json};
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const EXIT_CODES: &str = "\
Exit codes (they add up):
  0   Nothing is wrong
  1   Errors were repaired, or the log was replayed
  4   Errors are left
  8   The check or the repair could not be done
  16  Wrong usage
  32  Interrupted";

/// Check and repair a cffs image
///
/// Looks at every structure. Without -n, -p or -y it asks before each change; where it cannot ask, it changes nothing.
/// What is to be changed is worked out first and then written through the log, so that an interrupted repair leaves the
/// file system as it was or as it is to be. Files that have lost their names appear in lost+found.
///
#[derive(Args, Clone, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub struct FsckArgs {
    /// Change nothing
    #[arg(short, conflicts_with_all = ["preen", "yes"])]
    no: bool,
    /// Do what is safe without asking: replay the log, make anew what follows from other structures
    #[arg(short, visible_short_alias = 'a', conflicts_with = "yes")]
    preen: bool,
    /// Answer all questions with yes
    #[arg(short)]
    yes: bool,
    /// With -y, for a device whose superblocks, tables or directories are destroyed: bring back every directory of which
    /// blocks are found, and what is in it
    #[arg(long, requires = "yes")]
    scavenge: bool,
    /// Read the data of all files too, and compare it with its checksums, where it has any (mkfs --data-sums). Data that is
    /// not what was written stays as it is: reading it is an error
    #[arg(long)]
    data: bool,
    /// In the log layout: check the file system in this clone and repair it, or check this snapshot, in place of the one that has them
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
    /// Threads that read and verify, 0 for as many as there are processors; what is found and done does not depend on it
    #[arg(long, value_name = "N", default_value_t = 0)]
    jobs: usize,
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

/// What was found and done.
struct Outcome {
    /// The check before any repair; none where there was no superblock to go by.
    before: Option<Report>,
    repaired: Option<Repaired>,
    /// Nothing was wrong but that the file system was not unmounted: the log was replayed, if there was one.
    recovered: Option<u64>,
    /// What was found of the log disk, if there is one.
    log_disk: Option<LogDiskOutcome>,
    /// What the log disk stores, if there is one.
    space: Option<Space>,
}

impl Outcome {
    fn report(&self) -> Option<&Report> {
        self.repaired.as_ref().map(|r| &r.after).or(self.before.as_ref())
    }
    fn clean(&self) -> bool {
        self.report().is_some_and(Report::is_clean)
    }
    /// Whether the image is another one than before.
    fn changed(&self) -> bool {
        self.log_disk.as_ref().is_some_and(LogDiskOutcome::has_changed)
            || self.recovered.is_some()
            || self.repaired.as_ref().is_some_and(|r| r.actions_total > 0 || r.replayed > 0)
    }
    /// Transactions replayed on the image.
    fn replayed(&self) -> u64 {
        self.recovered.or(self.repaired.as_ref().map(|r| r.replayed)).unwrap_or(0)
    }
}

/// The device, that of the log, the state in the superblock if that is good, and the log disk if the device is one.
type Opened = (Arc<dyn Device>, Option<Arc<dyn Device>>, Option<State>, Option<Arc<LogDisk>>);

/// Runs the subcommand.
pub fn run(args: &FsckArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let name = args.image.display().to_string();
    // A check may end anywhere, and so may a repair: what it leaves is in order, or brought into order by the next one.
    let always = Arc::new(AtomicBool::new(true));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, exit::fsck::CANCELLED.into(), always.clone())?;
    }
    let asks = !args.no && !args.preen && !args.yes && io::stdin().is_terminal() && io::stdout().is_terminal();
    let writes = args.preen || args.yes || asks;
    let log = args.log.log_device.as_deref();
    let mode = if writes { OpenMode::READ_WRITE } else { OpenMode::READ_ONLY };
    // What -p is for at boot: a file system in order costs nothing.
    let quick = args.preen && !args.force && !args.json && !args.data;
    // Whoever looks at everything ends also a rebuilding that was interrupted.
    let args = &FsckArgs { log: LogArgs { unmarked: !quick, ..args.log.clone() }, ..args.clone() };
    let found = if quick { None } else { look_at_log_disk(args, &name, mode, asks)? };
    if let Some(found) = found.as_ref().filter(|found| !found.problems.is_empty()) {
        // Unless it is sound, nobody knows what the file system on it is made of, and a repair would make it worse.
        return report_log_disk(args, &name, found, None);
    }
    let (dev, log_dev, state, log_disk): Opened = match open_image(args, mode, writes) {
        Ok(image) => {
            (image.dev, image.log_dev.map(|d| d as Arc<dyn Device>), Some(image.superblock.state), image.log_disk)
        }
        // Its copies may be good.
        Err(e) if (args.yes || asks) && args.snapshot.is_none() && has_copies(args, mode) => {
            eprintln!("{e:#}");
            let log_dev = log.map(|l| open_device(l, mode)).transpose()?;
            let disk = open_disk(&args.image, &args.log, mode)?;
            (disk.dev, log_dev.map(|d| Arc::new(d) as Arc<dyn Device>), None, disk.log_disk)
        }
        Err(e) => {
            let found = if quick { look_at_log_disk(args, &name, mode, asks)? } else { found };
            match found.filter(|found| found.is_damaged()) {
                Some(found) => return report_log_disk(args, &name, &found, Some(e)),
                None => return Err(e),
            }
        }
    };
    let dev: Arc<dyn Device> = if log_disk.is_some() && !quick { Arc::new(DamageAsZeros(dev)) } else { dev };
    if quick && state == Some(State::Clean) {
        writeln!(io::stdout(), "{name}: clean")?;
        return Ok(0);
    }
    // After a crash the log has all that is missing.
    if quick && state == Some(State::Journaled) {
        let replayed = recover_log(&*dev, log_dev.as_deref()).about(|| &name).exit_code(exit::fsck::OPERATIONAL)?;
        if let Some(disk) = &log_disk {
            discard_left_over(&dev, disk).about(|| &name).exit_code(exit::fsck::OPERATIONAL)?;
        }
        writeln!(io::stdout(), "{name}: the log was replayed ({replayed} transactions): clean")?;
        return Ok(exit::fsck::CORRECTED);
    }
    let mut outcome = Outcome { before: None, repaired: None, recovered: None, log_disk: found, space: None };
    if state.is_some() {
        match check_device(dev.clone(), log_dev.clone(), args.data, args.jobs) {
            Ok(report) => outcome.before = Some(report),
            // A log that cannot be replayed.
            Err(Error::Corrupt(c)) if writes => eprintln!("{name}: {c}"),
            Err(e) => return Err::<u8, _>(e).about(|| &name).exit_code(exit::fsck::OPERATIONAL),
        }
    }
    match &outcome.before {
        Some(report) if report.is_sound() => {
            if writes && state != Some(State::Clean) {
                let recovered = recover_log(&*dev, log_dev.as_deref());
                outcome.recovered = Some(recovered.about(|| &name).exit_code(exit::fsck::OPERATIONAL)?);
            }
        }
        before => {
            let safe = before.as_ref().is_some_and(Report::is_safe_to_repair);
            if writes && (safe || !args.preen) {
                if let Some(report) = before.as_ref().filter(|_| !args.json) {
                    list_problems(report, &name)?;
                }
                outcome.repaired = Some(repair_device(args, dev.clone(), log_dev, &name, asks)?);
            }
        }
    }
    outcome.space = log_disk.as_ref().map(|disk| LogDisk::space(disk));
    if let (Some(disk), Some(found)) = (&log_disk, &mut outcome.log_disk)
        && args.snapshot.is_none()
    {
        look_at_files(found, &dev, disk, args.data).with_context(|| name.clone()).exit_code(exit::fsck::OPERATIONAL)?;
    }
    if let Some(disk) = log_disk.filter(|_| outcome.changed()) {
        if outcome.report().is_some_and(Report::is_sound) && state != Some(State::Clean) {
            discard_left_over(&dev, &disk).about(|| &name).exit_code(exit::fsck::OPERATIONAL)?;
        }
        disk.finish().with_context(|| name.clone()).exit_code(exit::fsck::OPERATIONAL)?;
    }
    let (lost, summaries) = outcome.log_disk.as_ref().map_or((false, 0), |d| (d.lost_data(), d.summaries.len()));
    let unmarked = outcome.log_disk.as_ref().is_some_and(|d| d.unmarked);
    if args.json {
        print_json(&to_json(&outcome, &name)?)?;
    } else {
        print(&outcome, &name)?;
    }
    let corrected = if outcome.changed() { exit::fsck::CORRECTED } else { 0 };
    if outcome.clean() {
        if unmarked {
            let text = "the log disk was rebuilt, and not to its end: run cffs fsck -y on it, which makes reading what is lost an error";
            return Err(with_code(corrected | exit::fsck::ERRORS_LEFT, anyhow!("{name}: {text}")));
        }
        if lost {
            let text = "stored data is damaged: reading it is an error; write anew what has it, from a backup";
            return Err(with_code(corrected | exit::fsck::ERRORS_LEFT, anyhow!("{name}: {text}")));
        }
        if summaries > 0 {
            let text = "summaries of batches are damaged: files can be read, but no map could be made anew: run cffs fsck -y on it to move what is there";
            return Err(with_code(corrected | exit::fsck::ERRORS_LEFT, anyhow!("{name}: {text}")));
        }
        return Ok(corrected);
    }
    let left = outcome.report().map_or(0, |r| r.problems_total);
    let sound = outcome.report().is_some_and(Report::is_sound);
    let advice = match (args.preen, writes) {
        _ if sound => "nobody can put contents right: write these files anew, from a backup",
        (true, _) => "UNEXPECTED INCONSISTENCY; run cffs fsck by hand, without -p",
        (false, false) => "run cffs fsck -y on it, best on a copy, to repair them",
        _ => "run cffs fsck -y again, or mount it read-only and copy out what matters",
    };
    Err(with_code(corrected | exit::fsck::ERRORS_LEFT, anyhow!("{name}: {} left: {advice}", problems(left))))
}

/// The image, or the snapshot or clone in it.
fn open_image(args: &FsckArgs, mode: OpenMode, writes: bool) -> anyhow::Result<Image> {
    let image = Image::open(&args.image, &args.log, mode)?;
    let Some(name) = &args.snapshot else { return Ok(image) };
    let image = image.at_snapshot(name)?;
    if writes && image.dev.read_only() {
        let at = args.image.display();
        let text = format!(
            "{at}: the snapshot '{name}' cannot be changed: check it with -n, or make a clone of it and repair that"
        );
        return Err(with_code(exit::fsck::USAGE, anyhow!(text)));
    }
    Ok(image)
}

/// The log disk of the image, if it is one; rebuilt if that is needed and wanted.
fn look_at_log_disk(args: &FsckArgs, name: &str, mode: OpenMode, asks: bool) -> anyhow::Result<Option<LogDiskOutcome>> {
    let wanted = Wanted { data: args.data, rebuild: args.yes || asks, mend: args.yes || args.preen || asks };
    fsck_log_disk::check(&args.image, &args.log, mode, wanted, &mut |proposal, problems| {
        if !args.json {
            problems.iter().for_each(|p| println!("{name}: log disk: {p}"));
        }
        let text = match proposal {
            Proposal::Mend => "Move what is in these segments (y/n)?",
            Proposal::LoseEnd => "Go on without what cannot be read, which was written last (y/n)?",
            Proposal::Rebuild => "Rebuild the log disk from its segments (y/n)?",
        };
        !asks || question(text).is_some_and(|c| c != 'n')
    })
}

/// Says what is wrong with the log disk, which ends the check; and why the file system on it cannot be opened, if that is so.
fn report_log_disk(
    args: &FsckArgs,
    name: &str,
    found: &LogDiskOutcome,
    unopened: Option<anyhow::Error>,
) -> anyhow::Result<u8> {
    if args.json {
        print_json(&json!({"image": name, "clean": false, "log_disk": found.to_json()}))?;
    } else {
        let mut out = io::stdout().lock();
        for line in found.lines() {
            writeln!(out, "{name}: log disk: {line}")?;
        }
        out.flush()?;
    }
    // What a rebuilding can do is done: what is missing now is the file system itself.
    if let Some(e) = unopened.filter(|_| found.problems.is_empty() && !args.preen) {
        let e = e.context("the log disk can be opened, and no file system on it");
        return Err(with_code(exit::fsck::ERRORS_LEFT, e));
    }
    let advice = match args.preen {
        true => "UNEXPECTED INCONSISTENCY; run cffs fsck by hand, without -p",
        false => "the log disk is damaged: run cffs fsck -y on it, best on a copy, to rebuild it from its segments",
    };
    let n = found.problems.len() + found.damage.len() + usize::from(found.unmarked);
    Err(with_code(exit::fsck::ERRORS_LEFT, anyhow!("{name}: {} left: {advice}", problems(n as u64))))
}

/// Whether good copies of a superblock stand on a device whose first one cannot be used.
fn has_copies(args: &FsckArgs, mode: OpenMode) -> bool {
    open_disk(&args.image, &args.log, mode).is_ok_and(|disk| has_superblock(&DamageAsZeros(disk.dev), None))
}

/// Repairs, asking as the arguments say.
fn repair_device(
    args: &FsckArgs,
    dev: Arc<dyn Device>,
    log_dev: Option<Arc<dyn Device>>,
    name: &str,
    asks: bool,
) -> anyhow::Result<Repaired> {
    let steps = Steps::new();
    let quiet = args.json;
    let mut all = !asks;
    let mut answer = |a: &Action| {
        if !quiet {
            steps.pause(|| println!("{name}: {a}"));
        }
        if all {
            return true;
        }
        match steps.pause(|| question("Do this (y/n/a = yes to all)?")) {
            Some('a') => {
                all = true;
                true
            }
            Some('y') => true,
            _ => false,
        }
    };
    let options = RepairOptions::default().scavenge(args.scavenge).data(args.data).jobs(args.jobs);
    let done = repair(dev, log_dev, &options, &mut answer, &|phase, done, total| {
        steps.show(phase.name(), done, total);
    });
    done.about(|| name).exit_code(exit::fsck::OPERATIONAL)
}

/// Asks until one of the letters comes; `None` at the end of the input.
fn question(text: &str) -> Option<char> {
    let mut line = String::new();
    loop {
        print!("{text} ");
        io::stdout().flush().ok()?;
        line.clear();
        if io::stdin().lock().read_line(&mut line).ok()? == 0 {
            return None;
        }
        let answer = line.trim().chars().next().map(|c| c.to_ascii_lowercase());
        if matches!(answer, Some('y' | 'n' | 'a')) {
            return answer;
        }
    }
}

/// Checks an open image.
pub fn check_image(image: &Image, name: &str) -> anyhow::Result<Report> {
    let log_dev = image.log_dev.clone().map(|d| d as Arc<dyn Device>);
    check_device(image.dev.clone(), log_dev, false, 0).about(|| name)
}

fn check_device(
    dev: Arc<dyn Device>,
    log_dev: Option<Arc<dyn Device>>,
    data: bool,
    jobs: usize,
) -> cffs::Result<Report> {
    let steps = Steps::new();
    let options = CheckOptions::default().data(data).jobs(jobs);
    check(dev, log_dev, &options, &|phase, done, total| steps.show(phase.name(), done, total))
}

/// The report of the file system as it is now; what was wrong and what was done stand beside it.
fn to_json(outcome: &Outcome, name: &str) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(outcome.report())?;
    if let Value::Object(object) = &mut value {
        object.insert("image".into(), json!(name));
        object.insert("clean".into(), json!(outcome.clean()));
        object.insert("log_replayed_on_image".into(), json!(outcome.replayed() > 0));
        if let Some(space) = outcome.space {
            let stored = json!({"usable_bytes": space.usable, "live_bytes": space.live, "free_bytes": space.free});
            object.insert("stored".into(), stored);
        }
        if let Some(log_disk) = &outcome.log_disk {
            object.insert("log_disk".into(), log_disk.to_json());
        }
        if let Some(r) = &outcome.repaired {
            let mut repair = serde_json::to_value(r)?;
            if let Value::Object(fields) = &mut repair {
                fields.remove("after");
                let before = outcome.before.as_ref().map(|b| (&b.problems, b.problems_total, &b.by_class));
                if let Some((problems, total, by_class)) = before {
                    fields.insert("problems_before".into(), json!(problems));
                    fields.insert("problems_before_total".into(), json!(total));
                    fields.insert("by_class_before".into(), json!(by_class));
                }
            }
            object.insert("repair".into(), repair);
        }
    }
    Ok(value)
}

/// So many problems, in words.
fn problems(n: u64) -> String {
    if n == 1 { "1 problem".to_string() } else { format!("{n} problems") }
}

fn list_problems(report: &Report, name: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for problem in &report.problems {
        writeln!(out, "{name}: {problem}")?;
    }
    let listed = report.problems.len() as u64;
    if report.problems_total > listed {
        writeln!(out, "{name}: and {} problems more", report.problems_total - listed)?;
    }
    out.flush()
}

fn print(outcome: &Outcome, name: &str) -> io::Result<()> {
    for line in outcome.log_disk.iter().flat_map(LogDiskOutcome::lines) {
        writeln!(io::stdout(), "{name}: log disk: {line}")?;
    }
    let Some(report) = outcome.report() else { return Ok(()) };
    if outcome.replayed() > 0 {
        writeln!(io::stdout(), "{name}: the log was replayed")?;
    }
    match &outcome.repaired {
        Some(r) if r.actions_total > 0 => {
            let named = if r.named > 0 { format!(", {} inodes named in lost+found", r.named) } else { String::new() };
            let (changes, blocks) = (r.actions_total, r.blocks_written);
            writeln!(io::stdout(), "{name}: REPAIRED: {changes} changes, {blocks} blocks written{named}")?;
        }
        None if report.replayed > 0 && outcome.recovered.is_none() => {
            let n = report.replayed;
            writeln!(io::stdout(), "{name}: checked as after a replay of its log ({n} transactions)")?;
        }
        _ => {}
    }
    list_problems(report, name)?;
    let c = &report.counts;
    if c.frags_verified + c.frags_failed + c.frags_unsummed > 0 {
        let (good, bad, none) = (c.frags_verified, c.frags_failed, c.frags_unsummed);
        writeln!(
            io::stdout(),
            "{name}: data: {good} fragments have their checksums, {bad} have not, of {none} none is known"
        )?;
    }
    // The places on a log disk are many times what it can store.
    let (used, total) = outcome.space.map_or((c.frags_used, c.frags_total), |s| (s.live, s.usable));
    let share = if total > 0 { used as f64 * 100.0 / total as f64 } else { 0.0 };
    let mut out = io::stdout().lock();
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
