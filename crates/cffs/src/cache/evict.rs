//! Eviction: clean blocks leave the cache when it is full.

use super::block_cache::{Cache, SHARDS};
use super::buf::{BufRef, UNREAD_ROUNDS};
use super::shard::Shard;
use crate::format::BlockAddr;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// At most one in so many blocks of a part is looked at before the next part's turn.
const EVICT_DIVISOR: usize = 8;
/// Blocks that one call looks at. If all of them stay, most of the cache is pinned, or was read along lately; the next call goes on.
const EVICT_LOOKS: usize = 16_384;

/// How many blocks of a part with so many are looked at in this turn. A part with few has none in most turns: otherwise the hand would come
/// to each of them more often than to those of other parts, and a block that is used now and then would not stay.
fn share(blocks: usize, turn: usize) -> usize {
    if blocks < EVICT_DIVISOR { usize::from(turn % EVICT_DIVISOR < blocks) } else { blocks.div_ceil(EVICT_DIVISOR) }
}

impl Cache {
    /// Blocks that may be cached now. At least an eighth of the limit is left, however much data is dirty.
    fn allowed_blocks(&self) -> usize {
        self.limit.saturating_sub(self.dirty_data()).max(self.limit / 8) >> self.geo.block_shift
    }

    /// Drops blocks until the limit is met. One hand goes around all parts, and takes of each a share of what it has: so
    /// the parts together are like one clock. (Taking from the part at hand first would drop what a group transfer has just
    /// brought, and keep what was used long ago elsewhere.)
    pub(super) fn evict(&self) {
        let allowed = self.allowed_blocks();
        let mut looks = EVICT_LOOKS;
        // Around every clock as often as a block can be spared, and once more, if that is not too much at once.
        for _ in 0..(usize::from(UNREAD_ROUNDS) + 1) * SHARDS * EVICT_DIVISOR {
            if looks == 0 || self.blocks.load(Ordering::Relaxed) <= allowed {
                return;
            }
            let hand = self.hand.fetch_add(1, Ordering::Relaxed);
            if let Some(shard) = self.shards[hand & (SHARDS - 1)].shard.try_lock() {
                let share = share(shard.clock.len(), hand / SHARDS).min(looks);
                looks -= self.evict_from(shard, allowed, share);
            }
        }
    }

    /// Looks at so many of the oldest blocks of a part, at most; how many it looked at.
    fn evict_from(&self, mut shard: MutexGuard<'_, Shard>, allowed: usize, share: usize) -> usize {
        let mut steps = share;
        while steps > 0 && self.blocks.load(Ordering::Relaxed) > allowed {
            steps -= 1;
            let Some(addr) = shard.clock.pop_front() else { break };
            let Some(b) = shard.map.get(&addr) else { continue };
            let keep = Arc::strong_count(b) > 1 || b.is_pinned() || b.take_round();
            if keep || !self.drop_unheld(&mut shard, addr) {
                shard.clock.push_back(addr);
            } else {
                self.counters.evicted.fetch_add(1, Ordering::Relaxed);
            }
        }
        share - steps
    }

    /// Drops a block that nobody holds and that has no changes. False where it has to stay after all.
    ///
    /// Somebody with a weak reference may upgrade it at any moment, change the block and let go of it again: it goes only if
    /// the cache's reference was the last one, and if nothing had changed by then.
    pub(super) fn drop_unheld(&self, shard: &mut Shard, addr: BlockAddr) -> bool {
        let Some(buf) = shard.map.remove(&addr) else { return false };
        let stays = match Arc::try_unwrap(buf) {
            Ok(buf) if !buf.is_pinned() => {
                self.blocks.fetch_sub(1, Ordering::Relaxed);
                return true;
            }
            Ok(buf) => Arc::new(buf),
            Err(buf) => buf,
        };
        shard.map.insert(addr, stays);
        false
    }

    /// Drops every block that is as on the device (for measurements of a cold cache).
    pub fn drop_clean(&self) {
        for ls in self.shards.iter() {
            let mut shard = ls.shard.lock();
            let clean = |b: &BufRef| Arc::strong_count(b) == 1 && !b.is_pinned();
            let gone: Vec<BlockAddr> = shard.map.iter().filter(|(_, b)| clean(b)).map(|(a, _)| *a).collect();
            for a in gone {
                self.drop_unheld(&mut shard, a);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_comes_to_each_block_equally_often_however_few_its_part_has() {
        for blocks in 0..100 {
            let looks: usize = (0..EVICT_DIVISOR).map(|turn| share(blocks, turn)).sum();
            assert!((blocks..blocks + EVICT_DIVISOR).contains(&looks), "{looks} looks at {blocks} blocks");
            assert!(blocks >= EVICT_DIVISOR || looks == blocks, "{looks} looks at {blocks} blocks");
        }
    }
}
