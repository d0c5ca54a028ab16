//! File contents: reading, dirty data, delayed allocation.
//!
//! A write reserves space and leaves its bytes in *pages* of the inode, known by (inode, offset) alone. Writeback
//! ([`writeback`]) allocates the extents, for all dirty files at once, in the order of the name space. Files that are
//! removed before that never touch the device (XFS 1996, section 6.1; design decision 6). Until then the inode on the
//! device has the old size.

mod buffered;
mod bulk;
mod collect;
mod context;
mod deferred;
pub mod direct;
mod log_write;
mod mapping;
pub mod preallocate;
mod read;
pub mod relocate;
mod reserve;
mod retry;
pub mod truncate;
mod unit;
pub mod writeback;
mod zeros;

pub use buffered::{extend, write};
pub use context::FileCtx;
pub use log_write::{fits_log, write_through_journal};
pub use read::{bring, read, read_ahead, seek};
pub(crate) use reserve::reserve_tree;
pub use retry::{Reclaim, with_space};
pub use writeback::flush_deferred;
pub use zeros::write_zeros;
