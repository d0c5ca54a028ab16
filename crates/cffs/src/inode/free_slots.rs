//! What is known of the free slots of a table: blocks with room, and holes in its file. In memory only, and of bounded
//! size: what does not fit is forgotten and found again by another scan.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Blocks with room, and holes, that are remembered.
const KNOWN_MAX: usize = 1 << 16;

/// Numbers here are those of table blocks (maps left out).
#[derive(Default)]
pub(super) struct FreeSlots {
    /// (Neighbourhood, block) of blocks with a free slot.
    blocks: BTreeSet<(u64, u64)>,
    /// First block to end of the holes.
    holes: BTreeMap<u64, u64>,
    /// Not all there is was remembered.
    pub(super) partial: bool,
}

impl FreeSlots {
    /// A block of this neighbourhood has room.
    pub(super) fn add(&mut self, near: u64, block: u64) {
        if self.blocks.len() < KNOWN_MAX {
            self.blocks.insert((near, block));
        } else {
            self.partial = true;
        }
    }

    /// A block is full, or gone.
    pub(super) fn remove(&mut self, near: u64, block: u64) {
        self.blocks.remove(&(near, block));
    }

    /// A block with room in a neighbourhood.
    pub(super) fn near(&self, near: u64) -> Option<u64> {
        self.blocks.range((near, 0)..=(near, u64::MAX)).next().map(|(_, block)| *block)
    }

    /// A block with room anywhere.
    pub(super) fn anywhere(&self) -> Option<u64> {
        self.blocks.first().map(|(_, block)| *block)
    }

    /// There are no blocks in a range.
    pub(super) fn add_hole(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if self.holes.len() >= KNOWN_MAX {
            self.partial = true;
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((s, e)) = self.holes.range(..=start).next_back().map(|(s, e)| (*s, *e))
            && e >= start
        {
            self.holes.remove(&s);
            (start, end) = (s, end.max(e));
        }
        if let Some(e) = self.holes.remove(&end) {
            end = e;
        }
        self.holes.insert(start, end);
    }

    /// The first hole.
    pub(super) fn hole(&self) -> Option<Range<u64>> {
        self.holes.first_key_value().map(|(s, e)| *s..*e)
    }

    /// The first block of the hole that ends at `end`.
    pub(super) fn hole_before(&self, end: u64) -> Option<u64> {
        let (s, e) = self.holes.range(..end).next_back()?;
        (*e >= end).then_some(*s)
    }

    /// The first blocks of a hole exist now.
    pub(super) fn fill(&mut self, start: u64, blocks: u64) {
        if let Some(end) = self.holes.remove(&start)
            && end > start + blocks
        {
            self.holes.insert(start + blocks, end);
        }
    }

    /// The table ends here.
    pub(super) fn cut(&mut self, end: u64) {
        self.holes.split_off(&end);
        if let Some((_, e)) = self.holes.range_mut(..end).next_back() {
            *e = (*e).min(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_join_and_shrink() {
        let mut r = FreeSlots::default();
        r.add_hole(5..7);
        r.add_hole(9..12);
        r.add_hole(7..9);
        assert_eq!(r.hole(), Some(5..12));
        assert_eq!((r.hole_before(12), r.hole_before(8), r.hole_before(13)), (Some(5), Some(5), None));
        r.fill(5, 3);
        assert_eq!(r.hole(), Some(8..12));
        r.add_hole(20..30);
        r.cut(25);
        assert_eq!(r.hole_before(25), Some(20));
        r.cut(10);
        assert_eq!((r.hole(), r.hole_before(25)), (Some(8..10), None));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut r = FreeSlots::default();
        for n in 0..2 * KNOWN_MAX as u64 {
            r.add(n % 3, n);
            r.add_hole(3 * n..3 * n + 1);
        }
        assert!(r.partial && r.blocks.len() == KNOWN_MAX && r.holes.len() == KNOWN_MAX);
        assert_eq!(r.near(1), Some(1));
        r.remove(1, 1);
        assert_eq!(r.near(1), Some(4));
    }
}
