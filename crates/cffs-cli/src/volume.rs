//! `cffs volume`: the members of the volume that a mounted file system is on.

use crate::exit::{self, ExitCodeExt, with_code};
use crate::overwrite::refuse_if_taken;
use crate::progress::Steps;
use crate::scrub::{self, ScrubArgs};
use crate::size::{human, parse_size};
use crate::text::{print_json, printable};
use anyhow::{Context, anyhow, bail};
use cffs::device::{Device, FileDevice, OpenMode};
use cffs_fuse::control::{Control, Request};
use cffs_fuse::volume::{MemberReport, State, VolumeReport, WorkOutcome, WorkReport};
use cffs_volume::{DATA_OFFSET, Uuid};
use clap::{Args, Subcommand, ValueHint};
use serde_json::json;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often to ask how far it is.
const INTERVAL: Duration = Duration::from_millis(200);

const EXIT_CODES: &str = "\
Members are named by their number or uuid, as status shows them, or by the file or device.

Exit codes:
  0   Done (with --background: it runs)
  4   scrub: something is wrong, and what is printed; or a member is missing
  8   It could not be done, or not to the end; resync: a member is missing
  16  Wrong usage
  32  Interrupted";

/// Show and change the members of the volume that a mounted file system is on
///
/// For file systems made with cffs mkfs --mirror, --stripe or --concat. Only a mirror changes its members. What is copied is copied in the
/// background by the process that serves the mount, which is used as ever meanwhile. Changes take root, or the user who
/// mounted.
#[derive(Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub struct VolumeArgs {
    /// Any directory of the mount
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    #[command(subcommand)]
    command: Command,
}

