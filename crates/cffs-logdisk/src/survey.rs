//! Which batches a store has, found without a root or a map, and which of them count.
//!
//! Batches are ordered by epoch and number. What a crash has left behind the end of the log does not count, and is told by what is newer:
//! a later mount has used its numbers again, or a later batch says that its segment ended before it. Behind the newest number that is
//! known to be durable, batches count up to the first that is missing or not whole, as in recovery.

use crate::batch::{CONTINUES, Entry, Summary};
use crate::layouts::SegmentInfo;
use crate::log::STREAM_NODES;
use crate::mounts::Mounts;
use crate::record::Record;
use crate::root::RootRecord;
use crate::scan::{are_whole, batch_at, patience, read_summary, read_wanted, search};
use crate::store::{NO_SEGMENT, SegmentId, SegmentStore};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Most lines of a report.
const LINES_MAX: usize = 100;

/// Checkpoints that are tried.
const CHECKPOINTS_MAX: usize = 4;

/// The first lines of a report.
#[derive(Default)]
pub(crate) struct Lines {
    pub(crate) lines: Vec<String>,
}

impl Lines {
    pub(crate) fn add(&mut self, line: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(line);
        }
    }
}

/// Mount and number of a batch.
pub(crate) type Order = (u64, u64);

/// What is kept of a summary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) segment: SegmentId,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    first: u64,
    durable: u64,
    continues: bool,
    /// The one entry is a checkpoint.
    is_checkpoint: bool,
    /// There is nothing but what a checkpoint stores.
    of_checkpoint: bool,
    /// There is more than nodes or a checkpoint.
    pub(crate) has_content: bool,
    /// It says what this version does not know.
    is_newer: bool,
}

/// Which batch was the last to say where a segment goes on, and where.
type End = (Order, u32);

/// All batches of a store.
#[derive(Default)]
pub(crate) struct Survey {
    /// Some 60 bytes for each.
    pub(crate) batches: BTreeMap<Order, Known>,
    /// Bytes of each segment that could be read.
    read: BTreeMap<SegmentId, u32>,
    ends: BTreeMap<SegmentId, End>,
    /// The newest checkpoints, the newest first.
    pub(crate) checkpoints: Vec<(Order, Known)>,
    /// Batches up to this number are known to be durable.
    pub(crate) durable: u64,
    /// What the newest checkpoints say.
    pub(crate) mounts: Mounts,
    pub(crate) lost: Lines,
}

impl Survey {
    /// Reads all summaries.
    ///
    /// # Errors
    /// Those of the list of places; what cannot be read is told in `lost`. `Unsupported` if a newer version has written to the log, whole or not.
    pub(crate) fn of(store: &dyn SegmentStore) -> io::Result<Self> {
        let mut survey = Survey::default();
        for place in store.places()? {
            survey.add_place(store, place)?;
        }
        survey.learn_mounts(store);
        survey.drop_left_over();
        let checkpoints = survey.batches.iter().rev().filter(|(_, b)| b.is_checkpoint);
        survey.checkpoints = checkpoints.take(CHECKPOINTS_MAX).map(|(order, b)| (*order, *b)).collect();
        survey.cut_end(store);
        // What an earlier store or a crash has left may be of any version.
        if let Some(b) = survey.batches.values().find(|b| b.is_newer) {
            read_summary(store, store.uuid(), b.segment, b.offset)?;
        }
        survey.tell_cut_segments();
        Ok(survey)
    }

    /// The number of the last batch that is needed: of a checkpoint that no root refers to nothing is. Of its batches those may be missing over which the next one was
    /// written, which a crash has ended as well.
    pub(crate) fn last_needed(&self, store: &dyn SegmentStore) -> u64 {
        let (mut last, mut later) = (None, None);
        for ((_, number), b) in self.batches.iter().rev() {
            if last.is_some_and(|last| *number < last)
                && !later.is_some_and(|later| only_nodes_between(store, b, later))
            {
                break;
            }
            if !b.of_checkpoint {
                return *number;
            }
            (last, later) = (Some(number - 1), Some(b));
        }
        last.unwrap_or(0)
    }

