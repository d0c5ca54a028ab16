//! Whole images: everything a person can do with one.
//!
//! What must hold of any image:
//! - nothing panics, and no stage needs more device requests or memory than its limit;
//! - a repair succeeds unless there is no superblock to go by or no space for what has to be written, leaves nothing to a
//!   second check, and afterwards the file system can be walked and changed, and is clean once more;
//! - what the check finds clean can be walked and changed without an error that tells of damage, and is clean afterwards.

use super::corpus::{Corpus, Sample, layers, options};
use super::limits::{Limited, forget_peak, no_panic, peak_memory};
use super::mutate::{Change, changes, shrink};
use super::outcome::{Done, Failure};
use super::work::{walk, work};
use cffs::check::repair::{RepairOptions, Repaired, has_superblock, repair};
use cffs::check::{CheckOptions, Report, check};
use cffs::device::Device;
use cffs::dump::{Dumper, Which, superblocks};
use cffs::mkfs::read_superblock;
use cffs::{Error, Fs, MetadataMode, QuotaKind};
use fastrand::Rng;
use std::sync::Arc;

/// Device requests that one stage may need.
const REQUESTS: u64 = 200_000;
/// Memory that a case may take more than the process had before, in bytes.
const MEMORY: u64 = 400 << 20;

type Devices = Vec<Arc<dyn Device>>;

/// A case, taken apart so that it can be told and made smaller.
pub struct Plan<'a> {
    /// The image that is damaged.
    pub sample: &'a Sample,
    /// Its number in the corpus.
    pub number: usize,
    /// The damage.
    pub changes: Vec<Change>,
    /// Decides about the workloads.
    pub seed: u64,
}

impl Plan<'_> {
    /// What the case does, for a report.
    pub fn describe(&self) -> String {
        let mut text = format!("sample {}: {:?}\n", self.number, self.sample.spec);
        for c in &self.changes {
            text += &format!("  {c}\n");
        }
        text
    }

    /// The damaged devices.
    pub fn devices(&self) -> Devices {
        let devices = self.sample.copies();
        self.changes.iter().for_each(|c| c.apply(&devices));
        devices
    }
}

/// The plan of a case.
pub fn plan<'a>(corpus: &'a Corpus, rng: &mut Rng) -> Plan<'a> {
    let number = rng.usize(..corpus.samples.len());
    let sample = &corpus.samples[number];
    let changes = changes(rng, sample);
    Plan { sample, number, changes, seed: rng.u64(..) }
}

/// Damages an image and does everything with it.
pub fn case(corpus: &Corpus, rng: &mut Rng) -> Result<Done, Failure> {
    let plan = plan(corpus, rng);
    run(&plan.devices(), plan.seed).map_err(|f| Failure { text: format!("{}\n{}", f.text, plan.describe()), ..f })
}

/// Does everything with a damaged image.
pub fn run(devices: &[Arc<dyn Device>], seed: u64) -> Result<Done, Failure> {
    forget_peak();
    let before = peak_memory();
    let mut done = Done::default();
    let outcome = stages(devices, &mut Rng::with_seed(seed), &mut done);
    let used = peak_memory().saturating_sub(before);
    outcome?;
    if used > MEMORY {
        return Err(Failure::new("memory", format!("{} MiB of memory", used >> 20)));
    }
    Ok(done)
}

/// The smallest part of a plan's changes that fails in the same way.
pub fn smaller<'a>(plan: Plan<'a>, key: &str, tries: usize) -> Plan<'a> {
    let Plan { sample, number, seed, .. } = plan;
    let changes = shrink(plan.changes, tries, |changes| {
        let p = Plan { sample, number, changes: changes.to_vec(), seed };
        run(&p.devices(), seed).is_err_and(|f| f.key == key)
    });
    Plan { sample, number, changes, seed }
}

fn stages(devices: &[Arc<dyn Device>], rng: &mut Rng, done: &mut Done) -> Result<(), Failure> {
    let clean = {
        let d = Stage::new("check", devices);
        let report = d.call(done, || look(&d.devices))?;
        report.ok().filter(Report::is_clean)
    };
    // An image that was not unmounted by a mount without a journal must not be mounted, clean or not.
    let known = read_superblock(&*devices[0]).is_ok_and(|sb| sb.unknown_ro_compat().is_none());
    let must_work = known && clean.as_ref().is_some_and(|r| r.state != "unjournaled");
    {
        let d = Stage::new("read-only mount", devices);
        let outcome = d.call(done, || {
            let fs = open(&d.devices, true)?;
            Ok::<_, Error>(walk(&fs).errors)
        })?;
        done.accepted |= outcome.is_ok();
        if must_work {
            sound("read-only mount of what the check finds clean", outcome)?;
        }
    }
    {
        let d = Stage::new("mount", devices);
        let mut lot = rng.fork();
        let outcome = d.call(done, || in_use(&d.devices, &mut lot))?;
        if must_work {
            sound("use of what the check finds clean", outcome)?;
            all_clean("check after the use of what was clean", done, &d.devices)?;
        } else if rng.u8(..3) == 0 {
            repaired("repair after use", done, &d.devices, false, rng)?;
        }
    }
    repaired("repair", done, devices, false, rng)?;
    repaired("scavenging", done, devices, true, rng)?;
    shown(done, devices, rng)?;
    match rng.u8(..4) {
        0 => half_hearted(done, devices, rng),
        1 => without_log(done, devices, rng),
        _ => Ok(()),
    }
}

