//! Writeback: dirty data gets its places, goes home, and the inodes learn of it.
//!
//! In this order: places are taken in memory; the data is written; then a transaction tells bitmap, extents and inode.
//! So whatever a commit makes durable points to data that left for the device before it. An fsync of a small file takes
//! another way: the same places, but the data goes into the log with the transaction ([`through_log`]).
//!
//! What a program adds to a long file is told of later, together ([`super::deferred`]).
//!
//! Where data has checksums they come between data and extents, and what is overwritten in its place has none while that
//! happens (see [`crate::sums`]).

use super::{FileCtx, deferred};
use crate::cache::{AddrMap, BufRef, DataRun, Source};
use crate::error::{Error, Result};
use crate::extent::{self, Mapping};
use crate::format::dirblock::BlockEdit;
use crate::format::inode::{INLINE_MAX, INODE_CORE_SIZE};
use crate::format::{Extent, FileType, Ino, InodeFormat};
use crate::inode::{self, Node, NodeState};
use crate::journal::Txn;
use crate::placement::{LONG, Placed};
use crate::reservation::Reservation;
use crate::space::Run;
use crate::sums::{ChecksumRun, PinnedTables, Sums};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Data written in one go, in bytes; bounds the memory that writeback holds on to.
const BATCH_BYTES: usize = 32 << 20;
/// Most bytes of a file for which room is looked for beyond what is being written.
pub(super) const AHEAD_MAX: u64 = 32 << 20;
/// Extents told in one transaction.
pub(super) const EXTENTS_PER_TXN: usize = 16;

/// What of one file is on its way.
pub(super) struct Job<'a> {
    pub(super) node: Arc<Node>,
    /// Pages taken: index, what was dirty, what was reserved.
    pub(super) pages: Vec<(u64, Range<usize>, u64)>,
    /// What was reserved for all of it; none for deferred extents, whose reservation is the file's.
    pub(super) reservation: Option<Reservation>,
    pub(super) runs: Vec<DataRun<'a>>,
    /// Places to be told of, in the order of the file: new ones, and parts of unwritten extents (marked as such) that become
    /// written.
    pub(super) extents: Vec<Extent>,
    /// Places that the file has already, unwritten ones among them.
    overwritten: Vec<Run>,
    /// Size when the pages were taken; of a program's own write, the size that it makes.
    pub(super) size: u64,
    /// The bytes are not in pages but still with the program that writes them ([`super::direct`]): the time of that.
    by_caller: Option<i64>,
    /// The places stay deferred once they are written ([`super::deferred`]); up to where nothing is mapped behind them.
    pub(super) later: Option<u64>,
    /// The places are those that the node has deferred: the bytes are there.
    of_deferred: bool,
    /// The contents, where they fit the inode.
    inline: Option<Vec<u8>>,
    /// New blocks made in the cache for data that goes through the log.
    fresh: Vec<BufRef>,
    /// What is written stays in the cache.
    keep: bool,
    bytes: usize,
}

impl<'a> Job<'a> {
    /// Nothing yet, of a file that gets the given size.
    fn new(node: Arc<Node>, size: u64, keep: bool) -> Job<'a> {
        Job {
            node,
            pages: Vec::new(),
            reservation: None,
            runs: Vec::new(),
            extents: Vec::new(),
            overwritten: Vec::new(),
            size,
            by_caller: None,
            later: None,
            of_deferred: false,
            inline: None,
            fresh: Vec::new(),
            keep,
            bytes: 0,
        }
    }

    /// What a program writes into a hole or at the end of a file, which has so many fragments reserved for it.
    pub(super) fn by_caller(
        node: Arc<Node>,
        size: u64,
        first_page: u64,
        reservation: Reservation,
        now: i64,
        later: Option<u64>,
    ) -> Job<'a> {
        Job {
            pages: vec![(first_page, 0..0, reservation.uncharged())],
            reservation: Some(reservation),
            by_caller: Some(now),
            later,
            ..Job::new(node, size, false)
        }
    }

    /// A run was allocated for what the file has at this fragment.
    pub(super) fn allocated(&mut self, logical: u64, run: Run) {
        if let Some(reservation) = &self.reservation {
            reservation.allocated(run.len);
        }
        self.extents.push(Extent { logical, start: run.start, len: run.len, unwritten: false });
    }
}

