//! The trait that everything above is written against.

use crate::counters::DiskStats;
use crate::observer::Observer;
use crate::request::IoKind;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// One write of a batch.
pub struct WriteRequest<'a> {
    /// What the request carries.
    pub kind: IoKind,
    /// Byte offset on the device.
    pub offset: u64,
    /// The bytes, gathered.
    pub bufs: Vec<IoSlice<'a>>,
}

/// One read of a batch.
pub struct ReadRequest<'a> {
    /// What the request carries.
    pub kind: IoKind,
    /// Byte offset on the device.
    pub offset: u64,
    /// Where the bytes go.
    pub buf: &'a mut [u8],
}

/// Space of a device that stores only what is in use: a thin one, or a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSpace {
    /// Bytes that it can store in all.
    pub total: u64,
    /// Bytes that can still be written where nothing is stored yet, of which the last atomic write ([`Device::atomic_max`]) is for atomic writes alone.
    pub free: u64,
    /// Bytes of the units in which it stores, a power of two. A discard of less than a whole one does nothing.
    pub unit: u64,
    /// Bytes that a unit takes.
    pub unit_cost: u64,
    /// Overwriting takes space too, because snapshots keep what was there.
    pub keeps_old: bool,
    /// Room may be kept for what is allocated and not written yet. Not on a copy of another device, which begins with all that was allocated there.
    pub keeps_room: bool,
}

