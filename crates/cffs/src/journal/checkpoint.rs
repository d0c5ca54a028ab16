//! The checkpoint: committed blocks are written in place, neighbours in one request.

use super::manager::Journal;
use super::mode::CommitTarget;
use crate::addr_map::AddrMap;
use crate::cache::{BufInner, BufRef};
use crate::error::Result;
use crate::format::{self, BlockAddr};
use cffs_buf::AlignedBuf;
use cffs_device::{IoKind, Purpose, WriteRequest};
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;

/// Most bytes of copies that are made at a time while others go on.
const COPIES_MAX: usize = 8 << 20;

/// A copy of a committed block that is to be written in place.
pub(super) struct BlockCopy {
    buf: BufRef,
    bytes: AlignedBuf,
    /// Fragments to write; `None` for the whole block (metadata).
    frags: Option<u8>,
}

/// Copies a committed block. The caller holds its lock and knows that it carries no uncommitted change.
fn copy_block(buf: &BufRef, inner: &mut BufInner) -> Option<BlockCopy> {
    let log = inner.log.as_mut()?;
    log.awaits_checkpoint = false;
    let mut bytes = AlignedBuf::from_slice(&inner.bytes);
    if !log.data {
        format::seal(&mut bytes, log.last_seq);
    }
    let frags = log.data.then(|| std::mem::take(&mut log.checkpoint_frags));
    Some(BlockCopy { buf: buf.clone(), bytes, frags })
}

impl Journal {
    /// Writes the committed blocks in place that the running transaction has not touched, in the order of the device.
    pub(super) fn write_idle(&self) -> Result<()> {
        let mut bufs: Vec<BufRef> = self.dirty.lock().values().cloned().collect();
        bufs.sort_unstable_by_key(|b| b.addr());
        for some in bufs.chunks((COPIES_MAX >> self.cache.geometry().block_shift).max(1)) {
            let mut copies = Vec::with_capacity(some.len());
            for buf in some {
                let mut inner = buf.lock();
                if inner.log.as_ref().is_some_and(|l| l.awaits_checkpoint && !l.in_txn && !l.freed) {
                    copies.extend(copy_block(buf, &mut inner));
                }
            }
            self.write_in_place(copies)?;
        }
        Ok(())
    }

    /// Copies of all committed blocks; no transaction is open.
    pub(super) fn copy_committed(&self, dirty: &mut MutexGuard<'_, AddrMap<BlockAddr, BufRef>>) -> Vec<BlockCopy> {
        let mut out = Vec::with_capacity(dirty.len());
        for buf in dirty.values() {
            let mut inner = buf.lock();
            if inner.log.as_ref().is_some_and(|l| l.awaits_checkpoint) {
                out.extend(copy_block(buf, &mut inner));
            }
        }
        out
    }

    /// Writes copies to their places and releases the blocks that did not change meanwhile.
    pub(super) fn write_in_place(&self, mut copies: Vec<BlockCopy>) -> Result<()> {
        if copies.is_empty() {
            return Ok(());
        }
        let _purpose = Purpose::Checkpoint.scope();
        copies.sort_unstable_by_key(|copy| copy.buf.addr());
        let geo = *self.cache.geometry();
        let (shift, fs) = (geo.block_shift, geo.frag_size());
        // File data and metadata may be neighbours; a request is counted as what it begins with.
        let mut requests: Vec<WriteRequest<'_>> = Vec::new();
        for (kind, data) in [(IoKind::Meta, false), (IoKind::Data, true)] {
            let mut pieces: Vec<(u64, &[u8])> = Vec::with_capacity(copies.len());
            for copy in copies.iter().filter(|copy| copy.frags.is_some() == data) {
                let offset = copy.buf.addr() << shift;
                match copy.frags {
                    None => pieces.push((offset, &copy.bytes)),
                    Some(mask) => {
                        for f in (0..geo.frags_per_block() as usize).filter(|f| mask >> f & 1 == 1) {
                            pieces.push((offset + (f * fs) as u64, &copy.bytes[f * fs..(f + 1) * fs]));
                        }
                    }
                }
            }
            requests.extend(self.cache.requests(kind, pieces.into_iter()));
        }
        self.cache.write_requests(&requests, self.target == CommitTarget::Atomic)?;
        drop(requests);
        self.counters.checkpointed_blocks.fetch_add(copies.len() as u64, Ordering::Relaxed);
        let mut dirty = self.dirty.lock();
        for copy in copies {
            let mut inner = copy.buf.lock();
            let done = inner.log.as_ref().is_none_or(|l| !l.in_txn && !l.awaits_checkpoint);
            if done {
                inner.log = None;
                copy.buf.unpin();
            }
            let waits = inner.log.as_ref().is_some_and(|l| l.awaits_checkpoint);
            if !waits && dirty.get(&copy.buf.addr()).is_some_and(|b| std::sync::Arc::ptr_eq(b, &copy.buf)) {
                dirty.remove(&copy.buf.addr());
            }
        }
        Ok(())
    }

    /// After the log was emptied: only the running transaction's data blocks still matter.
    pub(super) fn retain_running_data_blocks(&self) {
        let mut blocks = self.data_blocks.lock();
        blocks.retain(|addr, ()| {
            self.cache.peek(*addr).is_some_and(|b| b.lock().log.as_ref().is_some_and(|l| l.data && l.in_txn))
        });
    }

    /// metadata=sync: writes blocks of a transaction that has ended, one after another. What it has not changed, or freed in
    /// the end, is left out.
    pub(super) fn write_ordered(&self, blocks: &[BlockAddr]) {
        let _purpose = Purpose::Checkpoint.scope();
        for addr in blocks {
            let Some(buf) = self.cache.peek(*addr) else { continue };
            // A commit that is under way may have an older copy yet to write: then the block is written once more by the
            // next. (Looked at first: the lock of the committed blocks comes before a block's.)
            let in_commit = self.dirty.lock().contains_key(addr);
            // Locked until it is written: of two transactions that changed the block the later one writes it last.
            let mut guard = buf.lock();
            let inner = &mut *guard;
            let Some(log) = &mut inner.log else { continue };
            if log.freed || !log.in_txn || log.data {
                continue;
            }
            if !in_commit {
                log.dirty.fill(0);
            }
            let mut copy = AlignedBuf::from_slice(&inner.bytes);
            format::seal(&mut copy, self.running_seq());
            let offset = buf.addr() << self.cache.geometry().block_shift;
            let outcome = self.cache.device().write_at(IoKind::Meta, offset, &copy);
            drop(guard);
            self.cache.unflushed.store(true, Ordering::Release);
            if let Err(e) = outcome {
                self.fail("writing metadata failed", &e.into());
            }
        }
    }
}
