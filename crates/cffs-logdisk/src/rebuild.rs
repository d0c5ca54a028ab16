//! The disk from its segments alone, if the root or the map is lost.
//!
//! Each block of data is described by the summary of its batch, so the segments say all that was ever written and is still there.
//!
//! - The newest checkpoint is looked for. If all trees that it refers to can be read, and all batches behind it, the disk is what it was, with its snapshots.
//! - Else the map of the main branch is made anew: all batches are applied in their order. A copy that the cleaner made of what only the branch had
//!   (a remap) is what the branch had at that moment. A copy that it made for snapshots (a forward) has a version: it is what was last written
//!   in that version, so it counts only if the branch has nothing younger. Snapshots and other branches are not made up: whether a discard
//!   is missing among the batches cannot be known. They are told.
//!
//! A map of the main branch that can be read as a whole is never thrown away: a batch whose summary is damaged is in no new map, and its data may be good.
//! A map that only a rebuilding has made that was interrupted may refer to what never came to the store, so there the data is read as well.
//! What a new map lacks is told by the table of segments of the newest checkpoint.
//!
//! A discard whose segment is gone is not known any more. So blocks that were discarded may read as what they were before.

use crate::batch::{BATCH_BYTES_MAX, Entry, Logical, NewerVersion, Payload, Summary};
use crate::catalog::{Branch, MAIN_BRANCH};
use crate::check::check;
use crate::codec::{COUNTER_MAX, corrupt};
use crate::copies::get_right;
use crate::evacuate::place_of;
use crate::extent::{BLOCK_BYTES, Birth, Codec, Extent};
use crate::options::LogOptions;
use crate::read::fetch_stored;
use crate::record::{Record, RecordFields};
use crate::recount::recount;
use crate::recovery::{LOGICAL_BYTES_MAX, blank, open_at};
use crate::remains::{ReadBytes, summary_by};
use crate::root::{RootRecord, StoredRoot};
use crate::scan::{next_batch, patience, read_wanted};
use crate::state::State;
use crate::store::{Geometry, ImageStore, NO_SEGMENT, SegmentId, SegmentStore, parts_of};
use crate::survey::{Known, Lines, Order, Survey};
use crate::tree::lookup_extents;
use cffs_device::{Device, IoKind};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

/// What [`rebuild`] has found and made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebuildReport {
    /// A checkpoint and all behind it could be read: the disk is what it was, with all snapshots.
    pub from_checkpoint: bool,
    /// The trees could be read, but not all of what they say of the use of segments was right: it was counted anew. Nothing is lost by that.
    pub recounted: bool,
    /// Batches that count, a number.
    pub batches: usize,
    /// Bytes that the main branch has, if its map was made anew.
    pub mapped: u64,
    /// Bytes of logical space. Where nothing says how many there were, it ends behind the last block that was found: [`LogDisk::lengthen`](crate::LogDisk::lengthen)
    /// is for who knows.
    pub logical_bytes: u64,
    /// What is lost or could not be read, one line for each.
    pub lost: Vec<String>,
}

/// Opens the store on a device for [`rebuild`], also if no superblock is whole: what is in the slots then tells how the device is divided.
/// Reads all of the device in that case.
///
/// # Errors
/// `InvalidData` if nothing tells it; those of the device.
pub fn recover_image(device: Arc<dyn Device>) -> io::Result<ImageStore> {
    let geometry = match ImageStore::geometry(&*device) {
        Some(known) => known,
        None => geometry_of(&*device)?,
    };
    // Numbers of roots are in ids. The store must not give out again what was.
    let store = ImageStore::recover(device.clone(), Some(geometry), 0)?;
    let mut highest = 0;
    for place in store.places()? {
        let (mut at, mut left) = (0, patience(geometry.slot_bytes));
        let ours = |s: &Summary| s.uuid == geometry.uuid;
        while let Some(s) = next_batch(&store, place, at, &mut left, &ours)? {
            let ids = s.streams.iter().map(|end| end.segment).chain([s.segment, s.next_segment]);
            let roots = ids.filter(|id| *id != NO_SEGMENT).map(|id| parts_of(id).1);
            highest = roots.chain([s.epoch]).fold(highest, u64::max);
            at = s.offset + s.length;
        }
    }
    ImageStore::recover(device, Some(geometry), highest)
}

