//! A wrapper that counts requests, bytes, errors and latencies.

use crate::device::{Device, IoKind, ReadRequest, WriteRequest};
use crate::purpose::Purpose;
use crate::range::{total, total_mut};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of latency buckets: one per power of two of nanoseconds.
const BUCKETS: usize = 64;

impl IoKind {
    /// All kinds, in the order in which [`DeviceStats::kinds`] has them.
    pub const ALL: [IoKind; 4] = [IoKind::Super, IoKind::Meta, IoKind::Data, IoKind::Log];

    /// The kind in one lower-case word, for tables.
    pub fn name(self) -> &'static str {
        match self {
            IoKind::Super => "super",
            IoKind::Meta => "meta",
            IoKind::Data => "data",
            IoKind::Log => "log",
        }
    }

    fn index(self) -> usize {
        match self {
            IoKind::Super => 0,
            IoKind::Meta => 1,
            IoKind::Data => 2,
            IoKind::Log => 3,
        }
    }
}

/// What was requested of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KindStats {
    /// Read requests, failed ones included.
    pub read_requests: u64,
    /// Write requests, failed ones included.
    pub write_requests: u64,
    /// Bytes that read requests asked for.
    pub read_bytes: u64,
    /// Bytes that write requests carried.
    pub write_bytes: u64,
    /// Read requests that failed.
    pub read_errors: u64,
    /// Failed write requests. A batch that failed counts once, for its first request's kind: which of its requests
    /// failed is not known.
    pub write_errors: u64,
}

impl KindStats {
    fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        KindStats {
            read_requests: f(self.read_requests, other.read_requests),
            write_requests: f(self.write_requests, other.write_requests),
            read_bytes: f(self.read_bytes, other.read_bytes),
            write_bytes: f(self.write_bytes, other.write_bytes),
            read_errors: f(self.read_errors, other.read_errors),
            write_errors: f(self.write_errors, other.write_errors),
        }
    }
}

/// What was requested for one purpose. The sums over all purposes are those over all kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PurposeStats {
    /// Read requests, failed ones included.
    pub read_requests: u64,
    /// Write requests, failed ones included.
    pub write_requests: u64,
    /// Bytes that read requests asked for.
    pub read_bytes: u64,
    /// Bytes that write requests carried.
    pub write_bytes: u64,
    /// Flushes, failed ones included.
    pub flushes: u64,
    /// Discards, failed ones included.
    pub discards: u64,
}

impl PurposeStats {
    /// The counters of both, one by one combined by `f`.
    pub fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        PurposeStats {
            read_requests: f(self.read_requests, other.read_requests),
            write_requests: f(self.write_requests, other.write_requests),
            read_bytes: f(self.read_bytes, other.read_bytes),
            write_bytes: f(self.write_bytes, other.write_bytes),
            flushes: f(self.flushes, other.flushes),
            discards: f(self.discards, other.discards),
        }
    }
}

/// How long requests took: a histogram with a bucket for each power of two of nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    /// Bucket `i` counts the requests that took from 2^i to 2^(i+1) - 1 ns (bucket 0 also 0 ns).
    pub buckets: [u64; BUCKETS],
    /// Sum of all in nanoseconds.
    pub total_ns: u64,
    /// The longest in nanoseconds. In a difference of two snapshots, if the longest happened before the first of
    /// them, an upper bound from the histogram.
    pub max_ns: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Latency { buckets: [0; BUCKETS], total_ns: 0, max_ns: 0 }
    }
}

impl fmt::Debug for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latency")
            .field("count", &self.count())
            .field("p50", &self.p50())
            .field("p90", &self.p90())
            .field("p99", &self.p99())
            .field("max", &self.max())
            .finish()
    }
}

/// Largest value that bucket `i` counts.
fn bucket_end(i: usize) -> u64 {
    u64::MAX >> (BUCKETS - 1 - i)
}

