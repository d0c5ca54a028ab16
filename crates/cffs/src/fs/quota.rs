//! Quotas for programs: reports, limits, recounting.

use super::{Caller, Fs, MountOptions, now};
use crate::error::{Error, Result};
use crate::extent;
use crate::format::Run;
use crate::format::extent::LOGICAL_END;
use crate::format::inode::{FLAG_PROJECT_INHERIT, INLINE_MAX, INODE_CORE_SIZE};
use crate::format::{BlockAddr, Corrupt, FIRST_USER_INO, FragAddr, Ino, Inode, QuotaKind, QuotaRecord, ROOT_INO};
use crate::node::NodeState;
use crate::placement::DirAllocator;
use crate::quota::{Ids, InodeCharge, Quota, ids_of};
use crate::reservation::Reservation;
use crate::trace::Kind;
use cffs_device::Device;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What an id uses, and its limits. Space is in bytes. A limit of 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStatus {
    /// User, group or project.
    pub kind: QuotaKind,
    /// Its number.
    pub id: u32,
    /// Bytes in use, with those reserved for data that has no extent yet; a multiple of the fragment size.
    pub bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Limits.
    pub limits: QuotaLimits,
    /// The end of the grace period in nanoseconds since 1970, while the soft limit of space is exceeded.
    pub bytes_deadline: Option<i64>,
    /// The end of the grace period in nanoseconds since 1970, while the soft limit of inodes is exceeded.
    pub inodes_deadline: Option<i64>,
}

/// Limits of an id; 0 is none. Bytes are rounded up to fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaLimits {
    /// Bytes that may be exceeded for the grace period.
    pub soft_bytes: u64,
    /// Bytes that are never exceeded.
    pub hard_bytes: u64,
    /// Inodes that may be exceeded for the grace period.
    pub soft_inodes: u64,
    /// Inodes that are never exceeded.
    pub hard_inodes: u64,
}

/// How long soft limits may be exceeded, in nanoseconds, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaGrace {
    /// For space.
    pub bytes: i64,
    /// For inodes.
    pub inodes: i64,
}

/// A quota record that does not agree with the inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaMismatch {
    /// User, group or project.
    pub kind: QuotaKind,
    /// Its number.
    pub id: u32,
    /// Bytes by the record, and by the inodes.
    pub bytes: [u64; 2],
    /// Inodes by the record, and counted.
    pub inodes: [u64; 2],
}

/// Fragments and inodes by id.
type Usage = BTreeMap<u32, (u64, u64)>;

/// Records per commit when all are recounted.
const RECORDS_PER_COMMIT: usize = 64;

impl Fs {
    pub(super) fn quotas(&self) -> Result<&Arc<Quota>> {
        self.journal.check_not_shut_down()?;
        self.quota.as_ref().ok_or_else(|| Error::Invalid("the file system keeps no quotas".into()))
    }

    /// The kinds of quota that the file system keeps.
    pub fn quota_kinds(&self) -> Vec<QuotaKind> {
        self.quota.iter().flat_map(|q| q.kinds()).collect()
    }

    /// Requests that were refused since the mount because a quota was used up.
    pub fn quota_refusals(&self) -> u64 {
        self.quota.as_ref().map_or(0, |q| q.refused())
    }

    fn status(&self, kind: QuotaKind, id: u32, r: &QuotaRecord) -> QuotaStatus {
        let bytes = |frags: u64| frags.saturating_mul(self.geo.frag_size() as u64);
        let deadline = |d: i64| (d != 0 && id != 0).then_some(d);
        QuotaStatus {
            kind,
            id,
            bytes: bytes(r.frags),
            inodes: r.inodes,
            limits: QuotaLimits {
                soft_bytes: bytes(r.soft_frags),
                hard_bytes: bytes(r.hard_frags),
                soft_inodes: r.soft_inodes,
                hard_inodes: r.hard_inodes,
            },
            bytes_deadline: deadline(r.frags_deadline),
            inodes_deadline: deadline(r.inodes_deadline),
        }
    }

    /// Usage and limits of a user, group or project. [`Error::Invalid`] if quotas of this kind are off.
    pub fn quota(&self, kind: QuotaKind, id: u32) -> Result<QuotaStatus> {
        let _span = self.span(Kind::Quota, [0; 3]);
        Ok(self.status(kind, id, &self.quotas()?.get(kind, id)?))
    }

