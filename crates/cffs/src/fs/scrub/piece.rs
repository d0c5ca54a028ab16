//! A piece of file data that is to be verified.

use crate::format::{FragAddr, Ino};

/// Data of a file, and where it was when the inode was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    pub(super) start: FragAddr,
    pub(super) len: u64,
    pub(super) ino: Ino,
    pub(super) logical: u64,
}
