//! Mounts a cffs file system through FUSE.
//!
//! ```text
//!   program ──system call──► kernel (dentry, attribute and page cache) ──message──► this crate ──call──► cffs::Fs
//! ```
//!
//! A message is a round trip between two processes, and for a small file it costs more than the work it asks for. The
//! server is the only writer of the image, so what the kernel caches stays valid until the kernel itself changes it.
//! The design follows from that:
//!
//! - names (also names that do not exist) and attributes are valid for years, and a listing brings the attributes along;
//! - file and directory handles carry nothing, so OPEN, OPENDIR, FLUSH and CREATE are answered once with ENOSYS: after that
//!   the kernel opens without asking, keeps the page cache and the cached listing over opens, sends no RELEASE, and
//!   creates with MKNOD alone (a mount with `strictatime`, or with files that may be immutable, has to answer them);
//! - cached pages are dropped when the kernel decides to, never because a time stamp changed.
//!
//! A cold read of a small file is one READ. The writeback cache of the kernel stays off: it would own size and times, report
//! a full disk at `close` instead of at `write`, and send a SETATTR with every new file; the engine delays allocation anyway.
//!
//! Messages come through `/dev/fuse` (`device`), or through io_uring if the kernel allows it (`ring`, [`IoUring`]). Both
//! have the same bytes (`protocol`), which `dispatch` turns into operations (`ops`).
//!
//! [`mount`] starts a [`Session`]; [`Session::wait`] returns after the unmount, when the engine has been closed.
//! [`control`] is for requests to a mounted file system from outside: queries, and changes for which there is no system
//! call.
#![forbid(unsafe_code)]

mod background;
mod config;
pub mod control;
mod device;
mod dispatch;
#[cfg(test)]
mod fuzz;
mod jobs;
mod log_disk;
mod log_maintenance;
mod maintenance;
mod messages;
mod mount_state;
mod mountpoint;
mod notifier;
mod ops;
mod places;
mod protocol;
mod readahead;
mod remount;
mod ring;
mod session;
pub mod snapshots;
mod stats_file;
mod views;
pub mod volume;
mod worker_pool;

pub use config::{IoUring, LogView, MountConfig};
pub use jobs::JobOutcome;
pub use log_disk::grow_log_disk;
pub use mountpoint::{BlockMount, Unmounter};
pub use places::{Place, places_of, views_of};
pub use remount::{Remount, remount};
pub use session::{Counters, Error, Result, Session, mount, mount_block};
pub use stats_file::{STATS_FILE, read_stats, unmount};
pub use views::ViewOptions;
