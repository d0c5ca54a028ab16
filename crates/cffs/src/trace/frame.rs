//! The pieces that a trace consists of, as bytes. They are described in `docs/format-trace.md`.

use super::varint::put;
use crate::format::crc32c;

/// What a file begins with.
pub const HEADER: [u8; 16] = *b"cffstrac\x03\0\0\0\0\0\0\0";
/// The versions before: without the disks below a log disk or a volume, and the first one without details of operations. Whoever reads
/// this version reads those.
pub(super) const EARLIER: [[u8; 16]; 2] = [*b"cffstrac\x02\0\0\0\0\0\0\0", *b"cffstrac\x01\0\0\0\0\0\0\0"];
/// Longest body of a frame, in bytes.
pub const FRAME_MAX: usize = 4 << 20;
/// Kinds of frames.
pub(super) const SPANS: u8 = 1;
pub(super) const THREAD: u8 = 2;
pub(super) const INFORMATION: u8 = 3;
pub(super) const LISTING: u8 = 4;
/// Longest name of a thread that is kept, in bytes.
pub(super) const THREAD_NAME_MAX: usize = 64;

fn put_frame(out: &mut Vec<u8>, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 8]);
    out.push(kind);
    write(out);
    let len = (out.len() - at - 8) as u32;
    let crc = crc32c(&out[at + 8..]);
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
    out[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
}

/// Appends records of a thread, each behind its length. `base` is what the time of the first is relative to.
pub(super) fn put_spans(out: &mut Vec<u8>, thread: u64, lost: u64, base: u64, records: &[u8]) {
    put_frame(out, SPANS, |out| {
        put(out, thread);
        put(out, lost);
        put(out, base);
        out.extend_from_slice(records);
    });
}

/// Appends the name of a thread.
pub(super) fn put_thread(out: &mut Vec<u8>, thread: u64, name: &str) {
    let end = name.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= THREAD_NAME_MAX).last();
    put_frame(out, THREAD, |out| {
        put(out, thread);
        out.extend_from_slice(&name.as_bytes()[..end.unwrap_or(0)]);
    });
}

/// Appends a piece of the listing of a directory.
pub(super) fn put_listing(out: &mut Vec<u8>, listing: &[u8]) {
    put_frame(out, LISTING, |out| out.extend_from_slice(listing));
}

/// A frame with what the recorder knows of the file system: a JSON object. What is longer than a frame is left out.
pub fn information(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if json.len() < FRAME_MAX {
        put_frame(&mut out, INFORMATION, |out| out.extend_from_slice(json));
    }
    out
}
