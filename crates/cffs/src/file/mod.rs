//! File contents: reading, dirty data, delayed allocation.
//!
//! A write reserves space and leaves its bytes in *pages* of the inode, known by (inode, offset) alone. Places are chosen
//! at writeback ([`writeback`]), for all dirty files at once, in the order of the name space; files that are removed
//! before that never touch the device (XFS 1996, section 6.1; design decision 6). Until then the device shows the file
//! with its old size.

mod bulk;
mod collect;
mod deferred;
pub mod direct;
mod log_write;
mod mapping;
pub mod preallocate;
mod retry;
pub mod truncate;
mod unit;
pub mod writeback;

use crate::cache::{Cache, DataVerifier, LocalityHint, ReadRun};
use crate::error::{Error, Result};
use crate::extent::{self, Mapping};
use crate::format::extent::node_capacity;
use crate::format::{FILE_SIZE_MAX, FileType, InodeFormat};
use crate::inode::NodeState;
use crate::inode::locality::dir_extents;
use crate::journal::Journal;
use crate::placement::Placement;
use crate::quota::Account;
use crate::reservation::{QuotaPool, Reservation};
use crate::space::Space;
use crate::sums::{Reading, Sums};
use cffs_buf::AlignedBuf;
use deferred::DeferredExtents;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub use deferred::flush_deferred;
pub use log_write::{fits_log, write_through_journal};
pub use retry::{Reclaim, with_space};
use unit::TakenPage;

/// Memory that a page takes beside its bytes, with its share of the inode in memory.
const PAGE_OVERHEAD: usize = 1024;

/// What file operations work with.
#[derive(Clone, Copy)]
pub struct FileCtx<'a> {
    /// The block cache.
    pub cache: &'a Cache,
    /// The journal.
    pub journal: &'a Journal,
    /// The space manager.
    pub space: &'a Arc<Space>,
    /// The placement policy.
    pub placement: &'a Placement,
    /// The checksums of data, if they are kept.
    pub sums: Option<&'a Sums>,
    /// A change of times alone need not be written.
    pub lazy: bool,
}

/// A block-sized piece of a file with bytes that are not home.
pub(crate) struct Page {
    /// The bytes from the start of the piece; whole fragments, all valid. Beyond them the file has none.
    pub(crate) bytes: Arc<AlignedBuf>,
    /// Bytes that differ from the device.
    pub(crate) dirty: Range<usize>,
    /// Fragments reserved for it.
    pub(crate) reserved: u64,
    /// Extents that its writeback adds at most by cutting unwritten ones in pieces.
    pub(crate) splits: u64,
    /// Part of a writeback that is under way.
    pub(crate) writing: bool,
}

/// Contents of a file that its inode does not have yet.
#[derive(Default)]
pub struct FileData {
    pub(crate) pages: BTreeMap<u64, Page>,
    /// Runs of neighbouring pages.
    runs: u64,
    /// Sum of [`Page::reserved`]. Each page that is written asks for it, and a file may have many.
    pages_reserved: u64,
    /// Sum of [`Page::splits`].
    pages_splits: u64,
    /// Fragments for the pages, blocks for the extent tree, and the quotas of both. None before anything is dirty.
    reservation: Option<Reservation>,
    /// Fragments that the writeback under way had reserved and whose mapping is not committed yet: as many new extents at
    /// most.
    pub(crate) in_flight: u64,
    /// Pages that the writeback under way has taken.
    pub(crate) taken: usize,
    /// Places at the end, with their bytes, that the inode was not told of.
    pub(crate) deferred: DeferredExtents,
    /// The last page was taken although there is no promise for the worst that could happen to the extent tree, because
    /// the tree has room now: it is to be written back before anything else happens to the file.
    pub(crate) tight: bool,
    /// Writeback failed; told to the next fsync.
    pub(crate) error: Option<Error>,
    /// The quota side of the inode; none while no quotas are kept.
    pub(crate) account: Option<Arc<Account>>,
}

impl FileData {
    /// No contents yet.
    pub(crate) fn new(account: Option<Account>) -> FileData {
        FileData { account: account.map(Arc::new), ..FileData::default() }
    }

