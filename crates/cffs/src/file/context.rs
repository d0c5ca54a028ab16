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
        let dirtied = self.dirtied(nodes);
        (self.writeback_span_for(nodes.len(), &dirtied), dirtied)
    }

    /// Who has made these files dirty, for the trace.
    pub(super) fn dirtied(&self, nodes: &[Arc<Node>]) -> Dirtied {
        let tracer = self.cache.tracer();
        if !tracer.is_on() {
            return Dirtied::default();
        }
        tracer.take_dirty(nodes.iter().map(|node| node.ino))
    }

    /// The writeback of so many files that these have made dirty, for the trace.
    pub(super) fn writeback_span_for(&self, nodes: usize, dirtied: &Dirtied) -> Span<'a> {
        let mut span = self.cache.tracer().span(Kind::Writeback, [nodes as u64, 0, 0]);
        span.add_causes(&dirtied.all);
        span
    }
}
