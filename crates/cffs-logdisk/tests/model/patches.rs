//! Flushes, which store what has changed of blocks.

use cffs_device::{CountingDevice, Device, IoKind, MemoryDevice, WriteRequest};
use cffs_logdisk::{BLOCK_BYTES, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH, rebuild, recover_image};
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SLOT: u64 = 256 << 10;

type Counted = Arc<CountingDevice<MemoryDevice>>;

fn open(device: &Counted, options: &LogOptions) -> LogDisk {
    LogDisk::open(Arc::new(ImageStore::open(device.clone()).unwrap()), options).unwrap()
}

fn read_only() -> LogOptions {
    LogOptions { read_only: true, ..LogOptions::default() }
}

/// Blocks that were all written, and are changed a little from then on.
struct Small {
    device: Counted,
    disk: LogDisk,
    blocks: Vec<Vec<u8>>,
    rng: fastrand::Rng,
}

impl Small {
    fn new() -> Self {
        Small::of(20, 64 << 20)
    }

    fn of(blocks: usize, bytes: u64) -> Self {
        let device = Arc::new(CountingDevice::new(MemoryDevice::new(bytes)));
        let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [3; 16], slot_bytes: SLOT }).unwrap();
        let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
        let blocks = (0..blocks).map(|n| vec![(n % 255) as u8 + 1; BLOCK_BYTES]).collect();
        let small = Small { device, disk, blocks, rng: fastrand::Rng::with_seed(7) };
        (0..small.blocks.len()).for_each(|n| small.write(n));
        small.disk.checkpoint().unwrap();
        small
    }

    fn write(&self, n: usize) {
        self.disk.write_at(IoKind::Meta, n as u64 * BLOCK, &self.blocks[n]).unwrap();
    }

    /// Writes some blocks at once, as the metadata of a file system is written.
    fn commit(&self, blocks: Range<usize>) {
        let mut requests = Vec::new();
        for (n, block) in self.blocks.iter().enumerate().take(blocks.end).skip(blocks.start) {
            requests.push(WriteRequest {
                kind: IoKind::Meta,
                offset: n as u64 * BLOCK,
                bufs: vec![IoSlice::new(block)],
            });
        }
        self.disk.write_atomic(&requests).unwrap();
    }

    /// Changes a few bytes in some blocks.
    fn change_all(&mut self, blocks: Range<usize>) {
        for block in &mut self.blocks[blocks] {
            let at = self.rng.usize(0..BLOCK_BYTES - 100);
            block[at..at + 100].fill(self.rng.u8(..));
        }
    }

    /// Changes a few bytes in a few blocks, and makes that durable.
    fn change(&mut self) {
        for _ in 0..4 {
            let (n, at) = (self.rng.usize(0..self.blocks.len()), self.rng.usize(0..BLOCK_BYTES - 100));
            self.blocks[n][at..at + 100].fill(self.rng.u8(..));
            self.write(n);
        }
        self.disk.flush().unwrap();
    }

    #[track_caller]
    fn check(&self, disk: &LogDisk) {
        for (n, block) in self.blocks.iter().enumerate() {
            assert!(read(disk, n as u64) == *block, "block {n}");
        }
        assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
    }
}

fn read(disk: &LogDisk, block: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK_BYTES];
    disk.read_at(IoKind::Data, block * BLOCK, &mut data).unwrap();
    data
}

#[test]
fn a_small_flush_is_short_and_one_request() {
    let mut small = Small::new();
    let written = |s: &Small| (s.device.snapshot().write_bytes(), s.device.snapshot().write_requests());
    let before = written(&small);
    (0..100).for_each(|_| small.change());
    let after = written(&small);
    assert_eq!(after.1 - before.1, 100);
    assert!(after.0 - before.0 <= 100 * 1024, "{} bytes for 40,000", after.0 - before.0);
    assert!(small.disk.stats().patches > 200);
    small.check(&small.disk);
    // What a flush has nothing of is no request.
    small.disk.flush().unwrap();
    small.write(3);
    small.disk.flush().unwrap();
    assert_eq!(written(&small), after);
}

