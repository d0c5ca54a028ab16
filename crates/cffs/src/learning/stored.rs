//! What was learned as bytes, for the attribute that keeps it. What is damaged is left out.

use super::parts::{self, Part};
use super::{FILES_MAX, Follower, Known, VOTES_MAX};
use crate::format::Ino;

/// Version of the stored form, and its most bytes.
const VERSION: u8 = 2;
const STORED_MAX: usize = 60_000;
/// Marks the votes of a large file.
const LARGE: u8 = 0x80;

/// The followers as bytes: in the order of the chains, so that most numbers are small differences. The ones with the fewest
/// votes are left out if it gets too long.
pub(super) fn encode(known: &Known) -> Vec<u8> {
    (1..=VOTES_MAX).map(|least| encode_from(known, least)).find(|b| b.len() <= STORED_MAX).unwrap_or_default()
}

fn encode_from(known: &Known, least: u8) -> Vec<u8> {
    let chains = known.chains();
    let mut files: Vec<(u32, Ino, Follower)> = known
        .followers
        .iter()
        .filter(|(_, f)| f.votes >= least)
        .map(|(ino, f)| (chains.number(*ino).unwrap_or(u32::MAX), *ino, *f))
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
    for (ino, parts) in known.large.with_votes(least) {
        let runs: Vec<&[Part]> = parts.chunk_by(|a, b| a.number + 1 == b.number && a.votes == b.votes).collect();
        put_difference(&mut out, last, ino);
        put_difference(&mut out, 0, runs.len() as u64);
        out.push(LARGE);
        let mut end = 0;
        for run in runs {
            put_difference(&mut out, end, u64::from(run[0].number));
            put_difference(&mut out, 0, run.len() as u64);
            out.push(run[0].votes);
            end = u64::from(run[0].number) + run.len() as u64;
        }
        last = ino;
    }
    out
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

/// What was stored.
pub(super) fn decode(stored: &[u8]) -> Known {
    let mut known = Known::default();
    let Some((&VERSION, mut rest)) = stored.split_first() else { return known };
    let mut last = 0;
    while known.followers.len() < FILES_MAX {
        let Some(ino) = get_difference(&mut rest, last) else { break };
        let value = rest;
        let Some(next) = get_difference(&mut rest, ino) else { break };
        let Some(votes) = get_byte(&mut rest) else { break };
        if votes == LARGE {
            let runs = get_difference(&mut &*value, 0).unwrap_or(0);
            let Some(parts) = decode_parts(&mut rest, runs) else { break };
            if !known.large.insert(ino, parts) {
                break;
            }
            last = ino;
        } else {
            if is_valid(votes) {
                known.followers.insert(ino, Follower { next, votes });
            }
            last = next;
        }
    }
    known
}

/// The parts of a large file, in so many runs. `None` if they are not what can have been stored.
fn decode_parts(rest: &mut &[u8], runs: u64) -> Option<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    let mut end = 0;
    for _ in 0..runs {
        let first = get_difference(rest, end)?;
        let len = get_difference(rest, 0)?;
        let votes = get_byte(rest)?;
        let next = first.checked_add(len).filter(|next| *next <= u64::from(u32::MAX))?;
        let fits = first >= end && (1..=(parts::OF_FILE_MAX - parts.len()) as u64).contains(&len);
        if !fits || !is_valid(votes) {
            return None;
        }
        parts.extend((first..next).map(|number| Part { number: number as u32, votes, read: true }));
        end = next;
    }
    Some(parts)
}

fn is_valid(votes: u8) -> bool {
    (1..=VOTES_MAX).contains(&votes)
}

fn get_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (byte, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*byte)
}

#[cfg(test)]
mod tests {
    use super::super::{Learning, PROCESSES, Table};
    use super::parts::{OF_FILE_MAX, PART};
    use super::*;

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
        let stored = encode(&t.known);
        assert!(stored.len() <= STORED_MAX && stored.len() > 99 * 3 - 1, "{}", stored.len());
        let followers = decode(&stored).followers;
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
        other.load(&[VERSION + 1, 2, 4, 1]);
        assert_eq!((other.counts(), other.knows_large()), ((0, 0), false));
    }
}