/// Outcome of taking a file's pages.
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
enum Taken {
    /// Nothing to do.
    Nothing,
    Job(Job<'static>),
    /// Space is there, but only after the next commit.
    NeedsCommit,
}

/// A piece of a file without a place: logical fragments, and the pages that hold them.
struct Unplaced {
    logical: u64,
    len: u64,
}

/// The order of the name space: by directory, then by position in it.
fn name_space_order(node: &Node) -> (u64, u64, usize) {
    let st = node.state.read();
    match st.home {
        inode::Home::Embedded { block, entry, .. } => (st.inode.parent, block, entry),
        inode::Home::External { block, offset } => (st.inode.parent, block, offset),
        inode::Home::System => (0, 0, 0),
    }
}

/// Writes back what the nodes have, placing their files in the order of the name space. Errors are kept in the nodes for
/// fsync; the first is returned too.
pub fn write_back(cx: &FileCtx<'_>, nodes: Vec<Arc<Node>>) -> Result<()> {
    let mut ordered: Vec<_> = nodes.into_iter().map(|n| (name_space_order(&n), n)).collect();
    ordered.sort_by_key(|(k, _)| *k);
    let coming = coming(cx, ordered.iter().map(|(_, n)| n));
    cx.placement.expect(&coming);
    let outcome = write_ordered(cx, ordered.into_iter().map(|(_, n)| n));
    cx.placement.expect_no_more(&coming);
    outcome
}

/// Bytes of the fragments that new small files will have, by directory.
fn coming<'a>(cx: &FileCtx<'_>, nodes: impl Iterator<Item = &'a Arc<Node>>) -> AddrMap<Ino, u64> {
    let g = *cx.cache.geometry();
    let mut coming = AddrMap::default();
    for node in nodes {
        let st = node.state.read();
        let placed = !matches!(&st.inode.format, InodeFormat::Inline(_)) && st.inode.frags > 0;
        let size = st.inode.size;
        if !placed && size <= cx.placement.small_max() && st.inode.file_type() == FileType::Regular {
            *coming.entry(st.inode.parent).or_default() += g.frags_for(size) << g.frag_shift;
        }
    }
    coming
}

fn write_ordered(cx: &FileCtx<'_>, nodes: impl Iterator<Item = Arc<Node>>) -> Result<()> {
    let mut first_error = None;
    let mut jobs = Vec::new();
    let mut bytes = 0;
    let mut iter = nodes.peekable();
    while let Some(node) = iter.next() {
        match take_with_retry(cx, &node, false) {
            Ok(Some(job)) => {
                bytes += job.bytes;
                jobs.push(job);
            }
            Ok(None) => {}
            Err(e) => {
                tracing::error!("writeback of inode {}: {e}", node.ino);
                first_error.get_or_insert(e);
            }
        }
        if bytes >= BATCH_BYTES || iter.peek().is_none() {
            bytes = 0;
            if let Err(e) = write_jobs(cx, std::mem::take(&mut jobs)) {
                first_error.get_or_insert(e);
            }
        }
    }
    first_error.map_or(Ok(()), Err)
}

