//! Several threads at once. A program of its own, because a watchdog aborts it when one of them stands still.

#[path = "../common/mod.rs"]
mod common;

mod copies;
mod handles;
mod held;
mod interleavings;
mod threads;
mod wide;
mod wide_writes;