    /// An empty reservation for this file's contents.
    pub(crate) fn new_reservation(&self, cx: &FileCtx<'_>, privileged: bool) -> Reservation {
        cx.space.reservation(self.account.clone().map(|a| a as Arc<dyn QuotaPool>), privileged)
    }

    /// What is reserved for pages, deferred extents and the extent tree. For the tree the file system's reserve may be used.
    pub(crate) fn reservation(&mut self, cx: &FileCtx<'_>) -> &Reservation {
        if self.reservation.is_none() {
            self.reservation = Some(self.new_reservation(cx, true));
        }
        // It has just been made.
        self.reservation.as_ref().unwrap_or_else(|| unreachable!())
    }

    /// Gives back fragments that were reserved for pages.
    pub(crate) fn release(&self, frags: u64) {
        if let Some(r) = &self.reservation {
            r.release(frags);
        }
    }

    /// So many deferred fragments are committed in the open transaction, which stores the inode.
    pub(crate) fn charge(&self, frags: u64) {
        if let Some(r) = &self.reservation {
            r.charge(frags);
        }
    }

    /// Nothing is dirty or on its way, or deferred.
    pub fn is_clean(&self) -> bool {
        self.is_mapped() && self.error.is_none()
    }

    /// Everything is in places that the inode knows.
    pub fn is_mapped(&self) -> bool {
        self.pages.is_empty() && self.deferred.is_empty()
    }

    /// Pages in memory that no writeback has taken, about: what was written again while it was on its way is not counted.
    pub fn waiting_pages(&self) -> usize {
        self.pages.len() - self.taken.min(self.pages.len())
    }

    /// Bytes that a writeback would write.
    pub fn dirty_bytes(&self) -> usize {
        self.pages.values().map(|p| p.dirty.len()).sum()
    }

    /// Fragments reserved for the contents, also where they are on their way. What the extent tree may need at worst is left
    /// out: programs compare the space of a file with its size to find out whether it has holes.
    pub fn reserved(&self) -> u64 {
        self.pages_reserved + self.in_flight + self.deferred.frags()
    }

    /// Pages that there are directly before and behind a place.
    fn neighbours(&self, index: u64) -> u64 {
        let has = |i: Option<u64>| u64::from(i.is_some_and(|i| self.pages.contains_key(&i)));
        has(index.checked_sub(1)) + has(index.checked_add(1))
    }

    /// Nodes of one level of the extent tree, at most, that the extents of the pages go to, with `more` pages in one run more. Those of a
    /// run of pages lie in two, and beyond that in nodes whose entries all lie between them.
    fn places(&self, g: &crate::format::Geometry, more: u64) -> u64 {
        let entries = (self.pages.len() as u64 + more) * g.frags_per_block();
        2 * (self.runs + 1) + entries / node_capacity(g.block_size()) as u64
    }

    /// Drops a page and what was reserved for it.
    pub(crate) fn drop_page(&mut self, cx: &FileCtx<'_>, index: u64) {
        if let Some(p) = self.pages.remove(&index) {
            self.runs = (self.runs + self.neighbours(index)).saturating_sub(1);
            cx.cache.sub_dirty_data(p.bytes.len() + PAGE_OVERHEAD);
            self.pages_reserved -= p.reserved;
            self.pages_splits -= p.splits;
            self.release(p.reserved);
        }
    }

    /// Changes a page, and the sums with it. `None` if there is no such page.
    pub(crate) fn change_page<T>(&mut self, index: u64, f: impl FnOnce(&mut Page) -> T) -> Option<T> {
        let p = self.pages.get_mut(&index)?;
        let (reserved, splits) = (p.reserved, p.splits);
        let result = f(p);
        self.pages_reserved = self.pages_reserved + p.reserved - reserved;
        self.pages_splits = self.pages_splits + p.splits - splits;
        Some(result)
    }

    /// Hands what is dirty to a writeback, page by page: the place, the dirty bytes and what was reserved for them.
    pub(super) fn take_dirty(&mut self) -> Vec<TakenPage> {
        let mut taken = Vec::new();
        for (index, p) in self.pages.iter_mut().filter(|(_, p)| !p.dirty.is_empty()) {
            let reserved = std::mem::take(&mut p.reserved);
            self.pages_reserved -= reserved;
            p.writing = true;
            taken.push(TakenPage { index: *index, dirty: std::mem::replace(&mut p.dirty, 0..0), reserved });
        }
        self.taken = taken.len();
        taken
    }

