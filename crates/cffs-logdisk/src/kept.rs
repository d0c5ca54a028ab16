//! What was read of segments and is still in memory, and what was handed out at once.

use crate::extent::SECTOR_BYTES;
use crate::store::{Get, SegmentId};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Long reads that are remembered.
const HANDED_OUT: usize = 64;
/// A chunk is used up when all but one in so many of its sectors were asked for: summaries never are, nor what is dead.
const LEFT_DIVISOR: u64 = 16;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// A range of a segment.
pub(crate) type Part = (SegmentId, Range<u64>);

/// Bytes side by side in a segment.
pub(crate) struct Chunk {
    segment: SegmentId,
    range: Range<u64>,
    bytes: Vec<u8>,
    /// A bit for each sector of which something was asked for, and how many these are. Blocks begin at any of them.
    asked: Box<[AtomicU64]>,
    sectors_asked: AtomicU64,
}

impl Chunk {
    pub(crate) fn new(segment: SegmentId, offset: u64, bytes: Vec<u8>) -> Arc<Chunk> {
        let range = offset..offset + bytes.len() as u64;
        let asked = (0..sectors_of(&range).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Chunk { segment, range, bytes, asked, sectors_asked: AtomicU64::new(0) })
    }

    /// Where it is in its segment.
    pub(crate) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Notes that bytes that it has are asked for. Returns the bytes of the sectors in which none were before.
    pub(crate) fn note(&self, offset: u64, len: u64) -> u64 {
        let start = self.range.start / SECTOR;
        let (first, end) = (offset / SECTOR - start, (offset + len).div_ceil(SECTOR) - start);
        let below = |bit: u64| if bit < 64 { (1 << bit) - 1 } else { u64::MAX };
        let mut new = 0;
        for word in first / 64..end.div_ceil(64) {
            let from = word * 64;
            let wanted = below(end - from) & !below(first.saturating_sub(from));
            let before = self.asked[word as usize].fetch_or(wanted, Ordering::Relaxed);
            new += u64::from((wanted & !before).count_ones());
        }
        self.sectors_asked.fetch_add(new, Ordering::Relaxed);
        new * SECTOR
    }

    /// Copies bytes that it has.
    pub(crate) fn copy(&self, to: Get<'_>) {
        let first = (to.offset - self.range.start) as usize;
        to.buf.copy_from_slice(&self.bytes[first..first + to.buf.len()]);
    }

    fn is_used_up(&self) -> bool {
        let sectors = sectors_of(&self.range);
        self.sectors_asked.load(Ordering::Relaxed) >= sectors - sectors / LEFT_DIVISOR
    }
}

/// Sectors that a range has a part of.
fn sectors_of(range: &Range<u64>) -> u64 {
    range.end.div_ceil(SECTOR) - range.start / SECTOR
}

/// Chunks within a bound.
#[derive(Default)]
pub(crate) struct Kept {
    most: usize,
    /// The last used first.
    chunks: VecDeque<Arc<Chunk>>,
    /// Long reads of what was asked for alone: mostly, who has asked for it keeps it himself.
    handed_out: VecDeque<Part>,
}

impl Kept {
    /// Keeps so many bytes at most, or one chunk that is longer.
    pub(crate) fn new(most: usize) -> Kept {
        Kept { most, ..Kept::default() }
    }

    pub(crate) fn most(&self) -> u64 {
        self.most as u64
    }

    /// The chunk that has the byte at an offset. It was used.
    pub(crate) fn find(&mut self, segment: SegmentId, at: u64) -> Option<Arc<Chunk>> {
        let n = self.chunks.iter().position(|c| c.segment == segment && c.range.contains(&at))?;
        let chunk = self.chunks.remove(n)?;
        self.chunks.push_front(chunk.clone());
        Some(chunk)
    }

    /// Whether so many bytes are kept, side by side.
    pub(crate) fn has(&self, segment: SegmentId, offset: u64, bytes: u64) -> bool {
        let has = |c: &Arc<Chunk>| c.segment == segment && c.range.start <= offset && offset + bytes <= c.range.end;
        self.chunks.iter().any(has)
    }

    /// What is kept or was handed out of a segment.
    pub(crate) fn of(&self, segment: SegmentId) -> impl Iterator<Item = &Range<u64>> {
        let kept = self.chunks.iter().map(|c| (c.segment, &c.range));
        let all = kept.chain(self.handed_out.iter().map(|(s, r)| (*s, r)));
        all.filter(move |(s, _)| *s == segment).map(|(_, r)| r)
    }

