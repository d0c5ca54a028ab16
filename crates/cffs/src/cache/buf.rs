//! One cached block.

use crate::format::{BlockAddr, log::RANGE_UNIT};
use cffs_buf::AlignedBuf;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// A shared reference to a cached block; holding one keeps the block in memory.
pub type BufRef = Arc<Buf>;

/// A block of the device in memory.
pub struct Buf {
    addr: BlockAddr,
    inner: RwLock<BufInner>,
    /// Has changes that are not home yet: must stay in the cache.
    pub(crate) pinned: AtomicBool,
    /// Contents were checked against the kind of block they were asked for.
    pub(crate) verified: AtomicBool,
    /// Fragments of file data, one bit each, whose contents are known to be what was written.
    pub(crate) trusted: AtomicU8,
    /// Came along with a group transfer and nobody has asked for it yet.
    pub(crate) speculative: AtomicBool,
    /// It is not of the directory for which the transfer was made.
    pub(crate) foreign: AtomicBool,
    /// Used since the clock hand last passed.
    pub(crate) referenced: AtomicBool,
}

pub(crate) struct BufInner {
    pub(crate) bytes: AlignedBuf,
    /// State of a block with logged changes; `None` for one that is as on the device.
    pub(crate) log: Option<Box<LogState>>,
}

/// What the journal knows of a changed block.
#[derive(Default)]
pub(crate) struct LogState {
    /// Units of [`RANGE_UNIT`] bytes changed in the running transaction, one bit each.
    pub(crate) dirty: Box<[u64]>,
    /// On the running transaction's list.
    pub(crate) in_txn: bool,
    /// Made new in the running transaction.
    pub(crate) init: bool,
    /// File contents: no header, no checksum.
    pub(crate) data: bool,
    /// Freed in the running transaction: nothing of it is logged any more.
    pub(crate) freed: bool,
    /// Sequence number of the last transaction with changes of it (0: none committed yet).
    pub(crate) last_seq: u64,
    /// Committed changes wait for their way home.
    pub(crate) awaits_checkpoint: bool,
    /// Fragments of a data block that are to be written home, one bit each (metadata go home whole).
    pub(crate) checkpoint_frags: u8,
}

impl LogState {
    pub(crate) fn new(block_size: usize, data: bool) -> Box<LogState> {
        let words = (block_size / RANGE_UNIT).div_ceil(64);
        Box::new(LogState { dirty: vec![0; words].into_boxed_slice(), data, ..LogState::default() })
    }

    /// Marks units as changed; returns how many were not before.
    pub(crate) fn mark(&mut self, offset: usize, len: usize) -> usize {
        let (first, end) = (offset / RANGE_UNIT, (offset + len).div_ceil(RANGE_UNIT));
        let mut new = 0;
        let mut unit = first;
        while unit < end {
            let (word, bit) = (unit / 64, unit % 64);
            let n = (64 - bit).min(end - unit);
            let mask = (u64::MAX >> (64 - n)) << bit;
            new += (mask & !self.dirty[word]).count_ones() as usize;
            self.dirty[word] |= mask;
            unit += n;
        }
        new
    }

    /// The runs of changed units as (first, count), and clears them.
    pub(crate) fn take_runs(&mut self, out: &mut Vec<(u32, u32)>) {
        out.clear();
        for w in 0..self.dirty.len() {
            let mut word = std::mem::take(&mut self.dirty[w]);
            let mut base = w as u32 * 64;
            while word != 0 {
                let skip = word.trailing_zeros();
                word >>= skip;
                base += skip;
                let n = word.trailing_ones();
                match out.last_mut() {
                    Some((first, count)) if *first + *count == base => *count += n,
                    _ => out.push((base, n)),
                }
                word = if n == 64 { 0 } else { word >> n };
                base += n;
            }
        }
    }
}

/// Read access to a block.
pub struct BufRead<'a>(RwLockReadGuard<'a, BufInner>);

impl Deref for BufRead<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl Buf {
    pub(crate) fn new(addr: BlockAddr, bytes: AlignedBuf, speculative: bool) -> BufRef {
        Arc::new(Buf {
            addr,
            inner: RwLock::new(BufInner { bytes, log: None }),
            pinned: AtomicBool::new(false),
            verified: AtomicBool::new(false),
            trusted: AtomicU8::new(0),
            speculative: AtomicBool::new(speculative),
            foreign: AtomicBool::new(false),
            // What a group transfer brought along too: in a full cache it would be the first to go, before anybody could
            // ask for it.
            referenced: AtomicBool::new(true),
        })
    }

    /// Device address in blocks.
    pub fn addr(&self) -> BlockAddr {
        self.addr
    }

    /// Locks the block for reading.
    pub fn read(&self) -> BufRead<'_> {
        BufRead(self.inner.read())
    }

    pub(crate) fn lock(&self) -> RwLockWriteGuard<'_, BufInner> {
        self.inner.write()
    }

    /// Whether the contents were checked, or made here, as those of a metadata block.
    pub(crate) fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Acquire)
    }

    /// Whether changes of the block are not home yet.
    pub fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_units_come_back_as_runs() {
        let mut s = LogState::new(4096, false);
        assert_eq!(s.mark(0, 1), 1);
        assert_eq!(s.mark(4, 8), 1, "unit 0 is marked already");
        assert_eq!(s.mark(500, 30), 5);
        assert_eq!(s.mark(4088, 8), 1);
        assert_eq!(s.mark(1024, 1024), 128);
        let mut runs = Vec::new();
        s.take_runs(&mut runs);
        assert_eq!(runs, [(0, 2), (62, 5), (128, 128), (511, 1)]);
        s.take_runs(&mut runs);
        assert!(runs.is_empty());
    }
}
