//! The engine on a volume: beside the reference model, and in crashes, after which each member alone is tried too.

use cffs_sim::crash::{Coverage, Effort, explore, explore_and_shrink};
use cffs_sim::generate::{Bounds, Profile, generate};
use cffs_sim::ops::show;
use cffs_sim::run::run;
use cffs_sim::setup::Setup;
use cffs_sim::shrink::shrink;

#[test]
fn crashes_on_a_volume_leave_what_was_promised() {
    let mut coverage = Coverage::default();
    let mut lost = 0;
    for seed in 0..12 {
        let setup = Setup::numbered(seed).on_volume(seed);
        lost += u32::from(setup.volume.is_some_and(|v| v.gone.is_some()));
        let profile = Profile::ALL[seed as usize % Profile::ALL.len()];
        let ops = generate(seed, profile, 50, Bounds { write: 60_000, many: 30 });
        let effort = Effort { points: 12, ..Effort::default() };
        if let Err(e) = explore_and_shrink(setup, ops, seed, effort, &mut coverage) {
            let (ops, f) = *e;
            panic!("seed {seed}, {profile:?}, {setup}\n{f}\nsmallest sequence:\n{}", show(&ops));
        }
    }
    println!("{coverage:?}");
    assert!(coverage.states > 300 && coverage.promises > 500 && lost > 3, "{coverage:?}, {lost}");
}

/// Of the end of the log, one member has all and the other a part. Recovery takes it from the first; crashed once more, it needs what
/// it has written in place by it, whichever member is read then.
#[test]
fn what_recovery_takes_from_one_member_is_durable_before_it_is_applied() {
    let seed = 1_620_000_064;
    let setup = Setup::numbered(seed).on_volume(seed);
    let ops = generate(seed, Profile::Large, 100, Bounds { write: 60_000, many: 30 });
    let effort = Effort { points: 40, survivals: 2, in_recovery: 1 };
    if let Err(f) = explore(setup, &ops, seed, effort, &mut Coverage::default()) {
        panic!("{setup}\n{f}");
    }
}

#[test]
fn it_does_what_the_model_does_whatever_member_is_gone() {
    for seed in 0..16 {
        let setup = Setup::numbered(seed).on_volume(seed);
        let profile = Profile::ALL[seed as usize % Profile::ALL.len()];
        let ops = generate(seed, profile, 120, Bounds::default());
        if let Err(first) = run(setup, &ops) {
            let smallest = shrink(ops, 300, |ops| run(setup, ops).is_err());
            let last = run(setup, &smallest).err().unwrap_or(first);
            panic!("seed {seed}, {profile:?}, {setup}\n{last}\nsmallest sequence:\n{}", show(&smallest));
        }
    }
}
