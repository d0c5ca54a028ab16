//! Branches and snapshots.
//!
//! A branch is written to; a snapshot is what a branch was. Whether a block that a branch no longer refers to is free
//! depends on versions: a snapshot has the blocks that were written at its version or before. So a block that is younger than
//! the branch's newest snapshot is free at once. Any other goes into the dead list of the branch; a new snapshot takes that list
//! along. When a snapshot goes, the list of the next one says what only the deleted one had.

use crate::codec::{Fields, PutFields, corrupt, counter};
use crate::layouts::{CatalogLayout, MapLayout};
use crate::tree::Root;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The branch that every disk has.
pub const MAIN_BRANCH: u32 = 0;
/// The origin of a branch that began empty.
pub(crate) const NO_SNAPSHOT: u64 = u64::MAX;

/// Blocks that died while a snapshot referred to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadList {
    pub(crate) id: u64,
    pub(crate) entries: u64,
}

/// A branch.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    pub(crate) root: Root<MapLayout>,
    /// The snapshot that it began as.
    pub(crate) origin: Option<u64>,
    pub(crate) list: DeadList,
    pub(crate) deleting: bool,
    pub(crate) name: Vec<u8>,
    /// Blocks up to this version are in a snapshot as well. Follows from the rest.
    pub(crate) floor: u64,
    /// The same after a crash, where snapshots are still there that were deleted since the last checkpoint.
    pub(crate) floor_after_crash: u64,
    /// Devices that are open on it.
    pub(crate) opened: usize,
}

/// A snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) branch: u32,
    pub(crate) version: u64,
    pub(crate) root: Root<MapLayout>,
    pub(crate) list: DeadList,
    pub(crate) deleting: bool,
    pub(crate) name: Vec<u8>,
    /// Devices that are open on it.
    pub(crate) opened: usize,
}

/// All branches and snapshots. Their ids come from one counter.
#[derive(Default)]
pub(crate) struct Catalog {
    pub(crate) branches: BTreeMap<u32, Branch>,
    pub(crate) snapshots: BTreeMap<u64, Snapshot>,
    pub(crate) tree: Root<CatalogLayout>,
    /// Ids whose record in the tree is old.
    pub(crate) dirty: BTreeSet<u64>,
}

fn put_list(out: &mut Vec<u8>, list: &DeadList) {
    out.put_u64(list.id);
    out.put_u64(list.entries);
}

fn get_list(f: &mut Fields<'_>) -> io::Result<DeadList> {
    Ok(DeadList { id: counter(f.u64()?)?, entries: counter(f.u64()?)? })
}

impl Catalog {
    /// The snapshots of a branch, by version.
    pub(crate) fn of_branch(&self, branch: u32) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> =
            self.snapshots.iter().filter(|(_, s)| s.branch == branch).map(|(&id, s)| (s.version, id)).collect();
        all.sort_unstable();
        all
    }

    /// The version of the snapshot that a branch began as, or 0.
    pub(crate) fn origin_version(&self, branch: u32) -> u64 {
        let origin = self.branches.get(&branch).and_then(|b| b.origin);
        origin.and_then(|id| self.snapshots.get(&id)).map_or(0, |s| s.version)
    }

    /// Sets the floor of a branch anew.
    pub(crate) fn update_floor(&mut self, branch: u32) {
        let newest = self.snapshots.values().filter(|s| s.branch == branch).map(|s| s.version).max();
        let floor = newest.unwrap_or_else(|| self.origin_version(branch));
        if let Some(b) = self.branches.get_mut(&branch) {
            b.floor = floor;
            b.floor_after_crash = b.floor_after_crash.max(floor);
        }
    }

    /// A checkpoint has all that was deleted.
    pub(crate) fn is_stored(&mut self) {
        self.branches.values_mut().for_each(|b| b.floor_after_crash = b.floor);
    }

    /// The record of a branch or snapshot, whose tree must be stored; `None` if it is gone.
    pub(crate) fn encode(&self, id: u64) -> io::Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        if let Some(s) = self.snapshots.get(&id) {
            out.put_u8(2);
            out.put_u8(u8::from(s.deleting));
            out.put_u32(s.branch);
            out.put_u64(s.version);
            put_list(&mut out, &s.list);
            s.root.encode(&mut out)?;
            out.put_u8(s.name.len() as u8);
            out.extend_from_slice(&s.name);
        } else if let Some(b) = u32::try_from(id).ok().and_then(|id| self.branches.get(&id)) {
            out.put_u8(1);
            out.put_u8(u8::from(b.deleting));
            out.put_u64(b.origin.unwrap_or(NO_SNAPSHOT));
            put_list(&mut out, &b.list);
            b.root.encode(&mut out)?;
            out.put_u8(b.name.len() as u8);
            out.extend_from_slice(&b.name);
        } else {
            return Ok(None);
        }
        Ok(Some(out))
    }

    /// Takes a record in. Floors are set when all are there.
    pub(crate) fn load(&mut self, id: u64, record: &[u8]) -> io::Result<()> {
        let mut f = Fields::new(record);
        match (f.u8()?, f.u8()? != 0) {
            (1, deleting) => {
                let id = u32::try_from(id).map_err(|_| corrupt("the id of a branch is too large"))?;
                let origin = Some(f.u64()?).filter(|&o| o != NO_SNAPSHOT);
                let list = get_list(&mut f)?;
                let root = Root::decode(&mut f)?;
                let n = usize::from(f.u8()?);
                let name = f.bytes(n)?.to_vec();
                let (floor, floor_after_crash, opened) = (0, 0, 0);
                let branch = Branch { root, origin, list, deleting, name, floor, floor_after_crash, opened };
                self.branches.insert(id, branch);
            }
            (2, deleting) => {
                let (branch, version) = (f.u32()?, counter(f.u64()?)?);
                let list = get_list(&mut f)?;
                let root = Root::decode(&mut f)?;
                let n = usize::from(f.u8()?);
                let name = f.bytes(n)?.to_vec();
                self.snapshots.insert(id, Snapshot { branch, version, root, list, deleting, name, opened: 0 });
            }
            (kind, _) => return Err(corrupt(format!("the catalog has a record of unknown kind {kind}"))),
        }
        Ok(())
    }

    /// Whether the records agree with each other.
    pub(crate) fn check(&self) -> io::Result<()> {
        let orphan = self.snapshots.values().any(|s| !self.branches.contains_key(&s.branch))
            || self.branches.values().any(|b| b.origin.is_some_and(|o| !self.snapshots.contains_key(&o)))
            || !self.branches.contains_key(&MAIN_BRANCH);
        if orphan { Err(corrupt("the catalog refers to a branch or snapshot that is not there")) } else { Ok(()) }
    }
}
