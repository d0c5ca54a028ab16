//! The virtual clock: of one disk, or of several that work at the same time, and of threads that wait for them.

use crate::request::Ns;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Real time between two looks at what another thread does.
const LOOK: Duration = Duration::from_micros(100);
/// Looks at which a thread waits and has not run in between before it counts as one that waits for another one.
const LOOKS: u32 = 3;

thread_local! {
    /// Which use of [`Clock::threads`] this thread takes part in, and as which of its threads.
    static LANE: Cell<Option<(u64, usize)>> = const { Cell::new(None) };
    /// Within [`Clock::at_once`]: when each disk that was asked will be done, by its number.
    static PENDING: RefCell<Option<Vec<(usize, Ns)>>> = const { RefCell::new(None) };
}

/// Uses of [`Clock::threads`] so far, of any clock.
static USES: AtomicU64 = AtomicU64::new(1);

/// A virtual clock. Several disks may share it.
#[derive(Debug, Default)]
pub struct Clock {
    now: AtomicU64,
    disks: AtomicU64,
    lanes: Mutex<Lanes>,
    turn: Condvar,
    /// Threads that have asked a disk and are not in [`Clock::lanes`] as such yet: they wait for that lock, and not for another thread.
    asking: AtomicUsize,
    /// Where the kernel says what threads do that are there before [`Clock::threads`].
    watched: Mutex<Vec<PathBuf>>,
}

/// Threads that wait in virtual time.
#[derive(Debug, Default)]
struct Lanes {
    /// The use of [`Clock::threads`] that goes on; 0 for none.
    current: u64,
    list: Vec<Lane>,
}

#[derive(Debug, Default)]
struct Lane {
    /// When it goes on; `None` for one that runs.
    wake: Option<Ns>,
    /// Its time has come, and it does not know yet: it waits for the lock that all of them wait for.
    called: bool,
    ended: bool,
    /// Where the kernel says what it does, and what that was: how often it has waited, and in how many looks.
    status: Option<PathBuf>,
    seen: (u64, u32),
}

/// How often a thread has waited, if it waits now.
fn waits(status: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(status).ok()?;
    let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    if !field("State")?.starts_with('S') {
        return None;
    }
    let count = |name| field(name)?.parse::<u64>().ok();
    Some(count("voluntary_ctxt_switches")? + count("nonvoluntary_ctxt_switches")?)
}

impl Lane {
    fn runs(&self) -> bool {
        self.wake.is_none() && !self.ended
    }

    /// Looks at a thread that runs. Says whether it waits for another one.
    fn is_blocked(&mut self) -> bool {
        if self.called {
            return false;
        }
        if self.status.as_deref().is_some_and(|status| !status.exists()) {
            self.ended = true;
            return true;
        }
        let Some(count) = self.status.as_deref().and_then(waits) else {
            self.seen = (0, 0);
            return false;
        };
        self.seen = if self.seen.0 == count { (count, self.seen.1 + 1) } else { (count, 1) };
        self.seen.1 >= LOOKS
    }
}

impl Clock {
    /// Nanoseconds since the beginning.
    pub fn now(&self) -> Ns {
        self.now.load(Ordering::Relaxed)
    }

