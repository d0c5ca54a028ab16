//! A checkpoint: what is only in memory is stored, and the root refers to it.

use crate::batch::{BATCH_BYTES_MAX, Entry, SUMMARY_BYTES};
use crate::codec::crc32c;
use crate::extent::{Birth, EXTENT_BLOCKS_MAX};
use crate::layouts::{MapLayout, SegmentInfo};
use crate::log::{Log, NewBatch, STREAM_NODES};
use crate::record::{Record, RecordFields, Trees};
use crate::root::{CLOSED_EPOCH, RootRecord};
use crate::state::State;
use crate::store::{SegmentId, SegmentStore};
use crate::tree::{Edit, Layout, NODE_BYTES, Node, NodeHead, NodeRef, NodeSink, StoredNodes};
use crate::usage::{Nodes, Usage};
use cffs_device::{Purpose, Work};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// Most nodes in one batch.
const NODES_PER_BATCH: u64 = 128;
/// How often a checkpoint stores the usage again so that its record becomes shorter.
const RECORD_TRIES: u32 = 6;
/// Bytes of the entry of a node in a summary.
const NODE_ENTRY_BYTES: usize = 43;

/// Writes nodes in batches. The place of a node is known before its batch is written, because the summary has a fixed length.
struct NodeWriter<'a> {
    log: &'a mut Log,
    usage: &'a mut Usage,
    store: &'a dyn SegmentStore,
    cache: &'a Mutex<crate::cache::NodeCache>,
    entries: Vec<Entry>,
    data: Vec<u8>,
    /// Nodes that the batch can take.
    room: usize,
}

fn summary_bytes(nodes: usize) -> usize {
    SUMMARY_BYTES + nodes * NODE_ENTRY_BYTES
}

impl NodeWriter<'_> {
    fn flush(&mut self) -> io::Result<()> {
        if !self.entries.is_empty() {
            let reserved = summary_bytes(self.room);
            let entries = std::mem::take(&mut self.entries);
            let batch = NewBatch { stream: STREAM_NODES, flags: 0, entries, data: &self.data, age: None, reserved };
            self.log.write(batch, self.store, self.usage)?;
            self.data.clear();
        }
        self.room = 0;
        Ok(())
    }

    fn begin(&mut self) -> io::Result<()> {
        let align = self.store.alignment();
        let bytes = |n: u64| {
            u64::from(Log::data_start(summary_bytes(n as usize), align))
                + (n * NODE_BYTES as u64).next_multiple_of(align.into())
        };
        let left = self.log.begin(STREAM_NODES, bytes(1), self.store)?;
        let mut n = NODES_PER_BATCH.min(left / NODE_BYTES as u64).max(1);
        while n > 1 && bytes(n) > left {
            n -= 1;
        }
        self.room = n as usize;
        Ok(())
    }
}

impl NodeSink for NodeWriter<'_> {
    fn put_node(&mut self, head: &NodeHead, bytes: Vec<u8>, crc: u32) -> io::Result<(u64, u32, u32)> {
        if self.room == 0 {
            self.begin()?;
        }
        let end = self.log.streams[usize::from(STREAM_NODES)];
        let offset =
            end.offset + Log::data_start(summary_bytes(self.room), self.store.alignment()) + self.data.len() as u32;
        let at = (end.segment, end.ordinal + self.entries.len() as u32, offset);
        self.entries.push(Entry::Node { head: head.clone(), crc });
        self.data.extend_from_slice(&bytes);
        if self.entries.len() == self.room {
            self.flush()?;
        }
        Ok(at)
    }

    fn stored<L: Layout>(&mut self, r: &NodeRef, node: Arc<Node<L>>) {
        self.cache.lock().put((r.segment, r.ordinal), node);
    }
}

