//! What made data dirty that is not written back yet, and for whom it is written then.

use super::causes::{Cause, Causes, Few};
use crate::addr_map::AddrMap;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most inodes whose causes are kept apart; those of further ones are kept together.
const INODES_MAX: usize = 4096;

thread_local! {
    /// Those for whom this thread works, if there are many.
    static FOR_MANY: RefCell<Option<Arc<Many>>> = const { RefCell::new(None) };
}

/// Those for whom something is done.
#[derive(Debug)]
pub(crate) struct Many {
    /// The span that is done for them as a whole; 0 for a part of one.
    span: u64,
    causes: Few,
    /// The last transaction whose causes they were counted among. Several may be made for them, and whole batches beside them.
    counted: AtomicU64,
}

impl Many {
    fn new(causes: Few) -> Arc<Many> {
        Arc::new(Many { span: 0, causes, counted: AtomicU64::new(0) })
    }

    /// Those of a whole span: they are among the causes of its parts, and are counted with these.
    pub(super) fn of_span(span: u64, causes: &Causes) -> Arc<Many> {
        Arc::new(Many { span, causes: Few::All(Box::new(causes.clone())), counted: AtomicU64::new(u64::MAX) })
    }

    /// Adds them to the causes of a transaction that they have changed so many bytes in, through this span.
    fn add_to(&self, all: &mut Causes, span: u64, transaction: u64, weight: u64) {
        let counted = match self.counted.load(Ordering::Relaxed) {
            u64::MAX => true,
            _ => self.counted.swap(transaction, Ordering::Relaxed) == transaction,
        };
        self.causes.merge_through(span, all, weight, counted);
    }
}

/// Adds this thread's work to the causes of a transaction: its innermost span, or those for whom it works.
pub(super) fn add_current(all: &mut Causes, transaction: u64, weight: u64) {
    let current = Cause::current();
    FOR_MANY.with_borrow(|whom| match whom {
        Some(whom) => whom.add_to(all, current.span, transaction, weight),
        None => all.add(current, weight),
    });
}

/// Adds those for whom this thread works to the causes of work that it leaves to be done later, of so many bytes. `last`: the span that was
/// added last; it counts once, however much it leaves. Returns the one that was added now.
pub(super) fn add_left(all: &mut Causes, last: u64, weight: u64) -> u64 {
    let current = Cause::current();
    FOR_MANY.with_borrow(|many| match many {
        Some(many) => {
            let counted = many.span != 0 && many.span == last;
            many.causes.merge_through(if many.span == 0 { current.span } else { many.span }, all, weight, counted);
            many.span
        }
        None => {
            all.add(current, weight);
            0
        }
    })
}

/// While it lives, this thread works for others.
#[must_use = "it ends where this is dropped"]
pub(crate) struct ForMany {
    before: Option<Arc<Many>>,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl ForMany {
    /// For these, or for itself.
    pub(crate) fn of(whom: Option<Arc<Many>>) -> ForMany {
        ForMany { before: FOR_MANY.replace(whom), _thread: PhantomData }
    }

    /// From now on for these.
    pub(super) fn change(&mut self, whom: Arc<Many>) {
        FOR_MANY.set(Some(whom));
    }
}

impl Drop for ForMany {
    fn drop(&mut self) {
        FOR_MANY.set(self.before.take());
    }
}

/// Causes of dirty data, by inode.
#[derive(Default)]
pub(super) struct Pending {
    inodes: AddrMap<u64, Few>,
    /// Of inodes that found no room.
    others: Causes,
}

/// What a writeback has taken: for whom it is done, together and by inode.
#[derive(Default)]
pub(crate) struct Dirtied {
    pub(crate) all: Causes,
    inodes: AddrMap<u64, Arc<Many>>,
    others: Option<Arc<Many>>,
}

impl Dirtied {
    /// For whom an inode is written.
    pub(crate) fn of(&self, inode: u64) -> Option<Arc<Many>> {
        self.inodes.get(&inode).or(self.others.as_ref()).cloned()
    }
}

impl Pending {
    /// An inode has got so many bytes that are dirty and were not.
    pub(super) fn add(&mut self, inode: u64, cause: Cause, bytes: u64) {
        let full = self.inodes.len() >= INODES_MAX;
        match self.inodes.get_mut(&inode) {
            Some(causes) => causes.add(cause, bytes),
            None if full => self.others.add(cause, bytes),
            None => drop(self.inodes.insert(inode, Few::One(cause, bytes))),
        }
    }

    /// Nothing of an inode is written any more.
    pub(super) fn forget(&mut self, inode: u64) {
        self.inodes.remove(&inode);
    }

    /// Takes the causes of these inodes; those that were not kept apart go with the first writeback of several inodes.
    pub(super) fn take(&mut self, inodes: impl Iterator<Item = u64>) -> Dirtied {
        let mut taken = Dirtied::default();
        let mut count = 0;
        taken.inodes.reserve(inodes.size_hint().0.min(self.inodes.len()));
        for inode in inodes {
            count += 1;
            if let Some(causes) = self.inodes.remove(&inode) {
                causes.merge_into(&mut taken.all);
                taken.inodes.insert(inode, Many::new(causes));
            }
        }
        if count > 1 && !self.others.is_empty() {
            let others = std::mem::take(&mut self.others);
            taken.all.merge(&others);
            taken.others = Some(Many::new(Few::All(Box::new(others))));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::super::kind::Kind;
    use super::*;

    #[test]
    fn a_transaction_of_a_file_is_for_those_who_made_that_file_dirty() {
        let mut pending = Pending::default();
        pending.add(1, Cause { span: 10, origin: Some(Kind::Write) }, 7000);
        (20..30).for_each(|span| pending.add(2, Cause { span, origin: Some(Kind::Read) }, 0));
        pending.add(3, Cause { span: 40, origin: Some(Kind::Create) }, 1 << 20);
        pending.forget(3);
        let taken = pending.take([1, 2, 3].into_iter());
        assert_eq!(taken.all.shares().collect::<Vec<_>>(), [(Some(Kind::Write), 1.0), (Some(Kind::Read), 0.0)]);
        let mut commit = Causes::default();
        let _span = ForMany::of(Some(Many::of_span(9, &taken.all)));
        for (inode, bytes) in [(1, 64), (2, 32), (2, 32)] {
            let _file = ForMany::of(Some(taken.of(inode).unwrap()));
            add_current(&mut commit, 5, bytes);
        }
        assert_eq!(commit.counts().collect::<Vec<_>>(), [(Some(Kind::Write), 1), (Some(Kind::Read), 10)]);
        assert_eq!(commit.shares().map(|(_, s)| s).collect::<Vec<_>>(), [0.5, 0.5]);
        // What is done for the whole batch has the shares of the batch, and counts nobody again.
        add_current(&mut commit, 5, 128);
        assert_eq!(commit.shares().map(|(_, s)| s).collect::<Vec<_>>(), [0.75, 0.25]);
        assert_eq!(commit.counts().map(|(_, n)| n).sum::<u64>(), 11);
        assert!(taken.of(3).is_none());
    }
}
