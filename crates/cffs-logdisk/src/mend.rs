//! Segments with a batch whose summary is damaged, while the maps can be read.
//!
//! The map says where each block is and what checksums it has, so files can be read. But the cleaner cannot move what it finds no summary of, and a
//! disk that lost its map could not find it either. What lives in such a segment is found by the maps, and copied to new batches as
//! the cleaner would have done; then the segment is free.

use crate::batch::{Entry, Logical, NewerVersion, Payload};
use crate::catalog::MAIN_BRANCH;
use crate::check::moved;
use crate::codec::{corrupt, crc32c};
use crate::contents::Bytes;
use crate::copies::get_right;
use crate::evacuate::{Evacuated, Source};
use crate::extent::{BLOCK_BYTES, Birth, Codec, EXTENT_BLOCKS_MAX, Extent, UNIT_BLOCKS_MAX};
use crate::log::STREAM_NEW;
use crate::packer::Packer;
use crate::scan::summaries;
use crate::space::{Change, Level};
use crate::state::State;
use crate::store::SegmentId;
use crate::tree::{Layout, NODE_BYTES, NodeHead, NodeRef, Root, lookup_extents};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;

/// Most lines of a report.
const LINES_MAX: usize = 64;

/// What stands for blocks that are lost, with a checksum that it has not.
const LOST: &[u8] = b"lost";

/// What a step of [`LogDisk::check_summaries`](crate::LogDisk::check_summaries) found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SummaryReport {
    /// The segment to go on with; `None` at the end.
    pub next: Option<SegmentId>,
    /// Segments with a summary that cannot be read or verified, in which something lives.
    pub damaged: Vec<SegmentId>,
    /// What is wrong, one line for each of them.
    pub problems: Vec<String>,
}

/// What [`LogDisk::mend_summaries`](crate::LogDisk::mend_summaries) has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MendReport {
    /// Segments that were damaged and are free now, a number.
    pub freed: usize,
    /// Bytes that were copied out of them, as they are stored.
    pub copied: u64,
    /// What could not be copied, because it cannot be read or verified, one line for each extent. It stays where it is.
    pub left: Vec<String>,
}

/// What maps say of a block that is stored plain.
#[derive(Clone, Copy)]
struct Block {
    at: Logical,
    version: u64,
    /// Where it was first written, if it has been moved since.
    birth: Option<Birth>,
    offset: u32,
    crc: u32,
}

/// What lives in some segments, as the maps say.
#[derive(Default)]
struct Living {
    plain: BTreeMap<Birth, Block>,
    /// Compressed units, nodes and the bytes where they are, by their first block.
    whole: BTreeMap<Birth, (Entry, u32)>,
}

impl Living {
    /// Notes a part of an extent of a map that is where `now` says.
    fn extent(&mut self, at: Logical, birth: Option<Birth>, now: &Extent) -> io::Result<()> {
        let p = &now.place;
        if p.codec == Codec::Plain {
            for (i, crc) in (0..now.blocks).zip(&p.crcs) {
                let here = Birth { segment: p.segment, ordinal: p.ordinal + i };
                let at = Logical { branch: at.branch, block: at.block + u64::from(i) };
                let birth = birth.map(|b| Birth { segment: b.segment, ordinal: b.ordinal + i });
                let (version, offset) = (now.version, p.offset + i * BLOCK_BYTES as u32);
                self.plain.entry(here).or_insert(Block { at, version, birth, offset, crc: *crc });
            }
            return Ok(());
        }
        // The summary had the unit as a whole.
        let first = |n: u64| n.checked_sub(u64::from(p.index)).ok_or_else(|| corrupt("a unit begins before its disk"));
        let at = Logical { branch: at.branch, block: first(at.block)? };
        let back =
            |b: Birth| io::Result::Ok(Birth { segment: b.segment, ordinal: first(u64::from(b.ordinal))? as u32 });
        let data = Payload { codec: p.codec, blocks: p.unit_blocks, stored: p.stored, crcs: p.crcs.clone() };
        let entry = match birth {
            None => Entry::Write { at, version: now.version, data },
            Some(birth) => Entry::Forward { at, version: now.version, birth: back(birth)?, bytes: 0, data },
        };
        self.whole.entry(back(p.birth())?).or_insert((entry, p.offset));
        Ok(())
    }

