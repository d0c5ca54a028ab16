//! What is in each of the trees.

use crate::codec::{Fields, PutFields, corrupt};
use crate::extent::{Birth, EXTENT_BLOCKS_MAX, Extent};
use crate::tree::{ExtentKey, Layout};
use std::io;

fn overflow() -> io::Error {
    corrupt("a range of blocks ends beyond the last number")
}

/// Logical block -> extent; one tree for each branch and snapshot.
#[derive(Clone, Debug)]
pub(crate) struct MapLayout;

impl ExtentKey for u64 {
    fn plus(self, blocks: u64) -> io::Result<Self> {
        self.checked_add(blocks).ok_or_else(overflow)
    }
    fn since(self, earlier: Self) -> u64 {
        self.saturating_sub(earlier)
    }
}

impl Layout for MapLayout {
    type Key = u64;
    type Value = Extent;
    const TREE: u8 = 1;
    const KEY_BYTES: usize = 8;
    fn put_key(key: &u64, out: &mut Vec<u8>) {
        out.put_u64(*key);
    }
    fn get_key(f: &mut Fields<'_>) -> io::Result<u64> {
        f.u64()
    }
    fn value_bytes(value: &Extent) -> usize {
        value.encoded_bytes()
    }
    fn put_value(value: &Extent, out: &mut Vec<u8>) {
        value.encode(out);
    }
    fn get_value(f: &mut Fields<'_>) -> io::Result<Extent> {
        Extent::decode(f)
    }
}

impl ExtentKey for Birth {
    fn plus(self, blocks: u64) -> io::Result<Self> {
        let ordinal = u32::try_from(blocks).ok().and_then(|n| self.ordinal.checked_add(n)).ok_or_else(overflow)?;
        Ok(Birth { segment: self.segment, ordinal })
    }
    fn since(self, earlier: Self) -> u64 {
        u64::from(self.ordinal.saturating_sub(earlier.ordinal))
    }
}

/// Birth -> where the block is now, for blocks that were moved while a snapshot referred to them. Also for nodes.
#[derive(Clone, Debug)]
pub(crate) struct ForwardLayout;

impl Layout for ForwardLayout {
    type Key = Birth;
    type Value = Extent;
    const TREE: u8 = 2;
    const KEY_BYTES: usize = 12;
    fn put_key(key: &Birth, out: &mut Vec<u8>) {
        out.put_u64(key.segment);
        out.put_u32(key.ordinal);
    }
    fn get_key(f: &mut Fields<'_>) -> io::Result<Birth> {
        Ok(Birth { segment: f.u64()?, ordinal: f.u32()? })
    }
    fn value_bytes(value: &Extent) -> usize {
        value.encoded_bytes()
    }
    fn put_value(value: &Extent, out: &mut Vec<u8>) {
        value.encode(out);
    }
    fn get_value(f: &mut Fields<'_>) -> io::Result<Extent> {
        Extent::decode(f)
    }
}

/// A segment as the table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct SegmentInfo {
    /// Bytes that were written to it.
    pub(crate) used: u32,
    /// Numbers given to its blocks so far.
    pub(crate) ordinals: u32,
    /// Bytes that somebody refers to.
    pub(crate) live: u64,
    /// When its data was written: the number of a batch, on average over its bytes.
    pub(crate) age: u64,
    /// Blocks of it have been moved, so that their forwards say where they are.
    pub(crate) forwarded: bool,
    /// How often its contents have been copied by the cleaner.
    pub(crate) stream: u8,
}

/// Segment -> what is known of it.
#[derive(Clone, Debug)]
pub(crate) struct SegmentsLayout;

impl SegmentInfo {
    pub(crate) const BYTES: usize = 26;

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.used);
        out.put_u32(self.ordinals);
        out.put_u64(self.live);
        out.put_u64(self.age);
        out.put_u8(u8::from(self.forwarded));
        out.put_u8(self.stream);
    }

    pub(crate) fn decode(f: &mut Fields<'_>) -> io::Result<Self> {
        let info = SegmentInfo {
            used: f.u32()?,
            ordinals: f.u32()?,
            live: f.u64()?,
            age: f.u64()?,
            forwarded: f.u8()? != 0,
            stream: f.u8()?,
        };
        // A unit of 16 blocks takes 35 bytes at least.
        if info.live > u64::from(info.used) || info.ordinals > info.used / 2 {
            return Err(corrupt("a segment has more than fits it"));
        }
        Ok(info)
    }
}

