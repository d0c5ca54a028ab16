//! Quotas: what each user, group and project uses, exactly, and how much it may.
//!
//! Two amounts are kept for every id. What is *used* is what the inodes on the device say: it changes in the same
//! transaction as the inode. What is *reserved* is for data without an extent, for a file that is being made, or for
//! a change of owner. It is in memory only, and is compared with the limits together with what is used. So a write
//! is refused when it is made, and writeback never.
//!
//! **Code that changes the space of an inode need not know of quotas.** [`crate::node::store`], which writes an inode in
//! place, compares it with what its [`InodeCharge`] was charged for last (fragments, owner, group, project) and charges
//! the difference. What needs space has a [`Reservation`] before, which holds its share of the quotas too: that of an inode
//! ([`InodeCharge`]), or of ids that have no inode yet ([`Quota::reservation`]).
//!
//! Records go to the quota files as the free-space counters go to their block: each commit writes those that changed,
//! while no transaction is open, so that they agree exactly with the inodes the commit holds.
//!
//! Without a feature bit for any kind there is no [`Quota`], and a node costs one test of an empty pointer.

mod charge;
mod dquot;
mod file;

pub use charge::InodeCharge;

use crate::cache::{BufRef, Cache};
use crate::error::{Error, Result};
use crate::format::log::RECORD_HEADER;
use crate::format::quota::{QUOTA_GRACE_DEFAULT, QUOTA_RECORD_SIZE};
use crate::format::{Inode, QuotaKind, QuotaRecord, Superblock};
use crate::journal::Txn;
use crate::reservation::{QuotaPool, Reservation};
use crate::space::Space;
use dquot::{Dquot, DquotState, Known};
use file::QuotaFile;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Most bytes that one changed record adds to a commit.
const RECORD_LOG_BYTES: usize = RECORD_HEADER + 16 + QUOTA_RECORD_SIZE + 8;
/// Most records that one transaction changes: of two directories, a file and the one it replaces, for three kinds.
const RECORDS_PER_TXN: usize = 12;
/// Records changed outside of transactions (a grace period begins) that one commit takes along; they have no part of
/// the log reserved.
const UNRESERVED_MAX: usize = 64;

/// Bytes that every transaction reserves of the log while quotas are kept: for its records, and for the mark that those
/// of a kind are not exact any more.
pub(crate) const LOG_BYTES: usize = (RECORDS_PER_TXN + QuotaKind::ALL.len()) * RECORD_LOG_BYTES;

/// Id of each kind that an inode belongs to, in the order of [`QuotaKind::ALL`].
pub type Ids = [u32; 3];

/// The ids of an inode.
pub fn ids_of(inode: &Inode) -> Ids {
    [inode.uid, inode.gid, inode.projid]
}

/// Quotas of a mounted file system, of the kinds that it keeps.
pub struct Quota {
    cache: Arc<Cache>,
    kinds: Vec<QuotaType>,
    /// Dquots with changes that no commit has taken yet.
    changed: Mutex<Vec<Arc<Dquot>>>,
    refused: AtomicU64,
}

/// One kind of quota.
struct QuotaType {
    kind: QuotaKind,
    file: Mutex<QuotaFile>,
    dquots: RwLock<HashMap<u32, Arc<Dquot>>>,
    /// Length of grace periods in nanoseconds: space, inodes.
    grace: [AtomicI64; 2],
    /// Since the mount a record was made or has become empty: its block may be without records.
    emptied: AtomicBool,
}

impl Quota {
    /// The quotas that a file system keeps; `None` if it keeps none.
    pub fn load(cache: &Arc<Cache>, sb: &Superblock) -> Result<Option<Arc<Quota>>> {
        let mut kinds = Vec::new();
        for kind in QuotaKind::ALL.into_iter().filter(|k| sb.has_quota(*k)) {
            kinds.push(QuotaType {
                kind,
                file: Mutex::new(QuotaFile::load(cache, kind)?),
                dquots: RwLock::default(),
                grace: [AtomicI64::new(QUOTA_GRACE_DEFAULT), AtomicI64::new(QUOTA_GRACE_DEFAULT)],
                emptied: AtomicBool::new(false),
            });
        }
        if kinds.is_empty() {
            return Ok(None);
        }
        let quota =
            Arc::new(Quota { cache: cache.clone(), kinds, changed: Mutex::default(), refused: AtomicU64::new(0) });
        for quota_type in &quota.kinds {
            quota.note_grace(quota_type);
        }
        Ok(Some(quota))
    }