    fn add_place(&mut self, store: &dyn SegmentStore, place: SegmentId) -> io::Result<()> {
        let (uuid, end, step) = (store.uuid(), store.segment_bytes(), u64::from(store.alignment()));
        let mut last: Option<Summary> = None;
        let (mut at, mut left) = (0u64, patience(end));
        while at < end {
            let follows = |s: &Summary| match &last {
                Some(l) => s.segment == l.segment && s.order() > l.order() && s.first_ordinal >= ordinals_end(l),
                // The place may have been that of another segment.
                None => {
                    read_wanted(store, uuid, s.segment, s.offset, &|again| again == s).is_ok_and(|again| again == *s)
                }
            };
            let is_next = |s: &Summary| s.uuid == uuid && follows(s);
            let found = match u32::try_from(at).map(|at| batch_at(store, place, at, &is_next)) {
                Ok(Ok(Some(s))) => Some(s),
                Ok(found) => {
                    self.tell_unreadable(place, at, found.err());
                    search(store, place, at + step..end, &mut left, &is_next)?
                }
                Err(_) => None,
            };
            let Some(s) = found else { break };
            if u64::from(s.offset) > at {
                self.lost.add(format!("segment {:#x} cannot be read from byte {at} to {}", s.segment, s.offset));
            }
            at = u64::from(s.offset) + u64::from(s.length);
            self.add(&s);
            last = Some(s);
        }
        if left == 0 {
            self.lost
                .add(format!("the segment at place {place:#x} has more that looks like batches than can be looked at"));
        }
        Ok(())
    }

    fn tell_unreadable(&mut self, place: SegmentId, at: u64, error: Option<io::Error>) {
        use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
        if let Some(e) = error.filter(|e| !matches!(e.kind(), InvalidData | NotFound | UnexpectedEof)) {
            self.lost.add(format!("the segment at place {place:#x} cannot be read at byte {at}: {e}"));
        }
    }

    fn add(&mut self, s: &Summary) {
        let known = Known {
            segment: s.segment,
            offset: s.offset,
            length: s.length,
            first: s.first,
            durable: s.durable,
            continues: s.flags & CONTINUES != 0,
            is_checkpoint: matches!(s.entries[..], [Entry::Record { .. }]),
            of_checkpoint: s.is_of_checkpoint(),
            has_content: !s.entries.iter().all(Entry::is_made),
            is_newer: s.unknown.is_some(),
        };
        self.read.insert(s.segment, s.offset + s.length);
        for end in s.streams.iter().filter(|end| end.segment != NO_SEGMENT) {
            let newest = self.ends.entry(end.segment).or_default();
            *newest = (*newest).max((s.order(), end.offset));
        }
        let before = self.batches.insert(s.order(), known);
        if before.is_some() {
            self.lost.add(format!("there are two batches {} of one mount", s.sequence));
        }
    }

    /// What a mount says of those before it is so, also if its checkpoint does not count.
    fn learn_mounts(&mut self, store: &dyn SegmentStore) {
        let checkpoints = self.batches.values().rev().filter(|b| b.is_checkpoint).take(CHECKPOINTS_MAX);
        for (_, _, record) in checkpoints.filter_map(|b| Record::read(store, b.segment, b.offset).ok()) {
            self.mounts.merge(&record.mounts);
        }
    }

    /// Takes away what earlier stores and crashes have left.
    fn drop_left_over(&mut self) {
        // The first batch of a store; what is older is of an earlier one.
        let first = self.batches.keys().rev().find(|(_, n)| *n == 1).copied();
        let mut below = u64::MAX;
        let mut mount = (u64::MAX, u64::MAX);
        let mut gone = BTreeSet::new();
        for (&order, b) in self.batches.iter().rev() {
            let (epoch, number) = order;
            if epoch != mount.0 {
                below = below.min(mount.1).min(self.mounts.end_of(epoch).unwrap_or(u64::MAX));
                mount = (epoch, u64::MAX);
            }
            let end = self.ends.get(&b.segment);
            let is_behind = end.is_some_and(|(said, end)| *said > order && b.offset + b.length > *end);
            if number >= below || is_behind || first.is_some_and(|first| order < first) {
                gone.insert(order);
            }
            // A mount takes all that it has found for durable, and goes on behind it. Its first batches may be gone by now, and what is left
            // of it need not count itself.
            let began = if b.first == 0 { number } else { b.first };
            mount.1 = mount.1.min(b.durable.saturating_add(1)).min(began);
        }
        self.batches.retain(|order, _| !gone.contains(order));
    }

