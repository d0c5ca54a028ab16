//! Which parts of large files programs read. Of a shared library that is a few pages here and there: what the loader and the program touch.
//!
//! A program's reads of a file begin with its beginning. A part that is read gets two votes, once each time the file is begun, and loses one
//! each time it is not: several programs may use one library by turns.

use crate::addr_map::AddrMap;
use crate::format::Ino;
use std::ops::Range;

/// A part has so many bytes: what a kernel reads around a page that a program touches is twice that at most, where it is told so.
pub(super) const PART: u64 = 64 << 10;
/// Most votes, for a part as for a follower.
pub(super) const VOTES_MAX: u8 = 8;
/// Votes for a part that is read, and what it needs to count: once is no habit.
const VOTES_GAIN: u8 = 2;
const VOTES_ENOUGH: u8 = 3;
/// Most parts of a file. One of which more is read, or all but one in so many, is read from end to end, and has a good place for that.
pub(super) const OF_FILE_MAX: usize = 128;
const THROUGHOUT_DIVISOR: u64 = 8;
/// Most files, and most parts of all of them, at 8 bytes.
pub(super) const FILES_MAX: usize = 1 << 12;
const PARTS_MAX: usize = 1 << 15;

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Its number in the file.
    pub number: u32,
    /// For it.
    pub votes: u8,
    /// It was read since the file was begun.
    pub read: bool,
}

/// A large file that was begun.
#[derive(Clone, Debug, Default)]
struct File {
    /// In order.
    parts: Vec<Part>,
    /// How many parts were read since it was begun.
    read: u64,
    /// Nothing is noted until it is begun again: too much of it was read, or it is known from an earlier mount.
    waits: bool,
}

/// What became of reading some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// The file was begun, and is not read from end to end.
    pub begun: bool,
    /// There is a part that counts now, and did not before.
    pub counts: bool,
}

impl File {
    /// It is read from end to end, as by a backup: how programs read it otherwise is neither learned from that nor forgotten.
    fn is_read_throughout(&mut self) {
        self.parts.retain_mut(|part| {
            // All may have lost votes since this one was read.
            part.votes =
                part.votes.saturating_sub(if std::mem::replace(&mut part.read, true) { VOTES_GAIN } else { 0 });
            part.votes > 0
        });
        self.waits = true;
    }
}

/// The large files of which something is known.
#[derive(Clone, Default)]
pub(super) struct LargeFiles {
    files: AddrMap<Ino, File>,
    /// Of all of them.
    parts: usize,
}

