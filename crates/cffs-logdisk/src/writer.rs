//! Taking writes in, and ending batches.

use crate::batch::{Entry, Logical, SUMMARY_BYTES};
use crate::extent::BLOCK_BYTES;
use crate::log::STREAM_NEW;
use crate::packer::Packer;
use crate::patch::Patch;
use crate::patches::PATCHED_MAX;
use crate::space::{BLOCK_COST, Change, Level, STEP_ENDS};
use crate::state::State;
use crate::tree::lookup_extents;
use cffs_device::{ForWhom, Purpose, Work};
use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;

/// Discarded ranges after which a batch ends.
const DISCARDS_MAX: usize = 4096;
/// Blocks that are mostly side by side in a batch.
const USUAL_RUN: u64 = 8;
/// Blocks of neighbours that are handed to the packer at once.
const RUN_BLOCKS_MAX: usize = 256;

fn full() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, "the log disk is full")
}

impl State {
    /// Sees to it that the blocks can be stored, or fails with `StorageFull` before anything was accepted. They are in ascending order and
    /// distinct. Then there are segments for all that is pending and these blocks. Those that take space leave `kept` bytes free.
    pub(crate) fn admit(&mut self, branch: u32, blocks: &[u64], kept: u64) -> io::Result<()> {
        let at = |block| Logical { branch, block };
        let new = blocks.iter().filter(|&&b| !self.pending.blocks.contains_key(&at(b))).count() as u64;
        if new * BLOCK_COST > self.free_for(branch).saturating_sub(kept) {
            // Short of space: what is pending may overwrite more than it adds, and so may these blocks.
            self.seal()?;
            let cost = self.cost_of(branch, blocks)?;
            if cost > self.free_for(branch).saturating_sub(kept) {
                self.give_back(cost.saturating_add(kept).saturating_add(self.reserved.of_others(branch)))?;
                // What no snapshot has any more costs nothing to overwrite.
                if self.cost_of(branch, blocks)? > self.free_for(branch).saturating_sub(kept) {
                    return Err(full());
                }
            }
        }
        // What stays free is for a batch of the usual length.
        if self.is_too_long_with(blocks.len()) && self.end_batch(false)? && self.is_too_long_with(blocks.len()) {
            self.seal()?;
        }
        let mut runs = 0;
        let mut last = None;
        for &block in blocks {
            let joins = last.is_some_and(|l: u64| l + 1 == block) || self.pending.new_runs(at(block)) == 0;
            runs += u64::from(!joins);
            last = Some(block);
        }
        let change = self.pending_change().and(Change::blocks(blocks.len() as u64, runs));
        self.ensure_room(change, Level::Takes)
    }

    /// Notes for whom so many bytes are pending: who has it done at this moment.
    pub(crate) fn note_pending(&mut self, bytes: u64) {
        self.observed.note(&mut self.for_batch, bytes);
        self.observed.note(&mut self.for_blocks, bytes);
    }

    /// What ending the batch changes.
    pub(crate) fn pending_change(&self) -> Change {
        let p = &self.pending;
        let mut change = Change::blocks(p.blocks.len() as u64, p.extents as u64);
        change.bytes += 64 * p.discards.len() as u64;
        change.dead += p.discarded as u64;
        change
    }

    /// What blocks add to what lives.
    fn cost_of(&self, branch: u32, blocks: &[u64]) -> io::Result<u64> {
        let Some(b) = self.catalog.branches.get(&branch) else { return Ok(blocks.len() as u64 * BLOCK_COST) };
        let mut cost = 0;
        for &block in blocks {
            cost += match lookup_extents(&b.root, &self.nodes(), block, 1)?.first() {
                Some((_, e)) if e.version > b.floor => (BLOCK_BYTES as u64).saturating_sub(e.share()),
                _ => BLOCK_COST,
            };
        }
        Ok(cost)
    }

