//! Readahead of recovery. Small transactions change a block or two each; a request for each of those blocks would take
//! far longer than reading the log does. So the blocks of many transactions are read together, in order of the device.

use crate::format::BlockAddr;
use std::collections::BTreeSet;

/// Which blocks each transaction in the log changes, in the order of the log.
#[derive(Default)]
pub(super) struct ReplayReadahead {
    /// Block, and whether the transaction initializes it, so that it need not be read.
    blocks: Vec<(BlockAddr, bool)>,
    /// Where in `blocks` each transaction ends.
    ends: Vec<usize>,
}

impl ReplayReadahead {
    /// A block that the transaction being added changes.
    pub(super) fn add(&mut self, addr: BlockAddr, init: bool) {
        self.blocks.push((addr, init));
    }

    /// The transaction has no more blocks.
    pub(super) fn end(&mut self) {
        self.ends.push(self.blocks.len());
    }

    /// Blocks to read for transaction `first` and those after it, as far as `most` blocks go, in order of their addresses;
    /// and the transaction that comes after these. Blocks that are `revoked` for a transaction are left out.
    pub(super) fn next(
        &self,
        first: usize,
        most: usize,
        revoked: impl Fn(BlockAddr, usize) -> bool,
    ) -> (Vec<BlockAddr>, usize) {
        let (mut wanted, mut initialized) = (BTreeSet::new(), BTreeSet::new());
        let mut from = if first == 0 { 0 } else { self.ends[first - 1] };
        let mut next = first;
        while next < self.ends.len() && wanted.len() + initialized.len() < most {
            for &(addr, init) in self.blocks[from..self.ends[next]].iter().filter(|(addr, _)| !revoked(*addr, next)) {
                if init {
                    initialized.insert(addr);
                } else if !initialized.contains(&addr) {
                    wanted.insert(addr);
                }
            }
            from = self.ends[next];
            next += 1;
        }
        (wanted.into_iter().collect(), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_once_unless_they_are_initialized_or_revoked() {
        let mut c = ReplayReadahead::default();
        for txn in [&[(9, false), (4, true)][..], &[(4, false), (3, false)], &[(9, false), (7, false)], &[(3, false)]] {
            txn.iter().for_each(|(addr, made)| c.add(*addr, *made));
            c.end();
        }
        let none = |_, _| false;
        assert_eq!(c.next(0, 100, none), (vec![3, 7, 9], 4));
        assert_eq!(c.next(0, 2, none), (vec![9], 1));
        assert_eq!(c.next(0, 3, none), (vec![3, 9], 2));
        assert_eq!(c.next(1, 3, none), (vec![3, 4, 7, 9], 3), "initialized before, and written in place since");
        assert_eq!(c.next(0, 100, |addr, txn| addr == 3 && txn < 3), (vec![3, 7, 9], 4));
        assert_eq!(c.next(0, 100, |addr, _| addr == 9), (vec![3, 7], 4));
        assert_eq!(c.next(4, 100, none), (vec![], 4));
    }
}
