//! A log disk for the check and the repair of the file system on it: what is stored and is not what was written reads as zeros.
//!
//! The check then finds which structures are gone, as it does on a disk that was overwritten, and the repair writes them anew. Data of files is not
//! written by it, and stays damaged.

use cffs::device::{Device, IoKind, ReadRequest, WriteRequest};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are stored, and damaged, together.
const BLOCK: u64 = cffs_logdisk::BLOCK_BYTES as u64;

/// The device.
pub struct DamageAsZeros(pub Arc<dyn Device>);

fn is_damage(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::InvalidData
}

impl DamageAsZeros {
    /// Reads block by block.
    fn read_apart(&self, kind: IoKind, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let n = (BLOCK - at % BLOCK).min((buf.len() - done) as u64) as usize;
            let part = &mut buf[done..done + n];
            match self.0.read_at(kind, at, part) {
                Err(e) if is_damage(&e) => part.fill(0),
                other => other?,
            }
            done += n;
        }
        Ok(())
    }
}

impl Device for DamageAsZeros {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn sector_size(&self) -> u32 {
        self.0.sector_size()
    }

    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.0)
    }

    fn read_vectored(&self, kind: IoKind, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        match self.0.read_vectored(kind, offset, bufs) {
            Err(e) if is_damage(&e) => {
                let mut at = offset;
                for buf in bufs {
                    self.read_apart(kind, at, buf)?;
                    at += buf.len() as u64;
                }
                Ok(())
            }
            other => other,
        }
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> io::Result<()> {
        match self.0.read_batch(requests) {
            Err(e) if is_damage(&e) => requests.iter_mut().try_for_each(|r| self.read_apart(r.kind, r.offset, r.buf)),
            other => other,
        }
    }

    fn together(&self, offset: u64, range: Range<u64>) -> Range<u64> {
        self.0.together(offset, range)
    }

    fn write_vectored(&self, kind: IoKind, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.write_vectored(kind, offset, bufs)
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.0.write_batch(requests)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }

    fn atomic_max(&self) -> usize {
        self.0.atomic_max()
    }

    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        self.0.write_atomic(requests)
    }

    fn finish(&self) -> io::Result<()> {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::device::{FailingDevice, Fault, MemoryDevice, Operation};

    #[test]
    fn a_damaged_block_reads_as_zeros_and_its_neighbours_as_they_are() {
        let failing = FailingDevice::new(Arc::new(MemoryDevice::new(1 << 20)));
        failing.write_at(IoKind::Data, 0, &[7; 64 << 10]).unwrap();
        let fault = Fault::from_now_on().in_range(9000, 9001).with_error(io::ErrorKind::InvalidData);
        failing.set(Operation::Read, fault);
        let device = DamageAsZeros(Arc::new(failing));
        let mut data = [1; 20480];
        device.read_at(IoKind::Data, 512, &mut data).unwrap();
        assert!(data[..7680].iter().all(|b| *b == 7) && data[11776..].iter().all(|b| *b == 7));
        assert!(data[7680..11776].iter().all(|b| *b == 0), "the block from 8192 on is at 7680 of what was read");
    }
}
