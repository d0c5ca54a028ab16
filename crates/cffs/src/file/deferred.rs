//! What long writes have added to the end of a file, and its inode was not told of yet.
//!
//! To tell of places takes a transaction. A program that writes a long file would wait for one after each of its writes, and
//! the device with it. So what it adds past the cache ([`super::direct`]) stays *deferred* at first: the bytes are in their
//! places, and those are known in memory alone. The next writeback of the file tells of the places of many writes at once.
//!
//! DeferredExtents is to a crash what pages are: as if never written. While a file has some,
//!
//! - it lies at the end, from [`NodeState::disk_size`] to the size, in whole blocks, and nothing is mapped there;
//! - the file has no pages. Whoever makes some, or changes what is mapped, holds [`Node::write_lock`] and has it told before
//!   that ([`flush_deferred`]);
//! - it stays in the node until the transaction that tells of it, and readers look it up there ([`lookup`]).

use super::FileCtx;
use crate::error::Result;
use crate::extent::{self, Mapping};
use crate::node::NodeState;

/// What the file has at a fragment, told or not.
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
