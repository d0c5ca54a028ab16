//! The disk as a device: the main branch, other branches, and snapshots.

use crate::batch::Logical;
use crate::catalog::MAIN_BRANCH;
use crate::check::check;
use crate::cleaner::CleanReport;
use crate::codec::corrupt;
use crate::extent::BLOCK_BYTES;
use crate::layouts::MapLayout;
use crate::mend::{MendReport, SummaryReport};
use crate::options::{Compression, LogOptions};
use crate::read::{Piece, fetch_pieces, together};
use crate::recovery;
use crate::scrub::ScrubReport;
use crate::space::{BLOCK_COST, Change, Level, Space};
use crate::state::State;
use crate::store::{SegmentId, SegmentStore};
use crate::tree::Root;
use cffs_device::{Device, DeviceSpace, IoKind, ReadRequest, WriteRequest};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a sector of a log disk.
pub const SECTOR_BYTES: u32 = 512;

struct Shared {
    state: Mutex<State>,
    /// Held by who flushes the store; taken before the state.
    flushing: Mutex<()>,
    /// That of the state, without its lock, and taken after it by who has both.
    flush_failed: Arc<Mutex<bool>>,
    /// The lock of the same name in the state, without it.
    readers: Arc<RwLock<()>>,
    store: Arc<dyn SegmentStore>,
    len: u64,
    /// Bytes that are accepted at once: what stays free is for as many, wherever their blocks are.
    atomic_max: usize,
    /// The space when it was last looked at. Who only wants to know it need not wait for a batch that is being written.
    known: Mutex<Space>,
}

/// A snapshot or a branch by what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Names it in calls.
    pub id: u64,
    /// Its branch.
    pub branch: u32,
    /// Its version: later snapshots have higher ones.
    pub version: u64,
    /// The name that it was given; need not be unique.
    pub name: String,
}

/// A branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchInfo {
    /// Its number; [`MAIN_BRANCH`] is always there.
    pub branch: u32,
    /// The snapshot that it began as.
    pub origin: Option<u64>,
    /// The name that it was given; need not be unique.
    pub name: String,
}

/// Ranges that differ (offset, length), in order, and where to go on if there may be more; in bytes.
pub type DiffPage = (Vec<(u64, u64)>, Option<u64>);

/// What a log disk has done since it was opened, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Written by programs.
    pub accepted: u64,
    /// Written to the store, with summaries, nodes and copies.
    pub written: u64,
    /// Copied by the cleaner.
    pub cleaned: u64,
    /// Segments in use, a number.
    pub segments: usize,
    /// What they have in all.
    pub used: u64,
    /// What of it is alive.
    pub live: u64,
    /// Nodes in memory that no checkpoint has yet, a number.
    pub dirty_nodes: usize,
    /// Nodes in memory that are stored, a number.
    pub cached_nodes: usize,
    /// Segments that are left alone because something in them could not be read or verified, a number.
    pub damaged_segments: usize,
    /// Deleted segments whose device could not be told that it may forget them, a number.
    pub failed_discards: u64,
    /// Extents and nodes that the cleaner moved while snapshots referred to them, a number.
    pub forwards: u64,
}

/// A log disk. As a [`Device`] it is its main branch.
pub struct LogDisk {
    shared: Arc<Shared>,
}

impl fmt::Debug for LogDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogDisk").field("len", &self.shared.len).finish_non_exhaustive()
    }
}

impl LogDisk {
    /// Makes a store an empty log disk of `logical_bytes`, which may be far more than the store has. What it had is lost.
    ///
    /// # Errors
    /// `InvalidInput` for impossible sizes; those of the store.
    pub fn format(store: Arc<dyn SegmentStore>, logical_bytes: u64, options: &LogOptions) -> io::Result<Self> {
        Ok(Self::with(recovery::format(store, logical_bytes, options)?))
    }

