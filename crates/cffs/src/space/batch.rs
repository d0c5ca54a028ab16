//! Free runs for batch allocation: few and long ones, in the order of the device.
//!
//! An isolated file costs one request wherever it goes. Files that are written in one writeback and read in one walk
//! cost a request for each free run that they go into. So the longest runs are worth finding, and using them in order
//! keeps seeks short.

use super::alloc_group::AllocGroup;
use super::free_space::Space;
use super::search::{Loads, NEAR_AGS};
use crate::error::{Error, Result};
use crate::format::{BlockAddr, FragAddr, Run};
use std::cell::Cell;
use std::cmp::Reverse;
use std::sync::atomic::Ordering;

/// Unit of cost: this part of the time to transfer a fragment.
const PARTS: u64 = 16;
/// No more allocation groups are searched once this many times the needed space was found.
const CANDIDATE_FACTOR: u64 = 8;
/// Most runs among which the cheapest are chosen.
const CANDIDATES_MAX: usize = 65_536;

impl Space {
    /// Open allocation groups from that of `goal` on, at most [`NEAR_AGS`]; AG 0 follows the last one.
    fn around(&self, goal: FragAddr) -> impl Iterator<Item = u64> + use<> {
        let open = self.open.load(Ordering::Acquire).max(1);
        let first = self.g.ag_of(self.g.block_of_frag(goal.min(self.g.total_frags() - 1))).min(open - 1);
        (first..open).chain(0..first).take(NEAR_AGS)
    }

    /// Length of the shortest free run, in fragments, that is needed when `need` fragments go into the longest runs
    /// near `goal`. At most `enough`, because longer runs are no better. `None` if virgin allocation groups have longer
    /// runs, or if there is not enough space.
    pub fn min_run_length(&self, goal: BlockAddr, need: u64, enough: u64) -> Result<Option<u64>> {
        let enough = enough.min(need);
        let mut lens: Vec<u32> = Vec::new();
        let shortest: Cell<Option<u64>> = Cell::new(None);
        let mut visit = |group: &AllocGroup| {
            match self.with_free_set(group, |set| set.longest(need, &mut lens)) {
                // Damaged allocation groups are not used.
                Ok(()) | Err(Error::Corrupt(_)) => {}
                Err(e) => return Some(Err(e)),
            }
            lens.sort_unstable_by(|a, b| b.cmp(a));
            let mut sum = 0;
            let last = lens.iter().position(|len| {
                sum += u64::from(*len);
                sum >= need
            })?;
            lens.truncate(last + 1);
            shortest.set(Some(u64::from(lens[last])));
            (shortest.get() >= Some(enough)).then_some(Ok(Some(enough)))
        };
        // First those that are in memory, then those that may have the longest runs: with one for all of it no other bitmap is read.
        let rank = |ag| match self.loaded_group(ag) {
            Some(_) => (false, Reverse(need)),
            None => (true, Reverse(self.no_run_has(ag).unwrap_or(u64::MAX).min(need))),
        };
        let mut around: Vec<_> = self.around(self.g.frag_of_block(goal)).map(|ag| (rank(ag), ag)).collect();
        around.sort_by_key(|(rank, _)| *rank);
        // And none of those that cannot have a longer run than the shortest that is needed.
        let may_help = |ag: &u64| shortest.get().is_none_or(|len| self.may_have_run(*ag, len + 1));
        let mut loads = Loads::default();
        // What is read ahead may have runs as long as what was read in vain.
        for alike in around.chunk_by(|(a, _), (b, _)| a == b) {
            let ags = alike.iter().map(|(_, ag)| *ag).filter(may_help);
            if let Some((_, outcome)) = self.visit_in_turn(ags, &mut loads, &mut visit) {
                return outcome;
            }
        }
        Ok(shortest.get().filter(|_| self.open.load(Ordering::Acquire) >= self.g.ag_count))
    }

