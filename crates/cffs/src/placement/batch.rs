//! Batch allocation: the small files of one writeback go through the long free runs, in the order of the device.

use crate::error::Result;
use crate::format::{BlockAddr, FragAddr, LiveGeometry, Run};
use crate::space::Space;
use std::collections::VecDeque;

/// Free runs of this many groups are long: a transfer is no longer.
pub(super) const LONG_RUN_GROUPS: u64 = 4;
/// New files that are written together go into runs of this many groups if there are some: what lies between long runs then costs
/// less than a fiftieth of the transfer.
pub(super) const BEST_RUN_GROUPS: u64 = 32;
/// A seek costs as much as transferring this part of a group. At the knee of the service time curve a distant request
/// costs a whole group, but a writeback crosses the device in order. A read also takes along gaps of this length.
const SEEK_DIVISOR: u64 = 2;
/// Where room is left, one in so many parts of so many groups is: one piece for several groups takes in larger files than a piece in each.
const ROOM_GROUPS: u64 = 4;
pub(super) const ROOM_DIVISOR: u64 = 8;
/// The rest of a group is left out for a unit that would lie in two, if it is at most one in so many parts of the group.
const REST_DIVISOR: u64 = 4;
/// Free runs that are tried for one file.
const RUN_TRIES: usize = 16;

/// The writeback under way, as far as it concerns placement.
#[derive(Default)]
pub(super) struct Batch {
    /// One is under way: files that are placed outside of one have nothing in common.
    pub announced: bool,
    /// The group of its last small file.
    pub last_group: Option<BlockAddr>,
    /// Fragments that it still has to allocate in long free runs.
    pub frags: u64,
    /// Where its next file goes.
    pub cursor: Option<BatchCursor>,
}

/// The position of a batch in free space.
pub struct BatchCursor {
    /// The next free runs, as far as they are not allocated yet.
    runs: VecDeque<Run>,
    /// The batch continues with free runs from this address on that have at least this many fragments. `None` if all
    /// runs were chosen in advance.
    then: Option<(FragAddr, u64)>,
    /// Of so many fragments, so many are filled; see [`BatchCursor::leaving_room`].
    fill: Option<(u64, u64)>,
}

impl BatchCursor {
    /// Plans a batch of `frags` fragments near a block: through the long free runs in their order or, where there are
    /// none, through the runs that cost least. Runs of `long` groups are as good as longer ones.
    pub fn plan(
        space: &Space,
        geo: &LiveGeometry,
        near: BlockAddr,
        frags: u64,
        long: u64,
    ) -> Result<Option<BatchCursor>> {
        let group = geo.frag_of_block(geo.group_blocks());
        let enough = long * group;
        let Some(least) = space.min_run_length(near, frags, enough)? else { return Ok(None) };
        if least >= (LONG_RUN_GROUPS * group).min(frags) {
            let then = Some((geo.frag_of_block(near), least));
            return Ok(Some(BatchCursor { runs: VecDeque::new(), then, fill: None }));
        }
        let runs = space.cheapest_runs(near, frags, group / SEEK_DIVISOR)?.into();
        Ok(BatchCursor { runs, then: None, fill: None }.unless_finished())
    }

    /// Plans places in free runs of at least `least` fragments, from a block on. A run that begins right there is good too if
    /// it has all `frags`: who reads on finds them without a seek. `None` if there is no such run.
    pub fn plan_in_long_runs(
        space: &Space,
        geo: &LiveGeometry,
        near: BlockAddr,
        frags: u64,
        least: u64,
    ) -> Result<Option<BatchCursor>> {
        let (from, group) = (geo.frag_of_block(near), geo.frag_of_block(geo.group_blocks()));
        let next = space.next_free_run(from, frags)?.filter(|run| (from..from + 2 * group).contains(&run.start));
        if let Some(next) = next {
            return Ok(Some(BatchCursor::from_run(next, least)));
        }
        let long = space.next_free_run(from, least)?;
        Ok(long.map(|long| BatchCursor::from_run(long, least)))
    }

