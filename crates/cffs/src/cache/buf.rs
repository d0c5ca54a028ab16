//! One cached block.

use super::log_state::LogState;
use crate::format::BlockAddr;
use cffs_buf::AlignedBuf;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::{Deref, Range};
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
    /// Fragments of file data that were read, one bit each.
    read_frags: AtomicU8,
    /// How often the clock hand still passes by.
    rounds: AtomicU8,
}

/// Rounds of the clock that a block stays for after it was used. File data that was read once, and all of it, has none: whoever asked
/// has it, and the kernel keeps it for others.
const ROUNDS: u8 = 1;
/// The same of a block that came with others, until all of its data was read, or until it was used if it is metadata. Whoever goes through a tree comes again and again to some groups,
/// where other files lie together than those of a directory, and may have read several times the cache before all of such a group is used.
pub(super) const UNREAD_ROUNDS: u8 = 3;

/// Fragments of a block as bits.
pub(super) fn frag_bits(frags: Range<usize>) -> u8 {
    frags.fold(0, |bits, frag| bits | 1 << frag)
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
            read_frags: AtomicU8::new(0),
            rounds: AtomicU8::new(if demand == Demand::Requested { ROUNDS } else { UNREAD_ROUNDS }),
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
        // A plain load first: a hot block must not bounce between cores.
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

    /// The block was read with others that nobody had asked for: its other fragments are like these.
    pub(super) fn stay_until_read(&self) {
        self.stay(UNREAD_ROUNDS);
    }

    /// Notes that a block of metadata was used.
    pub(super) fn use_meta(&self) {
        self.stay(ROUNDS);
    }

    /// Notes that fragments of file data were read, of so many in the block. What is read a second time stays.
    pub(super) fn use_frags(&self, frags: Range<usize>, of: usize) {
        let (bits, before) = (frag_bits(frags), self.read_frags.load(Ordering::Relaxed));
        if before & bits != 0 {
            self.stay(self.rounds.load(Ordering::Relaxed).max(ROUNDS));
        } else if before | bits == frag_bits(0..of) {
            self.stay(0);
        }
        if before | bits != before {
            self.read_frags.fetch_or(bits, Ordering::Relaxed);
        }
    }

    fn stay(&self, rounds: u8) {
        // A plain load first, as above.
        if self.rounds.load(Ordering::Relaxed) != rounds {
            self.rounds.store(rounds, Ordering::Relaxed);
        }
    }

    /// Whether the clock hand passes by, once more.
    pub(super) fn take_round(&self) -> bool {
        self.rounds.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |rounds| rounds.checked_sub(1)).is_ok()
    }
}
