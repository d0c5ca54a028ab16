//! Places outside: room for what is moved out of a part of the device, anywhere else.

use super::alloc::Found;
use super::class::AllocationClass;
use super::free_space::Space;
use super::long_runs::Offer;
use crate::error::Result;
use crate::format::{FragAddr, Run};
use crate::reservation::Reservation;
use std::ops::Range;

impl Space {
    /// Allocates `want` fragments of data outside of some parts, in the shortest gap that has room, or else a part of them in the
    /// longest gap. Reservations end as with [`Space::alloc_near`].
    pub fn alloc_gap(&self, want: u64, avoid: &[Range<FragAddr>]) -> Result<Option<Run>> {
        self.alloc_outside(want, 0, avoid, AllocationClass::Data)
    }

    /// Allocates one block of metadata outside of some parts.
    pub fn alloc_meta_gap(&self, reservation: &Reservation, avoid: &[Range<FragAddr>]) -> Result<Option<Run>> {
        let shift = self.g.block_shift - self.g.frag_shift;
        self.alloc_outside(1 << shift, shift, avoid, AllocationClass::Meta(reservation))
    }

    fn alloc_outside(
        &self,
        want: u64,
        align: u32,
        avoid: &[Range<FragAddr>],
        class: AllocationClass<'_>,
    ) -> Result<Option<Run>> {
        let want = u32::try_from(want).unwrap_or(u32::MAX);
        if want == 0 {
            return Ok(None);
        }
        let found = self.best_offer(
            |_| true,
            |set, first| {
                let usable = |start: u32, len: u32| {
                    let (start, end) = (first + u64::from(start), first + u64::from(start) + u64::from(len));
                    avoid.iter().all(|part| end <= part.start || part.end <= start)
                };
                let (start, len) = set.gap_for(want, align, usable)?;
                let fits = len >= want;
                // What fits is the better the shorter it is, what does not the longer.
                let rank = if fits { u64::from(len) } else { u64::from(u32::MAX) + u64::from(want - len) };
                Some((rank, start, len.min(want)))
            },
        )?;
        let Some(((_, start, len), ag)): Option<(Offer, u64)> = found else { return Ok(None) };
        let group = self.alloc_group(ag);
        let taken = self.with_free_set(&group, |set| {
            // Others may have allocated it meanwhile.
            if !set.is_free(start, start + len) {
                return None;
            }
            self.take(&group, set, start, len, class)
        })?;
        Ok(taken.and_then(Found::run))
    }
}
