//! Writing the log: committed transactions behind each other, around the ring, and the header that says where it begins.

use super::header::write_header;
use super::log_layout::{COMMIT_DIVISOR, log_extent};
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::log::{self, LOG_HEADER_AREA, LogHeader};
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind, WriteRequest};
use std::io::IoSlice;
use std::sync::Arc;

/// Longest single write to the log in bytes.
const LOG_REQUEST_MAX: usize = 1 << 20;

/// The log of a mounted file system: one thread at a time writes it.
pub(super) struct LogRing {
    pub(super) dev: Arc<dyn Device>,
    fsid: u64,
    header_at: u64,
    /// Byte offset of the circular part of the log on its device.
    start: u64,
    /// Its length in bytes.
    pub(super) len: u64,
}

/// How far the log is written.
pub(super) struct LogPosition {
    /// Offset in the ring where the next transaction goes.
    head: u64,
    /// Bytes of the ring in use.
    pub(super) used: u64,
    /// The current header.
    header: LogHeader,
}

impl LogPosition {
    /// The position after recovery has left an empty log with this header.
    pub(super) fn new(header: LogHeader) -> LogPosition {
        LogPosition { head: header.tail, used: 0, header }
    }
}

impl LogRing {
    pub(super) fn new(dev: Arc<dyn Device>, sb: &Superblock) -> LogRing {
        let (header_at, len) = log_extent(sb);
        LogRing { dev, fsid: sb.fsid(), header_at, start: header_at + LOG_HEADER_AREA, len: len - LOG_HEADER_AREA }
    }

    /// Seals a transaction of `payload` bytes, which has room for its header in `bytes`, and appends it durably.
    pub(super) fn append(&self, at: &mut LogPosition, bytes: &mut AlignedBuf, seq: u64, payload: u64) -> Result<()> {
        let len = bytes.len() as u64;
        if at.used + len > self.len || len > self.len / COMMIT_DIVISOR {
            // Reservations make this impossible; writing over live records, or a transaction that recovery takes for
            // damaged, would lose promises.
            return Err(Error::Io(std::io::Error::other(format!(
                "a commit of {len} bytes does not fit the log ({} of {} bytes in use)",
                at.used, self.len
            ))));
        }
        log::seal_txn(bytes, self.fsid, seq, at.header.epoch, payload);
        let mut requests = Vec::new();
        let mut done = 0;
        while done < bytes.len() {
            let pos = (at.head + done as u64) % self.len;
            let n = (bytes.len() - done).min(LOG_REQUEST_MAX).min((self.len - pos) as usize);
            let bufs = vec![IoSlice::new(&bytes[done..done + n])];
            requests.push(WriteRequest { kind: IoKind::Log, offset: self.start + pos, bufs });
            done += n;
        }
        self.dev.write_batch(&requests)?;
        self.dev.flush()?;
        at.head = (at.head + len) % self.len;
        at.used += len;
        Ok(())
    }

    /// Empties the log, all of whose blocks are durable in place: it starts anew behind transaction `seq`.
    pub(super) fn empty(&self, at: &mut LogPosition, seq: u64) -> Result<()> {
        let header = at.header.next(at.head, seq + 1);
        write_header(&*self.dev, self.header_at, header)?;
        // Before this is durable, the old records must not be overwritten.
        self.dev.flush()?;
        at.header = header;
        at.used = 0;
        Ok(())
    }
}