    /// Usage and limits of all ids that use anything or have a limit, in order of the ids.
    pub fn quota_list(&self, kind: QuotaKind) -> Result<Vec<QuotaStatus>> {
        let _span = self.span(Kind::Quota, [0; 3]);
        let all = self.quotas()?.list(kind)?;
        Ok(all.iter().map(|(id, r)| self.status(kind, *id, r)).collect())
    }

    /// Sets the limits of a user, group or project. A grace period begins at once if a soft limit is exceeded, and ends
    /// if it is not any more. Id 0 can have no limits.
    pub fn set_quota(&self, kind: QuotaKind, id: u32, limits: QuotaLimits) -> Result<QuotaStatus> {
        let _span = self.span(Kind::Quota, [0; 3]);
        if id == 0 {
            return Error::invalid(format!("{} 0 has no limits", kind.name()));
        }
        let over = |soft: u64, hard: u64| hard > 0 && soft > hard;
        if over(limits.soft_bytes, limits.hard_bytes) || over(limits.soft_inodes, limits.hard_inodes) {
            return Error::invalid("a soft limit above the hard limit");
        }
        let frags = |bytes: u64| self.geo.frags_for(bytes);
        self.change_quota(kind, id, |r| {
            (r.soft_frags, r.hard_frags) = (frags(limits.soft_bytes), frags(limits.hard_bytes));
            (r.soft_inodes, r.hard_inodes) = (limits.soft_inodes, limits.hard_inodes);
        })?;
        self.quota(kind, id)
    }

    /// The lengths of grace periods.
    pub fn quota_grace(&self, kind: QuotaKind) -> Result<QuotaGrace> {
        let [bytes, inodes] = self.quotas()?.grace(kind)?;
        Ok(QuotaGrace { bytes, inodes })
    }

    /// Sets the lengths of grace periods. Running periods do not change.
    pub fn set_quota_grace(&self, kind: QuotaKind, grace: QuotaGrace) -> Result<()> {
        let _span = self.span(Kind::Quota, [0; 3]);
        if grace.bytes < 1 || grace.inodes < 1 {
            return Error::invalid("a grace period is longer than nothing");
        }
        self.change_quota(kind, 0, |r| (r.frags_deadline, r.inodes_deadline) = (grace.bytes, grace.inodes))
    }

    fn change_quota(&self, kind: QuotaKind, id: u32, f: impl Fn(&mut QuotaRecord)) -> Result<()> {
        self.writable()?;
        let quota = self.quotas()?;
        self.with_space(|| quota.prepare_id(&self.journal, &self.space, kind, id))?;
        let txn = self.journal.begin(1024)?;
        quota.change(&txn, kind, id, &f)
    }

    /// Ensures that the ids have records, before the transaction that charges them. The caller holds no lock.
    pub(super) fn prepare_quota(&self, ids: Ids) -> Result<()> {
        match &self.quota {
            Some(quota) => self.with_space(|| quota.prepare(&self.journal, &self.space, &ids)),
            None => Ok(()),
        }
    }

    /// Reserves a new inode with `frags` fragments in the quotas of its owner, group and project. The caller holds no
    /// lock.
    pub(super) fn quota_for_new(&self, c: Caller, ids: Ids, frags: u64) -> Result<Option<Reservation>> {
        let Some(quota) = &self.quota else { return Ok(None) };
        self.prepare_quota(ids)?;
        Ok(Some(quota.reservation(ids, frags, 1, c.privileged())?))
    }

    /// Reserves everything that an inode uses in the quotas of its new owners, before the owner changes. Their records
    /// are prepared.
    pub(super) fn quota_for_new_owner(&self, c: Caller, st: &NodeState, ids: Ids) -> Result<Option<Reservation>> {
        match &st.data.account {
            Some(account) if ids != ids_of(&st.inode) => account.reservation_for(ids, c.privileged()).map(Some),
            _ => Ok(None),
        }
    }

    /// The project of a file, and for a directory whether new files in it inherit the project.
    pub fn project(&self, ino: Ino) -> Result<(u32, bool)> {
        let _span = self.span(Kind::Getattr, [ino, 0, 0]);
        let node = self.node(ino)?;
        let st = node.state.read();
        Ok((st.inode.projid, st.inode.flags & FLAG_PROJECT_INHERIT != 0))
    }

