//! Several devices as one: what is read ahead of walks and of readers of large files, with the thread that does it.

use crate::common::large::{KIB, MIB, ROOT, bytes, create};
use crate::common::wide::Wide;
use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs::{Error, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO, mkfs, path};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SIZE: u64 = 256 << 20;
const CACHE: usize = 64 * MIB;
const DIRS: usize = 40;
const FILES: usize = 60;
const LARGE: usize = 48 * MIB;
const CALL: usize = 512 * KIB;

fn mount(dev: &Arc<Wide>) -> Arc<Fs> {
    Fs::open(dev.clone() as Arc<dyn Device>, None, MountOptions::default().cache_bytes(CACHE)).unwrap()
}

/// A device with what `make` makes, not in the cache of anybody.
fn made(make: impl FnOnce(&Fs)) -> Arc<Wide> {
    made_on(Wide::memory(SIZE), make)
}

fn made_on(dev: Arc<Wide>, make: impl FnOnce(&Fs)) -> Arc<Wide> {
    mkfs(&*dev, None, &MkfsOptions::default().group_size(64 << 10)).unwrap();
    let fs = mount(&dev);
    make(&fs);
    fs.close().unwrap();
    dev
}

/// What a cold mount reads to do some work.
fn read_by(dev: &Arc<Wide>, work: impl FnOnce(&Fs)) -> u64 {
    let fs = mount(dev);
    let before = dev.read.load(Ordering::Relaxed);
    work(&fs);
    // The thread has ended when this returns.
    fs.close().unwrap();
    dev.read.load(Ordering::Relaxed) - before
}

fn names(fs: &Fs, dir: Ino) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, false, &mut |entry| {
        names.push(entry.name);
        true
    })
    .unwrap();
    names.retain(|name| name != b"." && name != b"..");
    names
}

#[test]
fn a_walk_finds_everything_and_reads_little_more() {
    let dev = made(|fs| {
        for d in 0..DIRS {
            fs.mkdir(ROOT, ROOT_INO, format!("dir{d}").as_bytes(), 0o755).unwrap();
            for f in 0..FILES {
                let content = bytes((d * FILES + f) as u64, 3000);
                path::write_file(fs, ROOT, format!("/dir{d}/file{f}").as_bytes(), &content).unwrap();
            }
        }
    });
    let read = read_by(&dev, |fs| {
        let mut files = 0;
        for dir in names(fs, ROOT_INO) {
            let ino = fs.lookup(ROOT_INO, &dir).unwrap().ino;
            let d: usize = std::str::from_utf8(&dir[3..]).unwrap().parse().unwrap();
            for name in names(fs, ino) {
                let f: usize = std::str::from_utf8(&name[4..]).unwrap().parse().unwrap();
                let file = fs.lookup(ino, &name).unwrap().ino;
                let mut content = vec![0; 4000];
                let n = fs.read(file, 0, &mut content).unwrap();
                assert_eq!(&content[..n], bytes((d * FILES + f) as u64, 3000), "{d} {f}");
                files += 1;
            }
        }
        assert_eq!(files, DIRS * FILES);
    });
    // Files of three fragments; names and inodes; and what is read behind the end.
    let tree = (DIRS * FILES) as u64 * (3 * 1024 + 256);
    assert!(read < tree * 3 / 2 + (4 << 20), "{read} bytes for a tree of {tree}");
}

#[test]
fn a_large_file_is_read_once_whoever_takes_turns_at_it() {
    let content = bytes(1, LARGE);
    let dev = made(|fs| {
        let ino = create(fs, "large");
        for (n, piece) in content.chunks(CALL).enumerate() {
            assert_eq!(fs.write(ROOT, ino, (n * CALL) as u64, piece).unwrap(), CALL);
        }
    });
    for threads in [1, 4] {
        let read = read_by(&dev, |fs| {
            let ino = fs.lookup(ROOT_INO, b"large").unwrap().ino;
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let content = &content;
                    scope.spawn(move || {
                        let mut buf = vec![0; CALL];
                        for at in (thread * CALL..LARGE).step_by(threads * CALL) {
                            assert_eq!(fs.read(ino, at as u64, &mut buf).unwrap(), CALL);
                            assert!(buf == content[at..at + CALL], "at {at}");
                        }
                    });
                }
            });
        });
        // Threads that overtake each other may read a little of what is being asked for.
        assert!(read >= LARGE as u64 && read < (LARGE + LARGE / 8) as u64, "{read} bytes by {threads} threads");
    }
    let mut at = 12_345;
    let read = read_by(&dev, |fs| {
        let ino = fs.lookup(ROOT_INO, b"large").unwrap().ino;
        let mut buf = vec![0; 4096];
        for _ in 0..500 {
            at = (at * 1_103_515_245 + 12_345) % (LARGE / 4096);
            fs.read(ino, at as u64 * 4096, &mut buf).unwrap();
            assert!(buf == content[at * 4096..][..4096], "block {at}");
        }
    });
    assert!(read < 500 * 4096 + MIB as u64, "{read} bytes for 500 random blocks");
}

