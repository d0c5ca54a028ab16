//! The disk as a device: the main branch, other branches, and snapshots.

use crate::catalog::MAIN_BRANCH;
use crate::check::check;
use crate::cleaner::{CleanReport, Which};
use crate::codec::corrupt;
use crate::extent::{BLOCK_BYTES, SECTOR_BYTES};
use crate::layouts::{MapLayout, SegmentInfo};
use crate::mend::{MendReport, SummaryReport};
use crate::options::{Compression, LogOptions};
use crate::read::Piece;
use crate::recovery;
use crate::scrub::ScrubReport;
use crate::shared::{Shared, StateGuard};
use crate::space::{Change, Level, Space};
use crate::state::State;
use crate::stats::LogStats;
use crate::store::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, SegmentId, SegmentStore};
use crate::tree::Root;
use cffs_device::{
    Device, DeviceSpace, DiskStats, IoKind, Observed, Observer, Purpose, ReadRequest, Work, WriteRequest,
};
use parking_lot::Mutex;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

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

/// What a node takes in memory at most.
const NODE_IN_MEMORY: usize = 8 << 10;

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
        let _purpose = Purpose::Log.scope();
        Ok(Self::with(recovery::format(store, logical_bytes, options)?))
    }

    /// Opens a log disk: the last checkpoint and all batches behind it that are whole.
    ///
    /// # Errors
    /// `InvalidData` if the checkpoint is damaged, and with [`UnreadableEnd`](crate::UnreadableEnd) if the last batches may be where the store cannot be
    /// read; those of the store.
    pub fn open(store: Arc<dyn SegmentStore>, options: &LogOptions) -> io::Result<Self> {
        let _purpose = Purpose::Log.scope();
        let _recover = options.observed.work_for_all(Work::Recover);
        let disk = Self::with(recovery::open(store, options)?);
        // Recovery may have made a checkpoint.
        disk.shared.discard_deleted();
        Ok(disk)
    }

    #[cfg(test)]
    pub(crate) fn from_state(state: State) -> Self {
        Self::with(state)
    }

    fn with(state: State) -> Self {
        LogDisk { shared: Arc::new(Shared::new(state)) }
    }

    /// Who learns what is done for many.
    fn observed(&self) -> Observed {
        self.lock().observed.clone()
    }

    /// Does what somebody has asked of the disk itself.
    fn manage<T>(&self, f: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let observed = self.observed();
        let _work = observed.work_for_all(Work::Manage);
        f(&mut self.lock())
    }

    /// Makes durable what somebody has done who manages the disk: a flush that no file system has asked for.
    ///
    /// # Errors
    /// Those of the store; then nothing can be written any more.
    pub fn make_durable(&self) -> io::Result<()> {
        let observed = self.observed();
        let _work = observed.work_for_all(Work::Manage);
        self.shared.flush()
    }

    pub(crate) fn lock(&self) -> StateGuard<'_> {
        self.shared.lock()
    }

    /// Compresses what is written from now on in this way.
    pub fn set_compression(&self, compression: Compression) {
        self.lock().options.compression = compression;
    }

    /// Keeps as many nodes of the maps in memory as fit so many bytes, twice: [`LogOptions::cache_nodes`] clean ones, and changed ones.
    pub fn set_cache_bytes(&self, bytes: usize) {
        self.lock().set_cache_nodes(bytes / NODE_IN_MEMORY);
    }

    /// Space in bytes.
    pub fn space(&self) -> Space {
        self.lock().space()
    }

    /// Writes a checkpoint, so that the next open has nothing to apply.
    ///
    /// # Errors
    /// Those of the store; then nothing can be written any more.
    pub fn checkpoint(&self) -> io::Result<()> {
        let observed = self.observed();
        let _work = observed.work_for_all(Work::Manage);
        self.shared.checkpoint()
    }

    /// Cleans the segments that deserve it most, copying about `budget` bytes. A checkpoint then frees them.
    ///
    /// # Errors
    /// `StorageFull` if there is no room to copy to; those of the store.
    pub fn clean_step(&self, budget: u64) -> io::Result<CleanReport> {
        let observed = self.observed();
        let _work = observed.work_for_all(Work::Clean);
        let _purpose = Purpose::Clean.scope();
        let mut state = self.lock();
        state.seal()?;
        if state.round_bounds().is_none() {
            state.ensure_room(Change::default(), Level::Frees)?;
        }
        let full = || io::Error::new(io::ErrorKind::StorageFull, "the log disk is full");
        let bounds = state.round_bounds().ok_or_else(full)?.at_most(budget.max(1));
        let policy = state.options.policy;
        let report = state.clean_round(policy, bounds, Which::All)?;
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
        self.manage(|state| {
            state.check()?;
            state.seal()?;
            state.store.grow(bytes)?;
            state.checkpoint()?;
            state.in_vain = None;
            Ok(state.store.capacity())
        })
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
    ///
    /// On a device that keeps several copies all of them are made equal, as far as one is right.
    pub fn scrub_step(&self, from: SegmentId, bytes: u64) -> io::Result<ScrubReport> {
        if from == 0 {
            self.shared.store.make_root_equal();
        }
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

    /// Which of several copies of some bytes of the device is right, of those that are given with their numbers: any where nothing is stored.
    /// `None` where only a checksum could tell, as a scrub does.
    pub fn judge_copies(&self, offset: u64, copies: &[(usize, &[u8])]) -> Option<usize> {
        let (first, bytes) = copies.first()?;
        let state = self.lock();
        for (n, sector) in bytes.chunks(SECTOR_BYTES as usize).enumerate() {
            let at = n * SECTOR_BYTES as usize;
            let differs = copies.iter().any(|(_, other)| other[at..at + sector.len()] != *sector);
            if differs && self.is_stored(&state, offset + at as u64) {
                return None;
            }
        }
        Some(*first)
    }

    /// Whether something is in a sector of the device.
    fn is_stored(&self, state: &State, offset: u64) -> bool {
        let is_root = SUPERBLOCK_OFFSETS.iter().any(|at| (*at..at + SUPERBLOCK_BYTES as u64).contains(&offset));
        let has = |(id, info): (&SegmentId, &SegmentInfo)| {
            let range = self.shared.store.range_of(*id);
            range.is_some_and(|r| (r.start..r.start + u64::from(info.used)).contains(&offset))
        };
        is_root || state.usage.table.iter().any(has)
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
        self.manage(|state| state.mend_summaries())
    }

    /// Makes reading of what the main branch does not have within some ranges (offset and length in bytes) an error, until it is written or
    /// discarded: for files whose blocks are lost, which would read as zeros. Durable when it returns. With this a rebuilding ends, also if nothing is
    /// lost.
    ///
    /// # Errors
    /// `StorageFull` if there is no room to note it; those of the store.
    pub fn mark_lost(&self, ranges: &[(u64, u64)]) -> io::Result<()> {
        self.manage(|state| state.mark_lost(ranges))
    }

    /// Makes the logical space longer, durably: whoever opens the disk next has `bytes` of it. For who knows, after a rebuilding that has found no checkpoint,
    /// how long it was. A shorter one stays as it is.
    ///
    /// # Errors
    /// `InvalidInput` for impossible sizes; those of the store.
    pub fn lengthen(&self, bytes: u64) -> io::Result<()> {
        self.manage(|state| state.lengthen(bytes))
    }

    /// Whether the map was made anew, and what is lost is not marked yet.
    pub fn is_unmarked(&self) -> bool {
        self.lock().unmarked
    }

    /// What has been done.
    pub fn stats(&self) -> LogStats {
        self.lock().stats()
    }

    /// Makes a snapshot of a branch, with all that was written so far. It is durable with the next flush. Returns its id. Who has promised
    /// space of this disk to somebody sees to it first that there is [as much](LogDisk::snapshot_costs) besides.
    ///
    /// # Errors
    /// `NotFound` if there is no such branch, `InvalidInput` if the name is too long, `StorageFull` if there is too little space; those of the store.
    pub fn snapshot(&self, branch: u32, name: &str) -> io::Result<u64> {
        self.snapshot_for(branch, name, u64::MAX)
    }

    /// Makes a snapshot, if it costs at most so many bytes.
    ///
    /// # Errors
    /// Those of [`LogDisk::snapshot`], and `ResourceBusy` if it costs more.
    pub fn snapshot_for(&self, branch: u32, name: &str, costs: u64) -> io::Result<u64> {
        self.manage(|state| {
            state.seal()?;
            state.snapshot(branch, name, costs)
        })
    }

    /// Bytes that a snapshot takes out of the free space at once: the first one some, others none. From then on what is
    /// overwritten takes space as well.
    pub fn snapshot_costs(&self) -> u64 {
        self.lock().snapshots_reserve()
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
        self.manage(|state| {
            state.seal()?;
            state.delete_snapshot(id)
        })
    }

    /// Deletes a branch that has no snapshots. Its space comes back by [`LogDisk::delete_step`].
    ///
    /// # Errors
    /// `NotFound`, `ResourceBusy` while it is open or has snapshots, `InvalidInput` for the main branch; those of the store.
    pub fn delete_branch(&self, branch: u32) -> io::Result<()> {
        self.manage(|state| {
            state.seal()?;
            state.delete_branch(branch)
        })
    }

    /// Gives back the space of what was deleted, about `entries` extents of it. True if there is more to do. After opening there may be,
    /// because what no checkpoint has of a deletion is done again.
    ///
    /// # Errors
    /// Those of the store; then nothing can be written any more.
    pub fn delete_step(&self, entries: usize) -> io::Result<bool> {
        let observed = self.observed();
        let _work = observed.work_for_all(Work::Clean);
        let _purpose = Purpose::Clean.scope();
        self.lock().delete_step(entries)
    }

    /// Makes a writable branch that begins as a snapshot. Returns its number.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot, `InvalidInput` if the name is too long; those of the store.
    pub fn clone_snapshot(&self, snapshot: u64, name: &str) -> io::Result<u32> {
        self.manage(|state| {
            state.seal()?;
            state.clone_snapshot(snapshot, name)
        })
    }

    /// Makes a branch that reads as zeros. Returns its number.
    ///
    /// # Errors
    /// `InvalidInput` if the name is too long; those of the store.
    pub fn new_branch(&self, name: &str) -> io::Result<u32> {
        self.manage(|state| {
            state.seal()?;
            state.new_branch(name)
        })
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
        Ok(BranchDevice { shared: self.shared.clone(), branch, work: Mutex::new(Some(Work::Manage)) })
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
        Ok(SnapshotDevice { shared: self.shared.clone(), id, work: Mutex::new(Some(Work::Manage)) })
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
        let observed = self.observed();
        let _work = observed.work_for_all(Work::Manage);
        let mut state = self.lock();
        if later.is_none() && !state.options.read_only {
            state.seal()?;
        }
        let missing = |id| io::Error::new(io::ErrorKind::NotFound, format!("there is no snapshot {id}"));
        let find = |id| state.catalog.snapshots.get(&id).filter(|s| !s.deleting).ok_or_else(|| missing(id));
        let first = earlier.map(find).transpose()?;
        let empty = Root::default();
        let now = later.is_none().then(|| first.map_or(MAIN_BRANCH, |s| s.branch));
        let second: &Root<MapLayout> = match (later, now) {
            (Some(id), _) => &find(id)?.root,
            (None, now) => {
                let branch = state.catalog.branches.get(&now.unwrap_or(MAIN_BRANCH));
                &branch.ok_or_else(|| corrupt("a branch is missing"))?.root
            }
        };
        let first = first.map_or(&empty, |s| &s.root);
        let from = offset / BLOCK_BYTES as u64;
        let (mut blocks, mut next) = state.diff(first, second, from, max)?;
        if let Some(branch) = now {
            // What recovery has put together of patches is not in the map where nothing may be written.
            blocks = state.pending.with_blocks(branch, from..next.unwrap_or(u64::MAX), &blocks);
            if blocks.len() > max {
                next = Some(blocks[max].0);
                blocks.truncate(max);
            }
        }
        let bytes = |n: u64| n.saturating_mul(BLOCK_BYTES as u64);
        Ok((blocks.into_iter().map(|(b, n)| (bytes(b), bytes(n))).collect(), next.map(bytes)))
    }
}

/// A branch as a device.
pub struct BranchDevice {
    shared: Arc<Shared>,
    branch: u32,
    /// What requests are made for, to who observes the disks: somebody manages it, or another file system is on it than that one's own. None: it is
    /// the file system's own, which tells by itself.
    work: Mutex<Option<Work>>,
}

impl BranchDevice {
    /// It is for a file system to be mounted on. Where another one observes the disks, that one is told whose requests these are, from
    /// the first one on.
    #[must_use]
    pub fn to_be_mounted(self) -> Self {
        *self.work.lock() = Some(Work::Other);
        self
    }
}

impl Drop for BranchDevice {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let opened = state.catalog.branches.get_mut(&self.branch).map_or(0, |b| {
            b.opened = b.opened.saturating_sub(1);
            b.opened
        });
        if opened == 0 {
            self.shared.end_reservation(self.branch);
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
        let pieces = |state: &State, first, blocks| state.branch_pieces(self.branch, first, blocks);
        self.shared.serve(&self.work, |shared| shared.read(offset, bufs, &pieces))
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        let pieces = |state: &State, first, blocks| state.branch_pieces(self.branch, first, blocks);
        self.shared.serve(&self.work, |shared| shared.read_batch(requests, &pieces))
    }

    fn is_rotational(&self) -> bool {
        self.shared.is_rotational()
    }

    fn note_group(&self, bytes: u64) {
        self.shared.note_group(bytes);
    }

    fn together(&self, offset: u64, range: Range<u64>) -> Range<u64> {
        let pieces = |state: &State, first, blocks| state.branch_pieces(self.branch, first, blocks);
        self.shared.serve(&self.work, |shared| shared.together(offset, range, &pieces))
    }

    fn bring_together(&self, ranges: &[Range<u64>]) -> io::Result<u64> {
        self.shared.serve(&self.work, |shared| shared.bring_together(self.branch, ranges))
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.write_batch(&[WriteRequest { kind, offset, bufs: bufs.to_vec() }])
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.shared.serve(&self.work, |shared| shared.write(self.branch, requests))
    }

    fn flush(&self) -> io::Result<()> {
        self.shared.serve(&self.work, Shared::flush)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.shared.serve(&self.work, |shared| shared.discard(self.branch, offset, len))
    }

    fn space(&self) -> Option<DeviceSpace> {
        Some(self.shared.device_space(self.branch))
    }

    fn reserve(&self, bytes: u64, or_less: bool) -> bool {
        self.shared.reserve(self.branch, bytes, or_less)
    }

    fn atomic_max(&self) -> usize {
        self.shared.atomic_max
    }

    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.shared.serve(&self.work, |shared| shared.write_atomic(self.branch, requests))
    }

    fn finish(&self) -> io::Result<()> {
        self.shared.serve(&self.work, Shared::finish)
    }

    /// The disks below have one observer, that of the whole disk. Only where there is none it is this one.
    fn observe(&self, observer: &Arc<dyn Observer>) -> bool {
        *self.work.lock() = self.shared.observe_unless_observed(observer).then_some(Work::Other);
        true
    }

    fn disks(&self) -> Vec<DiskStats> {
        self.shared.disks(&self.work)
    }

    fn read_only(&self) -> bool {
        self.shared.lock().options.read_only
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

    fn is_rotational(&self) -> bool {
        self.shared.is_rotational()
    }

    fn note_group(&self, bytes: u64) {
        self.shared.note_group(bytes);
    }

    fn together(&self, offset: u64, range: Range<u64>) -> Range<u64> {
        self.shared.together(offset, range, &|state, first, blocks| state.branch_pieces(MAIN_BRANCH, first, blocks))
    }

    fn bring_together(&self, ranges: &[Range<u64>]) -> io::Result<u64> {
        self.shared.bring_together(MAIN_BRANCH, ranges)
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

    fn reserve(&self, bytes: u64, or_less: bool) -> bool {
        self.shared.reserve(MAIN_BRANCH, bytes, or_less)
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

    fn observe(&self, observer: &Arc<dyn Observer>) -> bool {
        self.shared.observe(observer);
        true
    }

    fn disks(&self) -> Vec<DiskStats> {
        self.shared.store.disks()
    }

    fn read_only(&self) -> bool {
        self.lock().options.read_only
    }
}

/// A snapshot as a device.
pub struct SnapshotDevice {
    shared: Arc<Shared>,
    id: u64,
    /// As that of a branch.
    work: Mutex<Option<Work>>,
}

impl SnapshotDevice {
    /// It is for a file system to be mounted on. Where another one observes the disks, that one is told whose requests these are, from
    /// the first one on.
    #[must_use]
    pub fn to_be_mounted(self) -> Self {
        *self.work.lock() = Some(Work::Other);
        self
    }

    fn pieces(&self, state: &State, first: u64, blocks: u64) -> io::Result<Vec<Piece>> {
        let s = state.catalog.snapshots.get(&self.id);
        let s = s.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the snapshot is gone"))?;
        state.stored_pieces(&s.root, first, blocks)
    }
}

impl Drop for SnapshotDevice {
    fn drop(&mut self) {
        if let Some(s) = self.shared.lock().catalog.snapshots.get_mut(&self.id) {
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
        let pieces = |state: &State, first, blocks| self.pieces(state, first, blocks);
        self.shared.serve(&self.work, |shared| shared.read(offset, bufs, &pieces))
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        let pieces = |state: &State, first, blocks| self.pieces(state, first, blocks);
        self.shared.serve(&self.work, |shared| shared.read_batch(requests, &pieces))
    }

    fn is_rotational(&self) -> bool {
        self.shared.is_rotational()
    }

    fn note_group(&self, bytes: u64) {
        self.shared.note_group(bytes);
    }

    fn together(&self, offset: u64, range: Range<u64>) -> Range<u64> {
        let pieces = |state: &State, first, blocks| self.pieces(state, first, blocks);
        self.shared.serve(&self.work, |shared| shared.together(offset, range, &pieces))
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

    /// The disks below have one observer, that of the whole disk. Only where there is none it is this one.
    fn observe(&self, observer: &Arc<dyn Observer>) -> bool {
        *self.work.lock() = self.shared.observe_unless_observed(observer).then_some(Work::Other);
        true
    }

    fn disks(&self) -> Vec<DiskStats> {
        self.shared.disks(&self.work)
    }

    fn read_only(&self) -> bool {
        true
    }
}