impl State {
    fn record(&self) -> Record {
        let late = self.usage.dirty.iter().filter_map(|id| Some((*id, *self.usage.table.get(id)?)));
        Record {
            fields: RecordFields {
                unmarked: self.unmarked,
                logical_bytes: self.logical_bytes,
                version: self.version,
                next_id: self.next_id,
                next_list: self.next_list,
            },
            trees: Trees {
                forward: self.forward.clone(),
                dead_lists: self.dead_lists.clone(),
                catalog: self.catalog.tree.clone(),
                segments: self.usage.segments.clone(),
                dead: self.usage.dead.clone(),
            },
            table: late.collect(),
            newly_dead: joined(&self.usage.newly_dead),
            mounts: self.log.mounts.clone(),
        }
    }

    /// Whether another checkpoint would store nothing but what the last one has.
    pub(crate) fn is_stored(&self) -> bool {
        let is_changed = self.dirtied > 0 || !self.frozen.is_empty() || !self.catalog.dirty.is_empty();
        self.record.is_some() && self.log.since_checkpoint == 0 && !is_changed && !*self.flush_failed.lock()
    }

    /// Makes a checkpoint. What is pending is not part of it, unless batches have patches of it, which recovery would not see any more.
    pub(crate) fn checkpoint(&mut self) -> io::Result<()> {
        self.store_state(false)
    }

