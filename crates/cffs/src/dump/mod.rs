//! Prints the structures of an image as they are on the device, to find out what is wrong with it.
//!
//! Nothing is written and nothing is trusted. Fields are shown even if the checksum is wrong; what does not decode is listed
//! under `problems`. An error is returned only if there is nothing to show. Work is bounded by the device, because no block is
//! followed twice.
//!
//! The result is a [`Value`]: named values in order. The names are those of `docs/format.md`, where it has them.

mod block;
mod contents;
mod dumper;
mod entries;
mod files;
mod inode;
mod log;
mod records;
mod volume;

pub use cffs_values::{Fields, Value, hex};
pub use dumper::Dumper;
pub(crate) use entries::entry_chain;
pub use files::Which;
pub use volume::superblocks;
