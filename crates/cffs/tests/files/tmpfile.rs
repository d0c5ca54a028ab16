//! Files without a name (`O_TMPFILE`): what they inherit, how they get a name, and that they leave nothing behind.

use crate::common::plain::{clean, fresh, mount};
use cffs::device::MemoryDevice;
use cffs::format::inode::{FLAG_IMMUTABLE, FLAG_NODUMP};
use cffs::{
    Caller, Error, Fs, Ino, MetadataMode, MkfsOptions, MountOptions, QuotaKind, QuotaLimits, ROOT_INO, SetAttr,
    SetXattr, path,
};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;
const ALICE: Caller = Caller { uid: 1000, gid: 100 };

/// Both ways to place inodes, with and without quotas.
fn formats() -> Vec<MkfsOptions> {
    let all = [(false, vec![]), (true, vec![]), (false, QuotaKind::ALL.to_vec()), (true, QuotaKind::ALL.to_vec())];
    all.into_iter().map(|(no_embed, quota)| MkfsOptions::default().no_embed(no_embed).quota(quota)).collect()
}

fn put(fs: &Fs, ino: Ino, byte: u8, len: usize) {
    assert_eq!(fs.write(ROOT, ino, 0, &vec![byte; len]).unwrap(), len);
}

fn contents(fs: &Fs, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Stops without an unmount, checks, and mounts.
fn crash(dev: &Arc<MemoryDevice>, fs: Arc<Fs>) -> Arc<Fs> {
    drop(fs);
    mount(dev)
}

#[test]
fn it_has_no_name_and_all_that_a_created_file_would_have() {
    for options in formats() {
        let dev = fresh(32 << 20, &options);
        let fs = mount(&dev);
        let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o2775).unwrap().ino;
        fs.setattr(ROOT, dir, SetAttr::default().gid(Some(77))).unwrap();
        fs.set_flags(ROOT, dir, FLAG_NODUMP).unwrap();
        if !fs.quota_kinds().is_empty() {
            fs.set_project(ROOT, dir, 5, true).unwrap();
        }
        let acl = cffs_acl(&[(1, 7, u32::MAX), (2, 6, 1234), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]);
        fs.setxattr(ROOT, dir, b"system.posix_acl_default", &acl, SetXattr::default()).unwrap();
        let before = fs.getattr(dir).unwrap();
        let t = fs.tmpfile(ALICE, dir, 0o640).unwrap();
        let named = fs.create(ALICE, dir, b"named", 0o640).unwrap();
        assert_eq!((t.nlink, named.nlink), (0, 1));
        let kept = |a: &cffs::Attr| (a.file_type, a.perm, a.uid, a.gid, a.flags, a.size, a.blocks);
        assert_eq!(kept(&t), kept(&named));
        assert_eq!(fs.listxattr(t.ino).unwrap(), fs.listxattr(named.ino).unwrap());
        assert_eq!(fs.project(t.ino).unwrap(), fs.project(named.ino).unwrap());
        fs.unlink(dir, b"named").unwrap();
        fs.forget(named.ino, 1);
        let after = fs.getattr(dir).unwrap();
        assert_eq!((before.nlink, before.size), (after.nlink, after.size));
        let mut names = Vec::new();
        fs.readdir(dir, 0, false, &mut |e| {
            names.push(e.name);
            true
        })
        .unwrap();
        assert!(names.is_empty(), "{names:?}");
        put(&fs, t.ino, 3, 50_000);
        fs.sync().unwrap();
        assert_eq!(contents(&fs, t.ino), [3; 50_000]);
        fs.forget(t.ino, 1);
        assert!(matches!(fs.getattr(t.ino), Err(Error::Stale)), "its last reference");
        fs.close().unwrap();
        clean(&dev, "forgotten");
    }
}

/// The value of an attribute with an access control list: tag, permissions, id.
fn cffs_acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

#[test]
fn all_its_space_comes_back_with_its_reference_an_unmount_or_a_crash() {
    for options in formats() {
        let dev = fresh(32 << 20, &options);
        let fs = mount(&dev);
        let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap().ino;
        // The tables and quota files have grown. An unmount shortens the latter.
        let first = fs.tmpfile(ALICE, dir, 0o600).unwrap().ino;
        fs.forget(first, 1);
        fs.sync().unwrap();
        let (free, inodes) = (fs.statfs().free, fs.stats().inodes);
        let make = |fs: &Fs| {
            let t = fs.tmpfile(ALICE, dir, 0o600).unwrap().ino;
            put(fs, t, 9, 300_000);
            fs.fsync(t, false).unwrap();
            assert!(fs.statfs().free < free);
            t
        };
        let t = make(&fs);
        fs.forget(t, 1);
        fs.sync().unwrap();
        assert_eq!((fs.statfs().free, fs.stats().inodes), (free, inodes));
        make(&fs);
        fs.close().unwrap();
        clean(&dev, "unmounted");
        let fs = mount(&dev);
        assert!(fs.statfs().free >= free, "after an unmount");
        let dir = fs.lookup(ROOT_INO, b"d").unwrap().ino;
        let t = fs.tmpfile(ALICE, dir, 0o600).unwrap().ino;
        put(&fs, t, 9, 300_000);
        fs.sync().unwrap();
        let fs = crash(&dev, fs);
        assert!(matches!(fs.reference(t), Err(Error::Stale)));
        fs.sync().unwrap();
        assert!(fs.statfs().free >= free, "after a crash");
        if let Ok(q) = fs.quota(QuotaKind::User, ALICE.uid) {
            assert_eq!((q.bytes, q.inodes), (0, 0));
        }
        fs.close().unwrap();
        clean(&dev, "recovered");
    }
}

