//! The cleaner: copies what lives out of segments that are mostly dead, so that they can be deleted.
//!
//! What only a branch refers to is mapped anew. What a snapshot refers to stays in the snapshot's map as it is: a forward
//! says where it is now. So cleaning costs the same with one snapshot and with ten thousand. Nodes that only one tree refers to are
//! brought into memory; the next checkpoint stores them elsewhere. What cannot be verified is not moved, and its segment stays.

use crate::batch::{Entry, Logical, STREAMS};
use crate::evacuate::{Evacuated, Move};
use crate::extent::{BLOCK_BYTES, Birth, Codec};
use crate::layouts::SegmentInfo;
use crate::log::{STREAM_NEW, STREAM_NODES};
use crate::options::CleanPolicy;
use crate::packer::Packer;
use crate::space::{Bounds, Change, Level};
use crate::state::State;
use crate::store::SegmentId;
use crate::tree::NODE_BYTES;
use cffs_device::{Purpose, Work};
use std::io;

/// Rounds without gain after which a writer gives up. A round may empty a segment only in part.
const STALLED_ROUNDS_MAX: u32 = 24;
/// Segments' worth of bytes that a round copies at most for somebody who waits.
const MANY_SEGMENTS: u64 = 8;
/// A round that gains less than this part of a segment is without gain.
const LEAST_GAIN: u64 = 32;
/// Most segments cleaned in one round.
const ROUND_SEGMENTS_MAX: usize = 32;
/// Most bytes copied in one round, which are in memory at once, and a segment's more.
const ROUND_BYTES_MAX: u64 = 32 << 20;

/// Which segments may be cleaned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// All of which something is dead.
    All,
    /// Not those of nodes, unless most of these are dead: nodes are stored anew by one of the next checkpoints, so a copy does not last.
    NotYoungNodes,
    /// Those that nobody needs any more as soon as what lives in them is elsewhere.
    FreeWhenMoved,
}

/// What a step of the cleaner did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Segments whose contents were moved, or a part of them.
    pub segments: usize,
    /// Bytes of data that were copied, as they are stored.
    pub copied: u64,
}

impl State {
    /// How much a segment deserves to be cleaned; `None` if nothing is to be gained.
    fn score(&self, policy: CleanPolicy, id: SegmentId, info: &SegmentInfo) -> Option<f64> {
        if self.log.is_open(id) || self.damaged.contains(&id) || self.poor.get(&id) == Some(&info.live) {
            return None;
        }
        let size = self.size_of(info);
        // A few blocks that died do not pay for the copy of the others.
        if info.live + size / 64 + BLOCK_BYTES as u64 > size {
            return None;
        }
        let u = info.live as f64 / size as f64;
        let age = (self.log.sequence - info.age.min(self.log.sequence)) as f64 + 1.0;
        Some(match policy {
            CleanPolicy::Greedy => 1.0 - u,
            CleanPolicy::CostBenefit => (1.0 - u) * age / (1.0 + u),
            CleanPolicy::Generations => (1.0 - u) * age.sqrt() / (u + 1.0 / 64.0),
        })
    }

    /// Bytes of the store that a segment takes.
    fn size_of(&self, info: &SegmentInfo) -> u64 {
        if self.store.can_append() { self.store.segment_bytes() } else { u64::from(info.used) }
    }

    /// Whether a segment is one of nodes of which many live.
    fn has_young_nodes(&self, info: &SegmentInfo) -> bool {
        info.stream == STREAM_NODES && info.live > self.size_of(info) / 2
    }