/// How a device is divided, from two batches in different slots of one of its copies.
fn geometry_of(device: &dyn Device) -> io::Result<Geometry> {
    let found = geometry_by(device, &|at, buf| device.read_at(IoKind::Data, at, buf));
    let others = if device.copies() < 2 { 0..0 } else { 0..device.copies() };
    let of_copy = |copy| geometry_by(device, &|at, buf| device.read_copy(IoKind::Data, copy, at, buf)).ok();
    found.or_else(|e| others.into_iter().find_map(of_copy).ok_or(e))
}

/// The same, in what `read` has of the device.
fn geometry_by(device: &dyn Device, read: ReadBytes<'_>) -> io::Result<Geometry> {
    let mut first: Option<(Summary, u64)> = None;
    let step = u64::from(device.sector_size());
    let mut bytes = vec![0; 1 << 20];
    let (mut at, mut left) = (0, patience(device.len()));
    while at < device.len() {
        let n = bytes.len().min((device.len() - at) as usize);
        let chunk = &mut bytes[..n];
        match read(at, chunk) {
            Ok(()) => {}
            // A copy that is missing.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(e),
            Err(_) => chunk.fill(0),
        }
        let found = (0..n).step_by(step as usize).filter_map(|i| Some((i, Summary::length_of(chunk.get(i..)?).ok()?)));
        for (place, length) in found.map(|(i, length)| (at + i as u64, length)).collect::<Vec<_>>() {
            let Some(s) = summary_by(step as usize, read, place) else {
                left = left.saturating_sub((length as u64).min(BATCH_BYTES_MAX));
                if left == 0 {
                    return Err(corrupt("the device has more that looks like batches than can be looked at"));
                }
                continue;
            };
            let Some((f, f_at)) = &first else {
                first = Some((s, place));
                continue;
            };
            let (slots, bytes) = (
                parts_of(s.segment).0.checked_sub(parts_of(f.segment).0),
                (place - u64::from(s.offset).min(place)).checked_sub(f_at - u64::from(f.offset).min(*f_at)),
            );
            if s.uuid == f.uuid
                && let (Some(slots @ 1..), Some(bytes)) = (slots, bytes)
                && bytes.is_multiple_of(slots)
            {
                let slot_bytes = bytes / slots;
                let begin = place - u64::from(s.offset);
                let first_slot = begin.checked_sub(parts_of(s.segment).0.saturating_mul(slot_bytes));
                let first_slot = first_slot.ok_or_else(|| corrupt("two batches contradict each other"))?;
                return Ok(Geometry { uuid: s.uuid, slot_bytes, first_slot });
            }
        }
        at += n as u64;
    }
    Err(corrupt("no superblock is whole, and there are no batches in two slots"))
}

