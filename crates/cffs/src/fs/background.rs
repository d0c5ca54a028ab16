//! The background thread's state.

use parking_lot::{Condvar, Mutex};

/// The thread that writes back and commits from time to time.
#[derive(Default)]
pub(super) struct Background {
    pub(super) state: Mutex<BackgroundState>,
    pub(super) wake: Condvar,
    pub(super) thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

#[derive(Default)]
pub(super) struct BackgroundState {
    pub(super) stop: bool,
    pub(super) woken: bool,
}
