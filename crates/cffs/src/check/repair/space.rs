//! Derived structures of free space: bitmaps, headers of allocation groups, counters, copies of the superblock.

use super::repairer::Repairer;
use crate::check::{Class, Phase};
use crate::error::Result;
use crate::format::ag::{AG_FREE_FRAGS, BITMAP_BITS, BITMAP_INDEX, free_runs, set_bits};
use crate::format::sums::AG_SUM_BLOCKS;
use crate::format::superblock::SUPERBLOCK_SIZE;
use crate::format::system::{COUNT_FREE_FRAGS, COUNTERS_LEN, Counters};
use crate::format::{BlockId, BlockKind, FragAddr, LongestRuns, Superblock, block_seq, init_block, put_u64};
use crate::superblocks::backup_ags;

impl Repairer<'_> {
    /// Allocation groups that count as initialized: as many as the counters say, if the last of them looks like it, and
    /// all that something is used in.
    pub(super) fn groups_in_use(&mut self) -> u64 {
        let count = self.g.ag_count;
        let said = match self.vol.meta(self.counters_id()) {
            Ok(b) => Counters::decode(&b).ags,
            Err(_) => 0,
        };
        let plausible = (1..=count).contains(&said)
            && self
                .vol
                .meta(BlockId { kind: BlockKind::AgHeader, addr: self.g.ag_header(said - 1), owner: said - 1 })
                .is_ok();
        let mut plausible = plausible.then(|| said - 1);
        if plausible.is_none() {
            // Groups are initialized in order; a few of their headers may be damaged.
            let mut missed = 0;
            for ag in 0..count {
                let id = BlockId { kind: BlockKind::AgHeader, addr: self.g.ag_header(ag), owner: ag };
                if self.vol.meta(id).is_ok() {
                    plausible = Some(ag);
                    missed = 0;
                } else {
                    missed += 1;
                    if missed > 16 {
                        break;
                    }
                }
            }
        }
        let used = self.space.used.last().map_or(0, |f| self.g.ag_of(self.g.block_of_frag(f)));
        used.max(plausible.unwrap_or(0)) + 1
    }

    fn counters_id(&self) -> BlockId {
        BlockId { kind: BlockKind::Counters, addr: self.g.counters_block(), owner: 0 }
    }

    /// Writes a metadata block that follows from the rest, keeping its sequence number. True if it was different.
    fn derive(&mut self, id: BlockId, fill: impl FnOnce(&mut [u8])) -> Option<Vec<u8>> {
        let old = self.vol.get(id.addr).unwrap_or_default();
        let mut b = vec![0; self.g.block_size()];
        init_block(&mut b, self.g.fsid, id);
        if old.len() == b.len() {
            put_u64(&mut b, 32, block_seq(&old));
        }
        fill(&mut b);
        let seq = block_seq(&b);
        crate::format::seal(&mut b, seq);
        (b != old).then_some(b)
    }

    /// Makes bitmaps and headers of all groups in use agree with the claims. Returns the free fragments.
    pub(super) fn rebuild_space(&mut self, ags: u64) -> Result<u64> {
        let g = self.g;
        let fpb = g.frags_per_block();
        let mut free_total = 0;
        for ag in 0..ags {
            let (first, frags) = (g.ag_start(ag) * fpb, g.ag_len(ag) * fpb);
            let mut free = 0;
            let place = format!("allocation group {ag}");
            for index in 0..g.bitmap_blocks() {
                let bits = g.bits_per_bitmap();
                let from = index * bits;
                let within = |frag: u64| frag.saturating_sub(from).min(bits);
                let mut runs: Vec<(FragAddr, FragAddr)> = vec![(0, g.ag_header_blocks() * fpb), (frags, from + bits)];
                let end = (from + bits).min(frags).max(from);
                runs.extend(self.space.used.within(first + from, first + end).map(|(s, e)| (s - first, e - first)));
                runs.extend(self.space.fixed.within(first + from, first + end).map(|(s, e)| (s - first, e - first)));
                let id = BlockId { kind: BlockKind::Bitmap, addr: g.bitmap_block(ag, index), owner: ag };
                let mut count = 0;
                let changed = self.derive(id, |b| {
                    put_u64(b, BITMAP_INDEX, index);
                    for (s, e) in runs.iter().filter(|(s, e)| s < e) {
                        set_bits(&mut b[BITMAP_BITS..], within(*s), within(*e), true);
                    }
                    count = free_runs(&b[BITMAP_BITS..], bits).map(|(_, len)| len).sum();
                });
                free += count;
                if let Some(b) = changed
                    && self.fix(
                        Class::Bitmap,
                        &place,
                        format!("free-space bitmap {index} is wrong"),
                        "write it anew",
                    )?
                {
                    self.vol.put(id.addr, b);
                }
            }
            let id = BlockId { kind: BlockKind::AgHeader, addr: g.ag_header(ag), owner: ag };
            let tables = self.usable_sums(ag, &place)?;
            let header = self.derive(id, |b| {
                put_u64(b, AG_FREE_FRAGS, free);
                b[AG_SUM_BLOCKS..AG_SUM_BLOCKS + tables.len()].copy_from_slice(&tables);
            });
            if let Some(b) = header
                && self.fix(Class::GroupHeader, &place, "its header is wrong".into(), "write it anew")?
            {
                self.vol.put(id.addr, b);
            }
            free_total += free;
            self.report_progress(Phase::Space, ag + 1, ags);
        }
        if ags < g.ag_count {
            let blocks = g.total_blocks - g.ag_start(ags);
            free_total += (blocks - (g.ag_count - ags) * g.ag_header_blocks()) * fpb;
        }
        Ok(free_total)
    }

    /// Makes the counters agree with what was found.
    pub(super) fn rebuild_counters(&mut self, free_frags: u64, ags: u64) -> Result<()> {
        let inodes = self.found.inodes.len() as u64 + 1;
        let unwritten = if self.sb.counts_unwritten() { self.found.unwritten } else { 0 };
        let new = Counters { free_frags, inodes, ags, orphan_head: 0, blocks: self.g.total_blocks, unwritten };
        let id = self.counters_id();
        if let Some(b) =
            self.derive(id, |b| b[COUNT_FREE_FRAGS..COUNT_FREE_FRAGS + COUNTERS_LEN].copy_from_slice(&new.encode()))
            && self.fix(Class::CountersBlock, "counters", "they are wrong".into(), "write them anew")?
        {
            self.vol.put(id.addr, b);
        }
        Ok(())
    }

    /// Makes the copies of the superblock agree with the primary.
    pub(super) fn rebuild_copies(&mut self) -> Result<()> {
        let g = self.g;
        for ag in backup_ags(&g) {
            let addr = self.g.ag_start(ag);
            let old = self.vol.get(addr).ok();
            let said = old.as_deref().and_then(|b| Superblock::decode(b).ok());
            let mut copy = Superblock { copy: ag, ..self.sb.clone() };
            if let Some(said) = said.filter(|said| said.fsid() == self.sb.fsid()) {
                copy = Superblock { copy: ag, ..self.sb.as_in_copy(&said) };
                // Growing writes the copies first, and may have been interrupted.
                if copy == said
                    || (Superblock { total_blocks: said.total_blocks, ..copy.clone() } == said
                        && said.total_blocks > copy.total_blocks)
                {
                    continue;
                }
            }
            copy.state = crate::format::superblock::State::Clean;
            copy.longest_runs = LongestRuns::UNKNOWN;
            let mut b = vec![0; self.g.block_size()];
            b[..SUPERBLOCK_SIZE].copy_from_slice(&copy.encode());
            let place = format!("superblock copy in allocation group {ag}");
            if self.fix(Class::SuperblockCopy, &place, "it is wrong".into(), "write it anew")? {
                self.vol.put_raw(addr, b);
            }
        }
        Ok(())
    }
}
