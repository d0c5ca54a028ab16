//! Space accounting, in fragments and in blocks.
//!
//! File data can use any free fragment. Metadata needs whole, aligned blocks, and a device can have many free fragments
//! but not one free block. So fragments and blocks are reserved separately, and two invariants always hold:
//!
//! 1. wholly free blocks >= reserved blocks;
//! 2. available fragments >= reserved fragments + fragments of the reserved blocks.
//!
//! Data may break up a free block only if the first invariant still holds afterwards. Then, by the second, reserved
//! data finds room in the pieces. So an allocation within a reservation always succeeds, however scattered free space
//! is, and writeback does not run out of space (design decision 6). Two things are outside of this. Fragments whose
//! freeing is not durable are available, and using them waits for commits ([`crate::file`], retry). Free fragments of a
//! damaged allocation group stay available, and cannot be allocated until a repair.

use super::class::AllocationClass;
use super::device_room::{Asker, DeviceRoom, Reserved};
use crate::error::{Error, Result};
use crate::format::system::Counters;
use crate::reservation::Reservation;

/// The accounting of a file system. One lock protects all of it, so that the numbers are consistent.
pub(super) struct Accounting {
    /// Fragments in a block.
    fpb: u64,
    /// Fragments that only privileged users get.
    pub root_reserve: u64,
    /// Free fragments, including those whose freeing is not durable yet.
    pub available: u64,
    /// Wholly free blocks of the AGs that are loaded or virgin, without those whose freeing is not durable yet.
    pub free_blocks: u64,
    /// Free fragments of AGs that are not loaded, as far as that is known.
    pub unloaded: u64,
    /// Reserved fragments.
    pub reserved_frags: u64,
    /// Reserved blocks.
    pub reserved_blocks: u64,
    /// Fragments whose freeing is not durable yet.
    pub pending: u64,
    /// Free-space epoch. Grows whenever space becomes usable: fragments are returned, blocks are not reserved any more,
    /// or a block is broken up. A search that fails within one epoch has seen all free space; any other search may have
    /// visited each AG too early.
    pub epoch: u64,
    /// Reservation freezes: while there are any, nobody reserves pending space, because somebody waits for it.
    pub freezes: u32,
    /// The counters as the transactions so far leave them, the running one included.
    pub counters: Counters,
    /// What the device below can store, where that is less than there are places.
    pub device: Option<DeviceRoom>,
}

impl Accounting {
    pub fn new(fpb: u64, counters: Counters, free_blocks: u64) -> Accounting {
        let available = counters.free_frags;
        Accounting {
            fpb,
            root_reserve: 0,
            available,
            free_blocks,
            unloaded: available.saturating_sub(free_blocks * fpb),
            reserved_frags: 0,
            reserved_blocks: 0,
            pending: 0,
            epoch: 0,
            freezes: 0,
            counters,
            device: None,
        }
    }

    /// Adds free blocks because the file system has grown.
    pub fn enlarge(&mut self, blocks: u64) {
        self.available += blocks * self.fpb;
        self.free_blocks += blocks;
        self.epoch += 1;
        self.counters.free_frags += blocks * self.fpb;
    }

    /// Reserved fragments, including those of reserved blocks.
    pub fn reserved_total(&self) -> u64 {
        self.reserved_frags + self.reserved_blocks * self.fpb
    }

    /// Whether `n` more fragments can be reserved, or allocated without a reservation.
    fn affords(&self, n: u64, privileged: bool) -> bool {
        let kept = if privileged { 0 } else { self.root_reserve };
        let later = if self.freezes > 0 { self.pending } else { 0 };
        self.reserved_total().saturating_add(kept).saturating_add(later).saturating_add(n) <= self.available
    }

    /// What is reserved.
    pub(super) fn reserved(&self) -> Reserved {
        let unwritten = self.counters.unwritten;
        Reserved { frags: self.reserved_frags, blocks: self.reserved_blocks, unwritten }
    }

    /// Whether the device can store so many fragments or blocks more.
    fn device_affords(&self, frags: u64, blocks: u64, asker: Asker) -> bool {
        frags == 0 && blocks == 0
            || self.device.as_ref().is_none_or(|d| d.affords(frags, blocks, self.reserved(), asker))
    }

    pub fn reserve(&mut self, n: u64, privileged: bool) -> Result<()> {
        if !self.affords(n, privileged) || !self.device_affords(n, 0, Asker::of(privileged)) {
            return Err(Error::NoSpace);
        }
        self.reserved_frags += n;
        Ok(())
    }

    /// Claims space of a thin device for so many fragments; returns the bytes ([`super::copies`]).
    pub fn claim(&mut self, n: u64) -> u64 {
        self.device.as_mut().map_or(0, |d| d.claim(n))
    }

