//! Recovery: what the log holds is applied to the blocks at home.
//!
//! Time and memory depend on what is in the log only, not on the size of the file system. A crash during recovery does
//! no harm: it is done again.

use crate::device::{Device, IoKind, WriteRequest};
use crate::error::Result;
use crate::format::log::{self, LogHeader, Record};
use crate::format::{self, BlockAddr, FragAddr, Geometry, Superblock};
use cffs_buf::AlignedBuf;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};

/// Blocks kept in memory before they are written home, in bytes.
const BATCH_MAX: usize = 64 << 20;
/// Blocks closer than this many bytes are read with one request.
const READ_GAP: u64 = 64 << 10;
/// Longest read in bytes.
const READ_MAX: u64 = 1 << 20;

/// What recovery did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Transactions found and applied.
    pub transactions: u64,
    /// Blocks written home.
    pub blocks: u64,
    /// Bytes of log read.
    pub log_bytes: u64,
    /// The header that the emptied log now has.
    pub header: LogHeader,
}

/// Runs of fragments with the newest group that revoked them.
#[derive(Default)]
struct Revocations(BTreeMap<FragAddr, (FragAddr, u64)>);

impl Revocations {
    /// Later groups come later, so a new run takes precedence over what it overlaps.
    fn add(&mut self, start: FragAddr, end: FragAddr, seq: u64) {
        let before = self.0.range(..start).next_back().map(|(s, v)| (*s, *v));
        if let Some((s, (e, q))) = before.filter(|(_, (e, _))| *e > start) {
            self.0.insert(s, (start, q));
            if e > end {
                self.0.insert(end, (e, q));
            }
        }
        let inside: Vec<FragAddr> = self.0.range(start..end).map(|(s, _)| *s).collect();
        for s in inside {
            if let Some((e, q)) = self.0.remove(&s).filter(|(e, _)| *e > end) {
                self.0.insert(end, (e, q));
            }
        }
        self.0.insert(start, (end, seq));
    }

    fn covers(&self, frag: FragAddr, seq: u64) -> bool {
        self.0.range(..=frag).next_back().is_some_and(|(_, (end, q))| *end > frag && *q >= seq)
    }
}

/// Reads the log, in large pieces: small transactions are many.
pub(crate) struct LogReader<'a> {
    dev: &'a dyn Device,
    sb: &'a Superblock,
    /// Byte offset of the ring on the device, and its length.
    start: u64,
    ring: u64,
    piece: (u64, AlignedBuf),
}

impl<'a> LogReader<'a> {
    /// A reader of the log on `dev`, whose place was checked.
    pub(crate) fn new(dev: &'a dyn Device, sb: &'a Superblock) -> LogReader<'a> {
        let (at, len) = super::log_place(sb);
        let (start, ring) = (at + log::LOG_HEADER_AREA, len - log::LOG_HEADER_AREA);
        LogReader { dev, sb, start, ring, piece: (u64::MAX, AlignedBuf::default()) }
    }

    /// The bytes of the ring from `pos` on.
    pub(crate) fn read(&mut self, mut pos: u64, bytes: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let base = pos - pos % READ_MAX;
            if self.piece.0 != base {
                self.piece = (u64::MAX, AlignedBuf::zeroed(READ_MAX.min(self.ring - base) as usize));
                self.dev.read_at(IoKind::Log, self.start + base, &mut self.piece.1)?;
                self.piece.0 = base;
            }
            let from = (pos - base) as usize;
            let n = (self.piece.1.len() - from).min(bytes.len() - done);
            bytes[done..done + n].copy_from_slice(&self.piece.1[from..from + n]);
            done += n;
            pos = (pos + n as u64) % self.ring;
        }
        Ok(())
    }

    /// The whole transaction that begins at `pos`, if there is one with this number.
    pub(crate) fn transaction(&mut self, pos: u64, seq: u64) -> Result<Option<Transaction>> {
        let unit = 1u64 << self.sb.frag_shift;
        if !pos.is_multiple_of(unit) {
            return Ok(None);
        }
        let mut head = AlignedBuf::zeroed(unit as usize);
        self.read(pos, &mut head)?;
        // A commit takes at most a fifth of the ring, and a little padding.
        let most = self.ring / super::GROUP_SHARE_MAX;
        let header = log::txn_header(&head, self.sb.fsid(), seq, most).filter(|h| h.len % unit == 0 && h.len > 0);
        let Some(h) = header else { return Ok(None) };
        let mut bytes = AlignedBuf::zeroed(h.len as usize);
        self.read(pos, &mut bytes)?;
        // Without its checksum it is the commit that the crash cut off.
        Ok(log::txn_crc_ok(&bytes).then_some(Transaction { seq, bytes, payload: h.payload as usize }))
    }
}

