//! What `metadata=sync` writes at once, and in which order.

use crate::common::observed::{Observed, Seen};
use cffs::check::repair::{RepairOptions, repair};
use cffs::device::{Device, IoKind, MemoryDevice};
use cffs::format::BlockKind;
use cffs::{AtimeMode, Caller, Fs, MetadataMode, MkfsOptions, MountOptions, ROOT_INO, RenameFlags, mkfs};
use std::sync::{Arc, Mutex};

const ROOT: Caller = Caller::ROOT;

/// The kind of each block of metadata that was written, and its address.
type Written = Arc<Mutex<Vec<(BlockKind, u64)>>>;

struct SyncMount {
    device: Arc<Observed>,
    written: Written,
    fs: Arc<Fs>,
}

impl SyncMount {
    fn new(no_embed: bool) -> SyncMount {
        let written = Written::default();
        let list = written.clone();
        let device = Observed::new(Arc::new(MemoryDevice::new(64 << 20)), move |seen| {
            if let Seen::Write(IoKind::Meta, offset, bufs) = seen {
                let magic = u32::from_le_bytes(bufs[0][..4].try_into().unwrap());
                list.lock().unwrap().push((BlockKind::from_magic(magic).expect("metadata"), offset));
            }
        });
        mkfs(&*device, None, &MkfsOptions::default().no_embed(no_embed)).unwrap();
        let options = MountOptions::default().background(false).atime(AtimeMode::Noatime).metadata(MetadataMode::Sync);
        let fs = Fs::open(device.clone() as Arc<dyn Device>, None, options).unwrap();
        // The first name brings the first block, and the first inode its table.
        create(&fs, ROOT_INO, "first");
        fs.sync().unwrap();
        SyncMount { device, written, fs }
    }

    /// What an operation writes before it returns.
    fn writes(&self, operation: impl FnOnce(&Fs)) -> Vec<BlockKind> {
        self.written.lock().unwrap().clear();
        operation(&self.fs);
        self.written.lock().unwrap().iter().map(|(kind, _)| *kind).collect()
    }

    /// Crashes, repairs, and lists the root.
    fn after_a_crash(self) -> Vec<String> {
        let copy = Arc::new(self.device.inner.duplicate());
        repair(copy.clone(), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {}).unwrap();
        let report = cffs::check::check(copy.clone(), None, &Default::default(), &|_, _, _| {}).unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
        let fs = Fs::open(copy, None, MountOptions::default().background(false)).unwrap();
        let mut names: Vec<String> = ["first", "a", "b", "c"]
            .into_iter()
            .filter(|n| fs.lookup(ROOT_INO, n.as_bytes()).is_ok())
            .map(str::to_string)
            .collect();
        names.sort();
        fs.close().unwrap();
        names
    }
}

fn create(fs: &Fs, dir: u64, name: &str) {
    let ino = fs.create(ROOT, dir, name.as_bytes(), 0o644).unwrap().ino;
    fs.forget(ino, 1);
}

#[test]
fn an_inode_beside_its_name_needs_no_order() {
    let s = SyncMount::new(false);
    assert_eq!(s.writes(|fs| create(fs, ROOT_INO, "a")), []);
    assert_eq!(s.writes(|fs| fs.rename(ROOT, ROOT_INO, b"a", ROOT_INO, b"b", RenameFlags::default()).unwrap()), []);
    assert_eq!(s.writes(|fs| fs.unlink(ROOT_INO, b"b").unwrap()), []);
    assert_eq!(s.writes(|fs| fs.forget(fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap().ino, 1)), []);
}

#[test]
fn an_inode_apart_is_there_before_its_name_and_goes_after_it() {
    let s = SyncMount::new(true);
    assert_eq!(s.writes(|fs| create(fs, ROOT_INO, "a")), [BlockKind::ExternalInodes, BlockKind::Dir]);
    create(&s.fs, ROOT_INO, "b");
    let ino = s.fs.lookup(ROOT_INO, b"b").unwrap().ino;
    s.fs.write(ROOT, ino, 0, &[7; 10_000]).unwrap();
    s.fs.fsync(ino, false).unwrap();
    s.fs.forget(ino, 1);
    assert_eq!(s.writes(|fs| fs.unlink(ROOT_INO, b"b").unwrap()), [BlockKind::Dir, BlockKind::ExternalInodes]);
    // Nothing was synced since: what the operations wrote themselves is there.
    assert_eq!(s.after_a_crash(), ["a", "first"]);
}

#[test]
fn a_second_name_comes_after_its_inode() {
    let s = SyncMount::new(false);
    let ino = s.fs.lookup(ROOT_INO, b"first").unwrap().ino;
    let linked = s.writes(|fs| fs.forget(fs.link(ROOT, ino, ROOT_INO, b"a").unwrap().ino, 1));
    // The table gets its first block, to which only its own inode leads.
    assert_eq!(linked, [BlockKind::ExternalInodes, BlockKind::SystemInodes, BlockKind::Dir]);
    assert_eq!(s.writes(|fs| fs.unlink(ROOT_INO, b"first").unwrap()), [BlockKind::Dir]);
    assert_eq!(s.after_a_crash(), ["a"]);
}

#[test]
fn a_rename_writes_the_new_name_before_the_old_one_goes() {
    let s = SyncMount::new(false);
    let dir = s.fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap().ino;
    create(&s.fs, dir, "first");
    s.fs.sync().unwrap();
    s.written.lock().unwrap().clear();
    s.fs.rename(ROOT, ROOT_INO, b"first", dir, b"moved", RenameFlags::default()).unwrap();
    let at: Vec<u64> = s.written.lock().unwrap().iter().map(|(_, at)| *at).collect();
    s.written.lock().unwrap().clear();
    s.fs.rename(ROOT, dir, b"moved", ROOT_INO, b"back", RenameFlags::default()).unwrap();
    let back: Vec<u64> = s.written.lock().unwrap().iter().map(|(_, at)| *at).collect();
    assert_eq!(at.len(), 2);
    assert_eq!(back, [at[1], at[0]], "each time the block of the new name comes first");
}
