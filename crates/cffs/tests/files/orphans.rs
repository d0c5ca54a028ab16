//! Unlinked files that are still open when the system stops, and what damage to one of them does to a mount.

use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs::format::superblock::State;
use cffs::format::{BlockKind, block_owner};
use cffs::{Caller, Error, Fs, MkfsOptions, MountOptions, ROOT_INO, mkfs, path};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;

fn mount(dev: &Arc<MemoryDevice>) -> Result<Arc<Fs>, Error> {
    let options = MountOptions::default().background(false);
    Fs::open(dev.clone() as Arc<dyn Device>, None, options)
}

/// A device with files `a` and `b`, both with an extent tree, and `small`, as a clean unmount leaves it.
fn device() -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(64 << 20));
    mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    let fs = mount(&dev).unwrap();
    let inos: Vec<u64> = [&b"a"[..], b"b"].iter().map(|n| fs.create(ROOT, ROOT_INO, n, 0o600).unwrap().ino).collect();
    for i in 0..40u64 {
        for ino in &inos {
            fs.write(ROOT, *ino, i * 65536, &[7; 4096]).unwrap();
        }
    }
    path::write_file(&fs, ROOT, b"/small", b"here").unwrap();
    fs.close().unwrap();
    dev
}

/// Destroys a block of this kind and owner at its place.
fn destroy(dev: &MemoryDevice, kind: BlockKind, owner: u64) {
    let mut block = cffs_buf::AlignedBuf::zeroed(4096);
    for at in (0..dev.len()).step_by(4096) {
        dev.read_at(IoKind::Meta, at, &mut block).unwrap();
        let magic = u32::from_le_bytes(block[..4].try_into().unwrap());
        if BlockKind::from_magic(magic) == Some(kind) && block_owner(&block) == owner {
            block[16] ^= 1; // its address: a replay of the log puts no new checksum over that
            dev.write_at(IoKind::Meta, at, &block).unwrap();
            return;
        }
    }
    panic!("no block of {kind:?} of {owner}");
}

#[test]
fn an_orphan_that_cannot_be_taken_apart_does_not_keep_the_file_system_from_being_mounted() {
    let dev = device();
    let fs = mount(&dev).unwrap();
    let free_before = fs.statfs().free;
    let (a, b) = (fs.lookup(ROOT_INO, b"a").unwrap(), fs.lookup(ROOT_INO, b"b").unwrap());
    fs.unlink(ROOT_INO, b"a").unwrap();
    fs.unlink(ROOT_INO, b"b").unwrap();
    fs.sync().unwrap();
    drop(fs); // the system stops
    destroy(&dev, BlockKind::ExtentNode, a.ino);

    let fs = mount(&dev).unwrap();
    assert_eq!(fs.superblock().state, State::Error);
    assert!(matches!(fs.lookup(ROOT_INO, b"a"), Err(Error::NotFound)));
    assert!(matches!(fs.getattr(b.ino), Err(Error::Stale)), "the other one is gone");
    assert!(fs.statfs().free > free_before, "and its space is back");
    assert_eq!(path::read_file(&fs, b"/small").unwrap(), b"here");
    path::write_file(&fs, ROOT, b"/new", &[1; 10_000]).unwrap();
    let c = fs.lookup(ROOT_INO, b"new").unwrap();
    fs.unlink(ROOT_INO, b"new").unwrap();
    fs.forget(c.ino, 2);
    fs.close().unwrap();
    let fs = mount(&dev).unwrap();
    assert_eq!(fs.superblock().state, State::Error, "until fsck has been");
    fs.close().unwrap();
}

