//! Opening: the last checkpoint, and the batches behind it.
//!
//! From the checkpoint on, every summary says where the next batch may be: at the end of a stream, or at the start of the
//! segment that it announces. The walk ends where none of these places has the batch with the next number. Batches
//! that were durable when a later one was written are believed; the data of the others is verified, and the first that is not whole ends
//! the log. Where it seems to end, a batch is looked for that was written after the missing one had been durable: if there is one, the log
//! is broken, and that is an error. So it is if one of these places cannot be read and none of the others has the batch: it may be there, and what it has was
//! acknowledged. Who opens the disk may say that it is to go on without it; then the segment is left alone from then on. Then the entries are applied, as
//! they were the first time.

use crate::around::{Around, KEPT_BYTES};
use crate::batch::{BATCH_BYTES_MAX, CONTINUES, Entry, Logical, Summary};
use crate::cache::NodeCache;
use crate::catalog::{Branch, Catalog, DeadList, MAIN_BRANCH};
use crate::codec::corrupt;
use crate::extent::{BLOCK_BYTES, Birth};
use crate::layouts::MapLayout;
use crate::log::Log;
use crate::options::LogOptions;
use crate::patches::Patches;
use crate::pending::Pending;
use crate::recent::Recent;
use crate::record::Record;
use crate::root::{CLOSED_EPOCH, RootRecord, StoredRoot};
use crate::scan::{is_whole, patience, read_summary, read_wanted, search, summaries};
use crate::space::Level;
use crate::state::State;
use crate::store::{NO_SEGMENT, SegmentId, SegmentStore};
use crate::tree::Root;
use crate::usage::{AHEAD_BYTES, ReadAhead, Usage};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Largest logical space in bytes.
pub const LOGICAL_BYTES_MAX: u64 = 1 << 60;

pub(crate) fn blank(store: Arc<dyn SegmentStore>, options: &LogOptions) -> State {
    let log = Log::new(store.uuid(), 0);
    State {
        options: options.clone(),
        cache: Mutex::new(NodeCache::new(options.cache_nodes.max(16))),
        around: Arc::new(Around::new(KEPT_BYTES)),
        store,
        logical_bytes: 0,
        log,
        usage: Usage::default(),
        forward: Root::default(),
        dead_lists: Root::default(),
        catalog: Catalog::default(),
        version: 1,
        next_id: 1,
        next_list: 1,
        frozen: Vec::new(),
        dirtied: 0,
        pending: Pending::default(),
        recent: Recent::default(),
        patches: Patches::default(),
        freed_by_steps: None,
        reserved: Arc::default(),
        record: None,
        map_level: 0,
        listed: 0,
        poor: BTreeMap::new(),
        unmarked: false,
        in_vain: None,
        failed_discards: 0,
        damaged: BTreeSet::new(),
        cleaned: 0,
        forwarded: 0,
        patched: 0,
        accepted: 0,
        readers: Arc::new(RwLock::new(())),
        flush_failed: Arc::default(),
        failed: None,
        observed: options.observed.clone(),
        for_batch: cffs_device::ForWhom::default(),
        for_blocks: cffs_device::ForWhom::default(),
        for_checkpoint: cffs_device::ForWhom::default(),
    }
}

fn can_be_logical(bytes: u64) -> io::Result<()> {
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES as u64) || bytes > LOGICAL_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{bytes} bytes of logical space: it takes whole blocks of {BLOCK_BYTES}, at most 1 EiB"),
        ));
    }
    Ok(())
}

/// Makes the store an empty disk. What it had is lost.
pub(crate) fn format(store: Arc<dyn SegmentStore>, logical_bytes: u64, options: &LogOptions) -> io::Result<State> {
    can_be_logical(logical_bytes)?;
    let mut state = blank(store, options);
    state.options.read_only = false;
    state.logical_bytes = logical_bytes;
    state.store.adopt(&[])?;
    if state.space().usable < state.store.capacity() / 4 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} bytes are too few for a log disk with such segments", state.store.capacity()),
        ));
    }
    state.log.root = StoredRoot::none(state.store.root()?.sequence);
    state.log.begin_epoch(state.log.root.record.epoch);
    state.add_main();
    state.checkpoint()?;
    Ok(state)
}

