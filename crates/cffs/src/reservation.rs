//! Reservations: what an operation may use, set aside before anything changes.
//!
//! A reservation holds fragments for data, whole blocks for metadata, and the same in the quotas of their owner.
//! It is made where an error can still be returned: at write, create or fallocate, not at writeback. What it still holds
//! when it is dropped goes back. (Log bytes are reserved by [`crate::journal::Journal::begin`] and belong to the
//! transaction alone, because a commit may come between two transactions of one operation.)
//!
//! This module knows neither the space manager nor quotas: they lend through [`SpacePool`] and [`QuotaPool`].

use crate::error::Result;
use parking_lot::Mutex;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Free space of a file system, as a reservation sees it.
pub trait SpacePool: Send + Sync {
    /// Reserves fragments. `privileged` callers get the file system's reserve too.
    fn reserve_frags(&self, n: u64, privileged: bool) -> Result<()>;
    /// Ends a reservation of fragments that were not allocated.
    fn release_frags(&self, n: u64);
    /// Reserves whole blocks.
    fn reserve_blocks(&self, n: u64, privileged: bool) -> Result<()>;
    /// Reserves whole blocks of those that are kept for writing what was preallocated.
    fn reserve_kept_blocks(&self, n: u64) -> Result<()> {
        self.reserve_blocks(n, true)
    }
    /// Ends a reservation of blocks that were not allocated.
    fn release_blocks(&self, n: u64);
}

/// Which blocks a write may have for its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlocksFrom {
    /// Those for every program.
    Free,
    /// The file system's reserve too.
    Reserve,
    /// Also those that are kept for writing what was preallocated.
    Kept,
}

impl BlocksFrom {
    /// For a caller with privileges, or without.
    pub fn of(privileged: bool) -> BlocksFrom {
        if privileged { BlocksFrom::Reserve } else { BlocksFrom::Free }
    }
}

/// Quotas of the owner, group and project that space is reserved for.
pub trait QuotaPool: Send + Sync {
    /// Reserves fragments. Limits do not refuse `privileged` callers.
    fn reserve(&self, frags: u64, privileged: bool) -> Result<()>;
    /// Ends a reservation that was not charged.
    fn release(&self, frags: u64, inodes: u64);
    /// So many reserved fragments are the inode's: they are charged when it is next stored, in the same transaction.
    fn convert(&self, frags: u64);
}

/// What one operation, or one file's dirty data, may use. Clones share one counter, so that an open transaction can draw on
/// it; the last one releases the rest.
#[derive(Clone)]
pub struct Reservation(Arc<Inner>);

struct Inner {
    space: Option<Arc<dyn SpacePool>>,
    quota: OnceLock<Arc<dyn QuotaPool>>,
    privileged: bool,
    held: Mutex<Held>,
}

/// What a reservation holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    /// Fragments for data that are not allocated yet.
    frags: u64,
    /// Whole blocks for metadata that are not allocated yet.
    blocks: u64,
    /// Blocks that the transaction under way has taken.
    blocks_used: u64,
    /// Fragments that no quota has been charged for yet: those above, and those allocated since.
    quota_frags: u64,
    /// Inodes that no quota has been charged for yet.
    quota_inodes: u64,
}

impl Reservation {
    /// An empty reservation. Metadata that is allocated beyond what it holds must be free and reserved by nobody;
    /// `privileged` ones get the file system's reserve then.
    pub fn new(space: Arc<dyn SpacePool>, quota: Option<Arc<dyn QuotaPool>>, privileged: bool) -> Reservation {
        Reservation::of(Some(space), quota, privileged, Held::default())
    }

    /// In quotas alone: fragments and inodes that the caller has just reserved there.
    pub(crate) fn of_quota(quota: Arc<dyn QuotaPool>, frags: u64, inodes: u64) -> Reservation {
        let held = Held { quota_frags: frags, quota_inodes: inodes, ..Held::default() };
        Reservation::of(None, Some(quota), true, held)
    }

    /// Holds nothing. What a transaction allocates with it is the file system's own, and may use the reserve.
    pub(crate) fn none() -> Reservation {
        Reservation::of(None, None, true, Held::default())
    }

    fn of(
        space: Option<Arc<dyn SpacePool>>,
        quota: Option<Arc<dyn QuotaPool>>,
        privileged: bool,
        held: Held,
    ) -> Reservation {
        let quota = quota.map_or_else(OnceLock::new, OnceLock::from);
        Reservation(Arc::new(Inner { space, quota, privileged, held: Mutex::new(held) }))
    }

