//! Direct writes: what is read afterwards, from wherever, is what was written; and when they are made.

use crate::common::large::{KIB, MIB, ROOT, assert_clean, bytes, create, made, small_cache};
use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation, WriteRequest};
use cffs::{DirectWrite, Error, Fallocate, Fs, Ino, MountOptions, PrefetchMode, ROOT_INO, SetAttr, path};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn options() -> MountOptions {
    small_cache().direct_write(DirectWrite::Always)
}

fn written_direct(fs: &Fs) -> u64 {
    fs.stats().cache.written_direct
}

/// Writes both to the file and to the copy of what it should have; whether it was a direct write.
fn put(fs: &Fs, ino: Ino, all: &mut Vec<u8>, at: usize, data: &[u8]) -> bool {
    let before = written_direct(fs);
    assert_eq!(fs.write(ROOT, ino, at as u64, data).unwrap(), data.len());
    if all.len() < at + data.len() {
        all.resize(at + data.len(), 0);
    }
    all[at..at + data.len()].copy_from_slice(data);
    let mut out = vec![0xee; all.len() + 1];
    assert_eq!(fs.read(ino, 0, &mut out).unwrap(), all.len());
    assert!(out[..all.len()] == all[..], "after {} bytes at {at}", data.len());
    match written_direct(fs) - before {
        0 => false,
        n => {
            assert_eq!(n, data.len() as u64, "all of it, or nothing");
            true
        }
    }
}

#[test]
fn what_is_plain_is_written_directly_and_all_of_it_is_read_back() {
    for data_sums in [false, true] {
        let dev = made(data_sums);
        let fs = Fs::open(dev.clone(), None, options()).unwrap();
        let (ino, mut all) = (create(&fs, "large"), Vec::new());
        let mut put = |at: usize, data: &[u8]| put(&fs, ino, &mut all, at, data);
        assert!(put(0, &bytes(1, MIB)), "a new file");
        assert!(put(MIB, &bytes(2, 3 * MIB)), "at its end");
        assert_eq!(put(512 * KIB, &bytes(3, MIB)), !data_sums, "over what it has; with sums a commit would come first");
        assert_eq!(put(0, &bytes(4, 4 * KIB)), !data_sums, "a block of it");
        assert!(!put(4 * MIB + 1, &bytes(5, MIB)), "not from within a block on");
        assert!(!put(6 * MIB, &bytes(6, MIB)), "not behind a hole and a part of a block");
        assert!(!put(7 * MIB, &bytes(7, MIB + 1)), "not to within a block");
        fs.fallocate(ROOT, ino, Fallocate::Allocate { keep_size: false }, 9 * MIB as u64, MIB as u64).unwrap();
        all.resize(10 * MIB, 0);
        let mut put = |at: usize, data: &[u8]| self::put(&fs, ino, &mut all, at, data);
        assert!(!put(9 * MIB + 256 * KIB, &bytes(8, 256 * KIB)), "not into what was allocated ahead");
        fs.fsync(ino, false).unwrap();
        // What is in the log must not come back over what is written later.
        put(300 * KIB, &bytes(9, 100));
        fs.fsync(ino, false).unwrap();
        assert!(!put(256 * KIB, &bytes(10, 256 * KIB)), "not over what is in the log");
        fs.punch(ino, 2 * MIB, MIB);
        all[2 * MIB..3 * MIB].fill(0);
        let mut put = |at: usize, data: &[u8]| self::put(&fs, ino, &mut all, at, data);
        assert!(put(2 * MIB + 64 * KIB, &bytes(11, 512 * KIB)), "into a hole; what is in pages goes before");
        assert_eq!(fs.getattr(ino).unwrap().size, all.len() as u64);
        fs.forget(ino, 1);
        fs.close().unwrap();
        drop(fs);
        assert_clean(&dev);
        let fs = Fs::open(dev.clone(), None, options()).unwrap();
        assert!(path::read_file(&fs, b"/large").unwrap() == all, "after a mount, sums {data_sums}");
        fs.close().unwrap();
    }
}

trait Punch {
    fn punch(&self, ino: Ino, at: usize, len: usize);
}

