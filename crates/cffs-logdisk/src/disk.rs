//! The disk as a device: the main branch, other branches, and snapshots.

use crate::batch::Logical;
use crate::catalog::MAIN_BRANCH;
use crate::check::check;
use crate::cleaner::CleanReport;
use crate::codec::corrupt;
use crate::extent::BLOCK_BYTES;
use crate::layouts::MapLayout;
use crate::options::LogOptions;
use crate::read::{Piece, fetch_pieces};
use crate::recovery;
use crate::scrub::ScrubReport;
use crate::space::{Change, Level, Space};
use crate::state::State;
use crate::store::{SegmentId, SegmentStore};
use crate::tree::Root;
use cffs_device::{Device, IoKind, WriteRequest};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::io::{self, IoSlice, IoSliceMut};
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
        let (state, flushing) = (Mutex::new(state), Mutex::new(()));
        LogDisk { shared: Arc::new(Shared { state, flushing, flush_failed, readers, store, len }) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    /// Writes all requests so that after a crash they count as a whole or not at all. They are durable with the next flush.
    ///
    /// # Errors
    /// `StorageFull` if they do not fit; then none was accepted.
    pub fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.shared.write(MAIN_BRANCH, requests)
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
        let mut state = self.lock();
        state.seal()?;
        state.ensure_room(Change::default(), Level::Accepted)?;
        state.checkpoint()
    }

    /// Cleans the segments that deserve it most, copying about `budget` bytes. A checkpoint then frees them.
    ///
    /// # Errors
    /// `StorageFull` if there is no room to copy to; those of the store.
    pub fn clean_step(&self, budget: u64) -> io::Result<CleanReport> {
        let mut state = self.lock();
        state.seal()?;
        if state.round_room().is_none() {
            state.ensure_room(Change::default(), Level::Frees)?;
        }
        let room =
            state.round_room().ok_or_else(|| io::Error::new(io::ErrorKind::StorageFull, "the log disk is full"))?;
        let policy = state.options.policy;
        let report = state.clean_round(policy, budget.min(room).max(1))?;
        if state.is_dirty() || state.round_room().is_none() {
            state.checkpoint()?;
        }
        Ok(report)
    }

    /// Takes in what the device of the store has become longer. Returns the capacity in bytes.
    ///
    /// # Errors
    /// `Unsupported` if the store cannot grow; those of the store.
    pub fn grow(&self) -> io::Result<u64> {
        let mut state = self.lock();
        state.check()?;
        state.seal()?;
        state.store.grow()?;
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
            report.problems.extend(problems);
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
    /// `NotFound`, `ResourceBusy` while it has snapshots, `InvalidInput` for the main branch; those of the store.
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

    /// A branch as a device.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn branch(&self, branch: u32) -> io::Result<BranchDevice> {
        let state = self.lock();
        if state.catalog.branches.get(&branch).is_none_or(|b| b.deleting) {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no branch {branch}")));
        }
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

fn total(bufs: &[IoSlice<'_>]) -> usize {
    bufs.iter().map(|b| b.len()).sum()
}

impl Shared {
    /// Reads a range whose pieces `find` tells.
    fn read(
        &self,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
        find: impl FnOnce(&State, u64, u64) -> io::Result<Vec<Piece>>,
    ) -> io::Result<()> {
        let bytes: usize = bufs.iter().map(|b| b.len()).sum();
        check_range(self.len, offset, bytes, io::ErrorKind::UnexpectedEof)?;
        if bytes == 0 {
            return Ok(());
        }
        let block = BLOCK_BYTES as u64;
        let first = offset / block;
        let blocks = (offset + bytes as u64).div_ceil(block) - first;
        let state = self.state.lock();
        let pieces = find(&state, first, blocks)?;
        // Taken before the state is let go: no segment that was found is deleted in between.
        let _reading = self.readers.read();
        drop(state);
        let mut data = vec![0; blocks as usize * BLOCK_BYTES];
        fetch_pieces(&*self.store, pieces, &mut data)?;
        let mut rest = &data[(offset - first * block) as usize..];
        for buf in bufs {
            let (head, tail) = rest.split_at(buf.len());
            buf.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    /// Accepts all requests or none.
    fn write(&self, branch: u32, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        for r in requests {
            check_range(self.len, r.offset, total(&r.bufs), io::ErrorKind::InvalidInput)?;
        }
        let block = BLOCK_BYTES as u64;
        let mut blocks: Vec<u64> = requests
            .iter()
            .flat_map(|r| {
                let n = total(&r.bufs) as u64;
                r.offset / block..if n == 0 { r.offset / block } else { (r.offset + n).div_ceil(block) }
            })
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        let mut state = self.state.lock();
        state.check()?;
        if state.catalog.branches.get(&branch).is_none_or(|b| b.deleting) {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no branch {branch}")));
        }
        state.admit(branch, &blocks)?;
        // Blocks that are written in parts are read before anything is changed, because that can fail.
        let mut changed: std::collections::BTreeMap<u64, Box<[u8]>> = std::collections::BTreeMap::new();
        for r in requests {
            let n = total(&r.bufs);
            let data: Vec<u8> = r.bufs.iter().flat_map(|b| b.iter().copied()).collect();
            let mut done = 0;
            while done < n {
                let at = r.offset + done as u64;
                let (number, within) = (at / block, (at % block) as usize);
                let part = (BLOCK_BYTES - within).min(n - done);
                let bytes = &data[done..done + part];
                if part == BLOCK_BYTES {
                    changed.insert(number, bytes.into());
                } else {
                    let target = match changed.entry(number) {
                        std::collections::btree_map::Entry::Occupied(o) => o.into_mut(),
                        std::collections::btree_map::Entry::Vacant(v) => v.insert(state.read_block(branch, number)?),
                    };
                    target[within..within + part].copy_from_slice(bytes);
                }
                done += part;
            }
            state.accepted += n as u64;
        }
        for (number, data) in changed {
            state.pending.write(Logical { branch, block: number }, data);
        }
        // What was accepted stays accepted. If the batch cannot be ended now, a flush will say so.
        state.seal_if_long()
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

impl BranchDevice {
    /// Writes all requests so that after a crash they count as a whole or not at all. They are durable with the next flush.
    ///
    /// # Errors
    /// `StorageFull` if they do not fit; then none was accepted.
    pub fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.shared.write(self.branch, requests)
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
        self.shared.read(offset, bufs, |state, first, blocks| state.branch_pieces(self.branch, first, blocks))
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
        self.shared.read(offset, bufs, |state, first, blocks| state.branch_pieces(MAIN_BRANCH, first, blocks))
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

    fn read_only(&self) -> bool {
        self.lock().options.read_only
    }
}

/// A snapshot as a device.
pub struct SnapshotDevice {
    shared: Arc<Shared>,
    id: u64,
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
        self.shared.read(offset, bufs, |state, first, blocks| {
            let s = state.catalog.snapshots.get(&self.id);
            let s = s.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the snapshot is gone"))?;
            state.stored_pieces(&s.root, first, blocks)
        })
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

    fn read_only(&self) -> bool {
        true
    }
}
