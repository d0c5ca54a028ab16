//! Space on a thin device, as the file system asks for it.

use super::device_room::{Asker, PIECES_MAX};
use super::free_space::Space;
use super::keep_old::Overwriting;
use crate::error::{Error, Result};

/// Fragments of a file that have their places, and are to be written.
#[derive(Clone, Copy, Default)]
pub(crate) struct Over {
    /// They are stored, with something: writing them needs no space, unless the device keeps what is there.
    pub(crate) written: u64,
    /// They were never written, and room is kept for them.
    pub(crate) kept: u64,
    /// They were never written, and are in units of the device with something else: what is kept is not counted for them.
    pub(crate) ends: u64,
}

impl Over {
    pub(crate) fn written(frags: u64) -> Over {
        Over { written: frags, ..Over::default() }
    }
}

impl Space {
    /// Whether the device has less space than places.
    pub(crate) fn is_thin(&self) -> bool {
        self.thin
    }

    /// Pieces in which data that was reserved at once may be allocated.
    pub(crate) fn pieces_max(&self) -> usize {
        if self.thin { PIECES_MAX } else { usize::MAX }
    }

    /// Fragments that the device can store in all, how many of them are free, and how many of these only privileged users
    /// get. `None` if each place has space.
    pub(crate) fn thin_frags(&self) -> Option<[u64; 3]> {
        if !self.thin {
            return None;
        }
        let accounting = self.accounting.lock();
        let room = accounting.device.as_ref()?;
        let (total, free) = room.totals(accounting.reserved());
        let kept = total / 10_000 * u64::from(room.reserve_bp);
        Some([total, free, kept].map(|bytes| bytes >> self.g.frag_shift))
    }

    /// The device learns how much of its space is promised, as it is after something was written.
    pub(crate) fn renew_reservation(&self) {
        if !self.thin {
            return;
        }
        let accounting = self.accounting.lock();
        if let Some(room) = &accounting.device {
            room.renew(accounting.reserved());
        }
    }

    /// Everything is written, and nothing will be: the device need not keep anything for this file system.
    pub(crate) fn end_reservation(&self) {
        if let Some(room) = &self.accounting.lock().device {
            room.end();
        }
    }

    /// Whether the device keeps what is overwritten, as one with snapshots does.
    pub(crate) fn keeps_old(&self) -> bool {
        self.thin && self.accounting.lock().device.as_ref().is_some_and(|room| room.space().keeps_old)
    }

    /// Whether data may be written to places that a file has already. What this returns is held until the data is dirty, if it is not claimed.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn check_overwrite(&self, over: Over, privileged: bool) -> Result<Overwriting<'_>> {
        let Over { written, kept, ends } = over;
        if !self.thin || written + kept + ends == 0 {
            return Ok(Overwriting::anywhere());
        }
        let overwriting = Overwriting::begin(self);
        let accounting = self.accounting.lock();
        let Some(room) = accounting.device.as_ref() else { return Ok(overwriting) };
        let reserved = accounting.reserved();
        let asker = Asker::of(privileged);
        let (kept, ends, unkept) = if room.keeps_unwritten { (kept, ends, 0) } else { (0, 0, kept + ends) };
        let asked = unkept + if room.space().keeps_old { written } else { 0 };
        let is_room = (kept == 0 || room.has_unwritten(reserved))
            && (ends == 0 || room.affords(ends, 0, reserved, Asker::Kept))
            && (asked == 0 || room.affords(asked, 0, reserved, asker));
        if is_room { Ok(overwriting) } else { Err(Error::NoSpace) }
    }

    /// Whether anything may be changed. Only where the device keeps what was there, also deleting takes space, and there
    /// may be none.
    pub(crate) fn may_change(&self) -> bool {
        if !self.thin {
            return true;
        }
        let accounting = self.accounting.lock();
        let Some(room) = accounting.device.as_ref() else { return true };
        let s = room.space();
        !s.keeps_old || s.free >= room.margin
    }
}