/// How long work is done and waited for.
#[derive(Args, Debug, Clone)]
struct Waiting {
    /// Most bytes to copy or compare in a second
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    rate: Option<u64>,
    /// Return at once; status tells how far it is
    #[arg(long)]
    background: bool,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Show the members, what they lack, and how far work on them is
    Status {
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a member to a mirror: a new one, or one that is missing and is there again
    ///
    /// A new one gets a copy of everything; one that was missing, of what was written meanwhile. It has to be as large as the others. An interrupt ends the waiting; the
    /// work goes on.
    Add {
        /// Overwrite what is there, also a file system or a member of another volume
        #[arg(short = 'F', long)]
        force: bool,
        #[command(flatten)]
        waiting: Waiting,
        /// File or device
        file: PathBuf,
    },
    /// Remove a member from a mirror for good
    Remove {
        /// Number, uuid, file or device
        member: String,
    },
    /// Put a file or device in the place of a member of a mirror
    ///
    /// The old one stays, and is read, until the new one has everything; then it is removed. An interrupt ends the waiting; the work goes on.
    Replace {
        /// Overwrite what is there, also a file system or a member of another volume
        #[arg(short = 'F', long)]
        force: bool,
        #[command(flatten)]
        waiting: Waiting,
        /// The old member: number, uuid, file or device
        old: String,
        /// The new file or device
        new: PathBuf,
    },
    /// Go on bringing members of a mirror up to date, after that was stopped or has failed
    Resync {
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Verify everything and compare the members of a mirror
    ///
    /// First as cffs scrub does: each copy of all metadata, and of data that has checksums, is read, and what is wrong in one comes from another. Then all members are
    /// compared: what differs in free space is made equal, and of data without checksums the majority counts, if there is one. An interrupt stops it.
    Scrub {
        #[command(flatten)]
        waiting: Waiting,
        /// Only compare the members
        #[arg(long)]
        compare_only: bool,
    },
    /// Stop what is done with the members
    Stop,
}

/// Runs the subcommand.
pub fn run(args: &VolumeArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    let failure = exit::fsck::OPERATIONAL;
    let control = Control::open(&args.dir).exit_code(failure)?;
    let on = Mounted { name: args.dir.display().to_string(), control };
    match &args.command {
        Command::Status { json } => on.status(*json).exit_code(failure),
        Command::Add { force, waiting, file } => on.add(file, *force, waiting).exit_code(failure),
        Command::Remove { member } => {
            let report = on.mirror().exit_code(failure)?;
            let found = on.member(&report, member).exit_code(exit::fsck::USAGE)?;
            let request = Request::VolumeRemove { member: found.uuid.clone() };
            on.control.call::<()>(&request).exit_code(failure)?;
            writeln!(io::stdout(), "{}: {} is no member any more", on.name, title(found))?;
            Ok(0)
        }
        Command::Replace { force, waiting, old, new } => on.replace(old, new, *force, waiting).exit_code(failure),
        Command::Resync { waiting } => {
            on.control.call::<()>(&Request::VolumeResync { rate: waiting.rate }).exit_code(failure)?;
            let code = on.wait(waiting, "resync", false).exit_code(failure)?;
            let is_degraded = code == 0 && !waiting.background && on.tell_missing(&on.mirror().exit_code(failure)?);
            Ok(if is_degraded { failure } else { code })
        }
        Command::Scrub { waiting, compare_only } => on.scrub(args, waiting, *compare_only),
        Command::Stop => {
            on.control.call::<Option<VolumeReport>>(&Request::VolumeStop).exit_code(failure)?;
            Ok(0)
        }
    }
}

/// A mounted file system.
struct Mounted {
    name: String,
    control: Control,
}

/// What to call a member in messages.
fn title(m: &MemberReport) -> String {
    if m.name.is_empty() { m.uuid.clone() } else { printable(m.name.as_bytes()).to_string() }
}

impl Mounted {
    fn report(&self) -> anyhow::Result<VolumeReport> {
        let report: Option<VolumeReport> = self.control.call(&Request::VolumeStatus)?;
        report.with_context(|| {
            format!("{}: it is on a single device; cffs mkfs --mirror makes a file system on several", self.name)
        })
    }

    /// The same, if the volume is a mirror.
    fn mirror(&self) -> anyhow::Result<VolumeReport> {
        let report = self.report()?;
        if report.mirror.is_none() {
            bail!("{}: a {} has its members for good: only those of a mirror change", self.name, report.kind);
        }
        Ok(report)
    }

    /// The member that a user means.
    fn member<'r>(&self, report: &'r VolumeReport, text: &str) -> anyhow::Result<&'r MemberReport> {
        let number = text.parse::<usize>().ok().and_then(|n| report.members.get(n));
        let uuid = text.parse::<Uuid>().ok().map(|u| u.to_string());
        let path = Path::new(text).canonicalize().ok();
        let is_it = |m: &&MemberReport| {
            let same_path = || path.is_some() && Path::new(&m.name).canonicalize().ok() == path;
            Some(&m.uuid) == uuid.as_ref() || !m.name.is_empty() && (m.name == text || same_path())
        };
        match number.or_else(|| report.members.iter().find(is_it)) {
            Some(found) => Ok(found),
            None => bail!(
                "{}: no member is called {text}: `cffs volume {} status` shows them with numbers and uuids",
                self.name,
                self.name
            ),
        }
    }

    fn status(&self, json: bool) -> anyhow::Result<u8> {
        let report = self.report()?;
        if json {
            print_json(&json!(report))?;
            return Ok(0);
        }
        let mut out = io::stdout().lock();
        print_volume(&mut out, &report)?;
        if let Some(m) = &report.mirror {
            let dirty = human(u64::from(m.dirty_regions) * m.region_bytes);
            writeln!(
                out,
                "bitmap       {dirty} to be compared after a crash, in regions of {}",
                human(m.region_bytes)
            )?;
            writeln!(
                out,
                "reads        {} failed on a member, {} came from another one, {} places written back",
                m.read_errors, m.reads_redirected, m.rewritten
            )?;
            writeln!(
                out,
                "copies       {} wrong ones repaired, {} copied to members that lacked it, {} members dropped",
                m.repaired,
                human(m.resynced_bytes),
                m.dropped
            )?;
        }
        if let Some(work) = &report.work {
            writeln!(out, "work         {}", describe(work))?;
        }
        out.flush()?;
        Ok(0)
    }

