//! Data to be compared with its checksums.

use crate::format::{FragAddr, Ino};

/// Written data of a file, where it was a moment ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    pub(super) start: FragAddr,
    pub(super) len: u64,
    pub(super) ino: Ino,
    pub(super) logical: u64,
}
