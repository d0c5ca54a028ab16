//! What was requested of a device, as plain data.

use crate::purpose::Purpose;
use crate::request::IoKind;
use std::fmt;
use std::time::Duration;

/// Number of latency buckets: one per power of two of nanoseconds.
pub(crate) const BUCKETS: usize = 64;

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

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let buckets: [u64; BUCKETS] = std::array::from_fn(|i| self.buckets[i].saturating_sub(earlier.buckets[i]));
        let max_ns = if self.max_ns > earlier.max_ns {
            self.max_ns
        } else {
            buckets.iter().rposition(|&n| n > 0).map_or(0, |i| bucket_end(i).min(self.max_ns))
        };
        Latency { buckets, total_ns: self.total_ns.saturating_sub(earlier.total_ns), max_ns }
    }
}

/// Everything a [`CountingDevice`](crate::CountingDevice) counted up to one moment.
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

/// What was requested of a disk that a log disk or a volume stands on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Its number, which no other one has had since the device above was opened. An observer gets the same.
    pub number: usize,
    /// Its counters.
    pub stats: DeviceStats,
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
