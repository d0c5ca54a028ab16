//! What one inode has been charged for.

use super::{Change, Ids, Quota, ids_of};
use crate::error::Result;
use crate::format::Inode;
use crate::journal::Txn;
use parking_lot::Mutex;
use std::sync::Arc;

/// The quota side of an inode in memory: what its ids were charged for it, and what is promised for its dirty data.
pub struct Account {
    quota: Arc<Quota>,
    state: Mutex<State>,
}

struct State {
    ids: Ids,
    /// Fragments charged.
    frags: u64,
    /// The inode itself is charged.
    counted: bool,
    /// Fragments promised.
    reserved: u64,
    /// Fragments of those that the next charge stands for.
    converting: u64,
    /// The inode is gone.
    closed: bool,
}

impl Account {
    /// The account of an inode that came from the device, which was charged for as it is.
    pub(crate) fn of_existing(quota: Arc<Quota>, inode: &Inode) -> Account {
        Account::new(quota, inode, inode.frags, true)
    }

    /// The account of an inode that was just made: nothing is charged yet.
    pub(crate) fn of_new(quota: Arc<Quota>, inode: &Inode) -> Account {
        Account::new(quota, inode, 0, false)
    }

    fn new(quota: Arc<Quota>, inode: &Inode, frags: u64, counted: bool) -> Account {
        let state = State { ids: ids_of(inode), frags, counted, reserved: 0, converting: 0, closed: false };
        Account { quota, state: Mutex::new(state) }
    }

    /// Promises fragments to the inode's ids.
    pub(crate) fn reserve(&self, frags: u64, privileged: bool) -> Result<()> {
        if frags == 0 {
            return Ok(());
        }
        let st = &mut *self.state.lock();
        self.quota.reserve(&st.ids, frags, 0, privileged)?;
        st.reserved += frags;
        Ok(())
    }

    /// Takes a promise back.
    pub(crate) fn release(&self, frags: u64) {
        let st = &mut *self.state.lock();
        let frags = frags.min(st.reserved - st.converting);
        if frags > 0 {
            st.reserved -= frags;
            self.quota.unreserve(&st.ids, frags, 0);
        }
    }

    /// The next charge stands for so many of the fragments promised: both happen at once, so that nobody finds room
    /// in between.
    pub(crate) fn convert(&self, frags: u64) {
        let st = &mut *self.state.lock();
        st.converting = st.converting.saturating_add(frags).min(st.reserved);
    }

    /// Charges what the inode has become since the last time. It is being written in this transaction.
    pub(crate) fn settle(&self, txn: &Txn<'_>, inode: &Inode) {
        self.settle_holding(txn, inode, None);
    }

    /// As [`Account::settle`]; the inode is charged instead of the guard.
    pub(crate) fn settle_holding(&self, txn: &Txn<'_>, inode: &Inode, hold: Option<&mut Hold>) {
        let st = &mut *self.state.lock();
        let ids = ids_of(inode);
        if st.closed || st.counted && st.frags == inode.frags && st.ids == ids && st.converting == 0 {
            return;
        }
        let held = hold.filter(|h| h.ids == ids);
        let (held_frags, held_inodes) = held.as_ref().map_or((0, 0), |h| (h.frags, h.inodes));
        let taken = (held_frags.min(inode.frags.saturating_sub(st.frags)), held_inodes.min(1));
        let (before, after) = (st.reserved, st.reserved - st.converting);
        for book in &self.quota.kinds {
            let (old, new) = (st.ids[book.kind.index()], ids[book.kind.index()]);
            let inodes = i64::from(!st.counted);
            if old == new {
                let change = Change {
                    frags: inode.frags.wrapping_sub(st.frags) as i64,
                    inodes,
                    reserved_frags: taken.0 + st.converting,
                    reserved_inodes: taken.1,
                };
                self.quota.charge(txn, book, old, &change);
            } else {
                let gone = Change {
                    frags: -(st.frags as i64),
                    inodes: -i64::from(st.counted),
                    reserved_frags: before,
                    reserved_inodes: 0,
                };
                self.quota.charge(txn, book, old, &gone);
                // Promised to the new one before it is charged: this may pass a limit, which its guard stands for.
                self.quota.promise(book, new, after);
                let come = Change { frags: inode.frags as i64, inodes: 1, ..Change::default() };
                self.quota.charge(txn, book, new, &come);
            }
        }
        if let Some(h) = held {
            h.frags -= taken.0;
            h.inodes -= taken.1;
        }
        (st.ids, st.frags, st.counted) = (ids, inode.frags, true);
        (st.reserved, st.converting) = (after, 0);
    }

    /// The inode is being freed: nothing is charged for it any more.
    pub(crate) fn close(&self, txn: &Txn<'_>) {
        let st = &mut *self.state.lock();
        if st.closed {
            return;
        }
        st.closed = true;
        let gone = Change {
            frags: -(st.frags as i64),
            inodes: -i64::from(st.counted),
            reserved_frags: std::mem::take(&mut st.reserved),
            reserved_inodes: 0,
        };
        for book in &self.quota.kinds {
            self.quota.charge(txn, book, st.ids[book.kind.index()], &gone);
        }
        st.converting = 0;
    }

    /// Promises to other ids what the inode has, before it changes hands: all that it was charged for and promised, to
    /// those ids that are not its own already.
    pub(crate) fn hold_for(&self, ids: Ids, privileged: bool) -> Result<Vec<Hold>> {
        let (own, frags) = {
            let st = self.state.lock();
            (st.ids, st.frags + st.reserved)
        };
        let mut holds = Vec::new();
        for book in &self.quota.kinds {
            let i = book.kind.index();
            if own[i] != ids[i] {
                self.quota.reserve_one(book, ids[i], frags, 1, privileged)?;
                let quota = self.quota.clone();
                holds.push(Hold { quota, ids, frags, inodes: 1, only: Some(i) });
            }
        }
        Ok(holds)
    }
}

/// A promise of fragments and inodes to some ids, for as long as it lives.
pub struct Hold {
    quota: Arc<Quota>,
    ids: Ids,
    frags: u64,
    inodes: u64,
    /// Of one kind only.
    only: Option<usize>,
}

impl Hold {
    pub(super) fn new(quota: Arc<Quota>, ids: Ids, frags: u64, inodes: u64) -> Hold {
        Hold { quota, ids, frags, inodes, only: None }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.frags == 0 && self.inodes == 0 {
            return;
        }
        for (book, id) in self.quota.books(&self.ids) {
            if self.only.is_none_or(|i| i == book.kind.index()) {
                self.quota.unreserve_one(book, id, self.frags, self.inodes);
            }
        }
    }
}
