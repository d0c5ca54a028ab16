//! When is a whole group worth a transfer? Decided by what became of the groups read before.
//!
//! At the knee of the device a group costs about two single requests. So a group read pays when, on average, at least
//! one more of its blocks gets used before it is evicted. While that holds, misses read groups. When it does not
//! (one random small file per directory), misses read single blocks; a second miss in a group with an earlier miss shortly
//! before reads the whole group, and if those turn out well, groups are back.
//!
//! Where the directory's extents are known, the group's other blocks, the *unrelated* ones, are judged by themselves: they
//! are prefetched while one of them is used for each half of a group ([`UNRELATED_DIVISOR`]).
//!
//! Neither is judged where directories are read sequentially: a program that lists one mostly lists those below it too, and then
//! those below its neighbours. Until a walk comes to the blocks that a group brought, it has read many more groups, and nothing
//! that was prefetched seems to be of use.

use super::outlook::Outlook;
use crate::format::{BlockAddr, Ino};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;

/// Prefetching of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PrefetchMode {
    /// By how much of what was fetched gets used.
    #[default]
    Adaptive,
    /// Single blocks only.
    Off,
    /// Whole groups, always.
    Always,
}

/// Group reads after which half of the score is forgotten.
const SCORE_MEMORY: u32 = 64;
/// Group reads before the score is trusted.
const SCORE_WARMUP: u32 = 12;
/// Groups whose single misses are remembered.
const MISS_TABLE: usize = 1024;
/// Most groups of readahead, once a walk in order has been recognized.
pub(super) const AHEAD_MAX: u64 = 4;
/// Most devices that groups are read ahead for.
pub(super) const WIDTH_MAX: usize = 8;
/// What is read ahead for several devices at a time is at most such a part of what the reader has come to, once that is more than one device
/// would get: so what is read behind the end of a tree is a small part of it. Where the tree is known to go on it may be more.
const SEEN_DIVISOR: u64 = 2;
/// Readers that are told apart: a program that reads here and there by turns goes through several parts in order.
const STREAMS_MAX: usize = 4;
/// Where one in so many of the blocks prefetched by the last read was used, the next one may have several groups.
const WALK_DIVISOR: u64 = 2;
/// In so many parts of a group, each with nothing but unrelated blocks, one block each is to be used. At the knee the whole
/// group would pay with one request that it saves; used blocks lie side by side mostly, and save a request together.
const UNRELATED_DIVISOR: u64 = 2;
/// Groups of fewer blocks are judged as if they had so many: too few of their blocks are used to count.
const UNRELATED_BLOCKS: u64 = 16;
/// Unrelated blocks, in groups, before their share is trusted; and those after which half is forgotten.
const UNRELATED_WARMUP: u64 = 4;
const UNRELATED_MEMORY: u64 = 64;
/// While they do not pay, one group in so many is read whole all the same: things may have changed.
const UNRELATED_PROBE: u64 = 16;

#[derive(Default)]
struct State {
    group_reads: u32,
    used: u32,
    /// Groups with a single miss, by slot.
    misses: Vec<BlockAddr>,
    /// Readers that go through the device in order, the last one first.
    streams: VecDeque<Stream>,
    /// Blocks that were prefetched with the last read, and prefetched blocks that were used since, whichever read brought them.
    prefetched: u64,
    used_since: u64,
    /// Directory of the last read that knew one, and the groups that the next one for it may have.
    dir: Ino,
    window: u64,
    unrelated: Unrelated,
    outlook: Outlook,
}

/// A reader that goes through the device in order.
#[derive(Default)]
struct Stream {
    last_group: BlockAddr,
    /// Group reads in order of the device.
    streak: u64,
    /// All groups it has come to so far.
    seen: u64,
    /// The last groups it has come to, how many of their blocks were read then, and how many of these were prefetched and then used.
    run: Range<BlockAddr>,
    read: u64,
    used: u64,
    /// Groups that the readahead thread was asked for last, until the reader comes to them, and how many of their blocks were not there.
    ahead: Range<BlockAddr>,
    missing: u64,
}

