//! A device in memory that costs only what was written to it.

use crate::device::Device;
use crate::range::{check_read, check_write, chunks, clip_discard, total, total_mut};
use crate::request::IoKind;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes per chunk: what the first write into a region costs.
const CHUNK: u64 = 64 << 10;
/// Maps that the chunks are spread over, so that threads meet rarely.
const SHARDS: usize = 64;

/// Hash of a chunk number. They come from the program itself, so resistance to chosen keys is not needed.
#[derive(Default)]
struct ChunkHasher(u64);

impl Hasher for ChunkHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        // Fibonacci hashing; the swap brings the well-mixed high bits to where the table looks first.
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes();
    }
}

type Shard = HashMap<u64, RwLock<Box<[u8]>>, BuildHasherDefault<ChunkHasher>>;

/// A sparse device in memory: what was never written reads as zeros and takes no memory.
///
/// Reads and writes of different places run in parallel. A request that spans several chunks of 64 KiB is not atomic
/// towards others, as on any disk.
pub struct MemoryDevice {
    len: AtomicU64,
    sector: u32,
    shards: Box<[RwLock<Shard>]>,
}

impl MemoryDevice {
    /// A device of `len` zero bytes with sectors of 512 bytes.
    pub fn new(len: u64) -> Self {
        Self::with_sector_size(len, 512)
    }

    /// A device of `len` zero bytes.
    ///
    /// # Panics
    /// If `sector` is not a power of two from 512 on.
    pub fn with_sector_size(len: u64, sector: u32) -> Self {
        assert!(sector.is_power_of_two() && sector >= 512, "a sector has a power of two of bytes, 512 or more");
        MemoryDevice { len: AtomicU64::new(len), sector, shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }

    /// Makes the device longer (by zeros) or shorter (what is cut off is gone).
    pub fn set_len(&self, len: u64) {
        let old = self.len.swap(len, Ordering::AcqRel);
        if len < old {
            self.zero(len, old - len);
        }
    }

    /// Memory that the contents take, in bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.shards.iter().map(|s| s.read().len() as u64 * CHUNK).sum()
    }

    /// A second device with the same contents, independent of this one. While others write, the copy has of each
    /// write all, nothing or a part.
    pub fn duplicate(&self) -> Self {
        let copy_shard = |shard: &RwLock<Shard>| {
            let copy: Shard = shard.read().iter().map(|(&n, c)| (n, RwLock::new(c.read().clone()))).collect();
            RwLock::new(copy)
        };
        MemoryDevice {
            len: AtomicU64::new(self.len()),
            sector: self.sector,
            shards: self.shards.iter().map(copy_shard).collect(),
        }
    }

    fn shard(&self, chunk: u64) -> &RwLock<Shard> {
        &self.shards[chunk as usize % SHARDS]
    }

    fn read_chunk(&self, chunk: u64, within: usize, buf: &mut [u8]) {
        match self.shard(chunk).read().get(&chunk) {
            Some(data) => buf.copy_from_slice(&data.read()[within..within + buf.len()]),
            None => buf.fill(0),
        }
    }

    fn write_chunk(&self, chunk: u64, within: usize, buf: &[u8]) {
        let shard = self.shard(chunk);
        if let Some(data) = shard.read().get(&chunk) {
            data.write()[within..within + buf.len()].copy_from_slice(buf);
            return;
        }
        // Made outside the lock; if somebody else was faster, theirs stays.
        let new = vec![0; CHUNK as usize].into_boxed_slice();
        let mut shard = shard.write();
        let data = shard.entry(chunk).or_insert_with(|| RwLock::new(new)).get_mut();
        data[within..within + buf.len()].copy_from_slice(buf);
    }

    /// Zeroes a range; whole chunks are freed.
    fn zero(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let first_whole = offset.div_ceil(CHUNK);
        let end_whole = end / CHUNK;
        if first_whole < end_whole {
            // By the chunks that exist, not by those of the range: that may be a petabyte.
            for shard in &self.shards {
                shard.write().retain(|n, _| !(first_whole..end_whole).contains(n));
            }
        }
        let zero_part = |from: u64, to: u64| {
            for (chunk, within, n) in chunks(CHUNK, from, to.saturating_sub(from)) {
                if let Some(data) = self.shard(chunk).read().get(&chunk) {
                    data.write()[within..within + n].fill(0);
                }
            }
        };
        if first_whole > end_whole {
            zero_part(offset, end); // within one chunk
        } else {
            zero_part(offset, first_whole * CHUNK);
            zero_part(end_whole * CHUNK, end);
        }
    }
}

impl Device for MemoryDevice {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn sector_size(&self) -> u32 {
        self.sector
    }

