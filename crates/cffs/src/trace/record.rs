//! A record: one span that has ended. The bytes are in `docs/format-trace.md`.

use super::causes::{Cause, Causes, NAMED_MAX};
use super::detail::Detail;
use super::kind::Kind;
use super::varint::{self, Out, put, put_signed, take, take_signed};
use cffs_device::{IoKind, Purpose};

/// Most arguments of a record.
pub(super) const ARGS_MAX: usize = 3;
/// Flags beside the number of arguments: a list of causes follows; the number of a transaction follows; what a replay needs
/// follows.
const HAS_CAUSES: u8 = 1 << 7;
const HAS_TRANSACTION: u8 = 1 << 6;
const HAS_DETAIL: u8 = 1 << 5;
const FLAGS: u8 = HAS_CAUSES | HAS_TRANSACTION | HAS_DETAIL;

/// One span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it was.
    pub kind: Kind,
    /// Its number in the trace, not 0.
    pub id: u64,
    /// The span in which it began, or that asked for it; and the operation at the root.
    pub cause: Cause,
    /// Number of the thread.
    pub thread: u64,
    /// When it began, in nanoseconds on the clock of the trace.
    pub start: u64,
    /// How long it took, in nanoseconds.
    pub duration: u64,
    /// Arguments, as many as [`Kind::arg_names`] names.
    pub args: [u64; ARGS_MAX],
    /// The last transaction that it changed something in: the first argument of the commit that made this durable. 0: none.
    pub transaction: u64,
    /// The work of many: for whom it was done. `cause` says who had it done.
    pub causes: Option<Box<Causes>>,
    /// What a replay needs; of operations alone, and of those that began in no other one.
    pub detail: Option<Box<Detail>>,
}

/// What the third argument of a request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it carried; of a flush or a discard it says nothing.
    pub kind: IoKind,
    /// Why it was made.
    pub purpose: Purpose,
    /// It went to the device of an external log.
    pub on_log_device: bool,
    /// It failed, or one of its batch.
    pub failed: bool,
    /// Requests that were handed over together; they began and ended together.
    pub batch: u64,
    /// Number of the disk, where there are several: the member of a volume.
    pub disk: u64,
}

/// Bits of the number of requests that were handed over together; behind them is that of the disk.
const BATCH_BITS: u32 = 32;

impl Request {
    pub(super) fn pack(self) -> u64 {
        let kind = IoKind::ALL.iter().position(|k| *k == self.kind).unwrap_or(0) as u64;
        let flags = u64::from(self.on_log_device) | u64::from(self.failed) << 1;
        let batch = self.batch.min((1 << BATCH_BITS) - 1);
        kind | (self.purpose.index() as u64) << 2 | flags << 6 | batch << 8 | self.disk << (8 + BATCH_BITS)
    }

    fn unpack(n: u64) -> Option<Request> {
        Some(Request {
            kind: IoKind::ALL[(n & 3) as usize],
            purpose: *Purpose::ALL.get((n >> 2 & 15) as usize)?,
            on_log_device: n >> 6 & 1 == 1,
            failed: n >> 7 & 1 == 1,
            batch: (n >> 8 & ((1 << BATCH_BITS) - 1)).max(1),
            disk: n >> (8 + BATCH_BITS),
        })
    }
}

impl Record {
    /// When it ended, in nanoseconds on the clock of the trace.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }

    /// The request, if this is one of a disk.
    pub fn request(&self) -> Option<Request> {
        if self.kind.is_request() { Request::unpack(self.args[2]) } else { None }
    }

    /// The same, if this is one of a log disk or a volume, which makes others of disks for it.
    pub fn logical_request(&self) -> Option<Request> {
        if self.kind.is_logical_request() { Request::unpack(self.args[2]) } else { None }
    }

    /// The arguments with their names.
    pub fn named_args(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.kind.arg_names().iter().copied().zip(self.args)
    }
}

/// Most bytes of what every record has: three of one byte, five numbers and the arguments.
const HEAD_MAX: usize = 3 + (5 + ARGS_MAX) * varint::MAX;

/// What every record has, put together where no memory is asked for.
struct Head {
    bytes: [u8; HEAD_MAX],
    len: usize,
}

impl Out for Head {
    #[inline]
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }
}

/// Appends a record, without its thread. `before` is when the record before it in the buffer began.
pub(super) fn encode(out: &mut Vec<u8>, r: &Record, before: u64) {
    let args = r.kind.arg_names().len().min(ARGS_MAX);
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    let mut head = Head { bytes: [0; HEAD_MAX], len: 0 };
    head.push(r.kind as u8);
    let follows = flag(r.causes.is_some(), HAS_CAUSES) | flag(r.transaction != 0, HAS_TRANSACTION);
    head.push(args as u8 | follows | flag(r.detail.is_some(), HAS_DETAIL));
    put(&mut head, r.id);
    put(&mut head, r.cause.span);
    head.push(r.cause.origin.map_or(0, |k| k as u8));
    put_signed(&mut head, r.start.wrapping_sub(before) as i64);
    put(&mut head, r.duration);
    r.args[..args].iter().for_each(|a| put(&mut head, *a));
    if r.transaction != 0 {
        put(&mut head, r.transaction);
    }
    out.extend_from_slice(&head.bytes[..head.len]);
    if let Some(causes) = &r.causes {
        put(out, causes.named().len() as u64);
        causes.named().iter().for_each(|span| put(out, *span));
        put(out, causes.left_out());
        put(out, causes.raw_counts().len() as u64);
        for (op, n) in causes.raw_counts() {
            out.push(*op);
            put(out, *n);
        }
    }
    if let Some(detail) = &r.detail {
        detail.encode(out);
    }
    if let Some(causes) = r.causes.as_deref().filter(|c| c.weight() > 0) {
        causes.named_weights().iter().chain(causes.weights()).for_each(|weight| put(out, *weight));
    }
}

