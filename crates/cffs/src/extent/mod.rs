//! Extents: the mapping from a file's logical fragments to fragments on the device.
//!
//! A few extents are stored in the inode itself; more of them in a B+tree whose root is in the inode. Every function
//! works on the inode in memory and, within the caller's transaction, on the nodes of the tree. The caller stores the
//! inode. `Inode::frags` counts data and nodes. Everything that is read from the device is checked: a damaged tree is
//! an [`Error::Corrupt`](crate::Error::Corrupt) that names the inode.

mod change;
mod list;
mod lookup;
mod node;
mod relocate_node;
mod shift;
mod size;
#[cfg(test)]
mod tests;
mod tree;

pub use change::{MAPPED_PER_TXN, convert, insert, map, relocate, remove, split};
pub(crate) use lookup::has_node;
pub use lookup::{Mapping, for_each, has_room, last, lookup, nodes_of};
pub use relocate_node::{for_each_node, log_bytes_for_relocate_node, relocate_node};
pub use shift::{shift_down, shift_up};
pub use size::{
    log_bytes_for_convert, log_bytes_for_insert, log_bytes_for_relocate, log_bytes_for_remove, log_bytes_for_shift,
    worst_case_blocks,
};