/// Finds the disk on a store whose root or trees are lost, and makes a root that [`LogDisk::open`](crate::LogDisk::open) can open. See the
/// module for what comes back. Data is not read; [`LogDisk::scrub_step`](crate::LogDisk::scrub_step) does that. Takes some 60 bytes of memory for each batch, and
/// the map. Until the new root is written nothing that counts is overwritten, so this can be done again if it was interrupted.
///
/// A new map has no blocks that are lost. So it is opened only by [`LogOptions::unmarked`], until [`LogDisk::mark_lost`](crate::LogDisk::mark_lost) has said which these are.
///
/// # Errors
/// `NotFound` if there is no batch of a log disk, `Unsupported` if the main branch can be read as it is and only a new map is left to make, or with [`NewerVersion`] if such a one has written to the log, `StorageFull` if no segment is free for the new map; those of the store.
pub fn rebuild(store: Arc<dyn SegmentStore>, options: &LogOptions) -> io::Result<RebuildReport> {
    let mut survey = Survey::of(&*store)?;
    let Some((&last, _)) = survey.batches.last_key_value() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the store has no batch of a log disk"));
    };
    let report = RebuildReport { batches: survey.batches.len(), ..RebuildReport::default() };
    let checkpoints = survey.checkpoints.clone();
    let mut miscounted = None;
    for (order, b) in &checkpoints {
        let root = root_at(&survey, *order, b);
        match open_whole(&store, root, &survey, options) {
            Ok((state, None)) => {
                return make_root(&store, &state, root, report);
            }
            Ok((state, Some(problem))) => {
                survey.lost.add(format!("checkpoint {} miscounts: {problem}", order.1));
                miscounted = miscounted.or(Some(state));
            }
            Err(e) if NewerVersion::is(&e) => return Err(e),
            Err(e) => survey.lost.add(format!("checkpoint {} cannot be used: {e}", order.1)),
        }
    }
    if let Some(mut state) = miscounted {
        match recount(&mut state, &survey) {
            Ok(()) => return finish_recounted(state, last, &survey, report),
            Err(e) => survey.lost.add(format!("what segments have cannot be counted anew: {e}")),
        }
    }
    let mut roots = checkpoints.iter().map(|(order, b)| root_at(&survey, *order, b));
    if let Some((root, state)) = roots.find_map(|root| Some((root, main_is_whole(&store, root, &survey, options)?))) {
        let now = RootRecord::decode(&store.root()?.bytes);
        if now.is_ok_and(|now| (now.segment, now.offset) == (root.segment, root.offset)) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "all files can be read as it is, only snapshots or clones cannot, and a new map could lose files",
            ));
        }
        survey.lost.add("all files are there, snapshots or clones perhaps not".to_owned());
        return make_root(&store, &state, root, RebuildReport { lost: survey.lost.lines, ..report });
    }
    // An older checkpoint does not know the newest segments.
    let table = checkpoints.first().and_then(|(order, b)| {
        let mut state = blank(store.clone(), options);
        state.load_checkpoint(&root_at(&survey, *order, b)).ok().map(|_| state.usage.table)
    });
    survey.tell_missing(table.as_ref());
    let fields = checkpoints.iter().find_map(|(_, b)| fields_of(&*store, b).ok());
    let content = survey.batches.iter().rev().find(|(_, b)| b.has_content).map_or(0, |(order, _)| order.1);
    let mut maker = Maker::new(store, options, std::mem::take(&mut survey.lost), survey.durable);
    maker.state.log.mounts = std::mem::take(&mut survey.mounts);
    for (order, b) in &survey.batches {
        maker.apply(*order, b)?;
    }
    maker.finish(last, content, fields, report)
}

/// Makes a checkpoint the root that a store has.
fn make_root(
    store: &Arc<dyn SegmentStore>,
    state: &State,
    root: RootRecord,
    report: RebuildReport,
) -> io::Result<RebuildReport> {
    // Only now: for a store of objects this deletes all others.
    store.adopt(&state.existing())?;
    store.replace_root(state.log.root.sequence, &root.encode())?;
    Ok(RebuildReport { from_checkpoint: true, logical_bytes: state.logical_bytes, ..report })
}

/// The root that a checkpoint had: the batches behind it are of its epoch, or of a later one that was begun when there were none.
fn root_at(survey: &Survey, order: Order, b: &Known) -> RootRecord {
    let behind = survey.batches.keys().filter(|(_, number)| *number == order.1 + 1);
    let epoch = behind.map(|(epoch, _)| *epoch).max().unwrap_or(order.0);
    RootRecord { segment: b.segment, offset: b.offset, epoch }
}

/// Options that take what can be read.
fn whatever(options: &LogOptions) -> LogOptions {
    LogOptions { read_only: true, lose_end: true, unmarked: true, ..options.clone() }
}

/// The disk as a checkpoint and all batches behind it say, if all of that can be read; and what is wrong with what it says of the use of segments, if anything is.
fn open_whole(
    store: &Arc<dyn SegmentStore>,
    root: RootRecord,
    survey: &Survey,
    options: &LogOptions,
) -> io::Result<(State, Option<String>)> {
    let state = open_at(store.clone(), root, &whatever(options))?;
    let last = survey.last_needed(&**store);
    if state.log.sequence <= last {
        return Err(corrupt(format!("batch {last} cannot be reached from it")));
    }
    // Segments that count are never in each other's way.
    store.can_adopt(&state.existing())?;
    let problem = check(&state, false)?.into_iter().next();
    // What was not durable before it may have been lost in a crash, and then it was never a root.
    for id in unsure(&state, survey) {
        let mut bytes = 0;
        if let Some(line) = state.scrub_plan(id).verify(&**store, &state.dead_now(id)?, &mut bytes).first() {
            return Err(corrupt(line));
        }
    }
    Ok((state, problem))
}

/// Segments with something alive of which it is not known that they were durable. Where nothing lives, something else may be by now.
fn unsure(state: &State, survey: &Survey) -> BTreeSet<SegmentId> {
    let ends = survey.durable_ends();
    let is_sure = |id, used| ends.get(id).is_some_and(|end| *end >= used);
    let table = state.usage.table.iter().filter(|(id, info)| info.live > 0 && !is_sure(*id, info.used));
    table.map(|(id, _)| *id).collect()
}

