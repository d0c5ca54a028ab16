//! Transactions: the only way to change metadata.

use super::manager::Journal;
use crate::cache::{BufInner, BufRef, Cache, LogState};
use crate::error::{Error, Result};
use crate::format::Run;
use crate::format::dirblock::BlockEdit;
use crate::format::log::{RANGE_UNIT, RECORD_HEADER};
use crate::format::{self, BlockAddr, BlockId};
use crate::reservation::Reservation;
use crate::trace::Kind;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::atomic::Ordering;

/// A change of metadata that happens as a whole or not at all. It becomes a part of the running transaction, which the
/// next commit makes durable.
///
/// There is no rollback. What can fail is done before the first edit; where a later step can fail all the same, the
/// caller takes its edits back with edits of its own, or has marked the part as critical: dropping the transaction
/// then makes the journal fail. Dropping it otherwise ends it. (A journal like jbd2 calls this a handle.)
pub struct Txn<'a> {
    journal: &'a Journal,
    seq: u64,
    reserved: usize,
    logged: Cell<usize>,
    /// Something was changed; perhaps only what others had changed before in the running transaction, which logs nothing more.
    changed: Cell<bool>,
    /// Set while stopping here would leave an operation half done.
    critical: Cell<bool>,
    /// What may be allocated.
    reservation: RefCell<Option<Reservation>>,
    /// Blocks to be written when it ends, in this order (metadata=sync).
    ordered: RefCell<Vec<BlockAddr>>,
    _running: Barrier<'a>,
}

/// How a transaction keeps a commit out.
enum Barrier<'a> {
    /// Others may be open.
    Shared { _guard: RwLockReadGuard<'a, ()> },
    /// None is.
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

impl Journal {
    /// Begins a transaction that will log at most `reserve` bytes. Waits for a commit if the log lacks room. The caller
    /// holds no lock that an open transaction may want, and has no transaction open.
    pub fn begin(&self, reserve: usize) -> Result<Txn<'_>> {
        let reserve = self.reserve_room(reserve)?;
        let running =
            Barrier::Shared { _guard: self.barrier.try_read().unwrap_or_else(|| self.wait_for_commit(RwLock::read)) };
        Ok(Txn::new(self, self.next_seq.load(Ordering::Acquire), reserve, running))
    }

    /// As [`Journal::begin`], and no other transaction is open until it ends. For blocks that others change without a lock of their
    /// own, in their transactions.
    pub(crate) fn begin_alone(&self, reserve: usize) -> Result<Txn<'_>> {
        let reserve = self.reserve_room(reserve)?;
        let running =
            Barrier::Alone { _guard: self.barrier.try_write().unwrap_or_else(|| self.wait_for_commit(RwLock::write)) };
        Ok(Txn::new(self, self.next_seq.load(Ordering::Acquire), reserve, running))
    }

    /// Waits while a commit copies what transactions have changed. The trace has it as a wait for others.
    fn wait_for_commit<'a, G>(&'a self, lock: impl FnOnce(&'a RwLock<()>) -> G) -> G {
        let _wait = self.tracer().span(Kind::CommitWait, [0; 3]);
        lock(&self.barrier)
    }

    /// Reserves room in the running transaction. Returns how many bytes.
    fn reserve_room(&self, reserve: usize) -> Result<usize> {
        // Estimates add up the worst of everything, which never comes together. With the smallest logs the largest of them
        // is more than a commit may take: such a transaction gets a commit to itself.
        let asked = reserve + self.records_bytes.load(Ordering::Relaxed);
        let reserve =
            if self.has_log() && asked <= 2 * self.reserve_max() { asked.min(self.reserve_max()) } else { asked };
        if self.has_log() && reserve > self.reserve_max() {
            return Error::invalid(format!(
                "the log is too small: an operation needs {reserve} bytes of it, {} are available",
                self.reserve_max()
            ));
        }
        loop {
            self.check()?;
            let seq = {
                let mut r = self.running.lock();
                let room = !self.has_log() || r.bytes + r.reserved + reserve <= self.reserve_max();
                // Blocks with uncommitted changes cannot leave memory.
                if room && r.bufs.len() <= self.pinned_max() {
                    r.reserved += reserve;
                    return Ok(reserve);
                }
                self.running_seq()
            };
            self.commit_waiting(seq)?;
            crate::yield_now();
        }
    }

    fn end(&self, reserved: usize, logged: usize, changed: Option<u64>) {
        let mut r = self.running.lock();
        r.reserved -= reserved;
        r.bytes += logged;
        if let Some(seq) = changed.filter(|_| self.tracer().is_on()) {
            self.tracer().joined(seq, &mut r.causes, logged);
        }
    }
}

