//! The free extents of one allocation group in memory. No I/O, no locks.
//!
//! Offsets are in fragments from the start of the group. Extents are indexed by their *end* and by their length. The
//! end is the key rather than the start, because allocation takes from the front of an extent: the start changes, the
//! end stays, so most allocations change a value instead of moving a key. The most frequent search, for the first
//! extent that ends behind an offset, is then a single lookup. A bitmap of wholly free aligned groups serves the
//! placement policy.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Extents that are tried in each direction from the goal before best fit by length.
const NEAR_EXTENTS: usize = 16;

/// Extents that [`FreeSet::find_best_fit`] tries.
const BEST_FIT_TRIES: usize = 64;

/// Extents that [`FreeSet::find_gap`] looks at.
const GAP_TRIES: usize = 1024;

/// Most extents that [`FreeSet::longest`] counts.
const LONGEST: usize = 4096;

/// The aligned groups of an allocation group: which are wholly free, and how much of each is free.
#[derive(Debug, Default)]
struct GroupMap {
    words: Vec<u64>,
    /// Free fragments of each, and of the rest at the end.
    free: Vec<u32>,
    /// Number of whole groups. The rest at the end of the allocation group is never a group.
    len: u32,
    shift: u32,
}

impl GroupMap {
    fn new(frags: u32, shift: u32) -> GroupMap {
        let len = frags >> shift;
        GroupMap { words: vec![0; (len as usize).div_ceil(64)], free: vec![0; len as usize + 1], len, shift }
    }

    /// Whole groups that overlap the fragments `start..end`.
    fn touched(&self, start: u32, end: u32) -> Range<u32> {
        start >> self.shift..(((end - 1) >> self.shift) + 1).min(self.len)
    }

    /// The same, including the rest at the end.
    fn all_touched(&self, start: u32, end: u32) -> Range<u32> {
        start >> self.shift..((end - 1) >> self.shift) + 1
    }

    /// Number of fragments of group `g` in `start..end`.
    fn part(&self, g: u32, start: u32, end: u32) -> u32 {
        let (from, to) = (u64::from(g) << self.shift, (u64::from(g) + 1) << self.shift);
        (u64::from(end).min(to) - u64::from(start).max(from)) as u32
    }

    fn used(&mut self, start: u32, end: u32) {
        for g in self.touched(start, end) {
            self.words[g as usize / 64] &= !(1 << (g % 64));
        }
        for g in self.all_touched(start, end) {
            self.free[g as usize] -= self.part(g, start, end);
        }
    }

    /// `start..end` was freed and is now part of the free extent `ext_start..ext_end`.
    fn freed(&mut self, start: u32, end: u32, ext_start: u32, ext_end: u32) {
        for g in self.all_touched(start, end) {
            self.free[g as usize] += self.part(g, start, end);
        }
        for g in self.touched(start, end) {
            if g << self.shift >= ext_start && (u64::from(g) + 1) << self.shift <= u64::from(ext_end) {
                self.words[g as usize / 64] |= 1 << (g % 64);
            }
        }
    }

    /// The first run of `want` wholly free groups from `group` on, or else the longest: start and length.
    fn run_from(&self, group: u32, want: u32) -> Option<(u32, u32)> {
        let mut best: Option<(u32, u32)> = None;
        let mut at = self.first_from(group);
        while let Some(start) = at {
            let is_free = |g: u32| g < self.len && self.words[g as usize / 64] >> (g % 64) & 1 == 1;
            let end = (start + 1..).find(|g| g - start >= want || !is_free(*g))?;
            if best.is_none_or(|(_, len)| end - start > len) {
                best = Some((start, end - start));
            }
            if end - start >= want {
                break;
            }
            at = self.first_from(end);
        }
        best
    }

    fn first_from(&self, group: u32) -> Option<u32> {
        if group >= self.len {
            return None;
        }
        let mut w = group as usize / 64;
        let mut word = self.words[w] & (!0 << (group % 64));
        while word == 0 {
            w += 1;
            word = *self.words.get(w)?;
        }
        Some(w as u32 * 64 + word.trailing_zeros())
    }
}

