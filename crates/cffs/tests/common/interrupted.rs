//! A device that lets something happen in the middle of a transfer.

use cffs::device::{Device, IoKind, MemoryDevice, Operation};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};

type Action = Box<dyn FnOnce() + Send>;

/// Runs an action in the middle of the next read or write of file data.
pub struct Interrupted {
    /// What it stores.
    pub inner: Arc<MemoryDevice>,
    on: Operation,
    action: Mutex<Option<Action>>,
}

impl Interrupted {
    /// `on`: reads or writes.
    pub fn new(inner: Arc<MemoryDevice>, on: Operation) -> Arc<Interrupted> {
        Arc::new(Interrupted { inner, on, action: Mutex::default() })
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

impl Device for Interrupted {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }
    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.act(kind, Operation::Read);
        self.inner.read_vectored(kind, offset, bufs)
    }
    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.act(kind, Operation::Write);
        self.inner.write_vectored(kind, offset, bufs)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}
