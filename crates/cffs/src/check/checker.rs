//! What the phases of a check share: the device, what was found so far, and how both are reached.

use super::data_sums::DataSums;
use super::findings::Findings;
use super::inventory::Inventory;
use super::options::Progress;
use super::ownership::{Conflict, OwnershipMap};
use super::pool::Pool;
use super::reader::Block;
use super::report::{Class, Phase};
use crate::format::{BlockAddr, BlockId, Geometry, Ino, Superblock};
use cffs_device::Device;
use std::collections::HashSet;
use std::fmt::Display;

/// Damaged blocks after which the rest of a structure is not read. Otherwise an image that maps nothing but zeros would
/// make the check read a petabyte.
pub(super) const DAMAGED_BLOCKS_MAX: u64 = 16;

/// A check under way.
pub(super) struct Checker<'a> {
    pub(super) g: Geometry,
    pub(super) sb: Superblock,
    pub(super) dev: &'a dyn Device,
    pub(super) pool: &'a Pool<'a>,
    report_progress: Progress<'a>,
    pub(super) findings: Findings,
    pub(super) inventory: Inventory,
    pub(super) ownership: OwnershipMap,
    pub(super) data_sums: DataSums,
    /// Addresses of the metadata blocks that were asked for, if the caller wants them.
    pub(super) blocks_read: Option<HashSet<BlockAddr>>,
}

impl<'a> Checker<'a> {
    /// `search`: conflicts of an earlier walk whose owners are to be found in this one.
    pub(super) fn new(
        pool: &'a Pool<'a>,
        dev: &'a dyn Device,
        sb: Superblock,
        findings: Findings,
        search: Vec<Conflict>,
        report_progress: Progress<'a>,
    ) -> Checker<'a> {
        let g = *pool.context.fetch.geometry();
        Checker {
            g,
            sb,
            dev,
            pool,
            report_progress,
            findings,
            inventory: Inventory::default(),
            ownership: OwnershipMap::new(g, search),
            data_sums: DataSums::default(),
            blocks_read: None,
        }
    }

    /// Adds a problem of something that is not an inode.
    pub(super) fn problem(&mut self, class: Class, place: impl Display, text: impl Display) {
        self.findings.problems.add(class, place, text);
    }

    pub(super) fn progress(&self, phase: Phase, done: u64, total: u64) {
        (self.report_progress)(phase, done, total.max(done));
    }

    pub(super) fn inode_problem(&mut self, class: Class, ino: Ino, text: impl Display) {
        self.findings.problems.add(class, format_args!("inode {ino}"), text);
    }

    /// Claims a whole block. False if it has an owner.
    pub(super) fn claim_block(&mut self, block: BlockAddr, owner: u64) -> bool {
        self.ownership.claim(self.g.frag_of_block(block), self.g.frags_per_block(), owner)
    }

    /// A metadata block with the right checksum and identity.
    pub(super) fn meta(&mut self, id: BlockId) -> Result<Block, String> {
        self.note_block_read(id.addr);
        self.pool.context.fetch.meta(id)
    }

    pub(super) fn note_block_read(&mut self, addr: BlockAddr) {
        if let Some(list) = &mut self.blocks_read
            && addr < self.g.total_blocks
        {
            list.insert(addr);
        }
    }
}
