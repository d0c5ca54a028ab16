//! The two headers of the log: which one is current, and what to do when a crash or the device has spoiled one of them.
//!
//! They are written in turn, so that there is a whole one at each moment. A header that cannot be read was either being
//! written when the power failed; then the one before it is current, and nothing was overwritten that it leads to. Or the device
//! has lost it later; then the log continues behind it, and the one before it leads to transactions that are checkpointed, and
//! whose data may have been overwritten since. Transactions carry the epoch of their header, so the two can be told apart,
//! and in the second case the header be reconstructed. For this a commit writes a transaction without records where data was
//! written in place behind a header that has no transaction yet.

use super::log_layout::log_extent;
use super::log_reader::LogReader;
use crate::copies::newest_copy;
use crate::error::Result;
use crate::format::log::{LOG_HEADER_AREA, LOG_HEADER_SIZE, LOG_HEADER_SLOTS, LogHeader, SEQ_START_MAX};
use crate::format::{Corrupt, Superblock};
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind};

/// Reads both headers, or says what stands there instead. Fails only if the log cannot be
/// where the superblock says.
pub fn read_headers(dev: &dyn Device, sb: &Superblock) -> Result<[Result<LogHeader>; 2]> {
    let (at, len) = log_extent(sb);
    if len <= 2 * LOG_HEADER_AREA || at.checked_add(len).is_none_or(|end| end > dev.len()) {
        return Err(Corrupt(format!("superblock: a log of {len} bytes at {at} is not possible")).into());
    }
    Ok(LOG_HEADER_SLOTS.map(|slot| {
        let mut b = AlignedBuf::zeroed(4096.max(dev.sector_size() as usize));
        let decode = |b: &[u8]| LogHeader::decode(b, sb.fsid(), len - LOG_HEADER_AREA);
        // Of several copies the newest: an old one leads to transactions whose data may have been overwritten since.
        let age = |b: &[u8]| decode(b).ok().map(|h| h.epoch);
        match newest_copy(dev, IoKind::Super, at + slot, b.len(), &age) {
            Some(newest) => b = newest,
            None => dev.read_at(IoKind::Super, at + slot, &mut b)?,
        }
        let h = decode(&b)?;
        if !h.tail.is_multiple_of(1 << sb.frag_shift) {
            // Nothing would be found there, and the next commit would be written to where no transaction can begin.
            return Err(Corrupt(format!("log header {}: tail {} is not at a fragment", h.epoch, h.tail)).into());
        }
        // In the wrong place it is the remains of another log.
        match LOG_HEADER_SLOTS[h.slot()] == slot {
            true => Ok(h),
            false => Err(Corrupt(format!("log header {}: in the wrong place", h.epoch)).into()),
        }
    }))
}

/// The current header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentHeader {
    /// The header.
    pub header: LogHeader,
    /// It was lost, and is known from its transactions: it has to be written before anything else.
    pub reconstructed: bool,
    /// The other place has no whole header: the next one goes there.
    pub other_lost: bool,
}

/// Finds the current header. Where one of the two cannot be read, all of the log is searched.
///
/// Fails if there is none.
pub fn current_header(dev: &dyn Device, sb: &Superblock) -> Result<CurrentHeader> {
    let chosen = choose(dev, sb)?;
    let h = chosen.header;
    if h.epoch > SEQ_START_MAX || h.tail_seq > SEQ_START_MAX {
        // Later headers could not be distinguished from damaged ones.
        let what = format!("log header {}, sequence number {}: no log gets that far", h.epoch, h.tail_seq);
        return Err(Corrupt(what).into());
    }
    Ok(chosen)
}

fn choose(dev: &dyn Device, sb: &Superblock) -> Result<CurrentHeader> {
    match read_headers(dev, sb)? {
        [Ok(a), Ok(b)] => {
            Ok(CurrentHeader { header: if a.epoch > b.epoch { a } else { b }, reconstructed: false, other_lost: false })
        }
        [Ok(h), Err(e)] | [Err(e), Ok(h)] => {
            let newer = reconstruct(dev, sb, h.epoch)?;
            match newer {
                Some(_) => {
                    tracing::warn!("one of the two log headers is lost ({e}); its transactions tell what it was")
                }
                None => tracing::info!("one of the two log headers was not written to its end ({e}); the other counts"),
            }
            Ok(CurrentHeader {
                header: newer.unwrap_or(h),
                reconstructed: newer.is_some(),
                other_lost: newer.is_none(),
            })
        }
        [Err(e), Err(_)] => Err(e),
    }
}

/// The header behind that of `epoch`, as its transactions in the log tell it; `None` if there are none.
fn reconstruct(dev: &dyn Device, sb: &Superblock, epoch: u64) -> Result<Option<LogHeader>> {
    let mut reader = LogReader::new(dev, sb);
    let unit = 1u64 << sb.frag_shift;
    // The lost header stood in the other place, so it was the next one. A higher epoch is none of this log's.
    let lost = epoch + 1;
    let mut oldest: Option<LogHeader> = None;
    let mut ambiguous = false;
    for tail in (0..reader.ring() / unit).map(|n| n * unit) {
        let Some(h) = reader.any_transaction(tail)?.filter(|h| h.epoch == lost) else { continue };
        match &oldest {
            Some(found) if found.tail_seq < h.seq => {}
            Some(found) if found.tail_seq == h.seq => ambiguous = true,
            _ => {
                oldest = Some(LogHeader { fsid: sb.fsid(), tail, tail_seq: h.seq, epoch: lost });
                ambiguous = false;
            }
        }
    }
    if let Some(h) = oldest.filter(|_| ambiguous) {
        // Contents of a file can look like a transaction.
        let what = format!("log header {}: it is lost, and transaction {} is there twice", h.epoch, h.tail_seq);
        return Err(Corrupt(what).into());
    }
    Ok(oldest)
}

/// Reads the current log header.
pub fn read_header(dev: &dyn Device, sb: &Superblock) -> Result<LogHeader> {
    Ok(current_header(dev, sb)?.header)
}

/// Writes a log header to its place; it is current from the next flush on. `log_at` is where the log begins.
pub fn write_header(dev: &dyn Device, log_at: u64, header: LogHeader) -> Result<()> {
    let mut b = AlignedBuf::zeroed(4096.max(dev.sector_size() as usize));
    b[..LOG_HEADER_SIZE].copy_from_slice(&header.encode());
    dev.write_at(IoKind::Super, log_at + LOG_HEADER_SLOTS[header.slot()], &b)?;
    Ok(())
}

/// Writes both headers, whatever stood there. The log is empty from `tail` on. Returns the current one.
pub fn reset_headers(dev: &dyn Device, sb: &Superblock, tail: u64, tail_seq: u64) -> Result<LogHeader> {
    let newest = read_headers(dev, sb)?.into_iter().flatten().map(|h| h.epoch).filter(|e| *e <= SEQ_START_MAX).max();
    let first = LogHeader { tail, ..LogHeader::first(sb.fsid(), tail_seq) };
    let first = LogHeader { epoch: first.epoch.max(newest.unwrap_or(0) + 1), ..first };
    let header = first.next(tail, tail_seq);
    for h in [first, header] {
        write_header(dev, log_extent(sb).0, h)?;
        dev.flush()?;
    }
    Ok(header)
}
