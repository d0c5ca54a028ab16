//! What bytes of the device are used for: whoever compares copies asks, when nobody can say which one is right.

use crate::error::Result;
use crate::format::log::{LOG_HEADER_AREA, LOG_HEADER_SLOTS, LogHeader};
use crate::format::superblock::SUPERBLOCK_SIZE;
use crate::fs::Fs;
use crate::superblocks::backup_ags;

/// Bytes of a device of which each can be used for something else.
const SECTOR: usize = 512;

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
        } else if block < g.total_blocks && g.ag_of(block) >= self.space.counters().ags {
            // Its tables are written when it is first used.
            return Ok(DeviceUse::Free);
        }
        let end = offset.saturating_add(len).div_ceil(g.frag_size() as u64).min(g.total_bytes() >> g.frag_shift);
        let start = offset >> g.frag_shift;
        let is_free = start >= end || self.space.is_free(start, end)?;
        Ok(if is_free { DeviceUse::Free } else { DeviceUse::Stored })
    }

    /// Which of several copies of a block is right, of those that are given with their numbers: any where nothing is stored, and in the log once it is
    /// empty. `None` where only a checksum could tell, or nobody can.
    ///
    /// # Errors
    /// Those of reading a bitmap and of emptying the log.
    pub fn judge_copies(&self, offset: u64, copies: &[(usize, &[u8])]) -> Result<Option<usize>> {
        let Some((first, bytes)) = copies.first() else { return Ok(None) };
        let mut log = false;
        for (n, sector) in bytes.chunks(SECTOR).enumerate() {
            let at = n * SECTOR;
            if copies.iter().any(|(_, other)| other[at..at + sector.len()] != *sector) {
                match self.device_use(offset + at as u64, sector.len() as u64)? {
                    DeviceUse::Free => {}
                    DeviceUse::Log => log = true,
                    DeviceUse::Stored => return Ok(None),
                }
            }
        }
        if !log {
            return Ok(Some(*first));
        }
        let sb = self.superblock();
        let (log_at, len) = crate::journal::log_extent(&sb);
        let slot = LOG_HEADER_SLOTS.into_iter().find(|slot| log_at + slot == offset);
        if let Some(slot) = slot {
            // The newest that is whole counts.
            let whole = copies.iter().filter_map(|(copy, bytes)| {
                let header = LogHeader::decode(bytes, sb.fsid(), len - LOG_HEADER_AREA).ok()?;
                (LOG_HEADER_SLOTS[header.slot()] == slot).then_some((header.epoch, *copy))
            });
            return Ok(whole.max().map(|(_, copy)| copy));
        }
        if !self.is_read_only() {
            // What was in it is in place now. What is written there from now on comes to all copies.
            self.journal.checkpoint()?;
            return Ok(Some(*first));
        }
        Ok(None)
    }
}
