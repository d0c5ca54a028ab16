//! Space for data that is written without having been dirty in the cache: what is moved, and direct writes.
//!
//! On a thin device, what dirty data will take is known from the cache, up to the moment when the device has it. Of other data only the
//! reservation is known, and that ends when places are allocated, which is before the device has the data. So who
//! writes such data claims its space until it is stored.

use super::free_space::Space;
use crate::error::Result;
use crate::reservation::{Reservation, SpacePool};
use parking_lot::Mutex;
use std::sync::Arc;

/// Fragments, and the bytes of the device that they take at most.
#[derive(Clone, Copy, Debug, Default)]
struct Claimed {
    frags: u64,
    bytes: u64,
}

impl Claimed {
    /// Takes the share of so many fragments out.
    fn take(&mut self, frags: u64) -> u64 {
        let frags = frags.min(self.frags);
        if frags == 0 {
            return 0;
        }
        let bytes = (u128::from(self.bytes) * u128::from(frags) / u128::from(self.frags)) as u64;
        *self = Claimed { frags: self.frags - frags, bytes: self.bytes - bytes };
        bytes
    }
}

/// Space that is claimed while this lives, or until it is stored.
pub(crate) struct Claim {
    space: Arc<Space>,
    claimed: Mutex<Claimed>,
}

impl Claim {
    /// So many fragments are stored or are given up.
    fn end(&self, frags: u64) {
        let bytes = self.claimed.lock().take(frags);
        self.space.unclaim(bytes);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let bytes = std::mem::take(self.claimed.get_mut()).bytes;
        self.space.unclaim(bytes);
    }
}

/// A claim is a pool to reserve from, where reserving claims as well.
impl SpacePool for Claim {
    fn reserve_frags(&self, n: u64, privileged: bool) -> Result<()> {
        let bytes = {
            let accounting = &mut *self.space.accounting.lock();
            accounting.reserve(n, privileged)?;
            accounting.claim(n)
        };
        let claimed = &mut *self.claimed.lock();
        *claimed = Claimed { frags: claimed.frags + n, bytes: claimed.bytes + bytes };
        Ok(())
    }

    fn release_frags(&self, n: u64) {
        self.space.release_frags(n);
        self.end(n);
    }

    fn reserve_blocks(&self, n: u64, privileged: bool) -> Result<()> {
        self.space.reserve_blocks(n, privileged)
    }

    fn release_blocks(&self, n: u64) {
        self.space.release_blocks(n);
    }
}

/// What is reserved for copies. Clones share it.
#[derive(Clone)]
pub(crate) struct Copies {
    reservation: Reservation,
    claim: Arc<Claim>,
}

impl Copies {
    /// The reservation. What is allocated from it stays claimed.
    pub(crate) fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// The device has so many fragments of what was allocated.
    pub(crate) fn stored(&self, frags: u64) {
        self.claim.end(frags);
    }
}

impl Space {
    /// An empty reservation for copies.
    pub(crate) fn copies(self: &Arc<Self>) -> Copies {
        let claim = Arc::new(self.claim(0));
        Copies { reservation: Reservation::new(claim.clone(), None, false), claim }
    }

    /// Claims what so many fragments take, whether it is there or not: who reserves them next learns that.
    pub(crate) fn claim(self: &Arc<Self>, frags: u64) -> Claim {
        let bytes = if frags > 0 && self.thin { self.accounting.lock().claim(frags) } else { 0 };
        Claim { space: self.clone(), claimed: Mutex::new(Claimed { frags, bytes }) }
    }

    /// The same for fragments that were never written, if no room is kept for them anyway.
    pub(crate) fn claim_unwritten(self: &Arc<Self>, frags: u64) -> Claim {
        self.claim(if self.keeps_unwritten() { 0 } else { frags })
    }

    fn unclaim(&self, bytes: u64) {
        if bytes > 0 {
            self.accounting.lock().unclaim(bytes);
        }
    }
}
