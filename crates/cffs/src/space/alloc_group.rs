//! One allocation group: its free extents in memory, and its header and bitmap on the device.

use super::free_set::FreeSet;
use super::layout::{self, ag_frags, edit_bits, fixed_ranges};
use crate::cache::{BufRef, Cache};
use crate::error::{Error, Result};
use crate::format::Run;
use crate::format::ag::{AG_FREE_FRAGS, BITMAP_BITS, BITMAP_INDEX, ag_free, bits_are, free_runs};
use crate::format::dirblock::BlockEdit;
use crate::format::{BlockAddr, BlockId, BlockKind, Corrupt, FragAddr, Geometry, get_u64, put_u64};
use crate::journal::Txn;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

enum State {
    Unloaded,
    /// The bitmap is damaged: nothing is allocated or freed here until fsck has repaired it.
    Damaged(Corrupt),
    Ready(FreeSet),
}

/// Bitmap and header disagree about the number of free fragments. The bitmap counts: allocation is safe, and fsck
/// corrects the header.
struct Miscount {
    free: u64,
    counted: u64,
}

/// Pinned blocks of the AG, so that setting a bit needs no cache lookup.
#[derive(Default)]
struct Blocks {
    header: Option<BufRef>,
    bitmap: Vec<Option<BufRef>>,
}

/// An allocation group.
pub(super) struct AllocGroup {
    ag: u64,
    start: FragAddr,
    /// Grows with the file system if this is its last AG.
    frags: AtomicU64,
    state: Mutex<State>,
    blocks: Mutex<Blocks>,
    /// Nothing of the AG is on the device yet.
    virgin: AtomicBool,
}

impl AllocGroup {
    pub fn new(g: &Geometry, ag: u64, virgin: bool) -> AllocGroup {
        AllocGroup {
            ag,
            start: g.frag_of_block(g.ag_start(ag)),
            frags: AtomicU64::new(ag_frags(g, ag)),
            state: Mutex::new(State::Unloaded),
            blocks: Mutex::default(),
            virgin: AtomicBool::new(virgin),
        }
    }

    pub fn ag(&self) -> u64 {
        self.ag
    }

    /// First fragment of the AG.
    pub fn start(&self) -> FragAddr {
        self.start
    }

    /// First fragment after the AG.
    pub fn end(&self) -> FragAddr {
        self.start + self.frags()
    }

    fn frags(&self) -> u64 {
        self.frags.load(Ordering::Acquire)
    }

    pub fn is_virgin(&self) -> bool {
        self.virgin.load(Ordering::Acquire)
    }

    /// The part of a range of fragments that lies in this AG, as offsets.
    pub fn clip(&self, range: &Range<FragAddr>) -> Range<u32> {
        let clip = |f: FragAddr| f.clamp(self.start, self.end()) - self.start;
        clip(range.start) as u32..clip(range.end) as u32
    }

