//! A pool of worker threads: few wait for messages, the others are parked.
//!
//! There are more threads than processors, because each waits for the device alone ([`crate::MountConfig::threads`]).
//! The kernel gives a message to the thread that has waited longest. So a program that sends one message after another,
//! as most do, would be served by all threads in turn, each with cold processor caches. Therefore a thread that has
//! replied goes back to the kernel only if fewer than [`READY`] threads wait there, and is parked otherwise. When the
//! last waiting thread gets a message, it first wakes a parked one to wait in its place.
//!
//! Creating a file with 1 KB and fsync, on a device in memory: 185 microseconds with eight threads that wait, 140 with three,
//! 155 with two, 146 with four (medians of 12 runs in turn).

use parking_lot::{Condvar, Mutex};
use std::cell::OnceCell;
use std::sync::Arc;

/// Threads that wait for a message at the same time.
const READY: usize = 3;

#[derive(Default)]
struct State {
    /// Threads that the session has.
    threads: usize,
    /// Threads that have had a message. No thread is parked before all had one, so that the end of each is noticed.
    known: usize,
    /// Threads that wait for a message, or are about to.
    ready: usize,
    parked: usize,
    /// Parked threads that were woken.
    woken: usize,
    /// A thread has ended: the session is over.
    over: bool,
}

/// The threads of a session.
pub(crate) struct WorkerPool {
    state: Mutex<State>,
    changed: Condvar,
}

/// Notes on drop that a thread of the pool has ended.
struct Member(Arc<WorkerPool>);

impl Drop for Member {
    fn drop(&mut self) {
        self.0.state.lock().over = true;
        self.0.changed.notify_all();
    }
}

thread_local! {
    static MEMBER: OnceCell<Member> = const { OnceCell::new() };
}

impl WorkerPool {
    pub(crate) fn new(threads: usize) -> Arc<WorkerPool> {
        let state = State { threads, ready: threads, ..State::default() };
        Arc::new(WorkerPool { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Called when this thread gets a message. When the returned value is dropped, after the reply, the thread goes
    /// back to wait for the next one.
    pub(crate) fn enter(self: &Arc<Self>) -> Entered<'_> {
        MEMBER.with(|m| {
            m.get_or_init(|| {
                self.state.lock().known += 1;
                Member(self.clone())
            });
        });
        let mut s = self.state.lock();
        s.ready = s.ready.saturating_sub(1);
        if s.ready == 0 && s.parked > s.woken {
            s.woken += 1;
            s.ready += 1;
            drop(s);
            self.changed.notify_one();
        }
        Entered(self)
    }

    fn leave(&self) {
        let mut s = self.state.lock();
        if s.ready < READY || s.known < s.threads || s.over {
            s.ready += 1;
            return;
        }
        s.parked += 1;
        while s.woken == 0 && !s.over {
            self.changed.wait(&mut s);
        }
        s.parked -= 1;
        if s.woken > 0 {
            s.woken -= 1;
        }
    }
}

/// The thread works on a message until this is dropped.
pub(crate) struct Entered<'a>(&'a WorkerPool);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{JoinHandle, spawn};
    use std::time::{Duration, Instant};

    /// Threads that read messages from a queue as those of a session do, until it is closed.
    struct Session {
        worker_pool: Arc<WorkerPool>,
        send: Sender<Box<dyn FnOnce() + Send>>,
        waiting: Arc<AtomicUsize>,
        threads: Vec<JoinHandle<()>>,
    }

    fn session(threads: usize) -> Session {
        let (send, receive) = channel::<Box<dyn FnOnce() + Send>>();
        let receive: Arc<Mutex<Receiver<_>>> = Arc::new(Mutex::new(receive));
        let (worker_pool, waiting) = (WorkerPool::new(threads), Arc::new(AtomicUsize::new(0)));
        let threads = (0..threads)
            .map(|_| {
                let (worker_pool, receive, waiting) = (worker_pool.clone(), receive.clone(), waiting.clone());
                spawn(move || {
                    loop {
                        waiting.fetch_add(1, Ordering::SeqCst);
                        let message = receive.lock().recv();
                        waiting.fetch_sub(1, Ordering::SeqCst);
                        let Ok(message) = message else { break };
                        let _entered = worker_pool.enter();
                        message();
                    }
                })
            })
            .collect();
        Session { worker_pool, send, waiting, threads }
    }

    impl Session {
        fn until(&self, what: &str, holds: impl Fn(&Session) -> bool) {
            let end = Instant::now() + Duration::from_secs(60);
            while !holds(self) {
                assert!(Instant::now() < end, "{what}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }

        /// Has every thread hold a message at the same time.
        fn all_at_once(&self) {
            let (arrived, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(())));
            let held = go.lock();
            for _ in 0..self.threads.len() {
                let (arrived, go) = (arrived.clone(), go.clone());
                let message = move || {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    drop(go.lock());
                };
                self.send.send(Box::new(message)).unwrap();
            }
            self.until("every thread takes a message", |s| arrived.load(Ordering::SeqCst) == s.threads.len());
            drop(held);
        }

        fn end(self) {
            drop(self.send);
            self.threads.into_iter().for_each(|t| t.join().unwrap());
        }
    }

    #[test]
    fn a_few_wait_and_the_others_come_when_they_are_needed() {
        let s = session(8);
        for _ in 0..20 {
            s.all_at_once();
            s.until("the others are parked", |s| s.worker_pool.state.lock().parked == 8 - READY);
            s.until("the rest wait", |s| s.waiting.load(Ordering::SeqCst) == READY);
        }
        s.end();
    }

    #[test]
    fn threads_of_a_small_pool_are_never_parked() {
        let s = session(READY);
        s.all_at_once();
        s.until("all wait", |s| s.waiting.load(Ordering::SeqCst) == READY);
        s.end();
    }

    #[test]
    fn messages_one_after_the_other_and_many_at_once_are_all_answered() {
        let s = session(6);
        let answered = Arc::new(AtomicUsize::new(0));
        for i in 0..2000 {
            let done = answered.clone();
            s.send
                .send(Box::new(move || {
                    let _ = done.fetch_add(1, Ordering::SeqCst);
                }))
                .unwrap();
            if i % 7 == 0 {
                s.until("each is answered", |_| answered.load(Ordering::SeqCst) > i);
            }
        }
        s.until("all are answered", |_| answered.load(Ordering::SeqCst) == 2000);
        s.end();
    }

    #[test]
    fn the_end_of_one_is_the_end_of_all() {
        let s = session(5);
        s.all_at_once();
        s.until("some are parked", |s| s.worker_pool.state.lock().parked == 2);
        s.end();
    }
}
