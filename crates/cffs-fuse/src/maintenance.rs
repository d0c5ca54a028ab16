//! Maintenance of a mounted file system while nobody uses it, in a thread of its own.

use cffs::{Fs, Regroup, Usage};
use parking_lot::Mutex;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread looks so many times in the time after which a file system is idle.
const TICKS: u32 = 6;
/// One that is in use is maintained a little all the same, after so many times as long.
const IN_USE_FACTOR: u32 = 60;

/// The thread, while there is one, and the step under way.
#[derive(Default)]
pub(crate) struct Maintenance {
    thread: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
    step: Arc<Mutex<Step>>,
}

#[derive(Default)]
struct Step {
    running: Option<Arc<Regroup>>,
    /// No more steps.
    ended: bool,
}

impl Maintenance {
    /// Starts the thread. `idle`: after which time without an operation the file system is idle. `may`: whether a
    /// step may begin.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(&self, fs: Arc<Fs>, idle: Duration, may: impl Fn() -> bool + Send + 'static) -> io::Result<()> {
        let (sender, end) = channel();
        let step = self.step.clone();
        let thread = std::thread::Builder::new().name("cffs-maintain".into()).spawn(move || {
            let mut ticks = Ticks::default();
            while end.recv_timeout(idle / TICKS) == Err(RecvTimeoutError::Timeout) {
                let Some(usage) = ticks.next(fs.was_used()) else { continue };
                if may() {
                    step_of(&fs, usage, &step);
                }
            }
        })?;
        *self.thread.lock() = Some((sender, thread));
        Ok(())
    }

    /// Ends the step under way soon: somebody else is about to move files.
    pub(crate) fn interrupt(&self) {
        if let Some(running) = &self.step.lock().running {
            running.stop();
        }
    }

    /// Ends the thread, and waits for it.
    pub(crate) fn stop(&self) {
        self.step.lock().ended = true;
        self.interrupt();
        if let Some((sender, thread)) = self.thread.lock().take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// How long the file system was idle or in use, in ticks.
#[derive(Default)]
struct Ticks {
    idle: u32,
    since_step: u32,
}

impl Ticks {
    /// One more; whether it is time for a step.
    fn next(&mut self, used: bool) -> Option<Usage> {
        self.idle = if used { 0 } else { self.idle + 1 };
        self.since_step = self.since_step.saturating_add(1);
        let usage = if self.idle >= TICKS {
            Usage::Idle
        } else if self.since_step >= TICKS * IN_USE_FACTOR {
            Usage::InUse
        } else {
            return None;
        };
        *self = Ticks::default();
        Some(usage)
    }
}

fn step_of(fs: &Fs, usage: Usage, step: &Mutex<Step>) {
    let regroup = Arc::new(Regroup::new());
    {
        let mut step = step.lock();
        if step.ended {
            return;
        }
        step.running = Some(regroup.clone());
    }
    match catch_unwind(AssertUnwindSafe(|| fs.maintain(usage, &regroup))) {
        Ok(Ok(_)) => {}
        Ok(Err(e)) => tracing::warn!("maintenance: {e}"),
        Err(_) => tracing::error!("maintenance: internal error"),
    }
    step.lock().running = None;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_file_system_is_maintained_soon_and_one_in_use_seldom() {
        let mut ticks = Ticks::default();
        let mut until = |used: &dyn Fn(u32) -> bool| (0..).find_map(|n| ticks.next(used(n)).map(|usage| (n, usage)));
        assert_eq!(until(&|_| false), Some((TICKS - 1, Usage::Idle)));
        assert_eq!(until(&|n| n < 3), Some((TICKS + 2, Usage::Idle)));
        assert_eq!(until(&|n| n % 5 == 0), Some((TICKS * IN_USE_FACTOR - 1, Usage::InUse)));
    }

    #[test]
    fn it_ends_when_told() {
        let device = Arc::new(cffs::device::MemoryDevice::new(64 << 20));
        cffs::mkfs(&*device, None, &cffs::MkfsOptions::default()).unwrap();
        let fs = Fs::open(device, None, cffs::MountOptions::default()).unwrap();
        let maintenance = Maintenance::default();
        maintenance.start(fs.clone(), Duration::from_secs(3600), || true).unwrap();
        maintenance.interrupt();
        maintenance.stop();
        maintenance.stop();
        assert_eq!(Arc::strong_count(&fs), 2, "the background thread's and this one");
        fs.close().unwrap();
    }
}
