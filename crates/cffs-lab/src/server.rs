//! A server of ours as a child process: started, waited for, ended.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cleanup::{Cleanup, Guard};
use crate::process::{show, wait_for};

/// A long-running helper of ours (a server), ended when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    name: String,
    guard: Option<Guard>,
}

impl Server {
    /// Starts it in a process group of its own, so that an interrupt from the
    /// terminal reaches only us and the order of taking down is ours.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        let name = show(&command);
        let child =
            command.stdin(Stdio::null()).process_group(0).spawn().with_context(|| format!("cannot start `{name}`"))?;
        let guard = Guard::new(Cleanup::End(child.id()));
        Ok(Server { child, name, guard: Some(guard) })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` says so.
    ///
    /// # Errors
    /// When the server ends before that or `limit` passes.
    pub fn wait_until(&mut self, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !ready() {
            if let Some(status) = self.child.try_wait()? {
                self.forget();
                bail!("`{}` ended before it was ready ({status}); its message is above", self.name);
            }
            if Instant::now() >= deadline {
                bail!("`{}` was not ready after {} s", self.name, limit.as_secs());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Waits for it to end by itself.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub fn wait_end(mut self, limit: Duration) -> Result<ExitStatus> {
        match wait_for(&mut self.child, limit)? {
            Some(status) => {
                self.forget();
                Ok(status)
            }
            None => bail!("`{}` did not end within {} s", self.name, limit.as_secs()),
        }
    }

    /// Its peak memory so far, in bytes.
    pub fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib * 1024)
    }

    /// Seconds of the processors that it has had.
    pub fn processor_seconds(&self) -> Option<f64> {
        seconds_in(&std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?)
    }

    fn forget(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.disarm();
        }
    }
}

/// The time of a process by its `/proc/PID/stat`, in seconds: its own instructions, and the system's for it.
fn seconds_in(stat: &str) -> Option<f64> {
    // Its name may have anything in it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(|word| word.parse::<u64>().ok());
    Some((times.next()?? + times.next()??) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ends it if it still runs; then it is reaped.
        self.guard.take();
        let _ = wait_for(&mut self.child, Duration::from_secs(10));
    }
}
