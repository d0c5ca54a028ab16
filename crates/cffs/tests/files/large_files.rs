//! Long reads of large files bypass the cache, and see all the same what is nowhere but in memory.

use crate::common::large::{KIB, MIB, ROOT, assert_clean, bytes, create, made, small_cache};
use cffs::device::{Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation, ReadRequest};
use cffs::{Error, Fallocate, Fs, Ino, MkfsOptions, MountOptions, mkfs, path};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};

fn write_all(fs: &Fs, ino: Ino, offset: u64, data: &[u8]) {
    assert_eq!(fs.write(ROOT, ino, offset, data).unwrap(), data.len());
}

/// What stands where, and the same on the file system: written in one go, in pieces, allocated ahead, not at all.
fn lay_out(fs: &Fs, ino: Ino) -> Vec<u8> {
    let mut all = vec![0; 7 * MIB + 700];
    let mut put = |at: usize, data: &[u8]| {
        write_all(fs, ino, at as u64, data);
        all[at..at + data.len()].copy_from_slice(data);
    };
    put(0, &bytes(1, 2 * MIB));
    // A hole up to 3 MiB, then pieces with smaller holes between them.
    for i in 0..16 {
        put(3 * MIB + i * 64 * KIB, &bytes(2 + i as u64, 50_000));
    }
    put(6 * MIB, &bytes(40, MIB + 700));
    fs.sync().unwrap();
    fs.fallocate(ROOT, ino, Fallocate::Allocate { keep_size: false }, 4 * MIB as u64, 2 * MIB as u64).unwrap();
    fs.sync().unwrap();
    all
}

#[test]
fn long_reads_see_what_is_nowhere_but_in_memory() {
    for data_sums in [false, true] {
        let dev = made(data_sums);
        let fs = Fs::open(dev.clone(), None, small_cache()).unwrap();
        let ino = create(&fs, "large");
        let mut all = lay_out(&fs, ino);
        fs.drop_caches();
        let mut put = |at: usize, data: &[u8]| {
            write_all(&fs, ino, at as u64, data);
            all[at..at + data.len()].copy_from_slice(data);
        };
        // In the log only, in the cache until a checkpoint.
        put(300 * KIB + 5, &bytes(50, 3000));
        put(5 * MIB - 100, &bytes(51, 200));
        fs.fsync(ino, false).unwrap();
        // Home and cached.
        let mut some = [0; 100];
        fs.read(ino, 700 * KIB as u64, &mut some).unwrap();
        assert_eq!(some[..], all[700 * KIB..][..100]);
        // Nowhere but in pages.
        let mut put = |at: usize, data: &[u8]| {
            write_all(&fs, ino, at as u64, data);
            all[at..at + data.len()].copy_from_slice(data);
        };
        put(MIB + 77, &bytes(52, 10_000));
        put(3 * MIB - 10, &bytes(53, 20));
        let len = all.len();
        for (from, n) in [
            (0, len),
            (0, MIB),
            (1, MIB),
            (256 * KIB, 256 * KIB),
            (300 * KIB + 100, 2 * MIB + 1),
            (1024, 3 * MIB + 512),
            (2 * MIB, 4 * MIB),
            (6 * MIB + 1023, MIB),
            (len - 300 * KIB, 400 * KIB),
        ] {
            let mut out = vec![0xee; n];
            let got = fs.read(ino, from as u64, &mut out).unwrap();
            assert_eq!(got, n.min(len - from));
            assert!(out[..got] == all[from..from + got], "{n} bytes from {from} on, sums {data_sums}");
        }
        fs.forget(ino, 1);
        fs.close().unwrap();
        assert_clean(&dev);
        let fs = Fs::open(dev.clone(), None, small_cache()).unwrap();
        assert!(path::read_file(&fs, b"/large").unwrap() == all, "after a mount, sums {data_sums}");
        fs.close().unwrap();
    }
}

/// Notes how many requests each batch of reads has, how many reads there are otherwise, and how long the longest of file data is.
struct Noting {
    inner: Arc<MemoryDevice>,
    /// It has none, and takes requests of so many bytes.
    without_arm: Option<usize>,
    longest: Mutex<usize>,
    batches: Mutex<Vec<usize>>,
    single: Mutex<usize>,
}

impl Noting {
    fn new(inner: Arc<MemoryDevice>) -> Arc<Noting> {
        Noting::with_queue(inner, None)
    }

    fn with_queue(inner: Arc<MemoryDevice>, without_arm: Option<usize>) -> Arc<Noting> {
        let (longest, batches, single) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Noting { inner, without_arm, longest, batches, single })
    }

    fn note(&self, kind: IoKind, len: usize) {
        if kind == IoKind::Data {
            let mut longest = self.longest.lock().unwrap();
            *longest = len.max(*longest);
        }
    }

    /// Since the last call: requests of each batch, other reads.
    fn take(&self) -> (Vec<usize>, usize) {
        (std::mem::take(&mut self.batches.lock().unwrap()), std::mem::take(&mut self.single.lock().unwrap()))
    }
}