fn take_with_retry(cx: &FileCtx<'_>, node: &Arc<Node>, for_log: bool) -> Result<Option<Job<'static>>> {
    let mut strict = None;
    for _ in 0..super::COMMITS_FOR_SPACE {
        match take(cx, node, for_log)? {
            Taken::Nothing => return Ok(None),
            Taken::Job(job) => return Ok(Some(job)),
            // Freed space counts as free at once but can be used only when its freeing is durable. Nobody else gets a
            // promise of it meanwhile.
            Taken::NeedsCommit => {
                strict.get_or_insert_with(|| cx.space.strict());
                cx.journal.commit()?;
            }
        }
    }
    let e = Error::NoSpace;
    node.state.write().data.error = Some(e.duplicate());
    Err(e)
}

/// Takes the dirty pages of a file and finds places for them.
fn take(cx: &FileCtx<'_>, node: &Arc<Node>, for_log: bool) -> Result<Taken> {
    let (mut guard, mut busy) = node.lock_for_writeback();
    let st = &mut *guard;
    // A file without a name goes away with its last reference; until then its data must be able to leave memory.
    let held = node.refs.load(std::sync::atomic::Ordering::Acquire) > 0;
    if st.dead || (st.orphan && !held) {
        return Ok(Taken::Nothing);
    }
    let accessed = node.accessed.swap(i64::MIN, Ordering::Relaxed);
    if accessed > st.inode.atime {
        st.inode.atime = accessed;
        st.dirty = true;
    }
    if st.data.is_mapped() && !st.dirty {
        return Ok(Taken::Nothing);
    }
    let keep = !cx.cache.is_large(st.inode.size);
    let mut job = Job { pages: st.data.take_dirty(), ..Job::new(node.clone(), st.inode.size, keep) };
    job.bytes = job.pages.iter().map(|(_, dirty, _)| dirty.len()).sum();
    st.data.in_flight = job.pages.iter().map(|(_, _, reserved)| reserved).sum();
    let in_flight = st.data.in_flight;
    job.reservation = (!job.pages.is_empty()).then(|| st.data.reservation(cx).split(in_flight));
    if !st.data.deferred.is_empty() {
        debug_assert!(job.pages.is_empty(), "pages of a file that has deferred places");
        (job.extents, job.of_deferred) = (st.data.deferred.extents().to_vec(), true);
        *busy = true;
        return Ok(Taken::Job(job));
    }
    let began = cx.space.moment();
    if let Err(e) = place(cx, st, &mut job, for_log) {
        let more = cx.space.more_since(began);
        abort(cx, st, &mut job);
        if matches!(e, Error::NoSpace) && more {
            return Ok(Taken::NeedsCommit);
        }
        st.data.error.get_or_insert(e.duplicate());
        return Err(e);
    }
    *busy = true;
    Ok(Taken::Job(job))
}

/// Finds places for the pages of a job, and lists what is to be written where.
fn place(cx: &FileCtx<'_>, st: &mut NodeState, job: &mut Job<'_>, for_log: bool) -> Result<()> {
    let g = *cx.cache.geometry();
    let fs = g.frag_size();
    let no_space_yet = match &st.inode.format {
        InodeFormat::Inline(_) => true,
        InodeFormat::Extents(list) => list.is_empty(),
        InodeFormat::Tree { .. } => false,
    };
    let fits = st.inode.file_type() == FileType::Regular && st.inode.size as usize <= st.inode.data_room();
    if no_space_yet && fits && !job.pages.is_empty() {
        let mut bytes = vec![0; st.inode.size as usize];
        if let Some(p) = st.data.pages.get(&0) {
            let n = bytes.len().min(p.bytes.len());
            bytes[..n].copy_from_slice(&p.bytes[..n]);
        }
        job.inline = Some(bytes);
        return Ok(());
    }
    let mut unplaced: Vec<Unplaced> = Vec::new();
    let mut mapped: Vec<(u64, Run)> = Vec::new();
    let mut converted: Vec<Extent> = Vec::new();
    // Where the unwritten extent of the last one ends: each piece is of one extent, so that it is in one leaf.
    let mut piece_of = 0;
    for (index, dirty, _) in &job.pages {
        let base = (index << g.block_shift) >> g.frag_shift;
        let mut at = base + (dirty.start / fs) as u64;
        let end = base + dirty.end.div_ceil(fs) as u64;
        while at < end {
            let (until, start) = match &st.inode.format {
                InodeFormat::Inline(_) => (end, None),
                _ => match extent::lookup(cx.cache, &st.inode, at)? {
                    Mapping::Data(e) => {
                        let (until, start) = (e.end().min(end), e.start + (at - e.logical));
                        if e.unwritten {
                            match converted.last_mut() {
                                Some(c) if c.end() == at && piece_of == e.end() => c.len += until - at,
                                _ => converted.push(Extent { logical: at, start, len: until - at, unwritten: true }),
                            }
                            piece_of = e.end();
                        }
                        (until, Some(start))
                    }
                    Mapping::Hole { until } => (until.min(end), None),
                },
            };
            match start {
                Some(start) => mapped.push((at, Run { start, len: until - at })),
                None => match unplaced.last_mut() {
                    Some(u) if u.logical + u.len == at => u.len += until - at,
                    _ => unplaced.push(Unplaced { logical: at, len: until - at }),
                },
            }
            at = until;
        }
    }
    for (logical, run) in mapped {
        add_runs(&g, st, job, logical, run);
        if cx.sums.is_some() {
            job.overwritten.push(run);
        }
    }
    let small = st.inode.size <= cx.placement.small_max();
    for u in unplaced {
        let (mut logical, mut left) = (u.logical, u.len);
        while left > 0 {
            let placed = if small {
                cx.placement.place_small(st.inode.parent, left, for_log.then_some(cx.cache), &mut job.fresh)?
            } else {
                let last = job.extents.last().map(|e| e.start + e.len);
                let after = match last {
                    Some(end) => Some(end),
                    None if logical > 0 => match extent::lookup(cx.cache, &st.inode, logical - 1)? {
                        Mapping::Data(e) => Some(e.start + (logical - e.logical)),
                        Mapping::Hole { .. } => None,
                    },
                    None => None,
                };
                // What is long already may well become as long again; holes do not make a file long.
                let has = |job: &Job<'_>| st.inode.frags + job.extents.iter().map(|e| e.len).sum::<u64>();
                let so_far = if logical << g.frag_shift < LONG { 0 } else { logical.min(has(job)) << g.frag_shift };
                match so_far {
                    so_far if so_far < LONG => cx.placement.place_large(st.inode.parent, after, left)?,
                    so_far => {
                        let ahead = so_far.min(AHEAD_MAX) >> g.frag_shift;
                        cx.placement.place_stream(st.inode.parent, after, left, ahead)?
                    }
                }
            };
            let Some(Placed { run }) = placed else { return Err(Error::NoSpace) };
            job.allocated(logical, run);
            add_runs(&g, st, job, logical, run);
            logical += run.len;
            left -= run.len;
        }
    }
    if !converted.is_empty() {
        job.extents.append(&mut converted);
        job.extents.sort_unstable_by_key(|e| e.logical);
    }
    Ok(())
}

/// Lists the bytes of a run of logical fragments, page by page.
fn add_runs(g: &crate::format::Geometry, st: &NodeState, job: &mut Job<'_>, logical: u64, run: Run) {
    let fs = g.frag_size();
    let fpb = g.frags_per_block();
    let mut at = logical;
    while at < logical + run.len {
        let page = at / fpb;
        let n = ((page + 1) * fpb).min(logical + run.len) - at;
        if let Some(p) = st.data.pages.get(&page) {
            let from = (at - page * fpb) as usize * fs;
            let frag = run.start + (at - logical);
            job.runs.push(DataRun {
                frag,
                bytes: Source::Page(p.bytes.clone()),
                from,
                len: n as usize * fs,
                keep: job.keep,
            });
        }
        at += n;
    }
}

/// Undoes [`take`]: pages are dirty again, places that nobody was told of are given back, or stay deferred. The node is
/// locked.
pub(super) fn abort(cx: &FileCtx<'_>, st: &mut NodeState, job: &mut Job<'_>) {
    (st.data.in_flight, st.data.taken) = (0, 0);
    job.fresh.drain(..).for_each(|b| cx.cache.release_new(&b));
    let of_deferred = job.of_deferred;
    for e in job.extents.drain(..).filter(|e| !e.unwritten && !of_deferred) {
        cx.space.cancel(Run { start: e.start, len: e.len });
        if let Some(reservation) = &job.reservation {
            reservation.deallocated(e.len);
        }
    }
    if let Some(reservation) = job.reservation.take() {
        st.data.reservation(cx).merge(reservation);
    }
    for (index, dirty, reserved) in job.pages.drain(..) {
        let kept = st.data.change_page(index, |p| {
            p.writing = false;
            p.dirty =
                if p.dirty.is_empty() { dirty } else { p.dirty.start.min(dirty.start)..p.dirty.end.max(dirty.end) };
            p.reserved += reserved;
        });
        if kept.is_none() {
            st.data.release(reserved);
        }
    }
}

pub(super) fn end_writeback(node: &Node) {
    *node.in_writeback.lock() = false;
    node.writeback_done.notify_all();
}

pub(super) fn write_jobs(cx: &FileCtx<'_>, mut jobs: Vec<Job<'_>>) -> Result<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let in_log = jobs
        .iter()
        .flat_map(|j| &j.runs)
        .any(|r| cx.journal.data_in_log(Run { start: r.frag, len: (r.len >> cx.cache.geometry().frag_shift) as u64 }));
    // A replay would undo what is written over logged data: the log is emptied first.
    let checkpoint = if in_log { cx.journal.checkpoint() } else { Ok(()) };
    let mut outcome = Ok(());
    let mut summed = Vec::new();
    let mut tables = PinnedTables::default();
    if let Some(sums) = cx.sums {
        jobs.retain_mut(|job| match sum_up(cx, sums, job, &mut tables) {
            Ok(mut of_job) => {
                summed.append(&mut of_job);
                true
            }
            Err(e) => {
                outcome = fail(cx, job, e);
                false
            }
        });
    }
    let mut runs: Vec<DataRun<'_>> = jobs.iter_mut().flat_map(|j| std::mem::take(&mut j.runs)).collect();
    let suspend = || match cx.sums {
        Some(sums) => sums.invalidate(cx.journal, &tables, jobs.iter().flat_map(|j| j.overwritten.iter().copied())),
        None => Ok(()),
    };
    let store = || match cx.sums {
        Some(sums) => sums.store(cx.journal, &tables, &summed.iter().collect::<Vec<_>>()),
        None => Ok(()),
    };
    let written =
        checkpoint.and_then(|()| suspend()).and_then(|()| cx.cache.write_data(&mut runs)).and_then(|()| store());
    drop(runs);
    for mut job in jobs {
        let told = match &written {
            Ok(()) => tell(cx, &mut job),
            Err(e) => Err(e.duplicate()),
        };
        match told {
            Ok(()) => end_writeback(&job.node),
            Err(e) => outcome = fail(cx, &mut job, e),
        }
    }
    outcome
}

