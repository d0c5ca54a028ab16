//! Long random sequences.

use crate::driver::{Config, Driver};

/// Returns the bytes that the cleaner copied, and the numbers of forwards and of patches.
fn run(seed: u64, steps: u32) -> [u64; 3] {
    let mut rng = fastrand::Rng::with_seed(seed);
    let config = Config::random(&mut rng);
    let mut d = Driver::new(config, rng);
    // For finding the step at fault.
    let thorough = std::env::var_os("CFFS_LOG_CHECK").is_some();
    for i in 0..steps {
        d.step().unwrap_or_else(|e| panic!("seed {seed}, step {i}: {e}"));
        if thorough {
            let last = d.last;
            eprintln!("step {i}: {last}");
            let problems = d.disk.check(true).unwrap();
            assert!(problems.is_empty(), "seed {seed}, step {i}, {last}: {problems:#?}");
        }
        match d.rng.u32(0..100) {
            0..2 => d.crash(),
            2 => d.reopen(),
            3..5 => d.check_all(),
            _ => {}
        }
    }
    d.crash();
    d.seen
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
    let mut seen = [0; 3];
    // The last one closed a disk and then made a checkpoint under the epoch from before, under which nothing that followed was found.
    for seed in seeds(40).chain([501_734]) {
        match std::panic::catch_unwind(|| run(seed, 150)) {
            Ok(more) => seen.iter_mut().zip(more).for_each(|(all, n)| *all += n),
            Err(e) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(e);
            }
        }
    }
    let [cleaned, forwards, patches] = seen;
    eprintln!("the cleaner copied {cleaned} bytes and made {forwards} forwards; {patches} patches");
    assert!(cleaned > 0 && forwards > 0, "the cleaner was not exercised");
    assert!(patches > 0, "patches were not exercised");
}
