//! Mounting and unmounting, and the background thread.

use super::orphan_list::OrphanList;
use super::{Background, Fs, MetadataMode, MountOptions, now};
use crate::cache::{BufRef, Cache};
use crate::error::{Error, Result};
use crate::file::writeback;
use crate::format::Run;
use crate::format::superblock::{INCOMPAT_EXTERNAL_LOG, RO_COMPAT_ACL, SUPERBLOCK_SIZE, State};
use crate::format::system::Counters;
use crate::format::{BlockId, BlockKind, Geometry, ROOT_INO, Superblock};
use crate::journal::{self, CommitHook, Journal};
use crate::node::{InodeCache, Node};
use crate::placement::Placement;
use crate::quota::{self, Quota};
use crate::space::Space;
use crate::sums::Sums;
use crate::superblocks::read_superblock;
use cffs_buf::AlignedBuf;
use cffs_device::{CountingDevice, Device, IoKind, OverlayDevice};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

/// Inodes in a chunk of the external table with `--no-embed`, as in XFS.
const INODE_CHUNK: u64 = 64;
/// With lazytime, times wait in memory so long, in nanoseconds: a day.
const LAZY_NS: i64 = 24 * 3600 * 1_000_000_000;
/// With lazytime, inodes whose times wait, at most: they take memory.
const LAZY_MAX: usize = 16_384;

struct Hook {
    space: Arc<Space>,
    quota: Option<Arc<Quota>>,
    /// The device to tell of freed space, with the log2 of the fragment size.
    discard: Option<(Arc<dyn Device>, u32)>,
}

