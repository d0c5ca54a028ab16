//! What lies together in the file system and apart on the device.
//!
//! A device with its own order of what it stores, as a log disk, has each block where it was written last. Names and small files that are read one after the
//! other are brought together there by the device itself: for the file system nothing changes, and no name that says where something lies has
//! to be written for it.

use super::MoveCtx;
use super::control::{Control, Limits, Progress};
use super::cost::{PARTS, Reader};
use super::stretch::{Item, Stretch};
use super::walk::{Visitor, walk};
use crate::addr_map::AddrMap;
use crate::colocation::Order;
use crate::error::Result;
use crate::format::{BlockAddr, Extent, Geometry, Ino};
use std::ops::Range;

/// Length of a stretch, in groups: no transfer is longer.
const STRETCH_GROUPS: u64 = 4;
/// From when on a stretch is brought together: as the times that it costs what it would.
pub const ANY: u64 = 1;
/// The same for who has to count the bytes.
pub const MUCH: u64 = 3;

/// Blocks that a word of [`Seen`] is about, and its words at most: 24 MiB, for 256 GiB of small files in blocks of 4 KiB.
const WORD_BLOCKS: u64 = 64;
const WORDS_MAX: usize = 1 << 20;

/// Blocks of stretches before this one: each is brought to one of them only, because files of several may have a part of it. Beyond its size nothing more is
/// brought anywhere.
#[derive(Default)]
struct Seen(AddrMap<u64, u64>);

impl Seen {
    /// Whether a block is seen for the first time.
    fn insert(&mut self, block: BlockAddr) -> bool {
        let (word, bit) = (block / WORD_BLOCKS, 1 << (block % WORD_BLOCKS));
        if self.0.len() >= WORDS_MAX && !self.0.contains_key(&word) {
            return false;
        }
        let seen = self.0.entry(word).or_default();
        let is_new = *seen & bit == 0;
        *seen |= bit;
        is_new
    }
}

/// Brings together what is apart on the device below some directories, if it has an order of its own. Goes on from the progress so far, up to the budget, in the
/// order of the name space. Returns what reading the data of small files costs on the device then, and reading the names, and whether anything was left for want
/// of budget; `None` if the device has no order of its own.
///
/// # Errors
/// Those of the device and the journal, and what [`Control::check`] returns.
pub fn run(
    cx: &MoveCtx<'_>,
    roots: &[Ino],
    worth: u64,
    limits: Limits,
    control: &dyn Control,
    progress: &mut Progress,
) -> Result<Option<([u64; 2], bool)>> {
    if !cx.file.space.is_thin() {
        return Ok(None);
    }
    // The device knows what is written.
    cx.file.journal.commit()?;
    let mut arranger = Arranger { worth, ..Arranger::new(cx, Some(limits), control, progress) };
    let costs = arranger.all(roots)?;
    let left = arranger.left;
    control.report(progress);
    Ok(Some((costs, left)))
}

/// What the same costs as it is.
///
/// # Errors
/// As for [`run`].
pub(super) fn costs(cx: &MoveCtx<'_>, roots: &[Ino], control: &dyn Control) -> Result<Option<[u64; 2]>> {
    if !cx.file.space.is_thin() {
        return Ok(None);
    }
    cx.file.journal.commit()?;
    Arranger::new(cx, None, control, &mut Progress::default()).all(roots).map(Some)
}

struct Arranger<'a> {
    cx: MoveCtx<'a>,
    g: Geometry,
    /// `None`: nothing is brought together.
    limits: Option<Limits>,
    control: &'a dyn Control,
    progress: &'a mut Progress,
    worth: u64,
    /// Names are asked for, and not files.
    names: bool,
    seen: Seen,
    /// Something was left for want of budget.
    left: bool,
    stretch: Stretch,
    /// Who has read what is before it: by its places, and by what the device has together.
    readers: [Reader; 2],
    cost: u64,
}

