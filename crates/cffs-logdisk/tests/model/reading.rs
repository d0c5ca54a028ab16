//! How many requests reading takes.

use cffs_device::{CountingDevice, Device, IoKind, MemoryDevice, ReadRequest, WriteRequest};
use cffs_logdisk::{BLOCK_BYTES, Compression, ImageOptions, ImageStore, LogDisk, LogOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const BLOCK: u64 = BLOCK_BYTES as u64;

type Counted = Arc<CountingDevice<MemoryDevice>>;

fn disk(len: u64) -> (Counted, LogDisk) {
    let device = Arc::new(CountingDevice::new(MemoryDevice::new(len)));
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [3; 16], slot_bytes: 1 << 20 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 40, &LogOptions::default()).unwrap();
    (device, disk)
}

fn write(disk: &LogDisk, first: u64, blocks: u64) {
    let data: Vec<u8> = (first..first + blocks).flat_map(|b| vec![b as u8; BLOCK_BYTES]).collect();
    disk.write_at(IoKind::Data, first * BLOCK, &data).unwrap();
}

#[test]
fn nodes_that_lie_side_by_side_come_in_one_request() {
    let (device, disk) = disk(64 << 20);
    let blocks = 8192;
    (0..blocks).step_by(128).for_each(|first| write(&disk, first, 128));
    disk.checkpoint().unwrap();
    drop(disk);
    let disk = LogDisk::open(Arc::new(ImageStore::open(device.clone()).unwrap()), &LogOptions::default()).unwrap();
    let reads = || device.snapshot().all().read_requests;
    let before = reads();
    let mut buf = vec![0; BLOCK_BYTES];
    for block in 0..blocks {
        disk.read_at(IoKind::Data, block * BLOCK, &mut buf).unwrap();
        assert!(buf.iter().all(|b| *b == block as u8), "block {block}");
    }
    let nodes = reads() - before - blocks;
    // A leaf has 2 MiB at most, and leaves that grew in order are half full.
    assert!((1..=6).contains(&nodes), "{nodes} requests for the nodes of 32 MiB");
}

#[test]
fn what_was_written_together_is_read_together_wherever_it_belongs() {
    let (device, disk) = disk(64 << 20);
    let place = |n: u64| n * 5000;
    (0..64).for_each(|n| write(&disk, place(n), 1));
    disk.checkpoint().unwrap();
    drop(disk);
    let requests = |group: u64| {
        let disk = LogDisk::open(Arc::new(ImageStore::open(device.clone()).unwrap()), &LogOptions::default()).unwrap();
        disk.note_group(group);
        let reads = || device.snapshot().all().read_requests;
        let before = reads();
        let mut buf = vec![0; BLOCK_BYTES];
        for n in (0..64).map(|n| n * 37 % 64) {
            disk.read_at(IoKind::Data, place(n) * BLOCK, &mut buf).unwrap();
            assert!(buf.iter().all(|b| *b == place(n) as u8), "block {n}");
        }
        reads() - before
    };
    assert!(requests(0) >= 64, "nobody has said what a request is worth");
    assert!((1..=8).contains(&requests(256 << 10)));
}

#[test]
fn what_the_device_gives_wrong_once_is_read_again() {
    let (device, disk) = disk(64 << 20);
    (0..64).for_each(|n| write(&disk, n * 5000, 1));
    disk.checkpoint().unwrap();
    drop(disk);
    let flips = Arc::new(Flips(device, AtomicBool::new(false)));
    let disk = LogDisk::open(Arc::new(ImageStore::open(flips.clone()).unwrap()), &LogOptions::default()).unwrap();
    disk.note_group(64 << 10);
    let mut buf = vec![0; BLOCK_BYTES];
    for n in [5, 30, 25, 26] {
        // The second miss in a part of the log reads all of it.
        flips.1.store(n == 25, Ordering::Relaxed);
        disk.read_at(IoKind::Data, n * 5000 * BLOCK, &mut buf).unwrap();
        assert!(buf.iter().all(|b| *b == (n * 5000) as u8), "block {n}");
        assert!(!flips.1.load(Ordering::Relaxed), "no long request at {n}");
    }
}

