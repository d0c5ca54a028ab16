//! Repair: brings a damaged file system into order, trusting nothing that can be found out otherwise.
//!
//! Nothing is written while the repair thinks. All changes are kept beside the device (`volume`), the check looks at the
//! result through them, and then they reach the device through the log (`commit`): a crash leaves the file system as it
//! was or as it is to be, and another repair goes on from there.
//!
//! 1. `start`: a superblock to go by, chosen among the primary and its copies by what agrees with it; the log is replayed,
//!    or emptied if that is not possible.
//! 2. A walk that only looks. What says whose it is but is mapped by nobody (`lost`) is given back to those whose maps are
//!    damaged, before anything is decided on what seems to be missing.
//! 3. Walks (`walk`, `tables`) that put right what each structure says about itself: entries, numbers, fields, maps, link
//!    counts. After each: shared space (`conflicts`), maps (`maps`), indexes (`index`), what has lost its name
//!    (`lost`), and again, until a walk changes nothing.
//! 4. What follows from that walk is written wholesale: locator table, bitmaps and headers, counters, superblock copies
//!    (`space`).
//!
//! Memory: about 150 bytes for each inode, 32 for each gap in the used space, 32 MiB of cache, the blocks that change, and
//! the extents of the file that is looked at.

mod commit;
mod conflicts;
mod entries;
mod index;
mod intervals;
mod maps;
mod space;
mod start;
mod sums;
mod tables;
mod unmapped;
mod volume;
mod walk;
mod xattrs;

pub(crate) use start::copies_of;

use super::{CheckOptions, Class, Phase, Progress, Reader, Report, check};
use crate::device::{Device, IoKind, OverlayDevice};
use crate::error::{Error, Result};
use crate::format::dirblock::{entries as block_entries, validate};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::log::LogHeader;
use crate::format::superblock::{INCOMPAT_EXTERNAL_LOG, State};
use crate::format::{
    BlockAddr, BlockId, BlockKind, EXTERNAL_INO, Extent, FileType, Geometry, Ino, Inode, LAST_SYSTEM_INO, ROOT_INO,
    Superblock, verify_block,
};
use crate::journal::recovery::replay;
use crate::journal::{log_extent, reset_headers};
use crate::mkfs::write_superblock;
use cffs_buf::AlignedBuf;
use intervals::Intervals;
use maps::Map;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use tables::OldLocator;
use volume::{View, Volume};

/// Walks after which a repair that still finds something gives up.
const ROUNDS_MAX: u32 = 12;

/// Settings of a repair.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RepairOptions {
    /// Actions, and problems of the check afterwards, that are listed in the report; more are counted only.
    pub max_problems: usize,
    /// Bring back all directories whose blocks are found in space that is not known to be free, also where nothing else
    /// confirms that they were there at last: for a device whose superblocks, tables or directories are destroyed.
    pub scavenge: bool,
    /// In the check afterwards, read the data of all files too ([`CheckOptions::data`]).
    pub data: bool,
    /// Threads that read ahead, and that verify in the check afterwards ([`CheckOptions::jobs`]). What is done does not
    /// depend on it.
    pub jobs: usize,
}

setters!(RepairOptions { max_problems: usize, scavenge: bool, data: bool, jobs: usize });

impl Default for RepairOptions {
    fn default() -> Self {
        RepairOptions { max_problems: 1000, scavenge: false, data: false, jobs: 1 }
    }
}

/// Something that is wrong, and what a repair would do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Action {
    /// What kind of thing is wrong.
    pub class: Class,
    /// The structure it was found in.
    pub place: String,
    /// What is wrong with it.
    pub text: String,
    /// What is done about it.
    pub action: String,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {} [{}]", self.place, self.text, self.action, self.class.id())
    }
}

/// Asked before each change; `false` leaves the thing as it is. A change without which nothing else can go on ends
/// the repair when it is refused: then nothing has been written.
pub type Ask<'a> = &'a mut dyn FnMut(&Action) -> bool;

