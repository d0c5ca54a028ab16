//! Unlinked files that are still open when the system stops, and what damage to one of them does to a mount.

use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs::error::Error;
use cffs::format::superblock::State;
use cffs::format::{BlockKind, ROOT_INO, block_owner};
use cffs::fs::{Caller, Fs, MountOptions, path};
use cffs::mkfs::{MkfsOptions, mkfs};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;

fn mount(dev: &Arc<MemoryDevice>) -> Result<Arc<Fs>, Error> {
    let options = MountOptions { background: false, ..MountOptions::default() };
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
    let options = MountOptions { background: false, ..MountOptions::default() };
    let fs = Fs::open(failing.clone(), None, options).unwrap();
    path::write_file(&fs, ROOT, b"/new", &[1; 10_000]).unwrap();
    failing.set(Operation::Write, Fault::from_now_on());
    assert!(matches!(fs.close(), Err(Error::Io(_))));
    assert!(matches!(fs.close(), Err(Error::Io(_))), "the second call does not know better");
}
