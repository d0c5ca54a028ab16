//! Media that are rewritten in units: erase blocks of flash, bands of shingled tracks.
//!
//! A unit is rewritten as a whole, from its beginning to its end. While that is under way the unit is *open*, and a write that goes
//! on behind the last one costs itself alone. Everything else that the unit holds has to be copied: what a write skips, and the
//! rest when the unit is closed, because a write went back in it or too many units are open.

use crate::request::SECTOR;
use serde::Serialize;
use std::collections::HashMap;
use std::ops::Range;

/// How a medium is divided.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct UnitSpec {
    /// Bytes at the beginning that can be rewritten at will.
    pub plain: u64,
    /// Bytes of a unit.
    pub unit: u64,
    /// Most units that are open at once.
    pub open: usize,
}

/// What the medium does for a write; ranges are sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes a unit ready to be written from its beginning.
    Begin,
    /// Reads a range and writes it again.
    Copy(Range<u64>),
    /// Writes what was asked for.
    Write(Range<u64>),
}

/// The state of all units.
#[derive(Clone, Debug)]
pub struct Units {
    spec: UnitSpec,
    /// The end of what each unit holds, in sectors of the disk.
    filled: HashMap<u64, u64>,
    /// Open units with the sector up to which they are rewritten; the one that was written last is at the end.
    open: Vec<(u64, u64)>,
}

impl Units {
    /// A medium that holds nothing.
    pub fn new(spec: UnitSpec) -> Units {
        Units { spec, filled: HashMap::new(), open: Vec::new() }
    }

    /// How it is divided.
    pub fn spec(&self) -> &UnitSpec {
        &self.spec
    }

    /// What has to be done, in order, to write the sectors of a range.
    pub fn write(&mut self, range: Range<u64>) -> Vec<Step> {
        let mut steps = Vec::new();
        let (plain, unit) = (self.spec.plain / SECTOR, (self.spec.unit / SECTOR).max(1));
        let mut at = range.start;
        if at < plain {
            let end = range.end.min(plain);
            steps.push(Step::Write(at..end));
            at = end;
        }
        while at < range.end {
            let number = (at - plain) / unit;
            let end = (plain + (number + 1) * unit).min(range.end);
            self.write_in(number, at..end, &mut steps);
            at = end;
        }
        steps
    }

    /// The sectors of a range hold nothing any more.
    pub fn discard(&mut self, range: Range<u64>) {
        let (plain, unit) = (self.spec.plain / SECTOR, (self.spec.unit / SECTOR).max(1));
        let first = range.start.saturating_sub(plain) / unit;
        let last = range.end.saturating_sub(plain).div_ceil(unit);
        for number in first..last {
            let begin = plain + number * unit;
            let Some(filled) = self.filled.get_mut(&number).filter(|f| range.end >= **f) else { continue };
            *filled = (*filled).min(range.start.max(begin));
            if *filled == begin {
                self.filled.remove(&number);
                self.open.retain(|(n, _)| *n != number);
            }
        }
    }

    fn write_in(&mut self, number: u64, range: Range<u64>, steps: &mut Vec<Step>) {
        let begin = self.spec.plain / SECTOR + number * (self.spec.unit / SECTOR).max(1);
        let mut at = self.open.iter().position(|(n, _)| *n == number);
        if let Some(i) = at.filter(|i| self.open[*i].1 > range.start) {
            self.close(i, steps);
            at = None;
        }
        let reached = match at {
            Some(i) => self.open.remove(i).1,
            None => {
                if self.open.len() >= self.spec.open.max(1) {
                    self.close(0, steps);
                }
                steps.push(Step::Begin);
                begin
            }
        };
        let filled = self.filled.entry(number).or_insert(begin);
        let skipped = reached..range.start.min(*filled);
        *filled = (*filled).max(range.end);
        if !skipped.is_empty() {
            steps.push(Step::Copy(skipped));
        }
        let whole = range.end == begin + (self.spec.unit / SECTOR).max(1);
        let end = range.end;
        steps.push(Step::Write(range));
        if !whole {
            self.open.push((number, end));
        }
    }

    fn close(&mut self, i: usize, steps: &mut Vec<Step>) {
        let (number, reached) = self.open.remove(i);
        let rest = reached..self.filled.get(&number).copied().unwrap_or(0);
        if !rest.is_empty() {
            steps.push(Step::Copy(rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units of eight sectors behind four plain ones.
    fn units(open: usize) -> Units {
        Units::new(UnitSpec { plain: 4 * SECTOR, unit: 8 * SECTOR, open })
    }

    fn copied(steps: &[Step]) -> u64 {
        steps.iter().map(|s| if let Step::Copy(r) = s { r.end - r.start } else { 0 }).sum()
    }

    #[test]
    fn writing_on_copies_nothing_however_it_is_cut() {
        let mut u = units(2);
        for round in 0..3 {
            for at in (0..100).step_by(3) {
                let steps = u.write(at..at + 3);
                assert_eq!(copied(&steps), 0, "round {round}, sector {at}: {steps:?}");
                let written: u64 = steps.iter().map(|s| if let Step::Write(r) = s { r.end - r.start } else { 0 }).sum();
                assert_eq!(written, 3);
            }
            // To the end of the units that are begun.
            assert_eq!(copied(&u.write(102..124)), 0);
        }
    }

    #[test]
    fn a_write_in_the_middle_costs_the_whole_unit() {
        let mut u = units(1);
        u.write(0..84);
        assert_eq!(u.write(6..7), [Step::Begin, Step::Copy(4..6), Step::Write(6..7)]);
        // Another unit: the rest of the first is copied.
        assert_eq!(u.write(14..15), [Step::Copy(7..12), Step::Begin, Step::Copy(12..14), Step::Write(14..15)]);
        // Back in an open one.
        assert_eq!(u.write(13..14), [Step::Copy(15..20), Step::Begin, Step::Copy(12..13), Step::Write(13..14)]);
        // In order within it: what lies between is copied on the way.
        assert_eq!(u.write(16..17), [Step::Copy(14..16), Step::Write(16..17)]);
        assert_eq!(u.write(0..2), [Step::Write(0..2)], "the plain part");
    }

    #[test]
    fn several_open_units_are_written_in_turns_for_nothing() {
        let mut u = units(3);
        u.write(4..84);
        let total: u64 =
            (0..8).flat_map(|i| [4, 28, 52].map(|begin| begin + i)).map(|at| copied(&u.write(at..at + 1))).sum();
        assert_eq!(total, 0);
        let mut u = units(2);
        u.write(4..84);
        let total: u64 =
            (0..8).flat_map(|i| [4, 28, 52].map(|begin| begin + i)).map(|at| copied(&u.write(at..at + 1))).sum();
        assert!(total > 100, "one too many: {total}");
    }

    #[test]
    fn what_was_discarded_is_not_copied() {
        let mut u = units(1);
        u.write(4..20);
        u.discard(4..12);
        assert_eq!(u.write(6..7), [Step::Begin, Step::Write(6..7)]);
        u.discard(16..20);
        assert_eq!(u.write(13..14), [Step::Begin, Step::Copy(12..13), Step::Write(13..14)]);
        assert_eq!(copied(&u.write(6..7)), 2 + 2, "the rest of the second unit, and the beginning of the first");
    }
}
