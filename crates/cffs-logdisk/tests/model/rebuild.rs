//! Disks whose root or map is lost.

use crate::crash_device::CrashDevice;
use crate::driver::{Config, Driver, Model, SECTOR, sector};
use cffs_device::{Device, IoKind, MemoryDevice};
use cffs_logdisk::{
    BLOCK_BYTES, Compression, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH, RebuildReport, SegmentStore,
    rebuild, recover_image,
};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SUPERBLOCKS: [u64; 2] = [0, 64 << 10];

/// Sectors that begin with a magic.
fn structures(device: &dyn Device, magic: &[u8; 4]) -> Vec<u64> {
    let mut sector = [0; 512];
    let mut at = |at: &u64| {
        device.read_at(IoKind::Data, *at, &mut sector).unwrap();
        sector.starts_with(magic)
    };
    (0..device.len()).step_by(512).filter(|offset| at(offset)).collect()
}

fn wipe(device: &dyn Device, places: &[u64]) {
    for at in places {
        device.write_at(IoKind::Data, *at, &[0x5a; 512]).unwrap();
    }
}

fn rebuilt(device: Arc<dyn Device>, options: &LogOptions) -> (LogDisk, RebuildReport) {
    let report = rebuild(Arc::new(recover_image(device.clone()).unwrap()), options).unwrap();
    let options = LogOptions { unmarked: true, ..options.clone() };
    let disk = LogDisk::open(Arc::new(ImageStore::open(device).unwrap()), &options).unwrap();
    assert_eq!(disk.len(), report.logical_bytes);
    // One that was interrupted before is found again as it was left.
    assert!(report.from_checkpoint || disk.is_unmarked());
    if disk.is_unmarked() {
        disk.mark_lost(&[]).unwrap();
    }
    (disk, report)
}

/// Runs random operations, with crashes, and makes them durable.
fn history(seed: u64, steps: u32) -> Driver {
    let mut rng = fastrand::Rng::with_seed(seed);
    let config = Config::random(&mut rng);
    let mut d = Driver::new(config, rng);
    for i in 0..steps {
        d.step().unwrap_or_else(|e| panic!("seed {seed}, step {i}: {e}"));
        match d.rng.u32(0..100) {
            0..2 => d.crash(),
            2 => d.reopen(),
            _ => {}
        }
    }
    d
}

/// What the main branch has, by sector; `None` for blocks that cannot be read.
fn sectors_of(disk: &LogDisk) -> Vec<Option<u32>> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut all = Vec::new();
    for at in (0..disk.len()).step_by(BLOCK_BYTES) {
        let read = disk.read_at(IoKind::Data, at, &mut block);
        all.extend(block.chunks(SECTOR).map(|bytes| {
            let tag = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            assert!(read.is_err() || bytes == sector(tag), "a sector is none that was written");
            read.is_ok().then_some(tag)
        }));
    }
    all
}

/// Whether the main branch has all that it must have. What was discarded may read as what it was, or not at all: its segment may be gone in part.
fn has_all(found: &[Option<u32>], must: &Model) -> bool {
    must.branches[&MAIN_BRANCH].iter().zip(found).all(|(must, found)| *must == 0 || *found == Some(*must))
}

fn usable(disk: &LogDisk) {
    let problems = disk.check(false).unwrap();
    assert!(problems.is_empty(), "{problems:#?}");
    let end = disk.len() - BLOCK;
    for i in 0..40u8 {
        let written = disk.write_at(IoKind::Data, end, &[i; BLOCK_BYTES]).and_then(|()| disk.flush());
        if let Err(e) = written {
            assert_eq!(e.kind(), std::io::ErrorKind::StorageFull, "{e}, {:?}, {:?}", disk.space(), disk.stats());
        }
        let _ = disk.clean_step(1 << 18);
    }
    disk.checkpoint().unwrap();
    let mut problems = disk.check(false).unwrap();
    problems.retain(|line| !line.contains("left alone"));
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Seeds to run: `CFFS_LOG_REBUILD=from..to` for a campaign.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("CFFS_LOG_REBUILD").ok();
    let asked = asked.as_deref().and_then(|s| s.split_once(".."));
    match asked.map(|(a, b)| (a.parse(), b.parse())) {
        Some((Ok(a), Ok(b))) => a..b,
        _ => 0..default,
    }
}

