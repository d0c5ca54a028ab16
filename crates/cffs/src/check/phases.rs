//! The check itself: its phases in order, and checks that belong to no structure in particular: superblock copies,
//! fixed areas, counters.

use super::checker::Checker;
use super::fetch::Fetcher;
use super::findings::{Findings, Problems};
use super::options::{CheckOptions, Progress};
use super::ownership::{Conflict, FIXED};
use super::pool::Pool;
use super::recovered::replayed_view;
use super::report::{Class, Phase, Report, state_name};
use crate::error::Result;
use crate::format::system::Counters;
use crate::format::{BlockAddr, BlockId, BlockKind, Corrupt, Geometry, QuotaKind, ROOT_INO, Superblock};
use crate::superblocks::{backup_ags, read_superblock, read_superblock_copy};
use cffs_device::Device;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

/// Checks a file system. The report lists what is wrong with it.
///
/// A file system that was not unmounted is checked as it will be after recovery: the log is replayed in memory.
///
/// # Errors
///
/// The file system could not be checked: there is no usable superblock, the log cannot be replayed, or a device is missing.
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
        let findings = Findings::new(problems, started);
        let mut ck = Checker::new(&pool, &*view, sb.clone(), findings, Vec::new(), progress);
        ck.data_sums.written = options.data.then(Vec::new);
        Ok(ck.check_all(options, replayed))
    })
}

/// Addresses, in order, of all metadata blocks that a check reads on a device whose log was replayed, and of the headers and
/// bitmaps of all initialized allocation groups. The superblock may be that of a copy.
pub(crate) fn metadata_blocks(
    dev: &dyn Device,
    sb: &Superblock,
    g: &Geometry,
    progress: Progress<'_>,
) -> Vec<BlockAddr> {
    let pool = Pool::new(fetcher(dev, sb, *g), sb.hash_seed, 1);
    let findings = Findings::new(Problems::new(0), Instant::now());
    let mut ck = Checker::new(&pool, dev, sb.clone(), findings, Vec::new(), progress);
    let g = ck.g;
    ck.blocks_read = Some(HashSet::new());
    let counters = ck.walk_all();
    ck.check_free_space(counters);
    let mut list: Vec<BlockAddr> = ck.blocks_read.take().into_iter().flatten().collect();
    for ag in 0..counters.map_or(g.ag_count, |c| c.ags.min(g.ag_count)) {
        list.push(g.ag_header(ag));
        list.extend((0..g.bitmap_blocks()).map(|i| g.bitmap_block(ag, i)));
    }
    list.sort_unstable();
    list.dedup();
    list
}

/// The reader of a check. It skips what is no metadata block or is read elsewhere. Its geometry is that of the counters.
fn fetcher<'a>(dev: &'a dyn Device, sb: &Superblock, g: Geometry) -> Fetcher<'a> {
    let mut fetch = Fetcher::new(dev, g);
    fetch.skip(0, 1);
    for ag in backup_ags(&g) {
        fetch.skip(g.ag_start(ag), 1);
    }
    if sb.log_start != 0 {
        fetch.skip(sb.log_start, sb.log_blocks);
    }
    let id = BlockId { kind: BlockKind::Counters, addr: g.counters_block(), owner: 0 };
    if let Ok(block) = fetch.meta(id) {
        // While the file system grows, the size in the counters is smaller than the superblock's. Damage of the counters is
        // reported later.
        let counters = Counters::decode(&block);
        if let Ok(g) = g.of_counters(&counters) {
            fetch.set_geometry(g);
        }
        fetch.expect_inodes(counters.inodes);
    }
    fetch
}

