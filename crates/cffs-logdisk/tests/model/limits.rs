//! Errors, damage, limits.

use crate::crash_device::CrashDevice;
use crate::driver::{Config, Driver, SECTOR, sector};
use cffs_device::{Device, IoKind, WriteRequest};
use cffs_logdisk::{
    BLOCK_BYTES, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH, MemoryStore, SegmentStore,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

#[test]
fn an_error_of_the_device_reaches_somebody_and_what_was_flushed_stays() {
    for seed in 0..150 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let config = Config::random(&mut rng);
        let mut d = Driver::new(config, rng);
        for _ in 0..d.rng.u32(0..80) {
            d.step().unwrap();
        }
        let left = d.rng.u64(0..40);
        d.device.requests_left.store(left, Ordering::Relaxed);
        let mut failed = false;
        for _ in 0..200 {
            // Of an operation that fails nothing is known but that it is not half there.
            let before = d.possible.len();
            let r = d.step();
            if r.is_err() {
                failed = true;
                d.possible.truncate(before);
                break;
            }
        }
        if !failed {
            continue;
        }
        assert!(d.disk.flush().is_err(), "seed {seed}: a flush after the failure says yes");
        let write = d.disk.write_at(IoKind::Data, 0, &[1; BLOCK_BYTES]);
        assert!(write.is_err() || d.disk.flush().is_err());
        d.crash_after_failure();
    }
}

#[test]
fn damage_anywhere_is_an_error_and_never_other_data() {
    for seed in 0..120 {
        let mut rng = fastrand::Rng::with_seed(1000 + seed);
        let config = Config::random(&mut rng);
        let mut d = Driver::new(config, rng);
        for _ in 0..80 {
            d.step().unwrap();
        }
        d.flush().unwrap();
        let n = d.rng.usize(1..400);
        for _ in 0..n {
            let area = if d.rng.u32(0..4) == 0 { 70 << 10 } else { d.device.len() };
            let (at, flip) = (d.rng.u64(0..area), d.rng.u8(1..));
            d.device.damage(at, flip);
        }
        let opened =
            ImageStore::open(d.device.clone()).and_then(|store| LogDisk::open(Arc::new(store), &d.config.options));
        let Ok(disk) = opened else { continue };
        let whole = |device: &dyn Device| {
            let mut data = [0; SECTOR];
            for i in 0..device.len() / SECTOR as u64 {
                if device.read_at(IoKind::Data, i * SECTOR as u64, &mut data).is_ok() {
                    let tag = u32::from_le_bytes([data[0], data[1], data[2], data[3]]);
                    assert!(data == sector(tag), "seed {seed}: sector {i} is none that was written");
                }
            }
        };
        whole(&disk);
        for s in disk.snapshots() {
            whole(&disk.open_snapshot(s.id).unwrap());
        }
        // None of this may panic or never end.
        let _ = disk.check(true);
        let _ = disk.clean_step(1 << 20);
        let _ = disk.write_at(IoKind::Data, 0, &[1; BLOCK_BYTES]);
        let _ = disk.flush();
        for s in disk.snapshots() {
            let _ = disk.delete_snapshot(s.id);
        }
        for _ in 0..1000 {
            if !matches!(disk.delete_step(10), Ok(true)) {
                break;
            }
        }
        let _ = disk.checkpoint();
    }
}

fn small() -> (Arc<MemoryStore>, LogDisk) {
    let store = Arc::new(MemoryStore::new(8 << 20, 64 << 10, true));
    let disk = LogDisk::format(store.clone(), 1 << 20, &LogOptions::default()).unwrap();
    (store, disk)
}

