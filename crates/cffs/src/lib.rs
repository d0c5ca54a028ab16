//! The cffs engine: a co-locating fast file system as a library.
//!
//! Start reading at [`fs`] for what the file system does, at [`mod@format`] for what is on the device.
#![forbid(unsafe_code)]

/// For tests that try the orders in which threads can run, the locks are shuttle's.
#[cfg(shuttle)]
extern crate cffs_shuttle as parking_lot;
#[cfg(shuttle)]
pub(crate) use parking_lot::yield_now;
#[cfg(not(shuttle))]
pub(crate) use std::thread::yield_now;

pub mod acl;
pub mod cache;
pub mod check;
pub mod device;
pub mod dir;
pub mod dump;
pub mod error;
pub mod extent;
pub mod file;
pub mod format;
pub mod fs;
pub mod image;
pub mod inode;
pub mod journal;
pub mod mkfs;
pub mod placement;
pub mod quota;
pub mod space;
pub mod stats;
pub mod sums;
pub mod tune;
pub mod xattr;