#[test]
fn an_orphan_list_that_breaks_off_is_left_to_fsck() {
    let dev = device();
    let fs = mount(&dev).unwrap();
    let d = fs.mkdir(ROOT, ROOT_INO, b"d", 0o700).unwrap();
    let x = fs.create(ROOT, d.ino, b"x", 0o600).unwrap();
    fs.close().unwrap();
    let fs = mount(&dev).unwrap();
    fs.lookup(d.ino, b"x").unwrap();
    let b = fs.lookup(ROOT_INO, b"b").unwrap();
    // The one unlinked last comes first.
    fs.unlink(d.ino, b"x").unwrap();
    fs.unlink(ROOT_INO, b"b").unwrap();
    fs.sync().unwrap();
    drop(fs);
    destroy(&dev, BlockKind::Dir, d.ino);
    for _ in 0..2 {
        let fs = mount(&dev).unwrap();
        assert_eq!(fs.superblock().state, State::Error);
        assert!(matches!(fs.getattr(b.ino), Err(Error::Stale)), "what comes before the damage is done");
        assert!(matches!(fs.getattr(x.ino), Err(Error::Corrupt(_))));
        // The list takes new ones.
        let a = fs.create(ROOT, ROOT_INO, b"new", 0o600).unwrap();
        fs.unlink(ROOT_INO, b"new").unwrap();
        fs.write(ROOT, a.ino, 0, &[3; 5000]).unwrap();
        fs.sync().unwrap();
        drop(fs);
    }
}

#[test]
fn a_close_that_failed_says_so_again() {
    let dev = device();
    let failing = Arc::new(FailingDevice::new(dev as Arc<dyn Device>));
    let options = MountOptions::default().background(false);
    let fs = Fs::open(failing.clone(), None, options).unwrap();
    path::write_file(&fs, ROOT, b"/new", &[1; 10_000]).unwrap();
    failing.set(Operation::Write, Fault::from_now_on());
    assert!(matches!(fs.close(), Err(Error::Io(_))));
    assert!(matches!(fs.close(), Err(Error::Io(_))), "the second call does not know better");
}

/// Numbers that look random and are the same each time.
fn shuffle<T>(items: &mut [T], seed: &mut u64) {
    for i in (1..items.len()).rev() {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(i, (*seed >> 33) as usize % (i + 1));
    }
}

