//! Recovery: what the log holds is applied to the blocks at home.
//!
//! Time and memory depend on what is in the log only, not on the size of the file system. A crash during recovery does
//! no harm: it is done again.

use super::CurrentHeader;
use super::ahead::Changes;
use crate::device::{Device, IoKind, WriteRequest};
use crate::error::Result;
use crate::format::log::{self, LogHeader, Record, TxnHeader};
use crate::format::{self, BlockAddr, FragAddr, Geometry, Superblock};
use cffs_buf::AlignedBuf;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};

/// Blocks kept in memory before they are written home, in bytes.
const BATCH_MAX: usize = 64 << 20;
/// Blocks that are read ahead of the transactions that change them, in bytes.
const AHEAD_MAX: usize = BATCH_MAX / 2;
/// Blocks closer than this many bytes are read with one request.
const READ_GAP: u64 = 64 << 10;
/// Longest read in bytes.
const READ_MAX: u64 = 1 << 20;
/// The first piece of the log that is read, in bytes: all there is to read after a clean unmount.
const READ_MIN: u64 = 64 << 10;

/// What recovery did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Transactions found and applied.
    pub transactions: u64,
    /// Blocks written home.
    pub blocks: u64,
    /// Bytes of log read.
    pub log_bytes: u64,
    /// The header that the emptied log now has.
    pub header: LogHeader,
    /// Metadata blocks that were damaged in parts that the log does not have. They were written with a checksum that does
    /// not match.
    pub damaged: Vec<BlockAddr>,
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
        let (at, len) = super::log_extent(sb);
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
        let seq = format::get_u64(&head, 16);
        // A commit takes at most a fifth of the ring, and a little padding.
        let most = self.ring / super::COMMIT_SHARE_MAX;
        let header =
            log::txn_header(&head, self.sb.fsid(), seq, most).filter(|h| wanted(seq) && h.len % unit == 0 && h.len > 0);
        let Some(header) = header else { return Ok(None) };
        let mut bytes = AlignedBuf::zeroed(header.len as usize);
        self.read(pos, &mut bytes)?;
        // Without its checksum it is the commit that the crash cut off.
        Ok(log::txn_crc_ok(&bytes).then_some(Transaction { header, bytes }))
    }
}

