//! A device whose writes are volatile until a flush.

use cffs_device::{Device, IoKind, MemoryDevice};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const SECTOR: usize = 512;

/// Reads see all writes. A crash keeps what was flushed, and of the rest any sectors.
pub struct CrashDevice {
    now: MemoryDevice,
    durable: MemoryDevice,
    volatile: Mutex<Vec<(u64, Vec<u8>)>>,
    /// Requests until the device fails; `u64::MAX` for never.
    pub requests_left: AtomicU64,
}

impl CrashDevice {
    pub fn new(bytes: u64) -> Self {
        Self::from(MemoryDevice::new(bytes))
    }

    fn from(device: MemoryDevice) -> Self {
        CrashDevice {
            now: device.duplicate(),
            durable: device,
            volatile: Mutex::default(),
            requests_left: AtomicU64::new(u64::MAX),
        }
    }

    /// The device after a crash: each volatile write is there, lost, or torn.
    pub fn crash(&self, rng: &mut fastrand::Rng) -> Self {
        let after = self.durable.duplicate();
        let keep = rng.u32(0..=100);
        for (offset, data) in self.volatile.lock().unwrap().iter() {
            let whole = rng.u32(0..100) < keep;
            let torn = rng.u32(0..4) == 0;
            for (i, sector) in data.chunks(SECTOR).enumerate() {
                if if torn { rng.bool() } else { whole } {
                    after.write_at(IoKind::Data, offset + (i * SECTOR) as u64, sector).unwrap();
                }
            }
        }
        Self::from(after)
    }

    /// Changes a byte of everything that was ever written, for good.
    pub fn damage(&self, offset: u64, flip: u8) {
        let mut sector = [0; SECTOR];
        let at = offset / SECTOR as u64 * SECTOR as u64;
        self.now.read_at(IoKind::Data, at, &mut sector).unwrap();
        sector[offset as usize % SECTOR] ^= flip;
        self.now.write_at(IoKind::Data, at, &sector).unwrap();
        self.durable.write_at(IoKind::Data, at, &sector).unwrap();
    }

    fn step(&self) -> io::Result<()> {
        let left = self.requests_left.load(Ordering::Relaxed);
        if left == 0 {
            return Err(io::Error::other("the device has failed"));
        }
        if left != u64::MAX {
            self.requests_left.store(left - 1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Device for CrashDevice {
    fn len(&self) -> u64 {
        self.now.len()
    }

    fn sector_size(&self) -> u32 {
        SECTOR as u32
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.now.read_vectored(kind, offset, bufs)
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.step()?;
        self.now.write_vectored(kind, offset, bufs)?;
        let data: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        self.volatile.lock().unwrap().push((offset, data));
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.step()?;
        for (offset, data) in self.volatile.lock().unwrap().drain(..) {
            self.durable.write_at(IoKind::Data, offset, &data)?;
        }
        Ok(())
    }

    /// What is discarded reads as anything.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write_at(IoKind::Data, offset, &vec![0xdd; len as usize])
    }
}
