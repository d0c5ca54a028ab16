//! Contents of a simulated device.

use std::sync::Arc;

/// Unit that a device writes atomically, in bytes.
pub const SECTOR: usize = 512;
pub(crate) const CHUNK: usize = 16 * 1024;

/// Contents of a device: sparse, and cheap to copy (chunks are shared until one side writes).
#[derive(Clone)]
pub struct Image {
    len: u64,
    chunks: Vec<Chunk>,
}

/// Bytes of a chunk; nothing for zeros that were never written.
type Chunk = Option<Arc<Vec<u8>>>;

impl Image {
    /// A device full of zeros.
    pub fn new(len: u64) -> Image {
        Image { len, chunks: vec![None; len.div_ceil(CHUNK as u64) as usize] }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// Copies bytes out; the range lies inside the image.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        each_chunk(offset, buf.len(), |chunk, at, range| {
            let out = &mut buf[range];
            match &self.chunks[chunk] {
                Some(data) => out.copy_from_slice(&data[at..at + out.len()]),
                None => out.fill(0),
            }
        });
    }

    /// Copies bytes in; the range lies inside the image.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        each_chunk(offset, data.len(), |chunk, at, range| {
            let slot = self.chunks[chunk].get_or_insert_with(|| Arc::new(vec![0; CHUNK]));
            Arc::make_mut(slot)[at..at + range.len()].copy_from_slice(&data[range]);
        });
    }

    /// Whether all of a range was written before: a sparse file has a place for it.
    pub fn has(&self, offset: u64, len: u64) -> bool {
        let mut all = true;
        each_chunk(offset, len as usize, |chunk, _, _| all &= self.chunks[chunk].is_some());
        all
    }

    /// Byte offset of the first chunk at or behind `from` that is not the same in another image of this size. What neither has ever
    /// written costs nothing.
    pub fn differs_from(&self, other: &Image, from: u64) -> Option<u64> {
        let first = from as usize / CHUNK;
        let zeros = [0; CHUNK];
        let same = |(a, b): (&Chunk, &Chunk)| match (a, b) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (one, other) => one.as_ref().or(other.as_ref()).is_none_or(|data| data[..] == zeros),
        };
        let chunks = self.chunks.iter().zip(&other.chunks).enumerate().skip(first);
        chunks.into_iter().find(|(_, pair)| !same(*pair)).map(|(n, _)| (n * CHUNK) as u64)
    }

    /// Sets a range to one value.
    pub fn fill(&mut self, offset: u64, len: u64, value: u8) {
        let block = [value; CHUNK];
        each_chunk(offset, len as usize, |chunk, at, range| {
            let slot = self.chunks[chunk].get_or_insert_with(|| Arc::new(vec![0; CHUNK]));
            Arc::make_mut(slot)[at..at + range.len()].copy_from_slice(&block[..range.len()]);
        });
    }
}

/// Splits a byte range at chunk borders: (chunk, offset in it, range of the caller's buffer).
pub(crate) fn each_chunk(offset: u64, len: usize, mut f: impl FnMut(usize, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = (offset + done as u64) as usize;
        let n = (CHUNK - at % CHUNK).min(len - done);
        f(at / CHUNK, at % CHUNK, done..done + n);
        done += n;
    }
}