/// Gives what the next long request reads wrong, if that is wanted.
struct Flips(Counted, AtomicBool);

impl Device for Flips {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn sector_size(&self) -> u32 {
        self.0.sector_size()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.0.read_vectored(kind, offset, bufs)?;
        if bufs.iter().any(|b| b.len() > BLOCK_BYTES) && self.1.swap(false, Ordering::Relaxed) {
            bufs.iter_mut().for_each(|b| b.fill(0x77));
        }
        Ok(())
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.write_vectored(kind, offset, bufs)
    }
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }
}

#[test]
fn a_checkpoint_after_a_checkpoint_writes_nothing() {
    let (device, disk) = disk(64 << 20);
    write(&disk, 7, 100);
    disk.checkpoint().unwrap();
    let writes = || device.snapshot().all().write_requests;
    let before = writes();
    disk.checkpoint().unwrap();
    assert_eq!(writes(), before);
    write(&disk, 7, 1);
    disk.checkpoint().unwrap();
    assert!(writes() > before);
    // Also what only memory has is a change.
    let id = disk.snapshot(0, "s").unwrap();
    disk.checkpoint().unwrap();
    let before = writes();
    disk.delete_snapshot(id).unwrap();
    while disk.delete_step(10).unwrap() {}
    disk.checkpoint().unwrap();
    assert!(writes() > before);
}

/// As a file system with fragments of a quarter of a block writes small files one after the other, each with a flush.
#[test]
fn who_writes_a_block_by_parts_reads_nothing() {
    let (device, disk) = disk(64 << 20);
    const PART: usize = BLOCK_BYTES / 4;
    let reads = || device.snapshot().read_requests();
    let before = reads();
    let write = |part: usize, byte: u8| {
        disk.write_at(IoKind::Data, (part * PART) as u64, &[byte; PART]).unwrap();
        disk.flush().unwrap();
    };
    (0..400).for_each(|part| write(part, part as u8));
    // What takes a part away, or the rest, is known as well.
    disk.write_at(IoKind::Data, 96 * BLOCK, &[7; BLOCK_BYTES]).unwrap();
    disk.discard(97 * BLOCK, BLOCK).unwrap();
    disk.flush().unwrap();
    write(4 * 97 + 1, 9);
    // So is a block whose parts come together.
    let parts = [3, 0, 2, 1].map(|part| WriteRequest {
        kind: IoKind::Data,
        offset: 96 * BLOCK + (part * PART) as u64,
        bufs: vec![IoSlice::new(&[7; PART])],
    });
    disk.write_batch(&parts).unwrap();
    disk.flush().unwrap();
    write(4 * 96 + 1, 9);
    assert_eq!(reads(), before);
    disk.write_at(IoKind::Data, 200 * BLOCK, &[7; 40 * BLOCK_BYTES]).unwrap();
    disk.flush().unwrap();
    write(4 * 210 + 1, 9);
    assert_eq!(reads() - before, 1, "a block that was written with many others is read");
    let mut buf = vec![0; 100 * BLOCK_BYTES];
    disk.read_at(IoKind::Data, 0, &mut buf).unwrap();
    for (part, bytes) in buf.chunks(PART).enumerate() {
        let byte = match part {
            385 | 389 => 9,
            384..388 => 7,
            388..392 => 0,
            _ => part as u8,
        };
        assert!(bytes.iter().all(|b| *b == byte), "part {part}");
    }
}

