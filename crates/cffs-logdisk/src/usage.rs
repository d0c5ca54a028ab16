//! What of each segment is still used: bytes exactly, and blocks by a bitmap.
//!
//! The table of segments is in memory as a whole, some tens of bytes for each. The bitmaps are in a tree in the log;
//! blocks that died are noted and put into it in one go, at a checkpoint or before a segment is cleaned.

use crate::around::Written;
use crate::batch::Summary;
use crate::cache::NodeCache;
use crate::codec::{corrupt, crc32c};
use crate::copies::{get_right, take_right};
use crate::extent::Birth;
use crate::layouts::{DeadLayout, ForwardLayout, PAGE_BLOCKS, Page, SegmentInfo, SegmentsLayout};
use crate::store::{Get, SegmentId, SegmentStore};
use crate::tree::{Edit, Layout, NODE_BYTES, Node, NodeRef, Root, Source, lookup_extents};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// The table of segments.
pub(crate) type Table = BTreeMap<SegmentId, SegmentInfo>;

/// For who reads nodes: what lies between them in other segments is data, mostly.
impl Written for Table {
    fn of(&self, segment: SegmentId) -> Option<u64> {
        self.get(&segment).map(|info| u64::from(info.used))
    }

    fn next(&self, _: SegmentId) -> Option<SegmentId> {
        None
    }
}

/// Reads nodes of the store, through the cache.
pub(crate) struct Nodes<'a> {
    pub(crate) store: &'a dyn SegmentStore,
    pub(crate) cache: &'a Mutex<NodeCache>,
    pub(crate) table: &'a Table,
    /// Where nodes of snapshots have been moved to; `None` for trees that no snapshot has.
    pub(crate) forward: Option<&'a Root<ForwardLayout>>,
}

impl<'a> Nodes<'a> {
    /// The same without forwards.
    pub(crate) fn direct(&self) -> Nodes<'a> {
        Nodes { forward: None, ..*self }
    }

    /// Segment, ordinal and offset where a node is now.
    pub(crate) fn locate(&self, r: &NodeRef) -> io::Result<(SegmentId, u32, u32)> {
        if let Some(forward) = self.forward
            && !self.table.contains_key(&r.segment)
        {
            let birth = Birth { segment: r.segment, ordinal: r.ordinal };
            let moved = lookup_extents(forward, &self.direct(), birth, 1)?;
            let (_, extent) = moved.first().ok_or_else(|| corrupt("a node is in a segment that is gone"))?;
            return Ok((extent.place.segment, extent.place.ordinal, extent.place.offset));
        }
        Ok((r.segment, r.ordinal, r.offset))
    }
}

