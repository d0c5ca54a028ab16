//! Making a file system.
//!
//! The cost does not depend on the size of the device: only allocation group 0 is written, and copies of the
//! superblock in group 1 and in the last one. All other groups stay as they are until space is first needed in them.

mod options;
mod plan;
mod random;
#[cfg(test)]
mod tests;
mod write;

pub use crate::format::geometry::log_bytes_min;
pub use crate::superblocks::{backup_ags, find_copies, read_superblock, read_superblock_copy, write_superblock};
pub use options::MkfsOptions;
pub use plan::plan;
pub use random::random_uuid;
pub(crate) use random::{now_ns, random_u32};
pub use write::mkfs;