impl CommitHook for Hook {
    fn counters(&self) -> Counters {
        self.space.counters()
    }
    fn committed(&self, freed: Vec<Run>) {
        if let Some((dev, shift)) = &self.discard {
            // Before the space can be allocated again. A hint: a device that fails it loses nothing.
            for run in &freed {
                if let Err(e) = dev.discard(run.start << shift, run.len << shift) {
                    tracing::debug!("discard of {run}: {e}");
                }
            }
        }
        self.space.on_commit(freed);
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
    // Whole sectors. What else a large one holds stays as it is; of a small one nothing is left, and nothing is read.
    let len = SUPERBLOCK_SIZE.next_multiple_of(dev.sector_size() as usize);
    let mut b = AlignedBuf::zeroed(len);
    if len > SUPERBLOCK_SIZE {
        dev.read_at(IoKind::Super, 0, &mut b)?;
    }
    b[..SUPERBLOCK_SIZE].copy_from_slice(&sb.encode());
    dev.write_at(IoKind::Super, 0, &b)?;
    dev.flush()?;
    Ok(())
}

impl Fs {
    /// Mounts: replays the log if the file system was not unmounted, reads what every operation needs, and finishes what
    /// a crash left half done.
    pub fn open(dev: Arc<dyn Device>, log_dev: Option<Arc<dyn Device>>, opts: MountOptions) -> Result<Arc<Fs>> {
        let mut sb = read_superblock(&*dev)?;
        let geo = Geometry::new(&sb)?;
        let read_only = opts.read_only || dev.read_only();
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
        let external = sb.incompat & INCOMPAT_EXTERNAL_LOG != 0;
        match (external, &log_dev) {
            (true, None) => return Error::invalid("the log is on a device of its own: name it with logdev="),
            (false, Some(_)) => return Error::invalid("logdev= is given but the log is inside the file system"),
            _ => {}
        }
        if (1usize << sb.frag_shift) < dev.sector_size() as usize {
            return Error::invalid(format!(
                "fragments of {} bytes on a device with sectors of {} bytes",
                1u32 << sb.frag_shift,
                dev.sector_size()
            ));
        }
        // A read-only mount replays in memory.
        let overlay =
            |d: Arc<dyn Device>| -> Arc<dyn Device> { if read_only { Arc::new(OverlayDevice::new(d)) } else { d } };
        let dev = Arc::new(CountingDevice::new(overlay(dev)));
        let log_dev = log_dev.map(|d| Arc::new(CountingDevice::new(overlay(d))));
        let as_dyn = |d: &Arc<CountingDevice<Arc<dyn Device>>>| -> Arc<dyn Device> { d.clone() };
        let replayed = journal::recovery::replay(&*dev, log_dev.as_ref().map(|d| &**d as &dyn Device), &sb, &geo)?;
        if replayed.transactions > 0 {
            tracing::info!("recovered: {} transactions, {} blocks", replayed.transactions, replayed.blocks);
        }
        let mut header = replayed.header;
        for block in &replayed.damaged {
            tracing::error!("recovery: block {block} is damaged in parts that the log does not have");
        }
        if !read_only {
            // Numbers nobody can know beforehand: what old log or user data lies behind the tail never continues the log.
            header = header.next(header.tail, header.tail_seq + 1 + u64::from(random_u32()?));
        }
        let mut cache = Cache::new(as_dyn(&dev), geo, opts.cache_bytes, opts.prefetch);
        let counters_id = BlockId { kind: BlockKind::Counters, addr: geo.counters_block(), owner: 0 };
        let counters_buf = cache.read_meta(counters_id)?;
        let mut counters = Counters::decode(&counters_buf.read());
        // Growing may have been interrupted: the free space is still that of the smaller size.
        cache.set_geometry(geo.of_counters(&counters)?);
        let cache = Arc::new(cache);
        counters.blocks = cache.geometry().total_blocks;
        let space = Arc::new(Space::load(cache.clone(), counters, sb.reserve_bp)?);
        let log_dyn = log_dev.as_ref().map(as_dyn);
        let journal = Arc::new(Journal::new(cache.clone(), log_dyn, &sb, header, opts.metadata));
        let discard = opts.discard.then(|| (as_dyn(&dev), geo.frag_shift));
        let quota = Quota::load(&cache, &sb)?;
        if quota.is_some() {
            journal.reserve_for_records(quota::LOG_BYTES);
        }
        journal.connect(Box::new(Hook { space: space.clone(), quota: quota.clone(), discard }), counters_buf);
        let placement = Arc::new(Placement::new(space.clone(), &sb, opts.scatter, opts.subtrees));
        let sums = sb.has_data_sums().then(|| Arc::new(Sums::new(cache.clone(), space.clone())));
        let chunk = if sb.embeds_inodes() { 1 } else { INODE_CHUNK };
        let inodes = InodeCache::load(&cache, chunk, opts.cache_bytes, quota.clone())?;

        let before = sb.state;
        sb.mounted = now();
        sb.mount_count = sb.mount_count.wrapping_add(1);
        // Each mount starts at a place of its own: a (number, generation) pair that an earlier mount gave out, perhaps to
        // an NFS client that still holds it, does not come again.
        let generation = random_u32()?;
        if !read_only {
            sb.state = match (before, opts.metadata) {
                (State::Error, _) => State::Error,
                (_, MetadataMode::Journal) => State::Journaled,
                _ => State::Unjournaled,
            };
            write_superblock(&*dev, &sb)?;
            // Of a file system that says it was unmounted both headers are whole: only now one of them may be torn.
            let log: &dyn Device = log_dev.as_ref().map_or(&*dev as &dyn Device, |d| &**d);
            journal::write_header(log, journal::log_extent(&sb).0, header)?;
            log.flush()?;
        }
        let background = opts.background;
        let fs = Arc::new(Fs {
            dev,
            log_dev,
            opts: MountOptions { read_only, ..opts },
            geo: cache.live_geometry(),
            seed: sb.hash_seed,
            embeds: sb.embeds_inodes(),
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
        });
        let root = fs.node(ROOT_INO)?;
        root.refs.fetch_add(1, Ordering::AcqRel);
        {
            let st = root.state.read();
            if !st.inode.is_dir() {
                return Err(crate::format::Corrupt("the root is not a directory".into()).into());
            }
            fs.placement.track(&st.inode);
        }
        if !read_only {
            if !replayed.damaged.is_empty() {
                fs.mark_damaged(&format!("{} blocks of metadata are damaged", replayed.damaged.len()))?;
            }
            match fs.finish_growth() {
                // It keeps the size it has.
                Err(e @ Error::Corrupt(_)) => fs.mark_damaged(&format!("the file system cannot grow on: {e}"))?,
                outcome => outcome?,
            }
            fs.count_quotas_if_needed()?;
            fs.reclaim_orphans(counters.orphan_head)?;
        }
        if background {
            fs.cache.start_readahead();
            if !read_only {
                fs.start_background()?;
            }
        }
        Ok(fs)
    }

    fn start_background(self: &Arc<Self>) -> Result<()> {
        let weak = Arc::downgrade(self);
        let interval = self.opts.commit_interval;
        let body = move || {
            let mut last = Instant::now();
            loop {
                let Some(fs) = weak.upgrade() else { return };
                let (streams, poked) = {
                    let mut s = fs.background.state.lock();
                    if !s.stop && !s.poked && s.streams.is_empty() {
                        fs.background.wake.wait_for(&mut s, interval.saturating_sub(last.elapsed()));
                    }
                    if s.stop {
                        return;
                    }
                    (std::mem::take(&mut s.streams), std::mem::take(&mut s.poked))
                };
                if !streams.is_empty() {
                    let cx = crate::file::FileCtx { lazy: fs.opts.lazytime, ..fs.file_cx() };
                    let _ = writeback::write_back(&cx, streams);
                    if !poked && last.elapsed() < interval {
                        continue;
                    }
                }
                last = Instant::now();
                // Errors are kept where fsync and the next operations find them. A file that cannot be written must
                // not keep the others' changes from becoming durable.
                let _ = fs.write_back_all(fs.opts.lazytime);
                if fs.journal.commit().is_ok() && fs.journal.wants_checkpoint() {
                    let _ = fs.journal.checkpoint();
                }
                drop(fs);
            }
        };
        let thread = std::thread::Builder::new().name("cffs-writeback".into()).spawn(body)?;
        *self.background.thread.lock() = Some(thread);
        Ok(())
    }

