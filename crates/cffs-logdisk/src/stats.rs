//! Numbers about an open log disk.

use crate::state::State;

/// What a log disk has done since it was opened, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Written by programs.
    pub accepted: u64,
    /// Written to the store, with summaries, nodes and copies.
    pub written: u64,
    /// Copied by the cleaner.
    pub cleaned: u64,
    /// Segments in use, a number.
    pub segments: usize,
    /// What they have in all.
    pub used: u64,
    /// What of it is alive.
    pub live: u64,
    /// Nodes in memory that no checkpoint has yet, a number.
    pub dirty_nodes: usize,
    /// Nodes in memory that are stored, a number.
    pub cached_nodes: usize,
    /// Segments that are left alone because something in them could not be read or verified, a number.
    pub damaged_segments: usize,
    /// Deleted segments whose device could not be told that it may forget them, a number.
    pub failed_discards: u64,
    /// Extents and nodes that the cleaner moved while snapshots referred to them, a number.
    pub forwards: u64,
    /// Blocks of which a flush stored what had changed, and not the whole block, a number.
    pub patches: u64,
}

impl State {
    /// What has been done since the disk was opened.
    pub(crate) fn stats(&self) -> LogStats {
        LogStats {
            accepted: self.accepted,
            written: self.log.written,
            cleaned: self.cleaned,
            segments: self.usage.table.len(),
            used: self.usage.table.values().map(|i| u64::from(i.used)).sum(),
            live: self.usage.live,
            dirty_nodes: self.dirtied,
            cached_nodes: self.cache.lock().len(),
            damaged_segments: self.damaged.len(),
            failed_discards: self.failed_discards,
            forwards: self.forwarded,
            patches: self.patched,
        }
    }
}
