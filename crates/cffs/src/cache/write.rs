//! Writing home: data placed by writeback, and blocks that the journal has made durable.
//!
//! Neighbours on the device become one request (the group write of C-FFS 1997, section 3.2), however many files they
//! belong to.

use super::{Buf, BufRef, Cache, LockedShard, Shard, Slot};
use crate::device::{IoKind, WriteRequest};
use crate::error::Result;
use crate::format::{BlockAddr, FragAddr};
use cffs_buf::AlignedBuf;
use parking_lot::MutexGuard;
use std::collections::hash_map::Entry;
use std::io::IoSlice;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Most buffers gathered into one request.
const GATHER_MAX: usize = 512;

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
    /// Stays in the cache. What is written of a large file would push out everything else.
    pub keep: bool,
}

impl DataRun<'_> {
    fn slice(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.len]
    }
}

/// Pieces of one block that a batch covers.
struct Piece {
    block: BlockAddr,
    at: usize,
    run: usize,
    from: usize,
    len: usize,
}

impl Cache {
    /// Writes file data to its place. Runs must not overlap. On return the data has left for the device (durable after
    /// the next flush) and whatever part of it was cached has the new contents.
    pub fn write_data(&self, runs: &mut [DataRun<'_>]) -> Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        runs.sort_unstable_by_key(|r| r.frag);
        let (busy, kept) = self.prepare_write(runs);
        let outcome = self.submit(IoKind::Data, runs);
        drop(kept);
        for of_part in busy.chunk_by(|a, b| self.region(*a) == self.region(*b)) {
            let ls = self.shard(of_part[0]);
            let mut shard = ls.shard.lock();
            of_part.iter().for_each(|addr| drop(shard.map.remove(addr)));
            drop(shard);
            ls.changed.notify_all();
        }
        outcome
    }

    /// Brings the cached contents of the blocks up to date, and claims those that are not cached as a whole so that
    /// nobody reads them before the write is through. Returns the claimed blocks, and references to the cached ones: an
    /// eviction before the write is through would let the old contents be read again.
    fn prepare_write(&self, runs: &[DataRun<'_>]) -> (Vec<BlockAddr>, Vec<BufRef>) {
        let (bs, fs) = (self.geo.block_size(), self.geo.frag_size());
        let bytes: usize = runs.iter().map(|r| r.len).sum();
        let mut pieces: Vec<Piece> = Vec::with_capacity(runs.len() + bytes / bs);
        for (i, r) in runs.iter().enumerate() {
            let mut frag = r.frag;
            let mut from = r.from;
            let end = r.from + r.len;
            while from < end {
                let block = self.geo.block_of_frag(frag);
                let at = (frag - self.geo.frag_of_block(block)) as usize * fs;
                let len = (bs - at).min(end - from);
                pieces.push(Piece { block, at, run: i, from, len });
                from += len;
                frag += (len / fs) as u64;
            }
        }
        let (mut busy, mut kept) = (Vec::with_capacity(bytes / bs), Vec::new());
        // The part that the last block is in: neighbours are in the same one mostly.
        let mut held: Option<(&LockedShard, MutexGuard<'_, Shard>)> = None;
        for of_block in pieces.chunk_by(|a, b| a.block == b.block) {
            let addr = of_block[0].block;
            let whole = of_block.iter().map(|p| p.len).sum::<usize>() == bs;
            let keep = whole && of_block.iter().all(|p| runs[p.run].keep);
            let ls = self.shard(addr);
            if held.as_ref().is_none_or(|(of, _)| !std::ptr::eq::<LockedShard>(*of, ls)) {
                drop(held.take());
                held = Some((ls, ls.shard.lock()));
            }
            let Some((_, shard)) = &mut held else { continue };
            if !keep && let Entry::Vacant(place) = shard.map.entry(addr) {
                place.insert(Slot::Busy);
                busy.push(addr);
                continue;
            }
            // Claims are taken in the order of addresses, so two writers cannot wait for each other.
            while let Some(Slot::Busy) = shard.map.get(&addr) {
                ls.changed.wait(shard);
            }
            let copy = |bytes: &mut [u8]| {
                for p in of_block {
                    bytes[p.at..p.at + p.len].copy_from_slice(&runs[p.run].bytes[p.from..p.from + p.len]);
                }
            };
            // What was copied into the cache is what the file has.
            let bits = |p: &Piece| (u8::MAX >> (8 - p.len / fs)) << (p.at / fs);
            let trusted = of_block.iter().fold(0, |all, p| all | bits(p));
            match shard.map.get(&addr) {
                Some(Slot::Ready(b)) => {
                    let b = b.clone();
                    held = None;
                    {
                        let mut inner = b.lock();
                        // On a damaged image metadata can stand here: what a user wrote over it is to be checked anew.
                        b.verified.store(false, Ordering::Release);
                        copy(&mut inner.bytes);
                        b.trusted.fetch_or(trusted, Ordering::AcqRel);
                    }
                    kept.push(b);
                }
                _ if keep => {
                    let mut bytes = AlignedBuf::zeroed(bs);
                    copy(&mut bytes);
                    let buf = Buf::new(addr, bytes, false);
                    buf.trusted.store(trusted, Ordering::Release);
                    self.insert(shard, buf.clone());
                    kept.push(buf);
                    held = None;
                    self.evict();
                }
                _ => {
                    shard.map.insert(addr, Slot::Busy);
                    busy.push(addr);
                }
            }
        }
        (busy, kept)
    }

    fn submit(&self, kind: IoKind, runs: &[DataRun<'_>]) -> Result<()> {
        let shift = self.geo.frag_shift;
        let pieces = runs.iter().map(|r| (r.frag << shift, r.slice()));
        let began = Instant::now();
        self.write_sorted(kind, pieces)?;
        let bytes: u64 = runs.iter().map(|r| r.len as u64).sum();
        let gaps = runs.windows(2).filter(|w| w[0].frag + (w[0].len as u64 >> shift) != w[1].frag).count() as u64;
        let past = runs.iter().all(|r| matches!(r.bytes, Source::Caller(_)));
        if past {
            self.counters.written_past.fetch_add(bytes, Ordering::Relaxed);
        }
        self.pace.note(past, bytes, 1 + gaps, began.elapsed());
        Ok(())
    }

    /// Writes pieces that are sorted by offset, neighbours in one request.
    pub(crate) fn write_sorted<'a>(&self, kind: IoKind, pieces: impl Iterator<Item = (u64, &'a [u8])>) -> Result<()> {
        let max = self.dev.max_request();
        let mut requests: Vec<WriteRequest<'a>> = Vec::new();
        let (mut end, mut len) = (u64::MAX, 0);
        for (offset, bytes) in pieces {
            let joins = offset == end && len + bytes.len() <= max;
            match requests.last_mut() {
                Some(r) if joins && r.bufs.len() < GATHER_MAX => r.bufs.push(IoSlice::new(bytes)),
                _ => {
                    requests.push(WriteRequest { kind, offset, bufs: vec![IoSlice::new(bytes)] });
                    len = 0;
                }
            }
            len += bytes.len();
            end = offset + bytes.len() as u64;
        }
        let outcome = self.dev.write_batch(&requests);
        // Not before: a flush that begins while the write is under way does not cover it, and clears the mark.
        self.unflushed.store(true, Ordering::Release);
        Ok(outcome?)
    }
}