    /// The best segments, as long as what lives in them is not more than `budget` bytes, and not less than one.
    fn victims(&self, policy: CleanPolicy, budget: u64, which: Which) -> Vec<SegmentId> {
        let scored = self
            .usage
            .table
            .iter()
            .filter(|(id, info)| match which {
                Which::All => true,
                Which::NotYoungNodes => !self.has_young_nodes(info),
                Which::FreeWhenMoved => self.is_free_when_moved(**id, info),
            })
            .filter_map(|(id, info)| Some((self.score(policy, *id, info)?, *id, info.live)));
        let mut scored: Vec<(f64, SegmentId, u64)> = scored.collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut left = budget;
        let mut chosen = Vec::new();
        for (_, id, live) in scored {
            if live == 0 {
                continue; // the next checkpoint deletes it
            }
            if live > left && !chosen.is_empty() || chosen.len() >= ROUND_SEGMENTS_MAX {
                break;
            }
            left = left.saturating_sub(live);
            chosen.push(id);
        }
        chosen
    }

    /// Moves what lives in the best segments, within bounds. They are deleted by the next checkpoint.
    pub(crate) fn clean_round(&mut self, policy: CleanPolicy, bounds: Bounds, which: Which) -> io::Result<CleanReport> {
        self.clean_some(policy, bounds, which).map(|(report, _)| report)
    }

    /// Whether nobody needs a segment any more as soon as what lives in it is elsewhere, and that is durable: the last checkpoint refers to no
    /// node in it, and recovery reads no batch of it. It knows from the batches behind the checkpoint that nothing is mapped there.
    pub(crate) fn is_free_when_moved(&self, id: SegmentId, info: &SegmentInfo) -> bool {
        info.stream != STREAM_NODES && !self.usage.fresh.contains(&id)
    }

    /// Moves what lives in the best segments, and deletes them, without a checkpoint.
    fn clean_at_once(&mut self, bounds: Bounds) -> io::Result<()> {
        let (moved, emptied) = self.clean_some(self.options.policy, bounds, Which::FreeWhenMoved)?;
        if moved.segments == 0 {
            return Ok(());
        }
        let _purpose = Purpose::Clean.scope();
        let failed = self.flush_failed.clone();
        let mut failed = failed.lock();
        let result = if *failed { Err(io::Error::other("a flush has failed")) } else { self.store.flush() };
        *failed |= result.is_err();
        drop(failed);
        self.flushed(self.log.sequence - 1, result)?;
        let lives = |id: &SegmentId| self.usage.table.get(id).is_none_or(|info| info.live > 0);
        self.delete(emptied.into_iter().filter(|id| !lives(id)).collect());
        Ok(())
    }

    /// Whether a checkpoint saves more bytes of copies than it takes itself; and whether it does so alone, without a round of the cleaner before it.
    /// To gain a byte from a segment of which a share u lives, u / (1 - u) are copied. A checkpoint gives segments back in which nothing lives,
    /// and those can be cleaned with one that must wait for it, as those of nodes and those that were written since the last one.
    fn checkpoint_pays(&self, bytes: u64) -> (bool, bool) {
        let cost = |live: u64, size: u64| live as f64 / (size - live).max(1) as f64;
        let of = |ids: Vec<SegmentId>| {
            let infos = ids.iter().filter_map(|id| self.usage.table.get(id));
            infos.fold((0, 0), |(live, size), info| (live + info.live, size + self.size_of(info)))
        };
        let (live, size) = of(self.victims(CleanPolicy::Greedy, bytes, Which::FreeWhenMoved));
        if size == 0 {
            return (true, self.empty_segments().next().is_some());
        }
        let now = cost(live, size);
        let waits = |id: &SegmentId, info: &SegmentInfo| {
            !self.log.is_open(*id)
                && !self.damaged.contains(id)
                && (info.live == 0 || !self.is_free_when_moved(*id, info) && !self.has_young_nodes(info))
                && info.live < self.size_of(info)
        };
        let saved = |info: &SegmentInfo| {
            let size = self.size_of(info);
            ((now - cost(info.live, size)) * (size - info.live) as f64).max(0.0)
        };
        let (mut all, mut alone) = (0.0, 0.0);
        for (_, info) in self.usage.table.iter().filter(|(id, info)| waits(id, info)) {
            all += saved(info);
            alone += if info.live == 0 { saved(info) } else { 0.0 };
        }
        // The room that it takes costs copies as well.
        let takes = self.checkpoint_nodes() as f64 * NODE_BYTES as f64 * (1.0 + now);
        (all > takes, alone > takes)
    }

