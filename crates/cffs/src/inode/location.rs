//! Where an inode stands.

use crate::format::BlockAddr;
use crate::format::table::Location;

/// Where an inode stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeLocation {
    /// In the system area.
    System,
    /// In the directory block `block`; the entry begins at byte `entry`, the inode at byte `inode`.
    Embedded {
        /// Device block.
        block: BlockAddr,
        /// Byte offset of the entry.
        entry: usize,
        /// Byte offset of the inode.
        inode: usize,
    },
    /// In a slot of the external inode table.
    External {
        /// Device block.
        block: BlockAddr,
        /// Byte offset of the slot.
        offset: usize,
    },
}

impl InodeLocation {
    /// The block with the inode. Those of the system area are at fixed places, and changed by all: `None`.
    pub fn block(self) -> Option<BlockAddr> {
        match self {
            InodeLocation::System => None,
            InodeLocation::Embedded { block, .. } | InodeLocation::External { block, .. } => Some(block),
        }
    }
}

/// The part of a location that the locator table keeps. It has no entries of system inodes, which are at fixed places.
pub fn location_record(location: InodeLocation) -> Location {
    match location {
        InodeLocation::System => Location::Free,
        InodeLocation::Embedded { block, entry, .. } => Location::Embedded { block, offset: entry },
        InodeLocation::External { block, offset } => Location::External { block, offset },
    }
}
