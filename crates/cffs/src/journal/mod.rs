//! The journal: transactions, asynchronous group commit, checkpoint and recovery (XFS 1996, sections 5.6 and 6.3; byte-range
//! records are our own).
//!
//! - A [`Txn`] changes blocks in the cache and records which bytes. All transactions since the last commit form one
//!   *running group* with one sequence number.
//! - A *commit* waits until no transaction is open, copies the changed bytes out, lets new transactions start, and writes
//!   one contiguous run to the log. File data that was written home before is flushed first, so nothing on the device
//!   ever points to data that is not there.
//! - A *checkpoint* writes every committed block home and empties the log. It always empties the whole log: hot blocks
//!   are copied in the same moment as the commit that precedes it.
//! - *Recovery* ([`recovery`]) applies the log's records, in order, to the blocks at home.
//!
//! The modes `sync` and `delayed` use the same transactions without a log. Changed blocks wait for the next commit, which
//! writes them home; in `sync` those that a transaction names ([`Txn::write_ordered`]) are written at its end, in that
//! order. After a crash both need fsck.
//!
//! Lock order: a transaction is begun before any inode or allocation group is locked, and never inside another.

mod ahead;
mod checkpoint;
mod commit;
mod header;
pub mod recovery;
mod txn;

pub use header::{CurrentHeader, current_header, log_extent, read_header, read_headers, reset_headers, write_header};
pub use txn::{BlockEditGuard, Txn};

use crate::cache::{AddrMap, BufRef, Cache};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::format::log::{LOG_HEADER_AREA, LogHeader};
use crate::format::system::Counters;
use crate::format::{BlockAddr, FragAddr, Superblock};
use crate::fs::api::MetadataMode;
use crate::space::run::Run;
use commit::Writer;
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use txn::Revoked;

/// What the journal asks of, and tells, the layers above at a commit.
pub trait CommitHook: Send + Sync {
    /// The file system's counters, as of now (no transaction is open).
    fn counters(&self) -> Counters;
    /// The transactions that freed these runs are durable: the space may be allocated again.
    fn committed(&self, freed: Vec<Run>);
    /// Hands over what else belongs to this commit (block, offset, bytes): quota records. No transaction is open.
    fn records(&self, _put: &mut dyn FnMut(&BufRef, usize, &[u8])) {}
}

#[derive(Default)]
struct Running {
    bufs: Vec<BufRef>,
    freed: Vec<Run>,
    revoked: Revoked,
    /// Upper bound of the bytes that the group will take in the log.
    bytes: usize,
    /// Bytes promised to transactions that are open or about to start.
    reserved: usize,
}

/// Counters of the journal.
#[derive(Default)]
pub(crate) struct JournalCounters {
    pub(crate) commits: AtomicU64,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) checkpointed_blocks: AtomicU64,
}

/// The journal of a mounted file system.
pub struct Journal {
    cache: Arc<Cache>,
    log_dev: Arc<dyn Device>,
    mode: MetadataMode,
    fsid: u64,
    /// Byte offset of the circular part of the log on its device.
    ring_start: u64,
    /// Its length in bytes.
    ring_len: u64,
    header_at: u64,
    external: bool,
    /// Held shared by open transactions, exclusively while a commit copies what changed.
    barrier: RwLock<()>,
    running: Mutex<Running>,
    /// Sequence number of the running group.
    next_seq: AtomicU64,
    /// Newest durable group.
    durable: AtomicU64,
    writer: Mutex<Writer>,
    /// Committed blocks that are not home yet.
    dirty: Mutex<AddrMap<BlockAddr, BufRef>>,
    /// Data blocks with records in the log.
    data_blocks: Mutex<AddrMap<BlockAddr, ()>>,
    failed: AtomicBool,
    /// What failed first.
    failure: OnceLock<String>,
    hook: OnceLock<Box<dyn CommitHook>>,
    counters_buf: OnceLock<BufRef>,
    /// Bytes that every transaction reserves for what [`CommitHook::records`] adds.
    records_bytes: AtomicUsize,
    pub(crate) counters: JournalCounters,
}

/// A group of transactions takes at most one in so many parts of the log. With what may be in use when a commit begins
/// (see below, and one more group) this leaves room for padding.
const TXN_SHARE: u64 = 5;
/// Recovery takes no group for one that has more than one of so many parts of the log: its memory is bounded.
pub(crate) const COMMIT_SHARE_MAX: u64 = 4;
/// Blocks that may wait in memory for a commit, and then for their way home, however small the cache.
const PINNED_MIN: usize = 64;
/// The log is emptied when more than one in so many parts is used.
const CHECKPOINT_SHARE: u64 = 2;

impl Journal {
    /// The journal over a log that recovery has emptied; `header` is what recovery left.
    pub fn new(
        cache: Arc<Cache>,
        log_dev: Option<Arc<dyn Device>>,
        sb: &Superblock,
        header: LogHeader,
        mode: MetadataMode,
    ) -> Journal {
        let (header_at, log_len) = log_extent(sb);
        let external = log_dev.is_some();
        Journal {
            log_dev: log_dev.unwrap_or_else(|| cache.device().clone()),
            cache,
            mode,
            fsid: sb.fsid(),
            ring_start: header_at + LOG_HEADER_AREA,
            ring_len: log_len - LOG_HEADER_AREA,
            header_at,
            external,
            barrier: RwLock::new(()),
            running: Mutex::default(),
            next_seq: AtomicU64::new(header.tail_seq),
            durable: AtomicU64::new(header.tail_seq - 1),
            writer: Mutex::new(Writer::new(header)),
            dirty: Mutex::default(),
            data_blocks: Mutex::default(),
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
            hook: OnceLock::new(),
            counters_buf: OnceLock::new(),
            records_bytes: AtomicUsize::new(0),
            counters: JournalCounters::default(),
        }
    }