impl Latency {
    /// Number of requests.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Arithmetic mean; zero if there was no request.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.total_ns.checked_div(self.count()).unwrap_or(0))
    }

    /// The time that the fraction `q` (0 to 1) of all requests did not exceed, interpolated within its bucket; zero
    /// if there was no request.
    pub fn percentile(&self, q: f64) -> Duration {
        let count = self.count();
        if count == 0 {
            return Duration::ZERO;
        }
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count);
        let mut below = 0;
        for (i, &n) in self.buckets.iter().enumerate() {
            if below + n >= rank {
                let start = if i == 0 { 0 } else { 1u64 << i };
                let end = bucket_end(i).min(self.max_ns).max(start);
                let part = (rank - below) as f64 / n as f64;
                // Floating point may round above the end.
                return Duration::from_nanos(start.saturating_add(((end - start) as f64 * part) as u64).min(end));
            }
            below += n;
        }
        self.max()
    }

    /// The median.
    pub fn p50(&self) -> Duration {
        self.percentile(0.5)
    }

    /// The 90th percentile.
    pub fn p90(&self) -> Duration {
        self.percentile(0.9)
    }

    /// The 99th percentile.
    pub fn p99(&self) -> Duration {
        self.percentile(0.99)
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    fn since(&self, earlier: &Self) -> Self {
        let buckets: [u64; BUCKETS] = std::array::from_fn(|i| self.buckets[i].saturating_sub(earlier.buckets[i]));
        let max_ns = if self.max_ns > earlier.max_ns {
            self.max_ns
        } else {
            buckets.iter().rposition(|&n| n > 0).map_or(0, |i| bucket_end(i).min(self.max_ns))
        };
        Latency { buckets, total_ns: self.total_ns.saturating_sub(earlier.total_ns), max_ns }
    }
}

/// Everything a [`CountingDevice`] counted up to one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Requests by kind, in the order of [`IoKind::ALL`].
    pub kinds: [KindStats; 4],
    /// The same requests by purpose, in the order of [`Purpose::ALL`].
    pub purposes: [PurposeStats; 8],
    /// Flushes, failed ones included.
    pub flushes: u64,
    /// Flushes that failed.
    pub flush_errors: u64,
    /// Discard requests.
    pub discards: u64,
    /// Bytes that were discarded.
    pub discard_bytes: u64,
    /// Latency of reads.
    pub read_latency: Latency,
    /// Latency of writes; each write of a batch counts with the time of the whole batch, which is what its caller
    /// waited for.
    pub write_latency: Latency,
    /// Latency of flushes.
    pub flush_latency: Latency,
}

impl DeviceStats {
    /// The counters of one kind.
    pub fn kind(&self, kind: IoKind) -> &KindStats {
        &self.kinds[kind.index()]
    }

    /// The counters of one purpose.
    pub fn purpose(&self, purpose: Purpose) -> &PurposeStats {
        &self.purposes[purpose.index()]
    }

    /// The sum over all kinds.
    pub fn all(&self) -> KindStats {
        self.kinds.iter().fold(KindStats::default(), |sum, &k| sum.zip(k, |a, b| a + b))
    }

    /// Read requests of all kinds.
    pub fn read_requests(&self) -> u64 {
        self.all().read_requests
    }

    /// Write requests of all kinds.
    pub fn write_requests(&self) -> u64 {
        self.all().write_requests
    }

    /// Bytes read, of all kinds.
    pub fn read_bytes(&self) -> u64 {
        self.all().read_bytes
    }

    /// Bytes written, of all kinds.
    pub fn write_bytes(&self) -> u64 {
        self.all().write_bytes
    }

    /// What happened between `earlier` and this.
    pub fn since(&self, earlier: &DeviceStats) -> DeviceStats {
        DeviceStats {
            kinds: std::array::from_fn(|i| self.kinds[i].zip(earlier.kinds[i], u64::saturating_sub)),
            purposes: std::array::from_fn(|i| self.purposes[i].zip(earlier.purposes[i], u64::saturating_sub)),
            flushes: self.flushes.saturating_sub(earlier.flushes),
            flush_errors: self.flush_errors.saturating_sub(earlier.flush_errors),
            discards: self.discards.saturating_sub(earlier.discards),
            discard_bytes: self.discard_bytes.saturating_sub(earlier.discard_bytes),
            read_latency: self.read_latency.since(&earlier.read_latency),
            write_latency: self.write_latency.since(&earlier.write_latency),
            flush_latency: self.flush_latency.since(&earlier.flush_latency),
        }
    }
}

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

/// Passes everything on to the device below and counts it, without locks.
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
        }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
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
        self.count_read(kind, total_mut(bufs));
        let errors = &self.kinds[kind.index()].read_errors;
        self.read_latency.time(1, errors, || self.inner.read_vectored(kind, offset, bufs))
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.count_write(kind, total(bufs));
        let errors = &self.kinds[kind.index()].write_errors;
        self.write_latency.time(1, errors, || self.inner.write_vectored(kind, offset, bufs))
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.count_batch(requests, || self.inner.write_batch(requests))
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        let Some(first) = requests.first().map(|r| r.kind) else { return Ok(()) };
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
        self.count_read(kind, buf.len());
        let errors = &self.kinds[kind.index()].read_errors;
        self.read_latency.time(1, errors, || self.inner.read_copy(kind, copy, offset, buf))
    }

    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        self.count_write(kind, good.len());
        let errors = &self.kinds[kind.index()].write_errors;
        self.write_latency.time(1, errors, || self.inner.repair(kind, copy, offset, good))
    }

    fn flush(&self) -> io::Result<()> {
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
