//! When is a whole group worth fetching? Decided by what became of the groups fetched before.
//!
//! At the knee of the device a group costs about two single requests. So a group fetch pays when, on average, at least
//! one more of its blocks gets used before it is dropped. While that holds, misses fetch groups. When it does not
//! (one random small file per directory), misses fetch single blocks; a second miss in a group that was missed shortly
//! before fetches the whole group, and if those turn out well, groups are back.
//!
//! Where it is known which blocks of a group are the directory's that is read, the others are judged by themselves: they
//! come along while one of them is used for each half of a group ([`FOREIGN_SHARE`]).
//!
//! Neither is judged where a directory is listed: who lists one mostly lists those below it too, and then those below its
//! neighbours. Until a walk comes to what a group brought, it has fetched many more, and nothing that came along seems to be
//! of use.

use crate::format::{BlockAddr, Ino};
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
/// Where one in so many of the blocks that came with the last fetch was used, the next one may have several groups.
const WALK_SHARE: u64 = 2;
/// For so many blocks of others that come along, as a part of a group, one is to be used. At the knee the whole group would pay
/// with one request that it saves; those used lie side by side mostly, and save a request together.
const FOREIGN_SHARE: u64 = 2;
/// Groups of fewer blocks are judged as if they had so many: what is used of them is too little to count.
const FOREIGN_BLOCKS: u64 = 16;
/// Blocks of others, in groups, before that is trusted; and those after which half is forgotten.
const FOREIGN_WARMUP: u64 = 4;
const FOREIGN_MEMORY: u64 = 64;
/// While they do not pay, one group in so many is fetched whole all the same: things may have changed.
const FOREIGN_PROBE: u64 = 16;

struct State {
    fetches: u32,
    used: u32,
    misses: Vec<BlockAddr>,
    last_group: BlockAddr,
    streak: u64,
    /// Blocks that came along with the last fetch, and those that were used since, of whichever.
    came: u64,
    used_since: u64,
    /// Directory of the last fetch that knew one, and the groups that the next one for it may have.
    dir: Ino,
    reach: u64,
    /// Blocks of others that came along, those of them that were used, and what they are measured in: groups.
    foreign: u64,
    foreign_used: u64,
    foreign_warmup: u64,
    trimmed: u64,
}

/// The policy of one kind of block.
pub(crate) struct Prefetch {
    mode: PrefetchMode,
    state: Mutex<State>,
}

impl Prefetch {
    pub(crate) fn new(mode: PrefetchMode) -> Prefetch {
        let state = State {
            fetches: 0,
            used: 0,
            misses: vec![u64::MAX; MISS_TABLE],
            last_group: u64::MAX,
            streak: 0,
            came: 0,
            used_since: 0,
            dir: 0,
            reach: 0,
            foreign: 0,
            foreign_used: 0,
            foreign_warmup: 0,
            trimmed: 0,
        };
        Prefetch { mode, state: Mutex::new(state) }
    }

