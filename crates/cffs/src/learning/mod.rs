//! What programs read one after the other, and the chains that follow from it (the thesis, chapter 1, names learning as its third
//! approach to co-location, besides heuristics and hints).
//!
//! For each file the table has one file that was read after it by the same process, and votes for that: one more whenever it
//! happens again, one less when another file follows, which takes the place when no vote is left. So an order that is not
//! repeated is forgotten, and so is one that nothing confirms for long. Files with two votes or more make chains.
//!
//! Of a large file it is noted which [`parts`] are mostly read. They get a place in its chain, and what is beside them stays where it is.
//! [`chains`] has the order, [`stored`] what is kept of all this.

mod chains;
mod known;
mod parts;
mod stored;

pub use chains::Chains;
pub use parts::Noted;

use crate::format::Ino;
use known::{FILES_MAX, Follower, Known, VOTES_ENOUGH, VOTES_MAX};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// After so many reads all followers lose a vote.
const READS_TO_FORGET: u64 = 1 << 18;
/// Processes whose last file is known.
const PROCESSES: usize = 64;
/// A process that has read so many files goes through a tree, whose order is known without it.
const READS_OF_WALK: u32 = 8192;

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
    known: Known,
    readers: Vec<Reader>,
    reads: u64,
    changed: bool,
}

/// What a mounted file system has learned.
#[derive(Default)]
pub struct Learning {
    table: Mutex<Table>,
    /// Something is known of large files.
    knows_large: AtomicBool,
}

impl Learning {
    /// A process begins to read a file. Whether that made a new pair that counts.
    pub fn note(&self, process: u32, file: Ino) -> bool {
        self.table.lock().note(process, file)
    }

    /// A process begins to read a large file. Returns what is mostly read of it, in bytes. Nothing where the process goes through a tree.
    pub fn begin_large(&self, process: u32, file: Ino) -> Vec<Range<u64>> {
        let mut t = self.table.lock();
        if t.goes_through_a_tree(process) {
            return Vec::new();
        }
        self.knows_large.store(true, Ordering::Relaxed);
        t.changed = true;
        t.known.large.begin(file);
        t.known.large.of(file)
    }

    /// A process reads these bytes of a large file of this size.
    pub fn note_part(&self, process: u32, file: Ino, bytes: Range<u64>, size: u64) -> Noted {
        if !self.knows_large() {
            return Noted::default();
        }
        let mut t = self.table.lock();
        if t.goes_through_a_tree(process) {
            return Noted::default();
        }
        let noted = t.known.large.note(file, bytes, size);
        t.changed |= noted.begun;
        noted
    }

    /// Which parts of a file are read is nothing to be learned (any more).
    pub fn forget_large(&self, file: Ino) {
        if self.knows_large() {
            let mut t = self.table.lock();
            t.changed |= t.known.large.forget(file);
            self.knows_large.store(!t.known.large.is_empty(), Ordering::Relaxed);
        }
    }

    /// The parts of a large file within a range of bytes that are mostly read.
    pub fn parts_within(&self, file: Ino, bytes: Range<u64>) -> Vec<Range<u64>> {
        if self.knows_large() { self.table.lock().known.large.within(file, bytes) } else { Vec::new() }
    }

    /// Whether something is known of large files: which parts of them are read.
    pub fn knows_large(&self) -> bool {
        self.knows_large.load(Ordering::Relaxed)
    }

    /// The chains there are now.
    pub fn chains(&self) -> Chains {
        // That takes its time, and readers would wait.
        let known = self.table.lock().known.clone();
        Chains::new(&known)
    }

    /// The stored form, if there is something new to be stored.
    pub fn take_changed(&self) -> Option<Vec<u8>> {
        let known = {
            let mut t = self.table.lock();
            std::mem::take(&mut t.changed).then(|| t.known.clone())
        };
        known.map(|known| stored::encode(&known))
    }

    /// Takes up what was stored. What is damaged is left out.
    pub fn load(&self, stored: &[u8]) {
        let mut t = self.table.lock();
        t.known = stored::decode(stored);
        self.knows_large.store(t.known.large.has_parts(), Ordering::Relaxed);
        t.changed = false;
    }

