//! State that the session and its server share: the engine, the counters, and how the session ends.

use crate::background::Background;
use crate::config::LogView;
use crate::control::Answers;
use crate::jobs::Jobs;
use crate::log_disk::Stored;
use crate::log_maintenance::LogMaintenance;
use crate::maintenance::Maintenance;
use crate::messages::Messages;
use crate::notifier::Notifier;
use crate::protocol::opcode::Opcode;
use crate::readahead::Readahead;
use crate::snapshots;
use crate::stats_file::{ServerProcess, StatsFiles, is_stats_file};
use crate::views::Views;
use crate::volume::Members;
use cffs::trace::Tracer;
use cffs::{AtimeMode, Error, Fs, Ino, Regroup, RegroupOptions, Result, Scrub, ScrubOptions};
use cffs_logdisk::LogDisk;
use cffs_volume::Volume;
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a shutdown waits until the kernel has dropped cached pages.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// State that the session and its server share.
pub(crate) struct MountState {
    fs: Arc<Fs>,
    messages: Messages,
    pub(crate) stats_files: StatsFiles,
    /// Long answers of the control channel that are still being fetched.
    answers: Answers,
    /// What is mounted.
    image: String,
    notifier: OnceLock<Notifier>,
    pub(crate) readahead: Readahead,
    serving: AtomicBool,
    /// Cached pages were or are being dropped.
    dropping: AtomicBool,
    panicked: AtomicBool,
    /// Shared by operations under way. The engine is closed when there is none, because FORGET, for which the kernel does not
    /// wait, can still be at work when DESTROY comes.
    working: RwLock<()>,
    /// The kernel has closed the connection.
    over: Arc<AtomicBool>,
    pub(crate) scrub: Background<Scrub>,
    pub(crate) regroup: Background<Regroup>,
    maintenance: Arc<Maintenance>,
    /// The log disk below, in the log layout.
    log_disk: Option<Arc<LogDisk>>,
    log_maintenance: LogMaintenance,
    pub(crate) jobs: Jobs,
    /// What of the log disk this is.
    view: LogView,
    pub(crate) views: Arc<Views>,
    /// The volume below, if it is on one.
    pub(crate) members: Members,
    /// The result of closing the engine, until somebody takes it.
    closed: Mutex<Option<Result<()>>>,
}

impl MountState {
    pub(crate) fn new(
        fs: Arc<Fs>,
        image: String,
        log_disk: Option<Arc<LogDisk>>,
        (view, views): (LogView, Views),
        volume: Option<Arc<Volume>>,
    ) -> MountState {
        MountState {
            fs,
            messages: Messages::default(),
            stats_files: StatsFiles::default(),
            answers: Answers::default(),
            image,
            notifier: OnceLock::new(),
            readahead: Readahead::default(),
            serving: AtomicBool::new(false),
            dropping: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            working: RwLock::new(()),
            over: Arc::default(),
            scrub: Background::default(),
            regroup: Background::default(),
            maintenance: Arc::default(),
            log_disk,
            log_maintenance: LogMaintenance::default(),
            jobs: Jobs::default(),
            view,
            views: Arc::new(views),
            members: Members::new(volume),
            closed: Mutex::new(None),
        }
    }

    pub(crate) fn fs(&self) -> Arc<Fs> {
        self.fs.clone()
    }

    pub(crate) fn set_notifier(&self, notifier: Notifier) {
        // Set once per session, and there is one session.
        let _ = self.notifier.set(notifier);
    }

    /// From now on the end of the session also closes the engine.
    pub(crate) fn serving(&self) {
        self.serving.store(true, Ordering::Release);
    }

    /// Becomes true when the mount is gone, before the engine is closed.
    pub(crate) fn over(&self) -> Arc<AtomicBool> {
        self.over.clone()
    }

