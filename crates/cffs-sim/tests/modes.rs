//! Crashes of mkfs, and of mounts without a journal.

use cffs::fs::api::MetadataMode;
use cffs_sim::crash::Coverage;
use cffs_sim::generate::{Bounds, Profile, generate};
use cffs_sim::setup::Setup;
use cffs_sim::{formatting, unjournaled};

const BOUNDS: Bounds = Bounds { write: 30_000, many: 20 };

#[test]
fn a_crash_of_mkfs_leaves_one_file_system_the_other_or_none() {
    let mut coverage = Coverage::default();
    for seed in 0..24 {
        let ops = generate(seed, Profile::Mixed, 40, BOUNDS);
        let setup = Setup::numbered(seed);
        if let Err(f) = formatting::explore(setup, &ops, seed, &mut coverage) {
            panic!("campaign --only mkfs --seed {seed}: {setup}\n{f}");
        }
    }
    assert!(coverage.states > 500, "{coverage:?}");
}

#[test]
fn a_repair_brings_mounts_without_a_journal_back() {
    let mut coverage = Coverage::default();
    for seed in 0..24 {
        let metadata = [MetadataMode::Sync, MetadataMode::Delayed][seed as usize % 2];
        let setup = Setup { metadata, ..Setup::numbered(seed) };
        let ops = generate(seed, Profile::ALL[seed as usize % Profile::ALL.len()], 60, BOUNDS);
        if let Err(f) = unjournaled::explore(setup, &ops, seed, 10, &mut coverage) {
            panic!("campaign --only modes --seed {seed}: {setup}\n{f}");
        }
    }
    assert!(coverage.states == 240, "{coverage:?}");
}