#[test]
fn without_superblocks_the_disk_is_what_it_was() {
    for seed in seeds(12) {
        let mut d = history(seed, 120);
        if d.flush().is_err() {
            continue;
        }
        let device = Arc::new(d.device.crash(&mut d.rng));
        wipe(&*device, &SUPERBLOCKS);
        assert!(ImageStore::open(device.clone()).is_err());
        let (disk, report) = rebuilt(device, &d.config.options);
        assert!(report.from_checkpoint && report.lost.is_empty(), "seed {seed}: {report:?}");
        assert!(d.contents(&disk) == d.model, "seed {seed}: the disk is not what it was");
        usable(&disk);
    }
}

/// With the map, the catalog and the tables all gone, what was acknowledged is back: also after a crash, and if the rebuilding is interrupted.
#[test]
fn without_a_map_all_that_was_acknowledged_comes_back() {
    let mut copied = (0, 0);
    // Of the mount that rejected a batch, 1243 has only batches left that do not count, 1329 has none. In 3168 the rebuilding would give an id again, in 1419
    // the one before was interrupted, in 4578 patches are of a block that had been discarded.
    for seed in seeds(24).chain([1243, 1329, 1419, 3168, 4578]) {
        if std::env::var_os("CFFS_LOG_REBUILD").is_some() {
            eprintln!("seed {seed}");
        }
        let mut d = history(seed, 150);
        d.note();
        copied = (copied.0 + d.seen[0], copied.1 + d.seen[1]);
        let flushed = d.rng.bool();
        if flushed && d.flush().is_err() {
            continue;
        }
        let mut device = Arc::new(d.device.crash(&mut d.rng));
        wipe(&*device, &structures(&*device, b"CLN1"));
        // Without a root nothing tells a checkpoint that a crash has interrupted from one that counts.
        if flushed && d.rng.bool() {
            wipe(&*device, &SUPERBLOCKS);
        }
        device.flush().unwrap();
        while d.rng.u32(0..3) == 0 {
            device.requests_left.store(d.rng.u64(0..8), std::sync::atomic::Ordering::Relaxed);
            let _ = recover_image(device.clone()).and_then(|s| rebuild(Arc::new(s), &d.config.options));
            device = Arc::new(device.crash(&mut d.rng));
        }
        let (disk, report) = rebuilt(device, &d.config.options);
        assert!(disk.branches().len() == 1 && disk.snapshots().is_empty());
        let found = sectors_of(&disk);
        let known = d.possible.iter().any(|must| has_all(&found, must));
        assert!(known, "seed {seed}: the disk is none of {} states: {report:#?}", d.possible.len());
        usable(&disk);
    }
    assert!(copied.0 > 0 && copied.1 > 0, "the cleaner was not exercised");
}

fn image(device: Arc<dyn Device>, options: &LogOptions) -> LogDisk {
    let store = ImageStore::format(device, &ImageOptions { uuid: [9; 16], slot_bytes: 64 << 10 }).unwrap();
    LogDisk::format(Arc::new(store), 1 << 30, options).unwrap()
}

fn block_of(disk: &dyn Device, number: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK_BYTES];
    disk.read_at(IoKind::Data, number * BLOCK, &mut data).unwrap();
    data
}

