//! Deferred extents: extents of direct writes whose mapping is not committed yet.
//!
//! Committing a mapping takes a transaction. A program that writes a long file would wait for one after each of its writes,
//! and the device with it. So the mapping of direct writes ([`super::direct`]) at the end of a file is deferred: the bytes
//! are in place, and the node alone knows where. The next writeback of the file commits the mapping of many writes at once.
//!
//! After a crash deferred extents are as if never written, like pages. While a file has some,
//!
//! - they are at its end, from [`NodeState::disk_size`] to the size, in whole blocks, and nothing is mapped there;
//! - the file has no pages. An operation that makes some, or changes the mapping, holds [`crate::node::Node::write_lock`] and
//!   commits them before ([`super::flush_deferred`]);
//! - they stay in the node until the transaction that commits them, and readers look them up there ([`lookup`]).

use super::FileCtx;
use crate::error::Result;
use crate::extent::{self, Mapping};
use crate::node::NodeState;

/// What the file has at a fragment, committed or deferred.
pub(super) fn lookup(cx: &FileCtx<'_>, st: &NodeState, logical: u64) -> Result<Mapping> {
    let extents = st.data.deferred.extents();
    if let Some(e) = extents.iter().find(|e| (e.logical..e.end()).contains(&logical)) {
        return Ok(Mapping::Data(*e));
    }
    Ok(match (extent::lookup(cx.cache, &st.inode, logical)?, extents.first()) {
        (Mapping::Hole { until }, Some(first)) if first.logical > logical => {
            Mapping::Hole { until: until.min(first.logical) }
        }
        (found, _) => found,
    })
}

/// Up to where the device has the file's bytes.
pub(super) fn written_size(st: &NodeState) -> u64 {
    if st.data.deferred.is_empty() { st.disk_size } else { st.inode.size }
}
