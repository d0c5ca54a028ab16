//! The repair itself: its passes in order.

use super::commit;
use super::findings::{Found, Planned};
use super::inodes::Role;
use super::recover::empty_log;
use super::repairer::Repairer;
use super::report::{Ask, RepairOptions, Repaired};
use super::session::Session;
use super::start;
use super::volume::{View, Volume};
use crate::check::reader::Reader;
use crate::check::report::state_name;
use crate::check::{CheckOptions, Class, Progress, check, pool};
use crate::error::{Error, Result};
use crate::format::LongestRuns;
use crate::format::ROOT_INO;
use crate::format::superblock::{COMPAT_IMMUTABLE_FILES, INCOMPAT_EXTERNAL_LOG, State};
use crate::superblocks::write_superblock;
use cffs_device::Device;
use std::collections::HashSet;
use std::sync::Arc;

/// Walks after which a repair that still finds something gives up.
const ROUNDS_MAX: u32 = 12;

/// Repairs a file system. `ask` is asked before each change.
///
/// # Errors
///
/// There is no superblock to go by, the log device is missing, the device fails, there is no space for what has to be
/// written, or a change was refused that all others depend on. Nothing was written in these cases, except that a log
/// may have been replayed and a superblock restored.
pub fn repair(
    dev: Arc<dyn Device>,
    log_dev: Option<Arc<dyn Device>>,
    options: &RepairOptions,
    ask: Ask<'_>,
    progress: Progress<'_>,
) -> Result<Repaired> {
    let mut session =
        Session { ask, refused: HashSet::new(), actions: Vec::new(), total: 0, max: options.max_problems };
    let choice = start::choose(&*dev, log_dev.as_deref())?;
    let (mut sb, g) = (choice.superblock, choice.g);
    let external = sb.incompat & INCOMPAT_EXTERNAL_LOG != 0;
    let log = log_device(&dev, log_dev, external)?;
    if let Some((what, at)) = choice.instead {
        session.must(Class::Superblock, "superblock", what, &format!("restore it from the copy at byte {at}"))?;
        write_superblock(&*dev, &g, &sb)?;
        dev.flush()?;
    }
    let now = crate::mkfs::now_ns();
    let (header, replayed) = empty_log(&mut session, &dev, external.then_some(&log), &sb, &g, now)?;

    let reader = Reader::new(&*dev, g);
    let mut r = Repairer::new(session, Volume::new(&dev, &reader, g), &sb, now, options.scavenge, progress);
    reader.reading_ahead(pool::threads(options.jobs) - 1, || r.work())?;
    let view: Arc<View> = r.vol.view.clone();
    let check_options = CheckOptions { max_problems: options.max_problems, data: options.data, jobs: options.jobs };
    let look = || check(view.clone(), external.then(|| log.clone()), &check_options, progress);
    let mut after = look()?;
    if after.by_class.contains_key(&Class::QuotaUsage) {
        // Only the check adds up what the quota records count. They can be wrong although all inodes are right.
        r.recount_quotas()?;
        after = look()?;
    }
    let copies = std::mem::take(&mut r.vol.copies);
    let (mut session, named, rounds, immutable_files) = (r.session, r.named, r.rounds, r.immutable_files);
    let unmarked = immutable_files && sb.compat & COMPAT_IMMUTABLE_FILES == 0;
    let what = "does not say that there are immutable or append-only files";
    let mark = unmarked && session.fix(Class::Superblock, "superblock", what.into(), "say so");
    sb.compat |= if mark { COMPAT_IMMUTABLE_FILES } else { 0 };
    let mut blocks = std::mem::take(&mut *view.blocks.write());
    let mut blocks_written = 0;
    if !blocks.is_empty() || !copies.is_empty() {
        // The state forbids mounting until all blocks are written in place. A state that says that data checksums are
        // wrong has to stay.
        if sb.state != State::Unjournaled || !g.data_sums {
            sb.state = State::Error;
            // The bitmaps may change.
            sb.longest_runs = LongestRuns::UNKNOWN;
            write_superblock(&*dev, &g, &sb)?;
            dev.flush()?;
        }
        let seq = header.tail_seq + 1 + u64::from(crate::mkfs::random_u32()?);
        let mut writer = commit::Writer { dev: &*dev, log: &*log, sb: &sb, g, seq, header };
        blocks_written = writer.write(&copies, &mut blocks)?;
    }
    let state = if after.is_sound() { State::Clean } else { State::Error };
    if mark || sb.state != state {
        sb.state = state;
        write_superblock(&*dev, &g, &sb)?;
        dev.flush()?;
    }
    after.state = state_name(state);
    Ok(Repaired {
        actions: session.actions,
        actions_total: session.total,
        named,
        blocks_written,
        fragments_copied: copies.iter().map(|c| c.len).sum(),
        replayed,
        rounds,
        after,
    })
}

