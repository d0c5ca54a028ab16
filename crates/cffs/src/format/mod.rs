//! On-disk structures: encode, decode, validate. No I/O.
//!
//! Everything is little-endian. `docs/format.md` says the same byte by byte; a change here changes it there. Decoders
//! take untrusted bytes: they return [`Corrupt`] and never panic or read out of bounds.

pub mod ag;
mod block;
mod crc;
pub mod dirblock;
pub mod dirindex;
pub mod extent;
mod features;
pub mod geometry;
pub mod inode;
pub mod log;
mod longest_runs;
pub mod quota;
mod run;
pub mod sums;
pub mod superblock;
pub mod system;
pub mod table;
mod types;
mod verify;
pub mod xattr;

pub use block::{
    BlockId, BlockKind, META_CRC, META_HEADER_SIZE, META_SEQ, META_SPECIFIC, block_addr, block_owner, block_seq,
    crc_ok, init_block, seal, spoil, verify_block,
};
pub use crc::{crc32c, crc32c_without};
pub use extent::Extent;
pub use geometry::{Geometry, LiveGeometry};
pub use inode::{FileType, Inode, InodeFormat};
pub use longest_runs::{LONGEST_RUNS_LEN, LongestRuns};
pub use quota::{QuotaKind, QuotaRecord};
pub use run::Run;
pub use superblock::Superblock;
pub use types::{
    BlockAddr, Corrupt, EXTERNAL_INO, FILE_SIZE_MAX, FIRST_USER_INO, FragAddr, GROUP_QUOTA_INO, Ino, LAST_SYSTEM_INO,
    LINK_MAX, LOCATOR_INO, NAME_MAX, PROJECT_QUOTA_INO, ROOT_INO, SYMLINK_MAX, USER_QUOTA_INO, align8, corrupt,
    get_u16, get_u32, get_u64, put_u16, put_u32, put_u64,
};
pub use verify::verify_contents;
