//! Takes what lives out of a segment, for the cleaner.
//!
//! Stored bytes are verified and copied as they are. Only of a compressed unit that lives in parts the parts are compressed anew, with
//! the codec that they had, if that makes less than the unit.

use crate::batch::{Entry, Logical, Payload, Summary};
use crate::codec::{Fields, corrupt, crc32c};
use crate::compress::compress;
use crate::contents::{Bytes, Contents};
use crate::copies::get_right;
use crate::extent::{BLOCK_BYTES, Birth, Codec, Extent, Place};
use crate::layouts::{
    CatalogLayout, DeadLayout, DeadListLayout, ForwardLayout, MapLayout, SegmentInfo, SegmentsLayout,
};
use crate::options::Compression;
use crate::packer::plain;
use crate::read::{fetch_stored, unpack, verified};
use crate::space::Bounds;
use crate::state::State;
use crate::store::SegmentId;
use crate::tree::{Edit, Layout, NODE_BYTES, NodeHead, Root, lookup_extents};
use crate::usage::Nodes;
use std::io;

/// Level of what is compressed anew, if the disk does not say another.
const ZSTD_LEVEL: i32 = 3;

/// Blocks to move: a plain extent, or a compressed unit.
pub(crate) struct Move {
    pub(crate) at: Logical,
    pub(crate) version: u64,
    /// Where they are.
    pub(crate) source: Birth,
    /// Where they were first written, if snapshots have them.
    pub(crate) forward: Option<Birth>,
    /// Bits of the blocks of a compressed unit that live; all are set for others.
    pub(crate) mapped: u16,
    /// Their place, for what each part of them accounts for.
    pub(crate) place: Place,
    pub(crate) payload: Payload,
    /// As it is stored.
    pub(crate) data: Vec<u8>,
}

/// A node to move that snapshots have.
pub(crate) struct NodeMove {
    pub(crate) head: NodeHead,
    pub(crate) birth: Birth,
    pub(crate) crc: u32,
    pub(crate) data: Vec<u8>,
}

/// What was taken out of segments, and how much more may be.
#[derive(Default)]
pub(crate) struct Evacuated {
    pub(crate) moves: Vec<Move>,
    pub(crate) nodes: Vec<NodeMove>,
    /// Bytes of data.
    pub(crate) bytes: u64,
    /// Extents and nodes that change.
    pub(crate) changes: u64,
    /// Whether there were nodes among what was looked at, also dead ones: the last checkpoint may refer to these.
    pub(crate) had_nodes: bool,
}

impl Evacuated {
    /// Whether it is as much as may be.
    pub(crate) fn is_full(&self, bounds: Bounds) -> bool {
        self.bytes >= bounds.bytes || self.changes >= bounds.changes
    }

    pub(crate) fn push(&mut self, m: Move) {
        self.bytes += m.data.len() as u64;
        self.changes += 1;
        self.moves.push(m);
    }
}

/// Blocks of an extent with one owner: first, number, and the birth if snapshots have them.
type Piece = (u32, u32, Option<Birth>);

/// What is evacuated: which blocks of its segment are dead, and what was read of the segment.
pub(crate) struct Source<'a> {
    pub(crate) dead: &'a [bool],
    pub(crate) bytes: &'a Bytes,
}

impl State {
    /// Collects what lives in a segment, until there is enough. False if something is left.
    pub(crate) fn evacuate(
        &mut self,
        id: SegmentId,
        info: &SegmentInfo,
        out: &mut Evacuated,
        bounds: Bounds,
    ) -> io::Result<bool> {
        let dead = self.usage.dead_blocks(&*self.store, &self.cache, id)?;
        let around = self.around.chunk();
        let Contents { batches, rest } = Contents::read(&*self.store, self.log.uuid, id, info, around)?;
        for summary in batches {
            let batch = if rest.has(&summary) { Bytes::default() } else { self.batch_data(&summary, &dead)? };
            let source = Source { dead: &dead, bytes: if rest.has(&summary) { &rest } else { &batch } };
            for (entry, ordinal, offset) in summary.placed() {
                if out.is_full(bounds) {
                    return Ok(false);
                }
                out.had_nodes |= entry.is_made();
                self.evacuate_entry(entry, Birth { segment: id, ordinal }, offset, &source, out)?;
            }
        }
        Ok(true)
    }

    /// Collects what lives of the blocks of an entry.
    pub(crate) fn evacuate_entry(
        &mut self,
        entry: &Entry,
        here: Birth,
        offset: u32,
        source: &Source<'_>,
        out: &mut Evacuated,
    ) -> io::Result<()> {
        let is_dead = source.dead.get(here.ordinal as usize).copied().unwrap_or(true);
        match entry {
            Entry::Write { at, version, data }
            | Entry::Remap { at, version, data, .. }
            | Entry::Forward { at, version, data, .. } => {
                let birth = if let Entry::Forward { birth, .. } = entry { Some(*birth) } else { None };
                let whole = Extent { blocks: data.blocks, version: *version, place: place_of(data, here, offset) };
                self.evacuate_extent(*at, birth, &whole, source, out)
            }
            Entry::Node { head, crc } if !is_dead => {
                self.evacuate_node(head, None, here, (offset, *crc), source.bytes, out)
            }
            Entry::ForwardNode { head, birth, crc } if !is_dead => {
                self.evacuate_node(head, Some(*birth), here, (offset, *crc), source.bytes, out)
            }
            _ => Ok(()),
        }
    }

