//! The log: its header, and the transactions that a replay would apply.

use super::dumper::Dumper;
use crate::error::Result;
use crate::format::log::{LOG_HEADER_AREA, LOG_HEADER_SLOTS, LogHeader, Record, TXN_MAGIC, txn_header};
use crate::format::superblock::INCOMPAT_EXTERNAL_LOG;
use crate::format::{get_u32, get_u64};
use crate::journal::LogReader;
use crate::journal::{COMMIT_DIVISOR, current_header, log_extent, read_headers};
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind};
use cffs_values::{Fields, Value};

impl Dumper<'_> {
    /// The log: `replayable` says whether mounting could apply it, and `end` why it ends where it does.
    pub fn log(&self) -> Result<Value> {
        let mut f = Fields::new();
        let external = self.sb.incompat & INCOMPAT_EXTERNAL_LOG != 0;
        f.put("external", external);
        let Some(dev) = (if external { self.log_dev } else { Some(self.dev) }) else {
            f.problems(["it is on another device, which was not given".into()]);
            return Ok(f.into());
        };
        let (at, len) = log_extent(&self.sb);
        f.put("byte", at).put("bytes", len);
        if len <= 2 * LOG_HEADER_AREA || at.checked_add(len).is_none_or(|end| end > dev.len()) {
            f.put("replayable", false);
            f.problems([format!("a log of {len} bytes at {at} is not possible")]);
            return Ok(f.into());
        }
        let ring = len - LOG_HEADER_AREA;
        f.put("ring_bytes", ring).put("headers", self.log_headers(dev, at)?);
        let header = match current_header(dev, &self.sb) {
            Ok(chosen) => chosen.header,
            Err(e) => {
                f.put("replayable", false);
                f.problems([e.to_string()]);
                return Ok(f.into());
            }
        };
        f.put("tail", header.tail).put("tail_sequence", header.tail_seq).put("epoch", header.epoch);
        f.append(self.transactions(dev, &header, ring));
        Ok(f.into())
    }

    /// Both copies of the header.
    fn log_headers(&self, dev: &dyn Device, at: u64) -> Result<Vec<Fields>> {
        let mut headers = Vec::new();
        for (slot, header) in LOG_HEADER_SLOTS.iter().zip(read_headers(dev, &self.sb)?) {
            let mut h = Fields::new();
            let mut b = AlignedBuf::zeroed(4096);
            // An error is among the problems.
            let _ = dev.read_at(IoKind::Super, at + slot, &mut b);
            h.put("at", *slot)
                .put("fsid", Value::hex(get_u64(&b, 16), 16))
                .put("tail", get_u64(&b, 24))
                .put("tail_sequence", get_u64(&b, 32))
                .put("epoch", get_u64(&b, 40));
            h.problems(header.err().map(|e| e.to_string()));
            headers.push(h);
        }
        Ok(headers)
    }

    /// The transactions of the log, and why there are no more.
    fn transactions(&self, dev: &dyn Device, header: &LogHeader, ring: u64) -> Fields {
        let mut f = Fields::new();
        let mut reader = LogReader::new(dev, &self.sb);
        let (mut pos, mut seq, mut total) = (header.tail, header.tail_seq, 0);
        let (mut list, mut wrong) = (Vec::new(), Vec::new());
        if !pos.is_multiple_of(self.g.frag_size() as u64) {
            wrong.push(format!("the tail, {pos}, is not at a fragment"));
        }
        let end = loop {
            let txn = match reader.transaction(pos, seq) {
                Ok(Some(txn)) => txn,
                Ok(None) => break self.why_it_ends(&mut reader, pos, seq, ring),
                Err(e) => {
                    wrong.push(format!("the log cannot be read at {pos}: {e}"));
                    break "it cannot be read".into();
                }
            };
            let bytes = txn.len() as u64;
            if total + bytes > ring {
                break "the next transaction would lie over the first".into();
            }
            if txn.epoch() != header.epoch {
                break format!("transaction {seq} at {pos} belongs to epoch {}", txn.epoch());
            }
            let mut t = Fields::new();
            t.put("sequence", seq).put("at", pos).put("bytes", bytes);
            match txn.records(&self.g) {
                Ok(records) => {
                    let records: Vec<Fields> = records.iter().map(|r| self.record(r, seq, &mut wrong)).collect();
                    t.put("records", records);
                }
                Err(e) => {
                    let what = format!("records of transaction {seq} do not decode: {e}");
                    t.problems([what.clone()]);
                    wrong.push(what);
                }
            }
            list.push(t);
            total += bytes;
            pos = (pos + bytes) % ring;
            seq += 1;
        };
        f.put("replayable", wrong.is_empty()).put("transactions", list.len()).put("transaction_bytes", total);
        f.put("end", end).put("list", list);
        f.problems(wrong);
        f
    }

    fn record(&self, r: &Record<'_>, seq: u64, wrong: &mut Vec<String>) -> Fields {
        let mut f = Fields::new();
        let outside = |what: String| format!("transaction {seq}: {what} lies outside the file system");
        match r {
            Record::Block { addr, init, data, sum, ranges } => {
                f.put("record", if *data { "contents of files" } else { "block" }).put("block", *addr);
                if *init {
                    f.put("new", true);
                }
                if !*data {
                    f.put("sum", Value::hex(*sum, 8));
                }
                let list: Vec<String> = ranges.iter().map(|(at, bytes)| format!("{at}+{}", bytes.len())).collect();
                f.put("ranges", list.join(" "));
                if *addr == 0 || *addr >= self.g.total_blocks {
                    wrong.push(outside(format!("block {addr}")));
                }
            }
            Record::Revoke { frag, len } => {
                f.put("record", "revoke").put("first", *frag).put("fragments", *len);
                if *len == 0 || !self.g.contains(*frag, *len) {
                    wrong.push(outside(format!("a revoke of {len} fragments from {frag} on")));
                }
            }
        }
        f
    }

    fn why_it_ends(&self, reader: &mut LogReader<'_>, pos: u64, seq: u64, ring: u64) -> String {
        let unit = self.g.frag_size();
        if !pos.is_multiple_of(unit as u64) {
            return format!("{pos} is no place where a transaction can begin");
        }
        let mut head = AlignedBuf::zeroed(unit);
        if reader.read(pos, &mut head).is_err() {
            return format!("it cannot be read at {pos}");
        }
        if get_u32(&head, 0) != TXN_MAGIC {
            return format!("no transaction begins at {pos}");
        }
        if get_u64(&head, 8) != self.g.fsid {
            return format!("what begins at {pos} belongs to another file system");
        }
        match txn_header(&head, self.g.fsid, seq, ring / COMMIT_DIVISOR) {
            None if get_u64(&head, 16) != seq => {
                format!("what begins at {pos} has number {} instead of {seq}: an old one", get_u64(&head, 16))
            }
            None => format!("the header of transaction {seq} at {pos} is impossible"),
            Some(h) => format!(
                "the checksum of transaction {seq} ({} bytes at {pos}) does not match: cut off by a crash, or damaged",
                h.len
            ),
        }
    }
}
