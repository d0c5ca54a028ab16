//! What the engine writes passes the check: in all four kinds of file system, after an unmount and after a crash.

use cffs::check::{CheckOptions, Report, check};
use cffs::device::MemoryDevice;
use cffs::{Caller, Fs, MkfsOptions, MountOptions, ROOT_INO, RenameFlags, SetAttr, mkfs};
use std::sync::Arc;

const ME: Caller = Caller { uid: 1000, gid: 1000 };

fn report(dev: &Arc<MemoryDevice>) -> Report {
    check(dev.clone(), None, &CheckOptions::default(), &|_, _, _| {}).unwrap()
}

fn assert_clean(dev: &Arc<MemoryDevice>, when: &str) -> Report {
    let report = report(dev);
    let list: Vec<String> = report.problems.iter().take(12).map(|p| p.to_string()).collect();
    assert!(report.is_clean(), "{when}: {} problems\n{}", report.problems_total, list.join("\n"));
    report
}

fn open(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
    Fs::open(dev.clone(), None, MountOptions::default().background(false)).unwrap()
}

fn file(fs: &Fs, dir: u64, name: &str, size: usize) -> u64 {
    let a = fs.create(ME, dir, name.as_bytes(), 0o644).unwrap();
    let data: Vec<u8> = (0..size).map(|i| (i / 7) as u8).collect();
    assert_eq!(fs.write(ME, a.ino, 0, &data).unwrap(), size);
    fs.forget(a.ino, 1);
    a.ino
}

fn dir(fs: &Fs, parent: u64, name: &str) -> u64 {
    let a = fs.mkdir(ME, parent, name.as_bytes(), 0o755).unwrap();
    fs.forget(a.ino, 1);
    a.ino
}

/// A little of everything. Returns files that are unlinked but still in use.
fn work(fs: &Fs, round: u64) -> Vec<u64> {
    let top = dir(fs, ROOT_INO, &format!("round{round}"));
    let mut held = Vec::new();
    for d in 0..6 {
        let at = dir(fs, top, &format!("dir{d}"));
        for n in 0..40 {
            file(fs, at, &format!("file{n}"), (n * 137 * (d + 1)) % 9000);
        }
        for n in (0..40).step_by(3) {
            fs.unlink(at, format!("file{n}").as_bytes()).unwrap();
        }
        let kept = fs.lookup(at, b"file1").unwrap();
        held.push(kept.ino);
        let linked = fs.lookup(at, b"file2").unwrap();
        for n in 0..3 {
            let a = fs.link(ME, linked.ino, top, format!("link{d}-{n}").as_bytes()).unwrap();
            fs.forget(a.ino, 1);
        }
        fs.forget(linked.ino, 1);
        fs.unlink(at, b"file2").unwrap();
        fs.unlink(at, b"file1").unwrap();
        let s = fs.symlink(ME, at, b"symlink", b"somewhere/else").unwrap();
        let long = fs.symlink(ME, at, b"long symlink", &[b'x'; 900]).unwrap();
        fs.forget(s.ino, 1);
        fs.forget(long.ino, 1);
        fs.rename(ME, at, b"file4", top, format!("moved{d}").as_bytes(), RenameFlags::default()).unwrap();
        fs.rename(ME, at, b"file5", at, b"file7", RenameFlags::default()).unwrap();
    }
    fs.rename(ME, top, b"dir0", top, b"renamed", RenameFlags::default()).unwrap();
    fs.rename(ME, top, b"dir1", ROOT_INO, format!("out{round}").as_bytes(), RenameFlags::default()).unwrap();
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    fs.rename(ME, top, b"dir2", top, b"moved3", exchange).unwrap();

    let big = file(fs, top, "big", 3 << 20);
    let a = fs.lookup(top, b"big").unwrap();
    for n in 0..50u64 {
        fs.write(ME, big, (4 << 20) + n * 20_000, b"scattered").unwrap();
    }
    fs.sync().unwrap();
    fs.setattr(ME, big, SetAttr::default().size(Some((4 << 20) + 333_333))).unwrap();
    fs.forget(a.ino, 1);

    // Enough names for an index, and then few.
    let many = dir(fs, top, "many");
    for n in 0..1500 {
        file(fs, many, &format!("a rather long name of file number {n}"), 30);
    }
    fs.sync().unwrap();
    for n in 0..1500 {
        if n % 5 != 0 {
            fs.unlink(many, format!("a rather long name of file number {n}").as_bytes()).unwrap();
        }
    }
    held
}

#[test]
fn images_written_by_the_engine_pass_the_check() {
    for (no_embed, no_group, block_size) in [
        (false, false, 4096),
        (false, true, 4096),
        (true, false, 4096),
        (true, true, 4096),
        (false, false, 1024),
        (true, false, 16384),
    ] {
        let what = format!("no_embed {no_embed} no_group {no_group} blocks of {block_size}");
        let dev = Arc::new(MemoryDevice::new(256 << 20));
        mkfs(&*dev, None, &MkfsOptions::default().no_embed(no_embed).no_group(no_group).block_size(block_size))
            .unwrap();
        let fs = open(&dev);
        work(&fs, 0);
        fs.close().unwrap();
        assert_clean(&dev, &format!("{what}, unmounted"));

        let fs = open(&dev);
        let held = work(&fs, 1);
        fs.sync().unwrap();
        let r = assert_clean(&dev, &format!("{what}, synced"));
        assert_eq!((r.state, r.counts.orphans), ("journaled", held.len() as u64), "{what}");
        file(&fs, ROOT_INO, "never synced", 5000);
        drop(fs);
        let r = assert_clean(&dev, &format!("{what}, crashed"));
        assert!(r.counts.files > 600 && r.counts.dirs == 17, "{what}: {:?}", r.counts);

        let fs = open(&dev);
        assert!(fs.lookup(ROOT_INO, b"out1").is_ok());
        fs.close().unwrap();
        let r = assert_clean(&dev, &format!("{what}, recovered"));
        assert_eq!((r.state, r.counts.orphans), ("clean", 0), "{what}");

        // Everything goes: nothing may be left.
        let fs = open(&dev);
        remove_all(&fs, ROOT_INO);
        fs.close().unwrap();
        let r = assert_clean(&dev, &format!("{what}, emptied"));
        assert_eq!((r.counts.files, r.counts.dirs, r.counts.extents), (0, 1, 0), "{what}: {:?}", r.counts);

        // Tables and directories that shrank to nothing grow again.
        let fs = open(&dev);
        for round in 0..3 {
            file(&fs, ROOT_INO, "alone", 3000);
            fs.sync().unwrap();
            assert_clean(&dev, &format!("{what}, reused {round}"));
            fs.unlink(ROOT_INO, b"alone").unwrap();
        }
        work(&fs, 2);
        fs.close().unwrap();
        assert_clean(&dev, &format!("{what}, filled again"));
    }
}

fn remove_all(fs: &Fs, dir: u64) {
    let mut names = Vec::new();
    fs.readdir(dir, 0, false, &mut |e| {
        names.push((e.name, e.ino, e.file_type));
        true
    })
    .unwrap();
    for (name, ino, file_type) in names {
        if file_type == cffs::FileType::Directory {
            let a = fs.lookup(dir, &name).unwrap();
            remove_all(fs, ino);
            fs.forget(a.ino, 1);
            fs.rmdir(dir, &name).unwrap();
        } else {
            fs.unlink(dir, &name).unwrap();
        }
    }
}
