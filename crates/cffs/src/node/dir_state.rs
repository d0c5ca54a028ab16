//! What is remembered of a directory while its inode is in memory. All of it can be rebuilt from the device.

use crate::addr_map::AddrMap;
use crate::cache::{BufRef, Cache, WeakBufRef};
use crate::error::Result;
use crate::format::dirblock::DIR_BLOCKS_MAX;
use crate::format::dirindex::BUCKET_NUMBER;
use crate::format::{BlockAddr, BlockKind, Corrupt, Ino, get_u32};
use parking_lot::{Mutex, RwLock};
use std::ops::Range;

/// Blocks with known room that are remembered.
const ROOM_HINTS_MAX: usize = 16;
/// Runs of the mapping that are remembered; a directory in more pieces than that starts over.
const RUNS_MAX: usize = 4096;
/// Places for buckets of the index that are remembered; several buckets share one where there are more.
const BUCKETS_MAX: u32 = 8192;

/// In-core helpers of one directory; lives beside its in-core inode.
///
/// Lookups under a shared lock of the directory fill it in too, hence the locks inside.
#[derive(Default)]
pub struct DirState {
    pub(crate) map: RwLock<Map>,
    /// Names of a directory without an index, of its first blocks; `None` until the first lookup, and for indexed directories.
    pub(crate) names: RwLock<Option<NameMap>>,
    pub(crate) room_hints: Mutex<RoomHints>,
    buckets: RwLock<Vec<WeakBufRef>>,
}

impl DirState {
    /// Forgets everything, for somebody who changed the directory's blocks or extents other than through this module.
    pub fn reset(&self) {
        *self.map.write() = Map::default();
        *self.names.write() = None;
        *self.room_hints.lock() = RoomHints::default();
        *self.buckets.write() = Vec::new();
    }

    /// A bucket of the index that was looked at before, if it is still in memory.
    pub(crate) fn known_bucket(&self, cache: &Cache, dir: Ino, number: u32) -> Option<BufRef> {
        let known = self.buckets.read();
        let buf = cache.upgrade(known.get((number % BUCKETS_MAX) as usize)?, BlockKind::DirIndex, dir)?;
        let found = get_u32(&buf.read(), BUCKET_NUMBER);
        (found == number).then_some(buf)
    }

    /// A bucket was read or made.
    pub(crate) fn saw_bucket(&self, number: u32, buf: &BufRef) {
        let at = (number % BUCKETS_MAX) as usize;
        let mut known = self.buckets.write();
        if known.len() <= at {
            known.resize(at + 1, WeakBufRef::default());
        }
        known[at] = WeakBufRef::new(buf);
    }

    /// Blocks of the directory are no longer what they were.
    pub(crate) fn forget_buckets(&self, blocks: &Range<u64>) {
        let mut known = self.buckets.write();
        if known.is_empty() {
            return;
        }
        let first = blocks.start.max(DIR_BLOCKS_MAX);
        for lblock in first..blocks.end.min(first + u64::from(BUCKETS_MAX)) {
            let at = (lblock - DIR_BLOCKS_MAX) % u64::from(BUCKETS_MAX);
            if let Some(place) = known.get_mut(at as usize) {
                *place = WeakBufRef::default();
            }
        }
    }

    /// A lookup came across a block with room; remembered if nobody is busy with the list.
    pub(crate) fn saw_room(&self, lblock: u64, free: usize) {
        if let Some(mut hints) = self.room_hints.try_lock() {
            hints.offer(lblock, free);
        }
    }
}

/// Known runs of blocks.
///
/// A sorted vector: it is searched for every block that is read, and changes rarely.
#[derive(Default)]
pub(crate) struct Map(Vec<MapRun>);

#[derive(Clone, Copy)]
struct MapRun {
    lblock: u64,
    len: u64,
    block: BlockAddr,
}

impl MapRun {
    fn end(&self) -> u64 {
        self.lblock + self.len
    }

    /// The part from `lblock` on.
    fn from(&self, lblock: u64) -> MapRun {
        MapRun { lblock, len: self.end() - lblock, block: self.block + (lblock - self.lblock) }
    }
}

