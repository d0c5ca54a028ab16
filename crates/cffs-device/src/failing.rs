//! A device for tests that fails on demand.

use crate::device::{Device, WriteRequest};
use crate::request::{IoKind, Operation};
use parking_lot::Mutex;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

/// Which of the operations to come fail, and how.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Matching operations that still succeed.
    pub after: u64,
    /// Matching operations that fail then; afterwards they succeed again.
    pub times: u64,
    /// Only operations of this kind match; `None` matches all. Flushes and discards have no kind and match always.
    pub kind: Option<IoKind>,
    /// Only operations that touch these bytes match (start, end); `None` matches all. Flushes match always.
    pub range: Option<(u64, u64)>,
    /// The kind of the error; without one it is what a broken disk gives: `EIO`.
    pub error: Option<io::ErrorKind>,
}

impl Fault {
    /// Only the `n`th operation from now on fails; 1 is the next.
    pub fn nth(n: u64) -> Self {
        Fault { after: n.saturating_sub(1), times: 1, kind: None, range: None, error: None }
    }

    /// The `n`th operation from now on fails, and all after it; 1 is the next.
    pub fn from_nth(n: u64) -> Self {
        Fault { times: u64::MAX, ..Fault::nth(n) }
    }

    /// All operations fail.
    pub fn from_now_on() -> Self {
        Fault::from_nth(1)
    }

    /// Restricts the fault to requests of one kind.
    pub fn of_kind(self, kind: IoKind) -> Self {
        Fault { kind: Some(kind), ..self }
    }

    /// Restricts the fault to requests that touch a byte from `start` to before `end`: a bad spot on the disk.
    pub fn in_range(self, start: u64, end: u64) -> Self {
        Fault { range: Some((start, end)), ..self }
    }

    /// Sets the kind of the error.
    pub fn with_error(self, error: io::ErrorKind) -> Self {
        Fault { error: Some(error), ..self }
    }

    /// Counts an operation; gives the error it has to fail with.
    fn hit(&mut self, kind: Option<IoKind>, range: Option<(u64, u64)>) -> Option<io::Error> {
        let kind_matches = self.kind.is_none() || kind.is_none() || self.kind == kind;
        let range_matches = match (self.range, range) {
            (Some((start, end)), Some((offset, len))) => offset < end && offset.saturating_add(len) > start,
            _ => true,
        };
        if !kind_matches || !range_matches {
            return None;
        }
        if self.after > 0 {
            self.after -= 1;
            return None;
        }
        if self.times == 0 {
            return None;
        }
        if self.times != u64::MAX {
            self.times -= 1;
        }
        Some(match self.error {
            Some(kind) => io::Error::new(kind, "error injected for a test"),
            None => rustix::io::Errno::IO.into(),
        })
    }
}

/// Passes requests on to the device below until it is told to fail them. A failed request has no effect below.
pub struct FailingDevice {
    inner: Arc<dyn Device>,
    faults: Mutex<Vec<(Operation, Fault)>>,
}

impl FailingDevice {
    /// A device without faults yet.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        FailingDevice { inner, faults: Mutex::default() }
    }

    /// Replaces the faults of an operation by one.
    pub fn set(&self, operation: Operation, fault: Fault) {
        let mut faults = self.faults.lock();
        faults.retain(|(op, _)| *op != operation);
        faults.push((operation, fault));
    }

    /// Adds a fault to those that are there.
    pub fn add(&self, operation: Operation, fault: Fault) {
        self.faults.lock().push((operation, fault));
    }

    /// Removes all faults: the device works again.
    pub fn clear(&self) {
        self.faults.lock().clear();
    }

    /// The device below.
    pub fn inner(&self) -> &Arc<dyn Device> {
        &self.inner
    }

    /// Every fault counts the operation; the first that is due decides.
    fn check(&self, operation: Operation, kind: Option<IoKind>, range: Option<(u64, u64)>) -> io::Result<()> {
        let mut error = None;
        for (op, fault) in self.faults.lock().iter_mut() {
            if *op == operation
                && let Some(e) = fault.hit(kind, range)
            {
                error.get_or_insert(e);
            }
        }
        error.map_or(Ok(()), Err)
    }
}

