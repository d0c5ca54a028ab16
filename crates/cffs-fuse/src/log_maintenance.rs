//! Background work of the log disk below a mount: it gives back the space of deleted snapshots, and cleans.
//!
//! Before a writer the log disk cleans by itself, when it must. What is done here keeps that rare: all of it while nobody writes,
//! a little while somebody does. Each step is short, because writers wait for it, and so does an unmount.

use cffs::Fs;
use cffs_logdisk::{LogDisk, LogStats};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the thread looks.
const TICK: Duration = Duration::from_secs(1);
/// Work in a tick in which nobody has written.
const IDLE_WORK: Duration = Duration::from_millis(500);
/// Entries of dead lists that a step gives back.
const DELETE_ENTRIES: usize = 4096;
/// Bytes that a step of the cleaner copies.
const CLEAN_BYTES: u64 = 4 << 20;

/// The thread, while there is one.
#[derive(Default)]
pub(crate) struct LogMaintenance {
    thread: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl LogMaintenance {
    /// Starts the thread. With `cleans` it also works for all others who are on the log disk.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(&self, fs: Arc<Fs>, disk: Arc<LogDisk>, cleans: bool) -> io::Result<()> {
        let (sender, end) = channel();
        let thread = std::thread::Builder::new().name("cffs-clean".into()).spawn(move || {
            let mut before = disk.stats().accepted;
            while end.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                if fs.is_read_only() {
                    return;
                }
                let now = disk.stats().accepted;
                let idle = now == std::mem::replace(&mut before, now);
                if let Err(error) = tick(&fs, &disk, idle, cleans) {
                    if error.kind() == io::ErrorKind::StorageFull {
                        // There may be room at the next tick, when something was deleted.
                        continue;
                    }
                    // Nobody else deletes in steps: what was deleted is given back after the next mount.
                    tracing::warn!(%error, "no more background work on the log disk");
                    return;
                }
            }
        })?;
        *self.thread.lock() = Some((sender, thread));
        Ok(())
    }

    /// Ends the thread, and waits for it.
    pub(crate) fn stop(&self) {
        if let Some((sender, thread)) = self.thread.lock().take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// The work of a tick.
fn tick(fs: &Fs, disk: &LogDisk, idle: bool, cleans: bool) -> io::Result<()> {
    if idle {
        match fs.trim_after_crash() {
            // Later: what follows may make room.
            Err(cffs::Error::NoSpace) => {}
            outcome => outcome.map_err(io::Error::other)?,
        }
    }
    if !cleans {
        return Ok(());
    }
    let began = Instant::now();
    loop {
        let more = disk.delete_step(DELETE_ENTRIES)?;
        let cleans = !more && deserves_cleaning(&disk.stats(), disk.space().usable, idle);
        if cleans {
            let cleaned = disk.clean_step(CLEAN_BYTES)?;
            if cleaned.segments == 0 {
                return Ok(());
            }
            disk.checkpoint()?;
        }
        if !(more || cleans) || !idle || began.elapsed() > IDLE_WORK {
            return Ok(());
        }
    }
}

/// Whether dead bytes are worth copying the live ones: segments run short, and a good part of what is in them is dead.
fn deserves_cleaning(stats: &LogStats, usable: u64, idle: bool) -> bool {
    let left = usable.saturating_sub(stats.used);
    let dead = stats.used.saturating_sub(stats.live);
    let short = if idle { left < usable / 2 } else { left < usable / 8 };
    short && dead > stats.used / 5
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::{Caller, MkfsOptions, MountOptions, ROOT_INO};
    use cffs_logdisk::{LogOptions, MemoryStore};

    fn disk() -> Arc<LogDisk> {
        let store = Arc::new(MemoryStore::new(64 << 20, 256 << 10, true));
        let disk = Arc::new(LogDisk::format(store, 256 << 20, &LogOptions::default()).unwrap());
        cffs::mkfs(&*disk, None, &MkfsOptions::default().log_bytes(Some(cffs::mkfs::log_bytes_min(4096)))).unwrap();
        disk
    }

    #[test]
    fn an_idle_log_disk_is_cleaned_and_deleted_snapshots_give_their_space_back() {
        let disk = disk();
        let fs = Fs::open(disk.clone(), None, MountOptions::default().background(false)).unwrap();
        let file = fs.create(Caller::ROOT, ROOT_INO, b"f", 0o600).unwrap();
        let snapshot = |n: u8| {
            fs.write(Caller::ROOT, file.ino, 0, &vec![n; 8 << 20]).unwrap();
            fs.sync().unwrap();
            disk.snapshot(cffs_logdisk::MAIN_BRANCH, &n.to_string()).unwrap()
        };
        let ids: Vec<u64> = (0..4).map(snapshot).collect();
        let full = disk.space().live;
        ids.into_iter().for_each(|id| disk.delete_snapshot(id).unwrap());
        for _ in 0..200 {
            tick(&fs, &disk, true, true).unwrap();
        }
        let live = disk.space().live;
        assert!(live < full / 2, "{live} of {full} bytes live");
        assert!(!deserves_cleaning(&disk.stats(), disk.space().usable, true), "{:?}", disk.stats());
        assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
        fs.close().unwrap();
    }

    /// A commit frees a file, and the log disk has no room to note it, or cannot be written just now.
    #[test]
    fn what_could_not_be_discarded_when_it_was_freed_is_discarded_later() {
        use cffs::device::{FailingDevice, Fault, Operation};
        let disk = disk();
        let device = Arc::new(FailingDevice::new(disk.clone()));
        let fs = Fs::open(device.clone(), None, MountOptions::default().background(false)).unwrap();
        let file = fs.create(Caller::ROOT, ROOT_INO, b"f", 0o600).unwrap();
        fs.write(Caller::ROOT, file.ino, 0, &vec![7; 8 << 20]).unwrap();
        fs.sync().unwrap();
        fs.forget(file.ino, 1);
        let full = disk.space().live;
        device.set(Operation::Discard, Fault::from_now_on());
        fs.unlink(ROOT_INO, b"f").unwrap();
        fs.sync().unwrap();
        assert!(disk.space().live + (1 << 20) > full, "it was discarded");
        device.clear();
        for _ in 0..5 {
            tick(&fs, &disk, true, true).unwrap();
        }
        assert!(disk.space().live + (7 << 20) < full, "{} of {full} bytes live", disk.space().live);
        fs.close().unwrap();
    }

    #[test]
    fn the_thread_ends_when_told() {
        let disk = disk();
        let fs = Fs::open(disk.clone(), None, MountOptions::default().background(false)).unwrap();
        let maintenance = LogMaintenance::default();
        maintenance.start(fs.clone(), disk, true).unwrap();
        maintenance.stop();
        maintenance.stop();
        assert_eq!(Arc::strong_count(&fs), 1);
        fs.close().unwrap();
    }
}
