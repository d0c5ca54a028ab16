//! Group transfers that know whose blocks they bring.
//!
//! A group is shared: by small directories on a fresh device, by whoever found a hole in it on an aged one. In the first
//! case all of it is wanted soon, in the second a part only. What the cached entries of a directory say of its files tells
//! that part; what became of the rest of earlier groups tells whether it is worth its time (see [`super::prefetch`]).

use super::prefetch::Prefetch;
use super::{Cache, IoKind, REGION_SHIFT, TRANSFER_MAX};
use crate::error::Result;
use crate::format::{BlockAddr, Ino};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What lies between two pieces of a directory is read with them if it is at most one in so many parts of a group.
const GAP_SHARE: u64 = 2;

/// The blocks of a directory's small files, as far as they are known.
pub struct Own {
    /// The directory.
    pub dir: Ino,
    /// In order; they do not touch.
    pub blocks: Vec<Range<BlockAddr>>,
}

/// What is known of the files around one that is read.
pub trait Siblings {
    /// Where they lie, if that can be told without a request.
    fn own(&self) -> Option<Own>;
}

impl Own {
    /// The directory's pieces around `addr`, with no gaps of more than `gap` blocks between them, within `limit`.
    fn span(&self, addr: BlockAddr, gap: u64, limit: &Range<BlockAddr>) -> Option<Range<BlockAddr>> {
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

    fn has(&self, addr: BlockAddr) -> bool {
        let at = self.blocks.partition_point(|r| r.end <= addr);
        self.blocks.get(at).is_some_and(|r| r.contains(&addr))
    }
}

impl Cache {
    /// Brings in a missing block with what else belongs to its directory nearby; with the rest of its group too while
    /// that is worth it, or where directories are `listed`. False, and nothing done, if the block is not among those that are known.
    pub(super) fn fill_span(
        &self,
        kind: IoKind,
        policy: &Prefetch,
        addr: BlockAddr,
        own: &Own,
        listed: bool,
    ) -> Result<bool> {
        if !own.has(addr) {
            return Ok(false);
        }
        let blocks = self.geo.group_blocks();
        let group = self.geo.group_of(addr);
        let per_region = 1u64 << (REGION_SHIFT - self.geo.block_shift);
        let region = self.region(addr) * per_region..((self.region(addr) + 1) * per_region).min(self.geo.total_blocks);
        let most = (TRANSFER_MAX >> self.geo.block_shift).max(1);
        let ahead = policy.fetched(group, blocks);
        let reach = (policy.reach(own.dir, kind == IoKind::Meta) * blocks).min(most);
        let limit = group.max(region.start)..(addr + reach).min(region.end);
        let Some(mut window) = own.span(addr, blocks / GAP_SHARE, &limit) else { return Ok(false) };
        let whole = policy.wants_foreign(blocks, listed);
        if whole {
            let end = (group + blocks).min(region.end);
            window = window.start.min(group)..window.end.max(end);
        }
        let threaded = self.ahead.lock().is_some();
        // Without the thread the next group comes in the same request. One: where a directory ends, what follows is
        // another's, and would be waited for.
        if whole && !threaded && ahead > 0 {
            let along = self.in_one_transfer(group, 1);
            window.end = window.end.max((group + (1 + along) * blocks).min(region.end));
        }
        policy.brings(self.fill(kind, addr..addr + 1, window.clone(), false)?);
        let mut foreign = 0;
        for a in window.clone().filter(|a| !own.has(*a)) {
            if let Some(buf) = self.peek(a)
                && buf.speculative.load(Ordering::Relaxed)
                && !buf.foreign.swap(true, Ordering::Relaxed)
            {
                foreign += 1;
            }
        }
        if whole {
            policy.brought_foreign(foreign, blocks);
            policy.reached(self.geo.group_of(window.end - 1));
            self.fetch_ahead(kind, self.geo.group_of(window.end - 1) + blocks, ahead);
        } else if threaded && reach > blocks {
            self.fetch_own(kind, own, window.end, reach, blocks / GAP_SHARE);
        }
        Ok(true)
    }

    /// Asks the background thread for the directory's next pieces behind `from`, `most` blocks in all.
    fn fetch_own(&self, kind: IoKind, own: &Own, from: BlockAddr, most: u64, gap: u64) {
        let guard = self.ahead.lock();
        let Some(send) = &*guard else { return };
        let (mut at, mut left) = (from, most);
        while left > 0 {
            let next = own.blocks.partition_point(|r| r.end <= at);
            let Some(next) = own.blocks.get(next).map(|r| r.start.max(at)) else { return };
            let limit = next..(next + left).min(self.region_end(next)).min(self.geo.total_blocks);
            let Some(span) = own.span(next, gap, &limit).filter(|s| !s.is_empty()) else { return };
            left -= (span.end - span.start).min(left);
            at = span.end;
            // A full queue means the device is busy enough.
            if !self.contains(span.start) && send.try_send((kind, span)).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_reaches_over_small_gaps_and_stays_in_its_limit() {
        let own = Own { dir: 2, blocks: vec![10..12, 14..20, 40..41, 45..50] };
        assert_eq!(own.span(15, 4, &(0..100)), Some(10..20));
        assert_eq!(own.span(15, 1, &(0..100)), Some(14..20));
        assert_eq!(own.span(15, 4, &(11..17)), Some(11..17));
        assert_eq!(own.span(10, 40, &(0..100)), Some(10..50));
        assert_eq!(own.span(10, 40, &(0..44)), Some(10..41), "what follows lies behind the limit");
        assert_eq!(own.span(13, 4, &(0..100)), None, "in no piece");
        assert!(own.has(45) && !own.has(44) && !own.has(50));
    }
}
