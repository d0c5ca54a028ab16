//! What is out of the free extents while a part of the device is being emptied ([`super::set_aside`]).

use crate::format::Run;

/// What is kept.
#[derive(Default)]
pub(super) struct Aside {
    /// The runs.
    pub runs: Vec<Run>,
    /// Wholly free blocks that went with them.
    pub blocks: u64,
    /// Somebody needed the space: nothing is kept any more.
    pub given_back: bool,
}
