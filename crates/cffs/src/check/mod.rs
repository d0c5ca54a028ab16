//! The complete check of a file system: every structure is read and compared with every other that speaks about the
//! same thing. Nothing is written; [`mod@repair`] does that.
//!
//! The phases, each in a file of its own:
//! 1. superblock copies, log header, counters, system inodes;
//! 2. the external inode table, whose inodes names lead to (`tables`);
//! 3. the tree from the root: directory blocks, embedded inodes, extent maps, directory indexes (`dirs`, `inodes`,
//!    `extents`, `index`); afterwards link counts and the orphan list;
//! 4. the locator table against the inodes that were found (`tables`);
//! 5. quota records against all inodes (`quota`); bitmaps and counters against the space that was found in use (`space`),
//!    tables of data checksums (`sums`);
//! 6. if asked for, the data of all files against its checksums (`sums`).
//!
//! Each metadata block is read once (`fetch` says what is not), in requests of the size of a group. Reading, checksums
//! and decoding are spread over threads (`pool`); one thread compares, in an order that does not depend on them, so the
//! report is the same however many there are.
//!
//! The image is not trusted. Depth is held in lists, not on the stack; no block is followed that has an owner already,
//! so the work is bounded by the device; structures with many damaged blocks are given up. Memory: 64 MiB and 16 bytes for
//! each inode for blocks that wait to be looked at; about 30 bytes for each inode, 40 for each gap in the used space,
//! 24 for each name of the directory that is looked at, 300 for each directory whose inode is in the external table; a
//! megabyte for each thread.

mod dirs;
mod extents;
mod fetch;
mod index;
mod inodes;
mod ownership;
mod pool;
mod quota;
mod reader;
pub mod repair;
mod report;
mod space;
mod sums;
mod tables;
#[cfg(test)]
mod tests;
mod xattrs;

pub(crate) use reader::{Block, Reader};
pub use report::{Class, Counts, Layout, Phase, PhaseTime, Problem, Report};
pub(crate) use sums::check_index;

use crate::device::{Device, OverlayDevice};
use crate::error::{Error, Result};
use crate::format::superblock::{INCOMPAT_EXTERNAL_LOG, INCOMPAT_METADATA_UUID, State};
use crate::format::system::Counters;
use crate::format::{BlockAddr, BlockId, BlockKind, Corrupt, Geometry, Ino, Inode, QuotaKind, ROOT_INO, Superblock};
use crate::journal::current_header;
use crate::journal::recovery::replay;
use crate::mkfs::{backup_ags, read_superblock, read_superblock_copy};
use fetch::Fetcher;
use inodes::Register;
use ownership::{Conflict, FIXED, OwnershipMap};
use pool::Pool;
use quota::Quotas;
use report::Problems;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;
use tables::External;

/// Settings of a check.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CheckOptions {
    /// Problems listed in the report; more are counted only.
    pub max_problems: usize,
    /// Read the data of all files too, and compare it with its checksums. Takes 32 bytes of memory for each extent.
    pub data: bool,
    /// Threads that read and verify, at most 64; 0: as many as there are processors. The report does not depend on it.
    pub jobs: usize,
}

setters!(CheckOptions { max_problems: usize, data: bool, jobs: usize });

impl Default for CheckOptions {
    /// One thread.
    fn default() -> Self {
        CheckOptions { max_problems: 1000, data: false, jobs: 1 }
    }
}

/// Called now and then with the phase, what is done, and how much there is to do (a guess while the tree is walked).
pub type Progress<'a> = &'a dyn Fn(Phase, u64, u64);

/// Checks a file system. What is wrong with it stands in the report; an error means that it could not be checked: there
/// is no superblock to go by, the log cannot be replayed, or a device is missing.
///
/// A file system that was not unmounted is checked as it will be after recovery: the log is replayed in memory.
pub fn check(
    dev: Arc<dyn Device>,
    log_dev: Option<Arc<dyn Device>>,
    options: &CheckOptions,
    progress: Progress<'_>,
) -> Result<Report> {
    let sb = read_superblock(&*dev)?;
    let g = Geometry::new(&sb)?;
    let started = Instant::now();
    let mut problems = Problems::new(options.max_problems);
    let (view, replayed) = replayed_view(&mut problems, &sb, &g, &dev, log_dev.as_ref())?;
    let pool = Pool::new(fetcher(&*view, &sb, g), sb.hash_seed, options.jobs);
    pool.run(|| {
        let mut ck = Checker::new(&pool, &*view, sb.clone(), problems, Vec::new(), progress);
        ck.started = started;
        ck.data = options.data.then(Vec::new);
        Ok(ck.check_all(options, replayed))
    })
}

