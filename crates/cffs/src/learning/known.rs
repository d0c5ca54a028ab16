//! What is known of files.

use super::parts::LargeFiles;
use crate::addr_map::AddrMap;
use crate::format::Ino;

pub(super) use super::parts::VOTES_MAX;

/// Files of which a follower is known, at most, at 24 bytes.
pub(super) const FILES_MAX: usize = 1 << 16;
/// Votes that a follower needs to count.
pub(super) const VOTES_ENOUGH: u8 = 2;

/// A file that is read after another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Follower {
    pub next: Ino,
    pub votes: u8,
}

/// What is known of files.
#[derive(Clone, Default)]
pub(super) struct Known {
    pub followers: AddrMap<Ino, Follower>,
    pub large: LargeFiles,
}
