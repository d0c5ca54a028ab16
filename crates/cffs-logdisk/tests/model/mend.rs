//! Segments with damaged summaries, while the maps are whole.

use crate::crash_device::CrashDevice;
use crate::driver::{Config, Driver};
use cffs_device::{Device, IoKind, MemoryDevice};
use cffs_logdisk::{BLOCK_BYTES, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH, MendReport};
use std::io;
use std::sync::Arc;

fn summaries(device: &dyn Device) -> Vec<u64> {
    let mut sector = [0; 512];
    let mut is_one = |at: &u64| {
        device.read_at(IoKind::Data, *at, &mut sector).unwrap();
        sector.starts_with(b"CLB1")
    };
    (0..device.len()).step_by(512).filter(|at| is_one(at)).collect()
}

fn open(device: Arc<dyn Device>, options: &LogOptions) -> io::Result<LogDisk> {
    LogDisk::open(Arc::new(ImageStore::open(device)?), options)
}

/// The damaged segments, found some at a time.
fn damaged(disk: &LogDisk) -> Vec<u64> {
    let (mut found, mut at) = (Vec::new(), Some(0));
    while let Some(from) = at {
        let step = disk.check_summaries(from, 3);
        assert_eq!(step.damaged.len(), step.problems.len());
        found.extend(step.damaged);
        at = step.next;
    }
    found
}

/// Whatever lives in a segment is elsewhere afterwards, for branches, clones and snapshots, and the segment is free.
#[test]
fn what_a_damaged_summary_described_is_moved() {
    let (mut mended, mut forwards, mut nodes) = (0, 0, 0);
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let config = Config::random(&mut rng);
        let mut d = Driver::new(config, rng);
        for i in 0..150 {
            d.step().unwrap_or_else(|e| panic!("seed {seed}, step {i}: {e}"));
        }
        if d.disk.checkpoint().is_err() {
            continue;
        }
        let image = Arc::new(d.device.crash(&mut d.rng));
        let mut all = summaries(&*image);
        d.rng.shuffle(&mut all);
        for at in all.into_iter().take(16) {
            let copy: Arc<CrashDevice> = Arc::new(image.crash(&mut d.rng));
            copy.write_at(IoKind::Data, at, &[0x5a; 512]).unwrap();
            let options = &d.config.options;
            let what = format!("seed {seed}, summary at {at}");
            // That of the checkpoint is needed to open the disk, and what is behind the log belongs to nobody.
            let Ok(disk) = open(copy.clone(), options) else { continue };
            if damaged(&disk).is_empty() || !disk.check(true).unwrap().is_empty() {
                continue;
            }
            let report = match disk.mend_summaries() {
                Ok(report) => report,
                Err(e) if e.kind() == io::ErrorKind::StorageFull => continue,
                Err(e) => panic!("{what}: {e}"),
            };
            assert!(report.freed == 1 && report.left.is_empty(), "{what}: {report:?}");
            assert!(damaged(&disk).is_empty(), "{what}");
            assert_eq!(disk.check(true).unwrap(), Vec::<String>::new(), "{what}");
            assert!(d.contents(&disk) == d.model, "{what}: the disk is not what it was");
            mended += usize::from(report.copied > 0);
            forwards += disk.stats().forwards;
            nodes += u64::from(report.copied == 0);
            assert_eq!(disk.mend_summaries().unwrap(), MendReport::default());
            drop(disk);
            let disk = open(copy, options).unwrap();
            assert!(d.contents(&disk) == d.model, "{what}: the disk is not what it was after opening it again");
            assert_eq!(disk.check(true).unwrap(), Vec::<String>::new(), "{what}");
            let _ = disk.clean_step(1 << 20);
        }
    }
    assert!(mended > 20 && forwards > 0 && nodes > 0, "{mended} mended, {forwards} forwards, {nodes} of nodes alone");
}