impl Device for Noting {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }
    fn max_request(&self) -> usize {
        self.without_arm.unwrap_or(self.inner.max_request())
    }
    fn is_rotational(&self) -> bool {
        self.without_arm.is_none()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        *self.single.lock().unwrap() += 1;
        self.note(kind, bufs.iter().map(|buf| buf.len()).sum());
        self.inner.read_vectored(kind, offset, bufs)
    }
    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.batches.lock().unwrap().push(requests.len());
        requests.iter().for_each(|request| self.note(request.kind, request.buf.len()));
        self.inner.read_batch(requests)
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

#[test]
fn what_lies_in_many_places_is_one_batch_and_leaves_the_cache_alone() {
    let dev = Noting::new(made(false));
    let fs = Fs::open(dev.clone(), None, small_cache()).unwrap();
    let small = create(&fs, "small");
    write_all(&fs, small, 0, &bytes(1, 5000));
    // Two files that grow in turn, a piece with each sync, so that neither lies together.
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    for i in 0..24 {
        for (ino, seed) in [(a, 100), (b, 200)] {
            write_all(&fs, ino, (i * 128 * KIB) as u64, &bytes(seed + i as u64, 128 * KIB));
            fs.sync().unwrap();
        }
    }
    fs.drop_caches();
    let mut out = vec![0; MIB];
    fs.read(small, 0, &mut out).unwrap();
    fs.read(a, 0, &mut out[..100]).unwrap();
    dev.take();
    fs.read(a, MIB as u64, &mut out).unwrap();
    let (batches, single) = dev.take();
    assert_eq!((batches.len(), single), (1, 0));
    assert!(batches[0] >= 8, "pieces of 128 KiB: {batches:?}");
    // Three times what the cache holds.
    for i in 0..24 {
        let from = i % 3 * MIB;
        assert_eq!(fs.read(b, from as u64, &mut out).unwrap(), MIB);
        assert!(out[..128 * KIB] == bytes(200 + (from / (128 * KIB)) as u64, 128 * KIB)[..]);
    }
    dev.take();
    fs.read(small, 0, &mut out).unwrap();
    assert_eq!(dev.take(), (vec![], 0), "what was read before is still there");
    // What is written of a large file does not stay either.
    write_all(&fs, b, 0, &bytes(7, 2 * MIB));
    fs.sync().unwrap();
    fs.read(small, 0, &mut out).unwrap();
    assert_eq!(dev.take(), (vec![], 0));
    fs.read(b, 0, &mut out).unwrap();
    assert!(out == bytes(7, 2 * MIB)[..MIB]);
    assert!(!dev.take().0.is_empty(), "from the device");
    for ino in [small, a, b] {
        fs.forget(ino, 1);
    }
    fs.close().unwrap();
    assert_clean(&dev.inner);
}

#[test]
fn a_bad_sector_and_a_flipped_bit_hide_nothing_else() {
    let memory = made(true);
    let dev = Arc::new(FailingDevice::new(memory.clone()));
    let fs = Fs::open(dev.clone(), None, small_cache()).unwrap();
    let ino = create(&fs, "large");
    let content = bytes(3, 4 * MIB);
    write_all(&fs, ino, 0, &content);
    fs.sync().unwrap();
    fs.drop_caches();
    // Where the byte at 1.5 MiB stands.
    let mut image = vec![0; memory.len() as usize];
    memory.read_at(IoKind::Data, 0, &mut image).unwrap();
    let piece = &content[3 * MIB / 2..][..4 * KIB];
    let place = (0..image.len()).step_by(KIB).find(|at| image[*at..].starts_with(piece)).unwrap() as u64;
    let mut out = vec![0; MIB];
    let around = |out: &mut [u8]| {
        for from in [0, 2 * MIB, 3 * MIB] {
            assert_eq!(fs.read(ino, from as u64, out).unwrap(), MIB);
            assert!(out[..] == content[from..from + MIB]);
        }
    };
    dev.set(Operation::Read, Fault::from_now_on().in_range(place, place + 512));
    let e = fs.read(ino, MIB as u64, &mut out).unwrap_err();
    assert!(matches!(e, Error::Io(_)), "{e}");
    around(&mut out);
    // The fragment next to the bad one.
    let next = 3 * MIB / 2 + 4 * KIB;
    assert_eq!(fs.read(ino, next as u64, &mut out).unwrap(), MIB);
    assert!(out[..] == content[next..next + MIB]);
    dev.clear();
    let mut sector = [0; 512];
    memory.read_at(IoKind::Data, place, &mut sector).unwrap();
    sector[9] ^= 4;
    memory.write_at(IoKind::Data, place, &sector).unwrap();
    fs.drop_caches();
    let e = fs.read(ino, MIB as u64, &mut out).unwrap_err();
    assert!(matches!(&e, Error::Corrupt(c) if c.0.contains(&format!("byte {} of the file", 3 * MIB / 2))), "{e}");
    around(&mut out);
    fs.forget(ino, 1);
    fs.close().unwrap();
}

