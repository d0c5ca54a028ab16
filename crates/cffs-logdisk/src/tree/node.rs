//! Nodes: in memory, and as 4096 bytes.

use crate::codec::{Fields, PutFields, corrupt};
use crate::store::SegmentId;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

/// Bytes of a stored node.
pub(crate) const NODE_BYTES: usize = 4096;
const HEAD_BYTES: usize = 16;
/// Bytes for entries.
pub(super) const BODY_BYTES: usize = NODE_BYTES - HEAD_BYTES;
/// Bytes of a reference to a node, without its key.
const REF_BYTES: usize = 28;
/// Highest level of a node; leaves have 0.
pub(crate) const LEVEL_MAX: u8 = 12;
const MAGIC: u32 = 0x314e_4c43; // "CLN1"

/// What is in a tree: the types of its keys and values, and their bytes.
pub(crate) trait Layout: Clone + Debug + Send + Sync + 'static {
    type Key: Copy + Ord + Debug + Send + Sync;
    type Value: Clone + Debug + Send + Sync;
    /// Names the tree in nodes and summaries.
    const TREE: u8;
    const KEY_BYTES: usize;
    fn put_key(key: &Self::Key, out: &mut Vec<u8>);
    fn get_key(f: &mut Fields<'_>) -> io::Result<Self::Key>;
    /// At most a quarter of a node, together with the key.
    fn value_bytes(value: &Self::Value) -> usize;
    fn put_value(value: &Self::Value, out: &mut Vec<u8>);
    fn get_value(f: &mut Fields<'_>) -> io::Result<Self::Value>;
}

/// Where a node is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeRef {
    pub(crate) segment: SegmentId,
    pub(crate) ordinal: u32,
    pub(crate) offset: u32,
    /// The version in which the node was last changed.
    pub(crate) version: u64,
    pub(crate) crc: u32,
}

impl NodeRef {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.segment);
        out.put_u32(self.ordinal);
        out.put_u32(self.offset);
        out.put_u64(self.version);
        out.put_u32(self.crc);
    }

    pub(crate) fn decode(f: &mut Fields<'_>) -> io::Result<Self> {
        let (segment, ordinal, offset, version, crc) = (f.u64()?, f.u32()?, f.u32()?, f.u64()?, f.u32()?);
        if ordinal == u32::MAX || offset.checked_add(NODE_BYTES as u32).is_none() {
            return Err(corrupt("a node lies outside of any segment"));
        }
        Ok(NodeRef { segment, ordinal, offset, version, crc })
    }
}

/// Bytes of the longest key.
pub(crate) const KEY_BYTES_MAX: usize = 28;

/// What a summary says of a node, so that the cleaner finds who refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeHead {
    pub(crate) tree: u8,
    pub(crate) level: u8,
    pub(crate) version: u64,
    /// The first key, zeros behind it.
    pub(crate) key: [u8; KEY_BYTES_MAX],
}

impl NodeHead {
    /// That of a stored node, whose keys have so many bytes.
    pub(crate) fn of(bytes: &[u8], key_bytes: usize) -> io::Result<Self> {
        let mut f = Fields::new(bytes);
        if f.u32()? != MAGIC {
            return Err(corrupt("this is no node"));
        }
        let (tree, level) = (f.u8()?, f.u8()?);
        f.u16()?;
        let version = f.u64()?;
        let mut key = [0; KEY_BYTES_MAX];
        key[..key_bytes].copy_from_slice(f.bytes(key_bytes)?);
        Ok(NodeHead { tree, level, version, key })
    }
}

/// A reference to a node: to a stored one, or to one that is only in memory.
#[derive(Clone, Debug)]
pub(crate) enum Child<L: Layout> {
    Stored(NodeRef),
    Dirty(Arc<Node<L>>),
}

/// A node in memory.
#[derive(Clone, Debug)]
pub(crate) struct Node<L: Layout> {
    pub(super) version: u64,
    pub(super) body: Body<L>,
}

/// What is in a node, by key. No two keys are equal.
#[derive(Clone, Debug)]
pub(super) enum Body<L: Layout> {
    Leaf(Vec<(L::Key, L::Value)>),
    Index(Vec<(L::Key, Child<L>)>),
}

/// Reads stored nodes.
pub(crate) trait Source {
    fn node<L: Layout>(&self, r: &NodeRef, level: u8) -> io::Result<Arc<Node<L>>>;

    /// The first of these nodes is asked for next, and those after it if who asks goes on as it did from the node before it: a hint.
    fn expect<L: Layout>(&self, _before: Option<NodeRef>, _nodes: &mut dyn Iterator<Item = NodeRef>, _level: u8) {}

    /// All of these nodes are asked for next: a hint.
    fn bring<L: Layout>(&self, _nodes: &[NodeRef], _level: u8) {}
}

/// Called with entries.
pub(crate) type Visit<'a, L, T> = &'a mut dyn FnMut(&<L as Layout>::Key, &<L as Layout>::Value) -> T;

/// The keys that a node may have: from the first on, and below the second.
pub(super) type Range<K> = (Option<K>, Option<K>);

/// The range of child `i` of a node with the range `of`.
pub(super) fn child_range<L: Layout>(children: &[(L::Key, Child<L>)], i: usize, of: Range<L::Key>) -> Range<L::Key> {
    (children.get(i).map(|c| c.0), children.get(i + 1).map(|c| c.0).or(of.1))
}