/// Addresses, in order, of all metadata blocks that a check reads on a device whose log was replayed, and of the headers and
/// bitmaps of all initialized allocation groups. Works with a superblock that stands elsewhere.
pub(crate) fn metadata_blocks(
    dev: &dyn Device,
    sb: &Superblock,
    g: &Geometry,
    progress: Progress<'_>,
) -> Vec<BlockAddr> {
    let pool = Pool::new(fetcher(dev, sb, *g), sb.hash_seed, 1);
    let mut ck = Checker::new(&pool, dev, sb.clone(), Problems::new(0), Vec::new(), progress);
    let g = ck.g;
    ck.seen = Some(HashSet::new());
    let counters = ck.walk_all();
    ck.check_free_space(counters);
    let mut list: Vec<BlockAddr> = ck.seen.take().into_iter().flatten().collect();
    for ag in 0..counters.map_or(g.ag_count, |c| c.ags.min(g.ag_count)) {
        list.push(g.ag_header(ag));
        list.extend((0..g.bitmap_blocks()).map(|i| g.bitmap_block(ag, i)));
    }
    list.sort_unstable();
    list.dedup();
    list
}

/// Reads for a check: what is no metadata block, or read elsewhere, is left out. The geometry is that of the counters.
fn fetcher<'a>(dev: &'a dyn Device, sb: &Superblock, g: Geometry) -> Fetcher<'a> {
    let mut fetch = Fetcher::new(dev, g);
    fetch.pass_over(0, 1);
    for ag in backup_ags(&g) {
        fetch.pass_over(g.ag_start(ag), 1);
    }
    if sb.log_start != 0 {
        fetch.pass_over(sb.log_start, sb.log_blocks);
    }
    let id = BlockId { kind: BlockKind::Counters, addr: g.counters_block(), owner: 0 };
    if let Ok(block) = fetch.meta(id) {
        // The size that the counters tell is smaller than the superblock's while the file system grows. What is wrong with
        // them is found later.
        let counters = Counters::decode(&block);
        if let Ok(g) = g.of_counters(&counters) {
            fetch.set_geometry(g);
        }
        fetch.expect_inodes(counters.inodes);
    }
    fetch
}

/// The device as it is after recovery, and how many transactions that took. The only place that knows about replay.
fn replayed_view(
    problems: &mut Problems,
    sb: &Superblock,
    g: &Geometry,
    dev: &Arc<dyn Device>,
    log_dev: Option<&Arc<dyn Device>>,
) -> Result<(Arc<dyn Device>, u64)> {
    let external = sb.incompat & INCOMPAT_EXTERNAL_LOG != 0;
    let clean = sb.state == State::Clean;
    let log = match log_dev {
        Some(log) if external => log,
        _ if !external => dev,
        _ if clean => return Ok((dev.clone(), 0)),
        _ => return Error::invalid("not unmounted, and its log is on another device, which was not given"),
    };
    if let Err(e) = current_header(&**log, sb) {
        problems.add(Class::LogHeader, || "log".into(), || e.to_string());
        return Ok((dev.clone(), 0));
    }
    // While mounted one of the two may be half written.
    if clean && let Some(what) = repair::lost_header(&**log, sb)? {
        problems.add(Class::LogHeader, || "log".into(), || what);
    }
    let view: Arc<dyn Device> = Arc::new(OverlayDevice::new(dev.clone()));
    let log_view = external.then(|| OverlayDevice::new(log.clone()));
    let summary = replay(&*view, log_view.as_ref().map(|d| d as &dyn Device), sb, g)?;
    if clean && summary.transactions > 0 {
        problems.add(
            Class::LogHeader,
            || "log".into(),
            || format!("{} transactions although the file system was unmounted", summary.transactions),
        );
    }
    Ok((view, summary.transactions))
}

/// What a state is called in reports.
fn state_name(state: State) -> &'static str {
    match state {
        State::Clean => "clean",
        State::Journaled => "journaled",
        State::Unjournaled => "unjournaled",
        State::Error => "error",
    }
}

/// The largest inode number that is possible: numbers are given out from below, and the smallest inode takes 128 bytes.
fn ino_max(g: &Geometry) -> Ino {
    g.inodes_max()
}