#[test]
fn long_writes_go_to_the_device_while_they_come_and_are_what_was_written() {
    for data_sums in [false, true] {
        let dev = made(data_sums);
        let with_threads = small_cache().background(true);
        let fs = Fs::open(dev.clone(), None, with_threads).unwrap();
        let ino = create(&fs, "large");
        let mut all = vec![0; 24 * MIB];
        for round in 0..3 {
            for i in 0..24 {
                // New places, then the same ones, at last with other pieces across the borders of blocks in between.
                let piece = bytes(round * 100 + i as u64, MIB);
                write_all(&fs, ino, (i * MIB) as u64, &piece);
                all[i * MIB..][..MIB].copy_from_slice(&piece);
                if round == 2 {
                    let at = i * MIB + 5000 * i;
                    write_all(&fs, ino, at as u64, &piece[..3000]);
                    all[at..][..3000].copy_from_slice(&piece[..3000]);
                }
                let from = i * MIB / 2;
                let mut out = vec![1; 300 * KIB];
                assert_eq!(fs.read(ino, from as u64, &mut out).unwrap(), out.len());
                assert!(out[..] == all[from..][..300 * KIB], "round {round}, behind {i}, sums {data_sums}");
            }
            fs.fsync(ino, false).unwrap();
        }
        fs.forget(ino, 1);
        fs.close().unwrap();
        assert_clean(&dev);
        let fs = Fs::open(dev.clone(), None, small_cache()).unwrap();
        assert!(path::read_file(&fs, b"/large").unwrap() == all, "sums {data_sums}");
        fs.close().unwrap();
    }
}

#[test]
fn bitmaps_that_a_search_will_need_are_one_batch() {
    let memory = Arc::new(MemoryDevice::new(96 << 20));
    mkfs(&*memory, None, &MkfsOptions::default().ag_blocks(Some(2048))).unwrap();
    let fs = Fs::open(memory.clone(), None, small_cache()).unwrap();
    // A dozen allocation groups of 8 MiB, each with little left.
    let files: Vec<Ino> = (0..11).map(|i| create(&fs, &format!("file{i}"))).collect();
    for ino in &files {
        write_all(&fs, *ino, 0, &bytes(*ino, 6 * MIB));
        fs.sync().unwrap();
    }
    files.iter().for_each(|ino| fs.forget(*ino, 1));
    fs.close().unwrap();
    let dev = Noting::new(memory.clone());
    let fs = Fs::open(dev.clone(), None, small_cache()).unwrap();
    let ino = create(&fs, "large");
    dev.take();
    let content = bytes(5, 7 * MIB);
    write_all(&fs, ino, 0, &content);
    fs.sync().unwrap();
    let (batches, _) = dev.take();
    assert!(batches.iter().any(|n| *n > 2), "{batches:?}");
    fs.forget(ino, 1);
    fs.close().unwrap();
    assert_clean(&memory);
    let fs = Fs::open(memory.clone(), None, small_cache()).unwrap();
    assert!(path::read_file(&fs, b"/large").unwrap() == content);
    fs.close().unwrap();
}

/// So that no kernel cuts them at odd places. An arm goes on from one part to the next.
#[test]
fn reads_through_the_cache_are_no_longer_than_the_device_takes_unless_it_has_an_arm() {
    for arm in [false, true] {
        let dev = Noting::with_queue(made(true), (!arm).then_some(100 * KIB));
        let fs = Fs::open(dev.clone(), None, MountOptions::default()).unwrap();
        let ino = create(&fs, "file");
        let all = bytes(7, 4 * MIB);
        write_all(&fs, ino, 0, &all);
        fs.sync().unwrap();
        fs.drop_caches();
        *dev.longest.lock().unwrap() = 0;
        let mut back = vec![0; MIB];
        // Short ones in order, ahead of which the thread reads; then a long one.
        for at in (0..2 * MIB).step_by(64 * KIB) {
            assert_eq!(fs.read(ino, at as u64, &mut back[..64 * KIB]).unwrap(), 64 * KIB);
            assert!(back[..64 * KIB] == all[at..at + 64 * KIB], "at {at}");
        }
        while fs.readahead_waits() > 0 {
            std::thread::yield_now();
        }
        fs.drop_caches();
        assert_eq!(fs.read(ino, 3 * MIB as u64, &mut back).unwrap(), MIB);
        assert!(back == all[3 * MIB..], "the last part");
        assert_eq!(*dev.longest.lock().unwrap(), if arm { MIB } else { 100 * KIB });
        fs.forget(ino, 1);
        fs.close().unwrap();
        assert_clean(&dev.inner);
    }
}
