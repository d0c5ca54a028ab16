//! The block cache and its two identities.
//!
//! What is on the device is cached by *physical* identity, the block address: a group transfer brings in blocks before
//! anyone knows whose they are (C-FFS 1997, section 3.2). Dirty data that has no place yet has a *logical* identity only,
//! (inode, offset), and is held by the inode until writeback (see [`crate::file`]).
//!
//! A group read is one request from the first to the last missing block; blocks that are already here keep their
//! (perhaps newer) contents. Every transfer claims its blocks first, so that no two transfers of a block overlap.
//!
//! This module never decides what a block means, beyond checking the identity it is asked for.

mod buf;
mod claims;
mod direct;
mod pace;
mod prefetch;
mod span;
mod together;
mod weak;
mod write;

pub use buf::{Buf, BufRef};
pub(crate) use buf::{BufInner, LogState};
pub use direct::ReadRun;
pub use span::{Own, Siblings};
pub use weak::WeakBufRef;
pub use write::{DataRun, Source};

use crate::device::{Device, IoKind};
use crate::error::{Error, Result};
use crate::format::{self, BlockAddr, BlockId, BlockKind, FragAddr, Geometry, LiveGeometry, corrupt};
use crate::fs::api::PrefetchMode;
use cffs_buf::AlignedBuf;
use claims::Claims;
use parking_lot::{Condvar, Mutex, MutexGuard};
use prefetch::Prefetch;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

/// Number of independently locked parts; a power of two.
const SHARDS: usize = 64;
/// log2 of the bytes of device space that map to one part, so that a transfer stays within one.
const REGION_SHIFT: u32 = 22;
/// When there is too much, at most one in so many blocks of a part is looked at before the next part's turn.
const EVICT_SHARE: usize = 8;
/// Blocks looked at before it is left at that: most of them are pinned then.
const EVICT_LOOKS: usize = 16_384;
/// Longest transfer in bytes.
const TRANSFER_MAX: u64 = 1 << 20;

/// Hasher for block addresses and inode numbers: one multiplication.
#[derive(Default, Clone, Copy)]
pub struct AddrHasher(u64);

impl Hasher for AddrHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        let x = (self.0 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = x ^ (x >> 32);
    }
}

/// A map keyed by numbers that are not chosen by an adversary.
pub type AddrMap<K, V> = HashMap<K, V, BuildHasherDefault<AddrHasher>>;

#[derive(Default)]
struct Shard {
    map: AddrMap<BlockAddr, BufRef>,
    /// Blocks that are not in the map and that a transfer is under way of.
    claims: Claims,
    clock: VecDeque<BlockAddr>,
}

impl Shard {
    /// Whether the block is here or on its way.
    fn has(&self, addr: BlockAddr) -> bool {
        self.map.contains_key(&addr) || self.claims.holds(addr)
    }

    /// How many blocks at the beginning of a run are neither here nor claimed.
    fn free_from(&self, run: Range<BlockAddr>) -> u64 {
        let end = self.claims.first_in(run.clone()).unwrap_or(run.end);
        (run.start..end).find(|addr| self.map.contains_key(addr)).unwrap_or(end) - run.start
    }

    /// Claims the blocks of a run that are neither here nor claimed; which ones.
    fn claim_missing(&mut self, run: Range<BlockAddr>) -> Vec<Range<BlockAddr>> {
        let mut claimed: Vec<Range<BlockAddr>> = Vec::new();
        for addr in run {
            match claimed.last_mut() {
                _ if self.has(addr) => {}
                Some(last) if last.end == addr => last.end += 1,
                _ => claimed.push(addr..addr + 1),
            }
        }
        claimed.iter().for_each(|run| self.claims.add(run.clone()));
        claimed
    }
}

struct LockedShard {
    shard: Mutex<Shard>,
    changed: Condvar,
}

impl LockedShard {
    /// Waits until no transfer of the block is under way; the block, if it is here then.
    fn cached_or_wait(&self, shard: &mut MutexGuard<'_, Shard>, addr: BlockAddr) -> Option<BufRef> {
        loop {
            if let Some(buf) = shard.map.get(&addr) {
                return Some(buf.clone());
            }
            if !shard.claims.holds(addr) {
                return None;
            }
            self.changed.wait(shard);
        }
    }
}