impl Punch for Fs {
    fn punch(&self, ino: Ino, at: usize, len: usize) {
        self.fallocate(ROOT, ino, Fallocate::PunchHole, at as u64, len as u64).unwrap();
    }
}

/// Blocks that came along with others while they were free, and become a file's without passing the cache.
#[test]
fn nothing_stale_stays_in_the_cache() {
    let dev = made(false);
    let old = bytes(20, 8 * MIB);
    let fs = Fs::open(dev.clone(), None, options().prefetch(PrefetchMode::Always)).unwrap();
    let mut all = Vec::new();
    for round in 0..6_u64 {
        let (ino, name) = (create(&fs, "one"), format!("small{round}"));
        put(&fs, ino, &mut all, 0, &old[..MIB]);
        // A small file near it, and then the space of the large one is free.
        path::write_file(&fs, ROOT, format!("/{name}").as_bytes(), &old[..3000]).unwrap();
        fs.forget(ino, 1);
        fs.unlink(ROOT_INO, b"one").unwrap();
        fs.sync().unwrap();
        fs.drop_caches();
        path::read_file(&fs, format!("/{name}").as_bytes()).unwrap();
        // All that is free came into the cache with groups, as far as they reach.
        all.clear();
        let ino = create(&fs, "two");
        assert!(put(&fs, ino, &mut all, 0, &bytes(30 + round, 2 * MIB)));
        // By way of the cache, block by block.
        for at in (0..2 * MIB).step_by(64 * KIB) {
            let mut out = vec![0; 4 * KIB];
            fs.read(ino, at as u64, &mut out).unwrap();
            assert!(out == all[at..at + 4 * KIB], "round {round} at {at}");
        }
        fs.forget(ino, 1);
        fs.unlink(ROOT_INO, b"two").unwrap();
        fs.sync().unwrap();
        all.clear();
    }
    fs.close().unwrap();
    assert_clean(&dev);
}

/// A write that the device refuses waits in memory and is told by fsync, as any other.
#[test]
fn what_the_device_refuses_stays_in_memory_and_is_told_by_fsync() {
    let memory = made(false);
    let dev = Arc::new(FailingDevice::new(memory.clone()));
    let fs = Fs::open(dev.clone(), None, options()).unwrap();
    let (ino, mut all) = (create(&fs, "large"), Vec::new());
    assert!(put(&fs, ino, &mut all, 0, &bytes(1, MIB)));
    fs.fsync(ino, false).unwrap();
    for at in [0, MIB] {
        dev.set(Operation::Write, Fault::from_now_on().of_kind(IoKind::Data));
        let before = written_direct(&fs);
        assert!(!put(&fs, ino, &mut all, at, &bytes(2 + at as u64, MIB)), "read back from memory");
        assert_eq!(written_direct(&fs), before);
        assert!(matches!(fs.fsync(ino, false), Err(Error::Io(_))), "the promise cannot be kept");
        dev.clear();
        fs.fsync(ino, false).unwrap();
        fs.drop_caches();
        let mut out = vec![0; all.len()];
        fs.read(ino, 0, &mut out).unwrap();
        assert!(out == all);
    }
    assert_eq!(fs.stats().space[2], 0, "every promise has ended");
    fs.forget(ino, 1);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&memory);
}

#[test]
fn a_full_device_takes_what_it_has_room_for() {
    let dev = made(false);
    let fs = Fs::open(dev.clone(), None, options()).unwrap();
    let ino = create(&fs, "large");
    let piece = bytes(7, MIB);
    let mut size = 0;
    let error = loop {
        match fs.write(ROOT, ino, size, &piece[size as usize % MIB..]) {
            Ok(n) => size += n as u64,
            Err(e) => break e,
        }
    };
    assert!(matches!(error, Error::NoSpace), "{error}");
    fs.fsync(ino, false).unwrap();
    let s = fs.statfs();
    assert_eq!(s.free, 0, "to the last fragment");
    assert_eq!(fs.getattr(ino).unwrap().size, size);
    let mut out = vec![0; MIB];
    for at in (0..size).step_by(MIB) {
        let n = fs.read(ino, at, &mut out).unwrap();
        assert!(out[..n] == piece[..n], "at {at}");
    }
    // What is there can be written over.
    assert_eq!(fs.write(ROOT, ino, 0, &bytes(8, MIB)).unwrap(), MIB);
    fs.forget(ino, 1);
    fs.close().unwrap();
    assert_clean(&dev);
}

