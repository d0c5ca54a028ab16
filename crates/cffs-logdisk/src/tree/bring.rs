//! Reading the nodes of many keys in as many rounds as the tree has levels, rather than one after the other.

use super::node::{Body, Child, Layout, NodeRef, Source};
use super::root::{Root, child_index};
use std::ops::Range;

impl<L: Layout> Root<L> {
    /// The nodes on the paths to these keys, which ascend, are asked for next. What cannot be read is told to who asks for it.
    pub(crate) fn bring<S: Source>(&self, src: &S, keys: &[L::Key]) {
        let Some(top) = self.child.as_ref().filter(|_| !keys.is_empty()) else { return };
        let mut nodes: Vec<(Child<L>, Range<usize>)> = vec![(top.clone(), 0..keys.len())];
        for level in (0..=self.level).rev() {
            let stored = |(child, _): &(Child<L>, _)| match child {
                Child::Stored(r) => Some(*r),
                Child::Dirty(_) => None,
            };
            let wanted: Vec<NodeRef> = nodes.iter().filter_map(stored).collect();
            src.bring::<L>(&wanted, level);
            if level == 0 {
                return;
            }
            let mut below = Vec::new();
            for (child, range) in nodes {
                let Ok(node) = child.get(src, level) else { continue };
                let Body::Index(children) = &node.body else { continue };
                let mut from = range.start;
                while from < range.end {
                    let i = child_index(children, &keys[from]);
                    let behind = children.get(i + 1).map(|(key, _)| *key);
                    let n = keys[from..range.end].partition_point(|key| behind.is_none_or(|b| *key < b));
                    below.push((children[i].1.clone(), from..from + n.max(1)));
                    from += n.max(1);
                }
            }
            nodes = below;
        }
    }
}