/// The disk as a checkpoint and the batches behind it say, if they say where everything is that the main branch has. Then only snapshots or other branches are damaged,
/// or summaries whose batches the map describes. Where what it says is not there, it never was a root: a rebuilding may have been interrupted before it came to that.
fn main_is_whole(
    store: &Arc<dyn SegmentStore>,
    root: RootRecord,
    survey: &Survey,
    options: &LogOptions,
) -> Option<State> {
    let state = open_at(store.clone(), root, &whatever(options)).ok()?;
    // Segments that count are never in each other's way.
    store.can_adopt(&state.existing()).ok()?;
    let main = state.catalog.branches.get(&MAIN_BRANCH);
    let unsure = unsure(&state, survey);
    let mut is_there = |_: &u64, extent: &Extent| {
        let parts = state.locate(extent.clone())?;
        parts
            .iter()
            .filter(|(_, e)| unsure.contains(&e.place.segment))
            .try_for_each(|(_, e)| fetch_stored(&**store, e).map(drop))
    };
    let mut walk = |main: &Branch| main.root.walk(&state.nodes(), &mut |_| Ok(true), &mut is_there);
    let is_whole = state.log.sequence > survey.last_needed(&**store) && main.is_some_and(|main| walk(main).is_ok());
    is_whole.then_some(state)
}

/// Stores a usage that was counted anew, and makes a root.
fn finish_recounted(
    mut state: State,
    last: Order,
    survey: &Survey,
    mut report: RebuildReport,
) -> io::Result<RebuildReport> {
    state.options.read_only = false;
    state.log.mounts.merge(&survey.mounts);
    begin(&mut state, last, last.1)?;
    state.checkpoint()?;
    (report.from_checkpoint, report.recounted) = (true, true);
    report.logical_bytes = state.logical_bytes;
    report.lost = survey.lost.lines.clone();
    Ok(report)
}

/// From here on the store is written to, behind its last batch and in segments of its own.
fn begin(state: &mut State, last: Order, durable: u64) -> io::Result<()> {
    let root = state.store.root()?;
    let epoch = root.sequence + 1;
    if last.0 >= epoch {
        return Err(corrupt("the root of the store is older than its batches: the store must be opened for recovery"));
    }
    // Whoever opens the disk by the root that is there, if this is interrupted, has a later epoch than what is written here, and other ids.
    let is_root = RootRecord::decode(&root.bytes).is_ok();
    let sequence = if is_root { state.store.replace_root(root.sequence, &root.bytes)? } else { root.sequence };
    state.log.root = StoredRoot::none(sequence);
    state.log.begin_anew(epoch, last.1, durable);
    state.store.adopt(&state.existing())?;
    state.log.next_segment = state.store.create()?;
    Ok(())
}

/// Numbers of a checkpoint whose trees may be lost.
fn fields_of(store: &dyn SegmentStore, b: &Known) -> io::Result<RecordFields> {
    Ok(Record::read(store, b.segment, b.offset)?.2.fields)
}

/// Ranges that were discarded, with the version that was current. Later ones count.
#[derive(Default)]
struct Discards {
    /// Start -> end and version.
    ranges: BTreeMap<u64, (u64, u64)>,
}

impl Discards {
    fn add(&mut self, start: u64, end: u64, version: u64) {
        let before = self.ranges.range(..start).next_back().map(|(k, v)| (*k, *v));
        if let Some((first, (last, v))) = before.filter(|(_, (last, _))| *last > start) {
            self.ranges.insert(first, (start, v));
            if last > end {
                self.ranges.insert(end, (last, v));
            }
        }
        let inside: Vec<(u64, (u64, u64))> = self.ranges.range(start..end).map(|(k, v)| (*k, *v)).collect();
        for (first, (last, v)) in inside {
            self.ranges.remove(&first);
            if last > end {
                self.ranges.insert(end, (last, v));
            }
        }
        self.ranges.insert(start, (end, version));
    }

    /// The version in which a block was last discarded, or 0.
    fn version(&self, block: u64) -> u64 {
        let before = self.ranges.range(..=block).next_back();
        before.filter(|(_, (end, _))| block < *end).map_or(0, |(_, (_, version))| *version)
    }
}

