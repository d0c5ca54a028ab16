//! Free space that is scattered over the device is brought together in a few long runs.
//!
//! A tenth of the device is the aim, because the next large files find place there. A free run cannot be longer than an allocation
//! group without its header; an eighth of the device, 1 GiB at most. So the aim is met with as few runs as that takes, each in an
//! allocation group of its own: in the *window* with the least in use. What cannot be moved is found before anything is, and no
//! window has such a group.

use super::control::{Control, FreeRuns, Limits, Progress};
use super::evacuate::Gaps;
use super::walk::{Visitor, external, walk};
use super::{MoveCtx, evacuate, meta};
use crate::error::{Error, Result};
use crate::format::{BlockAddr, Extent, FragAddr, Geometry, Ino, ROOT_INO};
use std::collections::VecDeque;
use std::ops::Range;

/// One in so many parts of the device is to lie in the fewest runs.
const AIM_DIVISOR: u64 = 10;
/// Windows are longer than the aim by one in so many parts. Free space is in order while the aim is met, so a second run soon after
/// a first one moves nothing.
const SLACK_DIVISOR: u64 = 16;
/// The aim is met where windows for it have at most so much of the free space. The rest is for what goes out of them: where files go
/// into pieces, their extent trees need blocks of their own.
const FREE_PARTS: (u64, u64) = (3, 4);
/// Elsewhere windows have so much of it.
const SCARCE_PARTS: (u64, u64) = (2, 3);
/// With one in so many parts of that, where it does not suffice for whole groups or the budget, it is tried again.
const SHRINK: (u64, u64) = (3, 4);
/// More windows than the fewest possible are tried, at most so many times as many.
const WINDOWS_FACTOR: u64 = 8;
/// Free space is scarce where it is at most one in so many parts of the device.
const SCARCE_DIVISOR: u64 = 4;
/// It lies together while one in so many parts of the aim does: programs have used some of it.
const TOGETHER_DIVISOR: u64 = 3;
/// Walks through the tree until nothing is left in the windows: what changes while it is being moved stays until the next one.
const PASSES_MAX: usize = 3;

/// Brings free space together: a tenth of the device in the fewest runs possible.
///
/// # Errors
/// Those of the device and the journal, and what [`Control::check`] returns.
pub fn run(cx: &MoveCtx<'_>, limits: Limits, gaps: Gaps, control: &dyn Control, progress: &mut Progress) -> Result<()> {
    cx.file.journal.commit()?;
    let before = free_runs(cx)?;
    progress.free_runs = Some([before; 2]);
    control.report(progress);
    let budget = limits.budget.saturating_sub(progress.bytes_moved);
    let Some(chosen) = choose(cx, limits, budget, control, progress)? else { return Ok(()) };
    let used = chosen.iter().map(|w| w.used).sum::<u64>() << cx.file.cache.geometry().frag_shift;
    if limits.dry_run {
        progress.bytes_moved += used;
        let after = expected(cx, &chosen, before);
        progress.free_runs = Some([before, after]);
        control.report(progress);
        return Ok(());
    }
    let parts: Vec<Range<FragAddr>> = chosen.iter().map(|w| w.part.clone()).collect();
    for _ in 0..PASSES_MAX {
        let moved = progress.bytes_moved;
        let outcome = evacuate::run(cx, &parts, limits.budget, gaps, control, progress);
        progress.free_runs = Some([before, free_runs(cx)?]);
        control.report(progress);
        outcome?;
        if progress.bytes_moved == moved || used_in(cx, &parts)? == 0 {
            break;
        }
    }
    Ok(())
}

/// A part of an allocation group that is to be emptied.
#[derive(Clone, Debug)]
struct Window {
    part: Range<FragAddr>,
    /// Fragments in use.
    used: u64,
}

fn aim(g: &Geometry) -> u64 {
    g.total_frags() / AIM_DIVISOR
}

fn free_runs(cx: &MoveCtx<'_>) -> Result<FreeRuns> {
    let aim = aim(cx.file.cache.geometry());
    let runs = cx.file.space.longest_runs(aim)?;
    let enough = runs.iter().sum::<u64>() >= aim;
    Ok(FreeRuns { longest: runs.first().copied().unwrap_or(0), for_tenth: if enough { runs.len() as u64 } else { 0 } })
}

/// How free space lies when the windows are empty.
fn expected(cx: &MoveCtx<'_>, windows: &[Window], before: FreeRuns) -> FreeRuns {
    let len = |w: &Window| w.part.end - w.part.start;
    let enough = windows.iter().map(len).sum::<u64>() >= aim(cx.file.cache.geometry());
    FreeRuns {
        longest: windows.iter().map(len).max().unwrap_or(0).max(before.longest),
        for_tenth: if enough { windows.len() as u64 } else { before.for_tenth },
    }
}

