//! What to move, and where to.

use super::control::{Control, Progress};
use super::cost::{PARTS, Reader};
use super::segment::{Item, Segment, read_all};
use super::walk::{Visitor, walk};
use super::{MoveCtx, area, files, names};
use crate::error::Result;
use crate::format::{BlockAddr, Extent, Geometry, Ino};

/// Length of a segment, in groups: no transfer is longer.
const SEGMENT_GROUPS: u64 = 4;
/// A move has to save one in so many parts of the cost.
const GAIN_DIVISOR: u64 = 10;
/// A good place costs at most so many parts of a request more than the best that there can be.
const GOOD_PARTS: u64 = 2;
/// Bytes that are moved before a commit makes the space that they left usable again.
const COMMIT_BYTES: u64 = 8 << 20;
/// Emptying areas ends when the segments that went into the last one were less than one in so many parts of it.
const FILL_DIVISOR: u64 = 4;

/// What a regroup may do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes to move.
    pub budget: u64,
    /// Nothing is moved: only what would be gained is found out.
    pub dry_run: bool,
    /// Everything is moved, whatever it saves.
    pub always: bool,
}

/// Brings what is below the given directories back together: segments go into long free runs, best first in the order of
/// the name space. When those are used up, areas of the device are emptied for the rest.
///
/// # Errors
/// Those of the device and the journal, and what [`Control::check`] returns.
pub fn run(cx: &MoveCtx<'_>, roots: &[Ino], limits: Limits, control: &dyn Control) -> Result<()> {
    let mut planner = Planner::new(cx, limits, control);
    let mut first = true;
    loop {
        planner.pass(roots)?;
        if std::mem::take(&mut first) {
            planner.progress.before = planner.costs.map(|c| c[0]);
        }
        planner.progress.after = planner.costs.map(|c| c[1]);
        control.report(&planner.progress);
        if limits.dry_run || limits.always || planner.homeless == 0 || planner.left() == 0 {
            return Ok(());
        }
        if planner.emptied.take().is_some_and(|frags| planner.placed < frags / FILL_DIVISOR) {
            // What was emptied last was of little use.
            return planner.place_where_it_helps(roots);
        }
        let Some(area) = area::choose_area(cx, planner.homeless)? else { return planner.place_where_it_helps(roots) };
        let moved = area::empty(cx, area.clone(), planner.left(), control)?;
        planner.progress.bytes_moved += moved << planner.g.frag_shift;
        planner.emptied = Some(planner.g.frag_of_block(area.end - area.start));
        planner.start = Some(area.start);
    }
}

/// What is read in one order: data of small files, or names.
#[derive(Default)]
struct Sequence {
    segment: Segment,
    /// The group that a reader comes from: as it was, and as it is now.
    came_from: [Option<BlockAddr>; 2],
    /// Where the next segment would best go.
    near: Option<BlockAddr>,
}

struct Planner<'a> {
    cx: MoveCtx<'a>,
    g: Geometry,
    limits: Limits,
    control: &'a dyn Control,
    progress: Progress,
    /// Data and names.
    sequences: [Sequence; 2],
    /// Costs of both in this pass: as they were, and as they are now.
    costs: [[u64; 2]; 2],
    /// Fragments of segments that should move and have no good place, and of those that have moved, in this pass.
    homeless: u64,
    placed: u64,
    /// What the walk under way is for.
    kind: Kind,
    /// Any place that saves enough will do.
    lenient: bool,
    /// Fragments of the area that was emptied last, and its start.
    emptied: Option<u64>,
    start: Option<BlockAddr>,
    /// Bytes moved since the last commit.
    uncommitted: u64,
}

/// Which of the sequences.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data = 0,
    Names = 1,
}

/// New places, for either kind.
enum Places {
    Data(files::Places),
    Names(names::Places),
}