impl<'a> Txn<'a> {
    fn new(journal: &'a Journal, seq: u64, reserved: usize, running: Barrier<'a>) -> Self {
        let (logged, critical, ordered) = (Cell::new(0), Cell::new(false), RefCell::default());
        let reservation = RefCell::default();
        Txn {
            journal,
            seq,
            reserved,
            logged,
            changed: Cell::new(false),
            critical,
            reservation,
            ordered,
            _running: running,
        }
    }

    /// From here to [`Txn::end_critical`] the transaction must not end: if it does after a change (an error in the middle), half
    /// an operation would be committed. The journal fails instead, before that can happen.
    pub fn begin_critical(&self) {
        self.critical.set(true);
    }

    /// The operation is complete, or was given up in a state that is as good.
    pub fn end_critical(&self) {
        self.critical.set(false);
    }

    /// metadata=sync: when the transaction ends, this block is written as it is then, after those that were named before
    /// it. Of two blocks that depend on each other the one that the other's contents rely on is named first; what depends
    /// on nothing is not named, and waits for the commit. In the other modes this does nothing.
    pub fn write_ordered(&self, addr: BlockAddr) {
        let mut blocks = self.ordered.borrow_mut();
        if self.journal.orders_writes() && blocks.last() != Some(&addr) {
            blocks.push(addr);
        }
    }

    /// Allocates metadata out of this reservation from here on. Without one a transaction gets what is reserved by nobody,
    /// the file system's reserve included, because it belongs to the file system itself.
    pub fn draw_on(&self, reservation: &Reservation) {
        reservation.start_use();
        *self.reservation.borrow_mut() = Some(reservation.clone());
    }

    /// What the transaction may allocate.
    pub fn reservation(&self) -> Reservation {
        self.reservation.borrow().clone().unwrap_or_else(Reservation::none)
    }

    /// Makes the file system read-only, because the transaction cannot be completed nor taken back.
    pub(crate) fn fail(&self, what: &str, e: &Error) {
        self.journal.fail(what, e);
    }

    /// The cache below.
    pub fn cache(&self) -> &Cache {
        &self.journal.cache
    }

    /// Sequence number of the commit that will carry this transaction.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// A new metadata block: zeros and its identity. Whatever was at its address is not read.
    pub fn init_block(&self, id: BlockId) -> BufRef {
        let buf = self.cache().install_new(id.addr);
        buf.set_verified(true);
        {
            let mut e = self.edit(&buf);
            format::init_block(e.range(0, format::META_HEADER_SIZE), self.cache().geometry().fsid, id);
            if let Some(log) = &mut e.inner.log {
                log.init = true;
            }
        }
        buf
    }

    /// Locks a metadata block for change.
    pub fn edit<'b>(&'b self, buf: &'b BufRef) -> BlockEditGuard<'b> {
        self.edit_as(buf, false)
    }

    /// Locks a block of file data for change through the log (fsync of small files).
    pub(crate) fn edit_data<'b>(&'b self, buf: &'b BufRef) -> BlockEditGuard<'b> {
        self.edit_as(buf, true)
    }

    fn edit_as<'b>(&'b self, buf: &'b BufRef, data: bool) -> BlockEditGuard<'b> {
        self.changed.set(true);
        let mut inner = buf.lock();
        let size = inner.bytes.len();
        inner.log.get_or_insert_with(|| LogState::new(size, data));
        BlockEditGuard { txn: self, buf, inner, units: 0, ranges: 0 }
    }

