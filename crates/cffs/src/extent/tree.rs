//! The extent tree: a B+tree whose root is in the inode.
//!
//! The key of a pointer is a lower bound for what lies below it; the key of the next one an upper bound. Nodes are
//! never empty. All blocks that an operation may need are allocated before it changes anything.

use super::node::{self, count, entries, entry, upper_bound};
use crate::cache::{BufRef, Cache};
use crate::error::{Error, Result};
use crate::format::Run;
use crate::format::extent::{Child, LOGICAL_END, TREE_HEIGHT_MAX, node_capacity};
use crate::format::{BlockAddr, BlockId, BlockKind, Corrupt, Extent, Inode, InodeFormat};
use crate::journal::Txn;
use crate::reservation::Reservation;
use crate::space::Space;

/// A node on the path from the root to a leaf.
pub(super) struct Step {
    pub buf: BufRef,
    /// The node covers the logical fragments `lo..hi`.
    pub lo: u64,
    pub hi: u64,
    /// The pointer followed; 0 in a leaf.
    pub index: usize,
}

/// The path from the root to a leaf.
pub(super) struct Path {
    pub root_index: usize,
    /// From the level below the root down to the leaf.
    pub steps: Vec<Step>,
}

impl Path {
    pub fn leaf(&self) -> &Step {
        self.steps.last().expect("a tree has leaves")
    }
}

/// The path to the leaf that covers `logical` (the first leaf if `logical` lies before all).
pub(super) fn descend(cache: &Cache, inode: &Inode, logical: u64) -> Result<Path> {
    let InodeFormat::Tree { height, children } = &inode.format else {
        return Err(corrupt(inode, "there is none"));
    };
    let root_index = children.partition_point(|c| c.key <= logical).saturating_sub(1);
    let (Some(mut child), 1..=TREE_HEIGHT_MAX) = (children.get(root_index).copied(), *height) else {
        return Err(corrupt(inode, "root without pointers"));
    };
    let mut hi = children.get(root_index + 1).map_or(LOGICAL_END, |c| c.key);
    if child.key >= hi || hi > LOGICAL_END {
        return Err(corrupt(inode, "root is out of order"));
    }
    let mut steps = Vec::with_capacity(*height as usize);
    for level in (0..u16::from(*height)).rev() {
        let lo = child.key;
        let buf = node::read(cache, inode.ino, child.block, level, lo, hi)?;
        let mut step = Step { buf, lo, hi, index: 0 };
        if level > 0 {
            let block = step.buf.read();
            step.index = upper_bound::<Child>(&block, logical).saturating_sub(1);
            child = entry(&block, step.index);
            if step.index + 1 < count(&block) {
                hi = entry::<Child>(&block, step.index + 1).key;
            }
            drop(block);
        }
        steps.push(step);
    }
    Ok(Path { root_index, steps })
}

fn corrupt(inode: &Inode, what: &str) -> Error {
    Error::Corrupt(Corrupt(format!("extent tree of inode {}: {what}", inode.ino)))
}

/// Blocks for new nodes, allocated in memory. Dropping the pool returns what was not used.
pub(super) struct Pool<'a> {
    space: &'a Space,
    reservation: Reservation,
    blocks: Vec<BlockAddr>,
}

impl<'a> Pool<'a> {
    pub fn new(txn: &Txn<'_>, space: &'a Space, goal: BlockAddr, nodes: usize) -> Result<Pool<'a>> {
        let mut pool = Pool { space, reservation: txn.reservation(), blocks: Vec::new() };
        while pool.blocks.len() < nodes {
            let missing = (nodes - pool.blocks.len()) as u64;
            let run = space.alloc_meta_near(&pool.reservation, goal, missing, 1)?.ok_or(Error::NoSpace)?;
            let per = space.frags_per_block();
            pool.blocks.extend((0..run.len / per).map(|i| run.start / per + i));
            space.prepare_commit(run)?;
        }
        pool.blocks.reverse();
        Ok(pool)
    }

    fn node(&mut self, txn: &Txn<'_>, inode: &mut Inode) -> Result<(BlockAddr, BufRef)> {
        let Some(&addr) = self.blocks.last() else {
            return Err(corrupt(inode, "more nodes needed than it has levels"));
        };
        let run = block_run(self.space, addr);
        self.space.commit_alloc(txn, run)?;
        self.blocks.pop();
        inode.frags = inode.frags.saturating_add(run.len);
        Ok((addr, txn.init_block(BlockId { kind: BlockKind::ExtentNode, addr, owner: inode.ino })))
    }
}

