//! B+trees of nodes that are copied when they change, stored in the log.
//!
//! A stored node is never changed. A change copies the path from the root to the leaf into memory; a checkpoint writes
//! what is in memory and nothing else. A snapshot is a second reference to the root: copies are made only of nodes
//! that somebody else refers to.

mod bring;
mod diff;
mod edit;
mod extents;
mod node;
mod root;
#[cfg(test)]
mod tests;

pub(crate) use diff::{Side, differences};
pub(crate) use edit::Edit;
pub(crate) use extents::{ExtentKey, insert_extent, lookup_extents, remove_extents};
pub(crate) use node::{Layout, NODE_BYTES, Node, NodeHead, NodeRef, Source};
pub(crate) use root::{NodeSink, Root, StoredNodes};