    /// The same, if anything has changed, and a root that says that no batch follows.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.check()?;
        if !self.is_stored() {
            self.store_state(true)
        } else if self.log.root.record.epoch != CLOSED_EPOCH {
            let r = self.log.root.replace(&*self.store, RootRecord { epoch: CLOSED_EPOCH, ..self.log.root.record });
            self.fatal(r)
        } else {
            Ok(())
        }
    }

    fn store_state(&mut self, closes: bool) -> io::Result<()> {
        self.check()?;
        self.write_patched()?;
        // One that only makes cleaned segments free is a part of the cleaning.
        let _purpose = (Purpose::current() != Purpose::Clean).then(|| Purpose::Checkpoint.scope());
        let observed = self.observed.clone();
        let _checkpoint = observed.work(Work::Checkpoint, &mut self.for_checkpoint);
        // Nodes of all trees and the record of the checkpoint are side by side. A new root would end that.
        let reopened = self.log.reopen(&*self.store);
        self.fatal(reopened)?;
        self.store.hold();
        let r = self.try_checkpoint(closes);
        self.fatal(r)
    }

    fn try_checkpoint(&mut self, closes: bool) -> io::Result<()> {
        self.usage.apply_dead(&*self.store, &self.cache, &mut self.dirtied)?;
        self.store_maps()?;
        self.store_catalog()?;
        if let Some((at, bytes)) = self.record.take() {
            self.usage.free(at, 1, bytes)?;
        }
        self.store_usage()?;
        // Nodes of the usage that were all over the log are many lines in the record. Stored once more they are side by side.
        let longest = self.store.segment_bytes().min(BATCH_BYTES_MAX) / 2;
        let mut record = self.record().encode()?;
        for _ in 0..RECORD_TRIES {
            if record.len() as u64 <= longest {
                break;
            }
            self.usage.apply_dead(&*self.store, &self.cache, &mut self.dirtied)?;
            self.store_usage()?;
            record = self.record().encode()?;
        }
        let stored = record.len() as u32;
        let entry = Entry::Record { stored, crc: crc32c(&record) };
        let need = SUMMARY_BYTES as u64 + 64 + u64::from(stored) + 2 * u64::from(self.store.alignment());
        self.log.begin(STREAM_NODES, need, &*self.store)?;
        let batch =
            NewBatch { stream: STREAM_NODES, flags: 0, entries: vec![entry], data: &record, age: None, reserved: 0 };
        let summary = self.log.write(batch, &*self.store, &mut self.usage)?;
        self.record = Some((Birth { segment: summary.segment, ordinal: summary.first_ordinal }, u64::from(stored)));
        // As it is now: on a disk that was closed, the first batch of this checkpoint has begun a new one.
        let epoch = if closes { CLOSED_EPOCH } else { self.log.epoch };
        let root = RootRecord { segment: summary.segment, offset: summary.offset, epoch };
        let flush_failed = self.flush_failed.clone();
        let failed = flush_failed.lock();
        if *failed {
            return Err(io::Error::other("a flush has failed: what is behind the last checkpoint may be lost"));
        }
        self.log.root.replace(&*self.store, root)?;
        drop(failed);
        self.log.durable = self.log.sequence - 1;
        self.log.since_checkpoint = 0;
        self.dirtied = 0;
        self.freed_by_steps = None;
        self.catalog.is_stored();
        self.usage.fresh.clear();
        // The root that was just written refers to none of them.
        self.delete(self.empty_segments().collect());
        Ok(())
    }

    /// Stores the table of segments and the bitmaps.
    fn store_usage(&mut self) -> io::Result<()> {
        self.usage.apply_table(&*self.store, &self.cache, &mut self.dirtied)?;
        let (mut segments, mut dead) = (std::mem::take(&mut self.usage.segments), std::mem::take(&mut self.usage.dead));
        let mut writer = writer(&mut self.log, &mut self.usage, &*self.store, &self.cache);
        dead.store(&mut writer, &mut StoredNodes::new())?;
        segments.store(&mut writer, &mut StoredNodes::new())?;
        writer.flush()?;
        (self.usage.segments, self.usage.dead) = (segments, dead);
        Ok(())
    }

    /// Stores the maps of all branches and snapshots.
    fn store_maps(&mut self) -> io::Result<()> {
        let mut done = StoredNodes::<MapLayout>::new();
        let mut writer = writer(&mut self.log, &mut self.usage, &*self.store, &self.cache);
        // Oldest first: what a snapshot has comes before what is newer.
        for (id, s) in &mut self.catalog.snapshots {
            if s.root.is_dirty() {
                s.root.store(&mut writer, &mut done)?;
                self.catalog.dirty.insert(*id);
            }
        }
        for (id, b) in &mut self.catalog.branches {
            if b.root.is_dirty() {
                b.root.store(&mut writer, &mut done)?;
                self.catalog.dirty.insert(u64::from(*id));
            }
        }
        writer.flush()?;
        let frozen = std::mem::take(&mut self.frozen);
        let stored = frozen.into_iter().filter_map(|(list, node)| {
            // The type of the node is behind the reference; its address is that of the node itself.
            let node = node.downcast::<Node<MapLayout>>().ok()?;
            Some((list, done.get(&(Arc::as_ptr(&node) as usize))?.1))
        });
        let stored: Vec<_> = stored.collect();
        self.note_frozen(stored)
    }

    /// Stores the catalog, the dead lists and the forwards.
    fn store_catalog(&mut self) -> io::Result<()> {
        let mut retired = Vec::new();
        let src = Nodes { store: &*self.store, cache: &self.cache, table: &self.usage.table, forward: None };
        let mut edit =
            Edit { src: &src, version: 0, retired: &mut retired, frozen: &mut Vec::new(), dirtied: &mut self.dirtied };
        for id in std::mem::take(&mut self.catalog.dirty) {
            match self.catalog.encode(id)? {
                Some(record) => self.catalog.tree.insert(&mut edit, id, record)?,
                None => {
                    self.catalog.tree.remove(&mut edit, &id)?;
                }
            }
        }
        retired.iter().try_for_each(|r| self.usage.free_node(r))?;
        let mut writer = writer(&mut self.log, &mut self.usage, &*self.store, &self.cache);
        self.catalog.tree.store(&mut writer, &mut StoredNodes::new())?;
        self.dead_lists.store(&mut writer, &mut StoredNodes::new())?;
        self.forward.store(&mut writer, &mut StoredNodes::new())?;
        writer.flush()
    }

    /// Segments in which nothing lives. What was set aside stays so until the disk is opened again: its slot is not to be trusted.
    pub(crate) fn empty_segments(&self) -> impl Iterator<Item = SegmentId> {
        let empty = |(id, info): &(&SegmentId, &SegmentInfo)| {
            info.live == 0 && !self.log.is_open(**id) && !self.damaged.contains(id)
        };
        self.usage.table.iter().filter(empty).map(|(id, _)| *id)
    }

    /// Deletes segments in which nothing lives.
    pub(crate) fn delete(&mut self, empty: Vec<SegmentId>) {
        if empty.is_empty() {
            return;
        }
        // Whoever found a place in one of them has read it by now.
        let _quiet = self.readers.clone();
        let _quiet = _quiet.write();
        for id in empty {
            // Its room is free all the same. The device learns of it when the state is let go.
            self.failed_discards += u64::from(self.store.delete(id).is_err());
            self.usage.remove(id);
            self.poor.remove(&id);
        }
    }
}