/// Ends a job that cannot be done: what is not known to be in its place stays dirty, so that no later fsync takes it for
/// written.
fn fail(cx: &FileCtx<'_>, job: &mut Job<'_>, e: Error) -> Result<()> {
    let node = job.node.clone();
    {
        let mut st = node.state.write();
        abort(cx, &mut st, job);
        // The program that waits for this has the bytes still, and goes on otherwise.
        if job.by_caller.is_none() {
            tracing::error!("writeback of inode {}: {e}", node.ino);
            st.data.error.get_or_insert(e.duplicate());
        }
    }
    end_writeback(&node);
    Err(e)
}

/// The checksums of what a job writes, and the tables that they go to.
fn sum_up(cx: &FileCtx<'_>, sums: &Sums, job: &Job, tables: &mut PinnedTables) -> Result<Vec<ChecksumRun>> {
    let fs = cx.cache.geometry().frag_size();
    let mut all: Vec<ChecksumRun> = Vec::new();
    for r in &job.runs {
        let mut summed = ChecksumRun::of(r.frag, &r.bytes[r.from..r.from + r.len], fs);
        match all.last_mut() {
            Some(last) if last.frag + last.sums.len() as u64 == r.frag => last.sums.append(&mut summed.sums),
            _ => all.push(summed),
        }
    }
    for s in &all {
        sums.pin_or_create(cx.journal, tables, Run { start: s.frag, len: s.sums.len() as u64 })?;
    }
    Ok(all)
}