/// The log may go on where it cannot be read: what is there was perhaps acknowledged. [`LogOptions::lose_end`] goes on without it.
#[derive(Debug)]
pub struct UnreadableEnd {
    /// The number of the batch.
    sequence: u64,
    segment: SegmentId,
    offset: u32,
    error: io::Error,
}

impl fmt::Display for UnreadableEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnreadableEnd { sequence, segment, offset, error } = self;
        write!(
            f,
            "batch {sequence} of the log may be in segment {segment:#x} at {offset}, which cannot be read: {error}"
        )
    }
}

impl std::error::Error for UnreadableEnd {}

/// Whether an error says that there is nothing, or no whole batch; others say that it cannot be known.
fn is_absent(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound)
}

/// Where a batch is; enough to find it again.
struct Found {
    segment: SegmentId,
    offset: u32,
    sequence: u64,
    continues: bool,
    /// It is of a checkpoint.
    is_checkpoint: bool,
}

/// Where the log may go on.
struct LogEnd {
    epoch: u64,
    /// Of the last batch.
    sequence: u64,
    places: Vec<(SegmentId, u32)>,
}

impl LogEnd {
    fn of(last: &Summary, epoch: u64) -> Self {
        let streams = last.streams.iter().map(|s| (s.segment, s.offset)).chain([(last.next_segment, 0)]);
        LogEnd { epoch, sequence: last.sequence, places: streams.filter(|p| p.0 != NO_SEGMENT).collect() }
    }

    fn is_broken_before(&self, later: &Summary) -> io::Error {
        let places: Vec<String> =
            self.places.iter().map(|(segment, offset)| format!("{segment:#x} at {offset}")).collect();
        corrupt(format!(
            "batch {} of the log cannot be read (it was in one of the segments {}), but batch {} in segment {:#x} at {} \
             was written after it had been durable: what was written from then on would be lost",
            self.sequence + 1,
            places.join(", "),
            later.sequence,
            later.segment,
            later.offset
        ))
    }
}

/// Opens the disk on a store.
pub(crate) fn open(store: Arc<dyn SegmentStore>, options: &LogOptions) -> io::Result<State> {
    let root = RootRecord::decode(&store.root()?.bytes)?;
    open_at(store, root, options)
}

/// Opens the disk with a root that the store need not have.
pub(crate) fn open_at(store: Arc<dyn SegmentStore>, root: RootRecord, options: &LogOptions) -> io::Result<State> {
    let mut state = blank(store, options);
    state.log.root = StoredRoot { sequence: state.store.root()?.sequence, record: root };
    let checkpoint = state.load_checkpoint(&root)?;
    if state.unmarked && !options.unmarked {
        return Err(corrupt("the log disk was rebuilt, and not to its end: what is lost is not marked yet"));
    }
    // What was empty then is needed by no batch behind it.
    let empty: Vec<SegmentId> = state.empty_segments().collect();
    for id in empty {
        state.usage.remove(id);
    }
    let (mut aside, mut torn) = (BTreeSet::new(), BTreeSet::new());
    let found = state.find_batches(&checkpoint, root.epoch, &mut aside, &mut torn)?;
    for f in &found {
        let s = read_summary(&*state.store, state.log.uuid, f.segment, f.offset)?;
        if s.sequence != f.sequence {
            return Err(corrupt("a batch has changed while it was read"));
        }
        // No checkpoint says so if that mount found nothing.
        if s.sequence == s.first {
            state.log.mounts.add(s.epoch, s.first);
        }
        state.log.sequence = s.sequence + 1;
        state.log.streams = s.streams;
        state.log.next_segment = s.next_segment;
        state.log.since_checkpoint += u64::from(s.length);
        state.usage.wrote(&s);
        state.apply(&s, true)?;
    }
    state.log.durable = state.log.sequence - 1;
    state.forget_replaced();
    if let Some(at) = state.put_together(false)?.first() {
        let what = format!("the patches of block {} of branch {} do not fit what it was", at.block, at.branch);
        return Err(corrupt(what));
    }
    state.damaged = aside;
    if !options.read_only {
        state.take_over(&root, found.is_empty(), &torn)?;
    }
    Ok(state)
}

