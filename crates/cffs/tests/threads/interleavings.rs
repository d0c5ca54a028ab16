//! What happens while a writeback is on its way to the device, and what is left when it fails.

use crate::common::observed::{Observed, Seen};
use cffs::check::{CheckOptions, check};
use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs::{Caller, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO, SetAttr, mkfs, path};
use std::sync::{Arc, Mutex};

const ROOT: Caller = Caller::ROOT;

fn fresh(size: u64) -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(size));
    mkfs(&*dev, None, &MkfsOptions::default()).expect("mkfs");
    dev
}

fn options() -> MountOptions {
    MountOptions::default().background(false)
}

fn mount(dev: Arc<dyn Device>) -> Arc<Fs> {
    Fs::open(dev, None, options()).expect("mount")
}

fn assert_clean(dev: &Arc<MemoryDevice>) {
    let report = check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).expect("check");
    let list: Vec<String> = report.problems.iter().map(|p| p.to_string()).collect();
    assert!(report.is_clean(), "{}", list.join("\n"));
}

fn file(fs: &Fs, name: &[u8], data: &[u8]) -> Ino {
    let ino = fs.create(ROOT, ROOT_INO, name, 0o644).expect("create").ino;
    assert_eq!(fs.write(ROOT, ino, 0, data).expect("write"), data.len());
    ino
}

/// A device that lists what passes: data, log, flush.
fn listed(inner: Arc<MemoryDevice>) -> (Arc<Observed>, Arc<Mutex<String>>) {
    let events: Arc<Mutex<String>> = Arc::default();
    let list = events.clone();
    let dev = Observed::new(inner, move |seen| {
        let event = match seen {
            Seen::Written(IoKind::Data) => 'D',
            Seen::Written(IoKind::Log) => 'L',
            Seen::Flush => 'F',
            _ => return,
        };
        list.lock().unwrap().push(event);
    });
    (dev, events)
}

#[test]
fn data_is_flushed_before_the_log_speaks_of_it_although_a_flush_passed_meanwhile() {
    let (dev, events) = listed(fresh(64 << 20));
    let fs = mount(dev.clone());
    let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap().ino;
    fs.sync().unwrap();
    file(&fs, b"big", &vec![1; 300_000]);
    let other = fs.clone();
    events.lock().unwrap().clear();
    dev.meanwhile(move || {
        other.mkdir(ROOT, dir, b"e", 0o755).unwrap();
        other.fsync(dir, false).unwrap();
    });
    fs.sync().unwrap();
    assert!(dev.happened(), "data was written");
    let events = events.lock().unwrap();
    let data = events.rfind('D').expect("data was written");
    let logged = data + events[data..].find('L').expect("the log was written after it");
    assert!(events[data..logged].contains('F'), "{events}: no flush between the data and the log");
}

#[test]
fn a_file_removed_while_its_access_time_is_on_its_way_leaves_its_place_alone() {
    let memory = fresh(64 << 20);
    let dev = Observed::interrupted(memory.clone(), Operation::Write);
    let fs = mount(dev.clone());
    let old = file(&fs, b"old", b"inline");
    fs.sync().unwrap();
    fs.read(old, 0, &mut [0; 6]).unwrap(); // its access time is written next
    file(&fs, b"big", &vec![1; 300_000]);
    let other = fs.clone();
    dev.meanwhile(move || {
        other.forget(old, 1);
        other.unlink(ROOT_INO, b"old").unwrap();
        // Takes the place of the entry that has just gone.
        let new = file(&other, b"new", b"others");
        other.fsync(new, false).unwrap(); // nothing more is written of it
    });
    fs.sync().unwrap();
    assert!(dev.happened(), "data was written");
    fs.close().unwrap();
    assert_clean(&memory);
    let fs = mount(memory);
    assert_eq!(path::read_file(&fs, b"/new").unwrap(), b"others");
    fs.close().unwrap();
}

