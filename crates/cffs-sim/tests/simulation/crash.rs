//! Crashes everywhere: within sequences, in every way to lose unflushed writes, and within recovery.

use cffs::device::IoKind;
use cffs_sim::aged;
use cffs_sim::crash::{Coverage, Effort, explore, explore_and_shrink};
use cffs_sim::disk::{Event, Trace};
use cffs_sim::generate::{Bounds, Profile, generate, with_growth};
use cffs_sim::ops::{Op, expand_all, parse, show};
use cffs_sim::run::SideBySide;
use cffs_sim::setup::Setup;
use cffs_sim::streams::{self, with_streams};

#[test]
fn every_crash_leaves_what_was_promised() {
    let mut coverage = Coverage::default();
    for seed in 0..80 {
        let setup = Setup::numbered(seed);
        let profile = Profile::ALL[seed as usize % Profile::ALL.len()];
        let ops = generate(seed, profile, 60, Bounds { write: 60_000, many: 30 });
        if let Err(e) = explore_and_shrink(setup, ops, seed, Effort::default(), &mut coverage) {
            let (ops, f) = *e;
            panic!("seed {seed}, {profile:?}, {setup}\n{f}\nsmallest sequence:\n{}", show(&ops));
        }
    }
    println!("{coverage:?}");
    assert!(coverage.states > 5000 && coverage.promises > 20_000, "{coverage:?}");
}

/// Direct writes, whose mapping is committed later.
#[test]
fn a_crash_between_long_writes_leaves_what_was_promised() {
    let mut coverage = Coverage::default();
    for seed in 0..40 {
        let setup = streams::setup(Setup::numbered(seed), seed);
        let profile = Profile::ALL[seed as usize % Profile::ALL.len()];
        let bounds = Bounds { write: 60_000, many: 30 };
        let ops = with_streams(generate(seed, profile, 40, bounds), seed, setup.sizes.0, bounds.write);
        if let Err(e) = explore_and_shrink(setup, ops, seed, Effort::default(), &mut coverage) {
            let (ops, f) = *e;
            panic!("seed {seed}, {profile:?}, {setup}\n{f}\nsmallest sequence:\n{}", show(&ops));
        }
    }
    println!("{coverage:?}");
    assert!(coverage.states > 2000, "{coverage:?}");
}

#[test]
fn a_crash_while_it_grows_leaves_one_size_or_the_other() {
    let mut coverage = Coverage::default();
    for seed in 0..40 {
        let setup = Setup::numbered(seed).growing(seed);
        let profile = Profile::ALL[seed as usize % Profile::ALL.len()];
        let ops = with_growth(generate(seed, profile, 30, Bounds { write: 60_000, many: 30 }), seed);
        if let Err(e) = explore_and_shrink(setup, ops, seed, Effort::default(), &mut coverage) {
            let (ops, f) = *e;
            panic!("seed {seed}, {profile:?}, {setup}\n{f}\nsmallest sequence:\n{}", show(&ops));
        }
    }
    println!("{coverage:?}");
    assert!(coverage.states > 2000, "{coverage:?}");
}

#[test]
fn every_write_of_growing_can_be_the_last() {
    // Filled before, so that the groups are on the device and their bitmaps change.
    let text = "mkdir /a 755 0\ncreatemany /a 0 24 60000 1\nsync\ngrow 3\ncreatemany /a 50 8 60000 2\ngrow 60\n\
                create /b 644 0\nwrite /b 0 90000 3\nfsync /b\ngrow 100\nunlinkmany /a 0 20\nsync";
    let ops = parse(text).unwrap();
    let effort = Effort { points: 100_000, survivals: 2, in_recovery: 2 };
    for n in 0..6 {
        // One group, shortened; and a short last one.
        for made in [7 << 20, 21 << 20] {
            let setup = Setup { made: Some(made), device: 36 << 20, ..Setup::numbered(n) };
            let setup = if setup.sizes.0 == 65536 { Setup { sizes: (4096, 1024, 64 << 10), ..setup } } else { setup };
            if let Err(f) = explore(setup, &ops, n, effort, &mut Coverage::default()) {
                panic!("{setup}\n{f}");
            }
        }
    }
}

/// The lengths of the writes of data by which these operations become durable, after others.
fn data_writes(setup: Setup, before: &[Op], ops: &[Op]) -> Vec<usize> {
    let trace = Trace::new(setup.make().unwrap());
    let mut side = SideBySide::on(setup, trace.clone(), 0).unwrap();
    let mut apply = |ops| {
        for op in expand_all(ops) {
            side.apply(&op).unwrap_or_else(|e| panic!("{op}: {e}"));
        }
        trace.len()
    };
    let from = apply(before);
    apply(ops);
    let data = |e: &Event| match e {
        Event::Write { kind: IoKind::Data, data, .. } => Some(data.len()),
        _ => None,
    };
    trace.events()[from..].iter().filter_map(data).collect()
}

