//! Names, links and unlinked files in rare circumstances.

use cffs::check::{CheckOptions, check};
use cffs::device::{Device, MemoryDevice};
use cffs::{Caller, Error, Fs, MkfsOptions, MountOptions, ROOT_INO, RenameFlags, SetAttr, mkfs, path};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;

fn options() -> MountOptions {
    MountOptions::default().background(false)
}

fn fresh(size: u64, no_embed: bool) -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(size));
    mkfs(&*dev, None, &MkfsOptions::default().no_embed(no_embed)).expect("mkfs");
    dev
}

fn mount(dev: &Arc<MemoryDevice>, opts: MountOptions) -> Arc<Fs> {
    Fs::open(dev.clone() as Arc<dyn Device>, None, opts).expect("mount")
}

fn clean(dev: &Arc<MemoryDevice>) {
    let report = check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).expect("check");
    let list: Vec<String> = report.problems.iter().take(12).map(|p| p.to_string()).collect();
    assert!(report.is_clean(), "{} problems\n{}", report.problems_total, list.join("\n"));
}

#[test]
fn a_directory_goes_although_many_files_of_it_are_still_open() {
    for no_embed in [false, true] {
        let dev = fresh(64 << 20, no_embed);
        let fs = mount(&dev, options());
        let before = fs.statfs();
        for over in [false, true] {
            let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap();
            let mut open = Vec::new();
            for i in 0..300u32 {
                let name = format!("n{i}");
                let a = if i % 3 == 0 {
                    // Longer than a slot of the external table has room for.
                    fs.symlink(ROOT, dir.ino, name.as_bytes(), &vec![b'a' + (i % 26) as u8; 400]).unwrap()
                } else {
                    let a = fs.create(ROOT, dir.ino, name.as_bytes(), 0o644).unwrap();
                    fs.write(ROOT, a.ino, 0, name.as_bytes()).unwrap();
                    a
                };
                open.push((i, a.ino, name));
            }
            fs.sync().unwrap();
            for (_, _, name) in &open {
                fs.unlink(dir.ino, name.as_bytes()).unwrap();
            }
            if over {
                let other = fs.mkdir(ROOT, ROOT_INO, b"e", 0o755).unwrap();
                fs.rename(ROOT, ROOT_INO, b"e", ROOT_INO, b"d", RenameFlags::default()).unwrap();
                fs.rmdir(ROOT_INO, b"d").unwrap();
                fs.forget(other.ino, 1);
            } else {
                fs.rmdir(ROOT_INO, b"d").unwrap();
            }
            fs.drop_caches();
            for (i, ino, name) in &open {
                if i % 3 == 0 {
                    assert_eq!(fs.readlink(*ino).unwrap(), vec![b'a' + (i % 26) as u8; 400]);
                } else {
                    let mut buf = [0u8; 16];
                    let n = fs.read(*ino, 0, &mut buf).unwrap();
                    assert_eq!(&buf[..n], name.as_bytes());
                }
            }
            fs.sync().unwrap();
            for (_, ino, _) in &open {
                fs.forget(*ino, 1);
            }
            fs.forget(dir.ino, 1);
            fs.sync().unwrap();
            assert_eq!(fs.statfs(), before);
        }
        fs.close().unwrap();
        clean(&dev);
    }
}

#[test]
fn a_long_symbolic_link_is_whole_after_any_commit() {
    for no_embed in [false, true] {
        for len in [100, 137, 200, 1500, 4095] {
            let dev = fresh(64 << 20, no_embed);
            let fs = mount(&dev, options());
            let other = fs.create(ROOT, ROOT_INO, b"other", 0o644).unwrap();
            fs.symlink(ROOT, ROOT_INO, b"link", &vec![b'x'; len]).unwrap();
            fs.fsync(other.ino, false).unwrap();
            drop(fs); // crash
            let fs = mount(&dev, options());
            let link = fs.lookup(ROOT_INO, b"link").unwrap();
            assert_eq!(link.size, len as u64);
            assert_eq!(fs.readlink(link.ino).unwrap(), vec![b'x'; len]);
            fs.link(ROOT, link.ino, ROOT_INO, b"again").unwrap();
            fs.unlink(ROOT_INO, b"link").unwrap();
            fs.close().unwrap();
            clean(&dev);
            let fs = mount(&dev, options());
            let again = fs.lookup(ROOT_INO, b"again").unwrap();
            assert_eq!(fs.readlink(again.ino).unwrap(), vec![b'x'; len]);
            fs.close().unwrap();
            clean(&dev);
        }
    }
}

