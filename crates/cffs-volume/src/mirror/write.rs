//! Writes, flushes, and the bitmap that tells after a crash where members may differ.

use super::state::{Member, Mirror, Outcome, add};
use crate::label::write_block;
use crate::superblock::BITMAP_OFFSETS;
use cffs_device::Device;
use std::io;

/// Flushes for which a region stays in the bitmap after its last write, and between two looks for such regions.
const IDLE_FLUSHES: u64 = 16;

impl Mirror {
    fn regions_of_all<'a>(&'a self, ranges: &'a [(u64, u64)]) -> impl Iterator<Item = u32> + 'a {
        ranges.iter().flat_map(|r| self.regions_of(*r))
    }

    /// Sees to it that the bitmap of every member in sync has these ranges, durably. [`Mirror::unmark`] ends it.
    fn mark(&self, ranges: &[(u64, u64)]) -> io::Result<()> {
        if self.intent.lock().begin(self.regions_of_all(ranges)) {
            return Ok(());
        }
        let result = self.extend_bitmap(ranges);
        if result.is_err() {
            self.unmark(ranges);
        }
        result
    }

    fn unmark(&self, ranges: &[(u64, u64)]) {
        self.intent.lock().end(self.regions_of_all(ranges));
    }

    fn extend_bitmap(&self, ranges: &[(u64, u64)]) -> io::Result<()> {
        loop {
            let state = self.state.read();
            state.check()?;
            let mut bitmap = self.intent_io.lock();
            let wanted = {
                let intent = self.intent.lock();
                // Whoever had the lock before may have written the regions of this request too.
                if self.regions_of_all(ranges).all(|r| intent.durable.contains(r)) {
                    return Ok(());
                }
                intent.wanted()
            };
            bitmap.sequence += 1;
            let (block, copy) = (wanted.encode(self.volume, bitmap.sequence), bitmap.next_copy);
            // The second copy needs no flush of its own: the first is durable, and stays until the second is.
            let outcome = self.each(&state.serving(), &|_, device| {
                write_block(device, BITMAP_OFFSETS[copy], &block)?;
                device.flush()?;
                write_block(device, BITMAP_OFFSETS[1 - copy], &block)
            });
            add(&self.counters.bitmap_writes, 1);
            bitmap.next_copy = 1 - copy;
            if outcome.failed.is_empty() {
                self.intent.lock().durable = wanted;
                return if outcome.succeeded.is_empty() { self.conclude(outcome) } else { Ok(()) };
            }
            drop((bitmap, state));
            self.conclude(outcome)?;
        }
    }

    /// Writes the whole bitmap to members, durably, both copies.
    pub(super) fn write_bitmap(&self, members: &[&Member]) -> Outcome {
        let mut bitmap = self.intent_io.lock();
        bitmap.sequence += 1;
        let block = self.intent.lock().durable.encode(self.volume, bitmap.sequence);
        self.each(members, &|m, device| {
            for copy in [m.bitmap_copy, 1 - m.bitmap_copy] {
                write_block(device, BITMAP_OFFSETS[copy], &block)?;
                device.flush()?;
            }
            Ok(())
        })
    }

    /// Takes regions out of the bitmap that were not written for `idle` flushes before the one that began epoch `flushed`. Lost in a
    /// crash, it costs a longer resync.
    fn clear_idle(&self, flushed: u64, idle: u64) -> io::Result<()> {
        let state = self.state.read();
        if state.members.iter().any(|m| !m.serves()) {
            return Ok(());
        }
        let mut bitmap = self.intent_io.lock();
        let set = {
            let mut intent = self.intent.lock();
            // Out of memory before it is off the device: from here on a write to such a region waits and sets it again.
            if !intent.remove_idle(flushed, idle, |r| state.members.iter().any(|m| m.stale.contains(r))) {
                return Ok(());
            }
            intent.durable.clone()
        };
        bitmap.sequence += 1;
        let (block, copy) = (set.encode(self.volume, bitmap.sequence), bitmap.next_copy);
        let outcome = self.each(&state.serving(), &|_, device| write_block(device, BITMAP_OFFSETS[copy], &block));
        drop((bitmap, state));
        self.conclude(outcome)
    }

    /// Performs a write to these ranges (start, end) on all members. They must not overlap each other.
    pub(super) fn write_all(
        &self,
        ranges: &[(u64, u64)],
        op: &(dyn Fn(&Member, &dyn Device) -> io::Result<()> + Sync),
    ) -> io::Result<()> {
        if self.read_only {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the mirror was opened for reading only"));
        }
        let _alone = self.ranges.lock(ranges);
        ranges.iter().for_each(|r| self.shadow.forget(*r));
        self.mark(ranges)?;
        let outcome = {
            let state = self.state.read();
            state.check().map(|()| self.each(&state.present(), op))
        };
        let result = outcome.and_then(|outcome| self.conclude(outcome));
        self.unmark(ranges);
        result
    }

    /// Makes every completed write durable on all members, and ends an epoch. Returns its number.
    fn flush_members(&self) -> io::Result<u64> {
        let flushed = {
            let mut intent = self.intent.lock();
            intent.epoch += 1;
            intent.epoch
        };
        let outcome = {
            let state = self.state.read();
            state.check()?;
            self.each(&state.present(), &|_, device| device.flush())
        };
        self.conclude(outcome)?;
        Ok(flushed)
    }

    pub(super) fn flush_all(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        let flushed = self.flush_members()?;
        if flushed % IDLE_FLUSHES == 0 {
            // What was asked for is done. Who fails here is dropped, and if nobody is left the next request says so.
            let _ = self.clear_idle(flushed, IDLE_FLUSHES);
        }
        Ok(())
    }

    /// Makes everything durable, and the bitmap empty where all members are there and in sync, so that the next opening has
    /// nothing to copy. The mirror can still be used.
    ///
    /// # Errors
    /// As [`Device::flush`].
    pub fn close(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        let flushed = self.flush_members()?;
        self.clear_idle(flushed, 0)?;
        self.flush_members().map(|_| ())
    }
}
