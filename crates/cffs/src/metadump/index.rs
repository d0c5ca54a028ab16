//! The index of a directory after its names were obfuscated: the same pairs, for the new hashes.
//!
//! A check finds the same in it: a stale pair stays stale, and a name without a pair gets none.

use super::redact::IndexedName;
use crate::format::dirindex::{
    BUCKET_COUNT, BUCKET_FLAGS, BUCKET_NUMBER, BUCKET_OVERFLOWED, PAIR_SIZE, bucket_capacity, bucket_of, pairs,
};
use crate::format::{BlockAddr, META_HEADER_SIZE, block_seq, get_u32, put_u32, seal};
use std::collections::HashMap;

/// Rebuilds the buckets of a directory. `buckets` has those that are good, by their number; `names` all names that can be
/// read. The blocks are changed in place.
pub(super) fn rebuild(total: u32, buckets: &mut HashMap<u32, (BlockAddr, Vec<u8>)>, names: &[IndexedName]) {
    // Names by what a pair says of them; how many of each are still without.
    let mut by_pair: HashMap<(u32, u32), Vec<u32>> = HashMap::with_capacity(names.len());
    for (old, new, lblock) in names {
        by_pair.entry((*old, *lblock)).or_default().push(*new);
    }
    let mut new_pairs: HashMap<u32, Vec<(u32, u32)>> = HashMap::new();
    let mut overflowed: HashMap<u32, bool> = HashMap::new();
    let mut numbers: Vec<u32> = buckets.keys().copied().collect();
    numbers.sort_unstable();
    for number in &numbers {
        let Some((_, block)) = buckets.get(number) else { continue };
        overflowed.insert(*number, get_u32(block, BUCKET_FLAGS) & BUCKET_OVERFLOWED != 0);
        for (hash, lblock) in pairs(block) {
            let belongs = bucket_of(hash, total) == *number;
            let name = by_pair.get_mut(&(hash, lblock)).filter(|_| belongs).and_then(Vec::pop);
            match name {
                Some(new) => new_pairs.entry(bucket_of(new, total)).or_default().push((new, lblock)),
                // Stale, or in the wrong bucket: it stays so.
                None => new_pairs.entry(*number).or_default().push((hash, lblock)),
            }
        }
    }
    // Where no pair is to be expected, because the bucket says so or cannot be read, there is to be none to be missed.
    let mut rest: Vec<(u32, u32, u32)> =
        by_pair.into_iter().flat_map(|((old, l), new)| new.into_iter().map(move |n| (old, n, l))).collect();
    rest.sort_unstable();
    for (old, new, lblock) in rest {
        if overflowed.get(&bucket_of(old, total)).copied().unwrap_or(true) {
            new_pairs.entry(bucket_of(new, total)).or_default().push((new, lblock));
        }
    }
    for (number, (_, block)) in buckets.iter_mut() {
        let mut list = new_pairs.remove(number).unwrap_or_default();
        let capacity = bucket_capacity(block.len());
        let mut flags = get_u32(block, BUCKET_FLAGS);
        if list.len() > capacity {
            list.truncate(capacity);
            flags |= BUCKET_OVERFLOWED;
        }
        block[META_HEADER_SIZE..].fill(0);
        put_u32(block, BUCKET_COUNT, list.len() as u32);
        put_u32(block, BUCKET_FLAGS, flags);
        debug_assert_eq!(get_u32(block, BUCKET_NUMBER), *number);
        for ((hash, lblock), pair) in list.into_iter().zip(block[META_HEADER_SIZE..].chunks_exact_mut(PAIR_SIZE)) {
            put_u32(pair, 0, hash);
            put_u32(pair, 4, lblock);
        }
        let seq = block_seq(block);
        seal(block, seq);
    }
}
