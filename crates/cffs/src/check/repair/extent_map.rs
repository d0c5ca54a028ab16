//! An extent map as a list.

use crate::format::extent::EXTENT_LEN_MAX;
use crate::format::{BlockAddr, Extent, Geometry};

/// The extent map of an inode.
#[derive(Default)]
pub(super) struct Map {
    /// Extents in order that lie within the file system and outside its fixed areas.
    pub(super) extents: Vec<Extent>,
    /// Nodes of the tree with the right identity.
    pub(super) nodes: Vec<BlockAddr>,
    /// Something was left out or guessed, so the map has to be written anew.
    pub(super) wrong: Option<String>,
    /// Nodes are missing, so more of the map may exist elsewhere.
    pub(super) lost_nodes: bool,
    /// Extents come from a node with a wrong checksum.
    pub(super) guessed: bool,
}

impl Map {
    pub(super) fn frags(&self, g: &Geometry) -> u64 {
        total(&self.extents) + self.nodes.len() as u64 * g.frags_per_block()
    }
}

/// The whole blocks of extents of a directory or table, in order: number within the file, address.
pub(super) fn blocks_of(extents: &[Extent], fpb: u64) -> impl Iterator<Item = (u64, BlockAddr)> {
    let whole = extents.iter().filter(move |e| (e.logical | e.start | e.len).is_multiple_of(fpb));
    whole.flat_map(move |e| (0..e.len / fpb).map(move |n| (e.logical / fpb + n, e.start / fpb + n)))
}

pub(super) fn total(extents: &[Extent]) -> u64 {
    extents.iter().map(|e| e.len).sum()
}

/// Joins extents that continue each other. They are in order and do not overlap.
pub(super) fn join(extents: Vec<Extent>) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::with_capacity(extents.len());
    for e in extents {
        match out.last_mut() {
            Some(l)
                if l.end() == e.logical
                    && l.start + l.len == e.start
                    && l.unwritten == e.unwritten
                    && l.len + e.len <= EXTENT_LEN_MAX =>
            {
                l.len += e.len;
            }
            _ => out.push(e),
        }
    }
    out
}

/// Adds extents to a list in order, without those that overlap an extent of the list.
pub(super) fn add_extents(list: &mut Vec<Extent>, more: impl IntoIterator<Item = Extent>) -> u64 {
    let mut added = 0;
    for e in more {
        let i = list.partition_point(|l| l.end() <= e.logical);
        if list.get(i).is_none_or(|l| l.logical >= e.end()) {
            list.insert(i, e);
            added += 1;
        }
    }
    added
}

/// Takes a range of logical fragments out of a list of extents.
pub(super) fn cut_out(list: &mut Vec<Extent>, from: u64, to: u64) {
    let mut out = Vec::with_capacity(list.len() + 1);
    for e in list.drain(..) {
        if e.end() <= from || e.logical >= to {
            out.push(e);
            continue;
        }
        if e.logical < from {
            out.push(Extent { len: from - e.logical, ..e });
        }
        if e.end() > to {
            out.push(Extent { logical: to, start: e.start + (to - e.logical), len: e.end() - to, ..e });
        }
    }
    *list = out;
}
