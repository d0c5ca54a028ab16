//! Space of files without contents: allocated ahead, given back, moved; and copies.

use cffs::check::{CheckOptions, check};
use cffs::device::{Device, MemoryDevice};
use cffs::format::inode::FLAG_APPEND;
use cffs::{Attr, Caller, Error, Fallocate, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO, SetAttr, mkfs};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;
const USER: Caller = Caller { uid: 1000, gid: 1000 };
const AHEAD: Fallocate = Fallocate::Allocate { keep_size: true };
const ALLOCATE: Fallocate = Fallocate::Allocate { keep_size: false };
const ZERO: Fallocate = Fallocate::Zero { keep_size: false };

fn fresh(size: u64) -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(size));
    mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    dev
}

fn mount(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
    let options = MountOptions::default().background(false);
    Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap()
}

fn file(fs: &Fs, name: &str) -> Ino {
    fs.create(ROOT, ROOT_INO, name.as_bytes(), 0o644).unwrap().ino
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 | 1).collect()
}

fn read(fs: &Fs, ino: Ino) -> Vec<u8> {
    let mut out = vec![0xa5; fs.getattr(ino).unwrap().size as usize];
    let n = fs.read(ino, 0, &mut out).unwrap();
    assert_eq!(n, out.len());
    out
}

fn attr(fs: &Fs, ino: Ino) -> Attr {
    fs.getattr(ino).unwrap()
}

fn truncate(fs: &Fs, ino: Ino, size: u64) {
    fs.setattr(ROOT, ino, SetAttr::default().size(Some(size))).unwrap();
}

