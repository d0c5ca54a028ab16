//! Who does not wait for requests to the store.

use cffs_device::{Device, IoKind, MemoryDevice};
use cffs_logdisk::{BLOCK_BYTES, ImageOptions, ImageStore, LogDisk, LogOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

/// Writes wait at a gate while that is closed.
struct Gated {
    inner: MemoryDevice,
    /// Whether it is closed, and how many wait.
    gate: Mutex<(bool, usize)>,
    moved: Condvar,
}

impl Gated {
    fn set_closed(&self, closed: bool) {
        self.gate.lock().unwrap().0 = closed;
        self.moved.notify_all();
    }

    fn wait_for_a_write(&self) {
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
        self.pass();
        self.inner.write_vectored(kind, offset, bufs)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}

/// A file system asks for the space with its own accounting locked: nothing could be reserved meanwhile.
#[test]
fn the_space_of_a_full_disk_is_known_while_it_writes() {
    let inner = MemoryDevice::new(16 << 20);
    let device = Arc::new(Gated { inner, gate: Mutex::default(), moved: Condvar::new() });
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
    device.wait_for_a_write();
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
