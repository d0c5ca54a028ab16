//! A disk in a sparse file, and one that counts what another is asked.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Sub;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};
use serde::Serialize;

use super::Medium;

/// A disk whose bytes are those of a sparse file.
#[derive(Debug)]
pub struct Sparse {
    file: File,
    len: u64,
}

impl Sparse {
    /// A new one of `len` bytes, all zero.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(path: &Path, len: u64) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        file.set_len(len).with_context(|| format!("cannot make {} {len} bytes long", path.display()))?;
        Ok(Sparse { file, len })
    }
}

impl Medium for Sparse {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    // The file outlives whoever writes to it; what is tested is not the machine below.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// What a disk was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Read requests.
    pub reads: u64,
    /// Bytes they asked for.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes they carried.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, before: Counters) -> Counters {
        Counters {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            writes: self.writes - before.writes,
            written_bytes: self.written_bytes - before.written_bytes,
            flushes: self.flushes - before.flushes,
        }
    }
}

/// A disk that counts.
#[derive(Debug)]
pub struct Counted<M> {
    inner: M,
    counts: Mutex<Counters>,
}

impl<M: Medium> Counted<M> {
    /// Counts what is asked of `inner`.
    pub fn new(inner: M) -> Self {
        Counted { inner, counts: Mutex::default() }
    }

    /// All until now.
    pub fn counters(&self) -> Counters {
        *self.lock()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counters> {
        self.counts.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

impl<M: Medium> Medium for Counted<M> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut counts = self.lock();
        counts.reads += 1;
        counts.read_bytes += buf.len() as u64;
        drop(counts);
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut counts = self.lock();
        counts.writes += 1;
        counts.written_bytes += data.len() as u64;
        drop(counts);
        self.inner.write(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.lock().flushes += 1;
        self.inner.flush()
    }
}