    /// The entries that a summary would have for all this, with the place of each.
    fn entries(self, longest: u32) -> Vec<(Entry, Birth, u32)> {
        let mut all: Vec<(Entry, Birth, u32)> = Vec::new();
        let mut run: Vec<(Birth, Block)> = Vec::new();
        let blocks = self.plain.into_iter().map(Some).chain([None]);
        for next in blocks {
            let joins = next.as_ref().is_some_and(|next| run.len() < longest as usize && follows(&run, next));
            if !joins && !run.is_empty() {
                all.push(entry_of(&run));
                run.clear();
            }
            run.extend(next);
        }
        all.extend(self.whole.into_iter().map(|(here, (entry, offset))| (entry, here, offset)));
        all
    }
}

/// Whether a block is the next one of a run: in the segment, on the disk, and where it was first written.
fn follows(run: &[(Birth, Block)], (here, next): &(Birth, Block)) -> bool {
    let Some((first_here, first)) = run.first() else { return false };
    let n = run.len() as u32;
    let after = |b: Birth| Birth { segment: b.segment, ordinal: b.ordinal.saturating_add(n) };
    *here == after(*first_here)
        && next.at == Logical { branch: first.at.branch, block: first.at.block + u64::from(n) }
        && next.version == first.version
        && next.birth == first.birth.map(after)
        && next.offset == first.offset + n * BLOCK_BYTES as u32
}

fn entry_of(run: &[(Birth, Block)]) -> (Entry, Birth, u32) {
    let (here, first) = run[0];
    let crcs: Vec<u32> = run.iter().map(|(_, b)| b.crc).collect();
    let stored = (run.len() * BLOCK_BYTES) as u32;
    let data = Payload { codec: Codec::Plain, blocks: run.len() as u32, stored, crcs };
    let (at, version) = (first.at, first.version);
    let entry = match first.birth {
        None => Entry::Write { at, version, data },
        Some(birth) => Entry::Forward { at, version, birth, bytes: 0, data },
    };
    (entry, here, first.offset)
}

/// An entry for each of its blocks.
fn apart((entry, here, offset): &(Entry, Birth, u32)) -> Vec<(Entry, Birth, u32)> {
    let (Entry::Write { at, version, data } | Entry::Forward { at, version, data, .. }) = entry else {
        return Vec::new();
    };
    if data.codec != Codec::Plain || data.blocks < 2 {
        return Vec::new();
    }
    let of = |i: u32| {
        let on = |b: Birth| Birth { segment: b.segment, ordinal: b.ordinal + i };
        let birth = if let Entry::Forward { birth, .. } = entry { Some(on(*birth)) } else { None };
        let at = Logical { branch: at.branch, block: at.block + u64::from(i) };
        let (offset, crc) = (offset + i * BLOCK_BYTES as u32, data.crcs[i as usize]);
        entry_of(&[(on(*here), Block { at, version: *version, birth, offset, crc })])
    };
    (0..data.blocks).map(of).collect()
}

impl State {
    /// Reads the summaries of some segments from one on, of those in which something lives.
    pub(crate) fn check_summaries(&self, from: SegmentId, segments: usize) -> SummaryReport {
        let (report, newer) = self.look_at_summaries(from, segments);
        SummaryReport { problems: report.problems.into_iter().chain(newer.map(|e| e.to_string())).collect(), ..report }
    }

    /// The same, and the last batch apart that only a newer version knows: it is not damaged.
    fn look_at_summaries(&self, from: SegmentId, segments: usize) -> (SummaryReport, Option<io::Error>) {
        let (mut report, mut newer) = (SummaryReport::default(), None);
        let mut living = self.usage.table.range(from..).filter(|(_, info)| info.live > 0);
        for (id, info) in living.by_ref().take(segments.max(1)) {
            let mut at = 0;
            for summary in summaries(&*self.store, self.log.uuid, *id, info) {
                match summary {
                    Ok(s) => at = s.offset + s.length,
                    Err(e) if NewerVersion::is(&e) => newer = Some(e),
                    Err(e) => {
                        report.damaged.push(*id);
                        report.problems.push(format!("the summary of the batch in segment {id:#x} at {at}: {e}"));
                    }
                }
            }
        }
        report.next = living.next().map(|(id, _)| *id);
        (report, newer)
    }

