//! The log layout: a log disk on a simulated device, with the file system on it.

use crate::disk::Trace;
use cffs::device::{Device, Observed};
use cffs::{Error, Fs};
use cffs_logdisk::{Compression, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH};
use std::io;
use std::sync::Arc;

/// A log disk below the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLayout {
    /// How it compresses.
    pub compression: Compression,
    /// The size of the file system, as a multiple of the device.
    pub thin: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes that end a batch.
    pub batch_bytes: usize,
    /// It is cleaned, and snapshots are made and deleted, between operations.
    pub snapshots: bool,
}

/// Snapshots that are kept.
const SNAPSHOTS: usize = 3;
/// Operations between two pieces of background work.
const WORKS_EVERY: u64 = 5;
/// Bytes that the cleaner copies in one.
const CLEAN_BYTES: u64 = 256 << 10;

impl LogLayout {
    /// One of those that tests use, for blocks of so many bytes. Batches are small, so that many end in a short sequence, and
    /// have as many blocks as those of an image that `cffs mkfs` makes.
    pub fn numbered(n: u64, block: u32) -> LogLayout {
        let compression =
            [Compression::None, Compression::Lz4, Compression::None, Compression::Zstd(1)][n as usize % 4];
        LogLayout {
            compression,
            thin: [4, 1, 16][n as usize / 4 % 3],
            segment_bytes: 64 << 10,
            batch_bytes: ((block as usize) << 6).max(256 << 10),
            snapshots: (n / 2).is_multiple_of(2),
        }
    }

    fn options(self, read_only: bool) -> LogOptions {
        // Small, so that checkpoints are made and nodes leave memory in a short sequence.
        LogOptions {
            read_only,
            cache_nodes: 32,
            batch_bytes: self.batch_bytes,
            checkpoint_bytes: 2 << 20,
            compression: self.compression,
            ..LogOptions::default()
        }
    }

    /// Makes the first device of a trace a log disk.
    pub fn make_on(self, trace: &Trace, uuid: [u8; 16]) -> io::Result<Arc<LogDisk>> {
        let device = trace.device(0);
        let bytes = device.len() * self.thin;
        let store = ImageStore::format(device, &ImageOptions { uuid, slot_bytes: self.segment_bytes })?;
        Ok(Arc::new(LogDisk::format(Arc::new(store), bytes, &self.options(false))?))
    }

    /// Opens the one on the first device of a trace.
    pub fn open(self, trace: &Trace, read_only: bool, observed: &Observed) -> io::Result<Arc<LogDisk>> {
        let store = ImageStore::open_observed(trace.device(0), observed)?;
        let options = LogOptions { observed: observed.clone(), ..self.options(read_only) };
        Ok(Arc::new(LogDisk::open(Arc::new(store), &options)?))
    }

    /// Background work after the `nth` operation: what a mount does in idle time, and snapshots that come and go.
    ///
    /// # Errors
    /// Those of the log disk, but for want of space.
    pub fn work(self, fs: &Fs, disk: &LogDisk, nth: u64) -> io::Result<()> {
        if !self.snapshots || !nth.is_multiple_of(WORKS_EVERY) {
            return Ok(());
        }
        let done = self.work_step(fs, disk, nth / WORKS_EVERY);
        done.or_else(|e| if e.kind() == io::ErrorKind::StorageFull { Ok(()) } else { Err(e) })
    }

    fn work_step(self, fs: &Fs, disk: &LogDisk, nth: u64) -> io::Result<()> {
        match nth % 4 {
            0 => {
                let make = || Ok(disk.snapshot(MAIN_BRANCH, &nth.to_string())?);
                // One that changes nothing in what is promised needs not ask the file system, and has what is in no commit yet.
                let made = match disk.snapshot_costs() {
                    0 => make(),
                    costs => fs.snapshot_device(costs, make),
                };
                match made {
                    // There was too little space.
                    Err(Error::Invalid(_)) => {}
                    other => drop(other?),
                }
            }
            1 => drop(disk.clean_step(CLEAN_BYTES)?),
            2 => {
                let all = disk.snapshots();
                if all.len() > SNAPSHOTS {
                    disk.delete_snapshot(all[nth as usize % 2].id)?;
                }
            }
            _ => drop(disk.delete_step(20)?),
        }
        Ok(())
    }
}

/// Deletes all snapshots; false if there were none.
///
/// # Errors
/// Those of the log disk.
pub fn delete_snapshots(disk: &LogDisk) -> io::Result<bool> {
    let all = disk.snapshots();
    all.iter().try_for_each(|s| disk.delete_snapshot(s.id))?;
    while disk.delete_step(1000)? {}
    Ok(!all.is_empty())
}

/// Whether an image has a superblock of a log disk.
pub fn is_log_disk(trace: &Trace) -> bool {
    let image = &trace.images()[0];
    [0, 64 << 10].into_iter().any(|offset| {
        let mut magic = [0; 7];
        image.read(offset, &mut magic);
        &magic == b"cffsLOG"
    })
}

/// Opens the log disk of a trace for a check; what is wrong with it is the error.
///
/// # Errors
/// What is wrong.
pub fn open_checked(trace: &Trace) -> Result<Arc<LogDisk>, String> {
    let layout =
        LogLayout { compression: Compression::None, thin: 1, segment_bytes: 0, batch_bytes: 4 << 20, snapshots: false };
    let disk =
        layout.open(trace, true, &Observed::default()).map_err(|e| format!("the log disk cannot be opened: {e}"))?;
    let problems = disk.check(true).map_err(|e| format!("the log disk cannot be checked: {e}"))?;
    if problems.is_empty() { Ok(disk) } else { Err(format!("the log disk: {}", problems.join("; "))) }
}
