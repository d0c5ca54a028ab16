//! Timing a device to choose the group size: how many bytes a request should move so that its fixed cost is paid back.

use crate::device::Device;
use crate::request::IoKind;
use cffs_buf::AlignedBuf;
use std::io;
use std::time::{Duration, Instant};

/// Group size where timing the device says nothing useful.
pub const FALLBACK_GROUP_SIZE: u32 = 256 << 10;

/// Smallest and largest group the probe recommends. The format allows 16 KiB to 4 MiB; but below 64 KiB grouping gains
/// little on any device, and above 1 MiB a group read for one small file costs more than it is likely to save.
const RECOMMENDED: (u32, u32) = (64 << 10, 1 << 20);
/// Sizes of the reads, 4 KiB to 4 MiB, in an order that has far-apart sizes early: if the device is so slow that time
/// runs out, the fit still has both ends.
const SIZES_KIB: [usize; 11] = [4, 4096, 64, 1024, 16, 256, 8, 512, 32, 2048, 128];
/// Time after which no further read is started.
const TIME_LIMIT: Duration = Duration::from_millis(900);
/// Most repetitions of each size; with 4 MiB the largest, all of them together read less than 40 MiB.
const ROUNDS: usize = 5;
/// A device that answers faster is a cache, or the image is sparse: no request ever reached a disk.
const LATENCY_THAT_MATTERS: Duration = Duration::from_micros(25);

/// Reads of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeSample {
    /// Bytes per read.
    pub size: usize,
    /// Number of reads.
    pub reads: usize,
    /// Median time of one read.
    pub median: Duration,
}

/// What [`probe_group_size`] found.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The recommended group size in bytes, a power of two.
    pub group_size: u32,
    /// The fixed cost of a request; `None` if it could not be measured.
    pub latency: Option<Duration>,
    /// Bytes per second within one request; `None` if it could not be measured.
    pub bandwidth: Option<f64>,
    /// What was measured, by size.
    pub samples: Vec<ProbeSample>,
    /// In one sentence, how the group size follows from this.
    pub reason: String,
}

/// Times reads of 4 KiB to 4 MiB at scattered places and recommends the group size at the knee: the size at which
/// transferring takes as long as the fixed cost of the request. Never writes; takes about a second at most unless a
/// single read takes longer.
pub fn probe_group_size(dev: &dyn Device) -> io::Result<Probe> {
    let samples = measure(dev)?;
    Ok(choose_group_size(samples))
}

/// Scattered positions that do not repeat soon: multiples of the golden ratio of the device.
struct Scatter(u64);

impl Scatter {
    /// The next offset for a read of `size` bytes, a multiple of `size`.
    fn next(&mut self, dev_len: u64, size: usize) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let slots = dev_len / size as u64;
        let slot = (u128::from(self.0) * u128::from(slots)) >> 64;
        slot as u64 * size as u64
    }
}

fn measure(dev: &dyn Device) -> io::Result<Vec<ProbeSample>> {
    let sector = dev.sector_size() as usize;
    // On a small device a large read covers most of it and leaves nothing scattered.
    let sizes: Vec<usize> = SIZES_KIB
        .iter()
        .map(|kib| kib << 10)
        .filter(|&size| size as u64 <= dev.len() / 8 && size.is_multiple_of(sector))
        .collect();
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); sizes.len()];
    let mut buf = AlignedBuf::zeroed(sizes.iter().copied().max().unwrap_or(0));
    let mut scatter = Scatter(0x5851_f42d_4c95_7f2d);
    let start = Instant::now();
    'rounds: for _ in 0..ROUNDS {
        for (times, &size) in times.iter_mut().zip(&sizes) {
            if start.elapsed() > TIME_LIMIT {
                break 'rounds;
            }
            let offset = scatter.next(dev.len(), size);
            let begin = Instant::now();
            dev.read_at(IoKind::Data, offset, &mut buf[..size])?;
            times.push(begin.elapsed());
        }
    }
    let mut samples: Vec<ProbeSample> = sizes
        .into_iter()
        .zip(times)
        .filter(|(_, times)| !times.is_empty())
        .map(|(size, mut times)| {
            times.sort();
            ProbeSample { size, reads: times.len(), median: times[(times.len() - 1) / 2] }
        })
        .collect();
    samples.sort_by_key(|s| s.size);
    Ok(samples)
}

