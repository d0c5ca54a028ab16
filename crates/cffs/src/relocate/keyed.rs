//! Files that go with others than those of their directory: by a key, a list, or what was learned.
//!
//! They are collected in a walk and come after it, unit by unit. Where there are too many for memory, the walk is done again for
//! the rest.

use super::MoveCtx;
use super::stretch::Item;
use super::walk::{self, skip_lost};
use crate::colocation::{self, Order};
use crate::error::Result;
use crate::format::Ino;
use std::ops::Range;

/// Files that are kept at once, at 32 bytes.
const KEPT_MAX: usize = 1 << 20;

/// The parts of a large file that lie with the others of its unit; none if it is for itself.
pub(super) fn parts<'a>(cx: &MoveCtx<'a>, unit: Ino, ino: Ino) -> &'a [Range<u64>] {
    if unit == colocation::learned_unit() { cx.learned.parts(ino) } else { &[] }
}

/// Whether a file has something to be placed with the others of its unit.
pub(super) fn goes_with_others(cx: &MoveCtx<'_>, unit: Ino, ino: Ino, size: u64) -> bool {
    size <= cx.file.placement.small_max() || !parts(cx, unit, ino).is_empty()
}

/// What that is now, in the order of the file: all of a small one.
///
/// # Errors
/// What a regroup does not pass over.
pub(super) fn items(cx: &MoveCtx<'_>, unit: Ino, ino: Ino) -> Result<Vec<Item>> {
    let Some(f) = skip_lost(walk::file(cx, None, ino))?.flatten() else { return Ok(Vec::new()) };
    // It may have grown since the walk.
    if f.inode.size <= cx.file.placement.small_max() {
        return Ok(vec![Item::file(ino, &f.extents)]);
    }
    let g = cx.file.cache.geometry();
    let frags = parts(cx, unit, ino).iter().map(|p| p.start >> g.frag_shift..g.frags_for(p.end));
    // None is longer than what lies in one place at best.
    let step = g.group_frags();
    let cut = frags.flat_map(|p| p.clone().step_by(step as usize).map(move |at| at..p.end.min(at + step)));
    Ok(cut.filter_map(|part| Item::part(ino, &f.extents, part)).collect())
}

/// A file: its unit, its order there (given, then as found), its number.
type Entry = (Ino, u64, u64, Ino);

/// The files of a walk that belong to units.
#[derive(Default)]
pub(super) struct KeyedFiles {
    files: Vec<Entry>,
    found: u64,
    /// Those up to here were done in earlier walks.
    done: Option<Entry>,
    /// Those from here on are left for the next walk.
    until: Option<Entry>,
}

impl KeyedFiles {
    /// Notes a file of a unit.
    pub fn push(&mut self, unit: Ino, order: Order, ino: Ino) {
        self.push_within(unit, order, ino, KEPT_MAX);
    }

    fn push_within(&mut self, unit: Ino, order: Order, ino: Ino, most: usize) {
        let given = match order {
            Order::NameSpace => 0,
            Order::Place(at) => at,
        };
        self.found += 1;
        let entry = (unit, given, self.found, ino);
        if self.done.is_some_and(|done| entry <= done) || self.until.is_some_and(|until| entry >= until) {
            return;
        }
        self.files.push(entry);
        if self.files.len() > most {
            self.files.sort_unstable();
            self.until = Some(self.files[most / 2]);
            self.files.truncate(most / 2);
        }
    }

    /// The files, unit by unit, each in its order: with the number of the unit.
    pub fn take(&mut self) -> Vec<(Ino, Ino)> {
        self.files.sort_unstable();
        let files = std::mem::take(&mut self.files);
        self.done = files.last().copied();
        files.into_iter().map(|(unit, .., ino)| (unit, ino)).collect()
    }

    /// Whether another walk has to find the rest; prepares for it.
    pub fn begin_next_walk(&mut self) -> bool {
        self.found = 0;
        self.until.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_files_for_memory_come_in_several_walks_in_the_same_order() {
        let files = || (0..100_u64).map(|n| (n % 7, Order::Place(n * 31 % 10), 1000 + n));
        let walk = |most| {
            let (mut keyed, mut all, mut walks) = (KeyedFiles::default(), Vec::new(), 0);
            loop {
                walks += 1;
                files().for_each(|(unit, order, ino)| keyed.push_within(unit, order, ino, most));
                all.append(&mut keyed.take());
                if !keyed.begin_next_walk() {
                    return (all, walks);
                }
            }
        };
        let (whole, once) = walk(1000);
        let (parts, walks) = walk(16);
        assert_eq!((once, whole.len()), (1, 100));
        assert!(walks > 3, "{walks} walks");
        assert_eq!(parts, whole);
        assert_eq!(whole[0], (0, 1000));
    }
}
