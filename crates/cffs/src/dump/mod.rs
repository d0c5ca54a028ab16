//! Structures of an image as they stand there, for people and programs that look for what is wrong with it.
//!
//! Nothing is written and nothing is trusted: what decodes is shown field by field, also behind a wrong checksum, and what
//! does not is named under `problems`. An error comes only where there is nothing to show at all. Work is bounded by the
//! device: no block is followed twice.
//!
//! A [`Value`] is what comes out: named values in order. Their names are those of `docs/format.md` where that has some.

mod block;
mod contents;
mod dumper;
mod entries;
mod files;
mod inode;
mod log;
mod records;
mod value;
mod volume;

pub use dumper::Dumper;
pub(crate) use entries::entry_chain;
pub use files::Which;
pub use value::{Fields, Value, hex};
pub use volume::superblocks;
