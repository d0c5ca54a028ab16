//! Long random sequences.

use crate::driver::{Config, Driver};

/// What is done besides atomic writes that change something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum With {
    Nothing,
    /// Blocks are brought together in between.
    Arrangement,
    /// Other writes as well.
    PlainWrites,
}

/// Returns the bytes that the cleaner copied, the numbers of forwards and of patches, and the bytes that were brought together.
fn run(seed: u64, steps: u32, with: With) -> [u64; 4] {
    let mut brought = 0;
    let mut rng = fastrand::Rng::with_seed(seed);
    let config = Config::random(&mut rng);
    let mut d = Driver::new(config, rng);
    d.plain = with == With::PlainWrites;
    // For finding the step at fault.
    let thorough = std::env::var_os("CFFS_LOG_CHECK").is_some();
    for i in 0..steps {
        d.step().unwrap_or_else(|e| panic!("seed {seed}, step {i}: {e}"));
        if with == With::Arrangement && d.rng.u32(0..4) == 0 {
            brought += d.bring_together().unwrap_or_else(|e| panic!("seed {seed}, step {i}: {e}"));
        }
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
    let [cleaned, forwards, patches] = d.seen;
    [cleaned, forwards, patches, brought]
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

/// All seeds, and what they have seen.
fn run_all(seeds: impl Iterator<Item = u64>, with: With) -> [u64; 4] {
    let mut seen = [0; 4];
    for seed in seeds {
        match std::panic::catch_unwind(|| run(seed, 150, with)) {
            Ok(more) => seen.iter_mut().zip(more).for_each(|(all, n)| *all += n),
            Err(e) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(e);
            }
        }
    }
    seen
}

#[test]
fn any_sequence_with_crashes_gives_a_prefix_of_what_was_written() {
    // One closed a disk and then made a checkpoint under the epoch from before, under which nothing that followed was found. In the other one a segment was
    // given back without a checkpoint, and after a crash a snapshot was read from there, and not where the forwards say.
    let [cleaned, forwards, patches, _] = run_all(seeds(40).chain([501_734, 703_579]), With::Nothing);
    eprintln!("the cleaner copied {cleaned} bytes and made {forwards} forwards; {patches} patches");
    assert!(cleaned > 0 && forwards > 0, "the cleaner was not exercised");
    assert!(patches > 0, "patches were not exercised");
}

#[test]
fn to_bring_blocks_together_changes_nothing_whenever_it_ends() {
    let [cleaned, forwards, patches, brought] = run_all(seeds(40).chain([701_932]), With::Arrangement);
    eprintln!(
        "{brought} bytes were brought together, {cleaned} copied by the cleaner; {forwards} forwards, {patches} patches"
    );
    assert!([cleaned, forwards, patches, brought].iter().all(|n| *n > 0));
}

#[test]
fn writes_that_are_not_atomic_are_there_up_to_a_block_and_those_that_change_nothing_do_no_harm() {
    let [cleaned, forwards, patches, _] = run_all(seeds(40), With::PlainWrites);
    eprintln!("the cleaner copied {cleaned} bytes and made {forwards} forwards; {patches} patches");
    assert!(cleaned > 0 && forwards > 0 && patches > 0);
}