impl<L: Layout> Child<L> {
    /// The node, whose keys must be in the range that the node above gives it. So no node is met twice on a walk, and a walk ends
    /// whatever the bytes say.
    pub(super) fn get_within<S: Source>(&self, src: &S, level: u8, range: Range<L::Key>) -> io::Result<Arc<Node<L>>> {
        let node = self.get(src, level)?;
        let below = range.0.is_some_and(|low| node.first_key().is_some_and(|k| k < low));
        let above = range.1.is_some_and(|high| node.last_key().is_some_and(|k| k >= high));
        if below || above { Err(corrupt("a node has keys that belong to another")) } else { Ok(node) }
    }

    pub(super) fn get<S: Source>(&self, src: &S, level: u8) -> io::Result<Arc<Node<L>>> {
        let node = match self {
            Child::Stored(r) => src.node(r, level)?,
            Child::Dirty(node) => node.clone(),
        };
        // The cache may have it from another place that has it at another level.
        let is_leaf = matches!(node.body, Body::Leaf(_));
        if is_leaf == (level == 0) { Ok(node) } else { Err(corrupt("a node is at two levels of its tree")) }
    }
}

impl<L: Layout> Node<L> {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn len(&self) -> usize {
        match &self.body {
            Body::Leaf(entries) => entries.len(),
            Body::Index(children) => children.len(),
        }
    }

    /// Bytes of the entries.
    pub(super) fn body_bytes(&self) -> usize {
        match &self.body {
            Body::Leaf(entries) => entries.iter().map(|(_, v)| L::KEY_BYTES + L::value_bytes(v)).sum(),
            Body::Index(children) => children.len() * (L::KEY_BYTES + REF_BYTES),
        }
    }

    pub(super) fn first_key(&self) -> Option<L::Key> {
        match &self.body {
            Body::Leaf(entries) => entries.first().map(|(k, _)| *k),
            Body::Index(children) => children.first().map(|(k, _)| *k),
        }
    }

    fn last_key(&self) -> Option<L::Key> {
        match &self.body {
            Body::Leaf(entries) => entries.last().map(|(k, _)| *k),
            Body::Index(children) => children.last().map(|(k, _)| *k),
        }
    }

    /// The bytes. All children must be stored.
    pub(crate) fn encode(&self, level: u8) -> io::Result<Vec<u8>> {
        let mut b = Vec::with_capacity(NODE_BYTES);
        b.put_u32(MAGIC);
        b.put_u8(L::TREE);
        b.put_u8(level);
        b.put_u16(self.len() as u16);
        b.put_u64(self.version);
        match &self.body {
            Body::Leaf(entries) => {
                for (k, v) in entries {
                    L::put_key(k, &mut b);
                    L::put_value(v, &mut b);
                }
            }
            Body::Index(children) => {
                for (k, child) in children {
                    L::put_key(k, &mut b);
                    match child {
                        Child::Stored(r) => r.encode(&mut b),
                        Child::Dirty(_) => return Err(corrupt("a node is stored before its children")),
                    }
                }
            }
        }
        if b.len() > NODE_BYTES {
            return Err(corrupt("a node is too long"));
        }
        b.resize(NODE_BYTES, 0);
        Ok(b)
    }

    pub(crate) fn decode(bytes: &[u8], level: u8) -> io::Result<Self> {
        let mut f = Fields::new(bytes);
        if bytes.len() != NODE_BYTES || f.u32()? != MAGIC || f.u8()? != L::TREE || f.u8()? != level || level > LEVEL_MAX
        {
            return Err(corrupt("this is not the node that was looked for"));
        }
        let n = f.u16()?;
        let version = f.u64()?;
        if n == 0 {
            return Err(corrupt("a node without entries"));
        }
        let body = if level == 0 {
            let entries: Vec<_> =
                (0..n).map(|_| Ok((L::get_key(&mut f)?, L::get_value(&mut f)?))).collect::<io::Result<_>>()?;
            ascending(entries.iter().map(|e| e.0))?;
            Body::Leaf(entries)
        } else {
            let children: Vec<_> = (0..n)
                .map(|_| Ok((L::get_key(&mut f)?, Child::Stored(NodeRef::decode(&mut f)?))))
                .collect::<io::Result<_>>()?;
            ascending(children.iter().map(|e| e.0))?;
            Body::Index(children)
        };
        Ok(Node { version, body })
    }

    pub(super) fn head(&self, level: u8) -> NodeHead {
        let mut bytes = Vec::with_capacity(KEY_BYTES_MAX);
        if let Some(key) = self.first_key() {
            L::put_key(&key, &mut bytes);
        }
        bytes.resize(KEY_BYTES_MAX, 0);
        let mut key = [0; KEY_BYTES_MAX];
        key.copy_from_slice(&bytes);
        NodeHead { tree: L::TREE, level, version: self.version, key }
    }
}

fn ascending<K: Ord>(keys: impl Iterator<Item = K>) -> io::Result<()> {
    if keys.is_sorted_by(|a, b| a < b) { Ok(()) } else { Err(corrupt("the keys of a node do not ascend")) }
}
