//! Aging as it really happens: the revisions of a git repository, checked out one after the other.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cffs::{Caller, Error, Fs, Ino, ROOT_INO, RegroupStatus};
use cffs_disk::Counters;

use super::aging::compared;
use super::generated::{self, Change};
use super::harness::{Harness, Setup, Variant, create, maintain};
use super::outcome::{Claim, Outcome};
use super::source::{search, walk};
use super::volume::Layout;

/// Revisions that are replayed: the first ones, so that a history that goes on gives the same figures.
const REVISIONS: usize = 200;
/// How full the disk is in the end.
const LEVEL: f64 = 0.7;
/// Groups as in an image, of which timing says nothing.
const GROUP: u32 = cffs::device::FALLBACK_GROUP_SIZE;
/// How a history is replayed.
#[derive(Clone, Copy)]
struct Plan {
    /// Clones that follow the history side by side, each so many revisions behind the one before it.
    clones: usize,
    behind: usize,
    /// Revisions between two times when the file system is idle.
    day: usize,
    /// What is measured.
    subjects: &'static [Subject],
}

/// Which file system replays it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Cffs,
    OnLog,
    Conventional,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::Cffs => "cffs",
            Subject::OnLog => "cffs on the log",
            Subject::Conventional => "conventional",
        }
    }

    fn setup(self, bytes: u64) -> Setup {
        let variant = if self == Subject::Conventional { Variant::NEITHER } else { Variant::BOTH };
        // Of so small a disk the cleaner keeps more than a third for itself.
        let (layout, bytes) =
            if self == Subject::OnLog { (Layout::log(), 2 * bytes) } else { (Layout::InPlace, bytes) };
        Setup { bytes, variant, layout, group: GROUP, log: Some(4 << 20), ..Setup::today("hdd-2026") }
    }
}

const REAL: Plan =
    Plan { clones: 12, behind: 7, day: 40, subjects: &[Subject::Cffs, Subject::OnLog, Subject::Conventional] };
/// Two clones of a large repository take as much memory as there is on most machines.
const LARGE: Plan = Plan { clones: 2, behind: 100, subjects: &[Subject::Cffs], ..REAL };
/// Starts the random choices of the history that is made up.
const SEED: u64 = 2026;

impl Plan {
    /// How many of `revisions` clone `n` has at the end.
    fn end(self, revisions: &[Vec<Change>], n: usize) -> usize {
        revisions.len().saturating_sub(n * self.behind)
    }
}

/// Files at most so large are small, in bytes.
const SMALL: u64 = 16 << 10;

fn git(args: &[&str], input: Option<&str>) -> Result<String> {
    let mut command = Command::new("git");
    command.args(["-c", "safe.directory=*"]).args(args).stderr(Stdio::null()).stdout(Stdio::piped());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().context("cannot start git")?;
    let writer = child.stdin.take().zip(input.map(str::to_string)).map(|(mut pipe, text)| {
        // Beside the reading: git answers before it has read everything.
        std::thread::spawn(move || pipe.write_all(text.as_bytes()))
    });
    let out = child.wait_with_output()?;
    if let Some(writer) = writer {
        let _ = writer.join();
    }
    ensure!(out.status.success(), "`git {}` failed", args.join(" "));
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The repository here.
pub fn repository() -> Option<PathBuf> {
    let top = git(&["rev-parse", "--show-toplevel"], None).ok()?;
    Some(PathBuf::from(top.trim_end()))
}

/// The first revisions of the repository here, each with its changes against the one before it.
fn revisions() -> Result<Vec<Vec<Change>>> {
    let log = git(
        &[
            "log",
            "--reverse",
            "--first-parent",
            "-m",
            "--raw",
            "-r",
            "--no-renames",
            "--no-abbrev",
            "--format=tformat:@",
            "HEAD",
        ],
        None,
    )?;
    let mut raw: Vec<Vec<(String, String)>> = Vec::new();
    for line in log.lines() {
        if line == "@" {
            if raw.len() == REVISIONS {
                break;
            }
            raw.push(Vec::new());
        } else if let (Some(fields), Some(revision)) = (line.strip_prefix(':'), raw.last_mut()) {
            // `100644 100644 OLD NEW M<tab>path`
            let Some((fields, path)) = fields.split_once('\t') else { continue };
            let fields: Vec<&str> = fields.split(' ').collect();
            if fields.len() == 5 && !path.starts_with('"') && fields[1] != "160000" {
                revision.push((path.to_string(), fields[3].to_string()));
            }
        }
    }
    let mut blobs: Vec<&str> = raw.iter().flatten().map(|(_, blob)| blob.as_str()).collect();
    blobs.sort_unstable();
    blobs.dedup();
    let asked = blobs.join("\n") + "\n";
    let sizes: HashMap<String, u64> = git(&["cat-file", "--batch-check"], Some(&asked))?
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            Some((words.first()?.to_string(), words.get(2)?.parse().ok()?))
        })
        .collect();
    let revision = |changes: Vec<(String, String)>| {
        changes.into_iter().map(|(path, blob)| (path, sizes.get(&blob).copied())).collect()
    };
    Ok(raw.into_iter().map(revision).collect())
}

