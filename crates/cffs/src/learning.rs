//! What programs read one after the other, and the chains that follow from it (the thesis, chapter 1, names learning as its third
//! approach to co-location, besides heuristics and hints).
//!
//! For each file the table has one file that was read after it by the same process, and votes for that: one more whenever it
//! happens again, one less when another file follows, which takes the place when no vote is left. So an order that is not
//! repeated is forgotten, and so is one that nothing confirms for long. Files with two votes or more make chains.
//!
//! Of a large file it is noted whether more than its beginning is read mostly, and how far. Shared libraries are: their beginning
//! tells the loader which parts to map. So all of that can come with the first request.

use crate::addr_map::AddrMap;
use crate::format::Ino;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Files of which the table has a follower, at most, at 24 bytes.
const FILES_MAX: usize = 1 << 16;
/// Most votes for a follower.
const VOTES_MAX: u8 = 8;
/// Votes that a follower needs to count.
const VOTES_ENOUGH: u8 = 2;
/// Large files of which the table knows, at most, at 24 bytes; how far they are read at most, and the unit of that.
const HEADS_MAX: usize = 1 << 12;
const REACH_UNIT: u64 = 64 << 10;
const REACH_MAX: u64 = 2 << 20;
/// Marks the votes of a large file in the stored form.
const HEAD_BIT: u8 = 0x80;
/// After so many reads all followers lose a vote.
const READS_TO_FORGET: u64 = 1 << 18;
/// Processes whose last file is known.
const PROCESSES: usize = 64;
/// A process that has read so many files goes through a tree, whose order is known without it.
const READS_OF_WALK: u32 = 8192;
/// Version of the stored form, and its most bytes.
const VERSION: u8 = 1;
const STORED_MAX: usize = 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Follower {
    next: Ino,
    votes: u8,
}

/// A large file whose beginning was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Head {
    /// For more than the beginning.
    votes: u8,
    /// How far it is read, in units of [`REACH_UNIT`].
    reach: u64,
    /// Only the beginning was read since.
    only_begun: bool,
}

/// A process that reads.
#[derive(Clone, Copy)]
struct Reader {
    process: u32,
    last: Ino,
    reads: u32,
    /// When it read last.
    at: u64,
}

#[derive(Default)]
struct Table {
    followers: AddrMap<Ino, Follower>,
    heads: AddrMap<Ino, Head>,
    readers: Vec<Reader>,
    reads: u64,
    changed: bool,
}

/// What a mounted file system has learned.
#[derive(Default)]
pub struct Learning {
    table: Mutex<Table>,
    /// Something was noted of a large file.
    has_heads: AtomicBool,
}

impl Learning {
    /// A process begins to read a file. Whether that made a new pair that counts.
    pub fn note(&self, process: u32, file: Ino) -> bool {
        self.table.lock().note(process, file)
    }

    /// The beginning of a large file is read. How many bytes of it are mostly read then, if that is known.
    pub fn note_head(&self, file: Ino) -> Option<u64> {
        self.has_heads.store(true, Ordering::Relaxed);
        self.table.lock().note_head(file)
    }

    /// A large file is read on, up to this byte.
    pub fn note_more(&self, file: Ino, end: u64) {
        if self.has_heads.load(Ordering::Relaxed) {
            self.table.lock().note_more(file, end);
        }
    }

    /// The chains there are now.
    pub fn chains(&self) -> Chains {
        self.table.lock().chains()
    }

    /// The stored form, if there is something new to be stored.
    pub fn take_changed(&self) -> Option<Vec<u8>> {
        let mut t = self.table.lock();
        std::mem::take(&mut t.changed).then(|| t.encode())
    }

    /// Takes up what was stored. What is damaged is left out.
    pub fn load(&self, stored: &[u8]) {
        let mut t = self.table.lock();
        (t.followers, t.heads) = decode(stored);
        t.changed = false;
    }

    /// Number of files that have a place in a chain, and of all that the table has.
    pub fn counts(&self) -> (u64, u64) {
        let t = self.table.lock();
        let strong = t.followers.values().filter(|f| f.votes >= VOTES_ENOUGH).count();
        (strong as u64, t.followers.len() as u64)
    }
}

