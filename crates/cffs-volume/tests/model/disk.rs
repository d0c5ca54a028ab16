//! A disk whose writes are volatile until a flush, that can fail, be gone, and have unreadable sectors.

use cffs_device::{Device, IoKind, MemoryDevice};
use std::collections::HashSet;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub const SECTOR: u64 = 512;

/// What all disks of a machine share: requests that change something until the power fails.
#[derive(Clone)]
pub struct Power(Arc<AtomicU64>);

impl Power {
    pub fn new() -> Self {
        Power(Arc::new(AtomicU64::new(u64::MAX)))
    }

    pub fn fail_after(&self, requests: u64) {
        self.0.store(requests, Ordering::SeqCst);
    }

    pub fn is_off(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    fn step(&self) -> io::Result<()> {
        take(&self.0, "the power is off")
    }
}

fn take(left: &AtomicU64, what: &str) -> io::Result<()> {
    match left.load(Ordering::SeqCst) {
        0 => Err(io::Error::other(what.to_owned())),
        u64::MAX => Ok(()),
        n => {
            left.store(n - 1, Ordering::SeqCst);
            Ok(())
        }
    }
}

pub struct Disk {
    now: MemoryDevice,
    durable: MemoryDevice,
    volatile: Mutex<Vec<(u64, Vec<u8>)>>,
    unreadable: Mutex<HashSet<u64>>,
    power: Power,
    /// Requests of any kind until this disk fails all of them.
    left: AtomicU64,
    pub read_requests: AtomicU64,
    pub read_bytes: AtomicU64,
}

impl Disk {
    pub fn new(bytes: u64, power: &Power) -> Arc<Self> {
        Self::with(MemoryDevice::new(bytes), HashSet::new(), power)
    }

    fn with(contents: MemoryDevice, unreadable: HashSet<u64>, power: &Power) -> Arc<Self> {
        Arc::new(Disk {
            now: contents.duplicate(),
            durable: contents,
            volatile: Mutex::default(),
            unreadable: Mutex::new(unreadable),
            power: power.clone(),
            left: AtomicU64::new(u64::MAX),
            read_requests: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
        })
    }

    /// The disk after a loss of power: each volatile write is there, lost, or torn by sectors.
    pub fn crash(&self, rng: &mut fastrand::Rng, power: &Power) -> Arc<Self> {
        let after = self.durable.duplicate();
        let keep = *rng.choice(&[0, 30, 50, 80, 100]).unwrap();
        for (offset, data) in self.volatile.lock().unwrap().iter() {
            let whole = rng.u32(0..100) < keep;
            let torn = rng.u32(0..4) == 0;
            for (i, sector) in data.chunks(SECTOR as usize).enumerate() {
                if if torn { rng.bool() } else { whole } {
                    after.write_at(IoKind::Data, offset + i as u64 * SECTOR, sector).unwrap();
                }
            }
        }
        Self::with(after, self.unreadable.lock().unwrap().clone(), power)
    }

    /// An independent copy of what reads see now, durable.
    pub fn duplicate(&self, power: &Power) -> Arc<Self> {
        Self::with(self.now.duplicate(), self.unreadable.lock().unwrap().clone(), power)
    }

    /// From the `n`th request on everything fails; 0 is the next.
    pub fn fail_after(&self, n: u64) {
        self.left.store(n, Ordering::SeqCst);
    }

    /// Changes contents for good, unnoticed.
    pub fn overwrite(&self, offset: u64, bytes: &[u8]) {
        self.now.write_at(IoKind::Data, offset, bytes).unwrap();
        self.durable.write_at(IoKind::Data, offset, bytes).unwrap();
    }

    /// What is there, whatever the disk would say.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.now.read_at(IoKind::Data, offset, &mut bytes).unwrap();
        bytes
    }

    /// Sectors that cannot be read until they are written.
    pub fn make_unreadable(&self, offset: u64, len: u64) {
        self.unreadable.lock().unwrap().extend((offset / SECTOR)..(offset + len).div_ceil(SECTOR));
    }

    fn step(&self) -> io::Result<()> {
        take(&self.left, "the disk has failed")
    }
}

impl Device for Disk {
    fn len(&self) -> u64 {
        self.now.len()
    }

    fn sector_size(&self) -> u32 {
        SECTOR as u32
    }

    /// Short, so that long requests are divided among members.
    fn max_request(&self) -> usize {
        8 << 10
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.step()?;
        if self.power.is_off() {
            return Err(io::Error::other("the power is off"));
        }
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        let unreadable = self.unreadable.lock().unwrap();
        if !unreadable.is_empty() && (offset / SECTOR..(offset + len) / SECTOR).any(|s| unreadable.contains(&s)) {
            bufs.iter_mut().for_each(|b| b.fill(0xbd));
            return Err(io::Error::from_raw_os_error(5));
        }
        self.read_requests.fetch_add(1, Ordering::SeqCst);
        self.read_bytes.fetch_add(len, Ordering::SeqCst);
        self.now.read_vectored(kind, offset, bufs)
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let data: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        let result = self.step().and_then(|()| self.power.step());
        if result.is_err() {
            // The request during which the power fails may have arrived all the same.
            if self.left.load(Ordering::SeqCst) > 0 {
                self.volatile.lock().unwrap().push((offset, data));
            }
            return result;
        }
        self.now.write_vectored(kind, offset, bufs)?;
        let mut unreadable = self.unreadable.lock().unwrap();
        if !unreadable.is_empty() {
            (offset / SECTOR..(offset + data.len() as u64) / SECTOR).for_each(|s| {
                unreadable.remove(&s);
            });
        }
        self.volatile.lock().unwrap().push((offset, data));
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.step()?;
        self.power.step()?;
        for (offset, data) in self.volatile.lock().unwrap().drain(..) {
            self.durable.write_at(IoKind::Data, offset, &data)?;
        }
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}