#[test]
fn an_unlinked_open_file_does_not_fill_the_memory() {
    let dev = fresh(64 << 20, false);
    let fs = mount(&dev, options().cache_bytes(4 << 20));
    let before = fs.statfs();
    let f = fs.create(ROOT, ROOT_INO, b"f", 0o644).unwrap();
    fs.unlink(ROOT_INO, b"f").unwrap();
    let chunk: Vec<u8> = (0..65536u32).map(|i| (i / 7) as u8).collect();
    for i in 0..256u64 {
        fs.write(ROOT, f.ino, i * 65536, &chunk).unwrap();
        assert!(fs.stats().cache.dirty_data_bytes <= 4 << 20, "after {i} pieces");
    }
    let mut buf = vec![0; 65536];
    for i in 0..256u64 {
        assert_eq!(fs.read(f.ino, i * 65536, &mut buf).unwrap(), 65536);
        assert!(buf == chunk, "piece {i}");
    }
    fs.forget(f.ino, 1);
    fs.sync().unwrap();
    assert_eq!(fs.statfs(), before);
    fs.close().unwrap();
    clean(&dev);
}

#[test]
fn space_of_removed_files_is_there_for_names_at_once() {
    let dev = fresh(16 << 20, false);
    let fs = mount(&dev, options());
    let mut n = 0;
    let full = loop {
        match path::write_file(&fs, ROOT, format!("/f{n}").as_bytes(), &[7; 9000]) {
            Ok(_) => n += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::NoSpace), "{full}");
    fs.sync().unwrap();
    for i in 0..n {
        fs.unlink(ROOT_INO, format!("f{i}").as_bytes()).unwrap();
    }
    // Nothing was committed since. Directories need blocks right now.
    for i in 0..20 {
        let d = fs.mkdir(ROOT, ROOT_INO, format!("d{i}").as_bytes(), 0o755).unwrap();
        fs.create(ROOT, d.ino, b"x", 0o644).unwrap();
    }
    fs.close().unwrap();
    clean(&dev);
}

#[test]
fn a_write_that_finds_no_space_changes_nothing() {
    let dev = fresh(16 << 20, false);
    let fs = mount(&dev, options());
    let make = |name: String| fs.create(ROOT, ROOT_INO, name.as_bytes(), 0o644).unwrap().ino;
    let (file, filler) = (make("file".into()), make("filler".into()));
    let grains: Vec<u64> = (0..400).map(|i| make(format!("grain{i}"))).collect();
    let mut model = vec![0u8; 24_576 + 1500];
    for piece in 0..4 {
        let at = piece * 8192;
        model[at..at + 1500].fill(1);
        fs.write(ROOT, file, at as u64, &[1; 1500]).unwrap();
    }
    let (mut at, mut before) = (0, 1);
    while at != before {
        before = at;
        while let Ok(n) = fs.write(ROOT, filler, at, &[2; 4096]) {
            at += n as u64;
        }
        fs.sync().unwrap(); // less is set aside then
    }
    // How many are left that the filler cannot take depends on where everything lies.
    if fs.statfs().free < 2 {
        let size = SetAttr::default().size(Some(at - 4096));
        fs.setattr(ROOT, filler, size).unwrap();
    }
    // Two fragments are left: room for the data, but not for the tree of extents that this may need.
    for grain in grains {
        fs.sync().unwrap();
        if fs.statfs().free > 2 {
            fs.write(ROOT, grain, 0, &[3; 1000]).unwrap();
        }
    }
    assert_eq!(fs.statfs().free, 2);
    let mut failed = 0;
    for (offset, len) in [(0, 100), (1000, 2000), (1400, 700), (4096, 2000), (8000, 300), (1000, 900)] {
        match fs.write(ROOT, file, offset, &vec![4; len]) {
            Err(e) => {
                assert!(matches!(e, Error::NoSpace), "{e}");
                failed += 1;
            }
            Ok(n) => {
                model.resize(model.len().max(offset as usize + n), 0);
                model[offset as usize..offset as usize + n].fill(4);
            }
        }
    }
    assert!(failed > 0);
    let size = SetAttr::default().size(Some(40_000));
    if fs.setattr(ROOT, file, size).is_ok() {
        model.resize(40_000, 0);
    }
    assert_eq!(path::read_file(&fs, b"/file").unwrap(), model);
    fs.close().unwrap();
    clean(&dev);
    let fs = mount(&dev, options());
    assert_eq!(path::read_file(&fs, b"/file").unwrap(), model);
    fs.close().unwrap();
}
