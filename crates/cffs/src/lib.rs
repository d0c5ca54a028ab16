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

#[macro_use]
mod setters;

// What programs use.
pub mod check;
pub mod device;
mod error;
mod fs;
mod handle;
pub mod stats;
mod tune;

pub use error::{Error, Result};
pub use format::{
    Corrupt, FILE_SIZE_MAX, FileType, Geometry, Ino, LINK_MAX, NAME_MAX, QuotaKind, ROOT_INO, SYMLINK_MAX, Superblock,
};
pub use fs::*;
pub use handle::{Dir, Entries, File, OpenOptions};
pub use mkfs::{MkfsOptions, mkfs};
pub use tune::{Tune, tune};

// Private to the workspace, though its other crates see it: the checkers, the simulation and the program `cffs` read and
// write structures as they stand on the device. Nothing here is promised to programs.
#[doc(hidden)]
pub mod acl;
#[doc(hidden)]
pub mod dump;
#[doc(hidden)]
pub mod format;
#[doc(hidden)]
pub mod image;
#[doc(hidden)]
pub mod journal;
#[doc(hidden)]
pub mod mkfs;

mod cache;
mod dir;
mod extent;
mod file;
mod inode;
mod placement;
mod quota;
mod reservation;
mod space;
mod sums;
mod xattr;
