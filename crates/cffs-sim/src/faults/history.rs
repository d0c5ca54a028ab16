//! A history with one fault: operations on engine and model, a fault at one request, an end (an unmount or a crash), and
//! what must hold then.
//!
//! As long as the device tells of its faults ([`Fault::is_told`]):
//!
//! - every operation answers as the model does, or fails with an input/output error (or, where the disk below is full, for
//!   want of space), or as read-only, and then it had no effect, but perhaps on the contents of the file it was to change;
//! - once the file system has turned read-only, no fsync says yes;
//! - what was promised before and after the fault survives; recovery leaves a clean file system whose namespace is that
//!   after some operation, in order.
//!
//! On a mirror, one of whose members fails and tells of it, no operation fails, and each member that counts itself in sync has
//! everything alone.
//!
//! Whatever the device does: no panic and no endless loop, also not in recovery, check and repair; a repair leaves a clean
//! file system; and every file that is whole if the places that were hit are overwritten with garbage is whole. A bit that
//! is flipped in metadata is noticed. (Nothing is said about operations after a write that was lost or went astray: old
//! metadata with a good checksum cannot be told from new.)

use super::{Fault, Hit, Plan, Request};
use crate::crash::{Coverage, History, guarded, recover, recover_alone, replacement};
use crate::disk::{CrashStates, Image, Survival, Trace, as_intended};
use crate::generate::{Bounds, Profile, generate};
use crate::model::{Content, Id};
use crate::ops::{self, Op};
use crate::run::{SideBySide, changes_contents};
use crate::setup::Setup;
use crate::volume::VolumeLayout;
use crate::walk::survivors;
use cffs::check::repair::{RepairOptions, repair};
use cffs::device::IoKind;
use cffs::format::{BlockKind, META_HEADER_SIZE, get_u32, get_u64};
use cffs::{Error, Fallocate};
use cffs_volume::{DATA_OFFSET, Kind};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Further repairs of a mirror of which a member has lost a write.
const REPAIRS_MAX: usize = 3;

/// Where a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In the mount, the operations and the unmount.
    Use,
    /// In the recovery after a crash.
    Recovery,
    /// In a repair of a damaged image.
    Repair,
}

/// One history: what happens to a sequence of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// When.
    pub phase: Phase,
    /// What.
    pub fault: Fault,
    /// At which request of the phase.
    pub at: u64,
    /// Decides about all else: what of a write is hit, how it ends, what a crash leaves.
    pub seed: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at request {} of {:?}, seed {}", self.fault, self.at, self.phase, self.seed)
    }
}

/// What has become of histories.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Histories.
    pub histories: u64,
    /// Of them, those whose fault has struck.
    pub struck: u64,
    /// Operations that failed with an error, unmounts and mounts included.
    pub errors: u64,
    /// Histories after which the file system was read-only.
    pub read_only: u64,
    /// Repairs.
    pub repairs: u64,
    /// Files that were compared after the repair of what the device did not tell.
    pub files: u64,
}

impl Tally {
    /// Adds another one.
    pub fn add(&mut self, other: Tally) {
        self.histories += other.histories;
        self.struck += other.struck;
        self.errors += other.errors;
        self.read_only += other.read_only;
        self.repairs += other.repairs;
        self.files += other.files;
    }
}

/// Number of requests of each phase of a sequence without a fault.
pub fn requests(setup: Setup, ops: &[Op]) -> Result<[(Phase, u64); 3], String> {
    guarded(|| {
        let mut ignored = Tally::default();
        let quiet = |phase| Case { phase, fault: Fault::Error, at: u64::MAX, seed: 1 };
        let used = in_use(setup, ops, quiet(Phase::Use), true, &mut ignored)?.1;
        let recovered = in_recovery(setup, ops, quiet(Phase::Recovery), &mut ignored)?;
        let repaired = match setup.log_layout {
            Some(_) => 0,
            None => in_repair(setup, ops, quiet(Phase::Repair), &mut ignored)?,
        };
        Ok([(Phase::Use, used), (Phase::Recovery, recovered), (Phase::Repair, repaired)])
    })
}