impl LargeFiles {
    /// A program begins to read a file.
    pub fn begin(&mut self, ino: Ino) {
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&ino) {
            self.files.retain(|_, file| !file.parts.is_empty());
            if self.files.len() >= FILES_MAX {
                self.fade();
            }
        }
        let file = self.files.entry(ino).or_default();
        (file.waits, file.read) = (false, 0);
        let before = file.parts.len();
        file.parts.retain_mut(|part| {
            part.votes -= u8::from(!part.read);
            part.read = false;
            part.votes > 0
        });
        self.parts -= before - file.parts.len();
    }

    /// Bytes of a file of this size are read.
    pub fn note(&mut self, ino: Ino, bytes: Range<u64>, size: u64) -> Noted {
        let mut noted = Noted::default();
        let Some(file) = self.files.get_mut(&ino).filter(|f| !f.waits) else { return noted };
        let bytes = bytes.start..bytes.end.min(size).min(u64::from(u32::MAX) * PART);
        if bytes.is_empty() {
            return noted;
        }
        noted.begun = true;
        let before = file.parts.len();
        for number in (bytes.start / PART) as u32..=((bytes.end - 1) / PART) as u32 {
            match file.parts.binary_search_by_key(&number, |part| part.number) {
                Ok(at) => {
                    let part = &mut file.parts[at];
                    if !std::mem::replace(&mut part.read, true) {
                        noted.counts |= part.votes < VOTES_ENOUGH;
                        part.votes = (part.votes + VOTES_GAIN).min(VOTES_MAX);
                        file.read += 1;
                    }
                }
                Err(at) => {
                    file.parts.insert(at, Part { number, votes: VOTES_GAIN, read: true });
                    file.read += 1;
                }
            }
            let all = size.div_ceil(PART);
            if file.parts.len() > OF_FILE_MAX || file.read + all / THROUGHOUT_DIVISOR >= all {
                file.is_read_throughout();
                noted = Noted::default();
                break;
            }
        }
        self.parts = self.parts + file.parts.len() - before;
        while self.parts > PARTS_MAX {
            self.fade();
        }
        noted
    }

    /// Nothing is known of a file any more. Whether something was.
    pub fn forget(&mut self, ino: Ino) -> bool {
        let file = self.files.remove(&ino);
        self.parts -= file.as_ref().map_or(0, |file| file.parts.len());
        file.is_some()
    }

    /// All parts lose a vote; those that have none left are forgotten, and files without parts.
    pub fn fade(&mut self) {
        self.files.retain(|_, file| {
            file.parts.retain_mut(|part| {
                part.votes -= 1;
                part.votes > 0
            });
            !file.parts.is_empty()
        });
        self.parts = self.files.values().map(|f| f.parts.len()).sum();
    }

    /// The parts of a file within a range of bytes that are mostly read.
    pub fn within(&self, ino: Ino, bytes: Range<u64>) -> Vec<Range<u64>> {
        let clip = |part: &Range<u64>| part.start.max(bytes.start)..part.end.min(bytes.end);
        self.of(ino).iter().map(clip).filter(|part| !part.is_empty()).collect()
    }

    /// The bytes of a file that are mostly read.
    pub fn of(&self, ino: Ino) -> Vec<Range<u64>> {
        self.files.get(&ino).map_or_else(Vec::new, |file| ranges(&file.parts))
    }

    /// The same of all files that have such parts.
    pub fn all(&self) -> AddrMap<Ino, Vec<Range<u64>>> {
        self.files.iter().map(|(ino, f)| (*ino, ranges(&f.parts))).filter(|(_, parts)| !parts.is_empty()).collect()
    }

    /// The parts of each file, in the order of their numbers, that have at least so many votes when the file is begun next.
    pub fn with_votes(&self, least: u8) -> Vec<(Ino, Vec<Part>)> {
        let then = |p: &Part| Part { votes: p.votes - u8::from(!p.read), read: true, ..*p };
        let parts = |f: &File| f.parts.iter().map(then).filter(|p| p.votes >= least).collect();
        let mut files: Vec<(Ino, Vec<Part>)> = self.files.iter().map(|(ino, f)| (*ino, parts(f))).collect();
        files.retain(|(_, parts)| !parts.is_empty());
        files.sort_unstable_by_key(|(ino, _)| *ino);
        files
    }

    /// Takes up a file as [`LargeFiles::with_votes`] had it. False if there is no room.
    pub fn insert(&mut self, ino: Ino, parts: Vec<Part>) -> bool {
        let fits =
            self.files.len() < FILES_MAX && self.parts + parts.len() <= PARTS_MAX && !self.files.contains_key(&ino);
        if fits {
            self.parts += parts.len();
            self.files.insert(ino, File { parts, waits: true, ..File::default() });
        }
        fits
    }

    /// Whether there are parts that count.
    pub fn has_parts(&self) -> bool {
        self.files.values().any(|f| f.parts.iter().any(|part| part.votes >= VOTES_ENOUGH))
    }

    /// Whether no file is known.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// What parts that count cover.
