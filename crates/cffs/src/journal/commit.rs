//! The commit: the running transaction becomes durable.

use super::checkpoint::BlockCopy;
use super::log_writer::LogPosition;
use super::manager::{Journal, Running};
use super::mode::CommitTarget;
use crate::cache::{BufRef, LogState};
use crate::error::{Error, Result};
use crate::format::log::{self, TXN_HEADER};
use crate::format::system::COUNT_FREE_FRAGS;
use crate::trace::{Kind, Span};
use cffs_buf::AlignedBuf;
use cffs_device::Purpose;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;

/// The log is emptied when more than one in so many parts is used, in the background when half as much is.
const CHECKPOINT_DIVISOR: u64 = 2;

/// How far a commit goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The device has it, in its place among all writes; a crash may still undo it, and all that came after it.
    Ordered,
    /// No crash undoes it.
    Durable,
    /// It is in place, and the log is empty.
    Checkpointed,
}

/// What a commit took out of the running state.
struct Committing {
    seq: u64,
    /// Header, records, padding; empty without a log.
    bytes: AlignedBuf,
    payload: u64,
    running: Running,
    /// Committed blocks to be written in place after it.
    copies: Vec<BlockCopy>,
}

impl Journal {
    /// Makes everything durable that was done before the call. Callers that come while a commit is being written share
    /// the next one.
    pub fn commit(&self) -> Result<()> {
        let target = self.running_seq();
        let mut writer = self.lock_writer();
        self.check()?;
        if self.durable.load(Ordering::Acquire) >= target {
            return Ok(());
        }
        self.commit_running(&mut writer, Until::Durable)
    }

    /// Commits because too much waits for it, not because somebody waits for the commit. Where the device keeps all writes in order, nothing is
    /// flushed. Nothing happens if the running transaction had this number and another one runs now: there was a commit.
    pub(crate) fn commit_waiting(&self, seq: u64) -> Result<()> {
        if !self.is_atomic() {
            return self.commit();
        }
        let mut writer = self.lock_writer();
        self.check()?;
        if self.running_seq() > seq {
            return Ok(());
        }
        self.commit_running(&mut writer, Until::Ordered)
    }

    /// Commits, then writes every committed block in place and empties the log.
    pub fn checkpoint(&self) -> Result<()> {
        let mut writer = self.lock_writer();
        self.check()?;
        self.commit_running(&mut writer, Until::Checkpointed)
    }

    /// Makes data durable that nothing points to yet ([`Cache::write_copies`](crate::cache::Cache)): the commit of what will point to it has no
    /// flush more because of it.
    pub(crate) fn flush_copies(&self) -> Result<()> {
        self.check()?;
        if self.is_atomic() {
            return Ok(()); // the device keeps all writes in order
        }
        let outcome = self.cache.device().flush().map_err(Error::from);
        if let Err(e) = &outcome {
            // What the device lost may be what others wrote.
            self.fail("a flush failed", e);
        }
        outcome
    }

    /// Whether a commit or a checkpoint is under way.
    pub(crate) fn is_committing(&self) -> bool {
        self.writer.try_lock().is_none()
    }

