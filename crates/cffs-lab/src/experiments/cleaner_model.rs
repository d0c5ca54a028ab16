//! What a cleaner has to copy at least: by formula, and by a cleaner that has no metadata, no reserve and no crashes to mind.

use crate::random::Random;

/// Live share of the segment that is cleaned, where overwrites are even and the oldest segment comes first: the `u` below 1 of
/// `used` = (u - 1) / ln u. `used` is the share of the space that lives.
pub fn live_share(used: f64) -> f64 {
    let (mut low, mut high) = (1e-12, 1.0 - 1e-12);
    for _ in 0..200 {
        let u: f64 = (low + high) / 2.0;
        if (u - 1.0) / u.ln() < used { low = u } else { high = u }
    }
    (low + high) / 2.0
}

/// Bytes copied for each byte written by a cleaner to which that happens.
pub fn copied_oldest_first(used: f64) -> f64 {
    let u = live_share(used);
    u / (1.0 - u)
}

/// The same where `hot` of the writes go to `part` of the data, if both kinds have segments of their own and the free space is
/// divided between them as is best.
pub fn copied_apart(used: f64, hot: f64, part: f64) -> f64 {
    let free = 1.0 - used;
    let cost = |share: f64| {
        let of = |writes: f64, data: f64, free: f64| writes * copied_oldest_first(data / (data + free));
        of(hot, used * part, free * share) + of(1.0 - hot, used * (1.0 - part), free * (1.0 - share))
    };
    (1..1000).map(|i| cost(f64::from(i) / 1000.0)).fold(f64::INFINITY, f64::min)
}

/// Which blocks are written: `hot` of the writes go to the first `part` of the blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pattern {
    /// Its name in tables.
    pub name: &'static str,
    hot: f64,
    part: f64,
}

impl Pattern {
    /// All blocks alike.
    pub const EVEN: Pattern = Pattern { name: "even", hot: 0.5, part: 0.5 };
    /// 90% of the writes go to 10% of the data.
    pub const SKEWED: Pattern = Pattern { name: "90% of the writes to 10%", hot: 0.9, part: 0.1 };

    /// The next block of so many.
    pub fn next(self, random: &mut Random, blocks: u64) -> u64 {
        let hot = ((blocks as f64 * self.part) as u64).clamp(1, blocks - 1);
        let is_hot = (random.below(1 << 30) as f64) < self.hot * (1u64 << 30) as f64;
        if is_hot { random.below(hot) } else { hot + random.below(blocks - hot) }
    }

    /// How many times as many blocks as there are are written until it is steady, and while it is measured. What is cold must have been cleaned too.
    pub fn overwrites(self) -> (u64, u64) {
        if self == Pattern::EVEN { (3, 1) } else { (10, 2) }
    }

    /// The least that can be copied by what is known of such writes.
    pub fn copied(self, used: f64) -> f64 {
        if self == Pattern::EVEN { copied_oldest_first(used) } else { copied_apart(used, self.hot, self.part) }
    }
}

/// A cleaner in memory that takes the segment in which least lives, and copies to where new blocks go.
struct Greedy {
    per_segment: usize,
    /// Block -> segment and position.
    at: Vec<(u32, u32)>,
    /// Segment -> blocks in the order in which they were written.
    segments: Vec<Vec<u32>>,
    live: Vec<u32>,
    free: Vec<u32>,
    open: u32,
    copied: u64,
}

impl Greedy {
    fn new(segments: usize, per_segment: usize, blocks: usize) -> Greedy {
        let mut free: Vec<u32> = (0..segments as u32).rev().collect();
        let open = free.pop().unwrap_or(0);
        let mut greedy = Greedy {
            per_segment,
            at: vec![(u32::MAX, 0); blocks],
            segments: vec![Vec::new(); segments],
            live: vec![0; segments],
            free,
            open,
            copied: 0,
        };
        (0..blocks as u32).for_each(|b| greedy.write(b));
        greedy
    }

    fn append(&mut self, block: u32) {
        if self.segments[self.open as usize].len() == self.per_segment {
            self.open = self.free.pop().unwrap_or(self.open);
        }
        let open = &mut self.segments[self.open as usize];
        self.at[block as usize] = (self.open, open.len() as u32);
        open.push(block);
        self.live[self.open as usize] += 1;
    }

    fn write(&mut self, block: u32) {
        let (old, _) = self.at[block as usize];
        if old != u32::MAX {
            self.live[old as usize] -= 1;
        }
        self.append(block);
        while self.free.is_empty() {
            self.clean();
        }
    }

    fn clean(&mut self) {
        let closed = (0..self.live.len()).filter(|s| *s != self.open as usize);
        let Some(victim) = closed.min_by_key(|s| self.live[*s]) else { return };
        let blocks = std::mem::take(&mut self.segments[victim]);
        let lives: Vec<u32> =
            (0..).zip(blocks).filter(|(n, b)| self.at[*b as usize] == (victim as u32, *n)).map(|(_, b)| b).collect();
        // What lives fits: the victim itself is free by now.
        self.live[victim] = 0;
        self.free.push(victim as u32);
        self.copied += lives.len() as u64;
        lives.into_iter().for_each(|b| self.append(b));
    }
}

/// Bytes that a greedy cleaner copies for each byte written once that is steady, with so many blocks in so many segments.
pub fn copied_greedy(segments: usize, per_segment: usize, blocks: u64, pattern: Pattern) -> f64 {
    let mut greedy = Greedy::new(segments, per_segment, blocks as usize);
    let mut random = Random::new(1);
    let mut run = |writes: u64| {
        let before = greedy.copied;
        (0..writes).for_each(|_| greedy.write(pattern.next(&mut random, blocks) as u32));
        (greedy.copied - before) as f64 / writes as f64
    };
    let (warm_up, measured) = pattern.overwrites();
    run(warm_up * blocks);
    run(measured * blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_has_the_known_values() {
        for (used, cost) in [(0.48, 1.22), (0.6, 1.48), (0.7, 1.88), (0.8, 2.69), (0.9, 5.18)] {
            let seen = 1.0 + copied_oldest_first(used);
            assert!((seen - cost).abs() < 0.01, "{used}: {seen} and not {cost}");
        }
        // Kept apart, the hot tenth needs little: fewer copies than where nothing is known.
        assert!(copied_apart(0.8, 0.9, 0.1) < 0.5 * copied_oldest_first(0.8));
        assert!((copied_apart(0.8, 0.5, 0.5) / copied_oldest_first(0.8) - 1.0).abs() < 0.001);
    }

    #[test]
    fn greedy_is_a_little_better_than_the_oldest_first_and_no_more() {
        for used in [0.6, 0.8] {
            let blocks = (512.0 * 64.0 * used) as u64;
            let ratio = copied_greedy(512, 64, blocks, Pattern::EVEN) / copied_oldest_first(used);
            assert!((0.85..1.01).contains(&ratio), "{used}: {ratio}");
        }
    }
}
