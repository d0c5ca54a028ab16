//! A wrapper that tells an observer of the requests of a device.

use crate::counters::DiskStats;
use crate::counting::CountingDevice;
use crate::device::{Device, ReadRequest, WriteRequest};
use crate::observer::{Observed, Observer, Part};
use crate::range::{total, total_mut};
use crate::request::{IoKind, Operation};
use parking_lot::RwLock;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Deref;
use std::sync::Arc;

/// Passes everything on to the device below, and tells an observer, if there is one.
pub struct ObservedDevice<D> {
    inner: D,
    number: usize,
    observer: RwLock<Option<Arc<dyn Observer>>>,
}

/// A disk that a log disk or a volume stands on: its requests are counted, and told.
pub type Disk = ObservedDevice<CountingDevice<Arc<dyn Device>>>;

impl Disk {
    /// The disk with this number, from 0.
    pub fn numbered(number: usize, device: Arc<dyn Device>) -> Disk {
        ObservedDevice { inner: CountingDevice::new(device), number, observer: RwLock::default() }
    }
}

impl<D: Device> ObservedDevice<D> {
    /// Tells this observer.
    pub fn new(inner: D, observer: Arc<dyn Observer>) -> Self {
        ObservedDevice { inner, number: 0, observer: RwLock::new(Some(observer)) }
    }

    /// The observer, if there is one that wants to know of a request.
    fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.observer.read().as_ref().filter(|o| o.is_on()).cloned()
    }

    /// Makes requests that begin and end together.
    fn tell<T>(
        &self,
        operation: Operation,
        parts: impl FnOnce() -> Vec<Part>,
        make: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let Some(observer) = self.observer() else { return make() };
        let (mut make, mut result) = (Some(make), None);
        observer.request(self.number, operation, &parts(), &mut || {
            result = make.take().map(|make| make());
            matches!(result, Some(Ok(_)))
        });
        result.unwrap_or_else(|| Err(io::Error::other("an observer did not make a request")))
    }

    fn one<T>(
        &self,
        operation: Operation,
        (kind, offset, len): (IoKind, u64, usize),
        make: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.tell(operation, || vec![Part { kind, offset, len: len as u64 }], make)
    }

    fn writes(&self, requests: &[WriteRequest<'_>], write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let part = |r: &WriteRequest<'_>| Part { kind: r.kind, offset: r.offset, len: total(&r.bufs) as u64 };
        self.tell(Operation::Write, || requests.iter().map(part).collect(), write)
    }
}

impl<D> Deref for ObservedDevice<D> {
    type Target = D;
    fn deref(&self) -> &D {
        &self.inner
    }
}

impl<D: Device> Device for ObservedDevice<D> {
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
        let place = (kind, offset, total_mut(bufs));
        self.one(Operation::Read, place, || self.inner.read_vectored(kind, offset, bufs))
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let place = (kind, offset, total(bufs));
        self.one(Operation::Write, place, || self.inner.write_vectored(kind, offset, bufs))
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.writes(requests, || self.inner.write_batch(requests))
    }

    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.writes(requests, || self.inner.write_atomic(requests))
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        if self.observer().is_none() {
            return self.inner.read_batch(requests);
        }
        let part = |r: &ReadRequest<'_>| Part { kind: r.kind, offset: r.offset, len: r.buf.len() as u64 };
        let parts: Vec<Part> = requests.iter().map(part).collect();
        self.tell(Operation::Read, || parts, || self.inner.read_batch(requests))
    }

    fn copies(&self) -> usize {
        self.inner.copies()
    }

    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.one(Operation::Read, (kind, offset, buf.len()), || self.inner.read_copy(kind, copy, offset, buf))
    }

    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        self.one(Operation::Write, (kind, offset, good.len()), || self.inner.repair(kind, copy, offset, good))
    }

    fn flush(&self) -> io::Result<()> {
        self.one(Operation::Flush, (IoKind::Super, 0, 0), || self.inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        self.one(Operation::Discard, (IoKind::Super, offset, bytes), || self.inner.discard(offset, len))
    }

    fn atomic_max(&self) -> usize {
        self.inner.atomic_max()
    }

    fn finish(&self) -> io::Result<()> {
        self.inner.finish()
    }

    /// What the device below does not tell itself, this does.
    fn observe(&self, observer: &Arc<dyn Observer>) -> bool {
        if !self.inner.observe(observer) {
            *self.observer.write() = Some(observer.clone());
        }
        true
    }
}

impl Disk {
    /// The counters of the disks that its requests go to in the end: its own, unless it makes requests of its own to others.
    pub fn counters(&self) -> Vec<DiskStats> {
        let below = self.inner.disks();
        if !below.is_empty() {
            return below;
        }
        vec![DiskStats { number: self.number, stats: self.inner.snapshot() }]
    }

    /// Lets it tell an observer from now on, if there is one.
    pub fn observed_by(&self, observed: &Observed) {
        if let Some(observer) = observed.observer() {
            self.observe(observer);
        }
    }

    /// Its number.
    pub fn number(&self) -> usize {
        self.number
    }
}
