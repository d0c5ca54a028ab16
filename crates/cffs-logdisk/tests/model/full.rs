//! Full disks.

use crate::crash_device::CrashDevice;
use cffs_device::{Device, IoKind, WriteRequest};
use cffs_logdisk::{
    BLOCK_BYTES, CleanPolicy, Compression, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH, MemoryStore,
    SegmentStore,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;

fn options() -> LogOptions {
    LogOptions { cache_nodes: 32, batch_bytes: 16 * BLOCK_BYTES, checkpoint_bytes: 1 << 20, ..LogOptions::default() }
}

fn image(slots: u64) -> Arc<ImageStore> {
    let device = Arc::new(CrashDevice::new(slots * (64 << 10) + (1 << 20)));
    let image = ImageOptions { uuid: [7; 16], slot_bytes: 64 << 10 };
    Arc::new(ImageStore::format(device, &image).unwrap())
}

/// A block that nothing compresses.
fn block(seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..BLOCK_BYTES).map(|_| rng.u8(..)).collect()
}

fn read(disk: &dyn Device, number: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK_BYTES];
    disk.read_at(IoKind::Data, number * BLOCK, &mut data).unwrap();
    data
}

/// Writes block after block, in the order of `next`, until the disk is full; returns which.
fn fill(disk: &LogDisk, seed: u64, mut next: impl FnMut(u64) -> u64) -> Vec<u64> {
    let mut written = Vec::new();
    loop {
        let number = next(written.len() as u64);
        match disk.write_at(IoKind::Data, number * BLOCK, &block(seed + number)) {
            Ok(()) => written.push(number),
            Err(e) => {
                assert_eq!(e.kind(), io::ErrorKind::StorageFull);
                return written;
            }
        }
        assert!(written.len() < 100_000, "the disk is never full");
    }
}

fn assert_sound(disk: &LogDisk) {
    let problems = disk.check(true).unwrap();
    assert!(problems.is_empty(), "{problems:#?}");
    assert_eq!(disk.stats().damaged_segments, 0);
}

#[test]
fn a_disk_is_filled_and_emptied_again_and_again() {
    let store = image(64);
    let capacity = store.capacity();
    let disk = LogDisk::format(store.clone(), 1 << 40, &options()).unwrap();
    let mut least = u64::MAX;
    for round in 0..100 {
        // A thin disk: in every second round the blocks are far from each other.
        let stride = if round % 2 == 0 { 1 } else { 7919 };
        let written = fill(&disk, round, |i| i * stride);
        disk.flush().unwrap();
        least = least.min(written.len() as u64 * BLOCK);
        for &n in written.iter().step_by(17) {
            assert!(read(&disk, n) == block(round + n), "round {round}, block {n}");
        }
        disk.discard(0, u64::MAX).unwrap();
        disk.flush().unwrap();
        if round % 10 == 0 {
            assert_sound(&disk);
        }
    }
    disk.checkpoint().unwrap();
    assert!(disk.space().live < 1 << 16, "{:?}", disk.space());
    assert!(least > capacity / 2, "only {least} of {capacity} bytes could be used");
    drop(disk);
    let disk = LogDisk::open(store, &options()).unwrap();
    assert_sound(&disk);
}

#[test]
fn a_full_disk_can_be_overwritten_at_random_for_ever() {
    for policy in [CleanPolicy::Greedy, CleanPolicy::CostBenefit, CleanPolicy::Generations] {
        let disk = LogDisk::format(image(96), 1 << 30, &LogOptions { policy, ..options() }).unwrap();
        assert!(disk.space().usable > 4 << 20);
        let n = fill(&disk, 0, |i| i).len() as u64;
        disk.flush().unwrap();
        let mut rng = fastrand::Rng::with_seed(9);
        let mut seeds: Vec<u64> = (0..n).collect();
        for i in 0..5 * n {
            let number = rng.u64(0..n);
            seeds[number as usize] = 1_000_000 + i;
            disk.write_at(IoKind::Data, number * BLOCK, &block(1_000_000 + i)).unwrap();
            if i % 50 == 0 {
                disk.flush().unwrap();
            }
        }
        for (number, &seed) in seeds.iter().enumerate() {
            assert!(read(&disk, number as u64) == block(seed));
        }
        assert_sound(&disk);
        assert!(disk.stats().cleaned > 0);
    }
}

