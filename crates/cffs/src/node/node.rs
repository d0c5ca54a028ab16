//! One inode in memory.

use super::data::FileData;
use super::dir_state::DirState;
use super::readers::Readers;
use super::under_way::{State, UnderWay};
use crate::error::Result;
use crate::format::{Ino, Inode};
use crate::inode::{self, InodeLocation};
use crate::journal::Txn;
use crate::quota::InodeCharge;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

/// What of a node its lock protects.
pub struct NodeState {
    /// The inode as programs see it; its size may run ahead of the device.
    pub inode: Inode,
    /// Where it stands.
    pub location: InodeLocation,
    /// Size that the device may show: data up to here is written.
    pub disk_size: u64,
    /// Times or size in memory are newer than the device's.
    pub dirty: bool,
    /// Unlinked, waiting for its last reference.
    pub orphan: bool,
    /// Made without a name, and still without one: it may get one. Nothing that lost its last name may.
    pub linkable: bool,
    /// Gone: the number may be another file's already.
    pub freed: bool,
    /// Contents that have no place yet.
    pub data: FileData,
    /// What is known of the names in it, for a directory.
    pub dir: Option<Box<DirState>>,
}

/// An inode in memory.
pub struct Node {
    /// Its number.
    pub ino: Ino,
    /// References held by callers of the engine. They outlive the node: a caller holds a number, see [`super::InodeCache::release`].
    pub refs: AtomicU64,
    /// Asked for since the clock's hand last passed.
    pub(super) used: AtomicBool,
    /// On the list of nodes with something to write.
    pub on_dirty_list: AtomicBool,
    /// Guarded state.
    pub state: RwLock<NodeState>,
    /// Held while a thread writes to the file or cuts it, because a cut takes several transactions. Taken before any other lock.
    pub write_lock: Mutex<()>,
    /// Writebacks that have pages of it in flight.
    pub under_way: UnderWay,
    /// Writes of its data that have begun, mappings and overwrites alike. Whoever has copied data without a lock compares it.
    pub data_version: AtomicU64,
    /// Access time that the inode does not have yet, the least for none (readers hold the lock shared only).
    pub pending_atime: AtomicI64,
    /// With lazytime: since when times wait to be written; 0 if they do not.
    pub lazy_since: AtomicI64,
    /// End of the last read: a read that goes on from there is sequential.
    pub last_read: AtomicU64,
    /// Reads that are under way.
    pub reads: AtomicU32,
    /// The ends of the reads of several readers, where more is read ahead.
    pub readers: Readers,
}

impl Node {
    pub(super) fn new(inode: Inode, location: InodeLocation, account: Option<InodeCharge>) -> Node {
        let dir = inode.is_dir().then(Box::default);
        let state = NodeState {
            disk_size: inode.size,
            location,
            dirty: false,
            orphan: inode.nlink == 0,
            linkable: false,
            freed: false,
            data: FileData::new(account),
            dir,
            inode,
        };
        Node {
            ino: state.inode.ino,
            refs: AtomicU64::new(0),
            used: AtomicBool::new(false),
            on_dirty_list: AtomicBool::new(false),
            state: RwLock::new(state),
            write_lock: Mutex::new(()),
            under_way: UnderWay::default(),
            data_version: AtomicU64::new(0),
            pending_atime: AtomicI64::new(i64::MIN),
            lazy_since: AtomicI64::new(0),
            last_read: AtomicU64::new(0),
            reads: AtomicU32::new(0),
            readers: Readers::default(),
        }
    }

    /// Waits until no page of the node is in flight. The caller holds no lock that writeback needs.
    pub fn wait_writeback(&self) {
        drop(self.under_way.wait());
    }

    /// The state, and where to note a writeback that is to begin: none is under way, and none begins before both are let
    /// go. The caller holds no lock that writeback needs.
    pub fn lock_for_writeback(&self) -> (RwLockWriteGuard<'_, NodeState>, MutexGuard<'_, State>) {
        let mut held_back = self.under_way.hold_back();
        loop {
            self.wait_writeback();
            let state = self.state.write();
            match held_back.lock_idle() {
                Ok(under_way) => return (state, under_way),
                // Somebody else has begun one before the node was locked.
                Err(again) => held_back = again,
            }
        }
    }

    /// As on the device, but for its references.
    pub(super) fn evictable(&self) -> bool {
        !self.on_dirty_list.load(Ordering::Acquire)
            && self.state.try_read().is_some_and(|s| !s.dirty && s.data.is_clean() && !s.orphan)
    }
}

/// Writes a node's inode to where it stands. On the device the size is [`NodeState::disk_size`]. What the inode takes
/// more or less than when it was last stored is charged to its owner's, group's and project's quota, in the same
/// transaction, so code that changes `Inode::frags` has nothing else to do for that.
pub fn store(txn: &Txn<'_>, st: &mut NodeState) -> Result<()> {
    let size = std::mem::replace(&mut st.inode.size, st.disk_size);
    let outcome = inode::store(txn, st.location, &st.inode, st.orphan);
    st.inode.size = size;
    if outcome.is_err() {
        // What is in memory only is not forgotten: fsync tries again, and says so.
        st.dirty = true;
        return outcome;
    }
    if st.disk_size == size {
        st.dirty = false;
    }
    if let Some(account) = &st.data.account {
        account.charge_delta(txn, &st.inode);
    }
    Ok(())
}
