//! Figure 7's aging on the log, beside the same in place: what it costs where nothing is written to its old place, and what a cleaner and a
//! regroup make of it.

use anyhow::{Result, bail};
use cffs::MetadataMode;
use cffs_disk::Counters;
use cffs_logdisk::LogStats;

use super::aging::{BYTES, FILES, OPERATIONS, PER_DIR, age};
use super::harness::{Harness, Setup, Variant};
use super::outcome::{Claim, Outcome, asked, went};
use super::small::{PHASES, benchmark};
use super::volume::Layout;

/// The paper's disk, and one of today.
const DISKS: [&str; 2] = ["st31200", "hdd-2026"];
/// How full the disk is.
const LEVELS: [(&str, f64); 3] = [("50% full", 0.5), ("70% full", 0.7), ("90% full", 0.9)];
/// Bytes that a step of the cleaner copies.
const STEP: u64 = 4 << 20;
/// The cleaner of an idle disk comes to its end before that.
const STEPS_MAX: usize = 1000;

/// What is done between the aging and the benchmark.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Upkeep {
    Nothing,
    /// The cleaner works until it finds nothing that pays.
    Cleaned,
    Regrouped,
}

impl Upkeep {
    fn of(layout: Layout) -> &'static [Upkeep] {
        match layout {
            Layout::Log(_) => &[Upkeep::Nothing, Upkeep::Cleaned, Upkeep::Regrouped],
            _ => &[Upkeep::Nothing, Upkeep::Regrouped],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Upkeep::Nothing => "aged",
            Upkeep::Cleaned => "aged, then cleaned",
            Upkeep::Regrouped => "aged, then regrouped",
        }
    }
}

struct Measured {
    /// What aging took, and what the log disk did meanwhile.
    aging: (Counters, LogStats),
    phases: [Counters; 4],
}

fn clean(harness: &mut Harness) -> Result<()> {
    harness.phase_on(|_, log| {
        let Some(log) = log else { return Ok(()) };
        for _ in 0..STEPS_MAX {
            if log.clean_step(STEP)?.segments == 0 {
                return Ok(());
            }
        }
        bail!("the cleaner does not come to an end");
    })?;
    Ok(())
}

fn setup_of(disk: &'static str, layout: Layout, bytes: u64) -> Setup {
    match disk {
        // A commit is a batch on the log, so both write metadata by commits.
        "st31200" => Setup { bytes, layout, ..Setup::ganger(Variant::BOTH, MetadataMode::Journal) },
        _ => Setup { bytes, layout, ..Setup::today(disk) },
    }
}

/// So many bytes of a disk in place; on the log as many more as it keeps for its cleaner, so that the same files make it as full.
fn setup(disk: &'static str, layout: Layout) -> Result<Setup> {
    let capacity = |setup: &Setup| -> Result<u64> {
        let mut bytes = 0;
        Harness::new(setup)?.phase(|fs| {
            let s = fs.statfs();
            bytes = s.total * u64::from(s.frag_size);
            Ok(())
        })?;
        Ok(bytes)
    };
    let wanted = capacity(&setup_of(disk, Layout::InPlace, BYTES))?;
    let mut setup = setup_of(disk, layout, BYTES);
    while let lacking = wanted.saturating_sub(capacity(&setup)?)
        && lacking > 0
    {
        setup.bytes = (setup.bytes + lacking).next_multiple_of(1 << 20);
    }
    Ok(setup)
}

/// Ages to `level`, does what is to be done, and runs the benchmark.
fn measure(setup: &Setup, level: f64, upkeep: Upkeep, scale: u64) -> Result<Measured> {
    let mut harness = Harness::new(setup)?;
    let mut aging = Default::default();
    if level > 0.0 {
        let took = harness.phase(|fs| age(fs, level, OPERATIONS / scale))?;
        aging = (took, harness.log_stats());
    }
    match upkeep {
        Upkeep::Nothing => {}
        Upkeep::Cleaned => clean(&mut harness)?,
        Upkeep::Regrouped => drop(harness.regroup()?),
    }
    let phases = benchmark(&mut harness, FILES / scale, PER_DIR, 1024)?;
    harness.check()?;
    Ok(Measured { aging, phases })
}

/// All levels in both layouts, on all disks.
///
/// # Errors
/// Those of the engine.
pub fn figure7(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    DISKS.iter().try_for_each(|disk| figure7_on(disk, scale, &mut outcome))?;
    outcome.notes = vec![format!(
        "As figure 7, with {} creations and deletions, and the log of the engine, or a commit as a batch. The log has as many more bytes of the disk as it keeps for itself, \
         so the same files make both as full. While it is aged the log disk cleans when it must, and so it does in the benchmark right after it: how much comes in these {} files is \
         chance. A mount cleans when nobody writes, until half is free; for \"{}\", which the benchmark's claims are about, the cleaner worked until nothing paid any more.",
        OPERATIONS / scale,
        FILES / scale,
        Upkeep::Cleaned.name()
    )];
    Ok(outcome)
}

