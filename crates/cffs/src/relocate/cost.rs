//! What reading a sequence of places costs, in requests.

use crate::format::{BlockAddr, Geometry, Run};
use std::collections::HashSet;

/// Parts of a request in which costs are counted.
pub const PARTS: u64 = 4;

/// Counts what a reader pays who reads runs one after the other. A group is read as a whole, and stays in memory; the group
/// behind the last one costs a part of a request, because a walk in order reads several with one.
#[derive(Clone, Default)]
pub(super) struct Reader {
    read: HashSet<BlockAddr>,
    last: Option<BlockAddr>,
    cost: u64,
}

impl Reader {
    /// A reader who comes from a place.
    pub fn from(last: Option<BlockAddr>) -> Reader {
        Reader { last, ..Reader::default() }
    }

    /// Reads the next run.
    pub fn read(&mut self, g: &Geometry, run: Run) {
        if run.len == 0 {
            return;
        }
        let (first, end) = (g.block_of_frag(run.start), g.block_of_frag(run.end() - 1));
        let mut group = g.group_of(first);
        while group <= end {
            if self.read.insert(group) {
                let next = self.last.is_some_and(|l| l == group || l + g.group_blocks() == group);
                self.cost += if next { 1 } else { PARTS };
            }
            self.last = Some(group);
            group += g.group_blocks();
        }
    }

    /// What it has paid, in quarters of a request.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The last group.
    pub fn last(&self) -> Option<BlockAddr> {
        self.last
    }
}
