//! A tree, and what can be asked of it; storing it.

use super::node::{Body, Child, LEVEL_MAX, Layout, Node, NodeHead, NodeRef, Range, Source, Visit, child_range};
use crate::codec::{Fields, PutFields, corrupt, crc32c};
use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A tree. A clone shares all nodes.
#[derive(Clone, Debug)]
pub(crate) struct Root<L: Layout> {
    pub(super) child: Option<Child<L>>,
    pub(super) level: u8,
}

impl<L: Layout> Default for Root<L> {
    fn default() -> Self {
        Root { child: None, level: 0 }
    }
}

/// Takes nodes that are to be stored.
pub(crate) trait NodeSink {
    /// Stores the bytes of a node; returns segment, ordinal and byte offset.
    fn put_node(&mut self, head: &NodeHead, bytes: Vec<u8>, crc: u32) -> io::Result<(u64, u32, u32)>;
    /// A node that was just stored, for the cache.
    fn stored<L: Layout>(&mut self, r: &NodeRef, node: Arc<Node<L>>);
}

/// Nodes of several trees that were stored already, by their place in memory: trees that share a node store it once. Holds the nodes, so
/// that no other comes to the same place meanwhile.
pub(crate) type StoredNodes<L> = HashMap<usize, (Arc<Node<L>>, NodeRef)>;

/// The child whose keys include `key`.
pub(super) fn child_index<L: Layout>(children: &[(L::Key, Child<L>)], key: &L::Key) -> usize {
    children.partition_point(|(k, _)| k <= key).saturating_sub(1)
}

impl<L: Layout> Root<L> {
    pub(crate) fn is_empty(&self) -> bool {
        self.child.is_none()
    }

    /// The level of the node at the top.
    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// Where the node at the top is stored.
    pub(crate) fn stored(&self) -> Option<NodeRef> {
        match &self.child {
            Some(Child::Stored(r)) => Some(*r),
            _ => None,
        }
    }

    /// Whether a part of the tree is only in memory.
    pub(crate) fn is_dirty(&self) -> bool {
        matches!(self.child, Some(Child::Dirty(_)))
    }

    /// Whether both are the same, as far as references tell.
    pub(crate) fn same(&self, other: &Self) -> bool {
        match (&self.child, &other.child) {
            (None, None) => true,
            (Some(Child::Stored(a)), Some(Child::Stored(b))) => a == b,
            (Some(Child::Dirty(a)), Some(Child::Dirty(b))) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The last entry whose key is not above `key`.
    pub(crate) fn floor<S: Source>(&self, src: &S, key: &L::Key) -> io::Result<Option<(L::Key, L::Value)>> {
        match &self.child {
            Some(child) => floor(src, child, self.level, (None, None), key),
            None => Ok(None),
        }
    }

    pub(crate) fn get<S: Source>(&self, src: &S, key: &L::Key) -> io::Result<Option<L::Value>> {
        Ok(self.floor(src, key)?.filter(|(k, _)| k == key).map(|(_, v)| v))
    }

    /// Calls `visit` with the entries from `from` on, in order, until it breaks.
    pub(crate) fn scan<S: Source>(
        &self,
        src: &S,
        from: &L::Key,
        visit: Visit<'_, L, ControlFlow<()>>,
    ) -> io::Result<()> {
        if let Some(child) = &self.child {
            let _ = scan(src, child, self.level, (None, None), from, visit)?;
        }
        Ok(())
    }

    /// Calls `visit` with all entries, and before that with each stored node on the way, which is only looked into if
    /// `enter` says so.
    pub(crate) fn walk<S: Source>(
        &self,
        src: &S,
        enter: &mut dyn FnMut(&NodeRef) -> io::Result<bool>,
        visit: Visit<'_, L, io::Result<()>>,
    ) -> io::Result<()> {
        match &self.child {
            Some(child) => walk(src, child, self.level, (None, None), enter, visit),
            None => Ok(()),
        }
    }

    /// Stores what is only in memory, children first.
    pub(crate) fn store(&mut self, sink: &mut impl NodeSink, done: &mut StoredNodes<L>) -> io::Result<()> {
        if let Some(child) = &self.child {
            let r = store(child, self.level, sink, done)?;
            self.child = Some(Child::Stored(r));
        }
        Ok(())
    }

    /// The bytes of the reference; the tree must be stored.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> io::Result<()> {
        match &self.child {
            None => out.put_u8(u8::MAX),
            Some(Child::Stored(r)) => {
                out.put_u8(self.level);
                r.encode(out);
            }
            Some(Child::Dirty(_)) => return Err(corrupt("a tree is referred to before it is stored")),
        }
        Ok(())
    }

    pub(crate) fn decode(f: &mut Fields<'_>) -> io::Result<Self> {
        let level = f.u8()?;
        if level == u8::MAX {
            return Ok(Self::default());
        }
        if level > LEVEL_MAX {
            return Err(corrupt("a tree is too high"));
        }
        Ok(Root { child: Some(Child::Stored(NodeRef::decode(f)?)), level })
    }
}

/// Those that are stored, up to the first that is not.
fn stored<L: Layout>(children: &[(L::Key, Child<L>)]) -> impl Iterator<Item = NodeRef> + '_ {
    children.iter().map_while(|(_, child)| match child {
        Child::Stored(r) => Some(*r),
        Child::Dirty(_) => None,
    })
}