fn figure7_on(disk: &'static str, scale: u64, outcome: &mut Outcome) -> Result<()> {
    let files = FILES / scale;
    let (mut rates, mut requests) = (Vec::new(), Vec::new());
    let mut row = |layout: Layout, state: &str, m: &Measured| {
        let name = format!("{}, {state}", layout.name());
        rates.push((name.clone(), m.phases.iter().map(|c| files as f64 / c.seconds()).collect::<Vec<f64>>()));
        let each = |c: &Counters| c.requests() as f64 * 1e3 / files as f64;
        requests.push((name, m.phases.iter().map(each).collect::<Vec<f64>>()));
    };
    let mut took = Vec::new();
    for layout in Layout::both() {
        row(layout, "fresh", &measure(&setup(disk, layout)?, 0.0, Upkeep::Nothing, scale)?);
    }
    for (level, share) in LEVELS {
        let mut measured = |layout: Layout| -> Result<Vec<Measured>> {
            let setup = setup(disk, layout)?;
            let of = |upkeep: &Upkeep| {
                let m = measure(&setup, share, *upkeep, scale)?;
                row(layout, &format!("{level}, {}", upkeep.name()), &m);
                Ok(m)
            };
            Upkeep::of(layout).iter().map(of).collect()
        };
        let [in_place, log] = Layout::both().map(&mut measured);
        let (in_place, log) = (&in_place?[0], log?);
        let (aged, cleaned) = (&log[0], &log[1]);
        for (name, m) in [("in place", in_place), ("log", aged)] {
            let (c, s) = &m.aging;
            let share = |bytes: u64| bytes as f64 / s.accepted.max(1) as f64;
            let figures = vec![c.seconds(), c.reads as f64, c.writes as f64, share(s.cleaned), share(s.written)];
            took.push((format!("{name}, {level}"), figures));
        }
        let text = format!("{disk}, {level}: aging: the log, which cleans meanwhile, times in place");
        outcome.claims.push(times(text, &in_place.aging.0, &aged.aging.0));
        for (phase, name) in PHASES.iter().enumerate().take(3) {
            let text = format!("{disk}, {level}: {name}: the aged log, when it was cleaned, times in place, aged");
            outcome.claims.push(times(text, &in_place.phases[phase], &cleaned.phases[phase]));
        }
    }
    let phases = PHASES.map(str::to_string);
    outcome.add(&format!("{disk}: throughput"), "files/s", "state", &phases, rates, false);
    outcome.table(format!("{disk}: requests per 1,000 files"), "state", &phases, requests);
    let columns = ["s", "reads", "writes", "copied for each byte", "written for each byte"].map(str::to_string);
    outcome.table(format!("{disk}: the aging itself"), "state", &columns, took);
    Ok(())
}

/// Our target: the log is as fast as in place.
fn times(text: String, in_place: &Counters, log: &Counters) -> Claim {
    Claim::at_least(text, 1.0, in_place.seconds() / log.seconds()).because(|| {
        format!("In place: {}; {}. The log: {}; {}.", asked(in_place), went(in_place), asked(log), went(log))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::harness::{create, make_dir};
    use cffs::{Fs, Ino, ROOT_INO};

    #[test]
    fn each_layout_is_aged_and_brought_in_order() {
        for layout in Layout::both() {
            for upkeep in Upkeep::of(layout) {
                let m = measure(&setup("hdd-2026", layout).unwrap(), 0.7, *upkeep, 50).unwrap();
                assert!(m.phases.iter().all(|c| c.requests() > 0));
                assert_eq!(m.aging.1.accepted > 0, layout != Layout::InPlace);
            }
        }
    }

    /// What a file system writes a part of, a log disk has to read first.
    #[test]
    fn new_small_files_on_the_log_need_nothing_of_what_lies_in_gaps_around() {
        let setup = Setup { group: 64 << 10, ..setup_of("hdd-2026", Layout::log(), BYTES) };
        let mut harness = Harness::new(&setup).unwrap();
        let (dirs, files) = (40, 100);
        let (dir_name, name) = (|n: u32| format!("dir{n}"), |n: u32| format!("f{n}"));
        harness
            .phase(|fs| {
                for d in 0..dirs {
                    let dir = make_dir(fs, &dir_name(d))?;
                    (0..files).try_for_each(|n| create(fs, dir, &name(n), &[7; 5000]))?;
                    fs.sync()?;
                    (0..files).step_by(3).try_for_each(|n| fs.unlink(dir, name(n).as_bytes()))?;
                }
                Ok(())
            })
            .unwrap();
        let mut in_each = |work: &dyn Fn(&Fs, Ino) -> Result<()>| {
            let one = |fs: &Fs, d: u32| work(fs, fs.lookup(ROOT_INO, dir_name(d).as_bytes())?.ino);
            harness.phase(|fs| (0..dirs).try_for_each(|d| one(fs, d))).unwrap().reads
        };
        let names = in_each(&|fs, dir| {
            assert!(fs.lookup(dir, b"new").is_err());
            Ok(())
        });
        let new = in_each(&|fs, dir| {
            create(fs, dir, "new", &[8; 1000])?;
            Ok(fs.sync()?)
        });
        assert!(new < names + u64::from(dirs) / 2, "{new} reads, {names} for the names");
        harness.check().unwrap();
    }
}