    /// Moves what lives in the best segments, within bounds. Returns which of those that are free then were emptied.
    fn clean_some(
        &mut self,
        policy: CleanPolicy,
        bounds: Bounds,
        which: Which,
    ) -> io::Result<(CleanReport, Vec<SegmentId>)> {
        self.check()?;
        let _purpose = Purpose::Clean.scope();
        let bounds = bounds.at_most(ROUND_BYTES_MAX);
        // What could not be noted as dead would be taken for alive.
        let noted = self.usage.apply_dead(&*self.store, &self.cache, &mut self.dirtied);
        self.fatal(noted)?;
        let mut report = CleanReport::default();
        let mut ages = [(0u128, 0u128); 3];
        let mut by_stream: [Evacuated; 3] = Default::default();
        let (mut bytes, mut changes) = (0, 0);
        let mut emptied = Vec::new();
        for id in self.victims(policy, bounds.bytes, which) {
            let info = self.usage.table.get(&id).copied().unwrap_or_default();
            let stream = match self.options.policy {
                CleanPolicy::Generations => info.stream.saturating_add(1).min(2),
                CleanPolicy::CostBenefit => 1,
                CleanPolicy::Greedy => STREAM_NEW,
            };
            let stream = usize::from(if info.stream == STREAM_NODES { 1 } else { stream.min(2) });
            let mut out = Evacuated::default();
            let left = Bounds { bytes: bounds.bytes - bytes, changes: bounds.changes - changes };
            let whole = match self.evacuate(id, &info, &mut out, left) {
                Ok(whole) => whole,
                Err(_) => {
                    // Unless the accounting is wrong, it is only this segment.
                    self.check()?;
                    // What could be read is not moved either: a half empty segment is as long as a full one.
                    self.damaged.insert(id);
                    continue;
                }
            };
            let size = self.size_of(&info);
            if whole && out.bytes + size / 64 + BLOCK_BYTES as u64 > size {
                // Units of which parts live take more than the parts account for.
                self.poor.insert(id, info.live);
                continue;
            }
            (bytes, changes) = (bytes + out.bytes, changes + out.changes);
            report.segments += 1;
            if which == Which::FreeWhenMoved && whole && !out.had_nodes {
                emptied.push(id);
            }
            let (sum, live) = &mut ages[stream];
            *sum += u128::from(info.age) * u128::from(info.live);
            *live += u128::from(info.live);
            by_stream[stream].moves.append(&mut out.moves);
            by_stream[stream].nodes.append(&mut out.nodes);
            if bytes >= bounds.bytes || changes >= bounds.changes {
                break;
            }
        }
        for (stream, out) in by_stream.into_iter().enumerate() {
            // What is copied stays as old as it was, or nothing would ever be known to be old.
            let (sum, live) = ages[stream];
            report.copied += self.write_copies(stream as u8, sum.checked_div(live).map(|age| age as u64), out)?;
        }
        self.cleaned += report.copied;
        Ok((report, emptied))
    }

    /// Writes what was taken out of segments elsewhere, in logical order. Returns the bytes.
    pub(crate) fn write_copies(&mut self, stream: u8, age: Option<u64>, mut out: Evacuated) -> io::Result<u64> {
        out.moves.sort_by_key(|m| (m.at, m.version));
        let mut packer = Packer::new(stream, age);
        let mut copied = 0;
        for m in out.moves {
            copied += m.data.len() as u64;
            let r = self.pack(&mut packer, &m);
            self.fatal(r)?;
        }
        for n in out.nodes {
            copied += n.data.len() as u64;
            let entry = Entry::ForwardNode { head: n.head, birth: n.birth, crc: n.crc };
            let r = packer.add(self, entry, &n.data);
            self.fatal(r)?;
        }
        let r = packer.finish(self);
        self.fatal(r)?;
        Ok(copied)
    }

