//! Long work on the whole file system in a thread of its own: a scrub, a regroup. One of each kind at a time.

use cffs::{Error, Regroup, RegroupStatus, Result, Scrub, ScrubStatus};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The handle of such work: it is observed and stopped by it.
pub(crate) trait Work: Default + Send + Sync + 'static {
    /// What it is called in messages.
    const NAME: &'static str;
    /// How far it is, and how it ended.
    type Status;
    /// The present status.
    fn status(&self) -> Self::Status;
    /// Asks it to stop, which it does soon.
    fn stop(&self);
    /// It has ended without a result.
    fn fail(&self, why: String);
    /// Whether it has ended.
    fn is_over(&self) -> bool;
}

/// Both handles have the same methods.
macro_rules! work {
    ($handle:ty, $status:ty, $name:literal) => {
        impl Work for $handle {
            const NAME: &'static str = $name;
            type Status = $status;
            fn status(&self) -> $status {
                self.status()
            }
            fn stop(&self) {
                self.stop();
            }
            fn fail(&self, why: String) {
                self.fail(why);
            }
            fn is_over(&self) -> bool {
                self.is_over()
            }
        }
    };
}

work!(Scrub, ScrubStatus, "scrub");
work!(Regroup, RegroupStatus, "regroup");

/// Work, and its thread until that was joined.
type Running<W> = (Arc<W>, Option<JoinHandle<()>>);

/// The work that is running, or the last one.
pub(crate) struct Background<W>(Mutex<Option<Running<W>>>);

impl<W> Default for Background<W> {
    fn default() -> Self {
        Background(Mutex::new(None))
    }
}

impl<W: Work> Background<W> {
    /// Begins `work` in a thread `cffs-NAME`, unless one runs. What it returns as an error, and a panic, end up in the status.
    ///
    /// # Errors
    /// [`Error::Busy`] while one runs; [`Error::Io`] if the thread cannot be started.
    pub(crate) fn start(&self, work: impl FnOnce(&W) -> Result<()> + Send + 'static) -> Result<()> {
        let mut running = self.0.lock();
        if running.as_ref().is_some_and(|(handle, _)| !handle.is_over()) {
            return Err(Error::Busy(format!("a {} runs already", W::NAME)));
        }
        let handle = Arc::new(W::default());
        let mine = handle.clone();
        let thread = std::thread::Builder::new().name(format!("cffs-{}", W::NAME)).spawn(move || {
            let failed = match catch_unwind(AssertUnwindSafe(|| work(&mine))) {
                Ok(Ok(())) => return,
                Ok(Err(e)) => e.to_string(),
                Err(_) => "internal error".into(),
            };
            tracing::error!("{}: {failed}", W::NAME);
            mine.fail(failed);
        })?;
        *running = Some((handle, Some(thread)));
        Ok(())
    }

    /// Progress of the one that is running, or the result of the last one.
    pub(crate) fn status(&self) -> Option<W::Status> {
        self.0.lock().as_ref().map(|(handle, _)| handle.status())
    }

    /// Whether one runs, or begins or ends at this moment. Waits for nothing.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.try_lock().is_none_or(|running| running.as_ref().is_some_and(|(handle, _)| !handle.is_over()))
    }

    /// Stops the one that is running, and waits for its thread. Returns its result.
    pub(crate) fn stop(&self) -> Option<W::Status> {
        let mut running = self.0.lock();
        let (handle, thread) = running.as_mut()?;
        handle.stop();
        // The caller holds no lock that the thread needs, and the thread checks often whether to stop.
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
        Some(handle.status())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::RegroupOutcome;
    use std::sync::mpsc::channel;

    #[test]
    fn there_is_one_at_a_time_and_a_panic_ends_it() {
        let background = Background::<Regroup>::default();
        assert_eq!((background.status(), background.stop()), (None, None));
        let (end, wait) = channel::<()>();
        background
            .start(move |_| {
                let _ = wait.recv();
                panic!("a bug, wanted by this test")
            })
            .unwrap();
        let second = background.start(|_| Ok(()));
        assert!(matches!(&second, Err(Error::Busy(why)) if why.contains("a regroup runs already")), "{second:?}");
        assert!(background.is_busy());
        end.send(()).unwrap();
        let failed = Some(RegroupOutcome::Failed("internal error".into()));
        assert_eq!(background.stop().unwrap().outcome, failed);
        assert!(!background.is_busy());
        background.start(|_| Err(Error::NoSpace)).unwrap();
        let failed = Some(RegroupOutcome::Failed(Error::NoSpace.to_string()));
        assert_eq!(background.stop().unwrap().outcome, failed);
    }
}
