//! Growing and scrubbing.

use crate::crash_device::CrashDevice;
use cffs_device::{Device, IoKind, MemoryDevice};
use cffs_logdisk::{
    BLOCK_BYTES, Compression, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH, SegmentStore,
};
use std::io;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;

fn fill(disk: &LogDisk, from: u64) -> u64 {
    let mut n = from;
    loop {
        let data: Vec<u8> = (0..BLOCK / 8).flat_map(|i| (n * 1000 + i).to_le_bytes()).collect();
        match disk.write_at(IoKind::Data, n * BLOCK, &data) {
            Ok(()) => n += 1,
            Err(e) => {
                assert_eq!(e.kind(), io::ErrorKind::StorageFull);
                return n;
            }
        }
    }
}

fn assert_filled(disk: &LogDisk, n: u64) {
    let mut data = vec![0; BLOCK_BYTES];
    for block in 0..n {
        disk.read_at(IoKind::Data, block * BLOCK, &mut data).unwrap();
        assert_eq!(data[..8], (block * 1000).to_le_bytes(), "block {block}");
    }
}

#[test]
fn a_full_disk_grows_with_its_device() {
    let device = Arc::new(MemoryDevice::new(6 << 20));
    let store =
        Arc::new(ImageStore::format(device.clone(), &ImageOptions { uuid: [1; 16], slot_bytes: 64 << 10 }).unwrap());
    let disk = LogDisk::format(store.clone(), 1 << 40, &LogOptions::default()).unwrap();
    let mut n = fill(&disk, 0);
    for mb in [7, 20, 20, 64] {
        device.set_len(mb << 20);
        let before = disk.space();
        let capacity = disk.grow(None).unwrap();
        assert_eq!(capacity, store.capacity());
        assert!(capacity > (mb << 20) - (256 << 10) && capacity < mb << 20);
        assert!(disk.space().usable >= before.usable);
        n = fill(&disk, n);
        disk.flush().unwrap();
        assert!(n * BLOCK > capacity / 2, "{n} blocks in {capacity} bytes");
    }
    assert_filled(&disk, n);
    drop(disk);
    let disk = LogDisk::open(Arc::new(ImageStore::open(device).unwrap()), &LogOptions::default()).unwrap();
    assert_filled(&disk, n);
    assert!(disk.check(true).unwrap().is_empty());
    assert!(matches!(disk.grow(None), Ok(c) if c == store.capacity()));
}

/// A crash at any request of the growing leaves the old size or the new one, and all data.
#[test]
fn a_crash_while_a_disk_grows_loses_nothing() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let device = Arc::new(CrashDevice::new(16 << 20));
        let image = ImageOptions { uuid: [1; 16], slot_bytes: 64 << 10 };
        // The store does not see all of the device at first.
        let short = Arc::new(Short { inner: device.clone(), len: std::sync::atomic::AtomicU64::new(6 << 20) });
        let disk = LogDisk::format(
            Arc::new(ImageStore::format(short.clone(), &image).unwrap()),
            1 << 40,
            &LogOptions::default(),
        )
        .unwrap();
        let n = fill(&disk, 0);
        disk.flush().unwrap();
        short.len.store(16 << 20, std::sync::atomic::Ordering::Relaxed);
        device.requests_left.store(rng.u64(0..25), std::sync::atomic::Ordering::Relaxed);
        let grown = disk.grow(None).is_ok();
        let more = if grown && rng.bool() {
            (n..n + 300).take_while(|b| disk.write_at(IoKind::Data, b * BLOCK, &[3; BLOCK_BYTES]).is_ok()).count()
        } else {
            0
        };
        let flushed = more > 0 && disk.flush().is_ok();
        drop(disk);
        let after = Arc::new(device.crash(&mut rng));
        let disk = LogDisk::open(Arc::new(ImageStore::open(after).unwrap()), &LogOptions::default()).unwrap();
        assert_filled(&disk, n);
        if flushed {
            let mut data = vec![0; BLOCK_BYTES];
            disk.read_at(IoKind::Data, n * BLOCK, &mut data).unwrap();
            assert_eq!(data, [3; BLOCK_BYTES]);
        }
        assert!(disk.check(true).unwrap().is_empty(), "seed {seed}");
    }
}

/// A device that shows its beginning only.
struct Short {
    inner: Arc<CrashDevice>,
    len: std::sync::atomic::AtomicU64,
}

impl Device for Short {
    fn len(&self) -> u64 {
        self.len.load(std::sync::atomic::Ordering::Relaxed)
    }
    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<()> {
        self.inner.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_vectored(kind, offset, bufs)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}

/// Each live block that is damaged is told, with its number, and nothing else.
#[test]
fn a_scrub_finds_all_damage_and_nothing_else() {
    for compression in [Compression::None, Compression::Zstd(1)] {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [1; 16], slot_bytes: 64 << 10 }).unwrap();
        let options = LogOptions { compression, ..LogOptions::default() };
        let disk = LogDisk::format(Arc::new(store), 1 << 40, &options).unwrap();
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..600 {
            let at = rng.u64(0..900);
            let data: Vec<u8> = (0..2 * BLOCK_BYTES).map(|i| if i % 4 == 0 { rng.u8(..) } else { 0 }).collect();
            disk.write_at(IoKind::Data, at * BLOCK, &data).unwrap();
            if rng.u32(0..40) == 0 {
                disk.snapshot(MAIN_BRANCH, "s").unwrap();
                disk.clean_step(1 << 18).unwrap();
            }
        }
        disk.flush().unwrap();
        let scrub = || {
            let (mut at, mut problems, mut bytes) = (0, Vec::new(), 0);
            loop {
                let report = disk.scrub_step(at, 100_000).unwrap();
                problems.extend(report.problems);
                bytes += report.bytes;
                match report.next {
                    Some(next) => at = next,
                    None => return (problems, bytes),
                }
            }
        };
        let (problems, bytes) = scrub();
        assert!(problems.is_empty(), "{problems:?}");
        let live = disk.space().live;
        assert!(bytes >= live && bytes <= live + live / 4, "{bytes} bytes of {live} were read");
        // Damage what a few blocks have: their bytes are looked for on the device.
        let mut hit = Vec::new();
        for block in [10u64, 200, 401, 777] {
            let before = device.duplicate();
            for at in (1 << 20..16 << 20).step_by(512) {
                let mut sector = [0; 512];
                device.read_at(IoKind::Data, at, &mut sector).unwrap();
                sector[100] ^= 1;
                device.write_at(IoKind::Data, at, &sector).unwrap();
                let mut data = [0; BLOCK_BYTES];
                if disk.read_at(IoKind::Data, block * BLOCK, &mut data).is_err() {
                    hit.push(block);
                    break;
                }
                before.read_at(IoKind::Data, at, &mut sector).unwrap();
                device.write_at(IoKind::Data, at, &sector).unwrap();
            }
        }
        assert!(hit.len() > 2, "{hit:?}");
        let (problems, _) = scrub();
        assert!(!problems.is_empty() && problems.len() <= hit.len(), "{problems:#?}");
        assert!(problems.iter().all(|p| p.contains("branch 0")));
        assert!(disk.stats().damaged_segments > 0);
    }
}