/// The histories of a sequence with so many requests: an error at each of them, the other faults at some. On a log disk only what the
/// device tells of and bits that a read gets wrong, because a repair of the file system does not mend a log disk.
pub fn cases(setup: Setup, requests: [(Phase, u64); 3], seed: u64) -> Vec<Case> {
    let mut rng = Rng::with_seed(seed);
    let mut out = Vec::new();
    for (phase, n) in requests {
        out.extend((0..n).map(|at| Case { phase, fault: Fault::Error, at, seed: rng.u64(..) }));
        let others = Fault::EVERY.into_iter().filter(|f| *f != Fault::Error);
        for fault in others.filter(|f| phase == Phase::Use || matches!(f, Fault::Gone | Fault::Full)) {
            let some = (n / 8).max(2);
            out.extend((0..some).map(|_| Case { phase, fault, at: rng.u64(..n.max(1)), seed: rng.u64(..) }));
        }
    }
    let below = [Fault::Lost, Fault::Misdirected, Fault::FlippedMedium, Fault::Unreadable];
    if setup.log_layout.is_some() {
        out.retain(|case| case.phase != Phase::Repair && !below.contains(&case.fault));
    }
    out
}

/// The file system that histories of a seed run on: small, with a small cache, so that there are reads.
pub fn setup(seed: u64) -> Setup {
    let small = crate::bounded::setup(seed % crate::bounded::IN_PLACE);
    // Two allocation groups: with a copy of the superblock.
    Setup { device: 36 << 20, cache: [256 << 10, 2 << 20][seed as usize / 8 % 2], ..small }
}

/// The same on a mirror.
pub fn setup_on_mirror(seed: u64) -> Setup {
    let members = 2 + usize::from(seed.is_multiple_of(4));
    let volume = Some(VolumeLayout { kind: Kind::Mirror, members, unit: 0, gone: None, only: None });
    Setup { volume, external_log: false, data_sums: seed.is_multiple_of(3), ..setup(seed) }
}

/// The same on a log disk.
pub fn setup_on_log_disk(seed: u64) -> Setup {
    setup(seed).on_log_disk(seed)
}

/// The operations of a seed.
pub fn operations(seed: u64) -> Vec<Op> {
    let profile = Profile::ALL[seed as usize / 3 % 4];
    let mut ops = generate(seed, profile, 30, Bounds { write: 30_000, many: 8 });
    ops.insert(15, Op::Remount { forget: true });
    // Some that were promised before.
    let kept =
        "mkdir /kept 755 0\ncreatemany /kept 0 6 3000 9\nmkdir /kept/b 755 0\ncreatemany /kept/b 0 4 200 9\nsync";
    let mut all = ops::parse(kept).expect("these are operations");
    all.extend(ops);
    all
}

/// Runs a history and judges it. The text says what does not hold.
pub fn run(setup: Setup, ops: &[Op], case: Case, tally: &mut Tally) -> Result<(), String> {
    tally.histories += 1;
    guarded(|| match case.phase {
        Phase::Use => in_use(setup, ops, case, false, tally).map(drop),
        Phase::Recovery => in_recovery(setup, ops, case, tally).map(drop),
        Phase::Repair => in_repair(setup, ops, case, tally).map(drop),
    })
}

/// Whether an error may come of a fault.
fn is_due(setup: Setup, fault: Fault, e: &Error) -> bool {
    if setup.is_mirrored() && fault.is_told() {
        return false;
    }
    match e {
        Error::Io(_) | Error::Corrupt(_) | Error::ReadOnly => true,
        Error::NoSpace => fault == Fault::Full,
        _ => false,
    }
}

fn struck(trace: &Trace) -> Option<Hit> {
    trace.faults().and_then(|p| p.hit())
}

/// A run of the operations, as far as they went.
struct Run {
    h: History,
    hit: Option<Hit>,
    /// Unmounted without an error.
    closed: bool,
    plan: Plan,
}