#[test]
fn snapshots_take_space_and_give_it_back() {
    let store = image(128);
    let disk = LogDisk::format(store.clone(), 1 << 30, &options()).unwrap();
    let mut rng = fastrand::Rng::with_seed(4);
    let empty = disk.space().live;
    let mut ids = Vec::new();
    for i in 0..30 {
        for _ in 0..12 {
            let number = rng.u64(0..300);
            disk.write_at(IoKind::Data, number * BLOCK, &block(i * 1000 + number)).unwrap();
        }
        ids.push(disk.snapshot(MAIN_BRANCH, "s").unwrap());
    }
    // The rest of the disk is filled and overwritten, so that the cleaner has to move what the snapshots have.
    let other = 10_000;
    let n = fill(&disk, 0, |i| other + i).len() as u64;
    assert!(n > 100);
    for i in 0..3 * n {
        let number = other + rng.u64(0..n);
        disk.write_at(IoKind::Data, number * BLOCK, &block(i)).unwrap();
    }
    assert_sound(&disk);
    let busy = disk.open_snapshot(ids[3]).unwrap();
    assert_eq!(disk.delete_snapshot(ids[3]).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    drop(busy);
    rng.shuffle(&mut ids);
    for id in ids {
        disk.delete_snapshot(id).unwrap();
        while disk.delete_step(7).unwrap() {}
        assert_sound(&disk);
    }
    disk.discard(0, u64::MAX).unwrap();
    disk.checkpoint().unwrap();
    disk.checkpoint().unwrap();
    assert!(disk.space().live < empty + 16 * BLOCK, "{:?}", disk.space());
    assert_sound(&disk);
}

/// `CFFS_LOG_SNAPSHOTS=10000` for more than the usual number. Each has a few KB of its own; all are what they were, and all go.
#[test]
fn thousands_of_snapshots_cost_little_and_all_go() {
    let n: u64 = std::env::var("CFFS_LOG_SNAPSHOTS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let disk = LogDisk::format(image(256 + n / 3), 1 << 30, &options()).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut now = vec![0u64; 200];
    let mut kept: Vec<(u64, Vec<u64>)> = Vec::new();
    let mut ids = Vec::new();
    let start = disk.stats().written;
    for i in 1..=n {
        let number = rng.usize(0..now.len());
        now[number] = i;
        disk.write_at(IoKind::Data, number as u64 * BLOCK, &block(i)).unwrap();
        let id = disk.snapshot(MAIN_BRANCH, "many").unwrap();
        ids.push(id);
        if i % (n / 50) == 0 {
            kept.push((id, now.clone()));
        }
        // Now and then one goes before its time.
        if i % 7 == 0 {
            let gone = ids.swap_remove(rng.usize(0..ids.len()));
            kept.retain(|(id, _)| *id != gone);
            disk.delete_snapshot(gone).unwrap();
            while disk.delete_step(100).unwrap() {}
        }
    }
    let each = (disk.stats().written - start) / n;
    assert!(each < 64 << 10, "{each} bytes were written for each snapshot");
    let compare = |kept: &[(u64, Vec<u64>)]| {
        for (id, then) in kept {
            let device = disk.open_snapshot(*id).unwrap();
            for (number, &seed) in then.iter().enumerate().step_by(3) {
                let want = if seed == 0 { vec![0; BLOCK_BYTES] } else { block(seed) };
                assert!(read(&device, number as u64) == want);
            }
        }
    };
    compare(&kept);
    assert_sound(&disk);
    rng.shuffle(&mut ids);
    while let Some(id) = ids.pop() {
        disk.delete_snapshot(id).unwrap();
        while disk.delete_step(1000).unwrap() {}
        if (ids.len() as u64).is_multiple_of(n / 8) {
            kept.retain(|(id, _)| ids.contains(id));
            compare(&kept);
            assert_sound(&disk);
        }
    }
    disk.checkpoint().unwrap();
    disk.checkpoint().unwrap();
    assert_sound(&disk);
    assert!(disk.space().live < 200 * BLOCK + (1 << 17), "{:?} {:?}", disk.space(), disk.stats());
    eprintln!("{n} snapshots, {each} bytes written for each, {:?}", disk.stats());
}

#[test]
fn what_is_reserved_for_a_branch_nobody_else_gets() {
    let disk = LogDisk::format(image(64), 1 << 30, &options()).unwrap();
    let other = disk.branch(disk.new_branch("other").unwrap()).unwrap();
    let free = |device: &dyn Device| device.space().unwrap().free;
    let all = free(&disk);
    assert!(!other.reserve(all + 1, false) && free(&disk) == all);
    assert!(other.reserve(all / 2, false) && free(&disk) == all - all / 2 && free(&other) == all);
    let n = fill(&disk, 0, |i| i).len() as u64;
    assert!(n * BLOCK <= all / 2);
    assert!(!disk.reserve(1 << 20, false), "it was told that there is none");
    // Atomic writes are not given it either.
    for number in 1 << 17.. {
        let bufs = vec![IoSlice::new(&[4; BLOCK_BYTES])];
        let request = WriteRequest { kind: IoKind::Meta, offset: number * BLOCK, bufs };
        if let Err(e) = disk.write_atomic(&[request]) {
            assert_eq!(e.kind(), io::ErrorKind::StorageFull);
            break;
        }
    }
    let kept = free(&other);
    assert!(kept >= all / 2 - all / 32, "{kept} of {all}");
    let data = vec![3; 64 << 10];
    for piece in 0..all / 3 / data.len() as u64 {
        other.write_at(IoKind::Data, piece * data.len() as u64, &data).unwrap();
    }
    drop(other);
    let more = fill(&disk, 0, |i| n + i).len() as u64;
    assert!(more > 0, "with the device its reservation has ended");
    assert_sound(&disk);
}

#[test]
fn compression_makes_room() {
    let text: Vec<u8> =
        (0..64 * BLOCK_BYTES).map(|i| b"for (i = 0; i < n; i++) sum += a[i]; "[i * i / 7 % 37]).collect();
    let mut live = Vec::new();
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3)] {
        let disk = LogDisk::format(image(64), 1 << 30, &LogOptions { compression, ..options() }).unwrap();
        disk.write_at(IoKind::Data, 0, &text).unwrap();
        disk.write_at(IoKind::Data, 5 * BLOCK, &block(1)).unwrap();
        disk.flush().unwrap();
        let mut data = vec![0; text.len()];
        disk.read_at(IoKind::Data, 0, &mut data).unwrap();
        assert!(
            data[..5 * BLOCK_BYTES] == text[..5 * BLOCK_BYTES] && data[6 * BLOCK_BYTES..] == text[6 * BLOCK_BYTES..]
        );
        assert!(data[5 * BLOCK_BYTES..6 * BLOCK_BYTES] == block(1));
        assert_sound(&disk);
        live.push(disk.space().live);
    }
    assert!(live[1] * 2 < live[0] && live[2] * 2 < live[0], "{live:?}");
}

