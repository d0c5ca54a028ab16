//! Writes to the device: data that writeback has allocated space for, and blocks that the journal has committed.
//!
//! Neighbours on the device become one request (the group write of C-FFS 1997, section 3.2), however many files they
//! belong to.

use super::block_cache::Cache;
use super::buf::{Buf, BufRef, Demand};
use super::shard::{LockedShard, Shard};
use crate::error::Result;
use crate::format::{BlockAddr, FragAddr};
use cffs_buf::AlignedBuf;
use cffs_device::{IoKind, Purpose, WriteRequest};
use parking_lot::MutexGuard;
use std::io::IoSlice;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Most buffers of one request.
const REQUEST_BUFS_MAX: usize = 512;

/// Memory that is written from.
pub enum Source<'a> {
    /// A page's.
    Page(Arc<AlignedBuf>),
    /// That of the program that writes.
    Caller(&'a [u8]),
}

impl Deref for Source<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Source::Page(bytes) => bytes,
            Source::Caller(bytes) => bytes,
        }
    }
}

/// A run of fragments to be written.
pub struct DataRun<'a> {
    /// First fragment.
    pub frag: FragAddr,
    /// Memory that holds the bytes.
    pub bytes: Source<'a>,
    /// Offset of the run in it.
    pub from: usize,
    /// Length in bytes: whole fragments.
    pub len: usize,
    /// Stays in the cache. (What is written of a large file would evict everything else.)
    pub keep: bool,
}

impl DataRun<'_> {
    fn slice(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.len]
    }
}

/// Whole blocks of one run that are not kept, or a part of one block.
struct Piece {
    blocks: Range<BlockAddr>,
    run: usize,
    /// Where the bytes begin: in the first block, and in the memory of the run.
    at: usize,
    from: usize,
    /// Bytes in each of the blocks.
    len: usize,
}

/// The blocks that a batch writes, until the write is complete.
#[derive(Default)]
struct Prepared {
    /// Blocks in flight, so that nobody reads them. Each run is in one region.
    claimed: Vec<Range<BlockAddr>>,
    /// Cached blocks: an eviction before the write is complete would let the old contents be read again.
    held: Vec<BufRef>,
}

/// The locked part of the cache: neighbours are in the same one mostly.
#[derive(Default)]
struct CurrentShard<'a>(Option<(&'a LockedShard, MutexGuard<'a, Shard>)>);

impl<'a> CurrentShard<'a> {
    /// Locks the part that a block is in, and no other.
    fn lock(&mut self, cache: &'a Cache, addr: BlockAddr) -> &mut (&'a LockedShard, MutexGuard<'a, Shard>) {
        let ls = cache.shard(addr);
        match self.0.take() {
            Some(same) if std::ptr::eq(same.0, ls) => self.0.insert(same),
            other => {
                drop(other);
                self.0.insert((ls, ls.shard.lock()))
            }
        }
    }
}

impl Prepared {
    /// Marks a run of blocks as in flight that are neither cached nor in flight.
    fn claim(&mut self, cache: &Cache, shard: &mut Shard, run: Range<BlockAddr>) {
        if let Some(last) = self.claimed.last_mut()
            && last.end == run.start
            && cache.region(last.start) == cache.region(run.start)
        {
            shard.in_flight.extend(last.clone(), run.end);
            last.end = run.end;
        } else {
            shard.in_flight.add(run.clone());
            self.claimed.push(run);
        }
    }
}

