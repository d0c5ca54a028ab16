//! What a repair knows: what the walk under way has found, what it plans to write, and what stays known from walk to walk.

use super::extent_map::Map;
use crate::format::{BlockAddr, Extent, FileType, Ino, Inode};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What the walk under way has found. The next walk begins with nothing.
#[derive(Default)]
pub(super) struct Found {
    pub(super) inodes: HashMap<Ino, Known>,
    /// Directories that were walked.
    pub(super) walked: HashSet<Ino>,
    /// A directory could not be walked.
    pub(super) incomplete: bool,
    /// Directories that no name leads to, except from below them.
    pub(super) unreachable_roots: HashSet<Ino>,
    /// Inodes that wait for a name in lost+found.
    pub(super) disconnected: Vec<Disconnected>,
    /// Numbers of all inodes that have lost their names, also while surveying.
    pub(super) disconnected_inos: HashSet<Ino>,
    pub(super) external_map: Map,
    /// Good blocks of the external inode table by their number.
    pub(super) external_blocks: BTreeMap<u64, BlockAddr>,
    pub(super) locator_map: Map,
    pub(super) old_locator: OldLocator,
}

/// What the walk under way has decided to write once it is over.
#[derive(Default)]
pub(super) struct Planned {
    /// New extent maps.
    pub(super) maps: BTreeMap<Ino, Vec<Extent>>,
    /// The number that the old nodes of an inode carry, where it is another one.
    pub(super) node_owners: HashMap<Ino, Ino>,
    /// Directories whose index is to be written anew.
    pub(super) indexes: Vec<Ino>,
}

/// What was learned in any walk.
#[derive(Default)]
pub(super) struct Evidence {
    /// The largest inode number met or given out.
    pub(super) max_ino: Ino,
    /// Inodes whose maps have lost something.
    pub(super) damaged_maps: HashSet<Ino>,
    /// Unmapped blocks that were looked at for their owners already.
    pub(super) tried_blocks: HashSet<BlockAddr>,
    /// Inodes read from blocks with a wrong checksum.
    pub(super) guessed: HashSet<Ino>,
    /// Inodes whose count of fragments contradicts their map: one of the two is wrong.
    pub(super) inconsistent: HashSet<Ino>,
}

/// The locator table as it stood before the repair: a old_locator, asked where structures contradict each other.
#[derive(Default)]
pub(super) struct OldLocator {
    pub(super) blocks: BTreeMap<u64, BlockAddr>,
    /// The block asked last.
    pub(super) last: Option<(u64, Vec<u8>)>,
}

/// What is known of an inode.
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
