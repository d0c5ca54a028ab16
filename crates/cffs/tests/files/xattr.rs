//! Extended attributes and access control lists through the library.

use cffs::check::{CheckOptions, check};
use cffs::device::{Device, MemoryDevice};
use cffs::{
    Caller, Error, FileType, Fs, Ino, MkfsOptions, MountOptions, NewPerm, ROOT_INO, Result, SetAttr, SetXattr, mkfs,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;

const ME: Caller = Caller { uid: 1000, gid: 1000 };
const ANY: SetXattr = SetXattr { create: false, replace: false, drop_sgid: false };
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

struct Image {
    dev: Arc<MemoryDevice>,
    fs: Arc<Fs>,
}

impl Image {
    fn new(options: &MkfsOptions) -> Image {
        let dev = Arc::new(MemoryDevice::new(64 << 20));
        mkfs(&*dev, None, options).unwrap();
        let fs = Image::open(&dev);
        Image { dev, fs }
    }

    fn open(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
        let options = MountOptions::default().background(false);
        Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap()
    }

    /// Unmounts, checks, mounts.
    fn again(self) -> Image {
        self.fs.close().unwrap();
        let report = check(self.dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
        Image { fs: Image::open(&self.dev), dev: self.dev }
    }

    fn file(&self, name: &str) -> Ino {
        self.fs.create(ME, ROOT_INO, name.as_bytes(), 0o644).unwrap().ino
    }

    fn find(&self, name: &str) -> Ino {
        self.fs.lookup(ROOT_INO, name.as_bytes()).unwrap().ino
    }

    fn set(&self, ino: Ino, name: &str, value: &[u8]) -> Result<()> {
        self.fs.setxattr(ME, ino, name.as_bytes(), value, ANY)
    }

    fn get(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        self.fs.getxattr(ino, name.as_bytes())
    }
}

fn variants() -> Vec<MkfsOptions> {
    let with = |block_size, fragment_size| {
        MkfsOptions::default().block_size(block_size).frag_size(Some(fragment_size)).group_size(256 << 10)
    };
    vec![with(4096, 1024), with(512, 512), with(16384, 2048), with(4096, 4096).no_embed(true)]
}

fn value(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + i / 256) as u8).collect()
}

#[test]
fn values_of_every_size_are_kept_in_inodes_and_blocks() {
    for options in variants() {
        let image = Image::new(&options);
        let free = image.fs.statfs().free;
        let sizes = [0, 1, 11, 60, 100, 440, 448, 460, 4000, 4033, 20_000, 65_535, 65_536];
        for len in sizes {
            let ino = image.file(&format!("f{len}"));
            image.set(ino, "user.v", &value(len, len)).unwrap();
            image.set(ino, "user.small", b"beside it").unwrap();
            image.fs.write(ME, ino, 0, &value(len, 1)).unwrap();
        }
        let image = image.again();
        for len in sizes {
            let ino = image.find(&format!("f{len}"));
            assert_eq!(image.get(ino, "user.v").unwrap(), value(len, len));
            assert_eq!(image.get(ino, "user.small").unwrap(), b"beside it");
            let mut names = image.fs.listxattr(ino).unwrap();
            names.sort();
            assert_eq!(names, [b"user.small".to_vec(), b"user.v".to_vec()]);
            let mut data = vec![0; len + 1];
            assert_eq!(image.fs.read(ino, 0, &mut data).unwrap(), len);
            assert_eq!(data[..len], value(len, 1));
            image.fs.removexattr(ME, ino, b"user.v").unwrap();
            assert!(matches!(image.get(ino, "user.v"), Err(Error::NoAttribute)));
        }
        let image = image.again();
        for len in sizes {
            let ino = image.find(&format!("f{len}"));
            assert_eq!(image.get(ino, "user.small").unwrap(), b"beside it");
            image.fs.unlink(ROOT_INO, format!("f{len}").as_bytes()).unwrap();
            image.fs.forget(ino, 1);
        }
        let image = image.again();
        assert_eq!(image.fs.statfs().free, free, "everything is given back");
    }
}