/// Most bytes that telling of these extents logs.
pub(super) fn log_bytes_for_mapping(cx: &FileCtx<'_>, node: &Node, extents: &[Extent]) -> usize {
    let g = cx.cache.geometry();
    let st = node.state.read();
    let inode = &st.inode;
    // A part of an unwritten extent may leave a rest on both sides.
    let more = extents.iter().map(|e| 1 + usize::from(e.unwritten)).sum::<usize>();
    let simple = matches!(&inode.format, InodeFormat::Extents(l) if l.len() + more <= inode.root_capacity())
        || matches!(inode.format, InodeFormat::Inline(_)) && more <= inode.root_capacity();
    let insert = if simple {
        0
    } else {
        // The tree may get a root and a level while these are inserted.
        extent::log_bytes_for_convert(g, cx.space, inode) + 4 * (g.block_size() + 64) + 4 * cx.space.log_bytes(64)
    };
    let bits: usize = extents.iter().map(|e| cx.space.log_bytes(e.len) + insert).sum();
    INODE_CORE_SIZE + INLINE_MAX + 64 + bits + cx.space.log_bytes_for_init()
}

/// After the data is written: extents, bitmap, size. After an error the job holds what was not told.
fn tell(cx: &FileCtx<'_>, job: &mut Job<'_>) -> Result<()> {
    let limit = cx.journal.reserve_max() / 4;
    let node = job.node.clone();
    if let Some(free_until) = job.later {
        let mut st = node.state.write();
        if st.dead {
            abort(cx, &mut st, job);
        } else {
            grow_by_caller(&mut st, job, job.size);
            deferred::keep(cx, &mut st, job, free_until);
        }
        return Ok(());
    }
    if cx.lazy && job.extents.is_empty() && job.inline.is_none() {
        let mut st = node.state.write();
        if !st.dead && st.disk_size == job.size && st.inode.size == job.size {
            // Written over: the inode has nothing new but times, and stays dirty.
            finish_pages(cx, &mut st, job);
            return Ok(());
        }
    }
    loop {
        let mut n = job.extents.len().min(EXTENTS_PER_TXN);
        while n > 1 && log_bytes_for_mapping(cx, &node, &job.extents[..n]) > limit {
            n /= 2;
        }
        let txn = cx.journal.begin(log_bytes_for_mapping(cx, &node, &job.extents[..n]))?;
        let mut st = node.state.write();
        if st.dead {
            // Removed meanwhile: where its inode stood another's may stand.
            abort(cx, &mut st, job);
            return Ok(());
        }
        if n == job.extents.len() {
            return commit_rest(cx, &txn, &mut st, job);
        }
        let end = job.extents.get(n).map_or(job.size, |e| e.logical << cx.cache.geometry().frag_shift);
        insert_extents(cx, &txn, &mut st, job, n)?;
        // All before the next extent is written: no extent lies beyond the end that the device shows.
        st.disk_size = st.disk_size.max(end.min(job.size));
        inode::store(&txn, &mut st)?;
    }
}

