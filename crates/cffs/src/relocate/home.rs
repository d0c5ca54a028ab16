//! Bringing strays home: files that lie apart from most of their segment go to where the rest of it is.
//!
//! That costs least: a program that replaces a file leaves a gap of about its size among the neighbours, and the new file
//! lies elsewhere. What is in the gap meanwhile is a stray itself mostly.

use super::segment::{Item, Segment};
use crate::format::{BlockAddr, FragAddr, Geometry, Run};
use std::collections::HashMap;
use std::ops::Range;

/// A group is a home of a segment if this part of it belongs to the segment.
const HOME_DIVISOR: u64 = 8;

/// Where a segment is at home, and which of its items are elsewhere.
pub(super) struct Homes {
    groups: Vec<BlockAddr>,
    /// Numbers of the items.
    pub strays: Vec<usize>,
}

impl Homes {
    /// Those of a segment. `None` if it has no home, or no strays.
    pub fn of(g: &Geometry, segment: &Segment) -> Option<Homes> {
        let group_frags = g.frag_of_block(g.group_blocks());
        let mut own: HashMap<BlockAddr, u64> = HashMap::new();
        for run in segment.items.iter().flat_map(|i| &i.runs) {
            for (group, frags) in parts(g, *run) {
                *own.entry(group).or_default() += frags;
            }
        }
        let mut groups: Vec<(u64, BlockAddr)> = own.into_iter().map(|(group, frags)| (frags, group)).collect();
        groups.sort_unstable_by_key(|(frags, group)| (std::cmp::Reverse(*frags), *group));
        // One more than the segment fills: it may begin and end within a group.
        groups.truncate(segment.frags.div_ceil(group_frags) as usize + 1);
        groups.retain(|(frags, _)| *frags >= group_frags.min(segment.frags) / HOME_DIVISOR);
        let groups: Vec<BlockAddr> = groups.into_iter().map(|(_, group)| group).collect();
        let at_home = |i: &Item| i.runs.iter().all(|r| parts(g, *r).all(|(group, _)| groups.contains(&group)));
        let strays: Vec<usize> = (0..segment.items.len()).filter(|n| !at_home(&segment.items[*n])).collect();
        (!groups.is_empty() && !strays.is_empty()).then_some(Homes { groups, strays })
    }

    /// The home groups as windows of fragments, the one nearest to an address first.
    pub fn near(&self, g: &Geometry, at: FragAddr) -> Vec<Range<FragAddr>> {
        let group = g.group_of(g.block_of_frag(at));
        let mut all = self.groups.clone();
        all.sort_unstable_by_key(|home| home.abs_diff(group));
        let window = |home: &BlockAddr| {
            let end = (home + g.group_blocks()).min(g.total_blocks);
            g.frag_of_block(*home)..g.frag_of_block(end)
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