/// Makes the map of the main branch from batches.
struct Maker {
    state: State,
    discards: Discards,
    /// Highest version so far.
    version: u64,
    next_id: u64,
    /// Snapshots and branches that are lost, as far as their entries are there.
    gone: BTreeMap<u64, String>,
    /// Branches of which something was found.
    branches: BTreeSet<u32>,
    forwards: bool,
    lost: Lines,
    /// Behind this number a batch counts only with what is whole of it.
    durable: u64,
}

impl Maker {
    fn new(store: Arc<dyn SegmentStore>, options: &LogOptions, lost: Lines, durable: u64) -> Self {
        let mut state = blank(store, options);
        state.options.read_only = false;
        state.add_main();
        let (discards, gone, branches) = Default::default();
        Maker { state, discards, version: 1, next_id: 1, gone, branches, forwards: false, lost, durable }
    }

    fn apply(&mut self, order: Order, b: &Known) -> io::Result<()> {
        let usage = &mut self.state.usage;
        let (used, ordinals) = usage.table.get(&b.segment).map_or((0, 0), |info| (info.used, info.ordinals));
        let is_it = |s: &Summary| s.order() == order;
        let s = match read_wanted(&*self.state.store, self.state.log.uuid, b.segment, b.offset, &is_it) {
            Ok(s) if is_it(&s) && s.offset >= used && s.first_ordinal >= ordinals => s,
            _ => {
                self.lost.add(format!("batch {} in segment {:#x} cannot be read again", order.1, b.segment));
                return Ok(());
            }
        };
        usage.wrote(&s);
        usage.never_written(s.segment, ordinals..s.first_ordinal);
        for (entry, ordinal, offset) in s.placed() {
            if order.1 > self.durable && entry.stored() > 0 {
                let mut data = vec![0; entry.stored() as usize];
                let store = &*self.state.store;
                let read = get_right(store, s.segment, u64::from(offset), &mut data, &mut |bytes| entry.verify(bytes));
                if !read.unwrap_or(false) {
                    let at = Birth { segment: s.segment, ordinal };
                    self.state.usage.free(at, entry.ordinals(), u64::from(entry.stored()))?;
                    continue;
                }
            }
            self.apply_entry(order.1, entry, Birth { segment: s.segment, ordinal }, offset)?;
        }
        Ok(())
    }

    fn apply_entry(&mut self, number: u64, entry: &Entry, here: Birth, offset: u32) -> io::Result<()> {
        let extent =
            |version: u64, data: &Payload| Extent { blocks: data.blocks, version, place: place_of(data, here, offset) };
        match entry {
            Entry::Write { at, version, data } => {
                self.version = self.version.max(*version);
                self.state.patches.forget(*at, u64::from(data.blocks));
                self.choose(*at, extent(*version, data), |_, _| true)
            }
            Entry::Remap { at, version, source, mapped, data } => {
                self.forget_patches_of_others(*at, *source, data.blocks)?;
                let plain = data.codec == Codec::Plain;
                self.choose(*at, extent(*version, data), |_, i| plain || mapped >> (i % 16) & 1 == 1)
            }
            Entry::Forward { at, version, data, .. } => {
                self.forwards = true;
                let older =
                    |maker: &Self, i: u32| -> bool { maker.discards.version(at.block + u64::from(i)) <= *version };
                self.choose_forward(*at, extent(*version, data), older)
            }
            Entry::Discard { at, blocks } => {
                let blocks = (*blocks).min(LOGICAL_BYTES_MAX);
                if at.branch == MAIN_BRANCH {
                    self.discards.add(at.block, at.block.saturating_add(blocks), self.version);
                    self.state.unmap(*at, blocks)?;
                }
                Ok(())
            }
            Entry::Patch { at, patch } => {
                if at.branch != MAIN_BRANCH {
                    self.branches.insert(at.branch);
                } else if !self.state.patches.add(*at, patch) {
                    self.lost.add(format!("what was written last to block {} is lost", at.block));
                }
                Ok(())
            }
            Entry::Node { .. } | Entry::ForwardNode { .. } | Entry::Record { .. } => {
                // Before a checkpoint all is written whole. Of the last one a crash may have left less; what is there of that takes the patches away itself.
                if !matches!(entry, Entry::ForwardNode { .. }) && number <= self.durable {
                    self.state.patches.forget_all();
                }
                self.state.usage.free(here, 1, u64::from(entry.stored()))
            }
            Entry::Snapshot { id, branch, version, name } => {
                let name = String::from_utf8_lossy(name);
                self.gone.insert(*id, format!("snapshot {id} ({name}) of branch {branch} is lost"));
                self.version = self.version.max(version + 1);
                self.next_id = self.next_id.max(id + 1);
                Ok(())
            }
            Entry::Clone { branch, name, .. } => {
                let (id, name) = (u64::from(*branch), String::from_utf8_lossy(name));
                self.gone.insert(id, format!("branch {branch} ({name}) is lost"));
                self.next_id = self.next_id.max(id + 1);
                Ok(())
            }
            Entry::Delete { id } => {
                self.gone.remove(id);
                if let Ok(branch) = u32::try_from(*id) {
                    self.branches.remove(&branch);
                }
                Ok(())
            }
        }
    }