/// What a transaction has told of a job.
#[derive(Default)]
struct Told {
    /// Fragments that have become the inode's.
    frags: u64,
    /// Where the last of the extents ends.
    end: u64,
}

/// Tells of the first `n` extents of a job, takes them from it and ends the reservation for them. After an error the
/// inode is stored with those that were told before it: the extent tree and the root in the inode change together or not
/// at all.
fn insert_extents(cx: &FileCtx<'_>, txn: &Txn<'_>, st: &mut NodeState, job: &mut Job<'_>, n: usize) -> Result<()> {
    // The tree takes its blocks from what was reserved for it.
    txn.draw_on(st.data.reservation(cx));
    let inline = matches!(st.inode.format, InodeFormat::Inline(_)).then(|| st.inode.format.clone());
    let mut told = Told::default();
    let outcome = insert_funded(cx, txn, st, job, n, &mut told);
    convert(st, job, told.frags);
    let Err(e) = outcome else { return Ok(()) };
    match inline {
        Some(inline) if told.end == 0 => st.inode.format = inline,
        _ => {
            st.disk_size = st.disk_size.max((told.end << cx.cache.geometry().frag_shift).min(job.size));
            grow_by_caller(st, job, st.disk_size);
            inode::store(txn, st)?;
        }
    }
    Err(e)
}

