//! What must have room although the disk is full.

use cffs_device::{Device, IoKind, MemoryDevice};
use cffs_logdisk::{BLOCK_BYTES, Compression, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH, MemoryStore};
use std::io;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;

fn image(slots: u64) -> Arc<ImageStore> {
    let device = Arc::new(MemoryDevice::new(slots * (64 << 10) + (1 << 20)));
    Arc::new(ImageStore::format(device, &ImageOptions { uuid: [7; 16], slot_bytes: 64 << 10 }).unwrap())
}

fn is_full(r: io::Result<()>) -> bool {
    match r {
        Ok(()) => false,
        Err(e) if e.kind() == io::ErrorKind::StorageFull => true,
        Err(e) => panic!("{e}"),
    }
}

fn assert_sound(disk: &LogDisk) {
    let problems = disk.check(true).unwrap();
    assert!(problems.is_empty(), "{problems:#?}");
}

/// How much memory the maps have may change from mount to mount, and within one. Nobody's space becomes less by that; and the bound holds.
#[test]
fn memory_for_the_maps_takes_no_space_from_anybody() {
    for (segments, segment) in
        [(64, 64 << 10), (1024, 64 << 10), (1024, 256 << 10), (1024, 1 << 20), (4096, 1 << 20), (8192, 4 << 20)]
    {
        let store = Arc::new(MemoryStore::new(segments * segment, segment, true));
        let disk = LogDisk::format(store, 1 << 40, &LogOptions::default()).unwrap();
        for _ in 0..2 {
            let usable = [0, 32 << 20, 1 << 30, usize::MAX / 2].map(|bytes| {
                disk.set_cache_bytes(bytes);
                disk.space().usable
            });
            assert!(usable.iter().all(|u| *u == usable[0]), "{segments} segments of {segment} bytes: {usable:?}");
            disk.snapshot(MAIN_BRANCH, "s").unwrap();
        }
    }
    let disk = LogDisk::format(image(4096), 1 << 40, &LogOptions::default()).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut most = 0;
    for bytes in [usize::MAX / 2, 32 * (8 << 10), 0] {
        disk.set_cache_bytes(bytes);
        for _ in 0..3000 {
            disk.write_at(IoKind::Data, rng.u64(0..1 << 28) * BLOCK, &[1; BLOCK_BYTES]).unwrap();
            most = most.max(disk.stats().dirty_nodes);
        }
        disk.flush().unwrap();
        let (bound, stats) = ((bytes / (8 << 10)).clamp(16, 1024), disk.stats());
        assert!(stats.cached_nodes <= bound && stats.dirty_nodes <= bound, "{bytes} bytes: {stats:?}");
    }
    assert!(most > 32, "at most {most} changed nodes were in memory");
    assert_sound(&disk);
}

/// Each block of a batch changes another leaf of the map and another page of the bitmaps, and a leaf of the dead lists.
#[test]
fn writes_all_over_a_full_disk_find_room_for_what_they_change() {
    for snapshot in [false, true] {
        let options = LogOptions { cache_nodes: 64, ..LogOptions::default() };
        let disk = LogDisk::format(image(1024), 1 << 40, &options).unwrap();
        let mut n = 0;
        while !is_full(disk.write_at(IoKind::Data, n * BLOCK, &[1; 16 * BLOCK_BYTES])) {
            n += 16;
            if snapshot && n == 4096 {
                disk.snapshot(MAIN_BRANCH, "s").unwrap();
            }
        }
        disk.flush().unwrap();
        let mut rng = fastrand::Rng::with_seed(1);
        for round in 0..3 * n / 2 {
            // With a snapshot the disk may be really full.
            is_full(disk.write_at(IoKind::Data, rng.u64(0..n) * BLOCK, &[round as u8; BLOCK_BYTES]));
            if round.is_multiple_of(5000) {
                disk.flush().unwrap();
            }
        }
        for _ in 0..2000 {
            disk.discard(rng.u64(0..n) * BLOCK, BLOCK).unwrap();
        }
        disk.flush().unwrap();
        for s in disk.snapshots() {
            disk.delete_snapshot(s.id).unwrap();
            while disk.delete_step(1000).unwrap() {}
        }
        disk.discard(0, u64::MAX).unwrap();
        disk.checkpoint().unwrap();
        assert_sound(&disk);
        assert!(disk.space().live < 100 * BLOCK, "{:?}", disk.space());
    }
}

/// What was compressed stays so when it is copied by a disk that does not compress.
#[test]
fn a_full_compressed_disk_is_cleaned_without_compression() {
    for compression in [Compression::Lz4, Compression::Zstd(1)] {
        let store = image(128);
        let options = LogOptions { compression, cache_nodes: 64, batch_bytes: 256 << 10, ..LogOptions::default() };
        let disk = LogDisk::format(store.clone(), 1 << 40, &options).unwrap();
        let mut rng = fastrand::Rng::with_seed(2);
        // A third of each block is noise, so a unit becomes about three times shorter.
        let mut data = || -> Vec<u8> {
            (0..16 * BLOCK_BYTES).map(|i| if i % BLOCK_BYTES < 1400 { rng.u8(..) } else { 3 }).collect()
        };
        let mut n = 0;
        while !is_full(disk.write_at(IoKind::Data, n * BLOCK, &data())) {
            n += 16;
        }
        disk.flush().unwrap();
        drop(disk);
        assert!(n * BLOCK > 3 * (128 << 16) / 2, "{n} blocks");
        let disk = LogDisk::open(store, &LogOptions { compression: Compression::None, ..options }).unwrap();
        // Every fifth unit goes, so that all segments are worth cleaning and none is empty.
        for unit in (0..n / 16).step_by(5) {
            disk.discard(unit * 16 * BLOCK, 16 * BLOCK).unwrap();
        }
        let live = disk.space().live;
        for _ in 0..40 {
            disk.clean_step(1 << 20).unwrap();
            disk.checkpoint().unwrap();
        }
        assert!(disk.stats().cleaned > 1 << 20, "{:?}", disk.stats());
        assert!(disk.space().live < live + live / 20, "{live} bytes lived, then {:?}", disk.space());
        let mut more = n;
        while !is_full(disk.write_at(IoKind::Data, more * BLOCK, &[9; BLOCK_BYTES])) {
            more += 1;
        }
        disk.flush().unwrap();
        assert!(more - n > 100, "{} blocks more", more - n);
        disk.discard(0, u64::MAX).unwrap();
        disk.flush().unwrap();
        assert_sound(&disk);
    }
}

/// Ranges that become one in the open batch are not more than it may have.
#[test]
fn neighbours_that_are_discarded_one_by_one_are_not_one_endless_batch() {
    let options = LogOptions { cache_nodes: 64, ..LogOptions::default() };
    let disk = LogDisk::format(image(1024), 1 << 40, &options).unwrap();
    let n = 10_000;
    for i in 0..n {
        disk.write_at(IoKind::Data, i * 64 * BLOCK, &[1; BLOCK_BYTES]).unwrap();
    }
    disk.checkpoint().unwrap();
    let before = disk.stats().written;
    for i in 0..n {
        disk.discard(i * 64 * BLOCK, 64 * BLOCK).unwrap();
    }
    // Not flushed, and on the store for the most part all the same.
    assert!(disk.stats().written > before, "{n} extents are in one batch");
    assert!(disk.space().live < n * BLOCK / 10, "{:?}", disk.space());
    disk.flush().unwrap();
    assert_sound(&disk);
}
