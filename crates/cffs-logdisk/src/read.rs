//! Reading: where the blocks of a range are, and fetching them.

use crate::around::Around;
use crate::batch::{Logical, verify_payload};
use crate::codec::corrupt;
use crate::compress::decompress;
use crate::copies::{get_right, take_right};
use crate::extent::{BLOCK_BYTES, Codec, Extent};
use crate::layouts::MapLayout;
use crate::state::State;
use crate::store::{Get, SegmentId, SegmentStore};
use crate::tree::{Root, lookup_extents};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// Blocks of a read that are in one place. What is in none reads as zeros.
pub(crate) struct Piece {
    /// First block, counted from the beginning of the read.
    pub(crate) first: usize,
    pub(crate) content: Content,
}

impl Piece {
    /// The same piece of a read that begins so many blocks earlier.
    pub(crate) fn behind(self, blocks: usize) -> Piece {
        Piece { first: self.first + blocks, ..self }
    }

    fn segment(&self) -> Option<SegmentId> {
        match &self.content {
            Content::Stored(e) => Some(e.place.segment),
            Content::Memory(_) => None,
        }
    }
}

/// Where the blocks of a piece are.
pub(crate) enum Content {
    Memory(Box<[u8]>),
    Stored(Extent),
}

impl State {
    /// The pieces of a range of a map.
    pub(crate) fn stored_pieces(&self, root: &Root<MapLayout>, start: u64, blocks: u64) -> io::Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        for (block, extent) in lookup_extents(root, &self.nodes(), start, blocks)? {
            let first = (block - start) as usize;
            for (skip, e) in self.locate(extent)? {
                pieces.push(Piece { first: first + skip as usize, content: Content::Stored(e) });
            }
        }
        Ok(pieces)
    }

    /// Where the parts of an extent are now: where the forwards say, if they know them. The segment of such a part may be gone. Or a crash has brought it back to the
    /// table, and its bytes are gone.
    pub(crate) fn locate(&self, extent: Extent) -> io::Result<Vec<(u32, Extent)>> {
        let segment = extent.place.segment;
        let is_gone = !self.usage.table.contains_key(&segment);
        let parts = self.parts_of(extent)?;
        if is_gone && parts.iter().any(|(_, has_moved, _)| !has_moved) {
            return Err(corrupt(format!("blocks of segment {segment:#x} are gone with it")));
        }
        Ok(parts.into_iter().map(|(first, _, part)| (first, part)).collect())
    }

    /// The parts of an extent: how many blocks come before each, whether it has been moved, and where it is. Of plain blocks those may be left where they were that could
    /// not be read.
    pub(crate) fn parts_of(&self, extent: Extent) -> io::Result<Vec<(u32, bool, Extent)>> {
        let birth = extent.place.birth();
        if self.usage.table.get(&birth.segment).is_some_and(|info| !info.forwarded || self.forward.is_empty()) {
            return Ok(vec![(0, false, extent)]);
        }
        let (mut parts, mut done) = (Vec::new(), 0);
        let moved = lookup_extents(&self.forward, &self.nodes().direct(), birth, u64::from(extent.blocks))?;
        let moved = moved.into_iter().map(|(at, e)| (at.ordinal - birth.ordinal, Some(e)));
        for (first, e) in moved.chain([(extent.blocks, None)]) {
            if first > done {
                parts.push((done, false, extent.part(done, first - done)));
            }
            done = first + e.as_ref().map_or(0, |e| e.blocks);
            parts.extend(e.map(|e| (first, true, e)));
        }
        Ok(parts)
    }

    /// The pieces of a range of a branch, with what is pending.
    pub(crate) fn branch_pieces(&self, branch: u32, start: u64, blocks: u64) -> io::Result<Vec<Piece>> {
        let b = self.catalog.branches.get(&branch).filter(|b| !b.deleting);
        let b = b.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no branch {branch}")))?;
        let mut pieces = self.stored_pieces(&b.root, start, blocks)?;
        if self.pending.is_empty() {
            return Ok(pieces);
        }
        let at = |block| Logical { branch, block };
        let hidden = |block| self.pending.blocks.contains_key(&at(block)) || self.pending.is_discarded(at(block));
        pieces = pieces.into_iter().flat_map(|p| visible(p, |i| !hidden(start + i as u64))).collect();
        for (key, data) in self.pending.blocks.range(at(start)..at(start + blocks)) {
            let first = (key.block - start) as usize;
            pieces.push(Piece { first, content: Content::Memory(data.clone()) });
        }
        Ok(pieces)
    }

    /// Blocks of a branch of which a part is to be written.
    pub(crate) fn rests_of(
        &self,
        branch: u32,
        blocks: impl Iterator<Item = u64>,
    ) -> io::Result<BTreeMap<u64, Box<[u8]>>> {
        let (mut rests, mut missing) = (BTreeMap::new(), Vec::new());
        for block in blocks {
            match self.recent.get(Logical { branch, block }) {
                Some(known) => drop(rests.insert(block, known)),
                None => missing.push(block),
            }
        }
        let read = self.read_blocks(branch, &missing)?;
        let read = read.chunks_exact(BLOCK_BYTES).map(Into::into);
        rests.extend(missing.into_iter().zip(read));
        Ok(rests)
    }

    /// One block of a branch.
    pub(crate) fn read_block(&self, branch: u32, block: u64) -> io::Result<Box<[u8]>> {
        self.read_blocks(branch, &[block]).map(Vec::into_boxed_slice)
    }

    /// Some blocks of a branch, in one go.
    fn read_blocks(&self, branch: u32, blocks: &[u64]) -> io::Result<Vec<u8>> {
        let mut pieces = Vec::new();
        for (n, block) in blocks.iter().enumerate() {
            pieces.extend(self.branch_pieces(branch, *block, 1)?.into_iter().map(|p| p.behind(n)));
        }
        // Nothing of other segments comes along: who changes a part of a block has all others wait.
        let mut used = self.written(pieces.iter().filter_map(Piece::segment));
        if used.len() > 1 {
            used.clear();
        }
        let reader = Reader { store: &*self.store, around: &self.around, used };
        let mut data = vec![0; blocks.len() * BLOCK_BYTES];
        fetch_pieces(&reader, pieces, &mut data)?;
        Ok(data)
    }

    /// How much is written of the segments that pieces are in, of the one that was read last, and of those between that and the first.
    pub(crate) fn used_of(&self, pieces: &[Piece]) -> BTreeMap<SegmentId, u64> {
        let mut segments = pieces.iter().filter_map(Piece::segment).peekable();
        let last = self.around.last_segment();
        let between = last.zip(segments.peek().copied()).filter(|(last, first)| last < first);
        let begun = |(last, first)| self.usage.table.range(last..first).take(BETWEEN);
        self.written(between.into_iter().flat_map(begun).map(|(id, _)| *id).chain(segments).chain(last))
    }

    /// How much is written of segments.
    fn written(&self, segments: impl Iterator<Item = SegmentId>) -> BTreeMap<SegmentId, u64> {
        segments.filter_map(|id| Some((id, u64::from(self.usage.table.get(&id)?.used)))).collect()
    }
}