impl Stream {
    /// Its streak, if it goes on to this group.
    fn goes_on_to(&self, group: BlockAddr, group_blocks: u64) -> Option<u64> {
        match group.checked_sub(self.last_group)? {
            0 => Some(self.streak),
            d if d == group_blocks => Some((self.streak + 1).min(AHEAD_MAX)),
            d if d > 0 && d <= (AHEAD_MAX + 1) * group_blocks && self.streak > 0 => Some(self.streak),
            _ => None,
        }
    }

    /// How many groups to read ahead for so many devices. Longer transfers cost one device as much for each byte. But a disk of a mirror passes
    /// over what another one reads, for which it may wait a rotation: so of several each gets more at a time. `known`: how many groups the tree
    /// goes on for, as far as that is known.
    fn window(&self, devices: u64, known: Option<u64>) -> u64 {
        if devices < 2 || self.streak == 0 {
            return self.streak;
        }
        let least = devices * self.streak;
        known.unwrap_or(self.seen / SEEN_DIVISOR).clamp(least, least * self.streak)
    }
}

impl State {
    /// The streak of the last reader.
    fn streak(&self) -> u64 {
        self.streams.front().map_or(0, |s| s.streak)
    }

    /// This one is the last reader now.
    fn bring_to_front(&mut self, at: usize) -> Option<&mut Stream> {
        let stream = self.streams.remove(at)?;
        self.streams.push_front(stream);
        self.streams.front_mut()
    }
}

/// What became of the blocks that were prefetched and did not belong to the directory that was read.
#[derive(Default)]
struct Unrelated {
    blocks: u64,
    used: u64,
    /// Blocks before the share of used ones is trusted.
    warmup: u64,
    /// Reads that left them out, or tried again whether they pay.
    trimmed: u64,
}

/// The policy of one kind of block.
pub(super) struct Prefetch {
    mode: PrefetchMode,
    /// Devices that work at the same time.
    devices: u64,
    state: Mutex<State>,
}

impl Prefetch {
    pub(super) fn new(mode: PrefetchMode, devices: usize) -> Prefetch {
        let state = State { misses: vec![u64::MAX; MISS_TABLE], ..State::default() };
        Prefetch { mode, devices: devices.min(WIDTH_MAX) as u64, state: Mutex::new(state) }
    }

    /// Whether nothing is prefetched.
    pub(super) fn is_off(&self) -> bool {
        self.mode == PrefetchMode::Off
    }

    /// Most groups that are read ahead at a time.
    pub(super) fn window_max(&self) -> u64 {
        match self.devices {
            devices if devices < 2 => AHEAD_MAX,
            devices => devices * AHEAD_MAX * AHEAD_MAX,
        }
    }

    /// There are files in these groups of directories that whoever reads in order mostly comes to.
    pub(super) fn note_outlook(&self, groups: &[BlockAddr], group_blocks: u64) {
        let mut s = self.state.lock();
        groups.iter().for_each(|group| s.outlook.note(*group, group_blocks));
    }

    /// After a miss, perhaps of a directory that is read sequentially: is its whole group to be read?
    pub(super) fn wants_group(&self, group: BlockAddr, group_blocks: u64, sequential: bool) -> bool {
        match self.mode {
            PrefetchMode::Off => return false,
            PrefetchMode::Always => return true,
            PrefetchMode::Adaptive if sequential => return true,
            PrefetchMode::Adaptive => {}
        }
        let mut s = self.state.lock();
        if s.group_reads < SCORE_WARMUP || s.used >= s.group_reads {
            return true;
        }
        let slot = (group / group_blocks) as usize % MISS_TABLE;
        let second = s.misses[slot] == group;
        s.misses[slot] = if second { u64::MAX } else { group };
        second
    }

