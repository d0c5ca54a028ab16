//! Nodes of the extent tree: reading and checking them, and writing them with few logged bytes.

use crate::cache::{BufRef, Cache};
use crate::error::{Error, Result};
use crate::format::dirblock::BlockEdit;
use crate::format::extent::{Child, EXTENT_SIZE, Extent, LOGICAL_END, NODE_COUNT, NODE_LEVEL, node_entry, node_header};
use crate::format::{BlockAddr, BlockId, BlockKind, Corrupt, Geometry, Ino, put_u16};
use crate::journal::Txn;

/// An entry of a node: an extent in a leaf, a child pointer above.
pub(super) trait Entry: Copy {
    /// Logical fragment by which entries are ordered.
    fn key(&self) -> u64;
    fn to_bytes(self) -> [u8; EXTENT_SIZE];
    fn from_bytes(b: &[u8]) -> Self;
}

impl Entry for Extent {
    fn key(&self) -> u64 {
        self.logical
    }
    fn to_bytes(self) -> [u8; EXTENT_SIZE] {
        self.encode()
    }
    fn from_bytes(b: &[u8]) -> Extent {
        Extent::decode(b)
    }
}

impl Entry for Child {
    fn key(&self) -> u64 {
        self.key
    }
    fn to_bytes(self) -> [u8; EXTENT_SIZE] {
        self.encode()
    }
    fn from_bytes(b: &[u8]) -> Child {
        Child::decode(b)
    }
}

/// Entry `i` of a node.
pub(super) fn entry<T: Entry>(block: &[u8], i: usize) -> T {
    T::from_bytes(&block[node_entry(i)..])
}

/// Number of entries of a node that was read with [`read`].
pub(super) fn count(block: &[u8]) -> usize {
    node_header(block).map_or(0, |h| h.1)
}

/// All entries of a node.
pub(super) fn entries<T: Entry>(block: &[u8]) -> Vec<T> {
    (0..count(block)).map(|i| entry(block, i)).collect()
}

/// Number of entries whose key is not above `logical`.
pub(super) fn upper_bound<T: Entry>(block: &[u8], logical: u64) -> usize {
    let (mut lo, mut hi) = (0, count(block));
    while lo < hi {
        let mid = (lo + hi) / 2;
        if entry::<T>(block, mid).key() <= logical {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    lo
}

/// Whether the extent can exist in this file system.
pub(super) fn possible(g: &Geometry, e: &Extent) -> bool {
    e.len > 0 && e.end() <= LOGICAL_END && g.contains(e.start, e.len)
}

/// Reads a node. It must have this level, and entries only for logical fragments `lo..hi`.
pub(super) fn read(cache: &Cache, ino: Ino, addr: BlockAddr, level: u16, lo: u64, hi: u64) -> Result<BufRef> {
    let g = cache.geometry();
    let bad = |what: String| {
        Err(Error::Corrupt(Corrupt(format!("extent tree of inode {ino}, node at block {addr}: {what}"))))
    };
    if addr == 0 || addr >= g.total_blocks {
        return bad("outside the file system".into());
    }
    let buf = cache.read_meta(BlockId { kind: BlockKind::ExtentNode, addr, owner: ino })?;
    let block = buf.read();
    // The node may refer to space that was added to the file system just before.
    let g = cache.geometry();
    let (found, n) = node_header(&block)?;
    if found != level {
        return bad(format!("level {found} where {level} belongs"));
    }
    if n == 0 {
        return bad("empty".into());
    }
    let mut at = lo;
    for i in 0..n {
        if level == 0 {
            let e: Extent = entry(&block, i);
            if e.logical < at || e.end() > hi || !possible(g, &e) {
                return bad(format!("extent {i} (fragment {}, length {}) does not belong there", e.logical, e.len));
            }
            at = e.end();
        } else {
            let c: Child = entry(&block, i);
            if c.key < at || c.key >= hi {
                return bad(format!("pointer {i} (fragment {}) does not belong there", c.key));
            }
            at = c.key + 1;
        }
    }
    drop(block);
    Ok(buf)
}

/// Makes `entries` the contents of a node; logs what differs from its present contents.
pub(super) fn write<T: Entry>(txn: &Txn<'_>, buf: &BufRef, level: u16, entries: &[T]) {
    let mut block = txn.edit(buf);
    let differs = |b: &[u8], i: usize| b[node_entry(i)..node_entry(i + 1)] != entries[i].to_bytes();
    if node_header(&block).ok() != Some((level, entries.len())) {
        let header = block.range(NODE_LEVEL, 4);
        put_u16(header, 0, level);
        put_u16(header, NODE_COUNT - NODE_LEVEL, entries.len() as u16);
    }
    let Some(first) = (0..entries.len()).find(|&i| differs(&block, i)) else { return };
    let last = (first..entries.len()).rev().find(|&i| differs(&block, i)).unwrap_or(first);
    let changed = block.range(node_entry(first), (last + 1 - first) * EXTENT_SIZE);
    for (slot, e) in changed.chunks_exact_mut(EXTENT_SIZE).zip(&entries[first..=last]) {
        slot.copy_from_slice(&e.to_bytes());
    }
}
