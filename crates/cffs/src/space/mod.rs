//! Free space: which fragments are free, who allocates them, and how many are reserved.
//!
//! Allocation has two steps. [`Space::alloc_near`] and its relatives take a run out of the free extents in memory;
//! nothing changes on the device. [`Space::commit_alloc`] sets the bits in the bitmap, in the transaction that makes
//! something point to the run. [`Space::cancel`] undoes the first step. [`Space::free`] clears the bits at once, but
//! the run becomes allocatable only when the transaction is durable ([`Space::on_commit`]), because until then a crash
//! would restore its old owner.
//!
//! An operation that will need space later, and must not fail then, reserves fragments or whole blocks first
//! ([`crate::reservation`]). [`accounting`] holds the invariants behind reservations.
//!
//! Allocation groups (AGs) load when they are first needed. Virgin AGs are not on the device at all. They are opened in
//! order (AG `n` only when all AGs before it are open). The first `commit_alloc` in one writes header and bitmap
//! of it and of all open AGs before it, so that the counter of initialized AGs stays a high-water mark.

mod accounting;
mod alloc;
mod alloc_group;
mod aside;
mod batch;
mod begun;
mod class;
mod commit;
mod copies;
mod device_room;
mod find_group;
mod free_set;
mod free_space;
mod grow;
mod in_use;
mod keep_old;
mod outside;

pub mod layout;
mod long_runs;
mod search;
mod set_aside;
#[cfg(test)]
pub(crate) mod tests;
mod thin;
mod trim;
mod units;
mod unwritten;

pub(crate) use copies::{Claim, Copies};
pub use free_space::Space;
pub use set_aside::SetAside;
pub(crate) use thin::Over;