    /// Advances to `then`, unless that is past. While [`Clock::threads`] goes on, the thread waits until then.
    pub fn advance_to(&self, then: Ns) {
        if !self.sleep(then) {
            self.now.fetch_max(then, Ordering::Relaxed);
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

    /// Notes the threads that `start` starts: in [`Clock::threads`] no time passes from then on while one of them has something to do. Without this it is
    /// seen only once it has asked a disk, and time may pass before it runs for the first time.
    pub fn watch<T>(&self, start: impl FnOnce() -> T) -> T {
        let before = threads_of_process();
        let result = start();
        let mut watched = self.watched.lock();
        watched.retain(|status| status.exists());
        watched.extend(threads_of_process().into_iter().filter(|status| !before.contains(status)));
        result
    }

    /// Runs `work` with the numbers from 0 to below `count`, each in a thread of its own. Whoever asks a disk with this clock, also a thread that
    /// was there before, waits until the disk is done; meanwhile others go on. Time passes when all of them wait, for disks or for each other. So
    /// every run gives the same figures, as far as the threads do not depend on who of them comes first at one and the same time.
    ///
    /// # Panics
    /// If `work` does.
    pub fn threads(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        let current = USES.fetch_add(1, Ordering::Relaxed);
        let now = self.now();
        let own = (0..count).map(|_| Lane { wake: Some(now), ..Lane::default() });
        let watched = self.watched.lock().clone();
        let watched = watched.into_iter().map(|status| Lane { status: Some(status), ..Lane::default() });
        *self.lanes.lock() = Lanes { current, list: own.chain(watched).collect() };
        let ends = Ends(self);
        std::thread::scope(|scope| {
            for lane in 0..count {
                scope.spawn(move || {
                    LANE.set(Some((current, lane)));
                    let _end = EndOfLane { clock: self, lane };
                    let mut lanes = self.lanes.lock();
                    lanes.list[lane].status = own_status();
                    self.wait_for_turn(lanes, lane);
                    work(lane);
                });
            }
        });
        drop(ends);
    }

    /// Waits until `then` if threads wait for each other. Says whether they do.
    fn sleep(&self, then: Ns) -> bool {
        self.asking.fetch_add(1, Ordering::SeqCst);
        let mut lanes = self.lanes.lock();
        self.asking.fetch_sub(1, Ordering::SeqCst);
        if lanes.current == 0 {
            return false;
        }
        let lane = match LANE.get() {
            Some((current, lane)) if current == lanes.current => lane,
            _ => {
                let status = own_status();
                let watched = lanes.list.iter().position(|l| l.status.is_some() && l.status == status);
                let lane = watched.unwrap_or(lanes.list.len());
                if watched.is_none() {
                    lanes.list.push(Lane { status, ..Lane::default() });
                }
                LANE.set(Some((lanes.current, lane)));
                lane
            }
        };
        lanes.list[lane].wake = Some(then.max(self.now()));
        self.wait_for_turn(lanes, lane);
        true
    }

    fn wait_for_turn(&self, mut lanes: MutexGuard<'_, Lanes>, lane: usize) {
        let current = lanes.current;
        while lanes.current == current && lanes.list[lane].wake.is_some() {
            let asking = self.asking.load(Ordering::SeqCst) > 0;
            let sleeping = lanes.list.iter().enumerate().filter_map(|(n, l)| Some((l.wake?, n)));
            let Some((wake, next)) = sleeping.min() else { return };
            let mut running = lanes.list.iter_mut().filter(|l| l.runs()).peekable();
            // Only the next one looks, so that a look is worth something.
            let goes_on = running.peek().is_none() || next == lane && running.all(|l| l.is_blocked()) && !asking;
            if goes_on {
                self.now.fetch_max(wake, Ordering::Relaxed);
                (lanes.list[next].wake, lanes.list[next].called) = (None, true);
                lanes.list.iter_mut().for_each(|l| l.seen = (0, 0));
                self.turn.notify_all();
            } else if next == lane {
                self.turn.wait_for(&mut lanes, LOOK);
            } else {
                self.turn.wait(&mut lanes);
            }
        }
        if lanes.current == current {
            lanes.list[lane].called = false;
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

fn threads_of_process() -> Vec<PathBuf> {
    let process = Path::new("/proc").join(std::process::id().to_string()).join("task");
    let Ok(list) = std::fs::read_dir(&process) else { return Vec::new() };
    list.flatten().map(|thread| thread.path().join("status")).collect()
}

fn own_status() -> Option<PathBuf> {
    let thread = std::fs::read_link("/proc/thread-self").ok()?;
    Some(Path::new("/proc").join(thread).join("status"))
}

/// A thread ends, perhaps by a panic.
struct EndOfLane<'a> {
    clock: &'a Clock,
    lane: usize,
}

impl Drop for EndOfLane<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.clock.lanes.lock().list.get_mut(self.lane) {
            lane.ended = true;
        }
        self.clock.turn.notify_all();
    }
}

/// All threads have ended. Who was there before and still waits goes on.
struct Ends<'a>(&'a Clock);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        *self.0.lanes.lock() = Lanes::default();
        self.0.turn.notify_all();
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

    #[test]
    fn no_time_passes_until_a_watched_thread_has_done_what_it_was_given() {
        let (clock, disks) = disks(2);
        let disks = Arc::new(disks);
        let (send, receive) = std::sync::mpsc::channel();
        let helper = {
            let disks = disks.clone();
            clock.watch(move || std::thread::spawn(move || receive.iter().for_each(|()| read(&disks[1]))))
        };
        clock.threads(1, &|_| {
            (0..10).for_each(|_| {
                send.send(()).unwrap();
                read(&disks[0]);
            });
        });
        assert!((10 * MS..11 * MS).contains(&clock.now()), "{}", clock.now());
        // Both ended at the same time.
        assert!(disks[1].counters().reads >= 9, "{}", disks[1].counters().reads);
        drop(send);
        helper.join().unwrap();
    }

    #[test]
    fn a_thread_that_waits_for_another_one_does_not_hold_the_clock() {
        let (clock, disks) = disks(2);
        let lock = parking_lot::Mutex::new(());
        clock.threads(3, &|i| {
            if i == 2 {
                return (0..4).for_each(|_| read(&disks[1]));
            }
            (0..2).for_each(|_| {
                let _alone = lock.lock();
                read(&disks[0]);
            });
        });
        assert!((4 * MS..5 * MS).contains(&clock.now()), "{}", clock.now());
        assert_eq!(disks[0].counters().reads + disks[1].counters().reads, 8);
    }
}
