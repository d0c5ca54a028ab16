//! Who does not wait for requests to the store.

use cffs_device::{Device, IoKind, MemoryDevice};
use cffs_logdisk::{BLOCK_BYTES, ImageOptions, ImageStore, LogDisk, LogOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

/// Writes or discards wait at a gate while that is closed.
struct Gated {
    inner: MemoryDevice,
    /// Those that wait are discards.
    discards: bool,
    /// Whether it is closed, and how many wait.
    gate: Mutex<(bool, usize)>,
    moved: Condvar,
}

impl Gated {
    fn set_closed(&self, closed: bool) {
        self.gate.lock().unwrap().0 = closed;
        self.moved.notify_all();
    }

    fn new(bytes: u64, discards: bool) -> Arc<Self> {
        let inner = MemoryDevice::new(bytes);
        Arc::new(Gated { inner, discards, gate: Mutex::default(), moved: Condvar::new() })
    }

    fn wait_for_a_request(&self) {
        drop(self.moved.wait_while(self.gate.lock().unwrap(), |(_, waiting)| *waiting == 0).unwrap());
    }

    fn pass(&self) {
        let mut gate = self.gate.lock().unwrap();
        gate.1 += 1;
        self.moved.notify_all();
        gate = self.moved.wait_while(gate, |(closed, _)| *closed).unwrap();
        gate.1 -= 1;
    }
}

impl Device for Gated {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.inner.read_vectored(kind, offset, bufs)
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        if !self.discards {
            self.pass();
        }
        self.inner.write_vectored(kind, offset, bufs)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.discards {
            self.pass();
        }
        // What was discarded is not what it was.
        self.inner.write_at(IoKind::Data, offset, &vec![0xdd; len as usize])
    }
}

/// A file system asks for the space with its own accounting locked: nothing could be reserved meanwhile.
#[test]
fn the_space_of_a_full_disk_is_known_while_it_writes() {
    let device = Gated::new(16 << 20, false);
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [9; 16], slot_bytes: 64 << 10 }).unwrap();
    let disk = Arc::new(LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap());
    let mut block = 0;
    while LogDisk::space(&disk).free > LogDisk::space(&disk).usable / 16 {
        disk.write_at(IoKind::Data, block * BLOCK_BYTES as u64, &[1; BLOCK_BYTES]).unwrap();
        block += 1;
    }
    disk.flush().unwrap();
    let before = Device::space(&*disk).unwrap();
    assert_eq!(before.free, LogDisk::space(&disk).free);
    disk.write_at(IoKind::Data, block * BLOCK_BYTES as u64, &[1; BLOCK_BYTES]).unwrap();
    let pending = Device::space(&*disk).unwrap();
    assert!(pending.free < before.free);
    device.set_closed(true);
    let flusher = std::thread::spawn({
        let disk = disk.clone();
        move || disk.flush().unwrap()
    });
    device.wait_for_a_request();
    let (sender, receiver) = mpsc::channel();
    let asker = std::thread::spawn({
        let disk = disk.clone();
        move || sender.send(Device::space(&*disk).unwrap()).unwrap()
    });
    let told = receiver.recv_timeout(Duration::from_secs(20));
    device.set_closed(false);
    flusher.join().unwrap();
    asker.join().unwrap();
    assert_eq!(told.expect("it waits for the write"), pending);
    assert_eq!(Device::space(&*disk).unwrap().free, LogDisk::space(&disk).free);
}

/// While deleted segments are discarded, everything goes on; and no segment is discarded that has something again.
#[test]
fn nobody_waits_for_discards() {
    let device = Gated::new(4 << 20, true);
    let store = ImageStore::format(device.clone(), &ImageOptions { uuid: [9; 16], slot_bytes: 64 << 10 }).unwrap();
    let disk = Arc::new(LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap());
    let write = |disk: &LogDisk, value: u8| {
        for n in 0..160u64 {
            disk.write_at(IoKind::Data, n * BLOCK_BYTES as u64, &[value; BLOCK_BYTES]).unwrap();
        }
        disk.flush().unwrap();
    };
    let check = |disk: &LogDisk, value: u8| {
        let mut data = vec![0; 160 * BLOCK_BYTES];
        disk.read_at(IoKind::Data, 0, &mut data).unwrap();
        assert!(data.iter().all(|b| *b == value));
    };
    write(&disk, 1);
    write(&disk, 2);
    device.set_closed(true);
    let checkpoint = std::thread::spawn({
        let disk = disk.clone();
        move || disk.checkpoint().unwrap()
    });
    device.wait_for_a_request();
    let (sender, receiver) = mpsc::channel();
    let user = std::thread::spawn({
        let disk = disk.clone();
        move || {
            // Not so much that a checkpoint is due, whose segments this thread would discard.
            check(&disk, 2);
            disk.write_at(IoKind::Data, 500 * BLOCK_BYTES as u64, &[5; BLOCK_BYTES]).unwrap();
            sender.send(disk.stats().live).unwrap();
        }
    });
    let went_on = receiver.recv_timeout(Duration::from_secs(20));
    device.set_closed(false);
    checkpoint.join().unwrap();
    user.join().unwrap();
    went_on.expect("it waits for the discard");
    for value in 3..40 {
        write(&disk, value);
        check(&disk, value);
    }
    disk.checkpoint().unwrap();
    assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
    assert!(disk.stats().failed_discards == 0);
}

/// Several threads write, clean and read on a small disk, whose segments come back soon: what is being discarded has nothing.
#[test]
fn discards_hit_nothing_that_was_written_again() {
    let device = Gated::new(6 << 20, true);
    let store = ImageStore::format(device, &ImageOptions { uuid: [9; 16], slot_bytes: 64 << 10 }).unwrap();
    let disk = LogDisk::format(Arc::new(store), 1 << 30, &LogOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let disk = &disk;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(thread);
                let mut values = [0u8; 120];
                let mut data = vec![0; BLOCK_BYTES];
                for i in 0..3000 {
                    let n = rng.usize(0..values.len());
                    let at = (thread * 1000 + n as u64) * BLOCK_BYTES as u64;
                    if rng.bool() {
                        values[n] = rng.u8(1..);
                        disk.write_at(IoKind::Data, at, &[values[n]; BLOCK_BYTES]).unwrap();
                    } else {
                        disk.read_at(IoKind::Data, at, &mut data).unwrap();
                        assert!(data.iter().all(|b| *b == values[n]), "thread {thread}, step {i}");
                    }
                    match i % 97 {
                        0 => disk.flush().unwrap(),
                        40 => drop(disk.clean_step(1 << 18)),
                        80 => disk.checkpoint().unwrap(),
                        _ => {}
                    }
                }
            });
        }
    });
    disk.checkpoint().unwrap();
    assert_eq!(disk.check(true).unwrap(), Vec::<String>::new());
}
