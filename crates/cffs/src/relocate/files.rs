//! Copied data of files.

use super::MoveCtx;
use super::stretch::Item;
use crate::error::{Error, Result};
use crate::file::relocate::{self, Copied};
use crate::format::{BlockAddr, FragAddr, Run};
use crate::node::Node;
use crate::reservation::Reservation;
use std::ops::Range;
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
    let frags = items.iter().map(Item::frags).sum();
    let mut plan = cx.file.placement.plan_together(near, frags)?;
    allocate_each(cx, items, &mut |frags| match plan.take() {
        Some(now) => {
            let (rest, run) = cx.file.placement.allocate_planned(now, frags)?;
            plan = rest;
            Ok(run)
        }
        // The plan is used up, or there are allocation groups that nothing was written to.
        None => anywhere(cx, near, frags),
    })
}

/// Allocates places for items in the gaps that fit them best, wherever they are. `None` if there is too little space.
pub(super) fn allocate_in_gaps(cx: &MoveCtx<'_>, items: &[Item], near: BlockAddr) -> Result<Option<Places>> {
    let g = cx.file.cache.geometry();
    let most = g.frag_of_block(g.group_blocks());
    allocate_each(cx, items, &mut |frags| {
        let gap = cx.file.space.alloc_best_fit(near, frags, frags..most.max(frags + 1), |_| false)?;
        gap.map_or_else(|| anywhere(cx, near, frags), |run| Ok(Some(run)))
    })
}

/// Allocates a place for each item in the first of its windows that has room; those without one get none.
pub(super) fn allocate_in(cx: &MoveCtx<'_>, items: &[Item], windows: &[Vec<Range<FragAddr>>]) -> Result<Places> {
    let reservation = cx.file.space.reservation(None, false);
    let mut places = Places { runs: Vec::with_capacity(items.len()), reservation };
    for (item, windows) in items.iter().zip(windows) {
        let frags = item.frags();
        let mut found = None;
        match places.reservation.reserve(frags, false) {
            Ok(()) => {}
            Err(Error::NoSpace) => {
                places.runs.push(Vec::new());
                continue;
            }
            Err(e) => return Err(e),
        }
        for window in windows {
            found = cx.file.space.alloc_in(window.clone(), frags)?;
            if found.is_some() {
                break;
            }
        }
        match found {
            Some(run) => places.reservation.allocated(run.len),
            None => places.reservation.release(frags),
        }
        places.runs.push(found.into_iter().collect());
    }
    Ok(places)
}

fn anywhere(cx: &MoveCtx<'_>, near: BlockAddr, frags: u64) -> Result<Option<Run>> {
    cx.file.space.alloc_near(cx.file.cache.geometry().frag_of_block(near), frags, frags)
}

/// One run for each item: a file in pieces becomes whole.
fn allocate_each(
    cx: &MoveCtx<'_>,
    items: &[Item],
    find: &mut dyn FnMut(u64) -> Result<Option<Run>>,
) -> Result<Option<Places>> {
    let reservation = cx.file.space.reservation(None, false);
    match reservation.reserve(items.iter().map(Item::frags).sum(), false) {
        Err(Error::NoSpace) => return Ok(None),
        outcome => outcome?,
    }
    let mut places = Places { runs: Vec::with_capacity(items.len()), reservation };
    for item in items {
        match find(item.frags()) {
            Ok(Some(run)) => {
                places.reservation.allocated(run.len);
                places.runs.push(vec![run]);
            }
            outcome => {
                places.cancel(cx);
                return outcome.map(|_| None);
            }
        }
    }
    Ok(Some(places))
}

/// Moves files to their new places. Returns how many fragments, and how many files.
pub(super) fn relocate(cx: &MoveCtx<'_>, items: &[Item], places: Places) -> Result<(u64, u64)> {
    let Places { runs, reservation } = places;
    let mut copied: Vec<(Copied, Vec<Run>)> = Vec::with_capacity(items.len());
    let mut failed = None;
    for (item, runs) in items.iter().zip(runs).filter(|(_, runs)| !runs.is_empty()) {
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
    relocate::read(&cx.file, &node, item.logical.clone())
}
