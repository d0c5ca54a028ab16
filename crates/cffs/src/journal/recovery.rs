//! Recovery: the records of the log are applied to the blocks in place.
//!
//! Time and memory depend on what is in the log only, not on the size of the file system. A crash during recovery does
//! no harm: it is done again.

use super::header::{CurrentHeader, current_header, write_header};
use super::log_layout::log_extent;
use super::log_reader::LogReader;
use super::replay_readahead::ReplayReadahead;
use super::replay_target::{ReplayTarget, revokes_block};
use super::revocations::Revocations;
use crate::error::Result;
use crate::format::log::{LogHeader, Record};
use crate::format::{BlockAddr, Corrupt, Geometry, Superblock};
use cffs_device::{Device, Purpose};

/// Most bytes of blocks in memory before they are written in place.
const BATCH_MAX: usize = 64 << 20;
/// Most bytes of blocks that are read ahead of the transactions that change them.
const READAHEAD_MAX: usize = BATCH_MAX / 2;

/// What recovery did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Transactions found and applied.
    pub transactions: u64,
    /// Blocks written in place.
    pub blocks: u64,
    /// Bytes of log read.
    pub log_bytes: u64,
    /// The header that the emptied log now has.
    pub header: LogHeader,
    /// Metadata blocks that were damaged in parts that the log does not have. They were written with a checksum that does
    /// not match.
    pub damaged: Vec<BlockAddr>,
}

/// What the log holds.
struct Scan {
    /// Offset in the ring and sequence number of each transaction.
    found: Vec<(u64, u64)>,
    readahead: ReplayReadahead,
    revoked: Revocations,
    log_bytes: u64,
    /// Offset in the ring behind the last transaction, and the number that the next one would have.
    end: (u64, u64),
    /// Behind the last one is a transaction that belongs to another header.
    passed_over: bool,
}

/// Applies the log to `dev` and empties it. `log_dev` is the device of an external log.
pub fn replay(
    dev: &dyn Device,
    log_dev: Option<&dyn Device>,
    sb: &Superblock,
    geo: &Geometry,
) -> Result<ReplaySummary> {
    let _purpose = Purpose::Log.scope();
    let log_dev = log_dev.unwrap_or(dev);
    let CurrentHeader { header, reconstructed, other_lost } = current_header(log_dev, sb)?;
    if reconstructed {
        // As long as it is missing, the next one must not take the place of the one before it.
        write_header(log_dev, log_extent(sb).0, header)?;
        log_dev.flush()?;
    }
    // The first pass finds where the log ends and what was revoked; the second applies. Neither holds the log in memory.
    let mut reader = LogReader::new(log_dev, sb);
    let scan = scan(&mut reader, geo, header)?;
    if !scan.found.is_empty() && log_dev.copies() > 1 {
        // Where copies of the device differed, all have now what was read from one. What is written in place needs it on each of
        // them, also after the next crash.
        log_dev.flush()?;
    }
    let mut target = ReplayTarget::new(dev, geo);
    apply(&mut reader, geo, &scan, &mut target)?;
    let mut summary = ReplaySummary {
        transactions: scan.found.len() as u64,
        blocks: target.written,
        log_bytes: scan.log_bytes,
        header,
        damaged: target.damaged,
    };
    summary.damaged.sort_unstable();
    summary.damaged.dedup();
    if !scan.found.is_empty() || other_lost {
        dev.flush()?;
        let (pos, seq) = scan.end;
        summary.header = header.next(pos, seq.wrapping_add(scan.passed_over.into()));
        write_header(log_dev, log_extent(sb).0, summary.header)?;
        log_dev.flush()?;
    }
    Ok(summary)
}

/// Finds the transactions behind a header.
fn scan(reader: &mut LogReader<'_>, geo: &Geometry, header: LogHeader) -> Result<Scan> {
    let mut scan = Scan {
        found: Vec::new(),
        readahead: ReplayReadahead::default(),
        revoked: Revocations::default(),
        log_bytes: 0,
        end: (header.tail, header.tail_seq),
        passed_over: false,
    };
    let (mut pos, mut seq) = scan.end;
    while let Some(txn) = reader.transaction(pos, seq)? {
        let len = txn.len() as u64;
        // The log ends where it would lie over itself, and where the transactions of another header begin.
        if scan.log_bytes + len > reader.ring() || txn.epoch() != header.epoch {
            // The header that it belongs to was lost. The one to be written now may get the same epoch, and must not take it
            // for its own.
            scan.passed_over = true;
            break;
        }
        for r in txn.records(geo)? {
            match r {
                Record::Revoke { frag, len } if len > 0 && geo.contains(frag, len) => {
                    scan.revoked.add(frag, frag + len, seq)
                }
                // Neither the superblock nor the log itself.
                Record::Block { addr, init, .. } if addr > 0 && addr < geo.total_blocks && !geo.is_log(addr) => {
                    scan.readahead.add(addr, init)
                }
                _ => return Err(Corrupt(format!("log: a record of transaction {seq} points outside")).into()),
            }
        }
        scan.found.push((pos, seq));
        scan.readahead.end();
        scan.log_bytes += len;
        pos = (pos + len) % reader.ring();
        seq += 1;
    }
    scan.end = (pos, seq);
    Ok(scan)
}

/// Applies the transactions to the blocks, and writes those in place.
fn apply(reader: &mut LogReader<'_>, geo: &Geometry, scan: &Scan, target: &mut ReplayTarget<'_>) -> Result<()> {
    let revoked = |addr: BlockAddr, n: usize| revokes_block(geo, &scan.revoked, addr, scan.found[n].1);
    let mut ahead = 0;
    for (n, (pos, seq)) in scan.found.iter().enumerate() {
        if n >= ahead {
            let wanted;
            (wanted, ahead) = scan.readahead.next(n, READAHEAD_MAX / geo.block_size(), revoked);
            // One transaction alone may have more blocks than memory is for; it takes them in slices.
            if ahead > n + 1 {
                target.load(&wanted)?;
            }
        }
        let Some(txn) = reader.transaction(*pos, *seq)? else {
            return Err(Corrupt(format!("log: transaction {seq} reads differently the second time")).into());
        };
        // In slices, so that memory is bounded whatever the transaction holds; between blocks the order does not matter.
        for records in txn.records(geo)?.chunks((BATCH_MAX / geo.block_size()).max(1)) {
            target.apply(records, *seq, &scan.revoked)?;
            if target.bytes() > BATCH_MAX {
                target.write_in_place()?;
                ahead = n + 1;
            }
        }
    }
    target.write_in_place()
}
