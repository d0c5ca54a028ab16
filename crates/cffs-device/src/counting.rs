//! A wrapper that counts requests, bytes, errors and latencies.

use crate::counters::{BUCKETS, DeviceStats, KindStats, Latency, PurposeStats};
use crate::device::{Device, ReadRequest, WriteRequest};
use crate::in_flight::InFlight;
use crate::purpose::Purpose;
use crate::range::{total, total_mut};
use crate::request::IoKind;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Adds without ordering: counters are read for display only.
fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts `n` requests that took `time` each.
    fn record(&self, time: Duration, n: u64) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        add(&self.buckets[ns.max(1).ilog2() as usize], n);
        add(&self.total_ns, ns.saturating_mul(n));
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// Runs `f`, and counts it as `n` requests; a failure adds one to `errors`.
    fn time<T>(&self, n: u64, errors: &AtomicU64, f: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let start = Instant::now();
        let result = f();
        self.record(start.elapsed(), n);
        add(errors, result.is_err().into());
        result
    }

    fn snapshot(&self) -> Latency {
        Latency {
            buckets: std::array::from_fn(|i| get(&self.buckets[i])),
            total_ns: get(&self.total_ns),
            max_ns: get(&self.max_ns),
        }
    }
}

#[derive(Default)]
struct KindCounters {
    read_requests: AtomicU64,
    write_requests: AtomicU64,
    read_bytes: AtomicU64,
    write_bytes: AtomicU64,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
}

#[derive(Default)]
struct PurposeCounters {
    read_requests: AtomicU64,
    write_requests: AtomicU64,
    read_bytes: AtomicU64,
    write_bytes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
}

/// Passes everything on to the device below and counts it, without locks unless somebody waits ([`CountingDevice::wait_for_others`]).
pub struct CountingDevice<D> {
    inner: D,
    kinds: [KindCounters; 4],
    purposes: [PurposeCounters; 8],
    flushes: AtomicU64,
    flush_errors: AtomicU64,
    discards: AtomicU64,
    discard_bytes: AtomicU64,
    read_latency: Histogram,
    write_latency: Histogram,
    flush_latency: Histogram,
    in_flight: InFlight,
}

impl<D: Device> CountingDevice<D> {
    /// Counts what happens to `inner` from now on.
    pub fn new(inner: D) -> Self {
        CountingDevice {
            inner,
            kinds: Default::default(),
            purposes: Default::default(),
            flushes: AtomicU64::new(0),
            flush_errors: AtomicU64::new(0),
            discards: AtomicU64::new(0),
            discard_bytes: AtomicU64::new(0),
            read_latency: Histogram::default(),
            write_latency: Histogram::default(),
            flush_latency: Histogram::default(),
            in_flight: InFlight::default(),
        }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Waits until no requests are on their way but those of work that has time ([`Purpose::Regroup`], [`Purpose::Clean`],
    /// [`Purpose::Scrub`]), at most so long.
    pub fn wait_for_others(&self, most: Duration) {
        self.in_flight.wait_for_none(most);
    }

    /// The counters now. While requests run, counters that belong together may be apart by those requests.
    pub fn snapshot(&self) -> DeviceStats {
        DeviceStats {
            kinds: std::array::from_fn(|i| {
                let k = &self.kinds[i];
                KindStats {
                    read_requests: get(&k.read_requests),
                    write_requests: get(&k.write_requests),
                    read_bytes: get(&k.read_bytes),
                    write_bytes: get(&k.write_bytes),
                    read_errors: get(&k.read_errors),
                    write_errors: get(&k.write_errors),
                }
            }),
            purposes: std::array::from_fn(|i| {
                let p = &self.purposes[i];
                PurposeStats {
                    read_requests: get(&p.read_requests),
                    write_requests: get(&p.write_requests),
                    read_bytes: get(&p.read_bytes),
                    write_bytes: get(&p.write_bytes),
                    flushes: get(&p.flushes),
                    discards: get(&p.discards),
                }
            }),
            flushes: get(&self.flushes),
            flush_errors: get(&self.flush_errors),
            discards: get(&self.discards),
            discard_bytes: get(&self.discard_bytes),
            read_latency: self.read_latency.snapshot(),
            write_latency: self.write_latency.snapshot(),
            flush_latency: self.flush_latency.snapshot(),
        }
    }

    fn count_batch(&self, requests: &[WriteRequest<'_>], write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Some(first) = requests.first() else { return Ok(()) };
        let _on_its_way = self.in_flight.begin();
        for r in requests {
            self.count_write(r.kind, total(&r.bufs));
        }
        let errors = &self.kinds[first.kind.index()].write_errors;
        self.write_latency.time(requests.len() as u64, errors, write)
    }

    fn purpose(&self) -> &PurposeCounters {
        &self.purposes[Purpose::current().index()]
    }

    fn count_write(&self, kind: IoKind, bytes: usize) {
        let (counters, purpose) = (&self.kinds[kind.index()], self.purpose());
        add(&counters.write_requests, 1);
        add(&counters.write_bytes, bytes as u64);
        add(&purpose.write_requests, 1);
        add(&purpose.write_bytes, bytes as u64);
    }

    fn count_read(&self, kind: IoKind, bytes: usize) {
        let (counters, purpose) = (&self.kinds[kind.index()], self.purpose());
        add(&counters.read_requests, 1);
        add(&counters.read_bytes, bytes as u64);
        add(&purpose.read_requests, 1);
        add(&purpose.read_bytes, bytes as u64);
    }
}

impl<D: Device> Device for CountingDevice<D> {
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
        let _on_its_way = self.in_flight.begin();
        self.count_read(kind, total_mut(bufs));
        let errors = &self.kinds[kind.index()].read_errors;
        self.read_latency.time(1, errors, || self.inner.read_vectored(kind, offset, bufs))
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let _on_its_way = self.in_flight.begin();
        self.count_write(kind, total(bufs));
        let errors = &self.kinds[kind.index()].write_errors;
        self.write_latency.time(1, errors, || self.inner.write_vectored(kind, offset, bufs))
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.count_batch(requests, || self.inner.write_batch(requests))
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        let Some(first) = requests.first().map(|r| r.kind) else { return Ok(()) };
        let _on_its_way = self.in_flight.begin();
        for r in requests.iter() {
            self.count_read(r.kind, r.buf.len());
        }
        let errors = &self.kinds[first.index()].read_errors;
        self.read_latency.time(requests.len() as u64, errors, || self.inner.read_batch(requests))
    }

    fn copies(&self) -> usize {
        self.inner.copies()
    }

    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let _on_its_way = self.in_flight.begin();
        self.count_read(kind, buf.len());
        let errors = &self.kinds[kind.index()].read_errors;
        self.read_latency.time(1, errors, || self.inner.read_copy(kind, copy, offset, buf))
    }

    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        let _on_its_way = self.in_flight.begin();
        self.count_write(kind, good.len());
        let errors = &self.kinds[kind.index()].write_errors;
        self.write_latency.time(1, errors, || self.inner.repair(kind, copy, offset, good))
    }