#[test]
fn the_limits_are_those_of_xattr_7() {
    let image = Image::new(&variants()[0]);
    let ino = image.file("f");
    let errno = |r: Result<()>| Errno::from_raw_os_error(r.unwrap_err().errno());
    assert_eq!(errno(image.set(ino, "user.v", &vec![0; 65_537])), Errno::TOOBIG);
    assert_eq!(errno(image.set(ino, &format!("user.{}", "n".repeat(251)), b"")), Errno::RANGE);
    image.set(ino, &format!("user.{}", "n".repeat(250)), b"").unwrap();
    assert_eq!(errno(image.set(ino, "user.", b"")), Errno::INVAL);
    assert_eq!(errno(image.set(ino, "other.x", b"")), Errno::OPNOTSUPP);
    assert_eq!(errno(image.set(ino, "system.other", b"")), Errno::OPNOTSUPP);
    assert_eq!(errno(image.fs.removexattr(ME, ino, b"user.none")), Errno::NODATA);
    let how = |create, replace| SetXattr { create, replace, drop_sgid: false };
    assert_eq!(errno(image.fs.setxattr(ME, ino, b"user.a", b"1", how(false, true))), Errno::NODATA);
    image.fs.setxattr(ME, ino, b"user.a", b"1", how(true, false)).unwrap();
    assert_eq!(errno(image.fs.setxattr(ME, ino, b"user.a", b"2", how(true, false))), Errno::EXIST);
    image.fs.setxattr(ME, ino, b"user.a", b"3", how(false, true)).unwrap();
    assert_eq!(image.get(ino, "user.a").unwrap(), b"3");

    let link = image.fs.symlink(ME, ROOT_INO, b"link", b"target").unwrap().ino;
    let pipe = image.fs.mknod(ME, ROOT_INO, b"pipe", FileType::Fifo, 0o600, 0).unwrap().ino;
    for special in [link, pipe] {
        assert_eq!(errno(image.set(special, "user.a", b"1")), Errno::PERM);
        assert!(matches!(image.get(special, "user.a"), Err(Error::NoAttribute)));
        image.set(special, "trusted.a", b"1").unwrap();
        image.set(special, "security.a", b"2").unwrap();
        assert_eq!(image.get(special, "trusted.a").unwrap(), b"1");
    }
    assert_eq!(errno(image.fs.setxattr(ME, link, ACCESS, &acl(&[(1, 6), (4, 4), (32, 0)]), ANY)), Errno::OPNOTSUPP);
    image.again();
}

#[test]
fn attributes_may_fill_the_list_and_no_more() {
    let image = Image::new(&variants()[0]);
    let ino = image.file("f");
    let mut set = 0;
    let full = loop {
        match image.set(ino, &format!("user.{set:0>240}"), b"") {
            Ok(()) => set += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::NoSpace));
    assert_eq!(set, 65_536 / 246);
    let names = image.fs.listxattr(ino).unwrap();
    assert!(names.iter().map(|n| n.len() + 1).sum::<usize>() <= 65_536);
    let image = image.again();
    assert_eq!(image.fs.listxattr(image.find("f")).unwrap().len(), set);
}

#[test]
fn a_change_sets_the_change_time_alone() {
    let image = Image::new(&variants()[0]);
    let ino = image.file("f");
    let before = image.fs.getattr(ino).unwrap();
    image.set(ino, "user.a", b"1").unwrap();
    let after = image.fs.getattr(ino).unwrap();
    assert!(after.ctime > before.ctime);
    assert_eq!((after.mtime, after.atime), (before.mtime, before.atime));
}

