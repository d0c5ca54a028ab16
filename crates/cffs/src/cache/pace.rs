//! How fast the device takes long writes, by what it took so far: whether a program that writes much had better wait for the
//! device than copy its bytes into memory.
//!
//! Two ways lead a long file to the device. By way of memory one processor copies and another writes, which is the right
//! thing for a device that is slower than a copy: the program goes on, and several requests are in flight. Past the cache
//! there is no copy, but the program waits for each request. That is only better where the device takes a request in less
//! time than the way through memory costs; what that is was measured (`docs/lab.md`, large files).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Time for a MiB, in nanoseconds, up to which a device may be fast by what is known of batches. Those share the processors and
/// the memory with the program that brings more, and take longer than what goes past; to try that costs a few writes.
const FAST_BATCHES: u64 = 2_000_000;
/// The same for what goes past the cache already. A machine with much to do makes either way slower.
const FAST_PAST: u64 = 1_500_000;
/// What is expected of writes past the cache before there are any: one that was slow is not the device's word.
const EXPECTED: u64 = 1_000_000;
/// What one write counts at most: a program that was stopped for a while says nothing of the device.
const MOST: u64 = 4_000_000;
/// Weight of what was before, against one write.
const WEIGHT: u64 = 15;
/// Bytes after which the way past the cache is tried again.
const AGAIN: u64 = 64 * MIB;
/// Least mean length of a request for the write to say something about bandwidth.
const LONG: u64 = 256 << 10;

/// Nanoseconds for each MiB; 0 when nothing is known.
#[derive(Default)]
pub(super) struct Pace {
    /// Of writes by way of memory.
    batches: AtomicU64,
    /// Of writes past the cache.
    past: AtomicU64,
    /// Bytes that go by way of memory until the other one is tried again.
    rest: AtomicU64,
}

impl Pace {
    /// Notes a write of so many bytes in so many requests.
    pub(super) fn note(&self, past: bool, bytes: u64, requests: u64, took: Duration) {
        if !past {
            let _ =
                self.rest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |rest| Some(rest.saturating_sub(bytes)));
        }
        if bytes < LONG || bytes / requests.max(1) < LONG {
            return;
        }
        let each = ((took.as_nanos() * u128::from(MIB) / u128::from(bytes)) as u64).clamp(1, MOST);
        let known = if past { &self.past } else { &self.batches };
        let new = match known.load(Ordering::Relaxed) {
            0 if !past => each,
            0 => (EXPECTED * WEIGHT + each) / (WEIGHT + 1),
            old => (old * WEIGHT + each) / (WEIGHT + 1),
        };
        known.store(new, Ordering::Relaxed);
        if past && new > FAST_PAST {
            self.past.store(0, Ordering::Relaxed);
            self.rest.store(AGAIN, Ordering::Relaxed);
        }
    }

    /// Whether the device takes long writes as fast as memory does.
    pub(super) fn is_fast(&self) -> bool {
        // What was tried, and was good, needs no other witness.
        let tried = self.past.load(Ordering::Relaxed) != 0;
        let batches = self.batches.load(Ordering::Relaxed);
        self.rest.load(Ordering::Relaxed) == 0 && (tried || batches != 0 && batches <= FAST_BATCHES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn only_a_device_known_to_be_fast_is() {
        let pace = Pace::default();
        assert!(!pace.is_fast(), "nothing is known");
        pace.note(false, 8 * MIB, 1000, Duration::from_micros(1));
        assert!(!pace.is_fast(), "short requests say nothing");
        pace.note(false, 8 * MIB, 8, ms(80));
        assert!(!pace.is_fast(), "100 MiB/s");
        let pace = Pace::default();
        pace.note(false, 8 * MIB, 8, ms(12));
        assert!(pace.is_fast(), "700 MiB/s beside a program that fills memory");
        pace.note(true, MIB, 1, ms(3));
        assert!(pace.is_fast(), "the first one was slow");
    }

    #[test]
    fn one_long_wait_is_not_a_slow_device_but_several_are() {
        let pace = Pace::default();
        pace.note(false, 8 * MIB, 8, ms(4));
        (0..10).for_each(|_| pace.note(true, MIB, 1, Duration::from_micros(400)));
        pace.note(true, MIB, 1, ms(300_000));
        assert!(pace.is_fast());
        (0..9).for_each(|_| pace.note(true, MIB, 1, ms(20)));
        assert!(!pace.is_fast());
        // Batches that are fast do not change that at once, but after a while it is tried again.
        pace.note(false, AGAIN - 1, 8, ms(4));
        assert!(!pace.is_fast());
        pace.note(false, 8 * MIB, 8, ms(4));
        assert!(pace.is_fast());
    }
}
