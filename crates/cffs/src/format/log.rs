//! The write-ahead log: its header, and transactions as sequences of records.
//!
//! A transaction is one contiguous run of bytes in the circular log (it may wrap): a header, then records, then padding
//! to a multiple of the log unit (the fragment size). One checksum covers all of it, so a transaction needs no commit
//! record: it is there whole or not at all.

use super::crc::{crc32c, crc32c_without};
use super::types::FRAGMENT_SIZE_MIN;
use super::{BlockAddr, Corrupt, FragAddr, META_CRC, META_SEQ, align8, corrupt};
use super::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};

/// Bytes of a log header that are used.
pub const LOG_HEADER_SIZE: usize = 512;
/// Bytes at the start of the log that are kept for the headers.
pub const LOG_HEADER_AREA: u64 = 64 * 1024;
/// Where in that area the two headers stand, in bytes: each is written while the other one is whole.
pub const LOG_HEADER_SLOTS: [u64; 2] = [0, LOG_HEADER_AREA / 2];
pub(crate) const LOG_MAGIC: u64 = 0x314C_474F_4C46_4643;
/// Magic number of a transaction.
pub const TXN_MAGIC: u32 = 0x4E54_4643;
/// Bytes of a transaction's header.
pub const TXN_HEADER: usize = 48;
/// Bytes of a record's header.
pub const RECORD_HEADER: usize = 16;
/// No log gets as far as this sequence number, or epoch: a header with a greater one is damaged.
const SEQ_MAX: u64 = 1 << 62;
/// Where a log is found to begin its sequence number and epoch are at most this: what a mount adds stays below the other.
/// It is no power of two, so that a bit that flips in a small number does not lead to just below it, where the next mount
/// would pass it.
pub const SEQ_START_MAX: u64 = SEQ_MAX / 4 * 3;
/// Unit of the byte ranges in a block record, in bytes.
pub const RANGE_UNIT: usize = 8;

/// Where the log begins to matter. There are two, written in turn; the whole one with the higher epoch counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// File system (or external log) that the log belongs to.
    pub fsid: u64,
    /// Offset of the oldest transaction that still counts, in bytes from the end of the header area.
    pub tail: u64,
    /// Its sequence number.
    pub tail_seq: u64,
    /// How many headers came before this one, or more. Transactions carry the epoch of the header they were written under.
    pub epoch: u64,
}

impl LogHeader {
    /// The first header of a log without transactions; numbers begin at `seq`.
    pub fn first(fsid: u64, seq: u64) -> LogHeader {
        LogHeader { fsid, tail: 0, tail_seq: seq, epoch: seq * 2 }
    }
    /// The header that follows this one.
    pub fn next(&self, tail: u64, tail_seq: u64) -> LogHeader {
        LogHeader { fsid: self.fsid, tail, tail_seq, epoch: self.epoch + 1 }
    }
    /// Which of [`LOG_HEADER_SLOTS`] it stands in.
    pub fn slot(&self) -> usize {
        (self.epoch % 2) as usize
    }
    /// Encodes with checksum.
    pub fn encode(&self) -> [u8; LOG_HEADER_SIZE] {
        let mut b = [0; LOG_HEADER_SIZE];
        put_u64(&mut b, 0, LOG_MAGIC);
        put_u64(&mut b, 16, self.fsid);
        put_u64(&mut b, 24, self.tail);
        put_u64(&mut b, 32, self.tail_seq);
        put_u64(&mut b, 40, self.epoch);
        let crc = crc32c(&b);
        put_u32(&mut b, 8, crc);
        b
    }
    /// Decodes and checks against the size of the log's circular part in bytes.
    pub fn decode(b: &[u8], fsid: u64, ring: u64) -> Result<LogHeader, Corrupt> {
        if b.len() < LOG_HEADER_SIZE || get_u64(b, 0) != LOG_MAGIC {
            return corrupt("log header: magic number does not match");
        }
        let mut copy = [0; LOG_HEADER_SIZE];
        copy.copy_from_slice(&b[..LOG_HEADER_SIZE]);
        put_u32(&mut copy, 8, 0);
        if crc32c(&copy) != get_u32(b, 8) {
            return corrupt("log header: checksum does not match");
        }
        let (tail, tail_seq, epoch) = (get_u64(b, 24), get_u64(b, 32), get_u64(b, 40));
        let h = LogHeader { fsid: get_u64(b, 16), tail, tail_seq, epoch };
        if h.fsid != fsid {
            return corrupt("log header: the log belongs to another file system");
        }
        // Where a transaction can begin depends on the size of a fragment, which the reader knows.
        let aligned = tail.is_multiple_of(u64::from(FRAGMENT_SIZE_MIN));
        if tail >= ring || !aligned || tail_seq == 0 || tail_seq > SEQ_MAX || epoch > SEQ_MAX {
            return corrupt(format!("log header {epoch}: tail {tail} of {ring}, sequence number {tail_seq}"));
        }
        Ok(h)
    }
}

