//! The buffer of a thread: records in the order in which their spans ended, until somebody drains it.

use super::detail::DETAIL_MAX;
use super::frame::{self, FRAME_MAX};
use super::record::{Record, encode};
use parking_lot::Mutex;
use std::mem;

/// Most bytes of records of a thread that wait to be drained.
pub(super) const BUFFER_MAX: usize = 1 << 20;
/// Room that must be left for a record: more than the longest has.
const RECORD_MAX: usize = 1024 + DETAIL_MAX;
const _: () = assert!(BUFFER_MAX + 64 < FRAME_MAX);

/// What a thread has recorded.
pub(super) struct ThreadBuffer {
    pub(super) thread: u64,
    name: String,
    contents: Mutex<Contents>,
}

#[derive(Default)]
struct Contents {
    /// Records, each behind its length (u16).
    bytes: Vec<u8>,
    /// Memory for the next ones, which has been written to before: new memory costs more than what is written there.
    spare: Vec<u8>,
    /// When the record before the first of `bytes` began, and the last one: what their times are relative to.
    base: u64,
    before: u64,
    /// Number of them.
    spans: u64,
    /// Spans that found no room since the last drain.
    lost: u64,
    /// The name of the thread is in the trace.
    named: bool,
}

impl ThreadBuffer {
    pub(super) fn new(thread: u64, name: String) -> ThreadBuffer {
        ThreadBuffer { thread, name, contents: Mutex::default() }
    }

    /// Adds a record, or counts it as lost.
    pub(super) fn push(&self, r: &Record) {
        let c = &mut *self.contents.lock();
        if c.bytes.len() + RECORD_MAX > BUFFER_MAX {
            c.lost += 1;
            return;
        }
        c.spans += 1;
        let at = c.bytes.len();
        c.bytes.extend_from_slice(&[0; 2]);
        encode(&mut c.bytes, r, c.before);
        c.before = r.start;
        let len = (c.bytes.len() - at - 2) as u16;
        c.bytes[at..at + 2].copy_from_slice(&len.to_le_bytes());
    }

    /// Throws everything away.
    pub(super) fn clear(&self) {
        *self.contents.lock() = Contents::default();
    }

    /// Spans that nobody has drained, the lost ones included.
    pub(super) fn spans(&self) -> u64 {
        let c = self.contents.lock();
        c.spans + c.lost
    }

    /// Counts spans of others as lost.
    pub(super) fn note_lost(&self, spans: u64) {
        self.contents.lock().lost += spans;
    }

    /// Moves everything to `out`, as frames.
    pub(super) fn drain(&self, out: &mut Vec<u8>) {
        let (mut bytes, base, lost, named) = {
            let c = &mut *self.contents.lock();
            if c.bytes.is_empty() && c.lost == 0 {
                // A thread that rests has no memory for it.
                (c.bytes, c.spare) = Default::default();
                return;
            }
            let base = mem::replace(&mut c.base, c.before);
            c.spans = 0;
            let mut next = mem::take(&mut c.spare);
            // The next records are likely to need as much; to grow by and by would copy them again and again.
            next.reserve(c.bytes.len());
            (mem::replace(&mut c.bytes, next), base, mem::take(&mut c.lost), mem::replace(&mut c.named, true))
        };
        if !named {
            frame::put_thread(out, self.thread, &self.name);
        }
        frame::put_spans(out, self.thread, lost, base, &bytes);
        bytes.clear();
        self.contents.lock().spare = bytes;
    }
}