    /// Overwrites bytes of a block.
    pub fn write(&self, buf: &BufRef, offset: usize, bytes: &[u8]) {
        self.edit(buf).range(offset, bytes.len()).copy_from_slice(bytes);
    }

    /// A metadata block is no longer used: its cached contents are dropped and its log records revoked. Its space is
    /// freed separately.
    pub fn free_block(&self, addr: BlockAddr) {
        let cache = self.cache();
        if let Some(buf) = cache.peek(addr) {
            let mut inner = buf.lock();
            if let Some(log) = &mut inner.log {
                log.freed = true;
                log.awaits_checkpoint = false;
            }
            buf.unpin();
        }
        cache.forget_block(addr);
        let geo = cache.geometry();
        self.journal.forget_dirty(addr);
        self.journal.revoke(geo.frag_of_block(addr), geo.frags_per_block());
    }

    /// Fragments of file data are no longer used: log records of them, if there are any, are revoked, and the journal
    /// no longer writes them in place.
    pub fn free_data(&self, run: Run) {
        self.journal.forget_data(run);
    }

    /// Space freed by this transaction: it may be allocated again when the journal says that it counts ([`CommitHook::committed`](super::CommitHook)).
    pub fn note_freed(&self, run: Run) {
        self.changed.set(true);
        self.journal.running.lock().freed.push(run);
    }

    /// Bytes of the log that the commit will need because of this transaction, beside what it edits itself.
    pub(crate) fn note_bytes(&self, bytes: usize) {
        self.changed.set(true);
        self.logged.set(self.logged.get() + bytes);
    }

    fn note_edit(&self, buf: &BufRef, first: bool, bytes: usize) {
        self.logged.set(self.logged.get() + bytes);
        if first {
            self.journal.running.lock().bufs.push(buf.clone());
        }
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        let logged = self.logged.get();
        if self.critical.get() && self.changed.get() {
            let e = std::io::Error::other("an operation stopped half way");
            self.journal.fail("transaction failed", &e.into());
        }
        if logged > self.reserved && self.journal.has_log() {
            tracing::warn!("a transaction logged {logged} bytes and had reserved {}", self.reserved);
            debug_assert!(false, "a transaction logged {logged} bytes and had reserved {}", self.reserved);
        }
        self.journal.end(self.reserved, logged, self.changed.get().then_some(self.seq));
        let ordered = std::mem::take(&mut *self.ordered.borrow_mut());
        if !ordered.is_empty() {
            self.journal.write_ordered(&ordered);
        }
    }
}

/// Write access to a block within a transaction. Bytes are changed through [`BlockEdit::range`], which records them.
pub struct BlockEditGuard<'a> {
    txn: &'a Txn<'a>,
    buf: &'a BufRef,
    inner: RwLockWriteGuard<'a, BufInner>,
    units: usize,
    ranges: usize,
}

impl Deref for BlockEditGuard<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.inner.bytes
    }
}

impl BlockEdit for BlockEditGuard<'_> {
    fn bytes(&self) -> &[u8] {
        &self.inner.bytes
    }

    fn range(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let inner = &mut *self.inner;
        if let Some(log) = &mut inner.log {
            let new = log.mark(offset, len);
            self.units += new;
            self.ranges += usize::from(new > 0);
        }
        &mut inner.bytes[offset..offset + len]
    }
}

impl Drop for BlockEditGuard<'_> {
    fn drop(&mut self) {
        if self.units == 0 {
            return;
        }
        let mut first = false;
        if let Some(log) = &mut self.inner.log {
            debug_assert!(!log.freed, "block {} is changed after it was freed", self.buf.addr());
            first = !log.in_txn;
            log.in_txn = true;
        }
        if first {
            self.buf.pin();
        }
        // A run costs four bytes in the record; two of the header's words may be padding.
        let bytes = self.units * RANGE_UNIT + self.ranges * 8 + if first { RECORD_HEADER + 8 } else { 0 };
        self.txn.note_edit(self.buf, first, bytes);
    }
}
