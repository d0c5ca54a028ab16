//! Maps keyed by block addresses and inode numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hasher for block addresses and inode numbers: one multiplication.
#[derive(Default, Clone, Copy)]
pub struct AddrHasher(u64);

impl Hasher for AddrHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        let x = (self.0 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = x ^ (x >> 32);
    }
}

/// A map keyed by numbers that are not chosen by an adversary.
pub type AddrMap<K, V> = HashMap<K, V, BuildHasherDefault<AddrHasher>>;
