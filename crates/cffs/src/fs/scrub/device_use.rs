//! What bytes of the device are used for: whoever compares copies asks, when nobody can say which one is right.

use crate::error::Result;
use crate::format::superblock::SUPERBLOCK_SIZE;
use crate::fs::Fs;
use crate::superblocks::backup_ags;

/// What bytes of the device are used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// Nothing is stored there: no file, no metadata, nothing that a transaction frees and is not yet durable. Or it lies behind the file system.
    Free,
    /// The log, whose contents have checksums and are replaced all the time.
    Log,
    /// Something else.
    Stored,
}

impl Fs {
    /// What bytes of the device are used for, from `offset` on, none of which crosses the end of an allocation group.
    ///
    /// # Errors
    /// Those of reading a bitmap.
    pub fn device_use(&self, offset: u64, len: u64) -> Result<DeviceUse> {
        let g = &self.geo;
        let log = (g.log_start << g.block_shift, (g.log_start + g.log_blocks) << g.block_shift);
        if g.log_start > 0 && offset >= log.0 && offset + len <= log.1 {
            return Ok(DeviceUse::Log);
        }
        // The first block of each allocation group is for a superblock, which fills its first sector; most have none.
        let block = offset >> g.block_shift;
        if block < g.total_blocks && block == g.ag_start(g.ag_of(block)) {
            let has_superblock = block == 0 || backup_ags(g).any(|ag| g.ag_start(ag) == block);
            if !has_superblock || offset - (block << g.block_shift) >= SUPERBLOCK_SIZE as u64 {
                return Ok(DeviceUse::Free);
            }
        }
        let end = offset.saturating_add(len).div_ceil(g.frag_size() as u64).min(g.total_bytes() >> g.frag_shift);
        let start = offset >> g.frag_shift;
        let is_free = start >= end || self.space.is_free(start, end)?;
        Ok(if is_free { DeviceUse::Free } else { DeviceUse::Stored })
    }
}
