//! Large files that lie in more pieces than they need: each goes into the fewest pieces that free space allows.
//!
//! All of the destination is allocated first, because a file that gets half way would lie in more pieces than before. Then the
//! file is moved a part at a time, so that a file of any size takes little memory.

use super::MoveCtx;
use super::control::{Control, Limits, Progress};
use super::files::{self, Destination, pieces};
use super::keyed;
use super::pace::Uncommitted;
use super::stretch::Item;
use super::walk::{Visitor, walk};
use crate::colocation::Order;
use crate::error::{Error, Result};
use crate::extent;
use crate::format::extent::LOGICAL_END;
use crate::format::{Extent, FileType, Ino, Run};
use crate::placement::STREAM_MIN;

/// Files whose average piece is so long or longer stay: a disk reads such pieces nearly as fast as one.
const PIECE_ENOUGH: u64 = STREAM_MIN;
/// A new place has at most one piece for so many of the old one.
const GAIN_FACTOR: usize = 2;
/// Files that are remembered, those that gain most. The others follow in the next regroup.
const CANDIDATES_MAX: usize = 1 << 17;
/// Most bytes that are moved at once.
const PART_BYTES: u64 = 4 << 20;

/// A file that should move.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Bytes to be moved for each piece less, at best. The lowest comes first.
    price: u64,
    ino: Ino,
}

/// Brings the large files below the given directories into the fewest pieces that free space allows, those that save most
/// requests for their bytes first.
///
/// # Errors
/// Those of the device and the journal, and what [`Control::check`] returns.
pub fn run(
    cx: &MoveCtx<'_>,
    roots: &[Ino],
    limits: Limits,
    control: &dyn Control,
    progress: &mut Progress,
) -> Result<()> {
    let mut large =
        Large { cx: *cx, limits, control, progress, candidates: Vec::new(), uncommitted: Uncommitted::default() };
    large.progress.pieces = Some([0; 2]);
    for root in roots {
        walk(cx, *root, &mut large)?;
    }
    large.report();
    let mut candidates = std::mem::take(&mut large.candidates);
    candidates.sort_unstable();
    candidates.truncate(CANDIDATES_MAX);
    // What was moved has left room for others, so it goes on until nothing finds a better place any more.
    while large.pass(&candidates)? && !limits.dry_run && !limits.always {}
    Ok(())
}

struct Large<'a> {
    cx: MoveCtx<'a>,
    limits: Limits,
    control: &'a dyn Control,
    progress: &'a mut Progress,
    candidates: Vec<Candidate>,
    uncommitted: Uncommitted,
}

