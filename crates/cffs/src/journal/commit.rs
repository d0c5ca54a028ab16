//! The commit: one group of transactions becomes durable.

use super::checkpoint::Home;
use super::{CHECKPOINT_SHARE, Journal, Running};
use crate::cache::BufRef;
use crate::device::{IoKind, WriteRequest};
use crate::error::{Error, Result};
use crate::format::log::{self, LogHeader, TXN_HEADER};
use crate::format::system::COUNT_FREE_FRAGS;
use cffs_buf::AlignedBuf;
use std::io::IoSlice;
use std::sync::atomic::Ordering;

/// Longest single write to the log in bytes.
const LOG_REQUEST_MAX: usize = 1 << 20;

/// State of whoever writes the log: one thread at a time.
pub(super) struct Writer {
    /// Offset in the ring where the next transaction goes.
    pub(super) head: u64,
    /// Bytes of the ring in use.
    pub(super) used: u64,
    /// The header that counts.
    header: LogHeader,
}

impl Writer {
    pub(super) fn new(header: LogHeader) -> Writer {
        Writer { head: header.tail, used: 0, header }
    }
}

/// A group taken out of the running state.
struct Group {
    seq: u64,
    /// Header, records, padding; empty without a log.
    bytes: AlignedBuf,
    payload: u64,
    running: Running,
    home: Vec<Home>,
}

impl Journal {
    /// Makes everything durable that was done before the call. Callers that come while a commit is being written share
    /// the next one.
    pub fn commit(&self) -> Result<()> {
        let target = self.running_seq();
        let mut writer = self.writer.lock();
        self.check()?;
        if self.durable.load(Ordering::Acquire) >= target {
            return Ok(());
        }
        self.commit_group(&mut writer, false)
    }

    /// Commits, then writes every block home and empties the log.
    pub fn checkpoint(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        self.check()?;
        self.commit_group(&mut writer, true)
    }

    /// Calls `f` while nothing is committed, nothing is written home, and no transaction is open. `f` begins none.
    pub(crate) fn quiesce<T>(&self, f: impl FnOnce() -> T) -> T {
        let _writer = self.writer.lock();
        let _exclusive = self.barrier.write();
        f()
    }

    /// Whether the log is so full that emptying it in the background is worth while.
    pub fn wants_checkpoint(&self) -> bool {
        let share = self.cache.limit() / 4;
        self.has_log()
            && (self.writer.lock().used > self.ring_len / TWICE_CHECKPOINT_SHARE
                || self.dirty_blocks() << self.cache.geometry().block_shift > share)
    }

    fn commit_group(&self, writer: &mut Writer, force: bool) -> Result<()> {
        let full = writer.used > self.ring_len / CHECKPOINT_SHARE || self.dirty_blocks() > 2 * self.pinned_max();
        let home = force || !self.has_log() || full;
        let outcome = self.commit_steps(writer, home);
        if let Err(e) = &outcome {
            self.fail("commit failed", e);
        }
        outcome
    }

    fn commit_steps(&self, writer: &mut Writer, home: bool) -> Result<()> {
        if home && self.has_log() {
            // Blocks that nobody is changing go home before anybody is made to wait.
            self.write_cold()?;
        }
        let mut group = self.take_group(home);
        // One of its transactions may have failed half way.
        self.check()?;
        // Data that the group points to, and blocks gone home, must be on the device before the log says so.
        if self.cache.unflushed.load(Ordering::Acquire) {
            self.cache.flush()?;
        }
        let len = group.bytes.len() as u64;
        if len > 0 {
            self.write_log(writer, &mut group)?;
            self.counters.commits.fetch_add(1, Ordering::Relaxed);
            self.counters.log_bytes.fetch_add(len, Ordering::Relaxed);
        }
        if !self.has_log() {
            self.write_home(std::mem::take(&mut group.home))?;
            self.cache.flush()?;
        }
        self.durable.store(group.seq, Ordering::Release);
        if let Some(hook) = self.hook.get().filter(|_| !group.running.freed.is_empty()) {
            hook.committed(std::mem::take(&mut group.running.freed));
        }
        if home && self.has_log() && (writer.used > 0 || !group.home.is_empty()) {
            self.write_home(std::mem::take(&mut group.home))?;
            self.empty_log(writer, group.seq)?;
        }
        Ok(())
    }

