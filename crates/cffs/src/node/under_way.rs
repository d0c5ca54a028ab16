//! What of a file is on its way to the device.
//!
//! Most writebacks are alone: none begins before the one before it has ended. Of a file that is written in order there may be more in
//! flight. Such a writeback takes pages that no other one has, and they commit their mappings in
//! the order in which they began: so the size on the device never covers what is not there yet. Whoever waits for a file to be idle goes before
//! those that could still begin.

use crate::error::Error;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// The writebacks of a file.
#[derive(Default)]
pub struct UnderWay {
    state: Mutex<State>,
    changed: Condvar,
}

/// Which there are.
#[derive(Default)]
pub struct State {
    /// One that is alone.
    alone: bool,
    /// Of those that are not: the numbers of the next one to commit, and of the next one to begin.
    first: u64,
    next: u64,
    /// An error of one of these. Those that began before it was known must not commit, because the size would cover what is not there.
    failed: Option<Error>,
    /// Threads that want the file to be idle.
    held_back: usize,
}

impl State {
    /// Whether there is one.
    pub fn is_busy(&self) -> bool {
        self.alone || self.first != self.next
    }

    /// Begins one that is alone. There is none.
    pub fn begin_alone(&mut self) {
        debug_assert!(!self.is_busy(), "a writeback beside one that is to be alone");
        self.alone = true;
    }

    /// Whether one may begin beside others.
    pub fn may_join(&self) -> bool {
        !self.alone && self.held_back == 0 && self.failed.is_none()
    }

    /// Whether one may begin beside one that there is.
    pub fn is_joinable(&self) -> bool {
        self.may_join() && self.is_busy()
    }

    /// The number of the one that would begin now beside others.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Begins it.
    pub fn join(&mut self) {
        debug_assert!(self.may_join(), "a writeback beside one that is alone");
        self.next += 1;
    }
}

impl UnderWay {
    /// Which there are. None begins or ends while this is held.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether there is one.
    pub fn is_busy(&self) -> bool {
        self.lock().is_busy()
    }

    /// Waits until there is none.
    pub fn wait(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if state.is_busy() {
            state.held_back += 1;
            while state.is_busy() {
                self.changed.wait(&mut state);
            }
            state.held_back -= 1;
        }
        state
    }

    /// Until this is dropped none begins beside others. For who has to take other locks before it knows that there is none.
    pub fn hold_back(&self) -> HeldBack<'_> {
        self.lock().held_back += 1;
        HeldBack(self)
    }

    /// Ends the one that is alone.
    pub fn end_alone(&self) {
        self.lock().alone = false;
        self.changed.notify_all();
    }

    /// Waits until all have ended that began before this number.
    ///
    /// # Errors
    /// What one of them failed with.
    pub fn wait_for_turn(&self, number: u64) -> Result<(), Error> {
        let mut state = self.lock();
        while state.first != number {
            self.changed.wait(&mut state);
        }
        state.failed.as_ref().map_or(Ok(()), |e| Err(e.duplicate()))
    }

    /// The one whose turn it is has failed. It ends soon.
    pub fn note_failed(&self, e: &Error) {
        self.lock().failed.get_or_insert_with(|| e.duplicate());
    }

    /// Ends the one whose turn it is.
    pub fn end_turn(&self) {
        let mut state = self.lock();
        state.first += 1;
        if state.first == state.next {
            state.failed = None;
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// See [`UnderWay::hold_back`].
pub struct HeldBack<'a>(&'a UnderWay);

impl<'a> HeldBack<'a> {
    /// Which writebacks there are. If there are none, others may begin when that is let go.
    pub fn lock_idle(self) -> Result<MutexGuard<'a, State>, HeldBack<'a>> {
        let mut state = self.0.lock();
        if state.is_busy() {
            drop(state);
            return Err(self);
        }
        state.held_back -= 1;
        std::mem::forget(self);
        Ok(state)
    }
}

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.0.lock().held_back -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_that_of_all_that_began_before_it_was_known() {
        let under_way = UnderWay::default();
        (0..3).for_each(|_| under_way.lock().join());
        under_way.wait_for_turn(0).unwrap();
        under_way.note_failed(&Error::NoSpace);
        assert!(!under_way.lock().may_join());
        under_way.end_turn();
        for turn in 1..3 {
            assert!(matches!(under_way.wait_for_turn(turn), Err(Error::NoSpace)));
            assert!(under_way.is_busy());
            under_way.end_turn();
        }
        assert!(!under_way.is_busy() && under_way.lock().may_join());
        under_way.lock().join();
        under_way.wait_for_turn(3).unwrap();
        under_way.end_turn();
    }

    #[test]
    fn nothing_joins_while_somebody_waits_for_the_last_one() {
        let under_way = UnderWay::default();
        under_way.lock().join();
        std::thread::scope(|scope| {
            scope.spawn(|| under_way.wait().begin_alone());
            while under_way.lock().held_back == 0 {
                std::thread::yield_now();
            }
            assert!(!under_way.lock().may_join());
            under_way.end_turn();
        });
        assert!(under_way.is_busy() && !under_way.lock().may_join());
        under_way.end_alone();
        assert!(!under_way.is_busy());
    }
}
