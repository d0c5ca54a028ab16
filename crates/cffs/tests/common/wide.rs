//! A device that says that it is two, or one, with what tests want to know of it.

use cffs::device::{Device, IoKind, MemoryDevice, WriteRequest};
use parking_lot::{Condvar, Mutex};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Longest time that a batch waits for another one to be in flight too.
const PATIENCE: Duration = Duration::from_secs(20);

/// What reaches the device.
pub enum Event {
    /// Bytes at an offset.
    Write(u64, Vec<u8>),
    /// All that was complete before the event of this number is durable.
    Flushed(usize),
}

/// Says that it is so many devices.
pub struct Wide {
    inner: Arc<dyn Device>,
    width: usize,
    /// Bytes read.
    pub read: AtomicU64,
    /// Batches of data that are being written, and the most at the same time.
    writing: Mutex<(usize, usize)>,
    changed: Condvar,
    /// So many batches have to be in flight at a time before one of them goes on.
    gate: AtomicUsize,
    /// What it was asked for, if that is recorded.
    log: Mutex<Option<Vec<Event>>>,
}

impl Wide {
    pub fn new(inner: Arc<dyn Device>) -> Arc<Wide> {
        Wide::of(2, inner)
    }

    pub fn of(width: usize, inner: Arc<dyn Device>) -> Arc<Wide> {
        Arc::new(Wide {
            inner,
            width,
            read: AtomicU64::new(0),
            writing: Mutex::default(),
            changed: Condvar::new(),
            gate: AtomicUsize::new(0),
            log: Mutex::default(),
        })
    }

    pub fn memory(bytes: u64) -> Arc<Wide> {
        Wide::new(Arc::new(MemoryDevice::new(bytes)))
    }

    /// Data waits until so many batches of it are in flight; once that has happened, nothing waits any more.
    pub fn gather(&self, batches: usize) {
        self.gate.store(batches, Ordering::SeqCst);
        let _writing = self.writing.lock();
        self.changed.notify_all();
    }

    /// Most batches of data that were in flight at a time.
    pub fn most_in_flight(&self) -> usize {
        self.writing.lock().1
    }

    /// Begins to record.
    pub fn record(&self) {
        *self.log.lock() = Some(Vec::new());
    }

    /// How much was recorded so far.
    pub fn events(&self) -> usize {
        self.log.lock().as_ref().map_or(0, Vec::len)
    }

    /// What was recorded.
    pub fn recorded(&self) -> Vec<Event> {
        self.log.lock().take().unwrap_or_default()
    }

    fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(log) = &mut *self.log.lock() {
            log.push(event());
        }
    }

    fn enter(&self) {
        let mut writing = self.writing.lock();
        writing.0 += 1;
        writing.1 = writing.1.max(writing.0);
        self.changed.notify_all();
        while writing.1 < self.gate.load(Ordering::SeqCst) {
            if self.changed.wait_for(&mut writing, PATIENCE).timed_out() {
                break;
            }
        }
    }

    fn leave(&self) {
        self.writing.lock().0 -= 1;
    }
}

impl Device for Wide {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }
    fn width(&self) -> usize {
        self.width
    }
    fn stripe(&self) -> u64 {
        if self.width > 1 { 512 << 10 } else { 0 }
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.read.fetch_add(bufs.iter().map(|b| b.len() as u64).sum(), Ordering::Relaxed);
        self.inner.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_vectored(kind, offset, bufs)?;
        self.note(|| Event::Write(offset, bufs.iter().flat_map(|b| b.iter().copied()).collect()));
        Ok(())
    }
    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        let data = requests.iter().any(|r| r.kind == IoKind::Data);
        if data {
            self.enter();
        }
        let mut outcome = Ok(());
        for r in requests {
            // Others get a turn in between.
            std::thread::yield_now();
            outcome = outcome.and(self.write_vectored(r.kind, r.offset, &r.bufs));
        }
        if data {
            self.leave();
        }
        outcome
    }
    fn flush(&self) -> io::Result<()> {
        let before = self.log.lock().as_ref().map_or(0, Vec::len);
        self.inner.flush()?;
        self.note(|| Event::Flushed(before));
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}
