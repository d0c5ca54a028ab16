//! Rebuildings that a crash ends: what is lost is an error for who reads it, and never zeros.

use crate::crash_device::CrashDevice;
use cffs_device::{Device, IoKind};
use cffs_logdisk::{BLOCK_BYTES, ImageOptions, ImageStore, LogDisk, LogOptions, rebuild, recover_image};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks that were written.
const BLOCKS: u64 = 40;

/// The disk of a file system that has so many blocks; its map is lost, and some of its batches.
fn damaged(seed: u64) -> CrashDevice {
    let device = Arc::new(CrashDevice::new(48 * (64 << 10) + (1 << 20)));
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [9; 16], slot_bytes: 64 << 10 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    for n in 0..BLOCKS {
        disk.write_at(IoKind::Data, n * BLOCK, &[n as u8 + 1; BLOCK_BYTES]).unwrap();
        if n % 4 == 3 {
            disk.flush().unwrap();
        }
    }
    disk.checkpoint().unwrap();
    drop(disk);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut sector = [0; 512];
    for at in (0..device.len()).step_by(512) {
        device.read_at(IoKind::Data, at, &mut sector).unwrap();
        if sector.starts_with(b"CLN1") || sector.starts_with(b"CLB1") && rng.u32(0..4) == 0 {
            device.damage(at + 20, 0x55);
        }
    }
    device.crash(&mut rng)
}

/// Rebuilds it and marks what is lost, as a repair does.
fn put_right(device: &Arc<CrashDevice>) -> io::Result<()> {
    rebuild(Arc::new(recover_image(device.clone())?), &LogOptions::default())?;
    let options = LogOptions { unmarked: true, ..LogOptions::default() };
    let disk = LogDisk::open(Arc::new(ImageStore::open(device.clone())?), &options)?;
    disk.mark_lost(&[(0, BLOCKS * BLOCK)])
}

/// Everything that can be read is what was written. Returns how much cannot be read.
fn lost(disk: &LogDisk, what: &str) -> usize {
    let mut data = vec![0; BLOCK_BYTES];
    let is_lost = |n: &u64| match disk.read_at(IoKind::Data, n * BLOCK, &mut data) {
        Ok(()) => {
            assert_eq!(data[0], *n as u8 + 1, "{what}: block {n} reads as something else without a word");
            false
        }
        Err(_) => true,
    };
    (0..BLOCKS).filter(is_lost).count()
}

#[test]
fn a_crash_at_any_write_of_a_rebuilding_makes_no_zeros() {
    let open =
        |device: &Arc<CrashDevice>| LogDisk::open(Arc::new(ImageStore::open(device.clone())?), &LogOptions::default());
    let (mut refused, mut some_lost) = (0, 0);
    for seed in 0..6 {
        let original = damaged(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut ended = false;
        for writes in 0.. {
            assert!(writes < 10_000, "it ends");
            let what = format!("seed {seed}, {writes} writes");
            let device = Arc::new(original.crash(&mut rng));
            device.requests_left.store(writes, Ordering::Relaxed);
            ended |= put_right(&device).is_ok();
            let device = Arc::new(device.crash(&mut rng));
            match open(&device) {
                Ok(disk) => drop(lost(&disk, &what)),
                Err(e) => {
                    assert_eq!(e.kind(), io::ErrorKind::InvalidData, "{what}: {e}");
                    refused += usize::from(e.to_string().contains("not marked"));
                }
            }
            // And it can be done again.
            let device = Arc::new(device.crash(&mut rng));
            put_right(&device).unwrap_or_else(|e| panic!("{what}: {e}"));
            let disk = open(&device).unwrap_or_else(|e| panic!("{what}: {e}"));
            some_lost += usize::from(lost(&disk, &what) > 0);
            assert_eq!(disk.check(false).unwrap(), Vec::<String>::new(), "{what}");
            if ended {
                break;
            }
        }
    }
    assert!(refused > 0 && some_lost > 0, "{refused} refused, {some_lost} with losses");
}

/// A part of the map is damaged which nobody has to read. A rebuilding is interrupted, the disk is used as it is, and made anew then.
#[test]
fn what_is_written_between_an_interrupted_rebuilding_and_the_next_one_stays() {
    const STRIDE: u64 = 3;
    const MANY: u64 = 600;
    let place = |n: u64| n * STRIDE * BLOCK;
    let device = Arc::new(CrashDevice::new(256 * (64 << 10) + (1 << 20)));
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [9; 16], slot_bytes: 64 << 10 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    for n in 0..MANY {
        disk.write_at(IoKind::Data, place(n), &[n as u8; BLOCK_BYTES]).unwrap();
    }
    // The newest of them have the same leaves: with an older one, what is behind it would tell all.
    for _ in 0..6 {
        disk.checkpoint().unwrap();
        disk.write_at(IoKind::Data, place(0), &[0; BLOCK_BYTES]).unwrap();
    }
    drop(disk);
    // All leaves that begin in the middle of the map.
    let mut sector = [0; 512];
    let is_leaf = |at: &u64| {
        device.read_at(IoKind::Data, *at, &mut sector).unwrap();
        let first = u64::from_le_bytes(sector[16..24].try_into().unwrap());
        sector.starts_with(b"CLN1") && sector[4..6] == [1, 0] && (100..MANY * STRIDE / 2).contains(&first)
    };
    for leaf in (0..device.len()).step_by(512).filter(is_leaf).collect::<Vec<_>>() {
        device.damage(leaf + 40, 0x55);
    }
    let open =
        |device: &Arc<CrashDevice>| LogDisk::open(Arc::new(ImageStore::open(device.clone())?), &LogOptions::default());
    let mut rng = fastrand::Rng::with_seed(1);
    let mut used = 0;
    for writes in 0.. {
        assert!(writes < 10_000, "it ends");
        // More takes the segments that the rebuilding had.
        for (count, stores) in [(1, false), (1, true), (30, false), (30, true)] {
            let interrupted = Arc::new(device.crash(&mut rng));
            interrupted.requests_left.store(writes, Ordering::Relaxed);
            let ended = put_right(&interrupted).is_ok();
            let now = Arc::new(interrupted.crash(&mut rng));
            let Ok(disk) = open(&now) else {
                // It waits for what is lost to be marked, or has no map any more but that of the rebuilding.
                continue;
            };
            if ended {
                assert!(used > 10, "{used} times the disk was used between two rebuildings");
                return;
            }
            used += 1;
            let what = format!("{writes} writes, {count} blocks, {stores}");
            for n in MANY..MANY + count {
                disk.write_at(IoKind::Data, place(n), &[n as u8; BLOCK_BYTES]).unwrap();
                if n % 10 == 0 {
                    disk.flush().unwrap();
                }
            }
            disk.flush().unwrap();
            if stores {
                disk.checkpoint().unwrap();
            }
            drop(disk);
            put_right(&now).unwrap_or_else(|e| panic!("{what}: {e}"));
            let disk = open(&now).unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut data = vec![0; BLOCK_BYTES];
            for n in (0..MANY).step_by(7).chain(MANY..MANY + count) {
                disk.read_at(IoKind::Data, place(n), &mut data).unwrap_or_else(|e| panic!("{what}, {n}: {e}"));
                assert!(data.iter().all(|b| *b == n as u8), "{what}: block {n} is not what was written");
            }
            assert_eq!(disk.check(false).unwrap(), Vec::<String>::new(), "{what}");
        }
    }
}
