//! Snapshots that a thin device makes of itself, with the file system in use.

use super::Fs;
use crate::error::{Error, Result};

impl Fs {
    /// Makes a snapshot of the device, which `make` does: everything that was done before the call is in it and durable. From then on the device keeps
    /// what is overwritten, and has `costs` bytes less for that. So what is written meanwhile is accounted for as if that were so already. Nobody who
    /// was promised space loses it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the device is too full for a snapshot, with nothing changed; those of writing back and of `make`.
    pub fn snapshot_device<T>(&self, costs: u64, make: impl FnOnce() -> Result<T>) -> Result<T> {
        // Most is written before others have to do with less.
        self.sync()?;
        if !self.space.is_thin() || self.is_read_only() {
            return make();
        }
        let full = |_| {
            let what = "there is too little free space for a snapshot: delete files, or make the image larger with `cffs grow`";
            Error::Invalid(what.into())
        };
        let keeping = self.space.keep_old(costs).map_err(full)?;
        // What overwrites something was promised no space, and what is reserved may never be used.
        self.sync()?;
        keeping.check().map_err(full)?;
        make()
    }
}