/// A compressed unit is copied with the blocks of it that are dead: they are older than what has replaced them.
#[test]
fn what_the_cleaner_copied_does_not_come_before_what_is_newer() {
    let device = Arc::new(MemoryDevice::new(64 * (64 << 10) + (1 << 20)));
    let options = LogOptions { compression: Compression::Lz4, ..LogOptions::default() };
    let disk = image(device.clone(), &options);
    for unit in 0..100 {
        disk.write_at(IoKind::Data, unit * 16 * BLOCK, &[1; 16 * BLOCK_BYTES]).unwrap();
        disk.write_at(IoKind::Data, (5000 + unit) * BLOCK, &noise(unit)).unwrap();
    }
    disk.flush().unwrap();
    // Of each unit a block in the middle is newer, and elsewhere; and most of the noise goes, so that there is something to clean.
    for unit in 0..100 {
        disk.write_at(IoKind::Data, (unit * 16 + 7) * BLOCK, &[2; BLOCK_BYTES]).unwrap();
    }
    disk.discard(5000 * BLOCK, 90 * BLOCK).unwrap();
    disk.flush().unwrap();
    disk.checkpoint().unwrap();
    for _ in 0..20 {
        disk.clean_step(1 << 20).unwrap();
        disk.checkpoint().unwrap();
    }
    let stats = disk.stats();
    assert!(stats.cleaned > 100, "{stats:?}");
    drop(disk);
    wipe(&*device, &structures(&*device, b"CLN1"));
    let (disk, report) = rebuilt(device, &options);
    assert!(!report.from_checkpoint);
    for block in 0..1600 {
        assert_eq!(block_of(&disk, block)[0], if block % 16 == 7 { 2 } else { 1 }, "block {block}");
    }
    usable(&disk);
}

fn noise(seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..BLOCK_BYTES).map(|_| rng.u8(..)).collect()
}

/// A snapshot's blocks are copied by forwards, which are no news to the branch.
#[test]
fn snapshots_are_told_and_their_blocks_do_not_come_before_those_of_the_branch() {
    let device = Arc::new(MemoryDevice::new(64 * (64 << 10) + (1 << 20)));
    let disk = image(device.clone(), &LogOptions::default());
    (0..64).for_each(|n| disk.write_at(IoKind::Data, n * BLOCK, &[1; BLOCK_BYTES]).unwrap());
    disk.snapshot(MAIN_BRANCH, "first").unwrap();
    (0..48).for_each(|n| disk.write_at(IoKind::Data, n * BLOCK, &[2; BLOCK_BYTES]).unwrap());
    disk.discard(48 * BLOCK, 8 * BLOCK).unwrap();
    for i in 0..30 {
        disk.write_at(IoKind::Data, 100 * BLOCK, &[i; 16 * BLOCK_BYTES]).unwrap();
        disk.flush().unwrap();
        disk.clean_step(1 << 20).unwrap();
    }
    disk.checkpoint().unwrap();
    assert!(disk.stats().forwards > 0);
    drop(disk);
    wipe(&*device, &structures(&*device, b"CLN1"));
    let (disk, report) = rebuilt(device, &LogOptions::default());
    assert!(!report.from_checkpoint && !report.lost.is_empty(), "{report:?}");
    assert!(report.lost.iter().any(|l| l.contains("snapshot")), "{report:?}");
    for n in 0..64 {
        let byte = block_of(&disk, n)[0];
        match n {
            0..48 => assert_eq!(byte, 2, "block {n}"),
            48..56 => assert!(byte < 2),
            _ => assert_eq!(byte, 1, "block {n}"),
        }
    }
    assert_eq!(block_of(&disk, 100)[0], 29);
    usable(&disk);
}

/// A batch that cannot be read is told; all others count.
#[test]
fn damaged_segments_are_told() {
    let device = Arc::new(MemoryDevice::new(64 * (64 << 10) + (1 << 20)));
    let disk = image(device.clone(), &LogOptions::default());
    for n in 0..60u64 {
        disk.write_at(IoKind::Data, n * BLOCK, &[n as u8 + 1; BLOCK_BYTES]).unwrap();
        disk.flush().unwrap();
    }
    drop(disk);
    wipe(&*device, &structures(&*device, b"CLN1"));
    let all = structures(&*device, b"CLB1");
    let whole = |copy: &Arc<MemoryDevice>| {
        let (disk, report) = rebuilt(copy.clone(), &LogOptions::default());
        let lost = (0..60u64).filter(|n| block_of(&disk, *n)[0] != *n as u8 + 1).count();
        (lost, report)
    };
    assert_eq!(whole(&Arc::new(device.duplicate())).0, 0);
    let mut told = 0;
    for at in &all[..all.len() - 2] {
        let copy = Arc::new(device.duplicate());
        wipe(&*copy, &[*at]);
        let (lost, report) = whole(&copy);
        assert!(lost <= 1, "{lost} blocks are lost with one batch");
        let told_of = report.lost.iter().any(|l| !l.contains("the table of segments is lost"));
        assert!(lost == 0 || told_of, "a lost batch is not told: {report:?}");
        told += usize::from(report.lost.iter().any(|l| l.contains("cannot be read")));
    }
    assert!(told > all.len() / 2, "{told} of {} are told", all.len());
}

