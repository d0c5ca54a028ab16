//! Reads what lives in a segment and verifies it.

use crate::batch::{Entry, Logical, Payload, Summary};
use crate::catalog::MAIN_BRANCH;
use crate::codec::corrupt;
use crate::copies::{get_right, make_equal};
use crate::evacuate::place_of;
use crate::extent::{BLOCK_BYTES, Birth, Codec, Extent};
use crate::layouts::SegmentInfo;
use crate::read::verified;
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
        // Where there are copies, those become equal too of which nothing lives: recovery may read their summaries.
        let all = self.store.copies() > 1;
        let counts = |(id, info): &(&SegmentId, &SegmentInfo)| info.live > 0 || all && self.usage.fresh.contains(id);
        let (&id, _) = self.usage.table.range(from..).find(counts)?;
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

/// Something of a batch that lives.
struct Item<'a> {
    offset: u32,
    stored: u32,
    what: What<'a>,
}

enum What<'a> {
    /// Blocks from one of a branch on.
    Blocks(Extent, Logical),
    /// A node or a checkpoint.
    Other(&'a Entry),
}

impl Item<'_> {
    fn is_right(&self, bytes: &[u8]) -> bool {
        match &self.what {
            What::Blocks(extent, _) => verified(extent, bytes).is_ok(),
            What::Other(entry) => entry.verify(bytes),
        }
    }
}

/// What of a batch lives.
fn living<'a>(s: &'a Summary, dead: &[bool]) -> Vec<Item<'a>> {
    let is_dead = |ordinal: u32| dead.get(ordinal as usize).copied().unwrap_or(true);
    let mut items = Vec::new();
    for (entry, ordinal, offset) in s.placed() {
        let of_blocks = match entry {
            Entry::Write { at, data, .. } | Entry::Remap { at, data, .. } | Entry::Forward { at, data, .. } => {
                Some((at, data))
            }
            _ => None,
        };
        if let Some((at, data)) = of_blocks {
            living_blocks(s, (at, data, ordinal, offset), &is_dead, &mut items);
        } else if entry.ordinals() > 0 && !is_dead(ordinal) {
            items.push(Item { offset, stored: entry.stored(), what: What::Other(entry) });
        }
    }
    items
}

fn living_blocks(
    s: &Summary,
    (at, data, ordinal, offset): (&Logical, &Payload, u32, u32),
    is_dead: &dyn Fn(u32) -> bool,
    items: &mut Vec<Item<'_>>,
) {
    let place = place_of(data, Birth { segment: s.segment, ordinal }, offset);
    let whole = Extent { blocks: data.blocks, version: 0, place };
    let mut i = 0;
    while i < data.blocks {
        let end = (i..data.blocks).find(|&j| is_dead(ordinal + j) != is_dead(ordinal + i)).unwrap_or(data.blocks);
        if !is_dead(ordinal + i) {
            let part = whole.part(i, end - i);
            let at = Logical { block: at.block.saturating_add(u64::from(i)), ..*at };
            items.push(Item { offset: part.place.offset, stored: part.place.stored, what: What::Blocks(part, at) });
            if data.codec != Codec::Plain {
                return; // the unit is read as a whole
            }
        }
        i = end;
    }
}

fn verify_batch(store: &dyn SegmentStore, s: &Summary, dead: &[bool], bytes: &mut u64, problems: &mut Problems) {
    let items = living(s, dead);
    make_batch_equal(store, s, &items);
    for item in items {
        let mut stored = vec![0; item.stored as usize];
        *bytes += stored.len() as u64;
        let read = get_right(store, s.segment, u64::from(item.offset), &mut stored, &mut |b| item.is_right(b));
        let why = match read {
            Ok(true) => continue,
            Ok(false) => corrupt("its checksum is wrong"),
            Err(e) => e,
        };
        match item.what {
            What::Blocks(extent, at) => problems.extent(at, extent.blocks, &why),
            What::Other(_) => problems.add(format!(
                "a node or checkpoint in segment {:#x} at {} cannot be read or verified: {why}",
                s.segment, item.offset
            )),
        }
    }
}

/// Where the store keeps several copies: makes them equal in a whole batch, if everything in it that lives is right in one of them. So what
/// is dead becomes equal too. Otherwise what lives is looked at by itself.
fn make_batch_equal(store: &dyn SegmentStore, s: &Summary, items: &[Item<'_>]) {
    if store.copies() < 2 {
        return;
    }
    // `None` for a copy that is missing, and no bytes for one that cannot be read as a whole.
    let read = |copy: usize| {
        let mut bytes = vec![0; s.length as usize];
        match store.get_copy(copy, s.segment, u64::from(s.offset), &mut bytes) {
            Ok(()) => Some(bytes),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(_) => Some(Vec::new()),
        }
    };
    let is_right = |bytes: &[u8]| {
        let of = |item: &Item<'_>| {
            let start = item.offset.checked_sub(s.offset)? as usize;
            bytes.get(start..start + item.stored as usize)
        };
        let head = Summary::length_of(bytes).ok().and_then(|n| Summary::decode(bytes.get(..n)?).ok());
        head.is_some_and(|found| found.sequence == s.sequence && found.segment == s.segment)
            && items.iter().all(|item| of(item).is_some_and(|b| item.is_right(b)))
    };
    let Some((first, bytes)) = (0..store.copies()).find_map(|copy| Some((copy, read(copy)?))) else { return };
    if (first + 1..store.copies()).filter_map(read).all(|other| other == bytes) && !bytes.is_empty() {
        return;
    }
    drop(bytes);
    let right = (0..store.copies()).find_map(|copy| Some((copy, read(copy).filter(|b| is_right(b))?)));
    if let Some((copy, good)) = right {
        make_equal(store, copy, s.segment, s.offset.into(), &good);
    }
}
