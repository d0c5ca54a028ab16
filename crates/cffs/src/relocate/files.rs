//! Moving data of files: new places for it, and the move.

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
    let places = allocate_each(cx, items, &mut |_, frags| match plan.take() {
        Some(now) => {
            let (rest, run) = cx.file.placement.allocate_planned(now, frags)?;
            plan = rest;
            Ok(run)
        }
        // The plan is used up, or there are allocation groups that nothing was written to.
        None => anywhere(cx, near, frags),
    })?;
    if places.runs.iter().any(Vec::is_empty) {
        places.cancel(cx);
        return Ok(None);
    }
    Ok(Some(places))
}

/// Allocates a place for each item outside of an area, in the gap that fits it best. Those without one get none.
pub(super) fn allocate_outside(cx: &MoveCtx<'_>, items: &[Item], area: &Range<BlockAddr>) -> Result<Places> {
    let g = *cx.file.cache.geometry();
    let most = g.frag_of_block(g.group_blocks());
    let inside = |block: BlockAddr| area.contains(&block);
    allocate_each(cx, items, &mut |_, frags| {
        let gap = cx.file.space.alloc_best_fit(area.end, frags, frags..most.max(frags + 1), inside)?;
        let run = match gap {
            Some(run) => Some(run),
            None => anywhere(cx, area.end, frags)?,
        };
        // A gap may begin before the area, and the nearest place may lie in it.
        let outside = |run: &Run| !inside(g.block_of_frag(run.start)) && !inside(g.block_of_frag(run.end() - 1));
        if let Some(run) = run.filter(|run| !outside(run)) {
            cx.file.space.cancel(run);
            return Ok(None);
        }
        Ok(run)
    })
}

/// Allocates a place for each item in the first of its windows that has room. Those without one get none.
pub(super) fn allocate_in(cx: &MoveCtx<'_>, items: &[Item], windows: &[Vec<Range<FragAddr>>]) -> Result<Places> {
    allocate_each(cx, items, &mut |n, frags| {
        for window in &windows[n] {
            if let Some(run) = cx.file.space.alloc_in(window.clone(), frags)? {
                return Ok(Some(run));
            }
        }
        Ok(None)
    })
}

fn anywhere(cx: &MoveCtx<'_>, near: BlockAddr, frags: u64) -> Result<Option<Run>> {
    cx.file.space.alloc_near(cx.file.cache.geometry().frag_of_block(near), frags, frags)
}

/// One run for each item, as `find` finds it for its number and its fragments: a file in pieces becomes whole.
fn allocate_each(
    cx: &MoveCtx<'_>,
    items: &[Item],
    find: &mut dyn FnMut(usize, u64) -> Result<Option<Run>>,
) -> Result<Places> {
    let reservation = cx.file.space.reservation(None, false);
    let mut places = Places { runs: Vec::with_capacity(items.len()), reservation };
    for (n, item) in items.iter().enumerate() {
        let frags = item.frags();
        let found = match places.reservation.reserve(frags, false) {
            Ok(()) => find(n, frags),
            Err(Error::NoSpace) => {
                places.runs.push(Vec::new());
                continue;
            }
            Err(e) => Err(e),
        };
        match found {
            Ok(Some(run)) => {
                places.reservation.allocated(run.len);
                places.runs.push(vec![run]);
            }
            Ok(None) => {
                places.reservation.release(frags);
                places.runs.push(Vec::new());
            }
            Err(e) => {
                places.cancel(cx);
                return Err(e);
            }
        }
    }
    Ok(places)
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