// `write_batch` stays the default, one by one, so that the nth write is a certain one.
impl Device for FailingDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }

    fn below(&self) -> Option<&dyn Device> {
        Some(&self.inner)
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.check(Operation::Read, Some(kind), Some((offset, super::range::total_mut(bufs) as u64)))?;
        self.inner.read_vectored(kind, offset, bufs)
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.check(Operation::Write, Some(kind), Some((offset, super::range::total(bufs) as u64)))?;
        self.inner.write_vectored(kind, offset, bufs)
    }

    fn copies(&self) -> usize {
        self.inner.copies()
    }

    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(Operation::Read, Some(kind), Some((offset, buf.len() as u64)))?;
        self.inner.read_copy(kind, copy, offset, buf)
    }

    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        self.check(Operation::Write, Some(kind), Some((offset, good.len() as u64)))?;
        self.inner.repair(kind, copy, offset, good)
    }

    fn atomic_max(&self) -> usize {
        self.inner.atomic_max()
    }

    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        for r in requests {
            self.check(Operation::Write, Some(r.kind), Some((r.offset, super::range::total(&r.bufs) as u64)))?;
        }
        self.inner.write_atomic(requests)
    }

    fn finish(&self) -> io::Result<()> {
        self.check(Operation::Flush, None, None)?;
        self.inner.finish()
    }

    fn flush(&self) -> io::Result<()> {
        self.check(Operation::Flush, None, None)?;
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(Operation::Discard, None, Some((offset, len)))?;
        self.inner.discard(offset, len)
    }
}

impl fmt::Debug for FailingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailingDevice").field("faults", &*self.faults.lock()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, WriteRequest};

    fn device() -> FailingDevice {
        FailingDevice::new(Arc::new(MemoryDevice::new(1 << 20)))
    }

    fn outcomes(dev: &FailingDevice, n: usize) -> String {
        (0..n).map(|_| if dev.write_at(IoKind::Data, 0, &[1; 512]).is_ok() { '+' } else { '-' }).collect()
    }

    #[test]
    fn the_nth_and_from_the_nth() {
        let dev = device();
        assert_eq!(outcomes(&dev, 3), "+++");
        dev.set(Operation::Write, Fault::nth(3));
        assert_eq!(outcomes(&dev, 5), "++-++");
        dev.set(Operation::Write, Fault::from_nth(2));
        assert_eq!(outcomes(&dev, 4), "+---");
        dev.clear();
        assert_eq!(outcomes(&dev, 2), "++");
        dev.set(Operation::Write, Fault::nth(1));
        dev.add(Operation::Write, Fault::nth(3));
        assert_eq!(outcomes(&dev, 4), "-+-+");
    }

    #[test]
    fn operations_kinds_and_ranges_are_apart() {
        let dev = device();
        dev.set(Operation::Read, Fault::from_now_on().of_kind(IoKind::Meta));
        dev.set(Operation::Flush, Fault::nth(1));
        assert!(dev.read_at(IoKind::Data, 0, &mut [0; 512]).is_ok());
        assert!(dev.read_at(IoKind::Meta, 0, &mut [0; 512]).is_err());
        assert!(dev.write_at(IoKind::Meta, 0, &[0; 512]).is_ok());
        assert_eq!(dev.flush().unwrap_err().raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
        assert!(dev.flush().is_ok());
        dev.set(Operation::Read, Fault::from_now_on().in_range(4096, 4608));
        assert!(dev.read_at(IoKind::Meta, 0, &mut [0; 4096]).is_ok());
        assert!(dev.read_at(IoKind::Meta, 512, &mut [0; 4096]).is_err());
        assert!(dev.read_at(IoKind::Meta, 4608, &mut [0; 512]).is_ok());
        dev.set(Operation::Discard, Fault::from_now_on().with_error(io::ErrorKind::StorageFull));
        assert_eq!(dev.discard(0, 512).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_failed_write_has_no_effect_and_a_batch_goes_on() {
        let dev = device();
        dev.set(Operation::Write, Fault::nth(2));
        let (a, b, c) = ([1; 512], [2; 512], [3; 512]);
        let request = |buf, offset| WriteRequest { kind: IoKind::Data, offset, bufs: vec![IoSlice::new(buf)] };
        assert!(dev.write_batch(&[request(&a, 0), request(&b, 512), request(&c, 1024)]).is_err());
        let mut buf = [9; 1536];
        dev.read_at(IoKind::Data, 0, &mut buf).unwrap();
        assert_eq!((buf[0], buf[512], buf[1024]), (1, 0, 3));
    }
}
