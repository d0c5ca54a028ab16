//! What the superblock says of long free runs: kept over mounts, and no more than a hint.

use crate::common::observed::{Observed, Seen};
use crate::common::plain::{clean, fresh, mount};
use cffs::device::{Device, IoKind, MemoryDevice};
use cffs::format::LongestRuns;
use cffs::{Caller, Error, Fallocate, Fs, Geometry, MkfsOptions, ROOT_INO, Shutdown, Superblock};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const ROOT: Caller = Caller::ROOT;
const SIZE: u64 = 160 << 20;
const FILE: usize = 4096;

/// Fills a file system whose only long free run has 4 MiB. There are short ones everywhere.
fn nearly_full() -> (Arc<MemoryDevice>, Superblock) {
    nearly_full_with(&[(6, 4 << 20)])
}

/// The same with long free runs of these lengths, so many eighths of the device from its beginning.
fn nearly_full_with(long: &[(u64, u64)]) -> (Arc<MemoryDevice>, Superblock) {
    let dev = fresh(SIZE, &MkfsOptions::default().group_size(64 << 10).reserve_bp(0));
    let fs = mount(&dev);
    let mib = vec![7; 1 << 20];
    // What comes free first, for the blocks that describe the holes.
    let spare = fs.create(ROOT, ROOT_INO, b"spare", 0o600).unwrap().ino;
    assert_eq!(fs.write(ROOT, spare, 0, &mib[..512 << 10]).unwrap(), 512 << 10);
    fs.forget(spare, 1);
    fs.sync().unwrap();
    let big = fs.create(ROOT, ROOT_INO, b"big", 0o600).unwrap().ino;
    let mut end = 0;
    while fs.write(ROOT, big, end, &mib).is_ok_and(|n| n == mib.len()) {
        end += mib.len() as u64;
    }
    fs.unlink(ROOT_INO, b"spare").unwrap();
    fs.sync().unwrap();
    for (eighths, len) in long {
        fs.fallocate(ROOT, big, Fallocate::PunchHole, end / 8 * eighths, *len).unwrap();
    }
    for at in (0..end).step_by(mib.len()) {
        fs.fallocate(ROOT, big, Fallocate::PunchHole, at, 8192).unwrap();
    }
    fs.forget(big, 1);
    fs.close().unwrap();
    let sb = fs.superblock();
    drop(fs);
    clean(&dev, "filled");
    (dev, sb)
}

/// The same with another hint.
fn with_hint(dev: &MemoryDevice, sb: &Superblock, hint: LongestRuns) -> Arc<MemoryDevice> {
    let copy = Arc::new(MemoryDevice::new(SIZE));
    let mut all = vec![0; SIZE as usize];
    dev.read_at(IoKind::Data, 0, &mut all).unwrap();
    copy.write_at(IoKind::Data, 0, &all).unwrap();
    let sb = Superblock { longest_runs: hint, ..sb.clone() };
    copy.write_at(IoKind::Super, 0, &sb.encode()).unwrap();
    copy
}

/// Makes files until there is no more space, or so many. How many there are.
fn make_files(fs: &Fs, most: usize) -> usize {
    let dir = fs.mkdir(ROOT, ROOT_INO, b"dir", 0o700).unwrap().ino;
    let made = (0..most).take_while(|n| {
        let name = format!("file{n}");
        let ino = match fs.create(ROOT, dir, name.as_bytes(), 0o600) {
            Ok(attr) => attr.ino,
            Err(Error::NoSpace) => return false,
            Err(e) => panic!("{e}"),
        };
        let written = fs.write(ROOT, ino, 0, &[1; FILE]);
        fs.forget(ino, 1);
        matches!(written, Ok(FILE))
    });
    let made = made.count();
    fs.forget(dir, 1);
    made
}

/// The allocation groups whose bitmaps are read for 500 new files.
fn looked_at(dev: &Arc<MemoryDevice>, g: Geometry) -> BTreeSet<u64> {
    let read = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = read.clone();
    let observed = Observed::new(dev.clone(), move |what| {
        if let Seen::Read(_, offset, len) = what {
            let bitmaps = (0..g.ag_count).filter(|ag| {
                let at = g.bitmap_block(*ag, 0) << g.block_shift;
                (offset..offset + len as u64).contains(&at)
            });
            seen.lock().unwrap().extend(bitmaps);
        }
    });
    let fs = mount(&observed);
    assert_eq!(make_files(&fs, 500), 500);
    fs.sync().unwrap();
    let read = std::mem::take(&mut *read.lock().unwrap());
    fs.close().unwrap();
    clean(dev, "with new files");
    read
}