    /// The absolute path of a new member, if it can become one.
    fn new_member(&self, report: &VolumeReport, file: &Path, force: bool, may_return: bool) -> anyhow::Result<PathBuf> {
        let name = file.display();
        let need = report.bytes + DATA_OFFSET;
        let path = file.canonicalize().map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                anyhow!("{name}: no such file or device: make a file with `truncate -s {need} {name}`")
            }
            _ => anyhow!("{name}: {e}"),
        })?;
        let known = |m: &&MemberReport| Path::new(&m.name).canonicalize().is_ok_and(|p| p == path);
        if let Some(m) = report.members.iter().filter(|m| m.state != State::Absent).find(known) {
            bail!("{name}: it is a member already ({}): name another one", m.state);
        }
        let dev = crate::device::open_device(&path, OpenMode::READ_WRITE)?;
        if dev.len() < need {
            let (has, wants) = (human(dev.len()), human(need));
            bail!("{name}: it has {has}, and a member of this volume {wants} ({need} bytes): take a larger one");
        }
        if !(may_return && self.is_missing(report, &dev)) {
            refuse_if_taken(&path, &dev, force)?;
        }
        Ok(path)
    }

    /// Whether a device is a member that is missing.
    fn is_missing(&self, report: &VolumeReport, dev: &FileDevice) -> bool {
        let Ok(Some(info)) = cffs_volume::probe(dev) else { return false };
        let uuid = info.member.to_string();
        info.volume.to_string() == report.uuid
            && report.members.iter().any(|m| m.uuid == uuid && m.state == State::Absent)
    }

    fn add(&self, file: &Path, force: bool, waiting: &Waiting) -> anyhow::Result<u8> {
        let report = self.mirror()?;
        let path = self.new_member(&report, file, force, !force)?;
        let request = Request::VolumeAdd { path, overwrite: force, rate: waiting.rate };
        let uuid: String = self.control.call(&request)?;
        writeln!(io::stdout(), "{}: {} is member {uuid}, and gets what it lacks", self.name, file.display())?;
        self.wait(waiting, "resync", false)
    }

    fn replace(&self, old: &str, new: &Path, force: bool, waiting: &Waiting) -> anyhow::Result<u8> {
        let report = self.mirror()?;
        let old = self.member(&report, old)?;
        let path = self.new_member(&report, new, force, false)?;
        let request = Request::VolumeReplace { old: old.uuid.clone(), path, overwrite: force, rate: waiting.rate };
        self.control.call::<()>(&request)?;
        let code = self.wait(waiting, "replace", false)?;
        if code == 0 && !waiting.background {
            writeln!(io::stdout(), "{}: {} is in the place of {}", self.name, new.display(), title(old))?;
        }
        Ok(code)
    }

    fn scrub(&self, args: &VolumeArgs, waiting: &Waiting, compare_only: bool) -> anyhow::Result<u8> {
        let report = self.report().exit_code(exit::fsck::OPERATIONAL)?;
        if report.mirror.is_none() {
            let text = format!("{}: a {} has one copy of everything: use cffs scrub", self.name, report.kind);
            return Err(with_code(exit::fsck::USAGE, anyhow!(text)));
        }
        if let Some(work) = report.work.as_ref().filter(|w| w.outcome.is_none()) {
            let text = format!(
                "{}: a {} of members runs: wait for its end (`cffs volume {0} status`), or stop it (`cffs volume {0} stop`)",
                self.name, work.what
            );
            return Err(with_code(exit::fsck::OPERATIONAL, anyhow!(text)));
        }
        let mut code = 0;
        if !compare_only {
            if waiting.background {
                let text = "--background goes with --compare-only, because the comparison follows the verification";
                return Err(with_code(exit::fsck::USAGE, anyhow!(text)));
            }
            code = scrub::run(&ScrubArgs::of(&args.dir, waiting.rate))?;
            if code & !exit::fsck::ERRORS_LEFT != 0 {
                return Ok(code);
            }
        }
        let compare = Request::VolumeCompare { rate: waiting.rate };
        self.control.call::<()>(&compare).exit_code(exit::fsck::OPERATIONAL)?;
        code |= self.wait(waiting, "compare", true).exit_code(exit::fsck::OPERATIONAL)?;
        if !waiting.background && self.tell_missing(&self.report().exit_code(exit::fsck::OPERATIONAL)?) {
            code |= exit::fsck::ERRORS_LEFT;
        }
        Ok(code)
    }

    /// Says which members are missing or do not have everything yet. Returns whether there are any.
    fn tell_missing(&self, report: &VolumeReport) -> bool {
        let mut any = false;
        for m in report.members.iter().filter(|m| matches!(m.state, State::Absent | State::Filling)) {
            any = true;
            eprintln!(
                "cffs: {}: member {} is {}, so the mirror is degraded: `cffs volume {0} add` it when it is there again, or `replace` it",
                self.name,
                title(m),
                m.state
            );
        }
        any
    }

    /// Waits for the end of what was begun, and shows progress. Prints what a comparison has found.
    fn wait(&self, waiting: &Waiting, phase: &'static str, interrupt_stops: bool) -> anyhow::Result<u8> {
        if waiting.background {
            return Ok(0);
        }
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, interrupted.clone())?;
        }
        let steps = Steps::new();
        let work = loop {
            let was_interrupted = interrupted.load(Ordering::Relaxed);
            if was_interrupted && interrupt_stops {
                self.control.call::<Option<VolumeReport>>(&Request::VolumeStop)?;
            }
            let work = self.report()?.work.with_context(|| format!("{}: was it mounted anew?", self.name))?;
            if work.outcome.is_some() || was_interrupted {
                break work;
            }
            steps.show(phase, work.done, work.total.max(work.done));
            std::thread::sleep(INTERVAL);
        };
        drop(steps);
        if interrupted.load(Ordering::Relaxed) {
            if work.outcome.is_none() {
                eprintln!("cffs: {}: it goes on in the background; `cffs volume {0} stop` stops it", self.name);
            }
            return Ok(exit::fsck::CANCELLED);
        }
        match &work.outcome {
            Some(WorkOutcome::Failed(why)) => bail!("{}: {why}", self.name),
            Some(WorkOutcome::Stopped) => bail!("{}: it was stopped", self.name),
            _ => {}
        }
        let Some(found) = &work.compared else { return Ok(0) };
        writeln!(
            io::stdout(),
            "{}: members compared: {}; {} blocks differed, {} could not be read on a member, {} written anew",
            self.name,
            human(found.bytes),
            found.differences,
            found.unreadable,
            found.repaired
        )?;
        if found.skipped > 0 {
            writeln!(
                io::stdout(),
                "{}: {} were left out, because they are still to be copied",
                self.name,
                human(found.skipped)
            )?;
        }
        if found.unknown + found.lost == 0 {
            return Ok(0);
        }
        eprintln!(
            "cffs: {}: {} blocks in use differ and nobody can say which is right, {} can be read on no member: compare files with a backup, \
             and write anew what is wrong (checksums of data, mkfs --data-sums=on, would tell)",
            self.name, found.unknown, found.lost
        );
        Ok(exit::fsck::ERRORS_LEFT)
    }
}

