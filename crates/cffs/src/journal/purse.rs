//! What a transaction may allocate.

use std::cell::Cell;
use std::rc::Rc;

/// Whole blocks that are promised to an operation: what its transaction allocates for metadata comes out of them first.
/// The promise itself is kept in the books of [`crate::space::Space`]; this is the part of it that nobody else may spend.
///
/// Clones are the same purse. Whoever got the promise takes back what is left ([`Purse::empty`]) and ends it.
#[derive(Clone, Debug)]
pub struct Purse(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    blocks: Cell<u64>,
    spent: Cell<u64>,
    privileged: bool,
}

impl Purse {
    /// A purse with so many promised blocks. What is allocated beyond them must be free and promised to nobody;
    /// `privileged` owners get the reserve of the file system then.
    pub fn new(blocks: u64, privileged: bool) -> Purse {
        Purse(Rc::new(Inner { blocks: Cell::new(blocks), spent: Cell::new(0), privileged }))
    }

    /// Blocks that are left.
    pub fn blocks(&self) -> u64 {
        self.0.blocks.get()
    }

    /// Whether its owner gets the reserve.
    pub fn privileged(&self) -> bool {
        self.0.privileged
    }

    /// Takes out up to `n` blocks; returns how many there were.
    pub(crate) fn spend(&self, n: u64) -> u64 {
        let spent = n.min(self.blocks());
        self.0.blocks.set(self.blocks() - spent);
        self.0.spent.set(self.0.spent.get() + spent);
        spent
    }

    /// Puts up to `n` blocks back in, not more than were taken out; returns how many.
    pub(crate) fn put(&self, n: u64) -> u64 {
        let put = n.min(self.0.spent.get());
        self.0.spent.set(self.0.spent.get() - put);
        self.0.blocks.set(self.blocks() + put);
        put
    }

    /// Takes out all that is left.
    pub fn empty(&self) -> u64 {
        self.0.blocks.take()
    }
}