fn insert_funded(
    cx: &FileCtx<'_>,
    txn: &Txn<'_>,
    st: &mut NodeState,
    job: &mut Job<'_>,
    n: usize,
    told: &mut Told,
) -> Result<()> {
    if matches!(st.inode.format, InodeFormat::Inline(_)) && n > 0 {
        st.inode.format = InodeFormat::Extents(Vec::new());
    }
    for at in 0..n {
        let e = job.extents[at];
        let run = Run { start: e.start, len: e.len };
        if e.unwritten {
            if let Err(e) = make_written(txn, cx, st, e) {
                job.extents.drain(..at);
                return Err(e);
            }
            told.end = e.end();
            continue;
        }
        if job.of_deferred {
            if let Err(e) = commit_deferred(txn, cx, st, e) {
                job.extents.drain(..at);
                return Err(e);
            }
            (told.frags, told.end) = (told.frags + e.len, e.end());
            continue;
        }
        // The bitmap first: if the second step fails a run is lost, and not given to two files.
        if let Err(e) = cx.space.commit_alloc(txn, run) {
            job.extents.drain(..at);
            return Err(e);
        }
        if let Err(e) = extent::insert(txn, cx.space, &mut st.inode, e) {
            txn.free_data(run);
            // Its page still counts on it.
            if let Some(reservation) = &job.reservation {
                reservation.deallocated(run.len);
            }
            if let Err(e) = cx.space.uncommit_alloc(txn, run) {
                tracing::error!("{run} of inode {} is lost until fsck: {e}", st.inode.ino);
            }
            job.extents.drain(..=at);
            return Err(e);
        }
        told.frags += e.len;
        told.end = e.end();
    }
    job.extents.drain(..n);
    Ok(())
}

/// The inode gets an extent that was deferred. Its bytes are there and nowhere else: an error leaves it deferred.
fn commit_deferred(txn: &Txn<'_>, cx: &FileCtx<'_>, st: &mut NodeState, e: Extent) -> Result<()> {
    let run = Run { start: e.start, len: e.len };
    cx.space.prepare_commit(run)?;
    // Fails before it changes anything.
    extent::insert(txn, cx.space, &mut st.inode, e)?;
    cx.space.commit_alloc(txn, run).inspect_err(|e| cx.journal.fail("an extent is not in the bitmap", e))
}

/// Ends what the pages of a job have reserved for so many fragments: those are the inode's.
fn convert(st: &mut NodeState, job: &mut Job<'_>, frags: u64) {
    if job.of_deferred {
        return st.data.note_committed(frags);
    }
    let mut left = frags;
    for (_, _, reserved) in &mut job.pages {
        let n = left.min(*reserved);
        *reserved -= n;
        left -= n;
    }
    debug_assert_eq!(left, 0, "fragments placed that no page had reserved");
    st.data.in_flight = st.data.in_flight.saturating_sub(frags);
    if let Some(reservation) = &job.reservation {
        reservation.charge(frags);
    }
}

/// A part of an unwritten extent has its contents.
fn make_written(txn: &Txn<'_>, cx: &FileCtx<'_>, st: &mut NodeState, e: Extent) -> Result<()> {
    let mut at = e.logical;
    while at < e.end() {
        at = extent::convert(txn, cx.space, &mut st.inode, at..e.end(), false)?;
    }
    Ok(())
}

fn commit_rest(cx: &FileCtx<'_>, txn: &Txn<'_>, st: &mut NodeState, job: &mut Job<'_>) -> Result<()> {
    insert_extents(cx, txn, st, job, job.extents.len())?;
    if let Some(bytes) = job.inline.take() {
        st.inode.format = InodeFormat::Inline(bytes);
    }
    grow_by_caller(st, job, job.size);
    // A file that is being cut has extents up to a greater size on the device. A directory's size is its own business:
    // it may have shrunk since its times were taken.
    if st.dir.is_none() {
        st.disk_size = st.disk_size.max(job.size);
    }
    finish_pages(cx, st, job);
    inode::store(txn, st)
}

/// What a program wrote past the pages is the file's from here on, up to `size`.
fn grow_by_caller(st: &mut NodeState, job: &Job<'_>, size: u64) {
    if let Some(now) = job.by_caller {
        st.inode.size = st.inode.size.max(size);
        (st.inode.mtime, st.inode.ctime) = (now, now);
    }
}

