//! The moment from which on a thin device keeps what is overwritten, because a snapshot has it.
//!
//! Until then data that overwrites other data needs no space: it gives back as much as it takes. Such data may be dirty, and more of it may come, up
//! to the moment when the snapshot is made; and with the first snapshot the device keeps something back for itself. So before
//! it is made, all is accounted for as it will be then. From that moment on whoever is promised something new is promised what is there afterwards. What
//! was promised before is written back. If the rest does not fit, there is no snapshot.

use super::free_space::Space;
use crate::error::{Error, Result};
use parking_lot::{MutexGuard, RwLockReadGuard};

/// Held from the moment when an overwrite was found to need no space until its data is dirty.
pub(crate) struct Overwriting<'a>(#[allow(dead_code, reason = "it is held")] Option<RwLockReadGuard<'a, ()>>);

impl<'a> Overwriting<'a> {
    /// Of a device where this is not asked.
    pub(super) fn anywhere() -> Self {
        Overwriting(None)
    }

    pub(super) fn begin(space: &'a Space) -> Self {
        Overwriting(Some(space.overwriting.read()))
    }
}

/// While this lives, everything is accounted for as if the device kept what is overwritten.
pub(crate) struct KeepOld<'a> {
    space: &'a Space,
    _one: MutexGuard<'a, ()>,
}

impl Space {
    /// From now on accounts for everything as if the device kept what is overwritten, and had so many bytes less. When this returns, what was
    /// accounted for otherwise is dirty.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the device does not even have these bytes.
    pub(crate) fn keep_old(&self, bytes: u64) -> Result<KeepOld<'_>> {
        let one = self.keeping_old.lock();
        if let Some(room) = &mut self.accounting.lock().device {
            if room.space().free < bytes.saturating_add(2 * room.margin) {
                return Err(Error::NoSpace);
            }
            room.withheld = Some(bytes);
        }
        let keeping = KeepOld { space: self, _one: one };
        drop(self.overwriting.write());
        Ok(keeping)
    }
}

impl KeepOld<'_> {
    /// Fails if not all that is promised can be stored then.
    pub(crate) fn check(&self) -> Result<()> {
        let accounting = self.space.accounting.lock();
        let keeps = accounting.device.as_ref().is_none_or(|room| room.keeps_promises(accounting.reserved()));
        if keeps { Ok(()) } else { Err(Error::NoSpace) }
    }
}

impl Drop for KeepOld<'_> {
    fn drop(&mut self) {
        if let Some(room) = &mut self.space.accounting.lock().device {
            room.withheld = None;
        }
    }
}