#[test]
fn a_crash_leaves_what_was_flushed() {
    let mut small = Small::new();
    for round in 0..30 {
        (0..=round % 4).for_each(|_| small.change());
        match round % 5 {
            0 => small.disk.checkpoint().unwrap(),
            1 => drop(small.disk.clean_step(1 << 20).unwrap()),
            _ => {}
        }
        // Somebody looks at it meanwhile, without writing.
        small.check(&open(&small.device, &read_only()));
        small.disk = open(&small.device, &LogOptions::default());
        small.check(&small.disk);
    }
    // New blocks, which were zeros.
    small.blocks.extend((0..5).map(|_| vec![0; BLOCK_BYTES]));
    for n in 20..25 {
        small.blocks[n][7..1000].fill(9);
        small.write(n);
    }
    small.disk.flush().unwrap();
    small.check(&open(&small.device, &LogOptions::default()));
}

#[test]
fn where_too_many_have_patches_the_coldest_are_written_whole() {
    // So small a log disk may have patches of some eighty blocks.
    let mut small = Small::of(400, 64 << 20);
    let written = |s: &Small| (s.device.snapshot().write_bytes(), s.device.snapshot().write_requests());
    let before = written(&small);
    for n in 0..400 {
        // One at a time, and the same few each time.
        for n in [n, 0, 1, 2] {
            small.blocks[n][100..140].fill(small.rng.u8(..));
            small.write(n);
        }
        small.disk.flush().unwrap();
        if n % 37 == 0 {
            small.check(&open(&small.device, &read_only()));
        }
    }
    let after = written(&small);
    let (bytes, requests) = (after.0 - before.0, after.1 - before.1);
    let whole = bytes.saturating_sub(400 * 1024) / BLOCK;
    assert!((280..410).contains(&whole), "{whole} blocks were written whole, those that change each time seldom");
    assert!(requests < 400 + 30, "{requests} requests for 400 flushes");
    small.check(&small.disk);
    small.disk = open(&small.device, &LogOptions::default());
    small.check(&small.disk);
}

/// Metadata that changes a little each time that much is synced is written whole once, and not each time.
#[test]
fn a_long_batch_has_patches_of_what_changes_again() {
    const DATA: u64 = 1200;
    const META: u64 = 100;
    let mut small = Small::of(META as usize, 256 << 20);
    small.commit(0..META as usize);
    small.disk.flush().unwrap();
    let bytes = |s: &Small| s.device.snapshot().write_bytes();
    let before = bytes(&small);
    for round in 0..20u64 {
        // Longer than a segment, and than what is admitted at once.
        for n in 0..DATA {
            let data = vec![(round + n) as u8; BLOCK_BYTES];
            small.disk.write_at(IoKind::Data, (1000 + round * DATA + n) * BLOCK, &data).unwrap();
        }
        small.change_all(0..META as usize);
        small.commit(0..META as usize);
        small.disk.flush().unwrap();
        if round % 4 == 0 {
            small.check(&open(&small.device, &read_only()));
        }
    }
    let least = 20 * DATA * BLOCK;
    let more = bytes(&small) - before - least;
    assert!(more < least / 32 + 20 * META * 300, "{more} bytes for 20 times 100 patches, and for summaries");
    for n in 0..20 * DATA {
        assert!(read(&small.disk, 1000 + n) == vec![(n / DATA + n % DATA) as u8; BLOCK_BYTES]);
    }
    small.check(&small.disk);
    small.disk = open(&small.device, &LogOptions::default());
    small.check(&small.disk);
}

