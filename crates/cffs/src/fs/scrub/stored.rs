//! What a device stores in its own way, verified by itself: a log disk has checksums of all data, also of snapshots, which the file system does not see.

use super::{StoredData, Walk};
use crate::error::Result;

/// Bytes that are verified before the scrub looks whether it is to stop.
const STEP_BYTES: u64 = 1 << 20;

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
            for what in step.structures {
                tracing::error!("scrub: log disk: {what}");
                self.list("log disk".into(), what, None, 0);
            }
            self.count(|s| s.stored_failed += failed);
            at = step.next;
        }
        Ok(())
    }
}
