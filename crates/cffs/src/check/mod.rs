//! The complete check of a file system: every structure is read and compared with every other that speaks about the
//! same thing. Nothing is written; [`mod@repair`] does that.
//!
//! The phases, each in a file of its own:
//! 1. superblock copies, log header, counters, system inodes;
//! 2. the external inode table, whose inodes names lead to (`tables`);
//! 3. the tree from the root: directory blocks, embedded inodes, extent maps, directory indexes (`dirs`, `inodes`,
//!    `extents`, `index`); afterwards link counts and the orphan list;
//! 4. the locator table against the inodes that were found (`tables`);
//! 5. quota records against all inodes (`quota`); bitmaps and counters against the space that was found in use (`space`),
//!    tables of data checksums (`sums`);
//! 6. if asked for, the data of all files against its checksums (`sums`).
//!
//! Each metadata block is read once (`fetch` says what is not), in requests of the size of a group. Reading, checksums
//! and decoding are spread over threads (`pool`); one thread compares, in an order that does not depend on them, so the
//! report is the same however many there are.
//!
//! The image is not trusted. Depth is held in lists, not on the stack; no block is followed that has an owner already,
//! so the work is bounded by the device; structures with many damaged blocks are given up. Memory: 64 MiB and 16 bytes for
//! each inode for blocks that wait to be looked at; about 30 bytes for each inode, 40 for each gap in the used space,
//! 24 for each name of the directory that is looked at, 300 for each directory whose inode is in the external table; a
//! megabyte for each thread.

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
