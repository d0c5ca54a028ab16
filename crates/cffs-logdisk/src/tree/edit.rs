//! Changes of a tree.

use super::node::{BODY_BYTES, Body, Child, Layout, Node, NodeRef, Source};
use super::root::{Root, child_index};
use crate::codec::corrupt;
use std::any::Any;
use std::io;
use std::sync::Arc;

/// What a change needs, and what it leaves behind.
pub(crate) struct Edit<'a, S> {
    pub(crate) src: &'a S,
    /// The version that changed nodes get.
    pub(crate) version: u64,
    /// Stored nodes that the tree no longer refers to.
    pub(crate) retired: &'a mut Vec<NodeRef>,
    /// Nodes that are only in memory and that the tree no longer refers to, but somebody else does.
    pub(crate) frozen: &'a mut Vec<Arc<dyn Any + Send + Sync>>,
    /// Counts nodes that came into memory.
    pub(crate) dirtied: &'a mut usize,
}

/// A split: the first key of the new node, and the node.
type Split<L> = Option<(<L as Layout>::Key, Arc<Node<L>>)>;

impl<S: Source> Edit<'_, S> {
    /// The node in memory, for this tree alone.
    fn thaw<'c, L: Layout>(&mut self, child: &'c mut Child<L>, level: u8) -> io::Result<&'c mut Node<L>> {
        let mut new = false;
        if let Child::Stored(r) = child {
            let r = *r;
            let node = child.get(self.src, level)?;
            self.retired.push(r);
            *child = Child::Dirty(node);
            new = true;
        }
        match child {
            Child::Dirty(node) => {
                if new {
                    *self.dirtied += 1;
                } else if Arc::get_mut(node).is_none() {
                    self.frozen.push(node.clone());
                    *self.dirtied += 1;
                }
                let node = Arc::make_mut(node);
                node.version = self.version;
                Ok(node)
            }
            Child::Stored(_) => Err(corrupt("a node was not read")),
        }
    }

    fn insert<L: Layout>(
        &mut self,
        child: &mut Child<L>,
        level: u8,
        key: L::Key,
        value: L::Value,
    ) -> io::Result<Split<L>> {
        let node = self.thaw(child, level)?;
        match &mut node.body {
            Body::Leaf(entries) => match entries.binary_search_by(|(k, _)| k.cmp(&key)) {
                Ok(i) => entries[i].1 = value,
                Err(i) => entries.insert(i, (key, value)),
            },
            Body::Index(children) => {
                let i = child_index(children, &key);
                children[i].0 = children[i].0.min(key);
                if let Some((k, right)) = self.insert(&mut children[i].1, level - 1, key, value)? {
                    children.insert(i + 1, (k, Child::Dirty(right)));
                }
            }
        }
        Ok(self.split(node))
    }

    /// Halves a node that is too long.
    fn split<L: Layout>(&mut self, node: &mut Node<L>) -> Split<L> {
        let total = node.body_bytes();
        if total <= BODY_BYTES {
            return None;
        }
        let body = match &mut node.body {
            Body::Leaf(entries) => {
                let mut bytes = 0;
                let half = entries.iter().position(|(_, v)| {
                    bytes += L::KEY_BYTES + L::value_bytes(v);
                    bytes > total / 2
                });
                let at = half.unwrap_or(0).max(1).min(entries.len().saturating_sub(1));
                Body::Leaf(entries.split_off(at))
            }
            Body::Index(children) => Body::Index(children.split_off(children.len() / 2)),
        };
        let right = Node { version: self.version, body };
        *self.dirtied += 1;
        right.first_key().map(|k| (k, Arc::new(right)))
    }

    /// Removes a key that is there.
    fn remove<L: Layout>(&mut self, child: &mut Child<L>, level: u8, key: &L::Key) -> io::Result<()> {
        let node = self.thaw(child, level)?;
        match &mut node.body {
            Body::Leaf(entries) => {
                if let Ok(i) = entries.binary_search_by(|(k, _)| k.cmp(key)) {
                    entries.remove(i);
                }
            }
            Body::Index(children) => {
                let i = child_index(children, key);
                self.remove(&mut children[i].1, level - 1, key)?;
                let below = children[i].1.get(self.src, level - 1)?;
                if below.len() == 0 {
                    children.remove(i);
                } else if below.body_bytes() < BODY_BYTES / 4 {
                    drop(below);
                    let left = if i + 1 < children.len() { i } else { i.saturating_sub(1) };
                    self.merge(children, left, level - 1)?;
                }
            }
        }
        Ok(())
    }

    /// Joins two neighbours if the result is not nearly full.
    fn merge<L: Layout>(&mut self, children: &mut Vec<(L::Key, Child<L>)>, left: usize, level: u8) -> io::Result<()> {
        if left + 1 >= children.len() {
            return Ok(());
        }
        let bytes = children[left].1.get(self.src, level)?.body_bytes()
            + children[left + 1].1.get(self.src, level)?.body_bytes();
        if bytes > BODY_BYTES * 3 / 4 {
            return Ok(());
        }
        let (_, mut right) = children.remove(left + 1);
        let right = self.thaw(&mut right, level)?;
        let left = self.thaw(&mut children[left].1, level)?;
        match (&mut left.body, &mut right.body) {
            (Body::Leaf(a), Body::Leaf(b)) => a.append(b),
            (Body::Index(a), Body::Index(b)) => a.append(b),
            _ => return Err(corrupt("neighbours of different levels")),
        }
        Ok(())
    }

    /// Brings the nodes down to `level` on the path to `key` into memory if the last of them is stored at `at`.
    fn touch<L: Layout>(
        &mut self,
        child: &mut Child<L>,
        own_level: u8,
        key: &L::Key,
        level: u8,
        at: (u64, u32),
    ) -> io::Result<bool> {
        let is_it = |c: &Child<L>| matches!(c, Child::Stored(r) if (r.segment, r.ordinal) == at);
        if own_level == level {
            let found = is_it(child);
            if found {
                self.thaw(child, own_level)?;
            }
            return Ok(found);
        }
        // Look first: a path that does not lead there stays as it is.
        let mut below = child.get(self.src, own_level)?;
        let mut l = own_level;
        let target = loop {
            let Body::Index(children) = &below.body else { return Ok(false) };
            let next = children[child_index(children, key)].1.clone();
            l -= 1;
            if l == level {
                break next;
            }
            below = next.get(self.src, l)?;
        };
        drop(below);
        if !is_it(&target) {
            return Ok(false);
        }
        let mut child = child;
        for l in (level..=own_level).rev() {
            let node = self.thaw(child, l)?;
            match &mut node.body {
                Body::Index(children) if l > level => {
                    let i = child_index(children, key);
                    child = &mut children[i].1;
                }
                _ => break,
            }
        }
        Ok(true)
    }
}