#[test]
fn requests_are_checked() {
    let (_, disk) = small();
    let kind = |r: io::Result<()>| r.unwrap_err().kind();
    assert_eq!(kind(disk.write_at(IoKind::Data, 1 << 20, &[0; 512])), io::ErrorKind::InvalidInput);
    assert_eq!(kind(disk.write_at(IoKind::Data, u64::MAX - 511, &[0; 512])), io::ErrorKind::InvalidInput);
    assert_eq!(kind(disk.write_at(IoKind::Data, 100, &[0; 512])), io::ErrorKind::InvalidInput);
    assert_eq!(kind(disk.read_at(IoKind::Data, 1 << 20, &mut [0; 512])), io::ErrorKind::UnexpectedEof);
    assert_eq!(kind(disk.read_at(IoKind::Data, 0, &mut [0; 100])), io::ErrorKind::InvalidInput);
    disk.write_at(IoKind::Data, 0, &[]).unwrap();
    disk.read_at(IoKind::Data, 0, &mut []).unwrap();
    disk.discard(u64::MAX - 5, u64::MAX).unwrap();
    assert_eq!(disk.snapshot(MAIN_BRANCH, &"x".repeat(256)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(disk.snapshot(17, "x").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(disk.clone_snapshot(17, "x").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(disk.delete_snapshot(17).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(disk.delete_branch(MAIN_BRANCH).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert!(disk.open_snapshot(17).is_err() && disk.branch(17).is_err() && disk.diff(17, None).is_err());
}

#[test]
fn a_read_only_disk_writes_nothing_and_sees_the_last_flush() {
    let (store, disk) = small();
    disk.write_at(IoKind::Data, 4096, &[5; 4096]).unwrap();
    disk.flush().unwrap();
    let root = store.root().unwrap();
    let other = LogDisk::open(store.clone(), &LogOptions { read_only: true, ..LogOptions::default() }).unwrap();
    let mut data = [0; 4096];
    other.read_at(IoKind::Data, 4096, &mut data).unwrap();
    assert_eq!(data, [5; 4096]);
    assert!(other.read_only());
    let kind = |r: io::Result<()>| r.unwrap_err().kind();
    assert_eq!(kind(other.write_at(IoKind::Data, 0, &[0; 512])), io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(kind(other.snapshot(MAIN_BRANCH, "x").map(|_| ())), io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(kind(other.checkpoint()), io::ErrorKind::ReadOnlyFilesystem);
    other.flush().unwrap();
    assert_eq!(store.root().unwrap(), root);
    disk.write_at(IoKind::Data, 0, &[6; 4096]).unwrap();
    disk.flush().unwrap();
}

#[test]
fn two_writers_are_noticed() {
    let (store, disk) = small();
    let other = LogDisk::open(store, &LogOptions::default()).unwrap();
    other.checkpoint().unwrap();
    disk.write_at(IoKind::Data, 0, &[1; 4096]).unwrap();
    assert!(disk.checkpoint().is_err(), "the root belongs to somebody else by now");
    assert!(disk.write_at(IoKind::Data, 0, &[1; 4096]).is_err());
}

#[test]
fn a_flush_is_one_write_and_one_flush_of_the_device() {
    let device = Arc::new(CrashDevice::new(8 << 20));
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [1; 16], slot_bytes: 256 << 10 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    disk.write_at(IoKind::Data, 0, &[1; 4096]).unwrap();
    disk.flush().unwrap();
    for i in 0..8u64 {
        device.requests_left.store(2, Ordering::Relaxed);
        let bufs = [vec![i as u8; 4096], vec![7; 8192]];
        let requests: Vec<WriteRequest<'_>> = bufs
            .iter()
            .zip([i * 65536, 1 << 20])
            .map(|(b, offset)| WriteRequest { kind: IoKind::Data, offset, bufs: vec![IoSlice::new(b)] })
            .collect();
        disk.write_batch(&requests).unwrap();
        disk.flush().unwrap();
        assert_eq!(device.requests_left.load(Ordering::Relaxed), 0);
        disk.flush().unwrap();
    }
}

/// A device whose flush waits until the gate is open.
struct GateDevice {
    inner: cffs_device::MemoryDevice,
    open: Mutex<bool>,
    opened: Condvar,
    entered: Mutex<Option<Sender<()>>>,
    flushes: AtomicU64,
    /// The flush that says so when it enters fails, and no other.
    fails: bool,
}

impl GateDevice {
    fn new(fails: bool) -> Arc<GateDevice> {
        Arc::new(GateDevice {
            inner: cffs_device::MemoryDevice::new(16 << 20),
            open: Mutex::new(true),
            opened: Condvar::new(),
            entered: Mutex::new(None),
            flushes: AtomicU64::new(0),
            fails,
        })
    }

    /// Closes the gate. Whoever comes first says so.
    fn close(&self) -> Receiver<()> {
        let (entered, is_entered) = channel();
        *self.entered.lock().unwrap() = Some(entered);
        *self.open.lock().unwrap() = false;
        is_entered
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

impl Device for GateDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sector_size(&self) -> u32 {
        512
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.inner.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_vectored(kind, offset, bufs)
    }
    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        let first = self.entered.lock().unwrap().take();
        if let Some(entered) = &first {
            entered.send(()).unwrap();
        }
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.opened.wait(open).unwrap();
        }
        if self.fails && first.is_some() { Err(io::Error::other("a write is lost")) } else { Ok(()) }
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn who_writes_during_a_flush_does_not_wait_and_shares_the_next_one() {
    let device = GateDevice::new(false);
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [1; 16], slot_bytes: 256 << 10 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    let (written, is_written) = channel();
    let is_entered = device.close();
    let before = device.flushes.load(Ordering::Relaxed);
    std::thread::scope(|s| {
        s.spawn(|| {
            disk.write_at(IoKind::Data, 0, &[1; 4096]).unwrap();
            disk.flush().unwrap();
        });
        is_entered.recv().unwrap();
        for i in 1..5u64 {
            let (disk, written) = (&disk, written.clone());
            s.spawn(move || {
                disk.write_at(IoKind::Data, i * 4096, &[i as u8; 4096]).unwrap();
                disk.read_at(IoKind::Data, 0, &mut [0; 4096]).unwrap();
                written.send(()).unwrap();
                disk.flush().unwrap();
            });
        }
        (0..4).for_each(|_| is_written.recv().unwrap());
        device.open();
    });
    assert_eq!(device.flushes.load(Ordering::Relaxed) - before, 2);
}

/// A device tells of a lost write once: a checkpoint whose own flush succeeds after that must not refer to it.
#[test]
fn a_checkpoint_does_not_overtake_a_flush_that_fails() {
    let device = GateDevice::new(true);
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [1; 16], slot_bytes: 256 << 10 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    disk.write_at(IoKind::Data, 0, &[1; 4096]).unwrap();
    let is_entered = device.close();
    std::thread::scope(|s| {
        let flush = s.spawn(|| disk.flush());
        is_entered.recv().unwrap();
        let checkpoint = s.spawn(|| disk.checkpoint());
        // So that it is under way mostly; it fails all the same if it comes later.
        std::thread::sleep(Duration::from_millis(20));
        device.open();
        assert!(flush.join().unwrap().is_err());
        assert!(checkpoint.join().unwrap().is_err());
    });
    assert!(disk.flush().is_err() && disk.checkpoint().is_err());
}

#[test]
fn threads_read_and_write_while_the_cleaner_runs() {
    let store = Arc::new(MemoryStore::new(12 << 20, 64 << 10, true));
    let options =
        LogOptions { batch_bytes: 64 << 10, checkpoint_bytes: 256 << 10, cache_nodes: 32, ..LogOptions::default() };
    let disk = LogDisk::format(store, 1 << 30, &options).unwrap();
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let disk = &disk;
            s.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(t);
                let mut last = [0u8; 200];
                for i in 0..1500u32 {
                    let n = rng.usize(0..200);
                    let at = (t * 200 + n as u64) * 4096;
                    let mut data = [0; 4096];
                    disk.read_at(IoKind::Data, at, &mut data).unwrap();
                    assert_eq!(data, [last[n]; 4096]);
                    last[n] = i as u8;
                    disk.write_at(IoKind::Data, at, &[i as u8; 4096]).unwrap();
                    if i % 20 == 0 {
                        disk.flush().unwrap();
                    }
                }
            });
        }
        s.spawn(|| {
            for i in 0..100 {
                disk.clean_step(256 << 10).unwrap();
                let id = disk.snapshot(MAIN_BRANCH, "t").unwrap();
                disk.delete_snapshot(id).unwrap();
                while disk.delete_step(50).unwrap() {}
                if i % 10 == 0 {
                    disk.checkpoint().unwrap();
                }
            }
        });
    });
    let problems = disk.check(true).unwrap();
    assert!(problems.is_empty(), "{problems:#?}");
}