#[test]
fn a_store_of_objects_works_with_and_without_appending() {
    for append in [true, false] {
        let store = Arc::new(MemoryStore::new(40 << 20, 256 << 10, append));
        let disk = LogDisk::format(store.clone(), 1 << 30, &options()).unwrap();
        let mut rng = fastrand::Rng::with_seed(6);
        let mut seeds = vec![0; 1000];
        let mut snapshots = VecDeque::new();
        for i in 1..6000u64 {
            let number = rng.u64(0..1000);
            seeds[number as usize] = i;
            disk.write_at(IoKind::Data, number * BLOCK, &block(i)).unwrap();
            if i % 40 == 0 {
                disk.flush().unwrap();
            }
            if i % 100 == 0 {
                disk.clean_step(1 << 20).unwrap();
            }
            if i % 500 == 0 {
                snapshots.push_back((disk.snapshot(MAIN_BRANCH, "objects").unwrap(), seeds.clone()));
            }
            if snapshots.len() > 3 {
                let (id, then) = snapshots.pop_front().unwrap();
                let device = disk.open_snapshot(id).unwrap();
                for (n, &seed) in then.iter().enumerate().step_by(7) {
                    let want = if seed == 0 { vec![0; BLOCK_BYTES] } else { block(seed) };
                    assert!(read(&device, n as u64) == want);
                }
                drop(device);
                disk.delete_snapshot(id).unwrap();
                while disk.delete_step(100).unwrap() {}
                assert_sound(&disk);
            }
        }
        disk.flush().unwrap();
        let check = |disk: &LogDisk| {
            for (n, &seed) in seeds.iter().enumerate() {
                let want = if seed == 0 { vec![0; BLOCK_BYTES] } else { block(seed) };
                assert!(read(disk, n as u64) == want);
            }
            assert_sound(disk);
        };
        check(&disk);
        assert!(disk.stats().cleaned > 0);
        drop(disk);
        check(&LogDisk::open(store, &options()).unwrap());
    }
}
