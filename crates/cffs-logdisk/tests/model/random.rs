//! Long random sequences.

use crate::driver::{Config, Driver};

fn run(seed: u64, steps: u32) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let config = Config::random(&mut rng);
    let mut d = Driver::new(config, rng);
    for i in 0..steps {
        d.step().unwrap_or_else(|e| panic!("seed {seed}, step {i}: {e}"));
        match d.rng.u32(0..100) {
            0..2 => d.crash(),
            2 => d.reopen(),
            3..5 => d.check_all(),
            _ => {}
        }
    }
    d.crash();
}

/// Seeds to run: `CFFS_LOG_SEEDS=from..to` for a campaign.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("CFFS_LOG_SEEDS").ok();
    let asked = asked.as_deref().and_then(|s| s.split_once(".."));
    match asked.map(|(a, b)| (a.parse(), b.parse())) {
        Some((Ok(a), Ok(b))) => a..b,
        _ => 0..default,
    }
}

#[test]
fn any_sequence_with_crashes_gives_a_prefix_of_what_was_written() {
    for seed in seeds(40) {
        let r = std::panic::catch_unwind(|| run(seed, 150));
        if let Err(e) = r {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(e);
        }
    }
}
