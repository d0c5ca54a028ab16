//! Metadata blocks of several places, read in one batch.

use super::block_cache::Cache;
use super::buf::{Buf, BufRef, Demand};
use crate::format::BlockAddr;
use cffs_buf::AlignedBuf;
use cffs_device::{IoKind, Purpose, ReadRequest};
use std::ops::Range;
use std::sync::Arc;

impl Cache {
    /// Reads runs of metadata blocks that are about to be needed one after the other, several requests in flight. Runs with
    /// a block that is cached or in flight are left out. Returns the blocks: they stay cached while they are held. The reader
    /// that needs a block meets a failure again, and reports it.
    pub(crate) fn prefetch_batch(&self, runs: impl Iterator<Item = Range<BlockAddr>>) -> Vec<BufRef> {
        let mut claimed: Vec<(Range<BlockAddr>, AlignedBuf)> = runs
            .filter(|run| self.claim_all(run))
            .map(|run| {
                let bytes = AlignedBuf::zeroed(((run.end - run.start) << self.geo.block_shift) as usize);
                (run, bytes)
            })
            .collect();
        if claimed.is_empty() {
            return Vec::new();
        }
        let mut requests: Vec<ReadRequest<'_>> = claimed
            .iter_mut()
            .map(|(run, bytes)| ReadRequest {
                kind: IoKind::Meta,
                offset: run.start << self.geo.block_shift,
                buf: &mut bytes[..],
            })
            .collect();
        let _purpose = Purpose::Prefetch.scope_if_none();
        let read = self.dev.read_batch(&mut requests).is_ok();
        drop(requests);
        let mut prefetched = Vec::new();
        for (run, bytes) in claimed {
            let ls = self.shard(run.start);
            let mut shard = ls.shard.lock();
            shard.in_flight.remove(run.clone());
            for (addr, bytes) in run.zip(bytes.chunks_exact(self.geo.block_size())).filter(|_| read) {
                let buf = Buf::new(addr, AlignedBuf::from_slice(bytes), Demand::Requested);
                prefetched.push(Arc::clone(&buf));
                self.insert(&mut shard, buf);
            }
            drop(shard);
            ls.changed.notify_all();
        }
        self.evict();
        prefetched
    }

    /// Marks the blocks of a run as in flight, unless one of them is cached or in flight, or the run is not within one part.
    fn claim_all(&self, run: &Range<BlockAddr>) -> bool {
        if run.is_empty() || run.end > self.geo.total_blocks || self.region(run.start) != self.region(run.end - 1) {
            return false;
        }
        let mut shard = self.shard(run.start).shard.lock();
        let absent =
            shard.in_flight.first_in(run.clone()).is_none() && !run.clone().any(|addr| shard.map.contains_key(&addr));
        if absent {
            shard.in_flight.add(run.clone());
        }
        absent
    }
}
