//! Errors of the device: somebody is told, and nothing is promised afterwards that does not hold.

use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs::{AtimeMode, Caller, Error, Fallocate, Fs, MkfsOptions, MountOptions, ROOT_INO, mkfs, path};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;

fn options() -> MountOptions {
    // Noatime: reading must not be what lists a file as dirty.
    MountOptions::default().background(false).atime(AtimeMode::Noatime)
}

fn fresh() -> (Arc<MemoryDevice>, Arc<FailingDevice>, Arc<Fs>) {
    let memory = Arc::new(MemoryDevice::new(64 << 20));
    mkfs(&*memory, None, &MkfsOptions::default()).unwrap();
    let failing = Arc::new(FailingDevice::new(memory.clone() as Arc<dyn Device>));
    let fs = Fs::open(failing.clone() as Arc<dyn Device>, None, options()).unwrap();
    (memory, failing, fs)
}

/// A file that was promised before, and the state after `fault` hit an fsync.
fn after(operation: Operation, fault: Fault) {
    let (memory, failing, fs) = fresh();
    path::write_file(&fs, ROOT, b"/kept", &[1; 3000]).unwrap();
    fs.sync().unwrap();
    let f = fs.create(ROOT, ROOT_INO, b"lost", 0o644).unwrap();
    fs.write(ROOT, f.ino, 0, &[2; 3000]).unwrap();
    failing.set(operation, fault);
    assert!(matches!(fs.fsync(f.ino, false), Err(Error::Io(_))), "{fault:?}: the failed fsync says so");
    failing.clear();
    // The device works again; what it has of the log is not known any more.
    assert!(fs.fsync(f.ino, false).is_err(), "{fault:?}: no later fsync says yes");
    assert!(fs.sync().is_err());
    assert!(fs.is_read_only());
    assert!(matches!(fs.create(ROOT, ROOT_INO, b"more", 0o644), Err(Error::ReadOnly)));
    assert_eq!(path::read_file(&fs, b"/kept").unwrap(), [1; 3000], "reading goes on");
    assert!(fs.close().is_err());
    drop(fs);
    let fs = Fs::open(memory.clone() as Arc<dyn Device>, None, options()).unwrap();
    assert_eq!(path::read_file(&fs, b"/kept").unwrap(), [1; 3000]);
    fs.close().unwrap();
    let report = cffs::check::check(memory, None, &Default::default(), &|_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

#[test]
fn a_failed_log_write_makes_the_file_system_read_only() {
    after(Operation::Write, Fault::from_now_on().of_kind(IoKind::Log));
}

#[test]
fn a_failed_flush_makes_the_file_system_read_only() {
    after(Operation::Flush, Fault::from_now_on());
}

#[test]
fn data_that_cannot_be_written_is_told_by_fsync_and_kept() {
    let (memory, failing, fs) = fresh();
    let f = fs.create(ROOT, ROOT_INO, b"large", 0o644).unwrap();
    let data: Vec<u8> = (0..500_000u32).map(|i| (i % 251) as u8).collect();
    fs.write(ROOT, f.ino, 0, &data).unwrap();
    failing.set(Operation::Write, Fault::from_now_on().of_kind(IoKind::Data));
    assert!(matches!(fs.fsync(f.ino, false), Err(Error::Io(_))));
    failing.clear();
    fs.fsync(f.ino, false).expect("the data is still there and is written in place now");
    drop(fs);
    let fs = Fs::open(memory as Arc<dyn Device>, None, options()).unwrap();
    assert!(path::read_file(&fs, b"/large").unwrap() == data);
}

#[test]
fn data_that_cannot_be_written_is_the_error_of_that_file_alone() {
    for data_sums in [false, true] {
        let memory = Arc::new(MemoryDevice::new(64 << 20));
        mkfs(&*memory, None, &MkfsOptions::default().data_sums(data_sums)).unwrap();
        let failing = Arc::new(FailingDevice::new(memory.clone() as Arc<dyn Device>));
        let fs = Fs::open(failing.clone() as Arc<dyn Device>, None, options()).unwrap();
        let names: Vec<String> = (0..20).map(|n| format!("/f{n}")).collect();
        let contents = |n: usize, round: u8| vec![round ^ n as u8; 6000];
        for (n, name) in names.iter().enumerate() {
            path::write_file(&fs, ROOT, name.as_bytes(), &contents(n, 0x40)).unwrap();
        }
        fs.sync().unwrap();
        let mut image = vec![0; 64 << 20];
        memory.read_at(IoKind::Data, 0, &mut image).unwrap();
        let place =
            image.chunks(1024).position(|c| c.iter().all(|b| *b == 0x47)).expect("the data of f7") as u64 * 1024;
        let inos: Vec<_> = names.iter().map(|n| fs.lookup(ROOT_INO, &n.as_bytes()[1..]).unwrap().ino).collect();
        for (n, ino) in inos.iter().enumerate() {
            fs.write(ROOT, *ino, 0, &contents(n, 0x80)).unwrap();
        }
        failing.set(Operation::Write, Fault::from_now_on().in_range(place, place + 1024));
        assert!(matches!(fs.sync(), Err(Error::Io(_))));
        for (n, ino) in inos.iter().enumerate() {
            assert_eq!(fs.fsync(*ino, false).is_ok(), n != 7, "f{n}, with data checksums: {data_sums}");
        }
        failing.clear();
        drop(fs);
        let fs = Fs::open(memory as Arc<dyn Device>, None, options()).unwrap();
        for (n, name) in names.iter().enumerate().filter(|(n, _)| *n != 7) {
            assert!(path::read_file(&fs, name.as_bytes()).unwrap() == contents(n, 0x80), "{name}");
        }
        fs.close().unwrap();
    }
}

#[test]
fn a_read_error_is_the_error_of_that_file_alone() {
    let (_memory, failing, fs) = fresh();
    for name in ["a", "b"] {
        path::write_file(&fs, ROOT, format!("/{name}").as_bytes(), &[7; 400_000]).unwrap();
    }
    fs.sync().unwrap();
    let a = fs.lookup(ROOT_INO, b"a").unwrap();
    fs.drop_caches();
    failing.set(Operation::Read, Fault::nth(1).of_kind(IoKind::Data));
    let mut buf = vec![0; 400_000];
    let first = fs.read(a.ino, 0, &mut buf);
    failing.clear();
    if let Err(e) = first {
        assert!(matches!(e, Error::Io(_)));
    }
    assert_eq!(fs.read(a.ino, 0, &mut buf).unwrap(), 400_000);
    assert!(buf.iter().all(|b| *b == 7));
    assert!(!fs.is_read_only());
}

#[test]
fn what_a_failed_operation_left_dirty_is_written_all_the_same() {
    let (memory, failing, fs) = fresh();
    path::write_file(&fs, ROOT, b"/f", &[1; 3_000_000]).unwrap();
    fs.sync().unwrap();
    fs.drop_caches();
    let f = fs.lookup(ROOT_INO, b"f").unwrap().ino;
    let mut first = [0; 4096];
    fs.read(f, 0, &mut first).unwrap();
    // The first edge of the range becomes zeros in a page; then the second edge cannot be read.
    failing.set(Operation::Read, Fault::from_now_on().of_kind(IoKind::Data));
    let punched = fs.fallocate(ROOT, f, Fallocate::PunchHole, 100, 2_900_000);
    assert!(matches!(punched, Err(Error::Io(_))), "{punched:?}");
    failing.clear();
    fs.read(f, 0, &mut first).unwrap();
    fs.close().unwrap();
    let fs = Fs::open(memory as Arc<dyn Device>, None, options()).unwrap();
    assert_eq!(path::read_file(&fs, b"/f").unwrap()[..4096], first, "as it was seen before the unmount");
}
