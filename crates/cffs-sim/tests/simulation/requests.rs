//! Requests below a log disk, and those of the members of a volume: the trace has what the disks themselves were asked, each request
//! with its purpose and its cause.

use cffs_sim::generate::{Bounds, Profile, generate};
use cffs_sim::ops::show;
use cffs_sim::run::run;
use cffs_sim::setup::Setup;
use cffs_sim::shrink::shrink;
use cffs_sim::volume::VolumeLayout;

fn agree(setup: Setup, seed: u64, len: usize, bounds: Bounds) {
    let profile = Profile::ALL[seed as usize % Profile::ALL.len()];
    let ops = generate(seed, profile, len, bounds);
    if let Err(first) = run(setup, &ops) {
        let smallest = shrink(ops, 200, |ops| run(setup, ops).is_err());
        let last = run(setup, &smallest).err().unwrap_or(first);
        panic!("seed {seed}, {profile:?}, {setup}\n{last}\nsmallest sequence:\n{}", show(&smallest));
    }
}

fn traced(seed: u64) -> Setup {
    Setup { traced: true, ..Setup::numbered(seed) }
}

#[test]
fn those_below_a_log_disk_are_in_the_trace() {
    for seed in 0..16 {
        agree(traced(seed).on_log_disk(seed), seed, 100, Bounds::default());
    }
}

#[test]
fn those_of_a_log_disk_that_must_be_cleaned_are_in_the_trace() {
    for seed in 0..8 {
        agree(traced(seed).small().on_log_disk(seed), seed, 100, Bounds { write: 2_000_000, many: 300 });
    }
}

/// A member that comes back has a counter that begins anew, and who belongs to the volume is written for a purpose too.
#[test]
fn those_of_members_that_come_and_go_have_a_purpose() {
    for (seed, profile, len, bounds) in [
        (1_795_656_513, Profile::Data, 200, Bounds::default()),
        (1_795_656_552, Profile::Mixed, 400, Bounds::default()),
        (1_795_656_519, Profile::Fsync, 400, Bounds::default()),
    ] {
        let setup = Setup::numbered(seed).on_volume(seed);
        assert!(setup.volume.is_some_and(|v| v.gone.is_some()), "{setup}");
        let ops = generate(seed, profile, len, bounds);
        if let Err(e) = run(setup, &ops) {
            panic!("seed {seed}, {setup}\n{e}");
        }
    }
}

#[test]
fn those_of_the_members_of_a_volume_are_in_the_trace() {
    for seed in 0..12 {
        let setup = traced(seed).on_volume(seed);
        agree(Setup { volume: setup.volume.map(VolumeLayout::whole), ..setup }, seed, 80, Bounds::default());
    }
}