impl Map {
    pub(crate) fn get(&self, lblock: u64) -> Option<BlockAddr> {
        let at = self.0.partition_point(|r| r.lblock <= lblock);
        let run = &self.0[at.checked_sub(1)?];
        (lblock < run.end()).then(|| run.block + (lblock - run.lblock))
    }

    pub(crate) fn add(&mut self, lblock: u64, len: u64, block: BlockAddr) {
        if self.0.len() >= RUNS_MAX {
            self.0.clear();
        }
        self.remove(lblock..lblock + len);
        let at = self.0.partition_point(|r| r.lblock < lblock);
        if let Some(before) = at.checked_sub(1).map(|i| &mut self.0[i])
            && before.end() == lblock
            && before.block + before.len == block
        {
            before.len += len;
        } else {
            self.0.insert(at, MapRun { lblock, len, block });
        }
    }

    pub(crate) fn remove(&mut self, range: Range<u64>) {
        let first = self.0.partition_point(|r| r.end() <= range.start);
        let end = self.0.partition_point(|r| r.lblock < range.end);
        if first >= end {
            return;
        }
        let (head, tail) = (self.0[first], self.0[end - 1]);
        let head = (head.lblock < range.start).then(|| MapRun { len: range.start - head.lblock, ..head });
        let tail = (tail.end() > range.end).then(|| tail.from(range.end));
        self.0.splice(first..end, head.into_iter().chain(tail));
    }
}

/// Hash -> place of the names in the first blocks of a small directory.
#[derive(Default)]
pub(crate) struct NameMap {
    /// All names in blocks before this one are known, and no others. It may be behind the end, where the directory was longer.
    pub(crate) known_to: u64,
    /// Keyed by the hash alone, which an adversary cannot choose.
    first: AddrMap<u64, u32>,
    /// Names whose hash another name has too: hardly ever any.
    others: Vec<(u32, u32)>,
}

fn place(lblock: u64, offset: usize) -> u32 {
    debug_assert!(lblock <= 0xffff && offset <= 0xffff);
    (lblock as u32) << 16 | offset as u32
}

impl NameMap {
    pub(crate) fn insert(&mut self, hash: u32, lblock: u64, offset: usize) {
        if let Some(old) = self.first.insert(u64::from(hash), place(lblock, offset)) {
            self.others.push((hash, old));
        }
    }

    pub(crate) fn remove(&mut self, hash: u32, lblock: u64, offset: usize) {
        let place = place(lblock, offset);
        if self.first.get(&u64::from(hash)) != Some(&place) {
            self.others.retain(|o| *o != (hash, place));
            return;
        }
        if let Some(i) = self.others.iter().position(|o| o.0 == hash) {
            let (_, next) = self.others.swap_remove(i);
            self.first.insert(u64::from(hash), next);
        } else {
            self.first.remove(&u64::from(hash));
        }
    }

    /// Places of the names with this hash, as (block within the directory, byte offset).
    pub(crate) fn find(&self, hash: u32) -> impl Iterator<Item = (u64, usize)> + '_ {
        let first = self.first.get(&u64::from(hash)).copied();
        let others = self.others.iter().filter(move |o| o.0 == hash).map(|o| o.1);
        first.into_iter().chain(others).map(|p| (u64::from(p >> 16), (p & 0xffff) as usize))
    }
}

/// The free entry that names are put into one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Cursor {
    pub(crate) lblock: u64,
    pub(crate) offset: usize,
    pub(crate) room: usize,
}

/// Where there is room for a name: one place at hand and a few blocks worth looking into.
#[derive(Default)]
pub(crate) struct RoomHints {
    pub(crate) cursor: Option<Cursor>,
    /// (Block within the directory, upper bound of its largest free entry).
    list: Vec<(u64, usize)>,
    /// The directory was looked at for room since it came into memory.
    pub(crate) seeded: bool,
    /// Below this block no hole is known.
    pub(crate) hole_from: u64,
}

