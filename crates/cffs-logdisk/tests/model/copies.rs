//! A log disk on a device that keeps two copies of everything, of which one is damaged.

use cffs_device::{Device, IoKind, MemoryDevice};
use cffs_logdisk::{
    BLOCK_BYTES, Compression, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH, rebuild, recover_image,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = BLOCK_BYTES as u64;
const SUPERBLOCKS: [u64; 2] = [0, 64 << 10];

/// Two copies. Which of them is read is up to chance.
struct TwoCopies {
    copies: [MemoryDevice; 2],
    chance: AtomicU64,
}

impl TwoCopies {
    fn new(bytes: u64) -> Self {
        TwoCopies { copies: [MemoryDevice::new(bytes), MemoryDevice::new(bytes)], chance: AtomicU64::new(1) }
    }

    fn duplicate(&self, seed: u64) -> Self {
        TwoCopies { copies: self.copies.each_ref().map(MemoryDevice::duplicate), chance: AtomicU64::new(seed | 1) }
    }

    /// Sectors of a copy that begin with a magic.
    fn structures(&self, magic: &[u8; 4]) -> Vec<u64> {
        let mut sector = [0; 512];
        let mut is_one = |at: &u64| {
            self.copies[0].read_at(IoKind::Data, *at, &mut sector).unwrap();
            sector.starts_with(magic)
        };
        (0..self.len()).step_by(512).filter(|at| is_one(at)).collect()
    }

    fn wipe(&self, copy: usize, at: u64) {
        self.copies[copy].write_at(IoKind::Data, at, &[0x5a; 512]).unwrap();
    }
}

impl Device for TwoCopies {
    fn len(&self) -> u64 {
        self.copies[0].len()
    }

    fn sector_size(&self) -> u32 {
        512
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let seed = self.chance.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        self.copies[fastrand::Rng::with_seed(seed).usize(0..2)].read_vectored(kind, offset, bufs)
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.copies.iter().try_for_each(|c| c.write_vectored(kind, offset, bufs))
    }

    fn copies(&self) -> usize {
        2
    }

    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.copies[copy].read_at(kind, offset, buf)
    }

    fn repair(&self, kind: IoKind, copy: usize, offset: u64, good: &[u8]) -> io::Result<bool> {
        let mut bytes = vec![0; good.len()];
        self.copies[copy].read_at(kind, offset, &mut bytes)?;
        if bytes == good {
            self.copies[1 - copy].write_at(kind, offset, good)?;
        }
        Ok(bytes == good)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.copies.iter().try_for_each(|c| c.discard(offset, len))
    }
}

/// What is in a block that was written last with this value.
fn contents(n: u64, value: u8) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(n << 8 | u64::from(value));
    // Half of it can be compressed.
    (0..BLOCK_BYTES).map(|i| if i % 2 == 0 { rng.u8(1..) } else { value }).collect()
}

/// A disk with a history of many batches, the cleaner's as well; the last value of each block.
fn history(device: Arc<TwoCopies>, options: &LogOptions, seed: u64) -> Vec<u8> {
    let store = ImageStore::format(device, &ImageOptions { uuid: [9; 16], slot_bytes: 64 << 10 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, options).unwrap();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut values = vec![0; 150];
    for i in 1..300u32 {
        let (n, value) = (rng.usize(0..values.len()), rng.u8(1..));
        disk.write_at(IoKind::Data, n as u64 * BLOCK, &contents(n as u64, value)).unwrap();
        values[n] = value;
        match i % 16 {
            0 => drop(disk.clean_step(1 << 18).unwrap()),
            5 | 11 => disk.flush().unwrap(),
            _ => {}
        }
    }
    disk.checkpoint().unwrap();
    values
}

fn check(disk: &LogDisk, values: &[u8], what: &str) {
    let mut data = vec![0; BLOCK_BYTES];
    for (n, value) in values.iter().enumerate().filter(|(_, v)| **v > 0) {
        disk.read_at(IoKind::Data, n as u64 * BLOCK, &mut data).unwrap_or_else(|e| panic!("{what}: block {n}: {e}"));
        assert!(data == contents(n as u64, *value), "{what}: block {n} is not what was written last");
    }
}

/// The map is lost in both copies, and of each summary one copy: all of one member, or now of the one, now of the other. Nothing else is lost.
#[test]
fn what_one_copy_has_is_rebuilt() {
    for seed in 0..12 {
        let compression = [Compression::None, Compression::Lz4][seed as usize % 2];
        let options = LogOptions { compression, batch_bytes: 64 << 10, ..LogOptions::default() };
        let original = TwoCopies::new(64 * (64 << 10) + (1 << 20));
        let original = Arc::new(original);
        let values = history(original.clone(), &options, seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        for damaged in 0..4 {
            let what = format!("seed {seed}, damaged {damaged}");
            let device = Arc::new(original.duplicate(seed));
            for at in device.structures(b"CLN1") {
                (0..2).for_each(|copy| device.wipe(copy, at));
            }
            for at in device.structures(b"CLB1") {
                match damaged {
                    0 | 1 => device.wipe(damaged, at),
                    _ => device.wipe(rng.usize(0..2), at),
                }
            }
            if damaged == 3 {
                // How the device is divided is then known from batches alone. One member has none.
                for at in SUPERBLOCKS {
                    (0..2).for_each(|copy| device.wipe(copy, at));
                }
            }
            let report = rebuild(Arc::new(recover_image(device.clone()).unwrap()), &options).unwrap();
            assert!(!report.from_checkpoint, "{what}");
            let others = |l: &&String| !l.contains("checkpoint") && !l.contains("table of segments");
            assert!(report.lost.iter().find(others).is_none(), "{what}: {:#?}", report.lost);
            let options = LogOptions { unmarked: true, ..options.clone() };
            let disk = LogDisk::open(Arc::new(ImageStore::open(device.clone()).unwrap()), &options).unwrap();
            check(&disk, &values, &what);
            assert_eq!(disk.check(true).unwrap(), Vec::<String>::new(), "{what}");
            assert!(disk.branches().iter().any(|b| b.branch == MAIN_BRANCH));
        }
    }
}