/// Files that grow side by side, and readers that must never see a part of a write: blocks of one write have one byte.
#[test]
fn readers_see_all_of_a_write_or_nothing() {
    const PIECE: usize = 256 * KIB;
    const PIECES: usize = 8;
    let dev = made(false);
    let fs = Fs::open(dev.clone(), None, options()).unwrap();
    let files = [create(&fs, "a"), create(&fs, "b")];
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        for ino in files {
            let fs = &fs;
            let done = &done;
            s.spawn(move || {
                let mut out = vec![0; PIECE];
                while !done.load(Ordering::Relaxed) {
                    for at in (0..PIECES * PIECE).step_by(PIECE) {
                        let n = fs.read(ino, at as u64, &mut out).unwrap();
                        assert!(n == 0 || n == PIECE, "{n} bytes of a write");
                        assert!(out[..n].iter().all(|b| *b == out[0]), "parts of two writes");
                    }
                }
            });
        }
        let writers = files.map(|ino| {
            let fs = &fs;
            s.spawn(move || {
                for round in 0..20_u8 {
                    for at in (0..PIECES * PIECE).step_by(PIECE) {
                        fs.write(ROOT, ino, at as u64, &vec![round.wrapping_mul(7) ^ at as u8 ^ ino as u8; PIECE])
                            .unwrap();
                    }
                    if round % 5 == 4 {
                        fs.fsync(ino, false).unwrap();
                    }
                    if round % 7 == 6 {
                        fs.setattr(ROOT, ino, SetAttr::default().size(Some(0))).unwrap();
                    }
                }
            })
        });
        let outcomes: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        done.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|o| o.unwrap());
    });
    assert!(written_direct(&fs) > 0);
    files.iter().for_each(|ino| fs.forget(*ino, 1));
    fs.close().unwrap();
    assert_clean(&dev);
}

/// A device that takes so long for each write.
struct Slow(Arc<MemoryDevice>, Duration);

impl Device for Slow {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn sector_size(&self) -> u32 {
        self.0.sector_size()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.0.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        std::thread::sleep(self.1);
        self.0.write_vectored(kind, offset, bufs)
    }
    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        requests.iter().try_for_each(|r| self.write_vectored(r.kind, r.offset, &r.bufs))
    }
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }
}

#[test]
fn without_being_told_only_on_a_device_that_is_fast_and_only_long_files() {
    let stream = |each: Duration, piece: usize, background: bool| {
        let dev = Arc::new(Slow(made(false), each));
        let options = options().background(background).direct_write(DirectWrite::Fast).cache_bytes(16 << 20);
        let fs = Fs::open(dev.clone(), None, options).unwrap();
        for name in ["first", "second"] {
            let (ino, data) = (create(&fs, name), bytes(3, piece));
            for at in (0..24 * MIB).step_by(piece) {
                fs.write(ROOT, ino, at as u64, &data).unwrap();
            }
            fs.fsync(ino, false).unwrap();
            fs.forget(ino, 1);
        }
        let n = written_direct(&fs);
        fs.close().unwrap();
        drop(fs);
        assert_clean(&dev.0);
        n
    };
    // Where other programs take the processor, memory is a slow device too: then it is tried again.
    let goes_direct = |_| stream(Duration::ZERO, MIB, true) > 20 * MIB as u64;
    assert!((0..100).any(goes_direct), "not even the second file was written directly");
    assert_eq!(stream(Duration::from_millis(5), MIB, true), 0, "a slow device");
    assert_eq!(stream(Duration::ZERO, 64 * KIB, true), 0, "short writes");
    assert_eq!(stream(Duration::ZERO, MIB, false), 0, "nothing depends on time without the background thread");
}
