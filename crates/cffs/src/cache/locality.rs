//! Group transfers that know which blocks belong to the directory that is read.
//!
//! A group is shared: by small directories on a fresh device, by files that filled its holes on an aged one. In the first
//! case all of it is wanted soon, in the second a part only. The directory's extents, which the caller knows from cached
//! entries, tell that part. Whether the rest is worth its time is decided by what became of the rest of earlier groups (see
//! [`super::prefetch`]).
//!
//! The hint is plain data. The caller works it out after a miss, so a cached read pays nothing for it.

use super::block_cache::Cache;
use super::prefetch::Prefetch;
use crate::error::Result;
use crate::format::{BlockAddr, Ino};
use cffs_device::IoKind;
use std::ops::Range;

/// A gap between two extents of a directory is read with them if it is at most one in so many parts of a group.
const GAP_DIVISOR: u64 = 2;

/// The blocks of a directory's small files, or of the small directories in it, as far as they are known.
pub struct DirExtents {
    /// The directory.
    pub dir: Ino,
    /// In order; they do not touch.
    pub blocks: Vec<Range<BlockAddr>>,
}

/// What is known of the blocks around one that is missing.
#[derive(Default)]
pub struct LocalityHint {
    /// Those of its directory, if they are known without a request. A group transfer may then leave out the others.
    pub extents: Option<DirExtents>,
    /// The directory is read from end to end, and mostly those below it and beside it too: groups are read as a whole.
    pub sequential: bool,
}

impl DirExtents {
    /// The directory's extents around `addr`, with no gaps of more than `gap` blocks between them, within `limit`.
    pub(super) fn span(&self, addr: BlockAddr, gap: u64, limit: &Range<BlockAddr>) -> Option<Range<BlockAddr>> {
        let at = self.blocks.partition_point(|r| r.end <= addr);
        let mut span = self.blocks.get(at).filter(|r| r.contains(&addr))?.clone();
        for r in &self.blocks[at + 1..] {
            if r.start - span.end > gap || r.start >= limit.end {
                break;
            }
            span.end = r.end;
        }
        for r in self.blocks[..at].iter().rev() {
            if span.start - r.end > gap || r.end <= limit.start {
                break;
            }
            span.start = r.start;
        }
        Some(span.start.max(limit.start)..span.end.min(limit.end))
    }

    /// The first block at `addr` or behind it.
    pub(super) fn next(&self, addr: BlockAddr) -> Option<BlockAddr> {
        let at = self.blocks.partition_point(|r| r.end <= addr);
        self.blocks.get(at).map(|r| r.start.max(addr))
    }

    fn has(&self, addr: BlockAddr) -> bool {
        let at = self.blocks.partition_point(|r| r.end <= addr);
        self.blocks.get(at).is_some_and(|r| r.contains(&addr))
    }
}

impl Cache {
    /// Reads a missing block with what else belongs to its directory nearby; with the rest of its group too while
    /// that is worth it, or where directories are read sequentially. False, and nothing done, if the block is not one of the
    /// directory's extents.
    pub(super) fn fill_near(
        &self,
        kind: IoKind,
        policy: &Prefetch,
        addr: BlockAddr,
        dir: &DirExtents,
        sequential: bool,
    ) -> Result<bool> {
        if !dir.has(addr) {
            return Ok(false);
        }
        let blocks = self.geo.group_blocks();
        let group = self.geo.group_of(addr);
        let region = self.region_start(addr)..self.region_end(addr).min(self.geo.total_blocks);
        let ahead = policy.note_group(group, blocks);
        let window_max = (policy.window(dir.dir, kind == IoKind::Meta) * blocks).min(self.transfer_blocks());
        let limit = group.max(region.start)..(addr + window_max).min(region.end);
        let Some(mut window) = dir.span(addr, blocks / GAP_DIVISOR, &limit) else { return Ok(false) };
        let whole = policy.wants_unrelated(blocks, sequential);
        if whole {
            let end = (group + blocks).min(region.end);
            window = window.start.min(group)..window.end.max(end);
        }
        let threaded = self.has_readahead();
        // Without the thread the next group comes in the same request. One: where a directory ends, what follows is
        // another's, and would be waited for.
        if whole && !threaded && ahead > 0 {
            let along = self.groups_in_transfer(group, 1);
            window.end = window.end.max((group + (1 + along) * blocks).min(region.end));
        }
        policy.note_prefetched(self.fill(kind, addr..addr + 1, window.clone(), false)?);
        self.note_read_along(kind, window.clone());
        let unrelated =
            window.clone().filter(|a| !dir.has(*a) && self.peek(*a).is_some_and(|buf| buf.mark_unrelated()));
        let unrelated = unrelated.count() as u64;
        if whole {
            let last = self.geo.group_of(window.end - 1);
            policy.note_unrelated(unrelated, blocks);
            policy.note_last_group(last);
            self.readahead_groups(kind, policy, last + blocks, ahead);
        } else if threaded && window_max > blocks {
            self.readahead_extents(kind, dir, window.end, window_max, blocks / GAP_DIVISOR);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_reaches_over_small_gaps_and_stays_in_its_limit() {
        let own = DirExtents { dir: 2, blocks: vec![10..12, 14..20, 40..41, 45..50] };
        assert_eq!(own.span(15, 4, &(0..100)), Some(10..20));
        assert_eq!(own.span(15, 1, &(0..100)), Some(14..20));
        assert_eq!(own.span(15, 4, &(11..17)), Some(11..17));
        assert_eq!(own.span(10, 40, &(0..100)), Some(10..50));
        assert_eq!(own.span(10, 40, &(0..44)), Some(10..41), "what follows lies behind the limit");
        assert_eq!(own.span(13, 4, &(0..100)), None, "in no piece");
        assert!(own.has(45) && !own.has(44) && !own.has(50));
    }
}