fn ranges(parts: &[Part]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for part in parts.iter().filter(|part| part.votes >= VOTES_ENOUGH) {
        let start = u64::from(part.number) * PART;
        match ranges.last_mut().filter(|last| last.end == start) {
            Some(last) => last.end += PART,
            None => ranges.push(start..start + PART),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    #[test]
    fn what_is_read_again_counts_until_it_is_not_read_as_often() {
        let mut l = LargeFiles::default();
        assert_eq!(l.note(5, 0..10, SIZE), Noted::default(), "it was not begun");
        for round in 0..2 {
            l.begin(5);
            assert_eq!(l.note(5, 0..4096, SIZE), Noted { begun: true, counts: round == 1 });
            l.note(5, 4096..2 * PART + 1, SIZE);
            l.note(5, 700_000..700_001, SIZE);
            assert_eq!(l.note(5, 700_000..700_001, SIZE), Noted { begun: true, counts: false });
            assert_eq!((l.of(5).is_empty(), l.has_parts()), (round == 0, round == 1), "once is no habit");
        }
        assert_eq!(l.of(5), [0..3 * PART, 10 * PART..11 * PART]);
        assert_eq!(l.within(5, PART / 2..10 * PART + 9), [PART / 2..3 * PART, 10 * PART..10 * PART + 9]);
        assert!(l.within(5, 3 * PART..10 * PART).is_empty() && l.within(6, 0..PART).is_empty());
        // Only the beginning, twice.
        for _ in 0..2 {
            l.begin(5);
            l.note(5, 0..4096, SIZE);
        }
        l.begin(5);
        assert!(l.of(5).len() == 1 && l.of(5)[0] == (0..PART));
        (0..8).for_each(|_| l.fade());
        assert_eq!((l.of(5), l.parts, l.is_empty()), (Vec::new(), 0, true));
    }

    #[test]
    fn programs_that_use_a_library_by_turns_have_each_their_parts() {
        let mut l = LargeFiles::default();
        for turn in 0..6 {
            l.begin(5);
            l.note(5, 0..PART, SIZE);
            let own = (3 + 4 * (turn % 2)) * PART;
            l.note(5, own..own + 1, SIZE);
        }
        assert_eq!(l.of(5), [0..PART, 3 * PART..4 * PART, 7 * PART..8 * PART]);
        assert!(l.forget(5) && !l.forget(5));
        assert_eq!((l.parts, l.is_empty()), (0, true));
    }

    #[test]
    fn a_file_that_is_read_from_end_to_end_has_no_parts_and_keeps_those_it_had() {
        for parts in [40, 2 * OF_FILE_MAX as u64] {
            let mut l = LargeFiles::default();
            let size = parts * PART - 9;
            let backup = |l: &mut LargeFiles, ino| {
                l.begin(ino);
                for n in 0..parts {
                    l.note(ino, n * PART..(n + 1) * PART, size);
                }
            };
            (0..4).for_each(|_| backup(&mut l, 7));
            assert!(l.of(7).is_empty() && l.parts == 0, "{} of {parts}", l.parts);
            assert_eq!(l.note(7, 0..u64::MAX, size), Noted::default());
            for _ in 0..4 {
                l.begin(8);
                l.note(8, 9 * PART..9 * PART + 1, size);
            }
            (0..3).for_each(|_| backup(&mut l, 8));
            l.begin(8);
            assert!(l.of(8).len() == 1 && l.parts == 1 && l.of(8)[0].start == 9 * PART);
        }
    }

    #[test]
    fn parts_that_have_lost_votes_since_they_were_read_are_none_after_a_backup() {
        let mut l = LargeFiles::default();
        l.begin(5);
        l.note(5, 0..PART, 10 * PART);
        l.fade();
        l.note(5, PART..10 * PART, 10 * PART);
        assert_eq!(l.with_votes(1), []);
        // As it comes from an earlier mount, in which it was read once and then not.
        let part = Part { number: 3, votes: 1, read: true };
        assert!(l.insert(6, vec![part]));
        assert_eq!(l.note(6, PART..10 * PART, 10 * PART), Noted::default(), "it was not begun");
        assert_eq!(l.with_votes(1), [(6, vec![part])]);
        l.begin(6);
        l.note(6, 0..10 * PART, 10 * PART);
        assert_eq!(l.with_votes(1), [(6, vec![part])]);
    }

    #[test]
    fn what_lies_behind_the_end_is_no_part_and_neither_is_what_has_no_number() {
        let mut l = LargeFiles::default();
        l.begin(5);
        assert_eq!(l.note(5, 3 * PART..4 * PART, 3 * PART), Noted::default());
        assert!(l.note(5, 50 * PART..u64::MAX, 60 * PART).begun);
        assert_eq!(l.parts, 10);
        l.begin(6);
        assert_eq!(l.note(6, u64::MAX - 10..u64::MAX, u64::MAX), Noted::default());
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut l = LargeFiles::default();
        for ino in 0..2 * FILES_MAX as u64 {
            l.begin(ino);
            for n in 0..20 {
                l.note(ino, 2 * n * PART..2 * n * PART + 1, SIZE);
            }
            assert!(l.parts <= PARTS_MAX && l.files.len() <= FILES_MAX);
        }
        assert_eq!(l.parts, l.files.values().map(|f| f.parts.len()).sum::<usize>());
        let mut l = LargeFiles::default();
        for _ in 0..2 {
            l.begin(5);
            l.note(5, 0..PART, SIZE);
        }
        // Files that were begun, and no more, take no votes.
        (1 << 20..(1 << 20) + 9 * FILES_MAX as u64).for_each(|ino| l.begin(ino));
        assert!(l.files.len() <= FILES_MAX && !l.of(5).is_empty());
    }
}
