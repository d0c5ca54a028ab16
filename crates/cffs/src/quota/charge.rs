//! What one inode has been charged for.

use super::{Change, Ids, Quota, ids_of};
use crate::error::Result;
use crate::format::Inode;
use crate::journal::Txn;
use crate::reservation::{QuotaPool, Reservation};
use parking_lot::Mutex;
use std::sync::Arc;

/// The quota side of an inode in memory: what its ids were charged for it, and what is reserved for its dirty data.
pub struct InodeCharge {
    quota: Arc<Quota>,
    state: Mutex<State>,
}

struct State {
    ids: Ids,
    /// Fragments charged.
    frags: u64,
    /// The inode itself is charged.
    counted: bool,
    /// Fragments reserved.
    reserved: u64,
    /// Fragments of those that the next charge stands for.
    converting: u64,
    /// The inode is gone.
    closed: bool,
}

impl InodeCharge {
    /// The account of an inode that came from the device, which was charged for as it is.
    pub(crate) fn of_existing(quota: Arc<Quota>, inode: &Inode) -> InodeCharge {
        InodeCharge::new(quota, inode, inode.frags, true)
    }

    /// The account of an inode that was just made: nothing is charged yet.
    pub(crate) fn of_new(quota: Arc<Quota>, inode: &Inode) -> InodeCharge {
        InodeCharge::new(quota, inode, 0, false)
    }

    fn new(quota: Arc<Quota>, inode: &Inode, frags: u64, counted: bool) -> InodeCharge {
        let state = State { ids: ids_of(inode), frags, counted, reserved: 0, converting: 0, closed: false };
        InodeCharge { quota, state: Mutex::new(state) }
    }

    /// Charges what the inode has become since the last time. It is being written in this transaction.
    pub(crate) fn charge_delta(&self, txn: &Txn<'_>, inode: &Inode) {
        self.charge_delta_from(txn, inode, None);
    }

    /// As [`InodeCharge::charge_delta`]; what is charged comes out of the reservation given.
    pub(crate) fn charge_delta_from(&self, txn: &Txn<'_>, inode: &Inode, reserved: Option<&Reservation>) {
        let st = &mut *self.state.lock();
        let ids = ids_of(inode);
        if st.closed || st.counted && st.frags == inode.frags && st.ids == ids && st.converting == 0 {
            return;
        }
        let taken = reserved.map_or((0, 0), |r| r.take_quota(inode.frags.saturating_sub(st.frags), 1));
        let (before, after) = (st.reserved, st.reserved - st.converting);
        for quota_type in &self.quota.kinds {
            let (old, new) = (st.ids[quota_type.kind.index()], ids[quota_type.kind.index()]);
            let inodes = i64::from(!st.counted);
            if old == new {
                let change = Change {
                    frags: inode.frags.wrapping_sub(st.frags) as i64,
                    inodes,
                    reserved_frags: taken.0 + st.converting,
                    reserved_inodes: taken.1,
                };
                self.quota.charge(txn, quota_type, old, &change);
            } else {
                let gone = Change {
                    frags: -(st.frags as i64),
                    inodes: -i64::from(st.counted),
                    reserved_frags: before,
                    reserved_inodes: 0,
                };
                self.quota.charge(txn, quota_type, old, &gone);
                // Reserved for the new one before it is charged: this may pass a limit, which was checked when the change began.
                self.quota.reserve_unchecked(quota_type, new, after);
                let come = Change { frags: inode.frags as i64, inodes: 1, ..Change::default() };
                self.quota.charge(txn, quota_type, new, &come);
            }
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
        for quota_type in &self.quota.kinds {
            self.quota.charge(txn, quota_type, st.ids[quota_type.kind.index()], &gone);
        }
        st.converting = 0;
    }

    /// Reserves for other ids what the inode has, before it changes hands: all that it was charged for and has reserved,
    /// for those ids that are not its own already.
    pub(crate) fn reservation_for(&self, ids: Ids, privileged: bool) -> Result<Reservation> {
        let (own, frags) = {
            let st = self.state.lock();
            (st.ids, st.frags + st.reserved)
        };
        self.quota.reservation_for_new_ids(&own, ids, frags, privileged)
    }
}

impl QuotaPool for InodeCharge {
    fn reserve(&self, frags: u64, privileged: bool) -> Result<()> {
        if frags == 0 {
            return Ok(());
        }
        let st = &mut *self.state.lock();
        self.quota.reserve(self.quota.types(&st.ids), frags, 0, privileged)?;
        st.reserved += frags;
        Ok(())
    }

    fn release(&self, frags: u64, _inodes: u64) {
        let st = &mut *self.state.lock();
        let frags = frags.min(st.reserved - st.converting);
        if frags > 0 {
            st.reserved -= frags;
            self.quota.unreserve(&st.ids, frags, 0);
        }
    }

    /// Both happen at once, so that nobody finds room in between.
    fn convert(&self, frags: u64) {
        let st = &mut *self.state.lock();
        st.converting = st.converting.saturating_add(frags).min(st.reserved);
    }
}
