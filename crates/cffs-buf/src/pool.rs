//! Persistent worker threads that run work borrowing from its caller.

use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

/// Threads that help callers run many blocking operations at once.
///
/// Unlike [`std::thread::scope`] the threads stay, so that a batch costs a wake-up and not a thread creation each
/// time; like it, the work may borrow from the caller's stack. Threads start when first needed and end when the pool
/// is dropped. They do not survive `fork`: a process that goes to the background must do so before it uses a pool.
pub struct WorkerPool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    limit: usize,
    name: String,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<Arc<Batch>>,
    /// Threads waiting for `wake`.
    idle: usize,
    stop: bool,
}

/// One call of [`WorkerPool::run`].
struct Batch {
    /// The caller's closure with its lifetime erased. May be dereferenced only by whoever holds an index below
    /// `count` that it took from `next` and has not yet counted in `completed`: until then the caller waits.
    body: *const (dyn Fn(usize) + Sync),
    count: usize,
    next: AtomicUsize,
    completed: Mutex<Completed>,
    all_completed: Condvar,
}

#[derive(Default)]
struct Completed {
    count: usize,
    panic: Option<Box<dyn Any + Send>>,
}

// SAFETY: all fields but `body` are Send and Sync; `body` points to a closure that is Sync, so any thread may call it
// through a shared reference, and the rule at the field says when the pointer is alive.
unsafe impl Send for Batch {}
// SAFETY: as above.
unsafe impl Sync for Batch {}

impl Batch {
    /// Runs indices until none is left.
    fn work(&self) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.count {
                return;
            }
            // SAFETY: `index` is below `count` and was handed to this thread alone. `run` returns only after `completed`
            // has counted every index, this one included, and it is counted below, after the call: so the closure
            // that `body` points to is alive during the call.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*self.body)(index) }));
            let mut completed = self.completed.lock();
            completed.count += 1;
            if let Err(panic) = result {
                completed.panic.get_or_insert(panic);
            }
            if completed.count == self.count {
                self.all_completed.notify_all();
            }
        }
    }

    fn exhausted(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.count
    }
}

impl WorkerPool {
    /// A pool in which one batch runs at most `depth` operations at a time, one of them on the calling thread.
    /// `name` becomes the threads' name.
    pub fn new(name: &str, depth: usize) -> Self {
        WorkerPool {
            shared: Arc::new(Shared { queue: Mutex::default(), wake: Condvar::new() }),
            threads: Mutex::default(),
            limit: depth.saturating_sub(1),
            name: name.to_owned(),
        }
    }

    /// Calls `body(0)` to `body(count - 1)`, several at a time, in no certain order; returns when all have ended.
    /// A panic in `body` is passed on to the caller, after the others have ended.
    pub fn run(&self, count: usize, body: &(dyn Fn(usize) + Sync)) {
        if count <= 1 || self.limit == 0 {
            (0..count).for_each(body);
            return;
        }
        let body: *const (dyn Fn(usize) + Sync + '_) = body;
        // SAFETY: only the lifetime in the type changes, and a raw pointer promises nothing about it; `Batch::body`
        // says when it may be dereferenced.
        let body: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(body) };
        let batch = Arc::new(Batch {
            body,
            count,
            next: AtomicUsize::new(0),
            completed: Mutex::default(),
            all_completed: Condvar::new(),
        });
        self.enqueue(&batch);
        batch.work();
        let mut completed = batch.completed.lock();
        while completed.count < count {
            batch.all_completed.wait(&mut completed);
        }
        if let Some(panic) = completed.panic.take() {
            drop(completed);
            resume_unwind(panic);
        }
    }

    /// Queues a batch, wakes as many threads as it can use, and starts those that are missing. Whatever happens here,
    /// the caller can run the whole batch alone.
    fn enqueue(&self, batch: &Arc<Batch>) {
        let wanted = (batch.count - 1).min(self.limit);
        let mut queue = self.shared.queue.lock();
        queue.batches.push_back(batch.clone());
        let idle = queue.idle;
        drop(queue);
        for _ in 0..wanted.min(idle) {
            self.shared.wake.notify_one();
        }
        if wanted > idle {
            let mut threads = self.threads.lock();
            for _ in 0..(wanted - idle).min(self.limit - threads.len()) {
                let shared = self.shared.clone();
                // No thread to be had (a limit on processes) costs speed only.
                match thread::Builder::new().name(self.name.clone()).spawn(move || shared.serve()) {
                    Ok(thread) => threads.push(thread),
                    Err(_) => break,
                }
            }
        }
    }
}

impl Shared {
    /// Body of a worker thread.
    fn serve(&self) {
        let mut queue = self.queue.lock();
        loop {
            while queue.batches.front().is_some_and(|b| b.exhausted()) {
                queue.batches.pop_front();
            }
            if let Some(batch) = queue.batches.front().cloned() {
                drop(queue);
                batch.work();
                drop(batch);
                queue = self.queue.lock();
            } else if queue.stop {
                return;
            } else {
                queue.idle += 1;
                self.wake.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.wake.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            // A worker catches panics of the work, so there is nothing to learn from its end.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerPool({:?}, depth {})", self.name, self.limit + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::time::Duration;

    #[test]
    fn every_index_runs_once() {
        let pool = WorkerPool::new("test", 5);
        for count in [0, 1, 2, 3, 5, 17, 1000] {
            let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            pool.run(count, &|i| {
                hits[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "{count}");
        }
    }

    #[test]
    fn runs_as_many_at_once_as_its_depth() {
        let pool = WorkerPool::new("test", 4);
        // Passes only if all four are in the barrier at the same time; twice, so that the threads are used again.
        for _ in 0..2 {
            let barrier = Barrier::new(4);
            pool.run(4, &|_| {
                barrier.wait();
            });
        }
        assert_eq!(pool.threads.lock().len(), 3);
    }

    #[test]
    fn never_more_threads_than_the_depth() {
        let pool = WorkerPool::new("test", 3);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.run(40, &|_| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(Duration::from_micros(200));
            now.fetch_sub(1, Ordering::SeqCst);
        });
        assert!(most.load(Ordering::SeqCst) <= 3);
    }

    #[test]
    fn several_callers_share_it() {
        let pool = WorkerPool::new("test", 4);
        thread::scope(|s| {
            for _ in 0..6 {
                s.spawn(|| {
                    for round in 0..200 {
                        let sum = AtomicUsize::new(0);
                        pool.run(round % 9, &|i| {
                            sum.fetch_add(i + 1, Ordering::Relaxed);
                        });
                        let n = round % 9;
                        assert_eq!(sum.load(Ordering::Relaxed), n * (n + 1) / 2);
                    }
                });
            }
        });
    }

    #[test]
    fn passes_a_panic_on_and_stays_usable() {
        let pool = WorkerPool::new("test", 3);
        let ran = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(10, &|i| {
                ran.fetch_add(1, Ordering::Relaxed);
                assert_ne!(i, 4, "expected by the test");
            });
        }));
        assert!(result.is_err());
        assert_eq!(ran.load(Ordering::Relaxed), 10);
        let after = AtomicUsize::new(0);
        pool.run(5, &|_| {
            after.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(after.load(Ordering::Relaxed), 5);
    }
}
