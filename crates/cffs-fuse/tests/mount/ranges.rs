//! fallocate, copy_file_range and holes, through a real mount.

use crate::common::{Image, can_mount};
use rustix::fs::{FallocateFlags as F, SeekFrom, fallocate};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

fn open(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 | 1).collect()
}

#[test]
fn fallocate_does_what_the_manual_says() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let path = m.path("f");
    let f = open(&path);
    fallocate(&f, F::empty(), 0, 50_000).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 50_000);
    assert!(f.metadata().unwrap().blocks() * 512 >= 50_000);
    fallocate(&f, F::KEEP_SIZE, 0, 200_000).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 50_000);
    assert!(f.metadata().unwrap().blocks() * 512 >= 200_000);
    let mut want = bytes(1, 300_000);
    f.write_all_at(&want, 0).unwrap();
    fallocate(&f, F::PUNCH_HOLE | F::KEEP_SIZE, 10_000, 100_000).unwrap();
    want[10_000..110_000].fill(0);
    assert!(fs::read(&path).unwrap() == want);
    assert!(f.metadata().unwrap().blocks() * 512 < 210_000);
    fallocate(&f, F::ZERO_RANGE, 290_001, 50_000).unwrap();
    want.truncate(290_001);
    want.resize(340_001, 0);
    assert!(fs::read(&path).unwrap() == want);
    fallocate(&f, F::ZERO_RANGE | F::KEEP_SIZE, 120_000, 10).unwrap();
    want[120_000..120_010].fill(0);
    assert!(fs::read(&path).unwrap() == want);
    // A mapping sees what a hole has taken away.
    f.write_all_at(&bytes(2, 8192), 120_000).unwrap();
    want[120_000..128_192].copy_from_slice(&bytes(2, 8192));
    assert!(fs::read(&path).unwrap() == want);
    // Linux refuses these two by itself for FUSE.
    assert_eq!(fallocate(&f, F::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    assert_eq!(fallocate(&f, F::INSERT_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    assert_eq!(fallocate(&f, F::PUNCH_HOLE, 0, 4096), Err(Errno::OPNOTSUPP));
    assert_eq!(fallocate(&f, F::empty(), 0, 0), Err(Errno::INVAL));
    let much = rustix::fs::statvfs(m.dir()).map(|s| s.f_blocks * s.f_frsize).unwrap();
    assert_eq!(fallocate(&f, F::KEEP_SIZE, 0, much), Err(Errno::NOSPC));
    drop(f);
    m.unmount();
    let m = image.mount();
    assert!(fs::read(m.path("f")).unwrap() == want);
    m.unmount();
}

#[test]
fn times_and_set_id_bits_follow_fallocate() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let f = open(&m.path("f"));
    let stamp = |f: &File| {
        let a = f.metadata().unwrap();
        ((a.mtime(), a.mtime_nsec()), (a.ctime(), a.ctime_nsec()))
    };
    for mode in [F::empty(), F::KEEP_SIZE, F::PUNCH_HOLE | F::KEEP_SIZE, F::ZERO_RANGE] {
        let before = stamp(&f);
        fallocate(&f, mode, 100, 10_000).unwrap();
        let after = stamp(&f);
        assert!(after.0 > before.0 && after.1 > before.1, "{mode:?}");
    }
    drop(f);
    m.unmount();
}

#[test]
fn holes_are_found() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let f = open(&m.path("f"));
    fallocate(&f, F::empty(), 0, 1 << 20).unwrap();
    assert_eq!(rustix::fs::seek(&f, SeekFrom::Data(0)), Err(Errno::NXIO));
    f.write_all_at(b"here", 500_000).unwrap();
    for _ in 0..2 {
        let data = rustix::fs::seek(&f, SeekFrom::Data(0)).unwrap();
        assert!((499_000 - 4096..=500_000).contains(&data), "{data}");
        let hole = rustix::fs::seek(&f, SeekFrom::Hole(data)).unwrap();
        assert!((500_004..500_004 + 8192).contains(&hole), "{hole}");
        f.sync_all().unwrap();
    }
    drop(f);
    m.unmount();
}

#[test]
fn copies_are_made_by_the_file_system() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let data = bytes(3, 3_000_000);
    fs::write(m.path("a"), &data).unwrap();
    let (a, b) = (open(&m.path("a")), open(&m.path("b")));
    let before = m.messages();
    let mut done = 0;
    while done < data.len() {
        let (mut from, mut to) = (done as u64, done as u64 + 10);
        let n = rustix::fs::copy_file_range(&a, Some(&mut from), &b, Some(&mut to), data.len() - done).unwrap();
        assert!(n > 0);
        done += n;
    }
    let after = m.messages();
    assert!(after.since(&before, "copy_file_range") >= 1);
    assert_eq!(after.since(&before, "write"), 0);
    let copy = fs::read(m.path("b")).unwrap();
    assert!(copy[10..] == data && copy[..10] == [0; 10]);
    // What the kernel has cached of the target is not shown any more.
    let mut to = 1000;
    rustix::fs::copy_file_range(&a, Some(&mut 0), &b, Some(&mut to), 5000).unwrap();
    assert!(fs::read(m.path("b")).unwrap()[1000..6000] == data[..5000]);
    let overlap = rustix::fs::copy_file_range(&a, Some(&mut 0), &a, Some(&mut 100), 5000);
    assert_eq!(overlap, Err(Errno::INVAL));
    assert_eq!(rustix::fs::copy_file_range(&a, Some(&mut 3_000_000), &b, Some(&mut 0), 5000), Ok(0));
    drop((a, b));
    m.unmount();
}