/// Small files are overwritten in one writeback, more of them than a batch takes.
#[test]
fn many_parts_at_once_need_nothing_of_what_they_replace() {
    let (device, disk) = disk(64 << 20);
    let blocks = 3000;
    (0..blocks).step_by(100).for_each(|first| write(&disk, first, 100));
    disk.flush().unwrap();
    const PART: usize = BLOCK_BYTES / 4;
    let parts: Vec<WriteRequest<'_>> = (0..blocks * 4)
        .map(|n| WriteRequest { kind: IoKind::Data, offset: n * PART as u64, bufs: vec![IoSlice::new(&[9; PART])] })
        .collect();
    let before = device.snapshot().kind(IoKind::Data).read_bytes;
    disk.write_batch(&parts).unwrap();
    disk.flush().unwrap();
    assert_eq!(device.snapshot().kind(IoKind::Data).read_bytes, before);
    let mut buf = vec![0; blocks as usize * BLOCK_BYTES];
    disk.read_at(IoKind::Data, 0, &mut buf).unwrap();
    assert!(buf.iter().all(|b| *b == 9));
}

/// Notes where the reads of each batch were.
struct Batches(MemoryDevice, Mutex<Vec<Vec<u64>>>);

impl Batches {
    fn new() -> Arc<Batches> {
        Arc::new(Batches(MemoryDevice::new(64 << 20), Mutex::default()))
    }

    /// The batches since the last time.
    fn take(&self) -> Vec<Vec<u64>> {
        std::mem::take(&mut *self.1.lock().unwrap())
    }
}

impl Device for Batches {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn sector_size(&self) -> u32 {
        self.0.sector_size()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.1.lock().unwrap().push(vec![offset]);
        self.0.read_vectored(kind, offset, bufs)
    }
    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.1.lock().unwrap().push(requests.iter().map(|r| r.offset).collect());
        requests.iter_mut().try_for_each(|r| self.0.read_at(r.kind, r.offset, r.buf))
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.write_vectored(kind, offset, bufs)
    }
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }
}

#[test]
fn what_a_read_needs_is_asked_for_at_once() {
    let device = Batches::new();
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [3; 16], slot_bytes: 1 << 20 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 40, &LogOptions::default()).unwrap();
    for block in (0..64).rev() {
        write(&disk, block, 1);
        disk.flush().unwrap();
    }
    // One has what it would have without having been written.
    disk.checkpoint().unwrap();
    let asked = |disk: &LogDisk, requests: &mut [ReadRequest<'_>]| {
        device.take();
        disk.read_batch(requests).unwrap();
        device.take().iter().map(Vec::len).collect::<Vec<_>>()
    };
    let mut buf = vec![0; 64 * BLOCK_BYTES];
    let whole = ReadRequest { kind: IoKind::Data, offset: 0, buf: &mut buf };
    assert_eq!(asked(&disk, &mut [whole]), [64], "each block was written by itself");
    assert!(buf.chunks(BLOCK_BYTES).zip(0..).all(|(b, n)| b.iter().all(|byte| *byte == n)));
    // Requests of any order, of parts of blocks, and one of nothing.
    let (mut a, mut b, mut c) = (vec![0; 3 * 512], vec![0; BLOCK_BYTES], vec![]);
    let mut three = [
        ReadRequest { kind: IoKind::Data, offset: 9 * BLOCK - 512, buf: &mut a },
        ReadRequest { kind: IoKind::Data, offset: 3 * BLOCK, buf: &mut b },
        ReadRequest { kind: IoKind::Data, offset: 512, buf: &mut c },
    ];
    assert_eq!(asked(&disk, &mut three), [3]);
    assert_eq!((&a[..512], &a[512..], &b[..]), (&[8; 512][..], &[9; 1024][..], &[3; BLOCK_BYTES][..]));
    disk.read_vectored(IoKind::Data, 512, &mut []).unwrap();
}