    /// Takes a range of blocks out of a branch. A range with very many extents goes in several batches, so that the nodes that
    /// change are not all in memory at once; after a crash the first of these may be there and the last not.
    pub(crate) fn discard(&mut self, branch: u32, start: u64, end: u64) -> io::Result<()> {
        let mut at = start;
        while at < end {
            let most = self.step_extents();
            if self.pending.extents >= most || self.pending.discards.len() > DISCARDS_MAX {
                self.seal()?;
            }
            let (to, extents) = self.extents_end(branch, at, end, most.saturating_sub(self.pending.extents).max(1))?;
            // The one that it begins in, and the one that it ends in, are cut.
            let change = self.pending_change().and(Change::freed(extents as u64 + STEP_ENDS));
            self.ensure_room(change, Level::Frees)?;
            self.pending.discard(branch, at, to, extents);
            self.recent.forget_range(branch, at, to);
            self.note_pending(0);
            at = to;
        }
        Ok(())
    }

    /// The end of the `most`-th extent from `start` on, and `most`; or `end`, and how many there are.
    fn extents_end(&self, branch: u32, start: u64, end: u64, most: usize) -> io::Result<(u64, usize)> {
        let Some(b) = self.catalog.branches.get(&branch) else { return Ok((end, 0)) };
        let (mut seen, mut to) = (0, end);
        b.root.scan(&self.nodes(), &start, &mut |block, e| {
            if *block >= end {
                return ControlFlow::Break(());
            }
            seen += 1;
            if seen < most {
                return ControlFlow::Continue(());
            }
            to = block.saturating_add(u64::from(e.blocks)).min(end);
            ControlFlow::Break(())
        })?;
        Ok((to, seen))
    }

    /// Blocks that a batch may have before it ends by itself: as many as are allowed and end with a segment. What is left of one would be a
    /// batch of its own, with a summary and a request of its own.
    fn batch_blocks(&self) -> usize {
        let most = self.batch_max() / BLOCK_BYTES;
        let blocks_in = |bytes| Packer::blocks_in(bytes, self.pending.extents, self.store.alignment());
        let whole = blocks_in(self.store.segment_bytes());
        let left = blocks_in(self.log.left(STREAM_NEW, &*self.store));
        // The rest of a segment that is short is left to what a flush ends.
        let first = if left < whole / 8 { whole } else { left };
        match most.checked_sub(first) {
            Some(more) => first + more / whole.max(1) * whole,
            None => most,
        }
    }

    /// Blocks that count for the length of the batch. Those that have patches and wait go on waiting, if there is room for them besides a batch
    /// of the usual length.
    fn to_be_written(&self) -> usize {
        let (all, changed) = (self.pending.blocks.len(), self.pending.changed());
        let is_room = changed < all && self.is_room_beside_a_batch();
        if is_room { changed } else { all }
    }

    /// Whether there is room for what is pending, and for a batch of the usual length. What is accepted finds out whether there is for it.
    fn is_room_beside_a_batch(&self) -> bool {
        let batch = (self.batch_max() / BLOCK_BYTES) as u64;
        let both = self.pending_change().and(Change::blocks(batch, batch / USUAL_RUN));
        self.store.available() >= self.need(both, Level::Takes)
    }

    /// Whether what is pending is more than one batch, together with some more blocks.
    fn is_too_long_with(&self, blocks: usize) -> bool {
        let is_too_long = |pending| (pending + blocks) * BLOCK_BYTES > self.batch_max();
        !self.pending.blocks.is_empty()
            && (self.pending.extents + blocks > self.extents_max()
                || is_too_long(self.pending.blocks.len()) && is_too_long(self.to_be_written()))
    }

    /// Most blocks that have patches only.
    fn patched_max(&self) -> usize {
        PATCHED_MAX.min(self.batch_max() / BLOCK_BYTES / 4 * 3).min(self.extents_max() / 2)
    }

    /// Blocks that the batch takes until it is long enough.
    pub(crate) fn blocks_to_take(&self) -> usize {
        let most = self.batch_blocks().min(self.batch_max() / BLOCK_BYTES);
        most.saturating_sub(self.to_be_written()).max(1)
    }

