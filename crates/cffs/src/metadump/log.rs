//! The log of a metadata image: the same transactions with the same records. Records of metadata carry the block as it is
//! after the replay, and records of contents of files carry zeros.
//!
//! So a replay of the copy succeeds or fails as one of the original does, with the same result.

use super::redact::{Redactor, Seen};
use crate::error::Result;
use crate::format::log::{
    FLAG_DATA, FLAG_INIT, LOG_HEADER_AREA, LOG_HEADER_SIZE, LOG_HEADER_SLOTS, LOG_MAGIC, LogHeader, RANGE_UNIT,
    RECORD_HEADER, TAG_BLOCK, TAG_REVOKE, TXN_HEADER, block_sum, seal_txn,
};
use crate::format::{BlockAddr, Geometry, Superblock, align8, get_u16, get_u64, put_u32};
use crate::journal::LogReader;
use crate::journal::log_extent;
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind};
use std::collections::HashSet;

/// The log as it was found.
pub(super) struct Log<'a> {
    pub(super) dev: &'a dyn Device,
    pub(super) sb: &'a Superblock,
    /// What the header says, if it is good.
    pub(super) header: Option<LogHeader>,
}

impl<'a> Log<'a> {
    /// Reads the header.
    pub(super) fn open(dev: &'a dyn Device, sb: &'a Superblock) -> Log<'a> {
        Log { dev, sb, header: crate::journal::read_header(dev, sb).ok() }
    }

    /// Calls `f` with each transaction that counts: where it begins in the ring, its number, its bytes.
    fn each(&self, mut f: impl FnMut(u64, u64, &[u8]) -> Result<()>) -> Result<()> {
        let Some(header) = self.header else { return Ok(()) };
        let ring = log_extent(self.sb).1 - LOG_HEADER_AREA;
        let mut reader = LogReader::new(self.dev, self.sb);
        let (mut pos, mut seq, mut total) = (header.tail, header.tail_seq, 0);
        // The copy ends at a transaction that cannot be read.
        while let Ok(Some(txn)) = reader.transaction(pos, seq) {
            let bytes = txn.len() as u64;
            if total + bytes > ring || txn.epoch() != header.epoch {
                break;
            }
            f(pos, seq, txn.bytes())?;
            total += bytes;
            pos = (pos + bytes) % ring;
            seq += 1;
        }
        Ok(())
    }

    /// Blocks of metadata that the log changes.
    pub(super) fn blocks(&self, bs: usize) -> Result<HashSet<BlockAddr>> {
        let mut out = HashSet::new();
        self.each(|_, _, bytes| {
            let mut copy = bytes.to_vec();
            let payload = payload_of(&mut copy);
            records(payload, bs, |addr, head, _, _| {
                if head[1] & FLAG_DATA == 0 {
                    out.insert(addr);
                }
            });
            Ok(())
        })?;
        Ok(out)
    }

    /// Writes header and transactions to the copy; returns how many there are. `after` reads blocks as they are after a
    /// replay; without it (there can be none) the records carry zeros. `no_new`: blocks need not start as zeros, because they are
    /// in place already.
    pub(super) fn copy(
        &self,
        target: &dyn Device,
        g: &Geometry,
        redactor: &Redactor,
        after: Option<&dyn Fn(BlockAddr) -> Option<Vec<u8>>>,
        no_new: bool,
    ) -> Result<u64> {
        let (at, len) = log_extent(self.sb);
        if at.checked_add(LOG_HEADER_AREA).is_none_or(|end| end > self.dev.len()) {
            return Ok(0);
        }
        for slot in LOG_HEADER_SLOTS.map(|slot| at + slot) {
            let mut head = AlignedBuf::zeroed(4096);
            // A log without a header in the copy is as unusable as a damaged one.
            if self.dev.read_at(IoKind::Super, slot, &mut head).is_ok() && get_u64(&head, 0) == LOG_MAGIC {
                head[LOG_HEADER_SIZE..].fill(0);
                target.write_at(IoKind::Super, slot, &head)?;
            }
        }
        let mut count = 0;
        self.each(|pos, seq, bytes| {
            let mut txn = bytes.to_vec();
            let payload = payload_of(&mut txn);
            let payload_len = payload.len() as u64;
            let mut last: Option<(BlockAddr, Option<Vec<u8>>)> = None;
            records(payload, g.block_size(), |addr, head, offset, range| {
                if no_new {
                    head[1] &= !FLAG_INIT;
                }
                range.fill(0);
                let (Some(after), true) = (after, head[1] & FLAG_DATA == 0) else { return };
                if last.as_ref().is_none_or(|(a, _)| *a != addr) {
                    last = Some((addr, after(addr).and_then(|b| redactor.block(&b, &mut Seen::default()))));
                }
                if let Some((_, Some(block))) = &last {
                    range.copy_from_slice(&block[offset..offset + range.len()]);
                    put_u32(head, 4, block_sum(block));
                }
            });
            let unused = (TXN_HEADER as u64 + payload_len) as usize;
            txn[unused..].fill(0);
            seal_txn(&mut txn, g.fsid, seq, get_u64(bytes, 40), payload_len);
            count += 1;
            let ring = len - LOG_HEADER_AREA;
            let first = (ring - pos).min(txn.len() as u64) as usize;
            let start = at + LOG_HEADER_AREA;
            target.write_at(IoKind::Log, start + pos, &txn[..first])?;
            if first < txn.len() {
                target.write_at(IoKind::Log, start, &txn[first..])?;
            }
            Ok(())
        })?;
        Ok(count)
    }
}

fn payload_of(txn: &mut [u8]) -> &mut [u8] {
    let len = (get_u64(txn, 32) as usize).min(txn.len() - TXN_HEADER);
    &mut txn[TXN_HEADER..TXN_HEADER + len]
}

/// Calls `f` with each range of each block record: the block, the first half of the record's header, offset in the block, the bytes. What does not
/// decode is zeroed from there on, but for the header of the record, so that it does not decode then either.
fn records(payload: &mut [u8], bs: usize, mut f: impl FnMut(BlockAddr, &mut [u8; 8], usize, &mut [u8])) {
    let mut at = 0;
    while at < payload.len() {
        let Some(head) = payload.get(at..at + RECORD_HEADER) else { return payload[at..].fill(0) };
        let (tag, n, addr) = (head[0], get_u16(head, 2) as usize, get_u64(head, 8));
        let body = at + RECORD_HEADER;
        at = match tag {
            TAG_REVOKE => body,
            TAG_BLOCK => {
                let table = align8(n.min(bs) * 4);
                if n > bs / RANGE_UNIT || table > payload.len() - body {
                    return payload[body..].fill(0);
                }
                let mut from = body + table;
                for i in 0..n {
                    let offset = get_u16(payload, body + i * 4) as usize * RANGE_UNIT;
                    let len = get_u16(payload, body + i * 4 + 2) as usize * RANGE_UNIT;
                    if offset + len > bs || payload.len() - from < len {
                        return payload[from..].fill(0);
                    }
                    let mut head = [0; 8];
                    head.copy_from_slice(&payload[body - RECORD_HEADER..body - RECORD_HEADER + 8]);
                    f(addr, &mut head, offset, &mut payload[from..from + len]);
                    payload[body - RECORD_HEADER..body - RECORD_HEADER + 8].copy_from_slice(&head);
                    from += len;
                }
                from
            }
            _ => return payload[at..].fill(0),
        };
    }
}