/// Shows structures as they stand, damaged or not.
fn shown(done: &mut Done, devices: &[Arc<dyn Device>], rng: &mut Rng) -> Result<(), Failure> {
    let d = Stage::new("dump", devices);
    d.call(done, || {
        superblocks(&*d.devices[0]);
        let Ok(dump) = Dumper::open(&*d.devices[0], d.devices.get(1).map(|l| &**l)) else { return };
        let g = *dump.geometry();
        dump.counters();
        let _ = (dump.log(), dump.locator(), dump.external());
        let _ = [0, 1, g.ag_count - 1, g.ag_count, rng.u64(..)].map(|ag| (dump.group(ag), dump.superblock_of(ag)));
        for kind in QuotaKind::ALL {
            let _ = dump.quota(kind);
        }
        for _ in 0..20 {
            let _ = dump.block(rng.u64(..g.total_blocks + 2));
            let ino = rng.u64(..320);
            let which = Which::Number(ino);
            let _ = (dump.inode(&which), dump.extents(&which), dump.directory(&which), dump.xattrs(&which));
            let _ = dump.locator_of(ino);
        }
        for path in ["/src/level0", "/big", "/misc/sparse", "/misc/attributes"] {
            let which = Which::Path(path.into());
            let _ = (dump.inode(&which), dump.extents(&which), dump.directory(&which), dump.xattrs(&which));
        }
    })
}

/// A repair that is often told to leave things as they are; another one then puts them right.
fn half_hearted(done: &mut Done, devices: &[Arc<dyn Device>], rng: &mut Rng) -> Result<(), Failure> {
    let d = Stage::new("half-hearted repair", devices);
    let (mut lot, yes) = (rng.fork(), rng.f64());
    let outcome = d.call(done, || {
        let o = RepairOptions::default();
        repair(d.devices[0].clone(), d.devices.get(1).cloned(), &o, &mut |_| lot.f64() < yes, &|_, _, _| {})
    })?;
    let name = "repair after a half-hearted one";
    repaired(name, done, &d.devices, false, rng).map_err(|f| match outcome {
        Ok(r) => Failure { text: format!("{}\nhalf-hearted:{}", f.text, actions(&r)), ..f },
        Err(e) => Failure { text: format!("{}\nhalf-hearted: {e}", f.text), ..f },
    })
}

/// Mounted in a mode without a log, and left without an unmount.
fn without_log(done: &mut Done, devices: &[Arc<dyn Device>], rng: &mut Rng) -> Result<(), Failure> {
    let d = Stage::new("mount without a log", devices);
    let mut lot = rng.fork();
    let metadata = [MetadataMode::Sync, MetadataMode::Delayed][rng.usize(..2)];
    d.call(done, || {
        let o = options().metadata(metadata);
        let fs = Fs::open(d.devices[0].clone(), d.devices.get(1).cloned(), o)?;
        let w = walk(&fs);
        Ok::<_, Error>(work(&fs, &w, &mut lot, 30))
    })?
    .ok();
    repaired("repair after use without a log", done, &d.devices, false, rng)
}

/// Repairs a copy; the result must be in order and work.
fn repaired(
    name: &'static str,
    done: &mut Done,
    devices: &[Arc<dyn Device>],
    scavenge: bool,
    rng: &mut Rng,
) -> Result<(), Failure> {
    let d = Stage::new(name, devices);
    let outcome = d.call(done, || {
        let o = RepairOptions::default().max_problems(30).scavenge(scavenge).data(false).jobs(1);
        repair(d.devices[0].clone(), d.devices.get(1).cloned(), &o, &mut |_| true, &|_, _, _| {})
    })?;
    let r = match outcome {
        Ok(r) => r,
        Err(e) if refusal(&e) || !has_superblock(&*d.devices[0], d.devices.get(1).map(|l| &**l)) => {
            done.refused += 1;
            return Ok(());
        }
        Err(e) => return Err(Failure::new(format!("{name}: refused"), format!("{name}: {e}"))),
    };
    done.repaired += u64::from(r.actions_total > 0);
    if !r.after.is_clean() || r.after.state != "clean" {
        let text = format!("{name}: it leaves {}{}", problems(&r.after), actions(&r));
        return Err(Failure::new(format!("{name}: not clean: {}", classes(&r.after)), text));
    }
    all_clean(name, done, &d.devices).map_err(|f| Failure { text: format!("{}{}", f.text, actions(&r)), ..f })?;
    let with_actions = |f: Failure| Failure { text: format!("{}{}", f.text, actions(&r)), ..f };
    let used = Stage::new(name, &d.devices);
    let mut lot = rng.fork();
    let outcome = used.call(done, || in_use(&used.devices, &mut lot)).map_err(with_actions)?;
    sound(&format!("{name}, then use"), outcome).map_err(with_actions)?;
    all_clean(&format!("{name}, then use"), done, &used.devices).map_err(with_actions)
}

