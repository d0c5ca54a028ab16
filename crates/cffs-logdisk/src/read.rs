//! Reading: where the blocks of a range are, and fetching them.

use crate::batch::{Logical, verify_payload};
use crate::codec::corrupt;
use crate::compress::decompress;
use crate::extent::{BLOCK_BYTES, Codec, Extent};
use crate::layouts::MapLayout;
use crate::state::State;
use crate::store::{Get, SegmentStore};
use crate::tree::{Root, lookup_extents};
use std::io;

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

    /// Where the parts of an extent are now: if its segment is gone, the forwards say it.
    pub(crate) fn locate(&self, extent: Extent) -> io::Result<Vec<(u32, Extent)>> {
        if self.usage.table.contains_key(&extent.place.segment) {
            return Ok(vec![(0, extent)]);
        }
        let birth = extent.place.birth();
        let found = lookup_extents(&self.forward, &self.nodes().direct(), birth, u64::from(extent.blocks))?;
        if found.iter().map(|(_, e)| e.blocks).sum::<u32>() != extent.blocks {
            return Err(corrupt(format!("blocks of segment {:#x} are gone with it", birth.segment)));
        }
        Ok(found.into_iter().map(|(at, e)| (at.ordinal - birth.ordinal, e)).collect())
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

    /// One block of a branch.
    pub(crate) fn read_block(&self, branch: u32, block: u64) -> io::Result<Box<[u8]>> {
        match self.branch_pieces(branch, block, 1)?.pop() {
            None => Ok(vec![0; BLOCK_BYTES].into_boxed_slice()),
            Some(Piece { content: Content::Memory(data), .. }) => Ok(data),
            Some(Piece { content: Content::Stored(e), .. }) => Ok(fetch(&*self.store, &e)?.into_boxed_slice()),
        }
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

/// The blocks of an extent, verified.
pub(crate) fn fetch(store: &dyn SegmentStore, extent: &Extent) -> io::Result<Vec<u8>> {
    unpack(extent, &fetch_stored(store, extent)?)
}

/// The stored bytes of an extent, or of its unit, verified.
pub(crate) fn fetch_stored(store: &dyn SegmentStore, extent: &Extent) -> io::Result<Vec<u8>> {
    let p = &extent.place;
    let mut stored = vec![0; p.stored as usize];
    store.get(p.segment, u64::from(p.offset), &mut stored)?;
    verified(extent, &stored)?;
    Ok(stored)
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
const GAP_BYTES: u64 = 32 << 10;

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
    let near = |(_, a): &(usize, Extent), (_, b): &(usize, Extent)| {
        let (from, to) = (u64::from(a.place.offset) + u64::from(a.place.stored), u64::from(b.place.offset));
        a.place.segment == b.place.segment
            && (a.place.offset == b.place.offset || (from..=from + GAP_BYTES).contains(&to))
    };
    let after = (at + 1..stored.len()).find(|i| !near(&stored[i - 1], &stored[*i]));
    let before = (1..=at.min(stored.len())).rev().find(|i| *i < stored.len() && !near(&stored[i - 1], &stored[*i]));
    Together { start: before.map(|i| stored[i].0), end: after.map(|i| stored[i].0) }
}

/// Most stored bytes of compressed units that are in memory at a time for one read.
const UNITS_BYTES: usize = 8 << 20;

/// What one request brings: plain extents that are neighbours in a segment, or a compressed unit.
struct Fetch {
    /// First block of the read.
    first: usize,
    extents: Vec<Extent>,
    /// The unit; plain bytes go to their place at once.
    unit: Vec<u8>,
}

impl Fetch {
    fn new(first: usize, extent: Extent) -> Fetch {
        let plain = extent.place.codec == Codec::Plain;
        let unit = vec![0; if plain { 0 } else { extent.place.stored as usize }];
        Fetch { first, extents: vec![extent], unit }
    }

    fn is_plain(&self) -> bool {
        self.unit.is_empty()
    }

    fn blocks(&self) -> usize {
        self.extents.iter().map(|e| e.blocks as usize).sum()
    }

    /// Whether an extent comes right after this, in the read and in the segment.
    fn is_followed_by(&self, first: usize, e: &Extent) -> bool {
        let (start, blocks) = (&self.extents[0].place, self.blocks());
        self.is_plain()
            && e.place.codec == Codec::Plain
            && first == self.first + blocks
            && e.place.segment == start.segment
            && u64::from(e.place.offset) == u64::from(start.offset) + (blocks * BLOCK_BYTES) as u64
    }

    /// Puts what was read where it belongs, verified.
    fn finish(&self, out: &mut [u8]) -> io::Result<()> {
        let target = &mut out[self.first * BLOCK_BYTES..][..self.blocks() * BLOCK_BYTES];
        if !self.is_plain() {
            let extent = &self.extents[0];
            verified(extent, &self.unit)?;
            target.copy_from_slice(&unpack(extent, &self.unit)?);
            return Ok(());
        }
        let mut rest = &target[..];
        for e in &self.extents {
            let (stored, after) = rest.split_at(e.place.stored as usize);
            verified(e, stored)?;
            rest = after;
        }
        Ok(())
    }
}

/// Fetches the pieces into `out`, which is zero, with as many requests in flight as the store can have.
pub(crate) fn fetch_pieces(store: &dyn SegmentStore, mut pieces: Vec<Piece>, out: &mut [u8]) -> io::Result<()> {
    pieces.sort_by_key(|p| p.first);
    let (mut fetches, mut units): (Vec<Fetch>, usize) = (Vec::new(), 0);
    for Piece { first, content } in pieces {
        match content {
            Content::Memory(data) => out[first * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&data),
            Content::Stored(e) => match fetches.last_mut().filter(|last| last.is_followed_by(first, &e)) {
                Some(last) => last.extents.push(e),
                None => {
                    if units >= UNITS_BYTES {
                        fetch_all(store, std::mem::take(&mut fetches), out)?;
                        units = 0;
                    }
                    fetches.push(Fetch::new(first, e));
                    units += fetches.last().map_or(0, |f| f.unit.len());
                }
            },
        }
    }
    fetch_all(store, fetches, out)
}

fn fetch_all(store: &dyn SegmentStore, mut fetches: Vec<Fetch>, out: &mut [u8]) -> io::Result<()> {
    let mut parts = Vec::with_capacity(fetches.len());
    let (mut rest, mut done) = (&mut *out, 0);
    for f in &mut fetches {
        let (len, place) = (f.blocks() * BLOCK_BYTES, &f.extents[0].place);
        let skip = (f.first * BLOCK_BYTES).checked_sub(done).ok_or_else(|| corrupt("extents overlap each other"))?;
        let (target, after) = rest[skip..].split_at_mut(len);
        (rest, done) = (after, done + skip + len);
        let (segment, offset) = (place.segment, u64::from(place.offset));
        parts.push(Get { segment, offset, buf: if f.unit.is_empty() { target } else { &mut f.unit } });
    }
    if parts.is_empty() {
        return Ok(());
    }
    store.get_all(&mut parts)?;
    fetches.iter().try_for_each(|f| f.finish(out))
}
