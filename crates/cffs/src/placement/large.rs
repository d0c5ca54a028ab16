//! Placement of large files, in whole blocks.
//!
//! Where the device is a stripe of several, what is as long as a stripe of it begins with one, and does not end within one unless the file does. So
//! whole stripes of the file are whole stripes of the device, and each device has as much to do.

use super::policy::Placement;
use crate::error::Result;
use crate::format::extent::EXTENT_LEN_MAX;
use crate::format::{FragAddr, Ino, Run};

/// The stream threshold: files of this many bytes and more take the longest free runs. Smaller ones are placed
/// best-fit, because many files of such a length would each find a gap that fits.
pub const STREAM_MIN: u64 = 8 << 20;
/// With more allocation groups in use, a long file takes what is near: to look at all of them would read too many bitmaps.
const SEARCHED_AGS_MAX: u64 = 64;

impl Placement {
    /// Whether the place of a long file is searched for in all allocation groups.
    pub(crate) fn searches_all(&self) -> bool {
        self.space.counters().ags <= SEARCHED_AGS_MAX
    }

    /// Allocates a part of a large file in whole blocks: behind `after` if that is free, else near the large files of
    /// the directory's allocation group.
    pub fn allocate_large(&self, dir: Ino, after: Option<FragAddr>, frags: u64) -> Result<Option<Run>> {
        Ok(self.counted(self.on_stripes(after, frags, |frags| self.find_large(dir, after, frags))?))
    }

    /// Allocates with `find`, which is asked for more than `frags` fragments, and gives back what does not belong to whole stripes.
    fn on_stripes(
        &self,
        after: Option<FragAddr>,
        frags: u64,
        find: impl FnOnce(u64) -> Result<Option<Run>>,
    ) -> Result<Option<Run>> {
        if self.stripe == 0 || frags < self.stripe {
            return find(frags);
        }
        let room = self.space.reservation(None, false);
        let more = if room.reserve(self.stripe, false).is_ok() { self.stripe } else { 0 };
        let Some(run) = find(frags + more)? else { return Ok(None) };
        let kept = self.whole_stripes(run, after, frags);
        for (start, end) in [(run.start, kept.start), (kept.end(), run.end())] {
            if start < end {
                self.space.cancel(Run { start, len: end - start });
            }
        }
        Ok(Some(kept))
    }

    /// The part of a run to keep for `frags` fragments: it goes on behind `after`, or begins with a stripe, and ends with one if it is shorter.
    fn whole_stripes(&self, run: Run, after: Option<FragAddr>, frags: u64) -> Run {
        let goes_on = after == Some(run.start);
        let start = if goes_on { run.start } else { run.start.next_multiple_of(self.stripe) };
        let end = run.end().min(start + frags);
        let end = if end < start + frags { end / self.stripe * self.stripe } else { end };
        // Where there is less than a stripe, as much as there is.
        if start < end { Run { start, len: end - start } } else { Run { len: run.len.min(frags), ..run } }
    }

    /// Allocates behind a part of a file, as far as that is free; on a stripe not for the rest of the space that is not a whole one.
    fn find_behind(&self, after: FragAddr, frags: u64) -> Result<Option<Run>> {
        let run = self.space.alloc_from(after, frags)?;
        if let Some(run) = run.filter(|run| run.len < self.stripe.min(frags)) {
            self.space.cancel(run);
            return Ok(None);
        }
        Ok(run)
    }

    fn find_large(&self, dir: Ino, after: Option<FragAddr>, frags: u64) -> Result<Option<Run>> {
        let fpb = self.geo.frags_per_block();
        let mut t = self.table.lock();
        let ag = self.geo.ag_of(self.goal(&t, dir));
        let middle = self.geo.frag_of_block(self.geo.ag_start(ag) + self.geo.ag_len(ag) / 2);
        let goal = after.or_else(|| t.large.get(&ag).copied()).unwrap_or(middle);
        let whole = (frags / fpb).min(EXTENT_LEN_MAX / fpb);
        if after.is_none()
            && let Some(run) = self.space.alloc_blocks_best_fit(self.geo.block_of_frag(goal), whole)?
        {
            return Ok(Some(run));
        }
        if frags << self.geo.frag_shift >= STREAM_MIN && self.searches_all() {
            // Bitmaps may have to be read for that.
            drop(t);
            let most = self.geo.ag_blocks.saturating_sub(self.geo.ag_header_blocks());
            let found = self.find_long(after, goal, whole.min(most))?;
            t = self.table.lock();
            if let Some(run) = found {
                t.large.insert(ag, run.end());
                return Ok(Some(run));
            }
        }
        let run = if whole > 0 {
            self.space.alloc_blocks_near(self.geo.block_of_frag(goal + fpb - 1), whole, 1)?
        } else {
            None
        };
        let run = match run {
            Some(run) => Some(run),
            None => self.space.alloc_near(goal, frags.min(fpb), 1)?,
        };
        if let Some(run) = run {
            t.large.insert(ag, run.end());
        }
        Ok(run)
    }