    pub(crate) fn panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// Starts verifying all metadata, in a thread of its own.
    pub(crate) fn start_scrub(&self, options: ScrubOptions) -> Result<()> {
        if options.rate == Some(0) {
            return Error::invalid("a rate of 0 bytes in a second: nothing would ever be read");
        }
        let (fs, disk) = (self.fs.clone(), self.log_disk.clone());
        self.scrub.start(move |scrub| match disk.as_deref().map(Stored) {
            Some(stored) => fs.scrub_with(&options, scrub, Some(&stored)),
            None => fs.scrub(&options, scrub),
        })
    }

    /// Starts to bring files and directories back together, in a thread of its own. What is wrong with the options is an
    /// error of this call.
    pub(crate) fn start_regroup(&self, options: RegroupOptions) -> Result<()> {
        self.fs.check_regroup(&options)?;
        let (fs, maintenance) = (self.fs.clone(), self.maintenance.clone());
        self.regroup.start(move |regroup| {
            maintenance.interrupt();
            fs.regroup(&options, regroup)
        })
    }

    /// Stops what works on the whole file system in a thread of its own.
    fn stop_background(&self) {
        self.maintenance.stop();
        self.log_maintenance.stop();
        self.jobs.stop();
        self.views.stop();
        self.scrub.stop();
        self.regroup.stop();
        self.members.stop();
    }

