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

    /// One that exists.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let len = file.metadata()?.len();
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

/// Unit in which reads of the same place are counted, in bytes.
const BLOCK: u64 = 4096;

/// A disk that counts.
#[derive(Debug)]
pub struct Counted<M> {
    inner: M,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    total: Counters,
    /// Per block; empty when nobody asked for it.
    read: Vec<u8>,
}

impl<M: Medium> Counted<M> {
    /// Counts what is asked of `inner`.
    pub fn new(inner: M) -> Self {
        Counted { inner, counts: Mutex::default() }
    }

    /// All until now.
    pub fn counters(&self) -> Counters {
        self.lock().total
    }

    /// From now on: how often each block of 4 KiB is read.
    pub fn watch_blocks(&self) {
        let blocks = self.inner.len().div_ceil(BLOCK) as usize;
        self.lock().read = vec![0; blocks];
    }

    /// Blocks read since [`Counted::watch_blocks`], how many of them more than once, and the most often that one was.
    pub fn blocks_read(&self) -> (u64, u64, u8) {
        let counts = self.lock();
        let read = counts.read.iter().filter(|n| **n > 0).count() as u64;
        let again = counts.read.iter().filter(|n| **n > 1).count() as u64;
        (read, again, counts.read.iter().copied().max().unwrap_or(0))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

impl<M: Medium> Medium for Counted<M> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut counts = self.lock();
        counts.total.reads += 1;
        counts.total.read_bytes += buf.len() as u64;
        if !counts.read.is_empty() && !buf.is_empty() {
            let (first, last) = (offset / BLOCK, (offset + buf.len() as u64 - 1) / BLOCK);
            for block in first..=last {
                let n = &mut counts.read[block as usize];
                *n = n.saturating_add(1);
            }
        }
        drop(counts);
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut counts = self.lock();
        counts.total.writes += 1;
        counts.total.written_bytes += data.len() as u64;
        drop(counts);
        self.inner.write(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.lock().total.flushes += 1;
        self.inner.flush()
    }
}