/// What a repair did.
#[derive(Clone, Debug, Serialize)]
pub struct Repaired {
    /// What was put right, in order; at most as many as the options say.
    pub actions: Vec<Action>,
    /// How many there were in all.
    pub actions_total: u64,
    /// Inodes that were given a name in lost+found.
    pub named: u64,
    /// Blocks of metadata written.
    pub blocks_written: u64,
    /// Fragments of contents that were copied, for files that shared them.
    pub fragments_copied: u64,
    /// Transactions of the log that were replayed first.
    pub replayed: u64,
    /// Walks through the tree.
    pub rounds: u32,
    /// The check of the result.
    pub after: Report,
}

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
    let log: Arc<dyn Device> = match (&log_dev, external) {
        (Some(log), true) => log.clone(),
        (None, false) => dev.clone(),
        (None, true) => return Error::invalid("the log is on another device, which was not given"),
        (Some(_), false) => return Error::invalid("a log device was given, but the log is inside the file system"),
    };
    if let Some((what, at)) = choice.instead {
        session.must(Class::Superblock, "superblock", what, &format!("restore it from the copy at byte {at}"))?;
        write_superblock(&*dev, &g, &sb)?;
        dev.flush()?;
    }
    let now = crate::mkfs::now_ns();
    let (header, replayed) = empty_log(&mut session, &dev, external.then_some(&log), &sb, &g, now)?;

    let reader = Reader::new(&*dev, g);
    let mut r = Repairer::new(session, Volume::new(&dev, &reader, g), &sb, g, now, progress);
    r.scavenging = options.scavenge;
    reader.reading_ahead(super::pool::threads(options.jobs) - 1, || r.work())?;
    let view: Arc<View> = r.vol.view.clone();
    let check_options = CheckOptions { max_problems: options.max_problems, data: options.data, jobs: options.jobs };
    let look = || check(view.clone(), external.then(|| log.clone()), &check_options, progress);
    let mut after = look()?;
    if after.by_class.contains_key(&Class::QuotaUsage) {
        // The one thing that only the check adds up: wrong although nothing that it follows from was.
        r.recount_quotas()?;
        after = look()?;
    }
    let copies = std::mem::take(&mut r.vol.copies);
    let (session, named, rounds) = (r.session, r.named, r.rounds);
    let mut blocks = std::mem::take(&mut *view.blocks.write());
    let mut blocks_written = 0;
    if !blocks.is_empty() || !copies.is_empty() {
        // Until all of it is home, nobody mounts this. That checksums are not to be trusted must not be forgotten.
        if sb.state != State::Unjournaled || !g.data_sums {
            sb.state = State::Error;
            write_superblock(&*dev, &g, &sb)?;
            dev.flush()?;
        }
        let seq = header.tail_seq + 1 + u64::from(crate::mkfs::random_u32()?);
        let mut writer = commit::Writer { dev: &*dev, log: &*log, sb: &sb, g, seq, header };
        blocks_written = writer.write(&copies, &mut blocks)?;
    }
    let state = if after.is_sound() { State::Clean } else { State::Error };
    if sb.state != state {
        sb.state = state;
        write_superblock(&*dev, &g, &sb)?;
        dev.flush()?;
    }
    after.state = super::report::state_name(state);
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

/// Whether there is a superblock to go by, be it a copy.
pub fn has_superblock(dev: &dyn Device, log_dev: Option<&dyn Device>) -> bool {
    start::choose(dev, log_dev).is_ok()
}

/// Replays the log and marks the file system as clean: all there is to do where a check has found nothing wrong, or after
/// a crash of a mount with a journal. Returns the number of transactions replayed.
///
/// # Errors
///
/// There is no good superblock, the log cannot be replayed or is on a device that was not given, or a device fails.
pub fn recover_log(dev: &dyn Device, log_dev: Option<&dyn Device>) -> Result<u64> {
    let mut sb = crate::mkfs::read_superblock(dev)?;
    start::writable(&sb)?;
    let g = Geometry::new(&sb)?;
    if (sb.incompat & INCOMPAT_EXTERNAL_LOG != 0) != log_dev.is_some() {
        return Error::invalid("the log device is missing, or one was given for a file system with its log inside");
    }
    let summary = replay(dev, log_dev, &sb, &g)?;
    let state = if summary.damaged.is_empty() { State::Clean } else { State::Error };
    if sb.state != state {
        dev.flush()?;
        sb.state = state;
        write_superblock(dev, &g, &sb)?;
        dev.flush()?;
    }
    match summary.damaged.first() {
        None => Ok(summary.transactions),
        Some(block) => {
            let n = summary.damaged.len();
            Err(crate::format::Corrupt(format!(
                "{n} blocks that the log has changes of are damaged, block {block} the first"
            ))
            .into())
        }
    }
}