impl Source for Nodes<'_> {
    fn node<L: Layout>(&self, r: &NodeRef, level: u8) -> io::Result<Arc<Node<L>>> {
        let key = (r.segment, r.ordinal);
        if let Some(node) = self.cache.lock().get(key) {
            return Ok(node);
        }
        let (segment, _, offset) = self.locate(r)?;
        let (mut bytes, start) = (vec![0; NODE_BYTES], u64::from(offset));
        let around = self.cache.lock().around();
        let mut is_right = |b: &[u8]| crc32c(b) == r.crc;
        match around.get_all(self.store, self.table, &mut [Get { segment, offset: start, buf: &mut bytes }]) {
            Ok(_) if is_right(&bytes) => {}
            // If it is right in no copy, what is wrong is said below.
            Ok(_) => {
                around.forget(segment);
                get_right(self.store, segment, start, &mut bytes, &mut is_right)?;
            }
            Err(e) if !take_right(self.store, segment, start, &mut bytes, &mut is_right) => return Err(e),
            Err(_) => {}
        }
        let node = Arc::new(node_of(&NodeRef { segment, offset, ..*r }, &bytes, level)?);
        self.cache.lock().put(key, node.clone());
        Ok(node)
    }

    /// They are read at once, in the order in which they lie, with what is between those that are near each other. What is wrong with any of them is
    /// told by [`Source::node`], which will find it missing.
    fn bring<L: Layout>(&self, nodes: &[NodeRef], level: u8) {
        let (around, most) = {
            let cache = self.cache.lock();
            (cache.around(), cache.brought_max())
        };
        let is_missing = |r: &&NodeRef| self.cache.lock().get::<Node<L>>((r.segment, r.ordinal)).is_none();
        let place = |r: &NodeRef| {
            let (segment, _, offset) = self.locate(r).ok()?;
            let start = self.store.range_of(segment).map_or(0, |range| range.start);
            let is_kept = around.has(segment, u64::from(offset), NODE_BYTES as u64);
            (!is_kept).then_some((start, segment, offset, *r))
        };
        let mut missing: Vec<_> = nodes.iter().filter(is_missing).take(most).filter_map(place).collect();
        if missing.len() < 2 {
            return;
        }
        missing.sort_unstable_by_key(|&(start, segment, offset, _)| (start, segment, offset));
        let places: Vec<(SegmentId, u64)> = missing.iter().map(|&(_, segment, at, _)| (segment, at.into())).collect();
        let runs = near(&places, around.read_over());
        let mut left = &runs[..];
        while !left.is_empty() {
            let sums = left.iter().scan(0, |sum, run| {
                *sum += run.range.end - run.range.start;
                Some(*sum)
            });
            let (now, later) = left.split_at(sums.take_while(|sum| *sum <= BROUGHT_BYTES).count().max(1));
            left = later;
            let mut bytes: Vec<Vec<u8>> = now.iter().map(|r| vec![0; (r.range.end - r.range.start) as usize]).collect();
            let part = |(run, buf): (&Near, _)| Get { segment: run.segment, offset: run.range.start, buf };
            let mut parts: Vec<Get<'_>> = now.iter().zip(bytes.iter_mut().map(|b| &mut b[..])).map(part).collect();
            if self.store.get_all(&mut parts).is_err() {
                return;
            }
            let mut cache = self.cache.lock();
            for (run, bytes) in now.iter().zip(&bytes) {
                for &(_, segment, offset, r) in &missing[run.nodes.clone()] {
                    let at = (u64::from(offset) - run.range.start) as usize;
                    let node = node_of::<L>(&NodeRef { segment, offset, ..r }, &bytes[at..at + NODE_BYTES], level);
                    if let Ok(node) = node {
                        cache.put((r.segment, r.ordinal), Arc::new(node));
                    }
                }
            }
        }
    }

    /// A checkpoint stores neighbours side by side, so they come with one request. What is wrong with any of them is told by
    /// [`Source::node`], which will find it missing.
    fn expect<L: Layout>(&self, before: Option<NodeRef>, nodes: &mut dyn Iterator<Item = NodeRef>, level: u8) {
        // The few nodes above the leaves stay in memory.
        let Some(first) = nodes.next().filter(|_| level == 0) else { return };
        {
            let mut cache = self.cache.lock();
            let goes_on = before.is_some_and(|r| cache.was_asked((r.segment, r.ordinal)));
            cache.note_asked((first.segment, first.ordinal));
            let known = cache.get::<Node<L>>((first.segment, first.ordinal)).is_some();
            let is_kept = || cache.around().has(first.segment, u64::from(first.offset), NODE_BYTES as u64);
            if known || !goes_on || !self.table.contains_key(&first.segment) || is_kept() {
                return;
            }
        }
        let (start, most) = (u64::from(first.offset), first.offset.saturating_add(EXPECTED_BYTES - NODE_BYTES as u32));
        let mut near = vec![first];
        near.extend(nodes.take_while(|r| r.segment == first.segment && r.offset > first.offset && r.offset <= most));
        let last = near.iter().map(|r| r.offset).max().map_or(start, u64::from);
        let mut bytes = vec![0; (last - start) as usize + NODE_BYTES];
        if near.len() == 1 || self.store.get(first.segment, start, &mut bytes).is_err() {
            return;
        }
        let mut cache = self.cache.lock();
        // The one that is asked for comes last: it must still be there.
        for r in near.iter().rev() {
            let at = (r.offset - first.offset) as usize;
            if let Ok(node) = node_of::<L>(r, &bytes[at..at + NODE_BYTES], level) {
                cache.put((r.segment, r.ordinal), Arc::new(node));
            }
        }
    }
}

/// Dead extents whose pages are read at once.
const BROUGHT: usize = 1024;
/// Bytes that are read for them in one go, and in one request.
const BROUGHT_BYTES: u64 = 16 << 20;
const NEAR_BYTES: u64 = 1 << 20;

/// Nodes that are read in one request.
struct Near {
    segment: SegmentId,
    range: Range<u64>,
    nodes: Range<usize>,
}