/// A block device: positioned, exact transfers in whole sectors.
///
/// A transfer that returns `Ok` has moved all of its bytes. A completed write is durable only after a later
/// [`Device::flush`] has returned `Ok`.
#[allow(clippy::len_without_is_empty, reason = "an empty device is of no use, so nobody asks")]
pub trait Device: Send + Sync {
    /// Size in bytes.
    fn len(&self) -> u64;
    /// Smallest transfer and alignment of offsets and lengths, in bytes (a power of two, 512 or more).
    fn sector_size(&self) -> u32;
    /// The device that this one passes everything on to, if it is such a wrapper: what a wrapper does not answer itself about its
    /// properties, that device does. Requests always go through the wrapper.
    fn below(&self) -> Option<&dyn Device> {
        None
    }
    /// Largest request in bytes that the device takes without splitting it.
    fn max_request(&self) -> usize {
        self.below().map_or(1 << 20, Device::max_request)
    }
    /// Whether it may be a disk with an arm, for which the order of two requests decides over a rotation. Where nobody knows, it may be.
    fn is_rotational(&self) -> bool {
        self.below().is_none_or(Device::is_rotational)
    }
    /// How many devices this one is, each with an arm or a queue of its own: so many long requests at once take little longer than one. 1 for
    /// a single one.
    fn width(&self) -> usize {
        self.below().map_or(1, Device::width)
    }
    /// What begins at a multiple of so many bytes and is as long has as much on each of several devices. 0 where nothing divides what is written
    /// so.
    fn stripe(&self) -> u64 {
        self.below().map_or(0, Device::stripe)
    }
    /// Fills `bufs` from `offset` on, as one request.
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()>;
    /// Writes `bufs` from `offset` on, as one request.
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()>;
    /// Performs all writes, several in flight where the device can; returns when all have ended, with the first error.
    /// The order among them is not defined.
    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        let mut first_error = None;
        for r in requests {
            if let Err(e) = self.write_vectored(r.kind, r.offset, &r.bufs) {
                first_error.get_or_insert(e);
            }
        }
        first_error.map_or(Ok(()), Err)
    }
    /// Whether a write from this memory goes out as it is, without a copy on the way.
    fn takes(&self, memory: &[u8]) -> bool {
        self.below().is_none_or(|d| d.takes(memory))
    }
    /// Performs all reads, several in flight where the device can; returns when all have ended. After an error nothing is
    /// known of the contents of any buffer.
    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        requests.iter_mut().try_for_each(|r| self.read_at(r.kind, r.offset, r.buf))
    }
    /// The part of `range` around `offset`, which is in it, that lies together on the medium: what comes with `offset` for little
    /// more. All of it, where an offset says where a byte lies.
    fn together(&self, offset: u64, range: Range<u64>) -> Range<u64> {
        match self.below() {
            Some(d) => d.together(offset, range),
            None => range,
        }
    }
    /// Brings these ranges, which follow each other and do not overlap, to one place on the medium, so that they lie together
    /// ([`Device::together`]); nobody who reads or writes them sees a difference. Returns the bytes that were copied: what the device cannot bring there stays, and that is all of it where an offset says
    /// where a byte lies.
    ///
    /// # Errors
    /// Those after which nothing can be written any more.
    fn bring_together(&self, ranges: &[Range<u64>]) -> io::Result<u64> {
        self.below().map_or(Ok(0), |d| d.bring_together(ranges))
    }
    /// Told by a file system that so many bytes are worth one request: what it would read for one block, where it lies together. A hint for a device
    /// that has its own order of what it stores.
    fn note_group(&self, bytes: u64) {
        if let Some(d) = self.below() {
            d.note_group(bytes);
        }
    }
    /// Copies that the device keeps of each byte: 1 where it is no mirror. A copy may be missing or out of date at times.
    fn copies(&self) -> usize {
        1
    }
    /// Fills `buf` from `offset` on with what one copy has, from 0 to below [`Device::copies`]. Fails if that copy is missing, out of
    /// date or unreadable there. For a caller that knows checksums and has read something else than was written.
    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if copy == 0 { self.read_at(kind, offset, buf) } else { Err(no_such_copy(copy)) }
    }
    /// Makes all other copies of a range equal to this one, if it still has the bytes `good`, which the caller has read from it and
    /// verified. Says whether it had. Otherwise somebody has written there meanwhile, and nothing happens.
    fn repair(&self, _kind: IoKind, copy: usize, _offset: u64, _good: &[u8]) -> io::Result<bool> {
        if copy == 0 { Ok(true) } else { Err(no_such_copy(copy)) }
    }
    /// Makes every completed write durable.
    fn flush(&self) -> io::Result<()>;
    /// Tells the device that a range is no longer used; its content is undefined afterwards. A hint: may do nothing.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Whether [`Device::discard`] does something, as far as that is known.
    fn can_discard(&self) -> bool {
        self.below().is_none_or(Device::can_discard)
    }
    /// What can still be stored, for a device that has less space than bytes. Writes fail with `StorageFull` when there is none.
    fn space(&self) -> Option<DeviceSpace> {
        self.below().and_then(Device::space)
    }
    /// Reserves so many bytes of what is free ([`Device::space`]) for who writes to this device, instead of what was reserved before. Others that
    /// write to the same store are not given them. If less is free, nothing changes; or, with `or_less`, what is free is reserved. Whether all of it is: also
    /// where nobody else can write to the store, and nothing needs to be reserved.
    fn reserve(&self, bytes: u64, or_less: bool) -> bool {
        self.below().is_none_or(|d| d.reserve(bytes, or_less))
    }
    /// Most bytes that [`Device::write_atomic`] takes with certainty, if there is space for them; 0 if it is not there.
    ///
    /// A device that has it also keeps the order: after a crash no write is there without all those that were
    /// completed before it began.
    fn atomic_max(&self) -> usize {
        0
    }
    /// Performs all writes so that after a crash all of them are there or none. They are durable after the next flush.
    fn write_atomic(&self, _requests: &[WriteRequest<'_>]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "the device has no atomic writes"))
    }
    /// Nothing will be written for a while: makes everything durable, and what else lets the device be opened quickly.
    fn finish(&self) -> io::Result<()> {
        self.flush()
    }
    /// Takes note of the size that a device below has by now; a regular file that has fewer than `len` bytes is made that
    /// long first. Returns the size, which never becomes smaller. Fails if the device cannot become that long.
    fn grow(&self, len: Option<u64>) -> io::Result<u64> {
        if let Some(below) = self.below() {
            return below.grow(len);
        }
        match len {
            Some(len) if len > self.len() => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the device has {} bytes, {len} are not possible", self.len()),
            )),
            _ => Ok(self.len()),
        }
    }
    /// Tells an observer of all requests to the disks below this device from now on, and of its work for many, if it makes requests of its
    /// own: a log disk, a volume. False if it does not: what it is asked for is all that there is.
    fn observe(&self, observer: &Arc<dyn Observer>) -> bool {
        self.below().is_some_and(|d| d.observe(observer))
    }
    /// The counters of the disks below, of a device that makes requests of its own; otherwise nothing.
    fn disks(&self) -> Vec<DiskStats> {
        self.below().map_or_else(Vec::new, Device::disks)
    }
    /// True for a device that cannot be written.
    fn read_only(&self) -> bool {
        self.below().is_some_and(Device::read_only)
    }
    /// Fills `buf` from `offset` on.
    fn read_at(&self, kind: IoKind, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_vectored(kind, offset, &mut [IoSliceMut::new(buf)])
    }
    /// Writes `buf` at `offset`.
    fn write_at(&self, kind: IoKind, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_vectored(kind, offset, &[IoSlice::new(buf)])
    }
}

fn no_such_copy(copy: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the device has one copy, number {copy} was asked for"))
}
