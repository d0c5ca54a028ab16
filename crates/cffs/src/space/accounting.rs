//! The accounts of free space, in two currencies.
//!
//! File data goes anywhere, fragment by fragment. A block of metadata needs a whole, aligned block: a device can have any
//! number of free fragments and not one free block. So promises are made in fragments and in blocks, and two sums hold at
//! every moment:
//!
//! 1. blocks that are wholly free >= blocks promised;
//! 2. fragments available >= fragments promised + those of the blocks promised.
//!
//! Data may break up a free block only where the first one still holds afterwards; then, by the second, what is promised to
//! data finds room in the pieces. So whoever has a promise is served, however scattered free space is: writeback does not
//! run out of it (design decision 6).

use super::class::AllocationClass;
use crate::error::{Error, Result};
use crate::format::system::Counters;
use crate::reservation::Reservation;

/// The accounts. One lock for all, so that every look at them adds up.
pub(super) struct Accounting {
    /// Fragments in a block.
    fpb: u64,
    /// Fragments that only privileged users get.
    pub root_reserve: u64,
    /// Free fragments: those in the free extents and those whose freeing is not durable yet.
    pub available: u64,
    /// Wholly free blocks of the groups that are known: loaded, or never used. Blocks whose freeing is not durable do not
    /// count.
    pub free_blocks: u64,
    /// Fragments promised anywhere.
    pub reserved_frags: u64,
    /// Whole blocks promised.
    pub reserved_blocks: u64,
    /// Freed, but not durable yet.
    pub pending: u64,
    /// Grows whenever space turns up that was not there before: fragments that come back, blocks that are promised to nobody
    /// any more, the rest of a block that is broken up. A search that found nothing while this stood still has seen all
    /// there was; another may have looked in each place at the wrong moment.
    pub epoch: u64,
    /// While somebody waits for freed space to become usable, nobody gets a promise of such space.
    pub freezes: u32,
    pub committed: Counters,
}

impl Accounting {
    pub fn new(fpb: u64, committed: Counters, free_blocks: u64) -> Accounting {
        let available = committed.free_frags;
        Accounting {
            fpb,
            root_reserve: 0,
            available,
            free_blocks,
            reserved_frags: 0,
            reserved_blocks: 0,
            pending: 0,
            epoch: 0,
            freezes: 0,
            committed,
        }
    }

    /// So many whole blocks come with new space.
    pub fn enlarge(&mut self, blocks: u64) {
        self.available += blocks * self.fpb;
        self.free_blocks += blocks;
        self.epoch += 1;
        self.committed.free_frags += blocks * self.fpb;
    }

    /// Fragments that are promised, in either currency.
    pub fn reserved_total(&self) -> u64 {
        self.reserved_frags + self.reserved_blocks * self.fpb
    }

    /// Whether `n` more fragments can be promised or taken without a promise.
    fn affords(&self, n: u64, privileged: bool) -> bool {
        let kept = if privileged { 0 } else { self.root_reserve };
        let later = if self.freezes > 0 { self.pending } else { 0 };
        self.reserved_total().saturating_add(kept).saturating_add(later).saturating_add(n) <= self.available
    }

    pub fn reserve(&mut self, n: u64, privileged: bool) -> Result<()> {
        if !self.affords(n, privileged) {
            return Err(Error::NoSpace);
        }
        self.reserved_frags += n;
        Ok(())
    }

    pub fn unreserve(&mut self, n: u64) {
        debug_assert!(self.reserved_frags >= n, "{n} of {} fragments unreserved", self.reserved_frags);
        self.reserved_frags = self.reserved_frags.saturating_sub(n);
    }

    /// Blocks without which a promise of `n` more cannot be made; 0 when it was made.
    pub fn reserve_blocks(&mut self, n: u64, privileged: bool) -> Result<u64> {
        if !self.affords(n.saturating_mul(self.fpb), privileged) {
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

    /// Free blocks that data may break up.
    pub fn unreserved_blocks(&self) -> u64 {
        self.free_blocks.saturating_sub(self.reserved_blocks)
    }

    /// Blocks that can be taken by a class.
    pub fn limit(&self, class: AllocationClass<'_>) -> u64 {
        match class {
            AllocationClass::Data => self.unreserved_blocks(),
            AllocationClass::Meta(reservation) => {
                reservation.blocks() + self.unreserved_blocks().min(self.affordable(reservation))
            }
        }
    }

    /// Whether more known free blocks would raise [`Accounting::limit`].
    pub fn wants_blocks(&self, class: AllocationClass<'_>) -> bool {
        match class {
            AllocationClass::Data => true,
            AllocationClass::Meta(reservation) => self.unreserved_blocks() < self.affordable(reservation),
        }
    }

    /// Blocks that the sum of fragments leaves to the owner of a reservation, beyond what is in it.
    fn affordable(&self, reservation: &Reservation) -> u64 {
        let kept = if reservation.privileged() { 0 } else { self.root_reserve };
        self.available.saturating_sub(self.reserved_total()).saturating_sub(kept) / self.fpb
    }

    /// Takes `frags` fragments out, which `lost` free blocks end with. False if they are promised to others.
    pub fn take(&mut self, frags: u64, lost: u64, class: AllocationClass<'_>) -> bool {
        match class {
            AllocationClass::Data => {
                if lost > 0 && lost > self.unreserved_blocks() {
                    return false;
                }
                // In the same step: never is a fragment taken and promised too.
                self.unreserve(frags);
            }
            AllocationClass::Meta(reservation) => {
                let own = reservation.blocks().min(lost);
                let rest = lost - own;
                if rest > 0
                    && (rest > self.unreserved_blocks() || !self.affords(rest * self.fpb, reservation.privileged()))
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

    /// Data that had been placed is without a place again: its promise is made once more.
    pub fn refund_data(&mut self, frags: u64) {
        self.available += frags;
        self.reserved_frags += frags;
    }

    /// Puts whole blocks of metadata back that were not needed. What had come out of the reservation is promised to its owner
    /// again.
    pub fn refund_blocks(&mut self, blocks: u64, reservation: &Reservation) {
        self.reserved_blocks += reservation.refund_blocks(blocks);
    }
}
