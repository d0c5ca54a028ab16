//! When is a whole group worth fetching? Decided by what became of the groups fetched before.
//!
//! At the knee of the device a group costs about two single requests. So a group fetch pays when, on average, at least
//! one more of its blocks gets used before it is dropped. While that holds, misses fetch groups. When it does not
//! (one random small file per directory), misses fetch single blocks; a second miss in a group that was missed shortly
//! before fetches the whole group, and if those turn out well, groups are back.

use crate::format::BlockAddr;
use crate::fs::api::PrefetchMode;
use parking_lot::Mutex;

/// Group fetches after which the score forgets half of what it knows.
const SCORE_MEMORY: u32 = 64;
/// Group fetches before the score is trusted.
const SCORE_WARMUP: u32 = 12;
/// Groups in which a single miss is remembered.
const MISS_TABLE: usize = 1024;
/// Groups fetched ahead once a walk in order has been recognized.
const AHEAD_MAX: u64 = 4;

struct State {
    fetches: u32,
    used: u32,
    misses: Vec<BlockAddr>,
    last_group: BlockAddr,
    streak: u64,
}

/// The policy of one kind of block.
pub(crate) struct Prefetch {
    mode: PrefetchMode,
    state: Mutex<State>,
}

impl Prefetch {
    pub(crate) fn new(mode: PrefetchMode) -> Prefetch {
        let state = State { fetches: 0, used: 0, misses: vec![u64::MAX; MISS_TABLE], last_group: u64::MAX, streak: 0 };
        Prefetch { mode, state: Mutex::new(state) }
    }

    /// A block was missed: fetch its whole group?
    pub(crate) fn wants_group(&self, group: BlockAddr, group_blocks: u64) -> bool {
        match self.mode {
            PrefetchMode::Off => return false,
            PrefetchMode::Always => return true,
            PrefetchMode::Adaptive => {}
        }
        let mut s = self.state.lock();
        if s.fetches < SCORE_WARMUP || s.used >= s.fetches {
            return true;
        }
        let slot = (group / group_blocks) as usize % MISS_TABLE;
        let second = s.misses[slot] == group;
        s.misses[slot] = if second { u64::MAX } else { group };
        second
    }

    /// A group was fetched. Returns how many of the groups after it to fetch ahead.
    pub(crate) fn fetched(&self, group: BlockAddr, group_blocks: u64) -> u64 {
        let mut s = self.state.lock();
        s.fetches += 1;
        if s.fetches >= SCORE_MEMORY {
            s.fetches /= 2;
            s.used /= 2;
        }
        s.streak = match group.checked_sub(s.last_group) {
            Some(d) if d == group_blocks => (s.streak + 1).min(AHEAD_MAX),
            Some(d) if d > 0 && d <= (AHEAD_MAX + 1) * group_blocks && s.streak > 0 => s.streak,
            _ => 0,
        };
        s.last_group = group;
        if self.mode == PrefetchMode::Off { 0 } else { s.streak }
    }

    /// The request for the group that was fetched last brought those up to this one too.
    pub(crate) fn reached(&self, group: BlockAddr) {
        self.state.lock().last_group = group;
    }

    /// A block that only came along was asked for.
    pub(crate) fn used(&self) {
        let mut s = self.state.lock();
        s.used = s.used.saturating_add(1).min(s.fetches * 64 + 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_groups_end_group_fetches_and_used_ones_bring_them_back() {
        let p = Prefetch::new(PrefetchMode::Adaptive);
        let mut groups = 0;
        for i in 0..200u64 {
            if p.wants_group(i * 640, 64) {
                p.fetched(i * 640, 64);
                groups += 1;
            }
        }
        assert!(groups <= SCORE_WARMUP + 1, "{groups} groups fetched in vain");
        for i in 1000..1040u64 {
            for _ in 0..2 {
                if p.wants_group(i * 64, 64) {
                    p.fetched(i * 64, 64);
                    (0..30).for_each(|_| p.used());
                }
            }
        }
        assert!(p.wants_group(1 << 30, 64), "a walk through directories must bring group fetches back");
    }

    #[test]
    fn a_walk_in_order_is_fetched_ahead() {
        let p = Prefetch::new(PrefetchMode::Adaptive);
        let ahead: Vec<u64> = (0..5).map(|i| p.fetched(i * 64, 64)).collect();
        assert_eq!(ahead[0], 0);
        assert!(ahead[4] >= 2);
        assert_eq!(p.fetched(64_000, 64), 0);
    }
}
