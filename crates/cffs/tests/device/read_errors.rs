//! A device that fails to read in the middle of an operation: the operation fails, or is done; nothing else is lost by it.

use cffs::device::{Device, FailingDevice, Fault, MemoryDevice, Operation};
use cffs::{
    Caller, Error, Fallocate, Fs, Ino, MkfsOptions, MountOptions, PrefetchMode, ROOT_INO, RenameFlags, SetAttr,
    SetXattr, mkfs,
};
use std::sync::Arc;

const ROOT: Caller = Caller::ROOT;
/// Files in the directory: several blocks of the locator table, of the directory and of its index.
const FILES: u64 = 900;

fn mount(dev: Arc<dyn Device>, prefetch: PrefetchMode) -> Arc<Fs> {
    Fs::open(dev, None, MountOptions::default().background(false).prefetch(prefetch)).unwrap()
}

fn name(i: u64) -> Vec<u8> {
    format!("{i}").into_bytes()
}

/// A file system with something of everything, unmounted.
fn image(no_embed: bool) -> Arc<MemoryDevice> {
    let options = MkfsOptions::default().no_embed(no_embed).block_size(1024).frag_size(Some(512));
    let dev = Arc::new(MemoryDevice::new(48 << 20));
    mkfs(&*dev, None, &options).unwrap();
    let fs = mount(dev.clone(), PrefetchMode::Off);
    let dir = fs.mkdir(ROOT, ROOT_INO, b"d", 0o755).unwrap().ino;
    for i in 0..FILES {
        let ino = fs.create(ROOT, dir, &name(i), 0o644).unwrap().ino;
        if i % 7 == 0 {
            fs.write(ROOT, ino, 0, &[i as u8; 3000]).unwrap();
        }
        fs.forget(ino, 1);
    }
    // Every second block, so that its tree has several nodes.
    let many = fs.create(ROOT, ROOT_INO, b"many", 0o644).unwrap().ino;
    for i in 0..400 {
        fs.write(ROOT, many, i * 2048, &[i as u8; 1024]).unwrap();
    }
    fs.create(ROOT, ROOT_INO, b"two", 0o644).unwrap();
    fs.link(ROOT, fs.lookup(ROOT_INO, b"two").unwrap().ino, ROOT_INO, b"names").unwrap();
    fs.sync().unwrap();
    // Holes in tables and directories; and a locator block in the middle with one entry left.
    let inos: Vec<(u64, Ino)> = (0..FILES).map(|i| (i, fs.lookup(dir, &name(i)).unwrap().ino)).collect();
    let last = inos[400].1;
    for (i, ino) in inos {
        fs.forget(ino, 1);
        if i != 400 && (ino.abs_diff(last) < 130 || i % 9 == 0) {
            fs.unlink(dir, &name(i)).unwrap();
        }
    }
    fs.close().unwrap();
    dev
}

type Act = fn(&Fs) -> Result<(), Error>;

fn dir(fs: &Fs) -> Result<Ino, Error> {
    Ok(fs.lookup(ROOT_INO, b"d")?.ino)
}

/// Removes a name, and with the last reference the file.
fn gone(fs: &Fs, parent: Ino, name: &[u8]) -> Result<(), Error> {
    let ino = fs.lookup(parent, name)?.ino;
    let done = fs.unlink(parent, name);
    fs.forget(ino, 1);
    done
}

/// Creating (create, mkdir, symlink) and rmdir are not among them: where a read fails in the middle of those, the journal fails
/// before half an operation can be committed (design, section 7).
const OPERATIONS: [(&str, Act); 11] = [
    ("unlink of the last inode of a table block", |fs| gone(fs, dir(fs)?, b"400")),
    ("unlink of a file with a tree", |fs| gone(fs, ROOT_INO, b"many")),
    ("unlink of one of two names", |fs| gone(fs, ROOT_INO, b"two")),
    ("unlink of many", |fs| {
        let d = dir(fs)?;
        (500..700).filter(|i| i % 9 != 0).try_for_each(|i| match gone(fs, d, &name(i)) {
            Err(Error::NotFound) => Ok(()),
            outcome => outcome,
        })
    }),
    ("rename over", |fs| fs.rename(ROOT, dir(fs)?, b"700", dir(fs)?, b"701", RenameFlags::default())),
    ("rename to another directory", |fs| fs.rename(ROOT, dir(fs)?, b"704", ROOT_INO, b"x", RenameFlags::default())),
    ("link", |fs| fs.link(ROOT, fs.lookup(dir(fs)?, b"705")?.ino, ROOT_INO, b"l").map(|_| ())),
    ("setxattr", |fs| fs.setxattr(ROOT, fs.lookup(dir(fs)?, b"707")?.ino, b"user.a", &[7; 3000], SetXattr::default())),
    ("truncate", |fs| {
        let ino = fs.lookup(ROOT_INO, b"many")?.ino;
        fs.setattr(ROOT, ino, SetAttr::default().size(Some(100_001))).map(|_| ())
    }),
    ("punch", |fs| fs.fallocate(ROOT, fs.lookup(ROOT_INO, b"many")?.ino, Fallocate::PunchHole, 50_000, 300_000)),
    ("write and fsync", |fs| {
        let ino = fs.lookup(ROOT_INO, b"many")?.ino;
        fs.write(ROOT, ino, 1024, &[9; 1024])?;
        fs.fsync(ino, false)
    }),
];