impl Drop for Pool<'_> {
    fn drop(&mut self) {
        for addr in self.blocks.drain(..) {
            self.space.cancel_meta(&self.reservation, block_run(self.space, addr));
        }
    }
}

fn block_run(space: &Space, addr: BlockAddr) -> Run {
    let per = space.frags_per_block();
    Run { start: addr * per, len: per }
}

/// A change of the extents of an inode within a transaction.
pub(super) struct Edit<'a, 't> {
    pub txn: &'a Txn<'t>,
    pub space: &'a Space,
    pub inode: &'a mut Inode,
}

/// Number of nodes that a list too long for the root is divided into.
fn chunks(entries: usize, capacity: usize) -> usize {
    entries.div_ceil(capacity)
}

impl Edit<'_, '_> {
    fn capacity(&self) -> usize {
        node_capacity(self.txn.cache().geometry().block_size())
    }

    fn root(&mut self) -> Result<(&mut u8, &mut Vec<Child>)> {
        match &mut self.inode.format {
            InodeFormat::Tree { height, children } => Ok((height, children)),
            _ => Err(Error::Corrupt(Corrupt(format!("inode {} has no extent tree", self.inode.ino)))),
        }
    }

    /// New nodes that are needed when the leaf of the path gets `len` entries.
    pub fn nodes_needed(&self, path: &Path, len: usize) -> Result<usize> {
        let capacity = self.capacity();
        if len <= capacity {
            return Ok(0);
        }
        let mut needed = 1;
        for step in path.steps.iter().rev().skip(1) {
            if count(&step.buf.read()) < capacity {
                return Ok(needed);
            }
            needed += 1;
        }
        let InodeFormat::Tree { height, children } = &self.inode.format else { return Ok(needed) };
        if children.len() >= self.inode.root_capacity() {
            if *height >= TREE_HEIGHT_MAX {
                return Err(Error::FileTooLarge);
            }
            needed += chunks(children.len() + 1, capacity);
        }
        Ok(needed)
    }

    /// Nodes that are needed to turn a list of `len` extents into a tree.
    pub fn nodes_for_list(&self, len: usize) -> Result<usize> {
        if len <= self.inode.root_capacity() {
            return Ok(0);
        }
        let needed = chunks(len, self.capacity());
        if needed > self.inode.root_capacity() {
            return Err(Error::FileTooLarge);
        }
        Ok(needed)
    }

    /// Sets the extents of an inode without a tree. Builds a tree if they do not fit.
    pub fn set_list(&mut self, list: Vec<Extent>, pool: &mut Pool<'_>) -> Result<()> {
        if list.len() <= self.inode.root_capacity() {
            self.inode.format = InodeFormat::Extents(list);
            return Ok(());
        }
        let mut children = Vec::new();
        for part in list.chunks(self.capacity()) {
            let (block, buf) = pool.node(self.txn, self.inode)?;
            node::write(self.txn, &buf, 0, part);
            children.push(Child { key: part[0].logical, block });
        }
        self.inode.format = InodeFormat::Tree { height: 1, children };
        Ok(())
    }

