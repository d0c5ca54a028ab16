//! One cached block.

use super::log_state::LogState;
use crate::format::BlockAddr;
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
    /// Has changes that are not checkpointed yet: must stay in the cache.
    pinned: AtomicBool,
    verified: Verified,
    /// A [`Demand`].
    demand: AtomicU8,
    /// Used since the clock hand last passed.
    referenced: AtomicBool,
}

pub(crate) struct BufInner {
    pub(crate) bytes: AlignedBuf,
    /// State of a block with logged changes; `None` for one that is as on the device.
    pub(crate) log: Option<Box<LogState>>,
}

/// Which checks the contents have passed.
#[derive(Default)]
struct Verified {
    /// Those of a metadata block: checksum, identity and structure.
    metadata: AtomicBool,
    /// Fragments of file data, one bit each, whose contents are known to be what was written.
    frags: AtomicU8,
}

/// Whether somebody has asked for a block, or a transfer only brought it along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Demand {
    /// It was asked for.
    Requested,
    /// It was prefetched, and nobody has asked for it yet.
    Prefetched,
    /// The same, and it does not belong to the directory for which the transfer was made.
    Unrelated,
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
    pub(super) fn new(addr: BlockAddr, bytes: AlignedBuf, demand: Demand) -> BufRef {
        Arc::new(Buf {
            addr,
            inner: RwLock::new(BufInner { bytes, log: None }),
            pinned: AtomicBool::new(false),
            verified: Verified::default(),
            demand: AtomicU8::new(demand as u8),
            // Prefetched blocks too: in a full cache they would be the first to be evicted, before anybody could ask for
            // them.
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

    /// The same, unless somebody is changing it.
    pub fn try_read(&self) -> Option<BufRead<'_>> {
        self.inner.try_read().map(BufRead)
    }

    pub(crate) fn lock(&self) -> RwLockWriteGuard<'_, BufInner> {
        self.inner.write()
    }

    /// Whether the contents were checked, or made here, as those of a metadata block.
    pub(crate) fn is_verified(&self) -> bool {
        self.verified.metadata.load(Ordering::Acquire)
    }

    /// Notes whether the contents are known to be those of a metadata block.
    pub(crate) fn set_verified(&self, verified: bool) {
        self.verified.metadata.store(verified, Ordering::Release);
    }

    /// Fragments of file data, one bit each, whose checksums were verified, or that were written here.
    pub(super) fn verified_frags(&self) -> u8 {
        self.verified.frags.load(Ordering::Acquire)
    }

    pub(super) fn add_verified_frags(&self, frags: u8) {
        self.verified.frags.fetch_or(frags, Ordering::AcqRel);
    }

    /// Whether the block has changes that are not checkpointed yet.
    pub fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }

    /// Keeps the block in the cache, because it has changes that are not checkpointed yet.
    pub(crate) fn pin(&self) {
        self.pinned.store(true, Ordering::Release);
    }

    /// Allows the eviction of the block.
    pub(crate) fn unpin(&self) {
        self.pinned.store(false, Ordering::Release);
    }

    /// Notes that somebody asked for the block. Returns what was known before.
    pub(super) fn request(&self) -> Demand {
        // Plain loads first: a hot block must not bounce between cores.
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
        let requested = Demand::Requested as u8;
        if self.demand.load(Ordering::Relaxed) == requested {
            return Demand::Requested;
        }
        match self.demand.swap(requested, Ordering::Relaxed) {
            n if n == Demand::Prefetched as u8 => Demand::Prefetched,
            n if n == Demand::Unrelated as u8 => Demand::Unrelated,
            _ => Demand::Requested,
        }
    }

    /// Whether somebody has asked for the block.
    pub(super) fn is_requested(&self) -> bool {
        self.demand.load(Ordering::Relaxed) == Demand::Requested as u8
    }

    /// Notes that a prefetched block does not belong to the directory for which it was read. False if somebody has asked
    /// for it, or it was noted before.
    pub(super) fn mark_unrelated(&self) -> bool {
        let (old, new) = (Demand::Prefetched as u8, Demand::Unrelated as u8);
        self.demand.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether the block was used since the last call.
    pub(super) fn take_referenced(&self) -> bool {
        self.referenced.swap(false, Ordering::Relaxed)
    }
}
