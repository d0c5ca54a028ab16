//! Clean nodes in memory, as many as fit a bound.

use crate::around::Around;
use crate::tree::NODE_BYTES;
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

type AnyNode = Arc<dyn Any + Send + Sync>;

/// Segment and ordinal where a node was first stored. A segment is never changed, so an entry never becomes stale.
pub(crate) type NodeKey = (u64, u32);

/// A cache in two generations: when the younger is half of the bound, the older goes.
pub(crate) struct NodeCache {
    young: HashMap<NodeKey, AnyNode>,
    old: HashMap<NodeKey, AnyNode>,
    half: usize,
    /// Leaves that were asked for last.
    asked: VecDeque<NodeKey>,
    /// What was read around nodes: a checkpoint stores neighbours side by side.
    around: Arc<Around>,
}

/// Bytes that are kept of what was read around nodes, at most.
const AROUND_BYTES: usize = 2 << 20;

/// How many readers can go on in order at a time.
const READERS: usize = 16;

impl NodeCache {
    /// A cache of at most `nodes` nodes.
    pub(crate) fn new(nodes: usize) -> Self {
        let (young, old, asked) = Default::default();
        let around = Arc::new(Around::new(AROUND_BYTES.min(nodes * NODE_BYTES / 2)));
        NodeCache { young, old, half: (nodes / 2).max(8), asked, around }
    }

    /// Keeps at most `nodes` nodes from now on.
    pub(crate) fn resize(&mut self, nodes: usize) {
        self.half = (nodes / 2).max(8);
        if self.old.len() > self.half {
            self.old.clear();
        }
        if self.young.len() > self.half {
            self.young.clear();
        }
    }

    pub(crate) fn get<T: Send + Sync + 'static>(&mut self, key: NodeKey) -> Option<Arc<T>> {
        if let Some(node) = self.young.get(&key) {
            return node.clone().downcast().ok();
        }
        let node = self.old.remove(&key)?;
        self.put_any(key, node.clone());
        node.downcast().ok()
    }

    pub(crate) fn put<T: Send + Sync + 'static>(&mut self, key: NodeKey, node: Arc<T>) {
        self.put_any(key, node);
    }

    /// So many nodes can be brought before the first is used: it is still there then.
    pub(crate) fn brought_max(&self) -> usize {
        self.half / 2
    }

    /// What was read around nodes.
    pub(crate) fn around(&self) -> Arc<Around> {
        self.around.clone()
    }

    /// Notes a leaf that is asked for.
    pub(crate) fn note_asked(&mut self, key: NodeKey) {
        if !self.was_asked(key) {
            self.asked.truncate(READERS - 1);
            self.asked.push_front(key);
        }
    }

    /// Whether a leaf is one of the last that were asked for.
    pub(crate) fn was_asked(&self, key: NodeKey) -> bool {
        self.asked.contains(&key)
    }

    fn put_any(&mut self, key: NodeKey, node: AnyNode) {
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, node);
    }

    /// Nodes in the cache.
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_bound_holds() {
        let mut cache = NodeCache::new(100);
        cache.put((0, 0), Arc::new(7u32));
        for i in 1..10_000 {
            cache.put((1, i), Arc::new(i));
            assert_eq!(cache.get::<u32>((0, 0)).as_deref(), Some(&7));
            assert!(cache.len() <= 100);
        }
        assert!(cache.get::<u32>((1, 5)).is_none());
        assert!(cache.get::<u64>((0, 0)).is_none(), "another type is no hit");
        cache.resize(40);
        for i in 0..1000 {
            assert!(cache.len() <= 40);
            cache.put((2, i), Arc::new(i));
        }
    }
}
