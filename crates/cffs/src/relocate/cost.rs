//! What reading a sequence of places costs, in requests.

use crate::format::{BlockAddr, Geometry, Run};
use cffs_device::Device;
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Parts of a request in which costs are counted.
pub const PARTS: u64 = 4;

/// Counts what a reader pays who reads runs one after the other. A group is read as a whole, and stays in memory for a while; the
/// group behind the last one costs a part of a request, because a walk in order reads several with one. On a device that keeps what it stores
/// in its own order, as a log disk does, only the part of a group comes that lies together there, for who asks for that.
#[derive(Clone)]
pub(super) struct Reader {
    /// Who says what lies together, if that is asked for.
    device: Option<Arc<dyn Device>>,
    /// First blocks of the groups in memory, or of their parts: to look one up, because a stretch may lie in thousands, and in the order in
    /// which they were read.
    memory: HashSet<BlockAddr>,
    order: VecDeque<BlockAddr>,
    /// Most of them. `None`: those of the stretch.
    most: Option<usize>,
    /// Where the arm is.
    last: Option<BlockAddr>,
    cost: u64,
}

impl Reader {
    /// A reader who has read nothing, with memory for so many groups.
    pub fn new(most: usize) -> Reader {
        Reader { most: Some(most.max(1)), ..Reader::of_stretches() }
    }

    /// A reader who has read nothing, and forgets each stretch with its end.
    pub fn of_stretches() -> Reader {
        Reader { device: None, memory: HashSet::new(), order: VecDeque::new(), most: None, last: None, cost: 0 }
    }

    /// The same of what lies together on a device.
    pub fn of_parts(device: &Arc<dyn Device>) -> Reader {
        Reader { device: Some(device.clone()), ..Reader::of_stretches() }
    }

    /// The same reader at the beginning of the next stretch, for which nothing is paid yet.
    pub fn going_on(&self) -> Reader {
        match self.most {
            Some(_) => Reader { cost: 0, ..self.clone() },
            None => Reader { last: self.last, device: self.device.clone(), ..Reader::of_stretches() },
        }
    }

    /// Forgets what was read: who reads what comes now has read nothing before it.
    pub fn begin_anew(&mut self) {
        self.memory.clear();
        self.order.clear();
        self.last = None;
    }

    /// Reads the next run.
    pub fn read(&mut self, g: &Geometry, run: Run) {
        for group in groups_of(g, run) {
            let window = group..group + g.group_blocks();
            let mut at = g.block_of_frag(run.start).max(group);
            let end = (g.block_of_frag(run.end() - 1) + 1).min(window.end);
            while at < end {
                let part = self.together(g, at, window.clone());
                self.read_part(g, part.start);
                at = part.end;
            }
        }
    }

    /// Reads what lies together with the first block of a group, or of a part of one.
    fn read_part(&mut self, g: &Geometry, first: BlockAddr) {
        if !self.memory.insert(first) {
            // The arm stays where it is. Within a stretch alone that is no matter, and what is read in order is to be in order.
            if self.most.is_none() {
                self.last = Some(first);
            }
            return;
        }
        let next = self.last.is_some_and(|last| self.goes_on(g, last, first));
        self.cost += if next { 1 } else { PARTS };
        self.last = Some(first);
        self.order.push_back(first);
        if self.most.is_some_and(|most| self.order.len() > most)
            && let Some(first) = self.order.pop_front()
        {
            self.memory.remove(&first);
        }
    }

    /// Whether what begins with one block follows what begins with another.
    fn goes_on(&self, g: &Geometry, last: BlockAddr, first: BlockAddr) -> bool {
        let before = g.group_of(last);
        last == first
            || before + g.group_blocks() == first
                && self.together(g, first, before..first + g.group_blocks()).start <= last
    }

    /// The blocks around one, of these, that the device reads together with it.
    fn together(&self, g: &Geometry, block: BlockAddr, of: Range<BlockAddr>) -> Range<BlockAddr> {
        let Some(device) = &self.device else { return of };
        let shift = g.block_shift;
        let here = device.together(block << shift, of.start << shift..of.end << shift);
        // A block that is there in part is not.
        let (start, end) = (here.start.div_ceil(1 << shift), here.end >> shift);
        start.clamp(of.start, block)..end.min(of.end).max(block + 1)
    }

    /// Whether a group is in memory, or the first part of it.
    pub fn has(&self, group: BlockAddr) -> bool {
        self.memory.contains(&group)
    }

    /// What it has paid, in quarters of a request.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The last group.
    pub fn last(&self, g: &Geometry) -> Option<BlockAddr> {
        self.last.map(|last| g.group_of(last))
    }

    /// The groups in memory, the one that was read last first.
    pub fn memory(&self, g: &Geometry) -> impl Iterator<Item = BlockAddr> {
        self.order.iter().rev().map(|first| g.group_of(*first))
    }
}

/// The groups that a run lies in.
pub(super) fn groups_of(g: &Geometry, run: Run) -> impl Iterator<Item = BlockAddr> + use<> {
    let groups = (run.len > 0).then(|| {
        let (first, end) = (g.block_of_frag(run.start), g.block_of_frag(run.end() - 1));
        (g.group_of(first)..=end).step_by(g.group_blocks() as usize)
    });
    groups.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::{MkfsOptions, mkfs};
    use cffs_device::MemoryDevice;

    /// What a reader pays for each of these groups, each a stretch.
    fn costs<const N: usize>(mut reader: Reader, groups: [u64; N]) -> [u64; N] {
        let sb = mkfs(&MemoryDevice::new(32 << 20), None, &MkfsOptions::default()).unwrap();
        let g = Geometry::new(&sb).unwrap();
        groups.map(|n| {
            reader = reader.going_on();
            reader.read(&g, Run { start: g.frag_of_block(n * g.group_blocks()), len: 1 });
            reader.cost()
        })
    }

    #[test]
    fn what_is_in_memory_costs_nothing_and_leaves_the_arm_where_it_is() {
        assert_eq!(costs(Reader::new(8), [7, 8, 9, 3, 8, 4, 9, 5]), [4, 1, 1, 4, 0, 1, 0, 1]);
        assert_eq!(
            costs(Reader::new(2), [7, 8, 3, 8, 7, 8]),
            [4, 1, 4, 0, 4, 1],
            "what was read first is forgotten first"
        );
        assert_eq!(costs(Reader::new(0), [7, 7, 8]), [4, 0, 1]);
    }

    #[test]
    fn who_forgets_each_stretch_pays_for_what_was_read_before_it() {
        assert_eq!(costs(Reader::of_stretches(), [7, 8, 3, 8, 9, 9]), [4, 1, 4, 4, 1, 1]);
    }
}
