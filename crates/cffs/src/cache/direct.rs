//! Direct reads: long runs go from the device straight to where the reader wants the bytes. And the conditions of direct
//! writes ([`crate::file::direct`]).
//!
//! Through the cache each byte of a large file would be copied once more, into buffers that are allocated for it and evicted
//! by the next ones, together with what is read again and again. Runs of data that are written leave nothing in the
//! cache either ([`super::write`]).
//!
//! A direct read marks nothing as in flight, and no other transfer waits for it. That is right because the node is locked: nobody
//! changes one of the fragments that are read, in the cache or on the device. Data that is not written back yet is a page of the
//! node, or (after an fsync through the log) a block of the cache that stays there until it is checkpointed.

use super::block_cache::Cache;
use super::buf::BufRef;
use super::shard::LockedShard;
use super::verify::DataVerifier;
use crate::error::Result;
use crate::format::{BlockAddr, FragAddr};
use cffs_device::{IoKind, ReadRequest};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Shortest direct read in bytes. Shorter ones gain more from readahead.
const DIRECT_MIN: usize = 256 << 10;
/// The same as a share of the cache, where that is small.
const DIRECT_DIVISOR: usize = 16;
/// Files of more than such a share of the cache count as large: with a few of them in it there is room for nothing else.
const LARGE_DIVISOR: usize = 8;
/// Files of at least such a share of the cache are written directly, where that is faster.
const LONG_DIVISOR: usize = 256;

/// A run of fragments of a file to be read.
pub struct ReadRun<'a> {
    /// First fragment.
    pub frag: FragAddr,
    /// Which fragment of the file that is.
    pub logical: u64,
    /// Where the bytes go: as many as there are, the last fragment perhaps in part.
    pub out: &'a mut [u8],
}

/// Bytes of a run that come from one place: a cached block, or, without one, the device.
struct Part {
    bytes: Range<usize>,
    block: BlockAddr,
    cached: Option<BufRef>,
}

impl Cache {
    /// Whether contents of a file of `size` bytes do not stay in the cache when they are written, and long reads of them
    /// leave nothing there.
    pub fn is_large(&self, size: u64) -> bool {
        size > (self.limit / LARGE_DIVISOR) as u64
    }

    /// Whether a read of `len` bytes of a file of `size` is direct.
    pub fn reads_direct(&self, size: u64, len: usize) -> bool {
        self.is_large(size) && len >= DIRECT_MIN.min(self.limit / DIRECT_DIVISOR)
    }

    /// Whether a file of `size` bytes is long enough for direct writes. Shorter ones may be removed before they are written
    /// back, or be read at once.
    pub fn is_long(&self, size: u64) -> bool {
        size >= (self.limit / LONG_DIVISOR) as u64
    }

    /// Whether the device writes so fast, by a running estimate, that copying long writes costs more than waiting for it.
    pub fn favours_direct_writes(&self) -> bool {
        self.write_latency.favours_direct()
    }

    /// Whether writes from this memory need no copy on their way to the device.
    pub fn takes(&self, memory: &[u8]) -> bool {
        self.dev.takes(memory)
    }

    /// Longest request of the device.
    pub fn max_request(&self) -> usize {
        self.dev.max_request()
    }

    /// Reads runs of a file whose node is locked. What is cached is copied from there; the rest comes from the device into its
    /// place, all of it in one batch, and is verified.
    pub fn read_runs(&self, runs: Vec<ReadRun<'_>>, verifier: Option<&dyn DataVerifier>) -> Result<()> {
        let fs = self.geo.frag_size();
        let max = (self.dev.max_request() / fs * fs).max(fs);
        let mut requests: Vec<ReadRequest<'_>> = Vec::new();
        // Of each request the first fragment, on the device and of the file.
        let mut places: Vec<(FragAddr, u64)> = Vec::new();
        let set_position = |(frag, logical)| {
            if let Some(verifier) = verifier {
                verifier.set_position(frag, logical);
            }
        };
        for run in runs {
            let ReadRun { frag, logical, out } = run;
            self.must_contain(frag, self.geo.frags_for(out.len() as u64))?;
            let place = |at: usize| (frag + (at / fs) as u64, logical + (at / fs) as u64);
            let whole = out.len() / fs * fs;
            let (mut out, tail) = out.split_at_mut(whole);
            if !tail.is_empty() {
                set_position(place(whole));
                self.read_data(place(whole).0, tail, verifier)?;
            }
            for part in self.parts(frag, whole) {
                let at = part.bytes.start;
                let (mut here, rest) = std::mem::take(&mut out).split_at_mut(part.bytes.len());
                out = rest;
                if let Some(buf) = part.cached {
                    let was_ahead = !buf.is_requested();
                    self.touch(&buf, &self.data_policy);
                    let skip = (place(at).0 - self.geo.frag_of_block(part.block)) as usize * fs;
                    let frags = skip / fs..(skip + here.len()) / fs;
                    buf.use_frags(frags.clone(), self.geo.frags_per_block() as usize);
                    if let Some(verifier) = verifier {
                        set_position(place(at));
                        self.verify_cached(&buf, frags, verifier)?;
                    }
                    here.copy_from_slice(&buf.read()[skip..skip + here.len()]);
                    if was_ahead && skip + here.len() == self.geo.block_size() {
                        // It was read ahead, and is done with.
                        drop(buf);
                        self.drop_unheld(&mut self.shard(part.block).shard.lock(), part.block);
                    }
                    continue;
                }
                self.counters.misses.fetch_add(1, Ordering::Relaxed);
                let mut at = at;
                while !here.is_empty() {
                    let n = here.len().min(max);
                    let (buf, rest) = std::mem::take(&mut here).split_at_mut(n);
                    let offset = place(at).0 << self.geo.frag_shift;
                    requests.push(ReadRequest { kind: IoKind::Data, offset, buf });
                    places.push(place(at));
                    (here, at) = (rest, at + n);
                }
            }
        }
        let read = if requests.is_empty() { Ok(()) } else { self.dev.read_batch(&mut requests) };
        for (r, place) in requests.into_iter().zip(places) {
            set_position(place);
            match (&read, verifier) {
                (Ok(()), None) => {}
                (Ok(()), Some(verifier)) => self.verify_run(place.0, r.buf, verifier)?,
                // Somewhere is a bad sector: block by block, so that it hides nothing else.
                (Err(_), _) => self.read_data(place.0, r.buf, verifier)?,
            }
        }
        Ok(())
    }

    /// The parts of `len` bytes, whole fragments, from `frag` on.
    fn parts(&self, frag: FragAddr, len: usize) -> Vec<Part> {
        let (bs, fs) = (self.geo.block_size(), self.geo.frag_size());
        let mut parts: Vec<Part> = Vec::new();
        let mut at = 0;
        let mut locked: Option<(&LockedShard, _)> = None;
        while at < len {
            let here = frag + (at / fs) as u64;
            let block = self.geo.block_of_frag(here);
            let end = (at + bs - (here - self.geo.frag_of_block(block)) as usize * fs).min(len);
            let ls = self.shard(block);
            let guard = match &mut locked {
                Some((of, guard)) if std::ptr::eq(*of, ls) => guard,
                other => {
                    // One at a time.
                    *other = None;
                    &mut other.insert((ls, ls.shard.lock())).1
                }
            };
            let cached = ls.cached_or_wait(guard, block);
            match parts.last_mut() {
                Some(last) if last.cached.is_none() && cached.is_none() => last.bytes.end = end,
                _ => parts.push(Part { bytes: at..end, block, cached }),
            }
            at = end;
        }
        parts
    }
}