/// The parts of a piece that `shown` lets through.
fn visible(piece: Piece, shown: impl Fn(usize) -> bool) -> Vec<Piece> {
    let Content::Stored(extent) = piece.content else { return vec![piece] };
    let mut parts = Vec::new();
    let mut i = 0;
    while i < extent.blocks {
        let is_shown = |i: u32| shown(piece.first + i as usize);
        let end = (i..extent.blocks).find(|&j| is_shown(j) != is_shown(i)).unwrap_or(extent.blocks);
        if is_shown(i) {
            let content = Content::Stored(extent.part(i, end - i));
            parts.push(Piece { first: piece.first + i as usize, content });
        }
        i = end;
    }
    parts
}

/// Segments between what was read last and what is read that may be of use, with the first of these. Where they are short, what is skipped ends with them.
const BETWEEN: usize = 16;

/// Reads segments.
pub(crate) struct Reader<'a> {
    pub(crate) store: &'a dyn SegmentStore,
    pub(crate) around: &'a Around,
    /// Bytes that are written of them.
    pub(crate) used: BTreeMap<SegmentId, u64>,
}

/// The blocks of an extent, verified.
pub(crate) fn fetch(store: &dyn SegmentStore, extent: &Extent) -> io::Result<Vec<u8>> {
    unpack(extent, &fetch_stored(store, extent)?)
}

/// The stored bytes of an extent, or of its unit, verified.
pub(crate) fn fetch_stored(store: &dyn SegmentStore, extent: &Extent) -> io::Result<Vec<u8>> {
    let p = &extent.place;
    let mut stored = vec![0; p.stored as usize];
    let mut is_right = |bytes: &[u8]| verified(extent, bytes).is_ok();
    if !get_right(store, p.segment, u64::from(p.offset), &mut stored, &mut is_right)? {
        verified(extent, &stored)?;
    }
    Ok(stored)
}

