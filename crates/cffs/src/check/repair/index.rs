//! Directory indexes: compared with the names, and written anew where they differ.

use super::directories::Name;
use super::extent_map::{Map, add_extents, blocks_of};
use super::findings::inode_place;
use super::repairer::Repairer;
use crate::check::Class;
use crate::error::Result;
use crate::format::dirblock::{DIR_BLOCKS_MAX, DIR_LBLOCK, entries};
use crate::format::dirindex::{
    BUCKET_COUNT, BUCKET_FLAGS, BUCKET_NUMBER, BUCKET_OVERFLOWED, PAIR_SIZE, bucket_capacity, bucket_of, bucket_target,
    pairs,
};
use crate::format::{
    BlockAddr, BlockId, BlockKind, Extent, Ino, Inode, META_HEADER_SIZE, get_u32, get_u64, init_block, put_u32,
};

/// Entry blocks from which on a directory gets an index; the engine has the same limit.
const INDEXED_BLOCKS: u64 = 8;

impl Repairer<'_> {
    /// Whether the index agrees with the names.
    pub(super) fn index_is_right(&mut self, inode: &Inode, map: &Map, names: &mut [Name]) -> bool {
        let buckets = inode.index_buckets;
        if buckets == 0 {
            return true;
        }
        if map.wrong.is_some() || u64::from(buckets) > self.g.total_blocks {
            return false;
        }
        names.sort_unstable_by_key(|n| (bucket_of(n.hash, buckets), n.hash, n.lblock));
        let mut rest: &[Name] = names;
        for number in 0..buckets {
            let count = rest.partition_point(|n| bucket_of(n.hash, buckets) <= number);
            let (mine, others) = rest.split_at(count);
            rest = others;
            if !self.bucket_is_right(inode.ino, map, number, mine) {
                return false;
            }
        }
        true
    }

    fn bucket_is_right(&mut self, ino: Ino, map: &Map, number: u32, names: &[Name]) -> bool {
        let fpb = self.g.frags_per_block();
        let logical = (DIR_BLOCKS_MAX + u64::from(number)) * fpb;
        let i = map.extents.partition_point(|e| e.end() <= logical);
        let Some(e) = map.extents.get(i).filter(|e| e.logical <= logical) else { return false };
        let addr = (e.start + (logical - e.logical)) / fpb;
        let Ok(block) = self.vol.meta(BlockId { kind: BlockKind::DirIndex, addr, owner: ino }) else { return false };
        if get_u32(&block, BUCKET_NUMBER) != number || crate::format::dirindex::validate(&block).is_err() {
            return false;
        }
        let mut found: Vec<(u32, u32)> = pairs(&block).collect();
        found.sort_unstable();
        let mut wanted = names.iter().map(|n| (n.hash, n.lblock)).peekable();
        let overflowed = get_u32(&block, BUCKET_FLAGS) & BUCKET_OVERFLOWED != 0;
        for pair in found {
            while overflowed && wanted.peek().is_some_and(|w| *w < pair) {
                wanted.next();
            }
            if wanted.next() != Some(pair) {
                return false;
            }
        }
        overflowed || wanted.next().is_none()
    }

    /// Rebuilds the index of a directory in new blocks, or removes it if the directory is small.
    pub(super) fn rebuild_index(&mut self, ino: Ino) -> Result<()> {
        let place = inode_place(ino);
        if !self.fix(Class::IndexBucket, &place, "the index does not match the names".into(), "write it anew")? {
            return Ok(());
        }
        let Some(mut inode) = self.load(ino) else { return Ok(()) };
        let map = self.read_map(&inode);
        let fpb = self.g.frags_per_block();
        let mut list = Vec::new();
        for e in &map.extents {
            if e.logical < DIR_BLOCKS_MAX * fpb {
                list.push(Extent { len: e.len.min(DIR_BLOCKS_MAX * fpb - e.logical), ..*e });
            } else {
                self.space.used.remove(e.start, e.start + e.len);
            }
        }
        let names = self.names_of(&inode, &list);
        let blocks = inode.size / self.g.block_size() as u64;
        let target = bucket_target(self.g.block_size()).max(1);
        let mut buckets = if blocks > INDEXED_BLOCKS { (names.len() as u64).div_ceil(target).max(1) as u32 } else { 0 };
        let mut addrs = Vec::new();
        for _ in 0..buckets {
            match self.alloc_meta() {
                Some(addr) => addrs.push(addr),
                None => break,
            }
        }
        if addrs.len() < buckets as usize {
            // There is no space for an index. Lookups search the directory, which is slow but correct.
            addrs.drain(..).for_each(|a| self.space.release_block(a));
            buckets = 0;
        }
        self.write_buckets(ino, buckets, &addrs, names);
        let more = (DIR_BLOCKS_MAX..).zip(&addrs).map(|(lblock, addr)| self.block_extent(lblock, *addr));
        add_extents(&mut list, more);
        inode.index_buckets = buckets;
        self.set_map(&mut inode, &map, list)?;
        self.store(&inode);
        Ok(())
    }

    fn write_buckets(&mut self, ino: Ino, buckets: u32, addrs: &[BlockAddr], mut names: Vec<(u32, u32)>) {
        if buckets == 0 {
            return;
        }
        names.sort_unstable_by_key(|n| bucket_of(n.0, buckets));
        let capacity = bucket_capacity(self.g.block_size());
        let mut rest: &[(u32, u32)] = &names;
        for (number, addr) in addrs.iter().enumerate() {
            let count = rest.partition_point(|n| bucket_of(n.0, buckets) <= number as u32);
            let (mine, others) = rest.split_at(count);
            rest = others;
            let mut b = vec![0; self.g.block_size()];
            init_block(&mut b, self.g.fsid, BlockId { kind: BlockKind::DirIndex, addr: *addr, owner: ino });
            let kept = &mine[..mine.len().min(capacity)];
            put_u32(&mut b, BUCKET_NUMBER, number as u32);
            put_u32(&mut b, BUCKET_COUNT, kept.len() as u32);
            put_u32(&mut b, BUCKET_FLAGS, if kept.len() < mine.len() { BUCKET_OVERFLOWED } else { 0 });
            for (i, (hash, lblock)) in kept.iter().enumerate() {
                put_u32(&mut b, META_HEADER_SIZE + i * PAIR_SIZE, *hash);
                put_u32(&mut b, META_HEADER_SIZE + i * PAIR_SIZE + 4, *lblock);
            }
            self.vol.put(*addr, b);
        }
    }

    /// Hash and block of every name.
    fn names_of(&mut self, inode: &Inode, list: &[Extent]) -> Vec<(u32, u32)> {
        let (fpb, blocks) = (self.g.frags_per_block(), inode.size / self.g.block_size() as u64);
        let mut names = Vec::new();
        for (lblock, addr) in blocks_of(list, fpb).take_while(|(lblock, _)| *lblock < blocks) {
            let Some(b) = self.entry_block(inode.ino, addr) else { continue };
            if get_u64(&b, DIR_LBLOCK) == lblock {
                names.extend(entries(&b).filter(|e| e.is_name()).map(|e| (e.hash, lblock as u32)));
            }
        }
        names
    }
}
