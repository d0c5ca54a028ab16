//! Placement: where new data goes.
//!
//! **Co-locating** (C-FFS 1997, section 3.2; keyed by directory as in UNIX C-FFS 1998, section 2.3): small files fill
//! the open group of their directory, in the order of writeback, which is the order of the name space. A directory gets
//! groups of its own once its files have filled half a group. Before that it shares the groups of its parent, so that a
//! tree of many small directories still fills groups. Directory blocks have groups of their own beside the data, shared
//! in the same way, so that a walk over the tree reads only names and inodes.
//!
//! **Conventional** (`--no-group`): the first free place from the start of the directory's allocation group on, as FFS.
//!
//! Files larger than a group get block-aligned extents away from the groups in either case (FFS clustering, 1995).
//!
//! Placement is a hint: nothing else in the file system depends on where something is. This module decides; it takes
//! runs from [`crate::space`] and stores nothing on the device.

mod batch;
mod dir_allocator;
mod directory;
mod large;
mod policy;
mod scatter;
mod small;
mod table;
#[cfg(test)]
mod tests;

pub use dir_allocator::DirAllocator;
pub use large::STREAM_MIN;
pub use policy::Placement;