    /// Copies what lives in segments with damaged summaries elsewhere.
    pub(crate) fn mend_summaries(&mut self) -> io::Result<MendReport> {
        self.check()?;
        self.seal()?;
        let (found, newer) = self.look_at_summaries(0, usize::MAX);
        if let Some(e) = newer {
            return Err(e);
        }
        let damaged: BTreeSet<SegmentId> = found.damaged.into_iter().collect();
        let mut report = MendReport::default();
        if damaged.is_empty() {
            return Ok(report);
        }
        // What is being deleted may refer to what is gone already.
        while self.delete_step(usize::MAX)? {}
        self.log.leave(&damaged, &*self.store)?;
        self.ensure_room(Change::default(), Level::Frees)?;
        self.checkpoint()?;
        let entries = self.living(&damaged)?.entries(self.longest_extent());
        let mut rest = &entries[..];
        while !rest.is_empty() {
            rest = self.mend_round(rest, &mut report)?;
        }
        self.checkpoint()?;
        report.freed = damaged.iter().filter(|id| self.usage.table.get(id).is_none_or(|info| info.live == 0)).count();
        Ok(report)
    }

    /// Maps what the main branch does not have in some ranges of bytes to a unit whose checksum is wrong.
    pub(crate) fn mark_lost(&mut self, ranges: &[(u64, u64)]) -> io::Result<()> {
        self.check()?;
        self.seal()?;
        let block = BLOCK_BYTES as u64;
        for (offset, bytes) in ranges {
            let (mut at, end) = (offset / block, offset.saturating_add(*bytes).min(self.logical_bytes).div_ceil(block));
            while at < end {
                let n = (end - at).min(u64::from(UNIT_BLOCKS_MAX));
                self.mark_holes(at, n)?;
                at += n;
            }
        }
        // Nobody may take these batches for torn ones. With the same checkpoint a rebuilding has come to its end.
        self.unmarked = false;
        self.ensure_room(Change::default(), Level::Accepted)?;
        self.checkpoint()
    }

    fn mark_holes(&mut self, start: u64, blocks: u64) -> io::Result<()> {
        let Some(main) = self.catalog.branches.get(&MAIN_BRANCH) else { return Ok(()) };
        let there = lookup_extents(&main.root, &self.nodes(), start, blocks)?;
        let mut holes = Vec::new();
        let mut at = start;
        for (first, next) in there.iter().map(|(b, e)| (*b, b + u64::from(e.blocks))).chain([(start + blocks, 0)]) {
            holes.extend((first > at).then_some((at, (first - at) as u32)));
            at = next;
        }
        if holes.is_empty() {
            return Ok(());
        }
        let n = holes.len() as u64;
        self.ensure_room(Change { bytes: 4096 + 128 * n, extents: n, dead: n }, Level::Frees)?;
        let mut packer = Packer::new(STREAM_NEW, None);
        for (block, blocks) in holes {
            let crcs = vec![!crc32c(LOST)];
            let data = Payload { codec: Codec::Zstd, blocks, stored: LOST.len() as u32, crcs };
            let at = Logical { branch: MAIN_BRANCH, block };
            let r = packer.add(self, Entry::Write { at, version: self.version, data }, LOST);
            self.fatal(r)?;
        }
        let r = packer.finish(self);
        self.fatal(r)?;
        if self.is_dirty() { self.checkpoint() } else { Ok(()) }
    }

    /// Blocks of a plain extent that fits any segment well.
    fn longest_extent(&self) -> u32 {
        (self.store.segment_bytes() / 8 / BLOCK_BYTES as u64).clamp(1, u64::from(EXTENT_BLOCKS_MAX)) as u32
    }