    /// Drops everything (the file is gone).
    pub(crate) fn clear(&mut self, cx: &FileCtx<'_>) {
        self.drop_deferred(cx);
        let pages: Vec<u64> = self.pages.keys().copied().collect();
        pages.into_iter().for_each(|i| self.drop_page(cx, i));
        debug_assert_eq!((self.pages_reserved, self.pages_splits), (0, 0), "sums over no pages");
        self.reservation = None;
        self.error = None;
    }
}

/// Brings the reservation for the extent tree up to what the dirty pages may need at worst.
pub(crate) fn reserve_tree(cx: &FileCtx<'_>, st: &mut NodeState, privileged: bool) -> Result<()> {
    let frags = st.data.pages_reserved + st.data.pages_splits;
    reserve_tree_for(cx, st, frags, 1, privileged)
}

/// The same for `frags` new extents at most, with `more` pages in one run to come.
fn reserve_tree_for(cx: &FileCtx<'_>, st: &mut NodeState, frags: u64, more: u64, privileged: bool) -> Result<()> {
    let g = cx.cache.geometry();
    // What is on its way or deferred will have changed the tree when these pages follow: the promise is for all of it.
    let earlier = st.data.in_flight + st.data.deferred.extents().len() as u64;
    let need = extent::worst_case_blocks(g, &st.inode, st.data.places(g, more), frags + earlier);
    st.data.reservation(cx).set_blocks(need, privileged)
}

/// Copies from the file into `out`, up to its end; returns the number of bytes. `ahead` is how many bytes to fetch
/// beyond for a sequential reader.
pub fn read(cx: &FileCtx<'_>, st: &NodeState, offset: u64, out: &mut [u8], ahead: u64) -> Result<usize> {
    let size = st.inode.size;
    if offset >= size || out.is_empty() {
        return Ok(0);
    }
    let len = (out.len() as u64).min(size - offset) as usize;
    let out = &mut out[..len];
    if st.data.pages.is_empty() {
        read_disk(cx, st, offset, out, ahead)?;
        return Ok(len);
    }
    let bs = cx.cache.geometry().block_size();
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let (index, within) = (at / bs as u64, (at % bs as u64) as usize);
        if let Some(p) = st.data.pages.get(&index) {
            let n = (bs - within).min(len - done);
            let valid = p.bytes.len().saturating_sub(within).min(n);
            let from = within.min(p.bytes.len());
            out[done..done + valid].copy_from_slice(&p.bytes[from..from + valid]);
            out[done + valid..done + n].fill(0);
            done += n;
        } else {
            let next = st.data.pages.range(index..).next().map_or(u64::MAX, |(i, _)| i * bs as u64);
            let n = (next - at).min((len - done) as u64) as usize;
            read_disk(cx, st, at, &mut out[done..done + n], ahead)?;
            done += n;
        }
    }
    Ok(len)
}