    /// Starts the background work of the log disk, if there is one.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start_log_maintenance(&self) -> std::io::Result<()> {
        match &self.log_disk {
            Some(disk) if !self.fs.is_read_only() => {
                // The mount that one is attached to cleans.
                let cleans = !self.view.is_attached();
                self.log_maintenance.start(self.fs.clone(), disk.clone(), cleans)
            }
            _ => Ok(()),
        }
    }

    /// Deletes temporary snapshots that a crash has left, before there is a mount that has one. A mount for writing of a clone does that too,
    /// since nobody else has the log disk then.
    pub(crate) fn delete_left_over_snapshots(&self) {
        let Some(disk) = self.log_disk.as_ref().filter(|_| !self.fs.is_read_only() && !self.view.is_attached()) else {
            return;
        };
        // They cost space, and nothing else.
        if let Err(error) = snapshots::delete_left_over(disk) {
            tracing::warn!(%error, "temporary snapshots that a crash has left stay until the next mount");
        }
    }

    /// Compares the members of the mirror below.
    pub(crate) fn compare_members(&self, rate: Option<u64>) -> Result<()> {
        self.members.compare(self.fs.clone(), rate, self.log_disk.clone())
    }

    /// The log disk below, in the log layout.
    pub(crate) fn log_disk(&self) -> Option<&Arc<LogDisk>> {
        self.log_disk.as_ref()
    }

    /// What of the log disk this is.
    pub(crate) fn view(&self) -> &LogView {
        &self.view
    }

    /// Starts maintenance, for when nobody has used the file system for such a time, as long as it can be written to.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start_maintenance(
        self: &Arc<Self>,
        idle: Duration,
        is_writable: impl Fn() -> bool + Send + 'static,
    ) -> std::io::Result<()> {
        let (state, panicking) = (Arc::downgrade(self), Arc::downgrade(self));
        let may = move || {
            // A regroup that was started moves files, or is about to.
            is_writable() && state.upgrade().is_some_and(|s| !s.panicked() && !s.regroup.is_busy())
        };
        let panicked = move || {
            if let Some(state) = panicking.upgrade() {
                state.panicked.store(true, Ordering::Release);
            }
        };
        self.maintenance.start(self.fs.clone(), idle, may, panicked)
    }

    /// Closes the engine, unless that was done. The first caller gets the result.
    pub(crate) fn close(&self) -> Result<()> {
        self.stop_background();
        let mut closed = self.closed.lock();
        let result = closed.take().unwrap_or_else(|| self.fs.close());
        *closed = Some(Ok(()));
        result
    }

    /// Nothing is asked any more, because the file system is unmounted or the connection has broken: closes the engine
    /// and leaves the result for [`MountState::close`].
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
        let _none = self.working.write();
        // No operation is under way any more that could start another one.
        self.stop_background();
        if self.serving.load(Ordering::Acquire) && !self.panicked() {
            // A panic here would end the thread that reports the end of the session, for which everybody waits.
            let mut closed = self.closed.lock();
            if closed.is_none() {
                match catch_unwind(AssertUnwindSafe(|| self.fs.close())) {
                    Ok(result) => *closed = Some(result),
                    Err(_) => self.panicked.store(true, Ordering::Release),
                }
            }
        }
    }

    /// Counts a message, executes it, and turns an error into its number.
    pub(crate) fn call<T>(
        &self,
        op: Opcode,
        ino: Ino,
        f: impl FnOnce(&Fs) -> Result<T>,
    ) -> std::result::Result<T, Errno> {
        // Reading the counters does not change them.
        if !is_stats_file(ino) {
            self.messages.count(op);
        }
        if self.panicked() {
            return Err(Errno::IO);
        }
        let _working = self.working.read();
        match catch_unwind(AssertUnwindSafe(|| f(&self.fs))) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                if matches!(error, Error::Corrupt(_) | Error::Io(_)) {
                    tracing::error!(operation = op.name(), ino, %error);
                }
                Err(Errno::from_raw_os_error(error.errno()))
            }
            Err(_) => {
                // The engine's state in memory may be inconsistent, but the image is not. Nothing more is written, and
                // the next mount recovers the image.
                self.panicked.store(true, Ordering::Release);
                tracing::error!(
                    operation = op.name(),
                    ino,
                    "internal error; every operation fails from now on; unmount"
                );
                Err(Errno::IO)
            }
        }
    }

    /// Counts a message that needs no work.
    pub(crate) fn count(&self, op: Opcode) {
        self.messages.count(op);
    }

    /// Counts a message that is not supported: after ENOSYS the kernel does not send that kind again.
    pub(crate) fn unsupported(&self) -> Errno {
        self.messages.count_unsupported();
        Errno::NOSYS
    }

    /// Whether every access has to be recorded, so that the kernel must not answer reads from its cache.
    pub(crate) fn strict_atime(&self) -> bool {
        self.fs.options().atime == AtimeMode::Strictatime
    }

    /// Whether the kernel must ask before it opens a file: accesses are recorded, or some files may not be opened for
    /// every purpose. It does not ask by itself, because that costs messages.
    pub(crate) fn must_be_asked(&self) -> bool {
        self.strict_atime() || self.fs.may_have_immutable_files()
    }

    /// Makes the kernel drop its cached attributes.
    pub(crate) fn attributes_changed(&self, ino: Ino) {
        if let Some(notifier) = self.notifier.get() {
            notifier.attributes_changed(ino);
        }
    }

    /// Makes the kernel drop all that it has cached of files, once, so that it asks, and gets an error. A thread of its own
    /// does that, because it waits for pages that are being read, and those may wait for the calling thread to answer.
    /// So the caller waits for it for a moment only.
    pub(crate) fn contents_gone(self: &Arc<Self>) {
        if self.dropping.swap(true, Ordering::AcqRel) {
            return;
        }
        let (done, wait) = channel();
        let state = self.clone();
        let thread = std::thread::Builder::new().name("cffs-drop".into()).spawn(move || {
            if let Some(notifier) = state.notifier.get() {
                state.fs.referenced_inodes().into_iter().for_each(|ino| notifier.contents_gone(ino));
            }
            let _ = done.send(());
        });
        match thread {
            // Too late is as good as never: the kernel drops the pages when it can.
            Ok(_) => drop(wait.recv_timeout(DROP_PATIENCE)),
            Err(error) => tracing::warn!(%error, "the kernel keeps cached pages of files"),
        }
    }

    pub(crate) fn tracer(&self) -> &Tracer {
        self.fs.tracer()
    }

    pub(crate) fn answers(&self) -> &Answers {
        &self.answers
    }

    pub(crate) fn image(&self) -> &str {
        &self.image
    }

    /// The counters: those of the engine, and under `fuse` those of the server.
    pub(crate) fn stats(&self) -> Result<serde_json::Value> {
        let mut all = serde_json::to_value(self.fs.stats()).map_err(std::io::Error::other)?;
        let mut fuse = serde_json::Value::Object(self.messages.counts());
        // Who unmounts waits for the end of this process; but not where it goes on.
        let ends = !self.view.is_attached();
        fuse["server"] = if ends { server()? } else { serde_json::Value::Null };
        all["fuse"] = fuse;
        if let Some(disk) = &self.log_disk {
            all["log_disk"] = log_disk_stats(disk);
        }
        if let Some(volume) = self.members.report() {
            all["volume"] = serde_json::to_value(volume).map_err(std::io::Error::other)?;
        }
        all["read_only"] = self.fs.is_read_only().into();
        all["failed"] = self.fs.failure().is_some().into();
        Ok(all)
    }

    pub(crate) fn stats_text(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(&self.stats()?).map_err(std::io::Error::other)?;
        text.push('\n');
        Ok(text)
    }
}

