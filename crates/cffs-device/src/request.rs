//! What a device is asked for, and what a request carries.

/// What a device can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads.
    Read,
    /// Writes; each write of a batch is one.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Discard,
}

/// What a request carries; the counting wrapper reports requests and bytes by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoKind {
    /// The superblock and its copies, and the log header.
    Super,
    /// Metadata blocks going to or coming from their place.
    Meta,
    /// File contents, or a group transfer that brings in both.
    Data,
    /// The write-ahead log.
    Log,
}

impl IoKind {
    /// All kinds, in the order in which [`DeviceStats::kinds`](crate::DeviceStats::kinds) has them.
    pub const ALL: [IoKind; 4] = [IoKind::Super, IoKind::Meta, IoKind::Data, IoKind::Log];

    /// The kind in one lower-case word, for tables.
    pub fn name(self) -> &'static str {
        match self {
            IoKind::Super => "super",
            IoKind::Meta => "meta",
            IoKind::Data => "data",
            IoKind::Log => "log",
        }
    }

    pub(crate) fn index(self) -> usize {
        match self {
            IoKind::Super => 0,
            IoKind::Meta => 1,
            IoKind::Data => 2,
            IoKind::Log => 3,
        }
    }
}