/// Header of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnHeader {
    /// Sequence number.
    pub seq: u64,
    /// Length in bytes with header and padding.
    pub len: u64,
    /// Bytes of records.
    pub payload: u64,
    /// Epoch of the log header that it was written under.
    pub epoch: u64,
}

/// Writes the header of a finished transaction (`b` is all of it) and its checksum.
pub fn seal_txn(b: &mut [u8], fsid: u64, seq: u64, epoch: u64, payload: u64) {
    let len = b.len() as u64;
    b[..TXN_HEADER].fill(0);
    put_u32(b, 0, TXN_MAGIC);
    put_u64(b, 8, fsid);
    put_u64(b, 16, seq);
    put_u64(b, 24, len);
    put_u64(b, 32, payload);
    put_u64(b, 40, epoch);
    let crc = crc32c(b);
    put_u32(b, 4, crc);
}

/// Reads the header of a transaction, without its checksum; `None` where no transaction with this number begins.
pub fn txn_header(b: &[u8], fsid: u64, seq: u64, ring: u64) -> Option<TxnHeader> {
    if b.len() < TXN_HEADER || get_u32(b, 0) != TXN_MAGIC || get_u64(b, 8) != fsid || get_u64(b, 16) != seq {
        return None;
    }
    let (len, payload, epoch) = (get_u64(b, 24), get_u64(b, 32), get_u64(b, 40));
    let possible = (1..=SEQ_MAX).contains(&seq)
        && epoch <= SEQ_MAX
        && len <= ring
        && payload.checked_add(TXN_HEADER as u64)? <= len;
    possible.then_some(TxnHeader { seq, len, payload, epoch })
}

/// Checks the checksum over a whole transaction.
pub fn txn_crc_ok(b: &[u8]) -> bool {
    crc32c_without(b, &[(4, 4)]) == get_u32(b, 4)
}

/// A record of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Byte ranges of a metadata block.
    Block {
        /// The block.
        addr: BlockAddr,
        /// The block is new: it starts as zeros.
        init: bool,
        /// The block holds file contents (put into the log by fsync): it has no header and gets no checksum.
        data: bool,
        /// Of metadata: [`block_sum`] of the block as it is after the record.
        sum: u32,
        /// (Byte offset, bytes) in order.
        ranges: Vec<(usize, &'a [u8])>,
    },
    /// Older records of these fragments must not be replayed.
    Revoke {
        /// First fragment.
        frag: FragAddr,
        /// Number of fragments.
        len: u64,
    },
}

pub(crate) const TAG_BLOCK: u8 = 1;
pub(crate) const TAG_REVOKE: u8 = 2;
pub(crate) const FLAG_INIT: u8 = 1;
pub(crate) const FLAG_DATA: u8 = 2;

/// CRC32C of a metadata block without what sealing it changes: checksum and sequence number count as zeros.
pub fn block_sum(block: &[u8]) -> u32 {
    crc32c_without(block, &[(META_CRC, 4), (META_SEQ, 8)])
}

/// Appends a block record. `runs` are (first, count) in units of [`RANGE_UNIT`].
pub fn put_block(out: &mut Vec<u8>, addr: BlockAddr, init: bool, data: bool, block: &[u8], runs: &[(u32, u32)]) {
    let sum = if data { 0 } else { block_sum(block) };
    put_block_with_sum(out, addr, (init, data, sum), block, runs);
}

/// As [`put_block`], with (new, data, sum) as they are to stand in the record.
pub fn put_block_with_sum(
    out: &mut Vec<u8>,
    addr: BlockAddr,
    (init, data, sum): (bool, bool, u32),
    block: &[u8],
    runs: &[(u32, u32)],
) {
    let mut head = [0; RECORD_HEADER];
    head[0] = TAG_BLOCK;
    head[1] = if init { FLAG_INIT } else { 0 } | if data { FLAG_DATA } else { 0 };
    put_u16(&mut head, 2, runs.len() as u16);
    put_u32(&mut head, 4, sum);
    put_u64(&mut head, 8, addr);
    out.extend_from_slice(&head);
    for (first, count) in runs {
        let mut run = [0; 4];
        put_u16(&mut run, 0, *first as u16);
        put_u16(&mut run, 2, *count as u16);
        out.extend_from_slice(&run);
    }
    out.resize(align8(out.len()), 0);
    for (first, count) in runs {
        let from = *first as usize * RANGE_UNIT;
        out.extend_from_slice(&block[from..from + *count as usize * RANGE_UNIT]);
    }
}

