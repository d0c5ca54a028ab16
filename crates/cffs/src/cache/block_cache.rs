//! The cache itself: its parts, its limits, and the blocks that are in it.

use super::buf::{Buf, BufRef, Demand};
use super::prefetch::{Prefetch, PrefetchMode};
use super::shard::{LockedShard, Shard};
use super::write_latency::WriteLatency;
use crate::addr_map::AddrHasher;
use crate::error::Result;
use crate::format::{BlockAddr, BlockKind, Geometry, LiveGeometry};
use crate::trace::{Cause, Kind, Tracer};
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind};
use parking_lot::Mutex;
use std::hash::Hasher;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;

/// Number of independently locked parts; a power of two.
pub(super) const SHARDS: usize = 64;
/// log2 of the bytes of device space that map to one part, so that few transfers have blocks of two.
const REGION_SHIFT: u32 = 22;
/// Longest transfer in bytes.
pub(super) const TRANSFER_MAX: u64 = 1 << 20;

/// Counters of the cache.
#[derive(Default)]
pub(crate) struct CacheCounters {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) group_reads: AtomicU64,
    pub(crate) group_blocks: AtomicU64,
    pub(crate) speculative_used: AtomicU64,
    /// Bytes of direct writes.
    pub(crate) direct_bytes: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

/// A run to be read ahead, what it is counted as, and what asked for it.
pub(super) type ReadaheadRequest = (Cause, IoKind, Range<BlockAddr>);

/// What is to be read ahead.
pub(super) struct Ahead {
    pub(super) requests: Vec<ReadaheadRequest>,
    /// Their blocks are marked as in flight. The number of devices may change before they are read, so that says nothing of it.
    pub(super) claimed: bool,
}

/// The way to the readahead thread, or to a queue that takes its place.
pub(super) struct ReadaheadSender {
    pub(super) send: mpsc::SyncSender<Ahead>,
    pub(super) to_thread: bool,
}

/// Where the first and the last of the small files lie that have their inodes in a block, if it is one of a directory.
pub(super) type FilesOf = fn(&Geometry, &Buf) -> Option<[BlockAddr; 2]>;
/// Leaves out of a window, the second range, what is free at its ends; not of the first, which is needed.
pub(super) type PartInUse = fn(&Cache, &Range<BlockAddr>, Range<BlockAddr>) -> Range<BlockAddr>;

/// The block cache.
pub struct Cache {
    pub(super) dev: Arc<dyn Device>,
    pub(super) geo: Arc<LiveGeometry>,
    pub(super) shards: Box<[LockedShard]>,
    pub(super) limit: usize,
    pub(super) blocks: AtomicUsize,
    /// The part that eviction looks at next.
    pub(super) hand: AtomicUsize,
    /// Bytes of dirty data held by inodes; they count against the limit.
    dirty_data: AtomicUsize,
    pub(super) meta_policy: Prefetch,
    pub(super) data_policy: Prefetch,
    /// For tables of checksums, which are read in another pattern than the other metadata.
    sums_policy: Prefetch,
    /// To the readahead thread.
    pub(super) readahead: Mutex<Option<ReadaheadSender>>,
    pub(super) readahead_thread: Mutex<Option<JoinHandle<()>>>,
    /// What the thread was asked for and has not read yet.
    pub(super) readahead_waits: AtomicUsize,
    /// What waits for [`Cache::readahead_step`], where that takes the place of the thread.
    pub(super) readahead_queue: Mutex<Option<mpsc::Receiver<Ahead>>>,
    pub(crate) counters: CacheCounters,
    /// There are completed writes that no flush has covered yet.
    pub(crate) unflushed: AtomicBool,
    pub(super) write_latency: WriteLatency,
    /// See [`Cache::set_outlook`].
    pub(super) files_of: OnceLock<FilesOf>,
    /// See [`Cache::set_part_in_use`].
    pub(super) part_in_use: OnceLock<PartInUse>,
    tracer: Arc<Tracer>,
}

impl Cache {
    /// A cache over `dev` that holds at most `limit` bytes.
    pub fn new(dev: Arc<dyn Device>, geo: Geometry, limit: usize, mode: PrefetchMode) -> Cache {
        let policy = || Prefetch::new(mode, dev.width());
        Cache {
            meta_policy: policy(),
            data_policy: policy(),
            sums_policy: policy(),
            dev,
            geo: Arc::new(LiveGeometry::new(geo)),
            shards: (0..SHARDS).map(|_| LockedShard::new()).collect(),
            limit,
            blocks: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
            dirty_data: AtomicUsize::new(0),
            readahead: Mutex::new(None),
            readahead_thread: Mutex::new(None),
            readahead_queue: Mutex::new(None),
            counters: CacheCounters::default(),
            unflushed: AtomicBool::new(false),
            write_latency: WriteLatency::default(),
            readahead_waits: AtomicUsize::new(0),
            files_of: OnceLock::new(),
            part_in_use: OnceLock::new(),
            tracer: Arc::default(),
        }
    }

    /// Sizes and places.
    pub fn geometry(&self) -> &Geometry {
        &self.geo
    }

    /// The same, to be kept: it follows when the file system grows.
    pub fn live_geometry(&self) -> Arc<LiveGeometry> {
        self.geo.clone()
    }

    /// Corrects the geometry. Nobody else may have a reference to it yet.
    pub(crate) fn set_geometry(&mut self, geo: Geometry) {
        self.geo = Arc::new(LiveGeometry::new(geo));
    }

    /// Records with another tracer. Nobody else may have a reference to the cache yet.
    pub(crate) fn set_tracer(&mut self, tracer: Arc<Tracer>) {
        self.tracer = tracer;
    }

