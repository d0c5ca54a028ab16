//! Runs a campaign on several threads, and reports its outcome.

use crate::args::Args;
use anyhow::{Result, bail};
use cffs_record::Recorder;
use cffs_sim::crash::Coverage;
use cffs_sim::faults::history::Tally;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What all threads have done.
#[derive(Clone, Default)]
pub struct Totals {
    pub sequences: u64,
    pub coverage: Coverage,
    pub faults: Tally,
    /// How to repeat what failed.
    failures: Vec<String>,
}

impl Totals {
    fn add(&mut self, other: Totals) {
        self.sequences += other.sequences;
        self.coverage.add(other.coverage);
        self.faults.add(other.faults);
        self.failures.extend(other.failures);
    }

    /// Each count with its unit, for the table of campaigns.
    fn counts(&self) -> Vec<(u64, &'static str)> {
        let Totals { sequences, coverage, faults, .. } = self;
        let all = [
            (*sequences, "sequences"),
            (coverage.states, "crash states"),
            (coverage.in_recovery, "of them in recovery"),
            (coverage.promises, "promises checked"),
            (faults.histories, "histories with a fault"),
            (faults.struck, "of them struck"),
            (faults.repairs, "repairs"),
            (faults.files, "files compared after repairs"),
        ];
        all.into_iter().filter(|(n, _)| *n > 0).collect()
    }
}

/// What a thread is at, for the report of one that hangs.
struct Current {
    repeat: String,
    since: Instant,
}

/// Runs a job for one number after the other, on several threads, until it is out of numbers, the time is up or too much
/// has failed.
pub struct Driver<'a> {
    args: &'a Args,
    recorder: Recorder,
    end: Instant,
    next: AtomicU64,
    /// Threads that have ended.
    ended: AtomicU64,
    total: Mutex<Totals>,
    current: Vec<Mutex<Option<Current>>>,
}

/// A thread of the driver, as its job sees it.
pub struct Worker<'a> {
    driver: &'a Driver<'a>,
    current: &'a Mutex<Option<Current>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker<'_> {
    /// Does a piece of work, which returns what failed. `repeat` are the words of the command line that repeat it, and
    /// `detail` says which part of it this is.
    pub fn run(&self, repeat: String, detail: &str, work: impl FnOnce(&mut Totals) -> Option<String>) {
        let name = if detail.is_empty() { repeat.clone() } else { format!("{repeat}: {detail}") };
        *lock(self.current) = Some(Current { repeat: name.clone(), since: Instant::now() });
        let mut own = Totals::default();
        if let Some(text) = work(&mut own) {
            println!("FAILED {name}: {text}");
            own.failures.push(repeat);
        }
        lock(&self.driver.total).add(own);
    }
}

impl Driver<'_> {
    /// A campaign whose first number is `first`.
    ///
    /// # Errors
    /// A file for the record that has no table.
    pub fn new(args: &Args, first: u64) -> Result<Driver<'_>> {
        Ok(Driver {
            args,
            recorder: args.record.open(args.campaign())?,
            end: Instant::now() + Duration::from_secs(args.seconds),
            next: AtomicU64::new(first),
            ended: AtomicU64::new(0),
            total: Mutex::default(),
            current: (0..args.jobs).map(|_| Mutex::new(None)).collect(),
        })
    }

    /// Calls `job` with one number after the other as long as it returns that there are more.
    pub fn run(&self, job: impl Fn(u64, &Worker<'_>) -> bool + Sync) {
        std::thread::scope(|s| {
            s.spawn(|| self.watch());
            for current in &self.current {
                let (job, worker) = (&job, Worker { driver: self, current });
                s.spawn(move || {
                    while !self.is_over() && job(self.next.fetch_add(self.args.every, Ordering::Relaxed), &worker) {}
                    *lock(current) = None;
                    self.ended.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
    }

    fn is_over(&self) -> bool {
        lock(&self.total).failures.len() >= self.args.failures || Instant::now() >= self.end
    }

    /// Ends the program when a thread hangs.
    fn watch(&self) {
        while self.ended.load(Ordering::Relaxed) < self.args.jobs as u64 {
            std::thread::sleep(Duration::from_millis(200));
            for thread in &self.current {
                let hangs =
                    lock(thread).as_ref().filter(|c| c.since.elapsed().as_secs() > self.args.patience).map(|c| {
                        println!("FAILED {}: hangs for {} seconds", c.repeat, self.args.patience);
                        format!("{} (hangs)", c.repeat)
                    });
                if let Some(failure) = hangs {
                    lock(&self.total).failures.push(failure);
                    self.record().unwrap_or_else(|e| eprintln!("{e:#}"));
                    std::process::exit(2);
                }
            }
        }
    }

    /// Histories with a fault so far.
    pub fn histories(&self) -> u64 {
        lock(&self.total).faults.histories
    }

    fn record(&self) -> Result<()> {
        let total = lock(&self.total);
        let mut failures = total.failures.clone();
        failures.sort();
        failures.dedup();
        self.recorder.write(&total.counts(), &failures)
    }

    /// Prints and records what was done.
    ///
    /// # Errors
    /// A failure, or a file for the record that cannot be written.
    pub fn report(&self) -> Result<()> {
        let total = lock(&self.total).clone();
        let Totals { sequences, coverage, faults, failures } = total;
        if faults.histories > 0 {
            let Tally { histories, struck, errors, read_only, repairs, files } = faults;
            println!(
                "{histories} histories with a fault ({struck} of them struck), {errors} operations failed, {read_only} \
                 file systems turned read-only, {repairs} repairs, {files} files compared after repairs"
            );
        }
        println!(
            "{sequences} sequences, {} crash states ({} in recovery), {} promises checked, {} failures",
            coverage.states,
            coverage.in_recovery,
            coverage.promises,
            failures.len()
        );
        self.record()?;
        if !failures.is_empty() {
            bail!("{} sequences failed", failures.len());
        }
        Ok(())
    }
}
