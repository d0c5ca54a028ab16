//! What the cleaner reads of a segment: the summaries of its batches, and the data between them.
//!
//! Batches of small flushes are short, and each has its summary. To read them one by one takes two requests for each, so what is dead between them comes
//! by sooner. How long they are shows when the first of them are known.

use crate::batch::Summary;
use crate::layouts::SegmentInfo;
use crate::scan::{read_summary, summary_by};
use crate::store::{SegmentId, SegmentStore};
use std::io;

/// Longest range in bytes that is read in one go. Of a longer segment a round of the cleaner may take a part only.
const READ_MAX: u32 = 8 << 20;

/// Bytes of a segment that are in memory, side by side.
#[derive(Default)]
pub(crate) struct Bytes {
    start: u32,
    bytes: Vec<u8>,
}

/// The batches of a segment, and everything behind the first of them if it was read in one go.
pub(crate) struct Contents {
    pub(crate) batches: Vec<Summary>,
    pub(crate) rest: Bytes,
}

impl Bytes {
    /// Reads so many bytes at an offset.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn read(store: &dyn SegmentStore, segment: SegmentId, start: u32, len: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; len];
        store.get(segment, start.into(), &mut bytes)?;
        Ok(Bytes { start, bytes })
    }

    /// Bytes at an offset of the segment, if they were read.
    pub(crate) fn get(&self, offset: u32, len: usize) -> Option<&[u8]> {
        let first = offset.checked_sub(self.start)? as usize;
        self.bytes.get(first..first + len)
    }

    /// Whether all of a batch was read.
    pub(crate) fn has(&self, s: &Summary) -> bool {
        self.get(s.offset, s.length as usize).is_some()
    }

    /// The summary at an offset, if it was read and is right.
    fn summary(&self, store: &dyn SegmentStore, uuid: [u8; 16], id: SegmentId, offset: u32) -> Option<Summary> {
        let get = |at: u64, buf: &mut [u8]| {
            let from = u32::try_from(at).ok().and_then(|at| self.get(at, buf.len()));
            from.map(|from| buf.copy_from_slice(from)).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
        };
        let (s, _) = summary_by(store, &get, offset).ok()?;
        (s.uuid == uuid && s.segment == id && s.unknown.is_none()).then_some(s)
    }
}

impl Contents {
    /// Reads all summaries, one after the other, or from one of them on with all that follows. `worth`: bytes that take as long as a request; 0 if
    /// that is not known.
    ///
    /// # Errors
    /// A summary cannot be read.
    pub(crate) fn read(
        store: &dyn SegmentStore,
        uuid: [u8; 16],
        id: SegmentId,
        info: &SegmentInfo,
        worth: u64,
    ) -> io::Result<Contents> {
        let (mut batches, mut rest): (Vec<Summary>, Option<Bytes>) = (Vec::new(), None);
        let mut at = 0;
        while at < info.used {
            if rest.is_none() && rest_pays(info, at, batches.len(), worth) {
                // What cannot be read in one go is read piece by piece.
                rest = Some(Bytes::read(store, id, at, (info.used - at) as usize).unwrap_or_default());
            }
            let read = rest.as_ref().and_then(|rest| rest.summary(store, uuid, id, at));
            let s = read.map_or_else(|| read_summary(store, uuid, id, at), Ok)?;
            at = s.offset + s.length;
            batches.push(s);
        }
        Ok(Contents { batches, rest: rest.unwrap_or_default() })
    }
}