    /// Keeps a chunk, in place of what is used up, and then of what was used longest ago.
    pub(crate) fn add(&mut self, chunk: Arc<Chunk>) {
        let mut bytes = chunk.bytes.len() + self.bytes();
        while bytes > self.most
            && let used_up = self.chunks.iter().rposition(|c| c.is_used_up())
            && let Some(gone) = self.chunks.remove(used_up.unwrap_or(self.chunks.len().saturating_sub(1)))
        {
            bytes -= gone.bytes.len();
        }
        self.chunks.push_front(chunk);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.chunks.iter().map(|c| c.bytes.len()).sum()
    }

    /// Remembers what went to its place at once.
    pub(crate) fn hand_out(&mut self, segment: SegmentId, range: Range<u64>) {
        self.handed_out.truncate(HANDED_OUT - 1);
        self.handed_out.push_front((segment, range));
    }

    pub(crate) fn forget(&mut self, segment: SegmentId) {
        self.chunks.retain(|c| c.segment != segment);
        self.handed_out.retain(|(s, _)| *s != segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::BLOCK_BYTES;

    const BLOCK: u64 = BLOCK_BYTES as u64;
    const SEGMENT: SegmentId = 1;

    fn chunk(offset: u64, blocks: u64) -> Arc<Chunk> {
        Chunk::new(SEGMENT, offset, vec![0; (blocks * BLOCK) as usize])
    }

    #[test]
    fn a_byte_that_is_asked_for_again_counts_once() {
        let start = 8192 + 512;
        let c = Chunk::new(SEGMENT, start, vec![0; 100 * BLOCK_BYTES]);
        assert_eq!(c.note(start, 512), 512);
        assert_eq!(c.note(start + 100, 412), 0);
        assert_eq!(c.note(start, 2 * BLOCK), 2 * BLOCK - 512);
        assert_eq!(c.note(start + 50 * BLOCK + 700, 100), 512, "of one sector a part");
        assert_eq!(c.note(start + 50 * BLOCK, BLOCK), BLOCK - 512);
        assert!(!c.is_used_up());
        assert_eq!(c.note(start, 100 * BLOCK), 97 * BLOCK);
        assert_eq!(c.note(start + 100 * BLOCK - 700, 700), 0);
        assert!(c.is_used_up());
        // Every other block is half of them, wherever they begin.
        let c = Chunk::new(SEGMENT, start, vec![0; 100 * BLOCK_BYTES]);
        assert_eq!((0..50).map(|n| c.note(start + 2 * n * BLOCK, BLOCK)).sum::<u64>(), 50 * BLOCK);
        assert!(!c.is_used_up());
    }

    #[test]
    fn what_is_used_up_makes_room_the_oldest_first_and_then_the_oldest_at_all() {
        let mut kept = Kept::new(64 * BLOCK_BYTES);
        for n in 0..4 {
            kept.add(chunk(n * 16 * BLOCK, 16));
        }
        let has = |kept: &Kept| [0, 16, 32, 48, 64, 80, 96, 112].map(|n| kept.has(SEGMENT, n * BLOCK, BLOCK));
        // Of two all is asked for but what nobody asks for, of one it is a block less, and the oldest is not touched.
        for (first, asked) in [(16, 15), (32, 14), (48, 15)] {
            kept.find(SEGMENT, first * BLOCK).unwrap().note((first + 1) * BLOCK, asked * BLOCK);
        }
        kept.add(chunk(64 * BLOCK, 16));
        assert_eq!(has(&kept), [true, false, true, true, true, false, false, false]);
        kept.add(chunk(80 * BLOCK, 16));
        assert_eq!(has(&kept), [true, false, true, false, true, true, false, false]);
        kept.add(chunk(96 * BLOCK, 16));
        assert_eq!(has(&kept), [false, false, true, false, true, true, true, false]);
        assert_eq!(kept.bytes(), 64 * BLOCK_BYTES);
        kept.add(chunk(112 * BLOCK, 100));
        assert_eq!(
            (has(&kept), kept.bytes()),
            ([[false; 7].as_slice(), &[true]].concat().try_into().unwrap(), 100 * BLOCK_BYTES)
        );
    }

    #[test]
    fn long_reads_are_remembered_within_a_bound_and_forgotten_with_their_segment() {
        let mut kept = Kept::new(0);
        (0..1000).for_each(|n| kept.hand_out(SEGMENT + n % 2, n * BLOCK..(n + 1) * BLOCK));
        let of = |kept: &Kept, segment| kept.of(segment).count();
        assert_eq!((of(&kept, SEGMENT), of(&kept, SEGMENT + 1)), (HANDED_OUT / 2, HANDED_OUT / 2));
        assert!(kept.of(SEGMENT + 1).any(|r| r.start == 999 * BLOCK));
        kept.forget(SEGMENT);
        assert_eq!((of(&kept, SEGMENT), of(&kept, SEGMENT + 1)), (0, HANDED_OUT / 2));
    }
}
