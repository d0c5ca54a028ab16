//! The end of the log: where the next batch goes.
//!
//! A few streams write to a segment each, so that new data, data that has survived a cleaning, and nodes do not mix.
//! All of them number their batches with one counter. Each summary announces where every stream goes on, and which segment is begun next:
//! recovery finds the next batch at one of these few places.

use crate::batch::{BATCH_BYTES_MAX, Entry, STREAMS, SUMMARY_BYTES, StreamEnd, Summary};
use crate::codec::corrupt;
use crate::mounts::Mounts;
use crate::root::{CLOSED_EPOCH, RootRecord, StoredRoot};
use crate::store::{NO_SEGMENT, SegmentId, SegmentStore};
use crate::usage::Usage;
use cffs_device::Purpose;
use std::collections::BTreeSet;
use std::io;

/// The stream of what programs write.
pub(crate) const STREAM_NEW: u8 = 0;
/// The stream of nodes and checkpoints.
pub(crate) const STREAM_NODES: u8 = 3;

/// The end of the log.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) uuid: [u8; 16],
    pub(crate) root: StoredRoot,
    pub(crate) epoch: u64,
    /// Of the first batch of the epoch.
    first: u64,
    pub(crate) mounts: Mounts,
    /// Of the next batch.
    pub(crate) sequence: u64,
    /// Of the last batch that is durable.
    pub(crate) durable: u64,
    pub(crate) streams: [StreamEnd; STREAMS],
    /// The segment that is begun next. A batch that was written says so, unless `announced` is false.
    pub(crate) next_segment: u64,
    announced: bool,
    /// Bytes written since the last checkpoint.
    pub(crate) since_checkpoint: u64,
    /// Bytes written since the start.
    pub(crate) written: u64,
}

/// A batch that is to be written.
pub(crate) struct NewBatch<'a> {
    pub(crate) stream: u8,
    pub(crate) flags: u16,
    pub(crate) entries: Vec<Entry>,
    /// The bytes of all entries.
    pub(crate) data: &'a [u8],
    /// When the data was written, if not now: the number of a batch.
    pub(crate) age: Option<u64>,
    /// The summary takes at least so many bytes.
    pub(crate) reserved: usize,
}

const CLOSED: StreamEnd = StreamEnd { segment: NO_SEGMENT, offset: 0, ordinal: 0 };

impl Log {
    pub(crate) fn new(uuid: [u8; 16], epoch: u64) -> Self {
        Log {
            uuid,
            root: StoredRoot::none(0),
            epoch,
            first: 1,
            mounts: Mounts::default(),
            sequence: 1,
            durable: 0,
            streams: [CLOSED; STREAMS],
            next_segment: NO_SEGMENT,
            announced: true,
            since_checkpoint: 0,
            written: 0,
        }
    }

    /// Forgets where the log goes on: the next batch is that of a checkpoint, in a new segment.
    pub(crate) fn begin_anew(&mut self, epoch: u64, last: u64, durable: u64) {
        let (root, written, mounts) = (self.root, self.written, std::mem::take(&mut self.mounts));
        *self = Log { sequence: last + 1, durable, root, written, mounts, ..Log::new(self.uuid, epoch) };
        self.begin_epoch(epoch);
        self.note_epoch();
    }

    /// What is written from now on is of an epoch under which nothing has been written yet.
    pub(crate) fn begin_epoch(&mut self, epoch: u64) {
        (self.epoch, self.first) = (epoch, self.sequence);
    }

    /// There may be more of the log than counts: a crash has left it, or what a root that is lost referred to.
    pub(crate) fn note_epoch(&mut self) {
        self.mounts.add(self.epoch, self.first);
    }

    /// Whether a batch may still go to the segment.
    pub(crate) fn is_open(&self, segment: u64) -> bool {
        segment == self.next_segment || self.streams.iter().any(|s| s.segment == segment)
    }

    /// Bytes that the current segment of a stream has left.
    pub(crate) fn left(&self, stream: u8, store: &dyn SegmentStore) -> u64 {
        let s = &self.streams[usize::from(stream)];
        let bytes = store.segment_bytes().min(1 << 30);
        if s.segment == NO_SEGMENT || (!store.can_append() && s.offset > 0) {
            return 0;
        }
        bytes.saturating_sub(u64::from(s.offset))
    }

    /// Sees to it that the stream has at least `need` bytes for a batch; returns how many there are.
    ///
    /// A segment is begun only if a batch that was written has announced it, and only if there is another one to announce in its
    /// place: so recovery finds whatever is written, however few segments were free. Fails before anything has changed.
    pub(crate) fn begin(&mut self, stream: u8, need: u64, store: &dyn SegmentStore) -> io::Result<u64> {
        let left = self.left(stream, store);
        if left >= need {
            return Ok(left);
        }
        if need > store.segment_bytes() {
            return Err(corrupt("a batch is longer than a segment"));
        }
        if !self.announced {
            return Err(io::Error::other("a segment would be begun that no batch has announced"));
        }
        if self.next_segment == NO_SEGMENT {
            // The very first batch, which is that of a checkpoint.
            if self.sequence > 1 {
                return Err(corrupt("the log announces no segment"));
            }
            self.next_segment = store.create()?;
        }
        let after = store.create()?;
        self.streams[usize::from(stream)] = StreamEnd { segment: self.next_segment, offset: 0, ordinal: 0 };
        self.next_segment = after;
        self.announced = false;
        Ok(self.left(stream, store))
    }