/// Where little is free, blocks that wait do not make the batches of others short.
#[test]
fn near_full_data_goes_in_few_requests_although_blocks_wait() {
    let mut small = Small::of(80, 64 << 20);
    let mut end = 1000;
    while small.disk.write_at(IoKind::Data, end * BLOCK, &[7; 16 * BLOCK_BYTES]).is_ok() {
        end += 16;
    }
    small.disk.flush().unwrap();
    let blocks = end - 1000;
    assert!(blocks > 10_000, "{blocks}");
    let mut waited = 0;
    // From where nothing is free to where nothing needs to be cleaned.
    for kept in (0..=512).step_by(32) {
        small.disk.discard((end - kept) * BLOCK, kept.min(32) * BLOCK).unwrap();
        small.disk.flush().unwrap();
        small.commit(0..80);
        small.disk.flush().unwrap();
        // As many as may wait.
        let patches = small.disk.stats().patches;
        for some in [0..40, 40..80] {
            small.change_all(some.clone());
            small.commit(some);
            small.disk.flush().unwrap();
        }
        waited += small.disk.stats().patches - patches;
        let requests = |s: &Small| s.device.snapshot().write_requests();
        let before = requests(&small);
        for n in 0..512 {
            small.disk.write_at(IoKind::Data, (1000 + n) * BLOCK, &[kept as u8; BLOCK_BYTES]).unwrap();
        }
        small.disk.flush().unwrap();
        // With those of the cleaner, and of checkpoints.
        let requests = requests(&small) - before;
        assert!(requests <= 64, "{requests} for 512 blocks, {kept} blocks from the end");
    }
    assert!(waited > 500, "{waited}");
    small.check(&small.disk);
    small.check(&open(&small.device, &read_only()));
}

/// What is written again as it is does not hide that others have patches: recovery knows 768 of them.
#[test]
fn no_more_blocks_have_patches_than_recovery_knows() {
    let mut small = Small::of(1024, 1 << 30);
    for some in [0..512, 512..768] {
        for _ in 0..2 {
            small.change_all(some.clone());
            small.commit(some.clone());
            small.disk.flush().unwrap();
        }
    }
    let patches = small.disk.stats().patches;
    assert!(patches >= 760, "{patches}: some change to what they were");
    small.blocks[768..].iter_mut().for_each(|block| small.rng.fill(block));
    small.commit(768..1024);
    small.disk.flush().unwrap();
    small.change_all(768..1024);
    [768..1024, 0..512, 512..600].into_iter().for_each(|some| small.commit(some));
    small.disk.flush().unwrap();
    assert!(small.disk.stats().patches >= patches + 250);
    small.check(&small.disk);
    small.check(&open(&small.device, &read_only()));
    // Nothing has changed, so nothing is written.
    let before = small.device.snapshot().write_requests();
    small.commit(0..512);
    small.disk.flush().unwrap();
    assert_eq!(small.device.snapshot().write_requests(), before);
    small.disk = open(&small.device, &LogOptions::default());
    small.check(&small.disk);
}

#[test]
fn what_is_discarded_or_written_whole_has_no_patches() {
    let mut small = Small::new();
    small.change();
    (0..10).for_each(|_| small.change());
    small.disk.discard(0, 8 * BLOCK).unwrap();
    small.blocks[..8].iter_mut().for_each(|b| b.fill(0));
    small.disk.flush().unwrap();
    small.check(&open(&small.device, &read_only()));
    // A part of what is zeros now.
    small.blocks[2][50..90].fill(3);
    small.write(2);
    small.rng.fill(&mut small.blocks[10]);
    small.write(10);
    small.disk.flush().unwrap();
    small.check(&open(&small.device, &read_only()));
    small.disk = open(&small.device, &LogOptions::default());
    small.check(&small.disk);
}

