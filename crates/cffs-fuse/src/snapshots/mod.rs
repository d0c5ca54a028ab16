//! Snapshots and clones of a file system in the log layout, by their names.

mod transfer;

pub use transfer::{ReceiveError, Received, Sent, Unfinished, abandon, receive, send, unfinished};

use cffs::device::Device;
use cffs::{Attr, Error, FileType, Fs, Ino, MountOptions, ROOT_INO, Result};
use cffs_logdisk::{BranchInfo, LogDisk, MAIN_BRANCH, NAME_BYTES_MAX, SnapshotInfo};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Memory for the metadata of a snapshot that is compared.
const CACHE: usize = 32 << 20;
/// Entries of dead lists that a step of a deletion gives back.
const DELETE_ENTRIES: usize = 4096;

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

/// What happened to a name between two states of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// It is in the later one only.
    Added,
    /// It is in the earlier one only.
    Removed,
    /// Contents, attributes or what it is are others. Of a directory, owner or permissions.
    Changed,
}

/// A name that differs between two states of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// How.
    pub change: Change,
    /// From the root directory on, without a slash before it. What is not UTF-8 is replaced.
    pub path: String,
}

/// What a name stands for.
enum Named {
    Snapshot(u64),
    Clone(u32),
}

/// Held by who looks whether a name is taken, and takes it. A log disk is open in one process only.
fn naming() -> MutexGuard<'static, ()> {
    static NAMING: Mutex<()> = Mutex::new(());
    NAMING.lock()
}

/// All snapshots of the file system and those that were received, and all clones, in the order in which they were made.
pub fn list(disk: &LogDisk) -> Vec<SnapshotEntry> {
    let snapshots = shown(disk);
    let name_of = |id: u64| snapshots.iter().find(|s| s.id == id).map(|s| transfer::visible(&s.name).to_owned());
    let clones = disk.branches().into_iter().filter(is_clone).map(|b| SnapshotEntry {
        id: b.branch.into(),
        name: b.name,
        clone_of: b.origin.and_then(name_of),
        received: false,
    });
    let entries = snapshots.iter().map(|s| SnapshotEntry {
        id: s.id,
        name: transfer::visible(&s.name).to_owned(),
        clone_of: None,
        received: s.branch != MAIN_BRANCH,
    });
    let mut all: Vec<SnapshotEntry> = entries.chain(clones).collect();
    all.sort_by_key(|e| e.id);
    all
}

/// The snapshots that users see: not those of clones, and no marks.
fn shown(disk: &LogDisk) -> Vec<SnapshotInfo> {
    let sources: Vec<u32> = disk.branches().iter().filter(|b| transfer::is_source(&b.name)).map(|b| b.branch).collect();
    let is_shown = |s: &SnapshotInfo| match s.branch {
        MAIN_BRANCH => true,
        branch => sources.contains(&branch) && !transfer::visible(&s.name).is_empty(),
    };
    disk.snapshots().into_iter().filter(is_shown).collect()
}

fn is_clone(b: &BranchInfo) -> bool {
    b.branch != MAIN_BRANCH && !transfer::is_source(&b.name)
}

/// Makes a snapshot of what was written so far; it is durable. Returns its number.
///
/// # Errors
/// [`Error::Invalid`] if the name cannot be used or is taken; those of the log disk.
pub fn create(disk: &LogDisk, name: &str) -> Result<u64> {
    let _naming = naming();
    check_new(disk, name)?;
    let id = disk.snapshot(MAIN_BRANCH, name)?;
    disk.flush()?;
    Ok(id)
}

/// Deletes a snapshot or a clone. Its space comes back by [`LogDisk::delete_step`].
///
/// # Errors
/// [`Error::Invalid`] if there is none, or it is in use; those of the log disk.
pub fn delete(disk: &LogDisk, name: &str) -> Result<()> {
    let named = find(disk, name)?;
    let attempt = || match named {
        Named::Snapshot(id) => disk.delete_snapshot(id),
        Named::Clone(branch) => disk.delete_branch(branch),
    };
    let branch = match named {
        Named::Snapshot(id) => disk.snapshots().iter().find(|s| s.id == id).map(|s| s.branch),
        Named::Clone(_) => None,
    };
    let mut deleted = attempt();
    if deleted.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ResourceBusy) {
        // A clone of it may have been deleted just now.
        while disk.delete_step(DELETE_ENTRIES)? {}
        deleted = attempt();
    }
    match deleted {
        Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
            Error::invalid(format!("'{name}' is mounted, or has clones: unmount it, or delete these first"))
        }
        other => {
            other?;
            if let Some(branch) = branch {
                // With the last one of those that were received from there.
                transfer::drop_unused(disk, branch)?;
            }
            Ok(disk.flush()?)
        }
    }
}

