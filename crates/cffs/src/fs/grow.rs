//! Growing a mounted file system.
//!
//! There are three steps, each durable before the next: the device grows; the superblock and its copies get the new
//! size; a transaction adds the free space (see `space::grow`). Until then the size in the counters is valid, so a
//! crash leaves a consistent file system of the old or the new size, and the next mount continues with the last step.

use super::{Error, Fs, Result, Superblock};
use crate::format::Geometry;
use crate::format::superblock::State;
use crate::mkfs;
use cffs_device::{Device, Purpose};

/// Sizes before and after growing, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Grown {
    /// Size of the file system before.
    pub from: u64,
    /// Size of the file system after.
    pub to: u64,
}

impl Fs {
    /// Grows the mounted file system to the size of the device, or to `size` bytes. An image in a regular file is
    /// extended if necessary. A rest that is too small for the header of an allocation group stays unused, so the new
    /// size may be a little smaller than `size`, or unchanged.
    ///
    /// Fails with [`Error::Invalid`] if the file system would shrink, and with [`Error::ReadOnly`]; errors of the
    /// device are passed on. After an error the file system has its old size, or one in between.
    pub fn grow(&self, size: Option<u64>) -> Result<Grown> {
        self.writable()?;
        let _one = self.grow_lock.lock();
        let from = self.geo.total_bytes();
        if let Some(size) = size.filter(|size| *size < from) {
            return Error::invalid(format!("the file system has {from} bytes and cannot shrink to {size}"));
        }
        let device = self.dev.grow(None)?;
        let usable = |bytes: u64| self.geo.usable_blocks(bytes >> self.geo.block_shift);
        let mut total = usable(size.unwrap_or(device));
        if total << self.geo.block_shift > device {
            total = total.min(usable(self.dev.grow(Some(total << self.geo.block_shift))?));
        }
        if total > self.geo.total_blocks {
            // Once the superblock has the new size, each mount goes on with growing.
            self.space.prepare_growth()?;
            self.announce_size(total)?;
            self.finish_growth()?;
            self.journal.commit()?;
        }
        Ok(Grown { from, to: self.geo.total_bytes() })
    }

    /// Writes the superblock and its copies with a new size.
    fn announce_size(&self, total_blocks: u64) -> Result<()> {
        // In file systems of older versions the counters get the size with this commit. It is valid from then on.
        self.journal.commit()?;
        let _purpose = Purpose::Checkpoint.scope();
        let mut sb = self.sb.lock();
        let new = Superblock { total_blocks, ..sb.clone() };
        let g = Geometry::new(&new)?;
        // The copies are durable before the primary superblock has the new size.
        for ag in mkfs::backup_ags(&g) {
            mkfs::write_superblock(&*self.dev, &g, &Superblock { copy: ag, state: State::Clean, ..new.clone() })?;
        }
        let flushed = self.dev.flush().map_err(Error::from);
        flushed.inspect_err(|e| self.journal.fail("growing failed", e))?;
        self.put_superblock(&new)?;
        *sb = new;
        Ok(())
    }

    /// Brings the free space up to the size in the superblock.
    pub(super) fn finish_growth(&self) -> Result<()> {
        let total = self.sb.lock().total_blocks;
        if total > self.geo.total_blocks {
            tracing::info!("growing from {} to {total} blocks", self.geo.total_blocks);
            self.space.grow(&self.journal, total)?;
        }
        Ok(())
    }
}
