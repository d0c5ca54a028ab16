//! Places for small data on a device that stores whole units, as a log disk does: who writes a part of one makes it read the rest, from wherever that lies.
//!
//! It needs to read nothing of a unit in which nothing is in use, because nothing is stored of that, nor of one that was written a short time ago. So data
//! goes into free units, and then behind what went there last. The gaps that removed files leave in other units come first when space is scarce.

use super::alloc::Found;
use super::class::AllocationClass;
use super::free_space::Space;
use crate::error::{Error, Result};
use crate::format::{FragAddr, Run};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Space is scarce where less than one in so many parts of it is free: of the device, of the places, or of those in blocks that are wholly free.
const SCARCE_DIVISOR: u64 = 8;
/// Gaps are filled wherever they are when less than one in so many parts of the device is free, and less than such a part of what is in gaps: the
/// smallest files come with a third of their bytes in names and inodes, which need units.
const HARDLY_DIVISOR: u64 = 2 * SCARCE_DIVISOR;
const GAPS_DIVISOR: u64 = 3;
/// Allocation groups in which one allocation looks for a gap.
const GAP_AGS: u64 = 2;

impl Space {
    /// As [`Space::alloc_in`]; on a device that stores units of several fragments, where it need not read any, as long as there is enough space.
    pub fn alloc_small_in(&self, window: Range<FragAddr>, want: u64) -> Result<Option<Run>> {
        if self.unit_frags <= 1 {
            return self.alloc_in(window, want);
        }
        let scarce = self.is_scarce();
        let run = match self.alloc_behind(&window, want, scarce)? {
            Some(run) => Some(run),
            None if scarce => self.alloc_in(window, want)?,
            None => self.alloc_units_in(&window, want)?,
        };
        if let Some(run) = run.filter(|run| !run.end().is_multiple_of(self.unit_frags)) {
            self.begun.lock().add(run.end());
        }
        Ok(run)
    }

    /// The next gap for data that is shorter than a unit, where space is scarce and most of it is in gaps. When it is written it takes no space of the device,
    /// because a new version of a unit that is stored replaces the old one.
    pub fn alloc_in_gap(&self, want: u64) -> Option<Run> {
        if want >= self.unit_frags || !self.is_in_gaps() {
            return None;
        }
        let (want, unit) = (want as u32, self.unit_frags as u32);
        let end = self.usable();
        let at = self.next_gap.load(Ordering::Relaxed).min(self.g.total_frags() - 1);
        let first = self.g.ag_of(self.g.block_of_frag(at));
        for n in 0..end.min(GAP_AGS) {
            let group = self.alloc_group((first + n) % end);
            if group.is_virgin() {
                continue;
            }
            let from = if n == 0 { at.saturating_sub(group.start()) as u32 } else { 0 };
            let found = self.with_free_set(&group, |set| {
                set.find_gap(from, want, unit).map(|start| self.take(&group, set, start, want, AllocationClass::Data))
            });
            match found {
                Ok(Ok(Some(Found::Run(run)))) => {
                    self.next_gap.store(run.end(), Ordering::Relaxed);
                    return Some(run);
                }
                // The next one goes on from there.
                Ok(Err(Some(looked_at))) => {
                    self.next_gap.store(group.start() + u64::from(looked_at), Ordering::Relaxed);
                    return None;
                }
                // What cannot be read, or is damaged, is not used.
                _ => {}
            }
        }
        self.next_gap.store(self.alloc_group((first + GAP_AGS) % end).start(), Ordering::Relaxed);
        None
    }

    /// Behind what was allocated a short time ago, and in free units from there on, or with `within` only as far as its unit goes.
    fn alloc_behind(&self, window: &Range<FragAddr>, want: u64, within: bool) -> Result<Option<Run>> {
        let until = |from: FragAddr| (from + want).next_multiple_of(self.unit_frags);
        let is_free = |range: Range<FragAddr>| self.is_all_free(range).unwrap_or(false);
        // Where what was before it is gone, it is a place like any other.
        let most =
            |from: FragAddr| if within { from.next_multiple_of(self.unit_frags).min(window.end) } else { window.end };
        let fits = |from: FragAddr| until(from) <= most(from) && is_free(from..until(from)) && !is_free(from - 1..from);
        let Some(from) = self.begun.lock().take(window, fits) else { return Ok(None) };
        self.alloc_in(from..from + want, want)
    }

    /// At the beginning of free units.
    fn alloc_units_in(&self, window: &Range<FragAddr>, want: u64) -> Result<Option<Run>> {
        let align = self.unit_frags.trailing_zeros();
        self.alloc_inside(window.clone(), want, want.next_multiple_of(self.unit_frags), align, AllocationClass::Data)
    }