    /// Copies what some of the entries have; returns the others.
    fn mend_round<'e>(
        &mut self,
        mut rest: &'e [(Entry, Birth, u32)],
        report: &mut MendReport,
    ) -> io::Result<&'e [(Entry, Birth, u32)]> {
        if self.round_bounds().is_none() {
            self.ensure_room(Change::default(), Level::Frees)?;
        }
        let full = || io::Error::new(io::ErrorKind::StorageFull, "the log disk is full");
        let bounds = self.round_bounds().ok_or_else(full)?.at_most(8 * self.store.segment_bytes());
        let noted = self.usage.apply_dead(&*self.store, &self.cache, &mut self.dirtied);
        self.fatal(noted)?;
        let mut out = Evacuated::default();
        let mut dead: Option<(SegmentId, Vec<bool>)> = None;
        while let Some((first, others)) = rest.split_first()
            && !out.is_full(bounds)
        {
            rest = others;
            let segment = first.1.segment;
            let known = match dead.take().filter(|(of, _)| *of == segment) {
                Some(known) => known,
                None => (segment, self.usage.dead_blocks(&*self.store, &self.cache, segment)?),
            };
            let source = Source { dead: &known.1, bytes: &Bytes::default() };
            if self.evacuate_entry(&first.0, first.1, first.2, &source, &mut out).is_err() {
                // One block of several may be good.
                let parts = apart(first);
                let all = if parts.is_empty() { vec![first.clone()] } else { parts };
                for (entry, here, offset) in all {
                    if let Err(e) = self.evacuate_entry(&entry, here, offset, &source, &mut out)
                        && report.left.len() < LINES_MAX
                    {
                        report.left.push(e.to_string());
                    }
                }
            }
            dead = Some(known);
        }
        report.copied += self.write_copies(STREAM_NEW, None, out)?;
        self.checkpoint()?;
        Ok(rest)
    }

    /// What lives in some segments, as all trees say.
    fn living(&self, segments: &BTreeSet<SegmentId>) -> io::Result<Living> {
        let mut living = Living::default();
        self.living_nodes(&self.forward, segments, &mut living)?;
        self.living_nodes(&self.dead_lists, segments, &mut living)?;
        self.living_nodes(&self.catalog.tree, segments, &mut living)?;
        self.living_nodes(&self.usage.segments, segments, &mut living)?;
        self.living_nodes(&self.usage.dead, segments, &mut living)?;
        let branches = self.catalog.branches.iter().map(|(id, b)| (*id, &b.root));
        let snapshots = self.catalog.snapshots.values().map(|s| (s.branch, &s.root));
        let mut seen = HashSet::new();
        for (branch, root) in branches.chain(snapshots) {
            let mut nodes = Vec::new();
            let mut extents = Vec::new();
            let enter = &mut |r: &NodeRef| {
                let is_new = seen.insert((r.segment, r.ordinal));
                nodes.extend(is_new.then_some(*r));
                Ok(is_new)
            };
            root.walk(&self.nodes(), enter, &mut |block, e: &Extent| {
                let here = |(_, _, part): &(u32, bool, Extent)| segments.contains(&part.place.segment);
                for (skip, has_moved, part) in self.parts_of(e.clone())?.into_iter().filter(here) {
                    let birth = Birth { ordinal: e.place.ordinal + skip, segment: e.place.segment };
                    let now = Extent { version: e.version, ..part };
                    extents.push((block + u64::from(skip), has_moved.then_some(birth), now));
                }
                Ok(())
            })?;
            for (block, birth, now) in extents {
                living.extent(Logical { branch, block }, birth, &now)?;
            }
            for r in nodes {
                let birth = Birth { segment: r.segment, ordinal: r.ordinal };
                let forwarded = moved(self, birth, 1)?.pop().map(|(_, e)| e.place);
                let now = forwarded.as_ref().map_or(birth, |p| p.birth());
                if segments.contains(&now.segment) {
                    let offset = forwarded.as_ref().map_or(r.offset, |p| p.offset);
                    let head = self.head_of(now, offset, r.crc, 8)?;
                    let entry = match forwarded {
                        None => Entry::Node { head, crc: r.crc },
                        Some(_) => Entry::ForwardNode { head, birth, crc: r.crc },
                    };
                    living.whole.insert(now, (entry, offset));
                }
            }
        }
        Ok(living)
    }

    /// The nodes of a tree that no snapshot has.
    fn living_nodes<L: Layout>(
        &self,
        root: &Root<L>,
        segments: &BTreeSet<SegmentId>,
        living: &mut Living,
    ) -> io::Result<()> {
        let mut nodes = Vec::new();
        let enter = &mut |r: &NodeRef| {
            nodes.extend(segments.contains(&r.segment).then_some(*r));
            Ok(true)
        };
        root.walk(&self.nodes().direct(), enter, &mut |_, _| Ok(()))?;
        for r in nodes {
            let here = Birth { segment: r.segment, ordinal: r.ordinal };
            let head = self.head_of(here, r.offset, r.crc, L::KEY_BYTES)?;
            living.whole.insert(here, (Entry::Node { head, crc: r.crc }, r.offset));
        }
        Ok(())
    }

    /// What the summary said of a node.
    fn head_of(&self, here: Birth, offset: u32, crc: u32, key_bytes: usize) -> io::Result<NodeHead> {
        let mut bytes = vec![0; NODE_BYTES];
        let mut is_right = |bytes: &[u8]| crc32c(bytes) == crc;
        if !get_right(&*self.store, here.segment, u64::from(offset), &mut bytes, &mut is_right)? {
            return Err(corrupt(format!("the checksum of a node in segment {:#x} at {offset} is wrong", here.segment)));
        }
        NodeHead::of(&bytes, key_bytes)
    }
}