/// Counters of the cache.
#[derive(Default)]
pub(crate) struct CacheCounters {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) group_reads: AtomicU64,
    pub(crate) group_blocks: AtomicU64,
    pub(crate) speculative_used: AtomicU64,
    pub(crate) direct_bytes: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

/// What file data read from the device is compared with.
pub trait DataCheck {
    /// What is compared next is mapped so: a fragment of the device, and which of the file it is. For messages.
    fn maps(&self, frag: FragAddr, logical: u64);
    /// The sums of all fragments of a block, [`format::sums::NONE`] where none is known. May read from the device.
    fn expected(&self, block: BlockAddr, sums: &mut [u32]) -> Result<()>;
    /// A fragment was compared, and what came of it. An error is passed to the reader.
    fn compared(&self, frag: FragAddr, outcome: Comparison) -> Result<()>;
}

/// What came of comparing a fragment with its sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// It has the sum.
    Same,
    /// It has another one.
    Different,
    /// There is none to compare with.
    Unknown,
}

/// A run to be fetched ahead, and what it is counted as.
type Ahead = (IoKind, Range<BlockAddr>);

/// The block cache.
pub struct Cache {
    dev: Arc<dyn Device>,
    geo: Arc<LiveGeometry>,
    shards: Box<[LockedShard]>,
    limit: usize,
    blocks: AtomicUsize,
    /// The part whose turn it is to lose blocks.
    hand: AtomicUsize,
    /// Bytes of dirty data held by inodes; they count against the limit.
    dirty_data: AtomicUsize,
    meta_policy: Prefetch,
    data_policy: Prefetch,
    /// For tables of checksums, which are read in another pattern than the other metadata.
    sums_policy: Prefetch,
    ahead: Mutex<Option<mpsc::SyncSender<Ahead>>>,
    pub(crate) counters: CacheCounters,
    /// Completed writes that no flush has covered yet.
    pub(crate) unflushed: AtomicBool,
    /// How fast long writes are.
    pace: pace::Pace,
}

impl Cache {
    /// A cache over `dev` that holds at most `limit` bytes.
    pub fn new(dev: Arc<dyn Device>, geo: Geometry, limit: usize, mode: PrefetchMode) -> Cache {
        let shard = || LockedShard { shard: Mutex::default(), changed: Condvar::new() };
        Cache {
            dev,
            geo: Arc::new(LiveGeometry::new(geo)),
            shards: (0..SHARDS).map(|_| shard()).collect(),
            limit,
            blocks: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
            dirty_data: AtomicUsize::new(0),
            meta_policy: Prefetch::new(mode),
            data_policy: Prefetch::new(mode),
            sums_policy: Prefetch::new(mode),
            ahead: Mutex::new(None),
            counters: CacheCounters::default(),
            unflushed: AtomicBool::new(false),
            pace: pace::Pace::default(),
        }
    }

    /// Starts the thread that fetches groups ahead. It ends when the cache is dropped or [`Cache::stop_readahead`] is called.
    pub fn start_readahead(self: &Arc<Self>) {
        let (send, receive) = mpsc::sync_channel::<Ahead>(8);
        let weak = Arc::downgrade(self);
        *self.ahead.lock() = Some(send);
        std::thread::Builder::new()
            .name("cffs-ahead".into())
            .spawn(move || {
                while let Ok((kind, range)) = receive.recv() {
                    let Some(cache) = weak.upgrade() else { break };
                    // A failure here is met again, and reported, by whoever needs the block.
                    let _ = cache.fill(kind, range.clone(), range, true);
                }
            })
            .map(drop)
            .unwrap_or_else(|e| tracing::warn!("no read-ahead: {e}"));
    }

    /// Ends the thread of [`Cache::start_readahead`].
    pub fn stop_readahead(&self) {
        *self.ahead.lock() = None;
    }

    /// Sizes and places.
    pub fn geometry(&self) -> &Geometry {
        &self.geo
    }

    /// The same, to be kept: it follows when the file system grows.
    pub fn live_geometry(&self) -> Arc<LiveGeometry> {
        self.geo.clone()
    }

