//! Full devices: who is told that there is no space, when, and that everything comes back.

use cffs::device::{Device, MemoryDevice};
use cffs::error::Error;
use cffs::format::ROOT_INO;
use cffs::fs::{Caller, Fs, MountOptions};
use cffs::mkfs::{MkfsOptions, mkfs};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;

fn mount(dev: &Arc<MemoryDevice>) -> Arc<Fs> {
    let options = MountOptions { background: false, ..MountOptions::default() };
    Fs::open(dev.clone() as Arc<dyn Device>, None, options).unwrap()
}

fn fresh(size: u64, options: &MkfsOptions) -> Arc<MemoryDevice> {
    let dev = Arc::new(MemoryDevice::new(size));
    mkfs(&*dev, None, options).unwrap();
    dev
}

fn clean(dev: &Arc<MemoryDevice>, what: &str) {
    let report = cffs::check::check(dev.clone(), None, &Default::default(), &|_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{what}: {:#?}", report.problems);
}

/// The four format combinations with a few sizes of block and fragment.
fn formats() -> Vec<MkfsOptions> {
    let sizes = [(4096, 1024), (4096, 4096), (4096, 512), (1024, 512), (16384, 2048), (512, 512)];
    let switches = [(false, false), (true, false), (false, true), (true, true)];
    let mut all = Vec::new();
    for (no_embed, no_group) in switches {
        for (block, frag) in sizes {
            all.push(MkfsOptions {
                no_embed,
                no_group,
                block_size: block,
                frag_size: Some(frag),
                reserve_bp: 0,
                ..MkfsOptions::default()
            });
        }
    }
    all
}

/// Puts a file of so many bytes, each of them `byte`. The reference to it is given back.
fn put(fs: &Fs, dir: u64, name: &str, byte: u8, len: usize) -> Result<u64, Error> {
    let ino = fs.create(ROOT, dir, name.as_bytes(), 0o600)?.ino;
    let mut done = 0;
    let outcome = loop {
        if done == len {
            break Ok(ino);
        }
        match fs.write(ROOT, ino, done as u64, &vec![byte; len - done]) {
            Ok(n) => done += n,
            Err(e) => break Err(e),
        }
    };
    if outcome.is_err() {
        fs.unlink(dir, name.as_bytes()).unwrap();
    }
    fs.forget(ino, 1);
    outcome
}

/// A device without a free block, although there are free fragments: files of one fragment each fill it, and one of each
/// block stays.
fn scattered(options: &MkfsOptions) -> (Arc<MemoryDevice>, Arc<Fs>, u64) {
    let dev = fresh(if options.block_size > 4096 { 40 << 20 } else { 16 << 20 }, options);
    let fs = mount(&dev);
    let g = *fs.geometry();
    let (fpb, fs_bytes) = (g.frags_per_block(), g.frag_size());
    let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o700).unwrap().ino;
    fs.create(ROOT, dir, b"sparse", 0o600).unwrap();
    let mut n = 0u64;
    loop {
        match put(&fs, dir, &format!("{n}"), n as u8, fs_bytes) {
            Ok(_) => n += 1,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    fs.sync().unwrap();
    for i in (0..n).filter(|i| !i.is_multiple_of(fpb)) {
        fs.unlink(dir, format!("{i}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    (dev, fs, dir)
}

#[test]
fn writeback_finds_space_for_what_was_written_however_scattered_it_is() {
    for options in formats().into_iter().filter(|o| Some(o.block_size) != o.frag_size) {
        let (dev, fs, dir) = scattered(&options);
        let what = format!("{options:?}");
        let before = fs.statfs();
        assert!(before.free > 100, "{what}: {before:?}");
        // Each fragment is an extent of its own: the worst for the extent tree.
        let ino = fs.lookup(dir, b"sparse").unwrap().ino;
        let frag = fs.geometry().frag_size();
        let mut written = 0u64;
        loop {
            match fs.write(ROOT, ino, written * 100_000 / frag as u64 * frag as u64, &vec![written as u8; frag]) {
                Ok(n) => assert_eq!(n, frag),
                Err(Error::NoSpace) => break,
                Err(e) => panic!("{what}: {e}"),
            }
            written += 1;
        }
        assert!(written >= 4, "{what}: {written} of {} fragments", before.free);
        fs.sync().unwrap_or_else(|e| panic!("{what}: writeback of {written} pieces: {e}"));
        fs.close().unwrap();
        clean(&dev, &what);
        let fs = mount(&dev);
        let ino = fs.lookup(fs.lookup(ROOT_INO, b"d").unwrap().ino, b"sparse").unwrap().ino;
        for i in 0..written {
            let mut b = vec![0; frag];
            assert_eq!(fs.read(ino, i * 100_000 / frag as u64 * frag as u64, &mut b).unwrap(), frag);
            assert!(b.iter().all(|x| *x == i as u8), "{what}: piece {i}");
        }
        fs.close().unwrap();
    }
}