/// Everything that the phases share.
struct Checker<'a> {
    g: Geometry,
    sb: Superblock,
    dev: &'a dyn Device,
    pool: &'a Pool<'a>,
    /// The blocks that were asked for, where somebody wants to know.
    seen: Option<HashSet<BlockAddr>>,
    problems: Problems,
    ownership: OwnershipMap,
    register: Register,
    /// Inodes of the external table, in order of their numbers.
    external: Vec<External>,
    /// Those of them that are directories, until they are walked.
    external_dirs: HashMap<Ino, Inode>,
    /// Fragments of attribute blocks of inodes whose space was not counted yet, and whether these are all there are.
    chains: HashMap<Ino, (u64, bool)>,
    expected_inodes: u64,
    /// In the order of [`QuotaKind::ALL`].
    quotas: [Quotas; 3],
    /// Written data, if it is to be read.
    data: Option<Vec<sums::Written>>,
    /// The table of checksums that was needed last: allocation group, index, and the block if it is good.
    sum_table: Option<(u64, u64, Option<Block>)>,
    /// Tables of checksums that are verified when their sums are needed, the last first: allocation group and index.
    sum_tables: Vec<(u64, u64)>,
    /// How many are damaged in the allocation group of the last one.
    damaged_sums: (u64, u64),
    /// Allocation groups that count as initialized.
    ags: u64,
    counts: Counts,
    layout: Layout,
    phases: Vec<PhaseTime>,
    started: Instant,
    report_progress: Progress<'a>,
}

