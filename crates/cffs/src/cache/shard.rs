//! One of the independently locked parts of the cache.

use super::buf::BufRef;
use super::in_flight::InFlight;
use crate::addr_map::AddrMap;
use crate::format::BlockAddr;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::ops::Range;

#[derive(Default)]
pub(super) struct Shard {
    pub(super) map: AddrMap<BlockAddr, BufRef>,
    /// Blocks that are not in the map and have a transfer in flight.
    pub(super) in_flight: InFlight,
    /// Addresses in the order in which eviction looks at them.
    pub(super) clock: VecDeque<BlockAddr>,
}

impl Shard {
    /// Whether the block is cached or in flight.
    pub(super) fn has(&self, addr: BlockAddr) -> bool {
        self.map.contains_key(&addr) || self.in_flight.contains(addr)
    }

    /// How many blocks at the beginning of a run are neither cached nor in flight.
    pub(super) fn absent_prefix(&self, run: Range<BlockAddr>) -> u64 {
        let end = self.in_flight.first_in(run.clone()).unwrap_or(run.end);
        (run.start..end).find(|addr| self.map.contains_key(addr)).unwrap_or(end) - run.start
    }

    /// Marks the blocks of a run as in flight that are neither cached nor in flight. Returns them.
    pub(super) fn claim_missing(&mut self, run: Range<BlockAddr>) -> Vec<Range<BlockAddr>> {
        let mut claimed: Vec<Range<BlockAddr>> = Vec::new();
        for addr in run {
            match claimed.last_mut() {
                _ if self.has(addr) => {}
                Some(last) if last.end == addr => last.end += 1,
                _ => claimed.push(addr..addr + 1),
            }
        }
        claimed.iter().for_each(|run| self.in_flight.add(run.clone()));
        claimed
    }
}

pub(super) struct LockedShard {
    pub(super) shard: Mutex<Shard>,
    /// A transfer has ended.
    pub(super) changed: Condvar,
}

impl LockedShard {
    pub(super) fn new() -> LockedShard {
        LockedShard { shard: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until no transfer of the block is in flight; the block, if it is cached then.
    pub(super) fn cached_or_wait(&self, shard: &mut MutexGuard<'_, Shard>, addr: BlockAddr) -> Option<BufRef> {
        loop {
            if let Some(buf) = shard.map.get(&addr) {
                return Some(buf.clone());
            }
            if !shard.in_flight.contains(addr) {
                return None;
            }
            self.changed.wait(shard);
        }
    }
}