/// Dead blocks in order, neighbours together, in pieces that are not longer than any extent.
fn joined(dead: &[(Birth, u32)]) -> Vec<(Birth, u32)> {
    let most = EXTENT_BLOCKS_MAX;
    let parts = |(at, blocks): &(Birth, u32)| {
        let (at, blocks) = (*at, *blocks);
        let part = move |skip: u32| (Birth { ordinal: at.ordinal + skip, ..at }, (blocks - skip).min(most));
        (0..blocks).step_by(most as usize).map(part)
    };
    let mut sorted: Vec<(Birth, u32)> = dead.iter().flat_map(parts).collect();
    sorted.sort_unstable();
    sorted.dedup_by(|next, (at, blocks)| {
        let follows =
            next.0.segment == at.segment && u64::from(next.0.ordinal) == u64::from(at.ordinal) + u64::from(*blocks);
        let joins = follows && *blocks + next.1 <= EXTENT_BLOCKS_MAX;
        *blocks += if joins { next.1 } else { 0 };
        joins
    });
    sorted
}

fn writer<'a>(
    log: &'a mut Log,
    usage: &'a mut Usage,
    store: &'a dyn SegmentStore,
    cache: &'a Mutex<crate::cache::NodeCache>,
) -> NodeWriter<'a> {
    NodeWriter { log, usage, store, cache, entries: Vec::new(), data: Vec::new(), room: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::LogOptions;
    use crate::recovery;
    use crate::store::MemoryStore;

    /// Nodes of the bitmaps that are all over the log are that many lines in the record.
    #[test]
    fn the_record_fits_a_segment_however_many_segments_there_are() {
        let store = Arc::new(MemoryStore::new(1 << 40, 64 << 10, true));
        let mut state = recovery::format(store.clone(), 1 << 30, &LogOptions::default()).unwrap();
        const SEGMENTS: u64 = 150_000;
        let fake = |i: u64| (1 << 40) + i;
        for i in 0..SEGMENTS {
            let info = SegmentInfo { used: 65536, ordinals: 16, live: 65536, ..SegmentInfo::default() };
            state.usage.table.insert(fake(i), info);
            state.usage.dirty.insert(fake(i));
            state.usage.live += 65536;
        }
        let mut rng = fastrand::Rng::with_seed(1);
        let mut kill = |state: &mut State, ordinal: u32, share: u64| {
            for i in (0..SEGMENTS).filter(|_| rng.u64(0..share) == 0) {
                state.usage.free(Birth { segment: fake(i), ordinal }, 1, 4096).unwrap();
            }
        };
        kill(&mut state, 0, 1);
        state.checkpoint().unwrap();
        for ordinal in 1..12 {
            kill(&mut state, ordinal, 300);
            state.checkpoint().unwrap();
        }
        kill(&mut state, 12, 1);
        state.checkpoint().unwrap();
        let (_, bytes) = state.record.unwrap();
        assert!(bytes <= 32 << 10, "the record has {bytes} bytes");
        let (live, segments) = (state.usage.live, state.usage.table.len());
        drop(state);
        let again = recovery::open(store, &LogOptions { read_only: true, ..LogOptions::default() }).unwrap();
        assert_eq!((again.usage.live, again.usage.table.len()), (live, segments));
    }
}
