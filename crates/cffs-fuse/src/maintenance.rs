//! Maintenance of a mounted file system while nobody uses it, in a thread of its own.

use cffs::{Error, Fs, Regroup, Usage};
use parking_lot::{Condvar, Mutex};
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
    step: Mutex<Step>,
    step_over: Condvar,
}

#[derive(Default)]
struct Step {
    running: Option<Arc<Regroup>>,
    /// No more steps.
    ended: bool,
}

impl Maintenance {
    /// Starts the thread. `idle`: after which time without an operation the file system is idle. `may`: whether a
    /// step may begin or go on. `panicked`: called after a panic in a step.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(
        self: &Arc<Self>,
        fs: Arc<Fs>,
        idle: Duration,
        may: impl Fn() -> bool + Send + 'static,
        panicked: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        let (sender, end) = channel();
        let this = self.clone();
        let thread = std::thread::Builder::new().name("cffs-maintain".into()).spawn(move || {
            let mut ticks = Ticks::default();
            while end.recv_timeout(idle / TICKS) == Err(RecvTimeoutError::Timeout) {
                let Some(usage) = ticks.next(fs.was_used()) else { continue };
                match catch_unwind(AssertUnwindSafe(|| this.take_step(&fs, usage, &may))) {
                    Ok(Ok(())) => {}
                    // Nothing is done any more.
                    Ok(Err(Error::ShutDown)) => return,
                    Ok(Err(e)) => tracing::warn!("maintenance: {e}"),
                    Err(_) => {
                        tracing::error!("maintenance: internal error; every operation fails from now on; unmount");
                        panicked();
                        return;
                    }
                }
            }
        })?;
        *self.thread.lock() = Some((sender, thread));
        Ok(())
    }

    fn take_step(&self, fs: &Fs, usage: Usage, may: &dyn Fn() -> bool) -> cffs::Result<()> {
        let regroup = Arc::new(Regroup::new());
        {
            let mut step = self.step.lock();
            if step.ended {
                return Ok(());
            }
            step.running = Some(regroup.clone());
        }
        let _over = Over(self);
        // Asked only now: whoever comes from here on interrupts the step.
        if may() { fs.maintain(usage, may, &regroup).map(drop) } else { Ok(()) }
    }

    /// Ends the step under way, and waits for that: somebody else is about to move files.
    pub(crate) fn interrupt(&self) {
        let mut step = self.step.lock();
        if let Some(running) = &step.running {
            running.stop();
        }
        while step.running.is_some() {
            self.step_over.wait(&mut step);
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

/// Notes the end of a step, also after a panic.
struct Over<'a>(&'a Maintenance);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.step.lock().running = None;
        self.0.step_over.notify_all();
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

    fn fs() -> Arc<Fs> {
        let device = Arc::new(cffs::device::MemoryDevice::new(64 << 20));
        cffs::mkfs(&*device, None, &cffs::MkfsOptions::default()).unwrap();
        Fs::open(device, None, cffs::MountOptions::default().background(false)).unwrap()
    }

    #[test]
    fn it_ends_when_told() {
        let fs = fs();
        let maintenance = Arc::new(Maintenance::default());
        maintenance.start(fs.clone(), Duration::from_secs(3600), || true, || {}).unwrap();
        maintenance.interrupt();
        maintenance.stop();
        maintenance.stop();
        assert_eq!(Arc::strong_count(&fs), 1);
        fs.close().unwrap();
    }

    #[test]
    fn an_interruption_waits_for_the_step_and_a_panic_is_told_once() {
        let fs = fs();
        let maintenance = Arc::new(Maintenance::default());
        let (began, begins) = channel();
        let (told, tells) = channel();
        let go_on = Arc::new(std::sync::Barrier::new(2));
        let may = {
            let go_on = go_on.clone();
            move || {
                began.send(()).unwrap();
                go_on.wait();
                panic!("a bug, wanted by this test")
            }
        };
        maintenance.start(fs.clone(), Duration::from_millis(6), may, move || told.send(()).unwrap()).unwrap();
        begins.recv().unwrap();
        std::thread::scope(|s| {
            let waits = s.spawn(|| maintenance.interrupt());
            assert!(!waits.is_finished());
            go_on.wait();
            waits.join().unwrap();
        });
        tells.recv().unwrap();
        maintenance.stop();
        assert!(begins.try_recv().is_err() && tells.try_recv().is_err(), "the thread has ended");
        fs.close().unwrap();
    }
}