    /// A copy of something else than the blocks are here was made of what has been written since the patches, in a segment that is gone.
    fn forget_patches_of_others(&mut self, at: Logical, source: Birth, blocks: u32) -> io::Result<()> {
        if at.branch != MAIN_BRANCH || self.state.patches.is_empty() {
            return Ok(());
        }
        let Some(main) = self.state.catalog.branches.get(&MAIN_BRANCH) else { return Ok(()) };
        let found = lookup_extents(&main.root, &self.state.nodes(), at.block, u64::from(blocks))?;
        let is_it = |i: u32| {
            let block = at.block + u64::from(i);
            let here = found.iter().find(|(first, e)| (*first..first + u64::from(e.blocks)).contains(&block));
            here.is_some_and(|(first, e)| {
                let ordinal = u64::from(e.place.ordinal) + (block - first);
                e.place.segment == source.segment && ordinal == u64::from(source.ordinal) + u64::from(i)
            })
        };
        for i in (0..blocks).filter(|&i| !is_it(i)) {
            self.state.patches.forget(Logical { block: at.block + u64::from(i), ..at }, 1);
        }
        Ok(())
    }

    /// Maps the blocks of an extent that are chosen; nobody needs the others.
    fn choose(&mut self, at: Logical, extent: Extent, chosen: impl Fn(&Self, u32) -> bool) -> io::Result<()> {
        if at.branch != MAIN_BRANCH {
            self.branches.insert(at.branch);
            return self.state.usage.free(extent.place.birth(), extent.blocks, extent.share());
        }
        let mut i = 0;
        while i < extent.blocks {
            let now = chosen(self, i);
            let end = (i..extent.blocks).find(|&j| chosen(self, j) != now).unwrap_or(extent.blocks);
            let part = extent.part(i, end - i);
            if now {
                self.state.map(Logical { block: at.block + u64::from(i), ..at }, part)?;
            } else {
                self.state.usage.free(part.place.birth(), part.blocks, part.share())?;
            }
            i = end;
        }
        Ok(())
    }

    /// Maps the blocks of a copy of what snapshots have where the branch has nothing younger.
    fn choose_forward(&mut self, at: Logical, extent: Extent, older: impl Fn(&Self, u32) -> bool) -> io::Result<()> {
        let mut younger = BTreeSet::new();
        if at.branch == MAIN_BRANCH
            && let Some(main) = self.state.catalog.branches.get(&MAIN_BRANCH)
        {
            for (block, e) in lookup_extents(&main.root, &self.state.nodes(), at.block, u64::from(extent.blocks))? {
                if e.version > extent.version {
                    let first = (block - at.block) as u32;
                    younger.extend(first..first + e.blocks);
                }
            }
        }
        self.choose(at, extent, |maker, i| !younger.contains(&i) && older(maker, i))
    }

