//! What must not grow with the size of a disk.

use cffs_device::{CountingDevice, Device, IoKind, MemoryDevice};
use cffs_logdisk::{BLOCK_BYTES, ImageOptions, ImageStore, LogDisk, LogOptions};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A disk of a petabyte of logical space with `blocks` blocks far from each other.
fn scattered(blocks: u64, options: &LogOptions) -> (Arc<MemoryDevice>, LogDisk) {
    let device = Arc::new(MemoryDevice::new(1 << 30));
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [7; 16], slot_bytes: 1 << 20 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 50, options).unwrap();
    for i in 0..blocks {
        let number = i * 0x9e37_79b9 % (1 << 38);
        disk.write_at(IoKind::Data, number * BLOCK, &[i as u8; BLOCK_BYTES]).unwrap();
    }
    disk.flush().unwrap();
    (device, disk)
}

#[test]
fn opening_reads_the_table_and_little_else_and_memory_is_bounded() {
    let options = LogOptions { cache_nodes: 64, checkpoint_bytes: 8 << 20, ..LogOptions::default() };
    let (device, disk) = scattered(30_000, &options);
    assert!(disk.stats().cached_nodes <= 64 && disk.stats().dirty_nodes < 3000, "{:?}", disk.stats());
    disk.checkpoint().unwrap();
    let segments = disk.stats().segments;
    drop(disk);
    let counted = Arc::new(CountingDevice::new(device));
    let disk = LogDisk::open(Arc::new(ImageStore::open(counted.clone()).unwrap()), &options).unwrap();
    let reads = counted.snapshot().read_requests();
    assert!(reads < 20 + segments as u64 / 30, "{reads} requests for {segments} segments");
    let mut data = [0; BLOCK_BYTES];
    for i in (0..30_000).step_by(1111) {
        disk.read_at(IoKind::Data, i * 0x9e37_79b9 % (1 << 38) * BLOCK, &mut data).unwrap();
        assert_eq!(data, [i as u8; BLOCK_BYTES]);
    }
    assert!(disk.stats().cached_nodes <= 64);
}

/// Who ends the use of a disk says that nothing follows, so nobody looks for it. What follows all the same is found, and a loss of the root that says so
/// is noticed.
#[test]
fn what_was_closed_is_opened_with_few_bytes_and_what_follows_is_not_lost() {
    let options = LogOptions::default();
    let (device, disk) = scattered(3000, &options);
    let open = |device: &Arc<MemoryDevice>| {
        let counted = Arc::new(CountingDevice::new(device.clone()));
        let disk = LogDisk::open(Arc::new(ImageStore::open(counted.clone())?), &options)?;
        Ok::<_, std::io::Error>((disk, counted.snapshot().read_bytes()))
    };
    let block = |disk: &LogDisk| {
        let mut data = [0; BLOCK_BYTES];
        disk.read_at(IoKind::Data, BLOCK, &mut data).unwrap();
        data[0]
    };
    disk.checkpoint().unwrap();
    let (_, looked) = open(&device).unwrap();
    disk.finish().unwrap();
    let closed = superblocks(&device);
    disk.finish().unwrap();
    assert!(superblocks(&device) == closed, "it was closed already");
    disk.write_at(IoKind::Data, BLOCK, &[1; BLOCK_BYTES]).unwrap();
    disk.flush().unwrap();
    drop(disk);
    let crashed = superblocks(&device);
    restore(&device, &closed);
    let lost = open(&device).map(drop).unwrap_err();
    assert!(lost.kind() == std::io::ErrorKind::InvalidData && lost.to_string().contains("is lost"), "{lost}");
    restore(&device, &crashed);
    let (disk, _) = open(&device).unwrap();
    assert_eq!(block(&disk), 1);
    disk.finish().unwrap();
    drop(disk);
    let (disk, read) = open(&device).unwrap();
    assert!(looked > 1 << 20 && read < looked / 4, "{read} bytes, and {looked} where something may follow");
    assert_eq!(block(&disk), 1);
    // A look alone leaves it open; what has not changed is closed without a checkpoint.
    let written = disk.stats().written;
    disk.finish().unwrap();
    assert_eq!(disk.stats().written, written);
}

fn superblocks(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; 128 << 10];
    device.read_at(IoKind::Super, 0, &mut bytes).unwrap();
    bytes
}

fn restore(device: &MemoryDevice, superblocks: &[u8]) {
    device.write_at(IoKind::Super, 0, superblocks).unwrap();
}

#[test]
fn a_discard_of_everything_is_done_in_bounded_memory() {
    let options = LogOptions { cache_nodes: 64, ..LogOptions::default() };
    let (_, disk) = scattered(20_000, &options);
    disk.write_at(IoKind::Data, 0, &[9; BLOCK_BYTES]).unwrap();
    disk.discard(BLOCK, u64::MAX).unwrap();
    assert!(disk.stats().dirty_nodes < 200, "{:?}", disk.stats());
    disk.flush().unwrap();
    disk.checkpoint().unwrap();
    let mut data = [1; BLOCK_BYTES];
    disk.read_at(IoKind::Data, 0, &mut data).unwrap();
    assert_eq!(data, [9; BLOCK_BYTES]);
    for i in (1..20_000).step_by(999) {
        disk.read_at(IoKind::Data, i * 0x9e37_79b9 % (1 << 38) * BLOCK, &mut data).unwrap();
        assert_eq!(data, [0; BLOCK_BYTES]);
    }
    assert!(disk.check(true).unwrap().is_empty());
    assert!(disk.space().live < 1 << 20, "{:?}", disk.space());
}

/// The extents of the difference are never in memory all at once; what is found is the same.
#[test]
fn a_difference_of_many_extents_is_exact() {
    let options = LogOptions { cache_nodes: 64, ..LogOptions::default() };
    let (_, disk) = scattered(100, &options);
    let base = 1 << 41;
    disk.write_at(IoKind::Data, base, &vec![1; 9000 * BLOCK_BYTES]).unwrap();
    let first = disk.snapshot(0, "first").unwrap();
    let mut want: Vec<(u64, u64)> = Vec::new();
    let mut rng = fastrand::Rng::with_seed(1);
    for i in 0..3000 {
        let (at, n) = (base + i * 3 * BLOCK, rng.u64(1..3) * BLOCK);
        match rng.u32(0..3) {
            0 => continue,
            1 => disk.discard(at, n).unwrap(),
            _ => disk.write_at(IoKind::Data, at, &vec![2; n as usize]).unwrap(),
        }
        want.push((at, n));
    }
    assert_eq!(disk.diff(first, None).unwrap(), want);
    let second = disk.snapshot(0, "second").unwrap();
    assert_eq!(disk.diff(first, Some(second)).unwrap(), want);
    assert_eq!(disk.diff(second, None).unwrap(), []);
    let (page, next) = disk.diff_from(Some(first), Some(second), want[100].0, 7).unwrap();
    assert_eq!((&page[..], next), (&want[100..107], Some(want[107].0)));
    assert_eq!(disk.diff_from(None, Some(first), base, 1).unwrap().0, vec![(base, 9000 * BLOCK)]);
}
