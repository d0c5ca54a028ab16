//! A running estimate of the latency of long writes: is waiting for the device faster than copying bytes into memory?
//!
//! Two ways lead a long file to the device. Through memory one processor copies and another writes, which is right
//! for a device that is slower than a copy: the program continues, and several requests are in flight. A direct write
//! makes no copy, but the program waits for each request. That is only better where the device takes a request in less
//! time than the way through memory costs, which was measured (`docs/lab.md`, large files).
//!
//! A running estimate and not a choice at mount time, because nothing known then predicts it: reads of a fresh image are holes,
//! the first write to a place can take ten times as long as later ones, virtual disks of 2 GB/s call themselves rotational,
//! and a host has slow hours.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Latency of a MiB in batches, in nanoseconds, up to which direct writes are tried. Batches share the processors and the
/// memory with the program that writes, so they take longer than direct writes; trying costs a few writes.
const BATCHED_MAX: u64 = 2_000_000;
/// The same of direct writes, up to which they go on. A busy machine makes either way slower.
const DIRECT_MAX: u64 = 1_500_000;
/// The estimate for direct writes before there are any, so that a single slow one does not decide.
const DIRECT_EXPECTED: u64 = 1_000_000;
/// Most that a single write counts, because a program that was stopped for a while says nothing of the device.
const SAMPLE_MAX: u64 = 4_000_000;
/// Weight of the estimate so far, against one write.
const WEIGHT: u64 = 15;
/// Bytes after which direct writes are tried again.
const RETRY_BYTES: u64 = 64 * MIB;
/// Least mean length of a request in bytes. Shorter ones say nothing about bandwidth.
const REQUEST_MIN: u64 = 256 << 10;

/// Nanoseconds per MiB; 0 when nothing is known.
#[derive(Default)]
pub(super) struct WriteLatency {
    /// Of batches that writeback submits.
    batched: AtomicU64,
    /// Of direct writes.
    direct: AtomicU64,
    /// Bytes that go through memory until direct writes are tried again.
    retry_after: AtomicU64,
}

impl WriteLatency {
    /// Notes a write of so many bytes in so many requests.
    pub(super) fn note(&self, direct: bool, bytes: u64, requests: u64, took: Duration) {
        if !direct {
            let _ = self
                .retry_after
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(bytes)));
        }
        if bytes < REQUEST_MIN || bytes / requests.max(1) < REQUEST_MIN {
            return;
        }
        let each = ((took.as_nanos() * u128::from(MIB) / u128::from(bytes)) as u64).clamp(1, SAMPLE_MAX);
        let known = if direct { &self.direct } else { &self.batched };
        let new = match known.load(Ordering::Relaxed) {
            0 if !direct => each,
            0 => (DIRECT_EXPECTED * WEIGHT + each) / (WEIGHT + 1),
            old => (old * WEIGHT + each) / (WEIGHT + 1),
        };
        known.store(new, Ordering::Relaxed);
        if direct && new > DIRECT_MAX {
            self.direct.store(0, Ordering::Relaxed);
            self.retry_after.store(RETRY_BYTES, Ordering::Relaxed);
        }
    }

    /// Whether direct writes are likely to be faster than writes through memory.
    pub(super) fn favours_direct(&self) -> bool {
        // Direct writes that were fast need no confirmation by batches.
        let tried = self.direct.load(Ordering::Relaxed) != 0;
        let batched = self.batched.load(Ordering::Relaxed);
        self.retry_after.load(Ordering::Relaxed) == 0 && (tried || batched != 0 && batched <= BATCHED_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn direct_writes_are_tried_only_on_a_device_known_to_be_fast() {
        let latency = WriteLatency::default();
        assert!(!latency.favours_direct(), "nothing is known");
        latency.note(false, 8 * MIB, 1000, Duration::from_micros(1));
        assert!(!latency.favours_direct(), "short requests say nothing");
        latency.note(false, 8 * MIB, 8, ms(80));
        assert!(!latency.favours_direct(), "100 MiB/s");
        let latency = WriteLatency::default();
        latency.note(false, 8 * MIB, 8, ms(12));
        assert!(latency.favours_direct(), "700 MiB/s beside a program that fills memory");
        latency.note(true, MIB, 1, ms(3));
        assert!(latency.favours_direct(), "the first one was slow");
    }

    #[test]
    fn one_slow_write_does_not_end_direct_writes_but_several_do() {
        let latency = WriteLatency::default();
        latency.note(false, 8 * MIB, 8, ms(4));
        (0..10).for_each(|_| latency.note(true, MIB, 1, Duration::from_micros(400)));
        latency.note(true, MIB, 1, ms(300_000));
        assert!(latency.favours_direct());
        (0..9).for_each(|_| latency.note(true, MIB, 1, ms(20)));
        assert!(!latency.favours_direct());
        // Batches that are fast do not change that at once, but after a while it is tried again.
        latency.note(false, RETRY_BYTES - 1, 8, ms(4));
        assert!(!latency.favours_direct());
        latency.note(false, 8 * MIB, 8, ms(4));
        assert!(latency.favours_direct());
    }
}