fn in_use(setup: Setup, ops: &[Op], case: Case, quiet: bool, tally: &mut Tally) -> Result<(Run, u64), String> {
    let before = setup.make()?;
    let trace = Trace::new(before.clone());
    trace.arm(Plan::new(case.fault, case.at, case.seed));
    let mut rng = Rng::with_seed(case.seed);
    let (mut h, mut closed) = (None, false);
    match SideBySide::on(setup, trace.clone(), 0) {
        Err(e) => {
            tally.errors += 1;
            if struck(&trace).is_none() || setup.is_mirrored() && case.fault.is_told() {
                return Err(e);
            }
        }
        Ok(mut side) => {
            let mut history = History::begin(setup, before.clone(), &side, trace.len());
            let ended = operate(setup, &mut side, &mut history, &trace, ops, case, tally)?;
            tally.read_only += u64::from(side.engine.fs.is_read_only());
            if ended && (quiet || rng.bool()) {
                side.engine.forget_all();
                match side.engine.fs.close() {
                    Ok(()) => {
                        history.unmounted(trace.len());
                        closed = true;
                    }
                    Err(e) if struck(&trace).is_some() && is_due(setup, case.fault, &e) => tally.errors += 1,
                    Err(e) => return Err(format!("unmount: {e}")),
                }
            }
            h = Some(history);
        }
    }
    let mut plan = trace.faults().expect("armed above");
    let (hit, requests) = (plan.hit(), plan.requests());
    tally.struck += u64::from(hit.is_some());
    plan.calm();
    let mut h = match h {
        Some(h) => h,
        // Not even mounted: what was there before must still be.
        None => {
            let quiet = Trace::new(before.clone());
            let side = SideBySide::on(setup, quiet, 0)?;
            History::begin(setup, before, &side, 0)
        }
    };
    h.events = trace.events();
    let run = Run { h, hit, closed, plan };
    if !quiet {
        aftermath(setup, &run, case, &mut rng, tally)?;
    }
    Ok((run, requests))
}

/// Whether what was hit has no checksum. A request for metadata can bring in what lies around it too.
fn in_data(images: &[Image], setup: Setup, hit: Hit) -> bool {
    let block_size = u64::from(setup.sizes.0);
    let begin = if setup.is_mirrored() { DATA_OFFSET } else { 0 };
    let Some(offset) = hit.offset.checked_sub(begin) else { return false };
    let addr = offset / block_size;
    let mut header = [0; META_HEADER_SIZE];
    images[hit.dev].read(begin + addr * block_size, &mut header);
    // Every block of metadata says what and where it is: one bit cannot have changed both.
    let foreign = BlockKind::from_magic(get_u32(&header, 0)).is_none() && get_u64(&header, 16) != addr;
    hit.kind == Some(IoKind::Data) || hit.kind == Some(IoKind::Meta) && foreign
}