    /// Opens a log disk: the last checkpoint and all batches behind it that are whole.
    ///
    /// # Errors
    /// `InvalidData` if the checkpoint is damaged; those of the store.
    pub fn open(store: Arc<dyn SegmentStore>, options: &LogOptions) -> io::Result<Self> {
        Ok(Self::with(recovery::open(store, options)?))
    }

    #[cfg(test)]
    pub(crate) fn from_state(state: State) -> Self {
        Self::with(state)
    }

    fn with(state: State) -> Self {
        let (readers, store, len) = (state.readers.clone(), state.store.clone(), state.logical_bytes);
        let flush_failed = state.flush_failed.clone();
        let (known, atomic_max) = (Mutex::new(state.space()), state.atomic_max());
        let (state, flushing) = (Mutex::new(state), Mutex::new(()));
        let shared = Shared { state, flushing, flush_failed, readers, store, len, atomic_max, known };
        LogDisk { shared: Arc::new(shared) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    /// Compresses what is written from now on in this way.
    pub fn set_compression(&self, compression: Compression) {
        self.lock().options.compression = compression;
    }

    /// Space in bytes.
    pub fn space(&self) -> Space {
        self.lock().space()
    }

    /// Takes `bytes` out of the free space, until they are released.
    ///
    /// # Errors
    /// `StorageFull` if there is not as much.
    pub fn reserve(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.lock();
        if bytes > state.space().free {
            state.seal()?;
        }
        if bytes > state.space().free {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the log disk is full"));
        }
        state.reserved += bytes;
        Ok(())
    }

    /// Gives back what was reserved.
    pub fn release(&self, bytes: u64) {
        let mut state = self.lock();
        state.reserved = state.reserved.saturating_sub(bytes);
    }

    /// Writes a checkpoint, so that the next open has nothing to apply.
    ///
    /// # Errors
    /// Those of the store; then nothing can be written any more.
    pub fn checkpoint(&self) -> io::Result<()> {
        self.shared.checkpoint()
    }

    /// Cleans the segments that deserve it most, copying about `budget` bytes. A checkpoint then frees them.
    ///
    /// # Errors
    /// `StorageFull` if there is no room to copy to; those of the store.
    pub fn clean_step(&self, budget: u64) -> io::Result<CleanReport> {
        let mut state = self.lock();
        state.seal()?;
        if state.round_bounds().is_none() {
            state.ensure_room(Change::default(), Level::Frees)?;
        }
        let full = || io::Error::new(io::ErrorKind::StorageFull, "the log disk is full");
        let bounds = state.round_bounds().ok_or_else(full)?.at_most(budget.max(1));
        let policy = state.options.policy;
        let report = state.clean_round(policy, bounds)?;
        if state.is_dirty() || state.round_bounds().is_none() {
            state.checkpoint()?;
        }
        Ok(report)
    }

    /// Takes in what the device of the store has become longer; if `bytes` are given, an image in a file is made so long first. Returns the
    /// capacity in bytes.
    ///
    /// # Errors
    /// `Unsupported` if the store cannot grow, `InvalidInput` if the device cannot become so long; those of the store.
    pub fn grow(&self, bytes: Option<u64>) -> io::Result<u64> {
        let mut state = self.lock();
        state.check()?;
        state.seal()?;
        state.store.grow(bytes)?;
        state.checkpoint()?;
        state.in_vain = None;
        Ok(state.store.capacity())
    }

    /// The UUID of the store.
    pub fn uuid(&self) -> [u8; 16] {
        self.shared.store.uuid()
    }

    /// Reads and verifies what lives in the segments from one on (0 begins), until about so many bytes were read. Nothing waits meanwhile but
    /// the deletion of segments. What cannot be verified is left alone by the cleaner from then on.
    ///
    /// # Errors
    /// Those of nodes that say what lives; what is wrong with data is in the report.
    pub fn scrub_step(&self, from: SegmentId, bytes: u64) -> io::Result<ScrubReport> {
        let mut report = ScrubReport { next: Some(from), ..ScrubReport::default() };
        while let Some(at) = report.next
            && report.bytes < bytes.max(1)
        {
            let state = self.lock();
            let Some((id, next)) = state.scrub_next(at) else {
                report.next = None;
                break;
            };
            let dead = state.dead_now(id)?;
            let plan = state.scrub_plan(id);
            let _reading = self.shared.readers.read();
            drop(state);
            let problems = plan.verify(&*self.shared.store, &dead, &mut report.bytes);
            drop(_reading);
            if !problems.is_empty() {
                self.lock().damaged.insert(id);
            }
            report.add(problems);
            report.next = next;
        }
        Ok(report)
    }

    /// Counts what batches refer to and compares it with the usage; returns what is wrong, one line for each. With `data`, all
    /// data is read and verified as well.
    ///
    /// # Errors
    /// Those of the store, and `InvalidData` if a tree cannot be read.
    pub fn check(&self, data: bool) -> io::Result<Vec<String>> {
        check(&self.lock(), data)
    }

    /// Reads the summaries of at most `segments` segments from one on (0 begins). Data is not read.
    pub fn check_summaries(&self, from: SegmentId, segments: usize) -> SummaryReport {
        self.lock().check_summaries(from, segments)
    }

    /// Copies what lives in segments with damaged summaries to new batches, and frees these segments. Everything that the maps refer to must be there:
    /// [`LogDisk::check`] says so. Waits until what was deleted is gone.
    ///
    /// # Errors
    /// `StorageFull` if there is no room to copy to, `InvalidData` if a tree cannot be read; those of the store.
    pub fn mend_summaries(&self) -> io::Result<MendReport> {
        self.lock().mend_summaries()
    }

    /// Makes reading of what the main branch does not have within some ranges (offset and length in bytes) an error, until it is written or
    /// discarded: for files whose blocks are lost, which would read as zeros. Durable when it returns.
    ///
    /// # Errors
    /// `StorageFull` if there is no room to note it; those of the store.
    pub fn mark_lost(&self, ranges: &[(u64, u64)]) -> io::Result<()> {
        self.lock().mark_lost(ranges)
    }

    /// What has been done.
    pub fn stats(&self) -> LogStats {
        let state = self.lock();
        LogStats {
            accepted: state.accepted,
            written: state.log.written,
            cleaned: state.cleaned,
            segments: state.usage.table.len(),
            used: state.usage.table.values().map(|i| u64::from(i.used)).sum(),
            live: state.usage.live,
            dirty_nodes: state.dirtied,
            cached_nodes: state.cache.lock().len(),
            damaged_segments: state.damaged.len(),
            failed_discards: state.failed_discards,
            forwards: state.forwarded,
        }
    }

    /// Makes a snapshot of a branch, with all that was written so far. It is durable with the next flush. Returns its id.
    ///
    /// # Errors
    /// `NotFound` if there is no such branch, `InvalidInput` if the name is too long; those of the store.
    pub fn snapshot(&self, branch: u32, name: &str) -> io::Result<u64> {
        let mut state = self.lock();
        state.seal()?;
        state.snapshot(branch, name)
    }

    /// All snapshots, by id.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let state = self.lock();
        let there = state.catalog.snapshots.iter().filter(|(_, s)| !s.deleting);
        there
            .map(|(&id, s)| SnapshotInfo {
                id,
                branch: s.branch,
                version: s.version,
                name: String::from_utf8_lossy(&s.name).into_owned(),
            })
            .collect()
    }

    /// All branches, by number.
    pub fn branches(&self) -> Vec<BranchInfo> {
        let state = self.lock();
        let there = state.catalog.branches.iter().filter(|(_, b)| !b.deleting);
        there
            .map(|(&branch, b)| BranchInfo {
                branch,
                origin: b.origin,
                name: String::from_utf8_lossy(&b.name).into_owned(),
            })
            .collect()
    }

    /// Deletes a snapshot. Its space comes back by [`LogDisk::delete_step`].
    ///
    /// # Errors
    /// `NotFound` if there is none, `ResourceBusy` while it is open or a branch has begun as it; those of the store.
    pub fn delete_snapshot(&self, id: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.seal()?;
        state.delete_snapshot(id)
    }

    /// Deletes a branch that has no snapshots. Its space comes back by [`LogDisk::delete_step`].
    ///
    /// # Errors
    /// `NotFound`, `ResourceBusy` while it is open or has snapshots, `InvalidInput` for the main branch; those of the store.
    pub fn delete_branch(&self, branch: u32) -> io::Result<()> {
        let mut state = self.lock();
        state.seal()?;
        state.delete_branch(branch)
    }

    /// Gives back the space of what was deleted, about `entries` extents of it. True if there is more to do. After opening there may be,
    /// because what no checkpoint has of a deletion is done again.
    ///
    /// # Errors
    /// Those of the store; then nothing can be written any more.
    pub fn delete_step(&self, entries: usize) -> io::Result<bool> {
        self.lock().delete_step(entries)
    }

    /// Makes a writable branch that begins as a snapshot. Returns its number.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot, `InvalidInput` if the name is too long; those of the store.
    pub fn clone_snapshot(&self, snapshot: u64, name: &str) -> io::Result<u32> {
        let mut state = self.lock();
        state.seal()?;
        state.clone_snapshot(snapshot, name)
    }

    /// Makes a branch that reads as zeros. Returns its number.
    ///
    /// # Errors
    /// `InvalidInput` if the name is too long; those of the store.
    pub fn new_branch(&self, name: &str) -> io::Result<u32> {
        let mut state = self.lock();
        state.seal()?;
        state.new_branch(name)
    }

    /// A branch as a device. It cannot be deleted while it is open.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn branch(&self, branch: u32) -> io::Result<BranchDevice> {
        let mut state = self.lock();
        let b = state.catalog.branches.get_mut(&branch).filter(|b| !b.deleting);
        let b = b.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no branch {branch}")))?;
        b.opened += 1;
        drop(state);
        Ok(BranchDevice { shared: self.shared.clone(), branch })
    }