impl Cache {
    /// Writes file data to its place. On return the data has left for the device (durable after the next flush) and whatever
    /// part of it was cached has the new contents.
    pub fn write_data(&self, runs: &mut [&DataRun<'_>]) -> Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        let outcome = self.write_copies(runs);
        self.note_written();
        outcome
    }

    /// The same, for who flushes the device itself before anything points to the data: no commit has to.
    pub(crate) fn write_copies(&self, runs: &mut [&DataRun<'_>]) -> Result<()> {
        let _purpose = Purpose::Writeback.scope_if_none();
        runs.sort_unstable_by_key(|r| r.frag);
        let shift = self.geo.frag_shift;
        let Some(twice) = runs.windows(2).find(|w| w[0].frag + (w[0].len as u64 >> shift) > w[1].frag) else {
            return if runs.is_empty() { Ok(()) } else { self.write_disjoint(runs) };
        };
        // In one batch they would wait for each other. One after the other, as if they had come at different times: what
        // belongs to whom is for a repair to say.
        tracing::error!("fragment {} is mapped twice: the file system is damaged", twice[1].frag);
        let mut outcome = Ok(());
        for run in runs {
            outcome = outcome.and(self.write_disjoint(std::slice::from_ref(run)));
        }
        outcome
    }

    /// Writes sorted runs that do not overlap.
    fn write_disjoint(&self, runs: &[&DataRun<'_>]) -> Result<()> {
        let Prepared { claimed, held } = self.prepare_write(runs);
        let outcome = self.submit(IoKind::Data, runs);
        drop(held);
        for of_part in claimed.chunk_by(|a, b| self.region(a.start) == self.region(b.start)) {
            let ls = self.shard(of_part[0].start);
            let mut shard = ls.shard.lock();
            of_part.iter().for_each(|run| shard.in_flight.remove(run.clone()));
            drop(shard);
            ls.changed.notify_all();
        }
        outcome
    }

    /// Cuts runs into what is in one block, and what is whole blocks of one region.
    fn pieces(&self, runs: &[&DataRun<'_>]) -> Vec<Piece> {
        let (bs, fs) = (self.geo.block_size(), self.geo.frag_size());
        let mut pieces = Vec::with_capacity(runs.len() + 1);
        for (run, r) in runs.iter().enumerate() {
            let (mut frag, mut from, end) = (r.frag, r.from, r.from + r.len);
            while from < end {
                let block = self.geo.block_of_frag(frag);
                let at = (frag - self.geo.frag_of_block(block)) as usize * fs;
                let left = end - from;
                let count = if at > 0 || left < bs || r.keep {
                    1
                } else {
                    (left / bs).min((self.region_end(block) - block) as usize)
                };
                let len = (bs - at).min(left);
                pieces.push(Piece { blocks: block..block + count as u64, run, at, from, len });
                from += count * len;
                frag += (count * len / fs) as u64;
            }
        }
        pieces
    }

    /// Updates the cached contents of the blocks, and marks those that are not cached as in flight, so that nobody reads
    /// them before the write is complete. Blocks are marked in the order of addresses, so two writers cannot wait for each
    /// other.
    fn prepare_write(&self, runs: &[&DataRun<'_>]) -> Prepared {
        let bs = self.geo.block_size();
        let pieces = self.pieces(runs);
        let mut prepared = Prepared::default();
        let mut current = CurrentShard::default();
        for of_block in pieces.chunk_by(|a, b| a.blocks.start == b.blocks.start) {
            let Piece { blocks, .. } = &of_block[0];
            let whole = of_block.iter().map(|p| p.len).sum::<usize>() == bs;
            let keep = whole && of_block.iter().all(|p| runs[p.run].keep);
            let mut addr = blocks.start;
            while addr < blocks.end {
                let (_, shard) = current.lock(self, addr);
                let absent = if keep { 0 } else { shard.absent_prefix(addr..blocks.end) };
                if absent > 0 {
                    prepared.claim(self, shard, addr..addr + absent);
                    addr += absent;
                    continue;
                }
                let skip = (addr - blocks.start) as usize * bs;
                let bytes = |p: &Piece| (p.at, &runs[p.run].bytes[p.from + skip..p.from + skip + p.len]);
                self.update_cached(&mut current, addr, of_block.iter().map(bytes), keep, &mut prepared);
                addr += 1;
            }
        }
        prepared
    }

    /// Updates one block that is cached, in flight or to be kept. Each piece has its offset in the block, and its bytes.
    fn update_cached<'a, 'b>(
        &'a self,
        current: &mut CurrentShard<'a>,
        addr: BlockAddr,
        pieces: impl Iterator<Item = (usize, &'b [u8])> + Clone,
        keep: bool,
        prepared: &mut Prepared,
    ) {
        let fs = self.geo.frag_size();
        let copy =
            |bytes: &mut [u8]| pieces.clone().for_each(|(at, new)| bytes[at..at + new.len()].copy_from_slice(new));
        // What was copied into the cache is what the file has.
        let verified = pieces.clone().fold(0, |all, (at, new)| all | (u8::MAX >> (8 - new.len() / fs)) << (at / fs));
        let (ls, shard) = current.lock(self, addr);
        match ls.cached_or_wait(shard, addr) {
            Some(buf) => {
                *current = CurrentShard::default();
                {
                    let mut inner = buf.lock();
                    // On a damaged image metadata can stand here: what a user wrote over it is to be checked anew.
                    buf.set_verified(false);
                    copy(&mut inner.bytes);
                    buf.add_verified_frags(verified);
                }
                prepared.held.push(buf);
            }
            None if keep => {
                let mut bytes = AlignedBuf::zeroed(self.geo.block_size());
                copy(&mut bytes);
                let buf = Buf::new(addr, bytes, Demand::Requested);
                buf.add_verified_frags(verified);
                self.insert(shard, buf.clone());
                prepared.held.push(buf);
                *current = CurrentShard::default();
                self.evict();
            }
            None => prepared.claim(self, shard, addr..addr + 1),
        }
    }

    fn submit(&self, kind: IoKind, runs: &[&DataRun<'_>]) -> Result<()> {
        let shift = self.geo.frag_shift;
        let pieces = runs.iter().map(|r| (r.frag << shift, r.slice()));
        let began = Instant::now();
        self.dev.write_batch(&self.requests(kind, pieces))?;
        let bytes: u64 = runs.iter().map(|r| r.len as u64).sum();
        let gaps = runs.windows(2).filter(|w| w[0].frag + (w[0].len as u64 >> shift) != w[1].frag).count() as u64;
        let direct = runs.iter().all(|r| matches!(r.bytes, Source::Caller(_)));
        if direct {
            self.counters.direct_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.write_latency.note(direct, bytes, 1 + gaps, began.elapsed());
        Ok(())
    }

    /// Requests for pieces that are sorted by offset, neighbours in one.
    pub(crate) fn requests<'a>(
        &self,
        kind: IoKind,
        pieces: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Vec<WriteRequest<'a>> {
        let max = self.dev.max_request();
        let mut requests: Vec<WriteRequest<'a>> = Vec::new();
        let (mut end, mut len) = (u64::MAX, 0);
        for (offset, bytes) in pieces {
            let joins = offset == end && len + bytes.len() <= max;
            match requests.last_mut() {
                Some(r) if joins && r.bufs.len() < REQUEST_BUFS_MAX => r.bufs.push(IoSlice::new(bytes)),
                _ => {
                    requests.push(WriteRequest { kind, offset, bufs: vec![IoSlice::new(bytes)] });
                    len = 0;
                }
            }
            len += bytes.len();
            end = offset + bytes.len() as u64;
        }
        requests
    }

    /// Writes requests, so that after a crash all of them are there or none if it is to be `atomic`.
    pub(crate) fn write_requests(&self, requests: &[WriteRequest<'_>], atomic: bool) -> Result<()> {
        if requests.is_empty() {
            return Ok(());
        }
        let outcome = if atomic { self.dev.write_atomic(requests) } else { self.dev.write_batch(requests) };
        self.note_written();
        Ok(outcome?)
    }

    /// Notes that the next commit has to flush. Not before the write is complete: a flush that begins while it is under way does not cover it,
    /// and clears the mark.
    fn note_written(&self) {
        self.unflushed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::PrefetchMode;
    use crate::format::Geometry;
    use crate::mkfs::{MkfsOptions, mkfs};
    use cffs_device::{Device, MemoryDevice};

    /// A damaged image maps a block twice, and both are dirty: this once hung (seed 1795400483 of --faults).
    #[test]
    fn blocks_mapped_twice_are_written_one_after_the_other() {
        let dev = Arc::new(MemoryDevice::new(32 << 20));
        let sb = mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
        let geo = Geometry::new(&sb).unwrap();
        let cache = Cache::new(dev.clone() as Arc<dyn Device>, geo, 8 << 20, PrefetchMode::Off);
        let (bs, fpb) = (geo.block_size(), geo.frags_per_block());
        let (long, short) = (vec![1; 3 * bs], vec![2; bs]);
        for keep in [false, true] {
            let run = |block: u64, bytes| DataRun {
                frag: block * fpb,
                bytes: Source::Caller(bytes),
                from: 0,
                len: bytes.len(),
                keep,
            };
            cache.write_data(&mut [&run(1001, &short), &run(1000, &long)]).unwrap();
            let mut all = vec![0; 3 * bs];
            cache.read_data(1000 * fpb, &mut all, None).unwrap();
            assert_eq!(all, [&long[..bs], &short, &long[..bs]].concat(), "keep: {keep}");
            cache.drop_clean();
            cache.read_data(1000 * fpb, &mut all, None).unwrap();
            assert_eq!(all, [&long[..bs], &short, &long[..bs]].concat(), "on the device, keep: {keep}");
        }
    }
}
