//! Strays: files that lie apart from most of their stretch, and go to where the rest of it is.
//!
//! That costs least: a program that replaces a file leaves a gap of about its size among the neighbours, and the new file
//! lies elsewhere. What is in the gap meanwhile is a stray itself mostly.

use super::stretch::{Item, Stretch};
use crate::format::{BlockAddr, FragAddr, Geometry, Run};
use std::collections::HashMap;
use std::ops::Range;

/// A group is one of the main groups of a stretch if this part of it belongs to the stretch.
const MAIN_DIVISOR: u64 = 8;

/// The groups that have most of a stretch, and which of its items are elsewhere.
pub(super) struct MainGroups {
    groups: Vec<BlockAddr>,
    /// Numbers of the items.
    pub strays: Vec<usize>,
}

impl MainGroups {
    /// Those of a stretch. `None` if it is scattered all over, or has no strays.
    pub fn of(g: &Geometry, stretch: &Stretch) -> Option<MainGroups> {
        let group_frags = g.frag_of_block(g.group_blocks());
        let mut own: HashMap<BlockAddr, u64> = HashMap::new();
        for run in stretch.items.iter().flat_map(|i| &i.runs) {
            for (group, frags) in parts(g, *run) {
                *own.entry(group).or_default() += frags;
            }
        }
        let mut groups: Vec<(u64, BlockAddr)> = own.into_iter().map(|(group, frags)| (frags, group)).collect();
        groups.sort_unstable_by_key(|(frags, group)| (std::cmp::Reverse(*frags), *group));
        // One more than the stretch fills: it may begin and end within a group.
        groups.truncate(stretch.frags.div_ceil(group_frags) as usize + 1);
        groups.retain(|(frags, _)| *frags >= group_frags.min(stretch.frags) / MAIN_DIVISOR);
        let groups: Vec<BlockAddr> = groups.into_iter().map(|(_, group)| group).collect();
        let in_main = |i: &Item| i.runs.iter().all(|r| parts(g, *r).all(|(group, _)| groups.contains(&group)));
        let strays: Vec<usize> = (0..stretch.items.len()).filter(|n| !in_main(&stretch.items[*n])).collect();
        (!groups.is_empty() && !strays.is_empty()).then_some(MainGroups { groups, strays })
    }

    /// The groups as windows of fragments, the one nearest to an address first.
    pub fn near(&self, g: &Geometry, at: FragAddr) -> Vec<Range<FragAddr>> {
        let group = g.group_of(g.block_of_frag(at));
        let mut all = self.groups.clone();
        all.sort_unstable_by_key(|main| main.abs_diff(group));
        let window = |main: &BlockAddr| {
            let end = (main + g.group_blocks()).min(g.total_blocks);
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