#[test]
fn it_gets_its_first_name_in_any_directory_and_then_is_like_any_file() {
    for options in formats() {
        for synced in [false, true] {
            let dev = fresh(32 << 20, &options);
            let fs = mount(&dev);
            let dirs = [b"a", b"b"].map(|n| fs.mkdir(ROOT, ROOT_INO, n, 0o755).unwrap().ino);
            // Others before and behind it on the list of files without a name.
            let [other, t, third] = [5, 6, 7].map(|byte| {
                let ino = fs.tmpfile(ROOT, dirs[0], 0o600).unwrap().ino;
                put(&fs, ino, byte, 20_000);
                ino
            });
            if synced {
                fs.fsync(t, false).unwrap();
            }
            let linked = fs.link(ROOT, t, dirs[1], b"x").unwrap();
            assert_eq!((linked.ino, linked.nlink, linked.size), (t, 1, 20_000));
            assert_eq!(fs.link(ROOT, t, dirs[0], b"y").unwrap().nlink, 2);
            fs.unlink(dirs[0], b"y").unwrap();
            fs.forget(other, 1);
            assert_eq!(contents(&fs, t), [6; 20_000]);
            fs.forget(t, 3);
            fs.drop_caches();
            assert_eq!(path::read_file(&fs, b"/b/x").unwrap(), [6; 20_000]);
            assert_eq!(fs.getattr(fs.lookup(dirs[1], b"x").unwrap().ino).unwrap().nlink, 1);
            fs.rmdir(ROOT_INO, b"a").unwrap();
            assert_eq!(contents(&fs, third), [7; 20_000], "outlives the directory that it was made in");
            fs.sync().unwrap();
            let fs = crash(&dev, fs);
            assert_eq!(path::read_file(&fs, b"/b/x").unwrap(), [6; 20_000]);
            fs.close().unwrap();
            clean(&dev, "linked");
        }
    }
}

#[test]
fn a_crash_leaves_the_name_with_what_fsync_promised_or_neither() {
    for options in formats() {
        for after_link in [false, true] {
            let dev = fresh(32 << 20, &options);
            let fs = mount(&dev);
            let t = fs.tmpfile(ROOT, ROOT_INO, 0o600).unwrap().ino;
            put(&fs, t, 8, 30_000);
            fs.fsync(t, false).unwrap();
            fs.link(ROOT, t, ROOT_INO, b"x").unwrap();
            if after_link {
                fs.fsync(t, false).unwrap();
            }
            let fs = crash(&dev, fs);
            match fs.lookup(ROOT_INO, b"x") {
                Ok(a) => {
                    assert!(after_link, "nobody has committed the link");
                    assert_eq!((a.nlink, contents(&fs, a.ino)), (1, vec![8; 30_000]));
                }
                Err(e) => assert!(matches!(e, Error::NotFound) && !after_link, "{e}"),
            }
            fs.close().unwrap();
            clean(&dev, "after the crash");
        }
    }
}

#[test]
fn what_has_lost_its_last_name_gets_none_again() {
    let dev = fresh(32 << 20, &MkfsOptions::default());
    let fs = mount(&dev);
    let f = fs.create(ROOT, ROOT_INO, b"f", 0o600).unwrap().ino;
    fs.unlink(ROOT_INO, b"f").unwrap();
    assert!(matches!(fs.link(ROOT, f, ROOT_INO, b"g"), Err(Error::NotFound)));
    let t = fs.tmpfile(ROOT, ROOT_INO, 0o600).unwrap().ino;
    fs.link(ROOT, t, ROOT_INO, b"t").unwrap();
    fs.unlink(ROOT_INO, b"t").unwrap();
    assert!(matches!(fs.link(ROOT, t, ROOT_INO, b"t"), Err(Error::NotFound)));
    fs.close().unwrap();
    clean(&dev, "unlinked");
}

