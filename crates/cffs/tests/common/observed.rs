//! A device in memory on which a test looks on, or lets something happen in the middle of a transfer.

use cffs::device::{Device, IoKind, MemoryDevice, Operation};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};

type Action = Box<dyn FnOnce() + Send>;
type Watcher = Box<dyn Fn(Seen<'_>) + Send + Sync>;

/// The events that an observer sees. It sees all but `Written` before they happen.
pub enum Seen<'a> {
    /// A read: kind, offset, bytes.
    Read(IoKind, u64, usize),
    /// A write: kind, offset, what.
    Write(IoKind, u64, &'a [IoSlice<'a>]),
    /// A write is over.
    Written(IoKind),
    /// A flush.
    Flush,
    /// A discard.
    Discard,
}

/// Tells a watcher what it is asked for; runs an action in the middle of the next read or write of file data.
pub struct Observed {
    /// What it stores.
    pub inner: Arc<MemoryDevice>,
    watcher: Watcher,
    on: Operation,
    action: Mutex<Option<Action>>,
}

impl Observed {
    /// With a watcher. Actions happen in writes.
    pub fn new(inner: Arc<MemoryDevice>, watcher: impl Fn(Seen<'_>) + Send + Sync + 'static) -> Arc<Observed> {
        Arc::new(Observed { inner, watcher: Box::new(watcher), on: Operation::Write, action: Mutex::default() })
    }

    /// Without a watcher; actions happen in reads or writes.
    pub fn interrupted(inner: Arc<MemoryDevice>, on: Operation) -> Arc<Observed> {
        Arc::new(Observed { inner, watcher: Box::new(|_| ()), on, action: Mutex::default() })
    }

    /// What is to happen, once.
    pub fn meanwhile(&self, action: impl FnOnce() + Send + 'static) {
        *self.action.lock().unwrap() = Some(Box::new(action));
    }

    /// Whether nothing is to happen any more.
    pub fn happened(&self) -> bool {
        self.action.lock().unwrap().is_none()
    }

    fn act(&self, kind: IoKind, operation: Operation) {
        let now = kind == IoKind::Data && operation == self.on;
        let action = now.then(|| self.action.lock().unwrap().take()).flatten();
        if let Some(action) = action {
            action();
        }
    }
}

impl Device for Observed {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        (self.watcher)(Seen::Read(kind, offset, bufs.iter().map(|b| b.len()).sum()));
        self.act(kind, Operation::Read);
        self.inner.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        (self.watcher)(Seen::Write(kind, offset, bufs));
        self.act(kind, Operation::Write);
        self.inner.write_vectored(kind, offset, bufs)?;
        (self.watcher)(Seen::Written(kind));
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        (self.watcher)(Seen::Flush);
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        (self.watcher)(Seen::Discard);
        self.inner.discard(offset, len)
    }
}