#[test]
fn snapshots_have_what_patches_have_made() {
    let mut small = Small::new();
    let first = small.disk.snapshot(MAIN_BRANCH, "first").unwrap();
    (0..10).for_each(|_| small.change());
    let then = small.blocks.clone();
    let id = small.disk.snapshot(MAIN_BRANCH, "second").unwrap();
    (0..10).for_each(|_| small.change());
    small.disk.flush().unwrap();
    small.disk = open(&small.device, &LogOptions::default());
    small.check(&small.disk);
    let snapshot = small.disk.open_snapshot(id).unwrap();
    for (n, block) in then.iter().enumerate() {
        let mut data = vec![0; BLOCK_BYTES];
        snapshot.read_at(IoKind::Data, n as u64 * BLOCK, &mut data).unwrap();
        assert!(data == *block, "block {n}");
    }
    drop(snapshot);
    // What differs, also as somebody sees it who writes nothing, and by pages.
    small.change();
    let looker = open(&small.device, &read_only());
    let (there, seen) = (small.disk.diff(first, None).unwrap(), looker.diff(first, None).unwrap());
    assert_eq!(there, seen);
    assert!(seen.iter().map(|(_, bytes)| bytes).sum::<u64>() >= 8 * BLOCK);
    let (mut pages, mut at) = (Vec::new(), Some(0));
    while let Some(from) = at {
        let (ranges, next) = looker.diff_from(Some(first), None, from, 1).unwrap();
        assert!(ranges.len() <= 1);
        pages.extend(ranges);
        at = next;
    }
    assert_eq!(pages.iter().map(|(_, bytes)| bytes).sum::<u64>(), seen.iter().map(|(_, bytes)| bytes).sum::<u64>());
}

#[test]
fn a_map_that_is_made_anew_has_what_patches_have_made() {
    let mut small = Small::new();
    (0..10).for_each(|_| small.change());
    small.disk.checkpoint().unwrap();
    (0..10).for_each(|_| small.change());
    // Both roots and all checkpoints are lost.
    let mut sector = [0; 512];
    for at in (0..small.device.len()).step_by(512) {
        small.device.read_at(IoKind::Data, at, &mut sector).unwrap();
        if sector.starts_with(b"CLR1") || sector.starts_with(b"CLN1") {
            small.device.write_at(IoKind::Data, at, &[0x5a; 512]).unwrap();
        }
    }
    let report = rebuild(Arc::new(recover_image(small.device.clone()).unwrap()), &LogOptions::default()).unwrap();
    assert!(!report.from_checkpoint);
    let disk = open(&small.device, &LogOptions { unmarked: true, ..LogOptions::default() });
    disk.mark_lost(&[]).unwrap();
    small.check(&disk);
}

/// What the patches are of cannot be read: a rebuilding tells that block, and goes on with the others.
#[test]
fn a_new_map_has_all_blocks_but_that_whose_patches_have_nothing_below_them() {
    const GONE: usize = 3;
    let mut small = Small::new();
    small.change_all(0..20);
    small.commit(0..20);
    small.disk.flush().unwrap();
    assert_eq!(small.disk.stats().patches, 20);
    let device = Arc::new(small.device.inner().duplicate());
    let (mut block, mut damaged) = (vec![0; BLOCK_BYTES], 0);
    for at in (0..device.len() - BLOCK).step_by(512) {
        device.read_at(IoKind::Data, at, &mut block).unwrap();
        if block.starts_with(b"CLN1") {
            device.write_at(IoKind::Data, at, &[0x5a; 512]).unwrap();
        } else if block.iter().all(|b| *b == GONE as u8 + 1) {
            device.write_at(IoKind::Data, at, &[0; 512]).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
    let report = rebuild(Arc::new(recover_image(device.clone()).unwrap()), &LogOptions::default()).unwrap();
    assert!(!report.from_checkpoint);
    let told = |n: usize| report.lost.iter().any(|line| line.contains(&format!("to block {n} is lost")));
    let unmarked = LogOptions { unmarked: true, ..read_only() };
    let disk = LogDisk::open(Arc::new(ImageStore::open(device).unwrap()), &unmarked).unwrap();
    for (n, was) in small.blocks.iter().enumerate() {
        let read = disk.read_at(IoKind::Meta, n as u64 * BLOCK, &mut block);
        assert_eq!((read.is_err(), told(n)), (n == GONE, n == GONE), "block {n}: {:?}", report.lost);
        assert!(n == GONE || block == *was, "block {n}");
    }
}
