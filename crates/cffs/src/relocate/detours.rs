//! Detours: files that a reader of the name space leaves its way for, and comes back from.
//!
//! A directory that is made later lies elsewhere, in one piece mostly. It is no stray, and yet who reads in order goes there and back. Where moves
//! leave room, it is brought into the room of the groups that come before it: whoever comes to it has them in memory.

use super::MoveCtx;
use super::control::{Control, Progress};
use super::cost::{PARTS, Reader, groups_of};
use super::files;
use super::pace::Uncommitted;
use super::stretch::{Item, read_all};
use super::walk::{Visitor, walk};
use crate::colocation::Order;
use crate::error::Result;
use crate::format::{BlockAddr, Extent, FragAddr, Geometry, Ino};
use std::ops::Range;

/// Bytes of a detour, at most, so that each request that is saved costs a megabyte at most. What is longer is the way itself.
const LONGEST: u64 = 2 << 20;
/// A reader who goes no farther than so many groups goes on.
const NEAR_GROUPS: u64 = 4;

/// Brings the detours below the given directories into room beside the way. Goes on from the progress so far, up to so many bytes in all.
///
/// # Errors
/// Those of the device and the journal, and what [`Control::check`] returns.
pub(super) fn run(
    cx: &MoveCtx<'_>,
    roots: &[Ino],
    budget: u64,
    control: &dyn Control,
    progress: &mut Progress,
) -> Result<()> {
    let mut uncommitted = Uncommitted::default();
    for root in roots {
        let (way, uncommitted) = (Way::from(cx.reader()), &mut uncommitted);
        walk(cx, *root, &mut Planner { cx: *cx, budget, control, progress, way, uncommitted })?;
    }
    uncommitted.commit(cx).map(|_| ())
}

/// A detour, and where it may go.
struct Detour {
    items: Vec<Item>,
    /// What it costs, there and back, in parts of a request.
    cost: u64,
    /// The groups that its reader has in memory, the one that was read last first.
    memory: Vec<Range<FragAddr>>,
}

/// The way of a reader who goes through files in order.
struct Way {
    /// Who has read all of it.
    reader: Reader,
    /// Files since it was left, and their fragments.
    left_for: Vec<Item>,
    frags: u64,
}

impl Way {
    /// The way of this reader.
    fn from(reader: Reader) -> Way {
        Way { reader, left_for: Vec::new(), frags: 0 }
    }

    /// The next file. Returns the detour that ends before it.
    fn read(&mut self, g: &Geometry, item: Item) -> Option<Detour> {
        if self.leads_to(g, &item) {
            let detour = self.detour(g);
            item.runs.iter().for_each(|run| self.reader.read(g, *run));
            return detour;
        }
        self.frags += item.frags();
        self.left_for.push(item);
        if self.frags << g.frag_shift > LONGEST {
            // It was left for good.
            let (items, _) = self.take();
            items.iter().flat_map(|i| &i.runs).for_each(|run| self.reader.read(g, *run));
        }
        None
    }

    fn leads_to(&self, g: &Geometry, item: &Item) -> bool {
        let near = NEAR_GROUPS * g.group_blocks();
        let goes_on = |group: BlockAddr| self.reader.last(g).is_none_or(|last| last.abs_diff(group) <= near);
        let mut groups = item.runs.iter().flat_map(|run| groups_of(g, *run));
        groups.all(|group| self.reader.has(group) || goes_on(group))
    }

    fn take(&mut self) -> (Vec<Item>, u64) {
        (std::mem::take(&mut self.left_for), std::mem::take(&mut self.frags))
    }

    fn detour(&mut self, g: &Geometry) -> Option<Detour> {
        let (items, frags) = self.take();
        if frags == 0 {
            return None;
        }
        let cost = read_all(g, &self.reader, items.iter().flat_map(|i| i.runs.iter().copied())).cost() + PARTS;
        let window = |group: BlockAddr| {
            let end = (group + g.group_blocks()).min(g.total_blocks);
            g.frag_of_block(group)..g.frag_of_block(end)
        };
        Some(Detour { items, cost, memory: self.reader.memory(g).map(window).collect() })
    }
}

