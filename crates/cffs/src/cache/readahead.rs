//! Readahead: a thread that reads groups, and the next parts of files, before somebody asks for them.

use super::block_cache::{Cache, ReadaheadRequest};
use super::locality::DirExtents;
use super::prefetch::{AHEAD_MAX, Prefetch, WIDTH_MAX};
use crate::format::{BlockAddr, FragAddr};
use crate::trace::Kind;
use cffs_device::{IoKind, Purpose};
use std::sync::{Arc, mpsc};

/// Requests that may wait for the thread. A full queue means the device is busy enough.
const QUEUE_MAX: usize = 8;
/// The same for each of several devices, which take longer windows.
const QUEUE_EACH: usize = 32;
/// What is read ahead at a time is at most such a part of the cache.
const WINDOW_DIVISOR: u64 = 4;

impl Cache {
    /// Starts the readahead thread. It ends when the cache is dropped or [`Cache::stop_readahead`] is called.
    pub fn start_readahead(self: &Arc<Self>) {
        let width = self.dev.width().min(WIDTH_MAX);
        let queue = if width > 1 { QUEUE_EACH * width } else { QUEUE_MAX };
        let (send, receive) = mpsc::sync_channel::<ReadaheadRequest>(queue);
        let weak = Arc::downgrade(self);
        *self.readahead.lock() = Some(send);
        std::thread::Builder::new()
            .name("cffs-ahead".into())
            .spawn(move || {
                while let Ok(request) = receive.recv() {
                    let Some(cache) = weak.upgrade() else { break };
                    if cache.dev.width() > 1 {
                        // Several devices: all that waits at once.
                        let _purpose = Purpose::Prefetch.scope();
                        cache.fill_ahead(std::iter::once(request).chain(receive.try_iter()).collect());
                    } else {
                        cache.read_ahead(request);
                    }
                }
            })
            .map(drop)
            .unwrap_or_else(|e| tracing::warn!("no read-ahead: {e}"));
    }

    /// Begins to queue what the thread would read, for [`Cache::readahead_step`].
    pub fn queue_readahead(&self) {
        let (send, receive) = mpsc::sync_channel(QUEUE_MAX);
        *self.readahead_queue.lock() = Some(receive);
        *self.readahead.lock() = Some(send);
    }

    /// Reads what is queued, so many requests at most, if [`Cache::queue_readahead`] was called.
    pub fn readahead_step(&self, most: usize) {
        let queue = self.readahead_queue.lock();
        queue.iter().flat_map(|q| q.try_iter()).take(most).for_each(|request| self.read_ahead(request));
    }

    fn read_ahead(&self, (cause, kind, range): ReadaheadRequest) {
        let _purpose = Purpose::Prefetch.scope();
        let _span = self.tracer().span_for(cause, Kind::Readahead, [range.start, range.end - range.start, 0]);
        // The reader that needs the block meets a failure again, and reports it.
        let _ = self.fill(kind, range.clone(), range, true);
    }

    /// Ends the thread of [`Cache::start_readahead`], or the queue.
    pub fn stop_readahead(&self) {
        *self.readahead.lock() = None;
        *self.readahead_queue.lock() = None;
    }

    /// Whether there is a readahead thread, or a queue instead.
    pub fn has_readahead(&self) -> bool {
        self.readahead.lock().is_some()
    }

    /// Asks the thread for the next `groups` groups from `from` on, in as few requests as it can be.
    pub(super) fn readahead_groups(&self, kind: IoKind, policy: &Prefetch, from: BlockAddr, groups: u64) {
        let blocks = self.geo.group_blocks();
        // It must be there until it is used, beside what was read before it.
        let most = self.limit as u64 / WINDOW_DIVISOR / (blocks << self.geo.block_shift);
        let groups = groups.min(most.max(AHEAD_MAX));
        let end = (from + groups * blocks).min(self.geo.total_blocks);
        if groups == 0 || from >= end {
            return;
        }
        let guard = self.readahead.lock();
        let Some(send) = &*guard else { return };
        let mut start = from;
        while start < end {
            let along = self.groups_in_transfer(start, groups - 1);
            let most = (start + (1 + along) * blocks).min(end);
            // What is there already ends a request.
            let until = (start..most).step_by(blocks as usize).find(|group| self.contains(*group)).unwrap_or(most);
            if until > start {
                let _ = send.try_send((self.tracer().current(), kind, start..until));
            }
            start = if until < most { until + blocks } else { most };
        }
        policy.note_ahead(from..end);
    }

    /// Asks the thread for the directory's next extents behind `from`, `most` blocks in all. What lies between two of them
    /// is read with them if it is at most `gap` blocks.
    pub(super) fn readahead_extents(&self, kind: IoKind, dir: &DirExtents, from: BlockAddr, most: u64, gap: u64) {
        let guard = self.readahead.lock();
        let Some(send) = &*guard else { return };
        let (mut at, mut left) = (from, most);
        while left > 0 {
            let Some(next) = dir.next(at) else { return };
            let limit = next..(next + left).min(self.region_end(next)).min(self.geo.total_blocks);
            let Some(span) = dir.span(next, gap, &limit).filter(|s| !s.is_empty()) else { return };
            left -= (span.end - span.start).min(left);
            at = span.end;
            if !self.contains(span.start) && send.try_send((self.tracer().current(), kind, span)).is_err() {
                return;
            }
        }
    }

    /// Asks the thread for a run of data ahead of a sequential reader.
    pub fn readahead(&self, frag: FragAddr, frags: u64) {
        let end = (frag + frags).min(self.geo.total_frags());
        let (first, last) = (self.geo.block_of_frag(frag), self.geo.block_of_frag(end.saturating_sub(1)));
        let guard = self.readahead.lock();
        let Some(send) = &*guard else { return };
        let mut block = first;
        while block <= last {
            let end = (last + 1).min(block + self.transfer_blocks()).min(self.region_end(block));
            if !self.contains(block) && send.try_send((self.tracer().current(), IoKind::Data, block..end)).is_err() {
                return;
            }
            block = end;
        }
    }
}
