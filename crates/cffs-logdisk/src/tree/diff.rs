//! What differs between two trees. Nodes that both have are not read.

use super::node::{Body, Child, Layout, Range, Source, child_range};
use super::root::{Root, child_index};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Which of the two trees has an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    First,
    Second,
}

/// What comes next in one of the trees: a node that was not looked into, or an entry.
enum Item<L: Layout> {
    Node(L::Key, u8, Range<L::Key>, Child<L>),
    Entry(L::Key, L::Value),
}

impl<L: Layout> Item<L> {
    fn key(&self) -> L::Key {
        match self {
            Item::Node(k, ..) | Item::Entry(k, _) => *k,
        }
    }

    fn level(&self) -> Option<u8> {
        match self {
            Item::Node(_, level, ..) => Some(*level),
            Item::Entry(..) => None,
        }
    }
}

fn same<L: Layout>(a: &Child<L>, b: &Child<L>) -> bool {
    match (a, b) {
        (Child::Stored(a), Child::Stored(b)) => a == b,
        (Child::Dirty(a), Child::Dirty(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}

/// Called with an entry that differs, until it breaks.
pub(crate) type VisitSide<'a, L> =
    &'a mut dyn FnMut(Side, &<L as Layout>::Key, &<L as Layout>::Value) -> ControlFlow<()>;

/// Puts the contents of a node from a key on in its place; entries go to `stack` as they are.
fn expand<L: Layout, S: Source>(src: &S, stack: &mut Vec<Item<L>>, from: &L::Key) -> io::Result<()> {
    let (level, range, child) = match stack.pop() {
        Some(Item::Node(_, level, range, child)) => (level, range, child),
        Some(entry) => {
            stack.push(entry);
            return Ok(());
        }
        None => return Ok(()),
    };
    let node = child.get_within(src, level, range)?;
    match &node.body {
        Body::Leaf(entries) => {
            let first = entries.partition_point(|(k, _)| k < from);
            stack.extend(entries[first..].iter().rev().map(|(k, v)| Item::Entry(*k, v.clone())));
        }
        Body::Index(children) => {
            let item = |(i, (k, c)): (usize, &(L::Key, Child<L>))| {
                Item::Node(*k, level - 1, child_range(children, i, range), c.clone())
            };
            stack.extend(children.iter().enumerate().skip(child_index(children, from)).rev().map(item));
        }
    }
    Ok(())
}

fn start<L: Layout, S: Source>(src: &S, root: &Root<L>) -> io::Result<Vec<Item<L>>> {
    let Some(child) = &root.child else { return Ok(Vec::new()) };
    let first = child.get(src, root.level)?.first_key();
    Ok(first.map(|k| Item::Node(k, root.level, (None, None), child.clone())).into_iter().collect())
}

/// Calls `visit` with each entry from a key on that only one of the trees has, or that has another value in the other one, in order.
pub(crate) fn differences<L: Layout<Value: PartialEq>, S: Source>(
    first: &Root<L>,
    second: &Root<L>,
    src: &S,
    from: &L::Key,
    visit: VisitSide<'_, L>,
) -> io::Result<()> {
    if first.same(second) {
        return Ok(());
    }
    let (mut a, mut b) = (start(src, first)?, start(src, second)?);
    let mut flow = ControlFlow::Continue(());
    while flow.is_continue() {
        match (a.last(), b.last()) {
            (None, None) => break,
            (Some(Item::Node(..)), None) => expand(src, &mut a, from)?,
            (None, Some(Item::Node(..))) => expand(src, &mut b, from)?,
            (Some(Item::Entry(k, v)), None) => {
                flow = visit(Side::First, k, v);
                a.pop();
            }
            (None, Some(Item::Entry(k, v))) => {
                flow = visit(Side::Second, k, v);
                b.pop();
            }
            (Some(Item::Node(_, _, _, x)), Some(Item::Node(_, _, _, y))) if same(x, y) => {
                a.pop();
                b.pop();
            }
            (Some(Item::Entry(k, v)), Some(Item::Entry(l, w))) if k == l => {
                if v != w {
                    let _ = visit(Side::First, k, v);
                    flow = visit(Side::Second, l, w);
                }
                a.pop();
                b.pop();
            }
            (Some(x), Some(y)) => {
                // Whoever begins earlier goes on; of two nodes that begin together, the higher is opened, so that what they share
                // comes to the front of both.
                let a_first = x.key() < y.key() || (x.key() == y.key() && x.level() >= y.level());
                let (stack, side) = if a_first { (&mut a, Side::First) } else { (&mut b, Side::Second) };
                if let Some(Item::Entry(k, v)) = stack.last() {
                    flow = visit(side, k, v);
                    stack.pop();
                } else {
                    expand(src, stack, from)?;
                }
            }
        }
    }
    Ok(())
}
