//! Readahead: a thread that reads groups, and the next parts of files, before somebody asks for them.

use super::block_cache::{Ahead, Cache, FilesOf, ReadaheadRequest, ReadaheadSender};
use super::buf::BufRef;
use super::locality::DirExtents;
use super::prefetch::{AHEAD_MAX, Prefetch, WIDTH_MAX};
use crate::format::{BlockAddr, FragAddr};
use crate::trace::Kind;
use cffs_device::{IoKind, Purpose};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, TrySendError};

/// Requests that may wait for the thread; on several devices, what is asked for at a time. A full queue means the device is busy enough.
const QUEUE_MAX: usize = 8;
/// What is read ahead at a time is at most such a part of the cache.
const WINDOW_DIVISOR: u64 = 4;
/// Bytes of a file that are read ahead for each of several devices, at most: what an arm reads in the time of some seeks.
const FILE_EACH: u64 = 16 << 20;

impl Cache {
    /// Starts the readahead thread. It ends when the cache is dropped or [`Cache::stop_readahead`] is called.
    pub fn start_readahead(self: &Arc<Self>) {
        let (send, receive) = mpsc::sync_channel::<Ahead>(QUEUE_MAX);
        let weak = Arc::downgrade(self);
        *self.readahead.lock() = Some(ReadaheadSender { send, to_thread: true });
        let thread = std::thread::Builder::new().name("cffs-ahead".into()).spawn(move || {
            while let Ok(Ahead { requests, claimed }) = receive.recv() {
                let Some(cache) = weak.upgrade() else { break };
                let _purpose = Purpose::Prefetch.scope();
                match (cache.has_readahead(), claimed) {
                    (true, true) => cache.fill_ahead(requests),
                    (true, false) => cache.fill_each(requests),
                    // It is to end, and nobody will use what it was asked for.
                    (false, true) => cache.release_all(requests),
                    (false, false) => {}
                }
                cache.readahead_waits.fetch_sub(1, Ordering::SeqCst);
            }
        });
        *self.readahead_thread.lock() = thread.inspect_err(|e| tracing::warn!("no read-ahead: {e}")).ok();
    }

    /// Begins to queue what the thread would read, for [`Cache::readahead_step`].
    pub fn queue_readahead(&self) {
        let (send, receive) = mpsc::sync_channel(QUEUE_MAX);
        *self.readahead_queue.lock() = Some(receive);
        *self.readahead.lock() = Some(ReadaheadSender { send, to_thread: false });
    }

    /// Reads what is queued, so many requests at most, if [`Cache::queue_readahead`] was called.
    pub fn readahead_step(&self, most: usize) {
        let queue = self.readahead_queue.lock();
        queue.iter().flat_map(|q| q.try_iter()).take(most).for_each(|ahead| self.read_ahead(ahead.requests));
    }

    fn read_ahead(&self, requests: Vec<ReadaheadRequest>) {
        let _purpose = Purpose::Prefetch.scope();
        if self.is_wide() {
            return self.fill_ahead(self.claim_ahead(requests));
        }
        self.fill_each(requests);
    }

    /// Reads what nobody has marked as in flight, one request after the other.
    fn fill_each(&self, requests: Vec<ReadaheadRequest>) {
        for (cause, kind, range) in requests {
            // A reader may be about to read what lies before it. If this overtakes it on a disk, both wait for the arm.
            drop(range.start.checked_sub(1).and_then(|before| self.cached_or_wait(before)));
            let _span = self.tracer().span_for(cause, Kind::Readahead, [range.start, range.end - range.start, 0]);
            // The reader that needs the block meets a failure again, and reports it.
            let _ = self.fill(kind, range.clone(), range, true);
        }
    }

    /// Asks the thread for these runs.
    fn ask(&self, requests: Vec<ReadaheadRequest>) {
        let guard = self.readahead.lock();
        let Some(ReadaheadSender { send, to_thread }) = &*guard else { return };
        let send = |requests, claimed| {
            let waits = usize::from(*to_thread);
            self.readahead_waits.fetch_add(waits, Ordering::SeqCst);
            send.try_send(Ahead { requests, claimed }).inspect_err(|_| {
                self.readahead_waits.fetch_sub(waits, Ordering::SeqCst);
            })
        };
        if !self.is_wide() {
            let _ = requests.into_iter().try_for_each(|request| send(vec![request], false));
            return;
        }
        // Whoever comes to them from now on waits for the thread, and does not read them a second time.
        let requests = if *to_thread { self.claim_ahead(requests) } else { requests };
        if requests.is_empty() {
            return;
        }
        // In one piece, so that all of them begin at the same time.
        if let Err(TrySendError::Full(refused) | TrySendError::Disconnected(refused)) = send(requests, *to_thread)
            && refused.claimed
        {
            self.release_all(refused.requests);
        }
    }

    fn release_all(&self, claimed: Vec<ReadaheadRequest>) {
        claimed.into_iter().for_each(|(.., run)| self.release(run));
    }

