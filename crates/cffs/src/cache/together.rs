//! Metadata of several places in one batch.

use super::{Buf, BufRef, Cache};
use crate::device::{IoKind, ReadRequest};
use crate::format::BlockAddr;
use cffs_buf::AlignedBuf;
use std::ops::Range;
use std::sync::Arc;

impl Cache {
    /// Brings in runs of metadata blocks that are about to be read one after the other, several requests in flight. Runs of which
    /// something is here already, or on its way, are left out. Returns what came: it stays while it is held. A failure is met
    /// again, and told, by who reads the block.
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
        let read = self.dev.read_batch(&mut requests).is_ok();
        drop(requests);
        let mut came = Vec::new();
        for (run, bytes) in claimed {
            let ls = self.shard(run.start);
            let mut shard = ls.shard.lock();
            shard.claims.remove(run.clone());
            for (addr, bytes) in run.zip(bytes.chunks_exact(self.geo.block_size())).filter(|_| read) {
                let buf = Buf::new(addr, AlignedBuf::from_slice(bytes), false);
                came.push(Arc::clone(&buf));
                self.insert(&mut shard, buf);
            }
            drop(shard);
            ls.changed.notify_all();
        }
        self.evict();
        came
    }

    /// Claims the blocks of a run, unless one of them is here or claimed, or the run is not within one part.
    fn claim_all(&self, run: &Range<BlockAddr>) -> bool {
        if run.is_empty() || run.end > self.geo.total_blocks || self.region(run.start) != self.region(run.end - 1) {
            return false;
        }
        let mut shard = self.shard(run.start).shard.lock();
        let nothing =
            shard.claims.first_in(run.clone()).is_none() && !run.clone().any(|addr| shard.map.contains_key(&addr));
        if nothing {
            shard.claims.add(run.clone());
        }
        nothing
    }
}