/// Free extents of an allocation group.
#[derive(Debug, Default)]
pub(super) struct FreeSet {
    /// End of an extent to its start.
    by_end: BTreeMap<u32, u32>,
    /// (Length, end) of every extent.
    by_len: BTreeSet<(u32, u32)>,
    groups: GroupMap,
    /// Log2 of the fragments in a block.
    block: u32,
}

#[inline]
fn round_up(v: u32, shift: u32) -> u32 {
    let mask = (1u32 << shift) - 1;
    v.saturating_add(mask) & !mask
}

#[inline]
fn round_down(v: u32, shift: u32) -> u32 {
    v >> shift << shift
}

impl FreeSet {
    /// Builds the indexes from disjoint extents (start, end) in order, none of which touches the next.
    /// A group is `1 << group_shift` fragments, a block `1 << block_shift`.
    pub fn new(frags: u32, group_shift: u32, block_shift: u32, extents: &[(u32, u32)]) -> FreeSet {
        let mut groups = GroupMap::new(frags, group_shift);
        for &(s, e) in extents {
            groups.freed(s, e, s, e);
        }
        FreeSet {
            by_end: extents.iter().map(|&(s, e)| (e, s)).collect(),
            by_len: extents.iter().map(|&(s, e)| (e - s, e)).collect(),
            groups,
            block: block_shift,
        }
    }

    /// Extends the allocation group to `frags` fragments. The added ones are not free yet.
    pub fn extend(&mut self, frags: u32) {
        self.groups.len = frags >> self.groups.shift;
        self.groups.words.resize((self.groups.len as usize).div_ceil(64), 0);
        self.groups.free.resize(self.groups.len as usize + 1, 0);
    }

    /// Number of whole blocks in `start..end`.
    fn blocks_in(&self, start: u32, end: u32) -> u32 {
        (end >> self.block).saturating_sub(round_up(start, self.block) >> self.block)
    }

    /// Number of free fragments.
    pub fn frags(&self) -> u64 {
        self.by_end.iter().map(|(&e, &s)| u64::from(e - s)).sum()
    }

    /// Number of wholly free blocks.
    pub fn blocks(&self) -> u64 {
        self.by_end.iter().map(|(&e, &s)| u64::from(self.blocks_in(s, e))).sum()
    }

    /// By how many the wholly free blocks decrease when `start..start + len`, which is free, is taken.
    pub fn blocks_lost(&self, start: u32, len: u32) -> u32 {
        let end = start + len;
        let Some((&e, &s)) = self.by_end.range(start + 1..).next() else { return 0 };
        self.blocks_in(s, e) - self.blocks_in(s, start) - self.blocks_in(end, e)
    }

    /// A piece (start, length) of free space outside of wholly free blocks: `want` fragments if the first few extents
    /// have them, else a large piece of at least `min`.
    pub fn find_partial(&self, want: u32, min: u32) -> Option<(u32, u32)> {
        let best = |&(len, e): &(u32, u32)| {
            let s = e - len;
            let (first, last) = (round_up(s, self.block), round_down(e, self.block));
            if first >= last {
                return (s, len);
            }
            if first - s >= e - last { (s, first - s) } else { (last, e - last) }
        };
        let near = self.by_len.range((want, 0)..).take(NEAR_EXTENTS).map(best);
        if let Some((start, _)) = near.into_iter().find(|(_, len)| *len >= want) {
            return Some((start, want));
        }
        // Extents shorter than two blocks come first, the longest of them before others: most have no whole block.
        let short = 2u32 << self.block;
        let (small, large) = (self.by_len.range(..(short, 0)).rev(), self.by_len.range((short, 0)..));
        let found = small.chain(large).map(best).find(|(_, len)| *len >= min.max(1));
        found.map(|(start, len)| (start, len.min(want)))
    }

