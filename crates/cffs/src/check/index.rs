//! Compares a directory's hashed index with its names.

use super::checker::{Checker, DAMAGED_BLOCKS_MAX};
use super::dirs::Name;
use super::extents::BlockMap;
use super::pool::{Ahead, Context};
use super::reader::Block;
use super::report::Class;
use crate::format::dirblock::DIR_BLOCKS_MAX;
use crate::format::dirindex::{BUCKET_FLAGS, BUCKET_NUMBER, BUCKET_OVERFLOWED, bucket_of, pairs, validate};
use crate::format::{BlockAddr, BlockId, BlockKind, Inode, get_u32};

impl Checker<'_> {
    /// `complete`: all names are known, so that a pair without one is stale.
    pub(super) fn check_index(&mut self, dir: &Inode, map: &BlockMap, names: &mut [Name], complete: bool) {
        let buckets = dir.index_buckets;
        if buckets == 0 {
            return;
        }
        names.sort_unstable_by_key(|n| (bucket_of(n.hash, buckets), n.hash, n.lblock));
        let mut rest: &[Name] = names;
        let mut damaged = 0;
        let owner = dir.ino;
        let places = (0..buckets).map(|b| map.find(DIR_BLOCKS_MAX + u64::from(b)));
        let read = move |context: &Context<'_>, addr: Option<BlockAddr>| {
            addr.map(|addr| (addr, context.fetch.meta(BlockId { kind: BlockKind::DirIndex, addr, owner })))
        };
        let blocks = Ahead::new(self.pool, places, self.pool.piece_blocks(), read);
        for (bucket, read) in (0..buckets).zip(blocks) {
            let count = rest.partition_point(|n| bucket_of(n.hash, buckets) <= bucket);
            let (mine, others) = rest.split_at(count);
            rest = others;
            if let Err(what) = self.check_bucket(dir, bucket, read, mine, complete) {
                self.inode_problem(Class::IndexBucket, dir.ino, what);
                damaged += 1;
                if damaged >= DAMAGED_BLOCKS_MAX {
                    self.inode_problem(Class::IndexBucket, dir.ino, "too many damaged buckets: the rest is not read");
                    return;
                }
            }
        }
    }

    fn check_bucket(
        &mut self,
        dir: &Inode,
        bucket: u32,
        read: Option<(BlockAddr, Result<Block, String>)>,
        names: &[Name],
        complete: bool,
    ) -> Result<(), String> {
        let Some((addr, block)) = read else {
            return Err(format!("index bucket {bucket} is missing"));
        };
        self.note_block_read(addr);
        let block = block?;
        validate(&block).map_err(|c| c.0)?;
        let number = get_u32(&block, BUCKET_NUMBER);
        if number != bucket {
            return Err(format!("index bucket at block {addr} is number {number} instead of {bucket}"));
        }
        let overflowed = get_u32(&block, BUCKET_FLAGS) & BUCKET_OVERFLOWED != 0;
        let mut found: Vec<(u32, u32)> = pairs(&block).collect();
        found.sort_unstable();
        let (mut f, mut n) = (0, 0);
        // Both are in order; there is one pair for each name, also where names share hash and block.
        while f < found.len() || n < names.len() {
            let name = names.get(n).map(|n| (n.hash, n.lblock));
            let pair = found.get(f).copied();
            let key = match (name, pair) {
                (Some(a), Some(b)) => a.min(b),
                (a, b) => a.or(b).unwrap_or_default(),
            };
            let wanted = names[n..].iter().take_while(|x| (x.hash, x.lblock) == key).count();
            let there = found[f..].iter().take_while(|x| **x == key).count();
            if there < wanted && !overflowed {
                let what =
                    format_args!("a name with hash {:#010x} in block {} is not in bucket {bucket}", key.0, key.1);
                self.inode_problem(Class::IndexMissing, dir.ino, what);
            }
            if there > wanted && complete {
                let what =
                    format_args!("bucket {bucket} has hash {:#010x} in block {}, where no such name is", key.0, key.1);
                self.inode_problem(Class::IndexStale, dir.ino, what);
            }
            f += there;
            n += wanted;
        }
        Ok(())
    }
}