fn byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

/// Reads one record of a thread, which has all of `bytes`: when it began, and the record, unless it is of a kind that this version
/// does not know. `None` if it is no record.
pub(super) fn decode(mut bytes: &[u8], thread: u64, before: u64) -> Option<(u64, Option<Record>)> {
    let b = &mut bytes;
    let kind = Kind::from_number(byte(b)?);
    let flags = byte(b)?;
    let (id, span) = (take(b)?, take(b)?);
    let origin = Kind::from_number(byte(b)?);
    // The times of all records behind it follow from this one.
    let start = before.wrapping_add(take_signed(b)? as u64);
    let Some(kind) = kind else { return Some((start, None)) };
    let duration = take(b)?;
    let mut args = [0; ARGS_MAX];
    for n in 0..usize::from(flags & !FLAGS) {
        // A later version may have more.
        let value = take(b)?;
        if let Some(arg) = args.get_mut(n) {
            *arg = value;
        }
    }
    let transaction = if flags & HAS_TRANSACTION != 0 { take(b)? } else { 0 };
    let mut causes = if flags & HAS_CAUSES != 0 { Some(Box::new(decode_causes(b)?)) } else { None };
    let detail = if flags & HAS_DETAIL != 0 { Some(Box::new(Detail::decode(b)?)) } else { None };
    // An earlier version has no weights.
    if let Some(causes) = causes.as_mut().filter(|_| !b.is_empty()) {
        for weight in causes.weights_mut() {
            *weight = take(b)?;
        }
    }
    let cause = Cause { span, origin };
    Some((start, Some(Record { kind, id, cause, thread, start, duration, args, transaction, causes, detail })))
}

fn decode_causes(b: &mut &[u8]) -> Option<Causes> {
    let len = usize::try_from(take(b)?).ok().filter(|n| *n <= NAMED_MAX)?;
    let mut named = [0; NAMED_MAX];
    for span in &mut named[..len] {
        *span = take(b)?;
    }
    let left_out = take(b)?;
    let kinds = usize::try_from(take(b)?).ok().filter(|n| *n <= NAMED_MAX)?;
    let mut counts = [(0, 0); NAMED_MAX];
    for count in &mut counts[..kinds] {
        *count = (byte(b)?, take(b)?);
    }
    Causes::from_parts(&named[..len], left_out, &counts[..kinds])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Record {
        let mut causes = Causes::default();
        for span in 1..40 {
            let kind = if span % 3 == 0 { Kind::Write } else { Kind::Create };
            causes.add(Cause { span, origin: Some(kind) }, span * 1000);
        }
        Record {
            kind: Kind::Commit,
            id: 100,
            cause: Cause { span: 99, origin: Some(Kind::Fsync) },
            thread: 3,
            start: 1_000_000,
            duration: 70_000,
            args: [5, 1 << 40, 0],
            transaction: 0,
            causes: Some(Box::new(causes)),
            detail: None,
        }
    }

    #[test]
    fn records_come_back() {
        let without = Record {
            kind: Kind::Sync,
            cause: Cause::default(),
            args: [0; 3],
            transaction: 1 << 33,
            causes: None,
            ..some()
        };
        let mut detail = Detail { errno: 2, inode: 9, ..Detail::default() };
        detail.add_name(b"name");
        detail.add_number(u64::MAX);
        let detailed = Record { detail: Some(Box::new(detail)), ..some() };
        let mut unweighed = some();
        unweighed.causes.as_mut().unwrap().weights_mut().for_each(|weight| *weight = 0);
        for r in [some(), without, detailed, unweighed] {
            for before in [0, 2_000_000, u64::MAX] {
                let mut out = Vec::new();
                encode(&mut out, &r, before);
                assert_eq!(decode(&out, 3, before), Some((r.start, Some(r.clone()))));
                // Whatever is cut off: no panic, and nothing that was not written.
                (0..out.len())
                    .for_each(|n| assert_ne!(decode(&out[..n], 3, before).and_then(|d| d.1), Some(r.clone())));
            }
        }
        let mut later = Vec::new();
        encode(&mut later, &some(), 900_000);
        later[0] = 200;
        assert_eq!(decode(&later, 3, 900_000), Some((1_000_000, None)), "of a later version, and others count from it");
        assert_eq!(decode(&[200, 1, 2], 0, 0), None);
    }

    #[test]
    fn requests_are_packed() {
        for purpose in Purpose::ALL {
            let r = Request { kind: IoKind::Log, purpose, on_log_device: true, failed: false, batch: 77, disk: 3 };
            assert_eq!(Request::unpack(r.pack()), Some(r));
        }
        assert_eq!(Request::unpack(u64::MAX), None, "no such purpose");
    }
}
