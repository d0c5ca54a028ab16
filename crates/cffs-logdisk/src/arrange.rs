//! Brings blocks to one place that are read together and lie apart, because each was written with whatever else was written at that time.
//!
//! They are copied as the cleaner copies, so whoever refers to them sees no difference. What a snapshot has as well stays where it is: the
//! order in which it is read is that of another time.

use crate::batch::{Logical, Payload};
use crate::evacuate::{Evacuated, Move};
use crate::extent::{BLOCK_BYTES, Codec, Extent, Place};
use crate::log::STREAM_NEW;
use crate::options::CleanPolicy;
use crate::packer::plain;
use crate::read::{Content, GAP_BYTES, Piece, Reader, end_of, fetch_pieces, fetch_stored, is_near, verified};
use crate::space::{Change, Level};
use crate::state::State;
use crate::store::Get;
use crate::tree::lookup_extents;
use cffs_device::Purpose;
use std::io;
use std::ops::Range;

/// Blocks that are copied at a time, for which all others wait.
const AT_ONCE: u64 = 128;

impl State {
    /// Ranges of blocks, cut where others get their turn: not within a compressed unit.
    pub(crate) fn cut_up(&self, branch: u32, ranges: &[Range<u64>]) -> io::Result<Vec<Vec<Range<u64>>>> {
        let most = AT_ONCE.min(self.extents_max() as u64);
        let (mut all, mut some, mut left) = (Vec::new(), Vec::new(), most);
        for r in ranges {
            let mut at = r.start;
            while at < r.end {
                let mut end = r.end.min(at + left);
                if end < r.end {
                    end = Some(self.unit_around(branch, end)?).filter(|start| *start > at).unwrap_or(end);
                }
                some.push(at..end);
                left = left.saturating_sub(end - at);
                if left == 0 || end < r.end {
                    all.push(std::mem::take(&mut some));
                    left = most;
                }
                at = end;
            }
        }
        all.push(some);
        Ok(all)
    }

    /// Where the compressed unit begins that has a block and the one before it; the block itself where there is none.
    fn unit_around(&self, branch: u32, block: u64) -> io::Result<u64> {
        let Some(b) = self.catalog.branches.get(&branch).filter(|_| block > 0) else { return Ok(block) };
        let found = lookup_extents(&b.root, &self.nodes(), block - 1, 2)?;
        Ok(match &found[..] {
            [(at, e)] if e.blocks == 2 && e.place.codec != Codec::Plain => at.saturating_sub(u64::from(e.place.index)),
            _ => block,
        })
    }

    /// Sees to it that there is room for so many blocks more, as far as a small store can have it for them at once.
    ///
    /// # Errors
    /// `StorageFull`; those after which nothing can be written any more.
    pub(crate) fn make_room_for(&mut self, blocks: u64) -> io::Result<()> {
        self.check()?;
        self.seal()?;
        let blocks = blocks.min(self.extents_max() as u64);
        self.ensure_room(Change::blocks(blocks, blocks), Level::Takes)
    }

    /// Copies what a branch alone has of some blocks, which follow each other, to one place. Returns the bytes. What has no room or cannot be verified stays
    /// where it is.
    ///
    /// # Errors
    /// Those after which nothing can be written any more.
    pub(crate) fn bring_together(&mut self, branch: u32, ranges: &[Range<u64>]) -> io::Result<u64> {
        self.check()?;
        let copied = self.copy_in_order(branch, ranges).or_else(|_| self.check().map(|()| 0))?;
        if copied > 0 && (self.checkpoint_is_due() || self.round_bounds().is_none()) {
            self.checkpoint()?;
        }
        Ok(copied)
    }

    /// Whether what [`State::bring_together`] would copy follows each other already: in one segment, or from the end of one to the beginning of another.
    pub(crate) fn is_in_order(&self, branch: u32, ranges: &[Range<u64>]) -> io::Result<bool> {
        let mut own = Vec::new();
        for r in ranges {
            own.extend(self.own_extents(branch, r)?);
        }
        let goes_on = |a: &Extent, b: &Extent| {
            let used = |e: &Extent| self.usage.table.get(&e.place.segment).map_or(0, |info| u64::from(info.used));
            is_near(a, b) || end_of(a) + GAP_BYTES >= used(a) && u64::from(b.place.offset) <= GAP_BYTES
        };
        Ok(own.is_sorted_by(|(_, a), (_, b)| goes_on(a, b)))
    }