    /// Stores the map, and makes a root. `content` is the last number of more than nodes: an interrupted attempt before this one does not count.
    fn finish(
        mut self,
        last: Order,
        content: u64,
        fields: Option<RecordFields>,
        mut report: RebuildReport,
    ) -> io::Result<RebuildReport> {
        let state = &mut self.state;
        let (mut end, mut mapped) = (0, 0);
        if let Some(main) = state.catalog.branches.get(&MAIN_BRANCH) {
            main.root.walk(&state.nodes(), &mut |_| Ok(true), &mut |block, e| {
                end = block.saturating_add(u64::from(e.blocks));
                mapped += u64::from(e.blocks) * BLOCK_BYTES as u64;
                Ok(())
            })?;
        }
        state.logical_bytes = match fields {
            Some(known) => known.logical_bytes,
            None => {
                self.lost.add("the size of the disk is lost: it ends behind the last block that was found".into());
                end.max(1).saturating_mul(BLOCK_BYTES as u64)
            }
        };
        if state.logical_bytes > LOGICAL_BYTES_MAX {
            return Err(corrupt("a batch has a block that is on no disk"));
        }
        let known = fields.map_or((1, 1), |known| (known.version, known.next_id));
        state.version = known.0.max(self.version.saturating_add(1)).min(COUNTER_MAX - 1);
        state.next_id = known.1.max(self.next_id).min(COUNTER_MAX - 1);
        let empty: Vec<SegmentId> = state.empty_segments().collect();
        empty.into_iter().for_each(|id| state.usage.remove(id));
        state.usage.removed.clear();
        begin(state, last, content)?;
        for at in state.put_together(true)? {
            self.lost.add(format!("what was written last to block {} is lost: it is what it was before", at.block));
        }
        // Only who knows what was written knows which holes are lost blocks.
        state.unmarked = true;
        state.checkpoint()?;
        // What cannot be discarded is free all the same.
        while state.store.discard_deleted().unwrap_or(true) {}
        for (_, line) in std::mem::take(&mut self.gone) {
            self.lost.add(line);
        }
        for branch in self.branches {
            self.lost.add(format!("what was written to branch {branch} is lost"));
        }
        if self.forwards {
            self.lost.add("there were snapshots; none of them is there any more".into());
        }
        report.mapped = mapped;
        report.logical_bytes = state.logical_bytes;
        report.lost = self.lost.lines;
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layouts::SegmentInfo;
    use crate::patch::Patch;
    use crate::store::MemoryStore;
    use crate::tree::NodeHead;

    /// Whether a patch still counts after another entry, of a batch that is known to be durable.
    fn counts_after(entry: &Entry) -> bool {
        counts_after_batch(2, entry)
    }

    /// The same of a batch with this number; the second is the last one that is known to be durable.
    fn counts_after_batch(number: u64, entry: &Entry) -> bool {
        let store = Arc::new(MemoryStore::new(16 << 20, 1 << 20, true));
        let mut maker = Maker::new(store, &LogOptions::default(), Lines::default(), 2);
        for segment in [1, 2] {
            let info = SegmentInfo { used: 1 << 20, ordinals: 256, live: 1 << 20, ..SegmentInfo::default() };
            maker.state.usage.table.insert(segment, info);
            maker.state.usage.live += info.live;
        }
        let at = Logical { branch: MAIN_BRANCH, block: 7 };
        let birth = |segment, ordinal| Birth { segment, ordinal };
        maker.apply_entry(1, &Entry::Write { at, version: 1, data: payload() }, birth(1, 0), 4096).unwrap();
        let patch = Patch { crc: 1, parts: vec![(0, vec![1])] };
        maker.apply_entry(1, &Entry::Patch { at, patch }, birth(1, 1), 0).unwrap();
        maker.apply_entry(number, entry, birth(2, 0), 4096).unwrap();
        !maker.state.patches.is_empty()
    }

    fn payload() -> Payload {
        Payload { codec: Codec::Plain, blocks: 1, stored: BLOCK_BYTES as u32, crcs: vec![5] }
    }

    #[test]
    fn patches_do_not_count_for_what_was_written_behind_them() {
        let at = Logical { branch: MAIN_BRANCH, block: 7 };
        let other = Logical { block: 8, ..at };
        let copy = |segment| Entry::Remap {
            at,
            version: 1,
            source: Birth { segment, ordinal: 0 },
            mapped: 1,
            data: payload(),
        };
        let head = NodeHead { tree: 1, level: 0, version: 1, key: [0; 28] };
        assert!(counts_after(&copy(1)), "the cleaner moves what is patched");
        assert!(!counts_after(&copy(9)), "what it has moved was written later, in a segment that is gone");
        assert!(!counts_after(&Entry::Node { head, crc: 0 }), "a checkpoint");
        let record = Entry::Record { stored: 100, crc: 0 };
        assert!(!counts_after(&record), "a checkpoint");
        assert!(counts_after_batch(3, &record), "a checkpoint that a crash may have ended");
        assert!(!counts_after(&Entry::Write { at, version: 2, data: payload() }));
        assert!(!counts_after(&Entry::Discard { at, blocks: 1 }));
        assert!(counts_after(&Entry::Write { at: other, version: 2, data: payload() }));
    }
}
