//! Regroups of a mount, one after the other, beside what programs do on it.
//!
//! They move everything each time, whatever it saves: one that moves only what is worth it finds nothing to do the second time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cffs::{RegroupOptions, RegroupOutcome, RegroupStatus};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::control::Control;

/// How often to ask how far one is, and how long to wait while there is nothing to move.
const INTERVAL: Duration = Duration::from_millis(20);

/// What they came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    /// Regroups that were begun.
    pub regroups: u64,
    /// Bytes that were moved.
    pub moved: u64,
    /// Bytes that were to be moved and stayed, because they changed meanwhile.
    pub kept: u64,
}

impl Sums {
    /// Adds those of another mount.
    pub fn add(&mut self, other: Sums) {
        self.regroups += other.regroups;
        self.moved += other.moved;
        self.kept += other.kept;
    }

    /// In words.
    pub fn said(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        format!(
            "{} regroups beside it, {:.1} MiB moved, {:.1} MiB left because they changed",
            self.regroups,
            mib(self.moved),
            mib(self.kept)
        )
    }
}

/// A thread that regroups a mount again and again; ends when dropped.
pub struct Regroups {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<(Sums, Result<()>)>>,
}

impl Regroups {
    /// Begins. `rate`: most bytes to read and write in a second. `directories`: their numbers; none for everything.
    pub fn start(root: &Path, rate: Option<u64>, directories: Vec<u64>) -> Regroups {
        let stop = Arc::new(AtomicBool::new(false));
        let options = RegroupOptions::default().always(true).rate(rate).directories(directories);
        let again = Again { root: root.to_owned(), options, stop: stop.clone(), sums: Sums::default() };
        Regroups { stop, thread: Some(std::thread::spawn(move || again.work())) }
    }

    /// Stops the one that runs, and ends. The mount is not busy afterwards.
    ///
    /// # Errors
    /// When one failed.
    pub fn end(mut self) -> Result<Sums> {
        let (sums, outcome) = self.join().context("the regroups panicked")?;
        outcome.map(|()| sums)
    }

    /// As [`Regroups::end`], for a mount whose process was killed: that they failed then is no error.
    pub fn end_killed(mut self) -> Sums {
        self.join().map_or(Sums::default(), |(sums, _)| sums)
    }

    fn join(&mut self) -> Option<(Sums, Result<()>)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for Regroups {
    fn drop(&mut self) {
        self.join();
    }
}

struct Again {
    root: PathBuf,
    options: RegroupOptions,
    stop: Arc<AtomicBool>,
    sums: Sums,
}

impl Again {
    fn work(mut self) -> (Sums, Result<()>) {
        let outcome = self.all();
        (self.sums, outcome.context("a regroup beside"))
    }

    fn all(&mut self) -> Result<()> {
        while !self.is_stopped() {
            // Open for this one only, so that nothing is busy in between.
            let control = Control::open(&self.root)?;
            match control.call(&self.start()?)? {
                Ok(_) => {}
                // A test may mount it read-only for a while.
                Err(refusal) if refusal.errno == Errno::ROFS.raw_os_error() => {
                    std::thread::sleep(INTERVAL);
                    continue;
                }
                Err(refusal) => bail!("{}", refusal.message),
            }
            self.sums.regroups += 1;
            let status = self.wait(&control)?;
            self.sums.moved += status.bytes_moved;
            self.sums.kept += status.bytes_kept;
            match status.outcome {
                Some(RegroupOutcome::Failed(why)) if !is_of_a_test(&why) => bail!("{why}"),
                _ if status.bytes_moved == 0 => std::thread::sleep(INTERVAL),
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits for the end of the one that runs; stops it when all is over.
    fn wait(&self, control: &Control) -> Result<RegroupStatus> {
        loop {
            let op = if self.is_stopped() { "regroup-stop" } else { "regroup-status" };
            let answer = match control.call(&json!({ "op": op }))? {
                Ok(answer) => answer,
                Err(refusal) => bail!("{}", refusal.message),
            };
            let status: Option<RegroupStatus> = serde_json::from_value(answer)?;
            let status = status.context("the mount does not know of the regroup that runs")?;
            if status.outcome.is_some() {
                return Ok(status);
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// The request that begins one.
    fn start(&self) -> Result<Value> {
        let mut request = serde_json::to_value(&self.options)?;
        request["op"] = "regroup-start".into();
        Ok(request)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Whether a regroup failed for what a test did on purpose: a mount that is read-only now, or full.
fn is_of_a_test(why: &str) -> bool {
    [cffs::Error::ReadOnly, cffs::Error::NoSpace].iter().any(|error| why == error.to_string())
}