/// Sees to it that bytes that were read are those of an extent: from another copy, if one has them.
fn verified_or_right(store: &dyn SegmentStore, extent: &Extent, stored: &mut [u8]) -> io::Result<()> {
    let Err(error) = verified(extent, stored) else { return Ok(()) };
    let p = &extent.place;
    let mut is_right = |bytes: &[u8]| verified(extent, bytes).is_ok();
    if take_right(store, p.segment, u64::from(p.offset), stored, &mut is_right) { Ok(()) } else { Err(error) }
}

/// An error if the stored bytes of an extent have other checksums.
pub(crate) fn verified(extent: &Extent, stored: &[u8]) -> io::Result<()> {
    let p = &extent.place;
    if verify_payload(p.codec, &p.crcs, stored) {
        return Ok(());
    }
    Err(corrupt(format!("the checksum of data in segment {:#x} at {} is wrong", p.segment, p.offset)))
}

/// The blocks of an extent from the stored bytes of its unit.
pub(crate) fn unpack(extent: &Extent, stored: &[u8]) -> io::Result<Vec<u8>> {
    let p = &extent.place;
    if p.codec == Codec::Plain {
        return Ok(stored.to_vec());
    }
    let unit = decompress(p.codec, stored, p.unit_blocks)?;
    let first = p.index as usize * BLOCK_BYTES;
    let part = unit.get(first..first + extent.blocks as usize * BLOCK_BYTES);
    part.map(<[u8]>::to_vec).ok_or_else(|| corrupt("an extent is longer than its unit"))
}

/// Stored bytes that are read with others for less than another request costs.
pub(crate) const GAP_BYTES: u64 = 32 << 10;

/// Blocks between two borders; `None` where there is no border.
pub(crate) struct Together {
    pub(crate) start: Option<usize>,
    pub(crate) end: Option<usize>,
}

/// What lies on the store with a block, of the pieces of a range: up to a piece that is elsewhere. What is nowhere, or in memory, costs
/// nothing.
pub(crate) fn together(mut pieces: Vec<Piece>, block: usize) -> Together {
    pieces.sort_by_key(|p| p.first);
    let stored = |p: &Piece| match &p.content {
        Content::Stored(e) => Some((p.first, e.clone())),
        Content::Memory(_) => None,
    };
    let stored: Vec<(usize, Extent)> = pieces.iter().filter_map(stored).collect();
    let at = stored.partition_point(|(first, _)| *first <= block).saturating_sub(1);
    let near = |(_, a): &(usize, Extent), (_, b): &(usize, Extent)| is_near(a, b);
    let after = (at + 1..stored.len()).find(|i| !near(&stored[i - 1], &stored[*i]));
    let before = (1..=at.min(stored.len())).rev().find(|i| *i < stored.len() && !near(&stored[i - 1], &stored[*i]));
    Together { start: before.map(|i| stored[i].0), end: after.map(|i| stored[i].0) }
}

/// Whether one request brings what follows an extent as well, or they are parts of one unit.
pub(crate) fn is_near(a: &Extent, b: &Extent) -> bool {
    let (end, next) = (end_of(a), u64::from(b.place.offset));
    a.place.segment == b.place.segment && (a.place.offset == b.place.offset || (end..=end + GAP_BYTES).contains(&next))
}

/// Byte in its segment where an extent ends.
pub(crate) fn end_of(e: &Extent) -> u64 {
    u64::from(e.place.offset) + u64::from(e.place.stored)
}

/// Most stored bytes of one request that are not read to their place at once, and of all that are in memory at a time for one read.
const RUN_BYTES: u64 = 1 << 20;
const UNITS_BYTES: u64 = 8 << 20;

/// What one request brings: neighbours in a segment. Plain ones that are neighbours in the read as well go to their place at once; all others, which are
/// compressed units mostly, are taken apart in memory.
struct Fetch {
    /// First block in the read, and what belongs there.
    extents: Vec<(usize, Extent)>,
    /// Bytes in the segment.
    range: Range<u64>,
    is_direct: bool,
    /// What was read, unless that went to its place.
    stored: Vec<u8>,
}

impl Fetch {
    fn new(first: usize, extent: Extent) -> Fetch {
        let start = u64::from(extent.place.offset);
        let range = start..start + u64::from(extent.place.stored);
        let is_direct = extent.place.codec == Codec::Plain;
        Fetch { extents: vec![(first, extent)], range, is_direct, stored: Vec::new() }
    }

    fn first(&self) -> usize {
        self.extents[0].0
    }

