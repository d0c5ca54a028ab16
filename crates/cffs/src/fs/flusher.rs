//! Writing back: the background thread, and everything at once.

use super::{Fs, now};
use crate::error::Result;
use crate::file::{FileCtx, writeback};
use crate::node::Node;
use crate::trace::Kind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// With lazytime, changed times wait in memory for this long, in nanoseconds: a day.
const LAZY_NS: i64 = 24 * 3600 * 1_000_000_000;
/// With lazytime, most inodes with waiting times. It bounds their memory.
const LAZY_MAX: usize = 16_384;

impl Fs {
    pub(super) fn start_background(self: &Arc<Self>) -> Result<()> {
        let weak = Arc::downgrade(self);
        let interval = self.opts.commit_interval;
        let body = move || {
            let mut last = Instant::now();
            let mut cold = weak.upgrade().and_then(|fs| fs.cold_since());
            loop {
                let Some(fs) = weak.upgrade() else { return };
                {
                    let mut s = fs.background.state.lock();
                    if !s.stop && !s.woken {
                        fs.background.wake.wait_for(&mut s, interval.saturating_sub(last.elapsed()));
                    }
                    if s.stop {
                        return;
                    }
                    s.woken = false;
                }
                cold = cold.and_then(|asked| fs.warm_up_idle(asked));
                let _span = fs.span(Kind::Background, [0; 3]);
                last = Instant::now();
                fs.write_back_and_commit();
            }
        };
        let thread = std::thread::Builder::new().name("cffs-writeback".into()).spawn(body)?;
        *self.background.thread.lock() = Some(thread);
        Ok(())
    }

    /// Starts the threads that write batches of files with long writes.
    pub(super) fn start_streams(self: &Arc<Self>) -> Result<()> {
        let Some(streams) = &self.streams else { return Ok(()) };
        let weak = Arc::downgrade(self);
        let write = move |batch| {
            // Without a file system there is nobody who waits for it.
            let Some(fs) = weak.upgrade() else { return };
            let _span = fs.span(Kind::Background, [0; 3]);
            writeback::write_beside(&FileCtx { lazy: fs.opts.lazytime, ..fs.file_cx() }, batch);
        };
        let weak = Arc::downgrade(self);
        let leftover = move || drop(weak.upgrade().inspect(|fs| fs.wake_background()));
        streams.start_threads(write, leftover)?;
        Ok(())
    }

    /// Ends them, when all that was begun is written.
    pub(super) fn stop_streams(&self) {
        if let Some(streams) = &self.streams {
            streams.stop();
        }
    }

    /// What the background thread does at each interval: writes back what is dirty, commits, and empties a log that is full enough.
    /// For whoever has a mount without that thread ([`crate::MountOptions::background`]) and a clock of his own.
    pub fn background_step(&self) {
        let _span = self.span(Kind::Background, [0; 3]);
        self.write_back_and_commit();
    }

    /// From now on what the thread that reads ahead would read waits for [`Fs::readahead_step`]. For whoever has a mount without that
    /// thread ([`crate::MountOptions::background`]) and a clock of his own.
    pub fn queue_readahead(&self) {
        if !self.opts.background {
            self.cache.queue_readahead();
        }
    }

    /// How much waits for the thread that reads ahead, or is read by it now: requests of the device that are still to come.
    pub fn readahead_waits(&self) -> usize {
        self.cache.readahead_waits()
    }

    /// Reads what is queued to be read ahead ([`Fs::queue_readahead`]), so many requests at most. Up to eight wait; what was asked for
    /// beyond that was dropped, as with the thread.
    pub fn readahead_step(&self, most: usize) {
        self.cache.readahead_step(most);
    }

    fn write_back_and_commit(&self) {
        // Errors are kept where fsync and the next operations find them. A file that cannot be written must not keep
        // the others' changes from becoming durable.
        let _ = self.write_back_all(self.opts.lazytime);
        if self.journal.commit().is_ok() && self.journal.wants_checkpoint() {
            let _ = self.journal.checkpoint();
        }
    }

    /// Asks the background thread to write back now.
    pub(super) fn wake_background(&self) {
        let mut s = self.background.state.lock();
        if !s.woken {
            s.woken = true;
            self.background.wake.notify_one();
        }
    }

    pub(super) fn stop_background(&self) {
        self.background.state.lock().stop = true;
        self.background.wake.notify_all();
        if let Some(thread) = self.background.thread.lock().take() {
            // This may be the background thread itself, if it drops the last reference.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    /// Writes back everything that is dirty, in the order of the name space. With `lazy`, changes of times alone stay.
    pub(super) fn write_back_all(&self, lazy: bool) -> Result<()> {
        let _one = self.writing_back.lock();
        let mut nodes = std::mem::take(&mut *self.dirty.lock());
        for n in &nodes {
            n.on_dirty_list.store(false, Ordering::Release);
        }
        if lazy {
            self.leave_times(&mut nodes);
        }
        let kept: Vec<_> = nodes.clone();
        let cx = FileCtx { lazy, ..self.file_cx() };
        let outcome = writeback::write_back(&cx, nodes);
        if lazy {
            let waits = |n: &&Arc<Node>| {
                let st = n.state.read();
                st.dirty && !st.freed && !st.orphan
            };
            kept.iter().filter(waits).for_each(|n| self.list_again(n));
        }
        if outcome.is_err() {
            // What could not be written stays on the list.
            for n in kept {
                let again = n.state.try_read().is_none_or(|s| !s.freed && (s.dirty || !s.data.is_clean()));
                if again {
                    self.list_again(&n);
                }
            }
        }
        outcome
    }

    /// Removes nodes with changed times alone from the list, and returns them to the file system's list, unless they
    /// have waited for a day or are too many.
    fn leave_times(&self, nodes: &mut Vec<Arc<Node>>) {
        let now = now();
        let mut left = 0;
        nodes.retain(|n| {
            let only_times = {
                let st = n.state.read();
                st.data.is_clean() && !st.freed && !st.orphan && (st.dir.is_some() || st.disk_size == st.inode.size)
            };
            let since = n.lazy_since.load(Ordering::Relaxed);
            if only_times && left < LAZY_MAX && (since == 0 || now.saturating_sub(since) < LAZY_NS) {
                n.lazy_since.store(if since == 0 { now } else { since }, Ordering::Relaxed);
                self.list_again(n);
                left += 1;
                return false;
            }
            n.lazy_since.store(0, Ordering::Relaxed);
            true
        });
    }
}