/// Applies the operations; false if the file system was lost on the way, by a remount that failed.
fn operate(
    setup: Setup,
    side: &mut SideBySide,
    h: &mut History,
    trace: &Trace,
    ops: &[Op],
    case: Case,
    tally: &mut Tally,
) -> Result<bool, String> {
    // What cannot be told any more: after a lost write anything may come back.
    // As it was when it was hit: later something else may stand there.
    let mut hit_data = None;
    for op in ops::expand_all(ops) {
        let was_read_only = side.engine.fs.is_read_only();
        h.starts.push(trace.len());
        let replaced = replacement(side, &op);
        let mut after = side.state.clone();
        let _ = after.apply(&op);
        let contents = |id: Id| after.model.find(id).and_then(|i| i.content()).cloned().map(|c: Content| (id, c));
        let hit = || struck(trace);
        let tolerated = |e: &Error| hit().is_some() && is_due(setup, case.fault, e);
        let outcome = side.attempt(&op, Some(&tolerated));
        if let (None, Some(hit)) = (hit_data, hit()) {
            hit_data = Some(in_data(&trace.images(), setup, hit));
        }
        let blind = |hit: Hit| !case.fault.is_told() && (hit.request == Request::Write || hit_data == Some(true));
        if hit().is_some_and(|hit| !case.fault.is_told() && hit.request == Request::Write) {
            h.blind_from_here();
        }
        let promises = matches!(op, Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Sync) && !after.synced.is_empty();
        if was_read_only && promises && matches!(outcome, Ok(None)) {
            return Err(format!("`{op}` says yes on a file system that has turned read-only"));
        }
        let shifts = matches!(op, Op::Copy { .. })
            || matches!(op, Op::Fallocate { what: Fallocate::Collapse | Fallocate::Insert, .. });
        match outcome {
            Ok(None) => {
                if shifts && after.written.is_some_and(|id| side.doubt.contains(&id)) {
                    h.unknown.extend(after.written);
                }
                h.done(side, op, replaced, trace.len());
            }
            Ok(Some(_)) => {
                tally.errors += 1;
                let doubtful = after.written.filter(|_| changes_contents(&op)).and_then(contents);
                if shifts {
                    h.unknown.extend(after.written);
                }
                let lost = matches!(op, Op::Remount { .. });
                h.failed(side, op, doubtful);
                if side.engine.fs.is_read_only() && !was_read_only {
                    h.failed_when_done(side, &after);
                }
                if lost {
                    return Ok(false);
                }
            }
            // In memory an operation may have stopped half way; nothing of it will be committed.
            Err(_) if hit().is_some() && (side.engine.fs.is_read_only() || hit().is_some_and(blind)) => {
                h.stopped(op);
                return Ok(true);
            }
            Err(text) => return Err(format!("operation {}, `{op}`: {text}; {:?}", h.ops.len() + 1, hit())),
        }
    }
    Ok(true)
}

/// The end of a history: what the device holds now, and what must hold of it.
fn aftermath(setup: Setup, run: &Run, case: Case, rng: &mut Rng, tally: &mut Tally) -> Result<(), String> {
    let h = &run.h;
    let mut states = CrashStates::new(h.before.clone(), &h.events);
    states.advance(h.events.len());
    let told = case.fault.is_told() || run.hit.is_none();
    let survival = if told && !run.closed { Survival::EVERY[rng.usize(..6)] } else { Survival::All };
    let images = states.crash(survival, rng);
    let context = |t| format!("after the history ({survival:?}{}): {t}", if run.closed { ", unmounted" } else { "" });
    let event = h.events.len();
    let Some(hit) = run.hit.filter(|_| !told || case.fault == Fault::Unreadable && !setup.is_mirrored()) else {
        let mut ignored = Coverage::default();
        let members = recover_alone(h, event, &images, &mut ignored);
        return members.and_then(|()| recover(h, event, images, false, &mut ignored)).map(drop).map_err(context);
    };
    let after = Trace::new(images.clone());
    after.arm(run.plan.clone());
    let mut fixed = fix(setup, &after, tally);
    if setup.is_mirrored() && hit.request == Request::Write {
        // Old contents of one member are whole by themselves, and each look may come upon another member's.
        for _ in 0..REPAIRS_MAX {
            fixed = fixed.or_else(|_| fix(setup, &after, tally));
        }
    }
    let did = fixed.map_err(|t| context(format!("repair: {t}; {hit:?}")))?;
    let log = crate::setup::log_range(&h.before);
    let in_log = |offset: u64| (hit.dev == log.0 || setup.is_mirrored()) && log.1.contains(&offset);
    let is_only_copy = hit.request == Request::Write || !setup.is_mirrored();
    if is_only_copy && (in_log(hit.offset) || hit.to.is_some_and(in_log)) || did.contains("[log-header]") {
        // What the log held is lost: it was hit, or a block that it changes cannot be read.
        return Ok(());
    }
    // What is to be had where those places hold nothing: for old metadata with a good checksum without a repair, which
    // could find things again that are then said not to be there.
    // Of a mirror another member has it, but old contents of blocks and data without checksums cannot be told from the right ones.
    let devices = match (setup.is_mirrored(), hit.request) {
        // All data on a log disk has checksums, and there only reads go wrong.
        (false, _) if setup.log_layout.is_some() => 0..0,
        (false, _) => hit.dev..hit.dev + 1,
        (true, Request::Write) if hit.offset >= DATA_OFFSET => 0..setup.devices(),
        (true, _) if !setup.data_sums && in_data(&images, setup, hit) => 0..setup.devices(),
        _ => 0..0,
    };
    let intended = if survival == Survival::All { as_intended(h.before.clone(), &h.events) } else { images };
    let mut without = intended;
    // Contents are read by fragments: what lies behind the end of a file makes its last one unreadable, too.
    let unit = if case.fault == Fault::Unreadable { u64::from(setup.sizes.1) } else { 1 };
    let (from, to) = (hit.offset / unit * unit, (hit.offset + hit.len).next_multiple_of(unit));
    for dev in devices {
        without[dev].fill(from, to - from, 0xa5);
        if let Some(to) = hit.to.filter(|to| !setup.is_mirrored() || *to >= DATA_OFFSET) {
            without[dev].fill(to, hit.len, 0xa5);
        }
    }
    let without = Trace::new(without);
    if hit.request != Request::Write && fix(setup, &without, tally).is_err() {
        return Ok(());
    }
    let Ok(must) = whole(setup, &without, h) else { return Ok(()) };
    let are = whole(setup, &after, h).map_err(|t| context(format!("after the repair: {t}")))?;
    tally.files += must.len() as u64;
    // With less damage a file may be found in its place that otherwise has lost its name.
    let in_place: BTreeSet<u32> = are.values().copied().collect();
    let lost = |(path, generation): &(&Vec<u8>, &u32)| {
        !(are.contains_key(*path) || path.starts_with(b"/lost+found/") && in_place.contains(generation))
    };
    match must.iter().find(lost) {
        Some((path, _)) => Err(context(format!(
            "{} is not whole after the repair ({}), and was not hit ({hit:?})\ndone:{did}",
            String::from_utf8_lossy(path),
            why(setup, &after, h, path)
        ))),
        None => Ok(()),
    }
}