/// A whole transaction.
pub(crate) struct Transaction {
    header: TxnHeader,
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

/// A block being rebuilt.
struct Rebuilt {
    bytes: AlignedBuf,
    /// It holds file data.
    data: bool,
    /// The last group that changed it; 0 while it is as it was read.
    seq: u64,
    /// What the records say of all its bytes, if they say anything.
    sum: Option<u32>,
}

struct Target<'a> {
    dev: &'a dyn Device,
    geo: &'a Geometry,
    blocks: BTreeMap<BlockAddr, Rebuilt>,
    written: u64,
    damaged: Vec<BlockAddr>,
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
                        self.blocks.insert(addr, Rebuilt { bytes, data: false, seq: 0, sum: None });
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
            let Record::Block { addr, init, data, sum, ranges } = r else { continue };
            let base = geo.frag_of_block(*addr);
            if (base..base + geo.frags_per_block()).all(|f| revoked.covers(f, seq)) {
                continue;
            }
            if *init {
                let bytes = AlignedBuf::zeroed(geo.block_size());
                self.blocks.insert(*addr, Rebuilt { bytes, data: *data, seq, sum: None });
            }
            let Some(block) = self.blocks.get_mut(addr) else { continue };
            (block.data, block.seq) = (*data, seq);
            // Metadata is revoked as whole blocks.
            block.sum = (!*data).then_some(*sum);
            for (offset, bytes) in ranges {
                let mut from = 0;
                while from < bytes.len() {
                    let at = offset + from;
                    let n = (fs - at % fs).min(bytes.len() - from);
                    if !revoked.covers(base + (at / fs) as u64, seq) {
                        block.bytes[at..at + n].copy_from_slice(&bytes[from..from + n]);
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
        // Read ahead, and not changed since.
        self.blocks.retain(|_, block| block.seq != 0);
        for (addr, block) in &mut self.blocks {
            if !block.data {
                let good = block.sum.is_none_or(|sum| log::block_sum(&block.bytes) == sum);
                format::seal(&mut block.bytes, block.seq);
                if !good {
                    // What the records do not have was damaged at home. A right checksum would make it look whole.
                    format::spoil(&mut block.bytes);
                    self.damaged.push(*addr);
                }
            }
            let offset = addr << self.geo.block_shift;
            let slice = IoSlice::new(&block.bytes);
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
    let CurrentHeader { header, reconstructed, other_lost } = super::current_header(log_dev, sb)?;
    if reconstructed {
        // As long as it is missing, the next one must not take the place of the one before it.
        super::write_header(log_dev, super::log_extent(sb).0, header)?;
        log_dev.flush()?;
    }
    let mut reader = LogReader::new(log_dev, sb);
    let mut revoked = Revocations::default();
    // The first pass finds where the log ends and what was revoked; the second applies. Neither holds the log in memory.
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut changes = Changes::default();
    let (mut pos, mut seq, mut log_bytes, mut passed_over) = (header.tail, header.tail_seq, 0, false);
    while let Some(txn) = reader.transaction(pos, seq)? {
        // The log ends where it would lie over itself, and where another header begins to count.
        if log_bytes + txn.bytes.len() as u64 > reader.ring || txn.header.epoch != header.epoch {
            // The header that it belongs to was lost. The one to be written now may get the same epoch, and must not take it
            // for its own.
            passed_over = true;
            break;
        }
        for r in txn.records(geo)? {
            match r {
                Record::Revoke { frag, len } if len > 0 && geo.contains(frag, len) => {
                    revoked.add(frag, frag + len, seq)
                }
                // Neither the superblock nor the log itself.
                Record::Block { addr, init, .. } if addr > 0 && addr < geo.total_blocks && !geo.is_log(addr) => {
                    changes.add(addr, init)
                }
                _ => return Err(format::Corrupt(format!("log: a record of transaction {seq} points outside")).into()),
            }
        }
        found.push((pos, seq));
        changes.end();
        log_bytes += txn.bytes.len() as u64;
        pos = (pos + txn.bytes.len() as u64) % reader.ring;
        seq += 1;
    }
    let mut target = Target { dev, geo, blocks: BTreeMap::new(), written: 0, damaged: Vec::new() };
    let revoked_wholly = |addr: BlockAddr, n: usize| {
        let base = geo.frag_of_block(addr);
        (base..base + geo.frags_per_block()).all(|f| revoked.covers(f, found[n].1))
    };
    let mut ahead = 0;
    for (n, (pos, seq)) in found.iter().enumerate() {
        if n >= ahead {
            let wanted;
            (wanted, ahead) = changes.ahead(n, AHEAD_MAX / geo.block_size(), revoked_wholly);
            // One transaction alone may have more blocks than memory is for; it takes them in slices.
            if ahead > n + 1 {
                target.load(&wanted)?;
            }
        }
        let Some(txn) = reader.transaction(*pos, *seq)? else {
            return Err(format::Corrupt(format!("log: transaction {seq} reads differently the second time")).into());
        };
        // In slices, so that memory is bounded whatever the transaction holds; between blocks the order does not matter.
        for records in txn.records(geo)?.chunks((BATCH_MAX / geo.block_size()).max(1)) {
            target.apply(records, *seq, &revoked)?;
            if target.blocks.len() * geo.block_size() > BATCH_MAX {
                target.write_home()?;
                ahead = n + 1;
            }
        }
    }
    target.write_home()?;
    let mut summary = ReplaySummary {
        transactions: found.len() as u64,
        blocks: target.written,
        log_bytes,
        header,
        damaged: target.damaged,
    };
    summary.damaged.sort_unstable();
    summary.damaged.dedup();
    if !found.is_empty() || other_lost {
        dev.flush()?;
        summary.header = header.next(pos, seq.wrapping_add(passed_over.into()));
        super::write_header(log_dev, super::log_extent(sb).0, summary.header)?;
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
