//! Long campaigns: sequences against the reference model, and crashes, until the time is up.

use anyhow::{Result, bail};
use cffs::fs::api::MetadataMode;
use cffs_sim::crash::{Coverage, Effort, explore_and_shrink};
use cffs_sim::generate::{Bounds, Profile, generate, with_growth};
use cffs_sim::ops::{parse, show};
use cffs_sim::run::run;
use cffs_sim::setup::Setup;
use cffs_sim::shrink::shrink;
use clap::Parser;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Compares the engine with the reference model and crashes it, seed after seed, until the time is up.
///
/// Every seed that fails is printed with the smallest sequence of operations found for it.
#[derive(Parser)]
struct Args {
    /// How long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this seed.
    #[arg(long)]
    once: bool,
    /// What to do.
    #[arg(long, value_enum)]
    only: Option<Kind>,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Stop after so many failures.
    #[arg(long, default_value_t = 5)]
    failures: usize,
    /// Operations in a sequence.
    #[arg(long, default_value_t = 200)]
    len: usize,
    /// Print the operations of the seed instead.
    #[arg(long)]
    print: bool,
    /// Only so many of the first operations.
    #[arg(long, default_value_t = usize::MAX)]
    first: usize,
    /// Give up when a sequence, with all its smaller variants if it fails, takes longer than this many seconds.
    #[arg(long, default_value_t = 120)]
    patience: u64,
    /// Run the operations of this file instead of generated ones, in the setup of the seed.
    #[arg(long)]
    ops: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Comparison with the reference model.
    Model,
    /// The same on a device that soon is full.
    Full,
    /// Crashes.
    Crash,
    /// File systems that grow: crashes, or a device that is full until then.
    Grow,
}

/// Setup of a seed, alike in every run of the program.
fn setup(kind: Kind, seed: u64) -> Setup {
    let setup = Setup::numbered(seed);
    let metadata = match seed % 7 {
        5 => MetadataMode::Sync,
        6 => MetadataMode::Delayed,
        _ => MetadataMode::Journal,
    };
    match kind {
        Kind::Model => Setup { metadata, ..setup },
        Kind::Full => Setup { metadata, ..setup }.small(),
        Kind::Crash => setup,
        Kind::Grow if seed.is_multiple_of(2) => setup.growing(seed),
        Kind::Grow => Setup { metadata, ..setup }.small().growing(seed),
    }
}

fn one(
    kind: Kind,
    seed: u64,
    args: &Args,
    given: Option<&[cffs_sim::ops::Op]>,
    coverage: &mut Coverage,
) -> Option<String> {
    let setup = setup(kind, seed);
    let profile = Profile::ALL[(seed / 4) as usize % Profile::ALL.len()];
    let name = match kind {
        Kind::Model => "model",
        Kind::Full => "full",
        Kind::Crash => "crash",
        Kind::Grow => "grow",
    };
    let head = |text: String, ops: &[cffs_sim::ops::Op]| {
        format!("--only {name} --seed {seed}: {profile:?}, {setup}\n{text}\nsmallest sequence:\n{}", show(ops))
    };
    let woven = |ops| if kind == Kind::Grow { with_growth(ops, seed) } else { ops };
    if kind == Kind::Crash || kind == Kind::Grow && seed.is_multiple_of(2) {
        let bounds = Bounds { write: 60_000, many: 30 };
        let mut ops = given.map_or_else(|| woven(generate(seed, profile, args.len / 2, bounds)), <[_]>::to_vec);
        ops.truncate(args.first);
        if args.print {
            print!("{}", show(&ops));
            return None;
        }
        let effort = Effort { points: 40, survivals: 2, in_recovery: 1 };
        return explore_and_shrink(setup, ops, seed, effort, coverage).err().map(|e| head(e.1.to_string(), &e.0));
    }
    let bounds = if matches!(kind, Kind::Full | Kind::Grow) {
        Bounds { write: 2_000_000, many: 300 }
    } else {
        Bounds::default()
    };
    let mut ops = given.map_or_else(|| woven(generate(seed, profile, args.len, bounds)), <[_]>::to_vec);
    ops.truncate(args.first);
    if args.print {
        print!("{}", show(&ops));
        return None;
    }
    let first = run(setup, &ops).err()?;
    let smallest = shrink(ops, 500, |ops| run(setup, ops).is_err());
    let last = run(setup, &smallest).err().unwrap_or(first);
    Some(head(last.to_string(), &smallest))
}

fn main() -> Result<()> {
    let args = Args::parse();
    let given = match &args.ops {
        Some(path) => Some(parse(&std::fs::read_to_string(path)?).map_err(anyhow::Error::msg)?),
        None => None,
    };
    // Panics of the engine are failures like others and are reported with their sequence.
    if !args.once {
        std::panic::set_hook(Box::new(|_| {}));
    }
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let next = AtomicU64::new(args.seed);
    let total = Mutex::new((Coverage::default(), 0u64));
    let failures = AtomicU64::new(0);
    // What each thread is at, for the report of one that hangs.
    let at: Vec<Mutex<(String, Instant)>> =
        (0..args.jobs).map(|_| Mutex::new((String::new(), Instant::now()))).collect();
    let done = AtomicU64::new(0);
    let stop = || Instant::now() >= end || failures.load(Ordering::Relaxed) >= args.failures as u64;
    std::thread::scope(|s| {
        s.spawn(|| {
            while done.load(Ordering::Relaxed) < args.jobs as u64 {
                std::thread::sleep(Duration::from_millis(200));
                for thread in &at {
                    let (what, since) = &*thread.lock().expect("no thread panics while it holds this");
                    if !what.is_empty() && since.elapsed() > Duration::from_secs(args.patience) {
                        println!("FAILED {what}: hangs for {} seconds", args.patience);
                        std::process::exit(2);
                    }
                }
            }
        });
        for thread in &at {
            let (args, given, next, total, failures, done, stop) =
                (&args, &given, &next, &total, &failures, &done, &stop);
            s.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if stop() || (args.once && seed > args.seed) {
                        break;
                    }
                    let kinds =
                        args.only.map_or(vec![Kind::Model, Kind::Full, Kind::Crash, Kind::Grow], |kind| vec![kind]);
                    for kind in kinds {
                        let mut coverage = Coverage::default();
                        let what = format!("--only {kind:?} --seed {seed}").to_lowercase();
                        *thread.lock().expect("no thread panics while it holds this") = (what, Instant::now());
                        let failure = one(kind, seed, args, given.as_deref(), &mut coverage);
                        let mut total = total.lock().expect("no thread panics while it holds this");
                        total.0.states += coverage.states;
                        total.0.in_recovery += coverage.in_recovery;
                        total.0.promises += coverage.promises;
                        total.1 += 1;
                        if let Some(text) = failure {
                            failures.fetch_add(1, Ordering::Relaxed);
                            println!("FAILED {text}");
                        }
                    }
                }
                thread.lock().expect("no thread panics while it holds this").0.clear();
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    let (coverage, sequences) = *total.lock().expect("all threads have ended");
    let failed = failures.load(Ordering::Relaxed);
    println!(
        "{sequences} sequences, {} crash states ({} in recovery), {} promises checked, {failed} failures",
        coverage.states, coverage.in_recovery, coverage.promises
    );
    if failed > 0 {
        bail!("{failed} sequences failed");
    }
    Ok(())
}