#[test]
fn what_could_not_be_written_is_written_later() {
    let memory = fresh(64 << 20);
    let dev = Arc::new(FailingDevice::new(memory.clone()));
    let fs = mount(dev.clone());
    let data: Vec<u8> = (0..300_000).map(|i| (i / 5) as u8).collect();
    let ino = file(&fs, b"f", &data);
    dev.set(Operation::Write, Fault::from_now_on().of_kind(IoKind::Data));
    assert!(fs.fsync(ino, false).is_err());
    assert!(fs.fsync(ino, false).is_err(), "it is still not there");
    dev.clear();
    // The first may still tell of the failure; when one says yes, the data is there.
    let _ = fs.fsync(ino, false);
    fs.fsync(ino, false).unwrap();
    drop(fs); // crash
    let fs = mount(memory.clone());
    assert!(path::read_file(&fs, b"/f").unwrap() == data);
    fs.close().unwrap();
    assert_clean(&memory);
}

#[test]
fn a_file_that_cannot_be_written_does_not_keep_the_rest_from_the_disk() {
    for close in [false, true] {
        let memory = fresh(64 << 20);
        let dev = Arc::new(FailingDevice::new(memory.clone()));
        let fs = mount(dev.clone());
        file(&fs, b"f", &vec![1; 300_000]);
        fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap();
        dev.set(Operation::Write, Fault::from_now_on().of_kind(IoKind::Data));
        let outcome = if close { fs.close() } else { fs.sync() };
        assert!(outcome.is_err(), "somebody has to hear of it");
        drop(fs);
        let fs = mount(memory.clone());
        fs.lookup(ROOT_INO, b"d").unwrap();
        fs.close().unwrap();
        assert_clean(&memory);
    }
}

#[test]
fn an_open_file_without_a_name_does_not_fill_the_memory() {
    let memory = fresh(128 << 20);
    let fs = Fs::open(memory, None, options().cache_bytes(4 << 20)).expect("mount");
    let ino = fs.create(ROOT, ROOT_INO, b"temporary", 0o600).unwrap().ino;
    fs.unlink(ROOT_INO, b"temporary").unwrap();
    let piece: Vec<u8> = (0..65536).map(|i| (i / 9) as u8).collect();
    for i in 0..512 {
        fs.write(ROOT, ino, i * 65536, &piece).unwrap();
        assert!(fs.stats().cache.dirty_data_bytes <= 4 << 20);
    }
    let mut back = vec![0; 65536];
    for i in [0, 77, 511] {
        assert_eq!(fs.read(ino, i * 65536, &mut back).unwrap(), 65536);
        assert!(back == piece);
    }
    fs.forget(ino, 1);
    fs.sync().unwrap();
    fs.close().unwrap();
}

#[test]
fn an_inline_file_that_was_made_longer_and_shorter_has_its_size_on_the_device() {
    let memory = fresh(64 << 20);
    let fs = mount(memory.clone());
    let ino = file(&fs, b"f", b"0123456789");
    let cut = |size| fs.setattr(ROOT, ino, SetAttr::default().size(Some(size))).unwrap();
    fs.fsync(ino, false).unwrap();
    cut(50);
    fs.fsync(ino, false).unwrap();
    cut(30);
    fs.fsync(ino, false).unwrap();
    drop(fs); // crash
    let fs = mount(memory.clone());
    let mut expected = b"0123456789".to_vec();
    expected.resize(30, 0);
    assert_eq!(path::read_file(&fs, b"/f").unwrap(), expected);
    fs.close().unwrap();
    assert_clean(&memory);
}

#[test]
fn changed_metadata_does_not_fill_the_memory() {
    let o = MkfsOptions::default().log_bytes(Some(64 << 20));
    let memory = Arc::new(MemoryDevice::new(512 << 20));
    mkfs(&*memory, None, &o).expect("mkfs");
    let limit = 2 << 20;
    let fs = Fs::open(memory.clone(), None, options().cache_bytes(limit)).expect("mount");
    // Directories have a block each: little to log, much to keep.
    for i in 0..3000 {
        let dir = fs.mkdir(ROOT, ROOT_INO, format!("d{i}").as_bytes(), 0o755).unwrap().ino;
        fs.mkdir(ROOT, dir, b"e", 0o755).unwrap();
        let used = fs.stats().cache.bytes as usize;
        assert!(used <= 2 * limit, "{used} bytes of blocks after {i} directories");
    }
    fs.close().unwrap();
    assert_clean(&memory);
}
