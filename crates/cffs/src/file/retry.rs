//! Retrying after "no space": freed space counts as free at once, but can be allocated only after its freeing is
//! durable.

use super::FileCtx;
use crate::error::{Error, Result};

/// Commits after which an operation with reserved space gives up. Space freed by a commit may go to others with earlier
/// reservations. While one operation waits, nobody can reserve freed space
/// ([`crate::space::Space::freeze_reservations`]), so there are fewer of those others after each commit.
const COMMITS_MAX: usize = 100;

/// What is done before an operation that found no space is tried again.
#[derive(Clone, Copy)]
pub enum Reclaim<'a> {
    /// Commit, repeatedly while that frees something. For steps of a writeback, whose space is reserved.
    Commit,
    /// Write back everything, which releases worst-case reservations, and commit; once. For operations of programs.
    WriteBack(&'a dyn Fn()),
}

/// Runs an operation that needs space. If there is none, reclaims space and tries again as long as that can help. For
/// [`Reclaim::WriteBack`] the caller holds no lock that writeback needs.
///
/// # Errors
/// The error of the last attempt, or of [`crate::journal::Journal::commit`].
pub fn with_space<R>(cx: &FileCtx<'_>, reclaim: Reclaim<'_>, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
    let attempts = if matches!(reclaim, Reclaim::Commit) { COMMITS_MAX } else { 1 };
    let mut freeze = None;
    for _ in 0..attempts {
        let began = cx.space.epoch();
        match attempt() {
            Err(Error::NoSpace) => {}
            outcome => return outcome,
        }
        // This includes space that the attempt itself released; then the next attempt may fail again.
        let freed = cx.space.freed_since(began);
        match reclaim {
            Reclaim::Commit if freed => {
                freeze.get_or_insert_with(|| cx.space.freeze_reservations());
                cx.journal.commit()?;
            }
            Reclaim::WriteBack(write_back) if freed || cx.space.reserved() > 0 || cx.space.is_thin() => {
                // A thin device knows what data takes only when it has it.
                if cx.space.reserved() > 0 || cx.space.is_thin() {
                    write_back();
                }
                if cx.space.pending_frees() > 0 || cx.space.is_thin() {
                    cx.journal.commit()?;
                }
            }
            _ => return Err(Error::NoSpace),
        }
    }
    attempt()
}
