//! Who uses the space of the file system, as far as a walk has found out.

use super::intervals::Intervals;
use crate::format::{BlockAddr, FragAddr, Geometry, Superblock};

/// Space in use. All of it is empty when a walk begins, except the fixed areas.
pub(super) struct SpaceMap {
    g: Geometry,
    /// System area and log.
    pub(super) fixed: Intervals,
    /// All space that was claimed.
    pub(super) used: Intervals,
    /// The part of it that is metadata, which names its owner.
    pub(super) meta: Intervals,
    /// The part of it that was claimed more than once.
    pub(super) shared: Intervals,
}

impl SpaceMap {
    /// Nothing is in use but the fixed areas.
    pub(super) fn new(sb: &Superblock, g: Geometry) -> SpaceMap {
        let fpb = g.frags_per_block();
        let mut fixed = Intervals::default();
        fixed.insert(g.sys_start * fpb, (g.sys_start + g.sys_blocks()) * fpb);
        if sb.log_start != 0 {
            fixed.insert(sb.log_start * fpb, (sb.log_start + sb.log_blocks) * fpb);
        }
        SpaceMap { g, fixed, used: Intervals::default(), meta: Intervals::default(), shared: Intervals::default() }
    }

    /// Begins a walk.
    pub(super) fn clear(&mut self) {
        self.used = Intervals::default();
        self.meta = Intervals::default();
        self.shared = Intervals::default();
    }

    /// Claims a metadata block. False if it was claimed before, so that it is mapped twice.
    pub(super) fn claim_meta(&mut self, block: BlockAddr) -> bool {
        let (start, end) = (self.g.frag_of_block(block), self.g.frag_of_block(block + 1));
        if self.meta.overlaps(start, end) || self.fixed.overlaps(start, end) {
            return false;
        }
        self.meta.insert(start, end);
        self.claim_run(start, end);
        true
    }

    /// Claims contents of a file. Only the map of the file says whose they are.
    pub(super) fn claim_data(&mut self, start: FragAddr, len: u64) {
        self.claim_run(start, start + len);
    }

    fn claim_run(&mut self, start: FragAddr, end: FragAddr) {
        let again: Vec<(FragAddr, FragAddr)> = self.used.within(start, end).collect();
        for (s, e) in again {
            self.shared.insert(s, e);
        }
        self.used.insert(start, end);
    }

    pub(super) fn release_block(&mut self, block: BlockAddr) {
        let (start, end) = (self.g.frag_of_block(block), self.g.frag_of_block(block + 1));
        self.meta.remove(start, end);
        self.used.remove(start, end);
    }

    /// The parts of a run that are not headers of allocation groups, system area or log.
    pub(super) fn outside_fixed(&self, start: FragAddr, end: FragAddr) -> Vec<(FragAddr, FragAddr)> {
        let g = &self.g;
        let fpb = g.frags_per_block();
        let (per, header) = (g.ag_blocks * fpb, g.ag_header_blocks() * fpb);
        let mut out = Vec::new();
        let mut at = start;
        while at < end {
            let ag_start = at / per * per;
            let first = at.max(ag_start + header);
            let stop = end.min(ag_start + per);
            if first < stop {
                out.extend(self.fixed.gaps(first, stop));
            }
            at = ag_start + per;
        }
        out
    }
}
