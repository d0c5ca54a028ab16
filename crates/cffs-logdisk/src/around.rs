//! What lies around what is read. Written together, it may well be read together, wherever it lies in the logical space.
//!
//! A chunk is as long as the requests that the file system thinks worth their time, its groups: one costs about two short requests. So it pays when
//! some more reads, on average, are answered from it. While that holds, a miss reads its chunk. When it does not, it reads what was asked for,
//! and a second miss in a chunk shortly after another one reads all of it: if those turn out well, chunks are back.
//!
//! Where they do not, who reads in the order of the log gets a chunk that begins there: a disk goes on for it, and would turn for what lies before.
//!
//! A segment is never changed, so what is kept of one never becomes stale.

use crate::extent::BLOCK_BYTES;
use crate::store::{Get, SegmentId, SegmentStore};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are kept of what was read around blocks, at most.
pub(crate) const KEPT_BYTES: usize = 8 << 20;
/// Longest chunk.
const CHUNK_MAX: u64 = 1 << 20;
/// Reads that a chunk has to answer.
const PAYS: u32 = 3;
/// Chunks before their answers are counted, and those after which half is forgotten.
const WARMUP: u32 = 1;
const MEMORY: u32 = 64;
/// Misses that are remembered.
const MISSES: usize = 8;

struct Chunk {
    segment: SegmentId,
    range: Range<u64>,
    bytes: Vec<u8>,
}

impl Chunk {
    /// The bytes of a range, if all of it is here.
    fn part(&self, segment: SegmentId, range: &Range<u64>) -> Option<&[u8]> {
        let has = self.segment == segment && self.range.start <= range.start && range.end <= self.range.end;
        let first = range.start.checked_sub(self.range.start)? as usize;
        if has { self.bytes.get(first..first + (range.end - range.start) as usize) } else { None }
    }
}

#[derive(Default)]
struct Inner {
    /// Bytes of a chunk; 0 while nobody has said what a request is worth.
    chunk: u64,
    kept_max: usize,
    /// The last used first.
    kept: VecDeque<Arc<Chunk>>,
    /// Chunks in which something was missed and that were not read.
    missed: VecDeque<(SegmentId, u64)>,
    /// Where the last read ended.
    last: Option<(SegmentId, u64)>,
    chunks: u32,
    answers: u32,
}

/// How a part of a read is answered.
enum Plan {
    Kept(Arc<Chunk>),
    /// With a chunk, the one with this number among those that are read.
    Chunk(usize),
    Alone,
}

/// What was read around what was asked for, and whether that has paid.
pub(crate) struct Around(Mutex<Inner>);

impl Around {
    /// Keeps so many bytes at most, or one chunk.
    pub(crate) fn new(kept_max: usize) -> Self {
        Around(Mutex::new(Inner { kept_max, ..Inner::default() }))
    }

    /// So many bytes are worth a request.
    pub(crate) fn set_chunk(&self, bytes: u64) {
        self.0.lock().chunk = bytes.min(CHUNK_MAX);
    }

    /// What is kept of a segment is not used again: it was not right.
    pub(crate) fn forget(&self, segment: SegmentId) {
        self.0.lock().kept.retain(|c| c.segment != segment);
    }

    /// Whether so many bytes are kept.
    pub(crate) fn has(&self, segment: SegmentId, offset: u64, bytes: u64) -> bool {
        self.0.lock().kept.iter().any(|c| c.part(segment, &(offset..offset + bytes)).is_some())
    }