    /// Corrects the geometry, before anybody else has a part in it.
    pub(crate) fn set_geometry(&mut self, geo: Geometry) {
        self.geo = Arc::new(LiveGeometry::new(geo));
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

    /// Inodes hold more (or less) dirty data.
    pub fn add_dirty_data(&self, bytes: usize) {
        self.dirty_data.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counterpart of [`Cache::add_dirty_data`].
    pub fn sub_dirty_data(&self, bytes: usize) {
        self.dirty_data.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn region(&self, addr: BlockAddr) -> u64 {
        addr >> (REGION_SHIFT - self.geo.block_shift)
    }

    /// The first block behind the region of one.
    fn region_end(&self, addr: BlockAddr) -> BlockAddr {
        (self.region(addr) + 1) << (REGION_SHIFT - self.geo.block_shift)
    }

    fn shard(&self, addr: BlockAddr) -> &LockedShard {
        let mut h = AddrHasher::default();
        h.write_u64(self.region(addr));
        &self.shards[h.finish() as usize & (SHARDS - 1)]
    }

    fn touch(&self, buf: &Buf, policy: &Prefetch) {
        // Plain loads first: a hot block must not bounce between cores.
        if !buf.referenced.load(Ordering::Relaxed) {
            buf.referenced.store(true, Ordering::Relaxed);
        }
        if buf.speculative.load(Ordering::Relaxed) && buf.speculative.swap(false, Ordering::Relaxed) {
            self.counters.speculative_used.fetch_add(1, Ordering::Relaxed);
            policy.used();
            if buf.foreign.load(Ordering::Relaxed) {
                policy.used_foreign();
            }
        }
        self.counters.hits.fetch_add(1, Ordering::Relaxed);
    }

    fn policy(&self, kind: IoKind) -> &Prefetch {
        if kind == IoKind::Meta { &self.meta_policy } else { &self.data_policy }
    }

    /// The block if it is cached.
    pub fn peek(&self, addr: BlockAddr) -> Option<BufRef> {
        let shard = self.shard(addr).shard.lock();
        shard.map.get(&addr).cloned()
    }

    /// The block, read if need be (with its group, where the policy says so).
    fn get(&self, kind: IoKind, addr: BlockAddr) -> Result<BufRef> {
        self.get_by(kind, self.policy(kind), addr, None, false)
    }

    /// The same by a certain policy. With `around` a group transfer may leave out what is not the directory's; not where
    /// directories are `listed`.
    fn get_by(
        &self,
        kind: IoKind,
        policy: &Prefetch,
        addr: BlockAddr,
        around: Option<&dyn Siblings>,
        listed: bool,
    ) -> Result<BufRef> {
        if addr >= self.geo.total_blocks {
            return Err(corrupt::<()>(format!("block {addr} lies outside the file system")).unwrap_err().into());
        }
        loop {
            if let Some(b) = self.cached_or_wait(addr) {
                self.touch(&b, policy);
                return Ok(b);
            }
            self.counters.misses.fetch_add(1, Ordering::Relaxed);
            let group = self.geo.group_of(addr);
            let blocks = self.geo.group_blocks();
            if policy.wants_group(group, blocks, listed) {
                if let Some(own) = around.and_then(Siblings::own)
                    && self.fill_span(kind, policy, addr, &own, listed)?
                {
                    continue;
                }
                let ahead = policy.fetched(group, blocks);
                let threaded = self.ahead.lock().is_some();
                // Without the thread the next group comes in the same request. One: where a directory ends, what follows is
                // another's, and would be waited for.
                let along = if threaded || ahead == 0 { 0 } else { self.in_one_transfer(group, 1) };
                let window = group..(group + (1 + along) * blocks).min(self.geo.total_blocks);
                policy.brings(self.fill(kind, addr..addr + 1, window, false)?);
                if along > 0 {
                    policy.reached(group + along * blocks);
                }
                self.fetch_ahead(kind, group + blocks, ahead);
            } else {
                self.fill(kind, addr..addr + 1, addr..addr + 1, false)?;
            }
        }
    }

    /// How many of the `groups` groups behind one a transfer takes along: it has a greatest length, and stays in one part of
    /// the cache.
    fn in_one_transfer(&self, group: BlockAddr, groups: u64) -> u64 {
        let blocks = self.geo.group_blocks();
        let most = (TRANSFER_MAX >> self.geo.block_shift).min(self.region_end(group) - group);
        groups.min((most / blocks).saturating_sub(1))
    }

    /// Asks the background thread for the next `groups` groups from `from` on.
    fn fetch_ahead(&self, kind: IoKind, from: BlockAddr, groups: u64) {
        if groups == 0 {
            return;
        }
        let guard = self.ahead.lock();
        let Some(send) = &*guard else { return };
        let blocks = self.geo.group_blocks();
        for i in 0..groups {
            let start = from + i * blocks;
            let end = (start + blocks).min(self.geo.total_blocks);
            if start < end && !self.contains(start) {
                // A full queue means the device is busy enough.
                let _ = send.try_send((kind, start..end));
            }
        }
    }

    /// Whether the block is here or on its way.
    fn contains(&self, addr: BlockAddr) -> bool {
        self.shard(addr).shard.lock().has(addr)
    }

    fn cached_or_wait(&self, addr: BlockAddr) -> Option<BufRef> {
        let ls = self.shard(addr);
        ls.cached_or_wait(&mut ls.shard.lock(), addr)
    }

    /// Brings in the missing blocks of `need`, with one request that may reach out within `window`. Returns how many came along
    /// that nobody needed.
    fn fill(&self, kind: IoKind, need: Range<BlockAddr>, window: Range<BlockAddr>, speculative: bool) -> Result<u64> {
        debug_assert_eq!(self.region(window.start), self.region(window.end - 1));
        let ls = self.shard(need.start);
        let (range, claimed) = {
            let mut shard = ls.shard.lock();
            let missing = |s: &Shard, a| !s.map.contains_key(&a);
            let Some(first) = need.clone().find(|a| !shard.has(*a)) else {
                return Ok(0);
            };
            // Blocks under transfer are a border: nobody may read around them.
            let start = shard.claims.last_in(window.start..first).map_or(window.start, |a| a + 1);
            let end = shard.claims.first_in(first..window.end).unwrap_or(window.end);
            let start = (start..=first).find(|a| missing(&shard, *a)).unwrap_or(first);
            let end = (first..end).rev().find(|a| missing(&shard, *a)).map_or(first + 1, |a| a + 1);
            (start..end, shard.claim_missing(start..end))
        };
        let bs = self.geo.block_size();
        let mut bufs: Vec<AlignedBuf> = range.clone().map(|_| AlignedBuf::zeroed(bs)).collect();
        let offset = range.start << self.geo.block_shift;
        let outcome = {
            let mut slices: Vec<IoSliceMut<'_>> = bufs.iter_mut().map(|b| IoSliceMut::new(b)).collect();
            self.dev.read_vectored(kind, offset, &mut slices)
        };
        let mut shard = ls.shard.lock();
        claimed.iter().for_each(|run| shard.claims.remove(run.clone()));
        match outcome {
            Ok(()) => {
                let mut claimed = claimed.into_iter().flatten().peekable();
                let (mut count, mut along) = (0, 0);
                // What was asked for must outlast the eviction, however small the cache: the caller looks for it next.
                let mut kept: Vec<BufRef> = Vec::new();
                for (a, bytes) in range.clone().zip(bufs) {
                    if claimed.next_if_eq(&a).is_some() {
                        let needed = need.contains(&a);
                        let extra = speculative || !needed;
                        let buf = Buf::new(a, bytes, extra);
                        along += u64::from(!needed);
                        if !extra {
                            kept.push(buf.clone());
                        }
                        self.insert(&mut shard, buf);
                        count += 1;
                    }
                }
                if count > need.end - need.start {
                    self.counters.group_reads.fetch_add(1, Ordering::Relaxed);
                    self.counters.group_blocks.fetch_add(count, Ordering::Relaxed);
                }
                drop(shard);
                self.evict();
                drop(kept);
                ls.changed.notify_all();
                Ok(along)
            }
            Err(e) => {
                drop(shard);
                ls.changed.notify_all();
                if window != need {
                    // A bad sector elsewhere in the group must not hide this block.
                    return self.fill(kind, need.clone(), need, speculative);
                }
                tracing::error!("reading block {}: {e}", need.start);
                Err(e.into())
            }
        }
    }

    fn insert(&self, shard: &mut Shard, buf: BufRef) {
        let addr = buf.addr();
        debug_assert!(!shard.claims.holds(addr), "block {addr} comes while another transfer of it is under way");
        if shard.map.insert(addr, buf).is_none() {
            shard.clock.push_back(addr);
            if shard.clock.len() > 2 * shard.map.len() + 1024 {
                // Blocks that were forgotten and came again have several places.
                let Shard { map, clock, .. } = shard;
                clock.clear();
                clock.extend(map.keys());
            }
            self.blocks.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn remove(&self, shard: &mut Shard, addr: BlockAddr) {
        if shard.map.remove(&addr).is_some() {
            self.blocks.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Bytes that may be cached now. At least an eighth of the limit is left, however much data is dirty.
    fn allowed_blocks(&self) -> usize {
        self.limit.saturating_sub(self.dirty_data()).max(self.limit / 8) >> self.geo.block_shift
    }

    /// Drops blocks until the limit is met. One hand goes around all parts, and takes of each a share of what it has: so
    /// the parts together are like one clock. (Taking from the part at hand first would drop what a group transfer has just
    /// brought, and keep what was used long ago elsewhere.)
    fn evict(&self) {
        let allowed = self.allowed_blocks();
        let mut looks = EVICT_LOOKS;
        // Twice around every clock: what was asked for lately is spared once.
        for _ in 0..2 * SHARDS * EVICT_SHARE {
            if looks == 0 || self.blocks.load(Ordering::Relaxed) <= allowed {
                return;
            }
            let at = self.hand.fetch_add(1, Ordering::Relaxed) & (SHARDS - 1);
            if let Some(shard) = self.shards[at].shard.try_lock() {
                looks -= self.evict_from(shard, allowed, looks);
            }
        }
    }

    /// Looks at the oldest blocks of a part; how many it looked at.
    fn evict_from(&self, mut shard: MutexGuard<'_, Shard>, allowed: usize, most: usize) -> usize {
        let share = shard.clock.len().div_ceil(EVICT_SHARE).min(most);
        let mut steps = share;
        while steps > 0 && self.blocks.load(Ordering::Relaxed) > allowed {
            steps -= 1;
            let Some(addr) = shard.clock.pop_front() else { break };
            let Some(b) = shard.map.get(&addr) else { continue };
            let keep = Arc::strong_count(b) > 1 || b.is_pinned() || b.referenced.swap(false, Ordering::Relaxed);
            if keep || !self.drop_unheld(&mut shard, addr) {
                shard.clock.push_back(addr);
            } else {
                self.counters.evicted.fetch_add(1, Ordering::Relaxed);
            }
        }
        share - steps
    }

    /// A metadata block, checked against its identity.
    pub fn read_meta(&self, id: BlockId) -> Result<BufRef> {
        self.read_dir_block(id, None, false)
    }

    /// The same for a block of a directory, with the directories beside it. `listed`: the directory is read from end to end.
    pub fn read_dir_block(&self, id: BlockId, around: Option<&dyn Siblings>, listed: bool) -> Result<BufRef> {
        let policy = if id.kind == BlockKind::DataSums { &self.sums_policy } else { &self.meta_policy };
        let buf = self.get_by(IoKind::Meta, policy, id.addr, around, listed)?;
        {
            let bytes = buf.read();
            if !buf.verified.load(Ordering::Acquire) {
                format::verify_block(&bytes, self.geo.fsid, id)?;
                format::verify_contents(&bytes, id.kind)?;
                buf.verified.store(true, Ordering::Release);
            } else if format::get_u32(&bytes, 0) != id.kind as u32 || format::block_owner(&bytes) != id.owner {
                let what = format!("{} at block {}: another structure is there", id.kind.name(), id.addr);
                return Err(format::Corrupt(what).into());
            }
        }
        Ok(buf)
    }

    /// A metadata block with the owner it names itself (for finding an inode through the locator).
    pub fn read_meta_any_owner(&self, kind: BlockKind, addr: BlockAddr) -> Result<BufRef> {
        let buf = self.get(IoKind::Meta, addr)?;
        let owner = format::block_owner(&buf.read());
        drop(buf);
        self.read_meta(BlockId { kind, addr, owner })
    }

    /// Copies file data from `frag` on into `out`. What is missing is read in requests of up to 1 MiB; for a file that
    /// stands in a group, with siblings (`around`), in group transfers as the policy decides. Fragments that come from the device are
    /// compared with `check` when they are first asked for.
    pub fn read_data(
        &self,
        frag: FragAddr,
        out: &mut [u8],
        around: Option<&dyn Siblings>,
        check: Option<&dyn DataCheck>,
    ) -> Result<()> {
        let fs = self.geo.frag_size();
        let frags = self.geo.frags_for(out.len() as u64);
        self.must_contain(frag, frags)?;
        let first = self.geo.block_of_frag(frag);
        let last = self.geo.block_of_frag(frag + frags - 1);
        let mut skip = (frag - self.geo.frag_of_block(first)) as usize * fs;
        let mut done = 0;
        let transfer = (TRANSFER_MAX >> self.geo.block_shift).max(1);
        for block in first..=last {
            let n = (self.geo.block_size() - skip).min(out.len() - done);
            let buf = match self.cached_or_wait(block) {
                Some(b) => {
                    self.touch(&b, &self.data_policy);
                    Ok(b)
                }
                None if around.is_some() => self.get_by(IoKind::Data, &self.data_policy, block, around, false),
                None => {
                    // One request for what is missing of the run, cut where the parts of the cache meet.
                    let end = (last + 1).min(block + transfer).min(self.region_end(block));
                    self.counters.misses.fetch_add(1, Ordering::Relaxed);
                    // If that fails, the block alone: the others may be the ones that cannot be read.
                    let _ = self.fill(IoKind::Data, block..end, block..end, false);
                    self.get(IoKind::Data, block)
                }
            };
            match buf {
                Ok(buf) => {
                    if let Some(check) = check {
                        self.compare(&buf, skip / fs..(skip + n).div_ceil(fs), check)?;
                    }
                    out[done..done + n].copy_from_slice(&buf.read()[skip..skip + n]);
                }
                // The bad sector may be in a fragment of somebody else.
                Err(Error::Io(_)) if n.next_multiple_of(fs) < self.geo.block_size() => {
                    let mut own = AlignedBuf::zeroed(n.next_multiple_of(fs));
                    let at = (block << self.geo.block_shift) + skip as u64;
                    self.dev.read_at(IoKind::Data, at, &mut own)?;
                    if let Some(check) = check {
                        let sums = self.expected(block, check)?;
                        self.judge(block, skip / fs..(skip + n).div_ceil(fs), &own, &sums, 0, check)?;
                    }
                    out[done..done + n].copy_from_slice(&own[..n]);
                }
                Err(e) => return Err(e),
            }
            done += n;
            skip = 0;
        }
        Ok(())
    }

    /// Refuses what a damaged file says it has outside of the file system.
    fn must_contain(&self, frag: FragAddr, frags: u64) -> Result<()> {
        if !self.geo.contains(frag, frags) {
            let what = format!("data at fragment {frag} lies outside the file system");
            return Err(Error::Corrupt(format::Corrupt(what)));
        }
        Ok(())
    }

    /// Compares fragments of a block with their sums, unless that was done since they came from the device.
    fn compare(&self, buf: &Buf, frags: Range<usize>, check: &dyn DataCheck) -> Result<()> {
        let wanted = (u8::MAX >> (8 - frags.len())) << frags.start;
        if buf.trusted.load(Ordering::Acquire) & wanted == wanted {
            return Ok(());
        }
        // Asked for before the block is locked: this may read from the device.
        let sums = self.expected(buf.addr(), check)?;
        let fs = self.geo.frag_size();
        let bytes = buf.read();
        let trusted = buf.trusted.load(Ordering::Acquire);
        let own = &bytes[frags.start * fs..frags.end * fs];
        let good = self.judge(buf.addr(), frags, own, &sums, trusted, check)?;
        buf.trusted.fetch_or(good, Ordering::AcqRel);
        Ok(())
    }

    /// The sums of the fragments of a block.
    fn expected(&self, block: BlockAddr, check: &dyn DataCheck) -> Result<[u32; 8]> {
        let mut sums = [0; 8];
        check.expected(block, &mut sums[..self.geo.frags_per_block() as usize])?;
        Ok(sums)
    }

    /// Compares fragments of a block, which have these bytes, with the sums of the block, but for those that are trusted.
    /// Returns the ones that are good, a bit each.
    fn judge(
        &self,
        block: BlockAddr,
        frags: Range<usize>,
        bytes: &[u8],
        sums: &[u32],
        trusted: u8,
        check: &dyn DataCheck,
    ) -> Result<u8> {
        let base = self.geo.frag_of_block(block);
        let mut good = 0;
        for (f, bytes) in frags.zip(bytes.chunks_exact(self.geo.frag_size())) {
            let bit = 1 << f;
            if trusted & bit != 0 {
                continue;
            }
            let outcome = match sums[f] {
                format::sums::NONE => Comparison::Unknown,
                sum if sum == format::sums::sum_of(bytes) => Comparison::Same,
                _ => Comparison::Different,
            };
            check.compared(base + f as u64, outcome)?;
            good |= bit;
        }
        Ok(good)
    }

    /// Whether anybody does what [`Cache::readahead`] asks for.
    pub fn has_readahead(&self) -> bool {
        self.ahead.lock().is_some()
    }

    /// Fetches a run of data ahead of a sequential reader, in the background where there is one.
    pub fn readahead(&self, frag: FragAddr, frags: u64) {
        let end = (frag + frags).min(self.geo.total_frags());
        let (first, last) = (self.geo.block_of_frag(frag), self.geo.block_of_frag(end.saturating_sub(1)));
        let guard = self.ahead.lock();
        let Some(send) = &*guard else { return };
        let transfer = (TRANSFER_MAX >> self.geo.block_shift).max(1);
        let mut block = first;
        while block <= last {
            let end = (last + 1).min(block + transfer).min(self.region_end(block));
            if !self.contains(block) && send.try_send((IoKind::Data, block..end)).is_err() {
                return;
            }
            block = end;
        }
    }

    /// A new block of zeros that replaces whatever was cached at this address.
    pub(crate) fn install_new(&self, addr: BlockAddr) -> BufRef {
        let buf = Buf::new(addr, AlignedBuf::zeroed(self.geo.block_size()), false);
        let ls = self.shard(addr);
        let mut shard = ls.shard.lock();
        drop(ls.cached_or_wait(&mut shard, addr));
        self.insert(&mut shard, buf.clone());
        buf.pinned.store(true, Ordering::Release);
        drop(shard);
        self.evict();
        buf
    }

    /// Lets go of a block of [`Cache::install_new`] that its maker did not change after all. Somebody else may have: it
    /// stays in the cache, as what was written into it since does.
    pub(crate) fn release_new(&self, buf: &BufRef) {
        let inner = buf.lock();
        if inner.log.is_none() {
            buf.pinned.store(false, Ordering::Release);
        }
    }

    /// A block of file data, read if need be.
    pub(crate) fn data_block(&self, addr: BlockAddr) -> Result<BufRef> {
        self.get(IoKind::Data, addr)
    }

    /// Forgets a block (it was freed).
    pub(crate) fn forget_block(&self, addr: BlockAddr) {
        let ls = self.shard(addr);
        let mut shard = ls.shard.lock();
        drop(ls.cached_or_wait(&mut shard, addr));
        self.remove(&mut shard, addr);
    }

    /// Drops every block that is as on the device (for measurements of a cold cache).
    pub fn drop_clean(&self) {
        for ls in self.shards.iter() {
            let mut shard = ls.shard.lock();
            let clean = |b: &BufRef| Arc::strong_count(b) == 1 && !b.is_pinned();
            let gone: Vec<BlockAddr> = shard.map.iter().filter(|(_, b)| clean(b)).map(|(a, _)| *a).collect();
            for a in gone {
                self.drop_unheld(&mut shard, a);
            }
        }
    }

    /// Makes completed writes durable.
    pub(crate) fn flush(&self) -> Result<()> {
        self.unflushed.store(false, Ordering::Release);
        self.dev.flush().inspect_err(|_| self.unflushed.store(true, Ordering::Release))?;
        Ok(())
    }
}