    /// Asks the background thread to write back now.
    pub(super) fn poke_background(&self) {
        let mut s = self.background.state.lock();
        if !s.poked {
            s.poked = true;
            self.background.wake.notify_one();
        }
    }

    /// Asks the background thread to begin with this file, of which more is coming.
    pub(super) fn poke_stream(&self, node: &Arc<Node>) {
        let mut s = self.background.state.lock();
        if !s.stop && !s.streams.iter().any(|n| Arc::ptr_eq(n, node)) {
            s.streams.push(node.clone());
            self.background.wake.notify_one();
        }
    }

    fn stop_background(&self) {
        {
            let mut s = self.background.state.lock();
            s.stop = true;
            s.streams.clear();
        }
        self.background.wake.notify_all();
        if let Some(thread) = self.background.thread.lock().take() {
            // The thread itself may be the one that drops the last reference.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    /// Writes back everything that is dirty, in the order of the name space. With `lazy`, changes of times alone stay.
    pub(super) fn write_back_all(&self, lazy: bool) -> Result<()> {
        let _one = self.writing_back.lock();
        let mut nodes = std::mem::take(&mut *self.dirty.lock());
        for n in &nodes {
            n.on_dirty_list.store(false, Ordering::Release);
        }
        if lazy {
            self.leave_times(&mut nodes);
        }
        let kept: Vec<_> = nodes.clone();
        let cx = crate::file::FileCtx { lazy, ..self.file_cx() };
        let outcome = writeback::write_back(&cx, nodes);
        if lazy {
            let waits = |n: &&Arc<Node>| {
                let st = n.state.read();
                st.dirty && !st.freed && !st.orphan
            };
            kept.iter().filter(waits).for_each(|n| self.list_dirty(n));
        }
        if outcome.is_err() {
            // What could not be written stays on the list.
            for n in kept {
                let again = n.state.try_read().is_none_or(|s| !s.freed && (s.dirty || !s.data.is_clean()));
                if again {
                    self.list_dirty(&n);
                }
            }
        }
        outcome
    }

    /// Takes nodes off the list that have nothing but times to write, and puts them back on the file system's, unless they
    /// wait for a day already or are too many.
    fn leave_times(&self, nodes: &mut Vec<Arc<Node>>) {
        let now = now();
        let mut left = 0;
        nodes.retain(|n| {
            let only_times = {
                let st = n.state.read();
                st.data.is_clean() && !st.freed && !st.orphan && (st.dir.is_some() || st.disk_size == st.inode.size)
            };
            let since = n.lazy_since.load(Ordering::Relaxed);
            if only_times && left < LAZY_MAX && (since == 0 || now.saturating_sub(since) < LAZY_NS) {
                n.lazy_since.store(if since == 0 { now } else { since }, Ordering::Relaxed);
                self.list_dirty(n);
                left += 1;
                return false;
            }
            n.lazy_since.store(0, Ordering::Relaxed);
            true
        });
    }

    /// Notes in the superblock that the file system needs a check. It stays noted until fsck has been.
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

    /// Writes the superblock of the mounted file system. A flush that fails may have lost data that was on its way, too,
    /// and the next one would say that all is well: as after a failed commit, nothing is promised any more.
    pub(super) fn put_superblock(&self, sb: &Superblock) -> Result<()> {
        write_superblock(&*self.dev, sb).inspect_err(|e| self.journal.fail("writing the superblock failed", e))
    }

    /// Notes in the superblock that there are access control lists, before the first of them.
    pub(super) fn mark_acl(&self) -> Result<()> {
        let mut sb = self.sb.lock();
        if sb.ro_compat & RO_COMPAT_ACL == 0 {
            let with = Superblock { ro_compat: sb.ro_compat | RO_COMPAT_ACL, ..sb.clone() };
            self.put_superblock(&with)?;
            *sb = with;
        }
        Ok(())
    }

    /// Unmounts: everything goes home, the log is emptied, the superblock says so. Later changes fail with
    /// [`Error::ReadOnly`]. After an error the file system is closed all the same, and calling this again says so again.
    pub fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return match &*self.close_outcome.lock() {
                Some(e) => Err(e.duplicate()),
                None => Ok(()),
            };
        }
        let mut failed = self.close_outcome.lock();
        let outcome = self.close_now();
        *failed = outcome.as_ref().err().map(Error::duplicate);
        outcome
    }

    fn close_now(&self) -> Result<()> {
        self.stop_background();
        self.cache.stop_readahead();
        if self.opts.read_only {
            return Ok(());
        }
        self.journal.check()?;
        self.reclaim_unlinked();
        // What one file could not write must not take the rest along.
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
        write_superblock(&*self.dev, &sb)?;
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
        self.cache.stop_readahead();
    }
}
