//! Several nodes locked for change.

use super::node::{Node, NodeState};
use crate::error::{Error, Result};
use crate::format::Ino;
use parking_lot::RwLockWriteGuard;
use std::sync::Arc;

/// Nodes locked for change, in the order of their numbers.
pub struct Locked<'a> {
    guards: Vec<(Ino, RwLockWriteGuard<'a, NodeState>)>,
}

impl<'a> Locked<'a> {
    /// Locks each of the nodes once. A node may be named several times.
    pub fn new(nodes: &[&'a Arc<Node>]) -> Locked<'a> {
        let mut sorted: Vec<&'a Arc<Node>> = nodes.to_vec();
        sorted.sort_unstable_by_key(|n| n.ino);
        sorted.dedup_by_key(|n| n.ino);
        Locked { guards: sorted.into_iter().map(|n| (n.ino, n.state.write())).collect() }
    }

    /// The state of a node that was locked.
    pub fn get(&mut self, ino: Ino) -> Result<&mut NodeState> {
        let found = self.guards.iter_mut().find(|(i, _)| *i == ino);
        found.map(|(_, g)| &mut **g).ok_or(Error::Stale)
    }

    /// The states of two different nodes.
    pub fn pair(&mut self, a: Ino, b: Ino) -> Result<(&mut NodeState, &mut NodeState)> {
        let place = |i: Ino| self.guards.iter().position(|(n, _)| *n == i).ok_or(Error::Stale);
        let places = [place(a)?, place(b)?];
        match self.guards.get_disjoint_mut(places) {
            Ok([x, y]) => Ok((&mut x.1, &mut y.1)),
            Err(_) => Err(Error::Stale),
        }
    }
}
