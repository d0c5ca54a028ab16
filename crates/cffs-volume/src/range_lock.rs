//! Keeps writers of the same bytes apart.

use parking_lot::{Condvar, Mutex};

/// Ranges that somebody has for himself. Two members of a mirror could perform two writes to the same bytes in different orders,
/// and would differ from then on.
#[derive(Default)]
pub(crate) struct RangeLock {
    held: Mutex<Vec<(u64, u64)>>,
    released: Condvar,
}

/// Gives the ranges back when it is dropped.
pub(crate) struct RangeGuard<'a> {
    lock: &'a RangeLock,
    ranges: Vec<(u64, u64)>,
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

impl RangeLock {
    /// Waits until nobody has any of these ranges (start, end), and takes all at once. They must not overlap each other.
    pub(crate) fn lock(&self, ranges: &[(u64, u64)]) -> RangeGuard<'_> {
        let mut held = self.held.lock();
        while held.iter().any(|h| ranges.iter().any(|r| overlap(*h, *r))) {
            self.released.wait(&mut held);
        }
        held.extend_from_slice(ranges);
        RangeGuard { lock: self, ranges: ranges.to_vec() }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut held = self.lock.held.lock();
        for range in &self.ranges {
            if let Some(at) = held.iter().position(|h| h == range) {
                held.swap_remove(at);
            }
        }
        self.lock.released.notify_all();
    }
}

/// Whether any two of these ranges overlap.
pub(crate) fn overlapping(ranges: &[(u64, u64)]) -> bool {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).any(|w| overlap(w[0], w[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn overlapping_ranges_are_found() {
        assert!(!overlapping(&[(0, 10), (20, 30), (10, 20)]));
        assert!(overlapping(&[(0, 10), (20, 30), (9, 20)]));
    }

    #[test]
    fn one_at_a_time_has_a_range() {
        let lock = RangeLock::default();
        let users: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let (lock, users) = (&lock, &users);
                s.spawn(move || {
                    for i in 0..500 {
                        let (a, b) = ((t + i) % 8, (t * 3 + i * 5) % 8);
                        let ranges: Vec<_> =
                            [a, b].iter().take(if a == b { 1 } else { 2 }).map(|n| (n * 10, n * 10 + 10)).collect();
                        let _guard = lock.lock(&ranges);
                        for (start, _) in &ranges {
                            assert_eq!(users[*start as usize / 10].fetch_add(1, Ordering::SeqCst), 0);
                        }
                        for (start, _) in &ranges {
                            users[*start as usize / 10].fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        assert!(lock.held.lock().is_empty());
    }
}
