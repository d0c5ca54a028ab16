//! Space that was allocated ahead takes writes on a device that is full to the last fragment, and at the limits of quotas.

use crate::common::plain::{clean, fresh, mount};
use cffs::device::MemoryDevice;
use cffs::{
    Caller, DirectWrite, Error, Fallocate, Fs, Ino, MetadataMode, MkfsOptions, MountOptions, QuotaKind, QuotaLimits,
    ROOT_INO,
};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;
const ALICE: Caller = Caller { uid: 1000, gid: 100 };
const BLOCK: usize = 4096;

fn random(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % below
}

/// Fills all that root can: with data, then small files, then directories.
fn fill(fs: &Fs) {
    let data = fs.create(ROOT, ROOT_INO, b"data", 0o600).unwrap().ino;
    let mut at = 0;
    for len in [1 << 16, 1 << 12, 512] {
        while let Ok(n @ 1..) = fs.write(ROOT, data, at, &vec![0xee; len]) {
            at += n as u64;
        }
    }
    let mut n = 0;
    let mut until_full = |make: &dyn Fn(&str) -> Result<(), Error>| {
        loop {
            n += 1;
            match make(&format!("fill {n}")) {
                Ok(()) => {}
                Err(e) => return assert!(matches!(e, Error::NoSpace), "{e}"),
            }
        }
    };
    until_full(&|name| {
        let f = fs.create(ROOT, ROOT_INO, name.as_bytes(), 0o600)?.ino;
        let written = fs.write(ROOT, f, 0, &[0xdd; 300]);
        fs.forget(f, 1);
        written.map(drop)
    });
    until_full(&|name| fs.mkdir(ROOT, ROOT_INO, name.as_bytes(), 0o700).map(|d| fs.forget(d.ino, 1)));
    fs.sync().unwrap();
}

/// Writes every other block of a range in random order, and returns what the file must be.
fn write_every_other(fs: &Fs, c: Caller, ino: Ino, len: usize, seed: u64) -> Vec<u8> {
    let mut want = vec![0; len];
    let mut state = seed;
    let mut blocks: Vec<usize> = (0..len / BLOCK).step_by(2).collect();
    for i in (1..blocks.len()).rev() {
        blocks.swap(i, random(&mut state, i + 1));
    }
    for block in blocks {
        let bytes = [block as u8 | 1; BLOCK];
        let mut done = 0;
        while done < BLOCK {
            let at = (block * BLOCK + done) as u64;
            done += fs.write(c, ino, at, &bytes[done..]).unwrap_or_else(|e| panic!("block {block}: {e}"));
        }
        want[block * BLOCK..][..BLOCK].copy_from_slice(&bytes);
    }
    want
}

#[track_caller]
fn has(fs: &Fs, ino: Ino, want: &[u8]) {
    let mut got = vec![1; want.len()];
    assert_eq!(fs.read(ino, 0, &mut got).unwrap(), want.len());
    let wrong = got.iter().zip(want).position(|(g, w)| g != w);
    assert_eq!(wrong, None, "the first byte that differs");
}

fn open(dev: &Arc<MemoryDevice>, options: MountOptions) -> Arc<Fs> {
    Fs::open(dev.clone(), None, options.background(false)).unwrap()
}

/// Allocates ahead, fills, writes, and compares, also after a crash and a remount.
fn full_device(mkfs: &MkfsOptions, mounted: MountOptions, len: usize) {
    let what = format!("{mkfs:?} {mounted:?}");
    let dev = fresh(48 << 20, mkfs);
    let fs = open(&dev, mounted.clone());
    let ino = fs.create(ALICE, ROOT_INO, b"ahead", 0o600).unwrap().ino;
    fs.fallocate(ALICE, ino, Fallocate::Allocate { keep_size: false }, 0, len as u64).unwrap();
    fill(&fs);
    let before = fs.statfs();
    let g = fs.geometry();
    assert!(before.free < 16 * g.frags_per_block(), "{what}: not full, {before:?}");
    let want = write_every_other(&fs, ALICE, ino, len, 7);
    has(&fs, ino, &want);
    fs.fsync(ino, false).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(fs.statfs().free <= before.free, "nothing was kept back for it: {before:?}");
    let journaled = mounted.metadata == MetadataMode::Journal;
    if journaled {
        drop(fs);
    } else {
        fs.close().unwrap();
    }
    let fs = open(&dev, mounted);
    has(&fs, fs.lookup(ROOT_INO, b"ahead").unwrap().ino, &want);
    fs.close().unwrap();
    clean(&dev, &what);
}

#[test]
fn every_other_block_in_any_order_on_a_full_device() {
    full_device(&MkfsOptions::default(), MountOptions::default(), 16 << 20);
}