/// The process, for who waits for its end.
fn server() -> Result<serde_json::Value> {
    Ok(serde_json::to_value(ServerProcess::current()).map_err(std::io::Error::other)?)
}

/// For tests: the file system itself, beside which nothing can be mounted.
#[cfg(test)]
pub(crate) fn no_view() -> (LogView, Views) {
    (LogView::FileSystem, Views::new(|_, _, _, _| Err("not in this test".into())))
}

/// Counters of a log disk since it was opened.
fn log_disk_stats(disk: &LogDisk) -> serde_json::Value {
    let (s, space) = (disk.stats(), disk.space());
    serde_json::json!({
        "accepted_bytes": s.accepted,
        "written_bytes": s.written,
        "cleaned_bytes": s.cleaned,
        "cleaned_per_written": if s.written > 0 { s.cleaned as f64 / s.written as f64 } else { 0.0 },
        "segments": s.segments,
        "used_bytes": s.used,
        "live_bytes": s.live,
        "live_share": if s.used > 0 { s.live as f64 / s.used as f64 } else { 0.0 },
        "usable_bytes": space.usable,
        "free_bytes": space.free,
        "snapshots": snapshots::count(disk),
        "dirty_nodes": s.dirty_nodes,
        "cached_nodes": s.cached_nodes,
        "damaged_segments": s.damaged_segments,
        "forwards": s.forwards,
        "failed_discards": s.failed_discards,
        "patches": s.patches,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::MountOptions;
    use cffs::device::MemoryDevice;

    fn shared() -> MountState {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        cffs::mkfs(&*device, None, &cffs::MkfsOptions::default()).unwrap();
        MountState::new(Fs::open(device, None, MountOptions::default()).unwrap(), "image".into(), None, no_view(), None)
    }

    #[test]
    fn a_panic_is_an_error_now_and_from_then_on() {
        let s = shared();
        assert_eq!(s.call(Opcode::Lookup, 1, |_| Err::<(), _>(Error::NotFound)), Err(Errno::NOENT));
        assert_eq!(s.call(Opcode::Read, 1, |_| -> Result<()> { panic!("a bug, wanted by this test") }), Err(Errno::IO));
        assert_eq!(s.call(Opcode::StatFs, 1, |_| Ok(())), Err(Errno::IO));
        assert!(s.panicked());
        // Left for recovery.
        s.serving();
        s.end();
        assert!(s.closed.lock().is_none());
        assert!(s.over().load(Ordering::Acquire));
    }

    #[test]
    fn the_engine_is_closed_once() {
        let s = shared();
        s.end();
        assert!(s.closed.lock().is_none(), "closed although the session never began");
        s.serving();
        s.end();
        assert!(s.closed.lock().is_some());
        s.close().unwrap();
        s.close().unwrap();
        s.end();
    }
}