/// Reads what the device has of a range; holes and what lies beyond the size on the device read as zeros.
fn read_disk(cx: &FileCtx<'_>, st: &NodeState, offset: u64, out: &mut [u8], ahead: u64) -> Result<()> {
    let have = deferred::written_size(st).saturating_sub(offset).min(out.len() as u64) as usize;
    let (out, beyond) = out.split_at_mut(have);
    beyond.fill(0);
    if let InodeFormat::Inline(data) = &st.inode.format {
        let from = (offset as usize).min(data.len());
        let n = (data.len() - from).min(out.len());
        out[..n].copy_from_slice(&data[from..from + n]);
        out[n..].fill(0);
        return Ok(());
    }
    let g = cx.cache.geometry();
    let fs = g.frag_size() as u64;
    let grouped = is_grouped(cx, st);
    let check = cx.sums.map(|sums| sums.reading(st.inode.ino));
    // A long read of a large file gathers what it needs from all its extents, and asks for it at once.
    let past = !grouped && cx.cache.reads_direct(st.inode.size, out.len());
    let mut runs: Vec<ReadRun<'_>> = Vec::new();
    let (mut at, mut rest) = (offset, out);
    while !rest.is_empty() {
        let logical = at >> g.frag_shift;
        let skip = at % fs;
        match deferred::lookup(cx, st, logical)? {
            Mapping::Hole { until } => {
                // A hole may reach to the end of the address space: count in bytes only what is asked for.
                let hole = (until - logical).min(g.frags_for(rest.len() as u64) + 1) << g.frag_shift;
                let part = split_off(&mut rest, hole - skip);
                at += part.len() as u64;
                part.fill(0);
            }
            Mapping::Data(e) => {
                let left = ((e.end() - logical) << g.frag_shift) - skip;
                let frag = e.start + (logical - e.logical);
                // What begins within a fragment is read by way of the cache, up to that one's end.
                let left = if past && skip > 0 { fs - skip } else { left };
                let part = split_off(&mut rest, left);
                at += part.len() as u64;
                if e.unwritten {
                    part.fill(0);
                } else if past && skip == 0 {
                    runs.push(ReadRun { frag, logical, out: part });
                } else {
                    if let Some(check) = &check {
                        check.set_position(frag, logical);
                    }
                    read_run(cx, st, frag, skip as usize, part, check.as_ref())?;
                }
            }
        }
    }
    if past {
        return cx.cache.read_runs(runs, check.as_ref().map(|c| c as &dyn DataVerifier));
    }
    if ahead > 0 && !grouped && cx.cache.has_readahead() {
        // A failure is met again, and told, by who reads there.
        let _ = fetch_beyond(cx, st, at, ahead);
    }
    Ok(())
}

/// Takes up to `n` bytes off the front of `rest`.
fn split_off<'a>(rest: &mut &'a mut [u8], n: u64) -> &'a mut [u8] {
    let n = n.min(rest.len() as u64) as usize;
    let (head, tail) = std::mem::take(rest).split_at_mut(n);
    *rest = tail;
    head
}

/// Fetches the next `ahead` bytes of a file from `offset` on, from as many extents as have them.
fn fetch_beyond(cx: &FileCtx<'_>, st: &NodeState, offset: u64, ahead: u64) -> Result<()> {
    let g = cx.cache.geometry();
    let mut logical = g.frags_for(offset);
    let end = g.frags_for((offset + ahead).min(deferred::written_size(st)));
    while logical < end {
        match deferred::lookup(cx, st, logical)? {
            Mapping::Hole { until } => logical = until,
            Mapping::Data(e) => {
                let n = e.end().min(end) - logical;
                if !e.unwritten {
                    cx.cache.readahead(e.start + (logical - e.logical), n);
                }
                logical += n;
            }
        }
    }
    Ok(())
}

/// Reads from a run of fragments, from byte `skip` of its first one on.
fn read_run(
    cx: &FileCtx<'_>,
    st: &NodeState,
    frag: u64,
    skip: usize,
    out: &mut [u8],
    check: Option<&Reading<'_>>,
) -> Result<()> {
    let check = check.map(|c| c as &dyn DataVerifier);
    if skip == 0 {
        return read_fragments(cx, st, frag, out, check);
    }
    let fs = cx.cache.geometry().frag_size();
    let mut first = vec![0; fs.min(skip + out.len())];
    read_fragments(cx, st, frag, &mut first, check)?;
    let n = (fs - skip).min(out.len());
    out[..n].copy_from_slice(&first[skip..skip + n]);
    if n < out.len() {
        read_fragments(cx, st, frag + 1, &mut out[n..], check)?;
    }
    Ok(())
}

/// Whether the file is so small that it lies in a group.
fn is_grouped(cx: &FileCtx<'_>, st: &NodeState) -> bool {
    st.inode.size <= cx.placement.small_max()
}

/// Reads a run of whole fragments, the last one perhaps in part. What is missing of a small file is read with its group.
fn read_fragments(
    cx: &FileCtx<'_>,
    st: &NodeState,
    frag: u64,
    out: &mut [u8],
    check: Option<&dyn DataVerifier>,
) -> Result<()> {
    if !is_grouped(cx, st) {
        return cx.cache.read_data(frag, out, check);
    }
    let shift = cx.cache.geometry().frag_shift;
    let at = |done: usize| frag + (done >> shift) as u64;
    let mut done = 0;
    while done < out.len() {
        done += cx.cache.read_cached_data(at(done), &mut out[done..], check)?;
        if done < out.len() {
            let extents = dir_extents(cx.cache, st.home, FileType::Regular, cx.placement.small_max());
            let hint = LocalityHint { extents, sequential: false };
            done += cx.cache.read_data_near(at(done), &mut out[done..], &hint, check)?;
        }
    }
    Ok(())
}