impl State {
    /// Makes the logical space longer, from the next opening on.
    pub(crate) fn lengthen(&mut self, bytes: u64) -> io::Result<()> {
        self.check()?;
        can_be_logical(bytes)?;
        if bytes <= self.logical_bytes {
            return Ok(());
        }
        self.logical_bytes = bytes;
        self.checkpoint()
    }

    /// The main branch, empty.
    pub(crate) fn add_main(&mut self) {
        let main = Branch {
            root: Root::<MapLayout>::default(),
            origin: None,
            list: DeadList { id: 0, entries: 0 },
            deleting: false,
            name: b"main".to_vec(),
            floor: 0,
            floor_after_crash: 0,
            opened: 0,
        };
        self.catalog.branches.insert(MAIN_BRANCH, main);
        self.catalog.dirty.insert(u64::from(MAIN_BRANCH));
    }

    /// What lies before a checkpoint's record: nodes that were stored with it, and with those before it. Where they begin, and their bytes. Whoever needs one
    /// that cannot be read finds that out again.
    fn read_before(&self, segment: SegmentId, offset: u32) -> Option<(u64, Vec<u8>)> {
        let end = u64::from(offset);
        let start = end.saturating_sub(AHEAD_BYTES);
        let mut bytes = vec![0; (end - start) as usize];
        let read = !bytes.is_empty() && self.store.get(segment, start, &mut bytes).is_ok();
        read.then_some((start, bytes))
    }