/// Compressed units that were written one behind the other are read with one request, also where some do not compress.
#[test]
fn neighbours_come_with_one_request_whatever_their_form() {
    let device = Batches::new();
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [3; 16], slot_bytes: 1 << 20 }).unwrap();
    let options = LogOptions { compression: Compression::Lz4, ..LogOptions::default() };
    let disk = LogDisk::format(Arc::new(store), 1 << 40, &options).unwrap();
    let mut rng = fastrand::Rng::with_seed(6);
    let unit = |n: usize, rng: &mut fastrand::Rng| -> Vec<u8> {
        (0..16 * BLOCK_BYTES).map(|i| if n % 3 == 1 { rng.u8(..) } else { (i / 100 + n) as u8 }).collect()
    };
    let data: Vec<u8> = (0..8).flat_map(|n| unit(n, &mut rng)).collect();
    disk.write_at(IoKind::Data, 0, &data).unwrap();
    disk.flush().unwrap();
    let read = |offset: usize, len: usize| {
        device.take();
        let mut buf = vec![0; len];
        disk.read_at(IoKind::Data, offset as u64, &mut buf).unwrap();
        assert!(buf == data[offset..offset + len], "{len} bytes at {offset}");
        device.take().iter().map(Vec::len).sum::<usize>()
    };
    assert_eq!(read(0, data.len()), 1);
    for _ in 0..200 {
        let first = rng.usize(0..data.len() / 512);
        let sectors = rng.usize(1..=data.len() / 512 - first);
        assert_eq!(read(first * 512, sectors * 512), 1);
    }
    // What was written later is elsewhere.
    disk.write_at(IoKind::Data, 40 * BLOCK, &[0xee; BLOCK_BYTES]).unwrap();
    disk.flush().unwrap();
    let mut changed = data.clone();
    changed[40 * BLOCK_BYTES..41 * BLOCK_BYTES].fill(0xee);
    let mut buf = vec![0; data.len()];
    disk.read_at(IoKind::Data, 0, &mut buf).unwrap();
    assert!(buf == changed);
}

#[test]
fn a_disk_says_what_lies_together() {
    let (_, disk) = disk(64 << 20);
    disk.write_at(IoKind::Data, 0, &[1; 64 * BLOCK_BYTES]).unwrap();
    write(&disk, 100, 1);
    disk.flush().unwrap();
    let together = |block: u64| {
        let range = disk.together(block * BLOCK, 0..200 * BLOCK);
        (range.start / BLOCK, range.end / BLOCK)
    };
    assert_eq!(
        (together(0), together(63), together(150)),
        ((0, 200), (0, 200), (0, 200)),
        "what is nowhere costs nothing"
    );
    // Far behind the others.
    (1..20).for_each(|n| write(&disk, 1000 + 100 * n, 64));
    write(&disk, 10, 2);
    disk.flush().unwrap();
    assert_eq!((together(0), together(9)), ((0, 10), (0, 10)));
    assert_eq!((together(10), together(11)), ((10, 12), (10, 12)));
    assert_eq!((together(12), together(100), together(199)), ((12, 200), (12, 200), (12, 200)));
    write(&disk, 20, 1);
    assert_eq!((together(20), together(30)), ((12, 200), (12, 200)), "what is in memory costs nothing either");
    assert_eq!(disk.together(5 * BLOCK, 5 * BLOCK + 512..6 * BLOCK), 5 * BLOCK + 512..6 * BLOCK);
}

/// The places behind which a batch might be are looked at on one way of the arm: that of the data is behind that of the nodes here.
#[test]
fn what_was_closed_is_looked_at_in_the_order_of_the_device() {
    let device = Batches::new();
    let options = LogOptions::default();
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [3; 16], slot_bytes: 1 << 20 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 40, &options).unwrap();
    write(&disk, 0, 8);
    disk.checkpoint().unwrap();
    (1..10).for_each(|n| write(&disk, n * 100, 64));
    disk.finish().unwrap();
    drop(disk);
    device.take();
    LogDisk::open(Arc::new(ImageStore::open(device.clone()).unwrap()), &options).unwrap();
    let reads: Vec<u64> = device.take().into_iter().flatten().collect();
    let far = reads.iter().filter(|at| **at >= 2 << 20).count();
    assert!(far > 1, "places in two segments: {reads:?}");
    assert!(reads.is_sorted(), "{reads:?}");
}