    /// Reserves fragments for data, in the file system and in the quotas.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`] or [`crate::Error::Quota`]; nothing more is held then.
    pub fn reserve(&self, frags: u64, privileged: bool) -> Result<()> {
        self.reserve_beside(frags, 0, privileged)
    }

    /// [`Reservation::reserve`] where the owner gives back `replaced` fragments before the new ones are charged. The quotas refuse only
    /// what goes beyond that. Until it is given back, both count.
    ///
    /// # Errors
    /// Those of [`Reservation::reserve`].
    pub fn reserve_beside(&self, frags: u64, replaced: u64, privileged: bool) -> Result<()> {
        let of_space = if self.0.space.is_some() { frags } else { 0 };
        if let Some(space) = &self.0.space {
            space.reserve_frags(frags, privileged)?;
        }
        let replaced = replaced.min(frags);
        if let Some(quota) = self.0.quota.get() {
            let new = frags - replaced;
            if let Err(e) = quota.reserve(new, privileged) {
                self.0.release(of_space, 0, 0, 0);
                return Err(e);
            }
            if let Err(e) = quota.reserve(replaced, true) {
                self.0.release(of_space, 0, new, 0);
                return Err(e);
            }
        }
        let held = &mut *self.0.held.lock();
        held.frags += of_space;
        held.quota_frags += frags;
        Ok(())
    }

    /// Gives fragments back that are not needed.
    pub fn release(&self, frags: u64) {
        if frags == 0 {
            return;
        }
        {
            let held = &mut *self.0.held.lock();
            debug_assert!(held.frags >= frags && held.quota_frags >= frags, "{frags} fragments released of {held:?}");
            held.frags -= frags;
            held.quota_frags -= frags;
        }
        self.0.release(frags, 0, frags, 0);
    }

    /// Reserves `n` more blocks for metadata. The quotas do not refuse metadata.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]; nothing more is held then.
    pub fn reserve_blocks(&self, n: u64, privileged: bool) -> Result<()> {
        self.add_blocks(n, |space| space.reserve_blocks(n, privileged))
    }

    fn add_blocks(&self, n: u64, reserve: impl FnOnce(&dyn SpacePool) -> Result<()>) -> Result<()> {
        if let (Some(space), true) = (&self.0.space, n > 0) {
            reserve(&**space)?;
            self.0.held.lock().blocks += n;
        }
        Ok(())
    }

    /// Reserves or releases blocks until `n` are held, for what writing takes beside the data.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]; as many are held as before then.
    pub fn set_blocks(&self, n: u64, from: BlocksFrom) -> Result<()> {
        let have = self.blocks();
        if n >= have {
            let more = n - have;
            return self.add_blocks(more, |space| match from {
                BlocksFrom::Free => space.reserve_blocks(more, false),
                BlocksFrom::Reserve => space.reserve_blocks(more, true),
                BlocksFrom::Kept => space.reserve_kept_blocks(more),
            });
        }
        self.0.held.lock().blocks = n;
        self.0.release(0, have - n, 0, 0);
        Ok(())
    }

    /// Blocks that are left.
    pub fn blocks(&self) -> u64 {
        self.0.held.lock().blocks
    }

    /// Fragments that no quota has been charged for yet.
    pub fn uncharged(&self) -> u64 {
        self.0.held.lock().quota_frags
    }

    /// Whether what is allocated beyond it may use the reserve.
    pub fn privileged(&self) -> bool {
        self.0.privileged
    }

    /// Whether it is of space, for somebody; else what is allocated with it is the file system's own.
    pub(crate) fn is_of_space(&self) -> bool {
        self.0.space.is_some()
    }

    /// A transaction begins to draw on it.
    pub(crate) fn start_use(&self) {
        self.0.held.lock().blocks_used = 0;
    }

    /// Takes up to `n` blocks, which are being allocated; returns how many there were. The space manager does the rest.
    pub(crate) fn take_blocks(&self, n: u64) -> u64 {
        let held = &mut *self.0.held.lock();
        let taken = n.min(held.blocks);
        held.blocks -= taken;
        held.blocks_used += taken;
        taken
    }

    /// Blocks that were allocated are given back: up to `n` of them are reserved again, not more than were taken. Returns
    /// how many.
    pub(crate) fn refund_blocks(&self, n: u64) -> u64 {
        let held = &mut *self.0.held.lock();
        let refunded = n.min(held.blocks_used);
        held.blocks_used -= refunded;
        held.blocks += refunded;
        refunded
    }

