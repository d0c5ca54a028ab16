//! File systems that grow while they are in use.

use cffs::check::{CheckOptions, check};
use cffs::device::{Device, FileDevice, MemoryDevice, OpenMode};
use cffs::mkfs::{backup_ags, read_superblock, read_superblock_copy};
use cffs::{Caller, Error, Fs, Grown, MkfsOptions, MountOptions, ROOT_INO, mkfs, path};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const MIB: u64 = 1 << 20;
const ROOT: Caller = Caller::ROOT;
const USER: Caller = Caller { uid: 1000, gid: 1000 };

fn options() -> MountOptions {
    MountOptions::default().background(false)
}

fn mount(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
    Fs::open(dev.clone(), None, options()).expect("mount")
}

#[track_caller]
fn clean(dev: &Arc<MemoryDevice>) -> u64 {
    let report = check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
    report.counts.frags_total
}

/// Writes files until nothing is left, and returns how many bytes there was room for.
fn fill(fs: &Fs, prefix: &str) -> u64 {
    let data = vec![0xA5; 300_000];
    let mut written = 0;
    for i in 0.. {
        match path::write_file(fs, USER, format!("/{prefix}{i}").as_bytes(), &data) {
            Ok(_) => written += data.len() as u64,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
        // What is not written back yet has more promised to it than it will take.
        if i % 4 == 0 {
            fs.sync().unwrap();
        }
    }
    fs.sync().unwrap();
    written
}

fn variants() -> impl Iterator<Item = MkfsOptions> {
    [(false, false), (true, false), (false, true), (true, true)]
        .into_iter()
        .map(|(no_embed, no_group)| MkfsOptions::default().no_embed(no_embed).no_group(no_group))
}

#[test]
fn added_space_can_be_used_at_once_and_stays() {
    // The last group is a whole one, a short one, the only one.
    for (before, after) in [(48, 112), (40, 41), (40, 48), (40, 112), (10, 12), (10, 100)] {
        for o in variants() {
            for full in [false, true] {
                let dev = Arc::new(MemoryDevice::new(before * MIB));
                mkfs(&*dev, None, &o.clone().size(Some(before * MIB))).unwrap();
                let fs = mount(&dev);
                if full {
                    fill(&fs, "first");
                }
                let free = fs.statfs().free;
                let done = fs.grow(Some(after * MIB)).unwrap();
                assert_eq!(done, Grown { from: before * MIB, to: after * MIB });
                let g = *fs.geometry();
                let s = fs.statfs();
                assert_eq!(s.total, g.total_frags());
                // All that was added is free, but for the headers of new groups.
                let new_groups = g.ag_count - ((before * MIB) >> g.block_shift).div_ceil(g.ag_blocks);
                let added =
                    (((after - before) * MIB) >> g.frag_shift) - g.frag_of_block(new_groups * g.ag_header_blocks());
                assert_eq!(s.free, free + added);
                let (got, there) = (fill(&fs, "second"), added << g.frag_shift);
                assert!(
                    got + 3 * MIB > there / 10 * 9,
                    "{before} to {after}: {got} of {there} bytes; {:?}, full {full}",
                    fs.statfs()
                );
                fs.close().unwrap();
                drop(fs);
                assert_eq!(clean(&dev) << g.frag_shift, after * MIB);
                for ag in backup_ags(&g) {
                    assert_eq!(read_superblock_copy(&*dev, &g, ag).unwrap().total_blocks, g.total_blocks);
                }
                let fs = mount(&dev);
                assert_eq!(fs.statfs().total, g.total_frags());
                assert_eq!(path::read_file(&fs, b"/second0").unwrap().len(), 300_000);
                fs.close().unwrap();
            }
        }
    }
}

#[test]
fn growing_never_shrinks_and_leaves_a_rest_that_is_too_small() {
    let dev = Arc::new(MemoryDevice::new(48 * MIB));
    let sb = mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    let fs = mount(&dev);
    let e = fs.grow(Some(47 * MIB)).unwrap_err();
    assert!(matches!(&e, Error::Invalid(what) if what.contains("cannot shrink")), "{e}");
    let same = Grown { from: 48 * MIB, to: 48 * MIB };
    assert_eq!(fs.grow(None).unwrap(), same);
    assert_eq!(fs.grow(Some(48 * MIB)).unwrap(), same);
    // The last group is complete: one block more is no group.
    assert_eq!(sb.total_blocks % sb.ag_blocks, 0);
    assert_eq!(fs.grow(Some(48 * MIB + 4096)).unwrap(), same);
    assert_eq!(dev.len(), 48 * MIB, "not made longer for nothing");
    dev.set_len(50 * MIB);
    assert_eq!(fs.grow(None).unwrap(), Grown { from: 48 * MIB, to: 50 * MIB }, "takes what the device has by now");
    fs.close().unwrap();
    assert!(matches!(fs.grow(None), Err(Error::ReadOnly)));
    clean(&dev);
    let fs = Fs::open(dev.clone(), None, options().read_only(true)).unwrap();
    assert!(matches!(fs.grow(Some(64 * MIB)), Err(Error::ReadOnly)));
    assert_eq!(dev.len(), 50 * MIB);
}

#[test]
fn the_reserve_grows_along() {
    let dev = Arc::new(MemoryDevice::new(32 * MIB));
    mkfs(&*dev, None, &MkfsOptions::default().reserve_bp(1000)).unwrap();
    let fs = mount(&dev);
    let kept = |fs: &Fs| fs.statfs().free - fs.statfs().available;
    let before = kept(&fs);
    fs.grow(Some(64 * MIB)).unwrap();
    assert_eq!(kept(&fs) / 2, before);
    fs.close().unwrap();
}

#[test]
fn an_image_in_a_file_is_made_longer_and_a_sparse_petabyte_is_no_work() {
    let tmp = tempfile::tempdir().unwrap();
    let image = tmp.path().join("image");
    let dev = FileDevice::create(&image, 32 * MIB, OpenMode::READ_WRITE).unwrap();
    mkfs(&dev, None, &MkfsOptions::default()).unwrap();
    let fs = Fs::open(Arc::new(dev), None, options()).unwrap();
    // As far as the file system below allows for one file.
    let big = 1 << 43;
    path::write_file(&fs, ROOT, b"/file", b"contents").unwrap();
    assert_eq!(fs.grow(Some(big)).unwrap().to, big);
    path::write_file(&fs, ROOT, b"/other", &[7; 100_000]).unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), big);
    let dev = FileDevice::open(&image, OpenMode::READ_ONLY).unwrap();
    let report = check(Arc::new(dev), None, &CheckOptions::default(), &|_, _, _| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn a_failed_step_leaves_the_old_size_and_the_next_mount_finishes() {
    let dev = Arc::new(MemoryDevice::new(40 * MIB));
    mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    // As a crash leaves it between the superblock and the transaction: the superblock alone says more.
    let fs = mount(&dev);
    path::write_file(&fs, ROOT, b"/file", b"contents").unwrap();
    fs.sync().unwrap();
    let before = fs.geometry().total_frags();
    drop(fs);
    dev.set_len(90 * MIB);
    let mut sb = read_superblock(&*dev).unwrap();
    sb.total_blocks = (90 * MIB) >> sb.block_shift;
    let mut block = vec![0; 4096];
    block[..512].copy_from_slice(&sb.encode());
    dev.write_at(cffs::device::IoKind::Super, 0, &block).unwrap();
    let report = check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).unwrap();
    let copies = report.problems.iter().filter(|p| p.class != cffs::check::Class::SuperblockCopy).count();
    assert_eq!(copies, 0, "{:?}", report.problems);
    assert_eq!(report.counts.frags_total, before);
    let read_only = Fs::open(dev.clone(), None, options().read_only(true)).unwrap();
    assert_eq!(read_only.statfs().total, before);
    drop(read_only);
    let fs = mount(&dev);
    assert_eq!(fs.statfs().total, (90 * MIB) >> sb.frag_shift);
    assert_eq!(path::read_file(&fs, b"/file").unwrap(), b"contents");
    fs.close().unwrap();
}

