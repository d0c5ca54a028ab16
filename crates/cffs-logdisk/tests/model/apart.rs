//! Bringing together what is apart.

use cffs_device::{CountingDevice, Device, FailingDevice, Fault, IoKind, MemoryDevice, Operation};
use cffs_logdisk::{BLOCK_BYTES, Compression, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH};
use std::io;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SLOT: u64 = 256 << 10;

fn format(device: Arc<dyn Device>, options: &LogOptions) -> LogDisk {
    let store = ImageStore::format(device, &ImageOptions { uuid: [3; 16], slot_bytes: SLOT }).unwrap();
    LogDisk::format(Arc::new(store), 1 << 30, options).unwrap()
}

fn open(device: Arc<dyn Device>, options: &LogOptions) -> LogDisk {
    LogDisk::open(Arc::new(ImageStore::open(device).unwrap()), options).unwrap()
}

/// The contents of a block after it was written so many times. All its bytes are others then, so batches have no patches of it.
fn block(n: u64, times: u64) -> Vec<u8> {
    let word = |i: u64| ((n << 32) + (times << 24) + i % 16).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..BLOCK / 8).flat_map(|i| word(i).to_le_bytes()).collect()
}

fn write(disk: &LogDisk, n: u64, times: u64) {
    disk.write_at(IoKind::Data, n * BLOCK, &block(n, times)).unwrap();
}

#[track_caller]
fn assert_has(device: &dyn Device, n: u64, times: u64) {
    let mut data = vec![0; BLOCK_BYTES];
    device.read_at(IoKind::Data, n * BLOCK, &mut data).unwrap();
    assert!(data == block(n, times), "block {n}");
}

/// Writes a block, and others that do not compress, so that what is written next is elsewhere.
fn write_apart(disk: &LogDisk, n: u64, times: u64) {
    write(disk, n, times);
    let mut others = vec![0; 12 * BLOCK_BYTES];
    fastrand::Rng::with_seed(n << 8 | times).fill(&mut others);
    disk.write_at(IoKind::Data, (10_000 + 12 * n) * BLOCK, &others).unwrap();
    disk.flush().unwrap();
}

/// Blocks that are written one by one, in some order.
fn scatter(disk: &LogDisk, blocks: u64) {
    (0..4).flat_map(|k| (k..blocks).step_by(4)).for_each(|n| write_apart(disk, n, 1));
}

/// Requests with which these blocks are read in one go.
fn requests(device: &CountingDevice<Arc<MemoryDevice>>, disk: &LogDisk, blocks: u64) -> u64 {
    let before = device.snapshot().all().read_requests;
    let mut data = vec![0; (blocks * BLOCK) as usize];
    disk.read_at(IoKind::Data, 0, &mut data).unwrap();
    device.snapshot().all().read_requests - before
}

#[test]
fn what_was_written_at_different_times_is_read_together_then() {
    for compression in [Compression::None, Compression::Lz4] {
        let options = LogOptions { compression, ..LogOptions::default() };
        let memory = Arc::new(MemoryDevice::new(64 << 20));
        let device = Arc::new(CountingDevice::new(memory.clone()));
        let disk = format(device.clone(), &options);
        scatter(&disk, 64);
        let before = requests(&device, &disk, 64);
        assert_eq!(disk.together(0, 0..64 * BLOCK), 0..BLOCK);
        let (low, high) = (0..40 * BLOCK, 40 * BLOCK..64 * BLOCK);
        let both = [low, high];
        let copied = disk.bring_together(&both).unwrap();
        assert!(copied > 0 && copied <= 64 * BLOCK, "{copied}");
        disk.flush().unwrap();
        let after = requests(&device, &disk, 64);
        assert!(before >= 32 && after <= 2, "{before} requests, and then {after}");
        assert_eq!(disk.bring_together(&both).unwrap(), 0, "it lies in order");
        drop(disk);
        let disk = open(device, &options);
        (0..64).for_each(|n| assert_has(&disk, n, 1));
        assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
        assert_eq!(disk.bring_together(&both).unwrap(), 0, "also for who has opened it again");
    }
}

/// Blocks that batches have patches of lie nowhere until they are written whole, and then side by side.
#[test]
fn what_waits_is_written_whole_before_it_is_known_what_is_apart() {
    let device: Arc<MemoryDevice> = Arc::new(MemoryDevice::new(64 << 20));
    let disk = format(device.clone(), &LogOptions::default());
    scatter(&disk, 64);
    for n in 0..64 {
        let mut data = block(n, 1);
        data[7] ^= 1;
        disk.write_at(IoKind::Data, n * BLOCK, &data).unwrap();
        disk.flush().unwrap();
        disk.write_at(IoKind::Data, n * BLOCK, &block(n, 1)).unwrap();
        disk.flush().unwrap();
    }
    assert!(disk.stats().patches > 0);
    let all = 0..64 * BLOCK;
    disk.bring_together(std::slice::from_ref(&all)).unwrap();
    disk.flush().unwrap();
    let disk = open(device, &LogOptions::default());
    assert_eq!(disk.bring_together(&[all]).unwrap(), 0, "it lies in order");
    (0..64).for_each(|n| assert_has(&disk, n, 1));
}