impl Large<'_> {
    fn report(&self) {
        self.control.report(self.progress);
    }

    fn left(&self) -> u64 {
        self.limits.budget.saturating_sub(self.progress.bytes_moved)
    }

    fn shift(&self) -> u32 {
        self.cx.file.cache.geometry().frag_shift
    }

    /// Whether a file with these extents should move, and how much that costs. `None`: it stays.
    fn price(&self, frags: u64, now: usize) -> Option<u64> {
        let bytes = frags << self.shift();
        let comes_apart = now > 1 && bytes / (now as u64) < PIECE_ENOUGH;
        (self.limits.always || comes_apart).then(|| bytes / (now as u64).saturating_sub(1).max(1))
    }

    fn note(&mut self, candidate: Candidate) {
        self.candidates.push(candidate);
        if self.candidates.len() >= 2 * CANDIDATES_MAX {
            self.candidates.sort_unstable();
            self.candidates.truncate(CANDIDATES_MAX);
        }
    }

    /// Looks at each of the files once. Says whether any has moved.
    fn pass(&mut self, candidates: &[Candidate]) -> Result<bool> {
        let mut any = false;
        self.progress.bytes_waiting = 0;
        for c in candidates {
            any |= self.bring_together(c.ino)?;
        }
        self.uncommitted.commit(&self.cx)?;
        self.report();
        Ok(any)
    }

    /// Moves a file, if there is a place that is so much better. True if it lies there now.
    fn bring_together(&mut self, ino: Ino) -> Result<bool> {
        self.control.check()?;
        let extents = match extents(&self.cx, ino) {
            Ok(extents) => extents,
            // Gone, or damaged.
            Err(Error::Stale | Error::Corrupt(_)) => return Ok(false),
            Err(e) => return Err(e),
        };
        let (frags, now) = size(&extents);
        if self.price(frags, now).is_none() || frags == 0 || frags << self.shift() > self.left() {
            return Ok(false);
        }
        let most = if self.limits.always { usize::MAX } else { now / GAIN_FACTOR };
        let Some(mut to) = self.allocate(frags, most)? else {
            self.progress.bytes_waiting += frags << self.shift();
            return Ok(false);
        };
        let after = to.pieces();
        if self.limits.dry_run {
            self.progress.bytes_moved += frags << self.shift();
            self.note_pieces(now, after);
            to.cancel(&self.cx);
            self.report();
            return Ok(true);
        }
        let outcome = self.relocate(ino, &extents, &mut to);
        to.cancel(&self.cx);
        let complete = outcome?;
        self.progress.files_moved += u64::from(complete);
        let after = if complete { after } else { self::extents(&self.cx, ino).map_or(now, |e| size(&e).1) };
        self.note_pieces(now, after);
        self.report();
        Ok(complete)
    }

    /// A file has so many pieces instead of so many.
    fn note_pieces(&mut self, before: usize, after: usize) {
        if let Some([_, is]) = &mut self.progress.pieces {
            *is = (*is + after as u64).saturating_sub(before as u64);
        }
    }

    fn allocate(&mut self, frags: u64, most: usize) -> Result<Option<Destination>> {
        if let Some(to) = Destination::allocate(&self.cx, frags, most)? {
            return Ok(Some(to));
        }
        // What was moved has left space that becomes usable with the next commit.
        if self.uncommitted.commit(&self.cx)? { Destination::allocate(&self.cx, frags, most) } else { Ok(None) }
    }

    /// Moves a file part by part. False if it changed meanwhile: what has moved by then stays, and so does the rest.
    fn relocate(&mut self, ino: Ino, extents: &[Extent], to: &mut Destination) -> Result<bool> {
        let part = PART_BYTES.min(self.control.most_at_once()) >> self.shift();
        for items in parts(ino, extents, part.max(1)) {
            self.control.check()?;
            let frags: u64 = items.iter().map(Item::frags).sum();
            let places = to.take_each(items.iter().map(Item::frags));
            let (moved, _) = files::relocate(&self.cx, &items, places, self.control)?;
            let bytes = moved << self.shift();
            self.progress.bytes_moved += bytes;
            self.progress.bytes_kept += (frags - moved) << self.shift();
            self.uncommitted.add(&self.cx, bytes)?;
            self.report();
            if moved < frags {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The extents of a file; none if it is no regular file.
fn extents(cx: &MoveCtx<'_>, ino: Ino) -> Result<Vec<Extent>> {
    let node = cx.inodes.get(cx.file.cache, ino)?;
    let st = node.state.read();
    let mut extents = Vec::new();
    if st.freed || st.inode.file_type() != FileType::Regular {
        return Ok(extents);
    }
    extent::for_each(cx.file.cache, &st.inode, 0..LOGICAL_END, |e| {
        extents.push(e);
        Ok(())
    })?;
    Ok(extents)
}

/// Fragments and pieces.
fn size(extents: &[Extent]) -> (u64, usize) {
    (extents.iter().map(|e| e.len).sum(), pieces(extents.iter().map(|e| Run { start: e.start, len: e.len })))
}

/// A file as lists of items of at most so many fragments each, in its order.
fn parts(ino: Ino, extents: &[Extent], most: u64) -> impl Iterator<Item = Vec<Item>> + '_ {
    let (mut at, mut done) = (0, 0);
    std::iter::from_fn(move || {
        let (mut items, mut left) = (Vec::new(), most);
        while left > 0
            && let Some(e) = extents.get(at)
        {
            let len = left.min(e.len - done);
            let part = Extent { logical: e.logical + done, start: e.start + done, len, ..*e };
            items.push(Item::extent(ino, &part));
            (left, done) = (left - len, done + len);
            if done == e.len {
                (at, done) = (at + 1, 0);
            }
        }
        (!items.is_empty()).then_some(items)
    })
}

impl Visitor for Large<'_> {
    fn directory(&mut self, _ino: Ino) -> Result<bool> {
        self.control.check()?;
        self.progress.directories += 1;
        Ok(true)
    }

    fn file(&mut self, ino: Ino, size_in_bytes: u64, extents: &[Extent]) -> Result<()> {
        self.progress.files += 1;
        if size_in_bytes <= self.cx.file.placement.small_max() && !self.limits.always {
            return Ok(());
        }
        let (frags, now) = size(extents);
        self.progress.pieces = self.progress.pieces.map(|pieces| pieces.map(|n| n + now as u64));
        if let Some(price) = self.price(frags, now) {
            self.note(Candidate { price, ino });
        }
        Ok(())
    }

    fn file_of_unit(&mut self, (unit, _): (Ino, Order), ino: Ino, size: u64, extents: &[Extent]) -> Result<()> {
        // Parts that lie with other files are where they should be.
        if keyed::parts(&self.cx, unit, ino).is_empty() || self.limits.always {
            return self.file(ino, size, extents);
        }
        self.progress.files += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_none_is_too_long() {
        let e = |logical, start, len| Extent { logical, start, len, unwritten: false };
        let extents = [e(0, 100, 5), e(9, 300, 12), e(21, 50, 1)];
        let all: Vec<Vec<Item>> = parts(7, &extents, 8).collect();
        let sizes: Vec<u64> = all.iter().map(|items| items.iter().map(Item::frags).sum()).collect();
        assert_eq!(sizes, [8, 8, 2]);
        let runs: Vec<(u64, u64, u64)> =
            all.iter().flatten().map(|i| (i.logical.start, i.runs[0].start, i.runs[0].len)).collect();
        assert_eq!(runs, [(0, 100, 5), (9, 300, 3), (12, 303, 8), (20, 311, 1), (21, 50, 1)]);
    }
}
