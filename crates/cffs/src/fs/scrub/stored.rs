//! What a device stores in its own way, verified by itself: a log disk has checksums of all data, also of snapshots, which the file system does not see.

use super::Walk;
use crate::error::Result;
use std::io;

/// Bytes that are verified before the scrub looks whether it is to stop.
const STEP_BYTES: u64 = 1 << 20;

/// What a part of the stored data came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredStep {
    /// Where to go on; `None` at the end.
    pub next: Option<u64>,
    /// Bytes that were read and verified.
    pub bytes: u64,
    /// What is wrong, one line for each thing.
    pub problems: Vec<String>,
}

/// Data below a file system that can be verified without it.
pub trait StoredData {
    /// Verifies about so many bytes from a place on (0 begins).
    ///
    /// # Errors
    /// It cannot be found out what is stored. What is wrong with it is in the result.
    fn verify_step(&self, at: u64, bytes: u64) -> io::Result<StoredStep>;
}

impl Walk<'_> {
    /// Verifies all of it. A check of the file system could not repair it, so that is not asked for.
    pub(super) fn stored(&mut self, stored: &dyn StoredData) -> Result<()> {
        let mut at = Some(0);
        while let Some(from) = at {
            self.check_stopped()?;
            let step = stored.verify_step(from, STEP_BYTES)?;
            self.dev.throttle(step.bytes);
            let failed = step.problems.len() as u64;
            self.count(|s| s.stored_verified += step.bytes);
            for what in step.problems {
                tracing::error!("scrub: stored data: {what}");
                self.list("stored data".into(), what, None, 0);
            }
            self.count(|s| s.stored_failed += failed);
            at = step.next;
        }
        Ok(())
    }
}
