//! The modes of metadata.

/// How metadata reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MetadataMode {
    /// Through the write-ahead log.
    #[default]
    Journal,
    /// What has to be in order at once, in that order, the rest with the data (FFS 1984, C-FFS 1997 section 4.2).
    Sync,
    /// With the data, in no order (the emulation of soft updates of C-FFS 1997).
    Delayed,
}

/// Where a commit goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitTarget {
    /// To the log, as byte ranges; a checkpoint writes the blocks in place later.
    Log,
    /// In place, as one write of which after a crash all is there or nothing. The device keeps the order of writes, so what the
    /// blocks point to needs no flush before.
    Atomic,
    /// In place, in no order.
    InPlace,
}

impl CommitTarget {
    /// The target on a device that takes so many bytes as an atomic write.
    pub(super) fn of(mode: MetadataMode, atomic_max: usize) -> CommitTarget {
        match mode {
            MetadataMode::Journal if atomic_max > 0 => CommitTarget::Atomic,
            MetadataMode::Journal => CommitTarget::Log,
            MetadataMode::Sync | MetadataMode::Delayed => CommitTarget::InPlace,
        }
    }
}
