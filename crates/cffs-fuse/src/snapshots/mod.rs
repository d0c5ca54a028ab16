//! Snapshots and clones of a file system in the log layout, by their names.

mod differences;
mod names;
mod temporary;
mod transfer;
mod upkeep;

pub use differences::{Change, Difference, differences};
pub(crate) use names::TEMPORARY;
pub use names::{SnapshotEntry, count, is_snapshot, list};
pub(crate) use temporary::TemporarySnapshot;
pub use temporary::delete_left_over;
pub use transfer::{ReceiveError, Received, Sent, Unfinished, abandon, receive, send, unfinished};
pub use upkeep::{clone, create, delete, device, finish_deletions, open};

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::device::MemoryDevice;
    use cffs::trace::{Causes, Classes, Item, Kind, Reader, Record, frame};
    use cffs::{Caller, Error, Fs, MkfsOptions, MountOptions, ROOT_INO};
    use cffs_logdisk::{ImageOptions, ImageStore, LogDisk, LogOptions, MemoryStore};
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
        create(&disk, None, "monday").unwrap();
        assert!(
            create(&disk, None, "monday").is_err()
                && create(&disk, None, "a/b").is_err()
                && create(&disk, None, "").is_err()
        );
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
        create(&disk, None, "tuesday").unwrap();
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

    /// Requests of disks that are in a trace, with the spans that have caused them.
    fn traced(frames: &[u8]) -> Vec<(Record, Option<Record>)> {
        let file = [&frame::HEADER[..], frames].concat();
        let mut reader = Reader::new(&file[..]).unwrap();
        let all: Vec<Record> = std::iter::from_fn(|| reader.next_item().unwrap())
            .filter_map(|item| if let Item::Span(r) = item { Some(r) } else { None })
            .collect();
        let cause = |r: &Record| all.iter().find(|c| c.id == r.cause.span).cloned();
        all.iter().filter(|r| r.request().is_some()).map(|r| (r.clone(), cause(r))).collect()
    }

    #[test]
    fn requests_for_a_snapshot_or_clone_are_in_the_trace_of_the_disks_with_their_cause() {
        let memory: Arc<dyn cffs::device::Device> = Arc::new(MemoryDevice::new(64 << 20));
        let options = ImageOptions { uuid: [1; 16], slot_bytes: 256 << 10 };
        let store = Arc::new(ImageStore::format(memory, &options).unwrap());
        let disk = Arc::new(LogDisk::format(store, 256 << 20, &LogOptions::default()).unwrap());
        cffs::mkfs(&*disk, None, &MkfsOptions::default().log_bytes(Some(cffs::mkfs::log_bytes_min(4096)))).unwrap();
        let fs = Fs::open(disk.clone(), None, MountOptions::default().background(false)).unwrap();
        write(&fs, "file", &[1; 1 << 20]);
        fs.sync().unwrap();
        create(&disk, None, "then").unwrap();
        clone(&disk, "then", "again").unwrap();
        let recording = fs.tracer().start(Classes::ALL);
        let of_live = || traced(&fs.tracer().read(recording, usize::MAX).unwrap());
        for (name, own) in [("then", false), ("then", true), ("again", false), ("again", true)] {
            let writes = name == "again";
            let options = MountOptions::default().read_only(!writes).background(false);
            let other = Fs::open(device(&disk, name).unwrap(), None, options).unwrap();
            if own {
                other.tracer().start(Classes::ALL);
            }
            let file = other.lookup(ROOT_INO, b"file").unwrap();
            let mut data = vec![0; 1 << 20];
            assert_eq!(other.read(file.ino, 0, &mut data).unwrap(), data.len());
            if writes {
                other.write(Caller::ROOT, file.ino, 0, &[2; 10_000]).unwrap();
                other.fsync(file.ino, false).unwrap();
            }
            other.forget(file.ino, 1);
            other.close().unwrap();
            let requests = of_live();
            // The log disk may keep what it has read for one of them, for the next.
            let is_first = name == "then" && !own;
            assert!(!is_first || requests.iter().any(|(r, _)| r.kind == Kind::DeviceRead), "{name}");
            assert_eq!(requests.iter().any(|(r, _)| r.kind == Kind::DeviceWrite), writes, "{name}");
            for (r, cause) in requests {
                let cause = cause.unwrap_or_else(|| panic!("{name}: without a cause: {r:?}"));
                assert_eq!(r.cause.origin, Some(Kind::OtherMount), "{name}: {r:?}");
                assert!(
                    matches!(cause.kind, Kind::OtherMount | Kind::Batch | Kind::MapCheckpoint),
                    "{name}: {cause:?}"
                );
                let of_others = |c: &Causes| c.counts().all(|(kind, _)| kind == Some(Kind::OtherMount));
                assert!(cause.causes.as_deref().is_none_or(of_others), "{name}: {cause:?}");
            }
        }
        // What the file system itself asks for is its own again.
        write(&fs, "file", &[3; 10_000]);
        fs.sync().unwrap();
        assert!(of_live().iter().all(|(r, _)| r.cause.origin == Some(Kind::Sync)));
    }

    /// A file system that keeps nothing for root.
    fn new_file_system() -> (Arc<LogDisk>, Arc<Fs>) {
        let store = Arc::new(MemoryStore::new(64 << 20, 256 << 10, true));
        let disk = Arc::new(LogDisk::format(store, 256 << 20, &LogOptions::default()).unwrap());
        let options = MkfsOptions::default().log_bytes(Some(cffs::mkfs::log_bytes_min(4096))).reserve_bp(0);
        cffs::mkfs(&*disk, None, &options).unwrap();
        let fs = Fs::open(disk.clone(), None, MountOptions::default().background(false)).unwrap();
        (disk, fs)
    }

    /// A file system whose device is nearly full of one file, of so many bytes.
    fn full_of_one_file() -> (Arc<LogDisk>, Arc<Fs>, cffs::Ino, usize) {
        let (disk, fs) = new_file_system();
        let file = fs.create(Caller::ROOT, ROOT_INO, b"file", 0o600).unwrap().ino;
        let mut bytes = 0;
        // A snapshot and a little more has room.
        while disk.space().free > disk.snapshot_costs() + (6 << 20) {
            bytes += fs.write(Caller::ROOT, file, bytes as u64, &[1; 256 << 10]).unwrap();
            fs.sync().unwrap();
        }
        (disk, fs, file, bytes)
    }

    /// Overwrites pieces of a file, to its end or as long as there is space; returns how many bytes.
    fn overwrite(fs: &Fs, file: cffs::Ino, bytes: usize, value: u8) -> usize {
        let mut done = 0;
        while done < bytes {
            match fs.write(Caller::ROOT, file, done as u64, &[value; 64 << 10]) {
                Ok(n) => done += n,
                Err(Error::NoSpace) => break,
                Err(e) => panic!("{e}"),
            }
        }
        done
    }

    /// Everything that was accepted is there, also after a new mount.
    fn check_overwritten(disk: &Arc<LogDisk>, fs: Arc<Fs>, file: cffs::Ino, bytes: usize, (done, value): (usize, u8)) {
        fs.sync().expect("what was accepted has its space");
        fs.close().unwrap();
        drop(fs);
        let fs = Fs::open(disk.clone(), None, MountOptions::default().read_only(true).background(false)).unwrap();
        let mut data = vec![0; bytes];
        assert_eq!(fs.read(file, 0, &mut data).unwrap(), bytes);
        assert!(data[..done].iter().all(|b| *b == value), "what was accepted is there");
        assert!(data[done..].iter().all(|b| *b == 1), "and what was refused is not");
        assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn data_that_is_overwritten_while_a_snapshot_is_made_keeps_its_space() {
        let (disk, fs, file, bytes) = full_of_one_file();
        let costs = disk.snapshot_costs();
        assert!(costs > 0);
        // In the last moment before it is made.
        let mut done = 0;
        fs.snapshot_device(costs, || {
            done = overwrite(&fs, file, bytes, 2);
            Ok(disk.snapshot(cffs_logdisk::MAIN_BRANCH, "one")?)
        })
        .unwrap();
        check_overwritten(&disk, fs, file, bytes, (done, 2));
    }

    #[test]
    fn a_snapshot_has_what_was_dirty_on_a_full_device() {
        let (disk, fs, file, bytes) = full_of_one_file();
        assert_eq!(overwrite(&fs, file, bytes, 2), bytes, "it gives back what it takes");
        create(&disk, Some(&fs), "one").unwrap();
        let snapshot = open(&disk, "one").unwrap();
        let mut data = vec![0; bytes];
        assert_eq!(snapshot.read(file, 0, &mut data).unwrap(), bytes);
        assert!(data.iter().all(|b| *b == 2));
        check_overwritten(&disk, fs, file, bytes, (bytes, 2));
    }

    #[test]
    fn snapshots_beside_writers_on_a_full_device_take_nobodys_space() {
        for round in 0..4 {
            let (disk, fs, file, bytes) = full_of_one_file();
            let stop = std::sync::atomic::AtomicBool::new(false);
            let (done, value) = std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    for value in 2..=255 {
                        let done = overwrite(&fs, file, bytes, value);
                        if done < bytes || stop.load(std::sync::atomic::Ordering::Acquire) {
                            return (done, value);
                        }
                    }
                    panic!("no snapshot was made");
                });
                std::thread::sleep(std::time::Duration::from_millis(20 * round));
                // It is made, or refused as a whole.
                let made = create(&disk, Some(&fs), "one");
                assert!(matches!(made, Ok(_) | Err(Error::Invalid(_))), "{made:?}");
                stop.store(true, std::sync::atomic::Ordering::Release);
                writer.join().unwrap()
            });
            fs.sync().expect("what was accepted has its space");
            let mut data = vec![0; bytes];
            assert_eq!(fs.read(file, 0, &mut data).unwrap(), bytes);
            assert!(data[..done].iter().all(|b| *b == value));
            fs.close().unwrap();
            assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
        }
    }

    #[test]
    fn a_device_too_full_for_a_snapshot_refuses_it_and_stays_as_it_is() {
        let (disk, fs, file, mut bytes) = full_of_one_file();
        while disk.space().free > disk.snapshot_costs() {
            bytes += fs.write(Caller::ROOT, file, bytes as u64, &[1; 64 << 10]).unwrap();
            fs.sync().unwrap();
        }
        assert_eq!(overwrite(&fs, file, bytes, 2), bytes);
        let error = create(&disk, Some(&fs), "one").unwrap_err().to_string();
        assert!(error.contains("too little free space for a snapshot"), "{error}");
        assert!(list(&disk).is_empty());
        assert_eq!(overwrite(&fs, file, bytes, 3), bytes, "and overwriting needs no space, as before");
        check_overwritten(&disk, fs, file, bytes, (bytes, 3));
    }

    /// A file system and a clone of it that are both mounted, on a device that is nearly full: what either of them accepts is stored.
    #[test]
    fn a_file_system_and_its_clone_promise_no_space_twice() {
        let (disk, fs) = new_file_system();
        create(&disk, Some(&fs), "then").unwrap();
        clone(&disk, "then", "again").unwrap();
        let other = Fs::open(device(&disk, "again").unwrap(), None, MountOptions::default().background(false)).unwrap();
        let both = [&fs, &other];
        let fresh: Vec<_> =
            both.iter().map(|fs| fs.create(Caller::ROOT, ROOT_INO, b"fresh", 0o600).unwrap().ino).collect();
        let mut accepted = [0; 2];
        let mut write = |n: usize, most: usize| {
            while accepted[n] < most {
                match both[n].write(Caller::ROOT, fresh[n], accepted[n] as u64, &[n as u8 + 1; 16 << 10]) {
                    Ok(bytes) => accepted[n] += bytes,
                    Err(Error::NoSpace) => return true,
                    Err(e) => panic!("{e}"),
                }
            }
            false
        };
        // One has dirty data when the other begins.
        assert!(!write(0, 12 << 20) && fs.stats().cache.dirty_data_bytes > 4 << 20);
        assert!(write(1, usize::MAX) && write(0, usize::MAX));
        assert!(accepted.iter().all(|bytes| *bytes > 0), "{accepted:?}");
        for n in 0..2 {
            both[n].sync().unwrap_or_else(|e| panic!("{n}: what was accepted has its space: {e}, {accepted:?}"));
            let mut data = vec![0; accepted[n]];
            assert_eq!(both[n].read(fresh[n], 0, &mut data).unwrap(), accepted[n]);
            assert!(data.iter().all(|b| *b == n as u8 + 1));
        }
        other.close().unwrap();
        fs.close().unwrap();
        assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
    }
}