    /// A snapshot as a device that cannot be written. It cannot be deleted while it is open.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn open_snapshot(&self, id: u64) -> io::Result<SnapshotDevice> {
        let mut state = self.lock();
        let s = state.catalog.snapshots.get_mut(&id).filter(|s| !s.deleting);
        let s = s.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no snapshot {id}")))?;
        s.opened += 1;
        drop(state);
        Ok(SnapshotDevice { shared: self.shared.clone(), id })
    }

    /// The byte ranges (offset, length) in which a later snapshot, or the branch itself as of now (`None`), differs from
    /// an earlier one. What was written anew counts, even with the same bytes.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot; those of the store.
    pub fn diff(&self, earlier: u64, later: Option<u64>) -> io::Result<Vec<(u64, u64)>> {
        Ok(self.diff_from(Some(earlier), later, 0, usize::MAX)?.0)
    }

    /// At most `max` of the ranges that [`LogDisk::diff`] tells, from a byte on, and the byte to go on from if there may be more. Without an earlier
    /// snapshot, the ranges of the later one that were written, or of the main branch.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot; those of the store.
    pub fn diff_from(&self, earlier: Option<u64>, later: Option<u64>, offset: u64, max: usize) -> io::Result<DiffPage> {
        let mut state = self.lock();
        if later.is_none() && !state.options.read_only {
            state.seal()?;
        }
        let missing = |id| io::Error::new(io::ErrorKind::NotFound, format!("there is no snapshot {id}"));
        let find = |id| state.catalog.snapshots.get(&id).filter(|s| !s.deleting).ok_or_else(|| missing(id));
        let first = earlier.map(find).transpose()?;
        let empty = Root::default();
        let second: &Root<MapLayout> = match later {
            Some(id) => &find(id)?.root,
            None => {
                let branch = first.map_or(MAIN_BRANCH, |s| s.branch);
                &state.catalog.branches.get(&branch).ok_or_else(|| corrupt("a branch is missing"))?.root
            }
        };
        let first = first.map_or(&empty, |s| &s.root);
        let (blocks, next) = state.diff(first, second, offset / BLOCK_BYTES as u64, max)?;
        let bytes = |n: u64| n.saturating_mul(BLOCK_BYTES as u64);
        Ok((blocks.into_iter().map(|(b, n)| (bytes(b), bytes(n))).collect(), next.map(bytes)))
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
    /// Reads a range whose pieces `find` tells.
    fn read(&self, offset: u64, bufs: &mut [IoSliceMut<'_>], find: FindPieces<'_>) -> io::Result<()> {
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

    fn read_batch(&self, requests: &mut [ReadRequest<'_>], find: FindPieces<'_>) -> io::Result<()> {
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
        let state = self.state.lock();
        let (mut pieces, mut blocks) = (Vec::new(), 0);
        for (offset, bytes) in ranges {
            let (first, end) = blocks_of(*offset, *bytes);
            if end > first {
                pieces.extend(find(&state, first, end - first)?.into_iter().map(|p| p.behind(blocks)));
            }
            blocks += (end - first) as usize;
        }
        // Taken before the state is let go: no segment that was found is deleted in between.
        let _reading = self.readers.read();
        drop(state);
        let mut data = vec![0; blocks * BLOCK_BYTES];
        fetch_pieces(&*self.store, pieces, &mut data)?;
        Ok(data)
    }

    /// See [`Device::together`]; what is not known is together.
    fn together(&self, offset: u64, range: Range<u64>, find: FindPieces<'_>) -> Range<u64> {
        let end = range.end.min(self.len);
        if range.start >= end || !(range.start..end).contains(&offset) {
            return range;
        }
        let (first, behind) = blocks_of(range.start, (end - range.start) as usize);
        let Ok(pieces) = find(&self.state.lock(), first, behind - first) else { return range };
        let here = together(pieces, (offset / BLOCK_BYTES as u64 - first) as usize);
        let at = |block: usize| (first + block as u64) * BLOCK_BYTES as u64;
        here.start.map_or(range.start, at).max(range.start)..here.end.map_or(range.end, at).min(range.end)
    }

    /// Accepts requests one piece after the other, none of which touches more blocks than a batch has.
    fn write(&self, branch: u32, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.check_ranges(requests)?;
        // A superblock is as important as what an atomic write has.
        let kept = if requests.iter().all(|r| r.kind == IoKind::Super) { 0 } else { self.kept_for_atomic() };
        let most = self.atomic_max / BLOCK_BYTES;
        let (mut some, mut blocks): (Vec<Slice<'_>>, usize) = (Vec::new(), 0);
        for (mut at, mut bytes) in slices(requests) {
            while !bytes.is_empty() {
                if blocks == most {
                    self.accept(branch, &some, kept)?;
                    (some, blocks) = (Vec::new(), 0);
                }
                let within = (at % BLOCK_BYTES as u64) as usize;
                let part = bytes.len().min((most - blocks) * BLOCK_BYTES - within);
                some.push((at, &bytes[..part]));
                blocks += (within + part).div_ceil(BLOCK_BYTES);
                (at, bytes) = (at + part as u64, &bytes[part..]);
            }
        }
        self.accept(branch, &some, kept)
    }

    /// Accepts all requests or none.
    fn write_atomic(&self, branch: u32, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.check_ranges(requests)?;
        self.accept(branch, &slices(requests).collect::<Vec<_>>(), 0)
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
        let mut state = self.state.lock();
        state.check()?;
        if state.catalog.branches.get(&branch).is_none_or(|b| b.deleting) {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no branch {branch}")));
        }
        state.admit(branch, &blocks, kept)?;
        // Blocks that are written in parts are read before anything is changed, because that can fail.
        let mut changed: BTreeMap<u64, Box<[u8]>> = BTreeMap::new();
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
                        Entry::Vacant(v) => v.insert(state.read_block(branch, number)?),
                    };
                    target[within..within + part.len()].copy_from_slice(part);
                }
                (at, bytes) = (at + part.len() as u64, rest);
            }
        }
        for (number, data) in changed {
            state.pending.write(Logical { branch, block: number }, data);
        }
        // What was accepted stays accepted. If the batch cannot be ended now, a flush will say so.
        let sealed = state.seal_if_long();
        *self.known.lock() = state.space();
        sealed
    }

    /// The space for a branch. As long as there is plenty, it may be that before the write under way.
    fn device_space(&self, branch: u32) -> DeviceSpace {
        let plenty = |s: &Space| s.free > s.usable / 8;
        let look = |state: &State| {
            *self.known.lock() = state.space();
            // A block that was compressed has less space than the one that is written over it may take.
            let compresses = state.options.compression != Compression::None;
            (state.space(), compresses || state.catalog.branches.get(&branch).is_none_or(|b| b.floor > 0))
        };
        let (space, keeps_old) = match self.state.try_lock() {
            Some(state) => look(&state),
            None => {
                let known = *self.known.lock();
                if plenty(&known) { (known, true) } else { look(&self.state.lock()) }
            }
        };
        let (unit, unit_cost) = (BLOCK_BYTES as u64, BLOCK_COST);
        DeviceSpace { total: space.usable, free: space.free, unit, unit_cost, keeps_old }
    }

    fn checkpoint(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.seal()?;
        state.ensure_room(Change::default(), Level::Accepted)?;
        state.checkpoint()
    }

    /// A disk that can only be read has nothing to store.
    fn finish(&self) -> io::Result<()> {
        if self.state.lock().options.read_only { Ok(()) } else { self.checkpoint() }
    }

    fn discard(&self, branch: u32, offset: u64, len: u64) -> io::Result<()> {
        let block = BLOCK_BYTES as u64;
        let start = offset.div_ceil(block);
        let end = offset.saturating_add(len).min(self.len) / block;
        if start >= end {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.check()?;
        if state.catalog.branches.get(&branch).is_none_or(|b| b.deleting) {
            return Ok(());
        }
        state.discard(branch, start, end)
    }

    /// What others write while the store is flushed goes into the next batch; whoever waits meanwhile shares it.
    fn flush(&self) -> io::Result<()> {
        let _turn = self.flushing.lock();
        let last = self.state.lock().seal_for_flush()?;
        let Some(last) = last else { return Ok(()) };
        let result = {
            let mut failed = self.flush_failed.lock();
            let result = self.store.flush();
            *failed |= result.is_err();
            result
        };
        self.state.lock().flushed(last, result)
    }
}

/// A branch as a device.
pub struct BranchDevice {
    shared: Arc<Shared>,
    branch: u32,
}

impl Drop for BranchDevice {
    fn drop(&mut self) {
        if let Some(b) = self.shared.state.lock().catalog.branches.get_mut(&self.branch) {
            b.opened = b.opened.saturating_sub(1);
        }
    }
}

impl Device for BranchDevice {
    fn len(&self) -> u64 {
        self.shared.len
    }

    fn sector_size(&self) -> u32 {
        SECTOR_BYTES
    }

    fn read_vectored(&self, _kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.shared.read(offset, bufs, &|state, first, blocks| state.branch_pieces(self.branch, first, blocks))
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.shared.read_batch(requests, &|state, first, blocks| state.branch_pieces(self.branch, first, blocks))
    }

    fn together(&self, offset: u64, range: Range<u64>) -> Range<u64> {
        self.shared.together(offset, range, &|state, first, blocks| state.branch_pieces(self.branch, first, blocks))
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.shared.write(self.branch, &[WriteRequest { kind, offset, bufs: bufs.to_vec() }])
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.shared.write(self.branch, requests)
    }

    fn flush(&self) -> io::Result<()> {
        self.shared.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.shared.discard(self.branch, offset, len)
    }

    fn space(&self) -> Option<DeviceSpace> {
        Some(self.shared.device_space(self.branch))
    }

    fn atomic_max(&self) -> usize {
        self.shared.atomic_max
    }

    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.shared.write_atomic(self.branch, requests)
    }

    fn finish(&self) -> io::Result<()> {
        self.shared.finish()
    }

    fn read_only(&self) -> bool {
        self.shared.state.lock().options.read_only
    }
}