    /// The data of a batch, if enough of it lives that reading all of it in one request pays.
    fn batch_data(&self, s: &Summary, dead: &[bool]) -> io::Result<Bytes> {
        let stored: u64 = s.entries.iter().map(|e| u64::from(e.stored())).sum();
        let n: u32 = s.entries.iter().map(Entry::ordinals).sum();
        let range = s.first_ordinal as usize..(s.first_ordinal + n) as usize;
        let live = dead.get(range).map_or(0, |d| d.iter().filter(|d| !**d).count());
        if live * 4 < n as usize || stored == 0 {
            return Ok(Bytes::default());
        }
        Bytes::read(&*self.store, s.segment, s.offset + s.data_start, stored as usize)
    }

    /// The stored bytes of an extent, verified, from what was read of its segment.
    fn load(&self, source: &Source<'_>, extent: &Extent) -> io::Result<Vec<u8>> {
        match source.bytes.get(extent.place.offset, extent.place.stored as usize) {
            Some(stored) if verified(extent, stored).is_ok() => Ok(stored.to_vec()),
            // Perhaps another copy has it.
            _ => fetch_stored(&*self.store, extent),
        }
    }

    /// What lives of an extent.
    fn evacuate_extent(
        &self,
        at: Logical,
        birth: Option<Birth>,
        whole: &Extent,
        source: &Source<'_>,
        out: &mut Evacuated,
    ) -> io::Result<()> {
        let mut pieces: Vec<Piece> = Vec::new();
        let is_dead = |i: u32| source.dead.get((whole.place.ordinal + i) as usize).copied().unwrap_or(true);
        if (0..whole.blocks).all(is_dead) {
            return Ok(());
        }
        // A map that was rebuilt refers to a copy by its own place.
        let birth = match birth {
            Some(b) if self.is_forwarded(b, whole)? => Some(b),
            _ => None,
        };
        let mut i = 0;
        while i < whole.blocks {
            let end = (i..whole.blocks).find(|&j| is_dead(j) != is_dead(i)).unwrap_or(whole.blocks);
            if !is_dead(i) {
                self.owners(at, birth, whole, (i, end - i), &mut pieces)?;
            }
            i = end;
        }
        let of = |skip: u32, forward: Option<Birth>, place: Place, payload: Payload, data: Vec<u8>| Move {
            at: Logical { branch: at.branch, block: at.block + u64::from(skip) },
            version: whole.version,
            source: place.birth(),
            forward,
            mapped: u16::MAX,
            place,
            payload,
            data,
        };
        if whole.place.codec == Codec::Plain {
            for (skip, blocks, forward) in pieces {
                let part = whole.part(skip, blocks);
                let data = self.load(source, &part)?;
                out.push(of(skip, forward, part.place, plain(&data), data));
            }
            return Ok(());
        }
        let stored = self.load(source, whole)?;
        let payload = |codec, blocks, data: &[u8], crcs| Payload { codec, blocks, stored: data.len() as u32, crcs };
        let as_it_is = || payload(whole.place.codec, whole.blocks, &stored, whole.place.crcs.clone());
        if let [(0, blocks, forward)] = pieces[..]
            && blocks == whole.blocks
        {
            out.push(of(0, forward, whole.place.clone(), as_it_is(), stored.clone()));
            return Ok(());
        }
        let unit = unpack(whole, &stored)?;
        let mut parts = Vec::new();
        for &(skip, blocks, forward) in &pieces {
            let range = skip as usize * BLOCK_BYTES..(skip + blocks) as usize * BLOCK_BYTES;
            let data = unit.get(range).ok_or_else(|| corrupt("an extent is longer than its unit"))?;
            let how = match (whole.place.codec, self.options.compression) {
                (Codec::Zstd, Compression::Zstd(level)) => Compression::Zstd(level),
                (Codec::Zstd, _) => Compression::Zstd(ZSTD_LEVEL),
                _ => Compression::Lz4,
            };
            let (payload, data) = match compress(how, data) {
                Some((codec, packed)) => (payload(codec, blocks, &packed, vec![crc32c(&packed)]), packed),
                None => (plain(data), data.to_vec()),
            };
            parts.push(of(skip, forward, whole.place.part(skip, blocks), payload, data));
        }
        // What only the branch has can be mapped to a copy of the unit that has more than that.
        let of_branch = pieces.iter().all(|(_, _, forward)| forward.is_none());
        if of_branch && parts.iter().map(|m| m.data.len()).sum::<usize>() >= stored.len() {
            let bits = |&(first, blocks, _): &Piece| (first..first + blocks).fold(0u16, |bits, i| bits | 1 << (i % 16));
            let mapped = pieces.iter().fold(0, |all, piece| all | bits(piece));
            out.push(Move { mapped, ..of(0, None, whole.place.clone(), as_it_is(), stored) });
        } else {
            parts.into_iter().for_each(|m| out.push(m));
        }
        Ok(())
    }