/// In the first of several segments there may be room for a part.
#[test]
fn what_fills_several_segments_lies_in_order_where_it_goes_on_in_the_next() {
    let options = LogOptions::default();
    let disk = format(Arc::new(MemoryDevice::new(64 << 20)), &options);
    scatter(&disk, 256);
    let all = 0..256 * BLOCK;
    assert!(disk.bring_together(std::slice::from_ref(&all)).unwrap() >= 250 * BLOCK);
    assert_eq!(disk.bring_together(&[all]).unwrap(), 0);
    (0..256).for_each(|n| assert_has(&disk, n, 1));
}

/// Units of ten blocks lie across the borders of the parts in which they are brought together.
#[test]
fn compressed_units_are_brought_together_as_a_whole() {
    let options = LogOptions { compression: Compression::Lz4, ..LogOptions::default() };
    let device = Arc::new(CountingDevice::new(Arc::new(MemoryDevice::new(64 << 20))));
    let disk = format(device.clone(), &options);
    for n in (0..4).flat_map(|k| (k..40).step_by(4)) {
        let unit: Vec<u8> = (10 * n..10 * n + 10).flat_map(|n| block(n, 1)).collect();
        disk.write_at(IoKind::Data, 10 * n * BLOCK, &unit).unwrap();
        disk.flush().unwrap();
        let mut others = vec![0; 12 * BLOCK_BYTES];
        fastrand::Rng::with_seed(n).fill(&mut others);
        disk.write_at(IoKind::Data, (10_000 + 12 * n) * BLOCK, &others).unwrap();
        disk.flush().unwrap();
    }
    let before = requests(&device, &disk, 400);
    let all = 0..400 * BLOCK;
    let copied = disk.bring_together(std::slice::from_ref(&all)).unwrap();
    assert!(copied > 0 && copied < 400 * BLOCK / 4, "{copied}");
    let after = requests(&device, &disk, 400);
    assert!(before >= 30 && after <= 5, "{before} requests, and then {after}");
    assert_eq!(disk.bring_together(&[all]).unwrap(), 0);
    (0..400).for_each(|n| assert_has(&disk, n, 1));
    assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
}

#[test]
fn what_a_snapshot_has_stays() {
    let options = LogOptions::default();
    let disk = format(Arc::new(MemoryDevice::new(64 << 20)), &options);
    scatter(&disk, 32);
    let id = disk.snapshot(MAIN_BRANCH, "first").unwrap();
    let all = 0..32 * BLOCK;
    assert_eq!(disk.bring_together(std::slice::from_ref(&all)).unwrap(), 0);
    for n in (0..32).step_by(2) {
        write_apart(&disk, n, 2);
    }
    assert_eq!(disk.bring_together(std::slice::from_ref(&all)).unwrap(), 16 * BLOCK);
    assert_eq!(disk.bring_together(&[all]).unwrap(), 0);
    let snapshot = disk.open_snapshot(id).unwrap();
    (0..32).for_each(|n| assert_has(&snapshot, n, 1));
    (0..32).for_each(|n| assert_has(&disk, n, if n % 2 == 0 { 2 } else { 1 }));
    drop(snapshot);
    disk.delete_snapshot(id).unwrap();
    while disk.delete_step(100).unwrap() {}
    (0..32).for_each(|n| assert_has(&disk, n, if n % 2 == 0 { 2 } else { 1 }));
    assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
}

#[test]
fn a_full_disk_keeps_what_it_has_and_can_be_written_again() {
    let options = LogOptions::default();
    let disk = format(Arc::new(MemoryDevice::new(16 << 20)), &options);
    scatter(&disk, 64);
    let mut end = 30_000;
    let full = loop {
        match disk.write_at(IoKind::Data, end * BLOCK, &block(end, 1)) {
            Ok(()) => end += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    let live = disk.space().live;
    for _ in 0..20 {
        disk.bring_together(&[0..64 * BLOCK, 30_000 * BLOCK..end * BLOCK]).unwrap();
    }
    (0..64).for_each(|n| assert_has(&disk, n, 1));
    (30_000..end).for_each(|n| assert_has(&disk, n, 1));
    assert!(disk.space().live <= live + (256 << 10), "{} bytes live, {live} before", disk.space().live);
    disk.discard(30_000 * BLOCK, (end - 30_000) * BLOCK).unwrap();
    (0..64).for_each(|n| write(&disk, n, 2));
    (0..64).for_each(|n| assert_has(&disk, n, 2));
    assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
}

#[test]
fn what_cannot_be_read_stays_and_so_does_what_is_asked_for_with_it() {
    let options = LogOptions::default();
    let device = Arc::new(FailingDevice::new(Arc::new(MemoryDevice::new(64 << 20))));
    let disk = format(device.clone(), &options);
    scatter(&disk, 32);
    device.set(Operation::Read, Fault::from_nth(4));
    let all = 0..32 * BLOCK;
    assert_eq!(disk.bring_together(std::slice::from_ref(&all)).unwrap(), 0);
    device.clear();
    (0..32).for_each(|n| assert_has(&disk, n, 1));
    assert_eq!(disk.bring_together(&[all]).unwrap(), 32 * BLOCK);
    (0..32).for_each(|n| assert_has(&disk, n, 1));
    assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
}