/// Whether at most a quarter is free, and a part of the aim lies in as few runs as all of it would. What moves into these would
/// leave others without.
pub fn is_scarce_and_together(cx: &MoveCtx<'_>) -> Result<bool> {
    let (space, g) = (cx.file.space, *cx.file.cache.geometry());
    let usable = usable(cx);
    if usable > g.total_frags() / SCARCE_DIVISOR {
        return Ok(false);
    }
    let (goal, longest) = (goal(&g, usable, false), longest_window(&g).max(1));
    let part = goal / TOGETHER_DIVISOR;
    let runs = space.longest_runs(part)?;
    Ok(runs.iter().sum::<u64>() >= part && runs.len() as u64 <= goal.div_ceil(longest))
}

/// Fragments that are free for everybody.
pub fn usable(cx: &MoveCtx<'_>) -> u64 {
    let (free, reserved) = cx.file.space.free_and_reserved();
    free.saturating_sub(reserved)
}

/// Fragments that are to come together. Always: as much as has a place elsewhere, so that something moves.
fn goal(g: &Geometry, usable: u64, always: bool) -> u64 {
    let wanted = aim(g) + aim(g) / SLACK_DIVISOR;
    let fits = wanted <= usable * FREE_PARTS.0 / FREE_PARTS.1 && !always;
    if fits { wanted } else { (usable * SCARCE_PARTS.0 / SCARCE_PARTS.1).min(wanted) }
}

/// The longest free run that there can be, in fragments.
fn longest_window(g: &Geometry) -> u64 {
    g.frag_of_block((0..g.ag_count).map(|ag| groups_of(g, ag)).map(|r| r.end - r.start).max().unwrap_or(0))
}

/// Fragments in use in parts of the device.
fn used_in(cx: &MoveCtx<'_>, parts: &[Range<FragAddr>]) -> Result<u64> {
    let g = *cx.file.cache.geometry();
    let mut used = 0;
    for part in parts {
        for group in groups(&g, &(g.block_of_frag(part.start)..g.block_of_frag(part.end))) {
            used += match cx.file.space.free_in_group(group) {
                Ok(free) => g.group_frags() - free,
                // Never used, or damaged: nothing is moved out of it.
                Err(Error::Corrupt(_)) => 0,
                Err(e) => return Err(e),
            };
        }
    }
    Ok(used)
}

fn groups(g: &Geometry, blocks: &Range<BlockAddr>) -> impl Iterator<Item = BlockAddr> + use<> {
    (blocks.start..blocks.end).step_by(g.group_blocks() as usize)
}

/// The whole groups of an allocation group that may be free.
fn groups_of(g: &Geometry, ag: u64) -> Range<BlockAddr> {
    let fixed = if ag == 0 { g.fixed_blocks_of_ag0() } else { g.ag_start(ag) + g.ag_header_blocks() };
    let first = fixed.next_multiple_of(g.group_blocks());
    let end = g.group_of(g.ag_start(ag) + g.ag_len(ag));
    first..end.max(first)
}

/// The windows to empty. `None` if free space is in order, or nothing can be done.
fn choose(
    cx: &MoveCtx<'_>,
    limits: Limits,
    budget: u64,
    control: &dyn Control,
    progress: &mut Progress,
) -> Result<Option<Vec<Window>>> {
    let (space, g) = (cx.file.space, *cx.file.cache.geometry());
    let usable = usable(cx);
    let mut survey: Option<Survey> = None;
    let mut goal = goal(&g, usable, limits.always);
    let longest = longest_window(&g);
    while goal >= g.group_frags() && longest > 0 {
        let enough = goal - goal / (SLACK_DIVISOR + 1);
        let now = space.longest_runs(enough)?;
        let now = if now.iter().sum::<u64>() >= enough { now.len() as u64 } else { u64::MAX };
        let fewest = goal.div_ceil(longest);
        for windows in (fewest..=fewest * WINDOWS_FACTOR).step_by((fewest / WINDOWS_FACTOR).max(1) as usize) {
            if now <= windows && !limits.always {
                return Ok(None);
            }
            if survey.is_none() {
                survey = Some(Survey::of(cx, control, progress)?);
            }
            let survey = survey.get_or_insert_default();
            let len = goal.div_ceil(windows).div_ceil(g.group_frags());
            let Some(found) = survey.windows(cx, len, windows as usize, limits.always)? else { continue };
            let used = found.iter().map(|w| w.used).sum::<u64>();
            // What goes out of the windows needs as much space elsewhere.
            if used << g.frag_shift <= budget && windows * len * g.group_frags() <= usable {
                return Ok(Some(found));
            }
            break;
        }
        goal = goal * SHRINK.0 / SHRINK.1;
    }
    Ok(None)
}

/// What can be moved, in fragments of each group.
#[derive(Default)]
struct Survey {
    movable: Vec<u32>,
}