    /// Connects the layers above, and the block that their counters go to. Called once, before the first transaction.
    pub fn connect(&self, hook: Box<dyn CommitHook>, counters_buf: BufRef) {
        let _ = self.hook.set(hook);
        let _ = self.counters_buf.set(counters_buf);
    }

    /// From now on every transaction reserves so many bytes more, for what [`CommitHook::records`] adds because of it.
    pub(crate) fn reserve_for_records(&self, bytes: usize) {
        self.records_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The cache below.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    pub(crate) fn has_log(&self) -> bool {
        self.mode == MetadataMode::Journal
    }

    fn orders_writes(&self) -> bool {
        self.mode == MetadataMode::Sync
    }

    /// Most bytes that a transaction may reserve.
    pub fn reserve_max(&self) -> usize {
        (self.ring_len / TXN_SHARE) as usize
    }

    /// Begins a transaction that will log at most `reserve` bytes. Waits for a commit if the log lacks room. The caller
    /// holds no lock that an open transaction may want, and has no transaction open.
    pub fn begin(&self, reserve: usize) -> Result<Txn<'_>> {
        // Estimates add up the worst of everything, which never comes together. With the smallest logs the largest of them
        // is more than a group may take: such a transaction gets a group to itself.
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
            {
                let mut r = self.running.lock();
                let room = !self.has_log() || r.bytes + r.reserved + reserve <= self.reserve_max();
                // Blocks with uncommitted changes cannot leave memory.
                if room && r.bufs.len() <= self.pinned_max() {
                    r.reserved += reserve;
                    break;
                }
            }
            self.commit()?;
            crate::yield_now();
        }
        let running = self.barrier.read();
        Ok(Txn::new(self, self.next_seq.load(Ordering::Acquire), reserve, running))
    }

    /// Blocks that may wait for a commit, and as many for their way home, before somebody sees to it.
    fn pinned_max(&self) -> usize {
        ((self.cache.limit() / 4) >> self.cache.geometry().block_shift).max(PINNED_MIN)
    }

    fn end(&self, reserved: usize, logged: usize) {
        let mut r = self.running.lock();
        r.reserved -= reserved;
        r.bytes += logged;
    }

    /// Fails when an earlier commit failed: nothing may be promised any more.
    pub fn check(&self) -> Result<()> {
        if self.failed.load(Ordering::Acquire) { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Whether a write to the log or a flush failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Nothing may be promised any more.
    pub(crate) fn fail(&self, what: &str, e: &Error) {
        // Before the flag, so that who sees that can tell why.
        let _ = self.failure.set(format!("{what}: {e}"));
        if !self.failed.swap(true, Ordering::AcqRel) {
            tracing::error!("{what}: {e}; the file system is read-only from now on");
        }
    }

    /// What failed, if something did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Sequence number of the group that transactions join now.
    pub fn running_seq(&self) -> u64 {
        self.next_seq.load(Ordering::Acquire)
    }

    /// Bytes of metadata changed since the last commit, about.
    pub fn running_bytes(&self) -> usize {
        self.running.lock().bytes
    }

    /// Committed blocks that wait for their way home.
    pub fn dirty_blocks(&self) -> usize {
        self.dirty.lock().len()
    }

    fn revoke(&self, frag: FragAddr, len: u64) {
        if self.has_log() {
            let mut r = self.running.lock();
            r.revoked.insert(frag, len);
            r.bytes += crate::format::log::RECORD_HEADER;
        }
    }

    fn forget_dirty(&self, addr: BlockAddr) {
        self.dirty.lock().remove(&addr);
    }

    /// Whether the log holds data of one of these fragments' blocks. Such data must not be written home directly
    /// without a checkpoint before: a replay would undo the write.
    pub fn data_in_log(&self, run: Run) -> bool {
        let blocks = self.data_blocks.lock();
        if blocks.is_empty() {
            return false;
        }
        let geo = self.cache.geometry();
        let (first, last) = (geo.block_of_frag(run.start), geo.block_of_frag(run.end() - 1));
        if last - first < blocks.len() as u64 {
            (first..=last).any(|b| blocks.contains_key(&b))
        } else {
            blocks.keys().any(|b| (first..=last).contains(b))
        }
    }

    /// Notes that a data block is changed through the log.
    pub(crate) fn note_data_block(&self, addr: BlockAddr) {
        if self.has_log() {
            self.data_blocks.lock().insert(addr, ());
        }
    }

    fn forget_data(&self, run: Run) {
        if !self.data_in_log(run) {
            return;
        }
        let geo = *self.cache.geometry();
        let fpb = geo.frags_per_block();
        let blocks: Vec<BlockAddr> = {
            let map = self.data_blocks.lock();
            let (first, last) = (geo.block_of_frag(run.start), geo.block_of_frag(run.end() - 1));
            map.keys().copied().filter(|b| (first..=last).contains(b)).collect()
        };
        for block in blocks {
            let base = geo.frag_of_block(block);
            let (from, to) = (run.start.max(base) - base, run.end().min(base + fpb) - base);
            self.revoke(base + from, to - from);
            let Some(buf) = self.cache.peek(block) else { continue };
            let mut inner = buf.lock();
            if let Some(log) = inner.log.as_mut().filter(|l| l.data) {
                let units = geo.frag_size() / crate::format::log::RANGE_UNIT;
                for unit in from as usize * units..to as usize * units {
                    log.dirty[unit / 64] &= !(1 << (unit % 64));
                }
                for frag in from..to {
                    log.checkpoint_frags &= !(1 << frag);
                }
            }
        }
    }
}
