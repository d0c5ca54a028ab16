//! Bytes that wait to be written with those that follow them: pieces side by side are one request, where each alone would wait for the disk to come
//! round again.

use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most bytes that wait.
const HELD_MAX: usize = 1 << 20;

/// Writes bytes to a place.
pub(super) type WriteAt<'a> = &'a dyn Fn(u64, &[u8]) -> io::Result<()>;

/// What waits, from begin to end.
#[derive(Default)]
pub(super) struct Held {
    inner: Mutex<Inner>,
    /// As in `inner`, known without the lock.
    holds: AtomicBool,
}

#[derive(Default)]
struct Inner {
    holds: bool,
    at: u64,
    bytes: Vec<u8>,
    /// What waited could not be written. Who learned of it may not have been who had it wait.
    failed: Option<io::ErrorKind>,
}

impl Inner {
    fn write_out(&mut self, write: WriteAt<'_>) -> io::Result<()> {
        if let Some(kind) = self.failed {
            return Err(io::Error::new(kind, "what was appended before could not be written"));
        }
        let bytes = std::mem::take(&mut self.bytes);
        let r = if bytes.is_empty() { Ok(()) } else { write(self.at, &bytes) };
        self.failed = r.as_ref().err().map(io::Error::kind);
        r
    }
}

impl Held {
    /// From now on what is written may wait.
    pub(super) fn begin(&self) {
        self.inner.lock().holds = true;
        self.holds.store(true, Ordering::Release);
    }

    /// Writes what waits, and what comes after that is written at once.
    pub(super) fn end(&self, write: WriteAt<'_>) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.holds = false;
        self.holds.store(false, Ordering::Release);
        inner.write_out(write)
    }

    /// Writes what waits.
    pub(super) fn write_out(&self, write: WriteAt<'_>) -> io::Result<()> {
        if self.holds.load(Ordering::Acquire) { self.inner.lock().write_out(write) } else { Ok(()) }
    }

    /// Writes what waits if some of it is in a range that is to be read.
    pub(super) fn before_read(&self, range: Range<u64>, write: WriteAt<'_>) -> io::Result<()> {
        if !self.holds.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut inner = self.inner.lock();
        let overlaps = range.start < inner.at + inner.bytes.len() as u64 && inner.at < range.end;
        if overlaps { inner.write_out(write) } else { Ok(()) }
    }

    /// Writes bytes, or has them wait.
    pub(super) fn put(&self, at: u64, bytes: &[u8], write: WriteAt<'_>) -> io::Result<()> {
        if !self.holds.load(Ordering::Acquire) {
            return write(at, bytes);
        }
        let mut inner = self.inner.lock();
        let follows = inner.at + inner.bytes.len() as u64 == at && inner.bytes.len() + bytes.len() <= HELD_MAX;
        if !follows {
            inner.write_out(write)?;
            inner.at = at;
        }
        if !inner.holds || bytes.len() > HELD_MAX {
            return write(at, bytes);
        }
        inner.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn neighbours_are_one_write_and_nothing_that_waits_is_read_from_below() {
        let written: RefCell<Vec<(u64, usize)>> = RefCell::default();
        let write = |at: u64, bytes: &[u8]| {
            written.borrow_mut().push((at, bytes.len()));
            Ok(())
        };
        let held = Held::default();
        held.put(0, &[1; 10], &write).unwrap();
        held.begin();
        for (at, len) in [(10, 5), (15, 5), (100, 8), (108, 2), (200, 3)] {
            held.put(at, &vec![2; len], &write).unwrap();
        }
        assert_eq!(written.take(), [(0, 10), (10, 10), (100, 10)]);
        held.before_read(190..200, &write).unwrap();
        held.before_read(203..210, &write).unwrap();
        assert_eq!(written.take(), []);
        held.before_read(202..203, &write).unwrap();
        assert_eq!(written.take(), [(200, 3)]);
        // What was written out is not written again, and what follows it is a write of its own.
        held.put(203, &[3; 4], &write).unwrap();
        held.write_out(&write).unwrap();
        held.put(207, &vec![3; HELD_MAX], &write).unwrap();
        held.put(207 + HELD_MAX as u64, &vec![3; HELD_MAX + 1], &write).unwrap();
        assert_eq!(written.take(), [(203, 4), (207, HELD_MAX), (207 + HELD_MAX as u64, HELD_MAX + 1)]);
        held.put(5, &[4; 2], &write).unwrap();
        held.end(&write).unwrap();
        held.put(7, &[4; 2], &write).unwrap();
        assert_eq!(written.take(), [(5, 2), (7, 2)]);
        let fails = |_: u64, _: &[u8]| Err(io::Error::other("no"));
        held.begin();
        held.put(9, &[5; 2], &write).unwrap();
        assert!(held.before_read(10..11, &fails).is_err() && held.end(&write).is_err() && written.take().is_empty());
    }
}