/// Replays the log, or makes it empty if it cannot be replayed.
fn empty_log(
    session: &mut Session<'_>,
    dev: &Arc<dyn Device>,
    external: Option<&Arc<dyn Device>>,
    sb: &Superblock,
    g: &Geometry,
    now: i64,
) -> Result<(LogHeader, u64)> {
    let log: &dyn Device = external.map_or(&**dev, |l| &**l);
    if sb.state == State::Clean
        && start::log_header(log, sb).is_ok()
        && let Some(what) = super::recovered::lost_header(log, sb)?
    {
        // Replaying does so.
        session.must(Class::LogHeader, "log", what, "write it anew")?;
    }
    let mut unreadable = false;
    let what = match start::log_header(log, sb) {
        Err(what) => what,
        Ok(_) => match replay(&**dev, external.map(|l| &**l), sb, g) {
            Ok(summary) => return Ok((summary.header, summary.transactions)),
            Err(Error::Corrupt(c)) => c.0,
            // An error of the moment must not cost what the log holds; what cannot be read again is lost.
            Err(Error::Io(_)) => match replay_in_memory(dev, external, sb, g) {
                Err(e @ (Error::Io(_) | Error::Corrupt(_))) => {
                    unreadable = true;
                    e.to_string()
                }
                Err(e) => return Err(e),
                Ok(()) => {
                    return Err(Error::Io(std::io::Error::other(
                        "the device failed while the log was replayed: try again",
                    )));
                }
            },
            Err(e) => return Err(e),
        },
    };
    session.must(Class::LogHeader, "log", what, "make it empty; changes that are in it alone are lost")?;
    if unreadable {
        // A device gives bad sectors another place when they are written. The next mount reads the log.
        let (at, len) = log_extent(sb);
        let zeros = AlignedBuf::zeroed(1 << 20);
        for from in (0..len).step_by(zeros.len()) {
            let n = (len - from).min(zeros.len() as u64) as usize;
            log.write_at(IoKind::Log, at + from, &zeros[..n])?;
        }
        log.flush()?;
    }
    Ok((reset_headers(log, sb, 0, (now / 1000).max(1) as u64)?, 0))
}

/// Whether the log, and all that it changes, can be read.
fn replay_in_memory(
    dev: &Arc<dyn Device>,
    external: Option<&Arc<dyn Device>>,
    sb: &Superblock,
    g: &Geometry,
) -> Result<()> {
    let over = OverlayDevice::new(dev.clone());
    let log = external.map(|log| OverlayDevice::new(log.clone()));
    replay(&over, log.as_ref().map(|l| l as &dyn Device), sb, g).map(drop)
}

/// What is asked and told.
struct Session<'a> {
    ask: Ask<'a>,
    refused: HashSet<(Class, String, String)>,
    actions: Vec<Action>,
    total: u64,
    max: usize,
}

impl Session<'_> {
    fn fix(&mut self, class: Class, place: &str, text: String, action: &str) -> bool {
        let key = (class, place.to_string(), text.clone());
        if self.refused.contains(&key) {
            return false;
        }
        let a = Action { class, place: place.to_string(), text, action: action.to_string() };
        if !(self.ask)(&a) {
            self.refused.insert(key);
            return false;
        }
        self.note(a);
        true
    }

    fn must(&mut self, class: Class, place: &str, text: String, action: &str) -> Result<()> {
        if self.fix(class, place, text, action) {
            return Ok(());
        }
        Error::invalid(format!("{place}: nothing else can be repaired without this; nothing was changed"))
    }

    fn note(&mut self, a: Action) {
        self.total += 1;
        if self.actions.len() < self.max {
            self.actions.push(a);
        }
    }
}

fn no_space(what: &str) -> Error {
    Error::Invalid(format!("no space left for {what}: make room, or repair a copy on a larger device"))
}

/// What is known of an inode.
#[derive(Clone, Copy, Debug)]
struct Known {
    block: BlockAddr,
    /// Of the entry, or of the slot.
    offset: u32,
    external: bool,
    file_type: FileType,
    generation: u32,
    btime: i64,
    /// Names found that lead to it.
    names: u32,
}

impl Known {
    fn of(inode: &Inode) -> Known {
        Known {
            block: 0,
            offset: 0,
            external: false,
            file_type: inode.file_type(),
            generation: inode.generation,
            btime: inode.btime,
            names: 0,
        }
    }
}

/// An inode that waits for a name in lost+found.
struct Disconnected {
    ino: Ino,
    file_type: FileType,
    /// The inode, if it stands nowhere any more.
    inode: Option<Box<Inode>>,
    /// The directory and the name it had.
    from: Ino,
    name: Option<String>,
}

