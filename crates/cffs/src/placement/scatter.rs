//! Random placement, as the conventional file system of the 1997 measurements had it.

use crate::format::{FragAddr, Ino};
use std::collections::HashMap;

/// State of random placement.
pub(super) struct Scatter {
    random: u64,
    /// End of each directory's newest file, and whether the next file goes there.
    last: HashMap<Ino, (FragAddr, bool)>,
}

impl Scatter {
    pub fn new(seed: u64) -> Scatter {
        Scatter { random: seed | 1, last: HashMap::new() }
    }

    /// Goal for the next file of a directory: behind its last file, or a random place in `start..start + frags`.
    pub fn goal(&mut self, dir: Ino, start: FragAddr, frags: u64) -> FragAddr {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        match self.last.get(&dir) {
            Some((end, true)) => *end,
            _ => start + self.random % frags.max(1),
        }
    }

    /// Records the end of a directory's newest file. Every second file goes behind the one before it.
    pub fn allocated(&mut self, dir: Ino, end: FragAddr) {
        let (last, beside) = self.last.entry(dir).or_default();
        (*last, *beside) = (end, !*beside);
    }
}