/// Fits time = latency + size / bandwidth, by least squares of the relative error: otherwise the large reads alone
/// would decide, and say nothing about the latency. Gives latency in seconds and bytes per second.
fn fit(samples: &[ProbeSample]) -> Option<(f64, f64)> {
    let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for s in samples {
        let (x, y) = (s.size as f64, s.median.as_secs_f64().max(1e-9));
        let weight = 1.0 / (y * y);
        w += weight;
        wx += weight * x;
        wy += weight * y;
        wxx += weight * x * x;
        wxy += weight * x * y;
    }
    let determinant = w * wxx - wx * wx;
    if samples.len() < 3 || determinant <= 0.0 {
        return None;
    }
    let per_byte = (w * wxy - wx * wy) / determinant;
    let latency = (wy - per_byte * wx) / w;
    (per_byte > 0.0).then(|| (latency.max(0.0), 1.0 / per_byte))
}

/// The group size that these times speak for, and why.
pub fn choose_group_size(samples: Vec<ProbeSample>) -> Probe {
    let fallback = |samples, latency, bandwidth, why: String| Probe {
        group_size: FALLBACK_GROUP_SIZE,
        latency,
        bandwidth,
        samples,
        reason: format!("{why}, so {} KiB are assumed", FALLBACK_GROUP_SIZE >> 10),
    };
    if samples.len() < 3 {
        return fallback(samples, None, None, "too few reads fit on the device or into the time".to_owned());
    }
    // The time of a small read is the latency where the transfer is too fast to be seen.
    let smallest = samples[0].median;
    let fitted = fit(&samples);
    let latency = fitted.map_or(smallest, |(latency, _)| Duration::from_secs_f64(latency));
    if smallest < LATENCY_THAT_MATTERS {
        let why = format!(
            "a read of {} KiB takes only {:.1} µs, as from a cache or a sparse image",
            samples[0].size >> 10,
            smallest.as_secs_f64() * 1e6
        );
        return fallback(samples, Some(latency), fitted.map(|f| f.1), why);
    }
    let (min, max) = RECOMMENDED;
    let Some((latency_s, bandwidth)) = fitted else {
        return Probe {
            group_size: max,
            latency: Some(latency),
            bandwidth: None,
            samples,
            reason: format!("large reads take no longer than small ones, so the largest, {} KiB", max >> 10),
        };
    };
    let knee = latency_s * bandwidth;
    let group_size = 2f64.powf(knee.max(1.0).log2().round()).clamp(f64::from(min), f64::from(max)) as u32;
    let bound = if group_size == max && knee > f64::from(max) {
        ", above the largest that is recommended"
    } else if group_size == min && knee < f64::from(min) {
        ", below the smallest that is recommended"
    } else {
        ""
    };
    Probe {
        group_size,
        latency: Some(latency),
        bandwidth: Some(bandwidth),
        samples,
        reason: format!(
            "{:.0} µs per request at {:.0} MB/s pay off at {:.0} KiB{bound}",
            latency_s * 1e6,
            bandwidth / 1e6,
            knee / 1024.0
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CountingDevice, MemoryDevice};
    use std::io::{IoSlice, IoSliceMut};

    fn model(latency: f64, bandwidth: f64) -> Vec<ProbeSample> {
        (12..=22)
            .map(|log| ProbeSample {
                size: 1 << log,
                reads: 1,
                median: Duration::from_secs_f64(latency + f64::from(1 << log) / bandwidth),
            })
            .collect()
    }

    #[test]
    fn fit_finds_the_line() {
        for (latency, bandwidth) in [(1e-3, 200e6), (8e-3, 150e6), (80e-6, 3e9), (100e-6, 100e6)] {
            let (l, b) = fit(&model(latency, bandwidth)).unwrap();
            assert!((l / latency - 1.0).abs() < 0.01, "{l} {latency}");
            assert!((b / bandwidth - 1.0).abs() < 0.01, "{b} {bandwidth}");
        }
        assert_eq!(fit(&model(1e-3, 1e9)[..2]), None);
        assert_eq!(fit(&[model(1e-3, 1e9)[0]; 5]), None);
    }

    #[test]
    fn recommends_the_knee() {
        let group = |latency, bandwidth| choose_group_size(model(latency, bandwidth)).group_size;
        assert_eq!(group(1e-3, 250e6), 256 << 10);
        assert_eq!(group(1e-3, 500e6), 512 << 10);
        assert_eq!(group(8e-3, 200e6), 1 << 20, "1.6 MB, limited");
        assert_eq!(group(100e-6, 100e6), 64 << 10, "10 KB, limited");
        let probe = choose_group_size(model(8e-3, 200e6));
        assert!(probe.reason.contains("above the largest"), "{}", probe.reason);
        assert!((probe.latency.unwrap().as_secs_f64() / 8e-3 - 1.0).abs() < 0.01);
    }

    #[test]
    fn without_a_visible_transfer_time_the_largest() {
        let mut samples = model(2e-3, 1e9);
        samples.iter_mut().for_each(|s| s.median = Duration::from_millis(2));
        assert_eq!(choose_group_size(samples).group_size, 1 << 20);
    }

    #[test]
    fn memory_and_tiny_devices_fall_back() {
        let probe = probe_group_size(&MemoryDevice::new(1 << 40)).unwrap();
        assert_eq!(probe.group_size, FALLBACK_GROUP_SIZE);
        assert!(probe.reason.contains("sparse"), "{}", probe.reason);
        assert_eq!(probe.samples.len(), 11);
        for len in [0, 512, 65536] {
            let probe = probe_group_size(&MemoryDevice::new(len)).unwrap();
            assert_eq!(probe.group_size, FALLBACK_GROUP_SIZE);
            assert!(probe.reason.contains("too few"), "{}", probe.reason);
        }
    }

    #[test]
    fn reads_little_and_writes_nothing() {
        let dev = CountingDevice::new(MemoryDevice::new(1 << 30));
        probe_group_size(&dev).unwrap();
        let stats = dev.snapshot();
        assert_eq!(stats.write_requests() + stats.discards, 0);
        assert!(stats.read_bytes() < 64 << 20);
        assert!(stats.read_requests() > 0);
    }

    /// A disk with 2 ms per request and 100 MB/s.
    struct SlowDevice(MemoryDevice);

    impl Device for SlowDevice {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn sector_size(&self) -> u32 {
            4096
        }
        fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
            let bytes: usize = bufs.iter().map(|b| b.len()).sum();
            std::thread::sleep(Duration::from_secs_f64(2e-3 + bytes as f64 / 100e6));
            self.0.read_vectored(kind, offset, bufs)
        }
        fn write_vectored(&self, _: IoKind, _: u64, _: &[IoSlice<'_>]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
        fn discard(&self, _: u64, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    #[test]
    fn a_slow_disk_in_real_time() {
        let measured = || {
            let begin = Instant::now();
            let probe = probe_group_size(&SlowDevice(MemoryDevice::new(1 << 30))).unwrap();
            (begin.elapsed(), probe)
        };
        // The knee is at 200 kB; a busy machine may double what was slept.
        let right = |(took, probe): &(Duration, Probe)| {
            *took < Duration::from_secs(5)
                && (128 << 10..=1 << 20).contains(&probe.group_size)
                && probe.latency.is_some_and(|l| l >= Duration::from_millis(1))
                && probe.bandwidth.is_some_and(|b| b < 200e6)
        };
        // One of several measurements, because other programs may take the processor for longer than that.
        let mut wrong = Vec::new();
        while wrong.len() < 10 {
            match measured() {
                probe if right(&probe) => return,
                probe => wrong.push(probe),
            }
        }
        panic!("{wrong:?}");
    }

    #[test]
    fn errors_are_passed_on() {
        use crate::{FailingDevice, Fault, Operation};
        let dev = FailingDevice::new(std::sync::Arc::new(MemoryDevice::new(1 << 30)));
        dev.set(Operation::Read, Fault::nth(4));
        assert!(probe_group_size(&dev).is_err());
    }
}