struct Repairer<'a> {
    session: Session<'a>,
    vol: Volume<'a>,
    rounds: u32,
    sb: Superblock,
    g: Geometry,
    now: i64,
    progress: Progress<'a>,
    /// Numbers above this are not possible: there is no room for so many inodes.
    ino_max: Ino,
    /// System area and log.
    fixed: Intervals,
    /// All space that somebody claims.
    used: Intervals,
    /// The part of it that says itself whose it is.
    meta: Intervals,
    /// The part of it that was claimed more than once.
    shared: Intervals,
    inodes: HashMap<Ino, Known>,
    walked: HashSet<Ino>,
    /// A directory could not be walked.
    incomplete: bool,
    /// Directories that no name leads to, other than from below them.
    unreachable_roots: HashSet<Ino>,
    /// Maps to be written, and the number that the old nodes carry where it is another.
    remap: BTreeMap<Ino, Vec<Extent>>,
    remap_owner: HashMap<Ino, Ino>,
    reindex: Vec<Ino>,
    disconnected: Vec<Disconnected>,
    disconnected_inos: HashSet<Ino>,
    external_map: Map,
    external_blocks: BTreeMap<u64, BlockAddr>,
    locator_map: Map,
    old_locator: OldLocator,
    old_bitmap: Option<(u64, u64, Option<Vec<u8>>)>,
    named: u64,
    /// Everything that looks like one of ours is believed to be.
    scavenging: bool,
    max_ino: Ino,
    damaged_maps: HashSet<Ino>,
    tried_blocks: HashSet<BlockAddr>,
    guessed: HashSet<Ino>,
    /// Their own numbers contradict each other: the map is what is wrong, or the number.
    inconsistent: HashSet<Ino>,
    alloc_cursor: u64,
}

impl<'a> Repairer<'a> {
    fn new(
        session: Session<'a>,
        vol: Volume<'a>,
        sb: &Superblock,
        g: Geometry,
        now: i64,
        progress: Progress<'a>,
    ) -> Self {
        let fpb = g.frags_per_block();
        let mut fixed = Intervals::default();
        fixed.insert(g.sys_start * fpb, (g.sys_start + g.sys_blocks()) * fpb);
        if sb.log_start != 0 {
            fixed.insert(sb.log_start * fpb, (sb.log_start + sb.log_blocks) * fpb);
        }
        Repairer {
            session,
            vol,
            rounds: 0,
            sb: sb.clone(),
            g,
            now,
            progress,
            ino_max: g.inodes_max(),
            fixed,
            used: Intervals::default(),
            meta: Intervals::default(),
            shared: Intervals::default(),
            inodes: HashMap::new(),
            walked: HashSet::new(),
            incomplete: false,
            unreachable_roots: HashSet::new(),
            remap: BTreeMap::new(),
            remap_owner: HashMap::new(),
            reindex: Vec::new(),
            disconnected: Vec::new(),
            disconnected_inos: HashSet::new(),
            external_map: Map::default(),
            external_blocks: BTreeMap::new(),
            locator_map: Map::default(),
            old_locator: OldLocator::default(),
            old_bitmap: None,
            named: 0,
            scavenging: false,
            max_ino: 0,
            damaged_maps: HashSet::new(),
            tried_blocks: HashSet::new(),
            guessed: HashSet::new(),
            inconsistent: HashSet::new(),
            alloc_cursor: 0,
        }
    }