    /// A group is read. Returns how many of the groups after it to read ahead.
    pub(super) fn note_group(&self, group: BlockAddr, group_blocks: u64) -> u64 {
        let mut s = self.state.lock();
        s.group_reads += 1;
        if s.group_reads >= SCORE_MEMORY {
            s.group_reads /= 2;
            s.used /= 2;
        }
        let found = s.streams.iter().enumerate().find_map(|(at, x)| Some((at, x.goes_on_to(group, group_blocks)?)));
        let streak = match found {
            Some((at, streak)) => {
                s.bring_to_front(at);
                streak
            }
            None => {
                s.streams.truncate(STREAMS_MAX - 1);
                s.streams.push_front(Stream::default());
                0
            }
        };
        if let Some(stream) = s.streams.front_mut().filter(|x| found.is_none() || x.last_group != group) {
            let (seen, run) = (stream.seen + 1, group..group + group_blocks);
            *stream = Stream { last_group: group, streak, seen, run, read: group_blocks, ..Stream::default() };
        }
        let known = s.outlook.goes_on(group + group_blocks, group_blocks);
        let window = s.streams.front().map_or(0, |x| x.window(self.devices, known));
        if self.mode == PrefetchMode::Off { 0 } else { window }
    }

    /// So many blocks were prefetched by the last read.
    pub(super) fn note_prefetched(&self, blocks: u64) {
        let mut s = self.state.lock();
        (s.prefetched, s.used_since) = (blocks, 0);
    }

    /// The last read brought the groups up to this one too.
    pub(super) fn note_last_group(&self, group: BlockAddr) {
        if let Some(stream) = self.state.lock().streams.front_mut() {
            stream.last_group = group;
        }
    }

    /// Groups that a read for this directory may have: one, and more while its files are read on. `walk`: the most, when it
    /// continues the last read, of any directory, and enough of what that prefetched was used.
    pub(super) fn window(&self, dir: Ino, walk: bool) -> u64 {
        let mut s = self.state.lock();
        let walks = walk && s.streak() > 0 && s.prefetched > 0 && s.used_since * WALK_DIVISOR >= s.prefetched;
        s.window = if s.dir == dir { (s.window * 2).min(AHEAD_MAX) } else { 1 };
        if walks {
            s.window = AHEAD_MAX;
        }
        s.dir = dir;
        s.window
    }

    /// Whether unrelated blocks are to be prefetched.
    pub(super) fn wants_unrelated(&self, group_blocks: u64, sequential: bool) -> bool {
        if sequential || self.mode == PrefetchMode::Always {
            return true;
        }
        let u = &mut self.state.lock().unrelated;
        if u.blocks < u.warmup
            || u.blocks == 0
            || u.used * group_blocks.max(UNRELATED_BLOCKS) >= u.blocks * UNRELATED_DIVISOR
        {
            return true;
        }
        u.trimmed += 1;
        u.trimmed.is_multiple_of(UNRELATED_PROBE)
    }

    /// So many unrelated blocks were prefetched.
    pub(super) fn note_unrelated(&self, blocks: u64, group_blocks: u64) {
        let u = &mut self.state.lock().unrelated;
        u.warmup = UNRELATED_WARMUP * group_blocks;
        u.blocks += blocks;
        if u.blocks >= UNRELATED_MEMORY * group_blocks {
            u.blocks /= 2;
            u.used /= 2;
        }
    }

    /// A prefetched block was asked for that was unrelated to the directory for which it was read.
    pub(super) fn used_unrelated(&self) {
        let u = &mut self.state.lock().unrelated;
        u.used = (u.used + 1).min(u.blocks);
    }

    /// The readahead thread was asked for these groups, of which so many blocks were not there.
    pub(super) fn note_ahead(&self, groups: Range<BlockAddr>, missing: u64) {
        if let Some(stream) = self.state.lock().streams.front_mut() {
            (stream.ahead, stream.missing) = (groups, missing);
        }
    }

