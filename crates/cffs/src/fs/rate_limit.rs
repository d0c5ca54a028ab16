//! A limit of the rate of long work.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Longest sleep without testing whether to stop.
const NAP: Duration = Duration::from_millis(50);
/// A limited work transfers at a time what it may transfer in one in so many parts of a second, and never less than a small file and its directory.
const BURST_DIVISOR: u64 = 160;
const BURST_MIN: u64 = 64 << 10;
/// The time that a transfer itself takes counts up to this: after a longer pause nothing is made up for.
const TRANSFER_MAX: Duration = Duration::from_millis(250);

/// At most so many bytes in a second.
pub(super) struct RateLimit {
    rate: Option<u64>,
    /// When the bytes so far conform to the rate.
    paid: Mutex<Instant>,
}

impl RateLimit {
    /// From now on. `None`: no limit.
    pub(super) fn new(rate: Option<u64>) -> RateLimit {
        RateLimit { rate, paid: Mutex::new(Instant::now()) }
    }

    /// Whether there is one.
    pub(super) fn is_some(&self) -> bool {
        self.rate.is_some()
    }

    /// Most bytes to transfer at a time.
    pub(super) fn burst(&self) -> u64 {
        self.rate.map_or(u64::MAX, |rate| (rate / BURST_DIVISOR).max(BURST_MIN))
    }

    /// So many bytes were transferred: waits until they conform to the rate, or `stopped` says that nobody wants more.
    pub(super) fn wait(&self, bytes: u64, stopped: impl Fn() -> bool) {
        if let Some(until) = self.conforms_at(bytes, Instant::now()) {
            wait_until(until, stopped);
        }
    }

    fn conforms_at(&self, bytes: u64, now: Instant) -> Option<Instant> {
        let cost = Duration::from_secs_f64(bytes as f64 / self.rate?.max(1) as f64);
        let mut paid = self.paid.lock();
        *paid = (*paid).max(now.checked_sub(TRANSFER_MAX).unwrap_or(now)) + cost;
        Some(*paid)
    }
}

/// Waits for a time, or until `stopped`.
pub(super) fn wait_until(time: Instant, stopped: impl Fn() -> bool) {
    while let Some(left) = time.checked_duration_since(Instant::now()).filter(|_| !stopped()) {
        std::thread::sleep(left.min(NAP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_transfer_counts_and_a_pause_does_not() {
        let limit = RateLimit::new(Some(1000));
        let begin = *limit.paid.lock();
        let at = |ms| begin + Duration::from_millis(ms);
        // A hundred bytes conform after 100 ms, however long their transfer took.
        assert_eq!(limit.conforms_at(100, at(80)), Some(at(100)));
        assert_eq!(limit.conforms_at(100, at(150)), Some(at(200)));
        // A pause of ten seconds is none for what follows.
        assert_eq!(limit.conforms_at(1000, at(10_000)), Some(at(10_750)));
        assert_eq!(RateLimit::new(None).conforms_at(1 << 40, at(0)), None);
    }

    #[test]
    fn bursts_are_short_where_there_is_a_limit() {
        let burst = |rate| RateLimit::new(rate).burst();
        assert_eq!((burst(None), burst(Some(20 << 20)), burst(Some(1))), (u64::MAX, 128 << 10, BURST_MIN));
    }
}
