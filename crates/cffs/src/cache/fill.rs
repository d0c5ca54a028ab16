//! Misses: what is read with a missing block, and the one request that reads it.

use super::block_cache::{Cache, PartInUse};
use super::buf::{Buf, BufRef, Demand};
use super::locality::LocalityHint;
use super::prefetch::Prefetch;
use super::shard::LockedShard;
use crate::error::{Error, Result};
use crate::format::{BlockAddr, corrupt};
use crate::trace::Kind;
use cffs_buf::AlignedBuf;
use cffs_device::{IoKind, ReadRequest};
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Cache {
    /// The block, read if need be (with its group, where the policy says so).
    pub(super) fn get(&self, kind: IoKind, addr: BlockAddr) -> Result<BufRef> {
        self.get_near(kind, self.policy(kind), addr, &LocalityHint::default())
    }

    /// The same by a certain policy, with what is known of the blocks around it.
    pub(super) fn get_near(
        &self,
        kind: IoKind,
        policy: &Prefetch,
        addr: BlockAddr,
        hint: &LocalityHint,
    ) -> Result<BufRef> {
        if addr >= self.geo.total_blocks {
            return Err(corrupt::<()>(format!("block {addr} lies outside the file system")).unwrap_err().into());
        }
        loop {
            if let Some(buf) = self.cached_or_wait(addr) {
                self.touch(&buf, policy);
                return Ok(buf);
            }
            self.counters.misses.fetch_add(1, Ordering::Relaxed);
            self.fetch(kind, policy, addr, hint)?;
        }
    }

    /// Reads a missing block: alone, with its group, or with what belongs to its directory.
    fn fetch(&self, kind: IoKind, policy: &Prefetch, addr: BlockAddr, hint: &LocalityHint) -> Result<()> {
        if !policy.wants_group(self.geo.group_of(addr), self.geo.group_blocks(), hint.sequential) {
            return self.fill(kind, addr..addr + 1, addr..addr + 1, false).map(drop);
        }
        self.fetch_group(kind, policy, addr, hint)
    }

    /// Reads the group of these blocks of data, if one of them is missing and the policy wants groups. Otherwise who needs them reads them.
    pub(crate) fn bring(&self, blocks: Range<BlockAddr>) -> Result<()> {
        let Some(missing) = blocks.clone().find(|block| self.cached_or_wait(*block).is_none()) else { return Ok(()) };
        let policy = self.policy(IoKind::Data);
        if !policy.wants_group(self.geo.group_of(missing), self.geo.group_blocks(), false) {
            return Ok(());
        }
        self.counters.misses.fetch_add(1, Ordering::Relaxed);
        self.fetch_group(IoKind::Data, policy, missing, &LocalityHint::default())
    }

    /// Reads a missing block with its group, or with what belongs to its directory.
    fn fetch_group(&self, kind: IoKind, policy: &Prefetch, addr: BlockAddr, hint: &LocalityHint) -> Result<()> {
        let (group, blocks) = (self.geo.group_of(addr), self.geo.group_blocks());
        if let Some(dir) = &hint.extents
            && self.fill_near(kind, policy, addr, dir, hint.sequential)?
        {
            return Ok(());
        }
        let ahead = policy.note_group(group, blocks);
        // Without the thread the next group comes in the same request. One: where a directory ends, what follows is
        // another's, and would be waited for.
        let along = if self.has_readahead() || ahead == 0 { 0 } else { self.groups_in_transfer(group, 1) };
        let window = group..(group + (1 + along) * blocks).min(self.geo.total_blocks);
        policy.note_prefetched(self.fill(kind, addr..addr + 1, window.clone(), false)?);
        self.note_read_along(kind, window);
        if along > 0 {
            policy.note_last_group(group + along * blocks);
        }
        self.readahead_groups(kind, policy, group + blocks, ahead);
        Ok(())
    }

    /// Says how to find out what is free: that is not read along.
    pub fn set_part_in_use(&self, part_in_use: PartInUse) {
        let _ = self.part_in_use.set(part_in_use);
    }

    /// Looks at what was read along with a missing block.
    pub(super) fn note_read_along(&self, kind: IoKind, window: Range<BlockAddr>) {
        if kind == IoKind::Meta && self.looks_ahead() {
            self.note_directories(window.filter_map(|addr| self.peek(addr)));
        }
    }

    /// How many of the `groups` groups behind one fit into its transfer: that has a greatest length, and stays in one part of
    /// the cache.
    pub(super) fn groups_in_transfer(&self, group: BlockAddr, groups: u64) -> u64 {
        let most = self.transfer_blocks().min(self.region_end(group) - group);
        groups.min((most / self.geo.group_blocks()).saturating_sub(1))
    }

    /// Reads the missing blocks of `need`, with one request that may be extended within `window`. Returns how many blocks were
    /// read that nobody needed.
    ///
    /// `speculative`: nobody needs those of `need` yet either.
    pub(super) fn fill(
        &self,
        kind: IoKind,
        need: Range<BlockAddr>,
        window: Range<BlockAddr>,
        speculative: bool,
    ) -> Result<u64> {
        // What nobody needs yet is read where it comes cheap.
        let needed = if speculative { need.start..need.start + 1 } else { need.clone() };
        let window = self.together(&needed, window);
        let window = self.part_in_use.get().map_or(window.clone(), |part| part(self, &needed, window));
        let need = need.start..need.end.min(window.end);
        let Some((range, claimed)) = self.claim_window(&need, &window) else { return Ok(0) };
        let args = [need.start, range.end - range.start, 0];
        let _miss = (!speculative).then(|| self.tracer().span(Kind::Miss, args));
        match self.read_blocks(kind, &range) {
            Ok(bufs) => Ok(self.insert_filled(claimed, range.zip(bufs), &need, speculative)),
            Err(e) => {
                claimed.into_iter().for_each(|run| self.release(run));
                if window != need {
                    // A bad sector elsewhere in the group must not hide this block.
                    return self.fill(kind, need.clone(), need, speculative);
                }
                tracing::error!("reading block {}: {e}", need.start);
                // Who asked may tell somebody who does not see the log.
                Err(match Error::from(e) {
                    Error::Io(e) => Error::Io(io::Error::new(e.kind(), format!("block {}: {e}", need.start))),
                    other => other,
                })
            }
        }
    }

    /// The longest read in bytes that the device gets in one piece. A kernel would cut a longer one where the pages of the blocks happen to end a
    /// request, and make three of two. An arm goes on from one to the next, if nothing comes in between; and several devices put together what
    /// they get.
    fn whole_read(&self) -> usize {
        let bs = self.geo.block_size();
        let is_cut = self.dev.width() == 1 && !self.dev.is_rotational();
        if is_cut { (self.dev.max_request() / bs * bs).max(bs) } else { usize::MAX }
    }

    /// The requests for a run of blocks, none longer than the device takes.
    pub(super) fn cut<'a>(&self, kind: IoKind, offset: u64, bytes: &'a mut [u8]) -> Vec<ReadRequest<'a>> {
        let most = self.whole_read().min(bytes.len().max(1));
        let parts = bytes.chunks_mut(most).zip((offset..).step_by(most));
        parts.map(|(buf, offset)| ReadRequest { kind, offset, buf }).collect()
    }

    /// Reads blocks with one request, or with as few as the device takes.
    pub(super) fn read_blocks(&self, kind: IoKind, range: &Range<BlockAddr>) -> io::Result<Vec<AlignedBuf>> {
        let (bs, offset) = (self.geo.block_size(), range.start << self.geo.block_shift);
        let len = (range.end - range.start) as usize * bs;
        if len > self.whole_read() {
            let mut bytes = AlignedBuf::zeroed(len);
            self.dev.read_batch(&mut self.cut(kind, offset, &mut bytes))?;
            return Ok(bytes.chunks_exact(bs).map(AlignedBuf::from_slice).collect());
        }
        let mut bufs: Vec<AlignedBuf> = range.clone().map(|_| AlignedBuf::zeroed(bs)).collect();
        let mut slices: Vec<IoSliceMut<'_>> = bufs.iter_mut().map(|b| IoSliceMut::new(b)).collect();
        self.dev.read_vectored(kind, offset, &mut slices)?;
        Ok(bufs)
    }

    /// The range to read for the missing blocks of `need`, from the first to the last missing block of `window`, and the blocks
    /// of it that were missing and are now in flight, each run in one part of the cache. `None` if nothing of `need` is missing.
    fn claim_window(
        &self,
        need: &Range<BlockAddr>,
        window: &Range<BlockAddr>,
    ) -> Option<(Range<BlockAddr>, Vec<Range<BlockAddr>>)> {
        let mut at = need.start;
        loop {
            let (start, end) = (self.region_start(at), self.region_end(at));
            let (need_here, window_here) = (at..need.end.min(end), window.start.max(start)..window.end.min(end));
            if let Some((range, claimed)) = claim_in(self.shard(at), &need_here, &window_here) {
                return Some(self.claim_on(range, claimed, window.end));
            }
            at = need_here.end;
            if at >= need.end {
                return None;
            }
        }
    }

    /// Goes on with a claim that ends with its part of the cache, up to the first block that is there or in flight. One part is locked
    /// at a time, and nobody is waited for.
    fn claim_on(
        &self,
        mut range: Range<BlockAddr>,
        mut claimed: Vec<Range<BlockAddr>>,
        until: BlockAddr,
    ) -> (Range<BlockAddr>, Vec<Range<BlockAddr>>) {
        while range.end < until && range.end == self.region_start(range.end) {
            let part = range.end..until.min(self.region_end(range.end));
            let mut shard = self.shard(part.start).shard.lock();
            let run = part.start..part.start + shard.absent_prefix(part.clone());
            if run.is_empty() {
                break;
            }
            shard.in_flight.add(run.clone());
            range.end = run.end;
            claimed.push(run);
        }
        (range, claimed)
    }

    /// The part of a window that lies together on the device with the first block that is needed, and all that is needed.
    pub(super) fn together(&self, need: &Range<BlockAddr>, window: Range<BlockAddr>) -> Range<BlockAddr> {
        let shift = self.geo.block_shift;
        let here = self.dev.together(need.start << shift, window.start << shift..window.end << shift);
        // A block that is there in part is not.
        let (start, end) = (here.start.div_ceil(1 << shift), here.end >> shift);
        start.max(window.start).min(need.start)..end.min(window.end).max(need.end)
    }

    /// Whether a block is read for little more than another one that is read now: they are at most a group apart, and together on the device.
    pub(crate) fn is_near(&self, block: BlockAddr, other: BlockAddr) -> bool {
        let (first, last) = (block.min(other), block.max(other));
        last - first <= self.geo.group_blocks() && self.together(&(first..first + 1), first..last + 1).end > last
    }

    /// Puts the blocks that were read into the cache, as far as they were claimed. Returns how many of them nobody needed.
    pub(super) fn insert_filled(
        &self,
        claimed: Vec<Range<BlockAddr>>,
        mut read: impl Iterator<Item = (BlockAddr, AlignedBuf)>,
        need: &Range<BlockAddr>,
        speculative: bool,
    ) -> u64 {
        let with_others = claimed.iter().map(|run| run.end - run.start).sum::<u64>() > need.end - need.start;
        let (mut along, mut prefetched) = (0, 0);
        // What was asked for must outlast the eviction, however small the cache: the caller looks for it next.
        let mut held: Vec<BufRef> = Vec::new();
        for of_part in claimed.chunk_by(|a, b| self.region(a.start) == self.region(b.start)) {
            let ls = self.shard(of_part[0].start);
            let mut shard = ls.shard.lock();
            of_part.iter().for_each(|run| shard.in_flight.remove(run.clone()));
            for addr in of_part.iter().cloned().flatten() {
                let Some((_, bytes)) = read.find(|(at, _)| *at == addr) else { break };
                let needed = need.contains(&addr);
                let requested = needed && !speculative;
                let buf = Buf::new(addr, bytes, if requested { Demand::Requested } else { Demand::Prefetched });
                along += u64::from(!needed);
                prefetched += u64::from(!requested);
                if requested {
                    held.push(buf.clone());
                }
                if with_others {
                    buf.stay_until_read();
                }
                self.insert(&mut shard, buf);
            }
            drop(shard);
            ls.changed.notify_all();
        }
        if with_others {
            self.counters.group_reads.fetch_add(1, Ordering::Relaxed);
        }
        // Those of which it is counted later whether they were used.
        self.counters.group_blocks.fetch_add(prefetched, Ordering::Relaxed);
        self.evict();
        along
    }

    /// A block of file data, read if need be.
    pub(crate) fn data_block(&self, addr: BlockAddr) -> Result<BufRef> {
        self.get(IoKind::Data, addr)
    }
}

/// [`Cache::claim_window`] within one part of the cache.
fn claim_in(
    ls: &LockedShard,
    need: &Range<BlockAddr>,
    window: &Range<BlockAddr>,
) -> Option<(Range<BlockAddr>, Vec<Range<BlockAddr>>)> {
    let mut shard = ls.shard.lock();
    let first = need.clone().find(|a| !shard.has(*a))?;
    // Blocks in flight are a border: nobody may read around them.
    let start = shard.in_flight.last_in(window.start..first).map_or(window.start, |a| a + 1);
    let end = shard.in_flight.first_in(first..window.end).unwrap_or(window.end);
    let missing = |a: &BlockAddr| !shard.map.contains_key(a);
    let start = (start..=first).find(missing).unwrap_or(first);
    let end = (first..end).rev().find(missing).map_or(first + 1, |a| a + 1);
    Some((start..end, shard.claim_missing(start..end)))
}