/// The pages of a job are home. What they had reserved beyond what was placed, for places that were there after all or for
/// contents that go into the inode, is not needed.
fn finish_pages(cx: &FileCtx<'_>, st: &mut NodeState, job: &mut Job<'_>) {
    job.reservation = None;
    for (index, _, _) in job.pages.drain(..) {
        let Some(p) = st.data.pages.get_mut(&index) else { continue };
        p.writing = false;
        if p.dirty.is_empty() {
            st.data.drop_page(cx, index);
        }
    }
    (st.data.in_flight, st.data.taken) = (0, 0);
    // Without room for more the promise stays as it is: it was for these pages too.
    let _ = super::reserve_tree(cx, st, true);
}

/// Whether a file's dirty data is small enough to go through the log.
pub fn fits_log(st: &NodeState, limit: usize) -> bool {
    st.data.dirty_bytes() <= limit && st.data.pages.len() <= limit / 1024
}

/// Puts the dirty data of a small file into its place by way of the log (design decision 8): the data travels with the
/// metadata that points to it, and goes home later together with its neighbours. The caller commits.
pub fn through_log(cx: &FileCtx<'_>, node: &Arc<Node>) -> Result<()> {
    let Some(job) = take_with_retry(cx, node, true)? else { return Ok(()) };
    let mut job = job;
    let outcome = match log_job(cx, node, &mut job) {
        Ok(true) => Ok(()),
        Ok(false) => return write_jobs(cx, vec![job]),
        Err(e) => {
            let mut st = node.state.write();
            abort(cx, &mut st, &mut job);
            st.data.error.get_or_insert(e.duplicate());
            Err(e)
        }
    };
    end_writeback(node);
    outcome
}

/// False when the log has no room for so much at once: the job is to be written to its place. After an error the job
/// holds what was not told.
fn log_job(cx: &FileCtx<'_>, node: &Arc<Node>, job: &mut Job<'_>) -> Result<bool> {
    let g = *cx.cache.geometry();
    let pieces = job.runs.iter().map(|r| r.len + (r.len / g.block_size() + 2) * 64).sum::<usize>();
    let frags = job.runs.iter().map(|r| (r.len >> g.frag_shift) as u64);
    let for_sums = cx.sums.map_or(0, |s| frags.map(|n| s.log_bytes(n)).sum());
    let log_bytes = pieces + for_sums + log_bytes_for_mapping(cx, node, &job.extents);
    if log_bytes > cx.journal.reserve_max() / 2 {
        job.fresh.drain(..).for_each(|b| cx.cache.release_new(&b));
        return Ok(false);
    }
    let mut tables = PinnedTables::default();
    let summed = cx.sums.map_or(Ok(Vec::new()), |sums| sum_up(cx, sums, job, &mut tables))?;
    let runs = std::mem::take(&mut job.runs);
    // The blocks are brought in before the transaction: parts of them may be other files'.
    let mut pieces: Vec<(BufRef, usize, &DataRun<'_>, usize, usize)> = Vec::new();
    for r in &runs {
        let mut done = 0;
        while done < r.len {
            let frag = r.frag + (done >> g.frag_shift) as u64;
            let block = g.block_of_frag(frag);
            let at = (frag - g.frag_of_block(block)) as usize * g.frag_size();
            let n = (g.block_size() - at).min(r.len - done);
            pieces.push((cx.cache.data_block(block)?, at, r, done, n));
            done += n;
        }
    }
    let txn = cx.journal.begin(log_bytes)?;
    let mut st = node.state.write();
    if st.dead {
        abort(cx, &mut st, job);
        return Ok(true);
    }
    for (buf, at, run, from, n) in &pieces {
        let bytes: &[u8] = &run.bytes;
        let from = run.from + from;
        txn.edit_data(buf).range(*at, *n).copy_from_slice(&bytes[from..from + n]);
        // After the change: a checkpoint that ends meanwhile forgets the blocks without one.
        cx.journal.note_data_block(buf.addr());
    }
    let put = cx.sums.map_or(Ok(()), |sums| summed.iter().try_for_each(|s| sums.put(&txn, &tables, s)));
    put.and_then(|()| commit_rest(cx, &txn, &mut st, job)).inspect_err(|_| {
        // What nothing points to must neither go home nor be replayed: the space will be another's.
        job.extents.iter().for_each(|e| txn.free_data(Run { start: e.start, len: e.len }));
    })?;
    Ok(true)
}