    /// Reads all parts in one go. `used`: bytes of a segment that are written and known; nothing is read around where that is not known. Says which
    /// parts were read around or had been.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn get_all(
        &self,
        store: &dyn SegmentStore,
        used: &dyn Fn(SegmentId) -> Option<u64>,
        parts: &mut [Get<'_>],
    ) -> io::Result<Vec<bool>> {
        let mut ranges: Vec<(SegmentId, Range<u64>)> = Vec::new();
        let plans: Vec<Plan> = {
            let mut inner = self.0.lock();
            parts.iter().map(|p| inner.plan(p, used(p.segment), &mut ranges)).collect()
        };
        let mut bytes: Vec<Vec<u8>> = ranges.iter().map(|(_, r)| vec![0; (r.end - r.start) as usize]).collect();
        let mut gets: Vec<Get<'_>> = Vec::new();
        for ((segment, range), buf) in ranges.iter().zip(&mut bytes) {
            gets.push(Get { segment: *segment, offset: range.start, buf });
        }
        for (p, _) in parts.iter_mut().zip(&plans).filter(|(_, plan)| matches!(plan, Plan::Alone)) {
            gets.push(Get { segment: p.segment, offset: p.offset, buf: &mut *p.buf });
        }
        let read = if gets.is_empty() { Ok(()) } else { store.get_all(&mut gets) };
        drop(gets);
        if let Err(e) = read {
            if ranges.is_empty() {
                return Err(e);
            }
            // What nobody has asked for must not hide the rest.
            store.get_all(parts)?;
            return Ok(vec![false; parts.len()]);
        }
        let chunk = |((segment, range), bytes)| Arc::new(Chunk { segment, range, bytes });
        let read: Vec<Arc<Chunk>> = ranges.into_iter().zip(bytes).map(chunk).collect();
        for (p, plan) in parts.iter_mut().zip(&plans) {
            match plan {
                Plan::Kept(chunk) => copy(chunk, p.segment, p.offset, p.buf),
                Plan::Chunk(n) => copy(&read[*n], p.segment, p.offset, p.buf),
                Plan::Alone => true,
            };
        }
        let mut inner = self.0.lock();
        read.into_iter().for_each(|chunk| inner.keep(chunk));
        Ok(plans.iter().map(|plan| !matches!(plan, Plan::Alone)).collect())
    }
}

fn copy(chunk: &Chunk, segment: SegmentId, offset: u64, buf: &mut [u8]) -> bool {
    let part = chunk.part(segment, &(offset..offset + buf.len() as u64));
    part.map(|part| buf.copy_from_slice(part)).is_some()
}

impl Inner {
    fn find(&mut self, segment: SegmentId, range: &Range<u64>) -> Option<Arc<Chunk>> {
        let at = self.kept.iter().position(|c| c.part(segment, range).is_some())?;
        let chunk = self.kept.remove(at)?;
        self.kept.push_front(chunk.clone());
        self.answers = self.answers.saturating_add(1);
        Some(chunk)
    }

    /// How a part is answered; what is read for it is added to `ranges`.
    fn plan(&mut self, p: &Get<'_>, used: Option<u64>, ranges: &mut Vec<(SegmentId, Range<u64>)>) -> Plan {
        let wanted = p.offset..p.offset + p.buf.len() as u64;
        let before =
            self.last.replace((p.segment, wanted.end)).filter(|(s, end)| *s == p.segment && *end <= wanted.start);
        if let Some(chunk) = self.find(p.segment, &wanted) {
            return Plan::Kept(chunk);
        }
        let within =
            |(s, r): &(SegmentId, Range<u64>)| *s == p.segment && r.start <= wanted.start && wanted.end <= r.end;
        if let Some(n) = ranges.iter().position(within) {
            self.answers = self.answers.saturating_add(1);
            return Plan::Chunk(n);
        }
        let is_short = self.chunk > 0 && p.buf.len() as u64 <= self.chunk / 2;
        let Some(used) = used.filter(|used| is_short && wanted.end <= *used) else { return Plan::Alone };
        let at = wanted.start / self.chunk;
        // What lies over a border goes with what is behind it.
        let mut chunk = at * self.chunk..(at + 1) * self.chunk;
        let is_over = wanted.end > chunk.end;
        if !self.pays() {
            if !self.was_missed((p.segment, at)) {
                return Plan::Alone;
            }
            if before.is_some_and(|(_, end)| wanted.start - end < self.chunk) {
                chunk.start = wanted.start;
                chunk.end = wanted.start + self.chunk;
            }
        }
        if is_over {
            chunk = wanted.start..chunk.end.max((at + 2) * self.chunk);
        }
        let range = chunk.start / BLOCK_BYTES as u64 * BLOCK_BYTES as u64..chunk.end.min(used);
        // One read of many pieces is not to bring more than is kept.
        let bytes: u64 = ranges.iter().map(|(_, r)| r.end - r.start).sum();
        if !ranges.is_empty() && bytes + (range.end - range.start) > self.kept_max as u64 {
            return Plan::Alone;
        }
        ranges.push((p.segment, range));
        Plan::Chunk(ranges.len() - 1)
    }