fn expect<L: Layout, S: Source>(src: &S, children: &[(L::Key, Child<L>)], i: usize, level: u8) {
    let before = i.checked_sub(1).and_then(|i| stored(&children[i..=i]).next());
    src.expect::<L>(before, &mut stored(&children[i..]), level);
}

fn floor<L: Layout, S: Source>(
    src: &S,
    child: &Child<L>,
    level: u8,
    range: Range<L::Key>,
    key: &L::Key,
) -> io::Result<Option<(L::Key, L::Value)>> {
    let node = child.get_within(src, level, range)?;
    match &node.body {
        Body::Leaf(entries) => {
            let n = entries.partition_point(|(k, _)| k <= key);
            Ok(n.checked_sub(1).map(|i| entries[i].clone()))
        }
        Body::Index(children) => {
            // The first key of a child may have been removed since it was noted; then the entry is in the child before, all of whose
            // keys are below: no third one is asked.
            for i in (0..=child_index(children, key)).rev() {
                expect(src, children, i, level - 1);
                if let Some(found) = floor(src, &children[i].1, level - 1, child_range(children, i, range), key)? {
                    return Ok(Some(found));
                }
            }
            Ok(None)
        }
    }
}

fn scan<L: Layout, S: Source>(
    src: &S,
    child: &Child<L>,
    level: u8,
    range: Range<L::Key>,
    from: &L::Key,
    visit: Visit<'_, L, ControlFlow<()>>,
) -> io::Result<ControlFlow<()>> {
    let node = child.get_within(src, level, range)?;
    match &node.body {
        Body::Leaf(entries) => {
            let start = entries.partition_point(|(k, _)| k < from);
            Ok(entries[start..].iter().try_for_each(|(k, v)| visit(k, v)))
        }
        Body::Index(children) => {
            for i in child_index(children, from)..children.len() {
                expect(src, children, i, level - 1);
                let below = child_range(children, i, range);
                if scan(src, &children[i].1, level - 1, below, from, visit)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        }
    }
}

fn walk<L: Layout, S: Source>(
    src: &S,
    child: &Child<L>,
    level: u8,
    range: Range<L::Key>,
    enter: &mut dyn FnMut(&NodeRef) -> io::Result<bool>,
    visit: Visit<'_, L, io::Result<()>>,
) -> io::Result<()> {
    if let Child::Stored(r) = child
        && !enter(r)?
    {
        return Ok(());
    }
    let node = child.get_within(src, level, range)?;
    match &node.body {
        Body::Leaf(entries) => entries.iter().try_for_each(|(k, v)| visit(k, v)),
        Body::Index(children) => children
            .iter()
            .enumerate()
            .try_for_each(|(i, (_, c))| walk(src, c, level - 1, child_range(children, i, range), enter, visit)),
    }
}

fn store<L: Layout>(
    child: &Child<L>,
    level: u8,
    sink: &mut impl NodeSink,
    done: &mut StoredNodes<L>,
) -> io::Result<NodeRef> {
    let node = match child {
        Child::Stored(r) => return Ok(*r),
        Child::Dirty(node) => node,
    };
    let address = Arc::as_ptr(node) as usize;
    if let Some((_, r)) = done.get(&address) {
        return Ok(*r);
    }
    let stored = match &node.body {
        Body::Leaf(_) => node.clone(),
        Body::Index(children) => {
            let stored = |(k, c): &(L::Key, Child<L>)| Ok((*k, Child::Stored(store(c, level - 1, sink, done)?)));
            let body = Body::Index(children.iter().map(stored).collect::<io::Result<_>>()?);
            Arc::new(Node { version: node.version, body })
        }
    };
    let bytes = stored.encode(level)?;
    let crc = crc32c(&bytes);
    let (segment, ordinal, offset) = sink.put_node(&stored.head(level), bytes, crc)?;
    let r = NodeRef { segment, ordinal, offset, version: node.version, crc };
    sink.stored(&r, stored);
    done.insert(address, (node.clone(), r));
    Ok(r)
}