/// Whether what lies behind so many batches in `at` bytes is better read in one go: what is dead of it takes no longer than the requests for its batches,
/// if these are as long as those before.
fn rest_pays(info: &SegmentInfo, at: u32, batches: usize, worth: u64) -> bool {
    let (at, rest, used) = (u128::from(at), info.used - at, u128::from(info.used));
    if at == 0 || worth == 0 || rest > READ_MAX {
        return false;
    }
    let (rest, dead) = (u128::from(rest), used.saturating_sub(info.live.into()));
    // Of the rest, as large a part is dead as of all, and it has as many batches for its length.
    rest * dead / used <= rest * batches as u128 * u128::from(worth) / at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::LogDisk;
    use crate::options::LogOptions;
    use crate::store::{Get, MemoryStore, StoreRoot};
    use cffs_device::{Device, IoKind, WriteRequest};
    use parking_lot::Mutex;
    use std::sync::Arc;

    const CHUNK: u64 = 64 << 10;

    /// Notes what is read and written, and gives a wrong byte or an error where it is told to.
    struct Noting {
        inner: MemoryStore,
        reads: Mutex<Vec<(u64, usize)>>,
        /// Segment, place and length.
        batches: Mutex<Vec<(SegmentId, u64, usize)>>,
        wrong: Mutex<Option<(SegmentId, u64)>>,
        longest: Mutex<usize>,
    }

    impl SegmentStore for Noting {
        fn uuid(&self) -> [u8; 16] {
            self.inner.uuid()
        }
        fn create(&self) -> io::Result<SegmentId> {
            self.inner.create()
        }
        fn append(&self, segment: SegmentId, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.batches.lock().push((segment, offset, bytes.len()));
            self.inner.append(segment, offset, bytes)
        }
        fn get(&self, segment: SegmentId, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.reads.lock().push((offset, buf.len()));
            if buf.len() > *self.longest.lock() {
                return Err(io::Error::other("a bad sector"));
            }
            self.inner.get(segment, offset, buf)?;
            // Once.
            let range = offset..offset + buf.len() as u64;
            if let Some((_, at)) = self.wrong.lock().take_if(|(id, at)| *id == segment && range.contains(at)) {
                buf[(at - offset) as usize] ^= 1;
            }
            Ok(())
        }
        fn get_all(&self, parts: &mut [Get<'_>]) -> io::Result<()> {
            parts.iter_mut().try_for_each(|p| self.get(p.segment, p.offset, p.buf))
        }
        fn delete(&self, segment: SegmentId) -> io::Result<()> {
            self.inner.delete(segment)
        }
        fn list(&self) -> io::Result<Option<Vec<SegmentId>>> {
            self.inner.list()
        }
        fn adopt(&self, segments: &[SegmentId]) -> io::Result<()> {
            self.inner.adopt(segments)
        }
        fn root(&self) -> io::Result<StoreRoot> {
            self.inner.root()
        }
        fn replace_root(&self, expected: u64, bytes: &[u8]) -> io::Result<u64> {
            self.inner.replace_root(expected, bytes)
        }
        fn flush(&self) -> io::Result<()> {
            self.inner.flush()
        }
        fn can_append(&self) -> bool {
            self.inner.can_append()
        }
        fn segment_bytes(&self) -> u64 {
            self.inner.segment_bytes()
        }
        fn alignment(&self) -> u32 {
            self.inner.alignment()
        }
        fn capacity(&self) -> u64 {
            self.inner.capacity()
        }
        fn available(&self) -> u64 {
            self.inner.available()
        }
    }

    /// A disk of segments of 4 MiB with batches of so many blocks, of which every second block is overwritten.
    fn half_dead(batch: u64) -> (Arc<Noting>, LogDisk) {
        let store = Arc::new(Noting {
            inner: MemoryStore::new(128 << 20, 4 << 20, true),
            reads: Mutex::default(),
            batches: Mutex::default(),
            wrong: Mutex::default(),
            longest: Mutex::new(usize::MAX),
        });
        let disk = LogDisk::format(store.clone(), 64 << 20, &LogOptions::default()).unwrap();
        disk.note_group(CHUNK);
        let write = |block: u64, byte: u8| disk.write_at(IoKind::Data, block * 4096, &[byte; 4096]).unwrap();
        for first in (0..1024).step_by(batch as usize) {
            (first..first + batch).for_each(|block| write(block, block as u8));
            disk.flush().unwrap();
        }
        (0..1024).step_by(2).for_each(|block| write(block, 0xee));
        disk.flush().unwrap();
        disk.checkpoint().unwrap();
        (store, disk)
    }

    /// Cleans some, and returns the reads for each segment.
    fn cleaned(store: &Noting, disk: &LogDisk) -> f64 {
        store.reads.lock().clear();
        let report = disk.clean_step(1 << 20).unwrap();
        assert!(report.segments > 0 && report.copied > 0);
        let reads = store.reads.lock().len() as f64 / report.segments as f64;
        for block in 0..1024u64 {
            let mut data = [0; 4096];
            disk.read_at(IoKind::Data, block * 4096, &mut data).unwrap();
            let expected = if block % 2 == 0 { 0xee } else { block as u8 };
            assert!(data == [expected; 4096], "block {block}");
        }
        assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
        reads
    }

    #[test]
    fn short_batches_are_read_in_one_go_and_long_ones_by_themselves() {
        let (store, disk) = half_dead(4);
        let short = cleaned(&store, &disk);
        assert!(short < 10.0, "{short} reads for a segment");
        let longest = |store: &Noting| store.reads.lock().iter().map(|(_, len)| *len).max().unwrap();
        assert!(longest(&store) > 3 << 20, "{}", longest(&store));
        let (store, disk) = half_dead(256);
        cleaned(&store, &disk);
        // One batch.
        let all = (1 << 20)..(1 << 20) + (64 << 10);
        assert!(all.contains(&longest(&store)), "{}", longest(&store));
    }

    #[test]
    fn what_cannot_be_read_in_one_go_is_read_piece_by_piece() {
        let (store, disk) = half_dead(4);
        *store.longest.lock() = 64 << 10;
        assert!(cleaned(&store, &disk) > 100.0);
    }

    #[test]
    fn a_wrong_byte_in_what_was_read_in_one_go_is_read_again() {
        // In a summary, and in data.
        for from_end in [false, true] {
            let (store, disk) = half_dead(4);
            let (segment, start, len) = store.batches.lock()[100];
            let at = if from_end { start + len as u64 - 100 } else { start + 8 };
            *store.wrong.lock() = Some((segment, at));
            cleaned(&store, &disk);
            assert!(store.wrong.lock().is_none(), "nobody has read it");
        }
    }

    #[test]
    fn parts_of_many_blocks_keep_the_rest_of_each() {
        let (store, disk) = half_dead(4);
        let mut model: Vec<u8> = (0..64u8).flat_map(|n| [if n % 2 == 0 { 0xee } else { n }; 4096]).collect();
        // Of blocks that are stored, nowhere, not stored yet, and known.
        disk.discard(8 * 4096, 4 * 4096).unwrap();
        model[8 * 4096..12 * 4096].fill(0);
        disk.write_at(IoKind::Data, 20 * 4096, &[0x77; 8192]).unwrap();
        model[20 * 4096..22 * 4096].fill(0x77);
        let parts = [(5 * 4096 + 512, 1024), (9 * 4096, 512), (20 * 4096 + 1024, 6 * 4096), (40 * 4096 + 3584, 512)];
        for round in 0..3u8 {
            let bytes: Vec<Vec<u8>> = parts.iter().map(|(_, len)| vec![0x10 + round; *len]).collect();
            let requests: Vec<WriteRequest<'_>> = parts
                .iter()
                .zip(&bytes)
                .map(|((at, _), bytes)| WriteRequest {
                    kind: IoKind::Data,
                    offset: *at as u64,
                    bufs: vec![std::io::IoSlice::new(bytes)],
                })
                .collect();
            store.reads.lock().clear();
            disk.write_atomic(&requests).unwrap();
            assert_eq!(store.reads.lock().is_empty(), round > 0, "what was written in part is known");
            for (at, len) in parts {
                model[at..at + len].fill(0x10 + round);
            }
            let mut found = vec![0; model.len()];
            disk.read_at(IoKind::Data, 0, &mut found).unwrap();
            assert!(found == model, "round {round}");
        }
    }

    #[test]
    fn the_rest_pays_where_its_batches_are_many_or_little_is_dead() {
        let info = |used: u32, live: u64| SegmentInfo { used, live, ..SegmentInfo::default() };
        let pays = |used, live, at, batches| rest_pays(&info(used, live), at, batches, CHUNK);
        assert!(!pays(1 << 20, 1 << 19, 0, 0), "nothing is known");
        assert!(pays(1 << 20, 0, 16 << 10, 1));
        assert!(!pays(1 << 20, 0, 512 << 10, 1));
        assert!(pays(1 << 20, 1 << 20, 512 << 10, 1));
        assert!(pays(1 << 20, 1 << 19, 1020 << 10, 30), "a short rest");
        assert!(!pays(64 << 20, 64 << 20, 4096, 1), "too long for memory");
        assert!(!rest_pays(&info(1 << 20, 1 << 19), 16 << 10, 1, 0), "nobody has said what a request is worth");
    }
}
