//! Large things: a petabyte, a file of many extents, a directory of many names.

use cffs::check::{CheckOptions, check};
use cffs::device::{Device, MemoryDevice};
use cffs::{Caller, Fs, MkfsOptions, MountOptions, ROOT_INO, SetAttr, mkfs, path};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;

fn fresh(size: u64) -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(size));
    mkfs(&*dev, None, &MkfsOptions::default()).expect("mkfs");
    dev
}

fn mount(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
    let opts = MountOptions::default().background(false).cache_bytes(64 << 20);
    Fs::open(dev.clone() as Arc<dyn Device>, None, opts).expect("mount")
}

fn assert_clean(dev: &Arc<MemoryDevice>) {
    let report = check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).expect("check");
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

#[test]
fn a_petabyte_costs_what_is_in_it() {
    let dev = fresh(1 << 50);
    for round in 0..2 {
        let fs = mount(&dev);
        assert_eq!(fs.statfs().total, (1 << 50) / 1024);
        path::write_file(&fs, ROOT, format!("/file{round}").as_bytes(), &[7; 5000]).unwrap();
        fs.close().unwrap();
    }
    let fs = mount(&dev);
    assert_eq!(path::read_file(&fs, b"/file0").unwrap(), [7; 5000]);
    drop(fs);
    let resident = dev.allocated_bytes();
    assert!(resident < 100 << 20, "{resident} bytes of the device were written");
    assert_clean(&dev);
}

#[test]
fn a_file_of_100_000_extents_reads_back_and_goes_away() {
    const EXTENTS: u64 = 100_000;
    let dev = fresh(1 << 30);
    let fs = mount(&dev);
    let before = fs.statfs().free;
    let f = fs.create(ROOT, ROOT_INO, b"holes", 0o644).unwrap();
    // One fragment in each block, the rest a hole: no two of them can be one extent.
    let content = |i: u64| [(i % 251) as u8 + 1; 1024];
    for i in 0..EXTENTS {
        let at = (i * 7919 % EXTENTS) * 4096;
        fs.write(ROOT, f.ino, at, &content(at / 4096)).unwrap();
    }
    fs.sync().unwrap();
    fs.drop_caches();
    let mut buf = [0u8; 4096];
    for i in (0..EXTENTS).rev() {
        let n = fs.read(f.ino, i * 4096, &mut buf).unwrap();
        assert_eq!(&buf[..1024], &content(i), "extent {i}");
        assert!(buf[1024..n].iter().all(|b| *b == 0), "hole behind extent {i}");
    }
    fs.close().unwrap();
    assert_clean(&dev);
    let fs = mount(&dev);
    let a = fs.lookup(ROOT_INO, b"holes").unwrap();
    fs.setattr(ROOT, a.ino, SetAttr::default().size(Some(50_000 * 4096))).unwrap();
    assert_eq!(fs.read(a.ino, 49_999 * 4096, &mut buf).unwrap(), 4096);
    assert_eq!(&buf[..1024], &content(49_999));
    fs.unlink(ROOT_INO, b"holes").unwrap();
    fs.forget(a.ino, 1);
    fs.sync().unwrap();
    assert_eq!(fs.statfs().free, before);
    fs.close().unwrap();
    assert_clean(&dev);
}

#[test]
fn a_name_in_a_large_directory_is_found_with_three_blocks() {
    let dev = fresh(1 << 30);
    let fs = mount(&dev);
    let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap();
    let names = 200_000;
    for i in 0..names {
        let a = fs.create(ROOT, dir.ino, format!("name{i}").as_bytes(), 0o644).unwrap();
        fs.forget(a.ino, 1);
    }
    fs.close().unwrap();
    let fs = mount(&dev);
    let dir = fs.lookup(ROOT_INO, b"d").unwrap();
    for i in [0, 4711, names - 1] {
        fs.drop_caches();
        let before = fs.stats().cache.misses;
        let a = fs.lookup(dir.ino, format!("name{i}").as_bytes()).unwrap();
        fs.forget(a.ino, 1);
        let misses = fs.stats().cache.misses - before;
        assert!(misses <= 3, "name{i}: {misses} blocks were read");
    }
    assert!(fs.lookup(dir.ino, b"name-1").is_err());
    fs.close().unwrap();
    assert_clean(&dev);
}
