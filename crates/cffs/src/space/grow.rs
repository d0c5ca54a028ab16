//! Growing a mounted file system at its end.
//!
//! A transaction changes the size in the counters, the number of free fragments, and, if the old end had cut the last
//! allocation group short, the bits behind that end, which the bitmap has as used. Groups behind it are virgin, so
//! nothing is written for them. The bits of a long AG take several transactions; each of them results in a valid
//! size.

use super::free_space::Space;
use crate::error::Result;
use crate::format::Run;
use crate::journal::{Journal, Txn};
use std::sync::atomic::Ordering;

/// Most fragments that one transaction adds to an AG that is on the device. This bounds its log records.
const STEP_FRAGS: u64 = 1 << 17;

impl Space {
    /// Grows the file system to `total_blocks`, durable with the next commit. The caller ensures that the device is
    /// that long, that the last allocation group has room for its header, that the superblock says so, and that nobody
    /// else grows it at the same time.
    pub(crate) fn grow(&self, journal: &Journal, total_blocks: u64) -> Result<()> {
        loop {
            if self.g.total_blocks >= total_blocks {
                return Ok(());
            }
            self.prepare_growth()?;
            let txn = journal.begin(self.log_bytes(STEP_FRAGS))?;
            self.grow_step(&txn, total_blocks)?;
        }
    }

    /// Reads what the next step changes. An error means that the file system cannot grow, because its last allocation
    /// AG is damaged.
    pub(crate) fn prepare_growth(&self) -> Result<()> {
        let last = self.g.ag_count - 1;
        if last < self.open.load(Ordering::Acquire) {
            let group = self.alloc_group(last);
            // Fails if the AG is damaged.
            self.with_free_set(&group, |_| ())?;
            if !group.is_virgin() && group.end() < self.g.frag_of_block(self.g.ag_start(last) + self.g.ag_blocks) {
                let pinned = group.prepare(&self.cache, Run { start: group.end(), len: 1 })?;
                if pinned {
                    self.pin(group);
                }
            }
        }
        Ok(())
    }

    /// Grows by as much as one transaction can.
    fn grow_step(&self, txn: &Txn<'_>, total_blocks: u64) -> Result<()> {
        // Nobody initializes an AG meanwhile, because its contents depend on the size.
        let _init = self.init.lock();
        let g = **self.g;
        let last = g.ag_count - 1;
        let end = total_blocks.min(g.ag_start(last) + g.ag_blocks);
        let whole = |to: u64| {
            let added = to - g.total_blocks - (g.with_size(to).ag_count - g.ag_count) * g.ag_header_blocks();
            move || self.enlarge(to, added)
        };
        if last >= self.open.load(Ordering::Acquire) || end == g.total_blocks {
            // The last AG is not in memory, or it is complete.
            let groups = self.groups.write();
            if end == g.total_blocks || !groups.contains_key(&last) {
                whole(total_blocks)();
            }
            return Ok(());
        }
        let group = self.alloc_group(last);
        let (to, pinned) = if group.is_virgin() {
            (total_blocks, group.extend(txn, g.frag_of_block(end), whole(total_blocks))?)
        } else {
            let to = end.min(g.total_blocks + g.block_of_frag(STEP_FRAGS));
            (to, group.extend(txn, g.frag_of_block(to), whole(to))?)
        };
        debug_assert_eq!(self.g.total_blocks, to);
        if pinned {
            self.pin(group);
        }
        Ok(())
    }

    /// Changes size and accounting in one step, so that allocations in the new part find it accounted for.
    fn enlarge(&self, total_blocks: u64, blocks: u64) {
        let accounting = &mut *self.accounting.lock();
        self.g.grow(total_blocks);
        accounting.enlarge(blocks);
        accounting.counters.blocks = total_blocks;
        accounting.root_reserve = self.share(self.reserve_bp.load(Ordering::Relaxed));
    }

    /// Changes the share of the whole that only privileged users get, in 1/10,000.
    pub(crate) fn set_root_reserve(&self, reserve_bp: u32) {
        let accounting = &mut *self.accounting.lock();
        self.reserve_bp.store(reserve_bp, Ordering::Relaxed);
        match &mut accounting.device {
            // Places are plenty: what is short is the space of the device.
            Some(room) => room.reserve_bp = reserve_bp,
            None => accounting.root_reserve = self.share(reserve_bp),
        }
    }

    fn share(&self, reserve_bp: u32) -> u64 {
        (u128::from(self.g.total_frags()) * u128::from(reserve_bp.min(10_000)) / 10_000) as u64
    }
}
