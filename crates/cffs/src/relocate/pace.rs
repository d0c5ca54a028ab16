//! When moves are committed, so that the space that they left becomes usable.

use super::MoveCtx;
use crate::error::Result;

/// Bytes that are moved before a commit.
const COMMIT_BYTES: u64 = 8 << 20;

/// Bytes that were moved since the last commit.
#[derive(Default)]
pub(super) struct Uncommitted(u64);

impl Uncommitted {
    /// Counts bytes that were moved. Commits when they are enough.
    pub fn add(&mut self, cx: &MoveCtx<'_>, bytes: u64) -> Result<()> {
        self.0 += bytes;
        if self.0 >= COMMIT_BYTES { self.commit(cx).map(|_| ()) } else { Ok(()) }
    }

    /// Commits if anything was moved. Whether it was.
    pub fn commit(&mut self, cx: &MoveCtx<'_>) -> Result<bool> {
        if std::mem::take(&mut self.0) == 0 {
            return Ok(false);
        }
        cx.file.journal.commit().map(|()| true)
    }
}
