//! What file operations work with.

use crate::cache::Cache;
use crate::journal::Journal;
use crate::placement::Placement;
use crate::space::Space;
use crate::sums::Sums;
use std::sync::Arc;

/// What file operations work with.
#[derive(Clone, Copy)]
pub struct FileCtx<'a> {
    /// The block cache.
    pub cache: &'a Cache,
    /// The journal.
    pub journal: &'a Journal,
    /// The space manager.
    pub space: &'a Arc<Space>,
    /// The placement policy.
    pub placement: &'a Placement,
    /// The checksums of data, if they are kept.
    pub sums: Option<&'a Sums>,
    /// A change of times alone need not be written.
    pub lazy: bool,
}
