//! Long campaigns: sequences against the reference model, crashes, and faults of the device, until the time is up.

use anyhow::{Result, bail};
use cffs::MetadataMode;
use cffs_sim::bounded;
use cffs_sim::crash::{Coverage, Effort, explore_and_shrink};
use cffs_sim::faults::history::{self, Tally};
use cffs_sim::generate::{Bounds, Profile, generate, with_growth};
use cffs_sim::ops::{parse, show};
use cffs_sim::run::run;
use cffs_sim::setup::Setup;
use cffs_sim::shrink::shrink;
use cffs_sim::streams::{self, with_streams};
use clap::Parser;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Compares the engine with the reference model, crashes it and lets its device fail, seed after seed, until the time is up.
///
/// Every seed that fails is printed with the smallest sequence of operations found for it. With --bounded, takes every
/// short sequence of operations instead, by number.
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
    /// Weave files that come in long writes into every sequence, on mounts that write past the cache.
    #[arg(long)]
    streams: bool,
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
    /// Crash every sequence of so many operations (1 to 3) over a few files, by number, instead of random ones.
    #[arg(long, value_name = "LENGTH", value_parser = clap::value_parser!(u8).range(1..=bounded::LENGTH_MAX as i64))]
    bounded: Option<u8>,
    /// First number with --bounded.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Number to stop before with --bounded; all of them without it.
    #[arg(long)]
    to: Option<u64>,
    /// Only every so manyth number with --bounded.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    step: u64,
    /// Let the device fail, in every way, at every request of each seed's sequence.
    #[arg(long)]
    faults: bool,
    /// Stop after so many histories with --faults.
    #[arg(long, default_value_t = u64::MAX)]
    histories: u64,
    /// Format and way of the log with --bounded: 0 is the default, 1 to 7 are others.
    #[arg(long, default_value_t = 0)]
    variant: u64,
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
    /// Crashes of mounts without a journal, and their repair.
    Modes,
    /// Crashes of mkfs.
    Mkfs,
    /// Crashes of an aged file system: almost full, with its free space in short pieces.
    Aged,
}