    /// Fragments were allocated for data; in the file system their reservation has ended with that.
    pub(crate) fn allocated(&self, frags: u64) {
        let held = &mut *self.0.held.lock();
        debug_assert!(held.frags >= frags, "{frags} fragments allocated of {held:?}");
        held.frags = held.frags.saturating_sub(frags);
    }

    /// Allocated fragments were given back, which reserved them again.
    pub(crate) fn deallocated(&self, frags: u64) {
        self.0.held.lock().frags += frags;
    }

    /// So many allocated fragments are the inode's with the transaction that is open, and it is stored there.
    pub(crate) fn charge(&self, frags: u64) {
        let frags = {
            let held = &mut *self.0.held.lock();
            let frags = frags.min(held.quota_frags);
            held.quota_frags -= frags;
            frags
        };
        if let Some(quota) = self.0.quota.get() {
            quota.convert(frags);
        }
    }

    /// Takes up to so many fragments and inodes out of the quota part: they are being charged.
    pub(crate) fn take_quota(&self, frags: u64, inodes: u64) -> (u64, u64) {
        let held = &mut *self.0.held.lock();
        let taken = (frags.min(held.quota_frags), inodes.min(held.quota_inodes));
        held.quota_frags -= taken.0;
        held.quota_inodes -= taken.1;
        taken
    }

    /// Moves fragments, not allocated yet, to a reservation of their own.
    pub(crate) fn split(&self, frags: u64) -> Reservation {
        {
            let held = &mut *self.0.held.lock();
            debug_assert!(held.frags >= frags && held.quota_frags >= frags, "{frags} fragments split off {held:?}");
            held.frags -= frags;
            held.quota_frags -= frags;
        }
        let inner = &*self.0;
        let held = Held { frags, quota_frags: frags, ..Held::default() };
        Reservation::of(inner.space.clone(), inner.quota.get().cloned(), inner.privileged, held)
    }

    /// Takes over what another reservation for the same owner holds.
    pub(crate) fn merge(&self, other: Reservation) {
        if let Some(quota) = other.0.quota.get() {
            self.0.quota.get_or_init(|| quota.clone());
        }
        let other = std::mem::take(&mut *other.0.held.lock());
        let held = &mut *self.0.held.lock();
        held.frags += other.frags;
        held.blocks += other.blocks;
        held.quota_frags += other.quota_frags;
        held.quota_inodes += other.quota_inodes;
    }
}