#[test]
fn writers_go_on_while_it_grows() {
    let dev = Arc::new(MemoryDevice::new(20 * MIB));
    mkfs(&*dev, None, &MkfsOptions::default().reserve_bp(0)).unwrap();
    let fs = Fs::open(dev.clone(), None, MountOptions::default()).unwrap();
    let over = AtomicBool::new(false);
    let attempts = [const { AtomicU32::new(0) }; 4];
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..4u8)
            .map(|t| {
                let (fs, over, attempts) = (&fs, &over, &attempts[usize::from(t)]);
                s.spawn(move || {
                    let (mut made, mut refused) = (0u32, 0u32);
                    while !over.load(Ordering::Relaxed) {
                        let name = format!("/t{t}-{}", made % 200);
                        match path::write_file(fs, USER, name.as_bytes(), &vec![t; 20_000 + made as usize % 5000]) {
                            Ok(_) => made += 1,
                            Err(Error::NoSpace) => {
                                refused += 1;
                                let _ = fs.unlink(ROOT_INO, format!("t{t}-{}", refused % 200).as_bytes());
                            }
                            Err(e) => panic!("{e}"),
                        }
                        if made % 50 == 49 {
                            fs.sync().unwrap();
                        }
                        attempts.fetch_add(1, Ordering::Relaxed);
                    }
                    made
                })
            })
            .collect();
        // Odd sizes, so that the last group is cut off anywhere.
        let mut size = 20 * MIB;
        for step in [4096, 3 * MIB + 512, 100 << 10, 9 * MIB, 16 * MIB, 70_000, 31 * MIB, 5 * MIB] {
            size += step;
            fs.grow(Some(size)).unwrap();
            // Every writer meets every size.
            for n in &attempts {
                let before = n.load(Ordering::Relaxed);
                while n.load(Ordering::Relaxed) < before + 20 && !writers.iter().any(|w| w.is_finished()) {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        for w in writers {
            assert!(w.join().unwrap() > 0);
        }
        assert_eq!(fs.geometry().total_bytes(), size >> 12 << 12);
    });
    for t in 0..4u8 {
        if let Ok(data) = path::read_file(&fs, format!("/t{t}-0").as_bytes()) {
            assert!(data.iter().all(|b| *b == t));
        }
    }
    let there = |t, n| fs.lookup(ROOT_INO, format!("t{t}-{n}").as_bytes()).is_ok();
    assert!((0..4).any(|t| (0..200).any(|n| there(t, n))));
    fs.close().unwrap();
    drop(fs);
    clean(&dev);
}
