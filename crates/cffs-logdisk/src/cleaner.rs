//! The cleaner: copies what lives out of segments that are mostly dead, so that they can be deleted.
//!
//! What only a branch refers to is mapped anew. What a snapshot refers to stays in the snapshot's map as it is: a forward
//! says where it is now. So cleaning costs the same with one snapshot and with ten thousand. Nodes that only one tree refers to are
//! brought into memory; the next checkpoint stores them elsewhere. What cannot be verified is not moved, and its segment stays.

use crate::batch::{Entry, Logical, Payload, Summary};
use crate::codec::corrupt;
use crate::extent::{BLOCK_BYTES, Birth, Extent, Place};
use crate::layouts::{
    CatalogLayout, DeadLayout, DeadListLayout, ForwardLayout, MapLayout, SegmentInfo, SegmentsLayout,
};
use crate::log::{STREAM_NEW, STREAM_NODES};
use crate::options::CleanPolicy;
use crate::packer::Packer;
use crate::read::{decode, fetch};
use crate::scan::read_summary;
use crate::state::State;
use crate::store::SegmentId;
use crate::tree::{Edit, Layout, NODE_BYTES, NodeHead, Root, lookup_extents};
use crate::usage::Nodes;
use std::io;

/// Rounds without gain after which a writer gives up.
const STALLED_ROUNDS_MAX: u32 = 12;
/// Most segments cleaned in one round.
const ROUND_SEGMENTS_MAX: usize = 32;

/// What a step of the cleaner did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Segments whose contents were moved.
    pub segments: usize,
    /// Bytes of data that were copied.
    pub copied: u64,
}

/// Blocks to move.
struct Move {
    at: Logical,
    version: u64,
    /// Where they are.
    source: Birth,
    /// Where they were first written, if snapshots have them.
    forward: Option<Birth>,
    /// Their place, for what each part of them accounts for.
    place: Place,
    data: Vec<u8>,
}

/// A node to move that snapshots have.
struct NodeMove {
    head: NodeHead,
    birth: Birth,
    crc: u32,
    data: Vec<u8>,
}

impl State {
    /// How much a segment deserves to be cleaned; `None` if nothing is to be gained.
    fn score(&self, policy: CleanPolicy, id: SegmentId, info: &SegmentInfo) -> Option<f64> {
        if self.log.is_open(id) || self.damaged.contains(&id) {
            return None;
        }
        let size = if self.store.can_append() { self.store.segment_bytes() } else { u64::from(info.used) };
        // A few blocks that died do not pay for the copy of the others.
        if info.live + size / 64 + BLOCK_BYTES as u64 > size {
            return None;
        }
        let u = info.live as f64 / size as f64;
        Some(match policy {
            CleanPolicy::Greedy => 1.0 - u,
            CleanPolicy::CostBenefit | CleanPolicy::Generations => {
                let age = (self.log.sequence - info.age.min(self.log.sequence)) as f64 + 1.0;
                (1.0 - u) * age / (1.0 + u)
            }
        })
    }

    /// The best segments, as long as what lives in them is not more than `budget` bytes, and not less than one.
    fn victims(&self, policy: CleanPolicy, budget: u64) -> Vec<SegmentId> {
        let scored =
            self.usage.table.iter().filter_map(|(id, info)| Some((self.score(policy, *id, info)?, *id, info.live)));
        let mut scored: Vec<(f64, SegmentId, u64)> = scored.collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut left = budget;
        let mut chosen = Vec::new();
        for (_, id, live) in scored {
            if live == 0 {
                continue; // the next checkpoint deletes it
            }
            if live > left && !chosen.is_empty() || chosen.len() >= ROUND_SEGMENTS_MAX {
                break;
            }
            left = left.saturating_sub(live);
            chosen.push(id);
        }
        chosen
    }