/// What it takes to write a range of a file.
#[derive(Clone, Copy, Default)]
struct Needs {
    /// Fragments without a place.
    places: u64,
    /// Extents more, at most, when unwritten ones become written in part.
    splits: u64,
}

/// What writing a range of fragments takes.
fn needs(cx: &FileCtx<'_>, st: &NodeState, frags: Range<u64>) -> Result<Needs> {
    let mut n = Needs::default();
    match &st.inode.format {
        InodeFormat::Extents(list) if list.is_empty() => n.places = frags.end - frags.start,
        InodeFormat::Inline(_) => n.places = frags.end - frags.start,
        _ => {
            let mut at = frags.start;
            while at < frags.end {
                match extent::lookup(cx.cache, &st.inode, at)? {
                    Mapping::Data(e) => {
                        n.splits += if e.unwritten { 2 } else { 0 };
                        at = e.end();
                    }
                    Mapping::Hole { until } => {
                        n.places += until.min(frags.end) - at;
                        at = until;
                    }
                }
            }
        }
    }
    Ok(n)
}

/// Makes the page at `index`, with what the device has there, long enough for the `covered` bytes, which are about to be
/// overwritten.
fn make_page(cx: &FileCtx<'_>, st: &mut NodeState, index: u64, covered: &Range<usize>) -> Result<()> {
    let g = cx.cache.geometry();
    let (bs, fs) = (g.block_size(), g.frag_size());
    let start = index << g.block_shift;
    let round = |n: usize| n.div_ceil(fs) * fs;
    if !st.data.pages.contains_key(&index) {
        let on_disk = st.disk_size.min(st.inode.size).saturating_sub(start).min(bs as u64) as usize;
        let mut bytes = AlignedBuf::zeroed(round(on_disk.max(covered.end)));
        if on_disk > 0 && !(covered.start == 0 && covered.end >= on_disk) {
            read_disk(cx, st, start, &mut bytes[..on_disk], 0)?;
        }
        cx.cache.add_dirty_data(bytes.len() + PAGE_OVERHEAD);
        let page = Page { bytes: Arc::new(bytes), dirty: 0..0, reserved: 0, splits: 0, writing: false };
        st.data.runs = (st.data.runs + 1).saturating_sub(st.data.neighbours(index));
        st.data.pages.insert(index, page);
    }
    let page = st.data.pages.get_mut(&index).ok_or(Error::Stale)?;
    let need = round(covered.end);
    if need > page.bytes.len() {
        cx.cache.add_dirty_data(need - page.bytes.len());
        Arc::make_mut(&mut page.bytes).resize_zeroed(need);
    }
    Ok(())
}

/// Whether what is dirty in the page before `index` goes on in this one, in one unwritten extent: the two become written
/// as one piece, or the second as the continuation of the first.
fn continues(cx: &FileCtx<'_>, st: &NodeState, index: u64, first: u64) -> Result<bool> {
    let g = cx.cache.geometry();
    let Some(before) = index.checked_sub(1).and_then(|i| st.data.pages.get(&i)) else { return Ok(false) };
    let starts = first == index * g.frags_per_block();
    if !starts || before.dirty.end != g.block_size() {
        return Ok(false);
    }
    let both = |e: &crate::format::Extent| e.unwritten && e.logical < first;
    Ok(matches!(extent::lookup(cx.cache, &st.inode, first)?, Mapping::Data(e) if both(&e)))
}

