//! What lies around what is read. Written together, it may well be read together, wherever it lies in the logical space.
//!
//! A chunk is as long as the requests that the file system thinks worth their time, its groups: one costs about two short requests. So it pays when
//! some more reads, on average, are answered from it, or few that are long. While that holds, a miss reads its chunk, and a long read goes on to the
//! end of its last one. When it does not, what was asked for is read, and a second miss in a chunk shortly after another one reads all of it: if those
//! turn out well, chunks are back.
//!
//! Who reads in the order of the log gets a chunk that begins there: a disk goes on for it, and would turn for what lies before. If much of what is read
//! around is asked for, it begins where the last request ended, and the end of a segment comes with what follows it. If nearly all of it is, and there
//! may be an arm, he may skip some segments, and all that lies between comes in one go: names lie behind the data of their files, as much as was
//! written at a time, and a block of the directory above behind those of the last directory in it.
//!
//! A segment is never changed, so what is kept of one never becomes stale.

use crate::extent::BLOCK_BYTES;
use crate::kept::{Chunk, Kept, Part};
use crate::store::{Get, SegmentId, SegmentStore};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::{Bound, Range};
use std::sync::Arc;

/// Bytes that are kept of what was read around blocks, at most.
pub(crate) const KEPT_BYTES: usize = 48 << 20;
/// Longest chunk.
const CHUNK_MAX: u64 = 1 << 20;
/// What a request may be worth while nobody has said it.
const UNKNOWN_CHUNK: u64 = 128 << 10;
/// A chunk pays with so many short reads that it answers, or with half of its bytes.
const PAYS: u64 = 3;
/// Chunks, so much as what was read and not asked for, after which half of it is forgotten.
const MEMORY: u64 = 64;
/// Chunks that what was saved so far pays in advance: who has read much in one place may be about to write.
const AHEAD: u64 = 2;
/// Chunks that are read rather than come back for.
const SKIPPED: u64 = 2;
/// The same where nearly all of what is read around is asked for, and an arm would go there and back: names lie up to 16 MB behind the first data that
/// was written back with them, and a block of the directory above up to 30 MB behind the first names in it.
const SKIPPED_MOST: u64 = 34;
/// Misses that are remembered.
const MISSES: usize = 8;

/// What is written of segments.
pub(crate) trait Written {
    /// Bytes of one, if it is known. Nothing is read around where it is not.
    fn of(&self, segment: SegmentId) -> Option<u64>;
    /// The one that was begun next, if that is known.
    fn next(&self, segment: SegmentId) -> Option<SegmentId>;
}

impl Written for BTreeMap<SegmentId, u64> {
    fn of(&self, segment: SegmentId) -> Option<u64> {
        self.get(&segment).copied()
    }

    fn next(&self, segment: SegmentId) -> Option<SegmentId> {
        self.range((Bound::Excluded(segment), Bound::Unbounded)).next().map(|(id, _)| *id)
    }
}

#[derive(Default)]
struct Inner {
    /// Bytes of a chunk; 0 while nobody has said what a request is worth.
    chunk: u64,
    /// Whether an arm goes from one place to another.
    has_arm: bool,
    kept: Kept,
    /// Chunks in which something was missed and that were not read.
    missed: VecDeque<(SegmentId, u64)>,
    /// Where the last request ended.
    last: Option<(SegmentId, u64)>,
    /// Bytes that were read and not asked for.
    extra: u64,
    /// Bytes that were asked for later and had been read, each time.
    used: u64,
    /// What they have saved, in bytes that are read in the same time: a chunk for each read without a request.
    gain: u64,
}

/// How a part of a read is answered.
enum Plan {
    Kept(Arc<Chunk>),
    /// With a chunk, the one with this number among those that are read.
    Chunk(usize),
    Alone,
}

/// Bytes of a part that are answered in one way.
struct Section<'a> {
    /// Number of the part.
    part: usize,
    get: Get<'a>,
    plan: Plan,
}

/// What was read around what was asked for, and whether that has paid.
pub(crate) struct Around(Mutex<Inner>);

impl Around {
    /// Keeps so many bytes at most, or one chunk that is longer.
    pub(crate) fn new(kept_max: usize) -> Self {
        Around(Mutex::new(Inner { kept: Kept::new(kept_max), ..Inner::default() }))
    }

