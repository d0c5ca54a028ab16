//! Trees against a plain map, with snapshots, stored and changed bytes.

use super::node::{Body, Child};
use super::*;
use crate::codec::{Fields, PutFields, corrupt};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

#[derive(Clone, Debug)]
struct Numbers;

impl Layout for Numbers {
    type Key = u64;
    type Value = Vec<u8>;
    const TREE: u8 = 99;
    const KEY_BYTES: usize = 8;
    fn put_key(key: &u64, out: &mut Vec<u8>) {
        out.put_u64(*key);
    }
    fn get_key(f: &mut Fields<'_>) -> io::Result<u64> {
        f.u64()
    }
    fn value_bytes(value: &Vec<u8>) -> usize {
        2 + value.len()
    }
    fn put_value(value: &Vec<u8>, out: &mut Vec<u8>) {
        out.put_u16(value.len() as u16);
        out.extend_from_slice(value);
    }
    fn get_value(f: &mut Fields<'_>) -> io::Result<Vec<u8>> {
        let n = usize::from(f.u16()?);
        Ok(f.bytes(n)?.to_vec())
    }
}

/// Nodes by ordinal. Counts reads.
#[derive(Default)]
struct Shelf {
    nodes: RefCell<Vec<Vec<u8>>>,
    reads: RefCell<usize>,
}

impl Source for Shelf {
    fn node<L: Layout>(&self, r: &NodeRef, level: u8) -> io::Result<Arc<Node<L>>> {
        *self.reads.borrow_mut() += 1;
        let nodes = self.nodes.borrow();
        let bytes = nodes.get(r.ordinal as usize).ok_or_else(|| corrupt("no such node"))?;
        Ok(Arc::new(Node::decode(bytes, level)?))
    }
}

impl NodeSink for &Shelf {
    fn put_node(&mut self, _: &NodeHead, bytes: Vec<u8>, _: u32) -> io::Result<(u64, u32, u32)> {
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(bytes);
        Ok((1, nodes.len() as u32 - 1, 0))
    }
    fn stored<L: Layout>(&mut self, _: &NodeRef, _: Arc<Node<L>>) {}
}

type Contents = BTreeMap<u64, Vec<u8>>;

struct Tree {
    shelf: Shelf,
    root: Root<Numbers>,
    retired: Vec<NodeRef>,
    dirtied: usize,
}

impl Tree {
    fn new() -> Self {
        Tree { shelf: Shelf::default(), root: Root::default(), retired: Vec::new(), dirtied: 0 }
    }