    /// Assigns a file to a project. For a directory `inherit` says whether new files in it inherit the project (for
    /// other files it must be false). Existing files in the directory do not change.
    ///
    /// [`Error::Quota`] if the project has no room for it, unless the caller is privileged.
    pub fn set_project(&self, c: Caller, ino: Ino, project: u32, inherit: bool) -> Result<()> {
        let _span = self.span(Kind::Setattr, [ino, 0, 0]);
        self.writable()?;
        let node = self.node(ino)?;
        let ids = |i: &Inode| [i.uid, i.gid, project];
        let before = ids(&node.state.read().inode);
        self.prepare_quota(before)?;
        let txn = self.journal.begin(INODE_CORE_SIZE + INLINE_MAX + 256)?;
        let mut st = node.state.write();
        if st.freed {
            return Err(Error::Stale);
        }
        if inherit && !st.inode.is_dir() {
            return Error::invalid("only a directory hands its project down");
        }
        let _reservation = self.quota_for_new_owner(c, &st, ids(&st.inode))?;
        st.inode.projid = project;
        st.inode.flags &= !FLAG_PROJECT_INHERIT;
        st.inode.flags |= if inherit { FLAG_PROJECT_INHERIT } else { 0 };
        st.inode.ctime = now();
        crate::node::store(&txn, &mut st)
    }

    /// Changes which quotas a file system keeps that is not mounted. Kinds that are switched on are counted. The limits
    /// of kinds that are switched off are kept. After a crash in the middle some kinds may be on and others off; each
    /// is consistent.
    pub fn switch_quotas(dev: Arc<dyn Device>, log_dev: Option<Arc<dyn Device>>, kinds: &[QuotaKind]) -> Result<()> {
        let options = MountOptions { background: false, ..MountOptions::default() };
        // Opening replays the log. Records of a kind that is switched off are marked as not counted.
        let fs = Fs::open(dev.clone(), log_dev.clone(), options.clone())?;
        for kind in fs.quota_kinds().into_iter().filter(|k| !kinds.contains(k)) {
            fs.quotas()?.set_counted(&fs.journal.begin(1024)?, kind, false)?;
        }
        fs.close()?;
        drop(fs);
        let mut sb = crate::superblocks::read_superblock(&*dev)?;
        for kind in QuotaKind::ALL {
            sb.ro_compat &= !kind.feature();
            sb.ro_compat |= if kinds.contains(&kind) { kind.feature() } else { 0 };
        }
        super::mount::write_superblock(&*dev, &sb)?;
        Fs::open(dev, log_dev, options)?.close()
    }

    /// At mount: counts the kinds that were never counted, or that may be wrong.
    pub(super) fn count_quotas_if_needed(&self) -> Result<()> {
        let Some(quota) = &self.quota else { return Ok(()) };
        for kind in quota.kinds().collect::<Vec<_>>() {
            if !quota.is_counted(kind)? {
                tracing::info!("counting {} quotas", kind.name());
                // Damage elsewhere must not keep the file system from being mounted; the next mount tries again.
                match self.recount_quota(kind) {
                    Err(e @ (Error::Corrupt(_) | Error::Io(_))) => {
                        tracing::error!("{} quotas were not counted: {e}", kind.name());
                    }
                    outcome => drop(outcome?),
                }
            }
        }
        Ok(())
    }

    /// Counts what all ids use and corrects the records; returns those that were wrong. Limits stay. Nobody else may
    /// use the file system meanwhile, because changes during the count make the result wrong.
    ///
    /// After a crash in the middle the next mount counts again.
    pub fn recount_quota(&self, kind: QuotaKind) -> Result<Vec<QuotaMismatch>> {
        let _span = self.span(Kind::Quota, [0; 3]);
        self.writable()?;
        let quota = self.quotas()?;
        if quota.is_counted(kind)? {
            quota.set_counted(&self.journal.begin(1024)?, kind, false)?;
            self.journal.commit()?;
        }
        quota.empty_damaged(&self.journal, kind)?;
        let mut usage = self.count_usage(kind)?;
        for (id, _) in quota.list(kind)? {
            usage.entry(id).or_default();
        }
        let mut wrong = Vec::new();
        let mut changed = 0;
        for (id, (frags, inodes)) in usage {
            let before = quota.get(kind, id)?;
            if (before.frags, before.inodes) == (frags, inodes) {
                continue;
            }
            let bytes = [before.frags, frags].map(|f| f.saturating_mul(self.geo.frag_size() as u64));
            wrong.push(QuotaMismatch { kind, id, bytes, inodes: [before.inodes, inodes] });
            self.change_quota(kind, id, |r| (r.frags, r.inodes) = (frags, inodes))?;
            changed += 1;
            if changed % RECORDS_PER_COMMIT == 0 {
                self.journal.commit()?;
            }
        }
        quota.set_counted(&self.journal.begin(1024)?, kind, true)?;
        self.journal.commit()?;
        Ok(wrong)
    }

