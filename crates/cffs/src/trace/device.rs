//! A wrapper that records the requests of a device.

use super::kind::Kind;
use super::record::Request;
use super::tracer::Tracer;
use cffs_device::{Device, IoKind, Purpose, ReadRequest, WriteRequest};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Deref;
use std::sync::Arc;

/// Passes everything on to the device below, and records it.
pub(crate) struct TracedDevice<D> {
    inner: D,
    tracer: Arc<Tracer>,
    /// It is the device of an external log.
    is_log: bool,
}

impl<D: Device> TracedDevice<D> {
    pub(crate) fn new(inner: D, tracer: Arc<Tracer>, is_log: bool) -> Self {
        TracedDevice { inner, tracer, is_log }
    }

    /// Makes one request.
    fn one(&self, kind: Kind, what: IoKind, place: (u64, usize), f: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Some(start) = self.tracer.begin_leaf(kind) else { return f() };
        let result = f();
        self.record(kind, start, &[(what, place.0, place.1 as u64)], result.is_err());
        result
    }

    /// Records requests that began together and have ended now.
    fn record(&self, kind: Kind, start: u64, all: &[(IoKind, u64, u64)], failed: bool) {
        let duration = self.tracer.now().saturating_sub(start);
        for (what, offset, len) in all {
            let request = Request {
                kind: *what,
                purpose: Purpose::current(),
                on_log_device: self.is_log,
                failed,
                batch: all.len() as u64,
            };
            self.tracer.leaf(kind, start, duration, [*offset, *len, request.pack()]);
        }
    }
}

impl<D> Deref for TracedDevice<D> {
    type Target = D;
    fn deref(&self) -> &D {
        &self.inner
    }
}

impl<D: Device> Device for TracedDevice<D> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }

    fn max_request(&self) -> usize {
        self.inner.max_request()
    }

    fn takes(&self, memory: &[u8]) -> bool {
        self.inner.takes(memory)
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let len = bufs.iter().map(|b| b.len()).sum();
        self.one(Kind::DeviceRead, kind, (offset, len), || self.inner.read_vectored(kind, offset, bufs))
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let len = bufs.iter().map(|b| b.len()).sum();
        self.one(Kind::DeviceWrite, kind, (offset, len), || self.inner.write_vectored(kind, offset, bufs))
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        let Some(start) = self.tracer.begin_leaf(Kind::DeviceWrite) else { return self.inner.write_batch(requests) };
        let len = |r: &WriteRequest<'_>| r.bufs.iter().map(|b| b.len() as u64).sum();
        let all: Vec<_> = requests.iter().map(|r| (r.kind, r.offset, len(r))).collect();
        let result = self.inner.write_batch(requests);
        self.record(Kind::DeviceWrite, start, &all, result.is_err());
        result
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        let Some(start) = self.tracer.begin_leaf(Kind::DeviceRead) else { return self.inner.read_batch(requests) };
        let all: Vec<_> = requests.iter().map(|r| (r.kind, r.offset, r.buf.len() as u64)).collect();
        let result = self.inner.read_batch(requests);
        self.record(Kind::DeviceRead, start, &all, result.is_err());
        result
    }

    fn flush(&self) -> io::Result<()> {
        self.one(Kind::DeviceFlush, IoKind::Super, (0, 0), || self.inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        self.one(Kind::DeviceDiscard, IoKind::Super, (offset, bytes), || self.inner.discard(offset, len))
    }

    fn can_discard(&self) -> bool {
        self.inner.can_discard()
    }

    fn grow(&self, len: Option<u64>) -> io::Result<u64> {
        self.inner.grow(len)
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }
}
