//! What file operations work with.

use crate::cache::Cache;
use crate::journal::Journal;
use crate::node::Node;
use crate::placement::Placement;
use crate::space::Space;
use crate::sums::Sums;
use crate::trace::{Dirtied, Kind, Span};
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

impl<'a> FileCtx<'a> {
    /// The writeback of these files, for the trace: it is done for those who have made them dirty, who are returned.
    pub(super) fn writeback_span(&self, nodes: &[Arc<Node>]) -> (Span<'a>, Dirtied) {
        let tracer = self.cache.tracer();
        let mut span = tracer.span(Kind::Writeback, [nodes.len() as u64, 0, 0]);
        if !span.is_on() {
            return (span, Dirtied::default());
        }
        let dirtied = tracer.take_dirty(nodes.iter().map(|node| node.ino));
        span.add_causes(&dirtied.all);
        (span, dirtied)
    }
}