/// Gives the space of all that was deleted back, and makes that durable.
///
/// # Errors
/// Those of the log disk.
pub fn finish_deletions(disk: &LogDisk) -> Result<()> {
    while disk.delete_step(DELETE_ENTRIES)? {}
    Ok(disk.checkpoint()?)
}

/// Makes a writable clone of a snapshot; it is durable. Returns its number.
///
/// # Errors
/// [`Error::Invalid`] if there is no such snapshot, or the name of the clone cannot be used or is taken; those of the log disk.
pub fn clone(disk: &LogDisk, name: &str, clone: &str) -> Result<u32> {
    let _naming = naming();
    check_new(disk, clone)?;
    let Named::Snapshot(id) = find(disk, name)? else {
        return Error::invalid(format!("'{name}' is a clone, and only snapshots are cloned"));
    };
    let branch = disk.clone_snapshot(id, clone)?;
    disk.flush()?;
    Ok(branch)
}

/// A snapshot, which cannot be written, or a clone as a device.
///
/// # Errors
/// [`Error::Invalid`] if there is none; those of the log disk.
pub fn device(disk: &LogDisk, name: &str) -> Result<Arc<dyn Device>> {
    Ok(match find(disk, name)? {
        Named::Snapshot(id) => Arc::new(disk.open_snapshot(id)?),
        Named::Clone(branch) => Arc::new(disk.branch(branch)?),
    })
}

/// A snapshot or clone as a file system that is only read.
///
/// # Errors
/// Those of [`device`] and [`Fs::open`].
pub fn open(disk: &LogDisk, name: &str) -> Result<Arc<Fs>> {
    let options = MountOptions::default().read_only(true).background(false).cache_bytes(CACHE);
    Fs::open(device(disk, name)?, None, options)
}

/// Whether a name is that of a snapshot, which cannot be written, not of a clone.
///
/// # Errors
/// [`Error::Invalid`] if there is neither.
pub fn is_snapshot(disk: &LogDisk, name: &str) -> Result<bool> {
    Ok(matches!(find(disk, name)?, Named::Snapshot(_)))
}

fn find(disk: &LogDisk, name: &str) -> Result<Named> {
    let snapshot = shown(disk).into_iter().find(|s| transfer::visible(&s.name) == name);
    if let Some(s) = snapshot {
        return Ok(Named::Snapshot(s.id));
    }
    let clone = disk.branches().into_iter().find(|b| is_clone(b) && b.name == name);
    let clone = clone.map(|b| Named::Clone(b.branch));
    clone.ok_or_else(|| Error::Invalid(format!("there is no snapshot '{name}': `cffs snapshot list` shows all")))
}

fn check_new(disk: &LogDisk, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(['/', ',', '\0', '\n']) {
        return Error::invalid(format!(
            "the name of a snapshot has 1 to {NAME_BYTES_MAX} bytes, and no slash, comma or line break"
        ));
    }
    if list(disk).iter().any(|e| e.name == name) {
        return Error::invalid(format!("there is a snapshot or clone '{name}' already"));
    }
    Ok(())
}

/// The names that differ between an earlier state and a later one, each directory before what is in it. Below a directory that was added or
/// removed everything is told.
///
/// # Errors
/// Those of reading both.
pub fn differences(earlier: &Fs, later: &Fs) -> Result<Vec<Difference>> {
    let mut all = Vec::new();
    let mut stack = vec![(String::new(), Some(ROOT_INO), Some(ROOT_INO))];
    while let Some((path, before, after)) = stack.pop() {
        let (old, mut new) = (entries(earlier, before)?, entries(later, after)?);
        let mut below = Vec::new();
        let mut tell = |change, name: &[u8], before: Option<&Attr>, after: Option<&Attr>| {
            let path = format!("{path}{}", String::from_utf8_lossy(name));
            let directory = |a: Option<&Attr>| a.filter(|a| a.file_type == FileType::Directory).map(|a| a.ino);
            if directory(before).or(directory(after)).is_some() {
                below.push((format!("{path}/"), directory(before), directory(after)));
            }
            if let Some(change) = change {
                all.push(Difference { change, path });
            }
        };
        for (name, a) in &old {
            match new.remove(name) {
                None => tell(Some(Change::Removed), name, Some(a), None),
                Some(b) => tell(differ(a, &b).then_some(Change::Changed), name, Some(a), Some(&b)),
            }
        }
        for (name, b) in &new {
            tell(Some(Change::Added), name, None, Some(b));
        }
        stack.extend(below.into_iter().rev());
    }
    Ok(all)
}