    /// Removes `start..start + len`. False, with nothing changed, unless all of it is free.
    #[must_use]
    pub fn take(&mut self, start: u32, len: u32) -> bool {
        let end = start + len;
        let Some((&e, s)) = self.by_end.range_mut(start + 1..).next() else { return false };
        let old = *s;
        if old > start || e < end {
            return false;
        }
        self.by_len.remove(&(e - old, e));
        if end < e {
            *s = end;
            self.by_len.insert((e - end, e));
        } else {
            self.by_end.remove(&e);
        }
        if old < start {
            self.by_end.insert(start, old);
            self.by_len.insert((start - old, start));
        }
        self.groups.used(start, end);
        true
    }

    /// Inserts `start..start + len`, merged with its neighbours. Returns the number of blocks that became wholly free;
    /// `None`, with nothing changed, if any of it is free already.
    #[must_use]
    pub fn insert(&mut self, start: u32, len: u32) -> Option<u32> {
        let end = start + len;
        let (mut ext_start, mut ext_end) = (start, end);
        let next = self.by_end.range_mut(start + 1..).next();
        if next.as_ref().is_some_and(|(_, s)| **s < end) {
            return None;
        }
        let joined_next = match next {
            Some((&e, s)) if *s == end => {
                ext_end = e;
                self.by_len.remove(&(e - end, e));
                *s = start;
                true
            }
            _ => false,
        };
        if let Some(s) = self.by_end.remove(&start) {
            self.by_len.remove(&(start - s, start));
            ext_start = s;
        }
        if !joined_next || ext_start != start {
            self.by_end.insert(ext_end, ext_start);
        }
        self.by_len.insert((ext_end - ext_start, ext_end));
        self.groups.freed(start, end, ext_start, ext_end);
        let before = self.blocks_in(ext_start, start) + self.blocks_in(end, ext_end);
        Some(self.blocks_in(ext_start, ext_end) - before)
    }

    /// The first free extent (start, end) that ends behind `from`, cut at `from`.
    pub fn next_extent(&self, from: u32) -> Option<(u32, u32)> {
        self.by_end.range(from.checked_add(1)?..).next().map(|(&e, &s)| (s.max(from), e))
    }

    /// Whether all of `start..end` is free.
    pub fn is_free(&self, start: u32, end: u32) -> bool {
        start >= end || self.by_end.range(end..).next().is_some_and(|(_, s)| *s <= start)
    }

    /// A place for `want` fragments inside `lo..hi`, aligned to `1 << align`: in the shortest free extent with enough
    /// room, so that long ones last; of several the first. Without alignment the place may cross block borders, because
    /// a gap in a group would split the request that writes the group.
    pub fn find_in(&self, lo: u32, hi: u32, want: u32, align: u32) -> Option<u32> {
        let behind = self.by_end.range(lo.checked_add(1)?..).take_while(|(_, s)| **s < hi);
        behind
            .map(|(&e, &s)| (round_up(s.max(lo), align), e.min(hi)))
            .filter(|(start, end)| end.checked_sub(*start).is_some_and(|len| len >= want))
            .min_by_key(|(start, end)| end - start)
            .map(|(start, _)| start)
    }

    /// A place for `want` fragments, aligned to `1 << align`: nearby behind the goal, else nearby before it, else in
    /// the best-fitting extent.
    pub fn find_fit(&self, goal: u32, want: u32, align: u32) -> Option<u32> {
        let fits = |from: u32, e: u32| {
            let start = round_up(from, align);
            (e >= start && e - start >= want).then_some(start)
        };
        let forward = self.by_end.range(goal.saturating_add(1)..).take(NEAR_EXTENTS);
        if let Some(start) = forward.filter_map(|(&e, &s)| fits(s.max(goal), e)).next() {
            return Some(start);
        }
        // This includes the part of the extent around the goal that lies before the goal.
        let around = self.by_end.range(goal.saturating_add(1)..).next().filter(|(_, s)| **s < goal);
        let backward = self.by_end.range(..=goal).rev().take(NEAR_EXTENTS);
        if let Some(start) = around.into_iter().chain(backward).filter_map(|(&e, &s)| fits(s, e)).next() {
            return Some(start);
        }
        self.by_len.range((want, 0)..).find_map(|&(len, e)| fits(e - len, e))
    }

