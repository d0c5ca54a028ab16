//! Long campaigns: sequences against the reference model, crashes, and faults of the device, until the time is up.

mod args;
mod driver;
mod random;

use anyhow::{Context, Result, bail};
use args::{Args, Kind};
use cffs_sim::bounded;
use cffs_sim::faults::history::{self, Tally};
use cffs_sim::ops::{Op, parse, show};
use cffs_sim::shrink::shrink;
use cffs_sim::streams::{self, with_streams};
use clap::Parser;
use driver::Driver;
use std::sync::atomic::{AtomicU64, Ordering};

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
    let driver = Driver::new(args, 0)?;
    let reached = AtomicU64::new(args.from);
    driver.run(|nth, worker| {
        let number = args.from + nth * args.step;
        if number >= to {
            return false;
        }
        let repeat = format!("--bounded {len} --from {number} --to {} --variant {}", number + 1, args.variant);
        worker.run(repeat, "", |total| {
            total.sequences += 1;
            let failure = bounded::explore(setup, len, number, &mut total.coverage).err()?;
            Some(format!("{failure}\n{}", show(&bounded::sequence(len, number).0)))
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
    let given = given(args)?;
    let setup_of = match args.only {
        None => history::setup,
        Some(Kind::Volume) => history::setup_on_mirror,
        Some(Kind::Log) => history::setup_on_log_disk,
        Some(other) => bail!("--faults goes with --only volume or log, not with --only {}", other.name()),
    };
    let driver = Driver::new(args, args.seed)?;
    driver.run(|seed, worker| {
        if args.once && seed > args.seed || driver.histories() >= args.histories {
            return false;
        }
        let (mut setup, mut ops) = (setup_of(seed), history::operations(seed));
        if args.streams {
            setup = streams::setup(setup, seed);
            ops = with_streams(ops, seed, setup.sizes.0, 100_000);
        }
        if let Some(given) = &given {
            ops.clone_from(given);
        }
        let repeat = args.repeat(&format!("--faults{}", args.below()), seed);
        let failure = |text: String, ops: &[Op]| format!("{setup}\n{text}\nsmallest sequence:\n{}", show(ops));
        let cases = match history::requests(setup, &ops) {
            Ok(requests) => history::cases(setup, requests, seed),
            Err(e) => {
                worker.run(repeat, "without a fault", |_| Some(failure(e.to_string(), &ops)));
                return true;
            }
        };
        for case in cases {
            worker.run(repeat.clone(), &case.to_string(), |total| {
                let first = history::run(setup, &ops, case, &mut total.faults).err()?;
                eprintln!("{repeat}, {case}, before it is made small: {first}");
                let near = |at: u64| (at.saturating_sub(20)..at + 20).map(move |at| history::Case { at, ..case });
                let find = |ops: &[Op]| {
                    near(case.at).find_map(|c| Some((c, history::run(setup, ops, c, &mut Tally::default()).err()?)))
                };
                let smallest = shrink(ops.clone(), 60, |ops| find(ops).is_some());
                let (case, text) = find(&smallest).unwrap_or((case, first));
                Some(failure(format!("{case}: {text}"), &smallest))
            });
        }
        true
    });
    driver.report()
}

/// The operations of `--ops`.
fn given(args: &Args) -> Result<Option<Vec<Op>>> {
    let Some(path) = &args.ops else { return Ok(None) };
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    parse(&text).map(Some).map_err(anyhow::Error::msg).with_context(|| path.display().to_string())
}

/// Random sequences, in every way or one.
fn random(args: &Args) -> Result<()> {
    let given = given(args)?;
    let driver = Driver::new(args, args.seed)?;
    driver.run(|seed, worker| {
        if args.once && seed > args.seed {
            return false;
        }
        for kind in args.only.map_or(Kind::ALL.to_vec(), |kind| vec![kind]) {
            worker.run(args.repeat(&format!("--only {}", kind.name()), seed), "", |total| {
                total.sequences += 1;
                random::one(kind, seed, args, given.as_deref(), &mut total.coverage)
            });
        }
        true
    });
    driver.report()
}

fn main() -> Result<()> {
    let args = Args::parse();
    // Panics of the engine are failures like others and are reported with their sequence.
    if !args.once {
        std::panic::set_hook(Box::new(|_| {}));
    }
    match args.bounded {
        _ if args.faults => faults(&args),
        Some(len) => bounded(&args, usize::from(len)),
        None => random(&args),
    }
}