    /// So many bytes are worth a request, of a store that may be a disk with an arm.
    pub(crate) fn set_chunk(&self, bytes: u64, has_arm: bool) {
        let mut inner = self.0.lock();
        (inner.chunk, inner.has_arm) = (bytes.min(CHUNK_MAX), has_arm);
    }

    /// Bytes that are worth a request; 0 while nobody has said it.
    pub(crate) fn chunk(&self) -> u64 {
        self.0.lock().chunk
    }

    /// Bytes that who reads in many places at once reads over, rather than to ask for what is behind them alone. An arm goes from one to the next; elsewhere
    /// several are on their way at a time.
    pub(crate) fn read_over(&self) -> u64 {
        let inner = self.0.lock();
        let chunk = if inner.chunk > 0 { inner.chunk } else { UNKNOWN_CHUNK };
        if inner.has_arm { chunk } else { chunk / 4 }
    }

    /// Keeps what was read before anybody has asked for it. Its bytes do not speak against chunks, because no miss has brought them.
    pub(crate) fn add(&self, segment: SegmentId, offset: u64, bytes: Vec<u8>) {
        self.0.lock().kept.add(Chunk::new(segment, offset, bytes));
    }

    /// The segment that was read last.
    pub(crate) fn last_segment(&self) -> Option<SegmentId> {
        self.0.lock().last.map(|(segment, _)| segment)
    }

    /// What is kept of a segment is not used again: it was not right.
    pub(crate) fn forget(&self, segment: SegmentId) {
        self.0.lock().kept.forget(segment);
    }

    /// Whether so many bytes are kept, side by side.
    pub(crate) fn has(&self, segment: SegmentId, offset: u64, bytes: u64) -> bool {
        self.0.lock().kept.has(segment, offset, bytes)
    }

    /// Reads all parts in one go. Says which parts were read around or had been.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn get_all(
        &self,
        store: &dyn SegmentStore,
        written: &dyn Written,
        parts: &mut [Get<'_>],
    ) -> io::Result<Vec<bool>> {
        let mut ranges = Ranges::new();
        let mut sections: Vec<Section<'_>> = Vec::with_capacity(parts.len());
        {
            let mut inner = self.0.lock();
            for (part, p) in parts.iter_mut().enumerate() {
                inner.divide(part, p, (store, written), &mut ranges, &mut sections);
            }
        }
        let mut bytes: Vec<Vec<u8>> = ranges.iter().map(|(_, r)| vec![0; (r.end - r.start) as usize]).collect();
        let mut gets: Vec<Get<'_>> = Vec::new();
        for ((segment, range), buf) in ranges.iter().zip(&mut bytes) {
            gets.push(Get { segment: *segment, offset: range.start, buf });
        }
        for s in sections.iter_mut().filter(|s| matches!(s.plan, Plan::Alone)) {
            gets.push(Get { segment: s.get.segment, offset: s.get.offset, buf: &mut *s.get.buf });
        }
        let read = if gets.is_empty() { Ok(()) } else { store.get_all(&mut gets) };
        drop(gets);
        if let Err(e) = read {
            drop(sections);
            if ranges.is_empty() {
                return Err(e);
            }
            // What nobody has asked for must not hide the rest, and is not there for the next read.
            self.0.lock().last = None;
            store.get_all(parts)?;
            return Ok(vec![false; parts.len()]);
        }
        let chunk = |((segment, range), bytes): (Part, _)| Chunk::new(segment, range.start, bytes);
        let read: Vec<Arc<Chunk>> = ranges.into_iter().zip(bytes).map(chunk).collect();
        let mut around = Vec::new();
        for s in sections {
            match &s.plan {
                Plan::Kept(chunk) => chunk.copy(s.get),
                Plan::Chunk(n) => {
                    read[*n].note(s.get.offset, s.get.buf.len() as u64);
                    read[*n].copy(s.get);
                }
                Plan::Alone => continue,
            }
            around.push(s.part);
        }
        let mut inner = self.0.lock();
        read.into_iter().for_each(|chunk| inner.kept.add(chunk));
        let mut is_around = vec![false; parts.len()];
        around.into_iter().for_each(|part| is_around[part] = true);
        Ok(is_around)
    }
}