/// A summary is damaged, whose data is good, and then a node of any tree: files do not become zeros without a word, and not at all where only a snapshot
/// is damaged.
#[test]
fn a_map_that_can_be_read_is_not_thrown_away() {
    let device = Arc::new(MemoryDevice::new(64 * (64 << 10) + (1 << 20)));
    let disk = image(device.clone(), &LogOptions::default());
    let write = |value: u8| {
        for n in 0..60u64 {
            disk.write_at(IoKind::Data, n * 3 * BLOCK, &[n as u8 ^ value; BLOCK_BYTES]).unwrap();
            if n % 8 == 7 {
                disk.flush().unwrap();
            }
        }
        disk.checkpoint().unwrap();
    };
    write(0x40);
    disk.snapshot(MAIN_BRANCH, "first").unwrap();
    write(0x80);
    drop(disk);
    let zeros = |disk: &LogDisk| (0..60u64).filter(|n| block_of(disk, n * 3)[0] != *n as u8 ^ 0x80).count();
    let (mut left, mut told) = (0, 0);
    for node in structures(&*device, b"CLN1") {
        for batch in structures(&*device, b"CLB1") {
            let copy = Arc::new(device.duplicate());
            wipe(&*copy, &[node, batch]);
            let what = format!("node at {node}, batch at {batch}");
            let read_only = LogOptions { read_only: true, ..LogOptions::default() };
            let mut data = vec![0; BLOCK_BYTES];
            let mut has = |disk: &LogDisk, n: u64| {
                disk.read_at(IoKind::Data, n * 3 * BLOCK, &mut data).is_ok() && data[0] == n as u8 ^ 0x80
            };
            let store = Arc::new(ImageStore::open(copy.clone()).unwrap());
            let is_whole = LogDisk::open(store, &read_only).is_ok_and(|disk| (0..60).all(|n| has(&disk, n)));
            match rebuild(Arc::new(recover_image(copy.clone()).unwrap()), &LogOptions::default()) {
                Err(e) => {
                    assert_eq!(e.kind(), std::io::ErrorKind::Unsupported, "{what}: {e}");
                    assert!(is_whole, "{what}");
                    left += 1;
                }
                Ok(report) => {
                    let made_anew = !report.from_checkpoint && !report.recounted;
                    assert!(!is_whole || !made_anew, "{what}: {report:?}");
                    let options = LogOptions { unmarked: true, ..LogOptions::default() };
                    let disk = LogDisk::open(Arc::new(ImageStore::open(copy).unwrap()), &options).unwrap();
                    let lost = zeros(&disk);
                    let is_told =
                        report.lost.iter().any(|l| l.contains("cannot be read from") || l.contains("cannot be known"));
                    assert!(lost == 0 || is_told, "{what}: {lost} blocks, {report:?}");
                    told += usize::from(lost > 0);
                }
            }
        }
    }
    assert!(left > 0 && told > 0, "{left} left as they were, {told} told");
}