impl RoomHints {
    /// Remembers that a block has room, if that is worth it.
    pub(crate) fn note(&mut self, lblock: u64, free: usize) {
        if self.cursor.is_some_and(|c| c.lblock == lblock) {
            return;
        }
        if let Some(r) = self.list.iter_mut().find(|r| r.0 == lblock) {
            r.1 = free;
        } else if self.list.len() < ROOM_HINTS_MAX {
            self.list.push((lblock, free));
        } else if let Some(r) = self.list.iter_mut().min_by_key(|r| r.1)
            && r.1 < free
        {
            *r = (lblock, free);
        }
    }

    /// As [`RoomHints::note`], from somebody who knows less: what is known of the block already stays.
    fn offer(&mut self, lblock: u64, free: usize) {
        if !self.list.iter().any(|r| r.0 == lblock) {
            self.note(lblock, free);
        }
    }

    /// A block that may have an entry of `need` bytes free.
    pub(crate) fn candidate(&self, need: usize) -> Option<u64> {
        self.list.iter().rev().find(|r| r.1 >= need).map(|r| r.0)
    }

    /// Puts names into this free entry from now on.
    pub(crate) fn set_cursor(&mut self, cursor: Cursor) {
        self.list.retain(|r| r.0 != cursor.lblock);
        if let Some(old) = self.cursor.replace(cursor)
            && old.lblock != cursor.lblock
        {
            self.note(old.lblock, old.room);
        }
    }

    /// An entry of `len` bytes was put at a place.
    pub(crate) fn used(&mut self, lblock: u64, offset: usize, len: usize) {
        if let Some(c) = &mut self.cursor
            && (c.lblock, c.offset) == (lblock, offset)
        {
            c.offset += len;
            c.room -= len;
        }
    }

    /// The block is gone, or changed so that a remembered place in it may not be one any more.
    pub(crate) fn forget(&mut self, lblock: u64) {
        self.list.retain(|r| r.0 != lblock);
        if self.cursor.is_some_and(|c| c.lblock == lblock) {
            self.cursor = None;
        }
    }

    /// The blocks from this one on are gone.
    pub(crate) fn forget_from(&mut self, lblock: u64) {
        self.list.retain(|r| r.0 < lblock);
        self.cursor = self.cursor.filter(|c| c.lblock < lblock);
    }
}

/// Shorthand for an error about a directory.
pub(crate) fn damaged<T>(dir: u64, what: impl std::fmt::Display) -> Result<T> {
    Err(Corrupt(format!("directory {dir}: {what}")).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_map_remembers_runs(ops in proptest::collection::vec((any::<bool>(), 0u64..60, 1u64..12), 1..80)) {
            let mut map = Map::default();
            let mut model = [None; 80];
            for (i, (add, at, len)) in ops.into_iter().enumerate() {
                let block = if i % 2 == 0 { 1000 + at } else { 5000 + i as u64 * 100 };
                if add {
                    map.add(at, len, block);
                } else {
                    map.remove(at..at + len);
                }
                for l in at..at + len {
                    model[l as usize] = add.then(|| block + (l - at));
                }
                for l in 0..80 {
                    prop_assert_eq!(map.get(l), model[l as usize]);
                }
            }
        }
    }

    #[test]
    fn names_with_one_hash_are_told_apart_by_place() {
        let mut m = NameMap::default();
        for i in 0..5000u32 {
            m.insert(i / 2, u64::from(i % 8), 64 + i as usize * 8);
        }
        assert_eq!(m.find(7).collect::<Vec<_>>().len(), 2);
        m.remove(7, 6, 64 + 14 * 8);
        assert_eq!(m.find(7).collect::<Vec<_>>(), [(7, 64 + 15 * 8)]);
        m.remove(7, 6, 64 + 14 * 8);
        assert_eq!(m.find(7).count(), 1, "removing what is not there changes nothing");
    }

    #[test]
    fn the_list_of_rooms_keeps_the_largest() {
        let mut r = RoomHints::default();
        for l in 0..100 {
            r.note(l, 100 + l as usize);
        }
        assert_eq!(r.list.len(), ROOM_HINTS_MAX);
        assert!(r.candidate(199).is_some() && r.candidate(200).is_none());
        let l = r.candidate(199).unwrap();
        r.forget(l);
        assert!(r.candidate(199).is_none());
    }
}
