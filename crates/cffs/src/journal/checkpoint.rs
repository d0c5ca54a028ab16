//! The checkpoint: committed blocks go home, neighbours in one request.

use super::Journal;
use crate::cache::{AddrMap, BufInner, BufRef};
use crate::device::IoKind;
use crate::error::Result;
use crate::format::{self, BlockAddr};
use cffs_buf::AlignedBuf;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;

/// Most bytes of copies that are made at a time while others go on.
const COPIES_MAX: usize = 8 << 20;

/// A copy of a block on its way home.
pub(super) struct Home {
    buf: BufRef,
    bytes: AlignedBuf,
    /// Fragments to write; `None` for the whole block (metadata).
    frags: Option<u8>,
}

/// Copies a committed block. The caller holds its lock and knows that it carries no uncommitted change.
fn copy_home(buf: &BufRef, inner: &mut BufInner) -> Option<Home> {
    let log = inner.log.as_mut()?;
    log.awaits_checkpoint = false;
    let mut bytes = AlignedBuf::from_slice(&inner.bytes);
    if !log.data {
        format::seal(&mut bytes, log.last_seq);
    }
    let frags = log.data.then(|| std::mem::take(&mut log.checkpoint_frags));
    Some(Home { buf: buf.clone(), bytes, frags })
}

impl Journal {
    /// Writes the blocks home that the running group has not touched, in the order of the device.
    pub(super) fn write_cold(&self) -> Result<()> {
        let mut bufs: Vec<BufRef> = self.dirty.lock().values().cloned().collect();
        bufs.sort_unstable_by_key(|b| b.addr());
        for some in bufs.chunks((COPIES_MAX >> self.cache.geometry().block_shift).max(1)) {
            let mut home = Vec::with_capacity(some.len());
            for buf in some {
                let mut inner = buf.lock();
                if inner.log.as_ref().is_some_and(|l| l.awaits_checkpoint && !l.in_txn && !l.freed) {
                    home.extend(copy_home(buf, &mut inner));
                }
            }
            self.write_home(home)?;
        }
        Ok(())
    }

    /// Copies of all blocks that wait; nothing is running.
    pub(super) fn collect_home(&self, dirty: &mut MutexGuard<'_, AddrMap<BlockAddr, BufRef>>) -> Vec<Home> {
        let mut out = Vec::with_capacity(dirty.len());
        for buf in dirty.values() {
            let mut inner = buf.lock();
            if inner.log.as_ref().is_some_and(|l| l.awaits_checkpoint) {
                out.extend(copy_home(buf, &mut inner));
            }
        }
        out
    }

    /// Writes copies to their places and releases the blocks that did not change meanwhile.
    pub(super) fn write_home(&self, mut home: Vec<Home>) -> Result<()> {
        if home.is_empty() {
            return Ok(());
        }
        home.sort_unstable_by_key(|h| h.buf.addr());
        let geo = *self.cache.geometry();
        let (shift, fs) = (geo.block_shift, geo.frag_size());
        // File data and metadata may be neighbours; a request is counted as what it begins with.
        for (kind, data) in [(IoKind::Meta, false), (IoKind::Data, true)] {
            let mut pieces: Vec<(u64, &[u8])> = Vec::with_capacity(home.len());
            for h in home.iter().filter(|h| h.frags.is_some() == data) {
                let offset = h.buf.addr() << shift;
                match h.frags {
                    None => pieces.push((offset, &h.bytes)),
                    Some(mask) => {
                        for f in (0..geo.frags_per_block() as usize).filter(|f| mask >> f & 1 == 1) {
                            pieces.push((offset + (f * fs) as u64, &h.bytes[f * fs..(f + 1) * fs]));
                        }
                    }
                }
            }
            if !pieces.is_empty() {
                self.cache.write_sorted(kind, pieces.into_iter())?;
            }
        }
        self.counters.checkpointed_blocks.fetch_add(home.len() as u64, Ordering::Relaxed);
        let mut dirty = self.dirty.lock();
        for h in home {
            let mut inner = h.buf.lock();
            let done = inner.log.as_ref().is_none_or(|l| !l.in_txn && !l.awaits_checkpoint);
            if done {
                inner.log = None;
                h.buf.unpin();
            }
            let waits = inner.log.as_ref().is_some_and(|l| l.awaits_checkpoint);
            if !waits && dirty.get(&h.buf.addr()).is_some_and(|b| std::sync::Arc::ptr_eq(b, &h.buf)) {
                dirty.remove(&h.buf.addr());
            }
        }
        Ok(())
    }

    /// After the log was emptied: only the running group's data blocks still matter.
    pub(super) fn retain_running_data_blocks(&self) {
        let mut blocks = self.data_blocks.lock();
        blocks.retain(|addr, ()| {
            self.cache.peek(*addr).is_some_and(|b| b.lock().log.as_ref().is_some_and(|l| l.data && l.in_txn))
        });
    }

    /// metadata=sync: writes blocks of a transaction that has ended, one after another. What it has not changed, or freed in
    /// the end, is left out.
    pub(super) fn write_ordered(&self, blocks: &[BlockAddr]) {
        for addr in blocks {
            let Some(buf) = self.cache.peek(*addr) else { continue };
            // A commit that is under way may have an older copy yet to write: then the block is written once more by the
            // next. (Looked at first: the lock of the blocks that wait comes before a block's.)
            let on_its_way = self.dirty.lock().contains_key(addr);
            // Locked until it is written: of two transactions that changed the block the later one writes it last.
            let mut guard = buf.lock();
            let inner = &mut *guard;
            let Some(log) = &mut inner.log else { continue };
            if log.freed || !log.in_txn || log.data {
                continue;
            }
            if !on_its_way {
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
