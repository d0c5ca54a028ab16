//! Inodes found by their number alone, as through a file handle: which are found, also after a remount, and which are not.

use crate::common::plain::{clean, fresh, mount};
use cffs::device::{Device, IoKind};
use cffs::format::BlockKind;
use cffs::{Caller, Error, Fs, MkfsOptions, ROOT_INO};

const ROOT: Caller = Caller::ROOT;

fn stale(fs: &Fs, ino: u64) -> bool {
    matches!(fs.reference(ino), Err(Error::Stale))
}

#[test]
fn living_files_are_found_by_number_also_after_a_remount() {
    for no_embed in [false, true] {
        let dev = fresh(32 << 20, &MkfsOptions::default().no_embed(no_embed));
        let fs = mount(&dev);
        let d = fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap();
        let e = fs.mkdir(ROOT, d.ino, b"e", 0o755).unwrap();
        let f = fs.create(ROOT, e.ino, b"f", 0o644).unwrap();
        let s = fs.symlink(ROOT, e.ino, b"s", b"target").unwrap();
        let two = fs.create(ROOT, e.ino, b"one", 0o644).unwrap();
        fs.link(ROOT, two.ino, d.ino, b"two").unwrap();
        fs.close().unwrap();
        let mut fs = mount(&dev);
        for round in 0..3 {
            for (a, nlink) in [(&f, 1), (&s, 1), (&two, 2), (&e, 2), (&d, 3)] {
                let found = fs.reference(a.ino).unwrap();
                let want = (a.ino, a.generation, a.file_type, nlink);
                assert_eq!((found.ino, found.generation, found.file_type, found.nlink), want);
            }
            // Names above are found from there, and below.
            assert_eq!((fs.parent(e.ino).unwrap(), fs.parent(d.ino).unwrap()), (d.ino, ROOT_INO));
            assert_eq!(fs.parent(ROOT_INO).unwrap(), ROOT_INO);
            assert_eq!(fs.reference(ROOT_INO).unwrap().ino, ROOT_INO);
            assert!(matches!(fs.parent(f.ino), Err(Error::NotDir)));
            assert_eq!(fs.lookup(e.ino, b"f").unwrap().ino, f.ino);
            // The reference keeps the file.
            fs.write(ROOT, f.ino, 0, &[round; 100]).unwrap();
            for (a, n) in [(&f, 2), (&s, 1), (&two, 1), (&e, 1), (&d, 1)] {
                fs.forget(a.ino, n);
            }
            if round == 0 {
                fs.drop_caches();
            } else {
                fs.close().unwrap();
                fs = mount(&dev);
            }
        }
        let found = fs.reference(f.ino).unwrap();
        fs.unlink(e.ino, b"f").unwrap();
        assert_eq!(fs.reference(f.ino).unwrap().nlink, 0, "in use without a name");
        fs.forget(found.ino, 1);
        assert_eq!(fs.reference(f.ino).unwrap().size, 100);
        fs.forget(found.ino, 2);
        assert!(stale(&fs, f.ino), "freed with the last reference");
        fs.close().unwrap();
        clean(&dev, "handles");
    }
}

#[test]
fn numbers_that_no_file_has_are_stale() {
    let dev = fresh(32 << 20, &MkfsOptions::default());
    let fs = mount(&dev);
    let f = fs.create(ROOT, ROOT_INO, b"f", 0o644).unwrap();
    fs.forget(f.ino, 1);
    fs.unlink(ROOT_INO, b"f").unwrap();
    assert!(stale(&fs, f.ino), "freed");
    for system in (0..16).filter(|ino| *ino != ROOT_INO) {
        assert!(stale(&fs, system), "{system}: the file system's own");
    }
    let most = fs.geometry().inodes_max();
    for never in [f.ino + 1, most - 1, most, most + 1, 1 << 32, 1 << 56, u64::MAX - 1, u64::MAX] {
        assert!(stale(&fs, never), "{never}: never used");
    }
    let again = fs.create(ROOT, ROOT_INO, b"g", 0o644).unwrap();
    if again.ino == f.ino {
        assert_ne!(again.generation, f.generation, "the caller sees that the handle is another file's");
    }
    fs.close().unwrap();
}

#[test]
fn what_only_waits_to_be_freed_is_not_found() {
    let dev = fresh(32 << 20, &MkfsOptions::default());
    let fs = mount(&dev);
    let t = fs.tmpfile(ROOT, ROOT_INO, 0o600).unwrap().ino;
    assert_eq!(fs.reference(t).unwrap().nlink, 0, "in use by somebody");
    fs.sync().unwrap();
    drop(fs);
    // A read-only mount leaves it to the next one.
    let options = cffs::MountOptions::default().background(false).read_only(true);
    let fs = Fs::open(dev.clone(), None, options).unwrap();
    assert!(stale(&fs, t));
    fs.close().unwrap();
    assert!(stale(&mount(&dev), t));
}

#[test]
fn damage_is_an_error_and_nothing_else() {
    let dev = fresh(32 << 20, &MkfsOptions::default());
    let fs = mount(&dev);
    let d = fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap();
    let inos: Vec<u64> =
        (0..200).map(|n| fs.create(ROOT, d.ino, format!("f{n}").as_bytes(), 0o600).unwrap().ino).collect();
    fs.close().unwrap();
    // Locator records lead somewhere else, with checksums that hold.
    let mut block = cffs_buf::AlignedBuf::zeroed(4096);
    for shift in [1, 9, 33] {
        for at in (0..dev.len()).step_by(4096) {
            dev.read_at(IoKind::Meta, at, &mut block).unwrap();
            let kind = BlockKind::from_magic(u32::from_le_bytes(block[..4].try_into().unwrap()));
            if kind != Some(BlockKind::Locator) {
                continue;
            }
            for byte in (64..4096).step_by(8) {
                let word = u64::from_le_bytes(block[byte..byte + 8].try_into().unwrap());
                if word != 0 {
                    block[byte..byte + 8].copy_from_slice(&word.wrapping_add(1 << shift).to_le_bytes());
                }
            }
            cffs::format::seal(&mut block, 0);
            dev.write_at(IoKind::Meta, at, &block).unwrap();
        }
        let fs = mount(&dev);
        for ino in &inos {
            match fs.reference(*ino) {
                Ok(a) => assert_eq!(a.ino, *ino),
                Err(e) => assert!(matches!(e, Error::Corrupt(_) | Error::Stale), "{e}"),
            }
        }
        drop(fs);
    }
}