    fn blocks(&self) -> usize {
        self.extents.iter().map(|(_, e)| e.blocks as usize).sum()
    }

    /// Bytes that it takes besides their place.
    fn in_memory(&self) -> u64 {
        if self.is_direct { 0 } else { self.range.end - self.range.start }
    }

    /// Takes an extent that comes right after this in the segment. False if it does not.
    fn take(&mut self, first: usize, e: &Extent) -> bool {
        let end = u64::from(e.place.offset) + u64::from(e.place.stored);
        if e.place.segment != self.extents[0].1.place.segment || u64::from(e.place.offset) != self.range.end {
            return false;
        }
        let direct = self.is_direct && e.place.codec == Codec::Plain && first == self.first() + self.blocks();
        if !direct && end - self.range.start > RUN_BYTES {
            return false;
        }
        (self.is_direct, self.range.end) = (direct, end);
        self.extents.push((first, e.clone()));
        true
    }

    /// Reads it once more, alone.
    fn read_again(&mut self, store: &dyn SegmentStore, out: &mut [u8]) -> io::Result<()> {
        let (first, blocks) = (self.first(), self.blocks());
        let target =
            if self.is_direct { &mut out[first * BLOCK_BYTES..][..blocks * BLOCK_BYTES] } else { &mut self.stored };
        store.get(self.extents[0].1.place.segment, self.range.start, target)
    }

    /// Puts what was read where it belongs, verified.
    fn finish(&mut self, store: &dyn SegmentStore, out: &mut [u8]) -> io::Result<()> {
        for (first, e) in &self.extents {
            let target = &mut out[first * BLOCK_BYTES..][..e.blocks as usize * BLOCK_BYTES];
            if self.is_direct {
                verified_or_right(store, e, target)?;
                continue;
            }
            let start = (u64::from(e.place.offset) - self.range.start) as usize;
            let stored = &mut self.stored[start..start + e.place.stored as usize];
            verified_or_right(store, e, stored)?;
            target.copy_from_slice(&unpack(e, stored)?);
        }
        Ok(())
    }
}

/// Fetches the pieces into `out`, which is zero, with as many requests in flight as the store can have.
pub(crate) fn fetch_pieces(reader: &Reader<'_>, mut pieces: Vec<Piece>, out: &mut [u8]) -> io::Result<()> {
    pieces.sort_by_key(|p| p.first);
    let (mut fetches, mut in_memory): (Vec<Fetch>, u64) = (Vec::new(), 0);
    for Piece { first, content } in pieces {
        match content {
            Content::Memory(data) => out[first * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&data),
            Content::Stored(e) => {
                if let Some(last) = fetches.last_mut() {
                    let before = last.in_memory();
                    if last.take(first, &e) {
                        in_memory += last.in_memory() - before;
                        continue;
                    }
                }
                if in_memory >= UNITS_BYTES {
                    fetch_all(reader, std::mem::take(&mut fetches), out)?;
                    in_memory = 0;
                }
                let fetch = Fetch::new(first, e);
                in_memory += fetch.in_memory();
                fetches.push(fetch);
            }
        }
    }
    fetch_all(reader, fetches, out)
}

fn fetch_all(reader: &Reader<'_>, mut fetches: Vec<Fetch>, out: &mut [u8]) -> io::Result<()> {
    let mut parts = Vec::with_capacity(fetches.len());
    let (mut rest, mut done) = (&mut *out, 0);
    for f in &mut fetches {
        let (segment, offset) = (f.extents[0].1.place.segment, f.range.start);
        if !f.is_direct {
            f.stored = vec![0; f.in_memory() as usize];
            parts.push(Get { segment, offset, buf: &mut f.stored });
            continue;
        }
        let len = f.blocks() * BLOCK_BYTES;
        let skip = (f.first() * BLOCK_BYTES).checked_sub(done).ok_or_else(|| corrupt("extents overlap each other"))?;
        let (target, after) = rest[skip..].split_at_mut(len);
        (rest, done) = (after, done + skip + len);
        parts.push(Get { segment, offset, buf: target });
    }
    if parts.is_empty() {
        return Ok(());
    }
    let kept = reader.around.get_all(reader.store, &reader.used, &mut parts)?;
    for (f, kept) in fetches.iter_mut().zip(kept) {
        match f.finish(reader.store, out) {
            // What is kept of a device may have been wrong once.
            Err(_) if kept => {
                reader.around.forget(f.extents[0].1.place.segment);
                f.read_again(reader.store, out)?;
                f.finish(reader.store, out)?;
            }
            done => done?,
        }
    }
    Ok(())
}
