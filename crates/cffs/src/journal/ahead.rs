//! What recovery reads ahead. Small transactions change a block or two each; a request for each of those blocks would take
//! far longer than reading the log does. So the blocks of many transactions are read together, in order of the device.

use crate::format::BlockAddr;
use std::collections::BTreeSet;

/// Which blocks each transaction in the log changes, in the order of the log.
#[derive(Default)]
pub(super) struct Changes {
    /// Block, and whether the transaction makes it anew, so that nobody has to read it.
    blocks: Vec<(BlockAddr, bool)>,
    /// Where in `blocks` each transaction ends.
    ends: Vec<usize>,
}

impl Changes {
    /// A block that the transaction being added changes.
    pub(super) fn add(&mut self, addr: BlockAddr, made: bool) {
        self.blocks.push((addr, made));
    }

    /// The transaction has no more blocks.
    pub(super) fn end(&mut self) {
        self.ends.push(self.blocks.len());
    }

    /// Blocks to read for transaction `first` and those after it, as far as `most` blocks go, in order of their addresses;
    /// and the transaction that comes after these. What `dead` says of a block and a transaction is not wanted.
    pub(super) fn ahead(
        &self,
        first: usize,
        most: usize,
        dead: impl Fn(BlockAddr, usize) -> bool,
    ) -> (Vec<BlockAddr>, usize) {
        let (mut wanted, mut made) = (BTreeSet::new(), BTreeSet::new());
        let mut from = if first == 0 { 0 } else { self.ends[first - 1] };
        let mut next = first;
        while next < self.ends.len() && wanted.len() + made.len() < most {
            for &(addr, anew) in self.blocks[from..self.ends[next]].iter().filter(|(addr, _)| !dead(*addr, next)) {
                if anew {
                    made.insert(addr);
                } else if !made.contains(&addr) {
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
    fn blocks_are_wanted_once_unless_they_are_made_anew_or_dead() {
        let mut c = Changes::default();
        for txn in [&[(9, false), (4, true)][..], &[(4, false), (3, false)], &[(9, false), (7, false)], &[(3, false)]] {
            txn.iter().for_each(|(addr, made)| c.add(*addr, *made));
            c.end();
        }
        let none = |_, _| false;
        assert_eq!(c.ahead(0, 100, none), (vec![3, 7, 9], 4));
        assert_eq!(c.ahead(0, 2, none), (vec![9], 1));
        assert_eq!(c.ahead(0, 3, none), (vec![3, 9], 2));
        assert_eq!(c.ahead(1, 3, none), (vec![3, 4, 7, 9], 3), "made before, and gone home since");
        assert_eq!(c.ahead(0, 100, |addr, txn| addr == 3 && txn < 3), (vec![3, 7, 9], 4));
        assert_eq!(c.ahead(0, 100, |addr, _| addr == 9), (vec![3, 7], 4));
        assert_eq!(c.ahead(4, 100, none), (vec![], 4));
    }
}