    fn pays(&self) -> bool {
        self.chunks < WARMUP || self.answers >= PAYS * self.chunks
    }

    /// Whether something was missed there a short time ago. It is noted.
    fn was_missed(&mut self, at: (SegmentId, u64)) -> bool {
        if let Some(n) = self.missed.iter().position(|m| *m == at) {
            self.missed.remove(n);
            return true;
        }
        self.missed.truncate(MISSES - 1);
        self.missed.push_front(at);
        false
    }

    fn keep(&mut self, chunk: Arc<Chunk>) {
        if self.chunks >= MEMORY {
            (self.chunks, self.answers) = (self.chunks / 2, self.answers / 2);
        }
        self.chunks += 1;
        self.kept.push_front(chunk);
        let (mut bytes, most) = (0, self.kept_max);
        self.kept.retain(|c| {
            let first = bytes == 0;
            bytes += c.bytes.len();
            first || bytes <= most
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A store in memory that counts requests, with one segment whose bytes tell where they are.
    struct Counted(MemoryStore, SegmentId, AtomicU64);

    const USED: u64 = 4 << 20;

    fn at(offset: u64) -> u8 {
        (offset / 512 % 251) as u8
    }

    impl Counted {
        fn new() -> Self {
            let store = MemoryStore::new(64 << 20, USED, true);
            let id = store.create().unwrap();
            let bytes: Vec<u8> = (0..USED).map(at).collect();
            store.append(id, 0, &bytes).unwrap();
            Counted(store, id, AtomicU64::new(0))
        }

        /// Reads so many bytes, checks them, and says whether it took a request.
        fn read(&self, around: &Around, offset: u64, bytes: usize, used: Option<u64>) -> bool {
            let before = self.2.load(Ordering::Relaxed);
            let mut buf = vec![0; bytes];
            around.get_all(self, &|_| used, &mut [Get { segment: self.1, offset, buf: &mut buf }]).unwrap();
            assert!(buf.iter().zip(offset..).all(|(b, n)| *b == at(n)), "other bytes at {offset}");
            self.2.load(Ordering::Relaxed) > before
        }
    }

    impl SegmentStore for Counted {
        fn uuid(&self) -> [u8; 16] {
            self.0.uuid()
        }
        fn create(&self) -> io::Result<SegmentId> {
            self.0.create()
        }
        fn append(&self, segment: SegmentId, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.0.append(segment, offset, bytes)
        }
        fn get(&self, segment: SegmentId, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.2.fetch_add(1, Ordering::Relaxed);
            // The last sector cannot be read.
            let is_bad = offset + buf.len() as u64 == USED && buf.len() > 4096;
            if is_bad { Err(io::Error::other("bad sector")) } else { self.0.get(segment, offset, buf) }
        }
        fn delete(&self, segment: SegmentId) -> io::Result<()> {
            self.0.delete(segment)
        }
        fn list(&self) -> io::Result<Option<Vec<SegmentId>>> {
            self.0.list()
        }
        fn adopt(&self, segments: &[SegmentId]) -> io::Result<()> {
            self.0.adopt(segments)
        }
        fn root(&self) -> io::Result<crate::store::StoreRoot> {
            self.0.root()
        }
        fn replace_root(&self, expected: u64, bytes: &[u8]) -> io::Result<u64> {
            self.0.replace_root(expected, bytes)
        }
        fn flush(&self) -> io::Result<()> {
            self.0.flush()
        }
        fn can_append(&self) -> bool {
            self.0.can_append()
        }
        fn segment_bytes(&self) -> u64 {
            self.0.segment_bytes()
        }
        fn alignment(&self) -> u32 {
            self.0.alignment()
        }
        fn capacity(&self) -> u64 {
            self.0.capacity()
        }
        fn available(&self) -> u64 {
            self.0.available()
        }
    }

    fn around() -> Around {
        let around = Around::new(512 << 10);
        around.set_chunk(64 << 10);
        around
    }

    #[test]
    fn what_lies_around_a_short_read_comes_with_it() {
        let (store, around) = (Counted::new(), around());
        assert!(store.read(&around, 20 << 10, 4096, Some(USED)));
        assert!((0..16).all(|n| !store.read(&around, n * 4096, 4096, Some(USED))));
        assert!(store.read(&around, 128 << 10, 40 << 10, Some(USED)), "a long one");
        assert!(store.read(&around, 168 << 10, 4096, Some(USED)), "brings nothing");
        around.forget(store.1);
        assert!(store.read(&around, 4096, 4096, Some(USED)));
    }

    #[test]
    fn one_read_of_many_pieces_brings_no_more_than_is_kept() {
        let (store, around) = (Counted::new(), around());
        let mut bufs = vec![[0; 4096]; 60];
        let offset = |n: usize| n as u64 * (64 << 10) + 4096;
        let get = |(n, buf)| Get { segment: store.1, offset: offset(n), buf };
        let mut parts: Vec<Get<'_>> = bufs.iter_mut().map(|b| &mut b[..]).enumerate().map(get).collect();
        let with_chunks = around.get_all(&store, &|_| Some(USED), &mut parts).unwrap();
        assert_eq!(with_chunks.iter().filter(|with| **with).count(), (512 << 10) / (64 << 10));
        drop(parts);
        assert!(
            bufs.iter().enumerate().all(|(n, buf)| buf.iter().zip(offset(n)..).all(|(b, at_byte)| *b == at(at_byte)))
        );
    }

    #[test]
    fn nothing_is_read_around_that_is_not_written_or_not_known() {
        let (store, around) = (Counted::new(), around());
        assert!(store.read(&around, 8192, 4096, None) && store.read(&around, 4096, 4096, None));
        assert!(store.read(&around, 8192, 4096, Some(12288)));
        assert!(!store.read(&around, 4096, 4096, Some(12288)));
        assert!(store.read(&around, 12288, 4096, Some(USED)), "it was not written when the rest was read");
        around.set_chunk(0);
        assert!(store.read(&around, 1 << 20, 4096, Some(USED)) && store.read(&around, 1 << 20, 4096, Some(USED)));
    }

    #[test]
    fn chunks_end_where_they_do_not_pay_and_come_back_where_they_do() {
        let (store, around) = (Counted::new(), around());
        let far = |n: u64| (n * 37 % 61) * (64 << 10) + (n % 16) * 4096;
        (0..61).for_each(|n| assert!(store.read(&around, far(n), 4096, Some(USED))));
        assert!(around.0.lock().chunks <= WARMUP, "{} chunks in vain", around.0.lock().chunks);
        let asked = (0..80u64).filter(|n| store.read(&around, (2 << 20) + (n * 7 % 80) * 4096, 4096, Some(USED)));
        assert!(asked.count() <= 15, "what lies together is read together again");
    }

    #[test]
    fn what_is_kept_has_a_bound_and_a_bad_sector_hides_nothing() {
        let (store, around) = (Counted::new(), around());
        for n in 0..400u64 {
            store.read(&around, n * (48 << 10) % (USED - (64 << 10)), 4096, Some(USED));
            assert!(around.0.lock().kept.iter().map(|c| c.bytes.len()).sum::<usize>() <= 512 << 10);
        }
        assert!(
            store.read(&around, USED - 8192, 4096, Some(USED)) && store.read(&around, USED - 4096, 4096, Some(USED))
        );
    }
}
