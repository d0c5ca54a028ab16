//! Requests that somebody waits for: work that has time gives way to them.

use crate::purpose::Purpose;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How many requests are on their way, without those of work that has time.
#[derive(Default)]
pub(crate) struct InFlight {
    requests: AtomicUsize,
    /// Threads that wait until there are none.
    waiting: AtomicUsize,
    lock: Mutex<()>,
    none: Condvar,
}

/// A request that is on its way.
pub(crate) struct OnItsWay<'a>(&'a InFlight);

/// Whether what this thread does now has time.
fn has_time() -> bool {
    matches!(Purpose::current(), Purpose::Regroup | Purpose::Clean | Purpose::Scrub)
}

impl InFlight {
    /// A request of this thread begins, and ends where what is returned is dropped.
    pub fn begin(&self) -> Option<OnItsWay<'_>> {
        (!has_time()).then(|| {
            self.requests.fetch_add(1, Ordering::SeqCst);
            OnItsWay(self)
        })
    }

    /// Waits until nothing is on its way, but not longer than this.
    pub fn wait_for_none(&self, most: Duration) {
        if self.requests.load(Ordering::SeqCst) == 0 {
            return;
        }
        let until = Instant::now() + most;
        let mut lock = self.lock.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while self.requests.load(Ordering::SeqCst) > 0
            && let Some(left) = until.checked_duration_since(Instant::now())
        {
            self.none.wait_for(&mut lock, left);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        let InFlight { requests, waiting, lock, none } = self.0;
        // Who waits has said so before it looked at the number, so either it sees this or is woken.
        if requests.fetch_sub(1, Ordering::SeqCst) == 1 && waiting.load(Ordering::SeqCst) > 0 {
            drop(lock.lock());
            none.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn work_that_has_time_waits_for_the_last_request_and_for_none_of_its_kind() {
        let in_flight = InFlight::default();
        let requests = [in_flight.begin(), in_flight.begin()];
        assert!(requests.iter().all(Option::is_some));
        let [first, last] = requests;
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _purpose = Purpose::Regroup.scope();
                assert!(in_flight.begin().is_none());
                in_flight.wait_for_none(LONG);
                tell.send(in_flight.requests.load(Ordering::SeqCst)).unwrap();
            });
            drop(first);
            assert!(told.recv_timeout(Duration::from_millis(20)).is_err(), "one is on its way");
            drop(last);
            assert_eq!(told.recv_timeout(LONG), Ok(0));
        });
    }

    #[test]
    fn it_does_not_wait_for_ever() {
        let in_flight = InFlight::default();
        let _request = in_flight.begin();
        in_flight.wait_for_none(Duration::from_millis(1));
        assert_eq!(in_flight.requests.load(Ordering::SeqCst), 1);
    }
}