/// Joins nodes in ascending places between which there are at most `gap` bytes.
fn near(places: &[(SegmentId, u64)], gap: u64) -> Vec<Near> {
    let mut runs: Vec<Near> = Vec::new();
    for (n, &(segment, at)) in places.iter().enumerate() {
        let end = at + NODE_BYTES as u64;
        let joins = |run: &&mut Near| {
            run.segment == segment && at <= run.range.end + gap && end <= run.range.start + NEAR_BYTES
        };
        match runs.last_mut().filter(joins) {
            Some(run) => (run.range.end, run.nodes.end) = (run.range.end.max(end), n + 1),
            None => runs.push(Near { segment, range: at..end, nodes: n..n + 1 }),
        }
    }
    runs
}

/// Bytes that are read at once for nodes that may be asked for.
const EXPECTED_BYTES: u32 = 64 << 10;

/// Bytes that are read at once for nodes that were stored side by side.
pub(crate) const AHEAD_BYTES: u64 = 128 << 10;
/// How often [`ReadAhead`] keeps them.
const AHEAD_CHUNKS: usize = 32;

/// Reads nodes that a checkpoint has stored side by side in few requests, for who needs all of a tree and never again. Nothing is put
/// into the cache.
pub(crate) struct ReadAhead<'a> {
    store: &'a dyn SegmentStore,
    /// What was read last: segment, where the bytes begin, bytes.
    chunks: RefCell<VecDeque<(SegmentId, u64, Vec<u8>)>>,
}

impl<'a> ReadAhead<'a> {
    pub(crate) fn new(store: &'a dyn SegmentStore) -> Self {
        ReadAhead { store, chunks: RefCell::default() }
    }

    /// Takes what was read already.
    pub(crate) fn add(&self, segment: SegmentId, offset: u64, bytes: Vec<u8>) {
        self.chunks.borrow_mut().push_front((segment, offset, bytes));
    }

    /// The bytes of a node.
    fn read(&self, segment: SegmentId, offset: u64) -> io::Result<Vec<u8>> {
        let mut chunks = self.chunks.borrow_mut();
        let within = |(at, start, bytes): &(SegmentId, u64, Vec<u8>)| {
            let first = usize::try_from(offset.checked_sub(*start)?).ok()?;
            let node = bytes.get(first..first.checked_add(NODE_BYTES)?).filter(|_| *at == segment);
            node.map(<[u8]>::to_vec)
        };
        if let Some(node) = chunks.iter().find_map(within) {
            return Ok(node);
        }
        let mut bytes = vec![0; AHEAD_BYTES.min(self.store.segment_bytes().saturating_sub(offset)) as usize];
        if self.store.get(segment, offset, &mut bytes).is_err() {
            // Behind what was written there may be nothing to read.
            bytes.truncate(NODE_BYTES);
            self.store.get(segment, offset, &mut bytes)?;
        }
        let chunk = (segment, offset, bytes);
        let node = within(&chunk).ok_or_else(|| corrupt("a node is not within its segment"))?;
        if chunks.len() >= AHEAD_CHUNKS {
            chunks.pop_back();
        }
        chunks.push_front(chunk);
        Ok(node)
    }
}

impl Source for ReadAhead<'_> {
    fn node<L: Layout>(&self, r: &NodeRef, level: u8) -> io::Result<Arc<Node<L>>> {
        let read = self.read(r.segment, u64::from(r.offset));
        let is_right = read.as_ref().is_ok_and(|bytes| crc32c(bytes) == r.crc);
        let mut bytes = vec![0; NODE_BYTES];
        if !is_right && take_right(self.store, r.segment, u64::from(r.offset), &mut bytes, &mut |b| crc32c(b) == r.crc)
        {
            return Ok(Arc::new(node_of(r, &bytes, level)?));
        }
        Ok(Arc::new(node_of(r, &read?, level)?))
    }
}

fn node_of<L: Layout>(r: &NodeRef, bytes: &[u8], level: u8) -> io::Result<Node<L>> {
    if crc32c(bytes) != r.crc {
        let (segment, offset) = (r.segment, r.offset);
        return Err(corrupt(format!("the checksum of a node in segment {segment:#x} at {offset} is wrong")));
    }
    Node::decode(bytes, level)
}