impl<'a> Checker<'a> {
    fn new(
        pool: &'a Pool<'a>,
        dev: &'a dyn Device,
        sb: Superblock,
        problems: Problems,
        search: Vec<Conflict>,
        report_progress: Progress<'a>,
    ) -> Checker<'a> {
        let g = *pool.context.fetch.geometry();
        Checker {
            g,
            sb,
            dev,
            pool,
            seen: None,
            problems,
            ownership: OwnershipMap::new(g, search),
            register: Register::default(),
            external: Vec::new(),
            external_dirs: HashMap::new(),
            chains: HashMap::new(),
            expected_inodes: 0,
            quotas: Default::default(),
            data: None,
            sum_table: None,
            sum_tables: Vec::new(),
            damaged_sums: (0, 0),
            ags: 0,
            counts: Counts::default(),
            layout: Layout::default(),
            phases: Vec::new(),
            started: Instant::now(),
            report_progress,
        }
    }

    fn progress(&self, phase: Phase, done: u64, total: u64) {
        (self.report_progress)(phase, done, total.max(done));
    }

    fn phase_done(&mut self, phase: Phase) {
        let now = Instant::now();
        self.phases.push(PhaseTime { phase, seconds: (now - self.started).as_secs_f64() });
        self.started = now;
    }

    fn inode_problem(&mut self, class: Class, ino: Ino, text: impl FnOnce() -> String) {
        self.problems.add(class, || format!("inode {ino}"), text);
    }

    /// Claims a whole block. False if it has an owner.
    fn claim_block(&mut self, block: BlockAddr, owner: u64) -> bool {
        self.ownership.claim(self.g.frag_of_block(block), self.g.frags_per_block(), owner)
    }

    /// Everything, in the order of the phases.
    fn check_all(mut self, options: &CheckOptions, replayed: u64) -> Report {
        let counters = self.walk_all();
        let conflicts = self.ownership.take_conflicts();
        if !conflicts.is_empty() {
            let found = self.find_owners(conflicts);
            self.report_shared(&found);
        }
        self.check_free_space(counters);
        self.phase_done(Phase::Space);
        if options.data {
            self.check_data();
            self.phase_done(Phase::Data);
        }
        let g = self.g;
        self.counts.frags_used = self.ownership.total + g.ag_count * g.ag_header_blocks() * g.frags_per_block();
        self.counts.frags_total = g.total_frags();
        Report {
            problems_total: self.problems.total,
            by_class: self.problems.by_class,
            problems: self.problems.list,
            state: state_name(self.sb.state),
            replayed,
            counts: self.counts,
            layout: self.layout,
            phases: self.phases,
        }
    }

    /// The same walk again, this time asking each owner of space whether it is one of those.
    fn find_owners(&self, conflicts: Vec<Conflict>) -> Vec<Conflict> {
        let pool = Pool::new(fetcher(self.dev, &self.sb, self.g), self.sb.hash_seed, 1);
        let mut again = Checker::new(&pool, self.dev, self.sb.clone(), Problems::new(0), conflicts, &|_, _, _| {});
        again.walk_all();
        again.ownership.take_found()
    }

    /// A metadata block with the right checksum and identity.
    fn meta(&mut self, id: BlockId) -> std::result::Result<Block, String> {
        self.note_seen(id.addr);
        self.pool.context.fetch.meta(id)
    }

    fn note_seen(&mut self, addr: BlockAddr) {
        if let Some(seen) = &mut self.seen
            && addr < self.g.total_blocks
        {
            seen.insert(addr);
        }
    }

    /// All phases that find space in use.
    fn walk_all(&mut self) -> Option<Counters> {
        let counters = self.check_system();
        self.phase_done(Phase::System);
        let [external, locator] = self.table_inodes();
        if let Some(table) = external {
            self.check_external(&table);
        }
        self.phase_done(Phase::External);
        self.check_tree();
        self.check_orphans(counters.map_or(0, |c| c.orphan_head));
        self.phase_done(Phase::Tree);
        if let Some(table) = locator {
            self.check_locator(&table);
        }
        self.phase_done(Phase::Locator);
        self.check_quotas();
        counters
    }

    /// Superblock copies, fixed areas, counters, quota files.
    fn check_system(&mut self) -> Option<Counters> {
        self.check_superblock_copies();
        let fpb = self.g.frags_per_block();
        // The headers of the groups need no claim: no claim may touch them.
        self.ownership.claim(self.g.sys_start * fpb, self.g.sys_blocks() * fpb, FIXED);
        if self.sb.log_start != 0 {
            self.ownership.claim(self.sb.log_start * fpb, self.sb.log_blocks * fpb, FIXED);
        }
        let addr = self.g.counters_block();
        let counters = match self.meta(BlockId { kind: BlockKind::Counters, addr, owner: 0 }) {
            Ok(block) => {
                let counters = Counters::decode(&block);
                let size = Geometry::new(&self.sb).and_then(|g| g.of_counters(&counters));
                if let Err(Corrupt(what)) = size {
                    self.problems.add(Class::CounterBlocks, || "counters".into(), || what);
                }
                Some(counters)
            }
            Err(what) => {
                self.problems.add(Class::CountersBlock, || "counters".into(), || what);
                None
            }
        };
        self.expected_inodes = counters.map_or(0, |c| c.inodes);
        for kind in QuotaKind::ALL {
            if let Some(inode) = self.read_system_inode(kind.ino()) {
                self.check_quota_file(kind, &inode);
            }
        }
        counters
    }

    fn check_superblock_copies(&mut self) {
        // Where they are follows from the superblock, also while the file system grows.
        let g = Geometry::new(&self.sb).unwrap_or(self.g);
        for ag in backup_ags(&g) {
            let wrong = match read_superblock_copy(self.dev, &g, ag) {
                Err(e) => Some(e.to_string()),
                Ok(copy) => {
                    let sb = &self.sb;
                    // What mounting and tuning change is kept up to date in the primary only.
                    let as_it_should_be = Superblock {
                        copy: ag,
                        state: copy.state,
                        label: copy.label,
                        compat: copy.compat,
                        ro_compat: copy.ro_compat,
                        reserve_bp: copy.reserve_bp,
                        mount_options: copy.mount_options,
                        uuid: copy.uuid,
                        incompat: sb.incompat & !INCOMPAT_METADATA_UUID | copy.incompat & INCOMPAT_METADATA_UUID,
                        metadata_fsid: copy.metadata_fsid,
                        // Growing writes the copies first, and may have got no further.
                        total_blocks: copy.total_blocks.max(sb.total_blocks),
                        mount_count: copy.mount_count,
                        mounted: copy.mounted,
                        ..sb.clone()
                    };
                    (copy != as_it_should_be || copy.fsid() != sb.fsid())
                        .then(|| "says something else than the primary".into())
                }
            };
            if let Some(what) = wrong {
                self.problems.add(
                    Class::SuperblockCopy,
                    || format!("superblock copy in allocation group {ag}"),
                    || what,
                );
            }
        }
    }

    /// Everything that names lead to.
    fn check_tree(&mut self) {
        if let Some(root) = self.read_system_inode(ROOT_INO) {
            if root.parent != ROOT_INO {
                self.inode_problem(Class::DirParent, ROOT_INO, || {
                    format!("the root names {} as its parent", root.parent)
                });
            }
            if root.nlink == 0 {
                self.inode_problem(Class::InodeLinks, ROOT_INO, || "the root has link count 0".into());
            }
            self.counts.dirs += 1;
            self.count_for_quota(&root);
            self.check_fields(&root);
            self.check_xattr(&root);
            self.walk_tree(root);
        }
        self.walk_unreachable();
        self.check_links();
    }

    fn check_free_space(&mut self, counters: Option<Counters>) {
        let Some(c) = counters else { return };
        let found = self.register.list.len() as u64 + 1;
        let counter = || "counters".to_string();
        if c.inodes != found {
            self.problems
                .add(Class::CounterInodes, counter, || format!("say {} inodes, but there are {found}", c.inodes));
        }
        if c.ags == 0 || c.ags > self.g.ag_count {
            let count = self.g.ag_count;
            self.problems
                .add(Class::CounterGroups, counter, || format!("say {} of {count} groups are initialized", c.ags));
        }
        self.ags = c.ags.clamp(1, self.g.ag_count);
        let free = self.check_space_maps(self.ags);
        if let Some(free) = free.filter(|free| *free != c.free_frags) {
            self.problems.add(Class::CounterFree, counter, || {
                format!("say {} fragments are free, the bitmaps {free}", c.free_frags)
            });
        }
    }
}