/// Appends a revocation; a long run becomes several records.
pub fn put_revoke(out: &mut Vec<u8>, frag: FragAddr, len: u64) {
    let (mut frag, mut len) = (frag, len);
    while len > 0 {
        let n = len.min(u64::from(u32::MAX));
        let mut head = [0; RECORD_HEADER];
        head[0] = TAG_REVOKE;
        put_u32(&mut head, 4, n as u32);
        put_u64(&mut head, 8, frag);
        out.extend_from_slice(&head);
        frag += n;
        len -= n;
    }
}

/// Decodes the records of a transaction's payload.
pub fn records(payload: &[u8], block_size: usize) -> Result<Vec<Record<'_>>, Corrupt> {
    let mut out = Vec::new();
    let mut at = 0;
    let bad = |at: usize, what: &str| corrupt(format!("log record at byte {at}: {what}"));
    while at < payload.len() {
        let Some(head) = payload.get(at..at + RECORD_HEADER) else {
            return bad(at, "cut off");
        };
        let (n, word, addr) = (get_u16(head, 2) as usize, get_u32(head, 4), get_u64(head, 8));
        let body = &payload[at + RECORD_HEADER..];
        let used = match head[0] {
            TAG_BLOCK => {
                let table = align8(n.min(block_size) * 4);
                if n > block_size / RANGE_UNIT || table > body.len() {
                    return bad(at, "too many ranges");
                }
                let mut from = table;
                let mut ranges = Vec::with_capacity(n);
                for i in 0..n {
                    let off = get_u16(body, i * 4) as usize * RANGE_UNIT;
                    let len = get_u16(body, i * 4 + 2) as usize * RANGE_UNIT;
                    let Some(bytes) = body.get(from..from + len).filter(|_| off + len <= block_size) else {
                        return bad(at, "range outside the block");
                    };
                    ranges.push((off, bytes));
                    from += len;
                }
                let (init, data) = (head[1] & FLAG_INIT != 0, head[1] & FLAG_DATA != 0);
                out.push(Record::Block { addr, init, data, sum: word, ranges });
                from
            }
            TAG_REVOKE => {
                out.push(Record::Revoke { frag: addr, len: word.into() });
                0
            }
            tag => return bad(at, &format!("unknown tag {tag}")),
        };
        at += RECORD_HEADER + used;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_damage_is_refused() {
        let block: Vec<u8> = (0..4096).map(|i| i as u8).collect();
        let mut p = Vec::new();
        put_block(&mut p, 7, true, false, &block, &[(0, 2), (10, 1), (511, 1)]);
        put_block(&mut p, 99, false, true, &block, &[(0, 512)]);
        put_revoke(&mut p, 5, 3);
        let got = records(&p, 4096).unwrap();
        assert_eq!(got.len(), 3);
        assert_eq!(
            got[0],
            Record::Block {
                addr: 7,
                init: true,
                data: false,
                sum: block_sum(&block),
                ranges: vec![(0, &block[..16]), (80, &block[80..88]), (4088, &block[4088..])]
            }
        );
        assert_eq!(got[1], Record::Block { addr: 99, init: false, data: true, sum: 0, ranges: vec![(0, &block[..])] });
        assert_eq!(got[2], Record::Revoke { frag: 5, len: 3 });
        for cut in 1..p.len() {
            let _ = records(&p[..cut], 4096);
        }
        for i in 0..p.len() {
            let mut q = p.clone();
            q[i] ^= 0xff;
            let _ = records(&q, 4096);
        }
        let mut txn = vec![0; 4096];
        txn[TXN_HEADER..TXN_HEADER + p.len().min(4000)].copy_from_slice(&p[..p.len().min(4000)]);
        seal_txn(&mut txn, 3, 8, 5, p.len().min(4000) as u64);
        assert!(txn_header(&txn, 3, 8, 1 << 20).is_some_and(|h| h.epoch == 5) && txn_crc_ok(&txn));
        assert!(txn_header(&txn, 3, 9, 1 << 20).is_none());
        txn[4095] ^= 1;
        assert!(!txn_crc_ok(&txn));
    }
}