    fn lock_writer(&self) -> MutexGuard<'_, LogPosition> {
        self.writer.try_lock().unwrap_or_else(|| {
            let _wait = self.tracer().span(Kind::CommitWait, [0; 3]);
            self.writer.lock()
        })
    }

    /// Calls `f` while no commit or checkpoint is under way and no transaction is open. `f` begins none.
    pub(crate) fn quiesce<T>(&self, f: impl FnOnce() -> T) -> T {
        let _writer = self.writer.lock();
        let _exclusive = self.barrier.write();
        f()
    }

    /// Whether the log is so full that emptying it in the background is worth while.
    pub fn wants_checkpoint(&self) -> bool {
        let share = self.cache.limit() / 4;
        self.has_log()
            && (self.writer.lock().used > self.log.len / (2 * CHECKPOINT_DIVISOR)
                || self.dirty_blocks() << self.cache.geometry().block_shift > share)
    }

    fn commit_running(&self, writer: &mut LogPosition, until: Until) -> Result<()> {
        let full = writer.used > self.log.len / CHECKPOINT_DIVISOR || self.dirty_blocks() > 2 * self.pinned_max();
        let checkpoint = until == Until::Checkpointed || !self.has_log() || full;
        let outcome = self.commit_steps(writer, checkpoint, until != Until::Ordered);
        if let Err(e) = &outcome {
            self.fail("commit failed", e);
        }
        outcome
    }

    fn commit_steps(&self, writer: &mut LogPosition, checkpoint: bool, durable: bool) -> Result<()> {
        let _purpose = Purpose::Log.scope();
        let mut span = self.tracer().span(Kind::Commit, [0; 3]);
        if checkpoint && self.has_log() {
            let _checkpoint = self.checkpoint_span();
            // Blocks that nobody is changing are written before anybody is made to wait.
            self.write_idle()?;
        }
        // Data was written in place behind a header that has no transaction yet. If the header is lost, only a transaction of
        // its epoch tells that it was there; without one, a replay from the header before it would undo the writes.
        let mark_epoch = self.has_log() && writer.used == 0 && self.cache.unflushed.load(Ordering::Acquire);
        let mut commit = self.take_running(checkpoint, mark_epoch);
        self.note_commit(&mut span, &commit);
        // One of its operations may have failed half way.
        self.check()?;
        // Data that the transaction points to, and blocks written in place, must be durable before the log says so.
        if self.target != CommitTarget::Atomic && self.cache.unflushed.load(Ordering::Acquire) {
            self.cache.flush()?;
        }
        let len = commit.bytes.len() as u64;
        if len > 0 {
            self.log.append(writer, &mut commit.bytes, commit.seq, commit.payload)?;
            self.counters.commits.fetch_add(1, Ordering::Relaxed);
            self.counters.log_bytes.fetch_add(len, Ordering::Relaxed);
        }
        if !self.has_log() {
            self.counters.commits.fetch_add(u64::from(!commit.copies.is_empty()), Ordering::Relaxed);
            self.write_in_place(std::mem::take(&mut commit.copies))?;
            if let Some(hook) = self.hook.get().filter(|_| self.target == CommitTarget::Atomic) {
                hook.written(&commit.running.freed);
            }
            if durable {
                self.cache.flush()?;
            }
        }
        if durable {
            self.durable.store(commit.seq, Ordering::Release);
        }
        if let Some(hook) = self.hook.get() {
            hook.committed(std::mem::take(&mut commit.running.freed));
        }
        if checkpoint && self.has_log() && (writer.used > 0 || !commit.copies.is_empty()) {
            let _checkpoint = self.checkpoint_span();
            self.checkpoint_causes.lock().clear();
            self.write_in_place(std::mem::take(&mut commit.copies))?;
            self.empty_log(writer, commit.seq)?;
        }
        Ok(())
    }

    /// Notes in the trace what is committed, and for whom. The checkpoint that follows some time is for them too.
    fn note_commit(&self, span: &mut Span<'_>, commit: &Committing) {
        if !span.is_on() {
            return;
        }
        span.set_arg(0, commit.seq);
        span.set_arg(1, commit.bytes.len() as u64);
        span.add_causes(&commit.running.causes);
        if self.has_log() && !commit.running.causes.is_empty() {
            let causes = &commit.running.causes;
            self.checkpoint_causes.lock().merge_through(span.id(), causes, causes.weight(), false);
        }
    }

    /// A checkpoint, for the trace.
    fn checkpoint_span(&self) -> Span<'_> {
        let mut span = self.tracer().span(Kind::Checkpoint, [0; 3]);
        if span.is_on() {
            span.add_causes(&self.checkpoint_causes.lock());
        }
        span
    }

    /// Stops transactions for a moment and copies what they changed. With `mark_epoch` a transaction without records is
    /// made if there is nothing to log.
    fn take_running(&self, checkpoint: bool, mark_epoch: bool) -> Committing {
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
        for buf in running.bufs.drain(..) {
            if self.log_block(&buf, seq, &mut bytes, &mut runs) {
                dirty.insert(buf.addr(), buf);
            }
        }
        for (frag, len) in &running.revoked {
            log::put_revoke(&mut bytes, *frag, *len);
        }
        let copies = if checkpoint { self.copy_committed(&mut dirty) } else { Vec::new() };
        drop(dirty);
        let payload = (bytes.len() - TXN_HEADER) as u64;
        let unit = self.cache.geometry().frag_size();
        let mut sealed = AlignedBuf::default();
        let logs = payload > 0 || mark_epoch;
        if logs {
            sealed = AlignedBuf::zeroed(bytes.len().div_ceil(unit) * unit);
            sealed[..bytes.len()].copy_from_slice(&bytes);
        }
        // With nothing to log the number stays with the next transaction: the log has no gaps.
        let advance = logs || !self.has_log();
        if advance {
            self.next_seq.store(seq + 1, Ordering::Release);
        }
        let seq = if advance { seq } else { seq - 1 };
        Committing { seq, bytes: sealed, payload, running, copies }
    }

    /// Appends what changed of a block to the records of transaction `seq`. False if nothing did, or the block was freed.
    fn log_block(&self, buf: &BufRef, seq: u64, records: &mut Vec<u8>, runs: &mut Vec<(u32, u32)>) -> bool {
        let mut inner = buf.lock();
        let inner = &mut *inner;
        let Some(state) = &mut inner.log else { return false };
        state.in_txn = false;
        state.take_runs(runs);
        let init = std::mem::take(&mut state.init);
        if std::mem::take(&mut state.freed) || runs.is_empty() {
            if !state.awaits_checkpoint {
                inner.log = None;
                buf.unpin();
            }
            return false;
        }
        if self.has_log() {
            log::put_block(records, buf.addr(), init, state.data, &inner.bytes, runs);
        }
        state.last_seq = seq;
        if state.data {
            let frag_units = self.cache.geometry().frag_size() / log::RANGE_UNIT;
            for (first, count) in runs {
                let (from, to) = (*first as usize / frag_units, (*first + *count - 1) as usize / frag_units);
                (from..=to).for_each(|f| state.checkpoint_frags |= 1 << f);
            }
        }
        state.awaits_checkpoint = true;
        true
    }

    /// Updates the counters block, and what else is updated once in a commit. No transaction is open.
    fn note_counters(&self) {
        let (Some(hook), Some(buf)) = (self.hook.get(), self.counters_buf.get()) else { return };
        self.add_record(buf, COUNT_FREE_FRAGS, &hook.counters().encode());
        hook.records(&mut |buf, offset, bytes| self.add_record(buf, offset, bytes));
    }

    /// Changes bytes of a block in the transaction that is about to be committed.
    fn add_record(&self, buf: &BufRef, offset: usize, bytes: &[u8]) {
        let mut inner = buf.lock();
        let inner = &mut *inner;
        let place = offset..offset + bytes.len();
        if inner.bytes[place.clone()] == *bytes {
            return;
        }
        let size = inner.bytes.len();
        let state = inner.log.get_or_insert_with(|| LogState::new(size, false));
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

    /// Empties the log after everything of it was written in place. The next transaction comes behind `seq`.
    fn empty_log(&self, writer: &mut LogPosition, seq: u64) -> Result<()> {
        let _purpose = Purpose::Checkpoint.scope();
        self.cache.flush()?;
        self.log.empty(writer, seq)?;
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.retain_running_data_blocks();
        Ok(())
    }
}