impl Inner {
    fn release(&self, frags: u64, blocks: u64, quota_frags: u64, quota_inodes: u64) {
        if let Some(space) = &self.space {
            if frags > 0 {
                space.release_frags(frags);
            }
            if blocks > 0 {
                space.release_blocks(blocks);
            }
        }
        if let Some(quota) = self.quota.get()
            && (quota_frags > 0 || quota_inodes > 0)
        {
            quota.release(quota_frags, quota_inodes);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let held = std::mem::take(self.held.get_mut());
        self.release(held.frags, held.blocks, held.quota_frags, held.quota_inodes);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", *self.0.held.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// Counts what is reserved, up to a limit.
    struct Pool {
        frags: Mutex<u64>,
        blocks: Mutex<u64>,
        max: u64,
    }

    impl Pool {
        fn new(max: u64) -> Arc<Pool> {
            Arc::new(Pool { frags: Mutex::new(0), blocks: Mutex::new(0), max })
        }

        fn add(&self, to: &Mutex<u64>, n: u64) -> Result<()> {
            let held = &mut *to.lock();
            if *held + n > self.max {
                return Err(Error::NoSpace);
            }
            *held += n;
            Ok(())
        }

        fn reserved(&self) -> (u64, u64) {
            (*self.frags.lock(), *self.blocks.lock())
        }
    }

    impl SpacePool for Pool {
        fn reserve_frags(&self, n: u64, _privileged: bool) -> Result<()> {
            self.add(&self.frags, n)
        }
        fn release_frags(&self, n: u64) {
            *self.frags.lock() -= n;
        }
        fn reserve_blocks(&self, n: u64, _privileged: bool) -> Result<()> {
            self.add(&self.blocks, n)
        }
        fn release_blocks(&self, n: u64) {
            *self.blocks.lock() -= n;
        }
    }

    /// In a quota `blocks` counts inodes, and what was charged is not reserved any more.
    impl QuotaPool for Pool {
        fn reserve(&self, frags: u64, privileged: bool) -> Result<()> {
            self.reserve_frags(frags, privileged).map_err(|_| Error::Quota)
        }
        fn release(&self, frags: u64, inodes: u64) {
            self.release_frags(frags);
            self.release_blocks(inodes);
        }
        fn convert(&self, frags: u64) {
            self.release_frags(frags);
        }
    }

    #[test]
    fn the_last_clone_releases_what_is_left() {
        let (space, quota) = (Pool::new(100), Pool::new(100));
        let r = Reservation::new(space.clone(), Some(quota.clone()), false);
        r.reserve(10, false).unwrap();
        r.reserve_blocks(4, false).unwrap();
        let in_txn = r.clone();
        in_txn.start_use();
        assert_eq!((in_txn.take_blocks(3), in_txn.refund_blocks(2)), (3, 2));
        // The space manager ends the reservation of what it allocates.
        *space.blocks.lock() -= 1;
        *space.frags.lock() -= 6;
        r.allocated(6);
        r.charge(6);
        drop(r);
        assert_eq!((space.reserved(), quota.reserved()), ((4, 3), (4, 0)));
        drop(in_txn);
        assert_eq!((space.reserved(), quota.reserved()), ((0, 0), (0, 0)));
    }

    #[test]
    fn a_refused_reservation_holds_what_it_held_before() {
        let (space, quota) = (Pool::new(100), Pool::new(20));
        let r = Reservation::new(space.clone(), Some(quota.clone()), false);
        r.reserve(15, false).unwrap();
        assert!(matches!(r.reserve(6, false), Err(Error::Quota)));
        assert!(matches!(r.reserve(101, false), Err(Error::NoSpace)));
        assert!(matches!(r.set_blocks(101, BlocksFrom::Free), Err(Error::NoSpace)));
        assert_eq!((space.reserved(), quota.reserved(), r.uncharged()), ((15, 0), (15, 0), 15));
        r.set_blocks(7, BlocksFrom::Free).unwrap();
        r.set_blocks(2, BlocksFrom::Free).unwrap();
        r.release(15);
        assert_eq!((space.reserved(), quota.reserved(), r.blocks()), ((0, 2), (0, 0), 2));
    }

    #[test]
    fn a_quota_does_not_refuse_what_takes_the_place_of_something() {
        struct Strict(Arc<Pool>);
        impl QuotaPool for Strict {
            fn reserve(&self, frags: u64, privileged: bool) -> Result<()> {
                if privileged {
                    *self.0.frags.lock() += frags;
                    return Ok(());
                }
                QuotaPool::reserve(&*self.0, frags, false)
            }
            fn release(&self, frags: u64, inodes: u64) {
                QuotaPool::release(&*self.0, frags, inodes);
            }
            fn convert(&self, frags: u64) {
                self.0.convert(frags);
            }
        }
        let (space, quota) = (Pool::new(100), Pool::new(20));
        let r = Reservation::new(space.clone(), Some(Arc::new(Strict(quota.clone()))), false);
        r.reserve_beside(45, 40, false).unwrap();
        assert_eq!((space.reserved(), quota.reserved(), r.uncharged()), ((45, 0), (45, 0), 45));
        drop(r);
        let r = Reservation::new(space.clone(), Some(Arc::new(Strict(quota.clone()))), false);
        assert!(matches!(r.reserve_beside(45, 20, false), Err(Error::Quota)));
        assert!(matches!(r.reserve_beside(101, 101, false), Err(Error::NoSpace)));
        assert_eq!((space.reserved(), quota.reserved()), ((0, 0), (0, 0)));
    }

    #[test]
    fn parts_are_split_off_and_merged_again() {
        let (space, quota) = (Pool::new(100), Pool::new(100));
        let file = Reservation::new(space.clone(), Some(quota.clone()), true);
        file.reserve(10, false).unwrap();
        let unit = file.split(7);
        assert_eq!((file.uncharged(), unit.uncharged()), (3, 7));
        file.merge(unit);
        assert_eq!((file.uncharged(), space.reserved()), (10, (10, 0)));
        let unit = file.split(4);
        drop(unit);
        assert_eq!((space.reserved(), quota.reserved()), ((6, 0), (6, 0)));
        drop(file);
        assert_eq!((space.reserved(), quota.reserved()), ((0, 0), (0, 0)));
    }

    #[test]
    fn no_more_is_refunded_than_the_transaction_took() {
        let space = Pool::new(100);
        let r = Reservation::new(space, None, false);
        r.reserve_blocks(5, false).unwrap();
        r.start_use();
        assert_eq!(r.take_blocks(9), 5);
        assert_eq!((r.refund_blocks(9), r.blocks()), (5, 5));
        r.take_blocks(2);
        r.start_use();
        assert_eq!((r.refund_blocks(1), r.blocks()), (0, 3));
    }
}
