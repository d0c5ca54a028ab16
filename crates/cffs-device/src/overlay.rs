//! A device whose writes stay in memory, over another that is only read.

use crate::counters::DiskStats;
use crate::device::{Device, DeviceSpace, ReadRequest};
use crate::observer::Observer;
use crate::range::{check_read, check_write, chunks, total, total_mut};
use crate::request::IoKind;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// Sectors kept together: one bit each in the mask of a chunk.
const SECTORS_PER_CHUNK: u64 = 128;

/// Some sectors next to each other, of which those in the mask were written.
struct Chunk {
    data: Box<[u8]>,
    written: u128,
}

/// Reads come from the device below unless the sector was written here; writes never reach the device below.
///
/// So a log can be replayed over an image that may not be touched: `fsck -n`, a read-only mount.
pub struct OverlayDevice {
    inner: Arc<dyn Device>,
    sector: u32,
    chunks: RwLock<BTreeMap<u64, Chunk>>,
}

/// The mask of sectors `first..first + n` of a chunk.
fn mask(first: u64, n: u64) -> u128 {
    let ones = if n >= 128 { u128::MAX } else { (1 << n) - 1 };
    ones << first
}

impl OverlayDevice {
    /// An overlay without any writes yet.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        let sector = inner.sector_size();
        OverlayDevice { inner, sector, chunks: RwLock::default() }
    }

    /// The device below.
    pub fn inner(&self) -> &Arc<dyn Device> {
        &self.inner
    }

    /// Bytes that were written here and so differ, or may differ, from the device below.
    pub fn written_bytes(&self) -> u64 {
        self.chunks.read().values().map(|c| u64::from(c.written.count_ones()) * u64::from(self.sector)).sum()
    }

    /// Forgets all writes.
    pub fn clear(&self) {
        self.chunks.write().clear();
    }

    fn chunk_bytes(&self) -> u64 {
        SECTORS_PER_CHUNK * u64::from(self.sector)
    }

    /// Puts what was written here over what was read below from `offset` on.
    fn patch(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) {
        let chunk_bytes = self.chunk_bytes();
        let map = self.chunks.read();
        if map.is_empty() {
            return;
        }
        let sector = self.sector as usize;
        let lens: Vec<usize> = bufs.iter().map(|b| b.len()).collect();
        pieces(chunk_bytes, offset, lens.into_iter(), |buf, done, chunk, within, n| {
            let Some(chunk) = map.get(&chunk) else { return };
            // Buffers need not end at sector borders, only the whole request does: so cut by sector.
            let mut i = 0;
            while i < n {
                let at = within + i;
                let step = (sector - at % sector).min(n - i);
                if chunk.written >> (at / sector) & 1 == 1 {
                    bufs[buf][done + i..done + i + step].copy_from_slice(&chunk.data[at..at + step]);
                }
                i += step;
            }
        });
    }

    /// The mask of the sectors that a part of a chunk lies in.
    fn part_mask(&self, within: usize, n: usize) -> u128 {
        let sector = self.sector as usize;
        mask((within / sector) as u64, (n / sector) as u64)
    }
}

/// Calls `piece` with every contiguous piece that results from cutting the buffers (lengths `lens`, in order, from
/// `offset` on) at chunk borders: buffer, position in the buffer, chunk, position in the chunk, length.
fn pieces(
    chunk_bytes: u64,
    offset: u64,
    lens: impl Iterator<Item = usize>,
    mut piece: impl FnMut(usize, usize, u64, usize, usize),
) {
    let mut at = offset;
    for (buf, len) in lens.enumerate() {
        let mut done = 0;
        for (chunk, within, n) in chunks(chunk_bytes, at, len as u64) {
            piece(buf, done, chunk, within, n);
            done += n;
        }
        at += len as u64;
    }
}

