//! A device that can be stopped: from then on nothing reaches the device below.

use crate::device::{Device, ReadRequest, WriteRequest};
use crate::request::IoKind;
use parking_lot::RwLock;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

/// Passes everything on until it is stopped. From then on every request fails, so that whoever stopped it knows that the
/// device below keeps its contents, whatever other threads are doing.
pub struct StoppableDevice<D> {
    inner: D,
    /// Held shared by requests under way.
    stopped: RwLock<bool>,
}

impl<D: Device> StoppableDevice<D> {
    /// A device that is not stopped.
    pub fn new(inner: D) -> Self {
        StoppableDevice { inner, stopped: RwLock::new(false) }
    }

    /// Waits for requests under way, and lets no others through. There is no way back.
    pub fn stop(&self) {
        *self.stopped.write() = true;
    }

    fn unless_stopped<T>(&self, f: impl FnOnce(&D) -> io::Result<T>) -> io::Result<T> {
        let stopped = self.stopped.read();
        if *stopped { Err(io::Error::other("the device was stopped")) } else { f(&self.inner) }
    }
}

impl<D: Device> Device for StoppableDevice<D> {
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
        self.unless_stopped(|d| d.read_vectored(kind, offset, bufs))
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.unless_stopped(|d| d.write_vectored(kind, offset, bufs))
    }
    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.unless_stopped(|d| d.write_batch(requests))
    }
    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.unless_stopped(|d| d.read_batch(requests))
    }
    fn copies(&self) -> usize {
        self.inner.copies()
    }
    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.unless_stopped(|d| d.read_copy(kind, copy, offset, buf))
    }
    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        self.unless_stopped(|d| d.repair(kind, copy, offset, good))
    }
    fn bring_together(&self, ranges: &[Range<u64>]) -> io::Result<u64> {
        self.unless_stopped(|d| d.bring_together(ranges))
    }
    fn flush(&self) -> io::Result<()> {
        self.unless_stopped(|d| d.flush())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.unless_stopped(|d| d.discard(offset, len))
    }
    fn atomic_max(&self) -> usize {
        self.inner.atomic_max()
    }
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.unless_stopped(|d| d.write_atomic(requests))
    }
    fn finish(&self) -> io::Result<()> {
        self.unless_stopped(|d| d.finish())
    }
    fn grow(&self, len: Option<u64>) -> io::Result<u64> {
        self.unless_stopped(|d| d.grow(len))
    }
    fn read_at(&self, kind: IoKind, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.unless_stopped(|d| d.read_at(kind, offset, buf))
    }
    fn write_at(&self, kind: IoKind, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.unless_stopped(|d| d.write_at(kind, offset, buf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use std::sync::Arc;

    #[test]
    fn nothing_passes_once_it_is_stopped() {
        let below = Arc::new(MemoryDevice::new(1 << 20));
        let dev = StoppableDevice::new(below.clone());
        dev.write_at(IoKind::Data, 0, &[1; 512]).unwrap();
        dev.stop();
        assert!(dev.write_at(IoKind::Data, 0, &[2; 512]).is_err());
        assert!(dev.write_vectored(IoKind::Data, 0, &[IoSlice::new(&[2; 512])]).is_err());
        assert!(dev.flush().is_err() && dev.discard(0, 512).is_err() && dev.grow(None).is_err());
        assert!(dev.bring_together(std::slice::from_ref(&(0..512))).is_err());
        let mut bytes = [0; 512];
        assert!(dev.read_at(IoKind::Data, 0, &mut bytes).is_err());
        below.read_at(IoKind::Data, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 512]);
    }
}