    pub fn unclaim(&mut self, bytes: u64) {
        if let Some(device) = &mut self.device {
            device.unclaim(bytes);
        }
    }

    pub fn unreserve(&mut self, n: u64) {
        debug_assert!(self.reserved_frags >= n, "{n} of {} fragments unreserved", self.reserved_frags);
        self.reserved_frags = self.reserved_frags.saturating_sub(n);
    }

    /// Reserves `n` blocks if enough free blocks are known. Returns how many are missing; 0 if they were reserved.
    pub fn reserve_blocks(&mut self, n: u64, asker: Asker) -> Result<u64> {
        let privileged = asker != Asker::Program;
        if !self.affords(n.saturating_mul(self.fpb), privileged) || !self.device_affords(0, n, asker) {
            return Err(Error::NoSpace);
        }
        let missing = (self.reserved_blocks + n).saturating_sub(self.free_blocks);
        if missing == 0 {
            self.reserved_blocks += n;
        }
        Ok(missing)
    }

    pub fn unreserve_blocks(&mut self, n: u64) {
        debug_assert!(self.reserved_blocks >= n, "{n} of {} blocks unreserved", self.reserved_blocks);
        self.reserved_blocks = self.reserved_blocks.saturating_sub(n);
        self.epoch += 1;
    }

    /// Free blocks that nobody has reserved: data may break them up.
    pub fn unreserved_blocks(&self) -> u64 {
        self.free_blocks.saturating_sub(self.reserved_blocks)
    }

    /// An AG was loaded, with so many free fragments, of which so many blocks are wholly free.
    pub fn loaded(&mut self, frags: u64, blocks: u64) {
        self.unloaded = self.unloaded.saturating_sub(frags);
        self.free_blocks += blocks;
    }

    /// Free fragments of blocks that are partly in use, in AGs that are loaded.
    pub fn in_gaps(&self) -> u64 {
        self.available.saturating_sub(self.pending + self.unloaded + self.free_blocks * self.fpb)
    }

    /// Blocks that an allocation of this class may use.
    pub fn limit(&self, class: AllocationClass<'_>) -> u64 {
        match class {
            AllocationClass::Data => self.unreserved_blocks(),
            AllocationClass::Meta(reservation) => {
                reservation.blocks() + self.unreserved_blocks().min(self.affordable(reservation))
            }
        }
    }

    /// Whether knowing more free blocks would raise [`Accounting::limit`].
    pub fn wants_blocks(&self, class: AllocationClass<'_>) -> bool {
        match class {
            AllocationClass::Data => true,
            AllocationClass::Meta(reservation) => self.unreserved_blocks() < self.affordable(reservation),
        }
    }

    /// Blocks that the second invariant allows beyond those in the reservation.
    fn affordable(&self, reservation: &Reservation) -> u64 {
        let kept = if reservation.privileged() { 0 } else { self.root_reserve };
        let places = self.available.saturating_sub(self.reserved_total()).saturating_sub(kept) / self.fpb;
        match &self.device {
            Some(room) if places > 0 => places.min(room.affordable_blocks(self.reserved(), asker_of(reservation))),
            _ => places,
        }
    }

    /// Allocates `frags` fragments, which leaves `lost` wholly free blocks fewer. False if others have reserved them.
    pub fn take(&mut self, frags: u64, lost: u64, class: AllocationClass<'_>) -> bool {
        match class {
            AllocationClass::Data => {
                if lost > 0 && lost > self.unreserved_blocks() {
                    return false;
                }
                // In the same step, because a fragment must not be both allocated and reserved.
                self.unreserve(frags);
            }
            AllocationClass::Meta(reservation) => {
                let own = reservation.blocks().min(lost);
                let rest = lost - own;
                if rest > 0
                    && (rest > self.unreserved_blocks()
                        || !self.affords(rest * self.fpb, reservation.privileged())
                        || !self.device_affords(0, rest, asker_of(reservation)))
                {
                    return false;
                }
                self.reserved_blocks = self.reserved_blocks.saturating_sub(reservation.take_blocks(own));
            }
        }
        self.available = self.available.saturating_sub(frags);
        self.free_blocks = self.free_blocks.saturating_sub(lost);
        self.epoch += u64::from(lost > 0);
        true
    }

    /// Returns allocated fragments of data: they are reserved again.
    pub fn refund_data(&mut self, frags: u64) {
        self.available += frags;
        self.reserved_frags += frags;
    }

    /// Returns allocated blocks of metadata: those that came from the reservation go back to it.
    pub fn refund_blocks(&mut self, blocks: u64, reservation: &Reservation) {
        self.reserved_blocks += reservation.refund_blocks(blocks);
    }
}

/// Who allocates beyond what a reservation holds.
fn asker_of(reservation: &Reservation) -> Asker {
    if reservation.is_of_space() { Asker::of(reservation.privileged()) } else { Asker::FileSystem }
}
