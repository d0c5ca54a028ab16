//! Mounting and unmounting.

use super::background::Background;
use super::credit::Credit;
use super::orphan_list::OrphanList;
use super::streams::Streams;
use super::{Fs, FsDevice, MetadataMode, MountOptions, now};
use crate::cache::{BufRef, Cache};
use crate::error::{Error, Result};
use crate::format::LongestRuns;
use crate::format::Run;
use crate::format::log::LogHeader;
use crate::format::superblock::{COMPAT_IMMUTABLE_FILES, INCOMPAT_EXTERNAL_LOG, RO_COMPAT_ACL, SUPERBLOCK_SIZE, State};
use crate::format::system::Counters;
use crate::format::{BlockAddr, BlockId, BlockKind, Geometry, Ino, ROOT_INO, Superblock};
use crate::inode::locality;
use crate::journal::recovery::ReplaySummary;
use crate::journal::{self, CommitHook, Journal};
use crate::learning::Learning;
use crate::node::InodeCache;
use crate::placement::Placement;
use crate::quota::{self, Quota};
use crate::space::Space;
use crate::sums::Sums;
use crate::superblocks::read_superblock;
use crate::trace::{DeviceTracer, Kind, MountTrace, Place, Tracer};
use cffs_buf::AlignedBuf;
use cffs_device::{
    CountingDevice, Device, DiskStats, IoKind, ObservedDevice, Observer, OverlayDevice, Purpose, StoppableDevice,
};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Inodes in a chunk of the external table with `--no-embed`, as in XFS.
const INODE_CHUNK: u64 = 64;

/// What becomes true with a commit: freed space can be allocated again, and the records of quotas are logged.
struct Hook {
    space: Arc<Space>,
    quota: Option<Arc<Quota>>,
    /// The device whose freed space is discarded, with the log2 of the fragment size.
    discard: Option<(Arc<dyn Device>, u32)>,
    /// A thin device, which learns of freed space with the commit that frees it; the log2 of the fragment size, and the
    /// fragments of a unit in which it stores.
    thin: Option<(Arc<dyn Device>, u32, u64)>,
    /// Set where a thin device could not be told: it stores what nobody has, until it is trimmed.
    unused_is_stored: Arc<AtomicBool>,
}

impl Hook {
    /// Discards a run. An error is no reason to stop, because the next trim tells the device again.
    fn discard(&self, dev: &dyn Device, run: Run, shift: u32) {
        if let Err(e) = dev.discard(run.start << shift, run.len << shift) {
            tracing::debug!("discard of {run}: {e}");
            self.unused_is_stored.store(true, Ordering::Relaxed);
        }
    }
}

impl CommitHook for Hook {
    fn counters(&self) -> Counters {
        self.space.counters()
    }
    fn written(&self, freed: &[Run]) {
        let Some((dev, shift, unit)) = &self.thin else { return };
        let _purpose = Purpose::Clean.scope();
        self.space.discard_freed(freed, *unit, &mut |run| self.discard(&**dev, run, *shift));
    }
    fn committed(&self, freed: Vec<Run>) {
        if let Some((dev, shift)) = &self.discard {
            let _purpose = Purpose::Clean.scope();
            // Discard before the space can be allocated again.
            freed.iter().for_each(|run| self.discard(&**dev, *run, *shift));
        }
        self.space.on_commit(freed);
        self.space.renew_reservation();
    }
    fn records(&self, put: &mut dyn FnMut(&BufRef, usize, &[u8])) {
        if let Some(quota) = &self.quota {
            quota.write_records(put);
        }
    }
}

fn random_u32() -> Result<u32> {
    let mut b = [0; 4];
    rustix::rand::getrandom(&mut b, rustix::rand::GetRandomFlags::empty()).map_err(std::io::Error::from)?;
    Ok(u32::from_ne_bytes(b))
}

pub(super) fn write_superblock(dev: &dyn Device, sb: &Superblock) -> Result<()> {
    put_superblock(dev, sb)?;
    dev.flush()?;
    Ok(())
}