    /// Sets the contents of the leaf of the path, and splits or removes the leaf if necessary. `at_end`: it is the last
    /// leaf and grew at its end, as in a file that is written sequentially. A split then leaves the old leaf full.
    pub fn set_leaf(&mut self, path: &Path, list: &[Extent], at_end: bool, pool: &mut Pool<'_>) -> Result<()> {
        let leaf = path.leaf();
        if list.is_empty() {
            return self.remove_node(path, path.steps.len() - 1);
        }
        let capacity = self.capacity();
        if list.len() <= capacity {
            node::write(self.txn, &leaf.buf, 0, list);
            return Ok(());
        }
        let at = if at_end { capacity } else { list.len() / 2 };
        let (block, buf) = pool.node(self.txn, self.inode)?;
        node::write(self.txn, &buf, 0, &list[at..]);
        node::write(self.txn, &leaf.buf, 0, &list[..at]);
        self.insert_child(path, Child { key: list[at].logical, block }, pool)
    }

    /// Inserts a pointer to a new leaf behind that of the path.
    fn insert_child(&mut self, path: &Path, mut child: Child, pool: &mut Pool<'_>) -> Result<()> {
        let capacity = self.capacity();
        for (up, step) in path.steps.iter().rev().skip(1).enumerate() {
            let level = up as u16 + 1;
            let mut list: Vec<Child> = entries(&step.buf.read());
            list.insert(step.index + 1, child);
            if list.len() <= capacity {
                node::write(self.txn, &step.buf, level, &list);
                return Ok(());
            }
            let at_end = step.index + 2 == list.len() && step.hi >= LOGICAL_END;
            let at = if at_end { capacity } else { list.len() / 2 };
            let (block, buf) = pool.node(self.txn, self.inode)?;
            node::write(self.txn, &buf, level, &list[at..]);
            node::write(self.txn, &step.buf, level, &list[..at]);
            child = Child { key: list[at].key, block };
        }
        let root_capacity = self.inode.root_capacity();
        let (height, children) = self.root()?;
        children.insert(path.root_index + 1, child);
        if children.len() <= root_capacity {
            return Ok(());
        }
        let level = u16::from(*height);
        let list = std::mem::take(children);
        let mut children = Vec::new();
        for part in list.chunks(capacity) {
            let (block, buf) = pool.node(self.txn, self.inode)?;
            node::write(self.txn, &buf, level, part);
            children.push(Child { key: part[0].key, block });
        }
        self.inode.format = InodeFormat::Tree { height: level as u8 + 1, children };
        Ok(())
    }

    /// Reads what freeing the nodes of a path will change, so that it cannot fail half way.
    pub fn prepare_removal(&self, path: &Path) -> Result<()> {
        path.steps.iter().try_for_each(|s| self.space.prepare_free(block_run(self.space, s.buf.addr())))
    }

    /// Frees the block of a node. This comes before the change that unlinks the node, because it can fail.
    fn free_node(&mut self, addr: BlockAddr) -> Result<()> {
        let run = block_run(self.space, addr);
        self.space.free(self.txn, run)?;
        self.txn.free_block(addr);
        self.inode.frags = self.inode.frags.saturating_sub(run.len);
        Ok(())
    }

    /// Removes the node at this depth of the path, and those above it that become empty.
    fn remove_node(&mut self, path: &Path, depth: usize) -> Result<()> {
        self.free_node(path.steps[depth].buf.addr())?;
        for d in (0..depth).rev() {
            let step = &path.steps[d];
            let mut list: Vec<Child> = entries(&step.buf.read());
            if list.len() > 1 {
                list.remove(step.index);
                node::write(self.txn, &step.buf, (path.steps.len() - 1 - d) as u16, &list);
                return Ok(());
            }
            self.free_node(step.buf.addr())?;
        }
        let (_, children) = self.root()?;
        children.remove(path.root_index);
        if children.is_empty() {
            self.inode.format = InodeFormat::Extents(Vec::new());
        }
        Ok(())
    }

    /// Changes the keys along a path for which `choose` returns a new value.
    fn change_keys(&mut self, path: &Path, choose: impl Fn(u64) -> Option<u64>) -> Result<()> {
        let (_, children) = self.root()?;
        let key = &mut children[path.root_index].key;
        *key = choose(*key).unwrap_or(*key);
        let leaf = path.steps.len() - 1;
        for (d, step) in path.steps[..leaf].iter().enumerate() {
            let mut list: Vec<Child> = entries(&step.buf.read());
            if let Some(key) = choose(list[step.index].key) {
                list[step.index].key = key;
                node::write(self.txn, &step.buf, (leaf - d) as u16, &list);
            }
        }
        Ok(())
    }