    /// The free runs near `goal` that have `need` fragments at the least cost, from the goal on in the order of the
    /// device. Every fragment that passes under the head costs one, wanted or not; a seek costs as much as `seek`
    /// fragments. So short runs that lie close together, and are read with one request, come before a longer run that
    /// is far from all others. Empty if there is not enough space.
    pub fn cheapest_runs(&self, goal: BlockAddr, need: u64, seek: u64) -> Result<Vec<Run>> {
        // Runs shorter than a block are not worth a request.
        let least = self.g.frags_per_block();
        let goal = self.g.frag_of_block(goal);
        let first = self.around(goal).next();
        let mut runs: Vec<Run> = Vec::new();
        let mut sum = 0;
        // The first group from the goal on, the others, and the start of the first.
        for (n, ag) in self.around(goal).chain(first).enumerate() {
            let group = self.alloc_group(ag);
            let at_goal = goal.saturating_sub(group.start()).min(u64::from(u32::MAX)) as u32;
            let (from, end) = match n {
                0 => (at_goal, u32::MAX),
                _ if Some(ag) == first => (0, at_goal),
                _ => (0, u32::MAX),
            };
            let mut take = |start: u32, len: u32| {
                let len = u64::from(len.min(end - start));
                if len >= least {
                    sum += len;
                    runs.push(Run { start: group.start() + u64::from(start), len });
                }
            };
            let looked = self.with_free_set(&group, |set| {
                let behind = set.runs_from(from).take_while(|(start, _)| *start < end);
                behind.take(CANDIDATES_MAX / NEAR_AGS).for_each(|(start, len)| take(start, len));
            });
            match looked {
                // Damaged allocation groups are not used.
                Ok(()) | Err(Error::Corrupt(_)) => {}
                Err(e) => return Err(e),
            }
            // Enough to choose from. Runs farther away cost longer seeks.
            if sum >= need.saturating_mul(CANDIDATE_FACTOR) {
                break;
            }
        }
        Ok(cheapest(&runs, need, seek))
    }