    /// Takes away what is behind the end of the log.
    fn cut_end(&mut self, store: &dyn SegmentStore) {
        let Some((&(mount, newest), _)) = self.batches.last_key_value() else { return };
        self.durable = self.batches.values().map(|b| b.durable).max().unwrap_or(0).min(newest);
        // All before the checkpoint of the root is durable. Without a root it may have been that of the newest.
        let root = store.root().ok().and_then(|r| RootRecord::decode(&r.bytes).ok());
        let is_root = |b: &Known| root.is_none_or(|r| (r.segment, r.offset) == (b.segment, b.offset));
        let rooted = self.checkpoints.iter().find(|(_, b)| is_root(b)).map_or(0, |(order, _)| order.1);
        if root.is_some() {
            self.durable = self.durable.max(rooted);
        }
        let durable = self.durable.max(rooted);
        let mut whole = durable;
        while self.batches.get(&(mount, whole + 1)).is_some_and(|b| has_data(store, b)) {
            whole += 1;
        }
        while whole > durable && self.batches.get(&(mount, whole)).is_some_and(|b| b.continues) {
            whole -= 1;
        }
        self.batches.retain(|(_, number), _| *number <= whole);
    }

    /// Bytes of each segment that are known to be durable.
    pub(crate) fn durable_ends(&self) -> BTreeMap<SegmentId, u32> {
        let mut ends = BTreeMap::new();
        for (_, b) in self.batches.iter().filter(|((_, number), _)| *number <= self.durable) {
            let end: &mut u32 = ends.entry(b.segment).or_default();
            *end = (*end).max(b.offset + b.length);
        }
        ends
    }

    /// Tells segments that went on behind what could be read of them.
    fn tell_cut_segments(&mut self) {
        let there: BTreeSet<SegmentId> = self.batches.values().map(|b| b.segment).collect();
        for (id, read) in self.read.iter().filter(|(id, _)| there.contains(id)) {
            let end = self.ends.get(id).filter(|(said, end)| end > read && self.batches.contains_key(said));
            if let Some((_, end)) = end {
                self.lost.add(format!("segment {id:#x} cannot be read from byte {read} to {end}"));
            }
        }
    }

    /// Tells segments that a checkpoint has and that could not be read as far; or that no checkpoint tells.
    pub(crate) fn tell_missing(&mut self, table: Option<&BTreeMap<SegmentId, SegmentInfo>>) {
        let Some(table) = table else {
            self.lost.add("the table of segments is lost: whether batches are missing cannot be known".into());
            return;
        };
        for (id, info) in table.iter().filter(|(_, info)| info.live > 0) {
            let read = self.read.get(id).copied().unwrap_or(0);
            if read < info.used {
                self.lost.add(format!(
                    "segment {id:#x} cannot be read from byte {read} to {}: blocks of files that were there are zeros or as they were before",
                    info.used
                ));
            }
        }
    }
}

/// Whether all batches between two were of nodes or a checkpoint: data goes on behind both at the same places.
fn only_nodes_between(store: &dyn SegmentStore, before: &Known, later: &Known) -> bool {
    let data_ends = |b: &Known| {
        let s = read_summary(store, store.uuid(), b.segment, b.offset).ok()?;
        Some(s.streams[..usize::from(STREAM_NODES)].to_vec())
    };
    data_ends(before).is_some_and(|ends| data_ends(later) == Some(ends))
}

