//! POSIX operations: namespace, data, attributes.
//!
//! [`Fs`] is a mounted file system. Its operations take inode numbers and count references as FUSE does: a caller that
//! gets an inode holds a reference until [`Fs::forget`], and an unlinked file lives as long as it has references.
//!
//! Locks: an operation first begins its transaction, then locks the inodes it works on, in the order of their numbers.
//! Reading operations begin no transaction. Nobody begins a transaction while holding an inode.

pub(crate) mod api;
mod attr;
mod background;
mod colocation;
mod contents;
mod copy;
mod create;
mod credit;
mod data;
mod device_snapshot;
mod fallocate;
mod flags;
mod flusher;
mod grow;
mod learning;
mod link;
mod maintenance;
mod mount;
mod namei;
mod orphan;
mod orphan_list;
#[doc(hidden)]
pub mod path;
mod places;
mod quota;
mod rate_limit;
mod regroup;
mod remove;
mod rename;
mod scrub;
mod shutdown;
mod streams;
#[cfg(test)]
mod tests;
mod tmpfile;
mod traced;
mod tune;
mod warm_up;
mod xattr;

pub use api::*;
pub use colocation::{COLOCATION_ATTRIBUTE, list_values};
pub use credit::Usage;
pub use fallocate::Fallocate;
pub use grow::Grown;
pub use places::Piece;
pub use quota::{QuotaGrace, QuotaLimits, QuotaMismatch, QuotaStatus};
pub use regroup::{FreeRuns, Regroup, RegroupChange, RegroupGain, RegroupOptions, RegroupOutcome, RegroupStatus};
pub use scrub::{DeviceUse, Finding, Scrub, ScrubOptions, ScrubOutcome, ScrubStatus, StoredData, StoredStep};
pub use tune::TrimRange;

use crate::cache::Cache;
use crate::dir::DirCtx;
use crate::error::{Error, Result};
use crate::file::FileCtx;
use crate::format::{Geometry, Ino, LAST_SYSTEM_INO, LiveGeometry, ROOT_INO, Superblock};
use crate::inode::InodeLocation;
use crate::journal::Journal;
use crate::learning::Learning;
use crate::metadump::Obfuscator;
use crate::node::{InodeCache, Locked, Node, NodeState};
use crate::placement::Placement;
use crate::quota::Quota;
use crate::space::Space;
use crate::stats::DiskCounters;
use crate::sums::Sums;
use crate::trace::{Kind, Span, Tracer};
use background::Background;
use cffs_device::{CountingDevice, Device, DiskStats, ObservedDevice, StoppableDevice};
use credit::Credit;
use orphan_list::OrphanList;
use parking_lot::{Mutex, RwLock};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use streams::Streams;

/// A device below a file system: traced, counted, and stopped by a shutdown.
type FsDevice = ObservedDevice<CountingDevice<StoppableDevice<Arc<dyn Device>>>>;

/// A mounted file system.
///
/// Its operations take inode numbers; [`Fs::root`] has handles and paths. An operation that finds or creates an inode
/// and returns its attributes takes a reference for the caller, who releases it with [`Fs::forget`]; a handle does so
/// by itself.
///
/// **[`Fs::close`] unmounts. Dropping the last reference without it is like a crash**: what was not made durable by
/// [`Fs::sync`], [`Fs::fsync`] or the background thread is lost, and the next mount recovers the rest from the log. A
/// warning is logged (with `tracing`), because there is nobody left to return an error to.
#[must_use = "a file system that is dropped without `close` is left as after a crash"]
pub struct Fs {
    dev: Arc<FsDevice>,
    log_dev: Option<Arc<FsDevice>>,
    /// The counters of the disks below the device when it was mounted.
    disks_before: Vec<DiskStats>,
    opts: MountOptions,
    geo: Arc<LiveGeometry>,
    sb: Mutex<Superblock>,
    cache: Arc<Cache>,
    journal: Arc<Journal>,
    space: Arc<Space>,
    placement: Arc<Placement>,
    inodes: InodeCache,
    /// Checksums of data; `None` if the file system has none.
    sums: Option<Arc<Sums>>,
    /// Usage and limits of users, groups and projects; `None` if the file system has no quotas.
    quota: Option<Arc<Quota>>,
    orphans: Mutex<OrphanList>,
    /// Nodes with dirty data or attributes.
    dirty: Mutex<Vec<Arc<Node>>>,
    /// Held during a writeback of everything: one at a time.
    writing_back: Mutex<()>,
    /// Held by a rename that moves a directory, because the tree must not change while its ancestors are checked.
    rename_lock: Mutex<()>,
    /// Held while the file system grows: one at a time.
    grow_lock: Mutex<()>,
    generation: AtomicU32,
    seed: [u64; 2],
    embeds: bool,
    closed: AtomicBool,
    /// Why [`Fs::close`] failed. Held while it runs.
    close_outcome: Mutex<Option<Error>>,
    background: Background,
    /// Of files with long writes; `None` on a single device.
    streams: Option<Arc<Streams>>,
    /// What programs read one after the other.
    learning: Learning,
    /// Of maintenance.
    credit: Mutex<Credit>,
    /// Somebody has used it since the last call of [`Fs::was_used`].
    used: AtomicBool,
    /// Replaces names in traces.
    trace_obfuscator: RwLock<Option<Obfuscator>>,
    /// A crash may have left data on a thin device that no file has.
    unused_is_stored: Arc<AtomicBool>,
}