    fn pack(&mut self, packer: &mut Packer, m: &Move) -> io::Result<()> {
        let entry = |skip: u32, data: crate::batch::Payload| {
            let at = Logical { branch: m.at.branch, block: m.at.block + u64::from(skip) };
            match m.forward {
                Some(b) => {
                    let birth = Birth { segment: b.segment, ordinal: b.ordinal + skip };
                    let bytes = m.place.part(skip, data.blocks).share(data.blocks) as u32;
                    Entry::Forward { at, version: m.version, birth, bytes, data }
                }
                None => {
                    let source = Birth { segment: m.source.segment, ordinal: m.source.ordinal + skip };
                    Entry::Remap { at, version: m.version, source, mapped: m.mapped, data }
                }
            }
        };
        if m.payload.codec == Codec::Plain {
            packer.add_plain(self, &m.data, &entry)
        } else {
            packer.add(self, entry(0, m.payload.clone()), &m.data)
        }
    }

    /// Bytes that can be written: free segments, and what the open ones have left.
    fn room(&self) -> u64 {
        let left = (0..STREAMS as u8).map(|stream| self.log.left(stream, &*self.store));
        self.store.available() + left.sum::<u64>()
    }

    /// Sees to it that there are free segments for a change: cleans if it must.
    ///
    /// # Errors
    /// `StorageFull` if that does not help.
    pub(crate) fn ensure_room(&mut self, change: Change, level: Level) -> io::Result<()> {
        let full = || io::Error::new(io::ErrorKind::StorageFull, "the log disk is full");
        if self.store.available() >= self.need(change, level) {
            return Ok(());
        }
        self.write_patched()?;
        // Cleaning has just been tried in vain.
        let now = |s: &State| (s.log.sequence, s.usage.live, s.usage.newly_dead.len());
        if self.in_vain == Some(now(self)) {
            return Err(full());
        }
        let observed = self.observed.clone();
        let _clean = observed.work_for_all(Work::Clean);
        let segment = self.store.segment_bytes();
        // No more at a time than is lacking, because of what is left for later more will have died; many where a few gain nothing.
        let mut least = 1;
        let mut after_checkpoint = 0;
        // A checkpoint stores all nodes that have changed, so it had better be for many rounds.
        while self.store.available() < self.need(change, level) {
            // Segments that are given back without a checkpoint must be empty after a crash, too.
            if self.is_dirty() || self.freed_by_steps.is_some() {
                self.checkpoint()?;
                // The rounds since the last one may have gained no more than it takes.
                if self.is_dirty() || self.room() <= after_checkpoint {
                    break;
                }
                after_checkpoint = self.room();
                continue;
            }
            let Some(bounds) = self.round_bounds() else { break };
            let lacking = self.need(change, level).saturating_sub(self.store.available());
            let few = (lacking / segment).clamp(least, MANY_SEGMENTS);
            let (some, many) = (bounds.at_most(few * segment), bounds.at_most(MANY_SEGMENTS * segment));
            let before = self.room();
            match self.checkpoint_pays(some.bytes) {
                (_, true) => self.checkpoint()?,
                (true, false) => {
                    self.clean_round(self.options.policy, many, Which::NotYoungNodes)?;
                    self.checkpoint()?;
                }
                (false, false) => self.clean_at_once(some)?,
            }
            if self.room() < before + segment / LEAST_GAIN {
                if least == MANY_SEGMENTS {
                    break;
                }
                least = MANY_SEGMENTS;
            }
        }
        if self.store.available() >= self.need(change, level) {
            return Ok(());
        }
        if self.dirtied > 0 || self.empty_segments().next().is_some() {
            self.checkpoint()?;
        }
        let (mut best, mut stalled) = (self.store.available(), 0);
        while self.store.available() < self.need(change, level) {
            let Some(bounds) = self.round_bounds() else { break };
            let damaged = self.damaged.len() + self.poor.len();
            let roomy = stalled == 0 && bounds.bytes >= 2 * segment;
            let policy = if roomy { self.options.policy } else { CleanPolicy::Greedy };
            let moved = self.clean_round(policy, bounds.at_most(MANY_SEGMENTS * segment), Which::All)?;
            if moved.segments == 0 && self.damaged.len() + self.poor.len() > damaged {
                continue;
            }
            self.checkpoint()?;
            stalled = if self.store.available() > best { 0 } else { stalled + 1 };
            best = best.max(self.store.available());
            if moved.segments == 0 || stalled > STALLED_ROUNDS_MAX {
                break;
            }
        }
        if self.store.available() >= self.need(change, level) {
            return Ok(());
        }
        self.in_vain = Some(now(self));
        Err(full())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::MAIN_BRANCH;
    use crate::disk::LogDisk;
    use crate::options::LogOptions;
    use crate::rebuild::{rebuild, recover_image};
    use crate::recovery;
    use crate::store::{ImageOptions, ImageStore, MemoryStore};
    use cffs_device::{Device, IoKind, MemoryDevice};
    use std::sync::Arc;

    /// Room is given out anew that the last checkpoint says is taken. Whatever a crash leaves, all that was flushed is there.
    #[test]
    fn what_was_emptied_is_free_without_a_checkpoint_and_after_a_crash_all_is_there() {
        let crashes = overwritten(2, false);
        assert!(crashes >= 5, "{crashes} times room was given out anew");
    }

    /// What the snapshot has is where the forwards say, although its segment is in the table again.
    #[test]
    fn after_a_crash_a_snapshot_has_what_was_moved_out_of_segments_that_are_free() {
        let crashes = overwritten(5, true);
        assert!(crashes >= 3, "{crashes} times room was given out anew");
    }

    /// Overwrites blocks at random that fill one in so many parts of a disk, perhaps beside a snapshot. Whenever room was given out anew without a checkpoint, a
    /// crash is looked at. Returns how often.
    fn overwritten(part: u64, with_snapshot: bool) -> u32 {
        const SEGMENT: u64 = 128 << 10;
        let image = ImageOptions { uuid: [7; 16], slot_bytes: SEGMENT };
        let device = Arc::new(MemoryDevice::new(257 * SEGMENT));
        let store = Arc::new(ImageStore::format(device.clone(), &image).unwrap());
        let options = LogOptions { batch_bytes: 112 << 10, policy: CleanPolicy::Greedy, ..LogOptions::default() };
        let disk = LogDisk::format(store, 1 << 30, &options).unwrap();
        let blocks = 256 * SEGMENT / BLOCK_BYTES as u64 / part;
        let at = |block: u64| block * BLOCK_BYTES as u64;
        let mut model = vec![0u8; blocks as usize];
        let mut random = fastrand::Rng::with_seed(1);
        // The root, how many segments have been deleted behind it, and the number of the batch when one more was.
        let mut seen = (0, 0, 0);
        let mut crashes = 0;
        let mut snapshot = None;
        for n in 0..8 * blocks {
            let block = if n < blocks { n } else { random.u64(0..blocks) };
            model[block as usize] = random.u8(1..);
            disk.write_at(IoKind::Data, at(block), &[model[block as usize]; BLOCK_BYTES]).unwrap();
            if n % 16 > 0 {
                continue;
            }
            if with_snapshot && n >= 2 * blocks && snapshot.is_none() {
                snapshot = Some((disk.snapshot(MAIN_BRANCH, "one").unwrap(), model.clone()));
            }
            disk.flush().unwrap();
            let (root, removed, batch) = {
                let state = disk.lock();
                (state.log.root.sequence, state.usage.removed.len(), state.log.sequence)
            };
            if root != seen.0 || removed > seen.1 {
                seen = (root, removed, if root == seen.0 { batch.min(seen.2) } else { u64::MAX });
            }
            // By now another segment is where the deleted one was; beside a snapshot, none yet, and its bytes are gone.
            let waits = if with_snapshot { 0 } else { 8 };
            if batch.saturating_sub(seen.2) < waits || seen.2 > batch || crashes >= 12 {
                continue;
            }
            (crashes, seen.2) = (crashes + 1, u64::MAX);
            let copy = Arc::new(MemoryDevice::new(device.len()));
            let mut bytes = vec![0; device.len() as usize];
            device.read_at(IoKind::Data, 0, &mut bytes).unwrap();
            copy.write_at(IoKind::Data, 0, &bytes).unwrap();
            for read_only in [true, false] {
                let store = Arc::new(ImageStore::open(copy.clone()).unwrap());
                let again = LogDisk::open(store, &LogOptions { read_only, ..options.clone() }).unwrap();
                let mut data = vec![0; BLOCK_BYTES];
                for (block, value) in model.iter().enumerate() {
                    again.read_at(IoKind::Data, at(block as u64), &mut data).unwrap();
                    assert!(data.iter().all(|b| b == value), "block {block} after {n} writes");
                }
                if let Some((id, was)) = &snapshot {
                    let snapshot = again.open_snapshot(*id).unwrap();
                    for (block, value) in was.iter().enumerate() {
                        snapshot.read_at(IoKind::Data, at(block as u64), &mut data).unwrap();
                        assert!(data.iter().all(|b| b == value), "block {block} of the snapshot after {n} writes");
                    }
                }
                let wrong = again.check(true).unwrap();
                assert!(wrong.is_empty(), "{wrong:?}");
            }
            // The same without superblocks: a rebuild knows as well which of two segments in a slot is the later one.
            let lost = Arc::new(MemoryDevice::new(device.len()));
            lost.write_at(IoKind::Data, 0, &bytes).unwrap();
            lost.write_at(IoKind::Super, 0, &[0; 128 << 10]).unwrap();
            let report = rebuild(Arc::new(recover_image(lost.clone()).unwrap()), &options).unwrap();
            assert!(report.from_checkpoint, "{report:?}");
            let again = LogDisk::open(Arc::new(ImageStore::open(lost).unwrap()), &options).unwrap();
            let mut data = vec![0; BLOCK_BYTES];
            for (block, value) in model.iter().enumerate() {
                again.read_at(IoKind::Data, at(block as u64), &mut data).unwrap();
                assert!(data.iter().all(|b| b == value), "block {block} after {n} writes, rebuilt");
            }
            assert!(again.check(true).unwrap().is_empty());
        }
        crashes
    }

    #[test]
    fn policies_weigh_what_lives_and_how_old_it_is() {
        let store = Arc::new(MemoryStore::new(1 << 30, 1 << 20, true));
        let mut state = recovery::format(store, 1 << 30, &LogOptions::default()).unwrap();
        state.log.sequence = 1_000_000;
        let (old, young) = (1 << 40, (1 << 40) + 1);
        for (id, age, live) in [(old, 1, 900 << 10), (young, 999_990, 300 << 10)] {
            let info = SegmentInfo { used: 1 << 20, ordinals: 256, live, age, ..SegmentInfo::default() };
            state.usage.table.insert(id, info);
        }
        let info =
            SegmentInfo { used: 1 << 20, ordinals: 256, live: 350 << 10, age: 500_000, ..SegmentInfo::default() };
        state.usage.table.insert(old + 2, info);
        let all = [CleanPolicy::Greedy, CleanPolicy::CostBenefit, CleanPolicy::Generations];
        let chosen = all.map(|policy| state.victims(policy, 1 << 30, Which::All));
        assert_eq!(chosen, [[young, old + 2, old], [old + 2, old, young], [old + 2, old, young]]);
        // Full ones, not however old they are.
        state.log.sequence = 10_000;
        let ages = [(old, 1), (young, 9_000), (old + 2, 8_000)];
        for (id, age) in ages {
            state.usage.table.entry(id).and_modify(|info| info.age = age);
        }
        let chosen = all.map(|policy| state.victims(policy, 1 << 30, Which::All));
        assert_eq!(chosen, [[young, old + 2, old], [old + 2, old, young], [old + 2, young, old]]);
    }
}