impl Checker<'_> {
    /// Runs all phases in order.
    fn check_all(mut self, options: &CheckOptions, replayed: u64) -> Report {
        let counters = self.walk_all();
        let conflicts = self.ownership.take_conflicts();
        if !conflicts.is_empty() {
            let found = self.find_owners(conflicts);
            self.report_shared(&found);
        }
        self.check_free_space(counters);
        self.findings.phase_done(Phase::Space);
        if options.data {
            self.check_data();
            self.findings.phase_done(Phase::Data);
        }
        let g = self.g;
        let Findings { problems, mut counts, layout, phases, .. } = self.findings;
        counts.frags_used = self.ownership.total + g.ag_count * g.ag_header_blocks() * g.frags_per_block();
        counts.frags_total = g.total_frags();
        Report {
            problems_total: problems.total,
            by_class: problems.by_class,
            problems: problems.list,
            state: state_name(self.sb.state),
            replayed,
            counts,
            layout,
            phases,
        }
    }

    /// Finds the owners of shared space: a second walk, because the first does not remember owners.
    fn find_owners(&self, conflicts: Vec<Conflict>) -> Vec<Conflict> {
        let pool = Pool::new(fetcher(self.dev, &self.sb, self.g), self.sb.hash_seed, 1);
        let findings = Findings::new(Problems::new(0), Instant::now());
        let mut again = Checker::new(&pool, self.dev, self.sb.clone(), findings, conflicts, &|_, _, _| {});
        again.walk_all();
        again.ownership.take_found()
    }

    /// Runs the phases that find space in use.
    fn walk_all(&mut self) -> Option<Counters> {
        let counters = self.check_system();
        self.findings.phase_done(Phase::System);
        let [external, locator] = self.table_inodes();
        if let Some(table) = external {
            self.check_external(&table);
        }
        self.findings.phase_done(Phase::External);
        self.check_tree();
        self.check_orphans(counters.map_or(0, |c| c.orphan_head));
        self.findings.phase_done(Phase::Tree);
        if let Some(table) = locator {
            self.check_locator(&table);
        }
        self.findings.phase_done(Phase::Locator);
        self.check_quotas();
        counters
    }

    /// Checks superblock copies, counters and quota files, and claims the fixed areas.
    fn check_system(&mut self) -> Option<Counters> {
        self.check_superblock_copies();
        let fpb = self.g.frags_per_block();
        // The ownership map knows the headers of the groups.
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
                    self.problem(Class::CounterBlocks, "counters", what);
                }
                Some(counters)
            }
            Err(what) => {
                self.problem(Class::CountersBlock, "counters", what);
                None
            }
        };
        self.inventory.expected = counters.map_or(0, |c| c.inodes);
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
                    let as_it_should_be = Superblock {
                        copy: ag,
                        // Growing writes the copies first, and may have been interrupted.
                        total_blocks: copy.total_blocks.max(sb.total_blocks),
                        ..sb.as_in_copy(&copy)
                    };
                    (copy != as_it_should_be || copy.fsid() != sb.fsid()).then(|| "differs from the primary".into())
                }
            };
            if let Some(what) = wrong {
                self.problem(Class::SuperblockCopy, format_args!("superblock copy in allocation group {ag}"), what);
            }
        }
    }

    /// Checks everything that names lead to.
    fn check_tree(&mut self) {
        if let Some(root) = self.read_system_inode(ROOT_INO) {
            if root.parent != ROOT_INO {
                let what = format_args!("the root names {} as its parent", root.parent);
                self.inode_problem(Class::DirParent, ROOT_INO, what);
            }
            if root.nlink == 0 {
                self.inode_problem(Class::InodeLinks, ROOT_INO, "the root has link count 0");
            }
            self.findings.counts.dirs += 1;
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
        let found = self.inventory.register.list.len() as u64 + 1;
        let counter = "counters";
        if c.inodes != found {
            self.problem(Class::CounterInodes, counter, format_args!("say {} inodes, but there are {found}", c.inodes));
        }
        if c.ags == 0 || c.ags > self.g.ag_count {
            let count = self.g.ag_count;
            let what = format_args!("say {} of {count} groups are initialized", c.ags);
            self.problem(Class::CounterGroups, counter, what);
        }
        // What seems to be missing may be in what is damaged.
        let unwritten = if self.sb.counts_unwritten() { self.inventory.unwritten } else { 0 };
        if c.unwritten != unwritten && self.findings.problems.total == 0 {
            let what = format_args!("say {} units were never written, but {unwritten} are", c.unwritten);
            self.problem(Class::CounterUnwritten, counter, what);
        }
        let free = self.check_space_maps(c.ags.clamp(1, self.g.ag_count));
        if let Some(free) = free.filter(|free| *free != c.free_frags) {
            let what = format_args!("say {} fragments are free, the bitmaps {free}", c.free_frags);
            self.problem(Class::CounterFree, counter, what);
        }
    }
}
