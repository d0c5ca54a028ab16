//! Stretches: what is read one after the other, as long as a few groups.

use super::cost::{PARTS, Reader};
use crate::format::extent::LOGICAL_END;
use crate::format::{BlockAddr, Extent, Geometry, Ino, Run};
use std::ops::Range;

/// Something to move: extents of a file, or a block of a directory.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The file, or the directory whose block it is.
    pub ino: Ino,
    /// Which of its fragments.
    pub logical: Range<u64>,
    /// Where they are, in the order in which they are read.
    pub runs: Vec<Run>,
    /// A unit begins with it: that is read alone.
    pub begins: bool,
}

impl Item {
    /// A whole file.
    pub fn file(ino: Ino, extents: &[Extent]) -> Item {
        let runs = extents.iter().map(|e| Run { start: e.start, len: e.len }).collect();
        Item { ino, logical: 0..LOGICAL_END, runs, begins: false }
    }

    /// An extent, or a part of one.
    pub fn extent(ino: Ino, e: &Extent) -> Item {
        Item { ino, logical: e.logical..e.end(), runs: vec![Run { start: e.start, len: e.len }], begins: false }
    }

    /// A part of a file: what it has in a range of its fragments. `None` if that is nothing.
    pub fn part(ino: Ino, extents: &[Extent], logical: Range<u64>) -> Option<Item> {
        let parts = extents.iter().filter(|e| e.overlaps(&logical)).map(|e| e.part(&logical));
        let runs: Vec<Run> = parts.map(|e| Run { start: e.start, len: e.len }).collect();
        (!runs.is_empty()).then_some(Item { ino, logical, runs, begins: false })
    }

    /// A block of a directory.
    pub fn block(g: &Geometry, ino: Ino, lblock: u64, addr: BlockAddr) -> Item {
        let (per, first) = (g.frags_per_block(), g.frag_of_block(lblock));
        Item {
            ino,
            logical: first..first + per,
            runs: vec![Run { start: g.frag_of_block(addr), len: per }],
            begins: false,
        }
    }

    /// Number of fragments.
    pub fn frags(&self) -> u64 {
        self.runs.iter().map(|r| r.len).sum()
    }
}

/// What is read one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Stretch {
    pub items: Vec<Item>,
    pub frags: u64,
}

impl Stretch {
    /// Adds what is read next.
    pub fn push(&mut self, item: Item) {
        self.frags += item.frags();
        self.items.push(item);
    }

    /// Keeps the first items, which have at most so many fragments. Returns the others.
    pub fn split_off(&mut self, frags: u64) -> Stretch {
        let mut sum = 0;
        let fits = self.items.iter().take_while(|i| {
            sum += i.frags();
            sum <= frags
        });
        let mut at = fits.count();
        // Half of a unit saves nothing, if it is not all there is.
        if at < self.items.len() && self.units() > 1 {
            at = self.items[..=at].iter().rposition(|i| i.begins).unwrap_or(at);
        }
        let mut rest = Stretch::default();
        self.items.split_off(at).into_iter().for_each(|i| rest.push(i));
        self.frags -= rest.frags;
        rest
    }

    /// A reader who goes on with all of it.
    pub fn reader(&self, g: &Geometry, from: &Reader) -> Reader {
        self.reader_of(g, from, |n| &self.items[n].runs)
    }

    /// The same where each item, by its number, has these runs.
    pub fn reader_of<'a>(&self, g: &Geometry, from: &Reader, runs: impl Fn(usize) -> &'a [Run]) -> Reader {
        let mut reader = from.going_on();
        for (n, item) in self.items.iter().enumerate() {
            if item.begins {
                reader.begin_anew();
            }
            runs(n).iter().for_each(|run| reader.read(g, *run));
        }
        reader
    }

    /// What it costs where it lies best.
    pub fn least(&self, g: &Geometry) -> u64 {
        let parts = self.items.chunk_by(|_, next| !next.begins);
        parts.map(|part| PARTS + part.iter().map(Item::frags).sum::<u64>().div_ceil(g.group_frags()) - 1).sum()
    }

    /// How many units begin in it.
    pub fn units(&self) -> u64 {
        self.items.iter().filter(|i| i.begins).count() as u64
    }
}

/// The fragments of the unit that begins with the first of these items, as far as it is among them; none if none does.
pub(super) fn unit_frags(items: &[Item]) -> u64 {
    // Asked for each item: the others are not gone through.
    let Some((first, others)) = items.split_first().filter(|(first, _)| first.begins) else { return 0 };
    first.frags() + others.iter().take_while(|i| !i.begins).map(Item::frags).sum::<u64>()
}

/// A reader who goes on with these runs.
pub(super) fn read_all(g: &Geometry, from: &Reader, runs: impl Iterator<Item = Run>) -> Reader {
    let mut reader = from.going_on();
    runs.for_each(|run| reader.read(g, run));
    reader
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::{MkfsOptions, mkfs};
    use cffs_device::MemoryDevice;

    /// Items of ten fragments each, one behind the other; units begin with these.
    fn stretch(begin: &[usize]) -> Stretch {
        let mut stretch = Stretch::default();
        for n in 0..8 {
            let runs = vec![Run { start: 10 * n as u64, len: 10 }];
            stretch.push(Item { ino: 16 + n as u64, logical: 0..10, runs, begins: begin.contains(&n) });
        }
        stretch
    }

    #[test]
    fn a_budget_cuts_between_units_and_a_single_one_anywhere() {
        let cut = |begin: &[usize], frags| {
            let mut first = stretch(begin);
            let rest = first.split_off(frags);
            assert_eq!((first.frags, rest.frags), (10 * first.items.len() as u64, 10 * rest.items.len() as u64));
            first.items.len()
        };
        assert_eq!([29, 30, 59, 60, 80].map(|frags| cut(&[0, 3, 6], frags)), [0, 3, 3, 6, 8]);
        assert_eq!(cut(&[4, 6], 35), 3, "what is before belongs to one that began earlier");
        assert_eq!([cut(&[0], 35), cut(&[], 35)], [3, 3]);
    }

    #[test]
    fn units_are_counted_by_themselves() {
        let sb = mkfs(&MemoryDevice::new(32 << 20), None, &MkfsOptions::default()).unwrap();
        let g = Geometry::new(&sb).unwrap();
        let of = |begin: &[usize]| {
            let s = stretch(begin);
            let cost = s.reader(&g, &Reader::of_stretches()).cost();
            ((0..8).map(|n| unit_frags(&s.items[n..])).sum::<u64>(), s.units(), s.least(&g), cost)
        };
        assert_eq!(of(&[]), (0, 0, PARTS, PARTS), "all of it lies in one group");
        assert_eq!(of(&[0, 3, 6]), (80, 3, 3 * PARTS, 3 * PARTS));
        assert_eq!(of(&[5]), (30, 1, 2 * PARTS, 2 * PARTS));
    }
}
