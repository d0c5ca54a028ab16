//! Committing allocations, freeing, and the log bytes that both need.

use super::accounting::Accounting;
use super::free_set::FreeSet;
use super::free_space::Space;
use super::layout;
use crate::error::{Error, Result};
use crate::format::log::RECORD_HEADER;
use crate::format::{Corrupt, Run};
use crate::journal::Txn;
use crate::reservation::Reservation;
use std::sync::atomic::Ordering;

/// Log bytes around a range of a block: record header, range header, rounding at both ends.
const RANGE_OVERHEAD: usize = RECORD_HEADER + 16 + 16;

impl Space {
    /// Reads what [`Space::commit_alloc`] of an allocated run will change, so that it cannot fail.
    pub(crate) fn prepare_commit(&self, run: Run) -> Result<()> {
        let group = self.alloc_group_of(run)?;
        if !group.is_virgin() && group.prepare(&self.cache, run)? {
            self.pin(group);
        }
        Ok(())
    }

    /// Marks an allocated run as used, in the transaction that makes something point to it.
    pub fn commit_alloc(&self, txn: &Txn<'_>, run: Run) -> Result<()> {
        let group = self.alloc_group_of(run)?;
        if group.is_virgin() {
            self.init_groups(txn, group.ag());
        }
        let pinned = group.mark(txn, run, true)?;
        {
            let counters = &mut self.accounting.lock().counters;
            counters.free_frags = counters.free_frags.saturating_sub(run.len);
        }
        if pinned {
            self.pin(group);
        }
        Ok(())
    }

    /// Undoes [`Space::commit_alloc`] in the same transaction: the run is allocated only in memory again.
    pub(crate) fn uncommit_alloc(&self, txn: &Txn<'_>, run: Run) {
        match self.alloc_group_of(run).and_then(|group| group.mark(txn, run, false)) {
            Ok(_) => {
                let counters = &mut self.accounting.lock().counters;
                counters.free_frags = counters.free_frags.saturating_add(run.len);
            }
            // Impossible: the transaction set these bits, and still holds the blocks.
            Err(e) => txn.fail("an allocation cannot be taken back", &e),
        }
    }

    /// Returns a run that was allocated for data and not committed. Its fragments are reserved again.
    pub fn cancel(&self, run: Run) {
        if !self.return_run(run, |accounting, _| accounting.refund_data(run.len)) {
            // The run is lost until the next mount. The caller releases its reservation all the same.
            self.accounting.lock().reserved_frags += run.len;
        }
    }

    /// Returns whole blocks that were allocated for metadata and not committed, to the reservation they came from.
    pub fn cancel_meta(&self, reservation: &Reservation, run: Run) {
        self.return_run(run, |accounting, blocks| {
            accounting.available += run.len;
            accounting.refund_blocks(blocks, reservation);
        });
    }

    /// Reads what [`Space::free`] of a used run will change, so that it cannot fail.
    pub(crate) fn prepare_free(&self, run: Run) -> Result<()> {
        let group = self.alloc_group_of(run)?;
        self.with_free_set(&group, |_| ())?;
        if !group.is_virgin() && group.prepare(&self.cache, run)? {
            self.pin(group);
        }
        Ok(())
    }

    /// Marks a used run as free. It becomes allocatable when the journal says that it counts.
    pub fn free(&self, txn: &Txn<'_>, run: Run) -> Result<()> {
        let group = self.alloc_group_of(run)?;
        let bad = |what: &str| Err(Error::Corrupt(Corrupt(format!("{run} to be freed: {what}"))));
        if group.is_virgin() {
            return bad("its allocation group was never used");
        }
        if layout::is_fixed(&self.g, run.start..run.end()) {
            return bad("part of the file system's own structures");
        }
        // The AG is loaded before the bits are cleared, because a later load would make the run allocatable before
        // the commit.
        self.with_free_set(&group, |_| ())?;
        let pinned = group.mark(txn, run, false)?;
        txn.note_freed(run);
        {
            let accounting = &mut *self.accounting.lock();
            accounting.available += run.len;
            accounting.pending += run.len;
            accounting.counters.free_frags = accounting.counters.free_frags.saturating_add(run.len);
        }
        if pinned {
            self.pin(group);
        }
        Ok(())
    }

