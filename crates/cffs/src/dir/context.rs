//! What operations on a directory work with.

use crate::cache::Cache;
use crate::format::dirindex;
use crate::inode::InodeLocation;

/// Entry blocks that a directory can have before it gets an index.
pub const UNINDEXED_BLOCKS: u64 = 8;

/// What every operation on a directory needs.
#[derive(Clone, Copy)]
pub struct DirCtx<'a> {
    /// The block cache.
    pub cache: &'a Cache,
    /// Key of the name hash, from the superblock.
    pub seed: [u64; 2],
    /// Where the inode of the directory is. Reading its blocks uses that as a locality hint, because the inodes of its siblings
    /// are next to it.
    pub location: InodeLocation,
}

impl DirCtx<'_> {
    /// Hash of a name.
    pub fn hash(&self, name: &[u8]) -> u32 {
        dirindex::name_hash(self.seed, name)
    }
}