    /// The largest aligned part (start, length) of a free extent, if it has `min` fragments or more.
    pub fn find_largest(&self, min: u32, align: u32) -> Option<(u32, u32)> {
        self.by_len.range((min, 0)..).rev().find_map(|&(len, e)| {
            let start = round_up(e - len, align);
            let end = round_down(e, align);
            (end > start && end - start >= min).then(|| (start, end - start))
        })
    }

    /// Start of a place for `want` fragments, aligned to `1 << align`, in the shortest extent that has one and is no
    /// longer than `most`.
    pub fn find_best_fit_aligned(&self, want: u32, align: u32, most: u32) -> Option<u32> {
        self.by_len.range((want, 0)..).take_while(|(len, _)| *len <= most).find_map(|&(len, e)| {
            let start = round_up(e - len, align);
            (e >= start && e - start >= want).then_some(start)
        })
    }

    /// Start of a place for `want` fragments, aligned to `1 << align`, in the shortest extent that has one, and how long the extent
    /// is from there on.
    pub fn shortest_with_room(&self, want: u32, align: u32) -> Option<(u32, u32)> {
        self.by_len.range((want, 0)..).find_map(|&(len, e)| {
            let start = round_up(e - len, align);
            (e >= start && e - start >= want).then(|| (start, e - start))
        })
    }

    /// A place for `want` fragments, aligned to `1 << align`: the shortest extent that has one, else the longest one; start and
    /// length from there on. Only among those that are `usable`.
    pub fn gap_for(&self, want: u32, align: u32, usable: impl Fn(u32, u32) -> bool) -> Option<(u32, u32)> {
        let aligned = |&(len, e): &(u32, u32)| {
            let start = round_up(e - len, align);
            (e > start).then(|| (start, e - start))
        };
        let mut long_enough = self.by_len.range((want, 0)..).filter_map(aligned);
        let fit = long_enough.find(|(start, len)| *len >= want && usable(*start, *len));
        let shorter = || self.by_len.iter().rev().filter_map(aligned).find(|(start, len)| usable(*start, *len));
        fit.or_else(|| if align == 0 { shorter() } else { None })
    }

    /// The shortest extent (start, length) with a length in `lens` that is not `kept` for others.
    pub fn find_best_fit(&self, lens: Range<u32>, kept: impl Fn(u32) -> bool) -> Option<(u32, u32)> {
        let fit = self.by_len.range((lens.start, 0)..(lens.end.max(lens.start), 0)).take(BEST_FIT_TRIES);
        fit.map(|(len, end)| (end - len, *len)).find(|(start, _)| !kept(*start))
    }

    /// The next place behind `from` for `want` fragments within an aligned unit of which a part is in use: where it begins, or where the search has come to
    /// without one, which is `None` at the end.
    pub fn find_gap(&self, from: u32, want: u32, unit: u32) -> Result<u32, Option<u32>> {
        let shift = unit.trailing_zeros();
        let mut last_end = None;
        for (&end, &start) in self.by_end.range(from.saturating_add(1)..).take(GAP_TRIES) {
            // A free extent begins and ends in units of which parts may be in use, and all in between are wholly free.
            let (first, last) = (start.max(from), round_down(end, shift).max(start).max(from));
            let first_end = round_up(start, shift).min(end);
            if first_end >= first + want {
                return Ok(first);
            }
            if end > round_down(end, shift) && end - last >= want {
                return Ok(last);
            }
            last_end = Some(end);
        }
        Err(last_end.filter(|end| self.by_end.range(end + 1..).next().is_some()))
    }

