//! Records the requests of devices, and what devices do for many.

use super::causes::Causes;
use super::kind::Kind;
use super::pending::add_left;
use super::record::Request;
use super::tracer::{Span, Tracer};
use cffs_device::{ForWhom, Observer, Operation, Part, Purpose, Work, WorkScope};
use std::sync::Arc;

/// Where the requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// To a disk.
    Disk,
    /// To that of an external log.
    LogDevice,
    /// To a log disk or a volume, which makes requests of its own for them.
    Logical,
}

/// Records what a device tells.
pub(crate) struct DeviceTracer {
    tracer: Arc<Tracer>,
    place: Place,
}

impl DeviceTracer {
    pub(crate) fn new(tracer: Arc<Tracer>, place: Place) -> Self {
        DeviceTracer { tracer, place }
    }

    fn kind(&self, operation: Operation) -> Kind {
        match (self.place, operation) {
            (Place::Logical, Operation::Read) => Kind::LogicalRead,
            (Place::Logical, Operation::Write) => Kind::LogicalWrite,
            (Place::Logical, Operation::Flush) => Kind::LogicalFlush,
            (Place::Logical, Operation::Discard) => Kind::LogicalDiscard,
            (_, Operation::Read) => Kind::DeviceRead,
            (_, Operation::Write) => Kind::DeviceWrite,
            (_, Operation::Flush) => Kind::DeviceFlush,
            (_, Operation::Discard) => Kind::DeviceDiscard,
        }
    }
}

/// Those for whom a device will do something.
#[derive(Default)]
struct Noted {
    causes: Causes,
    /// The last one that was itself done for many: it is one, however much it leaves to be done.
    last: u64,
}

impl Observer for DeviceTracer {
    #[inline]
    fn is_on(&self) -> bool {
        self.tracer.classes().meets(Kind::DeviceRead.class())
    }

    fn request(&self, disk: usize, operation: Operation, parts: &[Part], make: &mut dyn FnMut() -> bool) {
        let kind = self.kind(operation);
        let Some(began) = self.tracer.begin_leaf(kind) else {
            make();
            return;
        };
        let failed = !make();
        let start = began.start;
        let duration = self.tracer.now().saturating_sub(start);
        for part in parts {
            let request = Request {
                kind: part.kind,
                purpose: Purpose::current(),
                on_log_device: self.place == Place::LogDevice,
                failed,
                batch: parts.len() as u64,
                disk: disk as u64,
            };
            self.tracer.leaf(kind, start, duration, [part.offset, part.len, request.pack()]);
        }
    }

    fn note(&self, for_whom: &mut ForWhom, bytes: u64) {
        if !self.tracer.is_on() {
            return;
        }
        if let Some(noted) = for_whom.list::<Noted>() {
            noted.last = add_left(&mut noted.causes, noted.last, bytes);
        }
    }

    fn work<'a>(&'a self, work: Work, for_whom: &mut ForWhom) -> Option<Box<dyn WorkScope + 'a>> {
        let noted = for_whom.take::<Noted>();
        // Whatever this thread does is of no trace that this tracer has.
        if work == Work::Other {
            return Some(Box::new(self.tracer.span_for_nobody(Kind::OtherMount)));
        }
        if !self.tracer.is_on() {
            return None;
        }
        let kind = match work {
            Work::Batch => Kind::Batch,
            Work::Recover => Kind::Recover,
            Work::Checkpoint => Kind::MapCheckpoint,
            Work::Clean => Kind::Clean,
            Work::Manage => Kind::Manage,
            Work::Scrub => Kind::Scrub,
            Work::Resync => Kind::Resync,
            Work::Other => Kind::OtherMount,
        };
        let mut span = self.tracer.span(kind, [0; 3]);
        if let Some(noted) = noted {
            span.add_causes(&noted.causes);
        }
        Some(Box::new(span))
    }
}

impl WorkScope for Span<'_> {}

#[cfg(test)]
mod tests {
    use super::super::causes::Cause;
    use super::super::classes::Classes;
    use super::super::frame::HEADER;
    use super::super::reader::{Item, Reader};
    use super::*;
    use cffs_device::{Device, IoKind, MemoryDevice, ObservedDevice, ReadRequest, WriteRequest};
    use std::io::{self, IoSlice, IoSliceMut};

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
        let observer = Arc::new(DeviceTracer::new(tracer.clone(), Place::LogDevice));
        let dev = ObservedDevice::new(Mirror(MemoryDevice::new(1 << 20)), observer);
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

