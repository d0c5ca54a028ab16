//! Space for what a repair writes.

use super::repairer::Repairer;
use crate::format::ag::{BITMAP_BITS, BITMAP_INDEX};
use crate::format::{BlockAddr, BlockId, BlockKind, FragAddr, get_u64, verify_block};

impl Repairer<'_> {
    /// Allocates space that nothing claims. Space that was free before the repair comes first, so that a copy never
    /// overwrites what an interrupted repair still needs.
    pub(super) fn alloc(&mut self, len: u64, align: u64) -> Option<FragAddr> {
        for old_too in [false, true] {
            let from = if old_too { 0 } else { self.alloc_cursor };
            for ag in self.g.ag_of(self.g.block_of_frag(from)).min(self.g.ag_count - 1)..self.g.ag_count {
                if let Some(at) = self.alloc_in(ag, len, align, old_too) {
                    self.space.used.insert(at, at + len);
                    if !old_too {
                        self.alloc_cursor = at + len;
                    }
                    return Some(at);
                }
            }
        }
        None
    }

    pub(super) fn alloc_in(&mut self, ag: u64, len: u64, align: u64, old_too: bool) -> Option<FragAddr> {
        let fpb = self.g.frags_per_block();
        let first = (self.g.ag_start(ag) + self.g.ag_header_blocks()) * fpb;
        let end = (self.g.ag_start(ag) + self.g.ag_len(ag)) * fpb;
        let mut at = if old_too { first } else { first.max(self.alloc_cursor) };
        loop {
            // The log and the system area are in use, but not in the set.
            at = self.space.used.find_gap(at, end, len, align)?;
            if let Some((_, e)) = self.space.fixed.within(at, at + len).last() {
                at = e.next_multiple_of(align);
                continue;
            }
            if old_too {
                return Some(at);
            }
            match self.old_use(at, len) {
                None => return Some(at),
                Some(last) => at = (last + 1).next_multiple_of(align),
            }
        }
    }

    /// Allocates a whole block.
    pub(super) fn alloc_block(&mut self) -> Option<BlockAddr> {
        let fpb = self.g.frags_per_block();
        self.alloc(fpb, fpb).map(|f| f / fpb)
    }

    /// Allocates a whole block for metadata.
    pub(super) fn alloc_meta(&mut self) -> Option<BlockAddr> {
        let block = self.alloc_block()?;
        self.space.meta.insert(self.g.frag_of_block(block), self.g.frag_of_block(block + 1));
        Some(block)
    }

    /// Last fragment of a run that was in use before the repair, by its bitmap; `None` if none was, or if the bitmap cannot be read.
    pub(super) fn old_use(&mut self, start: FragAddr, len: u64) -> Option<FragAddr> {
        (start..start + len).rev().find(|f| self.old_bit(*f) == Some(true))
    }

    /// Whether a fragment was marked as used before the repair; `None` if its bitmap cannot be read.
    pub(super) fn old_bit(&mut self, frag: FragAddr) -> Option<bool> {
        let fpb = self.g.frags_per_block();
        let ag = self.g.ag_of(frag / fpb);
        let within = frag - self.g.ag_start(ag) * fpb;
        let (index, bit) = (within / self.g.bits_per_bitmap(), within % self.g.bits_per_bitmap());
        if self.old_bitmap.as_ref().is_none_or(|(a, i, _)| (*a, *i) != (ag, index)) {
            let addr = self.g.bitmap_block(ag, index);
            let id = BlockId { kind: BlockKind::Bitmap, addr, owner: ag };
            let block = self.vol.old(addr).ok();
            let good = block.filter(|b| verify_block(b, self.g.fsid, id).is_ok() && get_u64(b, BITMAP_INDEX) == index);
            self.old_bitmap = Some((ag, index, good));
        }
        let (_, _, block) = self.old_bitmap.as_ref()?;
        let bits = &block.as_ref()?[BITMAP_BITS..];
        Some(bits[(bit / 8) as usize] >> (bit % 8) & 1 == 1)
    }
}
