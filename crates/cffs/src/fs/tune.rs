//! Changing settings of a mounted file system, and trimming its free space.

use super::{Error, Fs, Result, Superblock};
use crate::trace::Kind;
use crate::tune::Tune;
use cffs_device::{Device, Purpose};
use std::sync::atomic::Ordering;

/// The range that [`Fs::trim`] discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TrimRange {
    /// First byte.
    pub start: u64,
    /// Number of bytes. The range is cut at the end of the file system.
    pub len: u64,
    /// Free runs of fewer bytes are skipped.
    pub min_len: u64,
}

impl Default for TrimRange {
    fn default() -> Self {
        TrimRange { start: 0, len: u64::MAX, min_len: 0 }
    }
}

impl Fs {
    /// Changes settings in the superblock. A new reserve takes effect at once. Returns the superblock before and after.
    ///
    /// Fails with [`Error::Invalid`] for a value that is not possible, [`Error::Busy`] for the uuid, which does not
    /// change under a mount, and [`Error::ReadOnly`].
    pub fn tune(&self, tune: &Tune) -> Result<(Superblock, Superblock)> {
        let _span = self.span(Kind::Tune, [0; 3]);
        tune.check()?;
        self.writable()?;
        if tune.uuid.is_some() {
            return Err(Error::Busy("the uuid of a mounted file system cannot be changed".into()));
        }
        let mut sb = self.sb.lock();
        let (before, mut after) = (sb.clone(), sb.clone());
        tune.apply(&mut after);
        if after != before {
            self.put_superblock(&after)?;
            *sb = after.clone();
            self.space.set_root_reserve(after.reserve_bp);
        }
        Ok((before, after))
    }

    /// Discards what a thin device stores and no file has: data that was written before a crash, and whose mapping was not committed; and what was freed
    /// while the device could not be told. The first call after that does it; elsewhere there is nothing to do.
    ///
    /// # Errors
    /// Those of [`Fs::trim`].
    pub fn trim_after_crash(&self) -> Result<()> {
        if self.unused_is_stored.load(Ordering::Relaxed) && self.dev.space().is_some() {
            // What is freed meanwhile may need another one.
            self.unused_is_stored.store(false, Ordering::Relaxed);
            self.trim(TrimRange::default()).inspect_err(|_| self.unused_is_stored.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    }

    /// Discards all free space in the range, including space that was never used. Commits first, so that space freed
    /// before is included. Returns the number of discarded bytes.
    ///
    /// Fails with [`Error::Unsupported`] if the device cannot discard, [`Error::ReadOnly`], [`Error::Invalid`] if the
    /// range begins behind the end or is shorter than a block, as in ext4 and XFS.
    pub fn trim(&self, range: TrimRange) -> Result<u64> {
        let _span = self.span(Kind::Trim, [0; 3]);
        self.writable()?;
        if range.start >= self.geo.total_bytes() {
            return Error::invalid(format!("byte {} is behind the end of the file system", range.start));
        }
        let block = self.geo.block_size() as u64;
        if range.len < block {
            return Error::invalid(format!("a range of {} bytes is shorter than a block of {block}", range.len));
        }
        self.journal.commit()?;
        let shift = self.geo.frag_shift;
        let end = range.start.saturating_add(range.len) >> shift;
        let frags = range.start.div_ceil(self.geo.frag_size() as u64)..end.min(self.geo.total_frags());
        let discarded = self.space.trim(frags, range.min_len.div_ceil(1 << shift), |run| {
            if !self.dev.can_discard() {
                return Err(Error::Unsupported);
            }
            let _purpose = Purpose::Clean.scope();
            self.dev.discard(run.start << shift, run.len << shift)?;
            // The device may find out only now that it cannot discard.
            if self.dev.can_discard() { Ok(()) } else { Err(Error::Unsupported) }
        })?;
        Ok(discarded << shift)
    }
}
