//! Threads that verify and decode blocks ahead, with results in order.
//!
//! One thread compares structures with each other, in a fixed order, so the report does not depend on the number of threads.
//! The others read, verify and decode blocks ahead of it, in pieces.

use super::fetch::Fetcher;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Bytes of blocks in a piece of work.
const PIECE_BYTES: usize = 256 << 10;
/// Most threads: more do not help one thread that compares.
const JOBS_MAX: usize = 64;

/// What all threads use.
pub(super) struct Context<'a> {
    pub(super) fetch: Fetcher<'a>,
    /// Key of the name hash.
    pub(super) hash_seed: [u64; 2],
}

type Work = Box<dyn FnOnce(&Context<'_>) + Send>;

#[derive(Default)]
struct Queue {
    /// With the ticket's number.
    list: VecDeque<(u64, Work)>,
    next: u64,
    closed: bool,
}

/// The threads of a check, the one that compares included.
pub(super) struct Pool<'a> {
    pub(super) context: Context<'a>,
    jobs: usize,
    queue: Mutex<Queue>,
    wake: Condvar,
}

/// A result that is still being worked out.
pub(super) struct Ticket<T> {
    number: u64,
    slot: Arc<Slot<T>>,
}

struct Slot<T> {
    /// A panic of the work resumes in the thread that waits for the result.
    value: Mutex<Option<std::thread::Result<T>>>,
    filled: Condvar,
}

/// Ends the threads in any case, also after a panic.
struct Closing<'p, 'a>(&'p Pool<'a>);

impl Drop for Closing<'_, '_> {
    fn drop(&mut self) {
        self.0.queue.lock().closed = true;
        self.0.wake.notify_all();
    }
}

/// The number of threads: `jobs`, or that of the processors for 0.
pub(super) fn threads(jobs: usize) -> usize {
    let wanted = if jobs > 0 { jobs } else { std::thread::available_parallelism().map_or(1, |n| n.get()) };
    wanted.min(JOBS_MAX)
}

impl<'a> Pool<'a> {
    pub(super) fn new(fetch: Fetcher<'a>, hash_seed: [u64; 2], jobs: usize) -> Pool<'a> {
        Pool {
            context: Context { fetch, hash_seed },
            jobs: threads(jobs),
            queue: Mutex::default(),
            wake: Condvar::new(),
        }
    }

    /// Runs `f` with the other threads at work.
    pub(super) fn run<T>(&self, f: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            let _closing = Closing(self);
            for n in 1..self.jobs {
                let thread = std::thread::Builder::new().name(format!("cffs-check-{n}"));
                // Fewer threads are enough: in the end the caller does the work.
                if thread.spawn_scoped(scope, || self.serve()).is_err() {
                    break;
                }
            }
            f()
        })
    }

    fn serve(&self) {
        loop {
            let mut queue = self.queue.lock();
            let work = loop {
                if queue.closed {
                    return;
                }
                match queue.list.pop_front() {
                    Some((_, work)) => break work,
                    None => self.wake.wait(&mut queue),
                }
            };
            drop(queue);
            work(&self.context);
        }
    }

    /// Pieces of work to begin ahead of the one that is needed.
    pub(super) fn depth(&self) -> usize {
        if self.jobs == 1 { 0 } else { self.jobs * 2 }
    }

    /// Blocks in a piece of work.
    pub(super) fn piece_blocks(&self) -> usize {
        (PIECE_BYTES >> self.context.fetch.geometry().block_shift).max(1)
    }

    /// Queues work for the next free thread.
    pub(super) fn spawn<T: Send + 'static>(&self, f: impl FnOnce(&Context<'_>) -> T + Send + 'static) -> Ticket<T> {
        let slot = Arc::new(Slot { value: Mutex::new(None), filled: Condvar::new() });
        let filled = slot.clone();
        let work: Work = Box::new(move |context| {
            let value = catch_unwind(AssertUnwindSafe(|| f(context)));
            *filled.value.lock() = Some(value);
            filled.filled.notify_one();
        });
        let mut queue = self.queue.lock();
        let number = queue.next;
        queue.next += 1;
        queue.list.push_back((number, work));
        drop(queue);
        self.wake.notify_one();
        Ticket { number, slot }
    }

    /// Waits for the result. Work that no thread has begun is done here, so that this also works without other threads.
    pub(super) fn wait<T>(&self, ticket: Ticket<T>) -> T {
        let mine = {
            let mut queue = self.queue.lock();
            let at = queue.list.iter().position(|(n, _)| *n == ticket.number);
            at.and_then(|at| queue.list.remove(at))
        };
        if let Some((_, work)) = mine {
            work(&self.context);
        }
        let mut value = ticket.slot.value.lock();
        loop {
            match value.take() {
                Some(Ok(value)) => return value,
                Some(Err(panic)) => resume_unwind(panic),
                None => ticket.slot.filled.wait(&mut value),
            }
        }
    }

    /// Removes work from the queue if no thread has begun it.
    pub(super) fn cancel<T>(&self, ticket: &Ticket<T>) {
        self.queue.lock().list.retain(|(n, _)| *n != ticket.number);
    }
}

/// Results of the same work on each of many things, in their order, some of them found ahead.
pub(super) struct Ahead<'p, 'a, I: Iterator, T, F> {
    pool: &'p Pool<'a>,
    items: I,
    per_piece: usize,
    work: F,
    tickets: VecDeque<Ticket<Vec<T>>>,
    ready: std::vec::IntoIter<T>,
}

impl<'p, 'a, I, T, F> Ahead<'p, 'a, I, T, F>
where
    I: Iterator<Item: Send + 'static>,
    T: Send + 'static,
    F: Fn(&Context<'_>, I::Item) -> T + Clone + Send + 'static,
{
    /// `work` on each of `items`, in pieces of `per_piece`.
    pub(super) fn new(pool: &'p Pool<'a>, items: I, per_piece: usize, work: F) -> Self {
        let ready = Vec::new().into_iter();
        Ahead { pool, items, per_piece: per_piece.max(1), work, tickets: VecDeque::new(), ready }
    }

    /// The first piece was begun earlier, and `items` continues behind it.
    pub(super) fn begun(mut self, first: Option<Ticket<Vec<T>>>) -> Self {
        self.tickets.extend(first);
        self
    }
}

impl<I, T, F> Iterator for Ahead<'_, '_, I, T, F>
where
    I: Iterator<Item: Send + 'static>,
    T: Send + 'static,
    F: Fn(&Context<'_>, I::Item) -> T + Clone + Send + 'static,
{
    type Item = T;

    fn next(&mut self) -> Option<T> {
        loop {
            if let Some(one) = self.ready.next() {
                return Some(one);
            }
            while self.tickets.len() <= self.pool.depth() {
                let piece: Vec<I::Item> = self.items.by_ref().take(self.per_piece).collect();
                if piece.is_empty() {
                    break;
                }
                let work = self.work.clone();
                self.tickets.push_back(
                    self.pool.spawn(move |context| piece.into_iter().map(|item| work(context, item)).collect()),
                );
            }
            self.ready = self.pool.wait(self.tickets.pop_front()?).into_iter();
        }
    }
}

impl<I: Iterator, T, F> Drop for Ahead<'_, '_, I, T, F> {
    fn drop(&mut self) {
        for ticket in &self.tickets {
            self.pool.cancel(ticket);
        }
    }
}