    /// A block was missed, perhaps of a directory that is `listed`: fetch its whole group?
    pub(crate) fn wants_group(&self, group: BlockAddr, group_blocks: u64, listed: bool) -> bool {
        match self.mode {
            PrefetchMode::Off => return false,
            PrefetchMode::Always => return true,
            PrefetchMode::Adaptive if listed => return true,
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

    /// So many blocks came along with what was fetched last.
    pub(crate) fn brings(&self, blocks: u64) {
        let mut s = self.state.lock();
        (s.came, s.used_since) = (blocks, 0);
    }

    /// The request for the group that was fetched last brought those up to this one too.
    pub(crate) fn reached(&self, group: BlockAddr) {
        self.state.lock().last_group = group;
    }

    /// Groups that a fetch for this directory may have: one, and more while its files are read on. `walk`: the most, when it
    /// goes on behind the last fetch, of whichever directory, and what came with that was used.
    pub(crate) fn reach(&self, dir: Ino, walk: bool) -> u64 {
        let mut s = self.state.lock();
        let walks = walk && s.streak > 0 && s.came > 0 && s.used_since * WALK_SHARE >= s.came;
        s.reach = if s.dir == dir { (s.reach * 2).min(AHEAD_MAX) } else { 1 };
        if walks {
            s.reach = AHEAD_MAX;
        }
        s.dir = dir;
        s.reach
    }

    /// Whether what is not the directory's is to come along.
    pub(crate) fn wants_foreign(&self, group_blocks: u64, listed: bool) -> bool {
        if listed || self.mode == PrefetchMode::Always {
            return true;
        }
        let mut s = self.state.lock();
        if s.foreign < s.foreign_warmup
            || s.foreign == 0
            || s.foreign_used * group_blocks.max(FOREIGN_BLOCKS) >= s.foreign * FOREIGN_SHARE
        {
            return true;
        }
        s.trimmed += 1;
        s.trimmed.is_multiple_of(FOREIGN_PROBE)
    }

    /// So many blocks of others came along.
    pub(crate) fn brought_foreign(&self, blocks: u64, group_blocks: u64) {
        let mut s = self.state.lock();
        s.foreign_warmup = FOREIGN_WARMUP * group_blocks;
        s.foreign += blocks;
        if s.foreign >= FOREIGN_MEMORY * group_blocks {
            s.foreign /= 2;
            s.foreign_used /= 2;
        }
    }

    /// A block that came along, and was not the directory's for which it was fetched, was asked for.
    pub(crate) fn used_foreign(&self) {
        let mut s = self.state.lock();
        s.foreign_used = (s.foreign_used + 1).min(s.foreign);
    }

    /// A block that only came along was asked for.
    pub(crate) fn used(&self) {
        let mut s = self.state.lock();
        s.used = s.used.saturating_add(1).min(s.fetches * 64 + 64);
        s.used_since += 1;
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
            if p.wants_group(i * 640, 64, false) {
                p.fetched(i * 640, 64);
                groups += 1;
            }
        }
        assert!(groups <= SCORE_WARMUP + 1, "{groups} groups fetched in vain");
        for i in 1000..1040u64 {
            for _ in 0..2 {
                if p.wants_group(i * 64, 64, false) {
                    p.fetched(i * 64, 64);
                    (0..30).for_each(|_| p.used());
                }
            }
        }
        assert!(p.wants_group(1 << 30, 64, false), "a walk through directories must bring group fetches back");
    }

    #[test]
    fn what_is_not_the_directorys_comes_along_while_it_is_used() {
        let p = Prefetch::new(PrefetchMode::Adaptive);
        assert!(p.wants_foreign(16, false), "nothing is known yet");
        (0..4).for_each(|_| p.brought_foreign(16, 16));
        let tries = 10 * FOREIGN_PROBE;
        assert_eq!((0..tries).filter(|_| p.wants_foreign(16, false)).count(), 10, "only to find out");
        (0..8).for_each(|_| p.used_foreign());
        assert!(p.wants_foreign(16, false));
        assert!(Prefetch::new(PrefetchMode::Always).wants_foreign(16, false));
    }

    #[test]
    fn a_listing_gets_whole_groups_whatever_became_of_those_before() {
        let p = Prefetch::new(PrefetchMode::Adaptive);
        (0..SCORE_WARMUP).for_each(|i| {
            p.fetched(u64::from(i) * 640, 64);
        });
        p.brought_foreign(FOREIGN_WARMUP * 64, 64);
        assert!(!p.wants_group(1 << 20, 64, false) && !p.wants_foreign(64, false), "nothing was used");
        assert!(p.wants_group(1 << 20, 64, true) && p.wants_foreign(64, true));
        assert!(!Prefetch::new(PrefetchMode::Off).wants_group(0, 64, true));
    }

    #[test]
    fn a_directory_that_is_read_on_gets_longer_transfers() {
        let p = Prefetch::new(PrefetchMode::Adaptive);
        let reach: Vec<u64> = [5, 5, 5, 5, 6, 6].iter().map(|dir| p.reach(*dir, false)).collect();
        assert_eq!(reach, [1, 2, 4, 4, 1, 2]);
    }

    #[test]
    fn a_walk_that_used_what_came_gets_the_longest_transfers_at_once() {
        let p = Prefetch::new(PrefetchMode::Adaptive);
        p.fetched(0, 16);
        p.brings(15);
        p.fetched(16, 16);
        (0..7).for_each(|_| p.used());
        assert_eq!(p.reach(5, true), 1, "less than half of it");
        p.used();
        assert_eq!(p.reach(6, false), 1, "files are no walk");
        assert_eq!(p.reach(7, true), AHEAD_MAX);
        p.fetched(640, 16);
        assert_eq!(p.reach(8, true), 1, "elsewhere");
        p.fetched(656, 16);
        p.brings(63);
        assert_eq!(p.reach(9, true), 1, "nothing is known of what came last");
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
