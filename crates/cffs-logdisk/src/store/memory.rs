//! Segments in memory, of any length: what an object store looks like from above.

use super::segment_store::{ROOT_BYTES_MAX, SegmentId, SegmentStore, StoreRoot, full};
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// A store in memory. Its segments take what was written to them.
pub struct MemoryStore {
    uuid: [u8; 16],
    capacity: u64,
    segment_bytes: u64,
    append: bool,
    inner: RwLock<Inner>,
}

#[derive(Default)]
struct Inner {
    segments: BTreeMap<SegmentId, Vec<u8>>,
    next: SegmentId,
    used: u64,
    root: Vec<u8>,
    sequence: u64,
}

impl MemoryStore {
    /// A store of at most `capacity` bytes in segments of at most `segment_bytes` (64 KiB to 1 GiB). Without `append` each segment is
    /// written by one call, as an object is.
    ///
    /// # Panics
    /// If `segment_bytes` is out of its range.
    pub fn new(capacity: u64, segment_bytes: u64, append: bool) -> Self {
        assert!((64 << 10..=1 << 30).contains(&segment_bytes), "a segment has 64 KiB to 1 GiB");
        MemoryStore { uuid: *b"cffs-memorystore", capacity, segment_bytes, append, inner: RwLock::default() }
    }

    /// Number of segments that exist.
    pub fn segment_count(&self) -> usize {
        self.inner.read().segments.len()
    }
}

fn missing(segment: SegmentId) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("the store has no segment {segment}"))
}

impl SegmentStore for MemoryStore {
    fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    fn create(&self) -> io::Result<SegmentId> {
        let mut inner = self.inner.write();
        if inner.used + self.segment_bytes > self.capacity {
            return Err(full("the store has no room for another segment"));
        }
        let id = inner.next;
        inner.next += 1;
        inner.segments.insert(id, Vec::new());
        Ok(id)
    }

    fn append(&self, segment: SegmentId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.inner.write();
        let inner = &mut *inner;
        let data = inner.segments.get_mut(&segment).ok_or_else(|| missing(segment))?;
        let fits = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.segment_bytes);
        // A piece that a crash has left behind is written over: nobody ever counted on it.
        if !fits || offset > data.len() as u64 || (!self.append && !data.is_empty() && offset != 0) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} bytes at {offset} are not the end of segment {segment}", bytes.len()),
            ));
        }
        inner.used -= data.len() as u64;
        data.truncate(offset as usize);
        data.extend_from_slice(bytes);
        inner.used += data.len() as u64;
        Ok(())
    }

    fn get(&self, segment: SegmentId, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let inner = self.inner.read();
        let data = inner.segments.get(&segment).ok_or_else(|| missing(segment))?;
        let part =
            usize::try_from(offset).ok().and_then(|at| data.get(at..at.checked_add(buf.len())?)).ok_or_else(|| {
                io::Error::new(io::ErrorKind::UnexpectedEof, format!("segment {segment} ends before {offset}"))
            })?;
        buf.copy_from_slice(part);
        Ok(())
    }

    fn delete(&self, segment: SegmentId) -> io::Result<()> {
        let mut inner = self.inner.write();
        let gone = inner.segments.remove(&segment).ok_or_else(|| missing(segment))?;
        inner.used -= gone.len() as u64;
        Ok(())
    }

    fn list(&self) -> io::Result<Option<Vec<SegmentId>>> {
        Ok(Some(self.inner.read().segments.keys().copied().collect()))
    }

    fn adopt(&self, segments: &[SegmentId]) -> io::Result<()> {
        let mut inner = self.inner.write();
        let adopted: BTreeSet<SegmentId> = segments.iter().copied().collect();
        inner.segments.retain(|id, _| adopted.contains(id));
        inner.used = inner.segments.values().map(|s| s.len() as u64).sum();
        Ok(())
    }

    fn root(&self) -> io::Result<StoreRoot> {
        let inner = self.inner.read();
        Ok(StoreRoot { sequence: inner.sequence, bytes: inner.root.clone() })
    }

    fn replace_root(&self, expected: u64, bytes: &[u8]) -> io::Result<u64> {
        let mut inner = self.inner.write();
        if inner.sequence != expected || bytes.len() > ROOT_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the root has sequence {}, not {expected}: somebody else writes to the store", inner.sequence),
            ));
        }
        inner.root = bytes.to_vec();
        inner.sequence += 1;
        Ok(inner.sequence)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn can_append(&self) -> bool {
        self.append
    }

    fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    fn alignment(&self) -> u32 {
        512
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn available(&self) -> u64 {
        self.capacity - self.inner.read().used.min(self.capacity)
    }
}