    /// Ends the thread of [`Cache::start_readahead`], or the queue. Then nothing is read ahead any more.
    pub fn stop_readahead(&self) {
        *self.readahead.lock() = None;
        *self.readahead_queue.lock() = None;
        let thread = self.readahead_thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// Whether there is a readahead thread, or a queue instead.
    pub fn has_readahead(&self) -> bool {
        self.readahead.lock().is_some()
    }

    /// How much waits for the readahead thread, or is read by it now.
    pub(crate) fn readahead_waits(&self) -> usize {
        self.readahead_waits.load(Ordering::SeqCst)
    }

    /// Whether the device is several that work at the same time.
    fn is_wide(&self) -> bool {
        self.dev.width() > 1
    }

    /// Whether it is worth something to know long before what will be read: there are several devices to be kept busy, and a thread that asks
    /// them.
    pub(crate) fn looks_ahead(&self) -> bool {
        self.is_wide() && !self.data_policy.is_off() && self.has_readahead()
    }

    /// Asks the thread for the next `groups` groups from `from` on, in as few requests as it can be.
    pub(super) fn readahead_groups(&self, kind: IoKind, policy: &Prefetch, from: BlockAddr, groups: u64) {
        // It must be there until it is used, beside what was read before it.
        let most = (self.limit as u64 / WINDOW_DIVISOR) >> self.geo.group_shift;
        let groups = groups.min(most.max(AHEAD_MAX));
        let end = (from + groups * self.geo.group_blocks()).min(self.geo.total_blocks);
        if groups == 0 || from >= end || !self.has_readahead() {
            return;
        }
        let requests = self.missing_groups(kind, from..end);
        let missing = requests.iter().map(|(.., range)| range.end - range.start).sum();
        self.ask(requests);
        policy.note_ahead(from..end, missing);
    }

    /// The requests for these groups, without those that are there.
    fn missing_groups(&self, kind: IoKind, groups: Range<BlockAddr>) -> Vec<ReadaheadRequest> {
        let blocks = self.geo.group_blocks();
        let (mut requests, mut start, end) = (Vec::new(), groups.start, groups.end);
        while start < end {
            let along = self.groups_in_transfer(start, (end - start).div_ceil(blocks) - 1);
            let most = (start + (1 + along) * blocks).min(end);
            // What is there already ends a request.
            let until = (start..most).step_by(blocks as usize).find(|group| self.contains(*group)).unwrap_or(most);
            if until > start {
                requests.push((self.tracer().current(), kind, start..until));
            }
            start = if until < most { until + blocks } else { most };
        }
        requests
    }

    /// Asks the thread for the groups of metadata blocks that are certain to be needed, as many as may be read ahead at a time, but for that of the
    /// first block, which its reader asks for. Returns how many of the blocks are in all these.
    pub(crate) fn readahead_groups_of(&self, blocks: &[BlockAddr]) -> usize {
        let most = self.meta_policy.window_max().min((self.limit as u64 / WINDOW_DIVISOR) >> self.geo.group_shift);
        let mut groups: BTreeSet<BlockAddr> = BTreeSet::new();
        let mut count = 0;
        for addr in blocks {
            let group = self.geo.group_of(*addr);
            if groups.len() as u64 > most && !groups.contains(&group) {
                break;
            }
            groups.insert(group);
            count += 1;
        }
        if let Some(first) = blocks.first() {
            groups.remove(&self.geo.group_of(*first));
        }
        let group = |start: BlockAddr| start..(start + self.geo.group_blocks()).min(self.geo.total_blocks);
        self.ask(groups.into_iter().flat_map(|start| self.missing_groups(IoKind::Meta, group(start))).collect());
        count
    }

    /// Most bytes of a file that are read ahead of those who read it in order, of all of them together.
    pub(crate) fn readahead_file_max(&self) -> u64 {
        let devices = self.dev.width().min(WIDTH_MAX) as u64;
        (self.limit as u64 / WINDOW_DIVISOR).min(devices * FILE_EACH)
    }

    /// Asks the thread for the directory's next extents behind `from`, `most` blocks in all. What lies between two of them
    /// is read with them if it is at most `gap` blocks.
    pub(super) fn readahead_extents(&self, kind: IoKind, dir: &DirExtents, from: BlockAddr, most: u64, gap: u64) {
        let mut requests = Vec::new();
        let (mut at, mut left) = (from, most);
        while left > 0 {
            let Some(next) = dir.next(at) else { break };
            let limit = next..(next + left).min(self.region_end(next)).min(self.geo.total_blocks);
            let Some(span) = dir.span(next, gap, &limit).filter(|s| !s.is_empty()) else { break };
            left -= (span.end - span.start).min(left);
            at = span.end;
            if !self.contains(span.start) {
                requests.push((self.tracer().current(), kind, span));
            }
        }
        self.ask(requests);
    }

    /// Asks the thread for runs of data ahead of a sequential reader: first fragments and lengths.
    pub(crate) fn readahead(&self, runs: &[(FragAddr, u64)]) {
        let mut requests = Vec::new();
        for (frag, frags) in runs {
            let end = (frag + frags).min(self.geo.total_frags());
            let (mut block, last) = (self.geo.block_of_frag(*frag), self.geo.block_of_frag(end.saturating_sub(1)));
            while block <= last {
                let end = (last + 1).min(block + self.transfer_blocks());
                if !self.contains(block) {
                    requests.push((self.tracer().current(), IoKind::Data, block..end));
                }
                block = end;
            }
        }
        self.ask(requests);
    }

    /// Says how to find out what a block of a directory tells.
    pub fn set_outlook(&self, files_of: FilesOf) {
        let _ = self.files_of.set(files_of);
    }

    /// Notes where the files are of directories that nobody has asked for yet. These blocks were read along or ahead.
    pub(super) fn note_directories(&self, blocks: impl Iterator<Item = BufRef>) {
        let Some(files_of) = self.files_of.get() else { return };
        let unasked = blocks.filter(|buf| !buf.is_requested());
        let files: Vec<BlockAddr> = unasked.filter_map(|buf| files_of(&self.geo, &buf)).flatten().collect();
        let groups: Vec<BlockAddr> = files.into_iter().map(|addr| self.geo.group_of(addr)).collect();
        if !groups.is_empty() {
            self.data_policy.note_outlook(&groups, self.geo.group_blocks());
        }
    }
}
