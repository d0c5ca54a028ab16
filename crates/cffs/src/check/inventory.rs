//! The inodes that a check has found, and their totals.

use crate::format::{BlockAddr, FileType, Ino, Inode, QuotaRecord};
use std::collections::HashMap;

/// All inodes that were found.
#[derive(Default)]
pub(super) struct Inventory {
    pub(super) register: Register,
    /// Inodes of the external table, in order of their numbers.
    pub(super) external: Vec<External>,
    /// Directories of the external table that were not walked yet.
    pub(super) external_dirs: HashMap<Ino, Inode>,
    /// Fragments of attribute blocks of inodes whose space was not counted yet, and whether the count is complete.
    pub(super) xattr_chains: HashMap<Ino, (u64, bool)>,
    /// Units of what was never written ([`crate::format::Extent::unwritten_units`]).
    pub(super) unwritten: u64,
    /// The number of inodes by the counters.
    pub(super) expected: u64,
    /// In the order of [`crate::format::QuotaKind::ALL`].
    pub(super) quotas: [QuotaTotals; 3],
}

/// The fields of a found inode that later phases need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) ino: Ino,
    pub(super) block: BlockAddr,
    pub(super) offset: u32,
    pub(super) external: bool,
}

/// All inodes found so far, system inodes left out.
#[derive(Default)]
pub(super) struct Register {
    pub(super) list: Vec<Found>,
    /// Bit set of numbers, in chunks of 4096 that exist where a number does.
    seen: HashMap<u64, Box<[u64; 64]>>,
    /// Orphans and the next of each.
    pub(super) orphans: Vec<(Ino, Ino)>,
}

impl Register {
    /// Adds an inode; false if its number was there already.
    pub(super) fn add(&mut self, found: Found) -> bool {
        let chunk = self.seen.entry(found.ino >> 12).or_insert_with(|| Box::new([0; 64]));
        let (word, bit) = ((found.ino >> 6 & 63) as usize, 1u64 << (found.ino & 63));
        if chunk[word] & bit != 0 {
            return false;
        }
        chunk[word] |= bit;
        self.list.push(found);
        true
    }
}

/// How an inode was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Embedded with a name.
    Named,
    /// Embedded without a name.
    Orphan,
    /// In a slot of the external inode table.
    External,
}

/// Group of a small file's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataPlace {
    /// No data outside the inode, or a large file.
    None,
    /// All in the group that starts at this block.
    Group(BlockAddr),
    /// A small file in more than one group.
    Spread,
}

/// An inode of the external table.
#[derive(Clone, Copy, Debug)]
pub(super) struct External {
    pub(super) ino: Ino,
    pub(super) nlink: u32,
    /// Names found that lead here.
    pub(super) names: u32,
    pub(super) file_type: FileType,
    pub(super) place: DataPlace,
}

/// What was found of one kind of quota.
#[derive(Default)]
pub(super) struct QuotaTotals {
    /// Records by id; `None` if they are not to be compared: off, not counted, or incomplete.
    pub(super) records: Option<HashMap<u32, QuotaRecord>>,
    /// Fragments and inodes of each id, added up over all inodes.
    pub(super) usage: HashMap<u32, (u64, u64)>,
}

/// Where an inode was found, for a message.
pub(super) fn place(found: Found) -> String {
    format!("byte {} of block {}", found.offset, found.block)
}
