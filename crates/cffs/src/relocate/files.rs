//! Moving data of files: new places for it, and the move.

use super::MoveCtx;
use super::control::Control;
use super::readahead::Readahead;
use super::stretch::{Item, unit_frags};
use crate::error::{Error, Result};
use crate::file::relocate::{self, Copied, Move};
use crate::format::extent::EXTENT_LEN_MAX;
use crate::format::{BlockAddr, FragAddr, Run};
use crate::node::Node;
use crate::reservation::Reservation;
use crate::space::Copies;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes whose new places become durable together, and with one flush where others go first.
const TOGETHER_BYTES: u64 = 1 << 20;
/// Where units are placed, one in so many parts of their space more is looked for.
const UNITS_DIVISOR: u64 = 8;
/// Pieces of a file that has no gap of its length among its neighbours: all of them are read with these.
const PIECES: [u64; 4] = [1, 2, 4, 8];
/// Fragments of such a piece, at least.
const PIECE_FRAGS: u64 = 8;

/// New places for items: allocated, in no transaction yet.
pub(super) struct Places {
    /// The runs of each item.
    pub runs: Vec<Vec<Run>>,
    copies: Copies,
}

impl Places {
    /// The runs in the order of the items.
    pub fn all(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs.iter().flatten().copied()
    }

    fn fill_gaps(&self, cx: &MoveCtx<'_>, frags: u64, avoid: &[Range<FragAddr>]) -> Result<Vec<Run>> {
        let (mut runs, mut left) = (Vec::new(), frags);
        let reservation = self.copies.reservation();
        match reservation.reserve(frags, false) {
            Err(Error::NoSpace) => return Ok(runs),
            outcome => outcome?,
        }
        let outcome = loop {
            if left == 0 {
                return Ok(runs);
            }
            if runs.len() >= cx.file.space.pieces_max() {
                break Ok(Vec::new());
            }
            match cx.file.space.alloc_gap(left, avoid) {
                Ok(Some(run)) => {
                    reservation.allocated(run.len);
                    left -= run.len;
                    runs.push(run);
                }
                Ok(None) => break Ok(Vec::new()),
                Err(e) => break Err(e),
            }
        };
        runs.into_iter().for_each(|run| cancel(cx, reservation, run));
        reservation.release(frags);
        outcome
    }

    /// Places for so many fragments in windows, in as few pieces as possible. Empty where they have too little room.
    fn allocate_pieces(&self, cx: &MoveCtx<'_>, frags: u64, windows: &[Range<FragAddr>]) -> Result<Vec<Run>> {
        let reservation = self.copies.reservation();
        match reservation.reserve(frags, false) {
            Err(Error::NoSpace) => return Ok(Vec::new()),
            outcome => outcome?,
        }
        for pieces in PIECES.into_iter().filter(|n| *n == 1 || frags / n >= PIECE_FRAGS) {
            let mut runs = Vec::new();
            let outcome = fill_windows(cx, frags, frags.div_ceil(pieces), windows, &mut runs);
            runs.iter().for_each(|run: &Run| reservation.allocated(run.len));
            match outcome {
                Ok(true) => return Ok(runs),
                outcome => {
                    runs.into_iter().for_each(|run| cancel(cx, reservation, run));
                    outcome?;
                }
            }
        }
        reservation.release(frags);
        Ok(Vec::new())
    }

    /// A place for so many of the `left` fragments that are reserved: in this gap, or in the next one, or in pieces where none is so long.
    fn next_in_order(
        &self,
        cx: &MoveCtx<'_>,
        frags: u64,
        left: u64,
        gap: &mut Run,
        avoid: &[Range<FragAddr>],
    ) -> Result<Vec<Run>> {
        let reservation = self.copies.reservation();
        if gap.len < frags {
            self.return_gap(cx, gap);
            if let Some(next) = cx.file.space.alloc_gap(left, avoid)? {
                reservation.allocated(next.len);
                *gap = next;
            }
        }
        if gap.len < frags {
            self.return_gap(cx, gap);
            reservation.release(frags);
            return self.fill_gaps(cx, frags, avoid);
        }
        let run = Run { len: frags, ..*gap };
        *gap = Run { start: run.end(), len: gap.len - frags };
        Ok(vec![run])
    }

    /// Gives back what is left of a gap.
    fn return_gap(&self, cx: &MoveCtx<'_>, gap: &mut Run) {
        let left = std::mem::replace(gap, Run { start: 0, len: 0 });
        if left.len > 0 {
            cancel(cx, self.copies.reservation(), left);
        }
    }

    /// Gives the place of one item back.
    pub fn give_up(&mut self, cx: &MoveCtx<'_>, item: usize) {
        let reservation = self.copies.reservation();
        std::mem::take(&mut self.runs[item]).into_iter().for_each(|run| cancel(cx, reservation, run));
    }

