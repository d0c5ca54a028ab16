//! Deferred extents: whatever comes between a direct write and the commit of its mapping, nothing of it is missed.

use crate::common::large::{KIB, MIB, ROOT, assert_clean, bytes, create, made, small_cache};
use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs::{
    Caller, DirectWrite, Error, Fallocate, Fs, Ino, MkfsOptions, QuotaKind, ROOT_INO, RenameFlags, SetAttr, SetXattr,
    mkfs, path,
};
use std::sync::Arc;

const ALICE: Caller = Caller { uid: 1000, gid: 100 };

fn open(dev: Arc<dyn Device>) -> Arc<Fs> {
    Fs::open(dev, None, small_cache().direct_write(DirectWrite::Always)).unwrap()
}

/// A file of so many MiB, written one by one, with the mapping of all of them deferred.
fn stream(fs: &Fs, name: &str, mib: usize) -> (Ino, Vec<u8>) {
    let ino = create(fs, name);
    let all = bytes(mib as u64, mib * MIB);
    append(fs, ino, &all, 0);
    (ino, all)
}

fn append(fs: &Fs, ino: Ino, all: &[u8], from: usize) {
    let before = fs.stats().cache.written_direct;
    for at in (from..all.len()).step_by(MIB) {
        assert_eq!(fs.write(ROOT, ino, at as u64, &all[at..at + MIB]).unwrap(), MIB);
    }
    assert_eq!(fs.stats().cache.written_direct - before, (all.len() - from) as u64, "not a direct write");
}

fn assert_reads(fs: &Fs, ino: Ino, all: &[u8], when: &str) {
    let mut out = vec![0xee; all.len() + 1];
    assert_eq!(fs.read(ino, 0, &mut out).unwrap(), all.len(), "{when}");
    assert!(out[..all.len()] == *all, "{when}");
    assert_eq!(fs.getattr(ino).unwrap().size, all.len() as u64, "{when}");
}

/// Unmounts and compares what is there then.
fn end(fs: Arc<Fs>, dev: &Arc<MemoryDevice>, ino: Ino, all: &[u8], when: &str) {
    fs.forget(ino, 1);
    fs.close().unwrap();
    drop(fs);
    assert_clean(dev);
    let fs = open(dev.clone());
    let found = path::read_file(&fs, b"/stream").unwrap();
    assert_eq!(found.len(), all.len(), "{when}");
    assert!(found == *all, "{when}, after a mount");
    fs.close().unwrap();
}

#[test]
fn readers_see_all_of_it() {
    let dev = made(false);
    let fs = open(dev.clone());
    let (ino, all) = stream(&fs, "stream", 9);
    assert_reads(&fs, ino, &all, "all at once");
    for (at, len) in [(MIB - 100, 200), (5 * MIB + 17, 300 * KIB), (9 * MIB - 5, 100), (3 * MIB, MIB), (9 * MIB, 1)] {
        let mut out = vec![0; len];
        let n = fs.read(ino, at as u64, &mut out).unwrap();
        assert!(out[..n] == all[at..(at + len).min(all.len())], "{len} bytes at {at}");
    }
    let attr = fs.getattr(ino).unwrap();
    assert!(attr.blocks * 512 >= all.len() as u64, "{} blocks", attr.blocks);
    assert_eq!(fs.seek_hole(ino, 0).unwrap(), all.len() as u64);
    assert_eq!(fs.seek_data(ino, 8 * MIB as u64 + 1).unwrap(), 8 * MIB as u64 + 1);
    fs.drop_caches();
    assert_reads(&fs, ino, &all, "with nothing in memory that can be read again");
    end(fs, &dev, ino, &all, "read");
}

/// A commit for somebody else's sake tells of nothing; a commit for its own of everything.
#[test]
fn a_crash_leaves_what_was_committed() {
    for durable in [false, true] {
        let dev = made(false);
        let fs = open(dev.clone());
        let (ino, all) = stream(&fs, "stream", 6);
        if durable {
            fs.fsync(ino, false).unwrap();
        }
        let other = create(&fs, "other");
        fs.fsync(other, false).unwrap();
        // What the device holds now.
        drop(fs);
        let fs = open(dev.clone());
        let found = path::read_file(&fs, b"/stream").unwrap();
        assert_eq!(found.len(), if durable { 6 * MIB } else { 0 }, "committed too late, or too early");
        assert!(found == all[..found.len()]);
        fs.close().unwrap();
        assert_clean(&dev);
    }
}

