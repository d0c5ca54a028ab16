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
    fn one<T>(
        &self,
        kind: Kind,
        what: IoKind,
        place: (u64, usize),
        f: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let Some(start) = self.tracer.begin_leaf(kind) else { return f() };
        let result = f();
        self.record(kind, start, &[(what, place.0, place.1 as u64)], result.is_err());
        result
    }

    /// Makes writes that begin together.
    fn writes(&self, requests: &[WriteRequest<'_>], write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Some(start) = self.tracer.begin_leaf(Kind::DeviceWrite) else { return write() };
        let len = |r: &WriteRequest<'_>| r.bufs.iter().map(|b| b.len() as u64).sum();
        let all: Vec<_> = requests.iter().map(|r| (r.kind, r.offset, len(r))).collect();
        let result = write();
        self.record(Kind::DeviceWrite, start, &all, result.is_err());
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

    fn below(&self) -> Option<&dyn Device> {
        Some(&self.inner)
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
        self.writes(requests, || self.inner.write_batch(requests))
    }

    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.writes(requests, || self.inner.write_atomic(requests))
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        let Some(start) = self.tracer.begin_leaf(Kind::DeviceRead) else { return self.inner.read_batch(requests) };
        let all: Vec<_> = requests.iter().map(|r| (r.kind, r.offset, r.buf.len() as u64)).collect();
        let result = self.inner.read_batch(requests);
        self.record(Kind::DeviceRead, start, &all, result.is_err());
        result
    }

    fn copies(&self) -> usize {
        self.inner.copies()
    }

    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let place = (offset, buf.len());
        self.one(Kind::DeviceRead, kind, place, || self.inner.read_copy(kind, copy, offset, buf))
    }

    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        let place = (offset, good.len());
        self.one(Kind::DeviceWrite, kind, place, || self.inner.repair(kind, copy, offset, good))
    }

    fn flush(&self) -> io::Result<()> {
        self.one(Kind::DeviceFlush, IoKind::Super, (0, 0), || self.inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        self.one(Kind::DeviceDiscard, IoKind::Super, (offset, bytes), || self.inner.discard(offset, len))
    }

    fn atomic_max(&self) -> usize {
        self.inner.atomic_max()
    }

    fn finish(&self) -> io::Result<()> {
        self.inner.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::classes::Classes;
    use super::super::frame::HEADER;
    use super::super::reader::{Item, Reader};
    use super::*;
    use cffs_device::MemoryDevice;

    /// A mirror as far as can be seen from above.
    struct Mirror(MemoryDevice);

    impl Device for Mirror {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn sector_size(&self) -> u32 {
            self.0.sector_size()
        }
        fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
            self.0.read_vectored(kind, offset, bufs)
        }
        fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
            self.0.write_vectored(kind, offset, bufs)
        }
        fn copies(&self) -> usize {
            2
        }
        fn read_copy(&self, kind: IoKind, _copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.0.read_at(kind, offset, buf)
        }
        fn repair(&self, _kind: IoKind, copy: usize, _offset: u64, _good: &[u8]) -> io::Result<bool> {
            Ok(copy == 1)
        }
        fn flush(&self) -> io::Result<()> {
            Err(io::Error::other("it cannot"))
        }
        fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
            self.0.discard(offset, len)
        }
    }

    #[test]
    fn every_request_reaches_the_device_and_is_recorded_while_it_is_on() {
        let tracer: Arc<Tracer> = Arc::default();
        let dev = TracedDevice::new(Mirror(MemoryDevice::new(1 << 20)), tracer.clone(), true);
        let mut buf = [0; 1024];
        let mut requests = |dev: &dyn Device| {
            dev.write_at(IoKind::Meta, 4096, &buf).unwrap();
            let batch = [0, 8192].map(|offset| WriteRequest {
                kind: IoKind::Data,
                offset,
                bufs: vec![IoSlice::new(&buf[..512])],
            });
            dev.write_batch(&batch).unwrap();
            dev.read_at(IoKind::Log, 0, &mut buf).unwrap();
            let (a, b) = buf.split_at_mut(512);
            let read = |offset, buf| ReadRequest { kind: IoKind::Meta, offset, buf };
            dev.read_batch(&mut [read(0, a), read(512, b)]).unwrap();
            dev.read_copy(IoKind::Data, 1, 0, &mut buf).unwrap();
            assert!(dev.repair(IoKind::Data, 1, 0, &buf).unwrap() && !dev.repair(IoKind::Data, 0, 0, &buf).unwrap());
            assert!(dev.flush().is_err() && dev.copies() == 2);
            dev.discard(0, 4096).unwrap();
        };
        requests(&dev);
        let recording = tracer.start(Classes::DEVICE);
        let _purpose = Purpose::Scrub.scope();
        requests(&dev);
        let file = [&HEADER[..], &tracer.read(recording, usize::MAX).unwrap()].concat();
        let mut reader = Reader::new(&file[..]).unwrap();
        let mut got = Vec::new();
        while let Some(item) = reader.next_item().unwrap() {
            let Item::Span(r) = item else { continue };
            let q = r.request().unwrap();
            assert!(q.purpose == Purpose::Scrub && q.on_log_device);
            assert_eq!(q.failed, r.kind == Kind::DeviceFlush);
            got.push((r.kind, q.kind, r.args[0], r.args[1], q.batch));
        }
        let (read, write) = (Kind::DeviceRead, Kind::DeviceWrite);
        let want = [
            (write, IoKind::Meta, 4096, 1024, 1),
            (write, IoKind::Data, 0, 512, 2),
            (write, IoKind::Data, 8192, 512, 2),
            (read, IoKind::Log, 0, 1024, 1),
            (read, IoKind::Meta, 0, 512, 2),
            (read, IoKind::Meta, 512, 512, 2),
            (read, IoKind::Data, 0, 1024, 1),
            (write, IoKind::Data, 0, 1024, 1),
            (write, IoKind::Data, 0, 1024, 1),
            (Kind::DeviceFlush, IoKind::Super, 0, 0, 1),
            (Kind::DeviceDiscard, IoKind::Super, 0, 4096, 1),
        ];
        assert_eq!(got, want);
    }
}