/// Nanoseconds since 1970.
fn now() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(d) => i64::try_from(d.as_nanos()).unwrap_or(i64::MAX),
        Err(e) => -i64::try_from(e.duration().as_nanos()).unwrap_or(i64::MAX),
    }
}

impl fmt::Debug for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fs").field("read_only", &self.is_read_only()).finish_non_exhaustive()
    }
}

impl Fs {
    /// Sizes and places.
    pub fn geometry(&self) -> &Geometry {
        &self.geo
    }

    /// A copy of the superblock.
    pub fn superblock(&self) -> Superblock {
        self.sb.lock().clone()
    }

    /// Whether nothing can be written, because of a mount option or after an error.
    pub fn is_read_only(&self) -> bool {
        self.opts.read_only || self.journal.has_failed() || self.closed.load(Ordering::Acquire)
    }

    /// Why nothing can be written any more, after an error that made the file system read-only.
    pub fn failure(&self) -> Option<&str> {
        self.journal.failure()
    }

    fn writable(&self) -> Result<()> {
        self.journal.check_not_shut_down()?;
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if !self.space.may_change() {
            // What is not committed counts at its worst.
            self.journal.commit()?;
            return if self.space.may_change() { Ok(()) } else { Err(Error::NoSpace) };
        }
        Ok(())
    }

