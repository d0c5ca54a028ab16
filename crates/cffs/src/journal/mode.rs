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
