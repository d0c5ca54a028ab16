//! Strays: files that lie apart from most of their stretch, and go to where the rest of it is.
//!
//! That costs least: a program that replaces a file leaves a gap of about its size among the neighbours, and the new file
//! lies elsewhere. What is in the gap meanwhile is a stray itself mostly.

use super::stretch::Stretch;
use crate::format::{BlockAddr, FragAddr, Geometry, Run};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

/// Groups side by side are a main place of a stretch if they have this part of a group of it. Less than that is cheaper to move than to
/// read from there, which costs two requests: one to it, and one back.
const MAIN_DIVISOR: u64 = 2;
/// Strays may go into so many groups before the main ones and behind them: who reads in order has them in memory, or comes to them soon.
const BESIDE: u64 = 4;

/// The groups that have most of a stretch, and which of its items are elsewhere.
pub(super) struct MainGroups {
    /// Where a reader of the rest of it comes to.
    groups: BTreeSet<BlockAddr>,
    /// Numbers of the items that are elsewhere.
    pub strays: Vec<usize>,
    /// For each of them, in which places it is.
    places: Vec<Vec<usize>>,
}

impl MainGroups {
    /// Those of a stretch. `None` if it has no strays.
    pub fn of(g: &Geometry, stretch: &Stretch) -> Option<MainGroups> {
        let mut own: BTreeMap<BlockAddr, u64> = BTreeMap::new();
        for run in stretch.items.iter().flat_map(|i| &i.runs) {
            for (group, frags) in parts(g, *run) {
                *own.entry(group).or_default() += frags;
            }
        }
        // Groups side by side are one place.
        let mut place_of: HashMap<BlockAddr, usize> = HashMap::new();
        let mut frags_in: Vec<u64> = Vec::new();
        let mut last = None;
        for (group, frags) in &own {
            if last.is_none_or(|last| last + g.group_blocks() != *group) {
                frags_in.push(0);
            }
            last = Some(*group);
            place_of.insert(*group, frags_in.len() - 1);
            if let Some(sum) = frags_in.last_mut() {
                *sum += frags;
            }
        }
        let most = frags_in.iter().copied().max().unwrap_or(0);
        let least = (g.group_frags() / MAIN_DIVISOR).min(most);
        let is_main = |place: usize| frags_in[place] >= least;
        let groups: BTreeSet<BlockAddr> = own.keys().copied().filter(|group| is_main(place_of[group])).collect();
        let (mut strays, mut places) = (Vec::new(), Vec::new());
        for (n, item) in stretch.items.iter().enumerate() {
            let at = item.runs.iter().flat_map(|r| parts(g, *r)).map(|(group, _)| place_of[&group]);
            let outside: BTreeSet<usize> = at.filter(|place| !is_main(*place)).collect();
            if !outside.is_empty() {
                strays.push(n);
                places.push(outside.into_iter().collect());
            }
        }
        (!strays.is_empty()).then_some(MainGroups { groups, strays, places })
    }

    /// Which strays stay, where some have no new place: what is not left altogether is read all the same.
    pub fn staying(&self, has_place: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut kept: BTreeSet<usize> = BTreeSet::new();
        let mut stay: BTreeSet<usize> = BTreeSet::new();
        loop {
            let before = stay.len();
            for (n, places) in self.places.iter().enumerate() {
                if !has_place(n) || places.iter().any(|p| kept.contains(p)) {
                    kept.extend(places);
                    stay.insert(n);
                }
            }
            if stay.len() == before {
                return stay.into_iter().collect();
            }
        }
    }

    /// The groups as windows of fragments, the one nearest to an address first; then those beside them.
    pub fn near(&self, g: &Geometry, at: FragAddr) -> Vec<Range<FragAddr>> {
        let blocks = g.group_blocks();
        let group = g.group_of(g.block_of_frag(at));
        let mut all: Vec<BlockAddr> = self.groups.iter().copied().collect();
        all.sort_unstable_by_key(|main| main.abs_diff(group));
        for n in 1..=BESIDE {
            let beside = self.groups.iter().flat_map(|main| [main.checked_sub(n * blocks), Some(main + n * blocks)]);
            let new = |group: &BlockAddr| *group < g.total_blocks && !self.groups.contains(group);
            all.extend(beside.flatten().filter(new));
        }
        let window = |main: &BlockAddr| {
            let end = (main + blocks).min(g.total_blocks);
            g.frag_of_block(*main)..g.frag_of_block(end)
        };
        all.iter().map(window).collect()
    }
}

/// The parts of a run, by group.
fn parts(g: &Geometry, run: Run) -> impl Iterator<Item = (BlockAddr, u64)> + use<> {
    let g = *g;
    let mut at = run.start;
    std::iter::from_fn(move || {
        if at >= run.end() {
            return None;
        }
        let group = g.group_of(g.block_of_frag(at));
        let end = g.frag_of_block(group + g.group_blocks()).min(run.end());
        let part = (group, end - at);
        at = end;
        Some(part)
    })
}