    /// Appends the lengths of the longest extents that together have `need` fragments.
    pub fn longest(&self, need: u64, out: &mut Vec<u32>) {
        let mut sum = 0;
        for (len, _) in self.by_len.iter().rev().take(LONGEST) {
            out.push(*len);
            sum += u64::from(*len);
            if sum >= need {
                break;
            }
        }
    }

    /// The first free extent (start, end) of at least `min` fragments behind `from`, cut at `from`.
    pub fn find_run(&self, from: u32, min: u32) -> Option<(u32, u32)> {
        // If no extent is that long, none has to be visited.
        self.by_len.range((min, 0)..).next()?;
        let behind = self.by_end.range(from.checked_add(1)?..).map(|(&e, &s)| (s.max(from), e));
        behind.into_iter().find(|(start, end)| end - start >= min)
    }

    /// All free extents (start, length) behind `from` in order, the first cut at `from`.
    pub fn runs_from(&self, from: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let behind = self.by_end.range((std::ops::Bound::Excluded(from), std::ops::Bound::Unbounded));
        behind.map(move |(&end, &start)| (start.max(from), end - start.max(from)))
    }

    /// First fragment of the first wholly free group at or after `goal`.
    pub fn find_group(&self, goal: u32) -> Option<u32> {
        let first = self.groups.first_from(round_up(goal, self.groups.shift) >> self.groups.shift)?;
        Some(first << self.groups.shift)
    }

    /// The first run of `want` wholly free groups at or after `goal`, or else the longest: first fragment, and number
    /// of groups.
    pub fn find_groups(&self, goal: u32, want: u32) -> Option<(u32, u32)> {
        let (first, len) = self.groups.run_from(round_up(goal, self.groups.shift) >> self.groups.shift, want)?;
        Some((first << self.groups.shift, len))
    }

    /// Free fragments of the group that begins at `start`; 0 for one that is not whole.
    pub fn group_free(&self, start: u32) -> u32 {
        let g = start >> self.groups.shift;
        if g < self.groups.len { self.groups.free[g as usize] } else { 0 }
    }

    /// The group with the most free fragments, of several the nearest to `goal`: first fragment, and number of free
    /// ones.
    pub fn emptiest_group(&self, goal: u32) -> Option<(u32, u32)> {
        let at = goal >> self.groups.shift;
        let all = self.groups.free.iter().zip(0..self.groups.len);
        let (free, g) = all.max_by_key(|(free, g)| (**free, std::cmp::Reverse((g.abs_diff(at), *g))))?;
        (*free > 0).then_some((g << self.groups.shift, *free))
    }

    /// First fragment of the group with the fewest free fragments that has `least` or more; of several the nearest to
    /// `goal`.
    pub fn fullest_group(&self, goal: u32, least: u32) -> Option<u32> {
        let at = goal >> self.groups.shift;
        let all = self.groups.free.iter().zip(0..self.groups.len).filter(|(free, _)| **free >= least);
        let (_, g) = all.min_by_key(|(free, g)| (**free, g.abs_diff(at), *g))?;
        Some(g << self.groups.shift)
    }