/// A large file, in calls.
fn large_file(fs: &Fs, content: &[u8]) {
    let ino = create(fs, "large");
    for (n, piece) in content.chunks(CALL).enumerate() {
        assert_eq!(fs.write(ROOT, ino, (n * CALL) as u64, piece).unwrap(), piece.len());
    }
}

#[test]
fn a_second_reader_close_behind_the_first_reads_no_more_than_alone() {
    let content = bytes(2, LARGE);
    let dev = made(|fs| large_file(fs, &content));
    for distance in [0, CALL, 4 * CALL] {
        let read = read_by(&dev, |fs| {
            let ino = fs.lookup(ROOT_INO, b"large").unwrap().ino;
            let mut buf = vec![0; CALL];
            let mut call = |at: usize| {
                assert_eq!(fs.read(ino, at as u64, &mut buf).unwrap(), CALL);
                assert!(buf == content[at..at + CALL], "at {at}");
            };
            for at in (0..LARGE).step_by(CALL) {
                call(at);
                if at >= distance {
                    call(at - distance);
                }
            }
            (LARGE - distance..LARGE).step_by(CALL).for_each(call);
        });
        // A block of a large file leaves the cache with the read that used it up, so the second reader may have to read it once more.
        let most = 2 * LARGE as u64 + LARGE as u64 / 8;
        assert!(read >= LARGE as u64 && read < most, "{read} bytes, {distance} behind");
    }
}

/// What is read ahead fails while readers wait for it: they read it themselves, and say what is wrong with what they asked for.
#[test]
fn readahead_that_fails_leaves_nobody_waiting() {
    let content = bytes(3, LARGE);
    let failing = Arc::new(FailingDevice::new(Arc::new(MemoryDevice::new(SIZE))));
    let dev = made_on(Wide::new(failing.clone()), |fs| large_file(fs, &content));
    for fails in [1, 3, 10] {
        let fs = mount(&dev);
        let ino = fs.lookup(ROOT_INO, b"large").unwrap().ino;
        failing.set(Operation::Read, Fault::from_nth(fails).of_kind(IoKind::Data));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (fs, content) = (&fs, &content);
                scope.spawn(move || {
                    let mut buf = vec![0; CALL];
                    for at in (thread * CALL..LARGE).step_by(4 * CALL) {
                        match fs.read(ino, at as u64, &mut buf) {
                            Ok(n) => assert!(buf[..n] == content[at..at + n], "at {at}"),
                            Err(e) => assert!(matches!(e, Error::Io(_)), "{e}"),
                        }
                    }
                });
            }
        });
        assert!(fs.read(ino, LARGE as u64 / 2, &mut [0; 4096]).is_err(), "the device is broken");
        failing.clear();
        let mut all = vec![0; LARGE];
        for (n, piece) in all.chunks_mut(CALL).enumerate() {
            assert_eq!(fs.read(ino, (n * CALL) as u64, piece).unwrap(), CALL);
        }
        assert!(all == content, "after {fails} reads that went well");
        fs.close().unwrap();
    }
}

/// An unmount while much is being read ahead: nothing reaches the device afterwards.
#[test]
fn nothing_is_read_ahead_after_the_unmount() {
    let content = bytes(4, LARGE);
    let dev = made(|fs| large_file(fs, &content));
    for calls in 1..12 {
        let fs = mount(&dev);
        let ino = fs.lookup(ROOT_INO, b"large").unwrap().ino;
        let mut buf = vec![0; 64 * KIB];
        for n in 0..calls * 16 {
            fs.read(ino, n * buf.len() as u64, &mut buf).unwrap();
        }
        fs.close().unwrap();
        let read = dev.read.load(Ordering::SeqCst);
        drop(fs);
        std::thread::yield_now();
        assert_eq!(dev.read.load(Ordering::SeqCst), read, "after {calls} MiB");
    }
}