#[test]
fn attributes_go_with_the_inode_wherever_it_moves() {
    for options in variants() {
        let image = Image::new(&options);
        let (small, large) = (value(40, 1), value(3000, 2));
        let mut want = BTreeMap::new();
        for name in ["a", "b"] {
            let ino = image.file(name);
            image.set(ino, "user.small", &small).unwrap();
            image.set(ino, "security.s", &value(30, 3)).unwrap();
            if name == "b" {
                image.set(ino, "user.large", &large).unwrap();
            }
            let all: Vec<_> =
                image.fs.listxattr(ino).unwrap().into_iter().map(|n| (n.clone(), image.fs.getxattr(ino, &n))).collect();
            want.insert(ino, all.into_iter().map(|(n, v)| (n, v.unwrap())).collect::<BTreeMap<_, _>>());
        }
        let dir = image.fs.mkdir(ME, ROOT_INO, b"dir", 0o755).unwrap().ino;
        let same = |image: &Image| {
            for (ino, want) in &want {
                let names = image.fs.listxattr(*ino).unwrap();
                let got: BTreeMap<_, _> =
                    names.into_iter().map(|n| (n.clone(), image.fs.getxattr(*ino, &n).unwrap())).collect();
                assert_eq!(got, *want);
            }
        };
        for name in ["a", "b"] {
            let ino = image.find(name);
            // To the external table and back, to another directory, to a long name.
            image.fs.link(ME, ino, dir, format!("{name}2").as_bytes()).unwrap();
            same(&image);
            image.fs.unlink(ROOT_INO, name.as_bytes()).unwrap();
            image.fs.lookup(dir, format!("{name}2").as_bytes()).unwrap();
            same(&image);
            let long = "n".repeat(240);
            image
                .fs
                .rename(
                    ME,
                    dir,
                    format!("{name}2").as_bytes(),
                    ROOT_INO,
                    format!("{name}{long}").as_bytes(),
                    Default::default(),
                )
                .unwrap();
            same(&image);
        }
        let image = image.again();
        same(&image);
    }
}

#[test]
fn an_unlinked_open_file_keeps_its_attributes() {
    let image = Image::new(&variants()[0]);
    let free = image.fs.statfs().free;
    let ino = image.file("f");
    image.set(ino, "user.large", &value(50_000, 1)).unwrap();
    image.fs.unlink(ROOT_INO, b"f").unwrap();
    image.set(ino, "user.more", &value(5000, 2)).unwrap();
    assert_eq!(image.get(ino, "user.large").unwrap(), value(50_000, 1));
    // Lost references: a crash, as far as the next mount can tell.
    image.fs.sync().unwrap();
    let image = Image { fs: Image::open(&Arc::new(image.dev.duplicate())), dev: image.dev };
    assert_eq!(image.fs.statfs().free, free, "the orphan's blocks are given back");
}

#[test]
fn a_full_device_is_told_by_setxattr() {
    let image = Image::new(&variants()[0]);
    let ino = image.file("f");
    image.set(ino, "user.first", &value(3000, 1)).unwrap();
    let filler = image.file("filler");
    let mut at = 0;
    while let Ok(n) = image.fs.write(ME, filler, at, &vec![1; 1 << 16]) {
        at += n as u64;
    }
    while let Ok(n) = image.fs.write(ME, filler, at, &[1; 1024]) {
        at += n as u64;
    }
    assert!(matches!(image.set(ino, "user.second", &value(60_000, 2)), Err(Error::NoSpace)));
    assert!(matches!(image.get(ino, "user.second"), Err(Error::NoAttribute)));
    assert_eq!(image.get(ino, "user.first").unwrap(), value(3000, 1));
    image.fs.sync().unwrap();
    image.again();
}

/// An access control list; entries are (tag, permissions), and tags 2 and 8 are for number 77.
fn acl(entries: &[(u16, u16)]) -> Vec<u8> {
    let mut b = 2u32.to_le_bytes().to_vec();
    for (tag, perm) in entries {
        b.extend_from_slice(&tag.to_le_bytes());
        b.extend_from_slice(&perm.to_le_bytes());
        let id = if matches!(tag, 2 | 8) { 77 } else { u32::MAX };
        b.extend_from_slice(&id.to_le_bytes());
    }
    b
}

