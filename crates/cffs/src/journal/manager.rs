//! The journal's state: the running transaction, the committed blocks that are not checkpointed yet, and what failed.

use super::log_writer::{LogPosition, LogRing};
use super::mode::{CommitTarget, MetadataMode};
use crate::addr_map::AddrMap;
use crate::cache::{BufRef, Cache};
use crate::error::{Error, Result};
use crate::format::Run;
use crate::format::log::LogHeader;
use crate::format::system::Counters;
use crate::format::{BlockAddr, FragAddr, Superblock};
use crate::trace::{Causes, Tracer};
use cffs_device::Device;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// What the journal asks of the layers above at a commit, and tells them.
pub trait CommitHook: Send + Sync {
    /// The file system's counters, as of now (no transaction is open).
    fn counters(&self) -> Counters;
    /// The transactions that freed these runs are written, and will be durable before anything that is written from now on.
    fn written(&self, _freed: &[Run]) {}
    /// The transactions that freed these runs are durable, or a crash undoes all that is written from now on before it undoes them: the space may be
    /// allocated again. Told of each commit, also of one that has freed nothing.
    fn committed(&self, freed: Vec<Run>);
    /// Hands over what else belongs to this commit (block, offset, bytes): quota records. No transaction is open.
    fn records(&self, _put: &mut dyn FnMut(&BufRef, usize, &[u8])) {}
}

/// What all [`Txn`](super::Txn)s since the last commit changed: the transaction that the next commit makes durable.
#[derive(Default)]
pub(super) struct Running {
    pub(super) bufs: Vec<BufRef>,
    pub(super) freed: Vec<Run>,
    /// First fragment and length of each revoked run.
    pub(super) revoked: BTreeMap<FragAddr, u64>,
    /// Upper bound of the bytes that it will take in the log.
    pub(super) bytes: usize,
    /// Bytes reserved for operations that are open or about to start.
    pub(super) reserved: usize,
    /// Who has changed something, while that is traced.
    pub(super) causes: Causes,
}

/// The first failure of a commit, after which nothing may be promised.
#[derive(Default)]
struct Failure {
    failed: AtomicBool,
    /// It was no error: somebody shut the file system down.
    shut_down: AtomicBool,
    what: OnceLock<String>,
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
    pub(super) cache: Arc<Cache>,
    pub(super) log: LogRing,
    mode: MetadataMode,
    pub(super) target: CommitTarget,
    /// See [`Journal::reserve_max`].
    reserve_max: usize,
    /// Blocks that may wait for a commit, and as many for a checkpoint, before one is forced.
    pinned_max: usize,
    /// Held shared by open transactions, exclusively while a commit copies what changed.
    pub(super) barrier: RwLock<()>,
    pub(super) running: Mutex<Running>,
    /// Sequence number of the running transaction.
    pub(super) next_seq: AtomicU64,
    /// Newest durable transaction.
    pub(super) durable: AtomicU64,
    /// Held by the thread that commits.
    pub(super) writer: Mutex<LogPosition>,
    /// Committed blocks that are not checkpointed yet.
    pub(super) dirty: Mutex<AddrMap<BlockAddr, BufRef>>,
    /// Data blocks with records in the log.
    pub(super) data_blocks: Mutex<AddrMap<BlockAddr, ()>>,
    /// Those for whom blocks were committed that are not checkpointed yet, while that is traced.
    pub(super) checkpoint_causes: Mutex<Causes>,
    failure: Failure,
    pub(super) hook: OnceLock<Box<dyn CommitHook>>,
    pub(super) counters_buf: OnceLock<BufRef>,
    /// Bytes that every transaction reserves for what [`CommitHook::records`] adds.
    pub(super) records_bytes: AtomicUsize,
    pub(crate) counters: JournalCounters,
}

/// A transaction reserves at most this part of the log: a fifth. Half of the log may be in use when a commit begins
/// (`CHECKPOINT_DIVISOR`), so this leaves room for the commit and its padding.
const TXN_DIVISOR: u64 = 5;
/// Blocks that may wait in memory for a commit, and then for a checkpoint, however small the cache.
const PINNED_MIN: usize = 64;

