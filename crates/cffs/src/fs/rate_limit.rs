//! A limit of the rate of long work.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Longest sleep without testing whether to stop.
const NAP: Duration = Duration::from_millis(50);

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

    /// So many bytes were transferred: waits until they conform to the rate, or `stopped` says that nobody wants more.
    pub(super) fn wait(&self, bytes: u64, stopped: impl Fn() -> bool) {
        let Some(rate) = self.rate else { return };
        let until = {
            let mut paid = self.paid.lock();
            *paid = (*paid).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            *paid
        };
        wait_until(until, stopped);
    }
}

/// Waits for a time, or until `stopped`.
pub(super) fn wait_until(time: Instant, stopped: impl Fn() -> bool) {
    while let Some(left) = time.checked_duration_since(Instant::now()).filter(|_| !stopped()) {
        std::thread::sleep(left.min(NAP));
    }
}
