//! Counters of a mounted file system, as plain data.

use cffs_device::{DeviceStats, IoKind, KindStats, Latency, Purpose, PurposeStats};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Latency of requests, in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LatencyStats {
    /// Number of requests.
    pub count: u64,
    /// Arithmetic mean.
    pub mean_us: f64,
    /// Half of the requests took at most this.
    pub p50_us: f64,
    /// Nine in ten.
    pub p90_us: f64,
    /// Ninety-nine in a hundred.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl From<&Latency> for LatencyStats {
    fn from(l: &Latency) -> Self {
        let us = |d: std::time::Duration| d.as_nanos() as f64 / 1000.0;
        LatencyStats {
            count: l.count(),
            mean_us: us(l.mean()),
            p50_us: us(l.p50()),
            p90_us: us(l.p90()),
            p99_us: us(l.p99()),
            max_us: us(l.max()),
        }
    }
}

/// Requests to a device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// Requests and bytes by what they carried.
    pub kinds: BTreeMap<String, KindStats>,
    /// The same requests by why they were made ([`Purpose::name`]).
    #[serde(default)]
    pub purposes: BTreeMap<String, PurposeStats>,
    /// Flushes.
    pub flushes: u64,
    /// Flushes that failed.
    #[serde(default)]
    pub flush_errors: u64,
    /// Latencies of reads, writes and flushes.
    pub latency: BTreeMap<String, LatencyStats>,
}

impl From<&DeviceStats> for DeviceCounters {
    fn from(s: &DeviceStats) -> Self {
        let latency = [("read", &s.read_latency), ("write", &s.write_latency), ("flush", &s.flush_latency)];
        DeviceCounters {
            kinds: IoKind::ALL.iter().map(|k| (k.name().to_string(), *s.kind(*k))).collect(),
            purposes: Purpose::ALL.iter().map(|p| (p.name().to_string(), *s.purpose(*p))).collect(),
            flushes: s.flushes,
            flush_errors: s.flush_errors,
            latency: latency.into_iter().map(|(n, l)| (n.to_string(), l.into())).collect(),
        }
    }
}

/// Requests to a disk below a log disk or a volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DiskCounters {
    /// Its number, as in a trace. No other disk has it as long as the file system is mounted.
    #[serde(default)]
    pub disk: usize,
    /// What was requested of it.
    #[serde(flatten)]
    pub counters: DeviceCounters,
}

/// Counters of the cache.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CacheStats {
    /// Blocks found in the cache.
    pub hits: u64,
    /// Blocks that had to be read.
    pub misses: u64,
    /// Reads of a group, or of a part of one, for a single block.
    pub group_reads: u64,
    /// Blocks that these reads brought beside the wanted one, and those that readahead brought.
    pub group_blocks: u64,
    /// Those of these blocks that were used later.
    pub group_blocks_used: u64,
    /// Bytes of file data written directly, without a copy in the cache.
    #[serde(default)]
    pub written_direct: u64,
    /// Blocks dropped to stay within the limit.
    pub evicted: u64,
    /// Bytes of cached blocks.
    pub bytes: u64,
    /// Bytes of dirty file data.
    pub dirty_data_bytes: u64,
    /// The limit in bytes.
    pub limit_bytes: u64,
}

/// Counters of the journal.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LogStats {
    /// Commits written to the log.
    pub commits: u64,
    /// Bytes written to the log.
    pub bytes: u64,
    /// Checkpoints: how often the log was emptied.
    pub checkpoints: u64,
    /// Blocks of metadata and logged data written in place.
    #[serde(rename = "home_blocks")]
    pub checkpointed_blocks: u64,
    /// Blocks that wait for a checkpoint.
    pub dirty_blocks: u64,
}

/// Fragments of file data compared with their checksums when they came from the device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SumStats {
    /// Fragments as they were written.
    pub verified: u64,
    /// Damaged fragments: reading them was an error.
    pub failed: u64,
    /// Fragments without a known checksum.
    pub unknown: u64,
}

/// What maintenance did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MaintenanceStats {
    /// How often it found enough to do.
    pub runs: u64,
    /// Bytes that it moved.
    pub bytes_moved: u64,
    /// Bytes that it may move, for what programs have written.
    pub credit: u64,
}

/// Counters of a mounted file system since it was mounted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FsStats {
    /// Requests, bytes and latencies by kind.
    pub device: DeviceCounters,
    /// The same for an external log device.
    pub log_device: Option<DeviceCounters>,
    /// The same for each disk below the device, where that is a log disk or a volume, which makes requests of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskCounters>,
    /// Bytes of the longest request to the device.
    #[serde(default)]
    pub max_request: u64,
    /// The cache.
    pub cache: CacheStats,
    /// The journal.
    pub log: LogStats,
    /// Checksums of data; none if they are not kept.
    pub data_sums: Option<SumStats>,
    /// Maintenance.
    #[serde(default)]
    pub maintenance: MaintenanceStats,
    /// Inodes in memory.
    pub inodes: u64,
    /// Fragments: total, free, reserved. On a device that stores less than it has places these are the places.
    pub space: [u64; 3],
    /// On such a device: fragments that it can store, and how many more.
    #[serde(default)]
    pub stored: Option<[u64; 2]>,
    /// Bytes of a fragment.
    pub fragment_size: u64,
}
