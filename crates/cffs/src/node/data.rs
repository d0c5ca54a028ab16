//! Contents of a file that are in memory alone: dirty pages, deferred extents, and what is reserved for them.

use super::deferred::DeferredExtents;
use crate::cache::Cache;
use crate::error::Error;
use crate::format::extent::node_capacity;
use crate::format::{Extent, Geometry, Run};
use crate::quota::InodeCharge;
use crate::reservation::{QuotaPool, Reservation};
use crate::space::Space;
use cffs_buf::AlignedBuf;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Memory that a page takes beside its bytes, with its share of the inode in memory.
pub(crate) const PAGE_OVERHEAD: usize = 1024;

/// A page that a unit writes.
pub(crate) struct TakenPage {
    pub(crate) index: u64,
    /// Bytes of the page that were dirty.
    pub(crate) dirty: Range<usize>,
    /// Fragments of the unit's reservation that were made for it, and whose mapping is not committed.
    pub(crate) reserved: u64,
}

/// A block-sized piece of a file with bytes that are not in place on the device.
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
    pub(crate) runs: u64,
    /// Sum of [`Page::reserved`]. Each page that is written asks for it, and a file may have many.
    pub(crate) pages_reserved: u64,
    /// Sum of [`Page::splits`].
    pub(crate) pages_splits: u64,
    /// Fragments for the pages, blocks for the extent tree, and the quotas of both. None before anything is dirty.
    reservation: Option<Reservation>,
    /// Fragments that the writebacks under way had reserved and whose mapping is not committed yet: as many new extents at
    /// most.
    pub(crate) in_flight: u64,
    /// Pages that the writebacks under way have taken.
    pub(crate) taken: usize,
    /// New extents of those that may be followed by another one, with their numbers: it goes on where they end.
    pub(crate) allocated: Vec<(u64, Extent)>,
    /// Extents at the end whose data is in place and whose mapping is not committed.
    pub(crate) deferred: DeferredExtents,
    /// The last page was accepted without blocks reserved for the worst case of the extent tree, because the tree has room
    /// now. It must be written back before anything else happens to the file.
    pub(crate) must_flush: bool,
    /// Writeback failed; the next fsync returns it.
    pub(crate) error: Option<Error>,
    /// The quota side of the inode; none while no quotas are kept.
    pub(crate) account: Option<Arc<InodeCharge>>,
}

impl FileData {
    /// No contents yet.
    pub(crate) fn new(account: Option<InodeCharge>) -> FileData {
        FileData { account: account.map(Arc::new), ..FileData::default() }
    }

    /// An empty reservation for this file's contents.
    pub(crate) fn new_reservation(&self, space: &Arc<Space>, privileged: bool) -> Reservation {
        new_reservation(space, self.account.as_ref(), privileged)
    }

    /// What is reserved for pages, deferred extents and the extent tree. For the tree the file system's reserve may be used.
    pub(crate) fn reservation(&mut self, space: &Arc<Space>) -> &Reservation {
        let account = &self.account;
        self.reservation.get_or_insert_with(|| new_reservation(space, account.as_ref(), true))
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

    /// Nothing is dirty, in flight or deferred.
    pub fn is_clean(&self) -> bool {
        self.is_mapped() && self.error.is_none()
    }

    /// The mapping of everything is committed.
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
    pub(crate) fn neighbours(&self, index: u64) -> u64 {
        let has = |i: Option<u64>| u64::from(i.is_some_and(|i| self.pages.contains_key(&i)));
        has(index.checked_sub(1)) + has(index.checked_add(1))
    }

    /// Nodes of one level of the extent tree, at most, that the extents of the pages go to, with `more` pages in one run more. Those of a
    /// run of pages lie in two, and beyond that in nodes whose entries all lie between them.
    pub(crate) fn places(&self, g: &Geometry, more: u64) -> u64 {
        let entries = (self.pages.len() as u64 + more) * g.frags_per_block();
        2 * (self.runs + 1) + entries / node_capacity(g.block_size()) as u64
    }

    /// Drops a page and what was reserved for it.
    pub(crate) fn drop_page(&mut self, cache: &Cache, index: u64) {
        if let Some(p) = self.pages.remove(&index) {
            self.runs = (self.runs + self.neighbours(index)).saturating_sub(1);
            cache.sub_dirty_data(p.bytes.len() + PAGE_OVERHEAD);
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

    /// Hands the dirty pages to a writeback: index, dirty bytes, and what was reserved for them.
    pub(crate) fn take_dirty(&mut self) -> Vec<TakenPage> {
        let mut taken = Vec::new();
        for (index, p) in self.pages.iter_mut().filter(|(_, p)| !p.dirty.is_empty()) {
            let reserved = std::mem::take(&mut p.reserved);
            self.pages_reserved -= reserved;
            p.writing = true;
            taken.push(TakenPage { index: *index, dirty: std::mem::replace(&mut p.dirty, 0..0), reserved });
        }
        taken
    }

    /// Hands dirty pages to a writeback beside others, `most` at most, in the order of the file. Pages that are being written stay, and so does the
    /// last one if it is not full, because more comes into it. Where one stays, the size that the device may show ends; whatever is
    /// behind that stays as well. Returns the first one that this is about.
    pub(crate) fn take_full(&mut self, g: &Geometry, disk_size: u64, most: usize) -> (Vec<TakenPage>, Option<u64>) {
        let last = self.pages.keys().next_back().copied();
        let (mut taken, mut left) = (Vec::new(), None);
        for (index, p) in self.pages.iter_mut().filter(|(_, p)| !p.dirty.is_empty()) {
            let partial = Some(*index) == last && p.dirty.end < g.block_size();
            if taken.len() == most || p.writing || partial {
                if taken.len() < most && (index + 1) << g.block_shift <= disk_size {
                    continue;
                }
                left = Some(*index);
                break;
            }
            let reserved = std::mem::take(&mut p.reserved);
            self.pages_reserved -= reserved;
            p.writing = true;
            taken.push(TakenPage { index: *index, dirty: std::mem::replace(&mut p.dirty, 0..0), reserved });
        }
        (taken, left)
    }

    /// Drops everything (the file is gone).
    pub(crate) fn clear(&mut self, cache: &Cache, space: &Arc<Space>) {
        self.drop_deferred(space);
        let pages: Vec<u64> = self.pages.keys().copied().collect();
        pages.into_iter().for_each(|i| self.drop_page(cache, i));
        debug_assert_eq!((self.pages_reserved, self.pages_splits), (0, 0), "sums over no pages");
        self.reservation = None;
        self.error = None;
    }

    /// The first so many deferred fragments have become the inode's, in the transaction that is open.
    pub(crate) fn note_committed(&mut self, frags: u64) {
        self.deferred.committed(frags);
        self.charge(frags);
    }

    /// Frees what was not committed (the file is gone).
    pub(crate) fn drop_deferred(&mut self, space: &Arc<Space>) {
        let DeferredExtents { extents, frags, .. } = std::mem::take(&mut self.deferred);
        if frags == 0 {
            return;
        }
        extents.iter().for_each(|e| space.cancel(Run { start: e.start, len: e.len }));
        let reservation = self.reservation(space);
        reservation.deallocated(frags);
        reservation.release(frags);
    }
}

fn new_reservation(space: &Arc<Space>, account: Option<&Arc<InodeCharge>>, privileged: bool) -> Reservation {
    space.reservation(account.map(|a| a.clone() as Arc<dyn QuotaPool>), privileged)
}
