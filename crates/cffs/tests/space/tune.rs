//! Settings changed after mkfs, mounted and not, and free space given back to the device.

use crate::common::plain::{clean, fresh, mount};
use cffs::check::repair::{RepairOptions, repair};
use cffs::device::{CountingDevice, Device, FileDevice, IoKind, MemoryDevice, OpenMode};
use cffs::mkfs::read_superblock;
use cffs::{Caller, Error, Fs, MkfsOptions, MountOptions, ROOT_INO, TrimRange, Tune, mkfs, path, tune};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;
const ROOT: Caller = Caller::ROOT;
const USER: Caller = Caller { uid: 1000, gid: 1000 };

fn options() -> MountOptions {
    MountOptions::default().background(false)
}

#[test]
fn settings_change_under_a_mount_and_stay() {
    let dev = fresh(48 * MIB, &MkfsOptions::default().reserve_bp(0).label("before".into()));
    let fs = mount(&dev);
    let s = fs.statfs();
    assert_eq!(s.available, s.free);
    let change = Tune::default()
        .label(Some("after".into()))
        .reserve_bp(Some(2500))
        .mount_options(Some("noatime,commit=30".into()))
        .uuid(None);
    let (before, after) = fs.tune(&change).unwrap();
    assert_eq!((before.label_str(), after.label_str()), ("before".into(), "after".into()));
    let s = fs.statfs();
    assert_eq!(s.free - s.available, s.total / 4, "the reserve counts at once");
    // What the reserve keeps back, only the privileged get.
    let mut refused = 0;
    for i in 0..200 {
        match path::write_file(&fs, USER, format!("/u{i}").as_bytes(), &[1; 200_000]) {
            Ok(_) => {}
            Err(Error::NoSpace) => refused += 1,
            Err(e) => panic!("{e}"),
        }
        fs.sync().unwrap();
    }
    assert!(refused > 20, "{refused}");
    path::write_file(&fs, ROOT, b"/root", &[1; 200_000]).unwrap();
    // And when it is made smaller, everybody gets it again.
    fs.tune(&Tune::default().reserve_bp(Some(0))).unwrap();
    path::write_file(&fs, USER, b"/user", &[1; 200_000]).unwrap();
    let unchanged = fs.tune(&Tune::default()).unwrap();
    assert_eq!(unchanged.0, unchanged.1);
    fs.close().unwrap();
    assert!(matches!(fs.tune(&change), Err(Error::ReadOnly)));
    let sb = read_superblock(&*dev).unwrap();
    assert_eq!((sb.label_str(), sb.reserve_bp), ("after".into(), 0));
    assert_eq!(sb.mount_options_str(), "noatime,commit=30");
    clean(&dev, "afterwards");
}

#[test]
fn impossible_settings_change_nothing() {
    let dev = fresh(48 * MIB, &MkfsOptions::default());
    let before = read_superblock(&*dev).unwrap();
    let bad = [
        Tune::default().label(Some("x".repeat(65))),
        Tune::default().label(Some("a\0b".into())),
        Tune::default().reserve_bp(Some(5001)).label(Some("good".into())),
        Tune::default().mount_options(Some("x".repeat(129))),
        Tune::default().uuid(Some([0; 16])),
    ];
    let fs = mount(&dev);
    for t in &bad {
        assert!(matches!(fs.tune(t), Err(Error::Invalid(_))), "{t:?}");
    }
    assert!(matches!(fs.tune(&Tune::default().uuid(Some([1; 16]))), Err(Error::Busy(_))));
    fs.close().unwrap();
    for t in &bad {
        assert!(matches!(tune(&*dev, t), Err(Error::Invalid(_))), "{t:?}");
    }
    let after = read_superblock(&*dev).unwrap();
    assert_eq!(before.label, after.label);
    assert_eq!((before.reserve_bp, before.uuid), (after.reserve_bp, after.uuid));
}