/// Runs one operation with the nth read failing, and perhaps all after it. Returns how many reads it made.
fn attempt(image: &MemoryDevice, (what, act): (&str, Act), prefetch: PrefetchMode, fault: Option<Fault>) -> u64 {
    let memory = Arc::new(image.duplicate());
    let failing = Arc::new(FailingDevice::new(memory.clone() as Arc<dyn Device>));
    let fs = mount(failing.clone() as Arc<dyn Device>, prefetch);
    let reads = |fs: &Fs| fs.stats().device.kinds.values().map(|k| k.read_requests).sum::<u64>();
    let before = reads(&fs);
    if let Some(fault) = fault {
        failing.set(Operation::Read, fault);
    }
    let outcome = act(&fs);
    failing.clear();
    let count = reads(&fs) - before;
    match (&outcome, fault) {
        (Ok(()), _) | (Err(Error::Io(_)), Some(_)) => {}
        (Err(e), _) => panic!("{what}, {fault:?}: {e}"),
    }
    assert_eq!(fs.failure(), None, "{what}, {fault:?}: {outcome:?}");
    // What it did not do can be done now, and everything else too.
    fs.create(ROOT, ROOT_INO, b"afterwards", 0o644).unwrap_or_else(|e| panic!("{what}, {fault:?}: {e}"));
    fs.sync().unwrap_or_else(|e| panic!("{what}, {fault:?}: {e}"));
    fs.close().unwrap_or_else(|e| panic!("{what}, {fault:?}: {e}"));
    let report = cffs::check::check(memory, None, &Default::default(), &|_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{what}, {fault:?}: {:#?}", report.problems);
    count
}

#[test]
fn a_read_that_fails_in_any_operation_is_the_end_of_that_operation_alone() {
    for no_embed in [false, true] {
        let image = image(no_embed);
        let (mut tried, mut failed) = (0, Vec::new());
        for operation in OPERATIONS {
            let reads = attempt(&image, operation, PrefetchMode::Off, None);
            assert!(reads > 0, "{}: nothing was read", operation.0);
            let step = (reads / 40).max(1);
            for n in (1..=reads).step_by(step as usize) {
                for fault in [Fault::nth(n), Fault::from_nth(n)] {
                    let one = || attempt(&image, operation, PrefetchMode::Off, Some(fault));
                    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(one)) {
                        failed.push(panic.downcast_ref::<String>().cloned().unwrap_or_default());
                    }
                    tried += 1;
                }
            }
        }
        assert!(failed.is_empty(), "{} of {tried}:\n{}", failed.len(), failed.join("\n"));
        assert!(tried > 150, "{tried}");
    }
}

/// Creating reads in the middle: a read that fails there is the end of writing, and of nothing that was promised.
#[test]
fn half_an_operation_is_never_committed() {
    let mut failed = 0;
    for no_embed in [false, true] {
        let image = image(no_embed);
        for n in 1..30 {
            let memory = Arc::new(image.duplicate());
            let failing = Arc::new(FailingDevice::new(memory.clone() as Arc<dyn Device>));
            let fs = mount(failing.clone() as Arc<dyn Device>, PrefetchMode::Off);
            cffs::path::write_file(&fs, ROOT, b"/promised", &[5; 3000]).unwrap();
            fs.sync().unwrap();
            fs.drop_caches();
            failing.set(Operation::Read, Fault::from_nth(n));
            let made = dir(&fs).and_then(|d| fs.create(ROOT, d, b"new", 0o644));
            failing.clear();
            if fs.failure().is_some() {
                failed += 1;
                assert!(made.is_err(), "read {n}");
                assert!(fs.is_read_only());
                assert!(matches!(fs.create(ROOT, ROOT_INO, b"x", 0o644), Err(Error::ReadOnly)), "read {n}");
                assert!(fs.sync().is_err() && fs.close().is_err(), "read {n}: nothing is promised any more");
                assert_eq!(cffs::path::read_file(&fs, b"/promised").unwrap(), [5; 3000], "reading goes on");
            } else {
                fs.close().unwrap();
            }
            drop(fs);
            let fs = mount(memory.clone() as Arc<dyn Device>, PrefetchMode::Off);
            assert_eq!(cffs::path::read_file(&fs, b"/promised").unwrap(), [5; 3000], "read {n}");
            let there = fs.lookup(dir(&fs).unwrap(), b"new").is_ok();
            assert_eq!(there, made.is_ok(), "read {n}");
            fs.close().unwrap();
            let report = cffs::check::check(memory, None, &Default::default(), &|_, _, _| {}).unwrap();
            assert!(report.problems.is_empty(), "read {n}: {:#?}", report.problems);
        }
    }
    assert!(failed > 0, "the journal never failed: this test says nothing any more");
}
