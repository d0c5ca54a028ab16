//! Other copies of what a store keeps several of: what has a wrong checksum in one is taken from another, and the copies are made equal.

use crate::store::{SegmentId, SegmentStore};
use std::io;

/// Bytes of a segment for which `is_right` says so, from whichever copy has them. Says whether there are any; if not, `buf` has what the store
/// gives.
///
/// # Errors
/// No copy can be read.
pub(crate) fn get_right(
    store: &dyn SegmentStore,
    segment: SegmentId,
    offset: u64,
    buf: &mut [u8],
    is_right: &mut dyn FnMut(&[u8]) -> bool,
) -> io::Result<bool> {
    let mut read = store.get(segment, offset, buf);
    if read.is_ok() {
        if is_right(buf) {
            return Ok(true);
        }
        // Perhaps only this read was wrong. One that fails is not repeated: the kernel has done that.
        read = store.get(segment, offset, buf);
        if read.is_ok() && is_right(buf) {
            return Ok(true);
        }
    }
    if take_right(store, segment, offset, buf, is_right) {
        return Ok(true);
    }
    read.map(|()| false)
}

/// Takes the bytes from a copy in which they are right, after those that were read are not. Says whether there is one. If not, nothing happens to `buf`.
#[cold]
pub(crate) fn take_right(
    store: &dyn SegmentStore,
    segment: SegmentId,
    offset: u64,
    buf: &mut [u8],
    is_right: &mut dyn FnMut(&[u8]) -> bool,
) -> bool {
    if store.copies() < 2 {
        return false;
    }
    let mut bytes = vec![0; buf.len()];
    for copy in 0..store.copies() {
        if store.get_copy(copy, segment, offset, &mut bytes).is_err() || !is_right(&bytes) {
            continue;
        }
        buf.copy_from_slice(&bytes);
        make_equal(store, copy, segment, offset, &bytes);
        return true;
    }
    false
}

/// Makes all copies like one that is right.
pub(crate) fn make_equal(store: &dyn SegmentStore, copy: usize, segment: SegmentId, offset: u64, good: &[u8]) {
    // The device says what it could not write; and there is a copy that is right.
    let _ = store.make_equal(copy, segment, offset, good);
}