    /// Extents (start, end) in order.
    #[cfg(test)]
    pub fn extents(&self) -> Vec<(u32, u32)> {
        assert_eq!(self.by_end.len(), self.by_len.len());
        for (&e, &s) in &self.by_end {
            assert!(self.by_len.contains(&(e - s, e)), "{s}..{e} is missing in the index by length");
        }
        self.by_end.iter().map(|(&e, &s)| (s, e)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FRAGS: u32 = 512;

    fn runs(model: &[bool]) -> Vec<(u32, u32)> {
        let mut out: Vec<(u32, u32)> = Vec::new();
        for (i, _) in model.iter().enumerate().filter(|(_, free)| **free) {
            match out.last_mut() {
                Some((_, e)) if *e == i as u32 => *e += 1,
                _ => out.push((i as u32, i as u32 + 1)),
            }
        }
        out
    }

    /// The first place for `want` fragments from `from` on within a unit of which a part is in use.
    fn gap(model: &[bool], from: u32, want: u32, unit: u32) -> Option<u32> {
        let is_free = |mut range: Range<u32>| range.all(|f| model[f as usize]);
        let mut places = (0..FRAGS).step_by(unit as usize).filter(|u| !is_free(*u..u + unit)).flat_map(|u| {
            // The largest part of an extent, as far as the unit goes.
            (u.max(from)..(u + unit).saturating_sub(want - 1)).map(move |start| start..start + want)
        });
        places.find(|place| is_free(place.clone())).map(|place| place.start)
    }

    fn check(set: &FreeSet, model: &[bool]) {
        for (from, want) in (0..FRAGS).step_by(11).flat_map(|from| [1, 2, 3].map(|want| (from, want))) {
            for unit in [2, 4, 8] {
                let found = set.find_gap(from, want, unit).ok();
                assert_eq!(found, gap(model, from, want, unit), "a gap for {want} in units of {unit} from {from}");
            }
        }
        for (s, e) in (0..FRAGS).flat_map(|s| [1, 2, 7].map(|n| (s, (s + n).min(FRAGS)))) {
            assert_eq!(set.is_free(s, e), model[s as usize..e as usize].iter().all(|f| *f), "{s}..{e}");
        }
        assert_eq!(set.extents(), runs(model));
        for goal in (0..FRAGS + 40).step_by(13) {
            let expected = (0..FRAGS / 32)
                .map(|g| g * 32)
                .find(|&s| s >= goal && model[s as usize..s as usize + 32].iter().all(|f| *f));
            assert_eq!(set.find_group(goal), expected, "group from {goal}");
            for want in 1..5 {
                let is_free = |g: u32| (g + 1) * 32 <= FRAGS && model[g as usize * 32..][..32].iter().all(|f| *f);
                let len = |g: u32| (g..g + want).take_while(|g| is_free(*g)).count() as u32;
                let starts = (goal.div_ceil(32)..FRAGS / 32).filter(|g| is_free(*g));
                let whole = starts.clone().find(|g| len(*g) == want);
                let longest = starts.max_by_key(|g| (len(*g), std::cmp::Reverse(*g)));
                let expected = whole.or(longest).map(|g| (g * 32, len(g)));
                assert_eq!(set.find_groups(goal, want), expected, "{want} groups from {goal}");
            }
            let free = |g: u32| model[g as usize * 32..][..32].iter().filter(|f| **f).count() as u32;
            let most = (0..FRAGS / 32).map(free).max().unwrap();
            let nearest = (0..FRAGS / 32).filter(|g| free(*g) == most).min_by_key(|g| g.abs_diff(goal / 32)).unwrap();
            assert_eq!(set.emptiest_group(goal), (most > 0).then_some((nearest * 32, most)), "from {goal}");
            for least in [1, 8, 32] {
                let enough = (0..FRAGS / 32).filter(|g| free(*g) >= least);
                let fullest = enough.min_by_key(|g| (free(*g), g.abs_diff(goal / 32), *g)).map(|g| g * 32);
                assert_eq!(set.fullest_group(goal, least), fullest, "of {least} free from {goal}");
            }
        }
        (0..FRAGS / 32).for_each(|g| {
            let free = model[g as usize * 32..][..32].iter().filter(|f| **f).count();
            assert_eq!(set.group_free(g * 32), free as u32, "group {g}");
        });
    }

    /// Wholly free blocks of four fragments.
    fn blocks(model: &[bool]) -> u32 {
        model.chunks(4).filter(|b| b.iter().all(|f| *f)).count() as u32
    }

    /// Whether a fragment is free and its block is not.
    fn partial(model: &[bool], at: u32) -> bool {
        model[at as usize] && !model[at as usize / 4 * 4..][..4].iter().all(|f| *f)
    }

    proptest! {
        #[test]
        fn the_indexes_agree_with_a_plain_bitmap(ops in prop::collection::vec((0u32..FRAGS, 1u32..80, any::<bool>(), 0u32..4), 1..200)) {
            let mut set = FreeSet::new(FRAGS, 5, 2, &[(8, FRAGS)]);
            let mut model = vec![true; FRAGS as usize];
            model[..8].fill(false);
            for (start, len, free, align) in ops {
                let end = (start + len).min(FRAGS);
                let len = end - start;
                let range = start as usize..end as usize;
                if free {
                    let possible = model[range.clone()].iter().all(|f| !f);
                    let before = blocks(&model);
                    let gained = set.insert(start, len);
                    prop_assert_eq!(gained.is_some(), possible);
                    if possible { model[range].fill(true); }
                    prop_assert_eq!(gained.unwrap_or(0), blocks(&model) - before);
                } else {
                    let possible = model[range.clone()].iter().all(|f| *f);
                    let lost = if possible { set.blocks_lost(start, len) } else { 0 };
                    let before = blocks(&model);
                    prop_assert_eq!(set.take(start, len), possible);
                    if possible { model[range].fill(false); }
                    prop_assert_eq!(lost, before - blocks(&model));
                }
                let fits = |s: u32, n: u32| s + n <= FRAGS && model[s as usize..(s + n) as usize].iter().all(|f| *f);
                // Wherever there is a place, the searches find one, and what they find is one.
                let any = (0..FRAGS).step_by(1 << align).any(|s| fits(s, len));
                let found = set.find_fit(start, len, align);
                prop_assert_eq!(found.is_some(), any);
                if let Some(s) = found {
                    prop_assert!(fits(s, len) && s % (1 << align) == 0);
                }
                let hi = (start + 100).min(FRAGS);
                let inside = runs(&model).into_iter().map(|(s, e)| (round_up(s.max(start), align), e.min(hi)));
                let shortest = inside.filter(|(s, e)| s + len <= *e).min_by_key(|(s, e)| (e - s, *s)).map(|(s, _)| s);
                prop_assert_eq!(set.find_in(start, hi, len, align), shortest);
                let long = runs(&model).into_iter().map(|(s, e)| (s.max(start), e)).find(|(s, e)| *e >= s + len);
                prop_assert_eq!(set.find_run(start, len), long);
                let mut lens: Vec<u32> = runs(&model).into_iter().map(|(s, e)| e - s).collect();
                lens.sort_unstable_by(|a, b| b.cmp(a));
                let mut longest = Vec::new();
                set.longest(len.into(), &mut longest);
                prop_assert_eq!(&longest[..], &lens[..longest.len()]);
                prop_assert!(longest.iter().sum::<u32>() >= len.min(lens.iter().sum()));
                if let Some((s, n)) = set.find_largest(len, align) {
                    prop_assert!(fits(s, n) && n >= len && s % (1 << align) == 0 && n % (1 << align) == 0);
                } else {
                    let unit = round_up(len, align);
                    prop_assert!(!(0..FRAGS).step_by(1 << align).any(|s| fits(s, unit)));
                }
                let fitting = runs(&model).into_iter().filter(|(s, e)| {
                    let start = round_up(*s, align);
                    e - s <= 4 * len && *e >= start && e - start >= len
                });
                let shortest = fitting.min_by_key(|(s, e)| (e - s, *e)).map(|(s, _)| round_up(s, align));
                prop_assert_eq!(set.find_best_fit_aligned(len, align, 4 * len), shortest);
                prop_assert_eq!(set.blocks(), u64::from(blocks(&model)));
                match set.find_partial(len, 1) {
                    Some((s, n)) => prop_assert!(n > 0 && n <= len && (s..s + n).all(|f| partial(&model, f))),
                    None => prop_assert!(!(0..FRAGS).any(|f| partial(&model, f))),
                }
                check(&set, &model);
            }
        }
    }
}
