//! Other copies of what a device has several of: what a mirror keeps on more than one member.
//!
//! The device cannot know which of two copies is right. Whoever has a checksum can.

use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind, Purpose};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The copy of a range for which `is_right` says so, after the one that was read is not. The device makes its other copies like it.
/// `None` if the device has only one copy, or none that is right.
pub(crate) fn right_copy(
    dev: &dyn Device,
    kind: IoKind,
    offset: u64,
    len: usize,
    is_right: &mut dyn FnMut(&[u8]) -> bool,
) -> Option<AlignedBuf> {
    let copies = dev.copies();
    if copies < 2 {
        return None;
    }
    let mut bytes = AlignedBuf::zeroed(len);
    for copy in 0..copies {
        if dev.read_copy(kind, copy, offset, &mut bytes).is_err() || !is_right(&bytes) {
            continue;
        }
        make_equal(dev, kind, copy, offset, &bytes);
        return Some(bytes);
    }
    None
}

/// Messages of repaired copies that are logged; the device counts them all.
const LOGGED_MAX: u64 = 20;

/// Makes the other copies like one that is right.
fn make_equal(dev: &dyn Device, kind: IoKind, copy: usize, offset: u64, good: &[u8]) {
    static LOGGED: AtomicU64 = AtomicU64::new(0);
    let len = good.len();
    // Whatever made somebody look at it.
    let _purpose = Purpose::Scrub.scope();
    let outcome = dev.repair(kind, copy, offset, good);
    let logged = LOGGED.fetch_add(1, Ordering::Relaxed);
    if logged >= LOGGED_MAX {
        if logged == LOGGED_MAX {
            tracing::warn!("more copies are wrong: they are counted, and not logged one by one any more");
        }
        return;
    }
    match outcome {
        Ok(true) => tracing::warn!(offset, len, copy, "a copy was wrong and was made like another one"),
        // Somebody has written there meanwhile, to all copies.
        Ok(false) => {}
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            tracing::warn!(offset, len, copy, "a copy is wrong; it stays, because nothing is to be written");
        }
        Err(error) => tracing::error!(offset, len, copy, %error, "a copy is wrong, and could not be repaired"),
    }
}

/// The newest of the copies of a range of which `age` says how old they are, because an old state of a block is whole by itself. The others are made
/// like it. `None` if the device has only one copy, or none has an age.
pub(crate) fn newest_copy<A: Ord>(
    dev: &dyn Device,
    kind: IoKind,
    offset: u64,
    len: usize,
    age: &dyn Fn(&[u8]) -> Option<A>,
) -> Option<AlignedBuf> {
    let copies = dev.copies();
    if copies < 2 {
        return None;
    }
    let mut newest: Option<(A, usize, AlignedBuf)> = None;
    let mut all_equal = true;
    for copy in 0..copies {
        let mut bytes = AlignedBuf::zeroed(len);
        match dev.read_copy(kind, copy, offset, &mut bytes) {
            Ok(()) => {}
            // It is missing, or out of date.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(_) => {
                all_equal = false;
                continue;
            }
        }
        all_equal &= newest.as_ref().is_none_or(|(_, _, best)| best[..] == bytes[..]);
        match age(&bytes) {
            Some(age) if newest.as_ref().is_none_or(|(best, ..)| age > *best) => newest = Some((age, copy, bytes)),
            Some(_) => {}
            None => all_equal = false,
        }
    }
    let (_, copy, bytes) = newest?;
    if !all_equal {
        make_equal(dev, kind, copy, offset, &bytes);
    }
    Some(bytes)
}