/// Usage of all segments.
#[derive(Default)]
pub(crate) struct Usage {
    pub(crate) table: Table,
    /// Segments whose entry in the tree is older than the one in the table.
    pub(crate) dirty: BTreeSet<SegmentId>,
    /// Segments that were deleted and may still be in the trees.
    pub(crate) removed: BTreeSet<SegmentId>,
    /// Segments that have batches behind the last checkpoint, which recovery reads.
    pub(crate) fresh: BTreeSet<SegmentId>,
    /// Blocks that died since the bitmaps were last changed.
    pub(crate) newly_dead: Vec<(Birth, u32)>,
    /// The pages of bitmaps that these change.
    pub(crate) dead_pages: HashSet<(SegmentId, u32)>,
    /// Sum of the ordinals given out in the segments of the table.
    pub(crate) ordinals: u64,
    /// Sum of all live bytes.
    pub(crate) live: u64,
    pub(crate) segments: Root<SegmentsLayout>,
    pub(crate) dead: Root<DeadLayout>,
}

impl Usage {
    /// Accounts for a batch that was written: all of its blocks live.
    pub(crate) fn wrote(&mut self, s: &Summary) {
        let info = self.table.entry(s.segment).or_default();
        let (before, new) = (u128::from(info.used), u128::from(s.length));
        let age = u128::from(info.age) * before + u128::from(s.age) * new;
        info.age = (age / (before + new).max(1)) as u64;
        info.used = s.offset + s.length;
        let ordinals = s.first_ordinal + s.entries.iter().map(|e| e.ordinals()).sum::<u32>();
        self.ordinals = self.ordinals.saturating_sub(u64::from(info.ordinals)) + u64::from(ordinals);
        info.ordinals = ordinals;
        info.stream = s.stream;
        let bytes: u64 = s.entries.iter().map(|e| u64::from(e.stored())).sum();
        info.live += bytes;
        self.live += bytes;
        self.dirty.insert(s.segment);
        self.fresh.insert(s.segment);
    }

    /// Blocks that are where they say have died.
    pub(crate) fn free(&mut self, at: Birth, blocks: u32, bytes: u64) -> io::Result<()> {
        let info = self.table.get_mut(&at.segment).ok_or_else(|| corrupt("a freed block is in no segment"))?;
        info.live = info
            .live
            .checked_sub(bytes)
            .ok_or_else(|| corrupt(format!("more of segment {:#x} is freed than lives", at.segment)))?;
        self.live -= bytes;
        self.dirty.insert(at.segment);
        self.note_dead(at, blocks);
        Ok(())
    }

    /// Numbers of a segment that no block has that can be read.
    pub(crate) fn never_written(&mut self, segment: SegmentId, ordinals: Range<u32>) {
        if !ordinals.is_empty() {
            self.note_dead(Birth { segment, ordinal: ordinals.start }, ordinals.end - ordinals.start);
        }
    }

    pub(crate) fn note_dead(&mut self, at: Birth, blocks: u32) {
        let last = at.ordinal.saturating_add(blocks.saturating_sub(1)) / PAGE_BLOCKS;
        self.dead_pages.extend((at.ordinal / PAGE_BLOCKS..=last).map(|page| (at.segment, page)));
        self.newly_dead.push((at, blocks));
    }

    /// Takes in what a checkpoint says of segments and dead blocks.
    pub(crate) fn load(&mut self, table: Table, newly_dead: Vec<(Birth, u32)>) {
        self.live = table.values().try_fold(0u64, |sum, i| sum.checked_add(i.live)).unwrap_or(u64::MAX);
        self.ordinals = table.values().map(|i| u64::from(i.ordinals)).sum();
        self.table = table;
        newly_dead.into_iter().for_each(|(at, blocks)| self.note_dead(at, blocks));
    }

    /// A segment does not exist any more.
    pub(crate) fn remove(&mut self, id: SegmentId) {
        if let Some(info) = self.table.remove(&id) {
            self.ordinals = self.ordinals.saturating_sub(u64::from(info.ordinals));
        }
        self.dirty.remove(&id);
        self.removed.insert(id);
    }

    pub(crate) fn free_node(&mut self, r: &NodeRef) -> io::Result<()> {
        self.free(Birth { segment: r.segment, ordinal: r.ordinal }, 1, NODE_BYTES as u64)
    }

