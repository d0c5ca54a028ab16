//! What is asked of the device, in which order, and what happens when it fails.

#[path = "../common/mod.rs"]
mod common;

mod cold_walk;
mod errors;
mod log;
mod mirror;
mod norecovery;
mod read_errors;
mod shutdown;
mod sync_mode;
