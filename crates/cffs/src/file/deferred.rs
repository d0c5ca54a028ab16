//! Deferred extents: extents of direct writes whose mapping is not committed yet.
//!
//! Committing a mapping takes a transaction. If each write of a long file waited for one, the program and the device
//! would be idle meanwhile. So for direct writes ([`super::direct`]) at the end of a file the commit of the mapping is
//! deferred: the bytes are in place, and only the node knows where. The next writeback of the file commits the mapping
//! of many writes at once.
//!
//! After a crash deferred extents are lost, like pages that were not written back. While a file has some,
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

/// The size up to which the file's bytes are on the device.
pub(super) fn written_size(st: &NodeState) -> u64 {
    if st.data.deferred.is_empty() { st.disk_size } else { st.inode.size }
}