#[test]
fn a_new_uuid_keeps_the_metadata_readable() {
    let dev = fresh(48 * MIB, &MkfsOptions::default());
    let fs = mount(&dev);
    path::write_file(&fs, ROOT, b"/file", b"contents").unwrap();
    fs.sync().unwrap();
    // As after a crash: the log still has to be replayed.
    drop(fs);
    let (before, after) = tune(&*dev, &Tune::default().uuid(Some([7; 16]))).unwrap();
    assert_eq!((after.uuid, after.fsid()), ([7; 16], before.fsid()));
    assert_eq!(after.feature_names(), ["metadata-uuid"]);
    clean(&dev, "afterwards");
    let fs = mount(&dev);
    assert_eq!(path::read_file(&fs, b"/file").unwrap(), b"contents");
    path::write_file(&fs, ROOT, b"/other", b"more").unwrap();
    fs.grow(Some(80 * MIB)).unwrap();
    fs.close().unwrap();
    clean(&dev, "afterwards");
    // A second one, and back to the first.
    tune(&*dev, &Tune::default().uuid(Some([9; 16]))).unwrap();
    clean(&dev, "afterwards");
    let (_, after) = tune(&*dev, &Tune::default().uuid(Some(before.uuid))).unwrap();
    assert!(after.feature_names().is_empty());
    clean(&dev, "afterwards");
    assert_eq!(path::read_file(&mount(&dev), b"/other").unwrap(), b"more");
}

/// The copies of the superblock do not follow what is tuned, so a repair must not take the primary for a foreign one.
#[test]
fn a_repair_keeps_what_was_tuned() {
    let dev = fresh(48 * MIB, &MkfsOptions::default());
    let change = Tune::default().label(Some("mail".into())).reserve_bp(Some(100)).uuid(Some([7; 16]));
    let (_, tuned) = tune(&*dev, &change.mount_options(Some("noatime".into()))).unwrap();
    // A bit of the bitmap of allocation group 0.
    let mut sector = [0; 4096];
    dev.read_at(IoKind::Meta, 2 * 4096, &mut sector).unwrap();
    sector[100] ^= 1;
    dev.write_at(IoKind::Meta, 2 * 4096, &sector).unwrap();
    let done = repair(dev.clone(), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {}).unwrap();
    assert_eq!(done.actions.len(), 1, "{:?}", done.actions);
    assert_eq!(read_superblock(&*dev).unwrap(), tuned);
    clean(&dev, "afterwards");
}

#[test]
fn trim_gives_back_all_that_is_free_and_nothing_else() {
    let dev = Arc::new(MemoryDevice::new(48 * MIB));
    // A device that was used before.
    for at in (0..48 * MIB).step_by(MIB as usize) {
        dev.write_at(cffs::device::IoKind::Data, at, &vec![0xEE; MIB as usize]).unwrap();
    }
    mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    let fs = mount(&dev);
    let data: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
    for name in ["/a", "/b", "/c"] {
        path::write_file(&fs, ROOT, name.as_bytes(), &data).unwrap();
    }
    fs.sync().unwrap();
    fs.unlink(1, b"b").unwrap();
    let before = dev.allocated_bytes();
    let bytes = fs.trim(TrimRange::default()).unwrap();
    let s = fs.statfs();
    // All that is free, and that freed just now.
    assert_eq!(bytes, fs.stats().space[1] * u64::from(s.frag_size));
    assert!(dev.allocated_bytes() < before / 3, "{} of {before}", dev.allocated_bytes());
    assert_eq!(fs.statfs(), s, "as free as before");
    assert!(path::read_file(&fs, b"/a").unwrap() == data && path::read_file(&fs, b"/c").unwrap() == data);
    // Only long runs; only a part.
    let total = s.total * u64::from(s.frag_size);
    assert!(fs.trim(TrimRange { min_len: 8 * MIB, ..TrimRange::default() }).unwrap() < bytes);
    assert_eq!(fs.trim(TrimRange { min_len: total, ..TrimRange::default() }).unwrap(), 0);
    let half = fs.trim(TrimRange { start: 24 * MIB, ..TrimRange::default() }).unwrap();
    let other = fs.trim(TrimRange { len: 24 * MIB, ..TrimRange::default() }).unwrap();
    assert_eq!(half + other, bytes);
    assert!(matches!(fs.trim(TrimRange { start: total, ..TrimRange::default() }), Err(Error::Invalid(_))));
    for len in [0, 1, 4095] {
        assert!(matches!(fs.trim(TrimRange { len, ..TrimRange::default() }), Err(Error::Invalid(_))), "{len} bytes");
    }
    fs.trim(TrimRange { len: 4096, ..TrimRange::default() }).unwrap();
    fs.close().unwrap();
    assert!(matches!(fs.trim(TrimRange::default()), Err(Error::ReadOnly)));
    clean(&dev, "afterwards");
    let fs = mount(&dev);
    assert!(path::read_file(&fs, b"/a").unwrap() == data && path::read_file(&fs, b"/c").unwrap() == data);
}