/// Without superblocks nothing can read the disk as it is: an earlier checkpoint becomes the root, also where a damaged summary is in its way.
#[test]
fn without_superblocks_and_with_a_damaged_summary_the_disk_can_be_read() {
    let device = Arc::new(MemoryDevice::new(64 * (64 << 10) + (1 << 20)));
    let disk = image(device.clone(), &LogOptions::default());
    for n in 0..200u64 {
        disk.write_at(IoKind::Data, n % 60 * 3 * BLOCK, &[n as u8 + 1; BLOCK_BYTES]).unwrap();
        disk.flush().unwrap();
        if n % 30 == 29 {
            disk.checkpoint().unwrap();
        }
    }
    disk.finish().unwrap();
    drop(disk);
    let (mut whole, mut kept) = (0, 0);
    for batch in structures(&*device, b"CLB1") {
        let copy = Arc::new(device.duplicate());
        wipe(&*copy, &[0, 64 << 10, batch]);
        let what = format!("batch at {batch}");
        let options = LogOptions { unmarked: true, ..LogOptions::default() };
        let report = rebuild(Arc::new(recover_image(copy.clone()).unwrap()), &options);
        let report = report.unwrap_or_else(|e| panic!("{what}: {e}"));
        let disk = LogDisk::open(Arc::new(ImageStore::open(copy).unwrap()), &options).unwrap();
        let right = (0..60).filter(|n| block_of(&disk, n * 3)[0] == (140 + (n + 40) % 60) as u8 + 1).count();
        assert!(right >= 59 && (right == 60 || !report.lost.is_empty()), "{what}: {right} blocks, {report:?}");
        whole += usize::from(right == 60);
        kept += usize::from(report.from_checkpoint && !report.lost.is_empty());
        if right == 60 {
            disk.mend_summaries().unwrap();
            assert_eq!(disk.check(true).unwrap(), Vec::<String>::new(), "{what}");
        }
    }
    assert!(whole > 0 && kept > 0, "{whole} whole, {kept} by an earlier checkpoint");
}

/// A writer ends where a list for snapshots cannot be read. What it has written until then can be read all the same.
#[test]
fn what_was_written_until_a_dead_list_could_not_be_read_can_be_read() {
    let device = Arc::new(MemoryDevice::new(64 * (64 << 10) + (1 << 20)));
    let disk = image(device.clone(), &LogOptions::default());
    let write = |disk: &LogDisk, n: u64, tag: u8| {
        disk.write_at(IoKind::Data, n * BLOCK, &[tag; BLOCK_BYTES]).and_then(|()| disk.flush())
    };
    (0..60).try_for_each(|n| write(&disk, n, 1)).unwrap();
    disk.snapshot(MAIN_BRANCH, "first").unwrap();
    (0..30).try_for_each(|n| write(&disk, n, 2)).unwrap();
    disk.finish().unwrap();
    drop(disk);
    let is_list = |at: &u64| {
        let mut sector = [0; 512];
        device.read_at(IoKind::Data, *at, &mut sector).unwrap();
        sector[4] == 5
    };
    let lists: Vec<u64> = structures(&*device, b"CLN1").into_iter().filter(is_list).collect();
    wipe(&*device, &lists);
    let open = |read_only: bool| {
        let options = LogOptions { read_only, ..LogOptions::default() };
        LogDisk::open(Arc::new(ImageStore::open(device.clone()).unwrap()), &options)
    };
    let disk = open(false).unwrap();
    assert!(write(&disk, 100, 3).is_ok() && write(&disk, 40, 3).is_err());
    drop(disk);
    assert!(open(false).is_err());
    let disk = open(true).unwrap();
    for n in (0..60).chain([100]) {
        let tag = [1, 2, 3][usize::from(n < 30) + 2 * usize::from(n == 40 || n == 100)];
        assert!(block_of(&disk, n) == [tag; BLOCK_BYTES], "block {n}");
    }
}

#[test]
fn what_is_no_log_disk_is_not_made_one() {
    let device = Arc::new(CrashDevice::new(8 << 20));
    assert!(recover_image(device.clone()).is_err());
    let store = Arc::new(ImageStore::format(device, &ImageOptions { uuid: [9; 16], slot_bytes: 64 << 10 }).unwrap());
    let error = rebuild(store.clone(), &LogOptions::default()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(store.root().unwrap().sequence, 0);
}
