//! The engine through its public interface, on a memory device.

use cffs::device::{Device, MemoryDevice};
use cffs::{Attr, Caller, Error, Fs, MkfsOptions, MountOptions, ROOT_INO, RenameFlags, SetAttr, mkfs, path};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;

fn options() -> MountOptions {
    MountOptions::default().background(false)
}

fn fresh(size: u64, o: &MkfsOptions) -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(size));
    mkfs(&*dev, None, o).expect("mkfs");
    dev
}

fn mount(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
    Fs::open(dev.clone() as Arc<dyn Device>, None, options()).expect("mount")
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}

/// The four format combinations.
fn variants() -> Vec<MkfsOptions> {
    [(false, false), (true, false), (false, true), (true, true)]
        .into_iter()
        .map(|(no_embed, no_group)| MkfsOptions::default().no_embed(no_embed).no_group(no_group))
        .collect()
}

#[test]
fn a_tree_is_found_again_after_unmount_and_after_a_crash() {
    for o in variants() {
        for crash in [false, true] {
            let dev = fresh(64 << 20, &o);
            let fs = mount(&dev);
            for d in 0..20 {
                fs.mkdir(ROOT, ROOT_INO, format!("dir{d}").as_bytes(), 0o755).unwrap();
                for f in 0..40 {
                    let data = pattern(d * 100 + f, (f * 137) as usize);
                    path::write_file(&fs, ROOT, format!("/dir{d}/file{f}").as_bytes(), &data).unwrap();
                }
            }
            let big = pattern(7, 3_000_000);
            path::write_file(&fs, ROOT, b"/big", &big).unwrap();
            fs.symlink(ROOT, ROOT_INO, b"short", b"dir1/file1").unwrap();
            fs.symlink(ROOT, ROOT_INO, b"long", &[b'x'; 3000]).unwrap();
            if crash {
                fs.sync().unwrap();
            } else {
                fs.close().unwrap();
            }
            drop(fs);
            let fs = mount(&dev);
            for d in 0..20 {
                for f in 0..40 {
                    let data = path::read_file(&fs, format!("/dir{d}/file{f}").as_bytes()).unwrap();
                    assert_eq!(data, pattern(d * 100 + f, (f * 137) as usize), "dir{d}/file{f}");
                }
            }
            assert!(path::read_file(&fs, b"/big").unwrap() == big);
            let short = fs.lookup(ROOT_INO, b"short").unwrap();
            assert_eq!(fs.readlink(short.ino).unwrap(), b"dir1/file1");
            let long = fs.lookup(ROOT_INO, b"long").unwrap();
            assert_eq!(fs.readlink(long.ino).unwrap(), [b'x'; 3000]);
            fs.close().unwrap();
        }
    }
}

fn names(fs: &Fs, dir: u64) -> Vec<String> {
    let mut out = Vec::new();
    fs.readdir(dir, 0, false, &mut |e| {
        out.push(String::from_utf8(e.name).unwrap());
        true
    })
    .unwrap();
    out.sort();
    out
}

#[test]
fn space_returns_when_everything_is_removed() {
    for o in variants() {
        let dev = fresh(64 << 20, &o);
        let fs = mount(&dev);
        fs.sync().unwrap();
        let before = fs.statfs();
        for round in 0..3 {
            for d in 0..10 {
                let dir = fs.mkdir(ROOT, ROOT_INO, format!("d{d}").as_bytes(), 0o755).unwrap();
                for f in 0..200 {
                    let name = format!("f{f}");
                    let a = fs.create(ROOT, dir.ino, name.as_bytes(), 0o644).unwrap();
                    fs.write(ROOT, a.ino, 0, &pattern(f, 1024 + f as usize * 10)).unwrap();
                    fs.forget(a.ino, 1);
                }
                fs.forget(dir.ino, 1);
            }
            if round != 1 {
                fs.sync().unwrap();
            }
            for d in 0..10 {
                let dir = fs.lookup(ROOT_INO, format!("d{d}").as_bytes()).unwrap();
                for f in 0..200 {
                    fs.unlink(dir.ino, format!("f{f}").as_bytes()).unwrap();
                }
                fs.rmdir(ROOT_INO, format!("d{d}").as_bytes()).unwrap();
                fs.forget(dir.ino, 1);
            }
            assert!(names(&fs, ROOT_INO).is_empty());
            fs.sync().unwrap();
            assert_eq!(fs.statfs(), before, "round {round} of {o:?}");
        }
        fs.close().unwrap();
    }
}

#[test]
fn an_open_file_outlives_its_name_and_its_directory() {
    for o in variants() {
        let dev = fresh(64 << 20, &o);
        let fs = mount(&dev);
        let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap();
        let file = fs.create(ROOT, dir.ino, b"f", 0o644).unwrap();
        fs.write(ROOT, file.ino, 0, &pattern(1, 5000)).unwrap();
        fs.fsync(file.ino, false).unwrap();
        fs.unlink(dir.ino, b"f").unwrap();
        fs.rmdir(ROOT_INO, b"d").unwrap();
        assert!(matches!(fs.create(ROOT, dir.ino, b"x", 0o644), Err(Error::NotFound)));
        let mut buf = vec![0; 5000];
        assert_eq!(fs.read(file.ino, 0, &mut buf).unwrap(), 5000);
        assert_eq!(buf, pattern(1, 5000));
        fs.sync().unwrap();
        drop(fs); // crash: the next mount finishes the removal
        let fs = mount(&dev);
        assert!(names(&fs, ROOT_INO).is_empty());
        assert!(fs.getattr(file.ino).is_err());
        fs.close().unwrap();
    }
}