#[test]
fn access_lists_and_permission_bits_follow_each_other() {
    let image = Image::new(&variants()[0]);
    let ino = image.file("f");
    let fs = &image.fs;
    let perm = |ino| fs.getattr(ino).unwrap().perm;
    fs.setxattr(ME, ino, ACCESS, &acl(&[(1, 6), (2, 7), (4, 4), (16, 6), (32, 0)]), ANY).unwrap();
    assert_eq!(perm(ino), 0o660);
    fs.setattr(ME, ino, SetAttr::default().perm(Some(0o2604))).unwrap();
    assert_eq!(fs.getxattr(ino, ACCESS).unwrap(), acl(&[(1, 6), (2, 7), (4, 4), (16, 0), (32, 4)]));
    // A minimal list is the mode.
    let kill = SetXattr { drop_sgid: true, ..ANY };
    fs.setxattr(ME, ino, ACCESS, &acl(&[(1, 7), (4, 5), (32, 1)]), kill).unwrap();
    assert_eq!(perm(ino), 0o751, "set-group-id went");
    assert!(matches!(fs.getxattr(ino, ACCESS), Err(Error::NoAttribute)));
    assert!(matches!(fs.setxattr(ME, ino, ACCESS, &acl(&[(1, 7)]), ANY), Err(Error::Invalid(_))));
    assert!(matches!(fs.setxattr(ME, ino, DEFAULT, &acl(&[(1, 7), (4, 5), (32, 1)]), ANY), Err(Error::Denied)));
    fs.removexattr(ME, ino, ACCESS).unwrap();
    assert_eq!(perm(ino), 0o751);
}

#[test]
fn new_files_inherit_the_default_list_of_their_directory() {
    for options in variants() {
        let image = Image::new(&options);
        let fs = &image.fs;
        let dir = fs.mkdir(ME, ROOT_INO, b"dir", 0o755).unwrap().ino;
        let masked = |bits| NewPerm { bits, umask: 0o077 };
        assert_eq!(fs.create(ME, dir, b"before", masked(0o666)).unwrap().perm, 0o600, "the umask counts");
        let default = acl(&[(1, 7), (2, 7), (4, 5), (16, 7), (32, 5)]);
        fs.setxattr(ME, dir, DEFAULT, &default, ANY).unwrap();
        let file = fs.create(ME, dir, b"file", masked(0o666)).unwrap();
        assert_eq!(file.perm, 0o664, "the umask does not count");
        assert_eq!(fs.getxattr(file.ino, ACCESS).unwrap(), acl(&[(1, 6), (2, 7), (4, 5), (16, 6), (32, 4)]));
        assert!(matches!(fs.getxattr(file.ino, DEFAULT), Err(Error::NoAttribute)));
        let sub = fs.mkdir(ME, dir, b"sub", masked(0o777)).unwrap();
        assert_eq!(fs.getxattr(sub.ino, DEFAULT).unwrap(), default);
        assert_eq!(fs.getxattr(sub.ino, ACCESS).unwrap(), default);
        let pipe = fs.mknod(ME, sub.ino, b"pipe", FileType::Fifo, masked(0o600), 0).unwrap();
        assert_eq!((pipe.perm, fs.listxattr(pipe.ino).unwrap().len()), (0o600, 1));
        let link = fs.symlink(ME, sub.ino, b"link", b"x").unwrap();
        assert!(fs.listxattr(link.ino).unwrap().is_empty());
        // A list of many entries does not fit an inode.
        let long: Vec<u8> = {
            let mut entries = vec![(1, 7)];
            entries.extend((0..100).map(|_| (2, 5)));
            entries.extend([(4, 5), (16, 5), (32, 0)]);
            acl(&entries)
        };
        fs.setxattr(ME, sub.ino, DEFAULT, &long, ANY).unwrap();
        let deep = fs.mkdir(ME, sub.ino, b"deep", 0o777).unwrap();
        assert_eq!(fs.getxattr(deep.ino, DEFAULT).unwrap(), long);
        for i in 0..50 {
            let name = format!("f{i}");
            let ino = fs.create(ME, deep.ino, name.as_bytes(), 0o666).unwrap().ino;
            fs.write(ME, ino, 0, &value(i * 40, i)).unwrap();
        }
        let image = image.again();
        let dir = image.find("dir");
        let file = image.fs.lookup(dir, b"file").unwrap();
        assert_eq!(image.fs.getxattr(file.ino, ACCESS).unwrap().len(), 44);
    }
}