fn describe(work: &WorkReport) -> String {
    let seconds = work.deciseconds as f64 / 10.0;
    let (done, total) = (human(work.done), human(work.total.max(work.done)));
    let rate = human((work.done as f64 / seconds.max(0.1)) as u64);
    match &work.outcome {
        None => format!("{} runs: {done} of {total} in {seconds:.0} s, {rate}/s", work.what),
        Some(WorkOutcome::Complete) => format!("{} complete: {done} in {seconds:.0} s", work.what),
        Some(WorkOutcome::Stopped) => format!("{} stopped after {done} of {total}", work.what),
        Some(WorkOutcome::Failed(why)) => format!("{} failed: {}", work.what, printable(why.as_bytes())),
    }
}

/// Prints what a volume is, and its members.
pub fn print_volume(out: &mut impl Write, v: &VolumeReport) -> io::Result<()> {
    let unit = if v.stripe_unit > 0 { format!(" in units of {}", human(v.stripe_unit)) } else { String::new() };
    let degraded = match &v.mirror {
        Some(m) if m.failed => ": FAILED, nothing is written any more; unmount it, and look after the members",
        Some(m) if m.missing > 0 => ": DEGRADED",
        _ => "",
    };
    writeln!(out, "volume       {} of {} members{unit}, {}{degraded}", v.kind, v.members.len(), human(v.bytes))?;
    for (number, m) in v.members.iter().enumerate() {
        let name = if m.name.is_empty() { "never seen".into() } else { printable(m.name.as_bytes()).to_string() };
        let outgoing = if m.outgoing { ", being replaced" } else { "" };
        let lacks = if m.lacks_bytes > 0 { format!(", lacks {}", human(m.lacks_bytes)) } else { String::new() };
        writeln!(out, "member {number:<5} {}{outgoing}{lacks}: {name}", m.state)?;
        writeln!(out, "             {}", m.uuid)?;
    }
    Ok(())
}