    /// Whether nothing of a range is in use.
    fn is_all_free(&self, range: Range<FragAddr>) -> Result<bool> {
        let ag = self.g.ag_of(self.g.block_of_frag(range.start));
        if ag >= self.open.load(Ordering::Acquire) {
            return Ok(false);
        }
        let group = self.alloc_group(ag);
        let part = group.clip(&range);
        let whole = u64::from(part.end - part.start) == range.end - range.start;
        match self.with_free_set(&group, |set| set.is_free(part.start, part.end)) {
            // Damaged allocation groups are not used.
            Err(Error::Corrupt(_)) => Ok(false),
            free => free.map(|free| free && whole),
        }
    }

    /// Whether gaps are needed.
    fn is_scarce(&self) -> bool {
        let few = self.g.total_frags() / SCARCE_DIVISOR;
        let in_blocks = || self.accounting.lock().unreserved_blocks() * self.g.frags_per_block();
        self.free_frags() < few
            || in_blocks() < few
            || self.thin_frags().is_some_and(|[total, free, _]| free < total / SCARCE_DIVISOR)
    }

    /// Whether the device has hardly any space but in gaps, and a new version of a unit takes none.
    fn is_in_gaps(&self) -> bool {
        self.thin_frags().is_some_and(|[total, free, _]| {
            free < total / HARDLY_DIVISOR && free < self.accounting.lock().in_gaps() / GAPS_DIVISOR && !self.keeps_old()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::MkfsOptions;
    use crate::space::tests::Fixture;

    /// In units of four fragments, and the window of a group in which nothing is in use.
    fn in_units() -> (Fixture, Range<FragAddr>) {
        let f = Fixture::in_units(64 << 20, &MkfsOptions::default(), 4);
        let g = f.geometry();
        let group = f.space.find_free_groups(g.total_blocks / 2, 1).unwrap().unwrap();
        let start = g.frag_of_block(group);
        (f, start..start + g.frag_of_block(g.group_blocks()))
    }

    fn alloc(f: &Fixture, window: &Range<FragAddr>, want: u64) -> Option<FragAddr> {
        let run = f.alloc_small_in(window.clone(), want).unwrap();
        run.map(|run| {
            assert_eq!(run.len, want);
            run.start - window.start
        })
    }

    #[test]
    fn small_files_follow_each_other_and_gaps_stay() {
        let (f, window) = in_units();
        assert_eq!([1, 1, 1, 3, 2].map(|want| alloc(&f, &window, want)), [Some(0), Some(1), Some(2), Some(3), Some(6)]);
        // A gap in a unit of which other parts are in use.
        f.cancel(Run { start: window.start + 1, len: 1 });
        assert_eq!(alloc(&f, &window, 1), Some(8));
        // All of a unit is free.
        f.cancel(Run { start: window.start + 6, len: 2 });
        f.cancel(Run { start: window.start + 3, len: 3 });
        assert_eq!(alloc(&f, &window, 3), Some(9), "behind the last");
        assert_eq!(alloc(&f, &window, 1), Some(4), "nothing is before the end that is remembered there");
        assert_eq!(alloc(&f, &window, 2), Some(5));
        // What does not fit behind the last one begins a unit.
        let end = window.end - window.start;
        let rest = window.start + end - 4..window.end;
        assert_eq!(alloc(&f, &rest, 3), Some(0));
        assert_eq!(alloc(&f, &rest, 2), None);
        assert_eq!(alloc(&f, &rest, 1), Some(3));
    }

    #[test]
    fn what_is_in_use_behind_a_file_is_not_written_with_it() {
        let (f, window) = in_units();
        assert_eq!(alloc(&f, &window, 1), Some(0));
        // Somebody else, who need not ask.
        assert!(f.alloc_in(window.start + 3..window.start + 4, 1).unwrap().is_some());
        assert_eq!(alloc(&f, &window, 1), Some(4));
    }

    #[test]
    fn gaps_are_filled_when_space_is_scarce() {
        let (f, window) = in_units();
        let frags = window.end - window.start;
        // One fragment of each unit in the window.
        for n in 0..frags / 4 {
            assert!(f.alloc_in(window.start + 4 * n..window.start + 4 * n + 1, 1).unwrap().is_some());
        }
        assert_eq!(alloc(&f, &window, 1), None);
        let g = f.geometry();
        // And a group that is wholly free: the gaps come before that as well.
        let next = window.end..window.end + frags;
        assert_eq!(alloc(&f, &next, 4), Some(0));
        let both = window.start..next.end;
        assert_eq!(alloc(&f, &both, 1), Some(frags + 4));
        let elsewhere = (0..g.total_frags()).step_by(frags as usize).filter(|start| !both.contains(start));
        for start in elsewhere {
            while !f.space.is_scarce() && f.alloc_in(start..start + frags, 16).unwrap().is_some() {}
        }
        assert!(f.space.is_scarce());
        assert_eq!(alloc(&f, &both, 1), Some(frags + 5), "what was begun costs no space");
        assert_eq!(alloc(&f, &both, 3), Some(1), "a gap, and not the free units behind it");
    }
}