    /// Number of files that have a place in a chain, and of all that the table has.
    pub fn counts(&self) -> (u64, u64) {
        let t = self.table.lock();
        let strong = t.known.followers.values().filter(|f| f.votes >= VOTES_ENOUGH).count();
        (strong as u64, t.known.followers.len() as u64)
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
        let f = self.known.followers.entry(before).or_insert(Follower { next: file, votes: 0 });
        if f.next == file {
            f.votes = (f.votes + 1).min(VOTES_MAX);
        } else if f.votes > 1 {
            f.votes -= 1;
        } else {
            *f = Follower { next: file, votes: 1 };
        }
        let counts = *f == (Follower { next: file, votes: VOTES_ENOUGH });
        while self.known.followers.len() > FILES_MAX {
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
        self.known.followers.retain(|_, f| {
            f.votes -= 1;
            f.votes > 0
        });
        self.known.large.fade();
    }

    /// Whether a process has read so many files that it goes through a tree.
    fn goes_through_a_tree(&self, process: u32) -> bool {
        self.readers.iter().any(|r| r.process == process && r.reads >= READS_OF_WALK)
    }
}

#[cfg(test)]
mod tests {
    use super::parts::{OF_FILE_MAX, PART};
    use super::*;

    fn run(t: &mut Table, process: u32, files: impl IntoIterator<Item = Ino>) {
        for ino in files {
            t.note(process, ino);
        }
    }

    fn order(t: &Table) -> Vec<Ino> {
        Chains::new(&t.known).files()
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
        assert!(order(&t).is_empty() && t.known.followers.is_empty());
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
        assert_eq!(t.known.followers.len(), READS_OF_WALK as usize - 2);
    }

    const SIZE: u64 = 1 << 30;

    #[test]
    fn the_table_is_bounded_and_so_is_what_is_stored() {
        let mut t = Table::default();
        for p in 0..40_u32 {
            (0..8000).for_each(|n| {
                t.note(p, 1 + (u64::from(p) * 8000 + n) * 0x1_0001);
            });
            (0..100).for_each(|n| {
                t.note(100 + p, 1 + n);
            });
        }
        for ino in 1..300 {
            t.known.large.begin(ino);
            (0..OF_FILE_MAX as u64).for_each(|n| {
                t.known.large.note(ino, 3 * n * PART..3 * n * PART + 1, SIZE);
            });
        }
        assert!(t.known.followers.len() <= FILES_MAX);
        assert!(t.readers.len() <= PROCESSES);
        let stored = stored::encode(&t.known);
        assert!(stored.len() <= 60_000 && stored.len() > 99 * 3 - 1, "{}", stored.len());
        let followers = stored::decode(&stored).followers;
        assert!(followers.iter().all(|(ino, f)| t.known.followers[ino] == *f));
        assert!(followers.len() >= 99);
    }

    #[test]
    fn what_is_stored_comes_back_and_damage_does_no_harm() {
        let l = Learning::default();
        for round in 0..3 {
            l.begin_large(1, 9);
            l.note_part(1, 9, 0..3 * PART, SIZE);
            l.note_part(1, 9, 1 << 20..(1 << 20) + 1, SIZE);
            if round == 0 {
                l.note_part(1, 9, 9 * PART..10 * PART, SIZE);
            }
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
        assert!([5, 7, u64::MAX >> 1, 6].iter().all(|ino| other.chains().number(*ino) == l.chains().number(*ino)));
        assert_eq!(other.chains().number(1 << 40), Some(4));
        assert_eq!(other.counts(), (4, 4));
        assert!(other.knows_large());
        assert_eq!(other.begin_large(1, 9), [0..3 * PART, 16 * PART..17 * PART]);
        assert_eq!(other.table.lock().known.large.with_votes(1)[0].1.len(), 4, "what was not read has lost its votes");
        for cut in 0..stored.len() {
            other.load(&stored[..cut]);
        }
        for at in 0..stored.len() {
            let mut bad = stored.clone();
            bad[at] ^= 0xff;
            other.load(&bad);
            other.chains();
        }
        other.load(&[3, 2, 4, 1]);
        assert_eq!((other.counts(), other.knows_large()), ((0, 0), false));
    }
}