    /// Moves what lives in the best segments, about `budget` bytes. They are deleted by the next checkpoint.
    pub(crate) fn clean_round(&mut self, policy: CleanPolicy, budget: u64) -> io::Result<CleanReport> {
        self.check()?;
        // What could not be noted as dead would be taken for alive.
        let noted = self.usage.apply_dead(&*self.store, &self.cache, &mut self.dirtied);
        self.fatal(noted)?;
        let victims = self.victims(policy, budget);
        let mut report = CleanReport::default();
        let mut ages = [(0u128, 0u128); 3];
        let mut by_stream: [(Vec<Move>, Vec<NodeMove>); 3] = Default::default();
        for id in victims {
            let info = self.usage.table.get(&id).copied().unwrap_or_default();
            let stream = match self.options.policy {
                CleanPolicy::Generations => (info.stream + 1).min(2),
                CleanPolicy::CostBenefit => 1,
                CleanPolicy::Greedy => STREAM_NEW,
            };
            let stream = if info.stream == STREAM_NODES { 1 } else { stream };
            let (moves, nodes) = &mut by_stream[usize::from(stream.min(2))];
            let before = (moves.len(), nodes.len());
            match self.evacuate(id, &info, moves, nodes) {
                Ok(()) => {
                    report.segments += 1;
                    let (sum, bytes) = &mut ages[usize::from(stream.min(2))];
                    *sum += u128::from(info.age) * u128::from(info.live);
                    *bytes += u128::from(info.live);
                }
                Err(_) => {
                    // What could be read is not moved either: a half empty segment is as long as a full one.
                    moves.truncate(before.0);
                    nodes.truncate(before.1);
                    self.damaged.insert(id);
                }
            }
        }
        for (stream, (mut moves, nodes)) in by_stream.into_iter().enumerate() {
            moves.sort_by_key(|m| (m.at, m.version));
            // What is copied stays as old as it was, or nothing would ever be known to be old.
            let (sum, bytes) = ages[stream];
            let mut packer = Packer::new(stream as u8, sum.checked_div(bytes).map(|age| age as u64));
            for m in moves {
                report.copied += m.data.len() as u64;
                let r = self.pack(&mut packer, &m);
                self.fatal(r)?;
            }
            for n in nodes {
                report.copied += n.data.len() as u64;
                let entry = Entry::ForwardNode { head: n.head, birth: n.birth, crc: n.crc };
                let r = packer.add(self, entry, &n.data);
                self.fatal(r)?;
            }
            let r = packer.finish(self);
            self.fatal(r)?;
        }
        self.cleaned += report.copied;
        Ok(report)
    }

    fn pack(&mut self, packer: &mut Packer, m: &Move) -> io::Result<()> {
        packer.add_blocks(self, &m.data, &|skip, data| {
            let at = Logical { branch: m.at.branch, block: m.at.block + u64::from(skip) };
            match m.forward {
                Some(b) => {
                    let birth = Birth { segment: b.segment, ordinal: b.ordinal + skip };
                    let bytes = m.place.part(skip, data.blocks).share(data.blocks) as u32;
                    Entry::Forward { at, version: m.version, birth, bytes, data }
                }
                None => {
                    let source = Birth { segment: m.source.segment, ordinal: m.source.ordinal + skip };
                    Entry::Remap { at, version: m.version, source, data }
                }
            }
        })
    }