    fn edit<T>(&mut self, f: impl FnOnce(&mut Root<Numbers>, &mut Edit<'_, Shelf>) -> io::Result<T>) -> io::Result<T> {
        let mut edit = Edit {
            src: &self.shelf,
            version: 1,
            retired: &mut self.retired,
            frozen: &mut Vec::new(),
            dirtied: &mut self.dirtied,
        };
        f(&mut self.root, &mut edit)
    }

    fn store(&mut self) {
        self.root.store(&mut &self.shelf, &mut StoredNodes::new()).unwrap();
    }

    /// The stored nodes that a tree refers to.
    fn nodes(&self, root: &Root<Numbers>) -> HashSet<u32> {
        let mut all = HashSet::new();
        root.walk(&self.shelf, &mut |r| Ok(all.insert(r.ordinal)), &mut |_, _| Ok(())).unwrap();
        all
    }
}

fn contents(shelf: &Shelf, root: &Root<Numbers>) -> BTreeMap<u64, Vec<u8>> {
    let mut all = BTreeMap::new();
    root.scan(shelf, &0, &mut |k, v| {
        assert!(all.insert(*k, v.clone()).is_none());
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

#[test]
fn equals_a_map_and_snapshots_stay_as_they_are() {
    for seed in 0..30 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut tree = Tree::new();
        let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut snapshots: Vec<(Root<Numbers>, Contents)> = Vec::new();
        let keys = rng.u64(10..4000);
        let growing = |i: u32| i % 1000 < 600;
        for i in 0..3000u32 {
            let key = rng.u64(0..keys);
            if rng.u32(0..10) < if growing(i) { 8 } else { 2 } {
                let value = vec![rng.u8(..); rng.usize(0..300)];
                tree.edit(|root, edit| root.insert(edit, key, value.clone())).unwrap();
                model.insert(key, value);
            } else {
                let there = tree.edit(|root, edit| root.remove(edit, &key)).unwrap();
                assert_eq!(there, model.remove(&key).is_some());
            }
            let key = rng.u64(0..keys);
            let floor = tree.root.floor(&tree.shelf, &key).unwrap();
            assert_eq!(floor, model.range(..=key).next_back().map(|(k, v)| (*k, v.clone())));
            match rng.u32(0..200) {
                0 => tree.store(),
                1 if snapshots.len() < 5 => snapshots.push((tree.root.clone(), model.clone())),
                2 if !snapshots.is_empty() => {
                    let (root, then) = rng.choice(&snapshots).unwrap();
                    let mut only = (BTreeMap::new(), BTreeMap::new());
                    let from = if rng.bool() { 0 } else { rng.u64(0..2000) };
                    differences(root, &tree.root, &tree.shelf, &from, &mut |side, k, v| {
                        let to = if side == Side::First { &mut only.0 } else { &mut only.1 };
                        assert!(to.insert(*k, v.clone()).is_none());
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                    let gone = |a: &BTreeMap<u64, Vec<u8>>, b: &BTreeMap<u64, Vec<u8>>| {
                        a.range(from..).filter(|(k, v)| b.get(k) != Some(v)).map(|(k, v)| (*k, v.clone())).collect()
                    };
                    let want: (BTreeMap<_, _>, BTreeMap<_, _>) = (gone(then, &model), gone(&model, then));
                    assert!(only == want);
                }
                _ => {}
            }
        }
        assert!(contents(&tree.shelf, &tree.root) == model);
        for (root, then) in &snapshots {
            assert!(contents(&tree.shelf, root) == *then);
        }
    }
}

#[test]
fn each_stored_node_is_referred_to_or_was_retired() {
    for seed in 0..10 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut tree = Tree::new();
        for _ in 0..40 {
            for _ in 0..rng.u32(1..200) {
                let key = rng.u64(0..2000);
                if rng.bool() {
                    tree.edit(|root, edit| root.insert(edit, key, vec![1; 100])).unwrap();
                } else {
                    tree.edit(|root, edit| root.remove(edit, &key)).unwrap();
                }
            }
            tree.store();
            let retired: HashSet<u32> = tree.retired.iter().map(|r| r.ordinal).collect();
            assert_eq!(retired.len(), tree.retired.len(), "a node was retired twice");
            let live = tree.nodes(&tree.root);
            assert!(live.is_disjoint(&retired));
            assert_eq!(live.len() + retired.len(), tree.shelf.nodes.borrow().len());
        }
    }
}

#[test]
fn a_node_that_is_touched_is_stored_anew_and_others_stay() {
    let mut tree = Tree::new();
    for key in 0..3000 {
        tree.edit(|root, edit| root.insert(edit, key * 3, vec![1; 100])).unwrap();
    }
    tree.store();
    let before = tree.nodes(&tree.root);
    let mut leaves: HashMap<u32, u64> = HashMap::new();
    let last = Cell::new(0);
    tree.root
        .walk(
            &tree.shelf,
            &mut |r| {
                last.set(r.ordinal);
                Ok(true)
            },
            &mut |k, _| {
                leaves.entry(last.get()).or_insert(*k);
                Ok(())
            },
        )
        .unwrap();
    let (&leaf, &key) = leaves.iter().next().unwrap();
    assert!(!tree.edit(|root, edit| root.touch(edit, &key, 0, (1, leaf + 1_000_000))).unwrap());
    assert!(!tree.root.is_dirty(), "a search that finds nothing changes nothing");
    assert!(tree.edit(|root, edit| root.touch(edit, &key, 0, (1, leaf))).unwrap());
    tree.store();
    let after = tree.nodes(&tree.root);
    assert!(!after.contains(&leaf));
    assert_eq!(before.difference(&after).count(), tree.retired.len());
    assert_eq!(contents(&tree.shelf, &tree.root).len(), 3000);
}

/// Gives a leaf whatever the level that is asked for, as a cache may.
struct LeavesOnly(Shelf);

impl Source for LeavesOnly {
    fn node<L: Layout>(&self, r: &NodeRef, _: u8) -> io::Result<Arc<Node<L>>> {
        self.0.node(r, 0)
    }
}

#[test]
fn a_node_at_two_levels_is_an_error() {
    let mut tree = Tree::new();
    tree.edit(|root, edit| root.insert(edit, 5, vec![1])).unwrap();
    tree.store();
    let src = LeavesOnly(tree.shelf);
    assert!(tree.root.floor(&src, &5).unwrap().is_some());
    tree.root.level = 1;
    assert!(tree.root.floor(&src, &5).is_err());
    assert!(tree.root.scan(&src, &0, &mut |_, _| ControlFlow::Continue(())).is_err());
}

/// Twelve levels, each of one node that refers a hundred times to the one below it: a search that believes the keys above would read 100^12
/// nodes for a key that is not there.
#[test]
fn a_node_that_is_referred_to_again_and_again_is_met_once() {
    let mut tree = Tree::new();
    let leaf = Node::<Numbers> { version: 1, body: Body::Leaf(vec![(5000, vec![1])]) };
    tree.shelf.nodes.borrow_mut().push(leaf.encode(0).unwrap());
    for level in 1..=12 {
        let below = NodeRef { segment: 1, ordinal: u32::from(level) - 1, offset: 0, version: 1, crc: 0 };
        let body = Body::Index((0..100).map(|key| (key, Child::Stored(below))).collect());
        tree.shelf.nodes.borrow_mut().push(Node::<Numbers> { version: 1, body }.encode(level).unwrap());
    }
    let top = NodeRef { segment: 1, ordinal: 12, offset: 0, version: 1, crc: 0 };
    tree.root = Root { child: Some(Child::Stored(top)), level: 12 };
    let read = |tree: &Tree| std::mem::take(&mut *tree.shelf.reads.borrow_mut());
    assert!(tree.root.floor(&tree.shelf, &4000).is_err());
    assert!(tree.root.scan(&tree.shelf, &0, &mut |_, _| ControlFlow::Continue(())).is_err());
    assert!(tree.root.walk(&tree.shelf, &mut |_| Ok(true), &mut |_, _| Ok(())).is_err());
    assert!(read(&tree) < 100);
    let _ = tree.edit(|root, edit| root.remove(edit, &4000));
    let _ = tree.edit(|root, edit| root.insert(edit, 4000, vec![2]));
    assert!(read(&tree) < 200);
}

#[test]
fn any_bytes_in_nodes_do_no_harm() {
    let mut tree = Tree::new();
    for key in 0..4000 {
        tree.edit(|root, edit| root.insert(edit, key, vec![1; 60])).unwrap();
    }
    tree.store();
    let (good, root) = (tree.shelf.nodes.borrow().clone(), tree.root.clone());
    let mut rng = fastrand::Rng::with_seed(8);
    for _ in 0..3000 {
        *tree.shelf.nodes.borrow_mut() = good.clone();
        tree.root = root.clone();
        for _ in 0..rng.usize(1..8) {
            let mut nodes = tree.shelf.nodes.borrow_mut();
            let n = nodes.len();
            let node = rng.usize(0..n);
            match rng.u32(0..3) {
                // A whole node elsewhere: levels and keys do not agree.
                0 => {
                    let other = nodes[rng.usize(0..n)].clone();
                    nodes[node] = other;
                }
                1 => {
                    let at = rng.usize(0..64);
                    nodes[node][at] = rng.u8(..);
                }
                _ => {
                    let at = rng.usize(0..NODE_BYTES);
                    nodes[node][at] ^= 1 << rng.u32(0..8);
                }
            }
        }
        *tree.shelf.reads.borrow_mut() = 0;
        let mut n = 0;
        let _ = tree.root.scan(&tree.shelf, &0, &mut |_, _| {
            n += 1;
            ControlFlow::Continue(())
        });
        assert!(*tree.shelf.reads.borrow() <= 2 * good.len(), "a node is read again and again");
        let _ = differences(&root, &Root::default(), &tree.shelf, &0, &mut |_, _, _| ControlFlow::Continue(()));
        for _ in 0..5 {
            let key = rng.u64(0..5000);
            let _ = tree.root.floor(&tree.shelf, &key);
            let _ = tree.edit(|root, edit| root.insert(edit, key, vec![2; 200]));
            let _ = tree.edit(|root, edit| root.remove(edit, &key));
        }
    }
}