    /// Puts the blocks that died into the bitmaps. What dies by this (nodes of the bitmaps) is noted for the next time.
    pub(crate) fn apply_dead(
        &mut self,
        store: &dyn SegmentStore,
        cache: &Mutex<NodeCache>,
        dirtied: &mut usize,
    ) -> io::Result<()> {
        let mut list = std::mem::take(&mut self.newly_dead);
        self.dead_pages.clear();
        list.sort_unstable();
        let mut retired = Vec::new();
        let src = Nodes { store, cache, table: &self.table, forward: None };
        let page_of = |at: &Birth| Birth { segment: at.segment, ordinal: at.ordinal / PAGE_BLOCKS * PAGE_BLOCKS };
        let mut edit = Edit { src: &src, version: 0, retired: &mut retired, frozen: &mut Vec::new(), dirtied };
        let mut open: Option<(Birth, Page)> = None;
        for together in list.chunks(BROUGHT) {
            let mut pages: Vec<Birth> = together.iter().map(|(at, _)| page_of(at)).collect();
            pages.dedup();
            self.dead.bring(edit.src, &pages);
            for &(at, blocks) in together {
                if !self.table.contains_key(&at.segment) {
                    continue; // the whole segment is gone
                }
                for ordinal in at.ordinal..at.ordinal.saturating_add(blocks) {
                    let key = page_of(&Birth { segment: at.segment, ordinal });
                    if open.as_ref().is_none_or(|(k, _)| *k != key) {
                        if let Some((k, page)) = open.take() {
                            self.dead.insert(&mut edit, k, page)?;
                        }
                        open = Some((key, self.dead.get(edit.src, &key)?.unwrap_or_default()));
                    }
                    if let Some((_, page)) = &mut open {
                        let bit = ordinal % PAGE_BLOCKS;
                        page[bit as usize / 64] |= 1 << (bit % 64);
                    }
                }
            }
        }
        if let Some((k, page)) = open {
            self.dead.insert(&mut edit, k, page)?;
        }
        retired.iter().try_for_each(|r| self.free_node(r))
    }

    /// The bitmap of a segment, by ordinal: true is dead. All that died must have been applied.
    pub(crate) fn dead_blocks(
        &self,
        store: &dyn SegmentStore,
        cache: &Mutex<NodeCache>,
        segment: SegmentId,
    ) -> io::Result<Vec<bool>> {
        let n = self.table.get(&segment).map_or(0, |i| i.ordinals) as usize;
        let src = Nodes { store, cache, table: &self.table, forward: None };
        let mut dead = Vec::new();
        self.dead.scan(&src, &Birth { segment, ordinal: 0 }, &mut |key, page| {
            if key.segment != segment || key.ordinal as usize >= n {
                return ControlFlow::Break(());
            }
            dead.resize(key.ordinal as usize, false);
            dead.extend((0..PAGE_BLOCKS).map(|bit| page[bit as usize / 64] >> (bit % 64) & 1 == 1));
            ControlFlow::Continue(())
        })?;
        dead.resize(n, false);
        Ok(dead)
    }

    /// Brings the table into its tree. Afterwards `dirty` and `newly_dead` say what this itself has changed.
    pub(crate) fn apply_table(
        &mut self,
        store: &dyn SegmentStore,
        cache: &Mutex<NodeCache>,
        dirtied: &mut usize,
    ) -> io::Result<()> {
        let mut retired = Vec::new();
        let src = Nodes { store, cache, table: &self.table, forward: None };
        let mut edit = Edit { src: &src, version: 0, retired: &mut retired, frozen: &mut Vec::new(), dirtied };
        for segment in std::mem::take(&mut self.removed) {
            self.segments.remove(&mut edit, &segment)?;
            let mut pages = Vec::new();
            self.dead.scan(edit.src, &Birth { segment, ordinal: 0 }, &mut |key, _| {
                if key.segment != segment {
                    return ControlFlow::Break(());
                }
                pages.push(*key);
                ControlFlow::Continue(())
            })?;
            for key in pages {
                self.dead.remove(&mut edit, &key)?;
            }
        }
        for segment in std::mem::take(&mut self.dirty) {
            if let Some(info) = self.table.get(&segment) {
                self.segments.insert(&mut edit, segment, *info)?;
            }
        }
        retired.iter().try_for_each(|r| self.free_node(r))
    }
}