    fn file_cx(&self) -> FileCtx<'_> {
        FileCtx {
            cache: &self.cache,
            journal: &self.journal,
            space: &self.space,
            placement: &self.placement,
            sums: self.sums.as_deref(),
            lazy: false,
        }
    }

    fn dir_cx(&self) -> DirCtx<'_> {
        DirCtx { cache: &self.cache, seed: self.seed, location: InodeLocation::System }
    }

    /// The same, for a search in a directory with its inode at this location.
    fn search_cx(&self, location: InodeLocation) -> DirCtx<'_> {
        DirCtx { location, ..self.dir_cx() }
    }

    /// The node of an inode to which the caller holds a reference.
    fn node(&self, ino: Ino) -> Result<Arc<Node>> {
        // Every operation on a file passes here. A load first, so that the flag does not go from one processor to another.
        self.journal.check_not_shut_down()?;
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        // The tables of the file system are files as well, and nobody else's.
        if ino != ROOT_INO && ino <= LAST_SYSTEM_INO {
            return Err(Error::Stale);
        }
        self.inodes.get(&self.cache, ino)
    }

    /// Records what the file system does, if it is switched on.
    pub fn tracer(&self) -> &Tracer {
        self.cache.tracer()
    }

    /// Begins an operation, for the trace.
    fn span(&self, kind: Kind, args: [u64; 3]) -> Span<'_> {
        self.cache.tracer().span(kind, args)
    }

    /// Puts a node on the list of dirty nodes. It may have no bytes that are dirty, but a time; those of pages were noted with them.
    fn list_dirty(&self, node: &Arc<Node>) {
        self.tracer().note_dirty(node.ino, 0);
        self.list_again(node);
    }

    /// Puts a node on the list of which it is noted already who has made it dirty.
    fn list_again(&self, node: &Arc<Node>) {
        if !node.on_dirty_list.swap(true, Ordering::AcqRel) {
            self.dirty.lock().push(node.clone());
        }
    }

    /// Numbers of statvfs(3).
    pub fn statfs(&self) -> StatFs {
        self.count_freed();
        let (free, reserved) = self.space.free_and_reserved();
        let places = free.saturating_sub(reserved);
        let thin = self.space.thin_frags();
        let total = self.geo.total_frags();
        let (total, free, kept) = match thin {
            Some([total_thin, free, kept]) => (total.min(total_thin), places.min(free), kept),
            None => (total, places, self.space.root_reserve()),
        };
        let inodes = self.space.counters().inodes;
        // An inode in a directory takes about 256 bytes, so this many more fit into the free space.
        let possible = (free << self.geo.frag_shift) / 256;
        StatFs {
            block_size: self.geo.block_size() as u32,
            frag_size: self.geo.frag_size() as u32,
            total,
            free: free.min(total),
            available: free.min(total).saturating_sub(kept),
            inodes: inodes + possible,
            inodes_free: possible,
        }
    }

    /// A thin device has what was freed when that is committed. Who asks for the space after deleting much has not long to wait for that; who asks after each
    /// small file waits no more often than it makes a difference.
    fn count_freed(&self) {
        let Some([total, _, _]) = self.space.thin_frags().filter(|_| !self.is_read_only()) else { return };
        if self.space.pending_frees() > total / 4096
            && let Err(e) = self.journal.commit()
        {
            tracing::debug!("what was freed does not count yet: {e}");
        }
    }

    /// Counters of the disks below the device since the mount.
    fn disks(&self) -> Vec<DiskCounters> {
        // A member that was given to a volume meanwhile has none of before, also one that was away: it has a new number.
        let before = |number| self.disks_before.iter().find(|d| d.number == number).copied().unwrap_or_default();
        let counters = |now: &DiskStats| (&now.stats.since(&before(now.number).stats)).into();
        self.dev.disks().iter().map(|d| DiskCounters { disk: d.number, counters: counters(d) }).collect()
    }

    /// Counters since the mount.
    pub fn stats(&self) -> crate::stats::FsStats {
        let c = &self.cache.counters;
        let j = &self.journal.counters;
        let get = |a: &std::sync::atomic::AtomicU64| a.load(Ordering::Relaxed);
        crate::stats::FsStats {
            device: (&self.dev.snapshot()).into(),
            log_device: self.log_dev.as_ref().map(|d| (&d.snapshot()).into()),
            disks: self.disks(),
            max_request: self.dev.max_request() as u64,
            cache: crate::stats::CacheStats {
                hits: get(&c.hits),
                misses: get(&c.misses),
                group_reads: get(&c.group_reads),
                group_blocks: get(&c.group_blocks),
                group_blocks_used: get(&c.speculative_used),
                written_direct: get(&c.direct_bytes),
                evicted: get(&c.evicted),
                bytes: self.cache.used_bytes() as u64,
                dirty_data_bytes: self.cache.dirty_data() as u64,
                limit_bytes: self.cache.limit() as u64,
            },
            log: crate::stats::LogStats {
                commits: get(&j.commits),
                bytes: get(&j.log_bytes),
                checkpoints: get(&j.checkpoints),
                checkpointed_blocks: get(&j.checkpointed_blocks),
                dirty_blocks: self.journal.dirty_blocks() as u64,
            },
            data_sums: self.sums.as_ref().map(|s| {
                let [verified, failed, unknown] = s.compared();
                crate::stats::SumStats { verified, failed, unknown }
            }),
            maintenance: self.maintenance_stats(),
            inodes: self.inodes.len() as u64,
            space: [self.geo.total_frags(), self.space.free_frags(), self.space.reserved()],
            stored: self.space.thin_frags().map(|[total, free, _]| [total, free]),
            fragment_size: self.geo.frag_size() as u64,
        }
    }

    /// Drops everything from memory that can be read again (for measurements of a cold cache).
    pub fn drop_caches(&self) {
        self.inodes.drop_clean();
        self.cache.drop_clean();
    }

    /// The mount's settings.
    pub fn options(&self) -> &MountOptions {
        &self.opts
    }

    fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::Relaxed).max(1)
    }
}

/// The parts of a directory: its inode, and the state of its names.
fn as_dir(st: &mut NodeState) -> Result<(&mut crate::format::Inode, &crate::node::DirState)> {
    match &st.dir {
        Some(d) => Ok((&mut st.inode, d)),
        None => Err(Error::NotDir),
    }
}
