//! What all devices of a log disk do: reading, accepting writes, flushing.

use crate::around::Around;
use crate::batch::Logical;
use crate::catalog::MAIN_BRANCH;
use crate::covered::Covered;
use crate::extent::{BLOCK_BYTES, SECTOR_BYTES};
use crate::options::Compression;
use crate::read::{Piece, Reader, fetch_pieces, together};
use crate::recent::Again;
use crate::reserved::Reserved;
use crate::space::{BLOCK_COST, Change, Level, Space};
use crate::state::State;
use crate::store::SegmentStore;
use cffs_device::{DeviceSpace, DiskStats, IoKind, Observed, Observer, Purpose, ReadRequest, Work, WriteRequest};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Blocks of a plain write that are soon written again, as those are that a small file has a part of.
const FEW_BLOCKS: usize = 32;

/// What the devices of a log disk share.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Held by who flushes the store; taken before the state.
    pub(crate) flushing: Mutex<()>,
    /// That of the state, without its lock, and taken after it by who has both.
    pub(crate) flush_failed: Arc<Mutex<bool>>,
    /// That of the state, without its lock.
    observed: RwLock<Observed>,
    /// Held by who tells the device of deleted segments; nobody waits for it.
    discarding: Mutex<()>,
    /// The lock of the same name in the state, without it.
    pub(crate) readers: Arc<RwLock<()>>,
    pub(crate) store: Arc<dyn SegmentStore>,
    /// That of the state, without its lock.
    around: Arc<Around>,
    /// That of the state, without its lock, and taken after it by who has both.
    reserved: Arc<Reserved>,
    pub(crate) len: u64,
    /// Bytes that are accepted at once: what stays free is for as many, wherever their blocks are.
    pub(crate) atomic_max: usize,
    /// What was true when the state was let go. Who only wants to know the space does not wait for requests to the store, which are made
    /// with the state locked.
    known: Mutex<Known>,
}

/// What can be known of the space without the state. Whoever has written something was promised the space until the write has ended, so until
/// then it may be missing here.
#[derive(Clone, Copy)]
struct Known {
    space: Space,
    /// What is written to the main branch over something takes space.
    keeps_old: bool,
}

impl Known {
    fn of(state: &State) -> Self {
        // A block that was compressed has less space than the one that is written over it may take.
        let compresses = state.options.compression != Compression::None;
        let keeps_old = compresses || state.catalog.branches.get(&MAIN_BRANCH).is_none_or(|b| b.floor > 0);
        Known { space: state.space(), keeps_old }
    }
}

/// The state, locked. What has changed is known when it is let go.
pub(crate) struct StateGuard<'a> {
    state: MutexGuard<'a, State>,
    known: &'a Mutex<Known>,
    changed: bool,
    /// Dropped after the lock.
    then: Discards<'a>,
}

/// What is done of itself when the state was let go: the device learns which segments were deleted. That takes requests, for which only one thread
/// waits.
struct Discards<'a> {
    shared: &'a Shared,
    wanted: bool,
}

impl Drop for Discards<'_> {
    fn drop(&mut self) {
        if self.wanted {
            self.shared.discard_deleted();
        }
    }
}

impl Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.changed = true;
        &mut self.state
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        if self.changed {
            *self.known.lock() = Known::of(&self.state);
            self.then.wanted = true;
        }
    }
}

/// Refuses what is not in whole sectors or leaves the disk.
fn check_range(len: u64, offset: u64, bytes: usize, kind: io::ErrorKind) -> io::Result<()> {
    let mask = u64::from(SECTOR_BYTES) - 1;
    if (offset | bytes as u64) & mask != 0 {
        let what = format!("{bytes} bytes at offset {offset} are not whole sectors of {SECTOR_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    if offset.checked_add(bytes as u64).is_none_or(|end| end > len) {
        return Err(io::Error::new(kind, format!("{bytes} bytes at offset {offset} are beyond the end at {len}")));
    }
    Ok(())
}

/// Bytes to write at an offset.
type Slice<'a> = (u64, &'a [u8]);