    /// Ends the batch if it is long enough.
    pub(crate) fn seal_if_long(&mut self) -> io::Result<()> {
        let long = self.to_be_written() >= self.batch_blocks();
        if long || self.pending.extents >= self.extents_max() { self.end_batch(false).map(drop) } else { Ok(()) }
    }

    /// Ends the batch, with patches if somebody waits for it. Whether blocks may have patches only.
    fn end_batch(&mut self, with_patches: bool) -> io::Result<bool> {
        let are_patched = self.leave_patched(with_patches)?;
        if !are_patched {
            self.seal()?;
        }
        Ok(are_patched)
    }

    /// Writes what is pending as one batch, or as several that count together.
    pub(crate) fn seal(&mut self) -> io::Result<()> {
        // What recovery has put together stays in memory where nothing may be written.
        if self.pending.is_empty() || self.options.read_only {
            return Ok(());
        }
        self.check()?;
        self.ensure_room(self.pending_change(), Level::Accepted)?;
        if !self.pending.is_empty() {
            self.write_out()?;
        }
        if self.checkpoint_is_due() { self.checkpoint() } else { Ok(()) }
    }

    pub(crate) fn checkpoint_is_due(&self) -> bool {
        self.is_dirty() || self.log.since_checkpoint >= self.checkpoint_bytes()
    }

