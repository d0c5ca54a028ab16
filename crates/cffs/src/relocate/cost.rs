//! What reading a sequence of places costs, in requests.

use crate::format::{BlockAddr, Geometry, Run};
use std::collections::{HashSet, VecDeque};

/// Parts of a request in which costs are counted.
pub const PARTS: u64 = 4;

/// Counts what a reader pays who reads runs one after the other. A group is read as a whole, and stays in memory for a while; the
/// group behind the last one costs a part of a request, because a walk in order reads several with one.
#[derive(Clone)]
pub(super) struct Reader {
    /// Groups in memory: to look one up, because a stretch may lie in thousands, and in the order in which they were read.
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
        Reader { memory: HashSet::new(), order: VecDeque::new(), most: Some(most.max(1)), last: None, cost: 0 }
    }

    /// A reader who has read nothing, and forgets each stretch with its end.
    pub fn of_stretches() -> Reader {
        Reader { most: None, ..Reader::new(1) }
    }

    /// The same reader at the beginning of the next stretch, for which nothing is paid yet.
    pub fn going_on(&self) -> Reader {
        match self.most {
            Some(_) => Reader { cost: 0, ..self.clone() },
            None => Reader { last: self.last, ..Reader::of_stretches() },
        }
    }

    /// Reads the next run.
    pub fn read(&mut self, g: &Geometry, run: Run) {
        for group in groups_of(g, run) {
            if !self.memory.insert(group) {
                // The arm stays where it is. Within a stretch alone that is no matter, and what is read in order is to be in order.
                if self.most.is_none() {
                    self.last = Some(group);
                }
                continue;
            }
            let next = self.last.is_some_and(|last| last == group || last + g.group_blocks() == group);
            self.cost += if next { 1 } else { PARTS };
            self.last = Some(group);
            self.order.push_back(group);
            if self.most.is_some_and(|most| self.order.len() > most)
                && let Some(first) = self.order.pop_front()
            {
                self.memory.remove(&first);
            }
        }
    }

    /// Whether a group is in memory.
    pub fn has(&self, group: BlockAddr) -> bool {
        self.memory.contains(&group)
    }

    /// What it has paid, in quarters of a request.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The last group.
    pub fn last(&self) -> Option<BlockAddr> {
        self.last
    }

    /// The groups in memory, the one that was read last first.
    pub fn memory(&self) -> impl Iterator<Item = BlockAddr> + '_ {
        self.order.iter().rev().copied()
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