    fn flush(&self) -> io::Result<()> {
        let _on_its_way = self.in_flight.begin();
        add(&self.flushes, 1);
        add(&self.purpose().flushes, 1);
        self.flush_latency.time(1, &self.flush_errors, || self.inner.flush())
    }

    fn atomic_max(&self) -> usize {
        self.inner.atomic_max()
    }

    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.count_batch(requests, || self.inner.write_atomic(requests))
    }

    fn finish(&self) -> io::Result<()> {
        self.inner.finish()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        add(&self.discards, 1);
        add(&self.purpose().discards, 1);
        add(&self.discard_bytes, len);
        self.inner.discard(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FailingDevice, Fault, MemoryDevice, Operation};
    use std::sync::Arc;

    fn histogram(ns: impl IntoIterator<Item = u64>) -> Latency {
        let h = Histogram::default();
        for n in ns {
            h.record(Duration::from_nanos(n), 1);
        }
        h.snapshot()
    }

    #[test]
    fn counts_by_kind() {
        let dev = CountingDevice::new(Arc::new(MemoryDevice::new(1 << 20)) as Arc<dyn Device>);
        let mut buf = [0; 4096];
        dev.read_at(IoKind::Meta, 0, &mut buf).unwrap();
        dev.read_at(IoKind::Data, 0, &mut buf[..512]).unwrap();
        dev.read_at(IoKind::Data, 512, &mut buf[..1024]).unwrap();
        dev.write_at(IoKind::Log, 0, &buf).unwrap();
        let before = dev.snapshot();
        dev.write_batch(&[
            WriteRequest { kind: IoKind::Data, offset: 0, bufs: vec![IoSlice::new(&buf), IoSlice::new(&buf)] },
            WriteRequest { kind: IoKind::Meta, offset: 65536, bufs: vec![IoSlice::new(&buf)] },
        ])
        .unwrap();
        dev.flush().unwrap();
        dev.discard(0, 8192).unwrap();
        let all = dev.snapshot();
        assert_eq!(all.kind(IoKind::Meta).read_requests, 1);
        assert_eq!(all.kind(IoKind::Data).read_requests, 2);
        assert_eq!(all.kind(IoKind::Data).read_bytes, 1536);
        assert_eq!(all.kind(IoKind::Super), &KindStats::default());
        assert_eq!((all.read_requests(), all.read_bytes()), (3, 5632));
        assert_eq!((all.write_requests(), all.write_bytes()), (3, 4 * 4096));
        assert_eq!((all.flushes, all.discards, all.discard_bytes), (1, 1, 8192));
        assert_eq!(all.read_latency.count(), 3);
        assert_eq!(all.write_latency.count(), 3);
        assert_eq!(all.flush_latency.count(), 1);

        let diff = all.since(&before);
        assert_eq!(diff.kind(IoKind::Log), &KindStats::default());
        assert_eq!(diff.kind(IoKind::Data).write_bytes, 8192);
        assert_eq!(diff.write_latency.count(), 2);
        assert_eq!(diff.read_latency, Latency::default());
        assert_eq!(all.since(&all), DeviceStats::default());
    }

    #[test]
    fn counts_by_purpose() {
        let dev = CountingDevice::new(MemoryDevice::new(1 << 20));
        let mut buf = [0; 4096];
        dev.read_at(IoKind::Meta, 0, &mut buf).unwrap();
        let log = Purpose::Log.scope();
        dev.write_at(IoKind::Log, 0, &buf).unwrap();
        dev.flush().unwrap();
        drop(log);
        let before = dev.snapshot();
        let regroup = Purpose::Regroup.scope();
        dev.read_batch(&mut [ReadRequest { kind: IoKind::Data, offset: 0, buf: &mut buf[..512] }]).unwrap();
        dev.discard(0, 4096).unwrap();
        drop(regroup);
        let scrub = Purpose::Scrub.scope();
        dev.read_copy(IoKind::Data, 0, 0, &mut buf).unwrap();
        dev.repair(IoKind::Data, 0, 0, &buf[..512]).unwrap();
        drop(scrub);
        let all = dev.snapshot();
        assert_eq!((all.purpose(Purpose::Demand).read_requests, all.purpose(Purpose::Demand).read_bytes), (1, 4096));
        let log = PurposeStats { write_requests: 1, write_bytes: 4096, flushes: 1, ..PurposeStats::default() };
        assert_eq!(all.purpose(Purpose::Log), &log);
        let scrub = PurposeStats {
            read_requests: 1,
            read_bytes: 4096,
            write_requests: 1,
            write_bytes: 512,
            ..PurposeStats::default()
        };
        assert_eq!(all.purpose(Purpose::Scrub), &scrub, "copies of a mirror");
        let regroup = PurposeStats { read_requests: 1, read_bytes: 512, discards: 1, ..PurposeStats::default() };
        assert_eq!(all.since(&before).purpose(Purpose::Regroup), &regroup);
        assert_eq!(all.since(&before).purpose(Purpose::Log), &PurposeStats::default());
    }

    #[test]
    fn counts_errors_and_passes_them_on() {
        let failing = Arc::new(FailingDevice::new(Arc::new(MemoryDevice::new(1 << 20))));
        let dev = CountingDevice::new(failing.clone());
        for op in [Operation::Read, Operation::Write, Operation::Flush] {
            failing.set(op, Fault::from_now_on());
        }
        let buf = [0; 512];
        assert!(dev.read_at(IoKind::Meta, 0, &mut [0; 512]).is_err());
        assert!(dev.write_at(IoKind::Log, 0, &buf).is_err());
        let request = WriteRequest { kind: IoKind::Data, offset: 0, bufs: vec![IoSlice::new(&buf)] };
        assert!(dev.write_batch(&[request]).is_err());
        assert!(dev.flush().is_err());
        let s = dev.snapshot();
        assert_eq!(s.kind(IoKind::Meta).read_errors, 1);
        assert_eq!(s.kind(IoKind::Log).write_errors, 1);
        assert_eq!(s.kind(IoKind::Data).write_errors, 1);
        assert_eq!((s.all().read_errors, s.all().write_errors, s.flush_errors), (1, 2, 1));
    }

    #[test]
    fn percentiles() {
        let l = histogram((1..=1000).map(|i| i * 1000));
        assert_eq!(l.count(), 1000);
        assert_eq!(l.max(), Duration::from_millis(1));
        assert_eq!(l.mean(), Duration::from_nanos(500_500));
        // Interpolated in buckets of a factor of two: a uniform distribution comes out nearly exact.
        let near = |d: Duration, ns: f64| (d.as_nanos() as f64 / ns - 1.0).abs() < 0.05;
        assert!(near(l.p50(), 500e3), "{l:?}");
        assert!(near(l.p90(), 900e3), "{l:?}");
        assert!(near(l.p99(), 990e3), "{l:?}");
        assert_eq!(l.percentile(1.0), l.max());
        assert_eq!(Latency::default().p99(), Duration::ZERO);
        assert_eq!(histogram([0]).p50(), Duration::ZERO);
        assert_eq!(histogram([u64::MAX]).p50(), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn maximum_of_a_difference() {
        let early = histogram([1 << 20]);
        let late = histogram([1 << 20, 1000, 1000]);
        let diff = late.since(&early);
        assert_eq!(diff.count(), 2);
        assert!(diff.max_ns >= 1000 && diff.max_ns < 2048, "bound from the histogram, not the early maximum");
        assert_eq!(histogram([1 << 20, 1 << 21]).since(&early).max_ns, 1 << 21);
    }
}
