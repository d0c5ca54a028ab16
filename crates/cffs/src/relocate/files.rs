//! Copied data of files.

use super::MoveCtx;
use super::segment::Item;
use crate::error::{Error, Result};
use crate::file::relocate::{self, Copied};
use crate::format::extent::LOGICAL_END;
use crate::format::{BlockAddr, Run};
use crate::node::Node;
use crate::reservation::Reservation;
use std::sync::Arc;

/// New places for items: allocated, in no transaction yet.
pub(super) struct Places {
    /// The runs of each item.
    pub runs: Vec<Vec<Run>>,
    reservation: Reservation,
}

impl Places {
    /// The runs in the order of the items.
    pub fn all(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs.iter().flatten().copied()
    }

    /// Gives all of it back.
    pub fn cancel(mut self, cx: &MoveCtx<'_>) {
        self.runs.drain(..).flatten().for_each(|run| cancel(cx, &self.reservation, run));
    }
}

fn cancel(cx: &MoveCtx<'_>, reservation: &Reservation, run: Run) {
    cx.file.space.cancel(run);
    reservation.deallocated(run.len);
}

/// Allocates places for items near a block, in free runs that are long or lie close together. `None` if there is too little
/// space.
pub(super) fn allocate(cx: &MoveCtx<'_>, items: &[Item], near: BlockAddr) -> Result<Option<Places>> {
    let g = cx.file.cache.geometry();
    let frags: u64 = items.iter().map(Item::frags).sum();
    let reservation = cx.file.space.reservation(None, false);
    match reservation.reserve(frags, false) {
        Err(Error::NoSpace) => return Ok(None),
        outcome => outcome?,
    }
    let mut places = Places { runs: Vec::with_capacity(items.len()), reservation };
    let mut cursor = cx.file.placement.plan_together(near, frags)?;
    for item in items {
        let mut runs = Vec::new();
        // Runs that follow each other in a file are one place: a file in pieces becomes whole.
        let want = item.frags();
        let run = match cursor.take() {
            Some(c) => {
                let (next, run) = cx.file.placement.allocate_planned(c, want)?;
                cursor = next;
                run
            }
            // The plan is used up, or there are allocation groups that nothing was written to.
            None => cx.file.space.alloc_near(g.frag_of_block(near), want, want)?,
        };
        let Some(run) = run else {
            places.cancel(cx);
            return Ok(None);
        };
        places.reservation.allocated(run.len);
        runs.push(run);
        places.runs.push(runs);
    }
    Ok(Some(places))
}

/// Moves files to their new places. Returns how many fragments, and how many files.
pub(super) fn relocate(cx: &MoveCtx<'_>, items: &[Item], places: Places) -> Result<(u64, u64)> {
    let Places { runs, reservation } = places;
    let mut copied: Vec<(Copied, Vec<Run>)> = Vec::with_capacity(items.len());
    let mut failed = None;
    for (item, runs) in items.iter().zip(runs) {
        let read = if failed.is_some() { Ok(None) } else { read(cx, item) };
        match read {
            Ok(Some(m)) if m.frags() == item.frags() => copied.push((m, runs)),
            Ok(_) | Err(Error::Stale | Error::Corrupt(_)) => runs.into_iter().for_each(|r| cancel(cx, &reservation, r)),
            Err(Error::Io(e)) => {
                tracing::warn!("inode {} stays where it is: {e}", item.ino);
                runs.into_iter().for_each(|r| cancel(cx, &reservation, r));
            }
            Err(e) => {
                failed = Some(e);
                runs.into_iter().for_each(|r| cancel(cx, &reservation, r));
            }
        }
    }
    let files = copied.len() as u64;
    let moved = relocate::write(&cx.file, copied, &reservation)?;
    failed.map_or(Ok((moved, files)), Err)
}

fn read(cx: &MoveCtx<'_>, item: &Item) -> Result<Option<Copied>> {
    let node: Arc<Node> = cx.inodes.get(cx.file.cache, item.ino)?;
    relocate::read(&cx.file, &node, 0..LOGICAL_END)
}