    /// The kinds that are kept.
    pub fn kinds(&self) -> impl Iterator<Item = QuotaKind> + '_ {
        self.kinds.iter().map(|t| t.kind)
    }

    /// Requests refused since the mount because a limit was reached.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn quota_type(&self, kind: QuotaKind) -> Result<&QuotaType> {
        let found = self.kinds.iter().find(|t| t.kind == kind);
        found.ok_or_else(|| Error::Invalid(format!("{} quotas are off", kind.name())))
    }

    /// The types with the id that an inode has in each.
    fn types<'a>(&'a self, ids: &'a Ids) -> impl Iterator<Item = (&'a QuotaType, u32)> + Clone {
        self.kinds.iter().map(|b| (b, ids[b.kind.index()]))
    }

    fn dquot(&self, quota_type: &QuotaType, id: u32) -> Arc<Dquot> {
        if let Some(l) = quota_type.dquots.read().get(&id) {
            return l.clone();
        }
        quota_type.dquots.write().entry(id).or_insert_with(|| Arc::new(Dquot::new(quota_type.kind, id))).clone()
    }

    /// Runs `f` on the state of an id, whose record is read before if it was not yet.
    fn with<R>(&self, quota_type: &QuotaType, id: u32, f: impl FnOnce(&Arc<Dquot>, &mut DquotState) -> R) -> R {
        let dquot = self.dquot(quota_type, id);
        let mut st = dquot.state.lock();
        if st.known == Known::Unread {
            st.known = match quota_type.file.lock().read(&self.cache, id) {
                Ok(None) => Known::Good,
                Ok(Some((addr, offset, record))) => {
                    (st.place, st.record) = (Some((addr, offset)), record);
                    Known::Good
                }
                // Perhaps it can be read the next time.
                Err(e @ Error::Io(_)) => {
                    tracing::error!("quota of {dquot}: {e}; its limits are not kept as long as this goes on");
                    Known::Unread
                }
                Err(e) => {
                    tracing::error!("quota of {dquot}: {e}; its limits are not kept until `cffs quota repair`");
                    Known::Damaged
                }
            };
        }
        f(&dquot, &mut st)
    }

    /// Notes, in the transaction that makes it so, that the records of a kind are not exact any more: the next mount
    /// counts anew. Until then they are not compared with the inodes.
    fn mark_inconsistent(&self, txn: &Txn<'_>, quota_type: &QuotaType) {
        if quota_type.file.lock().clear_counted(txn) {
            tracing::error!(
                "{} quotas are not exact any more; the next mount counts them anew",
                quota_type.kind.name()
            );
        }
    }

    /// Puts a dquot on the list of those that the next commit writes. Its block is held until then. False if the next
    /// commit cannot write it.
    fn touch(&self, dquot: &Arc<Dquot>, st: &mut DquotState, txn: Option<&Txn<'_>>) -> bool {
        if st.known != Known::Good {
            return false;
        }
        if let Some(txn) = txn.filter(|_| !st.listed || st.unreserved) {
            txn.note_bytes(RECORD_LOG_BYTES);
            st.unreserved = false;
        }
        if st.listed {
            return true;
        }
        let held = match st.place {
            None => Err(Error::Corrupt(crate::format::Corrupt("there is no record".into()))),
            Some((addr, _)) => file::read_block(&self.cache, dquot.kind, addr),
        };
        match held {
            Ok(buf) => {
                st.held = Some(buf);
                st.listed = true;
                st.unreserved = txn.is_none();
                self.changed.lock().push(dquot.clone());
                true
            }
            Err(e @ Error::Io(_)) => {
                // What is in memory is right, and the next change tries again.
                tracing::error!("quota of {dquot}: {e}");
                false
            }
            Err(e) => {
                tracing::error!("quota of {dquot}: {e}; its limits are not kept until `cffs quota repair`");
                st.known = Known::Damaged;
                false
            }
        }
    }

    /// Hands the records that changed since the last commit to `put`: block, offset, bytes. No transaction is open.
    pub(crate) fn write_records(&self, put: &mut dyn FnMut(&BufRef, usize, &[u8])) {
        let list = std::mem::take(&mut *self.changed.lock());
        let mut later = Vec::new();
        let mut unreserved = 0;
        for dquot in list {
            let mut st = dquot.state.lock();
            unreserved += usize::from(st.unreserved);
            if st.unreserved && unreserved > UNRESERVED_MAX {
                drop(st);
                later.push(dquot);
                continue;
            }
            st.listed = false;
            st.unreserved = false;
            if let (Some(buf), Some((_, offset))) = (st.held.take(), st.place) {
                put(&buf, offset, &st.record.encode());
            }
        }
        self.changed.lock().extend(later);
    }

    /// Makes sure that every id has its record in the quota files, so that charging it cannot fail. Begins transactions
    /// of its own: called before the one that brings a new owner, with nothing locked.
    ///
    /// [`Error::NoSpace`] if the file system has no room for a record.
    pub fn prepare(&self, journal: &crate::journal::Journal, space: &Arc<Space>, ids: &Ids) -> Result<()> {
        for (quota_type, id) in self.types(ids) {
            self.prepare_one(journal, space, quota_type, id)?;
        }
        Ok(())
    }

    fn prepare_one(
        &self,
        journal: &crate::journal::Journal,
        space: &Arc<Space>,
        quota_type: &QuotaType,
        id: u32,
    ) -> Result<()> {
        if self.with(quota_type, id, |_, st| st.known == Known::Damaged || st.place.is_some()) {
            return Ok(());
        }
        let reservation = space.reservation(None, true);
        reservation.reserve_blocks(QuotaFile::BLOCKS_FOR_GROWTH, true)?;
        let log_bytes = quota_type.file.lock().log_bytes(self.cache.geometry(), space);
        let made = journal.begin(log_bytes).and_then(|txn| {
            txn.draw_on(&reservation);
            quota_type.file.lock().make(&txn, space, id)
        });
        drop(reservation);
        let place = made?;
        // What it was made for may fail.
        quota_type.emptied.store(true, Ordering::Relaxed);
        self.with(quota_type, id, |_, st| {
            st.place.get_or_insert(place);
        });
        Ok(())
    }

    /// Charges what an inode takes more or less than before.
    fn charge(&self, txn: &Txn<'_>, quota_type: &QuotaType, id: u32, change: &Change) {
        self.with(quota_type, id, |dquot, st| {
            st.reserved_frags = st.reserved_frags.saturating_sub(change.reserved_frags);
            st.reserved_inodes = st.reserved_inodes.saturating_sub(change.reserved_inodes);
            if change.frags == 0 && change.inodes == 0 {
                return;
            }
            if st.known != Known::Good {
                // If it can be read later, it lacks this.
                st.known = Known::Damaged;
                self.mark_inconsistent(txn, quota_type);
                return;
            }
            let mut exact = true;
            let mut add = |n: &mut u64, d: i64| match n.checked_add_signed(d) {
                Some(sum) => *n = sum,
                None => {
                    tracing::error!("quota of {dquot}: {n} in use, {d} more");
                    *n = 0;
                    exact = false;
                }
            };
            add(&mut st.record.frags, change.frags);
            add(&mut st.record.inodes, change.inodes);
            st.end_grace_periods();
            if st.record.is_empty() {
                quota_type.emptied.store(true, Ordering::Relaxed);
            }
            exact &= self.touch(dquot, st, Some(txn));
            if !exact {
                self.mark_inconsistent(txn, quota_type);
            }
        });
    }

    /// Reserves fragments and inodes in these types, or in none; `privileged` callers are not refused.
    fn reserve<'a>(
        &self,
        types: impl Iterator<Item = (&'a QuotaType, u32)> + Clone,
        frags: u64,
        inodes: u64,
        privileged: bool,
    ) -> Result<()> {
        for (done, (quota_type, id)) in types.clone().enumerate() {
            if let Err(e) = self.reserve_one(quota_type, id, frags, inodes, privileged) {
                for (quota_type, id) in types.take(done) {
                    self.unreserve_one(quota_type, id, frags, inodes);
                }
                return Err(e);
            }
        }
        Ok(())
    }

    fn reserve_one(&self, quota_type: &QuotaType, id: u32, frags: u64, inodes: u64, privileged: bool) -> Result<()> {
        let grace = [0, 1].map(|i| quota_type.grace[i].load(Ordering::Relaxed));
        let outcome = self.with(quota_type, id, |dquot, st| {
            let before = (st.record.frags_deadline, st.record.inodes_deadline);
            let outcome = st.reserve(dquot, frags, inodes, grace, privileged);
            if before != (st.record.frags_deadline, st.record.inodes_deadline) {
                self.touch(dquot, st, None);
            }
            outcome
        });
        if outcome.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Reserves without a look at limits.
    fn reserve_unchecked(&self, quota_type: &QuotaType, id: u32, frags: u64) {
        self.with(quota_type, id, |_, st| st.reserved_frags += frags);
    }

    fn unreserve_one(&self, quota_type: &QuotaType, id: u32, frags: u64, inodes: u64) {
        self.with(quota_type, id, |dquot, st| {
            st.reserved_frags = st.reserved_frags.saturating_sub(frags);
            st.reserved_inodes = st.reserved_inodes.saturating_sub(inodes);
            if st.end_grace_periods() {
                self.touch(dquot, st, None);
            }
        });
    }

    fn unreserve(&self, ids: &Ids, frags: u64, inodes: u64) {
        for (quota_type, id) in self.types(ids) {
            self.unreserve_one(quota_type, id, frags, inodes);
        }
    }

    /// Reserves fragments and inodes for the ids, until they are charged or the reservation is dropped.
    ///
    /// # Errors
    /// [`Error::Quota`] if a limit forbids it; `privileged` callers are not refused.
    pub fn reservation(self: &Arc<Self>, ids: Ids, frags: u64, inodes: u64, privileged: bool) -> Result<Reservation> {
        let pool = IdsPool { quota: self.clone(), ids, kinds: self.kinds().collect() };
        pool.reserve_all(frags, inodes, privileged)?;
        Ok(Reservation::of_quota(Arc::new(pool), frags, inodes))
    }

    /// As [`Quota::reservation`], in quotas of those kinds alone in which `ids` differ from `old`.
    pub(crate) fn reservation_for_new_ids(
        self: &Arc<Self>,
        old: &Ids,
        ids: Ids,
        frags: u64,
        privileged: bool,
    ) -> Result<Reservation> {
        let kinds = self.kinds().filter(|k| old[k.index()] != ids[k.index()]).collect();
        let pool = IdsPool { quota: self.clone(), ids, kinds };
        pool.reserve_all(frags, 1, privileged)?;
        Ok(Reservation::of_quota(Arc::new(pool), frags, 1))
    }

    /// Fragments that the ids may still take.
    pub fn room(&self, ids: &Ids) -> u64 {
        self.types(ids)
            .map(|(quota_type, id)| self.with(quota_type, id, |l, st| st.room(l.id)))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// What an id uses (reserved included) and its limits.
    pub fn get(&self, kind: QuotaKind, id: u32) -> Result<QuotaRecord> {
        self.with(self.quota_type(kind)?, id, |dquot, st| match st.known {
            Known::Unread => Err(unread(dquot)),
            _ => Ok(st.seen()),
        })
    }

    /// All ids of a kind whose records say something, in order.
    pub fn list(&self, kind: QuotaKind) -> Result<Vec<(u32, QuotaRecord)>> {
        let quota_type = self.quota_type(kind)?;
        let stored = quota_type.file.lock().list(&self.cache)?;
        let mut all: BTreeMap<u32, QuotaRecord> = stored.into_iter().collect();
        let dquots: Vec<Arc<Dquot>> = quota_type.dquots.read().values().cloned().collect();
        for l in dquots {
            let st = l.state.lock();
            if st.known != Known::Unread {
                all.insert(l.id, st.seen());
            }
        }
        Ok(all.into_iter().filter(|(_, r)| !r.is_empty()).collect())
    }

    /// Changes limits of an id: `f` gets the record and must leave what is used alone. The id's record exists
    /// ([`Quota::prepare_id`]).
    pub(crate) fn change(
        &self,
        txn: &Txn<'_>,
        kind: QuotaKind,
        id: u32,
        f: impl FnOnce(&mut QuotaRecord),
    ) -> Result<()> {
        let quota_type = self.quota_type(kind)?;
        let grace = [0, 1].map(|i| quota_type.grace[i].load(Ordering::Relaxed));
        self.with(quota_type, id, |dquot, st| {
            match st.known {
                Known::Good => {}
                Known::Unread => return Err(unread(dquot)),
                Known::Damaged => {
                    let what = format!("the quota record of {dquot} cannot be read");
                    return Err(Error::Corrupt(crate::format::Corrupt(what)));
                }
            }
            let before = st.record;
            f(&mut st.record);
            st.start_grace_periods(dquot, grace);
            if st.record.is_empty() {
                quota_type.emptied.store(true, Ordering::Relaxed);
            }
            if !self.touch(dquot, st, Some(txn)) {
                st.record = before;
                return Err(unread(dquot));
            }
            Ok(())
        })?;
        if id == 0 {
            self.note_grace(quota_type);
        }
        Ok(())
    }

    /// As [`Quota::prepare`], for one id of one kind.
    pub(crate) fn prepare_id(
        &self,
        journal: &crate::journal::Journal,
        space: &Arc<Space>,
        kind: QuotaKind,
        id: u32,
    ) -> Result<()> {
        self.prepare_one(journal, space, self.quota_type(kind)?, id)
    }

    /// Length of grace periods in nanoseconds: space, inodes.
    pub fn grace(&self, kind: QuotaKind) -> Result<[i64; 2]> {
        let quota_type = self.quota_type(kind)?;
        Ok([0, 1].map(|i| quota_type.grace[i].load(Ordering::Relaxed)))
    }

    fn note_grace(&self, quota_type: &QuotaType) {
        let r = self.with(quota_type, 0, |_, st| st.record);
        for (place, set) in quota_type.grace.iter().zip([r.frags_deadline, r.inodes_deadline]) {
            place.store(if set > 0 { set } else { QUOTA_GRACE_DEFAULT }, Ordering::Relaxed);
        }
    }

    /// At unmount, when nothing changes any more and everything is committed: gives back blocks without records, if
    /// there may be new ones since the mount.
    pub(crate) fn trim(&self, journal: &crate::journal::Journal, space: &Space) -> Result<()> {
        for quota_type in self.kinds.iter().filter(|b| b.emptied.swap(false, Ordering::Relaxed)) {
            let blocks = quota_type.file.lock().empty_blocks(&self.cache)?;
            for lblock in blocks {
                let log_bytes = quota_type.file.lock().log_bytes_to_remove(self.cache.geometry(), space);
                let txn = journal.begin(log_bytes)?;
                quota_type.file.lock().remove(&txn, space, lblock)?;
            }
        }
        Ok(())
    }

    /// Empties the blocks of a kind that are damaged; their limits are lost, with a line in the log. For who counts
    /// anew.
    pub(crate) fn empty_damaged(&self, journal: &crate::journal::Journal, kind: QuotaKind) -> Result<()> {
        let quota_type = self.quota_type(kind)?;
        let damaged = quota_type.file.lock().damaged(&self.cache)?;
        for (lblock, addr) in damaged {
            let txn = journal.begin(512)?;
            quota_type.file.lock().empty(&txn, lblock, addr);
        }
        quota_type.dquots.write().retain(|_, l| l.state.lock().known != Known::Damaged);
        Ok(())
    }

    /// Whether the records of a kind were counted since the kind was switched on.
    pub fn is_counted(&self, kind: QuotaKind) -> Result<bool> {
        Ok(self.quota_type(kind)?.file.lock().is_counted())
    }

    /// Notes whether the records of a kind are exact. A file system whose are not counts them at the next mount.
    pub(crate) fn set_counted(&self, txn: &Txn<'_>, kind: QuotaKind, counted: bool) -> Result<()> {
        self.quota_type(kind)?.file.lock().set_counted(txn, counted)
    }
}

/// The device failed to read a record.
fn unread(dquot: &Dquot) -> Error {
    Error::Io(std::io::Error::other(format!("the quota record of {dquot} could not be read: try again")))
}

/// What an inode takes more or less, and how much of it was reserved.
#[derive(Clone, Copy, Default)]
struct Change {
    frags: i64,
    inodes: i64,
    reserved_frags: u64,
    reserved_inodes: u64,
}

/// Some ids of some kinds, as a reservation sees them.
struct IdsPool {
    quota: Arc<Quota>,
    ids: Ids,
    kinds: Vec<QuotaKind>,
}

impl IdsPool {
    fn types(&self) -> impl Iterator<Item = (&QuotaType, u32)> + Clone {
        self.quota.types(&self.ids).filter(|(quota_type, _)| self.kinds.contains(&quota_type.kind))
    }

    fn reserve_all(&self, frags: u64, inodes: u64, privileged: bool) -> Result<()> {
        self.quota.reserve(self.types(), frags, inodes, privileged)
    }
}

impl QuotaPool for IdsPool {
    fn reserve(&self, frags: u64, privileged: bool) -> Result<()> {
        self.reserve_all(frags, 0, privileged)
    }

    fn release(&self, frags: u64, inodes: u64) {
        self.types().for_each(|(quota_type, id)| self.quota.unreserve_one(quota_type, id, frags, inodes));
    }

    /// These ids belong to no inode yet, or not any more: what is charged to them is taken out of the reservation.
    fn convert(&self, _frags: u64) {}
}