struct Planner<'a> {
    cx: MoveCtx<'a>,
    budget: u64,
    control: &'a dyn Control,
    progress: &'a mut Progress,
    way: Way,
    uncommitted: &'a mut Uncommitted,
}

impl Planner<'_> {
    /// Brings a detour into the room beside the way, if all of it has room there: what is not left altogether is gone to all the same.
    fn end(&mut self, detour: &Detour) -> Result<()> {
        self.control.check()?;
        let cx = self.cx;
        let shift = cx.file.cache.geometry().frag_shift;
        let bytes = detour.items.iter().map(Item::frags).sum::<u64>() << shift;
        let left = self.budget.saturating_sub(self.progress.bytes_moved);
        if bytes > left {
            return Ok(());
        }
        let Some(places) = files::allocate_all_in(&cx, &detour.items, &detour.memory)? else { return Ok(()) };
        let (frags, files) = files::relocate(&cx, &detour.items, places, self.control)?;
        let moved = frags << shift;
        self.progress.files_moved += files;
        self.progress.bytes_moved += moved;
        self.progress.bytes_kept += bytes - moved;
        self.progress.after[0] = self.progress.after[0].saturating_sub(detour.cost);
        self.control.report(self.progress);
        self.uncommitted.add(&cx, moved)
    }
}

impl Visitor for Planner<'_> {
    fn directory(&mut self, _ino: Ino) -> Result<bool> {
        self.control.check()?;
        Ok(true)
    }

    fn file(&mut self, ino: Ino, size: u64, extents: &[Extent]) -> Result<()> {
        if size > self.cx.file.placement.small_max() {
            return Ok(());
        }
        let g = *self.cx.file.cache.geometry();
        match self.way.read(&g, Item::file(ino, extents)) {
            Some(detour) => self.end(&detour),
            None => Ok(()),
        }
    }

    fn file_of_unit(&mut self, _unit: (Ino, Order), _ino: Ino, _size: u64, _extents: &[Extent]) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Run;
    use crate::mkfs::{MkfsOptions, mkfs};
    use cffs_device::MemoryDevice;

    /// A file of so many KiB in a group.
    fn file(g: &Geometry, ino: Ino, group: u64, kib: u64) -> Item {
        let start = g.frag_of_block(group * g.group_blocks());
        Item { ino, logical: 0..kib, runs: vec![Run { start, len: (kib << 10) >> g.frag_shift }], begins: false }
    }

    #[test]
    fn a_detour_ends_where_the_way_goes_on_and_a_long_one_is_the_way() {
        let options = MkfsOptions::default().group_size(256 << 10);
        let sb = mkfs(&MemoryDevice::new(64 << 20), None, &options).unwrap();
        let g = Geometry::new(&sb).unwrap();
        let mut way = Way::from(Reader::new(16));
        let mut read = |ino, group, kib| way.read(&g, file(&g, ino, group, kib));
        assert!(read(1, 10, 100).is_none() && read(2, 11, 100).is_none());
        assert!(read(3, 15, 100).is_none(), "four groups farther is the way");
        assert!(read(4, 40, 100).is_none() && read(5, 41, 100).is_none());
        let detour = read(6, 16, 100).expect("the way goes on");
        assert_eq!(detour.items.iter().map(|i| i.ino).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(detour.cost, PARTS + 1 + PARTS);
        let first = |n: u64| g.frag_of_block(n * g.group_blocks());
        let memory: Vec<FragAddr> = detour.memory.iter().map(|window| window.start).collect();
        assert_eq!(memory, [15, 11, 10].map(first), "the last one first");
        assert!(read(7, 10, 1).is_none(), "in memory, so it is no detour");
        assert!(read(8, 100, 1024).is_none() && read(9, 104, 1025).is_none(), "the way was left for good");
        assert!(read(10, 105, 100).is_none(), "so that is where it goes on");
        assert_eq!(read(11, 17, 100).map(|d| d.items.len()), None);
        assert_eq!(read(12, 106, 100).map(|d| d.items[0].ino), Some(11));
    }
}
