//! The hashed directory index: buckets of (name hash, block) pairs, addressed by linear hashing.
//!
//! With `n` buckets and `2^k <= n < 2^(k+1)`, a hash `h` belongs to bucket `h mod 2^(k+1)` if that is below `n`, else
//! to `h mod 2^k`. A lookup therefore reads one bucket, whatever the size of the directory. Buckets stand in the
//! directory's own address space from block [`super::dirblock::DIR_BLOCKS_MAX`] on.

use super::{Corrupt, META_HEADER_SIZE, META_SPECIFIC, corrupt, get_u32};
use std::hash::Hasher;

/// Offset of the bucket's number (`u32`).
pub const BUCKET_NUMBER: usize = META_SPECIFIC;
/// Offset of its number of pairs (`u32`).
pub const BUCKET_COUNT: usize = META_SPECIFIC + 4;
/// Offset of its flags (`u32`).
pub const BUCKET_FLAGS: usize = META_SPECIFIC + 8;
/// Flag: a pair did not fit; who does not find a name here must search the whole directory.
pub const BUCKET_OVERFLOWED: u32 = 1;
/// Bytes of a pair: hash `u32`, block within the directory `u32`.
pub const PAIR_SIZE: usize = 8;

/// Pairs that fit into a bucket.
pub fn bucket_capacity(block_size: usize) -> usize {
    (block_size - META_HEADER_SIZE) / PAIR_SIZE
}

/// Mean number of pairs in a bucket at which another bucket is added. An unsplit bucket holds up to twice the mean, and
/// six standard deviations of chance above that still fit.
pub fn bucket_target(block_size: usize) -> u64 {
    let capacity = bucket_capacity(block_size) as f64;
    let twice = ((capacity + 9.0).sqrt() - 3.0).powi(2);
    (twice / 2.0) as u64
}

/// Bucket of a hash in an index of `buckets` buckets (at least one).
pub fn bucket_of(hash: u32, buckets: u32) -> u32 {
    debug_assert!(buckets > 0);
    let upper = (u64::from(buckets) + 1).next_power_of_two() - 1;
    let b = u64::from(hash) & upper;
    if b < u64::from(buckets) { b as u32 } else { (b & (upper >> 1)) as u32 }
}

/// Hash of a name: SipHash-1-3 keyed with the superblock's seed, its lower 32 bits.
pub fn name_hash(seed: [u64; 2], name: &[u8]) -> u32 {
    name_hash_long(seed, name) as u32
}

/// The whole hash, of which [`name_hash`] is the lower half.
pub(crate) fn name_hash_long(seed: [u64; 2], name: &[u8]) -> u64 {
    let mut h = siphasher::sip::SipHasher13::new_with_keys(seed[0], seed[1]);
    h.write(name);
    h.finish()
}

/// Checks a bucket read from the device.
pub fn validate(block: &[u8]) -> Result<(), Corrupt> {
    let count = get_u32(block, BUCKET_COUNT) as usize;
    if count > bucket_capacity(block.len()) {
        return corrupt(format!("directory index bucket {}: {count} pairs", get_u32(block, BUCKET_NUMBER)));
    }
    Ok(())
}

/// The pairs of a validated bucket.
pub fn pairs(block: &[u8]) -> impl Iterator<Item = (u32, u32)> + '_ {
    let count = get_u32(block, BUCKET_COUNT) as usize;
    block[META_HEADER_SIZE..META_HEADER_SIZE + count * PAIR_SIZE]
        .chunks_exact(PAIR_SIZE)
        .map(|p| (get_u32(p, 0), get_u32(p, 4)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_a_bucket_splits_exactly_one() {
        for n in 1u32..200 {
            let from = {
                let half = (n + 1).next_power_of_two() >> 1;
                n - half
            };
            for hash in (0..4_000_000_000u32).step_by(999_983) {
                let (a, b) = (bucket_of(hash, n), bucket_of(hash, n + 1));
                assert!(a < n && (a == b || (b == n && a == from)), "n {n} hash {hash}: {a} then {b}");
            }
        }
    }
}