    fn from_run(run: Run, least: u64) -> BatchCursor {
        BatchCursor { runs: VecDeque::from([run]), then: Some((run.end(), least)), fill: None }
    }

    /// Leaves a part of every few groups free, in one piece: for what will be written among these files.
    pub fn leaving_room(self, geo: &LiveGeometry) -> BatchCursor {
        let few = geo.frag_of_block(ROOM_GROUPS * geo.group_blocks());
        BatchCursor { fill: Some((few, few - few / ROOM_DIVISOR)), ..self }
    }

    /// Whether what comes next is to stay free before so many fragments. Then it is left out.
    fn skip_room(&mut self, frags: u64) -> bool {
        let (Some((few, fill)), Some(run)) = (self.fill, self.runs.front_mut()) else { return false };
        if frags > fill || run.start % few + frags <= fill {
            return false;
        }
        let next = (run.start / few + 1) * few;
        match run.end().checked_sub(next) {
            Some(len) if len > 0 => *run = Run { start: next, len },
            _ => drop(self.runs.pop_front()),
        }
        true
    }

    /// Whether what comes next is left out, because a unit of so many fragments would lie in two groups, or begin in a run that it does not fit
    /// into. It is, if it is short, and the unit is no longer than a group.
    fn skip_rest(&mut self, group: u64, unit: u64) -> bool {
        let more = self.runs.len() > 1 || self.then.is_some();
        let Some(run) = self.runs.front_mut() else { return false };
        let to_fill = self.fill.map_or(u64::MAX, |(few, fill)| fill.saturating_sub(run.start % few));
        let rest = (group - run.start % group).min(to_fill);
        if unit > group || unit <= rest.min(run.len) || rest.min(run.len) > group / REST_DIVISOR {
            return false;
        }
        if run.len > rest {
            *run = Run { start: run.start + rest, len: run.len - rest };
            return rest > 0;
        }
        if more {
            self.runs.pop_front();
        }
        more
    }

    /// Allocates a run for the next file. Returns the cursor too, unless the batch has to be planned anew.
    pub fn allocate(self, space: &Space, frags: u64) -> Result<(Option<BatchCursor>, Option<Run>)> {
        self.allocate_in_unit(space, frags, None)
    }

    /// The same for a file with which a unit begins: `unit` has the fragments of a group, and those of the unit.
    pub fn allocate_in_unit(
        mut self,
        space: &Space,
        frags: u64,
        unit: Option<(u64, u64)>,
    ) -> Result<(Option<BatchCursor>, Option<Run>)> {
        for _ in 0..2 * RUN_TRIES {
            if let Some((from, least)) = self.then
                && self.runs.front().is_none_or(|run| run.len < frags)
            {
                let Some(next) = space.next_free_run(from, least.max(frags))? else { return Ok((None, None)) };
                self = BatchCursor { fill: self.fill, ..BatchCursor::from_run(next, least) };
            }
            // The runs are used in order, because files that follow each other in a directory are to do so on the
            // device.
            let tried = self.runs.len().min(RUN_TRIES);
            let Some(at) = self.runs.iter().take(tried).position(|run| frags <= run.len) else {
                self.runs.drain(..tried);
                return Ok((self.unless_finished(), None));
            };
            self.runs.drain(..at);
            if self.skip_room(frags) || unit.is_some_and(|(group, unit)| self.skip_rest(group, unit)) {
                continue;
            }
            let free = self.runs[0];
            let run = match space.alloc_small_in(free.start..free.end(), frags)? {
                // Most of the units of a run are written as a whole.
                None => space.alloc_in(free.start..free.end(), frags)?,
                run => run,
            };
            if let Some(run) = run {
                self.runs[0] = Run { start: run.end(), len: free.end() - run.end() };
                if self.runs[0].len == 0 {
                    self.runs.pop_front();
                }
                return Ok((self.unless_finished(), Some(run)));
            }
            // Somebody else has allocated this run.
            self.runs.pop_front();
        }
        Ok((None, None))
    }

    fn unless_finished(self) -> Option<BatchCursor> {
        (!self.runs.is_empty() || self.then.is_some()).then_some(self)
    }
}