/// Ranges of segments that one read brings.
type Ranges = Vec<Part>;

/// Where is read from, and what is written there.
type From<'a> = (&'a dyn SegmentStore, &'a dyn Written);

impl Inner {
    /// Divides a part into what is kept of its beginning and of its end, and the rest. What is read for that is added to `ranges`.
    fn divide<'a>(
        &mut self,
        part: usize,
        p: &'a mut Get<'_>,
        from: From<'_>,
        ranges: &mut Ranges,
        sections: &mut Vec<Section<'a>>,
    ) {
        let (segment, mut at, mut rest) = (p.segment, p.offset, &mut *p.buf);
        let mut kept = |inner: &mut Inner, offset: u64, buf: &'a mut [u8], chunk: Arc<Chunk>| {
            inner.was_used(chunk.note(offset, buf.len() as u64));
            sections.push(Section { part, get: Get { segment, offset, buf }, plan: Plan::Kept(chunk) });
        };
        while !rest.is_empty()
            && let Some(chunk) = self.kept.find(segment, at)
        {
            let len = (chunk.range().end - at).min(rest.len() as u64);
            let (buf, behind) = std::mem::take(&mut rest).split_at_mut(len as usize);
            kept(self, at, buf, chunk);
            (rest, at) = (behind, at + len);
        }
        while !rest.is_empty()
            && let Some(chunk) = self.kept.find(segment, at + rest.len() as u64 - 1)
        {
            let first = chunk.range().start.max(at);
            let (before, buf) = std::mem::take(&mut rest).split_at_mut((first - at) as usize);
            kept(self, first, buf, chunk);
            rest = before;
        }
        if rest.is_empty() {
            self.saved();
            return;
        }
        let plan = self.plan(segment, at..at + rest.len() as u64, from, ranges);
        // A short one comes with the next chunk again, which would be two without it.
        if matches!(plan, Plan::Alone) && self.chunk > 0 && rest.len() as u64 > self.chunk / 2 {
            self.kept.hand_out(segment, at..at + rest.len() as u64);
        }
        sections.push(Section { part, get: Get { segment, offset: at, buf: rest }, plan });
    }

    /// A range without what is kept, being read, or was handed out, before and behind a part of it that is wanted.
    fn without_kept(&self, segment: SegmentId, range: Range<u64>, wanted: &Range<u64>, ranges: &Ranges) -> Range<u64> {
        let (mut start, mut end) = (range.start, range.end);
        for r in self.kept.of(segment).chain(of(ranges, segment)) {
            if r.end <= wanted.start {
                start = start.max(r.end);
            } else if r.start >= wanted.end {
                end = end.min(r.start);
            }
        }
        start..end
    }

    /// How bytes that are not kept are read; what is read for them is added to `ranges`.
    fn plan(&mut self, segment: SegmentId, wanted: Range<u64>, from: From<'_>, ranges: &mut Ranges) -> Plan {
        let within = |(s, r): &(SegmentId, Range<u64>)| *s == segment && r.start <= wanted.start && wanted.end <= r.end;
        if let Some(n) = ranges.iter().position(within) {
            self.was_used(wanted.end - wanted.start);
            self.saved();
            return Plan::Chunk(n);
        }
        let last = self.last.take();
        let (_, known) = from;
        let Some(written) = known.of(segment).filter(|used| self.chunk > 0 && wanted.end <= *used) else {
            return Plan::Alone;
        };
        self.last = Some((segment, wanted.end));
        let passed = self.passed(last, (segment, wanted.start), from);
        let before = if passed.is_some() { Some((segment, 0)) } else { last };
        let Some(range) = self.around(segment, &wanted, before) else { return Plan::Alone };
        let range = range.start / BLOCK_BYTES as u64 * BLOCK_BYTES as u64..range.end.min(written).max(wanted.end);
        let range = self.without_kept(segment, range, &wanted, ranges);
        let end = range.end;
        let plan = self.read(segment, range, wanted.end - wanted.start, ranges);
        if matches!(plan, Plan::Chunk(_)) {
            self.last = Some((segment, end));
            let left = last.filter(|(s, _)| *s != segment).and_then(|(s, end)| Some((s, end..known.of(s)?)));
            // Who leaves a segment for the names of its last files comes back, wherever these are: if little is left, it is read now.
            let little = |(_, r): &(_, Range<u64>)| r.end.saturating_sub(r.start) <= SKIPPED * self.chunk;
            let left = left.filter(little).filter(|_| self.pays_well());
            for (segment, range) in passed.unwrap_or_else(|| left.into_iter().collect()) {
                self.read_too(segment, range, ranges);
            }
        }
        plan
    }

    /// What lies before bytes in the segments from the one that was read last to the one before theirs, if it is little enough, and the disk comes by it.
    fn passed(&self, last: Option<(SegmentId, u64)>, to: (SegmentId, u64), (store, known): From<'_>) -> Option<Ranges> {
        let (mut at, end) = last.filter(|(segment, _)| *segment != to.0)?;
        let most = self.skipped_most();
        let (mut ranges, mut bytes) = (vec![(at, end..known.of(at)?)], to.1);
        while let Some((_, range)) = ranges.last() {
            bytes += range.end.saturating_sub(range.start);
            let next = known.next(at).filter(|_| bytes <= most)?;
            if store.range_of(at)?.end != store.range_of(next)?.start {
                return None;
            }
            if next == to.0 {
                break;
            }
            at = next;
            ranges.push((at, 0..known.of(at)?));
        }
        Some(ranges)
    }

    /// Reads a range of which nothing is wanted yet.
    fn read_too(&mut self, segment: SegmentId, range: Range<u64>, ranges: &mut Ranges) {
        let mut start = range.start;
        while start < range.end {
            let kept = self.kept.find(segment, start).map(|chunk| chunk.range().end);
            let known = || self.kept.of(segment).chain(of(ranges, segment)).find(|r| r.contains(&start));
            if let Some(end) = kept.or_else(|| known().map(|r| r.end)) {
                start = end;
                continue;
            }
            let part = self.without_kept(segment, start..range.end, &(start..start), ranges);
            if part.is_empty() {
                break;
            }
            start = part.end;
            self.read(segment, part, 0, ranges);
        }
    }

    /// Adds a range of which so many bytes are wanted to those that are read, if it is not too much.
    fn read(&mut self, segment: SegmentId, range: Range<u64>, wanted: u64, ranges: &mut Ranges) -> Plan {
        // One read of many pieces is not to bring more than is kept.
        let bytes: u64 = ranges.iter().map(|(_, r)| r.end - r.start).sum();
        let len = range.end - range.start;
        if len == wanted || !ranges.is_empty() && bytes + len > self.kept.most() {
            return Plan::Alone;
        }
        self.extra += len - wanted;
        if self.extra > MEMORY * self.chunk {
            (self.extra, self.used, self.gain) = (self.extra / 2, self.used / 2, self.gain / 2);
        }
        ranges.push((segment, range));
        Plan::Chunk(ranges.len() - 1)
    }

    /// What is read for bytes that are wanted, if it is more than these.
    fn around(
        &mut self,
        segment: SegmentId,
        wanted: &Range<u64>,
        last: Option<(SegmentId, u64)>,
    ) -> Option<Range<u64>> {
        let chunk = self.chunk;
        let (at, pays) = (wanted.start / chunk, self.gain + 2 * PAYS * self.used >= PAYS * self.extra);
        let len = wanted.end - wanted.start;
        if len > chunk / 2 {
            return (pays && len <= chunk).then(|| wanted.start..wanted.end.next_multiple_of(chunk));
        }
        if !pays && !self.was_missed((segment, at)) {
            return None;
        }
        let skipped = last.filter(|l| l.0 == segment).and_then(|l| wanted.start.checked_sub(l.1));
        if let Some(skipped) = skipped.filter(|s| *s <= self.skipped_most()) {
            return Some(wanted.start - skipped..wanted.start + chunk);
        }
        if skipped.is_some_and(|s| s < chunk) {
            return Some(wanted.start..wanted.start + chunk);
        }
        // What lies over a border goes with what is behind it.
        let end = (at + 1) * chunk;
        Some(if wanted.end > end { wanted.start..end + chunk } else { at * chunk..end })
    }

    /// So many bytes were asked for that had been read.
    fn was_used(&mut self, bytes: u64) {
        self.used = (self.used + bytes).min(MEMORY * self.chunk);
    }

    /// A read needs no request.
    fn saved(&mut self) {
        let debt = (PAYS * self.extra).saturating_sub(2 * PAYS * self.used);
        self.gain = (self.gain + self.chunk).min(debt + PAYS * AHEAD * self.chunk);
    }

    /// Whether most of what is read around is asked for. What was read last is not asked for yet, so a quarter is enough.
    fn pays_well(&self) -> bool {
        self.used > 0 && 4 * self.used >= self.extra
    }

    /// Bytes that are read rather than come back for.
    fn skipped_most(&self) -> u64 {
        if !self.pays_well() {
            return 0;
        }
        let less = SKIPPED * self.chunk;
        // Elsewhere a request costs the same wherever it goes.
        let nearly_all = self.has_arm && 4 * self.used >= 3 * self.extra;
        // Who has only begun may read anything next.
        let most = (SKIPPED_MOST * self.chunk).min(self.kept.most() / 4 * 3).min(2 * self.used);
        if nearly_all { most.max(less) } else { less }
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
}