/// The device with the log.
fn log_device(dev: &Arc<dyn Device>, log_dev: Option<Arc<dyn Device>>, external: bool) -> Result<Arc<dyn Device>> {
    match (log_dev, external) {
        (Some(log), true) => Ok(log),
        (None, false) => Ok(dev.clone()),
        (None, true) => Error::invalid("the log is on another device, which was not given"),
        (Some(_), false) => Error::invalid("a log device was given, but the log is inside the file system"),
    }
}

/// Whether a repair can begin: the superblock or a copy of it is usable.
pub fn has_superblock(dev: &dyn Device, log_dev: Option<&dyn Device>) -> bool {
    start::choose(dev, log_dev).is_ok()
}

impl Repairer<'_> {
    /// Finds out what is to change.
    fn work(&mut self) -> Result<()> {
        self.survey()?;
        for n in 1..=ROUNDS_MAX {
            // The last round accepts the present state. Another repair can continue from there.
            if self.round(n == ROUNDS_MAX)? {
                break;
            }
        }
        Ok(())
    }

    /// Walks without changing anything, and gives back to damaged maps what can be found of them, until nothing is found.
    fn survey(&mut self) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            self.begin_walk();
            self.system_inodes()?;
            self.vol.surveying = true;
            let walked = self.walk_all();
            self.vol.surveying = false;
            walked?;
            // While a directory could not be walked, everything below it only seems to be lost.
            let complete = !self.found.incomplete && self.found.disconnected_inos.is_empty();
            let blocks = self.found.external_blocks.len();
            if !self.reattach(complete)? {
                break;
            }
            // What got a new block of the external table must be there in the next walk.
            if self.found.external_blocks.len() != blocks {
                self.finish_external()?;
            }
        }
        Ok(())
    }

    /// One walk with changes, and what follows from it. True if the walk changed nothing, so that all is done.
    fn round(&mut self, last: bool) -> Result<bool> {
        self.begin_walk();
        let before = self.vol.changes;
        self.system_inodes()?;
        self.walk_all()?;
        self.claim_disconnected();
        self.resolve_shared()?;
        self.write_maps()?;
        for ino in std::mem::take(&mut self.planned.indexes) {
            self.rebuild_index(ino)?;
        }
        self.reconnect()?;
        // Before the table is complete, because a directory without an inode may get one in it.
        let reattached = self.vol.changes == before && self.reattach(true)?;
        self.finish_external()?;
        let changed = reattached || self.vol.changes != before;
        if changed && !last {
            return Ok(false);
        }
        self.rebuild_locator()?;
        let ags = self.groups_in_use();
        self.copy_sums();
        let free = self.rebuild_space(ags)?;
        self.rebuild_counters(free, ags)?;
        self.rebuild_copies()?;
        if self.session.total > 0 {
            self.recount_quotas()?;
        }
        Ok(true)
    }

    /// Begins a walk: what an earlier one found is no longer true.
    fn begin_walk(&mut self) {
        self.rounds += 1;
        self.space.clear();
        self.old_bitmap = None;
        self.found = Found::default();
        self.planned = Planned::default();
    }

    /// One walk through everything that names and tables lead to.
    fn walk_all(&mut self) -> Result<()> {
        self.read_old_locator();
        self.external_table()?;
        self.quota_files()?;
        if let Some(mut root) = self.load(ROOT_INO) {
            let before = root.clone();
            self.contents(&mut root, ROOT_INO, Role::External)?;
            if root != before {
                self.store(&root);
            }
        }
        self.walk_tree(ROOT_INO, ROOT_INO)?;
        let roots = self.unreachable_roots();
        for ino in roots {
            if !self.found.walked.contains(&ino) && self.load(ino).is_some_and(|i| i.nlink > 0 || self.has_names(&i)) {
                // The directory gets its name in lost+found, so a link from below it would be a second name.
                self.found.unreachable_roots.insert(ino);
                if let Some(k) = self.found.inodes.get_mut(&ino) {
                    k.names = 1;
                }
                let parent = self.load(ino).map_or(ROOT_INO, |i| i.parent);
                self.walk_tree(ino, parent)?;
            }
        }
        self.external_links()
    }
}