/// What requests write.
fn slices<'a>(requests: &'a [WriteRequest<'_>]) -> impl Iterator<Item = Slice<'a>> {
    requests.iter().flat_map(|r| {
        r.bufs.iter().scan(r.offset, |at, buf| {
            let from = *at;
            *at += buf.len() as u64;
            Some((from, &**buf))
        })
    })
}

fn total(bufs: &[IoSlice<'_>]) -> usize {
    bufs.iter().map(|b| b.len()).sum()
}

/// Finds the pieces of so many blocks from one on.
type FindPieces<'a> = &'a dyn Fn(&State, u64, u64) -> io::Result<Vec<Piece>>;

/// The first block of a range, and the one behind its last.
fn blocks_of(offset: u64, bytes: usize) -> (u64, u64) {
    let (first, end) = (offset / BLOCK_BYTES as u64, (offset + bytes as u64).div_ceil(BLOCK_BYTES as u64));
    (first, if bytes == 0 { first } else { end })
}

impl Shared {
    pub(crate) fn new(state: State) -> Self {
        let (readers, store, len) = (state.readers.clone(), state.store.clone(), state.logical_bytes);
        let (flush_failed, around) = (state.flush_failed.clone(), state.around.clone());
        let reserved = state.reserved.clone();
        let (known, atomic_max) = (Mutex::new(Known::of(&state)), state.atomic_max());
        let (state, flushing) = (Mutex::new(state), Mutex::new(()));
        let (observed, discarding) = Default::default();
        Shared {
            state,
            flushing,
            flush_failed,
            observed,
            discarding,
            readers,
            store,
            around,
            reserved,
            len,
            atomic_max,
            known,
        }
    }

    pub(crate) fn lock(&self) -> StateGuard<'_> {
        let then = Discards { shared: self, wanted: false };
        StateGuard { state: self.state.lock(), known: &self.known, changed: false, then }
    }

    /// Tells the device which segments were deleted. The state is not locked.
    pub(crate) fn discard_deleted(&self) {
        if !self.store.has_deleted() {
            return;
        }
        // One thread does that at a time, also for the others. What comes when it has just ended is for the next.
        let Some(_one) = self.discarding.try_lock() else { return };
        // As the checkpoint that deleted them.
        let _purpose = (Purpose::current() != Purpose::Clean).then(|| Purpose::Checkpoint.scope());
        let observed = self.observed.read().clone();
        let _work = observed.work_for_all(Work::Checkpoint);
        let mut failed = 0;
        loop {
            match self.store.discard_deleted() {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => failed += 1,
            }
        }
        if failed > 0 {
            self.state.lock().failed_discards += failed;
        }
    }

    /// Reads a range whose pieces `find` tells.
    pub(crate) fn read(&self, offset: u64, bufs: &mut [IoSliceMut<'_>], find: FindPieces<'_>) -> io::Result<()> {
        let bytes: usize = bufs.iter().map(|b| b.len()).sum();
        let data = self.read_all(&[(offset, bytes)], find)?;
        if bytes == 0 {
            return Ok(());
        }
        let mut rest = &data[(offset % BLOCK_BYTES as u64) as usize..];
        for buf in bufs {
            let (head, tail) = rest.split_at(buf.len());
            buf.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    pub(crate) fn read_batch(&self, requests: &mut [ReadRequest<'_>], find: FindPieces<'_>) -> io::Result<()> {
        let ranges: Vec<(u64, usize)> = requests.iter().map(|r| (r.offset, r.buf.len())).collect();
        let data = self.read_all(&ranges, find)?;
        let mut rest = &data[..];
        for r in requests {
            let (first, end) = blocks_of(r.offset, r.buf.len());
            let (blocks, tail) = rest.split_at((end - first) as usize * BLOCK_BYTES);
            if let n @ 1.. = r.buf.len() {
                r.buf.copy_from_slice(&blocks[(r.offset - first * BLOCK_BYTES as u64) as usize..][..n]);
            }
            rest = tail;
        }
        Ok(())
    }

    /// The blocks of some ranges, one after the other. What is stored of them comes in one go.
    fn read_all(&self, ranges: &[(u64, usize)], find: FindPieces<'_>) -> io::Result<Vec<u8>> {
        for (offset, bytes) in ranges {
            check_range(self.len, *offset, *bytes, io::ErrorKind::UnexpectedEof)?;
        }
        let state = self.lock();
        let (mut pieces, mut blocks) = (Vec::new(), 0);
        for (offset, bytes) in ranges {
            let (first, end) = blocks_of(*offset, *bytes);
            if end > first {
                pieces.extend(find(&state, first, end - first)?.into_iter().map(|p| p.behind(blocks)));
            }
            blocks += (end - first) as usize;
        }
        let used = state.used_of(&pieces);
        // Taken before the state is let go: no segment that was found is deleted in between.
        let _reading = self.readers.read();
        drop(state);
        let mut data = vec![0; blocks * BLOCK_BYTES];
        fetch_pieces(&Reader { store: &*self.store, around: &self.around, used }, pieces, &mut data)?;
        Ok(data)
    }

    /// See [`cffs_device::Device::is_rotational`].
    pub(crate) fn is_rotational(&self) -> bool {
        self.store.is_rotational()
    }

    /// See [`cffs_device::Device::note_group`]. Of a group of nodes half suffices: they are close together.
    pub(crate) fn note_group(&self, bytes: u64) {
        let has_arm = self.is_rotational();
        self.around.set_chunk(bytes, has_arm);
        self.state.lock().cache.lock().around().set_chunk(bytes / 2, has_arm);
    }

    /// See [`Device::together`]; what is not known is together.
    pub(crate) fn together(&self, offset: u64, range: Range<u64>, find: FindPieces<'_>) -> Range<u64> {
        let end = range.end.min(self.len);
        if range.start >= end || !(range.start..end).contains(&offset) {
            return range;
        }
        let (first, behind) = blocks_of(range.start, (end - range.start) as usize);
        let Ok(pieces) = find(&self.lock(), first, behind - first) else { return range };
        let here = together(pieces, (offset / BLOCK_BYTES as u64 - first) as usize);
        let at = |block: usize| (first + block as u64) * BLOCK_BYTES as u64;
        here.start.map_or(range.start, at).max(range.start)..here.end.map_or(range.end, at).min(range.end)
    }

    /// See [`Device::bring_together`]. A part at a time, so that nobody waits for all of it. What lies in order stays, and what cannot be found.
    pub(crate) fn bring_together(&self, branch: u32, ranges: &[Range<u64>]) -> io::Result<u64> {
        let blocks = |range: &Range<u64>| {
            let end = range.end.min(self.len);
            let (first, behind) = blocks_of(range.start.min(end), end.saturating_sub(range.start) as usize);
            first..behind
        };
        let ranges: Vec<Range<u64>> = ranges.iter().map(blocks).collect();
        let parts = {
            let mut state = self.lock();
            // What waits to be written whole lies nowhere yet.
            let waits = ranges.iter().any(|r| !state.pending.with_blocks(branch, r.clone(), &[]).is_empty());
            if let Err(e) = if waits { state.seal() } else { Ok(()) } {
                return if e.kind() == io::ErrorKind::StorageFull { Ok(0) } else { Err(e) };
            }
            let Ok(parts) = state.cut_up(branch, &ranges) else { return Ok(0) };
            if state.is_in_order(branch, &parts.concat()).unwrap_or(true) {
                return Ok(0);
            }
            // All at once, so that nothing comes between.
            if let Err(e) = state.make_room_for(ranges.iter().map(|r| r.end - r.start).sum()) {
                return if e.kind() == io::ErrorKind::StorageFull { Ok(0) } else { Err(e) };
            }
            parts
        };
        let mut copied = 0;
        for part in parts {
            copied += self.lock().bring_together(branch, &part)?;
        }
        Ok(copied)
    }

    /// Accepts requests one piece after the other, none of which touches more blocks than a batch has.
    pub(crate) fn write(&self, branch: u32, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.check_ranges(requests)?;
        // A superblock is as important as what an atomic write has.
        let kept = if requests.iter().all(|r| r.kind == IoKind::Super) { 0 } else { self.kept_for_atomic() };
        // So that batches end with segments.
        let until_full = || self.lock().blocks_to_take().min(self.atomic_max / BLOCK_BYTES);
        let mut most = until_full();
        let (mut some, mut blocks): (Vec<Slice<'_>>, usize) = (Vec::new(), 0);
        // The block that the last piece ends in: the next part of it is not one more.
        let mut last = None;
        for (mut at, mut bytes) in slices(requests) {
            while !bytes.is_empty() {
                let mut again = usize::from(last == Some(at / BLOCK_BYTES as u64));
                if blocks - again == most {
                    self.accept(branch, &some, kept)?;
                    (some, blocks, most, again) = (Vec::new(), 0, until_full(), 0);
                }
                blocks -= again;
                let within = (at % BLOCK_BYTES as u64) as usize;
                let part = bytes.len().min((most - blocks) * BLOCK_BYTES - within);
                some.push((at, &bytes[..part]));
                blocks += (within + part).div_ceil(BLOCK_BYTES);
                last = (at + part as u64).checked_sub(1).map(|end| end / BLOCK_BYTES as u64);
                (at, bytes) = (at + part as u64, &bytes[part..]);
            }
        }
        self.accept(branch, &some, kept)
    }

    /// Accepts all requests or none.
    pub(crate) fn write_atomic(&self, branch: u32, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.check_ranges(requests)?;
        let pieces: Vec<Slice<'_>> = slices(requests).collect();
        self.accept(branch, &pieces, 0)
    }

    /// Bytes that other writes leave to one atomic write: whoever makes those has nothing else to turn to.
    fn kept_for_atomic(&self) -> u64 {
        (self.atomic_max / BLOCK_BYTES) as u64 * BLOCK_COST
    }

    fn check_ranges(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        requests.iter().try_for_each(|r| check_range(self.len, r.offset, total(&r.bufs), io::ErrorKind::InvalidInput))
    }

    /// Accepts all pieces or none, which leave so many bytes free if they take any.
    fn accept(&self, branch: u32, pieces: &[Slice<'_>], kept: u64) -> io::Result<()> {
        let block = BLOCK_BYTES as u64;
        let touched = pieces.iter().flat_map(|(at, bytes)| at / block..(at + bytes.len() as u64).div_ceil(block));
        let mut blocks: Vec<u64> = touched.collect();
        blocks.sort_unstable();
        blocks.dedup();
        let mut state = self.lock();
        state.check()?;
        if state.catalog.branches.get(&branch).is_none_or(|b| b.deleting) {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no branch {branch}")));
        }
        // The metadata of a file system.
        let atomic = kept == 0;
        if atomic {
            // Nobody was promised what it takes.
            let known = &mut self.known.lock().space;
            known.free = known.free.saturating_sub(blocks.len() as u64 * BLOCK_COST);
        }
        state.admit(branch, &blocks, kept)?;
        // Blocks that are written in parts are read before anything is changed, because that can fail.
        let covered = Covered::by(pieces.iter().map(|(at, bytes)| (*at, bytes.len())));
        let again = if atomic { Again::Commit } else { Again::Part };
        let is_again = atomic || blocks.len() <= FEW_BLOCKS;
        let mut changed: BTreeMap<u64, Box<[u8]>> = state.rests_of(branch, covered.in_part())?;
        for (mut at, mut bytes) in pieces.iter().copied() {
            state.accepted += bytes.len() as u64;
            while !bytes.is_empty() {
                let (number, within) = (at / block, (at % block) as usize);
                let (part, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - within));
                if part.len() == BLOCK_BYTES {
                    changed.insert(number, part.into());
                } else {
                    let target = match changed.entry(number) {
                        Entry::Occupied(o) => o.into_mut(),
                        // The pieces have all of it together, or its rest would be here.
                        Entry::Vacant(v) => v.insert([0; BLOCK_BYTES].into()),
                    };
                    target[within..within + part.len()].copy_from_slice(part);
                }
                (at, bytes) = (at + part.len() as u64, rest);
            }
        }
        // Before any of them takes the place of another.
        let bases: Vec<_> = changed.keys().map(|block| state.recent.take(Logical { branch, block: *block })).collect();
        for ((number, data), was) in changed.into_iter().zip(bases) {
            let at = Logical { branch, block: number };
            if is_again || !covered.is_whole(number) {
                state.recent.put(at, data.clone(), again);
            }
            state.pending.write(at, data, was);
        }
        state.note_pending(pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum());
        // What was accepted stays accepted. If the batch cannot be ended now, a flush will say so. Behind an atomic write mostly comes one.
        if atomic { Ok(()) } else { state.seal_if_long() }
    }

    /// The space for a branch, without waiting for anybody.
    pub(crate) fn device_space(&self, branch: u32) -> DeviceSpace {
        let Known { space, keeps_old } = *self.known.lock();
        // Other branches began as a snapshot.
        let keeps_old = keeps_old || branch != MAIN_BRANCH;
        let (unit, unit_cost) = (BLOCK_BYTES as u64, BLOCK_COST);
        let free = space.free.saturating_sub(self.reserved.of_others(branch));
        DeviceSpace { total: space.usable, free, unit, unit_cost, keeps_old, keeps_room: branch == MAIN_BRANCH }
    }

    /// See [`cffs_device::Device::reserve`].
    pub(crate) fn reserve(&self, branch: u32, bytes: u64, or_less: bool) -> bool {
        self.reserved.set(branch, bytes, or_less, || self.known.lock().space.free)
    }

    /// Nobody writes to a branch any more.
    pub(crate) fn end_reservation(&self, branch: u32) {
        self.reserved.end(branch);
    }

    pub(crate) fn checkpoint(&self) -> io::Result<()> {
        self.store_all(|state| if state.is_stored() { state.check() } else { state.checkpoint() })
    }

    fn store_all(&self, how: impl Fn(&mut State) -> io::Result<()>) -> io::Result<()> {
        let mut state = self.lock();
        state.seal()?;
        if !state.is_stored() {
            state.ensure_room(Change::default(), Level::Accepted)?;
        }
        how(&mut state)
    }

    /// See [`cffs_device::Device::observe`].
    pub(crate) fn observe(&self, observer: &Arc<dyn Observer>) {
        let observed = Observed::by(observer);
        *self.observed.write() = observed.clone();
        self.lock().observed = observed;
        self.store.observe(observer);
    }

    /// The same, but who observes already goes on. Whether there was somebody.
    pub(crate) fn observe_unless_observed(&self, observer: &Arc<dyn Observer>) -> bool {
        let observed = self.state.lock().observed.observer().is_some();
        if !observed {
            self.observe(observer);
        }
        observed
    }

    /// Does something for a snapshot or a branch, as such work where it is not for the file system that observes the disks.
    pub(crate) fn serve<T>(&self, work: &Mutex<Option<Work>>, f: impl FnOnce(&Shared) -> T) -> T {
        let work = *work.lock();
        let observed = work.map_or_else(Observed::default, |_| self.observed.read().clone());
        let _work = work.and_then(|work| observed.work_for_all(work));
        f(self)
    }

    /// The counters of the disks, for a snapshot or a branch: none where these are another file system's, which has requests of its own there.
    pub(crate) fn disks(&self, work: &Mutex<Option<Work>>) -> Vec<DiskStats> {
        if *work.lock() == Some(Work::Other) { Vec::new() } else { self.store.disks() }
    }

    /// A disk that can only be read has nothing to store.
    pub(crate) fn finish(&self) -> io::Result<()> {
        if self.lock().options.read_only { Ok(()) } else { self.store_all(State::close) }
    }

    pub(crate) fn discard(&self, branch: u32, offset: u64, len: u64) -> io::Result<()> {
        let block = BLOCK_BYTES as u64;
        let start = offset.div_ceil(block);
        let end = offset.saturating_add(len).min(self.len) / block;
        if start >= end {
            return Ok(());
        }
        let mut state = self.lock();
        state.check()?;
        if state.catalog.branches.get(&branch).is_none_or(|b| b.deleting) {
            return Ok(());
        }
        state.discard(branch, start, end)
    }

    /// What others write while the store is flushed goes into the next batch; whoever waits meanwhile shares it.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let _turn = self.flushing.lock();
        let last = self.lock().seal_for_flush()?;
        let Some(last) = last else { return Ok(()) };
        let result = {
            let mut failed = self.flush_failed.lock();
            let result = self.store.flush();
            *failed |= result.is_err();
            result
        };
        self.lock().flushed(last, result)
    }
}