    /// Goes on without some segments: a stream that ends in one of them begins another. Only while the next batches are those of a
    /// checkpoint, which is found by the root and not by what was announced.
    pub(crate) fn leave(&mut self, segments: &BTreeSet<SegmentId>, store: &dyn SegmentStore) -> io::Result<()> {
        for s in &mut self.streams {
            if segments.contains(&s.segment) {
                *s = CLOSED;
            }
        }
        if segments.contains(&self.next_segment) {
            self.next_segment = store.create()?;
        }
        Ok(())
    }

    /// Where the data of a batch would begin within its segment, whose summary has `summary` bytes.
    pub(crate) fn data_start(summary: usize, align: u32) -> u32 {
        (summary as u32).next_multiple_of(align)
    }

    /// Makes the root one that batches may follow. What is written from now on has an epoch of its own, by which a loss of this root is noticed.
    pub(crate) fn reopen(&mut self, store: &dyn SegmentStore) -> io::Result<()> {
        if self.root.record.epoch != CLOSED_EPOCH {
            return Ok(());
        }
        let epoch = self.root.sequence + 1;
        self.root.replace(store, RootRecord { epoch, ..self.root.record })?;
        self.begin_epoch(epoch);
        Ok(())
    }

    /// Writes a batch at the end of its stream, for which `begin` has made room.
    pub(crate) fn write(
        &mut self,
        batch: NewBatch<'_>,
        store: &dyn SegmentStore,
        usage: &mut Usage,
    ) -> io::Result<Summary> {
        self.reopen(store)?;
        // Whoever cleans or makes a checkpoint has said so.
        let _purpose = Purpose::Log.scope_if_none();
        let NewBatch { stream, flags, entries, data, age, reserved } = batch;
        let align = store.alignment();
        let end = self.streams[usize::from(stream)];
        let summary_bytes = SUMMARY_BYTES + entries.iter().map(Entry::encoded_bytes).sum::<usize>();
        let data_start = Self::data_start(summary_bytes.max(reserved), align);
        let length = (data_start + data.len() as u32).next_multiple_of(align);
        let ordinals: u32 = entries.iter().map(Entry::ordinals).sum();
        let after = StreamEnd { segment: end.segment, offset: end.offset + length, ordinal: end.ordinal + ordinals };
        let mut streams = self.streams;
        streams[usize::from(stream)] = after;
        let summary = Summary {
            uuid: self.uuid,
            epoch: self.epoch,
            first: self.first,
            sequence: self.sequence,
            durable: self.durable,
            segment: end.segment,
            offset: end.offset,
            data_start,
            length,
            first_ordinal: end.ordinal,
            flags,
            stream,
            age: age.unwrap_or(self.sequence),
            next_segment: self.next_segment,
            streams,
            entries,
            unknown: None,
        };
        let fits = u64::from(end.offset) + u64::from(length) <= store.segment_bytes();
        if end.segment == NO_SEGMENT || !fits || u64::from(length) > BATCH_BYTES_MAX {
            return Err(corrupt("a batch does not fit its segment, or is longer than any may be"));
        }
        let mut bytes = summary.encode();
        bytes.resize(data_start as usize, 0);
        bytes.extend_from_slice(data);
        bytes.resize(length as usize, 0);
        store.append(end.segment, u64::from(end.offset), &bytes)?;
        self.streams = streams;
        self.announced = true;
        self.sequence += 1;
        self.since_checkpoint += u64::from(length);
        self.written += u64::from(length);
        usage.wrote(&summary);
        Ok(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::read_summary;
    use crate::store::MemoryStore;

    /// The store has no free segment again and again; each batch is where the one before it says that it may be.
    #[test]
    fn whatever_is_written_was_announced_however_few_segments_are_free() {
        for slack in 2..6u64 {
            let store = MemoryStore::new(slack * (64 << 10), 64 << 10, true);
            let (mut log, mut usage) = (Log::new(store.uuid(), 1), Usage::default());
            let mut rng = fastrand::Rng::with_seed(slack);
            let mut written: Vec<Summary> = Vec::new();
            let mut failed = 0;
            while written.len() < 300 {
                let stream = rng.u8(0..4);
                let data = vec![7; rng.usize(1..12) * 4096];
                let entries = vec![Entry::Record { stored: data.len() as u32, crc: crate::codec::crc32c(&data) }];
                match log.begin(stream, 512 + data.len() as u64, &store) {
                    Ok(_) => {}
                    Err(e) => {
                        assert_eq!(e.kind(), io::ErrorKind::StorageFull);
                        failed += 1;
                        // Somebody makes room: what is not open goes.
                        for id in store.list().unwrap().unwrap().into_iter().filter(|id| !log.is_open(*id)) {
                            store.delete(id).unwrap();
                        }
                        if rng.bool() {
                            // And all streams but one end.
                            let keep = rng.usize(0..STREAMS);
                            for (_, s) in log.streams.iter_mut().enumerate().filter(|(i, _)| *i != keep) {
                                *s = CLOSED;
                            }
                        }
                        if failed > 2000 {
                            break;
                        }
                        continue;
                    }
                }
                let batch = NewBatch { stream, flags: 0, entries, data: &data, age: None, reserved: 0 };
                let now = log.write(batch, &store, &mut usage).unwrap();
                if let Some(last) = written.last() {
                    let place = StreamEnd { segment: now.segment, offset: now.offset, ordinal: 0 };
                    let known = last.streams.iter().any(|s| (s.segment, s.offset) == (place.segment, place.offset))
                        || (last.next_segment, 0) == (place.segment, place.offset);
                    assert!(known, "batch {} is where no batch says", now.sequence);
                }
                assert_ne!(now.next_segment, NO_SEGMENT);
                read_summary(&store, log.uuid, now.segment, now.offset).unwrap();
                written.push(now);
            }
            assert!(written.len() > 3 && failed > 0, "{} batches, {failed} times full", written.len());
        }
    }
}