impl Places {
    fn reader(&self, cx: &MoveCtx<'_>, g: &Geometry, from: Option<BlockAddr>) -> Reader {
        match self {
            Places::Data(p) => read_all(g, from, p.all()),
            Places::Names(p) => read_all(g, from, p.all(cx)),
        }
    }

    fn cancel(self, cx: &MoveCtx<'_>) {
        match self {
            Places::Data(p) => p.cancel(cx),
            Places::Names(p) => p.cancel(cx),
        }
    }
}

impl<'a> Planner<'a> {
    fn new(cx: &MoveCtx<'a>, limits: Limits, control: &'a dyn Control) -> Planner<'a> {
        Planner {
            cx: *cx,
            g: *cx.file.cache.geometry(),
            limits,
            control,
            progress: Progress::default(),
            sequences: Default::default(),
            costs: Default::default(),
            homeless: 0,
            placed: 0,
            kind: Kind::Names,
            lenient: false,
            emptied: None,
            start: None,
            uncommitted: 0,
        }
    }

    /// Fragments that may still be moved.
    fn left(&self) -> u64 {
        self.limits.budget.saturating_sub(self.progress.bytes_moved) >> self.g.frag_shift
    }

    /// Goes through the tree once, and moves the segments that have a better place.
    fn pass(&mut self, roots: &[Ino]) -> Result<()> {
        (self.costs, self.homeless, self.placed) = (Default::default(), 0, 0);
        (self.progress.directories, self.progress.files) = (0, 0);
        let mut near = self.start.take();
        self.sequences = Default::default();
        let cx = self.cx;
        // All names first, so that they lie next to each other.
        for kind in [Kind::Names, Kind::Data] {
            self.kind = kind;
            self.sequences[kind as usize].near = near;
            for root in roots {
                walk(&cx, *root, self)?;
                self.finish(kind)?;
            }
            near = self.sequences[kind as usize].near.filter(|_| near.is_some());
        }
        self.commit()
    }

    /// A last pass: good places cannot be made any more, and what has a better one than now takes it.
    fn place_where_it_helps(&mut self, roots: &[Ino]) -> Result<()> {
        self.lenient = true;
        self.pass(roots)?;
        self.progress.after = self.costs.map(|c| c[1]);
        self.control.report(&self.progress);
        Ok(())
    }

    fn push(&mut self, kind: Kind, item: Item) -> Result<()> {
        let segment = &mut self.sequences[kind as usize].segment;
        segment.push(item);
        let full = segment.frags >= self.g.frag_of_block(SEGMENT_GROUPS * self.g.group_blocks());
        if full { self.finish(kind) } else { Ok(()) }
    }

    /// A segment is complete: as much of it as the budget allows moves, if that saves enough.
    fn finish(&mut self, kind: Kind) -> Result<()> {
        let mut segment = std::mem::take(&mut self.sequences[kind as usize].segment);
        let rest = segment.split_off(self.left().max(1));
        for segment in [segment, rest] {
            if segment.items.is_empty() {
                continue;
            }
            let (g, sequence) = (self.g, &self.sequences[kind as usize]);
            let ([was, is], near) = (sequence.came_from, sequence.near);
            let before = segment.reader(&g, was);
            let stays = segment.reader(&g, is);
            let moved = self.move_segment(&segment, stays.cost(), is, near, kind)?;
            let sequence = &mut self.sequences[kind as usize];
            if let Some(goes) = &moved {
                sequence.near = goes.last();
            }
            let after = moved.unwrap_or(stays);
            sequence.came_from = [before.last(), after.last()];
            sequence.near = sequence.near.or(after.last());
            let costs = &mut self.costs[kind as usize];
            costs[0] += before.cost();
            costs[1] += after.cost();
        }
        self.control.report(&self.progress);
        Ok(())
    }

    /// A reader of the segment where it has gone; `None` if it stays.
    fn move_segment(
        &mut self,
        segment: &Segment,
        stays: u64,
        from: Option<BlockAddr>,
        near: Option<BlockAddr>,
        kind: Kind,
    ) -> Result<Option<Reader>> {
        self.control.check()?;
        let (cx, g) = (self.cx, self.g);
        let bytes = segment.frags << g.frag_shift;
        let least = PARTS + segment.frags.div_ceil(g.frag_of_block(g.group_blocks())) - 1;
        let always = self.limits.always;
        let enough =
            |cost: u64| always || cost + PARTS <= stays + 1 && cost * GAIN_DIVISOR <= stays * (GAIN_DIVISOR - 1);
        if !enough(least) || segment.frags > self.left() {
            return Ok(None);
        }
        let first = segment.items[0].runs[0].start;
        let near = near.unwrap_or_else(|| g.group_of(g.block_of_frag(first)));
        let places = self.allocate(segment, near, kind)?;
        let good = |cost: u64| enough(cost) && (always || self.lenient || cost <= least + GOOD_PARTS);
        let goes = places.as_ref().map(|p| p.reader(&cx, &g, from));
        let (Some(places), Some(goes)) = (places, goes) else {
            self.homeless += segment.frags;
            return Ok(None);
        };
        if !good(goes.cost()) {
            places.cancel(&cx);
            self.homeless += segment.frags;
            return Ok(None);
        }
        if self.limits.dry_run {
            places.cancel(&cx);
            self.progress.bytes_moved += bytes;
            return Ok(Some(goes));
        }
        let moved = match places {
            Places::Data(p) => {
                let (frags, files) = files::relocate(&cx, &segment.items, p)?;
                self.progress.files_moved += files;
                frags
            }
            Places::Names(p) => {
                let blocks = names::relocate(&cx, &segment.items, p)?;
                self.progress.blocks_moved += blocks;
                g.frag_of_block(blocks)
            }
        };
        self.placed += moved;
        let moved = moved << g.frag_shift;
        self.progress.bytes_moved += moved;
        self.progress.bytes_kept += bytes.saturating_sub(moved);
        self.uncommitted += moved;
        if self.uncommitted >= COMMIT_BYTES {
            self.commit()?;
        }
        self.control.pace(2 * moved);
        Ok(Some(goes))
    }

    fn allocate(&mut self, segment: &Segment, near: BlockAddr, kind: Kind) -> Result<Option<Places>> {
        let cx = self.cx;
        let attempt = || -> Result<Option<Places>> {
            Ok(match kind {
                Kind::Data => files::allocate(&cx, &segment.items, near)?.map(Places::Data),
                Kind::Names => names::allocate(&cx, &segment.items, near)?.map(Places::Names),
            })
        };
        if let Some(places) = attempt()? {
            return Ok(Some(places));
        }
        if self.uncommitted == 0 {
            return Ok(None);
        }
        // What was moved has left space that becomes usable with the next commit.
        self.commit()?;
        attempt()
    }

    fn commit(&mut self) -> Result<()> {
        if std::mem::take(&mut self.uncommitted) == 0 { Ok(()) } else { self.cx.file.journal.commit() }
    }
}

impl Visitor for Planner<'_> {
    fn directory(&mut self, _ino: Ino) -> Result<bool> {
        self.control.check()?;
        self.progress.directories += u64::from(self.kind == Kind::Data);
        Ok(true)
    }

    fn wants(&self) -> [bool; 2] {
        [self.kind == Kind::Names, self.kind == Kind::Data]
    }

    fn block(&mut self, dir: Ino, lblock: u64, addr: BlockAddr) -> Result<()> {
        self.push(Kind::Names, Item::block(&self.g, dir, lblock, addr))
    }

    fn file(&mut self, ino: Ino, size: u64, extents: &[Extent]) -> Result<()> {
        self.progress.files += 1;
        if size > self.cx.file.placement.small_max() {
            return Ok(());
        }
        self.push(Kind::Data, Item::file(ino, extents))
    }
}
