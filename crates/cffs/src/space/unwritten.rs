//! Space that is allocated and was never written, as fallocate(2) makes it.
//!
//! It has places. A thin device stores nothing there yet, and will when it is written, which must not fail then. So how much there is, is
//! one of the counters, which are as durable as the extents themselves, and a mount knows it at once.

use super::device_room::Asker;
use super::free_space::Space;
use crate::error::{Error, Result};
use crate::format::Extent;
use crate::format::FILE_SIZE_MAX;
use crate::format::extent::UNWRITTEN_UNIT;
use std::ops::Range;

/// What a list of extents had, and what it has when it is replaced.
#[must_use]
pub(crate) struct UnwrittenChange {
    before: u64,
    after: u64,
}

impl Space {
    /// From now on the counters have what was never written, if the file system is one of those that count it.
    pub(crate) fn count_unwritten(&mut self, counts: bool) {
        self.counts_unwritten = counts;
    }

    /// The fragments of a file that are preallocated with some: what shares a unit of the device with them, or no room would be kept for its ends.
    pub(crate) fn with_whole_units(&self, frags: Range<u64>) -> Range<u64> {
        let unit = if self.thin && self.counts_unwritten { (UNWRITTEN_UNIT >> self.g.frag_shift).max(1) } else { 1 };
        frags.start / unit * unit..frags.end.next_multiple_of(unit).min(self.g.frags_for(FILE_SIZE_MAX))
    }

    /// From now on room is kept for what was never written, if the device can do that and there is as much.
    pub(crate) fn keep_unwritten(&self) {
        let accounting = &mut *self.accounting.lock();
        let reserved = accounting.reserved();
        if let Some(room) = accounting.device.as_mut().filter(|_| self.counts_unwritten) {
            room.keep_unwritten(reserved);
        }
    }

    pub(super) fn keeps_unwritten(&self) -> bool {
        self.thin && self.accounting.lock().device.as_ref().is_some_and(|room| room.keeps_unwritten)
    }

    /// Whether so many fragments can be preallocated at once, with all that is kept for them.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn check_unwritten(&self, frags: u64, privileged: bool) -> Result<()> {
        let accounting = self.accounting.lock();
        let Some(room) = accounting.device.as_ref().filter(|room| room.keeps_unwritten && frags > 0) else {
            return Ok(());
        };
        let units = (frags << self.g.frag_shift).div_ceil(UNWRITTEN_UNIT) + 1;
        let is_room = room.affords(frags, room.nodes_for(units), accounting.reserved(), Asker::of(privileged));
        if is_room { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// What it changes that one list of extents is replaced by another. It counts with [`Space::note_unwritten`].
    pub(crate) fn unwritten_change(&self, old: &[Extent], new: &[Extent]) -> UnwrittenChange {
        let count = |list: &[Extent]| -> u64 {
            if self.counts_unwritten { list.iter().map(|e| e.unwritten_units(self.g.frag_shift)).sum() } else { 0 }
        };
        UnwrittenChange { before: count(old), after: count(new) }
    }

    /// The list was replaced, in a transaction that is open.
    pub(crate) fn note_unwritten(&self, change: UnwrittenChange) {
        if change.before != change.after {
            let counters = &mut self.accounting.lock().counters;
            counters.unwritten = counters.unwritten.saturating_add(change.after).saturating_sub(change.before);
        }
    }
}
