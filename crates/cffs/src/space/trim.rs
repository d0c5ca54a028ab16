//! Trim: discards free space of a mounted file system.
//!
//! A run is taken out of the free extents, discarded, and put back, so nobody can allocate it meanwhile. No AG is
//! locked while the device works. Only one run is out at a time, and an allocation that finds no space waits for it.

use super::free_space::Space;
use crate::error::{Error, Result};
use crate::format::Run;
use crate::format::{FragAddr, Geometry};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Most bytes that are discarded at once.
const CHUNK: u64 = 64 << 20;

impl Space {
    /// Calls `discard`, in pieces, for the free runs within a range that have `min_len` fragments or more. Returns the
    /// number of discarded fragments.
    pub(crate) fn trim(
        &self,
        range: Range<FragAddr>,
        min_len: u64,
        mut discard: impl FnMut(Run) -> Result<()>,
    ) -> Result<u64> {
        let g = **self.g;
        let mut total = 0;
        let mut at = range.start;
        while at < range.end.min(g.total_frags()) {
            let ag = g.ag_of(g.block_of_frag(at));
            let step = if ag < self.open.load(Ordering::Acquire) {
                self.trim_group(ag, at..range.end, min_len, &mut discard)
            } else {
                // The lock keeps others from opening the AG meanwhile.
                let groups = self.groups.read();
                if ag < self.open.load(Ordering::Acquire) {
                    continue;
                }
                let done = trim_unused(&g, ag, at..range.end, min_len, &mut discard);
                drop(groups);
                done
            };
            match step {
                Ok(n) => total += n,
                // Groups that cannot be read are skipped.
                Err(Error::Corrupt(c)) => tracing::warn!("allocation group {ag} is not trimmed: {c}"),
                Err(e) => return Err(e),
            }
            at = g.frag_of_block(g.ag_start(ag + 1));
        }
        Ok(total)
    }

    fn trim_group(
        &self,
        ag: u64,
        range: Range<FragAddr>,
        min_len: u64,
        discard: &mut impl FnMut(Run) -> Result<()>,
    ) -> Result<u64> {
        let group = self.alloc_group(ag);
        let range = group.clip(&range);
        let chunk = (CHUNK >> self.g.frag_shift) as u32;
        let (mut at, mut total) = (range.start, 0);
        loop {
            let _one = self.trimming.lock();
            let taken = self.with_free_set(&group, |set| {
                loop {
                    let (start, end) = set.next_extent(at).filter(|(start, _)| *start < range.end)?;
                    let end = end.min(range.end);
                    at = end;
                    // The rest of a long run is discarded, however short.
                    if u64::from(end - start) >= min_len || start > range.start && start % chunk == 0 {
                        let len = (end - start).min(chunk - start % chunk);
                        at = start + len;
                        return set.take(start, len).then_some((start, len));
                    }
                }
            })?;
            let Some((start, len)) = taken else { return Ok(total) };
            let run = Run { start: group.start() + u64::from(start), len: len.into() };
            let result = discard(run);
            // The accounting is not changed: for it, the run is free all the time.
            let back = self.with_free_set(&group, |set| set.insert(start, len))?;
            debug_assert!(back.is_some(), "nobody else frees what is free");
            result?;
            total += run.len;
        }
    }

    /// Discards runs that were freed and are not allocatable yet, and with them what else is free of the units (in fragments) in
    /// which a thin device stores: of a unit that is in use in part it can forget nothing.
    pub(crate) fn discard_freed(&self, freed: &[Run], unit: u64, discard: &mut dyn FnMut(Run)) {
        let mut ends = BTreeSet::new();
        for run in freed {
            discard(*run);
            if unit > 1 {
                ends.extend([run.start, run.end()].into_iter().filter(|at| at % unit > 0).map(|at| at - at % unit));
            }
        }
        let mut sorted: Vec<Run> = if ends.is_empty() { Vec::new() } else { freed.to_vec() };
        sorted.sort_unstable_by_key(|run| run.start);
        let is_freed = |frag: FragAddr| {
            let after = sorted.partition_point(|run| run.start <= frag);
            after.checked_sub(1).is_some_and(|i| frag < sorted[i].end())
        };
        for start in ends {
            if let Err(e) = self.discard_unit(Run { start, len: unit }, &is_freed, discard) {
                tracing::debug!("discard around {start}: {e}");
            }
        }
    }

    /// Discards a unit if all of it that is not `freed` just now is free.
    fn discard_unit(&self, unit: Run, is_freed: &dyn Fn(FragAddr) -> bool, discard: &mut dyn FnMut(Run)) -> Result<()> {
        let group = self.alloc_group_of(unit)?;
        let _one = self.trimming.lock();
        let rest: Vec<u32> =
            (unit.start..unit.end()).filter(|f| !is_freed(*f)).map(|f| (f - group.start()) as u32).collect();
        let taken = self.with_free_set(&group, |set| {
            // All or none of them is taken.
            rest.iter().all(|f| set.is_free(*f, f + 1)) && rest.iter().all(|f| set.take(*f, 1))
        })?;
        if taken {
            discard(unit);
            let back = self.with_free_set(&group, |set| rest.iter().all(|f| set.insert(*f, 1).is_some()))?;
            debug_assert!(back, "nobody else frees what is free");
        }
        Ok(())
    }

    /// Runs `f` while no run is being discarded, and nothing is kept free.
    pub(super) fn with_trim_paused<R>(&self, f: impl FnOnce() -> R) -> R {
        let _one = self.trimming.lock();
        self.release_held();
        f()
    }
}

/// Discards the part of the range that lies in a virgin AG, except the block of the superblock copy.
fn trim_unused(
    g: &Geometry,
    ag: u64,
    range: Range<FragAddr>,
    min_len: u64,
    discard: &mut impl FnMut(Run) -> Result<()>,
) -> Result<u64> {
    let first = g.frag_of_block(g.ag_start(ag) + g.ag_header_blocks());
    let end = range.end.min(g.frag_of_block(g.ag_start(ag) + g.ag_len(ag)));
    let (mut at, mut total) = (first.max(range.start), 0);
    if end.saturating_sub(at) < min_len {
        return Ok(0);
    }
    while at < end {
        let len = (end - at).min((16 * CHUNK) >> g.frag_shift);
        discard(Run { start: at, len })?;
        (at, total) = (at + len, total + len);
    }
    Ok(total)
}
