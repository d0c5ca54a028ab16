//! Reading the log: whole transactions, one after another.

use super::log_layout::{COMMIT_DIVISOR, log_extent};
use crate::copies::right_copy;
use crate::error::Result;
use crate::format::log::{self, Record, TxnHeader};
use crate::format::{self, Geometry, Superblock};
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind};

/// Longest read in bytes.
const READ_MAX: u64 = 1 << 20;
/// The first piece of the log that is read, in bytes: all there is to read after a clean unmount.
const READ_MIN: u64 = 64 << 10;

/// Reads the log, in pieces that become larger as it goes on: small transactions are many, and most logs are short.
pub(crate) struct LogReader<'a> {
    dev: &'a dyn Device,
    sb: &'a Superblock,
    /// Byte offset of the ring on the device, and its length.
    start: u64,
    ring: u64,
    piece: (u64, AlignedBuf),
    /// Length of the next piece in bytes, a power of two.
    window: u64,
}

impl<'a> LogReader<'a> {
    /// A reader of the log on `dev`, whose place was checked.
    pub(crate) fn new(dev: &'a dyn Device, sb: &'a Superblock) -> LogReader<'a> {
        let (at, len) = log_extent(sb);
        let (start, ring) = (at + log::LOG_HEADER_AREA, len - log::LOG_HEADER_AREA);
        LogReader { dev, sb, start, ring, piece: (u64::MAX, AlignedBuf::default()), window: READ_MIN }
    }

    /// The bytes of the ring from `pos` on.
    pub(crate) fn read(&mut self, mut pos: u64, bytes: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let end = self.piece.0.saturating_add(self.piece.1.len() as u64);
            if !(self.piece.0..end).contains(&pos) {
                if pos == end {
                    self.window = READ_MAX.min(self.window * 2);
                }
                let base = pos - pos % self.window;
                self.piece = (u64::MAX, AlignedBuf::zeroed(self.window.min(self.ring - base) as usize));
                self.dev.read_at(IoKind::Log, self.start + base, &mut self.piece.1)?;
                self.piece.0 = base;
            }
            let from = (pos - self.piece.0) as usize;
            let n = (self.piece.1.len() - from).min(bytes.len() - done);
            bytes[done..done + n].copy_from_slice(&self.piece.1[from..from + n]);
            done += n;
            pos = (pos + n as u64) % self.ring;
        }
        Ok(())
    }

    /// Length of the ring in bytes.
    pub(super) fn ring(&self) -> u64 {
        self.ring
    }

    /// The whole transaction that begins at `pos`, if there is one with this number.
    pub(crate) fn transaction(&mut self, pos: u64, seq: u64) -> Result<Option<Transaction>> {
        self.transaction_if(pos, |found| found == seq)
    }

    /// The header of the whole transaction that begins at `pos`, if there is one with any number.
    pub(super) fn any_transaction(&mut self, pos: u64) -> Result<Option<TxnHeader>> {
        Ok(self.transaction_if(pos, |_| true)?.map(|t| t.header))
    }

    fn transaction_if(&mut self, pos: u64, wanted: impl Fn(u64) -> bool) -> Result<Option<Transaction>> {
        let unit = 1u64 << self.sb.frag_shift;
        if !pos.is_multiple_of(unit) {
            return Ok(None);
        }
        let mut head = AlignedBuf::zeroed(unit as usize);
        self.read(pos, &mut head)?;
        // A commit takes a fifth of the ring and a little padding, so a quarter is more than any has.
        let most = self.ring / COMMIT_DIVISOR;
        let header_of = |head: &[u8]| {
            let seq = format::get_u64(head, 16);
            let header = log::txn_header(head, self.sb.fsid(), seq, most);
            header.filter(|h| wanted(seq) && h.len % unit == 0 && h.len > 0)
        };
        if let Some(header) = header_of(&head) {
            let mut bytes = AlignedBuf::zeroed(header.len as usize);
            self.read(pos, &mut bytes)?;
            if log::txn_crc_ok(&bytes) {
                return Ok(Some(Transaction { header, bytes }));
            }
        }
        // Without its checksum it is the commit that the crash cut off, unless another copy of the device has all of it.
        Ok(self.transaction_of_copies(pos, &header_of))
    }

    /// The transaction at `pos` as one of several copies of the device has it, which may name another length. The copies are made
    /// equal. Does not look for one that goes over the end of the ring.
    fn transaction_of_copies(&self, pos: u64, header_of: &dyn Fn(&[u8]) -> Option<TxnHeader>) -> Option<Transaction> {
        let copies = if self.dev.copies() > 1 { self.dev.copies() } else { 0 };
        let at = self.start + pos;
        for copy in 0..copies {
            let mut head = AlignedBuf::zeroed(1 << self.sb.frag_shift);
            let read = self.dev.read_copy(IoKind::Log, copy, at, &mut head);
            let Some(header) = header_of(&head).filter(|h| read.is_ok() && pos + h.len <= self.ring) else { continue };
            let whole =
                &mut |bytes: &[u8]| header_of(bytes).is_some_and(|h| h.len == header.len) && log::txn_crc_ok(bytes);
            if let Some(bytes) = right_copy(self.dev, IoKind::Log, at, header.len as usize, whole) {
                return Some(Transaction { header, bytes });
            }
        }
        None
    }
}

/// A whole transaction.
pub(crate) struct Transaction {
    pub(super) header: TxnHeader,
    bytes: AlignedBuf,
}

impl Transaction {
    /// Epoch of the log header that counted when it was written.
    pub(crate) fn epoch(&self) -> u64 {
        self.header.epoch
    }

    /// Its length in bytes, header and padding included.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its records.
    pub(crate) fn records(&self, geo: &Geometry) -> Result<Vec<Record<'_>>> {
        let body = &self.bytes[log::TXN_HEADER..log::TXN_HEADER + self.header.payload as usize];
        Ok(log::records(body, geo.block_size())?)
    }
}
