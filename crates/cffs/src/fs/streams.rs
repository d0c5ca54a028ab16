//! Writing back files with long writes: more than one batch is in flight.
//!
//! With one batch at a time the device would be idle while the next one is collected and its checksums are computed, and of several devices
//! all but the slowest one until that is done. So the thread that writes collects the next one meanwhile, and threads of the file system
//! write and commit them. How many there are, and how long each is, bounds the memory.

use crate::file::writeback::Batch;
use crate::format::Ino;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Batches in flight. While one is at its end, and the next one is collected, the others keep the devices busy.
const IN_FLIGHT_MAX: usize = 4;

/// How much is written at a time: a batch is at least and at most one in so many parts of the cache.
struct Parts {
    least: usize,
    most: usize,
}

/// With a quarter of the cache in flight, and a quarter that waits, a writer does not have to wait for memory as long as the device keeps up.
const ONE_DEVICE: Parts = Parts { least: 32, most: 16 };
/// Half of the cache, of which each device has its part.
const SEVERAL_DEVICES: Parts = Parts { least: 16, most: 8 };
/// A batch is at least so many of the longest requests of the device: one that takes longer requests gets longer ones.
const REQUESTS_EACH: usize = 4;

/// Batches on their way, and the threads that write them.
pub(super) struct Streams {
    parts: Parts,
    state: Mutex<State>,
    /// Signalled when there is a batch to write, or no more will come.
    begun: Condvar,
    /// Signalled when one has ended.
    ended: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Batch>,
    /// Batches that have not ended, and their bytes.
    in_flight: usize,
    bytes: usize,
    /// Dirty bytes of files with batches, in none of them, as far as is known.
    behind: BTreeMap<Ino, usize>,
    stop: bool,
}

/// A batch that a thread writes.
struct InFlight<'a> {
    streams: &'a Streams,
    bytes: usize,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut state = self.streams.state.lock();
        state.in_flight -= 1;
        state.bytes -= self.bytes;
        drop(state);
        self.streams.ended.notify_all();
    }
}

impl Streams {
    /// For a device that is so many.
    pub(super) fn new(width: usize) -> Streams {
        Streams {
            parts: if width > 1 { SEVERAL_DEVICES } else { ONE_DEVICE },
            state: Mutex::default(),
            begun: Condvar::new(),
            ended: Condvar::new(),
            threads: Mutex::default(),
        }
    }

    /// Bytes of a batch at least and at most, with such a cache and longest request.
    pub(super) fn batch_bytes(&self, cache_bytes: usize, max_request: usize) -> (usize, usize) {
        let most = cache_bytes / self.parts.most;
        ((cache_bytes / self.parts.least).max((max_request * REQUESTS_EACH).min(most)), most)
    }

    /// Begins a batch of a file with so many dirty bytes, if one more may be in flight. Says nothing about whether there was one. What it returns is
    /// for the caller to write: the threads have ended meanwhile.
    pub(super) fn start(&self, file: Ino, dirty: usize, collect: impl FnOnce() -> Option<Batch>) -> Option<Batch> {
        {
            let mut state = self.state.lock();
            if state.stop {
                return None;
            }
            if state.in_flight >= IN_FLIGHT_MAX {
                state.behind.insert(file, dirty);
                return None;
            }
            state.behind.remove(&file);
            state.in_flight += 1;
        }
        let place = InFlight { streams: self, bytes: 0 };
        let batch = collect()?;
        let mut state = self.state.lock();
        if state.stop {
            drop(state);
            return Some(batch);
        }
        std::mem::forget(place);
        state.bytes += batch.bytes();
        let left = dirty.saturating_sub(batch.bytes());
        if left > 0 {
            state.behind.insert(file, left);
        }
        state.waiting.push_back(batch);
        drop(state);
        self.begun.notify_one();
        None
    }

    /// Bytes in flight, and those of the same files that come next: with the next write, or when nothing is in flight any more.
    pub(super) fn bytes(&self) -> usize {
        let state = self.state.lock();
        state.bytes + state.behind.values().sum::<usize>()
    }

    /// Whether nothing is in flight any more, and a file has something left. Says so once.
    fn take_leftover(&self) -> bool {
        let mut state = self.state.lock();
        state.in_flight == 0 && !std::mem::take(&mut state.behind).is_empty()
    }

    /// Waits while this is so and something is in flight.
    pub(super) fn wait_while(&self, is_so: impl Fn() -> bool) {
        let mut state = self.state.lock();
        while state.in_flight > 0 && is_so() {
            self.ended.wait(&mut state);
        }
    }

    fn serve(&self, write: &dyn Fn(Batch), leftover: &dyn Fn()) {
        loop {
            let batch = {
                let mut state = self.state.lock();
                loop {
                    match state.waiting.pop_front() {
                        Some(batch) => break batch,
                        None if state.stop => return,
                        None => self.begun.wait(&mut state),
                    }
                }
            };
            let in_flight = InFlight { streams: self, bytes: batch.bytes() };
            write(batch);
            drop(in_flight);
            if self.take_leftover() {
                leftover();
            }
        }
    }

    /// Starts the threads. They write with `write`, and call `leftover` when all that is in flight was written and nobody has begun what a file has left: a
    /// program that has stopped writing does not.
    pub(super) fn start_threads(
        self: &Arc<Self>,
        write: impl Fn(Batch) + Clone + Send + 'static,
        leftover: impl Fn() + Clone + Send + 'static,
    ) -> io::Result<()> {
        for _ in 0..IN_FLIGHT_MAX {
            let (streams, write, leftover) = (self.clone(), write.clone(), leftover.clone());
            let thread = std::thread::Builder::new()
                .name("cffs-stream".into())
                .spawn(move || streams.serve(&write, &leftover))?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    /// Writes what was begun, and ends the threads.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.begun.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // This may be one of them, if it drops the last reference.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