/// Puts bytes into the page at `index`, reserving what they need.
fn dirty_page(
    cx: &FileCtx<'_>,
    st: &mut NodeState,
    index: u64,
    within: Range<usize>,
    bytes: Option<&[u8]>,
    privileged: bool,
) -> Result<()> {
    let g = *cx.cache.geometry();
    let fs = g.frag_size();
    // Inline contents leave the inode together with what is added to them.
    let inline = matches!(&st.inode.format, InodeFormat::Inline(d) if !d.is_empty() && index == 0);
    let existed = st.data.pages.get(&index).map(|p| (p.dirty.clone(), p.reserved, p.splits));
    let old = existed.clone().map_or(0..0, |(d, _, _)| d);
    let mut dirty = if old.is_empty() { within.clone() } else { old.start.min(within.start)..old.end.max(within.end) };
    if inline {
        dirty.start = 0;
    }
    let base = (index << g.block_shift) >> g.frag_shift;
    let frags = base + (dirty.start / fs) as u64..base + dirty.end.div_ceil(fs) as u64;
    let (had, had_splits) = existed.map_or((0, 0), |(_, r, s)| (r, s));
    let mut need = needs(cx, st, frags.clone())?;
    if need.splits > 0 && continues(cx, st, index, frags.start)? {
        need.splits -= 2;
    }
    // What was allocated ahead can be written: for the tree the reserve is there.
    let privileged = privileged || need.places == 0;
    let more = need.places.saturating_sub(had);
    let more_splits = need.splits.saturating_sub(had_splits);
    st.data.reservation(cx).reserve(more, privileged)?;
    // Before the page changes: a write that finds no space leaves the file as it was.
    let all = st.data.pages_reserved + st.data.pages_splits + more + more_splits;
    if let Err(e) = reserve_tree_for(cx, st, all, 1, privileged) {
        // The last fragments of a device: what this page really needs counts.
        let alone = st.data.in_flight == 0 && st.data.pages.keys().all(|i| *i == index);
        st.data.tight = alone && matches!(e, Error::NoSpace) && extent::has_room(cx.cache, &st.inode, frags, all)?;
        if !st.data.tight {
            st.data.release(more);
            return Err(e);
        }
    }
    // Inline contents are read in, whatever is overwritten: all of the page goes to the device.
    let covered = if inline { within.end..within.end } else { within.clone() };
    let outcome = make_page(cx, st, index, &covered);
    if outcome.is_ok() {
        st.data.change_page(index, |p| {
            p.reserved = need.places.max(had);
            p.splits = need.splits.max(had_splits);
            p.dirty = dirty;
            if let Some(bytes) = bytes {
                Arc::make_mut(&mut p.bytes)[within].copy_from_slice(bytes);
            }
        });
    }
    if outcome.is_err() {
        st.data.release(more);
        let _ = reserve_tree(cx, st, privileged); // less than before
    }
    outcome
}

/// Before a file grows beyond `st.inode.size`, bytes of its last fragment beyond the old end become zeros: they may hold
/// what a longer file had there.
fn zero_tail(cx: &FileCtx<'_>, st: &mut NodeState, privileged: bool) -> Result<()> {
    let g = *cx.cache.geometry();
    let size = st.inode.size;
    let fs = g.frag_size() as u64;
    if size.is_multiple_of(fs) || matches!(st.inode.format, InodeFormat::Inline(_)) {
        return Ok(());
    }
    let (index, from) = (size >> g.block_shift, (size & (g.block_size() as u64 - 1)) as usize);
    let to = from.div_ceil(fs as usize) * fs as usize;
    if let Some(p) = st.data.pages.get(&index) {
        let end = to.min(p.bytes.len());
        return if end > from {
            dirty_page(cx, st, index, from..end, Some(&vec![0; end - from]), privileged)
        } else {
            Ok(())
        };
    }
    match extent::lookup(cx.cache, &st.inode, size >> g.frag_shift)? {
        Mapping::Data(e) if !e.unwritten => {}
        _ => return Ok(()),
    }
    dirty_page(cx, st, index, from..to, Some(&vec![0; to - from]), privileged)
}

/// Before a file grows to `size`, beyond what fits its inode: the contents that stand there, or are on their way there,
/// become a page.
fn leave_inode(cx: &FileCtx<'_>, st: &mut NodeState, size: u64, privileged: bool) -> Result<()> {
    let room = st.inode.data_room() as u64;
    if size <= room || st.inode.size > room {
        return Ok(());
    }
    let bytes = match (st.data.pages.get(&0), &st.inode.format) {
        (Some(p), _) if p.writing && p.dirty.is_empty() => {
            p.bytes[..p.bytes.len().min(st.inode.size as usize)].to_vec()
        }
        (Some(_), _) => return Ok(()),
        (None, InodeFormat::Inline(d)) => d.clone(),
        (None, _) => return Ok(()),
    };
    if bytes.is_empty() {
        return Ok(());
    }
    dirty_page(cx, st, 0, 0..bytes.len(), Some(&bytes), privileged)
}

