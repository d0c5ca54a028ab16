//! Real mounts, by `/dev/fuse`.

#[path = "../common/mod.rs"]
mod common;

mod block;
mod control;
mod durable;
mod flags;
mod learning;
mod limits;
mod locks;
mod message_table;
mod messages;
mod posix;
mod ranges;
mod regroup;
mod session;
mod times;
mod xattr;

/// Messages come by `/dev/fuse`.
const RING: bool = false;