/// The same, for who flushes the device.
fn put_superblock(dev: &dyn Device, sb: &Superblock) -> Result<()> {
    let _purpose = Purpose::Checkpoint.scope();
    // Whole sectors are written. If a sector is larger than the superblock, the rest of it is read first and kept.
    let len = SUPERBLOCK_SIZE.next_multiple_of(dev.sector_size() as usize);
    let mut b = AlignedBuf::zeroed(len);
    if len > SUPERBLOCK_SIZE {
        dev.read_at(IoKind::Super, 0, &mut b)?;
    }
    b[..SUPERBLOCK_SIZE].copy_from_slice(&sb.encode());
    dev.write_at(IoKind::Super, 0, &b)?;
    Ok(())
}

/// Notes in the superblock that the file system is mounted, and writes the log header to continue with. A read-only
/// mount writes nothing.
fn mark_mounted(
    dev: &dyn Device,
    log_dev: Option<&dyn Device>,
    sb: &mut Superblock,
    header: LogHeader,
    opts: &MountOptions,
) -> Result<()> {
    let before = sb.state;
    sb.mounted = now();
    sb.mount_count = sb.mount_count.wrapping_add(1);
    if opts.read_only {
        return Ok(());
    }
    sb.state = match (before, opts.metadata) {
        (State::Error, _) => State::Error,
        (_, MetadataMode::Journal) => State::Journaled,
        _ => State::Unjournaled,
    };
    put_superblock(dev, sb)?;
    // In a file system that was unmounted both headers are intact. Only from now on a crash may tear one of them, where a device does not keep the order.
    if dev.atomic_max() == 0 || log_dev.is_some() {
        dev.flush()?;
    }
    let _purpose = Purpose::Log.scope();
    let log = log_dev.unwrap_or(dev);
    journal::write_header(log, journal::log_extent(sb).0, header)?;
    log.flush()?;
    Ok(())
}

/// Refuses what cannot be mounted this way.
fn check_mountable(sb: &Superblock, dev: &dyn Device, has_log_dev: bool, opts: &MountOptions) -> Result<()> {
    let read_only = opts.read_only;
    if opts.no_recovery && !read_only {
        return Error::invalid(
            "norecovery is only possible with a read-only mount, because writes would meet what the log has not replayed",
        );
    }
    if let Some(names) = sb.unknown_ro_compat().filter(|_| !read_only) {
        return Error::invalid(format!("unknown feature {names}: only read-only mounts are possible"));
    }
    if sb.state == State::Unjournaled {
        return Error::invalid(
            "the file system was not unmounted while it had no journal (metadata=sync or delayed): run cffs fsck",
        );
    }
    if sb.state == State::Error && sb.has_data_sums() && opts.metadata != MetadataMode::Journal && !read_only {
        return Error::invalid(
            "an error was found in this file system: run cffs fsck before it is used without a journal, after which a \
             crash would leave checksums that nobody could tell to be wrong",
        );
    }
    match (sb.incompat & INCOMPAT_EXTERNAL_LOG != 0, has_log_dev) {
        (true, false) if !opts.no_recovery => {
            return Error::invalid("the log is on a device of its own: name it with logdev=");
        }
        (false, true) => return Error::invalid("logdev= is given but the log is inside the file system"),
        _ => {}
    }
    if (1usize << sb.frag_shift) < dev.sector_size() as usize {
        return Error::invalid(format!(
            "fragments of {} bytes on a device with sectors of {} bytes",
            1u32 << sb.frag_shift,
            dev.sector_size()
        ));
    }
    Ok(())
}

/// Replays the log. Returns what was found, and the header with which the log continues.
fn recover(
    dev: &dyn Device,
    log_dev: Option<&dyn Device>,
    sb: &Superblock,
    opts: &MountOptions,
) -> Result<ReplaySummary> {
    if opts.no_recovery {
        tracing::warn!("the log is not replayed: what is seen may be inconsistent");
        // A read-only mount never writes the log, so that its header does not matter.
        let header = LogHeader::first(sb.fsid(), 1);
        return Ok(ReplaySummary { transactions: 0, blocks: 0, log_bytes: 0, header, damaged: Vec::new() });
    }
    let mut replayed = journal::recovery::replay(dev, log_dev, sb, &Geometry::new(sb)?)?;
    if replayed.transactions > 0 {
        tracing::info!("recovered: {} transactions, {} blocks", replayed.transactions, replayed.blocks);
    }
    for block in &replayed.damaged {
        tracing::error!("recovery: block {block} is damaged in parts that the log does not have");
    }
    if !opts.read_only {
        // The numbers are random, so that old log or user data behind the tail can never continue the log.
        let header = &replayed.header;
        replayed.header = header.next(header.tail, header.tail_seq + 1 + u64::from(random_u32()?));
    }
    Ok(replayed)
}

