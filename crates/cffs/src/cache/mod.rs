//! The block cache and its two identities.
//!
//! What is on the device is cached by *physical* identity, the block address: a group transfer brings in blocks before
//! anyone knows which file they belong to (C-FFS 1997, section 3.2). Dirty data without allocated space has a *logical* identity
//! only, (inode, offset), and is held by the inode until writeback (see [`crate::file`]).
//!
//! A group read is one request from the first to the last missing block; blocks that are cached already keep their
//! (perhaps newer) contents. Every transfer marks its blocks as in flight first, so no two transfers of a block overlap.
//!
//! A cached read is `cached_meta` or `read_cached_data`. After a miss the caller may work out a [`LocalityHint`] and pass it to
//! `read_meta_near` or `read_data_near`: the cache itself knows nothing of directories.
//!
//! This module never decides what a block means, beyond checking the identity it is asked for.

mod batch;
mod block_cache;
mod buf;
mod direct;
mod evict;
mod fill;
mod in_flight;
mod locality;
mod log_state;
mod outlook;
mod prefetch;
mod read;
mod readahead;
mod shard;
mod verify;
mod weak;
mod write;
mod write_latency;

pub use block_cache::Cache;
pub(crate) use buf::BufInner;
pub use buf::{Buf, BufRef};
pub use direct::ReadRun;
pub use locality::{DirExtents, LocalityHint};
pub(crate) use log_state::LogState;
pub use prefetch::PrefetchMode;
pub use verify::{Comparison, DataVerifier};
pub use weak::WeakBufRef;
pub use write::{DataRun, Source};