/// The ranges of a segment.
fn of(ranges: &Ranges, segment: SegmentId) -> impl Iterator<Item = &Range<u64>> {
    ranges.iter().filter(move |(s, _)| *s == segment).map(|(_, r)| r)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A store in memory that counts requests, with three segments side by side whose bytes tell where they are.
    struct Counted(MemoryStore, SegmentId, AtomicU64, SegmentId, SegmentId);

    /// So many bytes are written of each of its segments.
    fn written(store: &Counted, used: Option<u64>) -> BTreeMap<SegmentId, u64> {
        used.into_iter().flat_map(|used| [store.1, store.3, store.4].map(|id| (id, used))).collect()
    }

    const USED: u64 = 4 << 20;

    fn at(offset: u64) -> u8 {
        (offset / 512 % 251) as u8
    }

    impl Counted {
        fn new() -> Self {
            let store = MemoryStore::new(64 << 20, USED, true);
            let ids = [(); 3].map(|()| store.create().unwrap());
            let bytes: Vec<u8> = (0..USED).map(at).collect();
            ids.iter().for_each(|id| store.append(*id, 0, &bytes).unwrap());
            Counted(store, ids[0], AtomicU64::new(0), ids[1], ids[2])
        }

        /// Reads so many bytes, checks them, and says whether it took a request.
        fn read(&self, around: &Around, offset: u64, bytes: usize, used: Option<u64>) -> bool {
            self.read_of(self.1, around, offset, bytes, used) > 0
        }

        /// Reads so many bytes of a segment, checks them, and says how many requests it took.
        fn read_of(&self, segment: SegmentId, around: &Around, offset: u64, bytes: usize, used: Option<u64>) -> u64 {
            let before = self.2.load(Ordering::Relaxed);
            let mut buf = vec![0; bytes];
            around.get_all(self, &written(self, used), &mut [Get { segment, offset, buf: &mut buf }]).unwrap();
            assert!(buf.iter().zip(offset..).all(|(b, n)| *b == at(n)), "other bytes at {offset}");
            self.2.load(Ordering::Relaxed) - before
        }

        /// Reads blocks of a segment one by one, and says how many requests it took. The last blocks are not known to be written.
        fn blocks_of(&self, segment: SegmentId, around: &Around, blocks: Range<u64>) -> u64 {
            blocks.map(|n| self.read_of(segment, around, n * 4096, 4096, Some(USED - 8192))).sum()
        }

        /// What has seen a reader to whom all that was read around is of use, and has nothing of the last two segments.
        fn after_one_who_reads_everything(&self, kept: usize) -> Around {
            let around = Around::new(kept);
            around.set_chunk(1 << 20, true);
            assert_eq!([self.3, self.4].map(|segment| self.blocks_of(segment, &around, 0..1022)), [4, 4]);
            [self.3, self.4].into_iter().for_each(|segment| around.forget(segment));
            around
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
        fn range_of(&self, segment: SegmentId) -> Option<Range<u64>> {
            let n = [self.1, self.3, self.4].iter().position(|id| *id == segment)? as u64;
            Some(n * USED..(n + 1) * USED)
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
        around.set_chunk(64 << 10, true);
        around
    }

    #[test]
    fn what_lies_around_a_short_read_comes_with_it() {
        let (store, around) = (Counted::new(), around());
        assert!(store.read(&around, 20 << 10, 4096, Some(USED)));
        assert!((0..16).all(|n| !store.read(&around, n * 4096, 4096, Some(USED))));
        assert!(store.read(&around, 132 << 10, 40 << 10, Some(USED)), "a long one");
        assert!(!store.read(&around, 172 << 10, 20 << 10, Some(USED)), "goes on to the end of its chunk");
        assert!(store.read(&around, 128 << 10, 4096, Some(USED)), "and has not what is before");
        assert!(store.read(&around, 256 << 10, 68 << 10, Some(USED)), "one that is longer than a chunk");
        assert!(store.read(&around, 324 << 10, 4096, Some(USED)), "brings nothing");
        around.forget(store.1);
        assert!(store.read(&around, 4096, 4096, Some(USED)));
    }

    #[test]
    fn what_is_kept_is_not_read_again() {
        let (store, around) = (Counted::new(), around());
        assert!(store.read(&around, 64 << 10, 4096, Some(USED)));
        assert!(around.0.lock().kept.of(store.1).eq([&(64 << 10..128 << 10)]));
        assert!((16..24).all(|n| !store.read(&around, n * 4096, 4096, Some(USED))));
        assert_eq!(store.read_of(store.1, &around, 100 << 10, 60 << 10, Some(USED)), 1, "what is behind it");
        assert_eq!(store.read_of(store.1, &around, 40 << 10, 60 << 10, Some(USED)), 1, "what is before it");
        assert_eq!(store.read_of(store.1, &around, 0, 192 << 10, Some(USED)), 0);
        let ranges: Vec<_> = around.0.lock().kept.of(store.1).cloned().collect();
        let reads = |at: u64| ranges.iter().filter(|r| r.contains(&at)).count();
        assert!((0..192).all(|k| reads(k << 10) == 1), "{ranges:?}");
        // Not of whole blocks, and with something kept in the middle: one request.
        assert!(store.read(&around, (320 << 10) + 700, 900, Some(USED)));
        assert_eq!(store.read_of(store.1, &around, (300 << 10) + 100, 200 << 10, Some(USED)), 1);
    }

    #[test]
    fn what_was_read_alone_does_not_come_with_its_neighbours() {
        let (store, around) = (Counted::new(), around());
        assert!((16..32).filter(|n| store.read(&around, n * 4096, 4096, Some(USED))).count() == 1, "chunks pay");
        assert_eq!(store.read_of(store.1, &around, 256 << 10, 100 << 10, Some(USED)), 1, "longer than a chunk");
        store.read(&around, 1 << 20, 4096, Some(USED));
        assert_eq!(store.read_of(store.1, &around, 376 << 10, 4096, Some(USED)), 1);
        assert!(around.has(store.1, 356 << 10, 28 << 10) && !around.has(store.1, 352 << 10, 4096));
        // Who skips it does not get it again either, but what is before and behind it.
        let mut ranges = vec![(store.1, 200 << 10..204 << 10)];
        around.0.lock().read_too(store.1, 204 << 10..400 << 10, &mut ranges);
        let read: Vec<_> = ranges.into_iter().skip(1).map(|(_, r)| r.start >> 10..r.end >> 10).collect();
        assert_eq!(read, [204..256, 384..400]);
        // Nor what the same read brings.
        let mut ranges = vec![(store.1, 2048 << 10..2112 << 10)];
        around.0.lock().read_too(store.1, 2000 << 10..2200 << 10, &mut ranges);
        let read: Vec<_> = ranges.into_iter().skip(1).map(|(_, r)| r.start >> 10..r.end >> 10).collect();
        assert_eq!(read, [2000..2048, 2112..2200]);
        around.forget(store.1);
        assert_eq!(around.0.lock().kept.of(store.1).count(), 0);
    }

    /// As far as he would come back for, and twice as much as was of use, is read where an arm would come back.
    #[test]
    fn who_skips_much_gets_all_of_it_where_there_is_an_arm() {
        for (read, distance, has_arm) in [(20, 30, true), (20, 30, false), (20, 36, true), (10, 25, true)] {
            let (store, around) = (Counted::new(), Around::new(4 << 20));
            around.set_chunk(64 << 10, has_arm);
            let chunk = |n: u64| n * 16..(n + 1) * 16;
            let all = |n| store.blocks_of(store.1, &around, chunk(n));
            assert_eq!((0..read).map(all).sum::<u64>(), read);
            assert_eq!(all(read + distance), 1);
            let between = (read..read + distance).map(all).sum::<u64>();
            let comes = has_arm && distance <= SKIPPED_MOST && distance <= 2 * read;
            assert_eq!(between == 0, comes, "{read}, {distance}, {has_arm}");
        }
    }

    #[test]
    fn what_was_asked_for_already_makes_room_for_what_was_not() {
        let store = Counted::new();
        let around = Around::new(256 << 10);
        around.set_chunk(64 << 10, true);
        let all = |from: u64, to: u64| {
            (from..to).map(|n| store.read_of(store.1, &around, n * 4096, 4096, Some(USED))).sum::<u64>()
        };
        assert_eq!(all(128, 144), 1, "chunks pay");
        assert_eq!(all(32, 33), 1, "one block of its chunk, and then all of others");
        assert_eq!(all(320, 320 + 16 * 8), 8, "twice as much as is kept");
        assert_eq!(all(33, 48), 0, "the rest of it is still there");
    }

    #[test]
    fn who_reads_in_order_gets_what_he_skips_and_leaves() {
        let (store, around) = (Counted::new(), around());
        let used = Some(USED - 4096);
        let all = |segment, from: u64, to: u64| {
            (from..to).map(|n| store.read_of(segment, &around, n * 4096, 4096, used)).sum::<u64>()
        };
        assert_eq!(all(store.1, 0, 32), 2);
        assert!(store.read(&around, 200 << 10, 4096, Some(USED)), "behind a chunk that was skipped");
        assert_eq!(all(store.1, 32, 66), 0, "which came with it, and with what is behind");
        let near_end = USED / 4096 - 40;
        assert_eq!(all(store.1, near_end, near_end + 16), 2, "the chunks have borders");
        assert_eq!(store.read_of(store.3, &around, 0, 4096, used), 2, "here, and what is left there");
        assert_eq!(all(store.1, near_end, USED / 4096 - 1), 0);
        // Where nothing of it is used, that ends.
        let far = |n: u64| (n * 37 % 61) * (64 << 10) + (n % 16) * 4096;
        let vain = (0..600u64)
            .map(|n| store.read_of(if n % 2 == 0 { store.1 } else { store.3 }, &around, far(n), 4096, Some(USED)));
        assert!(vain.skip(400).all(|requests| requests <= 1));
    }

    #[test]
    fn who_reads_nearly_everything_gets_the_segments_that_he_skips() {
        for kept in [24 << 20, 4 << 20] {
            let store = Counted::new();
            let around = store.after_one_who_reads_everything(kept);
            let all = |segment, blocks| store.blocks_of(segment, &around, blocks);
            assert_eq!(all(store.1, 0..512), 2);
            let many = kept > USED as usize;
            assert_eq!(all(store.4, 3..4), if many { 3 } else { 2 });
            assert_eq!(all(store.1, 512..1022) + all(store.4, 0..256), 0, "little is left");
            assert_eq!(all(store.3, 0..1022) == 0, many, "what is more than is kept is not read");
        }
    }

    #[test]
    fn what_is_skipped_comes_with_it_although_parts_are_kept() {
        let store = Counted::new();
        let around = store.after_one_who_reads_everything(24 << 20);
        let all = |segment, blocks| store.blocks_of(segment, &around, blocks);
        assert_eq!(all(store.1, 0..1022), 4);
        for start in [0, 2 << 20] {
            around.add(store.3, start, (start..start + (1 << 20)).map(at).collect());
        }
        assert!(all(store.4, 3..4) > 0);
        assert_eq!(all(store.3, 0..1022), 0, "the rest of what lies between");
    }

    #[test]
    fn a_bad_sector_in_what_is_skipped_hides_nothing() {
        let (store, around) = (Counted::new(), Around::new(24 << 20));
        around.set_chunk(1 << 20, true);
        let good = Some(USED - 8192);
        for (segment, blocks) in [(store.3, 1022), (store.4, 1022), (store.1, 512)] {
            around.forget(segment);
            let requests = (0..blocks).map(|n| store.read_of(segment, &around, n * 4096, 4096, good)).sum::<u64>();
            assert!(requests <= 4, "{requests} for the chunks of a segment");
        }
        [store.3, store.4].into_iter().for_each(|segment| around.forget(segment));
        let requests = store.read_of(store.4, &around, 12288, 4096, Some(USED));
        assert!(requests > 1, "what was skipped was to come with it");
        let kept = [store.3, store.4].map(|segment| around.0.lock().kept.of(segment).count());
        assert_eq!(kept, [0, 0], "nothing is kept of what failed");
        assert_eq!(around.last_segment(), None, "so nobody is behind it");
        assert!(store.read_of(store.4, &around, 16384, 4096, good) > 0);
    }

    #[test]
    fn the_end_of_a_segment_that_is_gone_is_not_read() {
        for is_gone in [false, true] {
            let (store, around) = (Counted::new(), around());
            let used = Some(USED - 4096);
            let near_end = USED / 4096 - 40;
            assert!((near_end..near_end + 16).all(|n| store.read_of(store.1, &around, n * 4096, 4096, used) <= 1));
            let mut known = written(&store, used);
            known.retain(|id, _| *id == store.3 || !is_gone);
            let before = store.2.load(Ordering::Relaxed);
            let mut buf = [0; 4096];
            around.get_all(&store, &known, &mut [Get { segment: store.3, offset: 0, buf: &mut buf }]).unwrap();
            assert_eq!(store.2.load(Ordering::Relaxed) - before, if is_gone { 1 } else { 2 });
        }
    }

    #[test]
    fn one_read_of_many_pieces_brings_no_more_than_is_kept() {
        let (store, around) = (Counted::new(), around());
        assert!((0..192u64).filter(|n| store.read(&around, (3 << 20) + n * 4096, 4096, Some(USED))).count() <= 12);
        let mut bufs = vec![[0; 4096]; 40];
        let offset = |n: usize| n as u64 * (64 << 10) + 4096;
        let get = |(n, buf)| Get { segment: store.1, offset: offset(n), buf };
        let mut parts: Vec<Get<'_>> = bufs.iter_mut().map(|b| &mut b[..]).enumerate().map(get).collect();
        let with_chunks = around.get_all(&store, &written(&store, Some(USED)), &mut parts).unwrap();
        let chunks = with_chunks.iter().filter(|with| **with).count();
        assert!((6..=8).contains(&chunks), "{chunks} chunks of 64 KiB or somewhat more");
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
        around.set_chunk(0, true);
        assert!(store.read(&around, 1 << 20, 4096, Some(USED)) && store.read(&around, 1 << 20, 4096, Some(USED)));
    }

    #[test]
    fn chunks_end_where_they_do_not_pay_and_come_back_where_they_do() {
        let (store, around) = (Counted::new(), around());
        let far = |n: u64| (n * 37 % 61) * (64 << 10) + (n % 16) * 4096;
        (0..61).for_each(|n| assert!(store.read(&around, far(n), 4096, Some(USED))));
        assert!(around.0.lock().extra <= 64 << 10, "more than a chunk in vain");
        let asked = (0..80u64).filter(|n| store.read(&around, (2 << 20) + (n * 7 % 80) * 4096, 4096, Some(USED)));
        assert!(asked.count() <= 15, "what lies together is read together again");
    }

    #[test]
    fn what_is_kept_has_a_bound_and_a_bad_sector_hides_nothing() {
        let (store, around) = (Counted::new(), around());
        for n in 0..400u64 {
            store.read(&around, n * (48 << 10) % (USED - (64 << 10)), 4096, Some(USED));
            assert!(around.0.lock().kept.bytes() <= 512 << 10);
        }
        assert!(
            store.read(&around, USED - 8192, 4096, Some(USED)) && store.read(&around, USED - 4096, 4096, Some(USED))
        );
    }
}