    #[test]
    fn a_request_that_is_in_flight_when_a_recording_ends_belongs_to_it() {
        let tracer: Arc<Tracer> = Arc::default();
        let observer = DeviceTracer::new(tracer.clone(), Place::Disk);
        let recording = tracer.start(Classes::ALL);
        let parts = [Part { kind: IoKind::Data, offset: 0, len: 512 }];
        observer.request(0, Operation::Read, &parts, &mut || {
            assert_eq!(tracer.in_flight(), 1);
            tracer.switch(recording, Classes::NONE)
        });
        observer.request(0, Operation::Read, &parts, &mut || tracer.in_flight() == 0);
        assert_eq!(tracer.in_flight(), 0);
        let file = [&HEADER[..], &tracer.read(recording, usize::MAX).unwrap()].concat();
        let mut reader = Reader::new(&file[..]).unwrap();
        let mut requests = 0;
        while let Some(item) = reader.next_item().unwrap() {
            requests += usize::from(matches!(item, Item::Span(r) if r.kind == Kind::DeviceRead));
        }
        assert_eq!(requests, 1, "and none that began afterwards");
    }

    #[test]
    fn a_batch_is_for_all_who_have_written_what_is_in_it() {
        let tracer: Arc<Tracer> = Arc::default();
        let observer = DeviceTracer::new(tracer.clone(), Place::Disk);
        let (mut pending, mut stored) = (ForWhom::default(), ForWhom::default());
        observer.note(&mut pending, 512);
        assert!(observer.work(Work::Batch, &mut pending).is_none(), "nothing is recorded");
        let recording = tracer.start(Classes::ALL);
        for inode in 0..1000 {
            let _op = tracer.span(Kind::Create, [1, 0, 0]);
            tracer.note_dirty(inode, 100);
        }
        {
            let mut writeback = tracer.span(Kind::Writeback, [1000, 0, 0]);
            writeback.add_causes(&tracer.take_dirty(0..1000).all);
            (0..5).for_each(|_| observer.note(&mut pending, 512));
        }
        {
            let _op = tracer.span(Kind::Write, [5, 0, 1]);
            observer.note(&mut pending, 512);
        }
        let request = || {
            let parts = [Part { kind: IoKind::Log, offset: 0, len: 512 }];
            observer.request(3, Operation::Write, &parts, &mut || true);
        };
        {
            let _sync = tracer.span(Kind::Sync, [0; 3]);
            let _batch = observer.work(Work::Batch, &mut pending);
            observer.note(&mut stored, 512);
            request();
        }
        {
            let _checkpoint = observer.work(Work::Checkpoint, &mut stored);
            request();
        }
        observer.note(&mut pending, 512);
        let file = [&HEADER[..], &tracer.read(recording, usize::MAX).unwrap()].concat();
        let mut reader = Reader::new(&file[..]).unwrap();
        let mut all = Vec::new();
        while let Some(item) = reader.next_item().unwrap() {
            all.extend(if let Item::Span(r) = item { Some(r) } else { None });
        }
        let of = |kind| all.iter().find(|r| r.kind == kind).unwrap();
        let (batch, checkpoint) = (of(Kind::Batch), of(Kind::MapCheckpoint));
        let counts = |r: &super::super::record::Record| r.causes.as_ref().unwrap().counts().collect::<Vec<_>>();
        let each = [(Some(Kind::Create), 1000), (Some(Kind::Write), 1)];
        assert_eq!((counts(batch), counts(checkpoint)), (each.to_vec(), each.to_vec()));
        let named = |r: &super::super::record::Record| r.causes.as_ref().unwrap().named().to_vec();
        assert_eq!(named(batch), [of(Kind::Writeback).id, of(Kind::Write).id]);
        assert_eq!(named(checkpoint), [batch.id], "the batch leads to the others");
        let requests: Vec<_> = all.iter().filter(|r| r.request().is_some_and(|q| q.disk == 3)).collect();
        assert_eq!(requests[0].cause, Cause { span: batch.id, origin: Some(Kind::Sync) }, "who had it done");
        assert_eq!(requests[1].cause, Cause { span: checkpoint.id, origin: Some(Kind::Create) }, "nobody had");
    }
}
