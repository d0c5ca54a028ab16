//! Random sequences: what a seed means.

use crate::args::{Args, Kind};
use cffs::MetadataMode;
use cffs_sim::crash::{self, Coverage, Effort, explore_and_shrink};
use cffs_sim::generate::{Bounds, Profile, generate, with_growth};
use cffs_sim::ops::{Op, show};
use cffs_sim::run::run;
use cffs_sim::setup::Setup;
use cffs_sim::shrink::shrink;
use cffs_sim::streams::{self, with_streams};
use cffs_sim::{aged, formatting, unjournaled};

/// Setup of a seed, alike in every run of the program.
fn setup(kind: Kind, seed: u64, streams: bool) -> Setup {
    let setup = Setup::numbered(seed);
    let setup = if streams { streams::setup(setup, seed) } else { setup };
    let metadata = match seed % 7 {
        5 => MetadataMode::Sync,
        6 => MetadataMode::Delayed,
        _ => MetadataMode::Journal,
    };
    match kind {
        Kind::Model => Setup { metadata, ..setup },
        Kind::Full => Setup { metadata, ..setup }.small(),
        Kind::Crash | Kind::Mkfs => setup,
        Kind::Aged => aged::setup(seed),
        Kind::Modes => Setup { metadata: [MetadataMode::Sync, MetadataMode::Delayed][seed as usize % 2], ..setup },
        Kind::Grow if seed.is_multiple_of(2) => setup.growing(seed),
        Kind::Log if seed % 3 == 1 => setup.small().on_log_disk(seed),
        Kind::Log => setup.on_log_disk(seed),
        Kind::Volume => setup.on_volume(seed),
        Kind::Grow => Setup { metadata, ..setup }.small().growing(seed),
    }
}

/// Operations of a seed, alike in every run of the program.
fn operations(kind: Kind, seed: u64, setup: Setup, args: &Args) -> Vec<Op> {
    let (len, bounds) = match kind {
        Kind::Aged => return aged::operations(seed),
        Kind::Modes | Kind::Mkfs => (args.len / 2, Bounds { write: 30_000, many: 20 }),
        Kind::Log if seed.is_multiple_of(3) => (args.len, Bounds::default()),
        Kind::Log if seed % 3 == 1 => (args.len, Bounds { write: 2_000_000, many: 300 }),
        Kind::Volume if seed.is_multiple_of(3) => (args.len, Bounds::default()),
        Kind::Crash | Kind::Log | Kind::Volume => (args.len / 2, Bounds { write: 60_000, many: 30 }),
        Kind::Grow if seed.is_multiple_of(2) => (args.len / 2, Bounds { write: 60_000, many: 30 }),
        Kind::Full | Kind::Grow => (args.len, Bounds { write: 2_000_000, many: 300 }),
        Kind::Model => (args.len, Bounds::default()),
    };
    let ops = generate(seed, profile(seed), len, bounds);
    let ops = if args.streams { with_streams(ops, seed, setup.sizes.0, bounds.write) } else { ops };
    if kind == Kind::Grow { with_growth(ops, seed) } else { ops }
}

fn profile(seed: u64) -> Profile {
    Profile::ALL[(seed / 4) as usize % Profile::ALL.len()]
}

/// A sequence that fails, with the error.
type Failed = (Vec<Op>, String);

/// Tries a sequence and, if it fails, so many shorter ones, which do not count as coverage.
fn smallest<E: ToString>(
    ops: Vec<Op>,
    tries: usize,
    coverage: &mut Coverage,
    attempt: impl Fn(&[Op], &mut Coverage) -> Result<(), E>,
) -> Option<Failed> {
    let first = attempt(&ops, coverage).err()?;
    eprintln!("before it is made small: {}", first.to_string());
    let again = |ops: &[Op]| attempt(ops, &mut Coverage::default());
    let smallest = shrink(ops, tries, |ops| again(ops).is_err());
    let last = again(&smallest).err().unwrap_or(first);
    Some((smallest, last.to_string()))
}

/// Runs a seed, with the operations `given` instead of its own if there are some. Returns what failed.
pub fn one(kind: Kind, seed: u64, args: &Args, given: Option<&[Op]>, coverage: &mut Coverage) -> Option<String> {
    let setup = setup(kind, seed, args.streams);
    let mut ops = given.map_or_else(|| operations(kind, seed, setup, args), <[_]>::to_vec);
    ops.truncate(args.first);
    if args.print {
        print!("{}", show(&ops));
        return None;
    }
    if args.events {
        let before = if kind == Kind::Aged { aged::ageing() } else { Vec::new() };
        let listed = crash::list_events(setup, &[before, ops].concat());
        return listed.map(|text| print!("{text}")).err();
    }
    let shrunk = |result: Result<(), Box<(Vec<Op>, crash::Failure)>>| result.err().map(|e| (e.0, e.1.to_string()));
    let effort = Effort { points: 40, survivals: 2, in_recovery: 1 };
    // What is given is a sequence that an earlier run has shrunk: the same crashes as there.
    let crashes = if given.is_some() { effort.for_a_short_sequence() } else { effort };
    let (ops, text) = match kind {
        Kind::Aged => shrunk(aged::explore(setup, ops, seed, Effort { points: 12, ..effort }, coverage)),
        Kind::Modes => smallest(ops, 200, coverage, |ops, c| unjournaled::explore(setup, ops, seed, 12, c)),
        Kind::Mkfs => smallest(ops, 200, coverage, |ops, c| formatting::explore(setup, ops, seed, c)),
        Kind::Log if seed % 3 < 2 => smallest(ops, 300, coverage, |ops, _| run(setup, ops)),
        Kind::Volume if seed.is_multiple_of(3) => smallest(ops, 300, coverage, |ops, _| run(setup, ops)),
        Kind::Crash | Kind::Log | Kind::Volume => shrunk(explore_and_shrink(setup, ops, seed, crashes, coverage)),
        Kind::Grow if seed.is_multiple_of(2) => shrunk(explore_and_shrink(setup, ops, seed, crashes, coverage)),
        Kind::Model | Kind::Full | Kind::Grow => smallest(ops, 500, coverage, |ops, _| run(setup, ops)),
    }?;
    Some(format!("{:?}, {setup}\n{text}\nsmallest sequence:\n{}", profile(seed), show(&ops)))
}