    /// Lowers the keys along a path so that its leaf covers `logical`, which lies before it.
    pub fn lower_keys(&mut self, path: &Path, logical: u64) -> Result<()> {
        self.change_keys(path, |key| (key > logical).then_some(logical))
    }

    /// Raises the keys along the path to a leaf that begins at `from` to `to`. There are no extents in between.
    pub fn raise_keys(&mut self, path: &Path, from: u64, to: u64) -> Result<()> {
        self.change_keys(path, |key| (key >= from && key < to).then_some(to))
    }

    /// After a removal at `logical`: merges nodes on the path there with a neighbour if both together are at most half
    /// full. Best effort: a node that cannot be read stays.
    pub fn merge_nodes(&mut self, logical: u64) -> Result<()> {
        if !matches!(self.inode.format, InodeFormat::Tree { .. }) {
            return Ok(());
        }
        let Ok(path) = descend(self.txn.cache(), self.inode, logical) else { return Ok(()) };
        let most = self.capacity() / 2;
        for d in (0..path.steps.len()).rev() {
            let step = &path.steps[d];
            let level = (path.steps.len() - 1 - d) as u16;
            if count(&step.buf.read()) > most / 2 {
                return Ok(());
            }
            // The pointers in the parent, and the end of what the last of them covers.
            let (mut siblings, index, end): (Vec<Child>, _, _) = match d.checked_sub(1).map(|up| &path.steps[up]) {
                Some(up) => (entries(&up.buf.read()), up.index, up.hi),
                None => (self.root()?.1.clone(), path.root_index, LOGICAL_END),
            };
            let left = index.saturating_sub(1);
            if siblings.len() < 2 {
                continue;
            }
            let bound = |i: usize| siblings.get(i).map_or(end, |c| c.key);
            let open = |i: usize| {
                let c = siblings[i];
                node::read(self.txn.cache(), self.inode.ino, c.block, level, c.key, bound(i + 1))
            };
            let (Ok(a), Ok(b)) = (open(left), open(left + 1)) else { return Ok(()) };
            if count(&a.read()) + count(&b.read()) > most {
                return Ok(());
            }
            if self.space.prepare_free(block_run(self.space, b.addr())).is_err() {
                return Ok(());
            }
            self.free_node(b.addr())?;
            if level == 0 {
                self.append::<Extent>(&a, &b, level);
            } else {
                self.append::<Child>(&a, &b, level);
            }
            siblings.remove(left + 1);
            match d.checked_sub(1) {
                Some(up) => node::write(self.txn, &path.steps[up].buf, level + 1, &siblings),
                None => *self.root()?.1 = siblings,
            }
        }
        Ok(())
    }

    fn append<T: node::Entry>(&self, a: &BufRef, b: &BufRef, level: u16) {
        let mut list: Vec<T> = entries(&a.read());
        list.extend(entries::<T>(&b.read()));
        node::write(self.txn, a, level, &list);
    }

    /// Moves the contents of a single node below the root into the root while they fit there.
    pub fn shrink_root(&mut self) -> Result<()> {
        loop {
            let InodeFormat::Tree { height, children } = &self.inode.format else { return Ok(()) };
            let (height, &[child]) = (*height, &children[..]) else { return Ok(()) };
            let level = u16::from(height) - 1;
            let cache = self.txn.cache();
            let Ok(buf) = node::read(cache, self.inode.ino, child.block, level, child.key, LOGICAL_END) else {
                return Ok(());
            };
            let run = block_run(self.space, child.block);
            if count(&buf.read()) > self.inode.root_capacity() || self.space.prepare_free(run).is_err() {
                return Ok(());
            }
            self.free_node(child.block)?;
            let block = buf.read();
            self.inode.format = if level == 0 {
                InodeFormat::Extents(entries(&block))
            } else {
                InodeFormat::Tree { height: height - 1, children: entries(&block) }
            };
        }
    }
}
