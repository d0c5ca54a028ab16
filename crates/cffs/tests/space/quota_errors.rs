//! Quotas on a device that fails to read: no error that passes makes records wrong for good.

use cffs::check::{CheckOptions, check};
use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs::format::Inode;
use cffs::mkfs::read_superblock;
use cffs::{Caller, Error, Fs, Geometry, MkfsOptions, MountOptions, QuotaKind, QuotaLimits, ROOT_INO, mkfs};
use std::sync::Arc;

const ALICE: Caller = Caller { uid: 1000, gid: 100 };

fn open(dev: Arc<dyn Device>) -> Arc<Fs> {
    Fs::open(dev, None, MountOptions::default().background(false)).unwrap()
}

/// A file system that keeps user quotas, with a file of 50 fragments of Alice's, not mounted.
fn with_file() -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(64 << 20));
    let options = MkfsOptions::default().quota(vec![QuotaKind::User]);
    mkfs(&*dev, None, &options.frag_size(Some(1024)).root_uid(1000)).unwrap();
    let fs = open(dev.clone());
    let keep = fs.create(ALICE, ROOT_INO, b"keep", 0o600).unwrap().ino;
    fs.write(ALICE, keep, 0, &[1; 50 << 10]).unwrap();
    fs.close().unwrap();
    dev
}

fn assert_clean(dev: &Arc<MemoryDevice>, when: &str) {
    let report = check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{when}: {:#?}", report.problems);
}

/// Whether the user quota file on the device says that its records are exact.
fn is_counted(dev: &MemoryDevice) -> bool {
    let (block, offset) = Geometry::new(&read_superblock(dev).unwrap()).unwrap().system_inode(QuotaKind::User.ino());
    let mut b = vec![0; 4096];
    dev.read_at(IoKind::Meta, block * 4096, &mut b).unwrap();
    Inode::decode(&b[offset..]).unwrap().aux == 1
}

#[test]
fn a_record_that_could_not_be_read_once_is_read_again() {
    let memory = with_file();
    let failing = Arc::new(FailingDevice::new(memory.clone()));
    let fs = open(failing.clone());
    let keep = fs.lookup(ROOT_INO, b"keep").unwrap().ino;
    fs.read(keep, 0, &mut [0; 10]).unwrap();
    fs.drop_caches();
    failing.set(Operation::Read, Fault::from_now_on().of_kind(IoKind::Meta));
    let outcome = fs.quota(QuotaKind::User, 1000);
    assert!(matches!(outcome, Err(Error::Io(_))), "{outcome:?}");
    let limits = QuotaLimits { hard_bytes: 1 << 30, ..QuotaLimits::default() };
    assert!(matches!(fs.set_quota(QuotaKind::User, 1000, limits), Err(Error::Io(_))));
    failing.clear();
    let before = fs.quota(QuotaKind::User, 1000).unwrap();
    assert!(before.bytes >= 50 << 10, "{before:?}");
    let more = fs.create(ALICE, ROOT_INO, b"more", 0o600).unwrap().ino;
    fs.write(ALICE, more, 0, &[1; 500 << 10]).unwrap();
    let after = fs.quota(QuotaKind::User, 1000).unwrap();
    assert_eq!((after.bytes, after.inodes), (before.bytes + (500 << 10), before.inodes + 1));
    fs.close().unwrap();
    assert!(is_counted(&memory));
    assert_clean(&memory, "unmounted");
    assert_eq!(open(memory).quota(QuotaKind::User, 1000).unwrap(), after);
}

/// The error comes where nothing can be refused any more: when the space of a removed file is taken off its owner's
/// record. Reads of metadata fail from each in turn until the file is removed, and each attempt ends in a crash as well.
#[test]
fn a_charge_whose_record_cannot_be_read_makes_the_next_mount_count() {
    let image = with_file();
    let mut recounts = 0;
    for n in 1..=16 {
        let memory = Arc::new(image.duplicate());
        let failing = Arc::new(FailingDevice::new(memory.clone()));
        let fs = open(failing.clone());
        fs.drop_caches();
        failing.set(Operation::Read, Fault::from_nth(n).of_kind(IoKind::Meta));
        let removed = fs.unlink(ROOT_INO, b"keep");
        failing.clear();
        fs.sync().unwrap();
        let crashed = Arc::new(memory.duplicate());
        assert_clean(&crashed, "after a crash");
        fs.close().unwrap();
        drop(fs);
        let counted = is_counted(&memory);
        for (dev, when) in [(crashed, "after a crash"), (memory, "unmounted")] {
            assert_clean(&dev, when);
            let fs = open(dev.clone());
            let q = fs.quota(QuotaKind::User, 1000).unwrap();
            assert_eq!(q.bytes >= 50 << 10, removed.is_err(), "{when}, read {n}: {q:?}");
            fs.close().unwrap();
            assert!(is_counted(&dev), "{when}, read {n}");
            assert_clean(&dev, "mounted again");
        }
        recounts += usize::from(!counted);
    }
    assert!(recounts > 0, "no charge was hit");
}