    /// Stops transactions for a moment and copies what they changed.
    fn take_group(&self, home: bool) -> Group {
        let _exclusive = self.barrier.write();
        self.note_counters();
        let mut running = {
            let mut r = self.running.lock();
            let reserved = std::mem::take(&mut r.reserved);
            let taken = std::mem::take(&mut *r);
            r.reserved = reserved;
            taken
        };
        let seq = self.next_seq.load(Ordering::Acquire);
        let mut bytes: Vec<u8> = Vec::with_capacity(TXN_HEADER + running.bytes);
        bytes.resize(TXN_HEADER, 0);
        let mut runs = Vec::new();
        let mut dirty = self.dirty.lock();
        let frag_units = self.cache.geometry().frag_size() / log::RANGE_UNIT;
        for buf in running.bufs.drain(..) {
            let mut inner = buf.lock();
            let inner = &mut *inner;
            let Some(state) = &mut inner.log else { continue };
            state.in_txn = false;
            state.take_runs(&mut runs);
            let init = std::mem::take(&mut state.init);
            if std::mem::take(&mut state.freed) || runs.is_empty() {
                if !state.awaits_checkpoint {
                    inner.log = None;
                    buf.unpin();
                }
                continue;
            }
            if self.has_log() {
                log::put_block(&mut bytes, buf.addr(), init, state.data, &inner.bytes, &runs);
            }
            state.last_seq = seq;
            if state.data {
                for (first, count) in &runs {
                    let (from, to) = (*first as usize / frag_units, (first + count - 1) as usize / frag_units);
                    (from..=to).for_each(|f| state.checkpoint_frags |= 1 << f);
                }
            }
            state.awaits_checkpoint = true;
            dirty.insert(buf.addr(), buf.clone());
        }
        for (frag, len) in &running.revoked {
            log::put_revoke(&mut bytes, *frag, *len);
        }
        let copies = if home { self.collect_home(&mut dirty) } else { Vec::new() };
        drop(dirty);
        let payload = (bytes.len() - TXN_HEADER) as u64;
        let unit = self.cache.geometry().frag_size();
        let mut sealed = AlignedBuf::default();
        if payload > 0 {
            sealed = AlignedBuf::zeroed(bytes.len().div_ceil(unit) * unit);
            sealed[..bytes.len()].copy_from_slice(&bytes);
        }
        // With nothing to log the number stays with the next group: the log has no gaps.
        let advance = payload > 0 || !self.has_log();
        if advance {
            self.next_seq.store(seq + 1, Ordering::Release);
        }
        let seq = if advance { seq } else { seq - 1 };
        Group { seq, bytes: sealed, payload, running, home: copies }
    }

    /// Brings the counters block up to date, and what else is brought up to date once in a commit. No transaction is open.
    fn note_counters(&self) {
        let (Some(hook), Some(buf)) = (self.hook.get(), self.counters_buf.get()) else { return };
        self.put_in_group(buf, COUNT_FREE_FRAGS, &hook.counters().encode());
        hook.records(&mut |buf, offset, bytes| self.put_in_group(buf, offset, bytes));
    }

    /// Changes bytes of a block in the group that is about to be committed.
    fn put_in_group(&self, buf: &BufRef, offset: usize, bytes: &[u8]) {
        let mut inner = buf.lock();
        let inner = &mut *inner;
        let place = offset..offset + bytes.len();
        if inner.bytes[place.clone()] == *bytes {
            return;
        }
        let size = inner.bytes.len();
        let state = inner.log.get_or_insert_with(|| crate::cache::LogState::new(size, false));
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let at = offset + i * 8;
            if inner.bytes[at..at + 8] != *word {
                state.mark(at, 8);
            }
        }
        inner.bytes[place].copy_from_slice(bytes);
        buf.pin();
        if !std::mem::replace(&mut state.in_txn, true) {
            self.running.lock().bufs.push(buf.clone());
        }
    }

    fn write_log(&self, writer: &mut Writer, group: &mut Group) -> Result<()> {
        let len = group.bytes.len() as u64;
        if writer.used + len > self.ring_len || len > self.ring_len / super::COMMIT_SHARE_MAX {
            // Reservations make this impossible; writing over live records, or a group that recovery takes for
            // damaged, would lose promises.
            return Err(Error::Io(std::io::Error::other(format!(
                "a commit of {len} bytes does not fit the log ({} of {} bytes in use)",
                writer.used, self.ring_len
            ))));
        }
        log::seal_txn(&mut group.bytes, self.fsid, group.seq, writer.header.epoch, group.payload);
        let mut requests = Vec::new();
        let mut at = 0;
        while at < group.bytes.len() {
            let pos = (writer.head + at as u64) % self.ring_len;
            let n = (group.bytes.len() - at).min(LOG_REQUEST_MAX).min((self.ring_len - pos) as usize);
            let bufs = vec![IoSlice::new(&group.bytes[at..at + n])];
            requests.push(WriteRequest { kind: IoKind::Log, offset: self.ring_start + pos, bufs });
            at += n;
        }
        self.log_dev.write_batch(&requests)?;
        self.log_dev.flush()?;
        writer.head = (writer.head + len) % self.ring_len;
        writer.used += len;
        Ok(())
    }

    /// Everything is home: the log starts anew behind group `seq`.
    fn empty_log(&self, writer: &mut Writer, seq: u64) -> Result<()> {
        self.cache.flush()?;
        let header = writer.header.next(writer.head, seq + 1);
        super::write_header(&*self.log_dev, self.header_at, header)?;
        // Before this is durable, the old records must not be overwritten.
        self.log_dev.flush()?;
        writer.header = header;
        writer.used = 0;
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.retain_running_data_blocks();
        Ok(())
    }

    /// Whether the log is on a device of its own.
    pub fn log_is_external(&self) -> bool {
        self.external
    }
}

const TWICE_CHECKPOINT_SHARE: u64 = CHECKPOINT_SHARE * 2;