    /// Runs `f` on the free extents, after loading them if necessary. `loaded` is called on a set that was just loaded.
    #[inline]
    pub fn with<R>(
        &self,
        cache: &Cache,
        loaded: impl FnOnce(&FreeSet),
        f: impl FnOnce(&mut FreeSet) -> R,
    ) -> Result<R> {
        let mut state = self.state.lock();
        if let State::Unloaded = *state {
            // Read without the lock: whoever knows the AG already must not wait for the device. Until there is a set
            // nobody allocates or frees here, so what two of us read is the same.
            drop(state);
            let read = self.load(cache);
            state = self.state.lock();
            if let State::Unloaded = *state {
                match read {
                    Ok((set, miscount)) => {
                        // Only the thread whose set is used warns. A later one may have read in the middle of a change.
                        if let Some(Miscount { free, counted }) = miscount {
                            tracing::warn!(
                                "allocation group {}: {free} fragments are free, its header says {counted}",
                                self.ag
                            );
                        }
                        loaded(&set);
                        *state = State::Ready(set);
                    }
                    Err(Error::Corrupt(c)) => {
                        tracing::error!("allocation group {} is not used: {c}", self.ag);
                        *state = State::Damaged(c);
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        match &mut *state {
            State::Ready(set) => Ok(f(set)),
            State::Damaged(c) => Err(Error::Corrupt(c.clone())),
            State::Unloaded => unreachable!("loaded above"),
        }
    }

    /// Whether the AG is loaded, or known to be damaged.
    pub fn is_loaded(&self) -> bool {
        !matches!(*self.state.lock(), State::Unloaded)
    }

    /// The blocks of header and bitmaps, if they are adjacent.
    pub(super) fn bitmap_run(&self, g: &Geometry) -> Option<Range<BlockAddr>> {
        let (start, bitmaps) = (g.ag_header(self.ag), g.bitmap_blocks());
        let together = bitmaps > 0 && (0..bitmaps).all(|i| g.bitmap_block(self.ag, i) == start + 1 + i);
        together.then_some(start..start + 1 + bitmaps)
    }

    fn load(&self, cache: &Cache) -> Result<(FreeSet, Option<Miscount>)> {
        let g = cache.geometry();
        let mut miscount = None;
        let mut extents: Vec<(u32, u32)> = Vec::new();
        let fixed = fixed_ranges(g, self.ag);
        if self.is_virgin() {
            let starts = fixed.iter().map(|r| r.start).chain([self.frags()]);
            let ends = [0].into_iter().chain(fixed.iter().map(|r| r.end));
            extents.extend(ends.zip(starts).filter(|(s, e)| s < e).map(|(s, e)| (s as u32, e as u32)));
        } else {
            // Only header and bitmaps are prefetched, not the whole AG that they lie in.
            let _prefetched = cache.prefetch_batch(self.bitmap_run(g).into_iter());
            // A damaged header must be found now, not in the middle of a transaction.
            let header =
                cache.read_meta(BlockId { kind: BlockKind::AgHeader, addr: g.ag_header(self.ag), owner: self.ag })?;
            let counted = ag_free(&header.read());
            for index in 0..g.bitmap_blocks() {
                let buf = self.read_bitmap(cache, index)?;
                let first = index * g.bits_per_bitmap();
                for (start, len) in free_runs(&buf.read()[BITMAP_BITS..], g.bits_per_bitmap()) {
                    let (start, end) = ((first + start) as u32, (first + start + len) as u32);
                    match extents.last_mut() {
                        Some(last) if last.1 == start => last.1 = end,
                        _ => extents.push((start, end)),
                    }
                }
            }
            let damaged =
                |what: &str| Error::Corrupt(Corrupt(format!("bitmap of allocation group {}: {what}", self.ag)));
            if extents.last().is_some_and(|e| u64::from(e.1) > self.frags()) {
                return Err(damaged("fragments beyond the end of the group are marked free"));
            }
            for r in fixed {
                let i = extents.partition_point(|e| u64::from(e.1) <= r.start);
                if extents.get(i).is_some_and(|e| u64::from(e.0) < r.end) {
                    return Err(damaged("fragments of the file system's own structures are marked free"));
                }
            }
            let free: u64 = extents.iter().map(|e| u64::from(e.1 - e.0)).sum();
            miscount = (free != counted).then_some(Miscount { free, counted });
        }
        let frag_shift = g.frag_shift;
        let set = FreeSet::new(self.frags() as u32, g.group_shift - frag_shift, g.block_shift - frag_shift, &extents);
        Ok((set, miscount))
    }

    fn read_bitmap(&self, cache: &Cache, index: u64) -> Result<BufRef> {
        let addr = cache.geometry().bitmap_block(self.ag, index);
        let buf = cache.read_meta(BlockId { kind: BlockKind::Bitmap, addr, owner: self.ag })?;
        let found = get_u64(&buf.read(), BITMAP_INDEX);
        if found != index {
            return Err(Corrupt(format!("bitmap block {addr} is number {found} instead of {index}")).into());
        }
        Ok(buf)
    }

    /// Pins and returns the header and bitmap block `index`. The flag says whether these are the first pinned blocks.
    fn pin(&self, cache: &Cache, index: u64) -> Result<(BufRef, BufRef, bool)> {
        {
            let blocks = self.blocks.lock();
            if let (Some(header), Some(Some(bitmap))) = (&blocks.header, blocks.bitmap.get(index as usize)) {
                return Ok((header.clone(), bitmap.clone(), false));
            }
        }
        // Read without the lock, because others may need pinned blocks meanwhile.
        let _prefetched = cache.prefetch_batch(self.bitmap_run(cache.geometry()).into_iter());
        let addr = cache.geometry().ag_header(self.ag);
        let header = cache.read_meta(BlockId { kind: BlockKind::AgHeader, addr, owner: self.ag })?;
        let bitmap = self.read_bitmap(cache, index)?;
        let mut blocks = self.blocks.lock();
        let first = blocks.header.is_none();
        blocks.header = Some(header.clone());
        blocks.bitmap.resize(cache.geometry().bitmap_blocks() as usize, None);
        blocks.bitmap[index as usize] = Some(bitmap.clone());
        Ok((header, bitmap, first))
    }

    /// Pins the blocks that describe the run. True if they are the first pinned blocks.
    pub fn prepare(&self, cache: &Cache, run: Run) -> Result<bool> {
        let bits = cache.geometry().bits_per_bitmap();
        let mut pinned = false;
        for index in (run.start - self.start) / bits..=(run.end() - 1 - self.start) / bits {
            pinned |= self.pin(cache, index)?.2;
        }
        Ok(pinned)
    }

    /// Unpins all blocks.
    pub fn unpin(&self) {
        *self.blocks.lock() = Blocks::default();
    }

    /// Sets or clears the bits of a run within the AG, and updates the header's count. An error changes nothing.
    /// True if the first blocks were pinned.
    pub fn mark(&self, txn: &Txn<'_>, run: Run, used: bool) -> Result<bool> {
        let cache = txn.cache();
        let bits = cache.geometry().bits_per_bitmap();
        let (from, to) = (run.start - self.start, run.end() - self.start);
        let (first, last) = (from / bits, (to - 1) / bits);
        let wrong = || {
            let (what, is) = if used { ("allocated", "in use") } else { ("freed", "free") };
            let what = format!("{run} (allocation group {}) to be {what}: at least one is {is} already", self.ag);
            Error::Corrupt(Corrupt(what))
        };
        let part = |index: u64| (from.max(index * bits) - index * bits, to.min((index + 1) * bits) - index * bits);
        let (header, bitmap, mut pinned) = self.pin(cache, first)?;
        if first < last {
            // Several bitmap blocks: all are checked before the first is changed. The caller owns the run, so nobody
            // else changes its bits in between.
            for index in first..=last {
                let (_, buf, h) = self.pin(cache, index)?;
                pinned |= h;
                let (s, e) = part(index);
                if !bits_are(&buf.read()[BITMAP_BITS..], s, e, !used) {
                    return Err(wrong());
                }
            }
        }
        let (s, e) = part(first);
        if !edit_bits(&mut txn.edit(&bitmap), s, e, used) {
            return Err(wrong());
        }
        for index in first + 1..=last {
            let (_, buf, h) = self.pin(cache, index)?;
            pinned |= h;
            let (s, e) = part(index);
            edit_bits(&mut txn.edit(&buf), s, e, used);
        }
        let mut edit = txn.edit(&header);
        let free = ag_free(&edit);
        let free = if used { free.saturating_sub(run.len) } else { free.saturating_add(run.len) };
        put_u64(edit.range(AG_FREE_FRAGS, 8), 0, free);
        Ok(pinned)
    }

    /// Extends the last AG up to the fragment `end`. The added fragments become free. `publish` makes the new size
    /// visible; until it has returned, nobody allocates here. An error changes nothing. True if the first blocks were
    /// pinned.
    pub fn extend(&self, txn: &Txn<'_>, end: FragAddr, publish: impl FnOnce()) -> Result<bool> {
        let mut state = self.state.lock();
        if let State::Damaged(c) = &*state {
            return Err(Error::Corrupt(c.clone()));
        }
        let (old, new) = (self.frags(), end - self.start);
        let pinned =
            if self.is_virgin() { false } else { self.mark(txn, Run { start: self.end(), len: new - old }, false)? };
        publish();
        self.frags.store(new, Ordering::Release);
        // An AG that is not loaded will find the new part in its bitmap, or in the layout of a virgin AG.
        if let State::Ready(set) = &mut *state {
            set.extend(new as u32);
            if set.insert(old as u32, (new - old) as u32).is_none() {
                tracing::error!("allocation group {}: free beyond its end", self.ag);
            }
        }
        Ok(pinned)
    }

    /// Initializes header and bitmap of a virgin AG on the device.
    pub fn init(&self, txn: &Txn<'_>) {
        let g = *txn.cache().geometry();
        let header = txn.init_block(BlockId { kind: BlockKind::AgHeader, addr: g.ag_header(self.ag), owner: self.ag });
        layout::format_header(&g, self.ag, &mut txn.edit(&header));
        for index in 0..g.bitmap_blocks() {
            let addr = g.bitmap_block(self.ag, index);
            let buf = txn.init_block(BlockId { kind: BlockKind::Bitmap, addr, owner: self.ag });
            layout::format_bitmap(&g, self.ag, index, &mut txn.edit(&buf));
        }
        self.virgin.store(false, Ordering::Release);
    }
}