    /// For a long file, whose place is worth a look at all allocation groups: so many blocks in one run, or as many of them as the
    /// longest run has.
    fn find_long(&self, after: Option<FragAddr>, goal: FragAddr, blocks: u64) -> Result<Option<Run>> {
        let frags = self.geo.frag_of_block(blocks);
        if let Some(after) = after
            && let Some(run) = self.find_behind(after, frags)?
        {
            return Ok(Some(run));
        }
        if let Some(run) = self.space.alloc_blocks_whole(self.geo.block_of_frag(goal), blocks)? {
            return Ok(Some(run));
        }
        match self.space.run_for(frags)? {
            Some(free) => self.allocate_blocks_of(free, frags),
            None => Ok(None),
        }
    }

    /// Allocates a part of a large file that is written piece by piece, of which perhaps `ahead` more fragments will
    /// come.
    ///
    /// The part goes behind `after` as far as that is free. Otherwise, if the file is long ([`STREAM_MIN`]), it goes
    /// into the longest free runs, as many as it needs, in the order of the device. Otherwise it goes where `ahead`
    /// more fragments have room. That room is not allocated, but other searches begin behind it, so the next piece
    /// finds it while space lasts.
    pub fn allocate_stream(&self, dir: Ino, after: Option<FragAddr>, frags: u64, ahead: u64) -> Result<Option<Run>> {
        Ok(self.counted(self.on_stripes(after, frags, |frags| self.find_stream(dir, after, frags, ahead))?))
    }

    fn find_stream(&self, dir: Ino, after: Option<FragAddr>, frags: u64, ahead: u64) -> Result<Option<Run>> {
        if let Some(after) = after.filter(|a| a.is_multiple_of(self.geo.frags_per_block())) {
            if let Some(run) = self.find_behind(after, frags)? {
                return Ok(Some(run));
            }
            if let Some(run) = self.allocate_in_long_run(dir, after, frags, ahead)? {
                return Ok(Some(run));
            }
        }
        let room = self.space.reservation(None, false);
        let ahead = if room.reserve(ahead, false).is_ok() { ahead } else { 0 };
        let run = self.find_large(dir, after, frags + ahead)?;
        Ok(run.map(|run| {
            let len = run.len.min(frags);
            if run.len > len {
                self.space.cancel(Run { start: run.start + len, len: run.len - len });
            }
            Run { len, ..run }
        }))
    }

    /// For a long file: whole blocks in the next one of the longest free runs.
    fn allocate_in_long_run(&self, dir: Ino, after: FragAddr, frags: u64, ahead: u64) -> Result<Option<Run>> {
        let long = STREAM_MIN >> self.geo.frag_shift;
        let need = frags.max(long);
        if ahead >= long
            && let Some(least) = self.space.min_run_length(self.geo.block_of_frag(after), need, need)?
            && let Some(free) = self.space.next_free_run(after, least)?
            && let Some(run) = self.allocate_blocks_of(free, frags)?
        {
            let mut t = self.table.lock();
            let ag = self.geo.ag_of(self.goal(&t, dir));
            t.large.insert(ag, free.end().min(run.end() + ahead));
            return Ok(Some(run));
        }
        Ok(None)
    }

    /// The first whole blocks of a free run, at most `frags` fragments. `None` if somebody else has allocated them.
    fn allocate_blocks_of(&self, free: Run, frags: u64) -> Result<Option<Run>> {
        let fpb = self.geo.frags_per_block();
        let start = free.start.next_multiple_of(fpb);
        let len = free.end().saturating_sub(start).min(frags).min(EXTENT_LEN_MAX / fpb * fpb) / fpb * fpb;
        if len == 0 { Ok(None) } else { self.space.alloc_in(start..start + len, len) }
    }
}