    /// Finds out what is to change.
    fn work(&mut self) -> Result<()> {
        self.survey()?;
        for n in 1..=ROUNDS_MAX {
            // The last one ends with what there is: another repair goes on from there.
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
            // While something could not be walked, what is below it only seems to be lost.
            let complete = !self.incomplete && self.disconnected_inos.is_empty();
            if !self.reattach(complete)? {
                break;
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
        for ino in std::mem::take(&mut self.reindex) {
            self.rebuild_index(ino)?;
        }
        self.reconnect()?;
        self.finish_external()?;
        let changed = self.vol.changes != before || self.reattach(true)?;
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
        self.used = Intervals::default();
        self.meta = Intervals::default();
        self.shared = Intervals::default();
        self.inodes.clear();
        self.walked.clear();
        self.incomplete = false;
        self.unreachable_roots.clear();
        self.remap.clear();
        self.remap_owner.clear();
        self.reindex.clear();
        self.disconnected.clear();
        self.disconnected_inos.clear();
        self.external_map = Map::default();
        self.external_blocks.clear();
        self.locator_map = Map::default();
        self.old_locator = OldLocator::default();
        self.old_bitmap = None;
    }

    /// One walk through everything that names and tables lead to.
    fn walk_all(&mut self) -> Result<()> {
        self.read_old_locator();
        self.external_table()?;
        self.quota_files()?;
        if let Some(mut root) = self.load(ROOT_INO) {
            let before = root.clone();
            self.contents(&mut root, ROOT_INO, walk::Role::External)?;
            if root != before {
                self.store(&root);
            }
        }
        self.walk_tree(ROOT_INO, ROOT_INO)?;
        let roots = self.unreachable_roots();
        for ino in roots {
            if !self.walked.contains(&ino) && self.load(ino).is_some_and(|i| i.nlink > 0 || self.has_names(&i)) {
                // Its name will be the one in lost+found: a link from below it would be a second one.
                self.unreachable_roots.insert(ino);
                if let Some(k) = self.inodes.get_mut(&ino) {
                    k.names = 1;
                }
                let parent = self.load(ino).map_or(ROOT_INO, |i| i.parent);
                self.walk_tree(ino, parent)?;
            }
        }
        self.external_links()
    }

    /// Asks whether to change something. Never asks, and never changes, while only looking.
    fn fix(&mut self, class: Class, place: &str, text: String, action: &str) -> Result<bool> {
        Ok(!self.vol.surveying && self.session.fix(class, place, text, action))
    }

    /// The same for something that all else depends on.
    fn must_fix(&mut self, class: Class, place: &str, text: String, action: &str) -> Result<()> {
        if self.vol.surveying { Ok(()) } else { self.session.must(class, place, text, action) }
    }

    fn note(&mut self, class: Class, place: &str, text: String, action: &str) {
        let action = Action { class, place: place.to_string(), text, action: action.to_string() };
        self.session.note(action);
    }

    fn report_progress(&self, phase: Phase, done: u64, total: u64) {
        (self.progress)(phase, done, total.max(done));
    }

    fn report_tree_progress(&self) {
        self.report_progress(Phase::Tree, self.inodes.len() as u64, self.inodes.len() as u64);
    }

    /// Reads an inode where it stands.
    fn load(&mut self, ino: Ino) -> Option<Inode> {
        if (ROOT_INO..=LAST_SYSTEM_INO).contains(&ino) {
            let (addr, offset) = self.g.system_inode(ino);
            let b = self.vol.meta(BlockId { kind: BlockKind::SystemInodes, addr, owner: 0 }).ok()?;
            return Inode::decode(&b[offset..offset + INODE_SLOT_SIZE]).ok().filter(|i| i.ino == ino);
        }
        let k = *self.inodes.get(&ino)?;
        self.load_from(ino, k.block, k.offset as usize, k.external)
    }

    /// Reads an inode of which it is said where it stands.
    fn load_from(&mut self, ino: Ino, block: BlockAddr, offset: usize, external: bool) -> Option<Inode> {
        let b = self.vol.get(block).ok()?;
        let (from, to) = self.room(&b, block, offset, external)?;
        Inode::decode(&b[from..to]).ok().filter(|i| i.ino == ino)
    }

    /// Where the bytes of an inode are in its block.
    fn room(&self, b: &[u8], addr: BlockAddr, offset: usize, external: bool) -> Option<(usize, usize)> {
        if external {
            let id = BlockId { kind: BlockKind::ExternalInodes, addr, owner: EXTERNAL_INO };
            verify_block(b, self.g.fsid, id).ok()?;
            return (offset + INODE_SLOT_SIZE <= b.len()).then_some((offset, offset + INODE_SLOT_SIZE));
        }
        validate(b).ok()?;
        let e = block_entries(b).find(|e| e.offset >= offset).filter(|e| e.offset == offset)?;
        Some((e.inode_offset(), e.offset + e.len))
    }

    /// Writes an inode where it stands.
    fn store(&mut self, inode: &Inode) {
        if self.vol.surveying {
            return;
        }
        let place = if (ROOT_INO..=LAST_SYSTEM_INO).contains(&inode.ino) {
            let (addr, offset) = self.g.system_inode(inode.ino);
            self.vol.get(addr).ok().map(|b| (addr, b, (offset, offset + INODE_SLOT_SIZE)))
        } else {
            self.inodes.get(&inode.ino).copied().and_then(|k| {
                let b = self.vol.get(k.block).ok()?;
                let room = self.room(&b, k.block, k.offset as usize, k.external)?;
                Some((k.block, b, room))
            })
        };
        let Some((addr, mut b, (from, to))) = place else { return };
        if inode.encoded_len() <= to - from {
            inode.encode(&mut b[from..from + inode.encoded_len()]);
            self.vol.put(addr, b);
        }
    }
}
