//! Crashes everywhere.

use cffs_sim::crash::{Coverage, Effort, explore, explore_and_shrink};
use cffs_sim::generate::{Bounds, Profile, generate};
use cffs_sim::ops::show;
use cffs_sim::setup::Setup;

#[test]
fn every_crash_leaves_what_was_promised() {
    let mut coverage = Coverage::default();
    for seed in 0..20 {
        let setup = Setup::numbered(seed);
        let profile = Profile::ALL[seed as usize % Profile::ALL.len()];
        let ops = generate(seed, profile, 60, Bounds { write: 60_000, many: 30 });
        if let Err(e) = explore_and_shrink(setup, ops, seed, Effort::default(), &mut coverage) {
            let (ops, f) = *e;
            panic!("seed {seed}, {profile:?}, {setup}\n{f}\nsmallest sequence:\n{}", show(&ops));
        }
    }
    println!("{coverage:?}");
    assert!(coverage.states > 1000 && coverage.promises > 1000, "{coverage:?}");
}

/// The explorer itself: with a device that ignores flushes, promises are broken, and this must be seen.
#[test]
fn a_device_that_ignores_flushes_is_found_out() {
    let setup = Setup { lying: true, ..Setup::default() };
    let ops = cffs_sim::ops::parse("mkdir /a 755 0\ncreate /a/b 644 0\nwrite /a/b 0 9000 1\nfsync /a/b\nsync").unwrap();
    let found = (0..20).any(|seed| explore(setup, &ops, seed, Effort::default(), &mut Coverage::default()).is_err());
    assert!(found);
}
