//! Blocks of several places, read in one batch: metadata that is about to be needed, and what is read ahead from several devices at once.

use super::block_cache::{Cache, ReadaheadRequest};
use super::buf::{Buf, BufRef, Demand};
use crate::format::BlockAddr;
use crate::trace::{Causes, Kind as Trace};
use cffs_buf::AlignedBuf;
use cffs_device::{IoKind, Purpose, ReadRequest};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What one request across several places has brought.
pub(crate) struct ReadAcross {
    /// It was about so many of the blocks that were asked for.
    pub(crate) count: usize,
    /// Those of them that were read, in runs.
    pub(crate) blocks: Vec<Range<BlockAddr>>,
}

impl Cache {
    /// Reads data blocks, which are given in order, with one request: as far as there are at most `gap` blocks between one and the next, and
    /// not more than `most` in all. What lies between them is not cached. One that cannot be read is for its reader to report.
    pub(crate) fn read_across(&self, blocks: &[BlockAddr], gap: u64, most: u64) -> ReadAcross {
        let Some(first) = blocks.first().copied() else { return ReadAcross { count: 0, blocks: Vec::new() } };
        let most = most.clamp(1, self.transfer_blocks());
        let near = |pair: &&[BlockAddr]| pair[1] - pair[0] <= gap + 1 && pair[1] - first < most;
        let last = blocks[blocks.windows(2).take_while(near).count()];
        let here = self.together(&(first..first + 1), first..last + 1);
        let count = blocks.partition_point(|block| *block < here.end);
        let wanted = blocks[..count].chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1);
        let claimed: Vec<Range<BlockAddr>> = wanted.flat_map(|run| self.claim_missing(run)).collect();
        let (Some(start), Some(end)) = (claimed.first().map(|r| r.start), claimed.last().map(|r| r.end)) else {
            return ReadAcross { count, blocks: Vec::new() };
        };
        // Others may be reading or writing what lies in between: of that nothing is taken.
        let range = start..end;
        self.counters.misses.fetch_add(1, Ordering::Relaxed);
        let _miss = self.tracer().span(Trace::Miss, [start, end - start, 0]);
        let Ok(bytes) = self.read_blocks(IoKind::Data, &range) else {
            claimed.into_iter().for_each(|run| self.release(run));
            return ReadAcross { count, blocks: Vec::new() };
        };
        self.insert_filled(claimed.clone(), range.clone().zip(bytes), &range, false);
        ReadAcross { count, blocks: claimed }
    }

    /// Reads runs of metadata blocks that are about to be needed one after the other, several requests in flight. Runs with
    /// a block that is cached or in flight are left out. Returns the blocks: they stay cached while they are held. The reader
    /// that needs a block meets a failure again, and reports it.
    pub(crate) fn prefetch_batch(&self, runs: impl Iterator<Item = Range<BlockAddr>>) -> Vec<BufRef> {
        let claimed = runs.filter(|run| self.claim_all(run)).map(|run| (IoKind::Meta, run)).collect();
        self.read_claimed(claimed, Demand::Requested)
    }

    /// Marks the blocks of runs as in flight that are not there and not on their way. Returns these.
    pub(super) fn claim_ahead(&self, requests: Vec<ReadaheadRequest>) -> Vec<ReadaheadRequest> {
        let claim = |(cause, kind, range): ReadaheadRequest| {
            self.claim_missing(range).into_iter().map(move |run| (cause, kind, run))
        };
        requests.into_iter().flat_map(claim).collect()
    }

    /// The same of one run: parts of it, each in one part of the cache.
    fn claim_missing(&self, range: Range<BlockAddr>) -> Vec<Range<BlockAddr>> {
        let (mut runs, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let end = range.end.min(self.region_end(at));
            runs.extend(self.shard(at).shard.lock().claim_missing(at..end));
            at = end;
        }
        runs
    }

    /// The blocks of a run are not in flight any more, and were not read.
    pub(super) fn release(&self, run: Range<BlockAddr>) {
        let ls = self.shard(run.start);
        ls.shard.lock().in_flight.remove(run);
        ls.changed.notify_all();
    }

    /// Reads what the readahead thread was asked for, several requests in flight. The blocks are marked as that already.
    pub(super) fn fill_ahead(&self, requests: Vec<ReadaheadRequest>) {
        let Some((first, ..)) = requests.first() else { return };
        let (mut claimed, mut for_whom) = (Vec::new(), Causes::default());
        let blocks = requests.iter().map(|(_, _, range)| range.end - range.start).sum();
        let mut span = self.tracer().span_for(*first, Trace::Readahead, [requests[0].2.start, blocks, 0]);
        for (cause, kind, run) in requests {
            for_whom.add(cause, (run.end - run.start) << self.geo.block_shift);
            let here = self.together(&(run.start..run.start + 1), run.clone());
            if here != run {
                let mut shard = self.shard(run.start).shard.lock();
                shard.in_flight.remove(run.clone());
                shard.in_flight.add(here.clone());
                drop(shard);
                self.shard(run.start).changed.notify_all();
            }
            claimed.push((kind, here));
        }
        span.add_causes(&for_whom);
        let reads = claimed.len() as u64;
        // The reader that needs a block meets a failure again, and reports it.
        let blocks = self.read_claimed(claimed, Demand::Prefetched).len() as u64;
        self.counters.group_reads.fetch_add(if blocks > 0 { reads } else { 0 }, Ordering::Relaxed);
        self.counters.group_blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Reads runs that are in flight. Returns the blocks.
    fn read_claimed(&self, claimed: Vec<(IoKind, Range<BlockAddr>)>, demand: Demand) -> Vec<BufRef> {
        if claimed.is_empty() {
            return Vec::new();
        }
        let zeroed =
            |run: &Range<BlockAddr>| AlignedBuf::zeroed(((run.end - run.start) << self.geo.block_shift) as usize);
        let mut claimed: Vec<_> = claimed.into_iter().map(|(kind, run)| (kind, zeroed(&run), run)).collect();
        let mut requests: Vec<ReadRequest<'_>> = claimed
            .iter_mut()
            .flat_map(|(kind, bytes, run)| self.cut(*kind, run.start << self.geo.block_shift, bytes))
            .collect();
        let _purpose = Purpose::Prefetch.scope_if_none();
        let read = self.dev.read_batch(&mut requests).is_ok();
        drop(requests);
        let mut prefetched = Vec::new();
        for (kind, bytes, run) in claimed {
            let blocks = run.clone().zip(bytes.chunks_exact(self.geo.block_size())).filter(|_| read);
            let bufs: Vec<BufRef> =
                blocks.map(|(addr, bytes)| Buf::new(addr, AlignedBuf::from_slice(bytes), demand)).collect();
            if kind == IoKind::Meta && demand == Demand::Prefetched {
                self.note_directories(bufs.iter().cloned());
            }
            let ls = self.shard(run.start);
            let mut shard = ls.shard.lock();
            shard.in_flight.remove(run);
            prefetched.extend_from_slice(&bufs);
            bufs.into_iter().for_each(|buf| self.insert(&mut shard, buf));
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
