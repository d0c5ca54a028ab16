//! The hash index of a large directory: reading, adding and removing pairs; buckets come and go one at a time.

use super::blocks::{self, Change, Growth};
use super::{DirCtx, DirState};
use crate::cache::BufRef;
use crate::error::Result;
use crate::format::dirblock::{BlockEdit, DIR_BLOCKS_MAX, entries};
use crate::format::dirindex::{
    BUCKET_COUNT, BUCKET_FLAGS, BUCKET_NUMBER, BUCKET_OVERFLOWED, PAIR_SIZE, bucket_capacity, bucket_of, bucket_target,
    pairs,
};
use crate::format::{BlockAddr, BlockId, BlockKind, Inode, META_HEADER_SIZE, get_u32, put_u32};
use crate::journal::Txn;
use crate::node::damaged;

type Pair = (u32, u32);

fn id(inode: &Inode, addr: BlockAddr) -> BlockId {
    BlockId { kind: BlockKind::DirIndex, addr, owner: inode.ino }
}

/// A bucket by number.
fn read(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, number: u32) -> Result<BufRef> {
    if let Some(buf) = state.known_bucket(cx.cache, inode.ino, number) {
        return Ok(buf);
    }
    let Some(addr) = blocks::resolve(cx, inode, state, DIR_BLOCKS_MAX + u64::from(number))? else {
        return damaged(inode.ino, format_args!("index bucket {number} is missing"));
    };
    let buf = cx.cache.read_meta(id(inode, addr))?;
    let found = get_u32(&buf.read(), BUCKET_NUMBER);
    if found != number {
        return damaged(inode.ino, format_args!("index bucket at block {addr} is number {found}, expected {number}"));
    }
    state.saw_bucket(number, &buf);
    Ok(buf)
}

/// The bucket that a hash belongs to. The directory has an index.
pub(super) fn bucket(cx: &DirCtx<'_>, inode: &Inode, state: &DirState, hash: u32) -> Result<BufRef> {
    read(cx, inode, state, bucket_of(hash, inode.index_buckets))
}

/// Blocks that hold a name with this hash, and whether there may be others that the index does not know.
pub(super) fn candidates(bucket: &BufRef, hash: u32) -> (Vec<u64>, bool) {
    let b = bucket.read();
    let mut found = Vec::new();
    for (h, lblock) in pairs(&b) {
        if h == hash && !found.contains(&u64::from(lblock)) {
            found.push(u64::from(lblock));
        }
    }
    (found, overflowed(&b))
}

fn overflowed(bucket: &[u8]) -> bool {
    get_u32(bucket, BUCKET_FLAGS) & BUCKET_OVERFLOWED != 0
}

fn put_pair(b: &mut impl BlockEdit, at: usize, pair: Pair) {
    let p = b.range(META_HEADER_SIZE + at * PAIR_SIZE, PAIR_SIZE);
    put_u32(p, 0, pair.0);
    put_u32(p, 4, pair.1);
}

/// Adds a pair to its bucket, or marks the bucket as not knowing all names.
pub(super) fn add(txn: &Txn<'_>, bucket: &BufRef, hash: u32, lblock: u64) {
    let mut b = txn.edit(bucket);
    let count = get_u32(b.bytes(), BUCKET_COUNT) as usize;
    if count >= bucket_capacity(b.bytes().len()) {
        if !overflowed(b.bytes()) {
            let flags = get_u32(b.bytes(), BUCKET_FLAGS) | BUCKET_OVERFLOWED;
            put_u32(b.range(BUCKET_FLAGS, 4), 0, flags);
        }
        return;
    }
    put_pair(&mut b, count, (hash, lblock as u32));
    put_u32(b.range(BUCKET_COUNT, 4), 0, count as u32 + 1);
}

/// Removes a pair. In an overflowed bucket it may be missing.
pub(super) fn remove(txn: &Txn<'_>, bucket: &BufRef, hash: u32, lblock: u64) {
    let mut b = txn.edit(bucket);
    let Some(at) = pairs(b.bytes()).position(|p| p == (hash, lblock as u32)) else {
        return;
    };
    let last = get_u32(b.bytes(), BUCKET_COUNT) as usize - 1;
    if at != last {
        let pair = pairs(b.bytes()).nth(last).unwrap_or_default();
        put_pair(&mut b, at, pair);
    }
    put_u32(b.range(BUCKET_COUNT, 4), 0, last as u32);
}

/// Writes pairs from position `from` on, and the count.
fn fill(b: &mut impl BlockEdit, from: usize, list: &[Pair]) {
    if !list.is_empty() {
        let area = b.range(META_HEADER_SIZE + from * PAIR_SIZE, list.len() * PAIR_SIZE);
        for (p, pair) in area.chunks_exact_mut(PAIR_SIZE).zip(list) {
            put_u32(p, 0, pair.0);
            put_u32(p, 4, pair.1);
        }
    }
    put_u32(b.range(BUCKET_COUNT, 4), 0, (from + list.len()) as u32);
}

/// Makes a claimed block a bucket.
fn init(txn: &Txn<'_>, inode: &Inode, addr: BlockAddr, number: u32, list: &[Pair], flags: u32) {
    let buf = txn.init_block(id(inode, addr));
    let mut b = txn.edit(&buf);
    put_u32(b.range(BUCKET_NUMBER, 4), 0, number);
    let capacity = bucket_capacity(b.bytes().len());
    let flags = if list.len() > capacity { flags | BUCKET_OVERFLOWED } else { flags };
    if flags != 0 {
        put_u32(b.range(BUCKET_FLAGS, 4), 0, flags);
    }
    fill(&mut b, 0, &list[..list.len().min(capacity)]);
}