#[test]
fn an_image_in_a_file_gets_holes() {
    let tmp = tempfile::tempdir().unwrap();
    let image = tmp.path().join("image");
    let dev = FileDevice::create(&image, 64 * MIB, OpenMode::READ_WRITE).unwrap();
    mkfs(&dev, None, &MkfsOptions::default()).unwrap();
    let fs = Fs::open(Arc::new(dev), None, options()).unwrap();
    path::write_file(&fs, ROOT, b"/large", &vec![1; 20 << 20]).unwrap();
    fs.sync().unwrap();
    let full = std::fs::metadata(&image).unwrap().blocks() * 512;
    fs.unlink(1, b"large").unwrap();
    let trimmed = fs.trim(TrimRange::default());
    if matches!(trimmed, Err(Error::Unsupported)) {
        return cffs_testenv::skipped("holes", "the file system of the temporary directory cannot punch holes");
    }
    let now = std::fs::metadata(&image).unwrap().blocks() * 512;
    assert!(now + (19 << 20) < full, "{now} of {full}");
    fs.close().unwrap();
}

#[test]
fn writers_go_on_while_it_trims() {
    let dev = Arc::new(MemoryDevice::new(32 * MIB));
    mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    let fs = Fs::open(dev.clone(), None, MountOptions::default().discard(true)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..3u8)
            .map(|t| {
                let (fs, over) = (&fs, &over);
                s.spawn(move || {
                    let mut n = 0usize;
                    while !over.load(Ordering::Relaxed) {
                        let name = format!("t{t}-{}", n % 7);
                        let data = vec![t + 1; 3_000 + n % 50 * 4_000];
                        match path::write_file(fs, USER, format!("/{name}").as_bytes(), &data) {
                            Ok(_) => assert!(path::read_file(fs, format!("/{name}").as_bytes()).unwrap() == data),
                            Err(Error::NoSpace) => {}
                            Err(e) => panic!("{e}"),
                        }
                        if n % 3 == 2 {
                            let _ = fs.unlink(1, format!("t{t}-{}", (n + 3) % 7).as_bytes());
                        }
                        if n % 20 == 19 {
                            fs.sync().unwrap();
                            fs.drop_caches();
                        }
                        n += 1;
                    }
                })
            })
            .collect();
        for _ in 0..60 {
            fs.trim(TrimRange::default()).unwrap();
        }
        over.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|w| w.join().unwrap());
    });
    fs.sync().unwrap();
    fs.drop_caches();
    for t in 0..3u8 {
        for n in 0..7 {
            if let Ok(data) = path::read_file(&fs, format!("/t{t}-{n}").as_bytes()) {
                assert!(data.iter().all(|b| *b == t + 1), "t{t}-{n}: what was in use was discarded");
            }
        }
    }
    fs.close().unwrap();
    clean(&dev, "afterwards");
}

#[test]
fn freed_space_is_discarded_once_its_removal_is_durable() {
    let dev = Arc::new(CountingDevice::new(MemoryDevice::new(48 * MIB)));
    mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    let discarded = || dev.snapshot().discard_bytes;
    let fs = Fs::open(dev.clone(), None, options().discard(true)).unwrap();
    let start = discarded();
    for i in 0..40 {
        path::write_file(&fs, ROOT, format!("/f{i}").as_bytes(), &[i; 100_000]).unwrap();
    }
    fs.sync().unwrap();
    path::write_file(&fs, ROOT, b"/stays", &[9; 300_000]).unwrap();
    fs.sync().unwrap();
    let free = fs.statfs();
    for i in 0..40 {
        fs.unlink(ROOT_INO, format!("f{i}").as_bytes()).unwrap();
    }
    assert_eq!(discarded(), start, "a crash would bring the files back");
    fs.sync().unwrap();
    let freed = (fs.statfs().free - free.free) * u64::from(free.frag_size);
    assert!(freed >= 40 * 100_000);
    assert!(discarded() - start >= freed, "{} of {freed} bytes", discarded() - start);
    // The space is as good as any other.
    path::write_file(&fs, ROOT, b"/new", &[3; 3_000_000]).unwrap();
    fs.sync().unwrap();
    fs.close().unwrap();
    let fs = Fs::open(dev.clone(), None, options()).unwrap();
    assert_eq!(path::read_file(&fs, b"/new").unwrap(), vec![3; 3_000_000]);
    assert_eq!(path::read_file(&fs, b"/stays").unwrap(), vec![9; 300_000]);
    let before = discarded();
    fs.unlink(ROOT_INO, b"new").unwrap();
    fs.sync().unwrap();
    assert_eq!(discarded(), before, "only where it is asked for");
    fs.close().unwrap();
    clean(&dev, "afterwards");
}