#[test]
fn directories_go_on_a_full_device_although_files_that_were_in_them_are_open() {
    let mut seed = 3;
    for round in 0..12 {
        let options = MkfsOptions::default().reserve_bp(0).no_embed(round % 3 == 2).quota(if round % 2 == 0 {
            vec![cffs::QuotaKind::User]
        } else {
            vec![]
        });
        let dev = Arc::new(MemoryDevice::new(24 << 20));
        mkfs(&*dev, None, &options).unwrap();
        let fs = mount(&dev).unwrap();
        // The tables for what is no longer in a directory have to be there already, or never come.
        fs.sync().unwrap();
        let before = fs.statfs();
        // Directories in directories, and in each small files, a long link and a larger file.
        let mut dirs = vec![(ROOT_INO, Vec::new(), ROOT_INO)];
        let mut open = Vec::new();
        for d in 0..8u64 {
            let parent = dirs[(d / 2) as usize].2;
            let name = format!("d{d}").into_bytes();
            let ino = fs.mkdir(ROOT, parent, &name, 0o700).unwrap().ino;
            dirs.push((parent, name, ino));
            for f in 0..30u64 {
                let ino = fs.create(ROOT, ino, format!("f{f}").as_bytes(), 0o600).unwrap().ino;
                fs.write(ROOT, ino, 0, &vec![f as u8; if f == 7 { 200_000 } else { f as usize * 9 }]).unwrap();
                open.push((ino, f));
            }
            open.push((fs.symlink(ROOT, ino, b"link", &[b'l'; 700]).unwrap().ino, 99));
        }
        fs.sync().unwrap();
        // Two files: the first may leave a block that a node of its tree would need beside the data; the other has no tree.
        let fillers = [&b"filler"[..], b"second"].map(|name| fs.create(ROOT, ROOT_INO, name, 0o600).unwrap().ino);
        for filler in fillers {
            let (mut at, mut piece) = (0, 1 << 16);
            while piece >= 512 {
                match fs.write(ROOT, filler, at, &vec![1; piece]) {
                    Ok(n) => at += n as u64,
                    Err(Error::NoSpace) => piece /= 2,
                    Err(e) => panic!("{e}"),
                }
            }
            fs.sync().unwrap();
        }
        assert_eq!(fs.statfs().free, 0);
        for (_, _, dir) in &dirs[1..] {
            (0..30).for_each(|f| fs.unlink(*dir, format!("f{f}").as_bytes()).unwrap());
            fs.unlink(*dir, b"link").unwrap();
        }
        for (parent, name, _) in dirs[1..].iter().rev() {
            fs.rmdir(*parent, name).unwrap_or_else(|e| panic!("round {round}: rmdir on a full file system: {e}"));
        }
        for (ino, f) in &open {
            if *f < 30 {
                let mut bytes = vec![0; 10];
                let n = fs.read(*ino, 0, &mut bytes).unwrap();
                assert!(bytes[..n].iter().all(|b| *b == *f as u8) && n == (*f as usize * 9).min(10) || *f == 7);
            }
            let made = fs.create(ROOT, dirs[1].2, b"new", 0o600);
            assert!(matches!(made, Err(Error::NotFound)), "in a directory that was removed: {made:?}");
        }
        fs.sync().unwrap();
        let report = cffs::check::check(dev.clone(), None, &Default::default(), &|_, _, _| {}).unwrap();
        assert!(report.is_clean(), "round {round}: {:#?}", report.problems);
        assert!(report.counts.orphans >= open.len() as u64);
        for (name, ino) in [&b"filler"[..], b"second"].into_iter().zip(fillers) {
            fs.unlink(ROOT_INO, name).unwrap();
            fs.forget(ino, 1);
        }
        if round % 4 == 3 {
            // The system stops here, and the next mount does the rest.
            fs.sync().unwrap();
            drop(fs);
        } else {
            // In any order, directories and files.
            let mut held: Vec<u64> = open.iter().map(|(ino, _)| *ino).chain(dirs[1..].iter().map(|d| d.2)).collect();
            shuffle(&mut held, &mut seed);
            held.into_iter().for_each(|ino| fs.forget(ino, 1));
            fs.sync().unwrap();
            let after = fs.statfs();
            assert_eq!((after.free, after.inodes_free), (before.free, before.inodes_free), "round {round}");
            fs.close().unwrap();
            drop(fs);
        }
        let fs = mount(&dev).unwrap();
        fs.sync().unwrap();
        assert_eq!(fs.statfs().free, before.free, "round {round}, mounted again");
        fs.close().unwrap();
        drop(fs);
        let report = cffs::check::check(dev.clone(), None, &Default::default(), &|_, _, _| {}).unwrap();
        assert!(report.is_clean() && report.counts.orphans == 0, "round {round}: {:#?}", report.problems);
    }
}

/// An orphan's neighbours on the list come and go, and the blocks they stood in with them: each thread has a directory of
/// its own, whose only block goes with the only file.
#[test]
fn orphans_go_side_by_side() {
    let dev = Arc::new(MemoryDevice::new(64 << 20));
    mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    let options = MountOptions::default().cache_bytes(1 << 20);
    let fs = Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap();
    let dirs: Vec<u64> = (0..16u8).map(|i| fs.mkdir(ROOT, ROOT_INO, &[b'a' + i], 0o700).unwrap().ino).collect();
    let before = fs.statfs();
    std::thread::scope(|s| {
        for &dir in &dirs {
            let fs = &fs;
            s.spawn(move || {
                for _ in 0..10_000 {
                    let file = fs.create(ROOT, dir, b"only", 0o600).unwrap();
                    fs.unlink(dir, b"only").unwrap();
                    fs.forget(file.ino, 1);
                    // The number may be another's by now.
                    let found = fs.getattr(file.ino).map(|a| a.generation);
                    assert!(found.as_ref().map_or(true, |g| *g != file.generation), "{found:?}: still there");
                }
            });
        }
    });
    assert_eq!(fs.statfs().inodes, before.inodes, "none was left behind");
    fs.close().unwrap();
}
