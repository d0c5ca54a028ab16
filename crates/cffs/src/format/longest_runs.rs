//! What the superblock says of the longest free runs.

/// Bytes of [`LongestRuns`].
pub const LONGEST_RUNS_LEN: usize = 128;

/// What the longest free run of each allocation group is shorter than: four bits each, the lower half of a byte first. 0: unknown; `n`: shorter
/// than 2^(n-1) groups. With more than 256 allocation groups, as many adjacent ones share four bits as makes them suffice.
///
/// A hint in the superblock, so that who looks for a long run need not read the bitmaps of those that have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongestRuns(pub [u8; LONGEST_RUNS_LEN]);

impl LongestRuns {
    /// Nothing is known.
    pub const UNKNOWN: LongestRuns = LongestRuns([0; LONGEST_RUNS_LEN]);

    /// For `ags` allocation groups. `bound`: a number of groups that the longest free run of one is shorter than, if known.
    pub fn of(ags: u64, mut bound: impl FnMut(u64) -> Option<u64>) -> LongestRuns {
        let mut halves = LongestRuns::UNKNOWN.0;
        let shared = LongestRuns::shared(ags);
        for i in 0..ags.div_ceil(shared) {
            let longest = (i * shared..ags.min((i + 1) * shared)).try_fold(1, |most, ag| Some(bound(ag)?.max(most)));
            let class = longest.and_then(u64::checked_next_power_of_two).map_or(0, |bound| bound.ilog2() + 1);
            halves[i as usize / 2] |= if class < 16 { (class as u8) << (i % 2 * 4) } else { 0 };
        }
        LongestRuns(halves)
    }

    /// The number of groups that the longest free run of this one of `ags` allocation groups is shorter than, if known.
    pub fn bound(&self, ag: u64, ags: u64) -> Option<u64> {
        let i = ag / LongestRuns::shared(ags);
        let class = self.0.get(i as usize / 2)? >> (i % 2 * 4) & 15;
        class.checked_sub(1).map(|log| 1 << log)
    }

    /// Allocation groups that share four bits.
    fn shared(ags: u64) -> u64 {
        ags.div_ceil(2 * LONGEST_RUNS_LEN as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_runs_are_told_one_by_one_or_together() {
        for ags in [1, 8, 255, 256, 257, 5000] {
            // Of each seventh nothing is known.
            let bound = |ag: u64| (ag % 7 < 6).then_some(1 + ag % 40);
            let hint = LongestRuns::of(ags, bound);
            let alike = ags.div_ceil(256);
            for ag in 0..ags {
                let first = ag / alike * alike;
                let all: Option<Vec<u64>> = (first..ags.min(first + alike)).map(bound).collect();
                let longest = all.and_then(|all| all.into_iter().max());
                assert_eq!(hint.bound(ag, ags), longest.map(u64::next_power_of_two), "{ag} of {ags}");
            }
            assert!((0..ags + 9000).all(|ag| LongestRuns::UNKNOWN.bound(ag, ags).is_none()));
            for (bound, told) in [(0, Some(1)), (1 << 14, Some(1 << 14)), ((1 << 14) + 1, None), (u64::MAX, None)] {
                assert_eq!(LongestRuns::of(ags, |_| Some(bound)).bound(ags - 1, ags), told, "{bound}");
            }
            assert_eq!(LongestRuns([0xff; LONGEST_RUNS_LEN]).bound(ags - 1, ags), Some(1 << 14));
        }
    }
}
