//! Quota files: their blocks, and their records compared with the usage of all inodes.

use super::checker::{Checker, DAMAGED_BLOCKS_MAX};
use super::extents::BlockMap;
use super::inventory::QuotaTotals;
use super::report::Class;
use crate::format::quota::{QUOTA_LBLOCK, place, records};
use crate::format::{BlockId, BlockKind, Inode, QuotaKind, get_u64};
use std::collections::HashMap;

impl Checker<'_> {
    /// Checks a quota file and keeps its records.
    pub(super) fn check_quota_file(&mut self, kind: QuotaKind, inode: &Inode) {
        self.check_fields(inode);
        self.check_xattr(inode);
        let blocks = BlockMap::read(self, inode);
        self.check_space(inode, blocks.frags, blocks.complete);
        let mut list = HashMap::new();
        let mut complete = blocks.complete;
        let (end, last) = (inode.size.div_ceil(self.g.block_size() as u64), place(self.g.block_size(), u32::MAX).0);
        let mut damaged = 0;
        for run in &blocks.runs {
            for n in 0..run.len {
                let (lblock, addr) = (run.lblock + n, run.block + n);
                let id = BlockId { kind: BlockKind::Quota, addr, owner: inode.ino };
                let wrong = match self.meta(id) {
                    _ if lblock >= end || lblock > last => Some(format!("block {lblock} lies behind the end")),
                    Err(what) => Some(what),
                    Ok(b) if get_u64(&b, QUOTA_LBLOCK) != lblock => {
                        Some(format!("block {addr} is number {}, expected {lblock}", get_u64(&b, QUOTA_LBLOCK)))
                    }
                    Ok(b) => {
                        list.extend(records(&b, lblock));
                        None
                    }
                };
                if let Some(what) = wrong {
                    complete = false;
                    self.inode_problem(Class::QuotaBlock, inode.ino, what);
                    damaged += 1;
                    if damaged > DAMAGED_BLOCKS_MAX {
                        return;
                    }
                }
            }
        }
        if self.sb.has_quota(kind) && inode.aux == 1 && complete {
            self.inventory.quotas[kind.index()].records = Some(list);
        }
    }

    /// Adds an inode to the usage of its ids.
    pub(super) fn count_for_quota(&mut self, inode: &Inode) {
        let ids = crate::quota::ids_of(inode);
        for (kind, quotas) in QuotaKind::ALL.into_iter().zip(&mut self.inventory.quotas) {
            if self.sb.has_quota(kind) {
                let sum = quotas.usage.entry(ids[kind.index()]).or_default();
                sum.0 = sum.0.saturating_add(inode.frags);
                sum.1 += 1;
            }
        }
    }

    /// Compares the records with the usage.
    pub(super) fn check_quotas(&mut self) {
        for kind in QuotaKind::ALL {
            let QuotaTotals { records, usage } = std::mem::take(&mut self.inventory.quotas[kind.index()]);
            let Some(records) = records else { continue };
            let mut ids: Vec<u32> = usage.keys().chain(records.keys()).copied().collect();
            ids.sort_unstable();
            ids.dedup();
            for id in ids {
                let r = records.get(&id).copied().unwrap_or_default();
                let found = usage.get(&id).copied().unwrap_or_default();
                if (r.frags, r.inodes) != found {
                    let what = format_args!(
                        "says {} fragments and {} inodes, but there are {} and {}",
                        r.frags, r.inodes, found.0, found.1
                    );
                    self.problem(Class::QuotaUsage, format_args!("quota of {} {id}", kind.name()), what);
                }
            }
        }
    }
}
