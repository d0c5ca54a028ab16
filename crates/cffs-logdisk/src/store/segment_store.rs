//! The trait of a store.

use cffs_device::{DiskStats, Observer};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Names a segment of a store. The store hands it out and never gives the same one out twice.
pub type SegmentId = u64;

/// The id that no segment has.
pub const NO_SEGMENT: SegmentId = u64::MAX;

/// Largest root in bytes.
pub const ROOT_BYTES_MAX: usize = 2048;

/// What a store was last told to begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRoot {
    /// Counts replacements; 0 only before the first.
    pub sequence: u64,
    /// The contents, at most [`ROOT_BYTES_MAX`] bytes.
    pub bytes: Vec<u8>,
}

/// A part of a segment that is wanted.
pub struct Get<'a> {
    /// The segment.
    pub segment: SegmentId,
    /// Where the part begins.
    pub offset: u64,
    /// Where its bytes go.
    pub buf: &'a mut [u8],
}

/// A store of segments.
///
/// What was written or deleted is durable only after a later [`SegmentStore::flush`]; only
/// [`SegmentStore::replace_root`] is durable when it returns.
pub trait SegmentStore: Send + Sync {
    /// Identifies the store; part of every structure in it, so that bytes of another store are never taken for ours.
    fn uuid(&self) -> [u8; 16];
    /// Begins a segment without contents. Fails with `StorageFull` when there is no room for one.
    fn create(&self) -> io::Result<SegmentId>;
    /// Writes `bytes` at `offset`, the end of what the segment has so far. A store that cannot append takes only one
    /// such call for each segment, at offset 0.
    fn append(&self, segment: SegmentId, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Until the root is replaced, appended pieces may be written together with what follows them, in one request, at the latest when the store is
    /// flushed. Reading sees them. What fails then fails the next flush and the next root, too.
    fn hold(&self) {}
    /// Fills `buf` from `offset` on. What was never written reads as anything, or fails with `UnexpectedEof`.
    fn get(&self, segment: SegmentId, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// As [`SegmentStore::get`] for each part, several in flight where the store can. After an error nothing is known of the
    /// contents of any buffer.
    fn get_all(&self, parts: &mut [Get<'_>]) -> io::Result<()> {
        parts.iter_mut().try_for_each(|p| self.get(p.segment, p.offset, p.buf))
    }
    /// Tells an observer of all requests to the disks that the store is on.
    fn observe(&self, _observer: &Arc<dyn Observer>) {}
    /// The counters of these disks.
    fn disks(&self) -> Vec<DiskStats> {
        Vec::new()
    }
    /// Copies that the store keeps of each byte; 1 where it keeps no others. A copy may be missing at times.
    fn copies(&self) -> usize {
        1
    }
    /// As [`SegmentStore::get`], with what one copy has, from 0 to below [`SegmentStore::copies`]. For a caller that has read something with a wrong
    /// checksum.
    fn get_copy(&self, _copy: usize, segment: SegmentId, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.get(segment, offset, buf)
    }
    /// Makes all copies of a range like this one, which has the bytes `good` there as long as nobody writes to it.
    fn make_equal(&self, _copy: usize, _segment: SegmentId, _offset: u64, _good: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// Makes all copies of the root like the newest.
    fn make_root_equal(&self) {}
    /// The bytes of a device in which a segment is, if it is on one.
    fn range_of(&self, _segment: SegmentId) -> Option<Range<u64>> {
        None
    }
    /// Gives the room of a segment back. What is beneath need not learn of it before [`SegmentStore::discard_deleted`].
    fn delete(&self, segment: SegmentId) -> io::Result<()>;
    /// Whether there are deleted segments that what is beneath was not told of. Waits for nobody.
    fn has_deleted(&self) -> bool {
        false
    }
    /// Tells what is beneath of one deleted segment. False if there is none.
    ///
    /// # Errors
    /// Those of the device, which may keep the room then until the store is opened again. It can be written to all the same.
    fn discard_deleted(&self) -> io::Result<bool> {
        Ok(false)
    }
    /// All segments, if the store itself knows them; `None` if only the owner does.
    fn list(&self) -> io::Result<Option<Vec<SegmentId>>>;
    /// Ids by which the bytes of all places where a segment may be can be read, whichever segment was there last. For who has lost
    /// the list of segments.
    fn places(&self) -> io::Result<Vec<SegmentId>> {
        Ok(self.list()?.unwrap_or_default())
    }
    /// Tells a store that was just opened which segments exist. All others are deleted.
    fn adopt(&self, segments: &[SegmentId]) -> io::Result<()>;
    /// Whether these segments can exist side by side.
    ///
    /// # Errors
    /// `InvalidData` if they cannot.
    fn can_adopt(&self, _segments: &[SegmentId]) -> io::Result<()> {
        Ok(())
    }
    /// The root.
    fn root(&self) -> io::Result<StoreRoot>;
    /// Makes everything before durable, and replaces the root if its sequence number is still `expected`. Returns the
    /// new sequence number, which is `expected + 1`.
    fn replace_root(&self, expected: u64, bytes: &[u8]) -> io::Result<u64>;
    /// Makes everything that was written durable.
    fn flush(&self) -> io::Result<()>;
    /// Whether a segment can be written in several pieces.
    fn can_append(&self) -> bool;
    /// Largest segment in bytes.
    fn segment_bytes(&self) -> u64;
    /// See [`cffs_device::Device::is_rotational`].
    fn is_rotational(&self) -> bool {
        true
    }
    /// Unit in bytes to which a piece of a segment is padded, a power of two.
    fn alignment(&self) -> u32;
    /// Bytes of all segments that fit, or `u64::MAX / 2` for a store without a bound.
    fn capacity(&self) -> u64;
    /// Bytes of segments that can still be created.
    fn available(&self) -> u64;
    /// Takes in what is beneath and has become larger; if `bytes` are given, that is made so long first, where it can be. It counts from the
    /// next root on.
    ///
    /// # Errors
    /// `Unsupported` if the store has no size that grows; `InvalidInput` if what is beneath cannot become so long.
    fn grow(&self, _bytes: Option<u64>) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "the store cannot grow"))
    }
}

/// The error of a store that has no room.
pub(crate) fn full(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, what.to_owned())
}
