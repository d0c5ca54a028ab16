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
//! The image is not trusted. Depth is held in lists, not on the stack; no block is followed that has an owner already,
//! so the work is bounded by the device; what is remembered is a few dozen bytes for each inode and extent; structures
//! with many damaged blocks are given up.

mod claims;
mod dirs;
mod extents;
mod index;
mod inodes;
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

use crate::device::{Device, IoKind, OverlayDevice};
use crate::error::{Error, Result};
use crate::format::superblock::{INCOMPAT_EXTERNAL_LOG, INCOMPAT_METADATA_UUID, State};
use crate::format::system::Counters;
use crate::format::{
    BlockAddr, BlockId, BlockKind, Corrupt, Geometry, Ino, QuotaKind, ROOT_INO, Superblock, verify_block,
};
use crate::journal::choose_header;
use crate::journal::recovery::replay;
use crate::mkfs::{backup_ags, read_superblock, read_superblock_copy};
use cffs_buf::AlignedBuf;
use claims::{Claims, Conflict, FIXED};
use inodes::Register;
use quota::Quotas;
use report::Problems;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;
use tables::External;

/// Settings of a check.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Problems listed in the report; more are counted only.
    pub max_problems: usize,
    /// Read the data of all files too, and compare it with its checksums. Takes 32 bytes of memory for each extent.
    pub data: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { max_problems: 1000, data: false }
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
    let mut first = Checker::new(&*dev, sb.clone(), g, options.max_problems, Vec::new(), progress);
    let (view, replayed) = first.replayed_view(&dev, log_dev.as_ref())?;
    let g = size_by_counters(&*view, g);
    let (problems, started) = (first.problems, Instant::now());

    let mut ck = Checker::new(&*view, sb.clone(), g, options.max_problems, Vec::new(), progress);
    ck.problems = problems;
    ck.started = started;
    ck.data = options.data.then(Vec::new);
    let counters = ck.walk_all();
    let conflicts = ck.claims.take_conflicts();
    if !conflicts.is_empty() {
        // The same walk again, this time asking each owner of space whether it is one of those.
        let mut again = Checker::new(&*view, sb.clone(), g, 0, conflicts, &|_, _, _| {});
        again.walk_all();
        let found = again.claims.take_found();
        ck.report_shared(&found);
    }
    ck.check_free_space(counters);
    ck.phase_done(Phase::Space);
    if options.data {
        ck.check_data();
        ck.phase_done(Phase::Data);
    }

    ck.counts.frags_used = ck.claims.total + g.ag_count * g.ag_header_blocks() * g.frags_per_block();
    ck.counts.frags_total = g.total_frags();
    Ok(Report {
        problems_total: ck.problems.total,
        by_class: ck.problems.by_class,
        problems: ck.problems.list,
        state: state_name(sb.state),
        replayed,
        counts: ck.counts,
        layout: ck.layout,
        phases: ck.phases,
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
    let g = size_by_counters(dev, *g);
    let mut ck = Checker::new(dev, sb.clone(), g, 0, Vec::new(), progress);
    ck.reader.seen = Some(HashSet::new());
    let counters = ck.walk_all();
    ck.check_free_space(counters);
    let mut list: Vec<BlockAddr> = ck.reader.seen.take().into_iter().flatten().collect();
    for ag in 0..counters.map_or(g.ag_count, |c| c.ags.min(g.ag_count)) {
        list.push(g.ag_header(ag));
        list.extend((0..g.bitmap_blocks()).map(|i| g.bitmap_block(ag, i)));
    }
    list.sort_unstable();
    list.dedup();
    list
}

/// The geometry with the size that the counters tell, which is smaller than the superblock's while the file system grows.
/// What is wrong with them is found later.
fn size_by_counters(dev: &dyn Device, g: Geometry) -> Geometry {
    let mut block = AlignedBuf::zeroed(g.block_size());
    let id = BlockId { kind: BlockKind::Counters, addr: g.counters_block(), owner: 0 };
    let read = dev.read_at(IoKind::Meta, id.addr << g.block_shift, &mut block);
    if read.is_err() || verify_block(&block, g.fsid, id).is_err() {
        return g;
    }
    g.of_counters(&Counters::decode(&block)).unwrap_or(g)
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
    reader: Reader<'a>,
    problems: Problems,
    claims: Claims,
    register: Register,
    /// Inodes of the external table, in order of their numbers.
    external: Vec<External>,
    expected_inodes: u64,
    /// In the order of [`QuotaKind::ALL`].
    quotas: [Quotas; 3],
    /// Written data, if it is to be read.
    data: Option<Vec<sums::Written>>,
    /// The table of checksums that was needed last: allocation group, index, and the block if it is good.
    sum_table: Option<(u64, u64, Option<reader::Block>)>,
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
        dev: &'a dyn Device,
        sb: Superblock,
        g: Geometry,
        max_problems: usize,
        search: Vec<Conflict>,
        report_progress: Progress<'a>,
    ) -> Checker<'a> {
        Checker {
            g,
            sb,
            dev,
            reader: Reader::new(dev, g),
            problems: Problems::new(max_problems),
            claims: Claims::new(g, search),
            register: Register::default(),
            external: Vec::new(),
            expected_inodes: 0,
            quotas: Default::default(),
            data: None,
            sum_table: None,
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
        self.claims.claim(self.g.frag_of_block(block), self.g.frags_per_block(), owner)
    }

    /// The device as it is after recovery, and how many transactions that took. The only place that knows about replay.
    fn replayed_view(
        &mut self,
        dev: &Arc<dyn Device>,
        log_dev: Option<&Arc<dyn Device>>,
    ) -> Result<(Arc<dyn Device>, u64)> {
        let external = self.sb.incompat & INCOMPAT_EXTERNAL_LOG != 0;
        let clean = self.sb.state == State::Clean;
        let log = match log_dev {
            Some(log) if external => log,
            _ if !external => dev,
            _ if clean => return Ok((dev.clone(), 0)),
            _ => return Error::invalid("not unmounted, and its log is on another device, which was not given"),
        };
        if let Err(e) = choose_header(&**log, &self.sb) {
            self.problems.add(Class::LogHeader, || "log".into(), || e.to_string());
            return Ok((dev.clone(), 0));
        }
        // While mounted one of the two may be half written.
        if clean && let Some(what) = repair::lost_header(&**log, &self.sb)? {
            self.problems.add(Class::LogHeader, || "log".into(), || what);
        }
        let view: Arc<dyn Device> = Arc::new(OverlayDevice::new(dev.clone()));
        let log_view = external.then(|| OverlayDevice::new(log.clone()));
        let summary = replay(&*view, log_view.as_ref().map(|d| d as &dyn Device), &self.sb, &self.g)?;
        if clean && summary.transactions > 0 {
            self.problems.add(
                Class::LogHeader,
                || "log".into(),
                || format!("{} transactions although the file system was unmounted", summary.transactions),
            );
        }
        Ok((view, summary.transactions))
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
        self.claims.claim(self.g.sys_start * fpb, self.g.sys_blocks() * fpb, FIXED);
        if self.sb.log_start != 0 {
            self.claims.claim(self.sb.log_start * fpb, self.sb.log_blocks * fpb, FIXED);
        }
        let addr = self.g.counters_block();
        let counters = match self.reader.meta(BlockId { kind: BlockKind::Counters, addr, owner: 0 }) {
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