    /// Records what the cache and the layers above do.
    pub(crate) fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// The device below.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.dev
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes of cached blocks.
    pub fn used_bytes(&self) -> usize {
        self.blocks.load(Ordering::Relaxed) << self.geo.block_shift
    }

    /// Bytes of dirty data held by inodes.
    pub fn dirty_data(&self) -> usize {
        self.dirty_data.load(Ordering::Relaxed)
    }

    /// Inodes hold more dirty data.
    pub fn add_dirty_data(&self, bytes: usize) {
        self.dirty_data.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counterpart of [`Cache::add_dirty_data`].
    pub fn sub_dirty_data(&self, bytes: usize) {
        self.dirty_data.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn region(&self, addr: BlockAddr) -> u64 {
        addr >> (REGION_SHIFT - self.geo.block_shift)
    }

    /// The first block of the region of one.
    pub(super) fn region_start(&self, addr: BlockAddr) -> BlockAddr {
        self.region(addr) << (REGION_SHIFT - self.geo.block_shift)
    }

    /// The first block behind the region of one.
    pub(super) fn region_end(&self, addr: BlockAddr) -> BlockAddr {
        (self.region(addr) + 1) << (REGION_SHIFT - self.geo.block_shift)
    }

    /// Most blocks of a transfer.
    pub(super) fn transfer_blocks(&self) -> u64 {
        (TRANSFER_MAX >> self.geo.block_shift).max(1)
    }

    pub(super) fn shard(&self, addr: BlockAddr) -> &LockedShard {
        let mut h = AddrHasher::default();
        h.write_u64(self.region(addr));
        &self.shards[h.finish() as usize & (SHARDS - 1)]
    }

    /// Counts a hit, and tells the policy if the block was prefetched.
    pub(super) fn touch(&self, buf: &Buf, policy: &Prefetch) {
        let demand = buf.request();
        if !std::ptr::eq(policy, &self.data_policy) {
            buf.use_meta();
        }
        if demand != Demand::Requested {
            self.counters.speculative_used.fetch_add(1, Ordering::Relaxed);
            if let Some((from, groups)) = policy.used(buf.addr(), self.geo.group_blocks()) {
                let kind = if std::ptr::eq(policy, &self.data_policy) { IoKind::Data } else { IoKind::Meta };
                self.readahead_groups(kind, policy, from, groups);
            }
        }
        if demand == Demand::Unrelated {
            policy.used_unrelated();
        }
        self.counters.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn policy(&self, kind: IoKind) -> &Prefetch {
        if kind == IoKind::Meta { &self.meta_policy } else { &self.data_policy }
    }

    pub(super) fn metadata_policy(&self, kind: BlockKind) -> &Prefetch {
        if kind == BlockKind::DataSums { &self.sums_policy } else { &self.meta_policy }
    }

    /// The block if it is cached.
    pub fn peek(&self, addr: BlockAddr) -> Option<BufRef> {
        let shard = self.shard(addr).shard.lock();
        shard.map.get(&addr).cloned()
    }

    /// Whether the block is cached or in flight.
    pub(super) fn contains(&self, addr: BlockAddr) -> bool {
        self.shard(addr).shard.lock().has(addr)
    }

    /// Waits until no transfer of the block is in flight; the block, if it is cached then.
    pub(super) fn cached_or_wait(&self, addr: BlockAddr) -> Option<BufRef> {
        let ls = self.shard(addr);
        let mut shard = ls.shard.lock();
        if let Some(buf) = shard.map.get(&addr) {
            return Some(buf.clone());
        }
        let _wait = shard.in_flight.contains(addr).then(|| self.tracer.span(Kind::Wait, [addr, 0, 0]));
        ls.cached_or_wait(&mut shard, addr)
    }

    pub(super) fn insert(&self, shard: &mut Shard, buf: BufRef) {
        let addr = buf.addr();
        debug_assert!(
            !shard.in_flight.contains(addr),
            "block {addr} is inserted while another transfer of it is in flight"
        );
        if shard.map.insert(addr, buf).is_none() {
            shard.clock.push_back(addr);
            if shard.clock.len() > 2 * shard.map.len() + 1024 {
                // Blocks that were forgotten and inserted again have several places.
                let Shard { map, clock, .. } = shard;
                clock.clear();
                clock.extend(map.keys());
            }
            self.blocks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A new block of zeros that replaces whatever was cached at this address.
    pub(crate) fn install_new(&self, addr: BlockAddr) -> BufRef {
        let buf = Buf::new(addr, AlignedBuf::zeroed(self.geo.block_size()), Demand::Requested);
        let ls = self.shard(addr);
        let mut shard = ls.shard.lock();
        drop(ls.cached_or_wait(&mut shard, addr));
        self.insert(&mut shard, buf.clone());
        buf.pin();
        drop(shard);
        self.evict();
        buf
    }

    /// Unpins a block of [`Cache::install_new`] that its maker did not change after all. If somebody else has changed it, it
    /// stays pinned, because the changes must not be lost.
    pub(crate) fn release_new(&self, buf: &BufRef) {
        let inner = buf.lock();
        if inner.log.is_none() {
            buf.unpin();
        }
    }

    /// Forgets a block (it was freed).
    pub(crate) fn forget_block(&self, addr: BlockAddr) {
        let ls = self.shard(addr);
        let mut shard = ls.shard.lock();
        drop(ls.cached_or_wait(&mut shard, addr));
        if shard.map.remove(&addr).is_some() {
            self.blocks.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Makes completed writes durable.
    pub(crate) fn flush(&self) -> Result<()> {
        self.unflushed.store(false, Ordering::Release);
        self.dev.flush().inspect_err(|_| self.unflushed.store(true, Ordering::Release))?;
        Ok(())
    }
}