impl Table {
    fn note(&mut self, process: u32, file: Ino) -> bool {
        self.reads += 1;
        if self.reads.is_multiple_of(READS_TO_FORGET) {
            self.fade();
        }
        let Some(before) = self.previous(process, file) else { return false };
        self.changed = true;
        let f = self.followers.entry(before).or_insert(Follower { next: file, votes: 0 });
        if f.next == file {
            f.votes = (f.votes + 1).min(VOTES_MAX);
        } else if f.votes > 1 {
            f.votes -= 1;
        } else {
            *f = Follower { next: file, votes: 1 };
        }
        let counts = *f == (Follower { next: file, votes: VOTES_ENOUGH });
        while self.followers.len() > FILES_MAX {
            self.fade();
        }
        counts
    }

    /// The file that the process read before this one. None if it is the same or the first, or the process goes through a tree.
    fn previous(&mut self, process: u32, file: Ino) -> Option<Ino> {
        let at = self.reads;
        if let Some(r) = self.readers.iter_mut().find(|r| r.process == process) {
            let before = std::mem::replace(&mut r.last, file);
            r.at = at;
            r.reads = r.reads.saturating_add(u32::from(before != file));
            return (before != file && r.reads < READS_OF_WALK).then_some(before);
        }
        let new = Reader { process, last: file, reads: 1, at };
        if self.readers.len() < PROCESSES {
            self.readers.push(new);
        } else if let Some(oldest) = self.readers.iter_mut().min_by_key(|r| r.at) {
            *oldest = new;
        }
        None
    }

    /// All followers lose a vote; those that have none left are forgotten.
    fn fade(&mut self) {
        self.changed = true;
        self.readers.iter_mut().for_each(|r| r.reads /= 2);
        self.followers.retain(|_, f| {
            f.votes -= 1;
            f.votes > 0
        });
        self.fade_heads();
    }

    fn fade_heads(&mut self) {
        self.heads.retain(|_, h| {
            h.votes = h.votes.saturating_sub(1);
            h.votes > 0
        });
    }

    fn note_head(&mut self, file: Ino) -> Option<u64> {
        if self.heads.len() >= HEADS_MAX {
            self.fade_heads();
        }
        self.changed = true;
        let h = self.heads.entry(file).or_default();
        if h.only_begun {
            h.votes = h.votes.saturating_sub(1);
        }
        h.only_begun = true;
        (h.votes >= VOTES_ENOUGH).then_some(h.reach * REACH_UNIT)
    }

    fn note_more(&mut self, file: Ino, end: u64) {
        let Some(h) = self.heads.get_mut(&file) else { return };
        if std::mem::take(&mut h.only_begun) {
            h.votes = (h.votes + 1).min(VOTES_MAX);
        }
        h.reach = h.reach.max(end.min(REACH_MAX).div_ceil(REACH_UNIT));
        self.changed = true;
    }

    /// Whole chains, each in its order. Pairs that count make them. The end of one and the beginning of another go together if
    /// they were seen to follow each other at all.
    fn chains(&self) -> Chains {
        let mut files: Vec<(Ino, Follower)> = self.followers.iter().map(|(ino, f)| (*ino, *f)).collect();
        // The most votes first; the numbers make the outcome the same each time.
        files.sort_unstable_by_key(|(ino, f)| (std::cmp::Reverse(f.votes), *ino));
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
        Chains { places: links.places() }
    }

    /// The followers as bytes: in the order of the chains, so that most numbers are small differences. The ones with the fewest
    /// votes are left out if it gets too long.
    fn encode(&self) -> Vec<u8> {
        (1..=VOTES_MAX).map(|least| self.encode_from(least)).find(|b| b.len() <= STORED_MAX).unwrap_or_default()
    }

