//! Space on a thin device, as the file system asks for it.

use super::device_room::{Asker, PIECES_MAX};
use super::free_space::Space;
use super::keep_old::Overwriting;
use crate::error::{Error, Result};

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

    /// Whether data may be written to places that a file has already: `frags` of them, which need no space unless they were never
    /// written (`unwritten`) or the device keeps what was there. What this returns is held until the data is dirty, if it is not claimed.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn check_overwrite(&self, frags: u64, unwritten: bool, privileged: bool) -> Result<Overwriting<'_>> {
        if !self.thin || frags == 0 {
            return Ok(Overwriting::anywhere());
        }
        let overwriting = Overwriting::begin(self);
        let accounting = self.accounting.lock();
        let Some(room) = accounting.device.as_ref() else { return Ok(overwriting) };
        if !unwritten && !room.space().keeps_old {
            return Ok(overwriting);
        }
        let asker = if privileged { Asker::Privileged } else { Asker::Program };
        if room.affords(frags, 0, accounting.reserved(), asker) { Ok(overwriting) } else { Err(Error::NoSpace) }
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
