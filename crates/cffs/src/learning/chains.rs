//! The order that follows from what was read after what, and the parts of large files.

use super::known::{Follower, Known, VOTES_ENOUGH};
use crate::addr_map::AddrMap;
use crate::format::Ino;
use std::cmp::Reverse;
use std::ops::Range;

/// Longer files are long ones, in bytes. In a chain they come behind the others: few of them fill a group, and who reads less of a program than it
/// does itself mostly leaves out these.
const LONG_MIN: u64 = 384 << 10;
/// How a place is put together: of the number of the chain, whether the file is long, and its number in all of the chains.
const CHAIN_SHIFT: u32 = 32;
const LONG_SHIFT: u32 = 31;

/// Places of files in the chains that were learned.
#[derive(Default)]
pub struct Chains {
    places: AddrMap<Ino, Place>,
    parts: AddrMap<Ino, Vec<Range<u64>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    chain: u32,
    at: u32,
}

impl Chains {
    /// Whole chains, each in its order. Pairs with enough votes make them. The end of one and the beginning of another go together if
    /// they were seen to follow each other at all.
    pub(super) fn new(known: &Known) -> Chains {
        let mut files: Vec<(Ino, Follower)> = known.followers.iter().map(|(ino, f)| (*ino, *f)).collect();
        // The most votes first; the numbers make the outcome the same each time.
        files.sort_unstable_by_key(|(ino, f)| (Reverse(f.votes), *ino));
        let mut links = Links::default();
        for (ino, f) in &files {
            if f.votes >= VOTES_ENOUGH {
                links.join(*ino, f.next);
            }
        }
        for (ino, f) in &files {
            if f.votes < VOTES_ENOUGH && links.has(*ino) && links.has(f.next) {
                links.join(*ino, f.next);
            }
        }
        Chains { places: links.places(), parts: known.large.all() }
    }

    /// The place of a file of this size, if it has one.
    pub fn place(&self, file: Ino, size: u64) -> Option<u64> {
        let Place { chain, at } = self.places.get(&file)?;
        let long = u64::from(size > LONG_MIN);
        Some(u64::from(*chain) << CHAIN_SHIFT | long << LONG_SHIFT | u64::from(*at))
    }

    /// The parts of a large file that are mostly read, in bytes. None for other files.
    pub fn parts(&self, file: Ino) -> &[Range<u64>] {
        self.parts.get(&file).map_or(&[], |parts| parts)
    }

    /// All files in the order of the chains.
    #[cfg(test)]
    pub(super) fn files(&self) -> Vec<Ino> {
        let mut files: Vec<(u32, Ino)> = self.places.iter().map(|(ino, place)| (place.at, *ino)).collect();
        files.sort_unstable();
        files.into_iter().map(|(_, ino)| ino).collect()
    }

    /// The number of a file in the order of the chains, without regard to lengths.
    pub(super) fn number(&self, file: Ino) -> Option<u32> {
        self.places.get(&file).map(|place| place.at)
    }
}

/// Files that were joined to their followers.
#[derive(Default)]
struct Links {
    next: AddrMap<Ino, Ino>,
    previous: AddrMap<Ino, Ino>,
    /// By either end of a chain: the other one.
    ends: AddrMap<Ino, Ino>,
}

impl Links {
    fn has(&self, ino: Ino) -> bool {
        self.next.contains_key(&ino) || self.previous.contains_key(&ino)
    }

    /// Joins a file to the one after it, unless one of them is joined already, or both are of one chain.
    fn join(&mut self, ino: Ino, next: Ino) {
        if self.next.contains_key(&ino) || self.previous.contains_key(&next) {
            return;
        }
        let first = self.ends.get(&ino).copied().unwrap_or(ino);
        let last = self.ends.get(&next).copied().unwrap_or(next);
        if first == next {
            return;
        }
        self.next.insert(ino, next);
        self.previous.insert(next, ino);
        self.ends.insert(first, last);
        self.ends.insert(last, first);
    }

    /// The place of each file: chain by chain, in the order of the numbers of their first files.
    fn places(&self) -> AddrMap<Ino, Place> {
        let mut first: Vec<Ino> = self.next.keys().filter(|ino| !self.previous.contains_key(ino)).copied().collect();
        first.sort_unstable();
        let mut places = AddrMap::default();
        for (chain, ino) in (0..).zip(first) {
            for file in std::iter::successors(Some(ino), |at| self.next.get(at).copied()) {
                let at = places.len() as u32;
                places.insert(file, Place { chain, at });
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_files_of_a_chain_come_before_the_long_ones() {
        let chain =
            |first: u64, files: u64| (first..first + files - 1).map(|ino| (ino, Follower { next: ino + 1, votes: 2 }));
        let followers = chain(100, 4).chain(chain(1000, 6)).collect();
        let chains = Chains::new(&Known { followers, ..Known::default() });
        let size = |ino: &Ino| if ino.is_multiple_of(2) { LONG_MIN + 1 } else { LONG_MIN };
        let mut order: Vec<Ino> = (1000..1006).chain(100..104).collect();
        order.sort_by_key(|ino| chains.place(*ino, size(ino)));
        assert_eq!(order, [101, 103, 100, 102, 1001, 1003, 1005, 1000, 1002, 1004]);
        assert_eq!(chains.place(99, 1), None);
    }
}
