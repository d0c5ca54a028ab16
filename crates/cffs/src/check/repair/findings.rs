//! The state of a repair: what the current walk has found, what it plans to write, and what is known from all walks.

use super::extent_map::Map;
use crate::format::{BlockAddr, Extent, FileType, Ino, Inode};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Findings of the current walk. The next walk begins without them.
#[derive(Default)]
pub(super) struct Found {
    pub(super) inodes: HashMap<Ino, Known>,
    /// Directories that were walked.
    pub(super) walked: HashSet<Ino>,
    /// A directory could not be walked.
    pub(super) incomplete: bool,
    /// Directories to which no name leads, except from below them.
    pub(super) unreachable_roots: HashSet<Ino>,
    /// Inodes that wait for a name in lost+found.
    pub(super) disconnected: Vec<Disconnected>,
    /// Numbers of all inodes that have lost their names, also while surveying.
    pub(super) disconnected_inos: HashSet<Ino>,
    /// Units of what was never written ([`Extent::unwritten_units`]).
    pub(super) unwritten: u64,
    pub(super) external_map: Map,
    /// Good blocks of the external inode table by their number.
    pub(super) external_blocks: BTreeMap<u64, BlockAddr>,
    pub(super) locator_map: Map,
    pub(super) old_locator: OldLocator,
}

/// Changes that the current walk has decided on, to be written when it is over.
#[derive(Default)]
pub(super) struct Planned {
    /// New extent maps.
    pub(super) maps: BTreeMap<Ino, Vec<Extent>>,
    /// The number in the old nodes of an inode, if it is another one.
    pub(super) node_owners: HashMap<Ino, Ino>,
    /// Directories whose index is to be written anew.
    pub(super) indexes: Vec<Ino>,
}

/// Findings of all walks.
#[derive(Default)]
pub(super) struct Evidence {
    /// The largest inode number met or given out.
    pub(super) max_ino: Ino,
    /// Inodes whose maps have lost something.
    pub(super) damaged_maps: HashSet<Ino>,
    /// Blocks that are no evidence any more: those tried with their owners already, and the nodes that the repair wrote.
    pub(super) tried_blocks: HashSet<BlockAddr>,
    /// Inodes read from blocks with a wrong checksum.
    pub(super) guessed: HashSet<Ino>,
    /// Inodes with two entries: block and offset of the one that has changed later.
    pub(super) later_entries: HashMap<Ino, (BlockAddr, u32)>,
    /// Inodes whose count of fragments contradicts their map: one of the two is wrong.
    pub(super) inconsistent: HashSet<Ino>,
}

/// The locator table from before the repair. It is a witness where structures contradict each other.
#[derive(Default)]
pub(super) struct OldLocator {
    pub(super) blocks: BTreeMap<u64, BlockAddr>,
    /// The block that was read last.
    pub(super) last: Option<(u64, Vec<u8>)>,
}

/// Facts about an inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) block: BlockAddr,
    /// Of the entry, or of the slot.
    pub(super) offset: u32,
    pub(super) external: bool,
    pub(super) file_type: FileType,
    pub(super) generation: u32,
    pub(super) btime: i64,
    /// Names found that lead to it.
    pub(super) names: u32,
}

impl Known {
    pub(super) fn of(inode: &Inode) -> Known {
        Known {
            block: 0,
            offset: 0,
            external: false,
            file_type: inode.file_type(),
            generation: inode.generation,
            btime: inode.btime,
            names: 0,
        }
    }
}

/// An inode that waits for a name in lost+found.
pub(super) struct Disconnected {
    pub(super) ino: Ino,
    pub(super) file_type: FileType,
    /// The inode, if it is in no block any more.
    pub(super) inode: Option<Box<Inode>>,
    /// The directory and the name it had.
    pub(super) from: Ino,
    pub(super) name: Option<String>,
}

/// An inode, for messages.
pub(super) fn inode_place(ino: Ino) -> String {
    format!("inode {ino}")
}