    /// Whether the forwards of a birth lead to an extent.
    fn is_forwarded(&self, birth: Birth, now: &Extent) -> io::Result<bool> {
        let found = lookup_extents(&self.forward, &self.nodes().direct(), birth, u64::from(now.blocks))?;
        Ok(found.iter().any(|(_, e)| e.place.segment == now.place.segment))
    }

    /// Who refers to some blocks (first, number) of an extent that live?
    fn owners(
        &self,
        at: Logical,
        birth: Option<Birth>,
        whole: &Extent,
        (from, blocks): (u32, u32),
        pieces: &mut Vec<Piece>,
    ) -> io::Result<()> {
        let own = birth.unwrap_or(whole.place.birth());
        let mut push = |first: u32, blocks: u32, snapshots: bool| {
            let birth = Birth { segment: own.segment, ordinal: own.ordinal + first };
            pieces.push((first, blocks, snapshots.then_some(birth)));
        };
        let branch = self.catalog.branches.get(&at.branch);
        let Some(branch) = branch.filter(|b| birth.is_none() && whole.version > b.floor) else {
            push(from, blocks, true);
            return Ok(());
        };
        // No snapshot is as young as the blocks: the branch has them, and only it.
        let start = at.block + u64::from(from);
        let mut done = from;
        for (block, e) in lookup_extents(&branch.root, &self.nodes(), start, u64::from(blocks))? {
            let first = (block - at.block) as u32;
            if e.place.segment == whole.place.segment && e.place.ordinal == whole.place.ordinal + first {
                if first > done {
                    push(done, first - done, true);
                }
                push(first, e.blocks, false);
                done = first + e.blocks;
            }
        }
        if done < from + blocks {
            push(done, from + blocks - done, true);
        }
        Ok(())
    }

    fn evacuate_node(
        &mut self,
        head: &NodeHead,
        birth: Option<Birth>,
        source: Birth,
        (offset, crc): (u32, u32),
        read: &Bytes,
        out: &mut Evacuated,
    ) -> io::Result<()> {
        // A node below it was brought into memory before, and took this one along.
        let gone = |(at, blocks): &(Birth, u32)| {
            at.segment == source.segment && (at.ordinal..at.ordinal + blocks).contains(&source.ordinal)
        };
        if self.usage.newly_dead.iter().any(gone) {
            return Ok(());
        }
        if birth.is_none() && self.touch_node(head, source)? {
            out.changes += 1;
            return Ok(());
        }
        if head.tree != MapLayout::TREE {
            return Err(corrupt("a node lives that its tree does not have"));
        }
        let mut is_right = |b: &[u8]| crc32c(b) == crc;
        let mut data = read.get(offset, NODE_BYTES).map_or_else(|| vec![0; NODE_BYTES], <[u8]>::to_vec);
        if !is_right(&data) && !get_right(&*self.store, source.segment, u64::from(offset), &mut data, &mut is_right)? {
            return Err(corrupt("the checksum of a node is wrong"));
        }
        out.bytes += data.len() as u64;
        out.changes += 1;
        out.nodes.push(NodeMove { head: head.clone(), birth: birth.unwrap_or(source), crc, data });
        Ok(())
    }

    /// Brings a node into memory if only one tree refers to it. Returns whether it was found.
    fn touch_node(&mut self, head: &NodeHead, source: Birth) -> io::Result<bool> {
        let at = (source.segment, source.ordinal);
        let mut f = Fields::new(&head.key);
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
            SegmentsLayout::TREE => touch(&mut self.usage.segments, &mut edit, head, at),
            DeadLayout::TREE => touch(&mut self.usage.dead, &mut edit, head, at),
            CatalogLayout::TREE => touch(&mut self.catalog.tree, &mut edit, head, at),
            DeadListLayout::TREE => touch(&mut self.dead_lists, &mut edit, head, at),
            _ => Ok(false),
        };
        self.free_retired(&retired)?;
        found
    }
}

fn touch<L: Layout>(
    root: &mut Root<L>,
    edit: &mut Edit<'_, Nodes<'_>>,
    head: &NodeHead,
    at: (u64, u32),
) -> io::Result<bool> {
    let key = L::get_key(&mut Fields::new(&head.key))?;
    root.touch(edit, &key, head.level, at)
}

/// Where the blocks of an entry are.
pub(crate) fn place_of(p: &Payload, at: Birth, offset: u32) -> Place {
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