impl Layout for SegmentsLayout {
    type Key = u64;
    type Value = SegmentInfo;
    const TREE: u8 = 3;
    const KEY_BYTES: usize = 8;
    fn put_key(key: &u64, out: &mut Vec<u8>) {
        out.put_u64(*key);
    }
    fn get_key(f: &mut Fields<'_>) -> io::Result<u64> {
        f.u64()
    }
    fn value_bytes(_: &SegmentInfo) -> usize {
        SegmentInfo::BYTES
    }
    fn put_value(value: &SegmentInfo, out: &mut Vec<u8>) {
        value.encode(out);
    }
    fn get_value(f: &mut Fields<'_>) -> io::Result<SegmentInfo> {
        SegmentInfo::decode(f)
    }
}

/// Blocks of a segment in one page of its bitmap.
pub(crate) const PAGE_BLOCKS: u32 = 1024;

/// A page of a bitmap by ordinal: a set bit says that nobody refers to the block any more.
pub(crate) type Page = [u64; PAGE_BLOCKS as usize / 64];

/// First block of a page -> the page. A page without set bits is left out.
#[derive(Clone, Debug)]
pub(crate) struct DeadLayout;

impl Layout for DeadLayout {
    type Key = Birth;
    type Value = Page;
    const TREE: u8 = 4;
    const KEY_BYTES: usize = 12;
    fn put_key(key: &Birth, out: &mut Vec<u8>) {
        ForwardLayout::put_key(key, out);
    }
    fn get_key(f: &mut Fields<'_>) -> io::Result<Birth> {
        ForwardLayout::get_key(f)
    }
    fn value_bytes(_: &Page) -> usize {
        PAGE_BLOCKS as usize / 8
    }
    fn put_value(value: &Page, out: &mut Vec<u8>) {
        value.iter().for_each(|&w| out.put_u64(w));
    }
    fn get_value(f: &mut Fields<'_>) -> io::Result<Page> {
        let mut page = [0; PAGE_BLOCKS as usize / 64];
        for word in &mut page {
            *word = f.u64()?;
        }
        Ok(page)
    }
}

/// Orders the blocks of a dead list by the version in which they were written, because that decides who else refers to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeadKey {
    pub(crate) list: u64,
    pub(crate) version: u64,
    pub(crate) birth: Birth,
}

/// Blocks that were overwritten in a branch while an older snapshot referred to them -> how many, and their bytes.
#[derive(Clone, Debug)]
pub(crate) struct DeadListLayout;

impl Layout for DeadListLayout {
    type Key = DeadKey;
    type Value = (u32, u32);
    const TREE: u8 = 5;
    const KEY_BYTES: usize = 28;
    fn put_key(key: &DeadKey, out: &mut Vec<u8>) {
        out.put_u64(key.list);
        out.put_u64(key.version);
        ForwardLayout::put_key(&key.birth, out);
    }
    fn get_key(f: &mut Fields<'_>) -> io::Result<DeadKey> {
        Ok(DeadKey { list: f.u64()?, version: f.u64()?, birth: ForwardLayout::get_key(f)? })
    }
    fn value_bytes(_: &(u32, u32)) -> usize {
        8
    }
    fn put_value(value: &(u32, u32), out: &mut Vec<u8>) {
        out.put_u32(value.0);
        out.put_u32(value.1);
    }
    fn get_value(f: &mut Fields<'_>) -> io::Result<(u32, u32)> {
        let value = (f.u32()?, f.u32()?);
        if !(1..=EXTENT_BLOCKS_MAX).contains(&value.0) {
            return Err(corrupt("a dead extent has an impossible length"));
        }
        Ok(value)
    }
}

/// Id of a branch or snapshot -> its record, whose bytes `catalog` knows.
#[derive(Clone, Debug)]
pub(crate) struct CatalogLayout;

/// Most bytes of a record in the catalog.
pub(crate) const CATALOG_RECORD_MAX: usize = 512;

impl Layout for CatalogLayout {
    type Key = u64;
    type Value = Vec<u8>;
    const TREE: u8 = 6;
    const KEY_BYTES: usize = 8;
    fn put_key(key: &u64, out: &mut Vec<u8>) {
        out.put_u64(*key);
    }
    fn get_key(f: &mut Fields<'_>) -> io::Result<u64> {
        f.u64()
    }
    fn value_bytes(value: &Vec<u8>) -> usize {
        2 + value.len()
    }
    fn put_value(value: &Vec<u8>, out: &mut Vec<u8>) {
        out.put_u16(value.len() as u16);
        out.extend_from_slice(value);
    }
    fn get_value(f: &mut Fields<'_>) -> io::Result<Vec<u8>> {
        let n = usize::from(f.u16()?);
        if n > CATALOG_RECORD_MAX {
            return Err(corrupt("a record of the catalog is too long"));
        }
        Ok(f.bytes(n)?.to_vec())
    }
}
