//! The block ownership map: every fragment has at most one owner.
//!
//! The map keeps only which fragments are in use, as joined intervals, and not their owners. So its memory stays far below the
//! size of the metadata. If fragments have several owners, a second walk with the list of conflicts finds them.

use crate::format::{FragAddr, Geometry};
use std::collections::BTreeMap;

/// Owner of space that the file system itself occupies: headers of allocation groups, system area, log.
pub(super) const FIXED: u64 = 0;
/// Conflicts and owners of a conflict that are remembered.
const CONFLICTS_MAX: usize = 1000;
const OWNERS_MAX: usize = 8;

/// Fragments with more than one owner.
#[derive(Clone, Debug)]
pub(super) struct Conflict {
    pub(super) start: FragAddr,
    pub(super) end: FragAddr,
    pub(super) owners: Vec<u64>,
}

/// The fragments in use, and those that were claimed twice.
pub(super) struct OwnershipMap {
    g: Geometry,
    used: BTreeMap<FragAddr, FragAddr>,
    conflicts: Vec<Conflict>,
    search: Vec<Conflict>,
    /// Fragments in use outside the headers of allocation groups.
    pub(super) total: u64,
}

impl OwnershipMap {
    /// `search`: conflicts of an earlier walk whose owners are to be found in this one.
    pub(super) fn new(g: Geometry, search: Vec<Conflict>) -> OwnershipMap {
        OwnershipMap { g, used: BTreeMap::new(), conflicts: Vec::new(), search, total: 0 }
    }

    /// Claims a run inside the file system. False if some of it has an owner already.
    pub(super) fn claim(&mut self, start: FragAddr, len: u64, owner: u64) -> bool {
        let end = start + len;
        self.find_owner(start, end, owner);
        let header = self.header_overlap(start, end);
        if let Some((s, e)) = header {
            self.conflict(s, e);
            self.find_owner_of(s, e, FIXED);
        }
        let (mut new_start, mut new_end, mut overlap) = (start, end, 0);
        // Joins everything that touches the run.
        while let Some((&s, &e)) = self.used.range(..=new_end).next_back().filter(|(_, e)| **e >= new_start) {
            let (from, to) = (s.max(start), e.min(end));
            if from < to {
                overlap += to - from;
                self.conflict(from, to);
            }
            self.used.remove(&s);
            (new_start, new_end) = (new_start.min(s), new_end.max(e));
        }
        self.used.insert(new_start, new_end);
        self.total += len - overlap;
        overlap == 0 && header.is_none()
    }

    /// First part of a run that lies in the header of an allocation group.
    fn header_overlap(&self, start: FragAddr, end: FragAddr) -> Option<(FragAddr, FragAddr)> {
        let per = self.g.ag_blocks * self.g.frags_per_block();
        let header = self.g.ag_header_blocks() * self.g.frags_per_block();
        let (ag, within) = (start / per, start % per);
        if within < header {
            return Some((start, end.min(ag * per + header)));
        }
        let next = (ag + 1) * per;
        (end > next).then(|| (next, end.min(next + header)))
    }

    fn conflict(&mut self, start: FragAddr, end: FragAddr) {
        if self.conflicts.len() < CONFLICTS_MAX {
            self.conflicts.push(Conflict { start, end, owners: Vec::new() });
        }
    }

    fn find_owner(&mut self, start: FragAddr, end: FragAddr, owner: u64) {
        if !self.search.is_empty() {
            self.find_owner_of(start, end, owner);
        }
    }

    fn find_owner_of(&mut self, start: FragAddr, end: FragAddr, owner: u64) {
        let first = self.search.partition_point(|c| c.end <= start);
        for c in self.search[first..].iter_mut().take_while(|c| c.start < end) {
            if c.owners.len() < OWNERS_MAX && !c.owners.contains(&owner) {
                c.owners.push(owner);
            }
        }
    }

    /// The conflicts so far, in order, those that touch joined.
    pub(super) fn take_conflicts(&mut self) -> Vec<Conflict> {
        let mut list = std::mem::take(&mut self.conflicts);
        list.sort_by_key(|c| (c.start, c.end));
        let mut out: Vec<Conflict> = Vec::new();
        for c in list {
            match out.last_mut() {
                Some(last) if c.start <= last.end => last.end = last.end.max(c.end),
                _ => out.push(c),
            }
        }
        out
    }

    /// The owners that the search has found.
    pub(super) fn take_found(&mut self) -> Vec<Conflict> {
        std::mem::take(&mut self.search)
    }

    /// The runs in use that meet a range, cut to it.
    pub(super) fn within(&self, from: FragAddr, to: FragAddr) -> impl Iterator<Item = (FragAddr, FragAddr)> + '_ {
        let before = self.used.range(..from).next_back().filter(|(_, e)| **e > from);
        before.into_iter().chain(self.used.range(from..to)).map(move |(s, e)| ((*s).max(from), (*e).min(to)))
    }

    /// First fragment in use from `from` on.
    pub(super) fn first_from(&self, from: FragAddr) -> Option<FragAddr> {
        self.within(from, FragAddr::MAX).next().map(|(s, _)| s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::{MkfsOptions, plan};
    use cffs_device::MemoryDevice;
    use proptest::prelude::*;

    fn geometry() -> Geometry {
        let dev = MemoryDevice::new(64 << 20);
        Geometry::new(&plan(&dev, None, &MkfsOptions::default()).unwrap()).unwrap()
    }

    proptest! {
        #[test]
        fn equals_a_set(runs in proptest::collection::vec((1000u64..1400, 1u64..40), 1..60)) {
            let mut ownership = OwnershipMap::new(geometry(), Vec::new());
            let mut model = std::collections::BTreeSet::new();
            let mut shared = std::collections::BTreeSet::new();
            for (start, len) in runs {
                let fresh = (start..start + len).all(|f| !model.contains(&f));
                shared.extend((start..start + len).filter(|f| model.contains(f)));
                model.extend(start..start + len);
                prop_assert_eq!(ownership.claim(start, len, 7), fresh);
            }
            prop_assert_eq!(ownership.total, model.len() as u64);
            let used: Vec<u64> = ownership.within(1100, 1300).flat_map(|(s, e)| s..e).collect();
            prop_assert_eq!(used, model.range(1100..1300).copied().collect::<Vec<_>>());
            let found: Vec<u64> = ownership.take_conflicts().into_iter().flat_map(|c| c.start..c.end).collect();
            prop_assert_eq!(found, shared.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn headers_of_groups_are_taken_and_owners_found() {
        let g = geometry();
        let ag = g.ag_blocks * g.frags_per_block();
        let mut ownership = OwnershipMap::new(g, Vec::new());
        assert!(ownership.claim(ag - 10, 10, 5));
        assert!(!ownership.claim(ag - 4, 8, 6), "overlaps the run and the next header");
        let conflicts = ownership.take_conflicts();
        assert_eq!(conflicts.iter().map(|c| (c.start, c.end)).collect::<Vec<_>>(), [(ag - 4, ag + 4)]);
        let mut again = OwnershipMap::new(g, conflicts);
        again.claim(ag - 10, 10, 5);
        again.claim(ag - 4, 8, 6);
        assert_eq!(again.take_found()[0].owners, [5, 6, FIXED]);
    }
}