    fn encode_from(&self, least: u8) -> Vec<u8> {
        let places = self.chains().places;
        let mut files: Vec<(u64, Ino, Follower)> = self
            .followers
            .iter()
            .filter(|(_, f)| f.votes >= least)
            .map(|(ino, f)| (places.get(ino).copied().unwrap_or(u64::MAX), *ino, *f))
            .collect();
        files.sort_unstable_by_key(|(place, ino, _)| (*place, *ino));
        let mut out = vec![VERSION];
        let mut last = 0;
        for (_, ino, f) in files {
            put_difference(&mut out, last, ino);
            put_difference(&mut out, ino, f.next);
            out.push(f.votes);
            last = f.next;
        }
        let mut heads: Vec<(Ino, Head)> = self.heads.iter().map(|(ino, h)| (*ino, *h)).collect();
        heads.retain(|(_, h)| h.votes >= least);
        heads.sort_unstable_by_key(|(ino, _)| *ino);
        for (ino, h) in heads {
            put_difference(&mut out, last, ino);
            put_difference(&mut out, 0, h.reach);
            out.push(h.votes | HEAD_BIT);
            last = ino;
        }
        out
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
    fn places(&self) -> AddrMap<Ino, u64> {
        let mut first: Vec<Ino> = self.next.keys().filter(|ino| !self.previous.contains_key(ino)).copied().collect();
        first.sort_unstable();
        let mut places = AddrMap::default();
        for ino in first {
            let chain = std::iter::successors(Some(ino), |at| self.next.get(at).copied());
            for file in chain {
                let place = places.len() as u64;
                places.insert(file, place);
            }
        }
        places
    }
}

/// Places of files in the chains that were learned.
#[derive(Default)]
pub struct Chains {
    places: AddrMap<Ino, u64>,
}

impl Chains {
    /// The place of a file, if it has one.
    pub fn place(&self, file: Ino) -> Option<u64> {
        self.places.get(&file).copied()
    }
}

/// Appends the difference of two numbers, 7 bits a byte, its sign in the lowest bit.
fn put_difference(out: &mut Vec<u8>, from: u64, to: u64) {
    let difference = to.wrapping_sub(from) as i64;
    let mut rest = ((difference << 1) ^ (difference >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The number that a difference leads to. None at the end, or if it does not end.
fn get_difference(bytes: &mut &[u8], from: u64) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            let difference = (value >> 1) as i64 ^ -((value & 1) as i64);
            return Some(from.wrapping_add(difference as u64));
        }
    }
    None
}

fn decode(stored: &[u8]) -> (AddrMap<Ino, Follower>, AddrMap<Ino, Head>) {
    let (mut followers, mut heads) = (AddrMap::default(), AddrMap::default());
    let Some((&VERSION, mut rest)) = stored.split_first() else { return (followers, heads) };
    let mut last = 0;
    while followers.len() < FILES_MAX && heads.len() < HEADS_MAX {
        let Some(ino) = get_difference(&mut rest, last) else { break };
        let before_value = rest;
        let Some(next) = get_difference(&mut rest, ino) else { break };
        let Some((votes, left)) = rest.split_first() else { break };
        rest = left;
        let valid = (1..=VOTES_MAX).contains(&(votes & !HEAD_BIT));
        if votes & HEAD_BIT == 0 {
            if valid {
                followers.insert(ino, Follower { next, votes: *votes });
            }
            last = next;
        } else {
            let reach = get_difference(&mut &before_value[..], 0).unwrap_or(0);
            if valid && reach <= REACH_MAX / REACH_UNIT {
                heads.insert(ino, Head { votes: votes & !HEAD_BIT, reach, only_begun: false });
            }
            last = ino;
        }
    }
    (followers, heads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(t: &mut Table, process: u32, files: impl IntoIterator<Item = Ino>) {
        for ino in files {
            t.note(process, ino);
        }
    }

    fn order(t: &Table) -> Vec<Ino> {
        let mut places: Vec<(u64, Ino)> = t.chains().places.iter().map(|(ino, at)| (*at, *ino)).collect();
        places.sort_unstable();
        places.into_iter().map(|(_, ino)| ino).collect()
    }

    #[test]
    fn what_repeats_becomes_a_chain_and_what_happens_once_does_not() {
        let mut t = Table::default();
        run(&mut t, 1, [30, 20, 50, 40]);
        assert!(order(&t).is_empty(), "once is no habit");
        // Two processes at the same time do not mix.
        for ino in [30, 20, 50, 40] {
            t.note(2, ino);
            t.note(3, ino + 100);
        }
        assert_eq!(order(&t), [30, 20, 50, 40]);
        run(&mut t, 4, [130, 120, 150, 140]);
        assert_eq!(order(&t), [30, 20, 50, 40, 130, 120, 150, 140]);
    }

    #[test]
    fn an_order_that_is_contradicted_or_never_confirmed_is_forgotten() {
        let mut t = Table::default();
        (0..3).for_each(|p| run(&mut t, p, [1, 2, 3]));
        assert_eq!(order(&t), [1, 2, 3]);
        (3..9).for_each(|p| run(&mut t, p, [1, 9, 3]));
        assert_eq!(order(&t), [1, 9, 3]);
        // Reads of another file only: the same process reads it again and again.
        run(&mut t, 10, std::iter::repeat_n(77, READS_TO_FORGET as usize * VOTES_MAX as usize));
        assert!(order(&t).is_empty() && t.followers.is_empty());
    }

    #[test]
    fn a_circle_is_cut_and_a_file_with_two_predecessors_follows_one() {
        let mut t = Table::default();
        (0..3).for_each(|p| run(&mut t, p, [1, 2, 3, 1]));
        let mut circle = order(&t);
        circle.sort_unstable();
        assert_eq!(circle, [1, 2, 3]);
        (4..9).for_each(|p| run(&mut t, p, [8, 3]));
        let order = order(&t);
        assert_eq!(order.iter().collect::<std::collections::HashSet<_>>().len(), order.len(), "{order:?}");
        assert!(order.windows(2).any(|w| w == [8, 3]), "{order:?}");
    }

    #[test]
    fn chains_that_followed_each_other_once_lie_in_that_order() {
        let mut t = Table::default();
        run(&mut t, 1, [50, 51, 10, 11]);
        run(&mut t, 2, [50, 51]);
        run(&mut t, 3, [10, 11]);
        assert_eq!(order(&t), [50, 51, 10, 11]);
    }

    #[test]
    fn a_process_that_goes_through_a_tree_teaches_no_more_than_its_beginning() {
        let mut t = Table::default();
        (0..2).for_each(|p| run(&mut t, p, 1..=u64::from(READS_OF_WALK) * 2));
        assert_eq!(t.followers.len(), READS_OF_WALK as usize - 2);
    }

    #[test]
    fn the_table_is_bounded_and_so_is_what_is_stored() {
        let mut t = Table::default();
        for p in 0..40_u32 {
            run(&mut t, p, (0..8000).map(|n| 1 + (u64::from(p) * 8000 + n) * 0x1_0001));
            run(&mut t, 100 + p, (0..100).map(|n| 1 + n));
        }
        assert!(t.followers.len() <= FILES_MAX);
        assert!(t.readers.len() <= PROCESSES);
        let stored = t.encode();
        assert!(stored.len() <= STORED_MAX && stored.len() > 99 * 3 - 1, "{}", stored.len());
        let (followers, _) = decode(&stored);
        assert!(followers.iter().all(|(ino, f)| t.followers[ino] == *f));
        assert!(followers.len() >= 99);
    }

    #[test]
    fn a_large_file_is_read_as_far_as_it_was_read_twice() {
        let mut t = Table::default();
        for end in [700_000, 300_000] {
            assert_eq!(t.note_head(5), None);
            t.note_more(5, end);
            t.note_more(5, 100_000);
        }
        assert_eq!(t.note_head(5), Some(11 * REACH_UNIT));
        // Only the beginning, three times: it was read for something else.
        assert_eq!(t.note_head(5), None);
        assert_eq!(t.note_head(5), None);
        t.note_more(6, 5000);
        assert_eq!(t.heads.len(), 1, "its beginning was not read");
        t.note_head(7);
        t.note_more(7, 1 << 40);
        assert_eq!(t.heads[&7].reach, REACH_MAX / REACH_UNIT);
        (100..3 * HEADS_MAX as u64).for_each(|ino| assert_eq!(t.note_head(ino), None));
        assert!(t.heads.len() <= HEADS_MAX);
    }

    #[test]
    fn what_is_stored_comes_back_and_damage_does_no_harm() {
        let l = Learning::default();
        for _ in 0..2 {
            l.note_head(9);
            l.note_more(9, 1 << 20);
        }
        for p in 0..3 {
            for ino in [5, 7, u64::MAX >> 1, 6, 1 << 40] {
                l.note(p, ino);
            }
        }
        let stored = l.take_changed().unwrap();
        assert_eq!(l.take_changed(), None);
        let other = Learning::default();
        other.load(&stored);
        assert_eq!(other.chains().places, l.chains().places);
        assert_eq!(other.counts(), (4, 4));
        assert_eq!(other.note_head(9), Some(1 << 20));
        for cut in 0..stored.len() {
            other.load(&stored[..cut]);
        }
        for at in 0..stored.len() {
            let mut bad = stored.clone();
            bad[at] ^= 0xff;
            other.load(&bad);
            other.chains();
        }
        other.load(&[VERSION + 1, 2, 4, 1]);
        assert_eq!(other.counts(), (0, 0));
    }
}