impl Device for LogDisk {
    fn len(&self) -> u64 {
        self.shared.len
    }

    fn sector_size(&self) -> u32 {
        SECTOR_BYTES
    }

    fn read_vectored(&self, _kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.shared.read(offset, bufs, &|state, first, blocks| state.branch_pieces(MAIN_BRANCH, first, blocks))
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.shared.read_batch(requests, &|state, first, blocks| state.branch_pieces(MAIN_BRANCH, first, blocks))
    }

    fn together(&self, offset: u64, range: Range<u64>) -> Range<u64> {
        self.shared.together(offset, range, &|state, first, blocks| state.branch_pieces(MAIN_BRANCH, first, blocks))
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.shared.write(MAIN_BRANCH, &[WriteRequest { kind, offset, bufs: bufs.to_vec() }])
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.shared.write(MAIN_BRANCH, requests)
    }

    fn flush(&self) -> io::Result<()> {
        self.shared.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.shared.discard(MAIN_BRANCH, offset, len)
    }

    fn space(&self) -> Option<DeviceSpace> {
        Some(self.shared.device_space(MAIN_BRANCH))
    }

    fn atomic_max(&self) -> usize {
        self.shared.atomic_max
    }

    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.shared.write_atomic(MAIN_BRANCH, requests)
    }

    fn finish(&self) -> io::Result<()> {
        self.shared.finish()
    }

    fn read_only(&self) -> bool {
        self.lock().options.read_only
    }
}

