//! Segments: what is read one after the other, as long as a few groups.

use super::cost::Reader;
use crate::format::{BlockAddr, Geometry, Ino, Run};

/// Something to move.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The file, or the directory whose block it is.
    pub ino: Ino,
    /// Number of the block within the directory; of files 0.
    pub lblock: u64,
    /// Where it is, in the order in which it is read.
    pub runs: Vec<Run>,
}

impl Item {
    /// Number of fragments.
    pub fn frags(&self) -> u64 {
        self.runs.iter().map(|r| r.len).sum()
    }
}

/// What is read one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Segment {
    pub items: Vec<Item>,
    pub frags: u64,
}

impl Segment {
    /// Adds what is read next.
    pub fn push(&mut self, item: Item) {
        self.frags += item.frags();
        self.items.push(item);
    }

    /// Keeps the first items, which have at most so many fragments. Returns the others.
    pub fn split_off(&mut self, frags: u64) -> Segment {
        let mut sum = 0;
        let fits = self.items.iter().take_while(|i| {
            sum += i.frags();
            sum <= frags
        });
        let mut rest = Segment::default();
        let at = fits.count();
        self.items.split_off(at).into_iter().for_each(|i| rest.push(i));
        self.frags -= rest.frags;
        rest
    }

    /// A reader who has read all of it, coming from a group.
    pub fn reader(&self, g: &Geometry, from: Option<BlockAddr>) -> Reader {
        read_all(g, from, self.items.iter().flat_map(|i| i.runs.iter().copied()))
    }
}

/// A reader who has read these runs, coming from a group.
pub(super) fn read_all(g: &Geometry, from: Option<BlockAddr>, runs: impl Iterator<Item = Run>) -> Reader {
    let mut reader = Reader::from(from);
    runs.for_each(|run| reader.read(g, run));
    reader
}
