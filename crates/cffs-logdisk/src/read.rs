//! Reading: where the blocks of a range are, and fetching them.

use crate::batch::{Logical, verify_payload};
use crate::codec::corrupt;
use crate::compress::decompress;
use crate::extent::{BLOCK_BYTES, Codec, Extent};
use crate::layouts::MapLayout;
use crate::state::State;
use crate::store::SegmentStore;
use crate::tree::{Root, lookup_extents};
use std::io;

/// Blocks of a read that are in one place. What is in none reads as zeros.
pub(crate) struct Piece {
    /// First block, counted from the beginning of the read.
    pub(crate) first: usize,
    pub(crate) content: Content,
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
    unpack(extent, fetch_stored(store, extent)?)
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
pub(crate) fn unpack(extent: &Extent, stored: Vec<u8>) -> io::Result<Vec<u8>> {
    let p = &extent.place;
    if p.codec == Codec::Plain {
        return Ok(stored);
    }
    let unit = decompress(p.codec, &stored, p.unit_blocks)?;
    let first = p.index as usize * BLOCK_BYTES;
    let part = unit.get(first..first + extent.blocks as usize * BLOCK_BYTES);
    part.map(<[u8]>::to_vec).ok_or_else(|| corrupt("an extent is longer than its unit"))
}

/// Fetches the pieces into `out`, which is zero; plain extents that are neighbours in a segment come in one request.
pub(crate) fn fetch_pieces(store: &dyn SegmentStore, mut pieces: Vec<Piece>, out: &mut [u8]) -> io::Result<()> {
    pieces.sort_by_key(|p| p.first);
    let mut i = 0;
    while i < pieces.len() {
        let at = pieces[i].first * BLOCK_BYTES;
        let extent = match &pieces[i].content {
            Content::Memory(data) => {
                out[at..at + BLOCK_BYTES].copy_from_slice(data);
                i += 1;
                continue;
            }
            Content::Stored(extent) => extent,
        };
        let mut blocks = extent.blocks;
        let mut next = i + 1;
        if extent.place.codec == Codec::Plain {
            while let Some(Piece { first, content: Content::Stored(e) }) = pieces.get(next)
                && *first == pieces[i].first + blocks as usize
                && e.place.codec == Codec::Plain
                && e.place.segment == extent.place.segment
                && e.place.offset == extent.place.offset + blocks * BLOCK_BYTES as u32
            {
                blocks += e.blocks;
                next += 1;
            }
        }
        let len = blocks as usize * BLOCK_BYTES;
        if next == i + 1 {
            let data = fetch(store, extent)?;
            out[at..at + len].copy_from_slice(&data);
        } else {
            let target = &mut out[at..at + len];
            store.get(extent.place.segment, u64::from(extent.place.offset), target)?;
            let mut done = 0;
            for p in &pieces[i..next] {
                let Content::Stored(e) = &p.content else { continue };
                let n = e.place.stored as usize;
                verified(e, &target[done..done + n])?;
                done += n;
            }
        }
        i = next;
    }
    Ok(())
}
