//! What looks at a file system from outside: check, repair, scrub, dump, copies of metadata.

#[path = "../common/mod.rs"]
mod common;

mod check;
mod check_reads;
mod dump;
mod metadump;
mod repair;
mod scrub;
