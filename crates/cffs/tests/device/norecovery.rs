//! Mounting without recovery: what stands in place is seen, and the log stays as it is.

use crate::common::plain::{clean, fresh, mount};
use cffs::device::{Device, MemoryDevice};
use cffs::{Caller, Error, Fs, MkfsOptions, MountOptions, ROOT_INO, mkfs, path};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;

fn looking() -> MountOptions {
    MountOptions::default().background(false).read_only(true).no_recovery(true)
}

/// Reads all that can be reached. Errors are welcome, as what is seen may be inconsistent.
fn walk(fs: &Fs, dir: u64, depth: usize) -> usize {
    let mut entries = Vec::new();
    let _ = fs.readdir(dir, 0, true, &mut |e| {
        entries.push(e);
        true
    });
    for e in &entries {
        let _ = fs.read(e.ino, 0, &mut [0; 8192]);
        let _ = fs.listxattr(e.ino);
        if e.file_type == cffs::FileType::Directory && depth < 8 {
            walk(fs, e.ino, depth + 1);
        }
        fs.forget(e.ino, 1);
    }
    entries.len()
}

#[test]
fn what_is_in_the_log_alone_is_not_seen_and_stays_there() {
    let dev = fresh(32 << 20, &MkfsOptions::default());
    let fs = mount(&dev);
    path::write_file(&fs, ROOT, b"/old", &[1; 3000]).unwrap();
    fs.close().unwrap();
    let fs = mount(&dev);
    path::write_file(&fs, ROOT, b"/new", &[2; 3000]).unwrap();
    fs.unlink(ROOT_INO, b"old").unwrap();
    fs.sync().unwrap();
    drop(fs);
    let fs = Fs::open(dev.clone(), None, looking()).unwrap();
    assert!(matches!(fs.lookup(ROOT_INO, b"new"), Err(Error::NotFound)));
    assert_eq!(path::read_file(&fs, b"/old").unwrap(), [1; 3000]);
    assert!(matches!(fs.create(ROOT, ROOT_INO, b"x", 0o600), Err(Error::ReadOnly)));
    fs.close().unwrap();
    // A read-only mount that recovers sees the rest, and so does the next mount.
    let fs = Fs::open(dev.clone(), None, looking().no_recovery(false)).unwrap();
    assert_eq!(path::read_file(&fs, b"/new").unwrap(), [2; 3000]);
    fs.close().unwrap();
    let fs = mount(&dev);
    assert!(matches!(fs.lookup(ROOT_INO, b"old"), Err(Error::NotFound)));
    fs.close().unwrap();
    clean(&dev, "recovered after all");
}

#[test]
fn it_is_refused_where_anything_could_be_written() {
    let dev = fresh(32 << 20, &MkfsOptions::default());
    let outcome = Fs::open(dev, None, MountOptions::default().background(false).no_recovery(true));
    match outcome {
        Err(Error::Invalid(why)) => assert!(why.contains("norecovery") && why.contains("read-only"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_external_log_need_not_be_there() {
    let (dev, log) = (Arc::new(MemoryDevice::new(32 << 20)), Arc::new(MemoryDevice::new(4 << 20)));
    mkfs(&*dev, Some(&*log as &dyn Device), &MkfsOptions::default()).unwrap();
    let fs = Fs::open(dev.clone(), Some(log.clone()), MountOptions::default().background(false)).unwrap();
    path::write_file(&fs, ROOT, b"/f", &[1; 3000]).unwrap();
    fs.close().unwrap();
    let fs = Fs::open(dev.clone(), None, looking()).unwrap();
    assert_eq!(path::read_file(&fs, b"/f").unwrap(), [1; 3000]);
    fs.close().unwrap();
    assert!(Fs::open(dev, None, looking().no_recovery(false)).is_err());
}

#[test]
fn blocks_of_different_times_make_no_panic() {
    for seed in 0..12u64 {
        let dev = fresh(16 << 20, &MkfsOptions::default().no_embed(seed % 2 == 1).log_bytes(Some(2 << 20)));
        let fs = mount(&dev);
        for n in 0..150 {
            path::write_file(&fs, ROOT, format!("/f{n}").as_bytes(), &vec![n as u8; 100 * n]).unwrap();
        }
        let d = fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap().ino;
        fs.sync().unwrap();
        // What a checkpoint was about to write: some of the blocks of the state after it are already in place.
        let before = copy(&dev);
        for n in (0..150).filter(|n| (n * 7 + seed) % 3 == 0) {
            fs.unlink(ROOT_INO, format!("f{n}").as_bytes()).unwrap();
            path::write_file(&fs, ROOT, format!("/d/g{n}").as_bytes(), &[7; 5000]).unwrap();
        }
        fs.forget(d, 1);
        fs.close().unwrap();
        let after = copy(&dev);
        let mixed = Arc::new(MemoryDevice::new(16 << 20));
        for (i, (old, new)) in before.chunks(4096).zip(after.chunks(4096)).enumerate() {
            let part = if (i as u64 * 2_654_435_761 + seed) % 5 < 2 { new } else { old };
            mixed.write_at(cffs::device::IoKind::Meta, i as u64 * 4096, part).unwrap();
        }
        match Fs::open(mixed, None, looking()) {
            Ok(fs) => {
                walk(&fs, ROOT_INO, 0);
                let _ = fs.close();
            }
            Err(e) => assert!(matches!(e, Error::Corrupt(_) | Error::Invalid(_)), "{e}"),
        }
    }
}

fn copy(dev: &MemoryDevice) -> Vec<u8> {
    let mut bytes = cffs_buf::AlignedBuf::zeroed(dev.len() as usize);
    dev.read_at(cffs::device::IoKind::Meta, 0, &mut bytes).unwrap();
    bytes.to_vec()
}