/// Opens the cache, and reads the counters. The geometry is that of the counters.
fn open_cache(
    dev: Arc<dyn Device>,
    tracer: &Arc<Tracer>,
    sb: &Superblock,
    opts: &MountOptions,
) -> Result<(Arc<Cache>, Counters, BufRef)> {
    let geo = Geometry::new(sb)?;
    let mut cache = Cache::new(dev, geo, opts.cache_bytes, opts.prefetch);
    cache.set_tracer(tracer.clone());
    let id = BlockId { kind: BlockKind::Counters, addr: geo.counters_block(), owner: 0 };
    let buf = cache.read_meta(id)?;
    let mut counters = Counters::decode(&buf.read());
    // If growing was interrupted, the free space is still that of the smaller size.
    cache.set_geometry(geo.of_counters(&counters)?);
    counters.blocks = cache.geometry().total_blocks;
    Ok((Arc::new(cache), counters, buf))
}

impl Fs {
    /// Mounts: replays the log if the file system was not unmounted, reads what every operation needs, and completes
    /// operations that a crash has interrupted.
    pub fn open(dev: Arc<dyn Device>, log_dev: Option<Arc<dyn Device>>, opts: MountOptions) -> Result<Arc<Fs>> {
        let trace = MountTrace::new(opts.trace);
        let _mount = trace.mounting();
        let disks_before = dev.disks();
        Fs::open_with(dev, log_dev, opts, (trace.tracer(), disks_before))
    }

    /// The same where a trace has begun already, which [`MountOptions::trace`] has no part in: the device has been opened for this mount. What its
    /// disks were asked until now counts as asked since the mount. The caller holds [`MountTrace::mounting`].
    pub fn open_traced(
        dev: Arc<dyn Device>,
        log_dev: Option<Arc<dyn Device>>,
        opts: MountOptions,
        trace: &MountTrace,
    ) -> Result<Arc<Fs>> {
        Fs::open_with(dev, log_dev, opts, (trace.tracer(), Vec::new()))
    }

