//! Names of snapshots, of clones, and of what is behind them.
//!
//! What a branch or a snapshot is for is in its name, as users' names have no slash:
//!
//! | name | of |
//! | --- | --- |
//! | `/from UUID` | the branch with what came from this store |
//! | `NAME/ID` | a received snapshot: its name, and its number in that store |
//! | `/receiving TO FROM` | the mark of a stream that is not complete: numbers in that store; FROM is `-` for a whole one |
//! | `/mounted` | a temporary snapshot: the file system as it was when somebody mounted it read-only beside the mount that writes |

use cffs::{Error, Result};
use cffs_logdisk::{BranchInfo, LogDisk, MAIN_BRANCH, NAME_BYTES_MAX, SnapshotInfo};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

/// Before the UUID of a store, in the name of a branch.
pub(super) const FROM: &str = "/from ";
/// The name of all temporary snapshots, which their numbers tell apart.
pub(crate) const TEMPORARY: &str = "/mounted";

/// A snapshot, or a clone of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotEntry {
    /// Its number: a later one has a higher one.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// For a clone, the snapshot that it began as.
    pub clone_of: Option<String>,
    /// It was received from elsewhere (`cffs snapshot receive`).
    #[serde(default)]
    pub received: bool,
}

/// What a name stands for.
pub(super) enum Named {
    Snapshot(u64),
    Clone(u32),
}

/// Held by who looks whether a name is taken, and takes it; and so by who makes a snapshot. A log disk is open in one process only.
pub(super) fn naming() -> MutexGuard<'static, ()> {
    static NAMING: Mutex<()> = Mutex::new(());
    NAMING.lock()
}

/// All snapshots of the file system and those that were received, and all clones, in the order in which they were made.
pub fn list(disk: &LogDisk) -> Vec<SnapshotEntry> {
    let snapshots = shown(disk);
    let name_of = |id: u64| snapshots.iter().find(|s| s.id == id).map(|s| visible(&s.name).to_owned());
    let clones = disk.branches().into_iter().filter(is_clone).map(|b| SnapshotEntry {
        id: b.branch.into(),
        name: b.name,
        clone_of: b.origin.and_then(name_of),
        received: false,
    });
    let entries = snapshots.iter().map(|s| SnapshotEntry {
        id: s.id,
        name: visible(&s.name).to_owned(),
        clone_of: None,
        received: s.branch != MAIN_BRANCH,
    });
    let mut all: Vec<SnapshotEntry> = entries.chain(clones).collect();
    all.sort_by_key(|e| e.id);
    all
}

/// How many snapshots users see, without clones.
pub fn count(disk: &LogDisk) -> usize {
    shown(disk).len()
}

/// The snapshots that users see: not those of clones, no marks, and no temporary ones.
pub(super) fn shown(disk: &LogDisk) -> Vec<SnapshotInfo> {
    let sources: Vec<u32> = disk.branches().iter().filter(|b| is_source(&b.name)).map(|b| b.branch).collect();
    let is_shown = |s: &SnapshotInfo| match s.branch {
        MAIN_BRANCH => s.name != TEMPORARY,
        branch => sources.contains(&branch) && !visible(&s.name).is_empty(),
    };
    disk.snapshots().into_iter().filter(is_shown).collect()
}

pub(super) fn is_clone(b: &BranchInfo) -> bool {
    b.branch != MAIN_BRANCH && !is_source(&b.name)
}

/// Whether a name is that of a snapshot, which cannot be written, not of a clone.
///
/// # Errors
/// [`Error::Invalid`] if there is neither.
pub fn is_snapshot(disk: &LogDisk, name: &str) -> Result<bool> {
    Ok(matches!(find(disk, name)?, Named::Snapshot(_)))
}

pub(super) fn find(disk: &LogDisk, name: &str) -> Result<Named> {
    let snapshot = shown(disk).into_iter().find(|s| visible(&s.name) == name);
    if let Some(s) = snapshot {
        return Ok(Named::Snapshot(s.id));
    }
    let clone = disk.branches().into_iter().find(|b| is_clone(b) && b.name == name);
    let clone = clone.map(|b| Named::Clone(b.branch));
    clone.ok_or_else(|| Error::Invalid(format!("there is no snapshot '{name}': `cffs snapshot list` shows all")))
}

pub(super) fn check_new(disk: &LogDisk, name: &str) -> Result<()> {
    let is_refused = |c: char| matches!(c, '/' | ',') || c.is_control();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(is_refused) {
        return Error::invalid(format!(
            "the name of a snapshot has 1 to {NAME_BYTES_MAX} bytes, and no slash, comma, line break or other control character"
        ));
    }
    if list(disk).iter().any(|e| e.name == name) {
        return Error::invalid(format!("there is a snapshot or clone '{name}' already"));
    }
    Ok(())
}

/// The branches for what was received, and the stores that it came from.
pub(super) fn sources(disk: &LogDisk) -> Vec<(u32, [u8; 16])> {
    let store = |name: &str| <[u8; 16]>::try_from(bytes_of(name.strip_prefix(FROM)?)?).ok();
    disk.branches().iter().filter_map(|b| Some((b.branch, store(&b.name)?))).collect()
}

/// Whether a branch has what was received.
pub(super) fn is_source(name: &str) -> bool {
    name.starts_with(FROM)
}

/// The name that users know a received snapshot by; empty for a mark.
pub(super) fn visible(name: &str) -> &str {
    name.split_once('/').map_or(name, |(name, _)| name)
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(super) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if digits.1.is_empty() { digits.0.iter().map(byte).collect() } else { None }
}