/// Whether the data of a batch is whole.
fn has_data(store: &dyn SegmentStore, b: &Known) -> bool {
    if b.is_newer {
        return true; // nobody here can say that it is not
    }
    let s = read_summary(store, store.uuid(), b.segment, b.offset);
    s.and_then(|s| are_whole(store, &s, &|entry| !entry.is_made())).unwrap_or(false)
}

/// The ordinal behind those of a batch.
fn ordinals_end(s: &Summary) -> u32 {
    s.first_ordinal + s.entries.iter().map(Entry::ordinals).sum::<u32>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Logical, Payload};
    use crate::codec::crc32c;
    use crate::extent::{BLOCK_BYTES, Codec};
    use crate::log::{Log, NewBatch, STREAM_NEW};
    use crate::store::MemoryStore;
    use crate::usage::Usage;

    /// A log, with what later ones need of it.
    struct Writer {
        store: MemoryStore,
        log: Log,
    }

    impl Writer {
        fn write(&mut self, stream: u8, entry: Entry, data: &[u8]) -> SegmentId {
            let batch = NewBatch { stream, flags: 0, entries: vec![entry], data, age: None, reserved: 0 };
            self.log.begin(stream, 1024 + data.len() as u64, &self.store).unwrap();
            let segment = self.log.write(batch, &self.store, &mut Usage::default()).unwrap().segment;
            self.log.durable = self.log.sequence - 1;
            segment
        }

        fn block(&mut self) -> SegmentId {
            let data = [7; BLOCK_BYTES];
            let payload =
                Payload { codec: Codec::Plain, blocks: 1, stored: BLOCK_BYTES as u32, crcs: vec![crc32c(&data)] };
            let at = Logical { branch: 0, block: 1 };
            self.write(STREAM_NEW, Entry::Write { at, version: 1, data: payload }, &data)
        }

        fn checkpoint(&mut self) -> SegmentId {
            let record = Record { mounts: self.log.mounts.clone(), ..Record::default() }.encode().unwrap();
            let entry = Entry::Record { stored: record.len() as u32, crc: crc32c(&record) };
            self.write(STREAM_NODES, entry, &record)
        }

        /// A crash after which the log ends with this number, and the mount behind it.
        fn crash(&mut self, epoch: u64, last: u64) {
            self.log.begin_anew(epoch, last, last);
            self.log.next_segment = self.store.create().unwrap();
        }

        fn counting(&self) -> Vec<Order> {
            Survey::of(&self.store).unwrap().batches.keys().copied().collect()
        }
    }

    /// The mount of epoch 2 rejects batch 3 of epoch 1. Later all that it has written itself is gone but what is said to be.
    fn rejected(left: impl Fn(&mut Writer) -> BTreeSet<SegmentId>) -> Vec<Order> {
        let store = MemoryStore::new(64 << 20, 64 << 10, true);
        let log = Log::new(store.uuid(), 1);
        let mut w = Writer { store, log };
        for _ in 0..3 {
            w.block();
        }
        assert_eq!(w.counting().len(), 3);
        w.crash(2, 2);
        let written = left(&mut w);
        w.crash(3, 6);
        w.block();
        written.into_iter().for_each(|segment| w.store.delete(segment).unwrap());
        w.counting()
    }

    #[test]
    fn what_a_mount_has_rejected_does_not_count_also_if_only_a_later_batch_of_it_is_left() {
        let counting = rejected(|w| {
            let gone = (0..2).map(|_| w.checkpoint()).collect();
            w.block();
            gone
        });
        assert!(counting.contains(&(2, 5)) && !counting.contains(&(1, 3)), "{counting:?}");
    }

    #[test]
    fn what_a_mount_has_rejected_does_not_count_also_if_that_mount_has_left_nothing_but_its_number() {
        let counting = rejected(|w| {
            let gone = [w.block(), w.checkpoint()].into();
            // Of the next mount, whose checkpoint is here.
            w.crash(3, 4);
            w.checkpoint();
            gone
        });
        assert!(counting.contains(&(1, 2)) && !counting.contains(&(1, 3)), "{counting:?}");
    }
}