    /// Makes freed runs allocatable. The journal calls it when the transaction that freed them is durable, or comes before all that is written from
    /// now on.
    pub fn on_commit(&self, freed: Vec<Run>) {
        for run in freed {
            // In one step, because a fragment that is not pending any more must be allocatable.
            if !self.return_run(run, |accounting, _| accounting.pending = accounting.pending.saturating_sub(run.len)) {
                let accounting = &mut *self.accounting.lock();
                accounting.pending = accounting.pending.saturating_sub(run.len);
                accounting.available = accounting.available.saturating_sub(run.len);
            }
        }
    }

    /// Puts a run into the free extents. `note` gets the number of blocks that became wholly free, and the accounting
    /// under its lock. False if the run is not in use.
    fn return_run(&self, run: Run, note: impl FnOnce(&mut Accounting, u64)) -> bool {
        let Ok(group) = self.alloc_group_of(run) else {
            tracing::error!("{run} given back: not in the file system");
            return false;
        };
        let start = (run.start - group.start()) as u32;
        let put = |set: &mut FreeSet| {
            let blocks = set.insert(start, run.len as u32).map(u64::from)?;
            let accounting = &mut *self.accounting.lock();
            accounting.free_blocks += blocks;
            accounting.epoch += 1;
            note(accounting, blocks);
            Some(())
        };
        match self.with_free_set(&group, put) {
            Ok(Some(())) => true,
            Ok(None) => {
                tracing::error!("{run} given back: at least one is free already");
                false
            }
            Err(e) => {
                tracing::error!("{run} given back: {e}");
                false
            }
        }
    }

    /// Initializes an open AG on the device, if it is not there yet.
    pub(crate) fn ensure_initialized(&self, txn: &Txn<'_>, ag: u64) {
        if ag >= self.counters().ags && ag < self.open.load(Ordering::Acquire) {
            self.init_groups(txn, ag);
        }
    }

    /// Initializes the AGs up to `ag` on the device. All of them are open.
    fn init_groups(&self, txn: &Txn<'_>, ag: u64) {
        let _serialized = self.init.lock();
        let first = self.accounting.lock().counters.ags;
        for n in first..=ag {
            self.alloc_group(n).init(txn);
            self.accounting.lock().counters.ags = n + 1;
        }
    }

    /// Most log bytes that [`Space::commit_alloc`] or [`Space::free`] of a run of this length needs, without
    /// initializing an AG.
    pub fn log_bytes(&self, frags: u64) -> usize {
        let blocks = frags.div_ceil(self.g.bits_per_bitmap()) + 1;
        // The header's count and the bits.
        2 * RANGE_OVERHEAD + frags.div_ceil(8) as usize + blocks as usize * RANGE_OVERHEAD
    }

    /// Most log bytes for initializing the open AGs that are not on the device yet; nearly always 0. A transaction
    /// that commits what was allocated before it began adds this to its reservation.
    pub fn log_bytes_for_init(&self) -> usize {
        let (first, open) = (self.counters().ags, self.open.load(Ordering::Acquire));
        (first..open).map(|ag| self.log_bytes_for_group(ag)).sum()
    }

    /// The same for a transaction that allocates after it has begun, because that may open one more AG.
    pub fn log_bytes_for_next_init(&self) -> usize {
        let (first, usable) = (self.counters().ags, self.usable());
        (first..usable).map(|ag| self.log_bytes_for_group(ag)).sum()
    }

    fn log_bytes_for_group(&self, ag: u64) -> usize {
        let blocks = self.g.bitmap_blocks();
        // Bits that are set: for the file system's own structures, and beyond the end of the last AG.
        let bits = blocks * self.g.bits_per_bitmap() - layout::initial_ag_free(&self.g, ag);
        bits.div_ceil(8) as usize + (blocks as usize + 1) * (3 * RANGE_OVERHEAD)
    }
}