impl<L: Layout> Root<L> {
    /// Sets the value of a key.
    pub(crate) fn insert<S: Source>(&mut self, edit: &mut Edit<'_, S>, key: L::Key, value: L::Value) -> io::Result<()> {
        let Some(child) = &mut self.child else {
            *edit.dirtied += 1;
            let node = Node { version: edit.version, body: Body::Leaf(vec![(key, value)]) };
            self.child = Some(Child::Dirty(Arc::new(node)));
            self.level = 0;
            return Ok(());
        };
        let Some((right_key, right)) = edit.insert(child, self.level, key, value)? else { return Ok(()) };
        let left = child.clone();
        let left_key = left.get(edit.src, self.level)?.first_key().unwrap_or(right_key);
        let body = Body::Index(vec![(left_key, left), (right_key, Child::Dirty(right))]);
        *edit.dirtied += 1;
        self.child = Some(Child::Dirty(Arc::new(Node { version: edit.version, body })));
        self.level += 1;
        Ok(())
    }

    /// Removes a key; returns whether it was there.
    pub(crate) fn remove<S: Source>(&mut self, edit: &mut Edit<'_, S>, key: &L::Key) -> io::Result<bool> {
        if self.get(edit.src, key)?.is_none() {
            return Ok(false);
        }
        let Some(child) = &mut self.child else { return Ok(false) };
        edit.remove(child, self.level, key)?;
        self.lower();
        Ok(true)
    }

    /// Takes away nodes at the top that no longer divide anything.
    fn lower(&mut self) {
        while let Some(Child::Dirty(top)) = &self.child {
            match &top.body {
                Body::Leaf(entries) if entries.is_empty() => self.child = None,
                Body::Index(children) if children.is_empty() => self.child = None,
                Body::Index(children) if children.len() == 1 => {
                    self.child = Some(children[0].1.clone());
                    self.level -= 1;
                }
                _ => break,
            }
        }
        if self.child.is_none() {
            self.level = 0;
        }
    }

    /// Brings the node of `level` on the path to `key` into memory if it is stored at segment and ordinal `at`, so
    /// that the next checkpoint stores it elsewhere. Returns whether it was there.
    pub(crate) fn touch<S: Source>(
        &mut self,
        edit: &mut Edit<'_, S>,
        key: &L::Key,
        level: u8,
        at: (u64, u32),
    ) -> io::Result<bool> {
        match &mut self.child {
            Some(child) if level <= self.level => edit.touch(child, self.level, key, level, at),
            _ => Ok(false),
        }
    }
}