    /// Collects what lives in a segment.
    fn evacuate(
        &mut self,
        id: SegmentId,
        info: &SegmentInfo,
        moves: &mut Vec<Move>,
        nodes: &mut Vec<NodeMove>,
    ) -> io::Result<()> {
        let dead = self.usage.dead_blocks(&*self.store, &self.cache, id)?;
        let is_dead = |ordinal: u32| dead.get(ordinal as usize).copied().unwrap_or(true);
        for summary in self.summaries(id, info)? {
            let batch = (summary.offset + summary.data_start, self.batch_data(&summary, &dead)?);
            for (entry, ordinal, offset) in summary.placed() {
                let source = Birth { segment: id, ordinal };
                match entry {
                    Entry::Write { at, version, data }
                    | Entry::Remap { at, version, data, .. }
                    | Entry::Forward { at, version, data, .. } => {
                        let birth = if let Entry::Forward { birth, .. } = entry { Some(*birth) } else { None };
                        let place = place_of(data, source, offset);
                        let whole = Extent { blocks: data.blocks, version: *version, place };
                        let mut i = 0;
                        while i < data.blocks {
                            let end = (i..data.blocks)
                                .find(|&j| is_dead(ordinal + j) != is_dead(ordinal + i))
                                .unwrap_or(data.blocks);
                            if !is_dead(ordinal + i) {
                                let live = whole.part(i, end - i);
                                let data = self.load(&batch, &live)?;
                                self.evacuate_blocks(*at, birth, &whole, (i, live, data), moves)?;
                            }
                            i = end;
                        }
                    }
                    Entry::Node { head, crc } if !is_dead(ordinal) => {
                        self.evacuate_node(head, None, source, offset, *crc, nodes)?;
                    }
                    Entry::ForwardNode { head, birth, crc } if !is_dead(ordinal) => {
                        self.evacuate_node(head, Some(*birth), source, offset, *crc, nodes)?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// All summaries of a segment.
    fn summaries(&self, id: SegmentId, info: &SegmentInfo) -> io::Result<Vec<Summary>> {
        let mut all = Vec::new();
        let mut at = 0;
        while at < info.used {
            let s = read_summary(&*self.store, self.log.uuid, id, at)?;
            at = s.offset + s.length;
            all.push(s);
        }
        Ok(all)
    }

    /// The data of a batch, if enough of it lives that reading all of it in one request pays.
    fn batch_data(&self, s: &Summary, dead: &[bool]) -> io::Result<Vec<u8>> {
        let stored: u64 = s.entries.iter().map(|e| u64::from(e.stored())).sum();
        let n: u32 = s.entries.iter().map(Entry::ordinals).sum();
        let range = s.first_ordinal as usize..(s.first_ordinal + n) as usize;
        let live = dead.get(range).map_or(0, |d| d.iter().filter(|d| !**d).count());
        if live * 4 < n as usize || stored == 0 {
            return Ok(Vec::new());
        }
        let mut data = vec![0; stored as usize];
        self.store.get(s.segment, u64::from(s.offset + s.data_start), &mut data)?;
        Ok(data)
    }

    /// The blocks of an extent, from the data of its batch if that was read.
    fn load(&self, (start, data): &(u32, Vec<u8>), extent: &Extent) -> io::Result<Vec<u8>> {
        if data.is_empty() {
            return fetch(&*self.store, extent);
        }
        let first = extent.place.offset.saturating_sub(*start) as usize;
        let stored = data.get(first..first + extent.place.stored as usize);
        decode(extent, stored.ok_or_else(|| corrupt("an extent is not in its batch"))?.to_vec())
    }

    /// Blocks of an extent live (the number of the first, their extent, their bytes): who refers to them?
    fn evacuate_blocks(
        &self,
        at: Logical,
        birth: Option<Birth>,
        whole: &Extent,
        (from, live, data): (u32, Extent, Vec<u8>),
        moves: &mut Vec<Move>,
    ) -> io::Result<()> {
        let mut push = |skip: u32, blocks: u32, forward: Option<Birth>| {
            let place = live.place.part(skip, blocks);
            let range = skip as usize * BLOCK_BYTES..(skip + blocks) as usize * BLOCK_BYTES;
            moves.push(Move {
                at: Logical { branch: at.branch, block: at.block + u64::from(from + skip) },
                version: live.version,
                source: place.birth(),
                forward: forward.map(|b| Birth { segment: b.segment, ordinal: b.ordinal + from + skip }),
                place,
                data: data[range].to_vec(),
            });
        };
        let own = whole.place.birth();
        let branch = self.catalog.branches.get(&at.branch);
        let Some(branch) = branch.filter(|b| birth.is_none() && live.version > b.floor) else {
            push(0, live.blocks, Some(birth.unwrap_or(own)));
            return Ok(());
        };
        // No snapshot is as young as the blocks: the branch has them, and only it.
        let start = at.block + u64::from(from);
        let mut done = 0;
        for (block, e) in lookup_extents(&branch.root, &self.nodes(), start, u64::from(live.blocks))? {
            let skip = (block - start) as u32;
            if e.place.segment == live.place.segment && e.place.ordinal == live.place.ordinal + skip {
                if skip > done {
                    push(done, skip - done, Some(own));
                }
                push(skip, e.blocks, None);
                done = skip + e.blocks;
            }
        }
        if done < live.blocks {
            push(done, live.blocks - done, Some(own));
        }
        Ok(())
    }

    fn evacuate_node(
        &mut self,
        head: &NodeHead,
        birth: Option<Birth>,
        source: Birth,
        offset: u32,
        crc: u32,
        nodes: &mut Vec<NodeMove>,
    ) -> io::Result<()> {
        // A node below it was brought into memory before, and took this one along.
        let gone = |(at, blocks): &(Birth, u32)| {
            at.segment == source.segment && (at.ordinal..at.ordinal + blocks).contains(&source.ordinal)
        };
        if self.usage.newly_dead.iter().any(gone) {
            return Ok(());
        }
        if birth.is_none() && self.touch_node(head, source)? {
            return Ok(());
        }
        if head.tree != MapLayout::TREE {
            return Err(corrupt("a node lives that its tree does not have"));
        }
        let mut data = vec![0; NODE_BYTES];
        self.store.get(source.segment, u64::from(offset), &mut data)?;
        if crate::codec::crc32c(&data) != crc {
            return Err(corrupt("the checksum of a node is wrong"));
        }
        nodes.push(NodeMove { head: head.clone(), birth: birth.unwrap_or(source), crc, data });
        Ok(())
    }

    /// Brings a node into memory if only one tree refers to it. Returns whether it was found.
    fn touch_node(&mut self, head: &NodeHead, source: Birth) -> io::Result<bool> {
        let at = (source.segment, source.ordinal);
        let mut f = crate::codec::Fields::new(&head.key);
        if head.tree == MapLayout::TREE {
            let key = MapLayout::get_key(&mut f)?;
            let young = |b: &crate::catalog::Branch| head.version > b.floor;
            let ids: Vec<u32> = self.catalog.branches.iter().filter(|(_, b)| young(b)).map(|(id, _)| *id).collect();
            for id in ids {
                if self.touch_map_node(id, key, head.level, at)? {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        if head.tree == ForwardLayout::TREE {
            return self.touch_forward_node(ForwardLayout::get_key(&mut f)?, head.level, at);
        }
        let mut retired = Vec::new();
        let src = Nodes { store: &*self.store, cache: &self.cache, table: &self.usage.table, forward: None };
        let mut edit =
            Edit { src: &src, version: 0, retired: &mut retired, frozen: &mut Vec::new(), dirtied: &mut self.dirtied };
        let found = match head.tree {
            SegmentsLayout::TREE => touch(&mut self.usage.segments, &mut edit, head, at)?,
            DeadLayout::TREE => touch(&mut self.usage.dead, &mut edit, head, at)?,
            CatalogLayout::TREE => touch(&mut self.catalog.tree, &mut edit, head, at)?,
            DeadListLayout::TREE => touch(&mut self.dead_lists, &mut edit, head, at)?,
            _ => false,
        };
        retired.iter().try_for_each(|r| self.usage.free_node(r))?;
        Ok(found)
    }

    /// Sees to it that `bytes` can be written to free segments: cleans if it must.
    pub(crate) fn ensure_room(&mut self, bytes: u64) -> io::Result<()> {
        let segment = self.store.segment_bytes();
        let need = bytes + bytes / 32 + self.cleaner_reserve();
        let mut stalled = 0;
        while self.store.available() < need {
            let before = self.store.available();
            if self.empty_segments().next().is_some() {
                self.checkpoint()?;
                continue;
            }
            // Copies and the checkpoint behind them must fit what is free now. In need, only the gain counts.
            let room = before.saturating_sub(self.checkpoint_need() + 4 * segment);
            let policy = if stalled == 0 && room >= 2 * segment { self.options.policy } else { CleanPolicy::Greedy };
            let moved = self.clean_round(policy, room.clamp(segment, 8 * segment))?;
            self.checkpoint()?;
            stalled = if self.store.available() > before { 0 } else { stalled + 1 };
            if moved.segments == 0 || stalled > STALLED_ROUNDS_MAX {
                return Err(io::Error::new(io::ErrorKind::StorageFull, "the log disk is full"));
            }
        }
        Ok(())
    }
}

fn touch<L: Layout>(
    root: &mut Root<L>,
    edit: &mut Edit<'_, Nodes<'_>>,
    head: &NodeHead,
    at: (u64, u32),
) -> io::Result<bool> {
    let key = L::get_key(&mut crate::codec::Fields::new(&head.key))?;
    root.touch(edit, &key, head.level, at)
}

fn place_of(p: &Payload, at: Birth, offset: u32) -> Place {
    Place {
        segment: at.segment,
        ordinal: at.ordinal,
        offset,
        codec: p.codec,
        stored: p.stored,
        unit_blocks: p.blocks,
        index: 0,
        crcs: p.crcs.clone(),
    }
}