impl Device for OverlayDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn sector_size(&self) -> u32 {
        self.sector
    }

    fn max_request(&self) -> usize {
        self.inner.max_request()
    }

    fn is_rotational(&self) -> bool {
        self.inner.is_rotational()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) -> bool {
        self.inner.observe(observer)
    }

    fn disks(&self) -> Vec<DiskStats> {
        self.inner.disks()
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let len = total_mut(bufs);
        check_read(self.len(), self.sector, offset, len)?;
        let chunk_bytes = self.chunk_bytes();
        let all_here = {
            let map = self.chunks.read();
            chunks(chunk_bytes, offset, len as u64).all(|(chunk, within, n)| {
                let part = self.part_mask(within, n);
                map.get(&chunk).is_some_and(|c| c.written & part == part)
            })
        };
        if !all_here {
            self.inner.read_vectored(kind, offset, bufs)?;
        }
        self.patch(offset, bufs);
        Ok(())
    }

    fn write_vectored(&self, _kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let len = total(bufs);
        check_write(self.len(), self.sector, offset, len)?;
        let chunk_bytes = self.chunk_bytes();
        let mut map = self.chunks.write();
        for (chunk, within, n) in chunks(chunk_bytes, offset, len as u64) {
            let new = || Chunk { data: vec![0; chunk_bytes as usize].into_boxed_slice(), written: 0 };
            map.entry(chunk).or_insert_with(new).written |= self.part_mask(within, n);
        }
        pieces(chunk_bytes, offset, bufs.iter().map(|b| b.len()), |buf, done, chunk, within, n| {
            if let Some(chunk) = map.get_mut(&chunk) {
                chunk.data[within..within + n].copy_from_slice(&bufs[buf][done..done + n]);
            }
        });
        Ok(())
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        for r in requests.iter() {
            check_read(self.len(), self.sector, r.offset, r.buf.len())?;
        }
        self.inner.read_batch(requests)?;
        requests.iter_mut().for_each(|r| self.patch(r.offset, &mut [IoSliceMut::new(r.buf)]));
        Ok(())
    }

    fn together(&self, offset: u64, range: Range<u64>) -> Range<u64> {
        self.inner.together(offset, range)
    }

    fn note_group(&self, bytes: u64) {
        self.inner.note_group(bytes);
    }

    fn space(&self) -> Option<DeviceSpace> {
        self.inner.space()
    }

    fn copies(&self) -> usize {
        self.inner.copies()
    }

    fn read_copy(&self, kind: IoKind, copy: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_copy(kind, copy, offset, buf)?;
        self.patch(offset, &mut [IoSliceMut::new(buf)]);
        Ok(())
    }

    fn repair(&self, _kind: IoKind, _copy: usize, _offset: u64, _good: &[u8]) -> io::Result<bool> {
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the device below may not be touched"))
    }

    /// Nothing to do: nothing of this is meant to last.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Nothing to do: the device below may not be touched, and what is discarded may read as anything.
    fn can_discard(&self) -> bool {
        false
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for OverlayDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OverlayDevice({} bytes, {} written)", self.len(), self.written_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CountingDevice, MemoryDevice};
    use proptest::prelude::*;

    fn patterned(len: usize) -> (Arc<MemoryDevice>, Vec<u8>) {
        let data: Vec<u8> = (0..len).map(|i| (i / 512 * 13 + i) as u8).collect();
        let dev = MemoryDevice::new(len as u64);
        dev.write_at(IoKind::Data, 0, &data).unwrap();
        (Arc::new(dev), data)
    }

    #[test]
    fn masks() {
        assert_eq!(mask(0, 128), u128::MAX);
        assert_eq!(mask(127, 1), 1 << 127);
        assert_eq!(mask(2, 3), 0b11100);
    }

    #[test]
    fn what_was_written_is_not_read_below() {
        let (inner, _) = patterned(1 << 20);
        let counted = Arc::new(CountingDevice::new(inner));
        let dev = OverlayDevice::new(counted.clone());
        dev.write_at(IoKind::Data, 65536 - 512, &[5; 1024]).unwrap();
        let mut buf = [0; 1024];
        dev.read_at(IoKind::Data, 65536 - 512, &mut buf).unwrap();
        assert_eq!(buf, [5; 1024]);
        assert_eq!(counted.snapshot().read_requests(), 0);
        assert_eq!(dev.written_bytes(), 1024);
        dev.clear();
        dev.read_at(IoKind::Data, 65536 - 512, &mut buf).unwrap();
        assert_ne!(buf, [5; 1024]);
        assert_eq!(counted.snapshot().read_requests(), 1);
        assert_eq!(counted.snapshot().write_requests(), 0);
    }

    #[test]
    fn limits_are_errors() {
        let (inner, _) = patterned(65536);
        let dev = OverlayDevice::new(inner);
        assert!(dev.write_at(IoKind::Data, 65536, &[0; 512]).is_err());
        assert!(dev.write_at(IoKind::Data, 1, &[0; 512]).is_err());
        assert!(dev.read_at(IoKind::Data, 65024, &mut [0; 1024]).is_err());
    }

    proptest! {
        /// Against a vector: overlapping writes in odd pieces, reads over written and unwritten sectors.
        #[test]
        fn equals_a_vector(ops in prop::collection::vec((any::<bool>(), 0usize..400, 1usize..300, 1usize..2000), 1..40)) {
            let (inner, mut model) = patterned(400 * 512);
            let before = model.clone();
            let dev = OverlayDevice::new(inner.clone());
            for (i, (write, sector, sectors, part)) in ops.into_iter().enumerate() {
                let at = sector * 512;
                let n = (sectors * 512).min(model.len() - at);
                if write {
                    let data: Vec<u8> = (0..n).map(|j| (i * 7 + j / 100) as u8).collect();
                    let bufs: Vec<_> = data.chunks(part).map(IoSlice::new).collect();
                    dev.write_vectored(IoKind::Data, at as u64, &bufs).unwrap();
                    model[at..at + n].copy_from_slice(&data);
                } else {
                    let mut data = vec![0xee; n];
                    let mut bufs: Vec<_> = data.chunks_mut(part).map(IoSliceMut::new).collect();
                    dev.read_vectored(IoKind::Data, at as u64, &mut bufs).unwrap();
                    prop_assert_eq!(&data, &model[at..at + n]);
                }
            }
            let mut below = vec![0; before.len()];
            inner.read_at(IoKind::Data, 0, &mut below).unwrap();
            prop_assert!(below == before, "the device below was written");
        }
    }
}
