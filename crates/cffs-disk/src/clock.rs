//! The virtual clock: of one disk, or of several that work at the same time, and of threads that wait for them.

use crate::request::Ns;
use parking_lot::{Condvar, Mutex};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Real time after which a thread that gets no turn gives up: another one waits for a lock that a third one holds, which waits for its disk.
const STUCK: Duration = Duration::from_secs(60);

thread_local! {
    /// Which of the threads of [`Clock::threads`] this one is.
    static LANE: Cell<Option<usize>> = const { Cell::new(None) };
    /// Within [`Clock::at_once`]: when each disk that was asked will be done, by its number.
    static PENDING: RefCell<Option<Vec<(usize, Ns)>>> = const { RefCell::new(None) };
}

/// A virtual clock. Several disks may share it.
#[derive(Debug, Default)]
pub struct Clock {
    now: AtomicU64,
    disks: AtomicU64,
    lanes: Mutex<Lanes>,
    turn: Condvar,
}

/// Threads of which one runs at a time.
#[derive(Debug, Default)]
struct Lanes {
    /// When each goes on; `None` for the one that runs and for those that have ended.
    wakes: Vec<Option<Ns>>,
    running: Option<usize>,
}

impl Clock {
    /// Nanoseconds since the beginning.
    pub fn now(&self) -> Ns {
        self.now.load(Ordering::Relaxed)
    }

    /// Advances to `then`, unless that is past. One of several threads ([`Clock::threads`]) waits until it is its turn.
    pub fn advance_to(&self, then: Ns) {
        match LANE.get() {
            Some(lane) => self.sleep(lane, then),
            None => _ = self.now.fetch_max(then, Ordering::Relaxed),
        }
    }

    /// What `work` asks of different disks with this clock begins now, at the same time; of one and the same disk, one after the other.
    /// The clock then advances to the end of the last request.
    pub fn at_once<T>(&self, work: impl FnOnce() -> T) -> T {
        if PENDING.with_borrow(|p| p.is_some()) {
            return work();
        }
        PENDING.set(Some(Vec::new()));
        let result = work();
        let ends = PENDING.take().unwrap_or_default();
        if let Some(end) = ends.iter().map(|(_, end)| *end).max() {
            self.advance_to(end);
        }
        result
    }

    /// Runs `work` with the numbers from 0 to below `count`, each in a thread of its own. A thread that asks a disk goes on when the disk is
    /// done; meanwhile others do. One runs at a time, the one whose turn comes first by the clock, so every run gives the same
    /// figures. A thread must not wait for a lock that another one holds while it asks a disk.
    ///
    /// # Panics
    /// If `work` does, or a thread waits for such a lock.
    pub fn threads(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        if count == 0 {
            return;
        }
        let now = self.now();
        let mut wakes = vec![Some(now); count];
        wakes[0] = None;
        *self.lanes.lock() = Lanes { wakes, running: Some(0) };
        std::thread::scope(|scope| {
            for lane in 0..count {
                scope.spawn(move || {
                    LANE.set(Some(lane));
                    let _end = End(self);
                    self.wait_for_turn(lane);
                    work(lane);
                });
            }
        });
    }

    fn sleep(&self, lane: usize, then: Ns) {
        let mut lanes = self.lanes.lock();
        lanes.wakes[lane] = Some(then.max(self.now()));
        self.pass_on(&mut lanes);
        drop(lanes);
        self.wait_for_turn(lane);
    }

    /// The thread whose time is next goes on.
    fn pass_on(&self, lanes: &mut Lanes) {
        let next = lanes.wakes.iter().enumerate().filter_map(|(lane, wake)| Some((wake.as_ref()?, lane))).min();
        let next = next.map(|(wake, lane)| (*wake, lane));
        if let Some((wake, lane)) = next {
            self.now.fetch_max(wake, Ordering::Relaxed);
            lanes.wakes[lane] = None;
        }
        lanes.running = next.map(|(_, lane)| lane);
        self.turn.notify_all();
    }

    fn wait_for_turn(&self, lane: usize) {
        let mut lanes = self.lanes.lock();
        while lanes.running != Some(lane) {
            let late = self.turn.wait_for(&mut lanes, STUCK).timed_out();
            assert!(!late || lanes.running == Some(lane), "a thread waits for a lock of another one");
        }
    }

    /// A number for one more disk.
    pub(crate) fn new_disk(&self) -> usize {
        self.disks.fetch_add(1, Ordering::Relaxed) as usize
    }

    /// When a request to a disk begins.
    pub(crate) fn begin(&self, disk: usize) -> Ns {
        let pending = PENDING.with_borrow(|p| {
            let of_disk = p.as_ref()?.iter().find(|(of, _)| *of == disk)?;
            Some(of_disk.1)
        });
        pending.unwrap_or(0).max(self.now())
    }

    /// A request to a disk ends at `then`.
    pub(crate) fn end(&self, disk: usize, then: Ns) {
        let is_pending = PENDING.with_borrow_mut(|pending| {
            let Some(ends) = pending else { return false };
            match ends.iter_mut().find(|(of, _)| *of == disk) {
                Some((_, end)) => *end = then.max(*end),
                None => ends.push((disk, then)),
            }
            true
        });
        if !is_pending {
            self.advance_to(then);
        }
    }
}

/// Lets the others go on when a thread ends, also by a panic.
struct End<'a>(&'a Clock);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut lanes = self.0.lanes.lock();
        if lanes.running == LANE.get() {
            self.0.pass_on(&mut lanes);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Clock, SimDevice, profiles};
    use cffs_device::{Device, IoKind};
    use std::sync::Arc;

    const MS: u64 = 1_000_000;

    fn disks(count: usize) -> (Arc<Clock>, Vec<SimDevice>) {
        let clock = Arc::new(Clock::default());
        let model = profiles::find("volume-1ms").unwrap().model();
        let disks = (0..count).map(|_| SimDevice::new(model.clone(), 1 << 20, clock.clone())).collect();
        (clock, disks)
    }

    fn read(disk: &SimDevice) {
        disk.read_at(IoKind::Data, 0, &mut [0; 4096]).unwrap();
    }

    #[test]
    fn disks_that_are_asked_at_once_work_at_the_same_time() {
        let (clock, disks) = disks(3);
        disks.iter().for_each(read);
        let one_by_one = clock.now();
        clock.at_once(|| disks.iter().for_each(read));
        assert_eq!((clock.now() - one_by_one) * 3, one_by_one);
        let before = clock.now();
        clock.at_once(|| (0..3).for_each(|_| read(&disks[0])));
        assert_eq!(clock.now() - before, one_by_one, "one disk does one after the other");
    }

    #[test]
    fn threads_wait_each_for_its_own_request() {
        let run = || {
            let (clock, disks) = disks(2);
            clock.threads(4, &|i| (0..10).for_each(|_| read(&disks[i % 2])));
            (clock.now(), disks[0].counters().reads)
        };
        let (time, reads) = run();
        assert_eq!(reads, 20);
        // Two at each disk, which starts one in a third of a millisecond.
        assert!((10 * MS..11 * MS).contains(&time), "{time}");
        assert_eq!(run(), (time, reads));
    }
}