/// Repairs, and checks that nothing is left to repair.
fn fix(setup: Setup, trace: &Trace, tally: &mut Tally) -> Result<String, String> {
    tally.repairs += 1;
    let (device, log) = setup.open_to_repair(trace).map_err(|e| format!("what is below cannot be opened: {e}"))?;
    let done = repair(device.clone(), log.clone(), &RepairOptions::default(), &mut |_| true, &|_, _, _| {})
        .map_err(|e| e.to_string())?;
    let did: String = done.actions.iter().take(20).map(|a| format!("\n  {a}")).collect();
    let report = cffs::check::check(device.clone(), log, &Default::default(), &|_, _, _| {})
        .map_err(|e| format!("cannot be checked: {e}"))?;
    if !report.is_clean() || report.state != "clean" {
        let lines: Vec<String> = report.problems.iter().take(5).map(|p| format!("\n  {p}")).collect();
        return Err(format!("state {}, left:{}\ndone:{did}", report.state, lines.concat()));
    }
    device.finish().map_err(|e| format!("end of what is below: {e}"))?;
    Ok(did)
}

/// The paths under which whole files stand, with their generation numbers.
fn whole(setup: Setup, trace: &Trace, h: &History) -> Result<BTreeMap<Vec<u8>, u32>, String> {
    let fs = setup.mount_read_only(trace).map_err(|e| format!("mount: {e}"))?;
    let event = h.events.len();
    let files = survivors(&fs).into_iter();
    let said = files.filter(|(path, attr)| !h.made_blindly(path, attr.ino, attr.generation));
    let good = said.filter(|(_, attr)| h.judge_file(event, h.ops.len(), &fs, attr.ino, attr).is_ok());
    Ok(good.map(|(path, attr)| (path, attr.generation)).collect())
}