#[test]
fn a_crash_on_an_aged_file_system_leaves_what_was_promised() {
    let together = parse("mkdir /n 755 0\ncreatemany /n 0 100 9000 2\nsync").unwrap();
    let mut coverage = Coverage::default();
    for seed in 0..12 {
        let setup = aged::setup(seed);
        let new = data_writes(setup, &[], &together);
        let pieces = data_writes(setup, &aged::ageing(), &together);
        assert!(new.len() < 12, "{setup}: {new:?}");
        assert!(pieces.len() > 15, "{setup}: is not in pieces: {pieces:?}");
        let effort = Effort { points: 12, ..Effort::default() };
        if let Err(e) = aged::explore(setup, aged::operations(seed), seed, effort, &mut coverage) {
            let (ops, f) = *e;
            panic!("aged, seed {seed}, {setup}\n{f}\nsmallest sequence, after the ageing:\n{}", show(&ops));
        }
    }
    println!("{coverage:?}");
    assert!(coverage.states > 400, "{coverage:?}");
}

/// Sequences that once failed, and what was wrong.
const REGRESSIONS: [(&str, &str); 3] = [
    ("a long symbolic link was empty", "mkdir /f 755 0\nsymlink /M0 4095\nsymlink /f/b 8\nfsync /f/b"),
    (
        "what was written after a range was collapsed was found where those bytes had been before (seed 77241)",
        "create /f 644 0\nwrite /f 0 8824 1\nremount true\nfallocate /f collapse 4096 512\nwrite /f 0 6901 2\nremount true",
    ),
    (
        "a generation came again after a quick remount",
        "create /M1 644 0\nwrite /M1 0 20000 1\nsync\nunlink /M1\nremount false\ncreate /b 644 0\nsync",
    ),
];

#[test]
fn regressions() {
    for (what, text) in REGRESSIONS {
        let ops = parse(text).unwrap();
        let effort = Effort { points: 200, survivals: 4, in_recovery: 1 };
        for n in 0..8 {
            if let Err(f) = explore(Setup::numbered(n), &ops, n, effort, &mut Coverage::default()) {
                panic!("{what}: {}\n{f}\n{text}", Setup::numbered(n));
            }
        }
    }
}

/// A large directory gives back the blocks that it has ahead, and takes others when it grows.
#[test]
fn a_crash_while_blocks_ahead_are_given_back_leaves_what_was_promised() {
    let text = "mkdir /d 755 0\ncreatemany /d 0 300 0 1\nsync\nunlinkmany /d 0 200\nsync\nregroup / free-space\n\
                createmany /d 300 40 100 2\nsync\nregroup / free-space\nregroup / free-space\nsync";
    let ops = parse(text).unwrap();
    let effort = Effort { points: 150, survivals: 4, in_recovery: 1 };
    for n in 0..8 {
        // In small blocks, so that the directory has many.
        let setup = Setup { sizes: cffs_sim::setup::SIZES[if n % 2 == 0 { 1 } else { 4 }], ..Setup::numbered(n) };
        if let Err(f) = explore(setup, &ops, n, effort, &mut Coverage::default()) {
            panic!("{setup}\n{f}");
        }
    }
}

/// Data and its checksums change at different moments: no crash may make good data unreadable.
#[test]
fn overwriting_in_place_leaves_data_readable() {
    let text = "create /f 644 0\nwrite /f 0 200000 1\nsync\nwrite /f 3000 90000 2\nfsync /f\nwrite /f 500 100 3\nfsync /f\n\
                write /f 0 150000 4\nsync\nfallocate /f zero 8192 40960\nwrite /f 10000 20000 5\nsync\n\
                fallocate /f punch 60000 9000\nwrite /f 61000 3000 6\nfdatasync /f\nwrite /f 0 100000 7";
    let ops = parse(text).unwrap();
    let effort = Effort { points: 400, survivals: 6, in_recovery: 1 };
    for n in 0..4 {
        let sizes = cffs_sim::setup::SIZES[[0, 1, 2, 4][n as usize]];
        let setup =
            Setup { data_sums: true, fsync_in_log: n % 2 == 0, external_log: n == 3, sizes, ..Setup::default() };
        if let Err(f) = explore(setup, &ops, n, effort, &mut Coverage::default()) {
            panic!("{setup}\n{f}");
        }
    }
}

/// The explorer itself: with a device that ignores flushes, promises are broken, and this must be seen.
#[test]
fn a_device_that_ignores_flushes_is_found_out() {
    let setup = Setup { ignores_flush: true, ..Setup::default() };
    let ops = parse("mkdir /a 755 0\ncreate /a/b 644 0\nwrite /a/b 0 9000 1\nfsync /a/b\nsync").unwrap();
    let found = (0..20).any(|seed| explore(setup, &ops, seed, Effort::default(), &mut Coverage::default()).is_err());
    assert!(found);
}