fn close(fs: &Fs, dev: &Arc<MemoryDevice>) {
    fs.close().unwrap();
    let report =
        check(dev.clone(), None, &CheckOptions::default().max_problems(10).data(true).jobs(1), &|_, _, _| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn what_is_allocated_ahead_is_there_and_reads_as_zeros() {
    let dev = fresh(64 << 20);
    let fs = mount(&dev);
    let ino = file(&fs, "f");
    fs.fallocate(ROOT, ino, ALLOCATE, 1000, 9000).unwrap();
    assert_eq!((attr(&fs, ino).size, attr(&fs, ino).blocks), (10_000, 20));
    assert_eq!(read(&fs, ino), vec![0; 10_000]);
    assert!(matches!(fs.seek_data(ino, 0), Err(Error::NoDataBeyond)));
    // Behind the end.
    fs.fallocate(ROOT, ino, AHEAD, 0, 100 << 10).unwrap();
    assert_eq!((attr(&fs, ino).size, attr(&fs, ino).blocks), (10_000, 200));
    // Writing into it takes nothing more, and where nothing was written it stays a hole for those who ask.
    let free = fs.statfs().free;
    fs.write(ROOT, ino, 5000, &bytes(1, 100)).unwrap();
    assert_eq!(fs.seek_data(ino, 0).unwrap(), 4096);
    fs.sync().unwrap();
    assert_eq!(fs.statfs().free, free);
    assert_eq!((fs.seek_data(ino, 0).unwrap(), fs.seek_hole(ino, 4096).unwrap()), (4096, 5 << 10));
    let mut want = vec![0; 10_000];
    want[5000..5100].copy_from_slice(&bytes(1, 100));
    assert_eq!(read(&fs, ino), want);
    close(&fs, &dev);
    let fs = mount(&dev);
    assert_eq!(read(&fs, ino), want);
    assert_eq!(attr(&fs, ino).blocks, 200);
    // Cutting the file, even to its own size, gives the rest back.
    truncate(&fs, ino, 10_000);
    assert_eq!(attr(&fs, ino).blocks, 20);
    fs.fallocate(ROOT, ino, AHEAD, 0, 100 << 10).unwrap();
    truncate(&fs, ino, 3000);
    assert_eq!(attr(&fs, ino).blocks, 6);
    close(&fs, &dev);
}

#[test]
fn a_full_device_is_told_at_once_and_what_was_allocated_can_be_written() {
    let dev = fresh(16 << 20);
    let fs = mount(&dev);
    let (a, b) = (file(&fs, "a"), file(&fs, "b"));
    let s = fs.statfs();
    let frag = u64::from(s.frag_size);
    let (free, all) = (s.available * frag, s.free * frag);
    assert!(matches!(fs.fallocate(USER, a, ALLOCATE, 0, free + frag), Err(Error::NoSpace)));
    assert_eq!((attr(&fs, a).size, attr(&fs, a).blocks), (0, 0));
    assert!(matches!(fs.fallocate(ROOT, a, ALLOCATE, 0, all + frag), Err(Error::NoSpace)));
    fs.fallocate(USER, a, ALLOCATE, 0, free).unwrap();
    assert_eq!(attr(&fs, a).blocks * 512, free);
    assert!(matches!(fs.write(USER, b, 0, &bytes(2, 5000)), Err(Error::NoSpace)));
    let data = bytes(3, 1 << 20);
    for i in 0..free >> 20 {
        assert_eq!(fs.write(USER, a, i << 20, &data).unwrap(), data.len());
        fs.sync().unwrap();
    }
    // What is punched out can be used by others.
    fs.fallocate(USER, a, Fallocate::PunchHole, 0, 8192).unwrap();
    fs.write(USER, b, 0, &bytes(2, 5000)).unwrap();
    close(&fs, &dev);
}

#[test]
fn a_small_file_that_is_allocated_ahead_lies_in_the_group_of_its_directory() {
    let dev = fresh(64 << 20);
    let fs = mount(&dev);
    let mut inos = Vec::new();
    for i in 0..40 {
        let ino = file(&fs, &format!("f{i}"));
        fs.fallocate(ROOT, ino, ALLOCATE, 0, 3000).unwrap();
        fs.write(ROOT, ino, 0, &bytes(i, 2500)).unwrap();
        inos.push(ino);
    }
    close(&fs, &dev);
    let fs = mount(&dev);
    let reads = |fs: &Fs| fs.stats().device.kinds.values().map(|k| k.read_requests).sum::<u64>();
    let before = reads(&fs);
    inos.iter().enumerate().for_each(|(i, ino)| assert_eq!(read(&fs, *ino)[..2500], bytes(i as u64, 2500)));
    let requests = reads(&fs) - before;
    assert!(requests <= 10, "{requests} requests for 40 files");
    fs.close().unwrap();
}

#[test]
fn ranges_that_are_not_possible_are_refused() {
    let dev = fresh(64 << 20);
    let fs = mount(&dev);
    let ino = file(&fs, "f");
    fs.write(ROOT, ino, 0, &bytes(1, 20_000)).unwrap();
    let before = read(&fs, ino);
    let invalid = |what, offset, len| {
        let e = fs.fallocate(ROOT, ino, what, offset, len).unwrap_err();
        assert!(matches!(e, Error::Invalid(_)), "{what:?} {offset} {len}: {e}");
    };
    invalid(ALLOCATE, 0, 0);
    invalid(Fallocate::Collapse, 100, 4096);
    invalid(Fallocate::Collapse, 4096, 100);
    invalid(Fallocate::Collapse, 16_384, 4096);
    invalid(Fallocate::Insert, 20_480, 4096);
    invalid(Fallocate::Insert, 4096, 5000);
    for (what, offset, len) in [(ALLOCATE, u64::MAX - 5, 10), (ZERO, 1, i64::MAX as u64), (AHEAD, 1 << 63, 1)] {
        assert!(matches!(fs.fallocate(ROOT, ino, what, offset, len), Err(Error::FileTooLarge)));
    }
    assert!(matches!(fs.fallocate(ROOT, ROOT_INO, ALLOCATE, 0, 1), Err(Error::IsDir)));
    let overlap = fs.copy_range(ROOT, ino, 0, ino, 5000, 5001).unwrap_err();
    assert!(matches!(overlap, Error::Invalid(_)));
    assert_eq!(read(&fs, ino), before);
    close(&fs, &dev);
}

/// Gaps and ranges in a file of hundreds of extents, so that its map is a tree.
#[test]
fn a_file_of_many_extents_is_collapsed_and_opened() {
    let dev = fresh(128 << 20);
    let fs = mount(&dev);
    let ino = file(&fs, "f");
    let block = 4096;
    let mut want = vec![0; 1200 * block];
    // Every other block, in a scattered order, each with a place of its own.
    for i in 0..600 {
        let at = (i * 7 % 600) * 2 * block;
        want[at..at + block].copy_from_slice(&bytes(i as u64, block));
        fs.write(ROOT, ino, at as u64, &want[at..at + block]).unwrap();
        if i % 10 == 0 {
            fs.sync().unwrap();
        }
    }
    truncate(&fs, ino, want.len() as u64);
    for (at, len) in [(100, 301), (0, 1), (2, 3), (500, 2)] {
        fs.fallocate(ROOT, ino, Fallocate::Collapse, at * 4096, len * 4096).unwrap();
        want.drain(at as usize * block..(at + len) as usize * block);
        assert!(read(&fs, ino) == want, "collapsed {at} {len}");
    }
    for (at, len) in [(3, 5), (0, 100), (400, 1), (333, 7)] {
        fs.fallocate(ROOT, ino, Fallocate::Insert, at * 4096, len * 4096).unwrap();
        let at = at as usize * block;
        want.splice(at..at, vec![0; len as usize * block]);
        assert!(read(&fs, ino) == want, "opened {at} {len}");
    }
    close(&fs, &dev);
    let fs = mount(&dev);
    assert!(read(&fs, ino) == want);
    // A gap in the middle of one long extent.
    let long = file(&fs, "long");
    let mut want = bytes(9, 2 << 20);
    fs.write(ROOT, long, 0, &want).unwrap();
    fs.fallocate(ROOT, long, Fallocate::Insert, 1 << 20, 8192).unwrap();
    want.splice(1 << 20..1 << 20, vec![0; 8192]);
    assert!(read(&fs, long) == want);
    close(&fs, &dev);
}

/// Found by `campaign --only log`, seed 18030219: a copy to an append-only file ended where a hole did.
#[test]
fn a_copy_with_holes_is_appended_whole() {
    let dev = fresh(16 << 20);
    let fs = mount(&dev);
    let (a, b) = (file(&fs, "a"), file(&fs, "b"));
    for at in [8192, 40_000, 200_000] {
        fs.write(ROOT, a, at, &bytes(at, 5000)).unwrap();
    }
    truncate(&fs, a, 300_000);
    fs.write(ROOT, b, 0, &bytes(1, 10_000)).unwrap();
    fs.set_flags(ROOT, b, FLAG_APPEND).unwrap();
    let want = [read(&fs, b), read(&fs, a)[4000..].to_vec()].concat();
    assert_eq!(fs.copy_range(ROOT, a, 4000, b, 10_000, u64::MAX / 4).unwrap(), 296_000);
    assert!(read(&fs, b) == want);
    fs.sync().unwrap();
    assert!(attr(&fs, b).blocks <= attr(&fs, a).blocks + 64, "holes stay: {:?}", attr(&fs, b));
    let again = fs.copy_range(ROOT, a, 0, b, 10_000, 5000);
    assert!(matches!(again, Err(Error::NotPermitted)), "{again:?}");
    close(&fs, &dev);
}

#[test]
fn a_copy_keeps_holes_and_reads_only_data() {
    let dev = fresh(64 << 20);
    let fs = mount(&dev);
    let (a, b) = (file(&fs, "a"), file(&fs, "b"));
    fs.write(ROOT, a, 100_000, &bytes(1, 5000)).unwrap();
    fs.write(ROOT, a, 9_000_000, &bytes(2, 70_000)).unwrap();
    truncate(&fs, a, 20_000_000);
    fs.sync().unwrap();
    assert_eq!(fs.copy_range(ROOT, a, 0, b, 0, u64::MAX / 4).unwrap(), 20_000_000);
    assert!(read(&fs, a) == read(&fs, b));
    fs.sync().unwrap();
    assert!(attr(&fs, b).blocks <= attr(&fs, a).blocks + 16, "{:?} {:?}", attr(&fs, a), attr(&fs, b));
    // Where both have holes they stay, also inside the target and where it has space already.
    let used = |ino| {
        fs.sync().unwrap();
        attr(&fs, ino).blocks
    };
    let before = (used(a), used(b));
    let times = attr(&fs, b).mtime;
    assert_eq!(fs.copy_range(ROOT, a, 0, b, 0, 20_000_000).unwrap(), 20_000_000);
    assert_eq!(fs.copy_range(ROOT, a, 1_000_000, b, 1_000_000, 1_000_000).unwrap(), 1_000_000);
    assert!(read(&fs, a) == read(&fs, b) && attr(&fs, b).mtime > times);
    fs.fallocate(ROOT, b, Fallocate::Allocate { keep_size: false }, 2_000_000, 50_000).unwrap();
    assert_eq!(fs.copy_range(ROOT, a, 1_900_000, b, 1_900_000, 1_000_000).unwrap(), 1_000_000);
    assert!(read(&fs, a) == read(&fs, b));
    assert!(used(b) >= before.1 + 90 && used(b) <= before.1 + 120, "{} {before:?}", used(b));
    // The times that this sets are kept.
    truncate(&fs, b, 20_000_000);
    fs.sync().unwrap();
    let times = attr(&fs, b).mtime;
    assert_eq!(fs.copy_range(ROOT, a, 1_000_000, b, 1_000_000, 1_000_000).unwrap(), 1_000_000);
    let set = attr(&fs, b).mtime;
    close(&fs, &dev);
    let fs = mount(&dev);
    let (a, b) = (fs.lookup(ROOT_INO, b"a").unwrap().ino, fs.lookup(ROOT_INO, b"b").unwrap().ino);
    assert!(set > times && attr(&fs, b).mtime == set);
    // Over what is there already, holes come as zeros.
    let c = file(&fs, "c");
    fs.write(ROOT, c, 0, &bytes(3, 300_000)).unwrap();
    assert_eq!(fs.copy_range(ROOT, a, 50_000, c, 10, 100_000).unwrap(), 100_000);
    let mut want = bytes(3, 300_000);
    want[10..100_010].copy_from_slice(&read(&fs, a)[50_000..150_000]);
    assert!(read(&fs, c) == want);
    // Within a file, side by side.
    assert_eq!(fs.copy_range(ROOT, c, 0, c, 100_000, 100_000).unwrap(), 100_000);
    want.copy_within(0..100_000, 100_000);
    assert!(read(&fs, c) == want);
    assert_eq!(fs.copy_range(ROOT, c, 300_000, a, 0, 10).unwrap(), 0);
    close(&fs, &dev);
}

/// While one thread copies a range that ends in a hole, another appends behind it: what was appended stays.
#[test]
fn copying_a_hole_never_cuts_off_what_another_thread_appends() {
    const END: u64 = 100_000;
    let dev = fresh(64 << 20);
    let fs = mount(&dev);
    let source = fs.create(ROOT, ROOT_INO, b"source", 0o644).unwrap().ino;
    fs.write(ROOT, source, 0, &[1; 10_000]).unwrap();
    fs.setattr(ROOT, source, SetAttr::default().size(Some(END))).unwrap();
    for round in 0..300 {
        let target = fs.create(ROOT, ROOT_INO, format!("{round}").as_bytes(), 0o644).unwrap().ino;
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                start.wait();
                assert_eq!(fs.copy_range(ROOT, source, 0, target, 0, END).unwrap(), END);
            });
            start.wait();
            fs.write(ROOT, target, END, b"appended").unwrap();
        });
        assert_eq!(fs.getattr(target).unwrap().size, END + 8, "round {round}");
        fs.unlink(ROOT_INO, format!("{round}").as_bytes()).unwrap();
        fs.forget(target, 1);
    }
    close(&fs, &dev);
}