/// A whole transaction.
pub(crate) struct Transaction {
    seq: u64,
    bytes: AlignedBuf,
    payload: usize,
}

impl Transaction {
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
        let body = &self.bytes[log::TXN_HEADER..log::TXN_HEADER + self.payload];
        Ok(log::records(body, geo.block_size())?)
    }
}

struct Target<'a> {
    dev: &'a dyn Device,
    geo: &'a Geometry,
    /// Blocks being rebuilt: contents, whether they are file data, and the last group that changed them.
    blocks: BTreeMap<BlockAddr, (AlignedBuf, bool, u64)>,
    written: u64,
}

impl Target<'_> {
    /// Reads the blocks of a transaction that are not here yet, near ones together.
    fn load(&mut self, wanted: &[BlockAddr]) -> Result<()> {
        let shift = self.geo.block_shift;
        let missing: Vec<BlockAddr> = wanted.iter().copied().filter(|b| !self.blocks.contains_key(b)).collect();
        let near = |a: &BlockAddr, b: &BlockAddr| (b - a) << shift <= READ_GAP;
        for cluster in missing.chunk_by(near) {
            for part in cluster.chunk_by(|a, b| a << shift >> 20 == b << shift >> 20) {
                let (first, last) = (part[0], part[part.len() - 1]);
                debug_assert!((last - first) << shift <= READ_MAX);
                let mut bufs: Vec<AlignedBuf> =
                    (first..=last).map(|_| AlignedBuf::zeroed(self.geo.block_size())).collect();
                let mut slices: Vec<IoSliceMut<'_>> = bufs.iter_mut().map(|b| IoSliceMut::new(b)).collect();
                self.dev.read_vectored(IoKind::Meta, first << shift, &mut slices)?;
                for (addr, bytes) in (first..=last).zip(bufs) {
                    if part.binary_search(&addr).is_ok() {
                        self.blocks.insert(addr, (bytes, false, 0));
                    }
                }
            }
        }
        Ok(())
    }

    /// Applies records of transaction `seq`.
    fn apply(&mut self, records: &[Record<'_>], seq: u64, revoked: &Revocations) -> Result<()> {
        let geo = *self.geo;
        let fs = geo.frag_size();
        let mut wanted: Vec<BlockAddr> = Vec::new();
        for r in records {
            if let Record::Block { addr, init: false, .. } = r {
                let base = geo.frag_of_block(*addr);
                if (base..base + geo.frags_per_block()).any(|f| !revoked.covers(f, seq)) {
                    wanted.push(*addr);
                }
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        self.load(&wanted)?;
        for r in records {
            let Record::Block { addr, init, data, ranges } = r else { continue };
            let base = geo.frag_of_block(*addr);
            if (base..base + geo.frags_per_block()).all(|f| revoked.covers(f, seq)) {
                continue;
            }
            if *init {
                self.blocks.insert(*addr, (AlignedBuf::zeroed(geo.block_size()), *data, seq));
            }
            let Some((block, is_data, last)) = self.blocks.get_mut(addr) else { continue };
            (*is_data, *last) = (*data, seq);
            for (offset, bytes) in ranges {
                let mut from = 0;
                while from < bytes.len() {
                    let at = offset + from;
                    let n = (fs - at % fs).min(bytes.len() - from);
                    if !revoked.covers(base + (at / fs) as u64, seq) {
                        block[at..at + n].copy_from_slice(&bytes[from..from + n]);
                    }
                    from += n;
                }
            }
        }
        Ok(())
    }

    fn write_home(&mut self) -> Result<()> {
        let mut requests: Vec<WriteRequest<'_>> = Vec::new();
        let mut end = u64::MAX;
        for (addr, (bytes, data, seq)) in &mut self.blocks {
            if !*data {
                format::seal(bytes, *seq);
            }
            let offset = addr << self.geo.block_shift;
            let slice = IoSlice::new(bytes);
            match requests.last_mut() {
                Some(r) if offset == end && r.bufs.len() < 256 => r.bufs.push(slice),
                _ => requests.push(WriteRequest { kind: IoKind::Meta, offset, bufs: vec![slice] }),
            }
            end = offset + self.geo.block_size() as u64;
        }
        self.dev.write_batch(&requests)?;
        self.written += self.blocks.len() as u64;
        self.blocks.clear();
        Ok(())
    }
}

/// Applies the log to `dev` and empties it. `log_dev` is the device of an external log.
pub fn replay(
    dev: &dyn Device,
    log_dev: Option<&dyn Device>,
    sb: &Superblock,
    geo: &Geometry,
) -> Result<ReplaySummary> {
    let log_dev = log_dev.unwrap_or(dev);
    let header = super::read_header(log_dev, sb)?;
    if !header.tail.is_multiple_of(geo.frag_size() as u64) {
        // Nothing would be found there, and the next commit would be written to where no transaction can begin.
        return Err(format::Corrupt(format!("log header: tail {} is not at a fragment", header.tail)).into());
    }
    let mut reader = LogReader::new(log_dev, sb);
    let mut revoked = Revocations::default();
    // The first pass finds where the log ends and what was revoked; the second applies. Neither holds the log in memory.
    let mut found: Vec<(u64, u64)> = Vec::new();
    let (mut pos, mut seq, mut log_bytes) = (header.tail, header.tail_seq, 0);
    while let Some(txn) = reader.transaction(pos, seq)? {
        if log_bytes + txn.bytes.len() as u64 > reader.ring {
            break;
        }
        for r in txn.records(geo)? {
            match r {
                Record::Revoke { frag, len } if len > 0 && geo.contains(frag, len) => {
                    revoked.add(frag, frag + len, seq)
                }
                Record::Block { addr, .. } if addr > 0 && addr < geo.total_blocks => {}
                _ => return Err(format::Corrupt(format!("log: a record of transaction {seq} points outside")).into()),
            }
        }
        found.push((pos, seq));
        log_bytes += txn.bytes.len() as u64;
        pos = (pos + txn.bytes.len() as u64) % reader.ring;
        seq += 1;
    }
    let after = LogHeader { fsid: header.fsid, tail: pos, tail_seq: seq };
    let mut target = Target { dev, geo, blocks: BTreeMap::new(), written: 0 };
    for (pos, seq) in &found {
        let Some(txn) = reader.transaction(*pos, *seq)? else {
            return Err(format::Corrupt(format!("log: transaction {seq} reads differently the second time")).into());
        };
        let seq = &txn.seq;
        // In slices, so that memory is bounded whatever the transaction holds; between blocks the order does not matter.
        for records in txn.records(geo)?.chunks((BATCH_MAX / geo.block_size()).max(1)) {
            target.apply(records, *seq, &revoked)?;
            if target.blocks.len() * geo.block_size() > BATCH_MAX {
                target.write_home()?;
            }
        }
    }
    target.write_home()?;
    let summary = ReplaySummary { transactions: found.len() as u64, blocks: target.written, log_bytes, header: after };
    if !found.is_empty() {
        dev.flush()?;
        super::write_header(log_dev, super::log_place(sb).0, after)?;
        log_dev.flush()?;
    }
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_revocation_of_a_fragment_counts() {
        let mut r = Revocations::default();
        r.add(10, 20, 1);
        r.add(15, 17, 5);
        r.add(18, 30, 3);
        assert!(r.covers(10, 1) && !r.covers(10, 2));
        assert!(r.covers(15, 5) && r.covers(16, 4) && !r.covers(17, 2) && r.covers(17, 1));
        assert!(r.covers(18, 3) && r.covers(29, 3) && !r.covers(30, 1) && !r.covers(9, 1));
    }
}
