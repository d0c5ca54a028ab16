//! Trying again after "no space": freed space counts as free at once, but can be used only when its freeing is durable.

use super::FileCtx;
use crate::error::{Error, Result};

/// Commits after which an operation that has its space reserved stops waiting for it. What a commit frees may go to others
/// who had reserved before. While one operation insists nobody reserves freed space ([`crate::space::Space::freeze_reservations`]), so
/// those others become fewer.
const COMMITS_MAX: usize = 100;

/// What is done before an operation that found no space is tried again.
#[derive(Clone, Copy)]
pub enum Reclaim<'a> {
    /// Commit, again and again while that frees something. For steps of a writeback, whose space is reserved.
    Commit,
    /// Write back everything, which ends reservations for the worst case, and commit; once. For operations of programs.
    WriteBack(&'a dyn Fn()),
}

/// Does what needs space. If there is none, reclaims and tries again as long as there is something to be had by that. For
/// [`Reclaim::WriteBack`] nothing may be locked that writeback needs.
///
/// # Errors
/// What the last attempt brings, or [`crate::journal::Journal::commit`].
pub fn with_space<R>(cx: &FileCtx<'_>, reclaim: Reclaim<'_>, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
    let attempts = if matches!(reclaim, Reclaim::Commit) { COMMITS_MAX } else { 1 };
    let mut freeze = None;
    for _ in 0..attempts {
        let began = cx.space.epoch();
        match attempt() {
            Err(Error::NoSpace) => {}
            outcome => return outcome,
        }
        // What the attempt itself gave back counts too; then the next one may be in vain.
        let freed = cx.space.freed_since(began);
        match reclaim {
            Reclaim::Commit if freed => {
                freeze.get_or_insert_with(|| cx.space.freeze_reservations());
                cx.journal.commit()?;
            }
            Reclaim::WriteBack(write_back) if freed || cx.space.reserved() > 0 => {
                if cx.space.reserved() > 0 {
                    write_back();
                }
                if cx.space.pending_frees() > 0 {
                    cx.journal.commit()?;
                }
            }
            _ => return Err(Error::NoSpace),
        }
    }
    attempt()
}