    fn open_with(
        dev: Arc<dyn Device>,
        log_dev: Option<Arc<dyn Device>>,
        opts: MountOptions,
        (tracer, disks_before): (&Arc<Tracer>, Vec<DiskStats>),
    ) -> Result<Arc<Fs>> {
        let mut sb = read_superblock(&*dev)?;
        let read_only = opts.read_only || dev.read_only();
        let opts = MountOptions { read_only, ..opts };
        check_mountable(&sb, &*dev, log_dev.is_some(), &opts)?;
        // A read-only mount replays in memory.
        let overlay =
            |d: Arc<dyn Device>| -> Arc<dyn Device> { if read_only { Arc::new(OverlayDevice::new(d)) } else { d } };
        let traced = |d, place| {
            let d = overlay(d);
            let observer = |place| -> Arc<dyn Observer> { Arc::new(DeviceTracer::new(tracer.clone(), place)) };
            // What makes requests of its own tells those; what it is asked for comes beside them.
            let place = if d.observe(&observer(place)) { Place::Logical } else { place };
            Arc::new(ObservedDevice::new(CountingDevice::new(StoppableDevice::new(d)), observer(place)))
        };
        let dev = traced(dev, Place::Disk);
        let log_dev = log_dev.map(|d| traced(d, Place::LogDevice));
        let as_dyn = |d: &Arc<FsDevice>| -> Arc<dyn Device> { d.clone() };
        let log_dyn = log_dev.as_ref().map(as_dyn);
        dev.note_group(1 << sb.group_shift);
        let replayed = recover(&*dev, log_dyn.as_deref(), &sb, &opts)?;
        let (cache, counters, counters_buf) = open_cache(as_dyn(&dev), tracer, &sb, &opts)?;

        let longest_runs = std::mem::replace(&mut sb.longest_runs, LongestRuns::UNKNOWN);
        let mut space = Space::load(cache.clone(), counters, longest_runs, sb.reserve_bp)?;
        space.count_unwritten(sb.counts_unwritten());
        let space = Arc::new(space);
        let journal = Arc::new(Journal::new(cache.clone(), log_dyn.clone(), &sb, replayed.header, opts.metadata));
        let shift = u32::from(sb.frag_shift);
        // What a commit frees can be discarded before it is durable only where the device keeps the order.
        let thin = dev.space().filter(|_| journal.is_atomic()).map(|s| (as_dyn(&dev), shift, (s.unit >> shift).max(1)));
        let discard = (thin.is_none() && (opts.discard || dev.space().is_some())).then(|| (as_dyn(&dev), shift));
        let quota = Quota::load(&cache, &sb)?;
        if quota.is_some() {
            journal.reserve_for_records(quota::LOG_BYTES);
        }
        let unused_is_stored = Arc::new(AtomicBool::new(false));
        let hook = Hook {
            space: space.clone(),
            quota: quota.clone(),
            discard,
            thin,
            unused_is_stored: unused_is_stored.clone(),
        };
        journal.connect(Box::new(hook), counters_buf);
        let placement = Arc::new(Placement::new(space.clone(), &sb, opts.scatter, opts.subtrees));
        let sums = sb.has_data_sums().then(|| Arc::new(Sums::new(cache.clone(), space.clone())));
        let chunk = if sb.embeds_inodes() { 1 } else { INODE_CHUNK };
        let inodes = InodeCache::load(&cache, chunk, opts.cache_bytes, quota.clone())?;

        // Each mount begins with another generation, so that no (number, generation) pair of an earlier mount returns.
        // An NFS client may still hold such a pair.
        let generation = random_u32()?;
        // After a crash nobody knows how much of it was used.
        let credit = std::mem::take(&mut sb.maintenance_credit);
        let crashed = sb.state != State::Clean;
        unused_is_stored.fetch_or(crashed && !read_only, Ordering::Relaxed);
        mark_mounted(&*dev, log_dyn.as_deref(), &mut sb, replayed.header, &opts)?;
        let streams = (opts.background && !read_only).then(|| Arc::new(Streams::new(dev.width())));
        let fs = Arc::new(Fs {
            dev,
            log_dev,
            disks_before,
            opts,
            geo: cache.live_geometry(),
            seed: sb.hash_seed,
            embeds: sb.embeds_inodes(),
            learning: Learning::default(),
            credit: Mutex::new(Credit::left(credit)),
            sb: Mutex::new(sb),
            cache,
            journal,
            space,
            placement,
            inodes,
            sums,
            quota,
            orphans: Mutex::new(OrphanList::default()),
            dirty: Mutex::default(),
            writing_back: Mutex::new(()),
            rename_lock: Mutex::new(()),
            grow_lock: Mutex::new(()),
            generation: AtomicU32::new(generation),
            closed: AtomicBool::new(false),
            close_outcome: Mutex::new(None),
            background: Background::default(),
            streams,
            used: AtomicBool::new(false),
            trace_obfuscator: RwLock::default(),
            unused_is_stored,
        });
        if !read_only {
            fs.space.keep_unwritten();
            fs.space.renew_reservation();
        }
        fs.finish_mount(&replayed.damaged, counters.orphan_head)?;
        Ok(fs)
    }

    /// Checks the root, completes operations that a crash has interrupted, and starts the threads.
    fn finish_mount(self: &Arc<Self>, damaged: &[BlockAddr], orphan_head: Ino) -> Result<()> {
        let root = self.node(ROOT_INO)?;
        root.refs.fetch_add(1, Ordering::AcqRel);
        {
            let st = root.state.read();
            if !st.inode.is_dir() {
                return Err(crate::format::Corrupt("the root is not a directory".into()).into());
            }
            self.placement.track(&self.cache, &st.inode);
        }
        self.load_learned();
        if !self.opts.read_only {
            if !damaged.is_empty() {
                self.mark_damaged(&format!("{} blocks of metadata are damaged", damaged.len()))?;
            }
            match self.finish_growth() {
                // The file system keeps its size.
                Err(e @ Error::Corrupt(_)) => self.mark_damaged(&format!("the file system cannot grow on: {e}"))?,
                outcome => outcome?,
            }
            self.count_quotas_if_needed()?;
            self.reclaim_orphans(orphan_head)?;
        }
        if self.opts.background {
            self.cache.set_outlook(locality::files_of);
            self.cache.start_readahead();
            if !self.opts.read_only {
                self.warm_up();
                self.start_background()?;
                self.start_streams()?;
            }
        }
        Ok(())
    }