impl<'a> Arranger<'a> {
    fn new(
        cx: &MoveCtx<'a>,
        limits: Option<Limits>,
        control: &'a dyn Control,
        progress: &'a mut Progress,
    ) -> Arranger<'a> {
        let cache = cx.file.cache;
        let readers = [Reader::of_stretches(), Reader::of_parts(cache.device())];
        let (g, stretch, seen) = (*cache.geometry(), Stretch::default(), Seen::default());
        let (cx, worth, names, left, cost) = (*cx, ANY, false, false, 0);
        Arranger { cx, g, limits, control, progress, worth, names, seen, left, stretch, readers, cost }
    }

    /// Goes through data and then names. Returns what each costs then.
    fn all(&mut self, roots: &[Ino]) -> Result<[u64; 2]> {
        let cx = self.cx;
        let mut costs = [0; 2];
        for (kind, cost) in costs.iter_mut().enumerate() {
            self.names = kind > 0;
            for root in roots {
                walk(&cx, *root, self)?;
                self.finish()?;
            }
            *cost = std::mem::take(&mut self.cost);
        }
        Ok(costs)
    }

    fn push(&mut self, item: Item) -> Result<()> {
        self.stretch.push(item);
        let full = self.stretch.frags >= STRETCH_GROUPS * self.g.group_frags();
        if full { self.finish() } else { Ok(()) }
    }

    /// A stretch is complete.
    fn finish(&mut self) -> Result<()> {
        self.control.check()?;
        let (g, stretch) = (self.g, std::mem::take(&mut self.stretch));
        let read = |readers: &[Reader; 2]| readers.each_ref().map(|from| stretch.reader(&g, from));
        let mut after = read(&self.readers);
        let [least, stays] = after.each_ref().map(Reader::cost);
        let mut cost = stays;
        if let Some(limits) = self.limits {
            let blocks = self.blocks_of(&stretch);
            let at_best = PARTS + stretch.frags.div_ceil(g.group_frags());
            // It may end in another segment than it begins, wherever it is brought.
            let is_apart = stays > self.worth * least + PARTS;
            if limits.dry_run && least > at_best + PARTS {
                // That has been counted already: it gets other places.
                cost = at_best;
            } else if is_apart || limits.always {
                let brought = self.bring_together(&blocks, limits)?;
                after = read(&self.readers);
                cost = if limits.dry_run && brought { least } else { after[1].cost() };
            }
        }
        self.cost += cost;
        self.readers = after;
        Ok(())
    }

    /// False if the budget does not allow it.
    fn bring_together(&mut self, blocks: &[Range<BlockAddr>], limits: Limits) -> Result<bool> {
        let bytes = blocks.iter().map(|r| r.end - r.start).sum::<u64>() << self.g.block_shift;
        if bytes > limits.budget.saturating_sub(self.progress.bytes_moved) {
            self.left = true;
            return Ok(false);
        }
        if limits.dry_run {
            self.progress.bytes_moved += bytes;
            return Ok(true);
        }
        for some in self.at_once(blocks) {
            self.control.check()?;
            self.control.give_way();
            let copied = self.cx.file.cache.device().bring_together(&some)?;
            self.progress.bytes_moved += copied;
            // It was read, too.
            self.control.pace(2 * copied);
        }
        self.control.report(self.progress);
        Ok(true)
    }

    /// These blocks, in bytes of the device, in as many parts as a limit of the rate demands.
    fn at_once(&self, blocks: &[Range<BlockAddr>]) -> Vec<Vec<Range<u64>>> {
        let shift = self.g.block_shift;
        let most = (self.control.most_at_once() >> shift).max(1);
        let (mut all, mut some, mut left) = (Vec::new(), Vec::new(), most);
        for r in blocks {
            let mut at = r.start;
            while at < r.end {
                let end = r.end.min(at.saturating_add(left));
                some.push(at << shift..end << shift);
                left -= end - at;
                if left == 0 {
                    all.push(std::mem::take(&mut some));
                    left = most;
                }
                at = end;
            }
        }
        all.push(some);
        all
    }

    /// The blocks of a stretch that none before it had, in the order of their places, which is that in which they are read where they lie together.
    fn blocks_of(&mut self, stretch: &Stretch) -> Vec<Range<BlockAddr>> {
        let block = |frag| self.g.block_of_frag(frag);
        let runs = stretch.items.iter().flat_map(|i| &i.runs).filter(|r| r.len > 0);
        let all = runs.flat_map(|r| block(r.start)..block(r.end() - 1) + 1);
        let mut blocks: Vec<BlockAddr> = all.filter(|block| self.seen.insert(*block)).collect();
        blocks.sort_unstable();
        blocks.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1).collect()
    }
}

impl Visitor for Arranger<'_> {
    fn directory(&mut self, _ino: Ino) -> Result<bool> {
        self.control.check()?;
        Ok(true)
    }

    fn wants(&self) -> [bool; 2] {
        [self.names, !self.names]
    }

    fn block(&mut self, dir: Ino, lblock: u64, addr: BlockAddr) -> Result<()> {
        self.push(Item::block(&self.g, dir, lblock, addr))
    }

    fn file(&mut self, ino: Ino, size: u64, extents: &[Extent]) -> Result<()> {
        if size > self.cx.file.placement.small_max() {
            return Ok(());
        }
        self.push(Item::file(ino, extents))
    }

    /// It is read in another order than that of its directory.
    fn file_of_unit(&mut self, _unit: (Ino, Order), _ino: Ino, _size: u64, _extents: &[Extent]) -> Result<()> {
        Ok(())
    }
}