    /// Writes blocks whole of which batches have patches only. There is room: it was kept for them.
    pub(crate) fn write_patched(&mut self) -> io::Result<()> {
        if self.pending.patched { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let blocks = pending.blocks.len();
        self.for_batch = std::mem::take(&mut self.for_blocks);
        let r = self.write_batch(blocks, |state| state.write_pending(&pending.discards, pending.blocks.iter(), &[]));
        if r.is_err() {
            // Nothing is written any more, and what was accepted reads as it was written.
            self.pending = pending;
        }
        self.fatal(r)
    }

    /// Ends the batch, and leaves blocks pending of which batches have patches, if these are not too many and there is room: they are mostly written again
    /// soon. Where too many have, the coldest are written whole. With `new` ones so may others be in which little has changed.
    fn leave_patched(&mut self, new: bool) -> io::Result<bool> {
        let most = self.patched_max();
        // Where a batch is long, others come: what they leave no room for is written whole.
        let may_wait = new || self.pending.patched && self.is_room_beside_a_batch();
        if !may_wait || self.check().is_err() {
            return Ok(false);
        }
        self.pending.forget_unchanged();
        if new && self.pending.changed() <= most / 3 * 2 {
            self.find_holes()?;
        }
        let (patches, mut whole) = self.pending.patches(new);
        if patches.len() > most / 3 * 2 {
            return Ok(false);
        }
        let too_many = (self.pending.blocks.len() - whole.len()).saturating_sub(most);
        if too_many > 0 {
            // Side by side, as who reads them in order will want them.
            whole.extend(self.pending.coldest(too_many.max(most / 2)));
            whole.sort_unstable();
        }
        if self.pending.blocks.len() - whole.len() > most {
            return Ok(false);
        }
        if patches.is_empty() && whole.is_empty() && self.pending.discards.is_empty() {
            return Ok(true);
        }
        let bytes: usize = patches.iter().map(|(_, patch)| patch.bytes()).sum();
        let change = Change { bytes: (SUMMARY_BYTES + bytes) as u64 + 64 * patches.len() as u64, ..Change::default() };
        // Where some of them go, the others are more extents than all were.
        let parts = if whole.is_empty() { 0 } else { self.pending.runs_without(&whole) };
        let apart = Change::blocks(0, parts.saturating_sub(self.pending.extents) as u64);
        let room = self.store.available() >= self.need(self.pending_change().and(change).and(apart), Level::Takes);
        if !room {
            return Ok(false);
        }
        let mut pending = std::mem::take(&mut self.pending);
        let of = |at: &Logical| pending.blocks.get_key_value(at);
        let blocks: Vec<_> = whole.iter().filter_map(of).collect();
        let r =
            self.write_batch(whole.len(), |state| state.write_pending(&pending.discards, blocks.into_iter(), &patches));
        if r.is_ok() {
            pending.was_patched(&whole);
        }
        self.pending = pending;
        self.fatal(r)?;
        self.patched += patches.len() as u64;
        if self.pending.is_empty() {
            self.for_blocks = ForWhom::default();
        }
        if self.checkpoint_is_due() {
            self.checkpoint()?;
        }
        Ok(true)
    }

    /// What is pending and was nowhere before was zeros.
    fn find_holes(&mut self) -> io::Result<()> {
        let mut holes = Vec::new();
        self.bring_map(self.pending.unknown());
        for at in self.pending.unknown() {
            let Some(b) = self.catalog.branches.get(&at.branch) else { continue };
            if lookup_extents(&b.root, &self.nodes(), at.block, 1)?.is_empty() {
                holes.push(at);
            }
        }
        self.pending.bases.extend(holes.into_iter().map(|at| (at, vec![0; BLOCK_BYTES].into())));
        Ok(())
    }

    /// Writes a batch that has so many blocks whole.
    fn write_batch(&mut self, blocks: usize, write: impl FnOnce(&mut State) -> io::Result<()>) -> io::Result<()> {
        let _purpose = Purpose::Log.scope();
        let observed = self.observed.clone();
        let _batch = observed.work(Work::Batch, &mut self.for_batch);
        observed.note(&mut self.for_checkpoint, (blocks * BLOCK_BYTES) as u64);
        write(self)
    }

    /// Bytes of log between two checkpoints: not more than a part of the store, because what died since then is still in the way.
    fn checkpoint_bytes(&self) -> u64 {
        self.options.checkpoint_bytes.min(self.store.capacity() / 8).max(1)
    }

    /// Discards count first, then blocks, then patches of others.
    fn write_pending<'a>(
        &mut self,
        discards: &BTreeMap<Logical, u64>,
        blocks: impl ExactSizeIterator<Item = (&'a Logical, &'a Box<[u8]>)>,
        patches: &[(Logical, Patch)],
    ) -> io::Result<()> {
        let bytes = (blocks.len() * BLOCK_BYTES) as u64;
        let mut packer = Packer::of_bytes(bytes, STREAM_NEW, None, self.store.segment_bytes());
        for (at, end) in discards {
            packer.add(self, Entry::Discard { at: *at, blocks: end - at.block }, &[])?;
        }
        let mut run: Vec<u8> = Vec::new();
        let mut start: Option<Logical> = None;
        for (at, data) in blocks {
            let next = start.map(|s| Logical { branch: s.branch, block: s.block + (run.len() / BLOCK_BYTES) as u64 });
            if next != Some(*at) || run.len() >= RUN_BLOCKS_MAX * BLOCK_BYTES {
                if let Some(s) = start {
                    self.pack_run(&mut packer, s, &run)?;
                }
                run.clear();
                start = Some(*at);
            }
            run.extend_from_slice(data);
        }
        if let Some(s) = start {
            self.pack_run(&mut packer, s, &run)?;
        }
        for (at, patch) in patches {
            packer.add(self, Entry::Patch { at: *at, patch: patch.clone() }, &[])?;
        }
        packer.finish(self)
    }

    fn pack_run(&mut self, packer: &mut Packer, start: Logical, data: &[u8]) -> io::Result<()> {
        let version = self.version;
        packer.add_blocks(self, data, &|skip, data| {
            let at = Logical { branch: start.branch, block: start.block + u64::from(skip) };
            Entry::Write { at, version, data }
        })
    }

    /// Ends the batch. Returns the number of the last one, if it is not durable yet.
    pub(crate) fn seal_for_flush(&mut self) -> io::Result<Option<u64>> {
        self.end_batch(true)?;
        if !self.options.read_only {
            self.check()?;
        }
        let last = self.log.sequence - 1;
        Ok((self.log.durable < last).then_some(last))
    }

    /// The store was flushed after the batch with this number was written.
    pub(crate) fn flushed(&mut self, last: u64, result: io::Result<()>) -> io::Result<()> {
        self.fatal(result)?;
        self.log.durable = self.log.durable.max(last);
        Ok(())
    }
}