    /// Gives all of it back.
    pub fn cancel(mut self, cx: &MoveCtx<'_>) {
        let reservation = self.copies.reservation();
        self.runs.drain(..).flatten().for_each(|run| cancel(cx, reservation, run));
    }
}

/// Allocates pieces of at most `most` fragments, each in the first of the windows that has room; false if there is too little.
fn fill_windows(
    cx: &MoveCtx<'_>,
    frags: u64,
    most: u64,
    windows: &[Range<FragAddr>],
    runs: &mut Vec<Run>,
) -> Result<bool> {
    let mut left = frags;
    while left > 0 {
        let before = left;
        for window in windows {
            if let Some(run) = cx.file.space.alloc_in(window.clone(), left.min(most))? {
                left -= run.len;
                runs.push(run);
                break;
            }
        }
        if left == before {
            return Ok(false);
        }
    }
    Ok(true)
}

fn cancel(cx: &MoveCtx<'_>, reservation: &Reservation, run: Run) {
    cx.file.space.cancel(run);
    reservation.deallocated(run.len);
}

/// Allocates places for items near a block, in free runs that have at least `least` fragments; or, if that is not more than four
/// groups, in those that are long or lie close together. `None` if there is too little space.
pub(super) fn allocate(cx: &MoveCtx<'_>, items: &[Item], near: BlockAddr, least: u64) -> Result<Option<Places>> {
    let frags: u64 = items.iter().map(Item::frags).sum();
    // For the ends of groups that units are kept out of.
    let left_out = if items.iter().any(|i| i.begins) { frags / UNITS_DIVISOR } else { 0 };
    let mut plan = cx.file.placement.plan_together(near, frags + left_out, least)?;
    let places = allocate_each(cx, items, &mut |n, frags| match plan.take() {
        Some(now) => {
            let (rest, run) = cx.file.placement.allocate_planned(now, frags, unit_frags(&items[n..]))?;
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

/// The same, leaving room, of which none is used. `None` too where there are no such runs.
pub(super) fn allocate_with_room(
    cx: &MoveCtx<'_>,
    items: &[Item],
    near: BlockAddr,
    least: u64,
) -> Result<Option<Places>> {
    let mut left: u64 = items.iter().map(Item::frags).sum();
    let (mut plan, mut failed) = (None, false);
    let places = allocate_each(cx, items, &mut |n, frags| {
        // What was planned may be used up, because room is left: then what is left is planned for anew.
        for _ in 0..if failed { 0 } else { 2 } {
            if plan.is_none() {
                plan = cx.file.placement.plan_with_room(near, left, least)?;
            }
            let Some(now) = plan.take() else { break };
            let (rest, run) = cx.file.placement.allocate_planned(now, frags, unit_frags(&items[n..]))?;
            plan = rest;
            if run.is_some() {
                left = left.saturating_sub(frags);
                return Ok(run);
            }
        }
        // Without a place for each they stay.
        failed = true;
        Ok(None)
    })?;
    if places.runs.iter().any(Vec::is_empty) {
        places.cancel(cx);
        return Ok(None);
    }
    Ok(Some(places))
}

/// Allocates places for each item outside of some parts of the device: the gap that fits it best, or else the longest ones. Those
/// without enough get none.
pub(super) fn allocate_gaps(cx: &MoveCtx<'_>, items: &[Item], avoid: &[Range<FragAddr>]) -> Result<Places> {
    let mut places = Places { runs: Vec::with_capacity(items.len()), copies: cx.file.space.copies() };
    for item in items {
        match places.fill_gaps(cx, item.frags(), avoid) {
            Ok(runs) => places.runs.push(runs),
            Err(e) => {
                places.cancel(cx);
                return Err(e);
            }
        }
    }
    Ok(places)
}

/// The same in the order of the items: as many as it has room for go into the gap that fits all of them best, or else the longest,
/// those behind them into the next one. So a reader in order comes to few places.
pub(super) fn allocate_gaps_in_order(cx: &MoveCtx<'_>, items: &[Item], avoid: &[Range<FragAddr>]) -> Result<Places> {
    let mut places = Places { runs: Vec::with_capacity(items.len()), copies: cx.file.space.copies() };
    let mut left: u64 = items.iter().map(Item::frags).sum();
    match places.copies.reservation().reserve(left, false) {
        Err(Error::NoSpace) => return allocate_gaps(cx, items, avoid),
        outcome => outcome?,
    }
    let mut gap = Run { start: 0, len: 0 };
    let outcome = items.iter().try_for_each(|item| {
        let frags = item.frags();
        let runs = places.next_in_order(cx, frags, left, &mut gap, avoid)?;
        places.runs.push(runs);
        left -= frags;
        Ok(())
    });
    places.return_gap(cx, &mut gap);
    match outcome {
        Ok(()) => Ok(places),
        Err(e) => {
            places.cancel(cx);
            Err(e)
        }
    }
}

/// Allocates a place for each item in the first of its windows that has room; where none has, in pieces. Those without a place get
/// none.
pub(super) fn allocate_in(cx: &MoveCtx<'_>, items: &[Item], windows: &[Vec<Range<FragAddr>>]) -> Result<Places> {
    let mut places = Places { runs: Vec::with_capacity(items.len()), copies: cx.file.space.copies() };
    for (item, windows) in items.iter().zip(windows) {
        match places.allocate_pieces(cx, item.frags(), windows) {
            Ok(runs) => places.runs.push(runs),
            Err(e) => {
                places.cancel(cx);
                return Err(e);
            }
        }
    }
    Ok(places)
}

/// Allocates a place for each item in the first of the windows that has room, in pieces where none has. `None` if one has no place.
pub(super) fn allocate_all_in(cx: &MoveCtx<'_>, items: &[Item], windows: &[Range<FragAddr>]) -> Result<Option<Places>> {
    let mut places = Places { runs: Vec::with_capacity(items.len()), copies: cx.file.space.copies() };
    for item in items {
        match places.allocate_pieces(cx, item.frags(), windows) {
            Ok(runs) if !runs.is_empty() => places.runs.push(runs),
            outcome => {
                places.cancel(cx);
                return outcome.map(|_| None);
            }
        }
    }
    Ok(Some(places))
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
    let mut places = Places { runs: Vec::with_capacity(items.len()), copies: cx.file.space.copies() };
    for (n, item) in items.iter().enumerate() {
        let frags = item.frags();
        let found = match places.copies.reservation().reserve(frags, false) {
            Ok(()) => find(n, frags),
            Err(Error::NoSpace) => {
                places.runs.push(Vec::new());
                continue;
            }
            Err(e) => Err(e),
        };
        match found {
            Ok(Some(run)) => {
                places.copies.reservation().allocated(run.len);
                places.runs.push(vec![run]);
            }
            Ok(None) => {
                places.copies.reservation().release(frags);
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

/// New places for one large file: allocated, in no transaction yet. They are used up from the start of the file on.
pub(super) struct Destination {
    runs: VecDeque<Run>,
    copies: Copies,
}

impl Destination {
    /// Allocates so many fragments in the fewest pieces that free space allows, but in at most `pieces`. `None` if there is too
    /// little space, or it is in too many pieces.
    pub fn allocate(cx: &MoveCtx<'_>, frags: u64, pieces: usize) -> Result<Option<Destination>> {
        let pieces = pieces.min(cx.file.space.pieces_max());
        let copies = cx.file.space.copies();
        match copies.reservation().reserve(frags, false) {
            Err(Error::NoSpace) => return Ok(None),
            outcome => outcome?,
        }
        let mut found = Destination { runs: VecDeque::new(), copies };
        match found.fill(cx, frags, pieces) {
            Ok(true) => Ok(Some(found)),
            outcome => {
                found.cancel(cx);
                outcome.map(|_| None)
            }
        }
    }

    fn fill(&mut self, cx: &MoveCtx<'_>, frags: u64, pieces: usize) -> Result<bool> {
        let per = cx.file.cache.geometry().frags_per_block();
        let (mut left, mut tries) = (frags, 0);
        while left > 0 {
            tries += 1;
            if self.pieces() > pieces || tries > pieces {
                return Ok(false);
            }
            let Some(free) = cx.file.space.run_for(left)? else { return Ok(false) };
            let mut window = free.start..free.end().min(free.start + left);
            while window.start < window.end {
                let len = (window.end - window.start).min(EXTENT_LEN_MAX / per * per);
                // Others may have taken it meanwhile.
                let Some(run) = cx.file.space.alloc_in(window.start..window.start + len, len)? else { break };
                self.copies.reservation().allocated(run.len);
                self.runs.push_back(run);
                left -= run.len;
                window.start = run.end();
            }
        }
        Ok(self.pieces() <= pieces)
    }

    /// The number of pieces.
    pub fn pieces(&self) -> usize {
        pieces(self.runs.iter().copied())
    }

    /// The places of the next items, of so many fragments each.
    pub fn take_each(&mut self, frags: impl Iterator<Item = u64>) -> Places {
        let runs = frags.map(|frags| self.take(frags)).collect();
        Places { runs, copies: self.copies.clone() }
    }

    fn take(&mut self, frags: u64) -> Vec<Run> {
        let (mut runs, mut left) = (Vec::new(), frags);
        while left > 0
            && let Some(run) = self.runs.pop_front()
        {
            let len = run.len.min(left);
            if run.len > len {
                self.runs.push_front(Run { start: run.start + len, len: run.len - len });
            }
            runs.push(Run { len, ..run });
            left -= len;
        }
        runs
    }

    /// Gives back what was not taken.
    pub fn cancel(mut self, cx: &MoveCtx<'_>) {
        let reservation = self.copies.reservation();
        self.runs.drain(..).for_each(|run| cancel(cx, reservation, run));
    }
}

/// In how many pieces runs lie that are read one after the other.
pub(super) fn pieces(runs: impl Iterator<Item = Run>) -> usize {
    let (mut count, mut end) = (0, None);
    for run in runs {
        count += usize::from(end != Some(run.start));
        end = Some(run.end());
    }
    count
}

/// Moves files to their new places, at the rate that `control` says, as far as there are blocks for their trees. Returns how many
/// fragments, and how many files.
pub(super) fn relocate(cx: &MoveCtx<'_>, items: &[Item], places: Places, control: &dyn Control) -> Result<(u64, u64)> {
    let Places { runs, copies } = places;
    let shift = cx.file.cache.geometry().frag_shift;
    let most = control.most_at_once() >> shift;
    let mut sum = (0, 0);
    let to_move: Vec<(&Item, Vec<Run>)> = items.iter().zip(runs).filter(|(_, runs)| !runs.is_empty()).collect();
    let mut ahead = Readahead::new(to_move.iter().map(|(item, _)| *item).collect());
    let mut left = to_move.into_iter().peekable();
    while left.peek().is_some() {
        let mut under_way = Move::new(control.gives_way());
        let (mut written, mut files, mut failed) = (0, 0, None);
        while failed.is_none() && left.peek().is_some() && written << shift < TOGETHER_BYTES {
            let (mut batch, mut frags) = (Vec::new(), 0);
            while let Some(next) = left.next_if(|(item, _)| frags == 0 || frags + item.frags() <= most) {
                frags += next.0.frags();
                batch.push(next);
            }
            let (copied, outcome) = read_batch(cx, batch, &mut ahead, &copies, control);
            let frags: u64 = copied.iter().map(|(c, _)| c.frags()).sum();
            let of_files = copied.chunk_by(|(a, _), (b, _)| a.is_of_same_file(b)).count();
            (written, files, failed) = (written + frags, files + of_files as u64, outcome.err());
            control.give_way();
            under_way.write(&cx.file, copied, copies.reservation());
            control.pace((2 * frags) << shift);
        }
        control.give_way();
        let outcome = under_way.commit(&cx.file).and_then(|moved| failed.map_or(Ok(moved), Err));
        match outcome {
            Ok(moved) => {
                copies.stored(moved);
                sum = (sum.0 + moved, sum.1 + files);
            }
            Err(e) => {
                left.flat_map(|(_, runs)| runs).for_each(|run| cancel(cx, copies.reservation(), run));
                // Without a block for a tree nothing of the batch has moved.
                return if matches!(e, Error::NoSpace) { Ok(sum) } else { Err(e) };
            }
        }
    }
    Ok(sum)
}

/// Reads files, and gives the places back of those that stay where they are. After an error of the file system none is read.
fn read_batch(
    cx: &MoveCtx<'_>,
    batch: Vec<(&Item, Vec<Run>)>,
    ahead: &mut Readahead<'_>,
    copies: &Copies,
    control: &dyn Control,
) -> (Vec<(Copied, Vec<Run>)>, Result<()>) {
    let reservation = copies.reservation();
    let mut copied: Vec<(Copied, Vec<Run>)> = Vec::with_capacity(batch.len());
    let mut outcome = Ok(());
    for (item, runs) in batch {
        let read = if outcome.is_err() {
            Ok(None)
        } else {
            ahead.next(cx, control);
            control.give_way();
            read(cx, item, ahead)
        };
        match read {
            Ok(Some(m)) if m.frags() == item.frags() => {
                copied.push((m, runs));
                continue;
            }
            Ok(_) | Err(Error::Stale | Error::Corrupt(_)) => {}
            Err(Error::Io(e)) => tracing::warn!("inode {} stays where it is: {e}", item.ino),
            Err(e) => outcome = Err(e),
        }
        runs.into_iter().for_each(|r| cancel(cx, reservation, r));
    }
    (copied, outcome)
}

fn read(cx: &MoveCtx<'_>, item: &Item, ahead: &Readahead<'_>) -> Result<Option<Copied>> {
    let node: Arc<Node> = cx.inodes.get(cx.file.cache, item.ino)?;
    relocate::read(&cx.file, &node, item.logical.clone(), &|block| ahead.has_brought(block))
}
