//! Snapshots and clones of a file system in the log layout, by their names.

mod differences;
mod names;
mod transfer;
mod upkeep;

pub use differences::{Change, Difference, differences};
pub use names::{SnapshotEntry, is_snapshot, list};
pub use transfer::{ReceiveError, Received, Sent, Unfinished, abandon, receive, send, unfinished};
pub use upkeep::{clone, create, delete, device, finish_deletions, open};

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::{Caller, Error, Fs, MkfsOptions, MountOptions, ROOT_INO};
    use cffs_logdisk::{LogDisk, LogOptions, MemoryStore};
    use std::sync::Arc;

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