/// Everything that can happen to a file between two writes at its end.
#[test]
fn whatever_comes_in_between_finds_all_of_it() {
    type Step = (&'static str, fn(&Fs, Ino, &mut Vec<u8>));
    let steps: [Step; 14] = [
        ("nothing", |_, _, _| ()),
        ("fsync", |fs, ino, _| fs.fsync(ino, false).unwrap()),
        ("sync", |fs, _, _| fs.sync().unwrap()),
        ("a cut within it", |fs, ino, all| {
            all.truncate(3 * MIB);
            fs.setattr(ROOT, ino, SetAttr::default().size(Some(all.len() as u64))).unwrap();
        }),
        ("a cut to nothing", |fs, ino, all| {
            all.clear();
            fs.setattr(ROOT, ino, SetAttr::default().size(Some(0))).unwrap();
        }),
        ("a hole behind it", |fs, ino, all| {
            all.resize(all.len() + MIB, 0);
            fs.setattr(ROOT, ino, SetAttr::default().size(Some(all.len() as u64))).unwrap();
        }),
        ("a few bytes in the middle", |fs, ino, all| {
            fs.write(ROOT, ino, 2 * MIB as u64 + 77, b"in pages").unwrap();
            all[2 * MIB + 77..][..8].copy_from_slice(b"in pages");
        }),
        ("a long write over it, and over what was committed", |fs, ino, all| {
            let new = bytes(99, 2 * MIB);
            fs.write(ROOT, ino, MIB as u64 / 2, &new).unwrap();
            all[MIB / 2..][..2 * MIB].copy_from_slice(&new);
        }),
        ("a hole in it", |fs, ino, all| {
            fs.fallocate(ROOT, ino, Fallocate::PunchHole, 2 * MIB as u64 - 100, MIB as u64).unwrap();
            all[2 * MIB - 100..][..MIB].fill(0);
        }),
        ("a part of it taken out", |fs, ino, all| {
            fs.fallocate(ROOT, ino, Fallocate::Collapse, 2 * MIB as u64, MIB as u64).unwrap();
            all.drain(2 * MIB..3 * MIB);
        }),
        ("space allocated behind it", |fs, ino, _| {
            fs.fallocate(ROOT, ino, Fallocate::Allocate { keep_size: true }, 20 * MIB as u64, MIB as u64).unwrap();
        }),
        ("an attribute that takes the inode's room", |fs, ino, _| {
            fs.setxattr(ROOT, ino, b"user.long", &[7; 3000], SetXattr::default()).unwrap();
        }),
        ("another name and another owner", |fs, ino, _| {
            fs.rename(ROOT, ROOT_INO, b"stream", ROOT_INO, b"other", RenameFlags::default()).unwrap();
            fs.link(ROOT, ino, ROOT_INO, b"stream").unwrap();
            fs.forget(ino, 1);
            fs.setattr(ROOT, ino, SetAttr::default().uid(Some(1000))).unwrap();
        }),
        ("the place of another", |fs, _, _| {
            let old = create(fs, "old");
            fs.forget(old, 1);
            fs.rename(ROOT, ROOT_INO, b"stream", ROOT_INO, b"old", RenameFlags::default()).unwrap();
            fs.rename(ROOT, ROOT_INO, b"old", ROOT_INO, b"stream", RenameFlags::default()).unwrap();
        }),
    ];
    for (what, step) in steps {
        let dev = made(false);
        let fs = open(dev.clone());
        let (ino, mut all) = stream(&fs, "stream", 5);
        step(&fs, ino, &mut all);
        assert_reads(&fs, ino, &all, what);
        // And it grows on.
        let from = all.len();
        all.extend(bytes(55, 4 * MIB));
        for at in (from..all.len()).step_by(MIB) {
            assert_eq!(fs.write(ROOT, ino, at as u64, &all[at..at + MIB]).unwrap(), MIB);
        }
        assert_reads(&fs, ino, &all, what);
        end(fs, &dev, ino, &all, what);
    }
}

/// The space of deferred extents is freed when the file is removed, with or without a writeback before.
#[test]
fn deferred_extents_of_a_removed_file_are_freed() {
    let dev = Arc::new(MemoryDevice::new(96 << 20));
    let options = MkfsOptions::default().quota(QuotaKind::ALL.to_vec()).root_uid(1000);
    mkfs(&*dev, None, &options).unwrap();
    let fs = open(dev.clone());
    // The directory and the quotas have what they take.
    fs.forget(fs.create(ALICE, ROOT_INO, b"gone", 0o644).unwrap().ino, 1);
    fs.sync().unwrap();
    fs.unlink(ROOT_INO, b"gone").unwrap();
    fs.sync().unwrap();
    let free = fs.statfs().free;
    for (held, synced) in [(false, false), (true, false), (true, true)] {
        let ino = fs.create(ALICE, ROOT_INO, b"gone", 0o644).unwrap().ino;
        for at in 0..8 {
            fs.write(ALICE, ino, at * MIB as u64, &bytes(at, MIB)).unwrap();
        }
        assert!(fs.statfs().free + (8 * MIB as u64 / 1024) <= free, "not seen as taken");
        assert!(fs.quota(QuotaKind::User, 1000).unwrap().bytes >= MIB as u64);
        if !held {
            fs.forget(ino, 1);
        }
        fs.unlink(ROOT_INO, b"gone").unwrap();
        if synced {
            fs.sync().unwrap();
        }
        if held {
            fs.write(ALICE, ino, 8 * MIB as u64, &bytes(9, MIB)).unwrap();
            let mut out = vec![0; MIB];
            assert_eq!(fs.read(ino, 8 * MIB as u64, &mut out).unwrap(), MIB);
            assert!(out == bytes(9, MIB));
            fs.forget(ino, 1);
        }
        fs.sync().unwrap();
        assert_eq!(fs.statfs().free, free, "held {held}, synced {synced}");
        assert_eq!(fs.stats().space[2], 0, "a promise is left");
        assert_eq!(fs.quota(QuotaKind::User, 1000).unwrap().bytes, 0);
    }
    fs.close().unwrap();
    drop(fs);
    assert_clean(&dev);
}

/// The bytes are nowhere but on the device: when the mapping cannot be committed it stays deferred, and is committed later.
#[test]
fn an_error_leaves_extents_deferred() {
    let memory = made(false);
    let dev = Arc::new(FailingDevice::new(memory.clone()));
    let fs = open(dev.clone());
    let (ino, mut all) = stream(&fs, "stream", 1);
    // So many extents that they are in blocks of their own, which leave memory.
    for at in (0..MIB).step_by(8 * KIB) {
        fs.fallocate(ROOT, ino, Fallocate::PunchHole, at as u64, 4 * KIB as u64).unwrap();
        all[at..at + 4 * KIB].fill(0);
    }
    fs.forget(ino, 1);
    fs.close().unwrap();
    drop(fs);
    let fs = open(dev.clone());
    fs.lookup(ROOT_INO, b"stream").unwrap();
    all.extend(bytes(3, 6 * MIB));
    append(&fs, ino, &all, MIB);
    fs.drop_caches();
    dev.set(Operation::Read, Fault::from_now_on().of_kind(IoKind::Meta));
    let failed = fs.fsync(ino, false);
    assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
    dev.clear();
    assert_reads(&fs, ino, &all, "after the error");
    fs.fsync(ino, false).unwrap();
    assert_eq!(fs.stats().space[2], 0, "a promise is left");
    end(fs, &memory, ino, &all, "after an error");
}

/// To the last block, with pages at the end.
#[test]
fn a_device_that_fills_up_has_all_that_it_took() {
    let dev = made(false);
    let fs = open(dev.clone());
    let ino = create(&fs, "stream");
    let mut all = Vec::new();
    let error = loop {
        let piece = bytes(all.len() as u64, MIB);
        match fs.write(ROOT, ino, all.len() as u64, &piece) {
            Ok(n) => all.extend(&piece[..n]),
            Err(e) => break e,
        }
    };
    assert!(matches!(error, Error::NoSpace), "{error}");
    assert_reads(&fs, ino, &all, "full");
    fs.fsync(ino, false).unwrap();
    assert_eq!(fs.statfs().free, 0);
    end(fs, &dev, ino, &all, "full");
}

/// What is promised to the extent tree for it ends when others need the space.
#[test]
fn others_fill_the_device_to_the_last_fragment() {
    let dev = made(false);
    let fs = open(dev.clone());
    let other = create(&fs, "other");
    fs.sync().unwrap();
    let free = fs.statfs().free;
    let (ino, all) = stream(&fs, "stream", 8);
    // In addition to the blocks that the extent tree could need.
    let gone = free - fs.statfs().free;
    assert!((8 * 1024..9 * 1024).contains(&gone), "{gone} KiB for a file of 8 MiB");
    // Short writes by way of memory, as far as there is space; the first file is never committed on purpose.
    let mut filled = Vec::new();
    let error = loop {
        let piece = bytes(filled.len() as u64, 100_000);
        match fs.write(ROOT, other, filled.len() as u64, &piece) {
            Ok(n) => filled.extend(&piece[..n]),
            Err(e) => break e,
        }
    };
    assert!(matches!(error, Error::NoSpace), "{error}");
    fs.sync().unwrap();
    assert_eq!(fs.statfs().free, 0, "to the last fragment");
    assert_reads(&fs, other, &filled, "the one that fills");
    fs.forget(other, 1);
    end(fs, &dev, ino, &all, "beside one that fills");
}