/// The bucket that bucket `number` was split from.
fn parent_of(number: u32) -> u32 {
    let half = (u64::from(number) + 1).next_power_of_two() >> 1;
    (u64::from(number) - half) as u32
}

/// Gives a directory its index. All of its blocks are read.
pub(super) fn build(grow: &Growth<'_>, inode: &mut Inode) -> Result<()> {
    let Change { cx, txn, state, .. } = grow.change;
    let mut all: Vec<Pair> = Vec::with_capacity(inode.aux.min(1 << 16) as usize);
    let end = blocks::size_blocks(cx, inode);
    blocks::for_each(cx, inode, state, 0..end, &mut |lblock, addr| {
        let buf = blocks::read_at(cx, inode, lblock, addr)?;
        all.extend(entries(&buf.read()).filter(|e| e.is_name()).map(|e| (e.hash, lblock as u32)));
        Ok(true)
    })?;
    // One more than there are, for the name that is coming.
    let number = (all.len() as u64 + 1).div_ceil(bucket_target(cx.cache.geometry().block_size())) as u32;
    let mut addrs = Vec::with_capacity(number as usize);
    for n in 0..number {
        addrs.push(blocks::claim(grow, inode, DIR_BLOCKS_MAX + u64::from(n), u64::from(number - n))?);
    }
    let mut lists = vec![Vec::new(); number as usize];
    for pair in all {
        lists[bucket_of(pair.0, number) as usize].push(pair);
    }
    for (n, list) in lists.iter().enumerate() {
        init(txn, inode, addrs[n], n as u32, list, 0);
    }
    inode.index_buckets = number;
    *state.names.write() = None;
    Ok(())
}

/// Adds a bucket when one more name makes the mean too large. When that is not possible, the index works on as it is.
pub(super) fn grow(grow: &Growth<'_>, inode: &mut Inode) {
    let target = bucket_target(grow.change.cx.cache.geometry().block_size());
    if inode.aux < u64::from(inode.index_buckets) * target {
        return;
    }
    if let Err(e) = split(grow, inode) {
        tracing::debug!("directory {} keeps {} index buckets: {e}", inode.ino, inode.index_buckets);
    }
}

fn split(grow: &Growth<'_>, inode: &mut Inode) -> Result<()> {
    let Change { cx, txn, state, .. } = grow.change;
    let new = inode.index_buckets;
    let old = read(cx, inode, state, parent_of(new))?;
    let want = 1 + blocks::ahead(u64::from(new));
    let addr = blocks::claim(grow, inode, DIR_BLOCKS_MAX + u64::from(new), want)?;
    let (moved, flags) = {
        let mut b = txn.edit(&old);
        let flags = get_u32(b.bytes(), BUCKET_FLAGS);
        let (moved, kept): (Vec<Pair>, Vec<Pair>) = pairs(b.bytes()).partition(|p| bucket_of(p.0, new + 1) == new);
        // The pairs up to the first one that leaves are where they were.
        let same = pairs(b.bytes()).zip(&kept).take_while(|(was, is)| was == *is).count();
        fill(&mut b, same, &kept[same..]);
        (moved, flags)
    };
    init(txn, inode, addr, new, &moved, flags);
    inode.index_buckets = new + 1;
    Ok(())
}

/// Takes the last bucket away when the mean has become small, so that a shrinking directory gives its index back in
/// small steps. When that is not possible, the index stays larger than it need be.
pub(super) fn shrink(change: &Change<'_>, inode: &mut Inode) -> Result<()> {
    let Change { cx, txn, state, .. } = *change;
    let bs = cx.cache.geometry().block_size();
    if inode.index_buckets < 2 || inode.aux * 4 >= u64::from(inode.index_buckets) * bucket_target(bs) {
        return Ok(());
    }
    let last = inode.index_buckets - 1;
    let (Ok(from), Ok(to)) = (read(cx, inode, state, last), read(cx, inode, state, parent_of(last))) else {
        return Ok(());
    };
    let (list, flags) = {
        let b = from.read();
        (pairs(&b).collect::<Vec<Pair>>(), get_u32(&b, BUCKET_FLAGS))
    };
    drop(from);
    let count = get_u32(&to.read(), BUCKET_COUNT) as usize;
    if count + list.len() > bucket_capacity(bs) {
        return Ok(());
    }
    let at = DIR_BLOCKS_MAX + u64::from(last);
    let region_end = 2 * DIR_BLOCKS_MAX;
    let to_end = blocks::trim_to(cx, inode, state, DIR_BLOCKS_MAX, at, at + 1, region_end);
    if !blocks::punch(change, inode, at..to_end)? {
        return Ok(());
    }
    {
        let mut b = txn.edit(&to);
        fill(&mut b, count, &list);
        let old = get_u32(b.bytes(), BUCKET_FLAGS);
        if old | flags != old {
            put_u32(b.range(BUCKET_FLAGS, 4), 0, old | flags);
        }
    }
    inode.index_buckets = last;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_bucket_is_the_parent_of_the_new_one() {
        for n in 1..300u32 {
            for hash in (0..u32::MAX - 7_000_000).step_by(6_999_989) {
                if bucket_of(hash, n + 1) == n {
                    assert_eq!(bucket_of(hash, n), parent_of(n));
                }
            }
        }
    }
}
