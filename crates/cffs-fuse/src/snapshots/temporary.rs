//! Temporary snapshots: the file system as it is now, for a read-only mount beside it. Users do not see them, and they go with that mount.

use super::names::{TEMPORARY, naming};
use super::upkeep::make;
use cffs::device::Device;
use cffs::{Fs, Result};
use cffs_logdisk::{LogDisk, MAIN_BRANCH};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for threads that still have the device of a mount that has ended.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often to look.
const INTERVAL: Duration = Duration::from_millis(20);

/// A snapshot that is deleted when this value is dropped. Whatever has its device goes before.
pub(crate) struct TemporarySnapshot {
    disk: Arc<LogDisk>,
    id: u64,
}

impl TemporarySnapshot {
    /// Makes a snapshot of everything that was done before the call. It need not be durable, because after a crash nobody wants it.
    ///
    /// # Errors
    /// [`cffs::Error::Invalid`] if there is too little space; those of writing back and of the log disk.
    pub(crate) fn create(disk: &Arc<LogDisk>, fs: &Fs) -> Result<TemporarySnapshot> {
        // One snapshot is made at a time.
        let _naming = naming();
        let id = make(disk, Some(fs), MAIN_BRANCH, TEMPORARY)?;
        Ok(TemporarySnapshot { disk: disk.clone(), id })
    }

    /// It as a device, for a file system to be mounted on.
    ///
    /// # Errors
    /// Those of the log disk.
    pub(crate) fn device(&self) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(self.disk.open_snapshot(self.id)?.to_be_mounted()))
    }
}

impl Drop for TemporarySnapshot {
    fn drop(&mut self) {
        let began = Instant::now();
        loop {
            match self.disk.delete_snapshot(self.id) {
                Err(e) if e.kind() == ErrorKind::ResourceBusy && began.elapsed() < PATIENCE => {
                    std::thread::sleep(INTERVAL);
                }
                Err(error) => {
                    tracing::warn!(%error, "a temporary snapshot stays until the file system is mounted again");
                    return;
                }
                Ok(()) => return,
            }
        }
    }
}

/// Deletes the temporary snapshots that a crash has left; to be called while there is no mount that has one. Their space comes back by
/// [`LogDisk::delete_step`]. Returns how many there were.
///
/// # Errors
/// Those of the log disk.
pub fn delete_left_over(disk: &LogDisk) -> io::Result<usize> {
    let left: Vec<u64> = disk.snapshots().into_iter().filter(|s| s.name == TEMPORARY).map(|s| s.id).collect();
    left.iter().try_for_each(|id| disk.delete_snapshot(*id))?;
    Ok(left.len())
}

#[cfg(test)]
mod tests {
    use super::super::{count, create, delete, is_snapshot, list, open, send};
    use super::*;
    use cffs::{Caller, MkfsOptions, MountOptions, ROOT_INO};
    use cffs_logdisk::{LogOptions, MemoryStore};

    fn mounted() -> (Arc<LogDisk>, Arc<Fs>) {
        let store = Arc::new(MemoryStore::new(64 << 20, 256 << 10, true));
        let disk = Arc::new(LogDisk::format(store, 256 << 20, &LogOptions::default()).unwrap());
        cffs::mkfs(&*disk, None, &MkfsOptions::default().log_bytes(Some(cffs::mkfs::log_bytes_min(4096)))).unwrap();
        let fs = Fs::open(disk.clone(), None, MountOptions::default().background(false)).unwrap();
        (disk, fs)
    }

    fn add(fs: &Fs, name: &[u8]) {
        let ino = fs.create(Caller::ROOT, ROOT_INO, name, 0o600).unwrap().ino;
        fs.forget(ino, 1);
    }

    #[test]
    fn a_temporary_snapshot_has_what_was_not_synced_and_no_name() {
        let (disk, fs) = mounted();
        create(&disk, Some(&fs), "monday").unwrap();
        add(&fs, b"before");
        let temporary = TemporarySnapshot::create(&disk, &fs).unwrap();
        add(&fs, b"later");
        assert_eq!(disk.snapshots().len(), 2);
        assert_eq!((list(&disk).len(), count(&disk)), (1, 1));
        assert_eq!(list(&disk)[0].name, "monday");
        for name in [TEMPORARY, "", "mounted"] {
            assert!(is_snapshot(&disk, name).is_err() && open(&disk, name).is_err(), "{name}");
            assert!(delete(&disk, name).is_err() && send(&disk, name, None, None, &mut Vec::new()).is_err(), "{name}");
        }
        // The name is nobody else's.
        assert!(create(&disk, Some(&fs), TEMPORARY).is_err());
        let options = MountOptions::default().read_only(true).background(false);
        let then = Fs::open(temporary.device().unwrap(), None, options).unwrap();
        then.lookup(ROOT_INO, b"before").unwrap();
        assert!(then.lookup(ROOT_INO, b"later").is_err());
        then.close().unwrap();
        drop(then);
        drop(temporary);
        assert_eq!(disk.snapshots().len(), 1);
        fs.close().unwrap();
        assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_temporary_snapshot_waits_for_who_still_reads_it() {
        let (disk, fs) = mounted();
        let temporary = TemporarySnapshot::create(&disk, &fs).unwrap();
        let device = temporary.device().unwrap();
        let reader = std::thread::spawn(move || {
            std::thread::sleep(5 * INTERVAL);
            drop(device);
        });
        drop(temporary);
        assert!(disk.snapshots().is_empty());
        reader.join().unwrap();
        fs.close().unwrap();
    }

    #[test]
    fn what_a_crash_has_left_is_deleted_and_nothing_else() {
        let (disk, fs) = mounted();
        create(&disk, Some(&fs), "monday").unwrap();
        (0..2).for_each(|_| std::mem::forget(TemporarySnapshot::create(&disk, &fs).unwrap()));
        assert_eq!((disk.snapshots().len(), delete_left_over(&disk).unwrap()), (3, 2));
        assert_eq!((disk.snapshots().len(), delete_left_over(&disk).unwrap()), (1, 0));
        assert_eq!(list(&disk)[0].name, "monday");
        fs.close().unwrap();
    }
}
