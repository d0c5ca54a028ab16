//! What must not grow with the size of a disk.

use cffs_device::{CountingDevice, Device, Direct, FileDevice, IoKind, MemoryDevice, OpenMode, ReadRequest};
use cffs_logdisk::{BLOCK_BYTES, ImageOptions, ImageStore, LogDisk, LogOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

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

/// A file that has holes where zeros are written: ten terabytes of them fit a small disk. Counts how often somebody waits for it who reads: once for 32
/// requests at a time.
struct Hollow {
    file: FileDevice,
    waits: AtomicU64,
}

impl Device for Hollow {
    fn len(&self) -> u64 {
        self.file.len()
    }
    fn sector_size(&self) -> u32 {
        self.file.sector_size()
    }
    fn below(&self) -> Option<&dyn Device> {
        Some(&self.file)
    }
    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.waits.fetch_add(requests.len().div_ceil(32) as u64, Relaxed);
        self.file.read_batch(requests)
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.waits.fetch_add(1, Relaxed);
        self.file.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        const SECTOR: usize = 512;
        let zero = |sector: &[u8]| sector == &[0; SECTOR][..sector.len()];
        let mut at = offset;
        for buf in bufs {
            let sectors: Vec<&[u8]> = buf.chunks(SECTOR).collect();
            let mut from = 0;
            for run in sectors.chunk_by(|a, b| zero(a) == zero(b)) {
                let len = run.iter().map(|s| s.len()).sum::<usize>();
                if zero(run[0]) {
                    self.file.discard(at, len as u64)?;
                } else {
                    self.file.write_at(kind, at, &buf[from..from + len])?;
                }
                (at, from) = (at + len as u64, from + len);
            }
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.discard(offset, len)
    }
}

/// Memory of this process in MiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) >> 10
}

/// `CFFS_LOG_EXTENTS=100000000` for more than the usual number: as many extents, no two of which are neighbours, on a store of ten terabytes; some of
/// them written again anywhere; a crash. Memory does not grow with their number, nor does what is read when the disk is opened.
#[test]
fn a_map_of_very_many_extents_takes_bounded_memory_and_is_opened_after_a_crash_with_few_reads() {
    let extents: u64 = std::env::var("CFFS_LOG_EXTENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(200_000);
    let options = LogOptions::default();
    let path = std::env::temp_dir().join(format!("cffs-extents-{}", std::process::id()));
    let mode = OpenMode { direct: Direct::Never, ..OpenMode::READ_WRITE };
    let file = FileDevice::create(&path, 10_000_000_000_000, mode).unwrap();
    let device = Arc::new(Hollow { file, waits: AtomicU64::new(0) });
    // Whatever comes, the file goes with the last that has it open.
    std::fs::remove_file(&path).unwrap();
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [7; 16], slot_bytes: 0 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 50, &options).unwrap();
    let mark = |i: u64| [if i.is_multiple_of(1009) { i as u8 | 1 } else { 0 }; BLOCK_BYTES];
    let begun = Instant::now();
    for i in 0..extents {
        disk.write_at(IoKind::Data, i * 2 * BLOCK, &mark(i)).unwrap();
        if i.is_multiple_of(10_000_000) {
            eprintln!("{i} extents: {:?}, {} MiB, {:?}", begun.elapsed(), resident(), disk.stats());
        }
        let stats = disk.stats();
        assert!(stats.cached_nodes <= options.cache_nodes && stats.dirty_nodes <= 2 * options.cache_nodes, "{stats:?}");
    }
    let mut rng = fastrand::Rng::with_seed(18);
    for _ in 0..20_000.min(extents) {
        let i = rng.u64(0..extents);
        disk.write_at(IoKind::Data, i * 2 * BLOCK, &mark(i)).unwrap();
    }
    disk.flush().unwrap();
    eprintln!("{extents} extents: {:?}, {} MiB, {:?}", begun.elapsed(), resident(), disk.stats());
    drop(disk);
    device.waits.store(0, Relaxed);
    let (counted, begun) = (Arc::new(CountingDevice::new(device.clone())), Instant::now());
    let disk = LogDisk::open(Arc::new(ImageStore::open(counted.clone()).unwrap()), &options).unwrap();
    let (waits, reads) = (device.waits.load(Relaxed), counted.snapshot());
    let (took, requests, bytes) = (begun.elapsed(), reads.read_requests(), reads.read_bytes());
    eprintln!("opened in {took:?}: {requests} requests, {waits} at a time, {bytes} bytes, {} MiB", resident());
    assert!(waits < 500, "who opens it waits for {waits} reads");
    let mut data = [0; BLOCK_BYTES];
    for i in (0..extents).step_by(10_090).chain([extents - 1]) {
        disk.read_at(IoKind::Data, i * 2 * BLOCK, &mut data).unwrap();
        assert_eq!(data, mark(i), "extent {i}");
    }
    assert!(disk.stats().cached_nodes <= options.cache_nodes);
}