#[test]
fn who_looks_for_a_long_run_reads_no_bitmap_that_has_none() {
    let (dev, sb) = nearly_full();
    let g = Geometry::new(&sb).unwrap();
    let bounds: Vec<Option<u64>> = (0..g.ag_count).map(|ag| sb.longest_runs.bound(ag, g.ag_count)).collect();
    let long = |bound: &Option<u64>| bound.is_some_and(|groups| groups > 32);
    assert!(bounds.iter().all(Option::is_some), "{bounds:?}");
    assert!((1..=2).contains(&bounds.iter().filter(|bound| long(bound)).count()), "{bounds:?}");
    let unknown = looked_at(&with_hint(&dev, &sb, LongestRuns::UNKNOWN), g);
    let known = looked_at(&with_hint(&dev, &sb, sb.longest_runs), g);
    let needless = |read: &BTreeSet<u64>| read.iter().filter(|ag| **ag > 0 && !long(&bounds[**ag as usize])).count();
    assert!(needless(&unknown) > 2, "{unknown:?}, {bounds:?}");
    assert_eq!(needless(&known), 0, "{known:?}, {bounds:?}");
}

#[test]
fn where_two_runs_are_needed_no_bitmap_is_read_that_has_shorter_ones() {
    let (dev, sb) = nearly_full_with(&[(3, 1280 << 10), (6, 1280 << 10)]);
    let g = Geometry::new(&sb).unwrap();
    let bounds: Vec<Option<u64>> = (0..g.ag_count).map(|ag| sb.longest_runs.bound(ag, g.ag_count)).collect();
    let long = |ag: &u64| bounds[*ag as usize].is_some_and(|groups| groups > 16);
    let all: BTreeSet<u64> = (0..g.ag_count).filter(|ag| long(ag)).collect();
    assert!(all.len() == 2 && bounds.len() > 4, "{bounds:?}");
    let read = looked_at(&dev, g);
    assert!(all.is_subset(&read) && read.iter().all(|ag| *ag == 0 || long(ag)), "{read:?}, {bounds:?}");
}

#[test]
fn a_mount_that_looks_at_nothing_keeps_what_is_known_and_a_crash_forgets_it() {
    let (dev, sb) = nearly_full();
    let fs = mount(&dev);
    assert_eq!(fs.superblock().longest_runs, LongestRuns::UNKNOWN, "what changes from now on is not in the superblock");
    fs.close().unwrap();
    assert_eq!(fs.superblock().longest_runs, sb.longest_runs);
    fs.close().unwrap();
    let fs = mount(&dev);
    fs.shutdown(Shutdown::NoLogFlush).unwrap();
    drop(fs);
    let fs = mount(&dev);
    fs.close().unwrap();
    assert_eq!(fs.superblock().longest_runs, LongestRuns::UNKNOWN);
}

#[test]
fn a_wrong_hint_keeps_nobody_from_what_was_never_used() {
    let options = MkfsOptions::default().group_size(64 << 10).reserve_bp(0);
    let made = [LongestRuns::UNKNOWN, LongestRuns([0x11; 128])].map(|hint| {
        let dev = fresh(SIZE, &options);
        let fs = mount(&dev);
        assert_eq!(make_files(&fs, 500), 500);
        fs.close().unwrap();
        let sb = fs.superblock();
        let g = Geometry::new(&sb).unwrap();
        let dev = with_hint(&dev, &sb, hint);
        let fs = mount(&dev);
        let dir = fs.mkdir(ROOT, ROOT_INO, b"more", 0o700).unwrap().ino;
        let mut places = BTreeSet::new();
        for n in 0..12_000 {
            let ino = fs.create(ROOT, dir, format!("file{n}").as_bytes(), 0o600).unwrap().ino;
            fs.write(ROOT, ino, 0, &[1; FILE]).unwrap();
            if n % 1000 == 999 {
                fs.fsync(ino, false).unwrap();
                places.extend(fs.pieces(ino).unwrap().iter().map(|piece| g.ag_of(piece.start >> g.block_shift)));
            }
            fs.forget(ino, 1);
        }
        fs.forget(dir, 1);
        fs.close().unwrap();
        clean(&dev, "with more files");
        places
    });
    assert!(made[0].contains(&0), "{made:?}");
    assert!(!made[1].is_empty() && !made[1].contains(&0), "the first is said to have no run: {made:?}");
}

#[test]
fn a_wrong_hint_costs_no_space() {
    let (dev, sb) = nearly_full();
    let made: Vec<usize> = [sb.longest_runs, LongestRuns([0x11; 128]), LongestRuns([0xff; 128])]
        .into_iter()
        .map(|hint| {
            let dev = with_hint(&dev, &sb, hint);
            let fs = mount(&dev);
            let made = make_files(&fs, usize::MAX);
            fs.close().unwrap();
            clean(&dev, "filled with another hint");
            made
        })
        .collect();
    assert!(made[0] > 1000 && made.iter().all(|n| n.abs_diff(made[0]) * 100 < made[0]), "{made:?}");
}
