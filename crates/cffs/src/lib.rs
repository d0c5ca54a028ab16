//! An embedded file system: a whole UNIX file system in a file, a block device or memory, as a library.
//!
//! cffs is made for **many small files on storage where every request costs**. An inode stands in the directory entry, the
//! files of a directory stand next to each other, and both move as one unit (a *group*), so that thousands of small files
//! are read or written with a few dozen requests. Around that is what one expects of a file system: a write-ahead log
//! (after a crash the next mount recovers by itself), checksums in every metadata block and on request of data, extents,
//! delayed allocation, extended attributes, quotas, a checker and a repair.
//!
//! No mount, no kernel module and no privilege is needed: whatever implements [`device::Device`] can hold a file system.
//! (The program `cffs` mounts the same images through FUSE.) Linux only.
//!
//! # Files and directories
//!
//! [`Fs::root`] gives a [`Dir`], from which everything is reached by path, with names as in [`std::fs`]. A [`File`]
//! implements [`Read`](std::io::Read), [`Write`](std::io::Write) and [`Seek`](std::io::Seek).
//!
//! ```
//! use cffs::device::MemoryDevice;
//! use cffs::{Fs, MkfsOptions, MountOptions, mkfs};
//! use std::io::{Read, Write};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A device of 16 MiB in memory. FileDevice is an image file or a block device.
//! let device = Arc::new(MemoryDevice::new(16 << 20));
//! mkfs(&*device, None, &MkfsOptions::default().label("example".into()))?;
//!
//! let fs = Fs::open(device, None, MountOptions::default())?;
//! let root = fs.root()?;
//! let mail = root.create_dir_all("home/me/mail")?;
//! let mut letter = mail.create("first")?;
//! letter.write_all(b"Dear reader,\n")?;
//! letter.sync_all()?; // durable from here on
//!
//! root.rename("home/me/mail/first", &mail, "letter")?;
//! for entry in mail.entries()? {
//!     let entry = entry?;
//!     println!("{} is inode {}", String::from_utf8_lossy(&entry.name), entry.ino);
//! }
//! let mut text = String::new();
//! root.open("home/me/mail/letter")?.read_to_string(&mut text)?;
//! assert_eq!(text, "Dear reader,\n");
//!
//! // Unmounts. Without it the file system is left as after a crash.
//! fs.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Closing
//!
//! Changes are in memory until the background thread (every 5 seconds), [`File::sync_all`] or [`Fs::sync`] writes them.
//! [`Fs::close`] writes the rest and marks the file system as unmounted. **Dropping the last reference to an [`Fs`] without
//! it is like a crash**: the image stays consistent, but what was not durable is lost.
//!
//! ```
//! # use cffs::{Error, Fs, MkfsOptions, MountOptions, device::MemoryDevice, mkfs};
//! # use std::sync::Arc;
//! # fn main() -> cffs::Result<()> {
//! # let device = Arc::new(MemoryDevice::new(16 << 20));
//! # mkfs(&*device, None, &MkfsOptions::default())?;
//! // Without the thread, so that nothing becomes durable by itself.
//! let options = MountOptions::default().background(false);
//! let fs = Fs::open(device.clone(), None, options.clone())?;
//! fs.root()?.write("kept", "1")?;
//! fs.sync()?;
//! fs.root()?.write("lost", "2")?;
//! drop(fs);
//!
//! let fs = Fs::open(device, None, options)?; // recovers
//! assert_eq!(fs.root()?.read("kept")?, b"1");
//! assert!(matches!(fs.root()?.read("lost"), Err(Error::NotFound)));
//! # fs.close()
//! # }
//! ```
//!
//! # Operations by number
//!
//! The methods of [`Fs`] itself work on inode numbers and count references, as FUSE and NFS servers need it:
//! [`Fs::lookup`], [`Fs::create`] and their like hand out one reference with the attributes, and [`Fs::forget`] releases it.
//! Here are all operations: devices and FIFOs, extended attributes and access control lists, `fallocate`, quotas, growing,
//! trimming, scrubbing, statistics. Permissions are not checked: a [`Caller`] says who owns what is created, and whether the
//! reserve may be used.
//!
//! # More
//!
//! - [`check`](mod@check) verifies every structure of an image, [`check::repair`] repairs it.
//! - [`device`] has the trait for storage, files and disks, memory, and devices for tests that count, fail or keep writes
//!   to themselves.
//! - `examples/` in the source: fill an image from a tar archive, print an image, serve one over HTTP.
//! - [`trace`] records what a file system does, and why: spans with their causes, down to each request of the device.
//! - An [`Error`] has the number that a system call would return ([`Error::errno`]) and becomes an [`std::io::Error`] of the
//!   matching kind.
//!
//! Option types and errors are `#[non_exhaustive]`; options have a setter for each field. The on-disk format is versioned,
//! and still changes before the first release.
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
#[doc(inline)]
pub use cffs_device as device;
mod error;
mod fs;
mod handle;
pub mod layout;
pub mod stats;
pub mod trace;
mod tune;

pub use colocation::ColocationKey;
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
pub mod journal;
#[doc(hidden)]
pub mod metadump;
#[doc(hidden)]
pub mod mkfs;

mod addr_map;
mod cache;
mod colocation;
mod copies;
mod dir;
mod extent;
mod file;
mod inode;
mod learning;
mod node;
mod placement;
mod quota;
mod relocate;
mod reservation;
mod space;
mod sums;
mod superblocks;
mod xattr;