/// What is wrong with a file.
fn why(setup: Setup, trace: &Trace, h: &History, path: &[u8]) -> String {
    let Ok(fs) = setup.mount_read_only(trace) else { return "it cannot be mounted".into() };
    match survivors(&fs).get(path) {
        Some(attr) => {
            let judged = h.judge_file(h.events.len(), h.ops.len(), &fs, attr.ino, attr);
            format!("inode {}, generation {}: {judged:?}", attr.ino, attr.generation)
        }
        None => "it is not there".into(),
    }
}

/// Requests of the recovery.
fn in_recovery(setup: Setup, ops: &[Op], case: Case, tally: &mut Tally) -> Result<u64, String> {
    let h = History::record(setup, ops)?;
    let mut rng = Rng::with_seed(case.seed);
    let mut states = CrashStates::new(h.before.clone(), &h.events);
    // Late enough that there is something to recover.
    let event = rng.usize(h.events.len() / 2..=h.events.len());
    states.advance(event);
    let images = states.crash(Survival::EVERY[rng.usize(..6)], &mut rng);
    let trace = Trace::new(images.clone());
    trace.arm(Plan::new(case.fault, case.at, case.seed));
    let mounted = setup.mount(&trace);
    tally.errors += u64::from(mounted.is_err());
    let hit = struck(&trace);
    tally.struck += u64::from(hit.is_some());
    match mounted {
        Err(e) if hit.is_some() && is_due(setup, case.fault, &e) => {}
        Err(e) => return Err(format!("mount: {e}")),
        Ok(fs) => drop(fs),
    }
    let requests = trace.faults().map_or(0, |p| p.requests());
    let events = trace.events();
    let mut again = CrashStates::new(images, &events);
    again.advance(events.len());
    let images = again.crash(Survival::EVERY[rng.usize(..6)], &mut rng);
    recover(&h, event, images, false, &mut Coverage::default())
        .map_err(|t| format!("recovered once more after {case}: {t}"))?;
    Ok(requests)
}

/// Requests of the repair.
fn in_repair(setup: Setup, ops: &[Op], case: Case, tally: &mut Tally) -> Result<u64, String> {
    let h = History::record(setup, ops)?;
    let mut rng = Rng::with_seed(case.seed);
    let mut states = CrashStates::new(h.before.clone(), &h.events);
    states.advance(h.events.len());
    let mut images: Vec<Image> = states.crash(Survival::All, &mut rng);
    // Somewhere among the metadata that was written.
    let metadata: Vec<u64> = h
        .events
        .iter()
        .filter_map(|e| match e {
            crate::disk::Event::Write { dev: 0, kind: IoKind::Meta, offset, .. } => Some(*offset),
            _ => None,
        })
        .collect();
    for _ in 0..1 + rng.usize(..3) {
        if !metadata.is_empty() {
            images[0].fill(metadata[rng.usize(..metadata.len())], 512, 0xa5);
        }
    }
    let trace = Trace::new(images.clone());
    trace.arm(Plan::new(case.fault, case.at, case.seed));
    let opened = setup.open_to_repair(&trace).map_err(Error::Io);
    let first = opened.and_then(|(device, log)| {
        let done = repair(device.clone(), log, &RepairOptions::default(), &mut |_| true, &|_, _, _| {})?;
        Ok((done, device.finish()?).0)
    });
    tally.repairs += 1;
    let hit = struck(&trace);
    tally.struck += u64::from(hit.is_some());
    let requests = trace.faults().map_or(0, |p| p.requests());
    match first {
        Err(e) if hit.is_none() || setup.is_mirrored() => return Err(format!("repair: {e}")),
        Err(_) => tally.errors += 1,
        Ok(done) if hit.is_none() && !done.after.is_clean() => {
            return Err(format!("the repair leaves {:?}", done.after.problems.first()));
        }
        Ok(_) => {}
    }
    let events = trace.events();
    let mut again = CrashStates::new(images, &events);
    again.advance(events.len());
    let after = Trace::new(again.crash(Survival::EVERY[rng.usize(..6)], &mut rng));
    fix(setup, &after, tally).map_err(|t| format!("the repair after {case}: {t}"))?;
    Ok(requests)
}
