//! What the tools do with the log disk below a file system, mounted or not.

use cffs::{Grown, Result, StoredData, StoredStep};
use cffs_logdisk::LogDisk;
use std::io;

/// Makes a log disk store as much more as its device has become longer, or as `size` bytes of an image in a file are more. The file system on it keeps its
/// size. Returns what it could store before and can now, in bytes.
///
/// # Errors
/// Those of [`LogDisk::grow`].
pub fn grow_log_disk(disk: &LogDisk, size: Option<u64>) -> Result<Grown> {
    let from = disk.space().usable;
    disk.grow(size)?;
    Ok(Grown { from, to: disk.space().usable.max(from) })
}

/// All that a log disk stores, for a scrub.
pub(crate) struct Stored<'a>(pub(crate) &'a LogDisk);

impl StoredData for Stored<'_> {
    fn verify_step(&self, at: u64, bytes: u64) -> io::Result<StoredStep> {
        let report = self.0.scrub_step(at, bytes)?;
        Ok(StoredStep {
            next: report.next,
            bytes: report.bytes,
            problems: report.problems,
            structures: report.summaries,
        })
    }
}
