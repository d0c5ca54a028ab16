//! The complete check of a file system: every structure is read and compared with all others that describe the same thing.
//! The check writes nothing; [`mod@repair`] does.
//!
//! The phases (`phases`), most in a file of their own:
//! 1. superblock copies, log header (`recovered`), counters, system inodes;
//! 2. the external inode table, whose inodes names refer to (`tables`);
//! 3. the tree from the root: directory blocks, embedded inodes, extent maps, directory indexes (`dirs`, `inodes`,
//!    `extents`, `index`); then link counts and the orphan list;
//! 4. the locator table, compared with the inodes that were found (`tables`);
//! 5. quota records, compared with all inodes (`quota`); bitmaps and counters, compared with the space in use (`space`);
//!    tables of data checksums (`sums`);
//! 6. on request, the data of all files, compared with its checksums (`sums`).
//!
//! What the phases share is in `checker`, with what was found (`findings`, `inventory`, `ownership`, `data_sums`).
//!
//! Each metadata block is read once (`fetch` lists the exceptions), in requests of the size of a group. Threads read, verify
//! and decode ahead (`pool`); one thread compares, in a fixed order, so that the report does not depend on the number of
//! threads.
//!
//! The image is not trusted. Depth is kept in lists and not on the stack. No block with an owner is followed again, so the work
//! is bounded by the device. Structures with many damaged blocks are given up. Memory: 64 MiB and 16 bytes for each inode for
//! blocks that were read along with others; about 30 bytes for each inode, 40 for each gap in the used space, 24 for each name
//! of one directory, 300 for each directory whose inode is in the external table; a megabyte for each thread.

mod checker;
mod data_sums;
mod dirs;
mod extents;
mod fetch;
mod findings;
mod index;
mod inodes;
mod inventory;
mod options;
mod ownership;
mod phases;
mod pool;
mod quota;
mod reader;
mod recovered;
pub mod repair;
mod report;
mod space;
mod sums;
mod tables;
#[cfg(test)]
mod tests;
mod xattrs;

pub(crate) use data_sums::check_index;
pub use options::{CheckOptions, Progress};
pub use phases::check;
pub(crate) use phases::metadata_blocks;
pub(crate) use reader::{Block, Reader};
pub use report::{Class, Counts, Layout, Phase, PhaseTime, Problem, Report};