    /// A prefetched block was asked for. If a reader has come to what the thread was asked for last, and has used enough of what was
    /// prefetched before: from where on the thread is to read now, and how many groups. So a walk in order waits for no request,
    /// and each brings several groups.
    pub(super) fn used(&self, addr: BlockAddr, group_blocks: u64) -> Option<(BlockAddr, u64)> {
        let mut s = self.state.lock();
        s.used = s.used.saturating_add(1).min(s.group_reads * 64 + 64);
        s.used_since += 1;
        if let Some(stream) = s.streams.iter_mut().find(|x| x.run.contains(&addr)) {
            stream.used += 1;
            return None;
        }
        let at = s.streams.iter().position(|x| x.ahead.contains(&addr))?;
        let end = s.streams[at].ahead.end;
        let known = s.outlook.goes_on(end, group_blocks);
        let stream = s.bring_to_front(at)?;
        let ahead = std::mem::take(&mut stream.ahead);
        let enough = stream.used * WALK_DIVISOR >= stream.read;
        stream.seen += (ahead.end - ahead.start) / group_blocks;
        (stream.run, stream.read, stream.used) = (ahead.clone(), stream.missing, 1);
        if !enough {
            return None;
        }
        stream.streak = (stream.streak + 1).min(AHEAD_MAX);
        stream.last_group = ahead.end.saturating_sub(group_blocks);
        Some((ahead.end, stream.window(self.devices, known)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_groups_end_group_reads_and_used_ones_bring_them_back() {
        let p = Prefetch::new(PrefetchMode::Adaptive, 1);
        let mut groups = 0;
        for i in 0..200u64 {
            if p.wants_group(i * 640, 64, false) {
                p.note_group(i * 640, 64);
                groups += 1;
            }
        }
        assert!(groups <= SCORE_WARMUP + 1, "{groups} groups read in vain");
        for i in 1000..1040u64 {
            for _ in 0..2 {
                if p.wants_group(i * 64, 64, false) {
                    p.note_group(i * 64, 64);
                    (0..30).for_each(|_| assert_eq!(p.used(0, 64), None));
                }
            }
        }
        assert!(p.wants_group(1 << 30, 64, false), "a walk through directories must bring group reads back");
    }

    #[test]
    fn unrelated_blocks_are_prefetched_while_they_are_used() {
        let p = Prefetch::new(PrefetchMode::Adaptive, 1);
        assert!(p.wants_unrelated(16, false), "nothing is known yet");
        (0..4).for_each(|_| p.note_unrelated(16, 16));
        let tries = 10 * UNRELATED_PROBE;
        assert_eq!((0..tries).filter(|_| p.wants_unrelated(16, false)).count(), 10, "only to find out");
        (0..8).for_each(|_| p.used_unrelated());
        assert!(p.wants_unrelated(16, false));
        assert!(Prefetch::new(PrefetchMode::Always, 1).wants_unrelated(16, false));
    }

    #[test]
    fn a_sequential_read_gets_whole_groups_whatever_became_of_those_before() {
        let p = Prefetch::new(PrefetchMode::Adaptive, 1);
        (0..SCORE_WARMUP).for_each(|i| {
            p.note_group(u64::from(i) * 640, 64);
        });
        p.note_unrelated(UNRELATED_WARMUP * 64, 64);
        assert!(!p.wants_group(1 << 20, 64, false) && !p.wants_unrelated(64, false), "nothing was used");
        assert!(p.wants_group(1 << 20, 64, true) && p.wants_unrelated(64, true));
        assert!(!Prefetch::new(PrefetchMode::Off, 1).wants_group(0, 64, true));
    }

    #[test]
    fn a_directory_that_is_read_on_gets_longer_transfers() {
        let p = Prefetch::new(PrefetchMode::Adaptive, 1);
        let windows: Vec<u64> = [5, 5, 5, 5, 6, 6].iter().map(|dir| p.window(*dir, false)).collect();
        assert_eq!(windows, [1, 2, 4, 4, 1, 2]);
    }

    #[test]
    fn a_walk_that_used_what_was_prefetched_gets_the_longest_transfers_at_once() {
        let p = Prefetch::new(PrefetchMode::Adaptive, 1);
        p.note_group(0, 16);
        p.note_prefetched(15);
        p.note_group(16, 16);
        (0..7).for_each(|_| assert_eq!(p.used(640, 16), None));
        assert_eq!(p.window(5, true), 1, "less than half of it");
        assert_eq!(p.used(640, 16), None);
        assert_eq!(p.window(6, false), 1, "files are no walk");
        assert_eq!(p.window(7, true), AHEAD_MAX);
        p.note_group(640, 16);
        assert_eq!(p.window(8, true), 1, "elsewhere");
        p.note_group(656, 16);
        p.note_prefetched(63);
        assert_eq!(p.window(9, true), 1, "nothing is known of what was prefetched last");
    }

    #[test]
    fn a_walk_that_comes_to_what_was_read_ahead_gets_more_of_it_and_one_that_skips_most_does_not() {
        let p = Prefetch::new(PrefetchMode::Adaptive, 1);
        let begin = || {
            p.note_group(6400, 64);
            assert_eq!(p.note_group(6464, 64), 1);
            p.note_prefetched(63);
            p.note_ahead(6528..6592, 6592 - 6528);
        };
        begin();
        (0..32).for_each(|n| assert_eq!(p.used(6465 + n, 64), None));
        assert_eq!(p.used(6530, 64), Some((6592, 2)));
        assert_eq!(p.used(6531, 64), None, "once");
        p.note_ahead(6592..6720, 6720 - 6592);
        (0..29).for_each(|n| assert_eq!(p.used(6532 + n, 64), None));
        assert_eq!(p.used(6592, 64), None, "less than half of the last groups was used");
    }

    #[test]
    fn several_devices_get_longer_windows_as_the_walk_goes_on() {
        let windows = |devices| {
            let p = Prefetch::new(PrefetchMode::Adaptive, devices);
            p.note_group(0, 16);
            let (mut at, mut groups) = (32, p.note_group(16, 16));
            (16..32).for_each(|block| assert_eq!(p.used(block, 16), None));
            let mut windows = vec![groups];
            for _ in 0..7 {
                p.note_ahead(at..at + groups * 16, groups * 16);
                let next = p.used(at, 16).unwrap();
                (1..groups * 16).for_each(|n| assert_eq!(p.used(at + n, 16), None));
                assert_eq!(next.0, at + groups * 16);
                (at, groups) = next;
                windows.push(groups);
            }
            windows
        };
        assert_eq!(windows(1), [1, 2, 3, 4, 4, 4, 4, 4]);
        assert_eq!(windows(2), [2, 4, 6, 8, 11, 16, 24, 32]);
    }

    #[test]
    fn readers_that_take_turns_are_told_apart() {
        let p = Prefetch::new(PrefetchMode::Adaptive, 1);
        for n in 0..5 {
            for reader in 0..4 {
                let streak = p.note_group(reader * 64_000 + n * 64, 64);
                assert_eq!(streak, n.min(AHEAD_MAX), "reader {reader}");
            }
        }
        // A fifth takes the place of the one that read longest ago.
        assert_eq!(p.note_group(1 << 30, 64), 0);
        assert_eq!(p.note_group(64_000 + 5 * 64, 64), AHEAD_MAX);
        assert_eq!(p.note_group(5 * 64, 64), 0);
    }

    #[test]
    fn a_walk_in_order_is_read_ahead() {
        let p = Prefetch::new(PrefetchMode::Adaptive, 1);
        let ahead: Vec<u64> = (0..5).map(|i| p.note_group(i * 64, 64)).collect();
        assert_eq!(ahead[0], 0);
        assert!(ahead[4] >= 2);
        assert_eq!(p.note_group(64_000, 64), 0);
    }
}