    fn read_vectored(&self, _kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        check_read(self.len(), self.sector, offset, total_mut(bufs))?;
        let mut at = offset;
        for buf in bufs {
            let mut rest = &mut buf[..];
            for (chunk, within, n) in chunks(CHUNK, at, rest.len() as u64) {
                let (head, tail) = rest.split_at_mut(n);
                self.read_chunk(chunk, within, head);
                rest = tail;
            }
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn write_vectored(&self, _kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        check_write(self.len(), self.sector, offset, total(bufs))?;
        let mut at = offset;
        for buf in bufs {
            let mut rest = &buf[..];
            for (chunk, within, n) in chunks(CHUNK, at, rest.len() as u64) {
                let (head, tail) = rest.split_at(n);
                self.write_chunk(chunk, within, head);
                rest = tail;
            }
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn grow(&self, len: Option<u64>) -> io::Result<u64> {
        self.len.fetch_max(len.unwrap_or(0), Ordering::AcqRel);
        Ok(self.len())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if let Some((offset, len)) = clip_discard(self.len(), self.sector, offset, len) {
            self.zero(offset, len);
        }
        Ok(())
    }
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryDevice({} bytes, {} allocated)", self.len(), self.allocated_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn huge_and_sparse() {
        let dev = MemoryDevice::new(1 << 50);
        let mut buf = [1; 4096];
        dev.read_at(IoKind::Data, (1 << 50) - 4096, &mut buf).unwrap();
        assert_eq!(buf, [0; 4096]);
        assert_eq!(dev.allocated_bytes(), 0, "a read allocates nothing");
        dev.write_at(IoKind::Data, (1 << 50) - 4096, &[7; 4096]).unwrap();
        dev.write_at(IoKind::Data, 0, &[7; 512]).unwrap();
        assert_eq!(dev.allocated_bytes(), 2 * CHUNK);
        dev.discard(0, u64::MAX).unwrap();
        assert_eq!(dev.allocated_bytes(), 0);
        dev.read_at(IoKind::Data, (1 << 50) - 4096, &mut buf).unwrap();
        assert_eq!(buf, [0; 4096]);
    }

    #[test]
    fn limits_are_errors() {
        let dev = MemoryDevice::with_sector_size(8192, 4096);
        let mut buf = [0; 8192];
        assert_eq!(dev.read_at(IoKind::Data, 4096, &mut buf).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(dev.write_at(IoKind::Data, 8192, &buf[..4096]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(dev.write_at(IoKind::Data, 512, &buf[..4096]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn shorter_then_longer_reads_zeros() {
        let dev = MemoryDevice::new(3 * CHUNK);
        dev.write_at(IoKind::Data, 0, &vec![9; 3 * CHUNK as usize]).unwrap();
        dev.set_len(CHUNK + 1024);
        dev.set_len(3 * CHUNK);
        let mut buf = vec![1; 3 * CHUNK as usize];
        dev.read_at(IoKind::Data, 0, &mut buf).unwrap();
        let kept = CHUNK as usize + 1024;
        assert!(buf[..kept].iter().all(|&b| b == 9));
        assert!(buf[kept..].iter().all(|&b| b == 0));
    }

    #[test]
    fn duplicate_is_independent() {
        let dev = MemoryDevice::new(1 << 20);
        dev.write_at(IoKind::Data, 512, &[1; 512]).unwrap();
        let copy = dev.duplicate();
        dev.write_at(IoKind::Data, 512, &[2; 512]).unwrap();
        let mut buf = [0; 512];
        copy.read_at(IoKind::Data, 512, &mut buf).unwrap();
        assert_eq!(buf, [1; 512]);
    }

    #[test]
    fn threads_write_side_by_side() {
        let dev = MemoryDevice::new(1 << 20);
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let dev = &dev;
                s.spawn(move || {
                    for sector in (t..2048).step_by(4) {
                        dev.write_at(IoKind::Data, sector * 512, &[t as u8 + 1; 512]).unwrap();
                    }
                });
            }
        });
        let mut buf = vec![0; 1 << 20];
        dev.read_at(IoKind::Data, 0, &mut buf).unwrap();
        for (i, sector) in buf.chunks(512).enumerate() {
            assert_eq!(sector, [(i % 4) as u8 + 1; 512]);
        }
    }

    proptest! {
        /// Against a plain vector: scattered and gathered requests of any size across chunk borders, and discards.
        #[test]
        fn equals_a_vector(ops in prop::collection::vec((0u8..3, 0u64..400, 1usize..300, 1usize..5), 1..40)) {
            let len = 400 * 512u64;
            let dev = MemoryDevice::new(len);
            let mut model = vec![0u8; len as usize];
            for (i, (op, sector, sectors, parts)) in ops.into_iter().enumerate() {
                let at = sector as usize * 512;
                let n = (sectors * 512).min(model.len() - at);
                match op {
                    0 => {
                        let data: Vec<u8> = (0..n).map(|j| (i * 7 + j / 512) as u8).collect();
                        let bufs: Vec<_> = data.chunks(n.div_ceil(parts)).map(IoSlice::new).collect();
                        dev.write_vectored(IoKind::Data, at as u64, &bufs).unwrap();
                        model[at..at + n].copy_from_slice(&data);
                    }
                    1 => {
                        let mut data = vec![0xee; n];
                        let mut bufs: Vec<_> = data.chunks_mut(n.div_ceil(parts)).map(IoSliceMut::new).collect();
                        dev.read_vectored(IoKind::Data, at as u64, &mut bufs).unwrap();
                        prop_assert_eq!(&data, &model[at..at + n]);
                    }
                    _ => {
                        dev.discard(at as u64, n as u64).unwrap();
                        model[at..at + n].fill(0);
                    }
                }
            }
            let mut all = vec![0; len as usize];
            dev.read_at(IoKind::Data, 0, &mut all).unwrap();
            prop_assert_eq!(all, model);
        }
    }
}
