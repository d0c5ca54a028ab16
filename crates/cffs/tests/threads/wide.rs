//! Several devices as one: what is read ahead of walks and of readers of large files, with the thread that does it.

use crate::common::large::{KIB, MIB, ROOT, bytes, create};
use cffs::device::{Device, IoKind, MemoryDevice};
use cffs::{Fs, Ino, MkfsOptions, MountOptions, ROOT_INO, mkfs, path};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SIZE: u64 = 256 << 20;
const CACHE: usize = 64 * MIB;
const DIRS: usize = 40;
const FILES: usize = 60;
const LARGE: usize = 48 * MIB;
const CALL: usize = 512 * KIB;

/// Says that it is two devices, and counts the bytes that are read.
struct Wide {
    inner: MemoryDevice,
    read: AtomicU64,
}

impl Device for Wide {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }
    fn width(&self) -> usize {
        2
    }
    fn stripe(&self) -> u64 {
        512 << 10
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.read.fetch_add(bufs.iter().map(|b| b.len() as u64).sum(), Ordering::Relaxed);
        self.inner.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_vectored(kind, offset, bufs)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}

fn mount(dev: &Arc<Wide>) -> Arc<Fs> {
    Fs::open(dev.clone() as Arc<dyn Device>, None, MountOptions::default().cache_bytes(CACHE)).unwrap()
}

/// A device with what `make` makes, not in the cache of anybody.
fn made(make: impl FnOnce(&Fs)) -> Arc<Wide> {
    let dev = Arc::new(Wide { inner: MemoryDevice::new(SIZE), read: AtomicU64::new(0) });
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
    // The thread has done all that it was asked for when it ends.
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
