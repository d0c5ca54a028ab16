//! The engine against the reference model.

use cffs::fs::api::MetadataMode;
use cffs_sim::generate::{Bounds, Profile, generate};
use cffs_sim::ops::{parse, show};
use cffs_sim::run::run;
use cffs_sim::setup::{SIZES, Setup};
use cffs_sim::shrink::{Sequences, shrink};
use proptest::prelude::*;

/// Runs a sequence; on failure shrinks it and says how to repeat it.
fn agree(setup: Setup, seed: u64, profile: Profile, len: usize, bounds: Bounds) {
    let ops = generate(seed, profile, len, bounds);
    if let Err(first) = run(setup, &ops) {
        let smallest = shrink(ops, 500, |ops| run(setup, ops).is_err());
        let last = run(setup, &smallest).err().unwrap_or(first);
        panic!("seed {seed}, {profile:?}, {setup}\n{last}\nsmallest sequence:\n{}", show(&smallest));
    }
}

#[test]
fn all_formats_and_sizes() {
    for no_embed in [false, true] {
        for no_group in [false, true] {
            for (i, sizes) in SIZES.into_iter().enumerate() {
                let setup = Setup { no_embed, no_group, sizes, device: 96 << 20, ..Setup::default() };
                for (j, profile) in Profile::ALL.into_iter().enumerate() {
                    agree(setup, (i * 10 + j) as u64, profile, 150, Bounds::default());
                }
            }
        }
    }
}

#[test]
fn the_other_metadata_modes() {
    for metadata in [MetadataMode::Sync, MetadataMode::Delayed] {
        for (i, profile) in Profile::ALL.into_iter().enumerate() {
            for no_embed in [false, true] {
                let setup = Setup { metadata, no_embed, ..Setup::default() };
                agree(setup, 1000 + i as u64, profile, 150, Bounds::default());
            }
        }
    }
}

#[test]
fn tiny_caches() {
    for (i, profile) in Profile::ALL.into_iter().enumerate() {
        let setup = Setup { cache: 64 << 10, ..Setup::default() };
        agree(setup, 2000 + i as u64, profile, 200, Bounds::default());
    }
}

#[test]
fn full_devices() {
    for (i, profile) in Profile::ALL.into_iter().enumerate() {
        for n in 0..4 {
            let setup = Setup::numbered(n).small();
            agree(setup, 3000 + 10 * n + i as u64, profile, 150, Bounds { write: 2_000_000, many: 300 });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence(
        n in 0u64..1000,
        ops in prop::sample::select(&Profile::ALL[..])
            .prop_flat_map(|profile| Sequences { profile, len: 120, bounds: Bounds::default() }),
    ) {
        let setup = Setup::numbered(n);
        if let Err(f) = run(setup, &ops) {
            return Err(TestCaseError::fail(format!("{setup}\n{f}\n{}", show(&ops))));
        }
    }
}

/// Sequences that once failed.
#[test]
fn regressions() {
    for text in ["create /a 644 0\nwrite /a 0 100 1\nunlink /a"] {
        let ops = parse(text).unwrap();
        for n in 0..4 {
            if let Err(f) = run(Setup::numbered(n), &ops) {
                panic!("{}\n{f}\n{text}", Setup::numbered(n));
            }
        }
    }
}