    /// Notes in the superblock that the file system needs a check. Only fsck clears that.
    pub(super) fn mark_damaged(&self, what: &str) -> Result<()> {
        tracing::error!("{what}: run cffs fsck");
        if self.opts.read_only {
            return Ok(());
        }
        let mut sb = self.sb.lock();
        if sb.state != State::Error {
            sb.state = State::Error;
            self.put_superblock(&sb)?;
        }
        Ok(())
    }

    /// Writes the superblock of the mounted file system. A failed flush may have lost other data in flight too, and the
    /// next flush would succeed. So, as after a failed commit, no fsync succeeds any more.
    pub(super) fn put_superblock(&self, sb: &Superblock) -> Result<()> {
        write_superblock(&*self.dev, sb).inspect_err(|e| self.journal.fail("writing the superblock failed", e))
    }

    /// Notes in the superblock that there are access control lists. Called before the first one is set.
    pub(super) fn mark_acl(&self) -> Result<()> {
        let mut sb = self.sb.lock();
        if sb.ro_compat & RO_COMPAT_ACL == 0 {
            let with = Superblock { ro_compat: sb.ro_compat | RO_COMPAT_ACL, ..sb.clone() };
            self.put_superblock(&with)?;
            *sb = with;
        }
        Ok(())
    }

    /// Whether there may be files with the flags *immutable* or *append-only*: the superblock says so before the first gets
    /// one. A kernel that keeps such flags of its own does not know them for a file system in user space, so a mount has to
    /// ask at every open whether a file may be written.
    pub fn may_have_immutable_files(&self) -> bool {
        self.sb.lock().compat & COMPAT_IMMUTABLE_FILES != 0
    }

    /// Notes in the superblock that there are files with such flags. Called before the first one gets them.
    pub(super) fn mark_immutable_files(&self) -> Result<()> {
        let mut sb = self.sb.lock();
        if sb.compat & COMPAT_IMMUTABLE_FILES == 0 {
            let with = Superblock { compat: sb.compat | COMPAT_IMMUTABLE_FILES, ..sb.clone() };
            self.put_superblock(&with)?;
            *sb = with;
        }
        Ok(())
    }

    /// Unmounts: writes everything in place, empties the log, and notes that in the superblock. Later changes fail
    /// with [`Error::ReadOnly`]. After an error the file system is closed all the same, and another call returns the
    /// same error. After [`Fs::shutdown`] it writes nothing and fails with [`Error::ShutDown`], so that the image is as
    /// after a crash.
    pub fn close(&self) -> Result<()> {
        let _span = self.span(Kind::Unmount, [0; 3]);
        if !self.is_read_only()
            && let Err(e) = self.store_learned()
        {
            tracing::warn!("what was learned from programs is not stored: {e}");
        }
        if self.closed.swap(true, Ordering::AcqRel) {
            return match &*self.close_outcome.lock() {
                Some(e) => Err(e.duplicate()),
                None => Ok(()),
            };
        }
        let mut failed = self.close_outcome.lock();
        let outcome = self.close_now();
        if !self.opts.read_only {
            self.space.end_reservation();
        }
        *failed = outcome.as_ref().err().map(Error::duplicate);
        outcome
    }

    fn close_now(&self) -> Result<()> {
        self.stop_background();
        self.stop_streams();
        self.cache.stop_readahead();
        self.journal.check_not_shut_down()?;
        if self.opts.read_only {
            return Ok(());
        }
        self.journal.check()?;
        self.reclaim_unlinked();
        // An error of one file must not keep the rest from being written.
        let written = self.write_back_all(false);
        self.store_hints()?;
        if let Some(quota) = &self.quota {
            self.journal.commit()?;
            quota.trim(&self.journal, &self.space)?;
        }
        self.journal.checkpoint()?;
        let mut sb = self.sb.lock();
        if sb.state != State::Error {
            sb.state = State::Clean;
        }
        sb.maintenance_credit = self.maintenance_credit();
        sb.longest_runs = self.space.longest_runs_at_most();
        put_superblock(&*self.dev, &sb)?;
        self.dev.finish()?;
        written
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        if !self.is_read_only() {
            tracing::warn!(
                "a file system was dropped without being closed: the next mount recovers it as after a crash"
            );
        }
        self.stop_background();
        self.stop_streams();
        self.cache.stop_readahead();
        // Whoever has the device since it was closed has reserved anew.
        if !self.opts.read_only && !self.closed.load(Ordering::Acquire) {
            self.space.end_reservation();
        }
    }
}