impl Survey {
    fn of(cx: &MoveCtx<'_>, control: &dyn Control, progress: &mut Progress) -> Result<Survey> {
        let g = *cx.file.cache.geometry();
        let groups = g.total_blocks.div_ceil(g.group_blocks()) as usize;
        let survey = Survey { movable: vec![0; groups] };
        let mut surveyor = Surveyor { cx: *cx, g, survey, control, progress, seen: (0, 0) };
        walk(cx, ROOT_INO, &mut surveyor)?;
        external(cx, &mut surveyor)?;
        let survey = &mut surveyor.survey;
        meta::of_tables(cx, &mut |_, at| at.iter().for_each(|b| survey.note_block(&g, *b)))?;
        let mut survey = surveyor.survey;
        survey.movable.shrink_to_fit();
        Ok(survey)
    }

    fn note(&mut self, g: &Geometry, mut at: FragAddr, end: FragAddr) {
        while at < end {
            let group = at / g.group_frags();
            let next = ((group + 1) * g.group_frags()).min(end);
            if let Some(n) = self.movable.get_mut(group as usize) {
                *n = n.saturating_add((next - at) as u32);
            }
            at = next;
        }
    }

    fn note_block(&mut self, g: &Geometry, block: BlockAddr) {
        let start = g.frag_of_block(block);
        self.note(g, start, start + g.frags_per_block());
    }

    /// Windows of so many groups, in as many allocation groups, with the least in use and nothing that cannot be moved. `None` if
    /// there are fewer. Or with the most in use, so that everything moves.
    fn windows(&self, cx: &MoveCtx<'_>, len: u64, count: usize, fullest: bool) -> Result<Option<Vec<Window>>> {
        let g = *cx.file.cache.geometry();
        let mut best: Vec<Window> = Vec::new();
        for ag in 0..g.ag_count {
            let mut of_ag: Option<Window> = None;
            // Used fragments of the last groups, as many as a window has, as far as they can be emptied; and their sum.
            let mut used: VecDeque<u64> = VecDeque::new();
            let mut sum = 0;
            for group in groups(&g, &groups_of(&g, ag)) {
                let Some(n) = self.used(cx, group)? else {
                    used.clear();
                    sum = 0;
                    continue;
                };
                used.push_back(n);
                sum += n;
                if used.len() as u64 > len {
                    sum -= used.pop_front().unwrap_or(0);
                }
                if (used.len() as u64) < len {
                    continue;
                }
                let end = g.frag_of_block(group + g.group_blocks());
                if of_ag.as_ref().is_none_or(|w| if fullest { sum > w.used } else { sum < w.used }) {
                    of_ag = Some(Window { part: end - len * g.group_frags()..end, used: sum });
                }
            }
            best.extend(of_ag);
        }
        best.sort_by_key(|w| if fullest { u64::MAX - w.used } else { w.used });
        best.truncate(count);
        Ok((best.len() == count).then_some(best))
    }

    /// Fragments of a group in use. `None` if some of them cannot be moved.
    fn used(&self, cx: &MoveCtx<'_>, group: BlockAddr) -> Result<Option<u64>> {
        let (space, g) = (cx.file.space, cx.file.cache.geometry());
        if g.ag_of(group) >= space.counters().ags {
            return Ok(Some(0));
        }
        let free = match space.free_in_group(group) {
            Ok(free) => free,
            // Damaged allocation groups are not used.
            Err(Error::Corrupt(_)) => return Ok(None),
            Err(e) => return Err(e),
        };
        let used = g.group_frags().saturating_sub(free);
        let movable = self.movable.get((group / g.group_blocks()) as usize).copied().unwrap_or(0);
        Ok((used <= u64::from(movable)).then_some(used))
    }
}

struct Surveyor<'a> {
    cx: MoveCtx<'a>,
    g: Geometry,
    survey: Survey,
    control: &'a dyn Control,
    progress: &'a mut Progress,
    /// Directories and files of this walk.
    seen: (u64, u64),
}

impl Visitor for Surveyor<'_> {
    fn directory(&mut self, _ino: Ino) -> Result<bool> {
        self.control.check()?;
        self.seen.0 += 1;
        self.progress.directories = self.progress.directories.max(self.seen.0);
        Ok(true)
    }

    fn wants(&self) -> [bool; 2] {
        [true, true]
    }

    fn wants_inodes(&self) -> bool {
        true
    }

    fn block(&mut self, _dir: Ino, _lblock: u64, addr: BlockAddr) -> Result<()> {
        self.survey.note_block(&self.g, addr);
        Ok(())
    }

    fn file(&mut self, _ino: Ino, _size: u64, extents: &[Extent]) -> Result<()> {
        self.seen.1 += 1;
        self.progress.files = self.progress.files.max(self.seen.1);
        extents.iter().for_each(|e| self.survey.note(&self.g, e.start, e.start + e.len));
        Ok(())
    }

    fn inode(&mut self, ino: Ino) -> Result<()> {
        let (survey, g) = (&mut self.survey, self.g);
        let found = meta::of_inode(&self.cx, ino, &mut |_, at| at.iter().for_each(|b| survey.note_block(&g, *b)));
        match found {
            // Gone, or damaged: what it has cannot be moved.
            Err(Error::Stale | Error::Corrupt(_) | Error::Io(_)) => Ok(()),
            found => found,
        }
    }
}