    /// Reads the checkpoint that the root refers to; returns the summary of its batch.
    pub(crate) fn load_checkpoint(&mut self, root: &RootRecord) -> io::Result<Summary> {
        let store = self.store.clone();
        let nodes = ReadAhead::new(&*store);
        if let Some((start, bytes)) = self.read_before(root.segment, root.offset) {
            nodes.add(root.segment, start, bytes.clone());
            self.cache.lock().around().add(root.segment, start, bytes);
        }
        let (s, stored, record) = Record::read(&*self.store, root.segment, root.offset)?;
        let (fields, trees) = (record.fields, record.trees);
        (self.forward, self.dead_lists, self.catalog.tree) = (trees.forward, trees.dead_lists, trees.catalog);
        (self.usage.segments, self.usage.dead) = (trees.segments, trees.dead);
        self.log.mounts = record.mounts;
        self.logical_bytes = fields.logical_bytes;
        if self.logical_bytes > LOGICAL_BYTES_MAX || !self.logical_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(corrupt("the logical space has an impossible size"));
        }
        (self.version, self.next_id, self.next_list) = (fields.version, fields.next_id, fields.next_list);
        self.unmarked = fields.unmarked;
        // The table first: nodes are found by it. The trees that are read for it are never moved.
        let mut table = BTreeMap::new();
        self.usage.segments.scan(&nodes, &0, &mut |id, info| {
            table.insert(*id, *info);
            ControlFlow::Continue(())
        })?;
        for (id, info) in record.table {
            table.insert(id, info);
            self.usage.dirty.insert(id);
        }
        self.usage.load(table, record.newly_dead);
        self.usage.wrote(&s);
        let segment = self.store.segment_bytes();
        if self.usage.table.values().any(|i| u64::from(i.used) > segment) {
            return Err(corrupt("a segment has more than fits it"));
        }
        if self.usage.live > self.store.capacity() {
            return Err(corrupt("more bytes live than the store has"));
        }
        self.record = Some((Birth { segment: s.segment, ordinal: s.first_ordinal }, u64::from(stored)));
        let mut records = Vec::new();
        self.catalog.tree.scan(&nodes, &0, &mut |id, record| {
            records.push((*id, record.clone()));
            ControlFlow::Continue(())
        })?;
        records.iter().try_for_each(|(id, record)| self.catalog.load(*id, record))?;
        self.catalog.check()?;
        let lists = self.catalog.branches.values().map(|b| b.list.entries);
        self.listed = lists.chain(self.catalog.snapshots.values().map(|s| s.list.entries)).fold(0, u64::saturating_add);
        self.map_level = self.catalog.branches.values().map(|b| b.root.level()).max().unwrap_or(0);
        let branches: Vec<u32> = self.catalog.branches.keys().copied().collect();
        branches.into_iter().for_each(|id| self.catalog.update_floor(id));
        self.log.sequence = s.sequence + 1;
        self.log.streams = s.streams;
        self.log.next_segment = s.next_segment;
        Ok(s)
    }

    /// The batches behind a checkpoint that count. `aside` gets the segments in which something could not be read, and `torn` those of batches that are there, and do not
    /// count.
    fn find_batches(
        &self,
        checkpoint: &Summary,
        epoch: u64,
        aside: &mut BTreeSet<SegmentId>,
        torn: &mut BTreeSet<SegmentId>,
    ) -> io::Result<Vec<Found>> {
        let mut found: Vec<Found> = Vec::new();
        let mut durable = 0;
        let mut end = LogEnd::of(checkpoint, epoch);
        if epoch == CLOSED_EPOCH {
            // None follows, but a root may have, and be lost. In the order of the device, which has a way to go only.
            end.places.sort_by_key(|(segment, offset)| {
                self.store.range_of(*segment).map_or(0, |range| range.start + u64::from(*offset))
            });
            return self.next_batch(&end, &mut Vec::new()).map(|_| found);
        }
        loop {
            let mut unreadable = Vec::new();
            let next = match self.next_batch(&end, &mut unreadable)? {
                Some(s) => s,
                None => match self.later_batch(&end)? {
                    None => {
                        for lost in unreadable {
                            self.without(lost, aside)?;
                        }
                        break;
                    }
                    // Whoever reads while another process writes may have come too early for the next one.
                    Some(later) => {
                        self.next_batch(&end, &mut unreadable)?.ok_or_else(|| end.is_broken_before(&later))?
                    }
                },
            };
            durable = durable.max(next.durable);
            end = LogEnd::of(&next, epoch);
            found.push(Found {
                segment: next.segment,
                offset: next.offset,
                sequence: next.sequence,
                continues: next.flags & CONTINUES != 0,
                is_checkpoint: next.is_of_checkpoint(),
            });
        }
        let mut whole = found.len();
        for (i, f) in found.iter().enumerate().filter(|(_, f)| f.sequence > durable) {
            let is_whole =
                read_summary(&*self.store, self.log.uuid, f.segment, f.offset).and_then(|s| is_whole(&*self.store, &s));
            match is_whole {
                Ok(true) => continue,
                Err(error) if !is_absent(&error) => {
                    let lost = UnreadableEnd { sequence: f.sequence, segment: f.segment, offset: f.offset, error };
                    self.without(lost, aside)?;
                }
                _ => {}
            }
            whole = i;
            break;
        }
        while whole > 0 && found[whole - 1].continues {
            whole -= 1;
        }
        torn.extend(found.drain(whole..).filter(|f| !f.is_checkpoint).map(|f| f.segment));
        // A checkpoint that no root refers to: nothing needs it, and the one that is made now may need its room.
        while found.pop_if(|f| f.is_checkpoint).is_some() {}
        Ok(found)
    }

    /// Goes on without a batch that cannot be read, if that is wanted.
    fn without(&self, lost: UnreadableEnd, aside: &mut BTreeSet<SegmentId>) -> io::Result<()> {
        if !self.options.lose_end {
            return Err(io::Error::new(io::ErrorKind::InvalidData, lost));
        }
        aside.insert(lost.segment);
        Ok(())
    }

    /// The batch that follows, if it is there. `unreadable` gets the places that cannot be read, where it may be if it is not found.
    fn next_batch(&self, end: &LogEnd, unreadable: &mut Vec<UnreadableEnd>) -> io::Result<Option<Summary>> {
        unreadable.clear();
        for &(segment, offset) in &end.places {
            let follows = |s: &Summary| s.sequence == end.sequence + 1 && s.epoch == end.epoch;
            match read_wanted(&*self.store, self.log.uuid, segment, offset, &follows) {
                Ok(s) if follows(&s) => return s.must_be_known().map(|()| Some(s)),
                // The number of a root is the highest epoch of what was written until the next one.
                Ok(s) if s.epoch > self.log.root.sequence => {
                    return Err(corrupt(format!(
                        "batch {} in segment {segment:#x} at {offset} was written under root {}, which is lost: root {} is older",
                        s.sequence, s.epoch, self.log.root.sequence
                    )));
                }
                Err(error) if !is_absent(&error) => {
                    unreadable.push(UnreadableEnd { sequence: end.sequence + 1, segment, offset, error });
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// A batch near the places where the next one may be that says that the next one was durable. Then the log does not end here.
    fn later_batch(&self, end: &LogEnd) -> io::Result<Option<Summary>> {
        let mut left = patience(end.places.len() as u64 * BATCH_BYTES_MAX);
        for &(segment, offset) in &end.places {
            let is_later = |s: &Summary| {
                let ours = s.uuid == self.log.uuid && s.segment == segment && s.epoch == end.epoch;
                ours && s.durable > end.sequence && s.sequence > s.durable
            };
            // As far as the next batch can be behind one of any length.
            let range = u64::from(offset)..u64::from(offset) + BATCH_BYTES_MAX;
            if let Some(s) = search(&*self.store, segment, range, &mut left, &is_later)? {
                return Ok(Some(s));
            }
        }
        Ok(None)
    }

    /// The segments whose room is not free.
    pub(crate) fn existing(&self) -> Vec<SegmentId> {
        let mut existing: BTreeSet<SegmentId> = self.usage.table.keys().copied().collect();
        existing.extend(self.log.streams.iter().map(|s| s.segment));
        existing.extend([self.log.next_segment]);
        existing.remove(&NO_SEGMENT);
        // What was set aside is not given out again while this process has the disk.
        existing.extend(&self.damaged);
        existing.into_iter().collect()
    }

    /// Makes blocks of which the batches have patches what they were. Before the next checkpoint they are written whole. Returns those that
    /// the patches do not fit. Where discards may be missing, patches that fit zeros are of a block that had been discarded, and what it was before
    /// need not be there any more.
    pub(crate) fn put_together(&mut self, discards_may_miss: bool) -> io::Result<Vec<Logical>> {
        let mut others = Vec::new();
        while let Some((at, overlay)) = self.patches.pop() {
            if self.catalog.branches.get(&at.branch).is_none_or(|b| b.deleting) {
                continue;
            }
            let zeros = || vec![0; BLOCK_BYTES].into_boxed_slice();
            let read = self.read_block(at.branch, at.block);
            let before = if discards_may_miss { [read.ok(), Some(zeros())] } else { [Some(read?), None] };
            let fitting =
                before.into_iter().flatten().find_map(|mut block| overlay.lay_over(&mut block).then_some(block));
            let Some(block) = fitting else {
                others.push(at);
                continue;
            };
            self.pending.write(at, block, None);
            self.pending.patched = true;
            self.note_pending(BLOCK_BYTES as u64);
        }
        Ok(others)
    }

    /// Takes segments out of the table that the cleaner has deleted behind the checkpoint, and whose room others have got: what lived in them is
    /// elsewhere, and nothing that is left refers to them.
    fn forget_replaced(&mut self) {
        let mut newest: BTreeMap<u64, SegmentId> = BTreeMap::new();
        let mut replaced = Vec::new();
        // In ascending order: of two segments in a place the one with the greater id is the later one.
        for id in self.existing() {
            let place = self.store.range_of(id).map(|range| range.start);
            replaced.extend(place.and_then(|place| newest.insert(place, id)));
        }
        for id in replaced {
            // Otherwise something is wrong, which the store will say.
            if self.usage.table.get(&id).is_some_and(|info| info.live == 0) {
                self.usage.remove(id);
            }
        }
    }

    /// Gives back segments in which nothing lives and that only a checkpoint would give back, if nobody needs them: the process before has given them back
    /// without one, or could have. All batches that say so are durable.
    fn delete_emptied(&mut self) {
        let is_content = |s: Summary| !s.entries.iter().any(Entry::is_made);
        let emptied = self.empty_segments().filter(|id| {
            let info = self.usage.table.get(id).copied().unwrap_or_default();
            let mut all = summaries(&*self.store, self.log.uuid, *id, &info);
            self.is_free_when_moved(*id, &info) && all.all(|s| s.is_ok_and(is_content))
        });
        self.delete(emptied.collect());
    }

    /// Makes this process the one that writes: a new epoch, under which nothing has been written yet. Where batches are that do not count nothing is written until the next
    /// checkpoint: it could be what they lack, and make them count if this process ends before that.
    fn take_over(&mut self, root: &RootRecord, clean: bool, torn: &BTreeSet<SegmentId>) -> io::Result<()> {
        let mut existing = self.existing();
        let place = |id: SegmentId| self.store.range_of(id).map_or(id, |range| range.start);
        let places: BTreeSet<u64> = existing.iter().map(|id| place(*id)).collect();
        let mut unknown: Vec<SegmentId> = torn.iter().copied().filter(|id| !places.contains(&place(*id))).collect();
        existing.extend(&unknown);
        self.store.adopt(&existing)?;
        let epoch = self.log.root.sequence + 1;
        self.log.begin_epoch(epoch);
        if root.epoch != CLOSED_EPOCH {
            self.log.note_epoch();
        }
        let clean = clean && self.damaged.is_empty() && torn.is_empty();
        // The root gets a new sequence number in any case, so that this mount's segments have names of their own. The
        // batches found keep their epoch until a checkpoint has them.
        let bumped = RootRecord { epoch: if clean { epoch } else { root.epoch }, ..*root };
        self.log.root.replace(&*self.store, bumped)?;
        // Another one may be announced, besides.
        let need = self.need(self.pending_change(), Level::Accepted) + 2 * self.store.segment_bytes();
        if !clean && self.store.available() < need {
            self.delete_emptied();
        }
        self.log.leave(&self.damaged, &*self.store)?;
        // Batches that count may have nothing in the segment that was announced.
        let announced = self.log.next_segment;
        self.log.leave(torn, &*self.store)?;
        if self.log.next_segment != announced && !self.usage.table.contains_key(&announced) {
            unknown.push(announced);
        }
        if clean {
            return Ok(());
        }
        self.checkpoint()?;
        unknown.into_iter().try_for_each(|id| self.store.delete(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layouts::SegmentInfo;
    use crate::store::{ImageOptions, ImageStore};
    use cffs_device::{CountingDevice, Device, IoKind, MemoryDevice};

    #[test]
    fn opening_takes_a_request_for_each_summary_and_one_for_the_nodes_of_the_last_checkpoints() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(1 << 30));
        let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [1; 16], slot_bytes: 0 }).unwrap();
        let options = LogOptions::default();
        let disk = crate::disk::LogDisk::from_state(format(Arc::new(store), 1 << 40, &options).unwrap());
        let write = |disk: &crate::disk::LogDisk, i: u64, byte: u8| {
            disk.write_at(IoKind::Data, i << 24, &[byte; 4096]).unwrap();
            disk.flush().unwrap();
        };
        (0..40).for_each(|i| write(&disk, i, 1));
        let open = |what: &str| {
            let counted = Arc::new(CountingDevice::new(device.clone()));
            let store = Arc::new(ImageStore::open(counted.clone()).unwrap());
            let disk = crate::disk::LogDisk::open(store, &options).unwrap();
            let opened = counted.snapshot().read_requests();
            let mut data = [0; 4096];
            disk.read_at(IoKind::Data, 39 << 24, &mut data).unwrap();
            assert_eq!(data[0], 1, "{what}");
            (disk, opened, counted.snapshot().read_requests() - opened)
        };
        // Each batch is looked for, and then applied.
        drop(disk);
        let (disk, opened, _) = open("after a crash");
        assert!(opened < 40 * 3, "{opened} requests for 40 batches");
        disk.checkpoint().unwrap();
        drop(disk);
        let (_disk, opened, read) = open("after a checkpoint");
        assert!(opened < 25, "{opened} requests");
        assert_eq!(read, 1, "the nodes are there");
    }

    /// The last write goes to several segments or to one, and the end of it is lost.
    #[test]
    fn segments_of_batches_that_do_not_count_are_free_after_opening() {
        const SEGMENT: u64 = 64 << 10;
        const BLOCK: u64 = BLOCK_BYTES as u64;
        let options = LogOptions { batch_bytes: 512 << 10, ..LogOptions::default() };
        for (before, blocks) in (0..20).flat_map(|n| [(n, 1), (n, 4), (n, 30), (n, 60)]) {
            let device = Arc::new(MemoryDevice::new(32 << 20));
            let image = ImageOptions { uuid: [1; 16], slot_bytes: SEGMENT };
            let store = Arc::new(ImageStore::format(device.clone(), &image).unwrap());
            let disk = crate::disk::LogDisk::from_state(format(store, 1 << 30, &options).unwrap());
            for n in 0..before {
                disk.write_at(IoKind::Data, n * BLOCK, &[1; BLOCK_BYTES]).unwrap();
                disk.flush().unwrap();
            }
            let flushed = device.duplicate();
            let data: Vec<u8> = (0..blocks * BLOCK).map(|i| (i % 251) as u8).collect();
            disk.write_at(IoKind::Data, 1000 * BLOCK, &data).unwrap();
            disk.lock().seal().unwrap();
            // The last block that differs from what was flushed is lost.
            let at = |block: u64| block * BLOCK / 8;
            let (mut now, mut then) = (vec![0; BLOCK_BYTES / 8], vec![0; BLOCK_BYTES / 8]);
            let differs = |block: &u64| {
                device.read_at(IoKind::Data, at(*block), &mut now).unwrap();
                flushed.read_at(IoKind::Data, at(*block), &mut then).unwrap();
                now != then
            };
            let last = (0..device.len() / at(1)).rev().find(differs).unwrap();
            let left = device.duplicate();
            flushed.read_at(IoKind::Data, at(last), &mut then).unwrap();
            left.write_at(IoKind::Data, at(last), &then).unwrap();
            let store = Arc::new(ImageStore::open(Arc::new(left)).unwrap());
            let state = super::open(store.clone(), &options).unwrap();
            let used = (store.capacity() - store.available()) / store.segment_bytes();
            let what = format!("{before} flushes and then {blocks} blocks");
            assert_eq!(used, state.existing().len() as u64, "{what}");
            let mut read = vec![0; BLOCK_BYTES];
            let again = crate::disk::LogDisk::from_state(state);
            for n in 0..before {
                again.read_at(IoKind::Data, n * BLOCK, &mut read).unwrap();
                assert!(read == [1; BLOCK_BYTES], "{what}");
            }
            again.read_at(IoKind::Data, 1000 * BLOCK, &mut read).unwrap();
            assert!(read == [0; BLOCK_BYTES], "{what}: a part of a write is there");
            assert!(again.check(true).unwrap().is_empty(), "{what}");
        }
    }

    /// A device that takes longer sectors than the image was written with.
    struct Longer(Arc<dyn Device>);

    impl Device for Longer {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn sector_size(&self) -> u32 {
            4096
        }
        fn below(&self) -> Option<&dyn Device> {
            Some(&*self.0)
        }
        fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<()> {
            self.0.read_vectored(kind, offset, bufs)
        }
        fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<()> {
            self.0.write_vectored(kind, offset, bufs)
        }
        fn flush(&self) -> io::Result<()> {
            self.0.flush()
        }
        fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
            self.0.discard(offset, len)
        }
    }

    #[test]
    fn a_batch_in_the_last_part_of_a_segment_is_read_although_sectors_are_longer_now() {
        let slot = 64 << 10;
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
        let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [1; 16], slot_bytes: slot }).unwrap();
        let options = LogOptions::default();
        let disk = crate::disk::LogDisk::from_state(format(Arc::new(store), 1 << 30, &options).unwrap());
        let read_only = LogOptions { read_only: true, ..options };
        let mut data = [1; 4096];
        let (mut begun_there, mut before) = (0, 0);
        for n in 0..200u64 {
            data[n as usize] = n as u8;
            disk.write_at(IoKind::Data, 0, &data).unwrap();
            disk.flush().unwrap();
            let store = ImageStore::open(Arc::new(Longer(device.clone())) as Arc<dyn Device>).unwrap();
            let state = open(Arc::new(store), &read_only).unwrap();
            assert!(state.read_block(MAIN_BRANCH, 0).unwrap()[..] == data, "after {n} batches");
            let end = state.log.streams.iter().map(|s| u64::from(s.offset)).max().unwrap_or(0);
            begun_there += u64::from(before > slot - 4096 && end > before);
            before = end;
        }
        assert!(begun_there > 0, "none");
    }

    /// What is full of data is only in the table: 8 of 10 TB are 120,000 segments.
    #[test]
    fn a_disk_of_ten_terabytes_is_opened_after_a_crash_with_few_reads() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(10_000_000_000_000));
        let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [1; 16], slot_bytes: 0 }).unwrap();
        let (slot, slots) = (store.segment_bytes(), store.slots());
        let options = LogOptions::default();
        let mut state = format(Arc::new(store), 1 << 50, &options).unwrap();
        let ids: Vec<SegmentId> = (slots / 5..slots).map(|s| 7 << 28 | s).collect();
        for &id in &ids {
            let info =
                SegmentInfo { used: slot as u32, ordinals: (slot / 4096) as u32, live: slot, ..Default::default() };
            state.usage.table.insert(id, info);
            state.usage.dirty.insert(id);
            state.usage.live += slot;
        }
        state.checkpoint().unwrap();
        // Some life: the records that change are then elsewhere in the log.
        let mut rng = fastrand::Rng::with_seed(1);
        for ordinal in 0..20 {
            for _ in 0..20 {
                let at = Birth { segment: *rng.choice(&ids).unwrap(), ordinal };
                let _ = state.usage.free(at, 1, 4096);
            }
            state.checkpoint().unwrap();
        }
        let disk = crate::disk::LogDisk::from_state(state);
        for i in 0..50u64 {
            disk.write_at(IoKind::Data, i << 30, &[i as u8 + 1; 4096]).unwrap();
            disk.flush().unwrap();
        }
        drop(disk);
        let counted = Arc::new(CountingDevice::new(device));
        let disk = crate::disk::LogDisk::open(Arc::new(ImageStore::open(counted.clone()).unwrap()), &options).unwrap();
        let reads = counted.snapshot().read_requests();
        eprintln!("{slots} segments of {} MiB: {reads} read requests, {:?}", slot >> 20, counted.snapshot());
        assert!(reads < 500, "{reads} read requests");
        let mut data = [0; 4096];
        disk.read_at(IoKind::Data, 49 << 30, &mut data).unwrap();
        assert_eq!(data, [50; 4096]);
    }
}