#[test]
fn rename_replaces_exchanges_and_refuses() {
    for o in variants() {
        let dev = fresh(64 << 20, &o);
        let fs = mount(&dev);
        let attr = |p: &str| -> Attr { path::resolve(&fs, p.as_bytes()).unwrap() };
        let a = fs.mkdir(ROOT, ROOT_INO, b"a", 0o755).unwrap();
        let b = fs.mkdir(ROOT, ROOT_INO, b"b", 0o755).unwrap();
        path::write_file(&fs, ROOT, b"/a/one", b"1").unwrap();
        path::write_file(&fs, ROOT, b"/b/two", b"22").unwrap();
        let one = attr("/a/one").ino;
        fs.rename(ROOT, a.ino, b"one", b.ino, b"two", RenameFlags::default()).unwrap();
        assert_eq!(attr("/b/two").ino, one);
        assert_eq!(path::read_file(&fs, b"/b/two").unwrap(), b"1");
        assert!(names(&fs, a.ino).is_empty());
        fs.mkdir(ROOT, a.ino, b"sub", 0o755).unwrap();
        let exchange = RenameFlags { exchange: true, ..Default::default() };
        fs.rename(ROOT, a.ino, b"sub", b.ino, b"two", exchange).unwrap();
        assert_eq!(attr("/a/sub").ino, one);
        assert_eq!((attr("/a").nlink, attr("/b").nlink), (2, 3));
        let keep = RenameFlags { no_replace: true, ..Default::default() };
        assert!(matches!(fs.rename(ROOT, a.ino, b"sub", b.ino, b"two", keep), Err(Error::Exists)));
        let e = fs.rename(ROOT, ROOT_INO, b"b", attr("/b/two").ino, b"x", RenameFlags::default());
        assert!(matches!(e, Err(Error::Invalid(_))));
        fs.link(ROOT, one, b.ino, b"again").unwrap();
        assert_eq!(attr("/b/again").nlink, 2);
        fs.unlink(a.ino, b"sub").unwrap();
        assert_eq!(attr("/b/again").nlink, 1);
        assert_eq!(path::read_file(&fs, b"/b/again").unwrap(), b"1");
        fs.close().unwrap();
        let fs = mount(&dev);
        assert_eq!(path::read_file(&fs, b"/b/again").unwrap(), b"1");
    }
}

#[test]
fn sparse_and_truncated_files_read_back() {
    let dev = fresh(64 << 20, &MkfsOptions::default());
    let fs = mount(&dev);
    let f = fs.create(ROOT, ROOT_INO, b"f", 0o644).unwrap();
    let far = (1u64 << 63) - 2;
    fs.write(ROOT, f.ino, far, b"x").unwrap();
    fs.sync().unwrap();
    let mut one = [0u8; 1];
    assert_eq!(fs.read(f.ino, far, &mut one).unwrap(), 1);
    assert_eq!(&one, b"x");
    assert_eq!(fs.seek_data(f.ino, 0).unwrap() / 4096, far / 4096);
    let size = |s| SetAttr::default().size(Some(s));
    fs.setattr(ROOT, f.ino, size(0)).unwrap();
    fs.write(ROOT, f.ino, 0, &pattern(3, 10_000)).unwrap();
    fs.sync().unwrap();
    fs.setattr(ROOT, f.ino, size(5_001)).unwrap();
    fs.setattr(ROOT, f.ino, size(9_000)).unwrap();
    for _ in 0..2 {
        let mut buf = vec![1u8; 10_000];
        assert_eq!(fs.read(f.ino, 0, &mut buf).unwrap(), 9_000);
        assert_eq!(buf[..5_001], pattern(3, 10_000)[..5_001]);
        assert!(buf[5_001..9_000].iter().all(|b| *b == 0));
        fs.sync().unwrap();
        fs.drop_caches();
    }
    fs.close().unwrap();
}

#[test]
fn a_sparse_file_takes_less_than_its_size_before_and_after_writeback() {
    for o in variants() {
        let dev = fresh(64 << 20, &o);
        let fs = mount(&dev);
        let block = u64::from(fs.statfs().block_size);
        let f = fs.create(ROOT, ROOT_INO, b"f", 0o644).unwrap().ino;
        // Data in every second block: as many extents as there can be, which is the worst case for the extent tree.
        for n in 0..11 {
            fs.write(ROOT, f, (2 * n + 1) * block, &pattern(n, block as usize)).unwrap();
        }
        let data = 11 * block / 512;
        assert_eq!(fs.getattr(f).unwrap().blocks, data, "not yet written");
        fs.sync().unwrap();
        let written = fs.getattr(f).unwrap();
        assert!((data..=data + block / 512).contains(&written.blocks), "written: {} sectors", written.blocks);
        assert!(written.blocks * 512 < written.size);
        fs.close().unwrap();
    }
}