/// A snapshot as a device.
pub struct SnapshotDevice {
    shared: Arc<Shared>,
    id: u64,
}

impl SnapshotDevice {
    fn pieces(&self, state: &State, first: u64, blocks: u64) -> io::Result<Vec<Piece>> {
        let s = state.catalog.snapshots.get(&self.id);
        let s = s.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the snapshot is gone"))?;
        state.stored_pieces(&s.root, first, blocks)
    }
}

impl Drop for SnapshotDevice {
    fn drop(&mut self) {
        if let Some(s) = self.shared.state.lock().catalog.snapshots.get_mut(&self.id) {
            s.opened = s.opened.saturating_sub(1);
        }
    }
}

impl Device for SnapshotDevice {
    fn len(&self) -> u64 {
        self.shared.len
    }

    fn sector_size(&self) -> u32 {
        SECTOR_BYTES
    }

    fn read_vectored(&self, _kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.shared.read(offset, bufs, &|state, first, blocks| self.pieces(state, first, blocks))
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.shared.read_batch(requests, &|state, first, blocks| self.pieces(state, first, blocks))
    }

    fn together(&self, offset: u64, range: Range<u64>) -> Range<u64> {
        self.shared.together(offset, range, &|state, first, blocks| self.pieces(state, first, blocks))
    }

    fn write_vectored(&self, _kind: IoKind, _offset: u64, _bufs: &[IoSlice<'_>]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a snapshot is never written"))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn can_discard(&self) -> bool {
        false
    }

    fn space(&self) -> Option<DeviceSpace> {
        Some(self.shared.device_space(MAIN_BRANCH))
    }

    fn read_only(&self) -> bool {
        true
    }
}