fn differ(a: &Attr, b: &Attr) -> bool {
    let what = |a: &Attr| (a.ino, a.generation, a.file_type, a.perm, a.uid, a.gid, a.flags, a.rdev);
    what(a) != what(b) || (a.file_type != FileType::Directory && (a.size, a.ctime) != (b.size, b.ctime))
}

/// Names and attributes of a directory, by name.
fn entries(fs: &Fs, dir: Option<Ino>) -> Result<BTreeMap<Vec<u8>, Attr>> {
    let Some(dir) = dir else { return Ok(BTreeMap::new()) };
    let mut names = Vec::new();
    fs.readdir(dir, 0, false, &mut |e| {
        if e.name != b"." && e.name != b".." {
            names.push(e.name);
        }
        true
    })?;
    let mut all = BTreeMap::new();
    for name in names {
        match fs.lookup(dir, &name) {
            Ok(attr) => {
                fs.forget(attr.ino, 1);
                all.insert(name, attr);
            }
            // Somebody has just removed it.
            Err(Error::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::{Caller, MkfsOptions};
    use cffs_logdisk::{LogOptions, MemoryStore};

    fn write(fs: &Fs, name: &str, data: &[u8]) {
        let attr = match fs.lookup(ROOT_INO, name.as_bytes()) {
            Err(Error::NotFound) => fs.create(Caller::ROOT, ROOT_INO, name.as_bytes(), 0o600).unwrap(),
            other => other.unwrap(),
        };
        fs.write(Caller::ROOT, attr.ino, 0, data).unwrap();
        fs.forget(attr.ino, 1);
    }

    #[test]
    fn snapshots_are_made_compared_cloned_and_deleted_by_name() {
        let store = Arc::new(MemoryStore::new(64 << 20, 256 << 10, true));
        let disk = Arc::new(LogDisk::format(store, 256 << 20, &LogOptions::default()).unwrap());
        cffs::mkfs(&*disk, None, &MkfsOptions::default().log_bytes(Some(cffs::mkfs::log_bytes_min(4096)))).unwrap();
        let fs = Fs::open(disk.clone(), None, MountOptions::default().background(false)).unwrap();
        let dir = fs.mkdir(Caller::ROOT, ROOT_INO, b"dir", 0o700).unwrap();
        write(&fs, "stays", b"1");
        write(&fs, "changes", b"1");
        write(&fs, "goes", b"1");
        fs.create(Caller::ROOT, dir.ino, b"old", 0o600).unwrap();
        fs.sync().unwrap();
        create(&disk, "monday").unwrap();
        assert!(create(&disk, "monday").is_err() && create(&disk, "a/b").is_err() && create(&disk, "").is_err());
        write(&fs, "changes", b"2");
        write(&fs, "comes", b"2");
        fs.unlink(ROOT_INO, b"goes").unwrap();
        fs.unlink(dir.ino, b"old").unwrap();
        fs.rmdir(ROOT_INO, b"dir").unwrap();
        let told = |earlier: &Fs, later: &Fs| -> Vec<String> {
            differences(earlier, later).unwrap().iter().map(|d| format!("{:?} {}", d.change, d.path)).collect()
        };
        let monday = open(&disk, "monday").unwrap();
        let expected = ["Changed changes", "Removed dir", "Removed goes", "Added comes", "Removed dir/old"];
        assert_eq!(told(&monday, &fs), expected);
        fs.sync().unwrap();
        create(&disk, "tuesday").unwrap();
        assert_eq!(told(&monday, &open(&disk, "tuesday").unwrap()), expected);
        assert!(delete(&disk, "monday").is_err(), "it is open");
        drop(monday);
        clone(&disk, "monday", "again").unwrap();
        assert!(clone(&disk, "again", "more").is_err() && clone(&disk, "monday", "tuesday").is_err());
        assert!(delete(&disk, "monday").is_err(), "it has a clone");
        {
            let other = Fs::open(device(&disk, "again").unwrap(), None, MountOptions::default()).unwrap();
            write(&other, "written", b"3");
            other.close().unwrap();
        }
        assert_eq!(told(&open(&disk, "monday").unwrap(), &open(&disk, "again").unwrap()), ["Added written"]);
        let names: Vec<_> = list(&disk).into_iter().map(|e| (e.name, e.clone_of)).collect();
        let monday = Some("monday".to_owned());
        assert_eq!(names.len(), 3);
        assert!(names.contains(&("again".into(), monday)), "{names:?}");
        for name in ["again", "monday", "tuesday"] {
            delete(&disk, name).unwrap();
        }
        finish_deletions(&disk).unwrap();
        assert!(list(&disk).is_empty() && delete(&disk, "monday").is_err());
        assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
        fs.close().unwrap();
    }
}