impl Journal {
    /// The journal over a log that recovery has emptied; `header` is what recovery left.
    pub fn new(
        cache: Arc<Cache>,
        log_dev: Option<Arc<dyn Device>>,
        sb: &Superblock,
        header: LogHeader,
        mode: MetadataMode,
    ) -> Journal {
        let log_dev = log_dev.unwrap_or_else(|| cache.device().clone());
        let atomic_max = cache.device().atomic_max();
        let target = CommitTarget::of(mode, atomic_max);
        let block_shift = cache.geometry().block_shift;
        let mut pinned_max = ((cache.limit() / 4) >> block_shift).max(PINNED_MIN);
        if target == CommitTarget::Atomic {
            // The other half is for transactions that are open when so many wait.
            let unit = cache.device().space().map_or(0, |s| s.unit as usize).max(1 << block_shift);
            pinned_max = pinned_max.min(atomic_max / 2 / unit).max(1);
        }
        let log = LogRing::new(log_dev, sb);
        let reserve_max = match target {
            CommitTarget::Atomic => atomic_max,
            CommitTarget::Log | CommitTarget::InPlace => (log.len / TXN_DIVISOR) as usize,
        };
        Journal {
            cache,
            log,
            reserve_max,
            mode,
            target,
            pinned_max,
            barrier: RwLock::new(()),
            running: Mutex::default(),
            next_seq: AtomicU64::new(header.tail_seq),
            durable: AtomicU64::new(header.tail_seq - 1),
            writer: Mutex::new(LogPosition::new(header)),
            dirty: Mutex::default(),
            data_blocks: Mutex::default(),
            checkpoint_causes: Mutex::default(),
            failure: Failure::default(),
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

    pub(super) fn tracer(&self) -> &Tracer {
        self.cache.tracer()
    }

    /// Whether commits go to a log, and to their places later.
    pub(crate) fn has_log(&self) -> bool {
        self.target == CommitTarget::Log
    }

    /// Whether a commit is one write, which the device keeps in order with all others.
    pub(crate) fn is_atomic(&self) -> bool {
        self.target == CommitTarget::Atomic
    }

    /// Whether the file system is in order after a crash.
    pub(crate) fn survives_crashes(&self) -> bool {
        self.mode == MetadataMode::Journal
    }

    pub(super) fn orders_writes(&self) -> bool {
        self.mode == MetadataMode::Sync
    }

    /// Most bytes that a transaction may reserve. What does not fit is done in several, which a crash may come between.
    pub fn reserve_max(&self) -> usize {
        self.reserve_max
    }

    /// Blocks that may wait for a commit, and as many for a checkpoint, before one is forced.
    pub(super) fn pinned_max(&self) -> usize {
        self.pinned_max
    }

    /// Fails when an earlier commit failed: nothing may be promised any more.
    pub fn check(&self) -> Result<()> {
        if !self.failure.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check_not_shut_down()?;
        Err(Error::ReadOnly)
    }

    /// Fails with [`Error::ShutDown`] after [`Journal::shut_down`].
    pub(crate) fn check_not_shut_down(&self) -> Result<()> {
        if self.failure.shut_down.load(Ordering::Acquire) { Err(Error::ShutDown) } else { Ok(()) }
    }

    /// Lets nothing begin and nothing become durable any more. What failed before stays the reason that
    /// [`Journal::failure`] gives.
    pub(crate) fn shut_down(&self) {
        let _ = self.failure.what.set(Error::ShutDown.to_string());
        if !self.failure.shut_down.swap(true, Ordering::AcqRel) {
            tracing::warn!("the file system is being shut down: nothing is written any more");
        }
        self.failure.failed.store(true, Ordering::Release);
    }

    /// Whether a write to the log or a flush failed.
    pub fn has_failed(&self) -> bool {
        self.failure.failed.load(Ordering::Acquire)
    }

    /// Makes the file system read-only, because nothing may be promised any more.
    pub(crate) fn fail(&self, what: &str, e: &Error) {
        // Before the flag, so that a thread that sees the flag can tell why.
        let _ = self.failure.what.set(format!("{what}: {e}"));
        if !self.failure.failed.swap(true, Ordering::AcqRel) && self.check_not_shut_down().is_ok() {
            tracing::error!("{what}: {e}; the file system is read-only from now on");
        }
    }

    /// What failed, if something did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.what.get().map(String::as_str)
    }

    /// Sequence number of the running transaction.
    pub fn running_seq(&self) -> u64 {
        self.next_seq.load(Ordering::Acquire)
    }

    /// Committed blocks that are not checkpointed yet.
    pub fn dirty_blocks(&self) -> usize {
        self.dirty.lock().len()
    }

    /// Whether so many blocks wait that a commit will soon be forced. Where that goes in place, what is written together with it lies beside it, so it
    /// had better be data of the files in these blocks.
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_atomic() && self.running.lock().bufs.len() > self.pinned_max / 2
    }

    pub(super) fn revoke(&self, frag: FragAddr, len: u64) {
        if self.has_log() {
            let mut r = self.running.lock();
            r.revoked.insert(frag, len);
            r.bytes += crate::format::log::RECORD_HEADER;
        }
    }

    pub(super) fn forget_dirty(&self, addr: BlockAddr) {
        self.dirty.lock().remove(&addr);
    }

    /// Whether the log holds data of one of these fragments' blocks. Such data must not be written in place directly
    /// without a checkpoint before, because a replay would undo the write.
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

    pub(super) fn forget_data(&self, run: Run) {
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