/// Data that is damaged too stays where it is; its neighbours in the same extent are moved.
#[test]
fn what_cannot_be_verified_is_told_and_stays() {
    let device = Arc::new(MemoryDevice::new(64 * (64 << 10) + (1 << 20)));
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [9; 16], slot_bytes: 64 << 10 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    disk.write_at(IoKind::Data, 0, &[7; 8 * BLOCK_BYTES]).unwrap();
    disk.snapshot(MAIN_BRANCH, "first").unwrap();
    disk.checkpoint().unwrap();
    drop(disk);
    let mut block = [0; BLOCK_BYTES];
    let mut is_data = |at: u64| {
        device.read_at(IoKind::Data, at, &mut block).unwrap();
        block == [7; BLOCK_BYTES]
    };
    let data = (1 << 16..device.len()).step_by(512).find(|at| is_data(*at)).unwrap();
    let summary = summaries(&*device).into_iter().filter(|at| *at < data).max().unwrap();
    device.write_at(IoKind::Data, summary, &[0x5a; 512]).unwrap();
    device.write_at(IoKind::Data, data + 3 * BLOCK_BYTES as u64, &[0x5a; 512]).unwrap();
    let disk = open(device.clone(), &LogOptions::default()).unwrap();
    assert_eq!(damaged(&disk).len(), 1);
    let report = disk.mend_summaries().unwrap();
    assert_eq!((report.freed, report.left.len(), report.copied), (0, 1, 7 * BLOCK_BYTES as u64), "{report:?}");
    assert!(report.left[0].contains("checksum"), "{report:?}");
    let mut data = vec![0; BLOCK_BYTES];
    for block in 0..8 {
        let read = disk.read_at(IoKind::Data, block * BLOCK_BYTES as u64, &mut data);
        assert_eq!(read.is_ok(), block != 3, "block {block}");
    }
    // Once that is gone, so is the segment.
    disk.write_at(IoKind::Data, 3 * BLOCK_BYTES as u64, &[8; BLOCK_BYTES]).unwrap();
    disk.delete_snapshot(disk.snapshots()[0].id).unwrap();
    while disk.delete_step(100).unwrap() {}
    disk.checkpoint().unwrap();
    drop(disk);
    let disk = open(device, &LogOptions::default()).unwrap();
    assert!(damaged(&disk).is_empty());
    assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
}

/// Of an extent of a snapshot one block cannot be read, and stays when the others are moved. It is counted as what it is, and the snapshot can be deleted.
#[test]
fn a_block_that_stays_when_its_neighbours_are_moved_goes_with_its_snapshot() {
    let device = Arc::new(CrashDevice::new(64 << 20));
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [9; 16], slot_bytes: 1 << 20 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    let block = BLOCK_BYTES as u64;
    let write = |disk: &LogDisk, n: u64, tag: u8| {
        disk.write_at(IoKind::Data, n * block, &[tag; BLOCK_BYTES]).unwrap();
    };
    (0..16).for_each(|n| write(&disk, n, 0x40 + n as u8));
    disk.flush().unwrap();
    let id = disk.snapshot(MAIN_BRANCH, "s").unwrap();
    for n in 0..600 {
        write(&disk, 1000 + n, 7);
        if n % 20 == 0 {
            disk.flush().unwrap();
        }
    }
    disk.finish().unwrap();
    drop(disk);
    let mut sector = [0; 512];
    let mut is_first = |at: &u64| {
        device.read_at(IoKind::Data, *at, &mut sector).unwrap();
        sector == [0x40; 512]
    };
    let data = (0..device.len()).step_by(512).find(|at| is_first(at)).unwrap();
    let summary = summaries(&*device).into_iter().rfind(|at| *at < data).unwrap();
    device.damage(summary + 180, 1);
    device.damage(data + 5 * block + 100, 1);
    let options = LogOptions::default();
    let disk = open(device.clone(), &options).unwrap();
    let report = disk.mend_summaries().unwrap();
    assert_eq!((report.freed, report.left.len()), (0, 1), "{report:?}");
    assert_eq!(disk.check(false).unwrap(), Vec::<String>::new());
    let one = disk.open_snapshot(id).unwrap();
    let mut found = vec![0; BLOCK_BYTES];
    for n in 0..16 {
        let read = one.read_at(IoKind::Data, n * block, &mut found);
        assert_eq!(read.is_ok(), n != 5, "block {n}: {read:?}");
        assert!(n == 5 || found.iter().all(|b| *b == 0x40 + n as u8), "block {n}");
    }
    drop(one);
    (0..16).for_each(|n| write(&disk, n, 0x80));
    disk.flush().unwrap();
    disk.delete_snapshot(id).unwrap();
    while disk.delete_step(100).unwrap() {}
    write(&disk, 0, 9);
    disk.flush().unwrap();
    drop(disk);
    let disk = open(device, &options).unwrap();
    assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
}
