//! Other copies of what a device has several of: what a mirror keeps on more than one member.
//!
//! The device cannot know which of two copies is right. Whoever has a checksum can.

use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind};
use std::io;

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
        match dev.repair(kind, copy, offset, &bytes) {
            Ok(true) => tracing::warn!(offset, len, copy, "a copy was wrong and was made like another one"),
            // Somebody has written there meanwhile, to all copies.
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                tracing::warn!(offset, len, copy, "a copy is wrong; it stays, because nothing is to be written");
            }
            Err(error) => tracing::error!(offset, len, copy, %error, "a copy is wrong, and could not be repaired"),
        }
        return Some(bytes);
    }
    None
}