#[test]
fn in_other_formats_and_ways_to_write() {
    let plain = MkfsOptions::default;
    full_device(&plain().no_embed(true).no_group(true), MountOptions::default(), 4 << 20);
    full_device(&plain().data_sums(true), MountOptions::default(), 4 << 20);
    full_device(&plain().block_size(1024).frag_size(Some(512)), MountOptions::default(), 1 << 20);
    full_device(&plain().frag_size(Some(4096)), MountOptions::default().metadata(MetadataMode::Sync), 4 << 20);
    full_device(&plain(), MountOptions::default().direct_write(DirectWrite::Always), 4 << 20);
    full_device(&plain(), MountOptions::default().fsync_in_log(false), 4 << 20);
}

#[test]
fn a_crash_shows_zeros_or_what_was_written() {
    let dev = fresh(48 << 20, &MkfsOptions::default());
    // Old bytes of another file are where the space is allocated.
    let fs = mount(&dev);
    let old = fs.create(ROOT, ROOT_INO, b"old", 0o600).unwrap().ino;
    for at in (0..40u64 << 20).step_by(1 << 20) {
        if fs.write(ROOT, old, at, &vec![0xaa; 1 << 20]).is_err() {
            break;
        }
    }
    fs.sync().unwrap();
    fs.unlink(ROOT_INO, b"old").unwrap();
    fs.forget(old, 1);
    fs.sync().unwrap();
    let len = 4 << 20;
    let ino = fs.create(ROOT, ROOT_INO, b"ahead", 0o600).unwrap().ino;
    fs.fallocate(ROOT, ino, Fallocate::Allocate { keep_size: false }, 0, len as u64).unwrap();
    fill(&fs);
    let want = write_every_other(&fs, ROOT, ino, len, 3);
    drop(fs); // nothing was promised of the writes
    let fs = mount(&dev);
    let ino = fs.lookup(ROOT_INO, b"ahead").unwrap().ino;
    let mut got = vec![1; len];
    assert_eq!(fs.read(ino, 0, &mut got).unwrap(), len);
    let foreign = got.iter().zip(&want).position(|(g, w)| *g != 0 && g != w);
    assert_eq!(foreign, None);
    fs.close().unwrap();
    clean(&dev, "after the crash");
}

#[test]
fn space_behind_the_end_takes_what_is_appended() {
    let dev = fresh(48 << 20, &MkfsOptions::default());
    let fs = mount(&dev);
    let len = 4 << 20;
    let ino = fs.create(ROOT, ROOT_INO, b"ahead", 0o600).unwrap().ino;
    fs.fallocate(ROOT, ino, Fallocate::Allocate { keep_size: true }, 0, len as u64).unwrap();
    fill(&fs);
    for block in 0..len / BLOCK {
        assert_eq!(fs.write(ROOT, ino, (block * BLOCK) as u64, &[3; BLOCK]).unwrap(), BLOCK, "block {block}");
    }
    fs.fsync(ino, false).unwrap();
    drop(fs);
    let fs = mount(&dev);
    has(&fs, fs.lookup(ROOT_INO, b"ahead").unwrap().ino, &vec![3; len]);
    fs.close().unwrap();
    clean(&dev, "appended");
}

#[test]
fn at_the_limit_of_a_quota_and_on_a_full_device_with_quotas() {
    for full in [false, true] {
        let dev = fresh(48 << 20, &MkfsOptions::default().quota(QuotaKind::ALL.to_vec()));
        let fs = mount(&dev);
        let len = 4 << 20;
        let ino = fs.create(ALICE, ROOT_INO, b"ahead", 0o600).unwrap().ino;
        fs.fallocate(ALICE, ino, Fallocate::Allocate { keep_size: false }, 0, len as u64).unwrap();
        let used = fs.quota(QuotaKind::User, ALICE.uid).unwrap().bytes;
        let limits = QuotaLimits { soft_bytes: 0, hard_bytes: used, soft_inodes: 0, hard_inodes: 1 };
        fs.set_quota(QuotaKind::User, ALICE.uid, limits).unwrap();
        assert!(matches!(fs.write(ALICE, ino, len as u64, &[1; 9000]), Err(Error::Quota) | Ok(0)));
        if full {
            fill(&fs);
        }
        let want = write_every_other(&fs, ALICE, ino, len, 11);
        fs.fsync(ino, false).unwrap();
        drop(fs);
        let fs = mount(&dev);
        has(&fs, fs.lookup(ROOT_INO, b"ahead").unwrap().ino, &want);
        fs.close().unwrap();
        clean(&dev, if full { "full" } else { "at the limit" });
    }
}
