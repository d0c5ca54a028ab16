//! Where segments live: a place for pieces of log that are written once, and one root that is replaced as a whole.
//!
//! Nothing above assumes that segments have equal lengths, that bytes can be overwritten, or that the store can add to
//! a segment later. An image file gives fixed slots and can append; an object store gives objects of any length.

mod held;
mod image;
mod memory;
mod segment_store;
mod superblock;

pub(crate) use image::{Geometry, parts_of, read_superblock};
pub use image::{ImageOptions, ImageStore};
pub use memory::MemoryStore;
pub use segment_store::{Get, NO_SEGMENT, ROOT_BYTES_MAX, SegmentId, SegmentStore, StoreRoot};
#[cfg(test)]
pub(crate) use superblock::Superblock;
pub(crate) use superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
