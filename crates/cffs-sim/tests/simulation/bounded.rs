//! Short sequences of operations, all of them or some, crashed at every write and flush.

use cffs_sim::bounded::{VARIANTS, count, explore, sequence, setup};
use cffs_sim::crash::Coverage;
use cffs_sim::ops::show;

fn crash(variant: u64, len: usize, numbers: impl Iterator<Item = u64>) -> Coverage {
    let mut coverage = Coverage::default();
    for number in numbers {
        if let Err(f) = explore(setup(variant), len, number, &mut coverage) {
            panic!("--bounded {len} --from {number} --variant {variant}\n{f}\n{}", show(&sequence(len, number).0));
        }
    }
    println!("length {len}, variant {variant}: {coverage:?}");
    coverage
}

#[test]
fn every_single_operation_in_every_variant() {
    for variant in 0..VARIANTS {
        let coverage = crash(variant, 1, 0..count(1));
        assert!(coverage.states > 700 && coverage.promises > 1500, "{coverage:?}");
    }
}

#[test]
fn some_sequences_of_two_and_three() {
    let coverage = crash(0, 2, (0..count(2)).step_by(61));
    assert!(coverage.states > 3000, "{coverage:?}");
    for variant in 1..VARIANTS {
        crash(variant, 2, (variant * 13..count(2)).step_by(1009));
    }
    // Numbers that share no factor with the lists, so that all choices come up.
    crash(0, 3, (0..300).map(|n| n * 32_452_843 % count(3)));
}