    /// What a branch alone has of some blocks, and is a whole.
    fn own_extents(&self, branch: u32, blocks: &Range<u64>) -> io::Result<Vec<(u64, Extent)>> {
        let Some(b) = self.catalog.branches.get(&branch).filter(|b| !b.deleting) else { return Ok(Vec::new()) };
        let mut own = Vec::new();
        for (at, e) in lookup_extents(&b.root, &self.nodes(), blocks.start, blocks.end - blocks.start)? {
            let p = &e.place;
            // Of a compressed unit a part is as long as the whole.
            let is_whole = p.codec == Codec::Plain || p.index == 0 && e.blocks == p.unit_blocks;
            if is_whole && e.version > b.floor && !self.has_forwards(&e)? {
                own.push((at, e));
            }
        }
        Ok(own)
    }

    /// Whether the forwards have a part of an extent, which snapshots had then.
    fn has_forwards(&self, e: &Extent) -> io::Result<bool> {
        if self.usage.table.get(&e.place.segment).is_some_and(|info| !info.forwarded) {
            return Ok(false);
        }
        let found = lookup_extents(&self.forward, &self.nodes().direct(), e.place.birth(), u64::from(e.blocks))?;
        Ok(!found.is_empty())
    }

    fn copy_in_order(&mut self, branch: u32, ranges: &[Range<u64>]) -> io::Result<u64> {
        let count: u64 = ranges.iter().map(|r| r.end - r.start).sum();
        if count == 0 {
            return Ok(0);
        }
        // To clean now would put other copies between these and those before them.
        if self.store.available() < self.need(self.pending_change().and(Change::blocks(count, count)), Level::Takes) {
            return Ok(0);
        }
        // First block among all that are asked for, the block itself, and where it is.
        let (mut own, mut first): (Vec<(usize, u64, Extent)>, usize) = (Vec::new(), 0);
        for r in ranges {
            let of_range = self.own_extents(branch, r)?;
            own.extend(of_range.into_iter().map(|(at, e)| (first + (at - r.start) as usize, at, e)));
            first += (r.end - r.start) as usize;
        }
        let _purpose = Purpose::Clean.scope();
        let mut data = vec![0; count as usize * BLOCK_BYTES];
        let plain_ones = own.iter().filter(|(.., e)| e.place.codec == Codec::Plain);
        let plain_ones: Vec<Piece> =
            plain_ones.map(|(first, _, e)| Piece { first: *first, content: Content::Stored(e.clone()) }).collect();
        let reader = Reader { store: &*self.store, around: &self.around, used: self.used_of(&plain_ones) };
        fetch_pieces(&reader, plain_ones, &mut data)?;
        let packed: Vec<&Place> = own.iter().map(|(.., e)| &e.place).filter(|p| p.codec != Codec::Plain).collect();
        let mut units: Vec<Vec<u8>> = packed.iter().map(|p| vec![0; p.stored as usize]).collect();
        let both = packed.iter().zip(&mut units);
        let mut gets: Vec<Get<'_>> =
            both.map(|(p, buf)| Get { segment: p.segment, offset: u64::from(p.offset), buf }).collect();
        self.store.get_all(&mut gets)?;
        let mut units = units.into_iter();
        let mut out = Evacuated::default();
        // They are as old as they were, or nothing would ever be known to be old.
        let (mut ages, mut count) = (0, 0);
        for (first, at, e) in own {
            let age = self.usage.table.get(&e.place.segment).map_or(0, |info| info.age);
            (ages, count) = (ages + u128::from(age) * u128::from(e.blocks), count + u128::from(e.blocks));
            let (payload, data) = if e.place.codec == Codec::Plain {
                let data = &data[first * BLOCK_BYTES..(first + e.blocks as usize) * BLOCK_BYTES];
                (plain(data), data.to_vec())
            } else {
                let read = units.next().filter(|stored| verified(&e, stored).is_ok());
                // Perhaps another copy has it.
                let stored = read.map_or_else(|| fetch_stored(&*self.store, &e), Ok)?;
                let p = &e.place;
                (Payload { codec: p.codec, blocks: e.blocks, stored: p.stored, crcs: p.crcs.clone() }, stored)
            };
            out.push(Move {
                at: Logical { branch, block: at },
                version: e.version,
                source: e.place.birth(),
                forward: None,
                mapped: u16::MAX,
                place: e.place,
                payload,
                data,
            });
        }
        let stream = if self.options.policy == CleanPolicy::Greedy { STREAM_NEW } else { STREAM_NEW + 1 };
        self.write_copies(stream, ages.checked_div(count).map(|age| age as u64), out)
    }
}