    /// The first free run of at least `min` fragments from `from` on, in the groups that [`Space::min_run_length`]
    /// searches: first that of `from`, from there on, and those that are in memory, in circular order; then those that have to be read. It is not allocated.
    pub fn next_free_run(&self, from: FragAddr, min: u64) -> Result<Option<Run>> {
        let min = u32::try_from(min).unwrap_or(u32::MAX).max(1);
        let first = self.around(from).next();
        // The first group from the goal on, the others, and the start of the first.
        let all = self.around(from).chain(first).enumerate();
        let (known, unknown): (Vec<_>, Vec<_>) =
            all.partition(|(_, ag)| Some(*ag) == first || self.loaded_group(*ag).is_some());
        for (n, ag) in known.into_iter().chain(unknown) {
            if !self.may_have_run(ag, u64::from(min)) {
                continue;
            }
            let group = self.alloc_group(ag);
            let offset = if n == 0 { from.saturating_sub(group.start()).min(u64::from(u32::MAX)) as u32 } else { 0 };
            match self.with_free_set(&group, |set| set.find_run(offset, min)) {
                Ok(Some((start, end))) => {
                    return Ok(Some(Run { start: group.start() + u64::from(start), len: u64::from(end - start) }));
                }
                Ok(None) | Err(Error::Corrupt(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }
}

/// Those of the runs that have `need` fragments at the least cost.
fn cheapest(runs: &[Run], need: u64, seek: u64) -> Vec<Run> {
    let has_enough = |chosen: &[Run]| chosen.iter().map(|r| r.len).sum::<u64>() >= need;
    // The price paid for a free fragment decides which runs are worth their cost. The lowest price that yields enough
    // fragments is found by bisection. At the highest price a single fragment is worth a seek.
    let (mut low, mut high) = (0, (seek + 1) * PARTS + 1);
    let mut found = worth(runs, high, seek);
    if !has_enough(&found) {
        return Vec::new();
    }
    while high - low > 1 {
        let paid = (low + high) / 2;
        let chosen = worth(runs, paid, seek);
        if has_enough(&chosen) {
            (high, found) = (paid, chosen);
        } else {
            low = paid;
        }
    }
    found
}

/// The runs that are worth their cost at a price for each fragment, in [`PARTS`].
fn worth(runs: &[Run], paid: u64, seek: u64) -> Vec<Run> {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX / 4);
    let cost = |frags: u64| signed(frags.saturating_mul(PARTS));
    // Dynamic programming over the runs. `with`: the best gain if a run is the last one chosen, and whether the run
    // before it is chosen too, without a seek between them. `best`: the best gain so far, and its last run.
    let mut with: Vec<(i64, bool)> = Vec::with_capacity(runs.len());
    let mut best: Vec<(i64, Option<usize>)> = Vec::with_capacity(runs.len());
    for (n, run) in runs.iter().enumerate() {
        let before = n.checked_sub(1);
        let (gain, last) = before.map_or((0, None), |b| best[b]);
        // Where the order wraps around, a seek is needed.
        let passed = before.and_then(|b| Some(with[b].0 - cost(run.start.checked_sub(runs[b].end())?)));
        let anew = gain - cost(seek);
        let along = passed.is_some_and(|p| p >= anew);
        let here = passed.filter(|_| along).unwrap_or(anew) + signed(run.len * paid) - cost(run.len);
        with.push((here, along));
        best.push(if here > gain { (here, Some(n)) } else { (gain, last) });
    }
    let mut taken = Vec::new();
    let mut at = best.last().and_then(|(_, last)| *last);
    while let Some(n) = at {
        taken.push(runs[n]);
        let before = n.checked_sub(1);
        at = if with[n].1 { before } else { before.and_then(|b| best[b].1) };
    }
    taken.reverse();
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(all: &[(u64, u64)]) -> Vec<Run> {
        all.iter().map(|(start, len)| Run { start: *start, len: *len }).collect()
    }

    /// Number of fragments, and their cost.
    fn cost_of(runs: &[Run], seek: u64) -> (u64, u64) {
        let mut cost = 0;
        for (n, run) in runs.iter().enumerate() {
            let gap = n.checked_sub(1).and_then(|b| run.start.checked_sub(runs[b].end()));
            cost += run.len + gap.map_or(seek, |gap| gap.min(seek));
        }
        (runs.iter().map(|r| r.len).sum(), cost)
    }

    #[test]
    fn runs_that_lie_close_together_come_before_longer_ones_far_away() {
        let all = runs(&[(100, 10), (500, 6), (508, 6), (516, 6), (900, 10)]);
        assert_eq!(cheapest(&all, 18, 8), all[1..4]);
        assert_eq!(cheapest(&all, 10, 8).len(), 3, "cheaper for each fragment than one of ten");
        let far = runs(&[(100, 10), (500, 6), (540, 6), (580, 6), (900, 10)]);
        assert_eq!(cheapest(&far, 20, 8), [far[0], far[4]]);
        assert!(cheapest(&all, 39, 8).is_empty(), "there are 38");
        assert_eq!(cheapest(&all, 38, 8), all);
    }

    #[test]
    fn no_choice_with_as_many_fragments_is_cheaper() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let mut at = 0;
            let mut all: Vec<Run> = Vec::new();
            for _ in 0..9 {
                at += 1 + random(20);
                let run = Run { start: at, len: 1 + random(6) };
                at = run.end();
                all.push(run);
            }
            // From a goal on, then from the start.
            all.rotate_left(random(9) as usize);
            let seek = 1 + random(12);
            let need = 1 + random(all.iter().map(|r| r.len).sum());
            let found = cheapest(&all, need, seek);
            let (has, cost) = cost_of(&found, seek);
            assert!(has >= need, "{has} of {need}");
            for set in 1_u32..1 << all.len() {
                let some: Vec<Run> = (0..all.len()).filter(|n| set >> n & 1 == 1).map(|n| all[n]).collect();
                let (have, least) = cost_of(&some, seek);
                assert!(have < has || least >= cost, "{some:?} for {least}, {found:?} for {cost}, seek {seek}");
            }
        }
    }
}