    /// Adds up all inodes: the root, and those in the locator table.
    fn count_usage(&self, kind: QuotaKind) -> Result<Usage> {
        let mut usage = Usage::new();
        let mut add = |i: &crate::format::Inode| {
            let sum = usage.entry(crate::quota::ids_of(i)[kind.index()]).or_default();
            sum.0 = sum.0.saturating_add(i.frags);
            sum.1 += 1;
        };
        add(&self.node(ROOT_INO)?.state.read().inode);
        let table = self.inodes.locator.inode();
        let shape = self.inodes.locator.shape();
        let mut runs: Vec<(FragAddr, FragAddr)> = Vec::new();
        extent::for_each(&self.cache, &table, 0..LOGICAL_END, |e| {
            runs.push((e.logical, e.end()));
            Ok(())
        })?;
        let fpb = self.geo.frags_per_block();
        let end = table.size >> self.geo.block_shift;
        // A damaged mapping cannot make this loop longer than the device has blocks.
        let mut left = self.cache.geometry().total_blocks;
        for (from, to) in runs {
            for lblock in from / fpb..(to / fpb).min(end) {
                left = left.checked_sub(1).ok_or_else(|| {
                    let what = format!("inode {}: its map has more blocks than the file system", table.ino);
                    Error::Corrupt(Corrupt(what))
                })?;
                let Some(data) = shape.data_of_block(lblock) else { continue };
                let first = data.saturating_mul(shape.per_block);
                for ino in first.max(FIRST_USER_INO)..first.saturating_add(shape.per_block) {
                    if let Some(inode) = self.inode_by_number(ino)? {
                        add(&inode);
                    }
                }
            }
        }
        Ok(usage)
    }

    fn inode_by_number(&self, ino: Ino) -> Result<Option<crate::format::Inode>> {
        match self.inodes.locate(&self.cache, ino) {
            Ok(crate::format::table::Location::Free) | Err(Error::Stale) => Ok(None),
            Ok(location) => Ok(Some(crate::inode::load_at(&self.cache, ino, location)?.0)),
            Err(e) => Err(e),
        }
    }
}

/// The project that new files in a directory inherit. Such a directory accepts no files of another project, because all
/// of its contents count for its own project.
pub(super) fn handed_down(dir: &Inode) -> Option<u32> {
    (dir.flags & FLAG_PROJECT_INHERIT != 0).then_some(dir.projid)
}

/// Allocates blocks of a directory within the quotas of its owner, group and project.
pub(super) struct LimitedAllocator<'a> {
    fs: &'a Fs,
    /// The charge of the directory; `None` if nothing limits it.
    account: Option<Arc<InodeCharge>>,
}

impl<'a> LimitedAllocator<'a> {
    /// For a change of the directory `st`, which is stored in the same transaction even if the change fails.
    pub(super) fn new(fs: &'a Fs, c: Caller, st: &NodeState) -> LimitedAllocator<'a> {
        LimitedAllocator { fs, account: st.data.account.clone().filter(|_| !c.privileged()) }
    }
}

impl DirAllocator for LimitedAllocator<'_> {
    fn allocate_dir_blocks(
        &self,
        reservation: &Reservation,
        dir: &Inode,
        goal: Option<BlockAddr>,
        want_blocks: u64,
        min: u64,
    ) -> Result<Option<Run>> {
        let placement = &self.fs.placement;
        let (Some(account), Some(quota)) = (&self.account, &self.fs.quota) else {
            return placement.allocate_dir_blocks(reservation, dir, goal, want_blocks, min);
        };
        let fpb = self.fs.geo.frags_per_block();
        let fits = quota.room(&ids_of(dir)) / fpb;
        let mut want = want_blocks.min(fits.max(min));
        // Others may use the same quota meanwhile, so the smallest sufficient length is tried last.
        let charge = Reservation::of_quota(account.clone(), 0, 0);
        if charge.reserve(want * fpb, false).is_err() {
            charge.reserve(min * fpb, false)?;
            want = min;
        }
        let run = placement.allocate_dir_blocks(reservation, dir, goal, want, min);
        let len = run.as_ref().map_or(0, |run| run.map_or(0, |r| r.len));
        // The charge takes effect when the directory is stored.
        charge.charge(len);
        run
    }
}
