//! Reads what lives in a segment and verifies it.

use crate::batch::{Entry, Logical, Payload, Summary};
use crate::catalog::MAIN_BRANCH;
use crate::evacuate::place_of;
use crate::extent::{BLOCK_BYTES, Birth, Codec, Extent};
use crate::layouts::SegmentInfo;
use crate::read::fetch_stored;
use crate::scan::summaries;
use crate::state::State;
use crate::store::{SegmentId, SegmentStore};
use std::io;
use std::ops::Bound;

/// Most lines of a report for each segment.
const PROBLEMS_MAX: usize = 64;

/// What a step of scrubbing found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// The segment to go on with; `None` at the end.
    pub next: Option<SegmentId>,
    /// Bytes that were read and verified.
    pub bytes: u64,
    /// What is wrong, one line for each extent or node.
    pub problems: Vec<String>,
    /// Segments with a damaged summary, one line for each: files can be read, but the cleaner leaves them.
    pub summaries: Vec<String>,
    /// Ranges of the main branch whose data cannot be read or verified: offset and length in bytes.
    pub damaged: Vec<(u64, u64)>,
}

/// What is wrong in a segment.
#[derive(Default)]
pub(crate) struct Problems {
    lines: Vec<String>,
    summary: Option<String>,
    damaged: Vec<(u64, u64)>,
}

impl Problems {
    /// Whether the cleaner must leave the segment.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.summary.is_none()
    }

    /// The first of them.
    pub(crate) fn first(self) -> Option<String> {
        self.lines.into_iter().next().or(self.summary)
    }

    fn add(&mut self, line: String) {
        if self.lines.len() < PROBLEMS_MAX {
            self.lines.push(line);
        }
    }

    fn extent(&mut self, at: Logical, blocks: u32, error: &io::Error) {
        self.add(format!("branch {}, {blocks} blocks from {} on: {error}", at.branch, at.block));
        if at.branch == MAIN_BRANCH && self.damaged.len() < PROBLEMS_MAX {
            let block = BLOCK_BYTES as u64;
            self.damaged.push((at.block.saturating_mul(block), u64::from(blocks) * block));
        }
    }
}

impl ScrubReport {
    /// Takes in what is wrong in a segment.
    pub(crate) fn add(&mut self, found: Problems) {
        self.problems.extend(found.lines);
        self.summaries.extend(found.summary);
        self.damaged.extend(found.damaged);
    }
}

/// A segment that is to be verified.
pub(crate) struct Plan {
    id: SegmentId,
    info: SegmentInfo,
    uuid: [u8; 16],
}

impl State {
    /// The first segment from one on that has something alive, and where to go on behind it.
    pub(crate) fn scrub_next(&self, from: SegmentId) -> Option<(SegmentId, Option<SegmentId>)> {
        let (&id, _) = self.usage.table.range(from..).find(|(_, info)| info.live > 0)?;
        let after = self.usage.table.range((Bound::Excluded(id), Bound::Unbounded)).next();
        Some((id, after.map(|(id, _)| *id)))
    }

    pub(crate) fn scrub_plan(&self, id: SegmentId) -> Plan {
        Plan { id, info: self.usage.table.get(&id).copied().unwrap_or_default(), uuid: self.log.uuid }
    }

    /// Which blocks of a segment are dead, by ordinal, with those whose bit is not set yet.
    pub(crate) fn dead_now(&self, id: SegmentId) -> io::Result<Vec<bool>> {
        let mut dead = self.usage.dead_blocks(&*self.store, &self.cache, id)?;
        for (at, blocks) in self.usage.newly_dead.iter().filter(|(at, _)| at.segment == id) {
            let first = (at.ordinal as usize).min(dead.len());
            let end = (at.ordinal as usize).saturating_add(*blocks as usize).min(dead.len());
            dead[first..end].fill(true);
        }
        Ok(dead)
    }
}

impl Plan {
    /// What is wrong with what lives.
    pub(crate) fn verify(&self, store: &dyn SegmentStore, dead: &[bool], bytes: &mut u64) -> Problems {
        let mut problems = Problems::default();
        for summary in summaries(store, self.uuid, self.id, &self.info) {
            match summary {
                Ok(s) => verify_batch(store, &s, dead, bytes, &mut problems),
                Err(e) => problems.summary = Some(format!("segment {:#x}: the summary of a batch: {e}", self.id)),
            }
        }
        problems
    }
}

fn verify_batch(store: &dyn SegmentStore, s: &Summary, dead: &[bool], bytes: &mut u64, problems: &mut Problems) {
    let is_dead = |ordinal: u32| dead.get(ordinal as usize).copied().unwrap_or(true);
    for (entry, ordinal, offset) in s.placed() {
        let of_blocks = match entry {
            Entry::Write { at, data, .. } | Entry::Remap { at, data, .. } | Entry::Forward { at, data, .. } => {
                Some((at, data))
            }
            _ => None,
        };
        if let Some((at, data)) = of_blocks {
            verify_extent(store, s, (at, data, ordinal, offset), &is_dead, bytes, problems);
        } else if entry.ordinals() > 0 && !is_dead(ordinal) {
            let mut stored = vec![0; entry.stored() as usize];
            *bytes += stored.len() as u64;
            let read = store.get(s.segment, u64::from(offset), &mut stored);
            if read.is_err() || !entry.verify(&stored) {
                problems.add(format!(
                    "a node or checkpoint in segment {:#x} at {offset} cannot be read or verified",
                    s.segment
                ));
            }
        }
    }
}

fn verify_extent(
    store: &dyn SegmentStore,
    s: &Summary,
    (at, data, ordinal, offset): (&Logical, &Payload, u32, u32),
    is_dead: &dyn Fn(u32) -> bool,
    bytes: &mut u64,
    problems: &mut Problems,
) {
    let place = place_of(data, Birth { segment: s.segment, ordinal }, offset);
    let whole = Extent { blocks: data.blocks, version: 0, place };
    let mut i = 0;
    while i < data.blocks {
        let end = (i..data.blocks).find(|&j| is_dead(ordinal + j) != is_dead(ordinal + i)).unwrap_or(data.blocks);
        if !is_dead(ordinal + i) {
            let part = whole.part(i, end - i);
            *bytes += u64::from(part.place.stored);
            if let Err(e) = fetch_stored(store, &part) {
                let block = at.block.saturating_add(u64::from(i));
                problems.extent(Logical { branch: at.branch, block }, part.blocks, &e);
            }
            if data.codec != Codec::Plain {
                return; // the unit is read as a whole
            }
        }
        i = end;
    }
}
