//! Several devices as one, behind the trait [`cffs_device::Device`]: concatenated, striped, or mirrored.
//!
//! [`create`] makes a volume, [`open`] opens it from its members in any order, [`probe`] tells which volume a device belongs to. A
//! [`Mirror`] heals itself: what one member cannot read comes from another one and is written back, and a layer above that knows
//! checksums asks for other copies with [`Device::read_copy`](cffs_device::Device::read_copy) and
//! [`Device::repair`](cffs_device::Device::repair).
//!
//! From below:
//!
//! - `superblock`, `regions`: what is on a member, as bytes and as values; `docs/format-volume.md` has every byte.
//! - `label`: the two copies of a superblock on a device; `candidate`: devices that are given.
//! - `layout`, `striped`: stripes and concatenations.
//! - `range_lock`, `mirror`: mirrors.
//! - `volume`: making and opening.
//!
//! # Why it is as it is
//!
//! - **A generation tells who missed something.** It rises on all members in sync, durably, before the first write that one of them does
//!   not get, and at each opening. On a mirror it always rises by three, one after the other: a crash in the middle leaves one member one ahead or
//!   behind of what another one knows of it, which by itself is one behind; so it is told from a use.
//! - **The newest superblock says who counts.** A member that it excludes has missed writes; if that member was itself used since, the two
//!   have diverged, and nobody but the user can say which one is right.
//! - **After a crash members in sync may differ** where the bitmap says so. Any of them is as good as another, but only as long as
//!   nobody has read one. So a read there first brings what it found to all: what was once read stays, whichever member is lost later.
//! - **Everything is written twice on each member** (superblock, bitmap): a torn write leaves the older copy, and between
//!   changes both are equal, so that a rotten one loses nothing.
//! - **Nothing is started in the background.** Whoever opens a mirror calls [`Mirror::resync`] and [`Mirror::scrub`] in a thread of
//!   its own.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

/// For tests that try the orders in which threads can run, the locks are shuttle's.
#[cfg(shuttle)]
extern crate cffs_shuttle as parking_lot;

mod buffers;
mod candidate;
mod error;
mod label;
mod layout;
mod mirror;
mod range_lock;
mod regions;
mod striped;
mod superblock;
mod volume;

pub use candidate::Candidate;
pub use error::VolumeError;
pub use mirror::{
    Difference, MemberState, MemberStatus, Mirror, MirrorStats, MirrorStatus, Progress, ScrubReport, Verdict,
};
pub use superblock::{
    BLOCK_BYTES, DATA_OFFSET, Kind, MEMBERS_MAX, SUPERBLOCK_OFFSETS, Uuid, begins_as_member, volume_of_block,
};
pub use volume::{CreateOptions, MemberInfo, OpenOptions, STRIPE_UNIT, Volume, create, open, planned_len, probe};