#[test]
fn what_is_refused_leaves_everything_as_it_was() {
    let dev = fresh(32 << 20, &MkfsOptions::default().quota(QuotaKind::ALL.to_vec()));
    let fs = mount(&dev);
    let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap().ino;
    let file = fs.create(ROOT, ROOT_INO, b"f", 0o600).unwrap().ino;
    assert!(matches!(fs.tmpfile(ROOT, file, 0o600), Err(Error::NotDir)));
    fs.set_flags(ROOT, dir, FLAG_IMMUTABLE).unwrap();
    assert!(matches!(fs.tmpfile(ROOT, dir, 0o600), Err(Error::NotPermitted)));
    let t = fs.tmpfile(ROOT, ROOT_INO, 0o600).unwrap().ino;
    assert!(matches!(fs.link(ROOT, t, dir, b"x"), Err(Error::NotPermitted)));
    assert!(matches!(fs.link(ROOT, t, ROOT_INO, b"f"), Err(Error::Exists)));
    assert!(matches!(fs.link(ROOT, t, file, b"x"), Err(Error::NotDir)));
    assert_eq!(fs.getattr(t).unwrap().nlink, 0);
    fs.set_flags(ROOT, dir, 0).unwrap();
    fs.rmdir(ROOT_INO, b"d").unwrap();
    assert!(matches!(fs.tmpfile(ROOT, dir, 0o600), Err(Error::NotFound)), "a directory without a name");
    fs.forget(dir, 1);
    assert!(matches!(fs.tmpfile(ROOT, dir, 0o600), Err(Error::Stale)), "a directory that is gone");
    fs.link(ROOT, t, ROOT_INO, b"x").unwrap();
    // Two inodes at most.
    let limits = QuotaLimits { soft_bytes: 0, hard_bytes: 20 << 10, soft_inodes: 0, hard_inodes: 2 };
    fs.set_quota(QuotaKind::User, ALICE.uid, limits).unwrap();
    let [one, two] = [0, 1].map(|_| fs.tmpfile(ALICE, ROOT_INO, 0o600).unwrap().ino);
    assert!(matches!(fs.tmpfile(ALICE, ROOT_INO, 0o600), Err(Error::Quota)));
    assert!(matches!(fs.write(ALICE, one, 0, &[1; 30 << 10]), Ok(0..=20480) | Err(Error::Quota)));
    fs.forget(two, 1);
    fs.tmpfile(ALICE, ROOT_INO, 0o600).unwrap();
    fs.close().unwrap();
    clean(&dev, "refused");
    let options = MountOptions::default().background(false).read_only(true);
    let fs = Fs::open(dev.clone(), None, options).unwrap();
    assert!(matches!(fs.tmpfile(ROOT, ROOT_INO, 0o600), Err(Error::ReadOnly)));
    fs.close().unwrap();
}

#[test]
fn on_a_full_device_it_fails_or_works_and_can_still_be_named_and_freed() {
    for options in formats() {
        let dev = fresh(8 << 20, &options.log_bytes(Some(2 << 20)));
        let fs = mount(&dev);
        let big = fs.create(ROOT, ROOT_INO, b"big", 0o600).unwrap().ino;
        let mut at = 0;
        while let Ok(n @ 1..) = fs.write(ROOT, big, at, &[1; 4096]) {
            at += n as u64;
        }
        let mut held = Vec::new();
        let refused = loop {
            match fs.tmpfile(ROOT, ROOT_INO, 0o600) {
                Ok(a) => held.push(a.ino),
                Err(e) => break e,
            }
            assert!(held.len() < 100_000);
        };
        assert!(matches!(refused, Error::NoSpace), "{refused}");
        fs.sync().unwrap();
        for (n, ino) in held.iter().enumerate().filter(|(n, _)| n % 3 == 0) {
            match fs.link(ROOT, *ino, ROOT_INO, format!("t{n}").as_bytes()) {
                Ok(a) => assert_eq!(a.nlink, 1),
                Err(e) => assert!(matches!(e, Error::NoSpace), "{e}"),
            }
        }
        held.iter().for_each(|ino| fs.forget(*ino, 1));
        fs.close().unwrap();
        clean(&dev, "full");
    }
}

#[test]
fn every_way_to_write_metadata_knows_it() {
    for metadata in [MetadataMode::Sync, MetadataMode::Delayed] {
        let dev = fresh(32 << 20, &MkfsOptions::default());
        let fs = Fs::open(dev.clone(), None, MountOptions::default().background(false).metadata(metadata)).unwrap();
        let t = fs.tmpfile(ROOT, ROOT_INO, 0o600).unwrap().ino;
        put(&fs, t, 1, 5000);
        fs.link(ROOT, t, ROOT_INO, b"x").unwrap();
        fs.tmpfile(ROOT, ROOT_INO, 0o600).unwrap();
        fs.close().unwrap();
        clean(&dev, "unmounted");
        assert_eq!(path::read_file(&mount(&dev), b"/x").unwrap(), [1; 5000]);
    }
}
