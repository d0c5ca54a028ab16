//! What was learned as bytes, for the attribute that keeps it. What is damaged is left out.

use super::chains::Chains;
use super::known::{FILES_MAX, Follower, Known, VOTES_MAX};
use super::parts::{self, Part};
use crate::format::Ino;

/// Version of the stored form, and its most bytes.
const VERSION: u8 = 2;
const STORED_MAX: usize = 60_000;
/// Marks the votes of a large file.
const LARGE: u8 = 0x80;

/// The followers as bytes: in the order of the chains, so that most numbers are small differences. The ones with the fewest
/// votes are left out if it gets too long.
pub(super) fn encode(known: &Known) -> Vec<u8> {
    let chains = Chains::new(known);
    (1..=VOTES_MAX).map(|least| encode_from(known, &chains, least)).find(|b| b.len() <= STORED_MAX).unwrap_or_default()
}

fn encode_from(known: &Known, chains: &Chains, least: u8) -> Vec<u8> {
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