/// What a repair may say instead of repairing.
fn refusal(e: &Error) -> bool {
    match e {
        Error::Invalid(text) => text.contains("no space left for") || text.contains("use a newer"),
        Error::Corrupt(c) => c.0.contains("use a newer"),
        _ => false,
    }
}

fn actions(r: &Repaired) -> String {
    let list: String = r.actions.iter().take(30).map(|a| format!("\n  {a}")).collect();
    format!("\n{} actions in {} rounds:{list}", r.actions_total, r.rounds)
}

fn problems(r: &Report) -> String {
    let list: String = r.problems.iter().take(12).map(|p| format!("\n  {p}")).collect();
    format!("{} problems, state {}:{list}", r.problems_total, r.state)
}

fn classes(r: &Report) -> String {
    r.by_class.keys().map(|c| c.id()).collect::<Vec<_>>().join(" ")
}

fn open(devices: &[Arc<dyn Device>], read_only: bool) -> cffs::Result<Arc<Fs>> {
    Fs::open(devices[0].clone(), devices.get(1).cloned(), options().read_only(read_only))
}

fn look(devices: &[Arc<dyn Device>]) -> cffs::Result<Report> {
    check(
        devices[0].clone(),
        devices.get(1).cloned(),
        &CheckOptions::default().max_problems(30).data(true).jobs(1),
        &|_, _, _| {},
    )
}

/// Mounts, reads, changes, unmounts. Tells what the file system said of damage.
fn in_use(devices: &[Arc<dyn Device>], rng: &mut Rng) -> cffs::Result<Vec<String>> {
    let fs = open(devices, false)?;
    let w = walk(&fs);
    let mut errors = w.errors.clone();
    errors.extend(work(&fs, &w, rng, 30));
    if let Err(e) = fs.close() {
        errors.push(format!("close: {e}"));
    }
    Ok(errors)
}

/// It worked, and nobody spoke of damage.
fn sound(name: &str, outcome: cffs::Result<Vec<String>>) -> Result<(), Failure> {
    match outcome {
        Ok(errors) if errors.is_empty() => Ok(()),
        Ok(errors) => {
            let first: String = errors[0].chars().filter(|c| !c.is_ascii_digit()).collect();
            Err(Failure::new(format!("{name}: {first}"), format!("{name}: {errors:#?}")))
        }
        Err(e) => {
            let first: String = e.to_string().chars().filter(|c| !c.is_ascii_digit()).collect();
            Err(Failure::new(format!("{name}: mount: {first}"), format!("{name}: mount: {e}")))
        }
    }
}

fn all_clean(name: &str, done: &mut Done, devices: &[Arc<dyn Device>]) -> Result<(), Failure> {
    let d = Stage::new("second check", devices);
    match d.call(done, || look(&d.devices))? {
        // A file system in which an error was found says so until it is repaired.
        Ok(r) if r.is_clean() && matches!(r.state, "clean" | "error") => Ok(()),
        Ok(r) => Err(Failure::new(
            format!("{name}: second check: {}", classes(&r)),
            format!("{name}: second check: {}", problems(&r)),
        )),
        Err(e) => Err(Failure::new(format!("{name}: second check"), format!("{name}: cannot be checked: {e}"))),
    }
}

/// Devices of a stage's own, with a limit.
struct Stage {
    name: &'static str,
    devices: Devices,
    limited: Vec<Arc<Limited>>,
}

impl Stage {
    fn new(name: &'static str, below: &[Arc<dyn Device>]) -> Stage {
        let limited: Vec<Arc<Limited>> = layers(below).into_iter().map(|d| Limited::new(d, REQUESTS)).collect();
        let devices = limited.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        Stage { name, devices, limited }
    }

    fn call<T>(&self, done: &mut Done, f: impl FnOnce() -> T) -> Result<T, Failure> {
        done.stages += 1;
        let result = no_panic(self.name, f)?;
        for d in &self.limited {
            if d.exceeded() {
                let text = format!("{}: more than {REQUESTS} device requests", self.name);
                return Err(Failure::new(format!("{}: requests", self.name), text));
            }
            done.requests = done.requests.max(d.used() * 1000 / REQUESTS);
        }
        Ok(result)
    }
}