/// The directory of a path below `top`, made where it is missing.
fn directory(fs: &Fs, top: Ino, path: &str) -> Result<Ino> {
    let mut at = top;
    let parts: Vec<&str> = path.split('/').collect();
    for part in &parts[..parts.len() - 1] {
        at = match fs.lookup(at, part.as_bytes()) {
            Ok(attr) => attr.ino,
            Err(Error::NotFound) => fs.mkdir(Caller::ROOT, at, part.as_bytes(), 0o755)?.ino,
            Err(error) => return Err(error.into()),
        };
        // The tree stays in memory while a revision is checked out; the reference is not needed.
        fs.forget(at, 1);
    }
    Ok(at)
}

/// What `git checkout` does with a changed file: remove the old one, write the new one.
fn check_out(fs: &Fs, top: Ino, changes: &[Change], content: &[u8]) -> Result<()> {
    for (path, size) in changes {
        let dir = directory(fs, top, path)?;
        let name = path.rsplit('/').next().unwrap_or(path);
        match fs.unlink(dir, name.as_bytes()) {
            Ok(()) | Err(Error::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(size) = size {
            create(fs, dir, name, &content[..*size as usize])?;
        }
    }
    Ok(())
}

/// The tree that a prefix of the history leaves.
fn tree(revisions: &[Vec<Change>]) -> Vec<Change> {
    let mut files: BTreeMap<&str, u64> = BTreeMap::new();
    for (path, size) in revisions.iter().flatten() {
        match size {
            Some(size) => files.insert(path, *size),
            None => files.remove(path.as_str()),
        };
    }
    files.into_iter().map(|(path, size)| (path.to_string(), Some(size))).collect()
}

/// Searches and walks everything.
fn read_all(harness: &mut Harness) -> Result<[Counters; 2]> {
    let searched = harness.phase(|fs| search(fs, ROOT_INO).map(drop))?;
    let walked = harness.phase(|fs| walk(fs, ROOT_INO).map(drop))?;
    Ok([searched, walked])
}

fn clone_name(n: usize) -> String {
    format!("clone{n}")
}

/// Searching and walking: the trees written at once, after the history, and after a regroup.
struct Measured {
    fresh: [Counters; 2],
    aged: [Counters; 2],
    regrouped: [Counters; 2],
    /// What the regroup did, and what a second one found to do.
    regroups: [RegroupStatus; 2],
    /// With maintenance: after the last revision, and when the file system was idle after that.
    before_idle: [Counters; 2],
    maintained: [Counters; 2],
    upkeep: Upkeep,
}

/// Replays the history, and reads; regroups, and reads again; then the same trees on a fresh disk.
fn measure(plan: Plan, setup: &Setup, revisions: &[Vec<Change>], content: &[u8]) -> Result<Measured> {
    let mut aged = Harness::new(setup)?;
    replay_on(&mut aged, plan, revisions, content, false)?;
    let old = read_all(&mut aged)?;
    aged.check()?;
    let regroups = [aged.regroup()?, aged.regroup()?];
    let regrouped = read_all(&mut aged)?;
    aged.check()?;
    let mut kept = Harness::new(setup)?;
    let mut upkeep = replay_on(&mut kept, plan, revisions, content, true)?;
    let before_idle = read_all(&mut kept)?;
    kept.phase(|fs| {
        upkeep.step(fs, revisions.len())?;
        upkeep.credit = fs.stats().maintenance.credit;
        Ok(())
    })?;
    let maintained = read_all(&mut kept)?;
    kept.check()?;
    let mut fresh = Harness::new(setup)?;
    fresh.phase(|fs| {
        for n in 0..plan.clones {
            let top = fs.mkdir(Caller::ROOT, ROOT_INO, clone_name(n).as_bytes(), 0o755)?.ino;
            check_out(fs, top, &tree(&revisions[..plan.end(revisions, n)]), content)?;
            fs.forget(top, 1);
        }
        Ok(())
    })?;
    let new = read_all(&mut fresh)?;
    fresh.check()?;
    Ok(Measured { fresh: new, aged: old, regrouped, regroups, before_idle, maintained, upkeep })
}

/// What programs wrote, and what maintenance moved, in bytes.
#[derive(Clone, Copy, Default)]
struct Upkeep {
    written: u64,
    moved: u64,
    /// Steps that moved something, and the revision after which the last of them was.
    steps: u64,
    last: usize,
    /// What may still be moved in the end.
    credit: u64,
}

impl Upkeep {
    /// A step of maintenance after so many revisions, if one is due.
    fn step(&mut self, fs: &Fs, revision: usize) -> Result<()> {
        let moved = maintain(fs)?;
        if moved > 0 {
            self.moved += moved;
            (self.steps, self.last) = (self.steps + 1, revision);
        }
        Ok(())
    }

    /// What it did, beside what a regroup after the same history moves.
    fn describe(&self, regroup: u64) -> String {
        format!(
            "Maintenance took {} steps, the last after revision {}, and may still move {} MiB. All that is not a stray waits until half \
             of the requests can be saved and the credit suffices for it: without maintenance that is {} MiB in the end.",
            self.steps,
            self.last,
            self.credit >> 20,
            regroup >> 20
        )
    }
}

/// Checks the revisions out into all clones.
fn replay_on(
    harness: &mut Harness,
    plan: Plan,
    revisions: &[Vec<Change>],
    content: &[u8],
    maintained: bool,
) -> Result<Upkeep> {
    let mut upkeep = Upkeep::default();
    harness.phase(|fs| {
        let tops = (0..plan.clones)
            .map(|n| Ok(fs.mkdir(Caller::ROOT, ROOT_INO, clone_name(n).as_bytes(), 0o755)?.ino))
            .collect::<Result<Vec<_>>>()?;
        for at in 0..revisions.len() {
            for (n, top) in tops.iter().enumerate().filter(|(n, _)| at >= n * plan.behind) {
                let changes = &revisions[at - n * plan.behind];
                check_out(fs, *top, changes, content)?;
                upkeep.written += changes.iter().filter_map(|(_, size)| *size).sum::<u64>();
            }
            fs.sync()?;
            if maintained && (at + 1) % plan.day == 0 && at + 1 < revisions.len() {
                upkeep.step(fs, at + 1)?;
            }
        }
        tops.into_iter().for_each(|ino| fs.forget(ino, 1));
        Ok(())
    })?;
    Ok(upkeep)
}

/// Share of changed files in revisions with another changed file in the same directory, in %.
fn together(revisions: &[Vec<Change>]) -> f64 {
    let (mut with, mut all) = (0, 0);
    for changes in &revisions[1.min(revisions.len())..] {
        let mut dirs: HashMap<&str, u64> = HashMap::new();
        for (path, _) in changes {
            *dirs.entry(path.rsplit_once('/').map_or("", |(dir, _)| dir)).or_default() += 1;
        }
        with += dirs.values().filter(|n| **n > 1).sum::<u64>();
        all += changes.len() as u64;
    }
    with as f64 / all.max(1) as f64 * 100.0
}

/// The replay.
///
/// # Errors
/// Those of the engine.
pub fn replay(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let revisions = match enough_revisions() {
        Ok(revisions) => revisions,
        Err(why) => {
            eprintln!("SKIPPED: replay of a git history: {why}");
            outcome.untested.push(("aging by a real history".into(), why));
            return Ok(outcome);
        }
    };
    let revisions = &revisions[..revisions.len() / scale as usize];
    if revisions.is_empty() {
        bail!("no revisions are left");
    }
    let which = format!("The first {} revisions of the repository in which this runs", revisions.len());
    replay_all(REAL, revisions, &which, &mut outcome)?;
    Ok(outcome)
}

/// The replay of a large history that is made up.
///
/// # Errors
/// Those of the engine.
pub fn replay_large(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let revisions = generated::commits(scale, SEED);
    let which = format!("A made-up history of {} commits with the sizes of source files", revisions.len());
    replay_all(LARGE, &revisions, &which, &mut outcome)?;
    Ok(outcome)
}

/// Replays a history with each placement, and says what it came to. `which`: what history that is.
fn replay_all(plan: Plan, revisions: &[Vec<Change>], which: &str, outcome: &mut Outcome) -> Result<()> {
    let last = tree(revisions);
    let sizes = || last.iter().filter_map(|(_, size)| *size);
    let most = revisions.iter().flatten().filter_map(|(_, size)| *size).max().unwrap_or(0);
    let content = vec![0x5a; most as usize];
    let in_clones: u64 = (0..plan.clones)
        .flat_map(|n| tree(&revisions[..plan.end(revisions, n)]))
        .map(|(_, size)| size.unwrap_or(0).next_multiple_of(1024) + 256)
        .sum();
    let bytes = (((in_clones as f64 / LEVEL) as u64) + (6 << 20)).next_multiple_of(1 << 20);
    let names = ["search", "walk"];
    let (mut rows, mut moved) = (Vec::new(), Vec::new());
    for subject in plan.subjects.iter().copied() {
        let name = subject.name();
        let setup = subject.setup(bytes);
        let m = match measure(plan, &setup, revisions, &content) {
            Ok(measured) => measured,
            Err(error) if matches!(error.downcast_ref(), Some(Error::NoSpace)) => {
                outcome
                    .untested
                    .push((format!("{name}: the history on {} MiB", setup.bytes >> 20), format!("{error:#}")));
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut states =
            vec![("written at once", m.fresh), ("after the history", m.aged), ("after a regroup", m.regrouped)];
        if subject != Subject::Conventional {
            states.push(("with maintenance, before the last step", m.before_idle));
            states.push(("with maintenance, after it", m.maintained));
        }
        for (state, c) in states {
            rows.push((format!("{name}, {state}"), c.iter().map(Counters::seconds).collect::<Vec<f64>>()));
        }
        if subject == Subject::Conventional {
            continue;
        }
        let (claims, rows) = (claims(&m, in_clones), moved_rows(&m, in_clones));
        let of = |text: String| if subject == Subject::OnLog { format!("on the log: {text}") } else { text };
        outcome.claims.extend(claims.into_iter().map(|claim| Claim { text: of(claim.text.clone()), ..claim }));
        moved.extend(rows.into_iter().map(|(row, figures)| (of(row), figures)));
    }
    outcome.add("Disk time", "s", "state", &names.map(str::to_string), rows, false);
    let columns = ["moved, MiB", "for so many MiB", "ratio"].map(str::to_string);
    outcome.table("What was moved: for what there is, and for what was written", "", &columns, moved);
    let small = sizes().filter(|s| *s <= SMALL);
    let shares = vec![
        small.clone().count() as f64 / last.len().max(1) as f64 * 100.0,
        small.sum::<u64>() as f64 / sizes().sum::<u64>().max(1) as f64 * 100.0,
        together(revisions),
    ];
    let columns = ["files at most 16 KiB", "bytes in them", "changed together with a neighbour"].map(str::to_string);
    outcome.table("The history (%)", "", &columns, vec![("last revision".into(), shares)]);
    outcome.notes = vec![format!(
        "{which}, {} files at the end; {} clones, each {} revisions behind the one \
         before it, so that they take turns; the files that a revision changes are removed and written anew, and the disk \
         (hdd-2026, {} MiB, for the log twice as much) is synced after each. With maintenance, a step is taken after every {} revisions. Contents are made up.",
        last.len(),
        plan.clones,
        plan.behind,
        bytes >> 20,
        plan.day
    )];
    Ok(())
}

/// The revisions of the repository here, or why they are too few.
fn enough_revisions() -> std::result::Result<Vec<Vec<Change>>, String> {
    match revisions() {
        Ok(revisions) if revisions.len() >= 20 => Ok(revisions),
        Ok(few) => Err(format!("the repository here has {} revisions (a shallow clone?); 20 are needed", few.len())),
        Err(error) => Err(format!("{error:#}: this is to be run in a git repository")),
    }
}

fn moved_rows(m: &Measured, in_clones: u64) -> Vec<(String, Vec<f64>)> {
    let row = |name: &str, moved: u64, of: u64| {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        (name.to_string(), vec![mib(moved), mib(of), moved as f64 / of.max(1) as f64])
    };
    vec![
        row("a regroup, of the contents", m.regroups[0].bytes_moved, in_clones),
        row("maintenance, of what was written", m.upkeep.moved, m.upkeep.written),
    ]
}

/// What the history cost reading and walking, both measured at once, then after it, then after a regroup.
fn claims(m: &Measured, in_clones: u64) -> Vec<Claim> {
    let loss = |i: usize| (1.0 - m.fresh[i].seconds() / m.aged[i].seconds()) * 100.0;
    let regrouped = |i: usize| m.regrouped[i].seconds() / m.fresh[i].seconds();
    let kept = |i: usize| m.maintained[i].seconds() / m.fresh[i].seconds();
    let why = |i: usize| {
        format!(
            "{} The files that a revision changes go where there is room then, among those of the other clones, and nothing brings them \
             back together.",
            compared(&m.fresh[i], &m.aged[i], in_clones)
        )
    };
    let after = |i: usize| compared(&m.fresh[i], &m.regrouped[i], in_clones);
    let maintained = |i: usize| {
        let cost = compared(&m.fresh[i], &m.maintained[i], in_clones);
        format!("{cost} {}", m.upkeep.describe(m.regroups[0].bytes_moved))
    };
    vec![
        Claim::at_most("reading all files after the history: loss in % (our target at 70%)", 15.0, loss(0))
            .because(|| why(0)),
        Claim::at_most("walking all directories after the history: loss in % (our target at 70%)", 15.0, loss(1))
            .because(|| why(1)),
        Claim::at_most(
            "reading all files after a regroup: disk time, times that of trees written at once",
            1.1,
            regrouped(0),
        )
        .because(|| after(0)),
        Claim::at_most(
            "walking all directories after a regroup: disk time, times that of trees written at once",
            1.1,
            regrouped(1),
        )
        .because(|| after(1)),
        Claim::at_most("bytes that a second regroup moves", 0.0, m.regroups[1].bytes_moved as f64),
        Claim::at_most(
            "reading all files with maintenance: disk time, times that of trees written at once",
            1.4,
            kept(0),
        )
        .because(|| maintained(0)),
        Claim::at_most(
            "walking all directories with maintenance: disk time, times that of trees written at once",
            1.4,
            kept(1),
        )
        .because(|| maintained(1)),
        Claim::at_most(
            "bytes that maintenance moved for each byte written",
            1.5,
            m.upkeep.moved as f64 / m.upkeep.written.max(1) as f64,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str, size: Option<u64>) -> Change {
        (path.to_string(), size)
    }

    #[test]
    fn the_log_of_git_is_understood() {
        let found = revisions();
        // Sources without their history are sources too.
        let Ok(found) = found else {
            return cffs_testenv::skipped("git", &format!("no git repository here: {found:?}"));
        };
        assert!(!found.is_empty());
        let files = tree(&found);
        assert!(
            files.iter().any(|(path, size)| path == "Cargo.toml" && size.is_some_and(|s| s > 100)) || found.len() < 20
        );
    }

    #[test]
    fn a_history_leaves_the_tree_of_its_end() {
        let revisions = vec![
            vec![change("a", Some(1)), change("d/b", Some(2)), change("d/c", Some(3))],
            vec![change("d/b", None), change("a", Some(9)), change("d/c", Some(4))],
        ];
        assert_eq!(tree(&revisions), [change("a", Some(9)), change("d/c", Some(4))]);
        assert_eq!(together(&revisions), 2.0 / 3.0 * 100.0);
        for subject in REAL.subjects {
            let m = measure(REAL, &subject.setup(32 << 20), &revisions, &[7; 16]).unwrap();
            assert!(m.fresh[0].requests() > 0 && m.aged[0].requests() > 0 && m.regrouped[0].requests() > 0);
            assert_eq!(m.regroups[1].bytes_moved, 0);
        }
    }
}
