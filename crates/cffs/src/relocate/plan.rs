//! What to move, and where to.

use super::control::{Control, Progress};
use super::cost::{PARTS, Reader};
use super::segment::{Item, Segment, read_all};
use super::walk::{Visitor, walk};
use super::{MoveCtx, files, names};
use crate::error::Result;
use crate::format::{BlockAddr, Geometry, Ino};

/// Length of a segment, in groups.
const SEGMENT_GROUPS: u64 = 16;
/// A move has to save one in so many parts of the cost.
const GAIN_DIVISOR: u64 = 10;
/// Bytes that are moved before a commit makes the space that they left usable again.
const COMMIT_BYTES: u64 = 8 << 20;

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

/// Brings what is below the given directories back together.
///
/// # Errors
/// Those of the device and the journal, and what [`Control::check`] returns.
pub fn run(cx: &MoveCtx<'_>, roots: &[Ino], limits: Limits, control: &dyn Control) -> Result<Progress> {
    let mut planner = Planner {
        cx: *cx,
        g: *cx.file.cache.geometry(),
        limits,
        control,
        progress: Progress::default(),
        data: Sequence::default(),
        names: Sequence::default(),
        uncommitted: 0,
    };
    let outcome = roots.iter().try_for_each(|root| {
        walk(cx, *root, &mut planner)?;
        planner.finish_segments()
    });
    control.report(&planner.progress);
    outcome.map(|()| planner.progress)
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
    data: Sequence,
    names: Sequence,
    uncommitted: u64,
}

/// New places, for either kind.
enum Places {
    Data(files::Places),
    Names(names::Places),
}

impl Planner<'_> {
    fn segment_frags(&self) -> u64 {
        self.g.frag_of_block(SEGMENT_GROUPS * self.g.group_blocks())
    }

    fn finish_segments(&mut self) -> Result<()> {
        self.finish(false)?;
        self.finish(true)
    }

    fn sequence(&mut self, of_names: bool) -> &mut Sequence {
        if of_names { &mut self.names } else { &mut self.data }
    }

    /// Moves a segment that is complete, if that saves enough.
    fn finish(&mut self, of_names: bool) -> Result<()> {
        let g = self.g;
        let mut segment = std::mem::take(&mut self.sequence(of_names).segment);
        let left = self.limits.budget.saturating_sub(self.progress.bytes_moved) >> g.frag_shift;
        let rest = segment.split_off(left.max(1));
        for segment in [segment, rest] {
            self.finish_segment(&segment, of_names)?;
        }
        Ok(())
    }

    fn finish_segment(&mut self, segment: &Segment, of_names: bool) -> Result<()> {
        let g = self.g;
        if segment.items.is_empty() {
            return Ok(());
        }
        let sequence = self.sequence(of_names);
        let [was, is] = sequence.came_from;
        let near = sequence.near;
        let before = segment.reader(&g, was);
        let stays = segment.reader(&g, is);
        let after = self.move_segment(segment, &stays, is, near, of_names)?.unwrap_or(stays);
        let sequence = self.sequence(of_names);
        sequence.came_from = [before.last(), after.last()];
        sequence.near = after.last().or(sequence.near);
        let kind = usize::from(of_names);
        self.progress.before[kind] += before.cost();
        self.progress.after[kind] += after.cost();
        self.control.report(&self.progress);
        Ok(())
    }

    /// A reader of the segment where it has gone; `None` if it stays.
    fn move_segment(
        &mut self,
        segment: &Segment,
        stays: &Reader,
        from: Option<BlockAddr>,
        near: Option<BlockAddr>,
        of_names: bool,
    ) -> Result<Option<Reader>> {
        self.control.check()?;
        let g = self.g;
        let bytes = segment.frags << g.frag_shift;
        let least = PARTS + segment.frags.div_ceil(g.frag_of_block(g.group_blocks())) - 1;
        let always = self.limits.always;
        let enough = |cost: u64| {
            always || cost + PARTS <= stays.cost() && cost * GAIN_DIVISOR <= stays.cost() * (GAIN_DIVISOR - 1)
        };
        if !enough(least) || self.progress.bytes_moved + bytes > self.limits.budget {
            return Ok(None);
        }
        let first = segment.items[0].runs[0].start;
        let near = near.unwrap_or_else(|| g.group_of(g.block_of_frag(first)));
        let Some(places) = self.allocate(segment, near, of_names)? else { return Ok(None) };
        let goes = match &places {
            Places::Data(p) => read_all(&g, from, p.all()),
            Places::Names(p) => read_all(&g, from, p.all(&self.cx)),
        };
        if !enough(goes.cost()) || self.limits.dry_run {
            match places {
                Places::Data(p) => p.cancel(&self.cx),
                Places::Names(p) => p.cancel(&self.cx),
            }
            if !enough(goes.cost()) {
                return Ok(None);
            }
            self.progress.bytes_moved += bytes;
            return Ok(Some(goes));
        }
        let moved = match places {
            Places::Data(p) => {
                let (frags, files) = files::relocate(&self.cx, &segment.items, p)?;
                self.progress.files_moved += files;
                frags << g.frag_shift
            }
            Places::Names(p) => {
                let blocks = names::relocate(&self.cx, &segment.items, p)?;
                self.progress.blocks_moved += blocks;
                blocks << g.block_shift
            }
        };
        self.progress.bytes_moved += moved;
        self.progress.bytes_kept += bytes.saturating_sub(moved);
        self.uncommitted += moved;
        if self.uncommitted >= COMMIT_BYTES {
            self.commit()?;
        }
        self.control.pace(2 * moved);
        Ok(Some(goes))
    }

    fn allocate(&mut self, segment: &Segment, near: BlockAddr, of_names: bool) -> Result<Option<Places>> {
        let cx = self.cx;
        let attempt = || -> Result<Option<Places>> {
            Ok(if of_names {
                names::allocate(&cx, &segment.items, near)?.map(Places::Names)
            } else {
                files::allocate(&cx, &segment.items, near)?.map(Places::Data)
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
        self.uncommitted = 0;
        self.cx.file.journal.commit()
    }
}

impl Visitor for Planner<'_> {
    fn directory(&mut self, _ino: Ino) -> Result<bool> {
        self.control.check()?;
        self.progress.directories += 1;
        Ok(true)
    }

    fn block(&mut self, item: Item) -> Result<()> {
        self.names.segment.push(item);
        if self.names.segment.frags >= self.segment_frags() { self.finish(true) } else { Ok(()) }
    }

    fn file(&mut self, item: Item, size: u64) -> Result<()> {
        self.progress.files += 1;
        if size > self.cx.file.placement.small_max() {
            return Ok(());
        }
        self.data.segment.push(item);
        if self.data.segment.frags >= self.segment_frags() { self.finish(false) } else { Ok(()) }
    }
}