/// Writes into the file's pages. Returns the bytes taken; fewer than asked for only when an error stopped it after some, or
/// when space is so short that these are to be written back first ([`FileData::tight`]).
pub fn write(cx: &FileCtx<'_>, st: &mut NodeState, offset: u64, data: &[u8], privileged: bool) -> Result<usize> {
    offset.checked_add(data.len() as u64).filter(|e| *e <= FILE_SIZE_MAX).ok_or(Error::FileTooLarge)?;
    if data.is_empty() {
        return Ok(0);
    }
    if offset > st.inode.size {
        zero_tail(cx, st, privileged)?;
    }
    leave_inode(cx, st, offset + data.len() as u64, privileged)?;
    let bs = cx.cache.geometry().block_size() as u64;
    let fs = cx.cache.geometry().frag_size();
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let within = (at % bs) as usize;
        if within == 0 {
            let taken = bulk::write(cx, st, at / bs, &data[done..], privileged)?;
            if taken > 0 {
                done += taken;
                st.inode.size = st.inode.size.max(at + taken as u64);
                continue;
            }
        }
        let n = (bs as usize - within).min(data.len() - done);
        // A file that grows inside its last fragment must not carry old bytes along.
        if at == st.inode.size && !at.is_multiple_of(fs as u64) {
            zero_tail(cx, st, privileged)?;
        }
        let mut put = |n: usize| {
            dirty_page(cx, st, at / bs, within..within + n, Some(&data[done..done + n]), privileged).map(|()| n)
        };
        // Of the last block that there is space for perhaps a part.
        let part = fs - within % fs;
        let taken = match put(n) {
            Err(Error::NoSpace) if part < n => put(part),
            outcome => outcome,
        };
        match taken {
            Ok(taken) => {
                done += taken;
                st.inode.size = st.inode.size.max(at + taken as u64);
                if taken < n || st.data.tight {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    st.dirty = true;
    Ok(done)
}

/// Makes the file longer; the new part is a hole.
pub fn extend(cx: &FileCtx<'_>, st: &mut NodeState, size: u64, privileged: bool) -> Result<()> {
    if size > FILE_SIZE_MAX {
        return Err(Error::FileTooLarge);
    }
    zero_tail(cx, st, privileged)?;
    leave_inode(cx, st, size, privileged)?;
    st.inode.size = size;
    st.dirty = true;
    Ok(())
}

/// Whether a position lies in data or in a hole, and where that ends: `(is_data, end)`, both by fragment.
pub fn seek(cx: &FileCtx<'_>, st: &NodeState, offset: u64) -> Result<(bool, u64)> {
    let g = cx.cache.geometry();
    let bs = g.block_size() as u64;
    if let InodeFormat::Inline(_) = st.inode.format {
        return Ok((true, st.inode.size));
    }
    let index = offset / bs;
    if st.data.pages.contains_key(&index) {
        return Ok((true, (index + 1) * bs));
    }
    let next_page = st.data.pages.range(index..).next().map_or(u64::MAX, |(i, _)| i * bs);
    let (data, end) = match deferred::lookup(cx, st, offset >> g.frag_shift)? {
        Mapping::Data(e) => (!e.unwritten, e.end()),
        Mapping::Hole { until } => (false, until),
    };
    let end = end.saturating_mul(g.frag_size() as u64);
    Ok((data, end.min(next_page)))
}

/// Where the device goes on behind what the file has before a fragment, if it has something there.
fn preceding(cx: &FileCtx<'_>, st: &NodeState, logical: u64) -> Result<Option<u64>> {
    let Some(before) = logical.checked_sub(1) else { return Ok(None) };
    Ok(match deferred::lookup(cx, st, before)? {
        Mapping::Data(e) => Some(e.start + (logical - e.logical)),
        Mapping::Hole { .. } => None,
    })
}
