//! Writes the changes so that a crash leaves the file system either as it was or repaired.
//!
//! All changed blocks are written to the log first, whole, as transactions. The first transaction is written last: replay
//! begins with it, so without it the others do not count. Then the blocks are written in place. Changes that exceed the log
//! are written in several such steps: names and contents first, then what is derived from them.

use super::volume::{Changed, Copy};
use crate::error::{Error, Result};
use crate::format::log::{LOG_HEADER_AREA, LogHeader, RECORD_HEADER, TXN_HEADER, put_block, seal_txn};
use crate::format::{BlockAddr, BlockKind, Geometry, Superblock, get_u32, seal};
use crate::journal::{log_extent, write_header};
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind, WriteRequest};
use std::collections::BTreeMap;
use std::io::IoSlice;

/// A transaction takes at most one in so many parts of the log (recovery takes a quarter).
const TXN_DIVISOR: u64 = 5;
/// Bytes copied at a time.
const COPY_MAX: u64 = 1 << 20;

pub(super) struct Writer<'a> {
    pub(super) dev: &'a dyn Device,
    /// Where the log is; the same device if it is internal.
    pub(super) log: &'a dyn Device,
    pub(super) sb: &'a Superblock,
    pub(super) g: Geometry,
    /// The next number of a transaction, far behind all that were ever used.
    pub(super) seq: u64,
    /// The header of the log that counts.
    pub(super) header: LogHeader,
}

/// The order in which blocks are written: file maps and tables, then names, then derived structures.
fn rank(changed: &Changed) -> u8 {
    if changed.raw {
        return 2;
    }
    match BlockKind::from_magic(get_u32(&changed.bytes, 0)) {
        Some(BlockKind::ExtentNode | BlockKind::ExternalInodes | BlockKind::Xattr | BlockKind::DataSums) => 0,
        Some(BlockKind::Dir | BlockKind::SystemInodes) => 1,
        _ => 2,
    }
}

impl Writer<'_> {
    /// Writes everything. Returns the number of blocks written.
    pub(super) fn write(&mut self, copies: &[Copy], blocks: &mut BTreeMap<BlockAddr, Changed>) -> Result<u64> {
        for c in copies {
            self.copy(c)?;
        }
        self.dev.flush()?;
        let mut order: Vec<(u8, BlockAddr)> = blocks.iter().map(|(addr, c)| (rank(c), *addr)).collect();
        order.sort_unstable();
        let (_, log_len) = log_extent(self.sb);
        let ring = log_len.saturating_sub(LOG_HEADER_AREA);
        let each = self.g.block_size() as u64 + RECORD_HEADER as u64 + 8;
        let unit = self.g.frag_size() as u64;
        let per_txn = (ring / TXN_DIVISOR / unit * unit).saturating_sub(TXN_HEADER as u64) / each;
        if per_txn == 0 {
            return Error::invalid("the log is too small to repair with");
        }
        for step in order.chunks((per_txn * (TXN_DIVISOR - 1)) as usize) {
            self.step(step, per_txn as usize, blocks)?;
        }
        Ok(order.len() as u64)
    }

    fn copy(&self, c: &Copy) -> Result<()> {
        let shift = self.g.frag_shift;
        let mut done = 0;
        while done < c.len {
            let n = (c.len - done).min(COPY_MAX >> shift).max(1);
            let mut buf = AlignedBuf::zeroed((n << shift) as usize);
            // Fragments that cannot be read become zeros in the copy.
            let _ = self.dev.read_at(IoKind::Data, (c.from + done) << shift, &mut buf);
            self.dev.write_at(IoKind::Data, (c.to + done) << shift, &buf)?;
            done += n;
        }
        Ok(())
    }

    /// One step: writes the blocks to the log, then in place, and empties the log.
    fn step(
        &mut self,
        step: &[(u8, BlockAddr)],
        per_txn: usize,
        blocks: &mut BTreeMap<BlockAddr, Changed>,
    ) -> Result<()> {
        let (log_at, _) = log_extent(self.sb);
        let first_seq = self.seq;
        self.header = self.header.next(0, first_seq);
        write_header(self.log, log_at, self.header)?;
        self.log.flush()?;
        let mut at = 0;
        let mut first: Option<AlignedBuf> = None;
        for (n, chunk) in step.chunks(per_txn).enumerate() {
            let seq = first_seq + n as u64;
            for (_, addr) in chunk {
                if let Some(c) = blocks.get_mut(addr).filter(|c| !c.raw) {
                    seal(&mut c.bytes, seq);
                }
            }
            let txn = self.transaction(chunk, seq, blocks);
            let len = txn.len() as u64;
            if n == 0 {
                first = Some(txn);
            } else {
                self.log.write_at(IoKind::Log, log_at + LOG_HEADER_AREA + at, &txn)?;
            }
            at += len;
        }
        self.log.flush()?;
        if let Some(txn) = first {
            self.log.write_at(IoKind::Log, log_at + LOG_HEADER_AREA, &txn)?;
        }
        self.log.flush()?;
        self.seq = first_seq + step.len().div_ceil(per_txn) as u64;
        let mut requests: Vec<WriteRequest<'_>> = Vec::new();
        let mut addrs: Vec<BlockAddr> = step.iter().map(|(_, a)| *a).collect();
        addrs.sort_unstable();
        let mut end = u64::MAX;
        for addr in addrs {
            let Some(c) = blocks.get(&addr) else { continue };
            let offset = addr << self.g.block_shift;
            match requests.last_mut() {
                Some(r) if offset == end && r.bufs.len() < 256 => r.bufs.push(IoSlice::new(&c.bytes)),
                _ => requests.push(WriteRequest { kind: IoKind::Meta, offset, bufs: vec![IoSlice::new(&c.bytes)] }),
            }
            end = offset + self.g.block_size() as u64;
        }
        self.dev.write_batch(&requests)?;
        self.dev.flush()?;
        self.header = self.header.next(at, self.seq);
        write_header(self.log, log_at, self.header)?;
        self.log.flush()?;
        Ok(())
    }

    fn transaction(&self, chunk: &[(u8, BlockAddr)], seq: u64, blocks: &BTreeMap<BlockAddr, Changed>) -> AlignedBuf {
        let mut records = vec![0; TXN_HEADER];
        for (_, addr) in chunk {
            if let Some(c) = blocks.get(addr) {
                let units = (c.bytes.len() / crate::format::log::RANGE_UNIT) as u32;
                put_block(&mut records, *addr, true, c.raw, &c.bytes, &[(0, units)]);
            }
        }
        let payload = (records.len() - TXN_HEADER) as u64;
        let mut txn = AlignedBuf::zeroed(records.len().next_multiple_of(self.g.frag_size()));
        txn[..records.len()].copy_from_slice(&records);
        seal_txn(&mut txn, self.g.fsid, seq, self.header.epoch, payload);
        txn
    }
}