/// Setup of a seed, alike in every run of the program.
fn setup(kind: Kind, seed: u64, streams: bool) -> Setup {
    let setup = Setup::numbered(seed);
    let setup = if streams { streams::setup(setup, seed) } else { setup };
    let metadata = match seed % 7 {
        5 => MetadataMode::Sync,
        6 => MetadataMode::Delayed,
        _ => MetadataMode::Journal,
    };
    match kind {
        Kind::Model => Setup { metadata, ..setup },
        Kind::Full => Setup { metadata, ..setup }.small(),
        Kind::Crash | Kind::Mkfs => setup,
        Kind::Aged => cffs_sim::aged::setup(seed),
        Kind::Modes => Setup { metadata: [MetadataMode::Sync, MetadataMode::Delayed][seed as usize % 2], ..setup },
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
    let setup = setup(kind, seed, args.streams);
    let profile = Profile::ALL[(seed / 4) as usize % Profile::ALL.len()];
    let name = format!("{kind:?}").to_lowercase();
    let head = |text: String, ops: &[cffs_sim::ops::Op]| {
        let streams = if args.streams { " --streams" } else { "" };
        format!("--only {name}{streams} --seed {seed}: {profile:?}, {setup}\n{text}\nsmallest sequence:\n{}", show(ops))
    };
    let generate = |len: usize, bounds: Bounds| {
        let ops = generate(seed, profile, len, bounds);
        let ops = if args.streams { with_streams(ops, seed, setup.sizes.0, bounds.write) } else { ops };
        if kind == Kind::Grow { with_growth(ops, seed) } else { ops }
    };
    if kind == Kind::Aged {
        let mut ops = given.map_or_else(|| cffs_sim::aged::operations(seed), <[_]>::to_vec);
        ops.truncate(args.first);
        if args.print {
            print!("{}", show(&ops));
            return None;
        }
        let effort = Effort { points: 12, survivals: 2, in_recovery: 1 };
        return cffs_sim::aged::explore(setup, ops, seed, effort, coverage).err().map(|e| head(e.1.to_string(), &e.0));
    }
    if matches!(kind, Kind::Modes | Kind::Mkfs) {
        let mut ops = given.map_or_else(|| generate(args.len / 2, Bounds { write: 30_000, many: 20 }), <[_]>::to_vec);
        ops.truncate(args.first);
        if args.print {
            print!("{}", show(&ops));
            return None;
        }
        let try_it = |ops: &[cffs_sim::ops::Op], coverage: &mut Coverage| match kind {
            Kind::Modes => cffs_sim::unjournaled::explore(setup, ops, seed, 12, coverage),
            _ => cffs_sim::formatting::explore(setup, ops, seed, coverage),
        };
        let first = try_it(&ops, coverage).err()?;
        let smallest = shrink(ops, 200, |ops| try_it(ops, &mut Coverage::default()).is_err());
        let last = try_it(&smallest, &mut Coverage::default()).err().unwrap_or(first);
        return Some(head(last.to_string(), &smallest));
    }
    if kind == Kind::Crash || kind == Kind::Grow && seed.is_multiple_of(2) {
        let bounds = Bounds { write: 60_000, many: 30 };
        let mut ops = given.map_or_else(|| generate(args.len / 2, bounds), <[_]>::to_vec);
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
    let mut ops = given.map_or_else(|| generate(args.len, bounds), <[_]>::to_vec);
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

/// What all threads have done.
#[derive(Clone, Copy, Default)]
struct Totals {
    sequences: u64,
    coverage: Coverage,
    faults: Tally,
}

/// Runs a job for one number after the other, on several threads, until it is out of numbers, the time is up or too much
/// has failed. The job gets the number and says what failed.
struct Driver<'a> {
    args: &'a Args,
    end: Instant,
    next: AtomicU64,
    failures: AtomicU64,
    done: AtomicU64,
    total: Mutex<Totals>,
    /// What each thread is at, for the report of one that hangs.
    at: Vec<Mutex<(String, Instant)>>,
}

impl Driver<'_> {
    fn new(args: &Args, first: u64) -> Driver<'_> {
        Driver {
            args,
            end: Instant::now() + Duration::from_secs(args.seconds),
            next: AtomicU64::new(first),
            failures: AtomicU64::new(0),
            done: AtomicU64::new(0),
            total: Mutex::default(),
            at: (0..args.jobs).map(|_| Mutex::new((String::new(), Instant::now()))).collect(),
        }
    }

    fn watch(&self) {
        while self.done.load(Ordering::Relaxed) < self.args.jobs as u64 {
            std::thread::sleep(Duration::from_millis(200));
            for thread in &self.at {
                let (what, since) = &*thread.lock().expect("no thread panics while it holds this");
                if !what.is_empty() && since.elapsed() > Duration::from_secs(self.args.patience) {
                    println!("FAILED {what}: hangs for {} seconds", self.args.patience);
                    std::process::exit(2);
                }
            }
        }
    }

    /// `job` is called as long as it says that there is more. It gives each piece of its work a name, and notes what
    /// comes of it.
    fn run(
        &self,
        job: impl Fn(u64, &mut dyn FnMut(String, &mut dyn FnMut(&mut Totals) -> Option<String>)) -> bool + Sync,
    ) {
        std::thread::scope(|s| {
            s.spawn(|| self.watch());
            for at in &self.at {
                let job = &job;
                s.spawn(move || {
                    loop {
                        let stop = self.failures.load(Ordering::Relaxed) >= self.args.failures as u64;
                        if stop || Instant::now() >= self.end {
                            break;
                        }
                        let mut piece = |what: String, work: &mut dyn FnMut(&mut Totals) -> Option<String>| {
                            *at.lock().expect("no thread panics while it holds this") = (what, Instant::now());
                            let mut own = Totals::default();
                            let failure = work(&mut own);
                            let mut total = self.total.lock().expect("no thread panics while it holds this");
                            total.sequences += own.sequences;
                            total.coverage.add(own.coverage);
                            total.faults.add(own.faults);
                            if let Some(text) = failure {
                                self.failures.fetch_add(1, Ordering::Relaxed);
                                println!("FAILED {text}");
                            }
                        };
                        if !job(self.next.fetch_add(1, Ordering::Relaxed), &mut piece) {
                            break;
                        }
                    }
                    at.lock().expect("no thread panics while it holds this").0.clear();
                    self.done.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
    }

    fn histories(&self) -> u64 {
        self.total.lock().expect("no thread panics while it holds this").faults.histories
    }

    fn report(&self) -> Result<()> {
        let total = *self.total.lock().expect("all threads have ended");
        let failed = self.failures.load(Ordering::Relaxed);
        let Totals { sequences, coverage, faults } = total;
        if faults.histories > 0 {
            let Tally { histories, struck, errors, read_only, repairs, files } = faults;
            println!(
                "{histories} histories with a fault ({struck} of them struck), {errors} operations failed, {read_only} \
                 file systems turned read-only, {repairs} repairs, {files} files compared after repairs"
            );
        }
        println!(
            "{sequences} sequences, {} crash states ({} in recovery), {} promises checked, {failed} failures",
            coverage.states, coverage.in_recovery, coverage.promises
        );
        if failed > 0 {
            bail!("{failed} sequences failed");
        }
        Ok(())
    }
}

/// Every short sequence, by number.
fn bounded(args: &Args, len: usize) -> Result<()> {
    let all = bounded::count(len);
    let to = args.to.unwrap_or(all).min(all);
    if args.print {
        for number in (args.from..to).step_by(args.step as usize) {
            println!("# {number}\n{}", show(&bounded::sequence(len, number).0));
        }
        return Ok(());
    }
    let setup = bounded::setup(args.variant);
    let driver = Driver::new(args, 0);
    let reached = AtomicU64::new(args.from);
    driver.run(|nth, piece| {
        let number = args.from + nth * args.step;
        if number >= to {
            return false;
        }
        piece(format!("--bounded {len} --from {number}"), &mut |total| {
            total.sequences += 1;
            let failure = bounded::explore(setup, len, number, &mut total.coverage).err()?;
            let ops = show(&bounded::sequence(len, number).0);
            Some(format!(
                "--bounded {len} --from {number} --to {} --variant {}\n{failure}\n{ops}",
                number + 1,
                args.variant
            ))
        });
        reached.fetch_max(number + 1, Ordering::Relaxed);
        true
    });
    let reached = reached.load(Ordering::Relaxed);
    println!(
        "length {len}, variant {}: numbers {} to {reached} of {all}, one in {}",
        args.variant, args.from, args.step
    );
    driver.report()
}

/// Faults at every request.
fn faults(args: &Args) -> Result<()> {
    let driver = Driver::new(args, args.seed);
    driver.run(|seed, piece| {
        if args.once && seed > args.seed || driver.histories() >= args.histories {
            return false;
        }
        let (mut setup, mut ops) = (history::setup(seed), history::operations(seed));
        if args.streams {
            setup = streams::setup(setup, seed);
            ops = with_streams(ops, seed, setup.sizes.0, 100_000);
        }
        let requests = history::requests(setup, &ops);
        let head = |what: String, ops: &[cffs_sim::ops::Op]| {
            let streams = if args.streams { " --streams" } else { "" };
            format!("--faults{streams} --once --seed {seed}: {setup}\n{what}\nsmallest sequence:\n{}", show(ops))
        };
        let cases = match requests {
            Ok(requests) => history::cases(requests, seed),
            Err(e) => {
                piece(format!("--faults --seed {seed}"), &mut |_| Some(head(format!("without a fault: {e}"), &ops)));
                return true;
            }
        };
        for case in cases {
            piece(format!("--faults --seed {seed}: {case}"), &mut |total| {
                let first = history::run(setup, &ops, case, &mut total.faults).err()?;
                let near = |at: u64| (at.saturating_sub(20)..at + 20).map(move |at| history::Case { at, ..case });
                let find = |ops: &[cffs_sim::ops::Op]| {
                    near(case.at).find_map(|c| Some((c, history::run(setup, ops, c, &mut Tally::default()).err()?)))
                };
                let smallest = shrink(ops.clone(), 60, |ops| find(ops).is_some());
                let (case, text) = find(&smallest).unwrap_or((case, first));
                Some(head(format!("{case}: {text}"), &smallest))
            });
        }
        true
    });
    driver.report()
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
    if args.faults {
        return faults(&args);
    }
    if let Some(len) = args.bounded {
        return bounded(&args, usize::from(len));
    }
    let driver = Driver::new(&args, args.seed);
    driver.run(|seed, piece| {
        if args.once && seed > args.seed {
            return false;
        }
        let all = vec![Kind::Model, Kind::Full, Kind::Crash, Kind::Grow, Kind::Modes, Kind::Mkfs, Kind::Aged];
        for kind in args.only.map_or(all, |kind| vec![kind]) {
            piece(format!("--only {kind:?} --seed {seed}").to_lowercase(), &mut |total| {
                total.sequences += 1;
                one(kind, seed, &args, given.as_deref(), &mut total.coverage)
            });
        }
        true
    });
    driver.report()
}
