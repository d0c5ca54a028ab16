//! What the kernel says of a block device's queue: how long a request may be, and whether an arm serves it.

use rustix::fs::{major, minor};
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// A segment of a request is a page of memory at least.
const PAGE: usize = 4096;
/// Requests have such multiples of bytes. To make them shorter would cost more than the kernel's cuts: where memory lies together, one segment is more than
/// a page.
const UNIT: usize = 64 << 10;

/// The longest request to a block device that the kernel does not cut, wherever the memory for it lies: `most` bytes at most. The kernel would
/// cut it where its segments happen to end, and make two of it for each one that the device takes.
pub(crate) fn longest_request(file: &File, most: usize) -> usize {
    let Ok(meta) = file.metadata() else { return most };
    of_queue(number(meta.rdev(), "max_segments"), number(meta.rdev(), "max_sectors_kb"), most)
}

/// Whether the block device, or that of the file system with the file, may have an arm: all have one of which the kernel does not say that they have none.
pub(crate) fn is_rotational(file: &File) -> bool {
    let device = file.metadata().map(|meta| if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() });
    device.ok().and_then(|device| number(device, "rotational")) != Some(0)
}

/// A number that the kernel shows of the queue of a block device.
fn number(device: u64, name: &str) -> Option<usize> {
    let dev = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    // A partition has the queue of its disk.
    let read = |dir: &str| std::fs::read_to_string(format!("{dev}/{dir}/{name}")).ok();
    read("queue").or_else(|| read("../queue"))?.trim().parse().ok()
}

/// The same from the numbers of a queue.
fn of_queue(segments: Option<usize>, kib: Option<usize>, most: usize) -> usize {
    let by_segments = segments.map_or(most, |n| n.saturating_mul(PAGE));
    let by_length = kib.map_or(most, |n| n.saturating_mul(1024));
    (most.min(by_segments).min(by_length) / UNIT * UNIT).max(UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_no_more_pages_than_the_device_takes_segments() {
        let of = |segments, kib| of_queue(segments, kib, 1 << 20) >> 10;
        assert_eq!(of(Some(128), Some(1280)), 512, "a loop device");
        assert_eq!(of(Some(127), Some(512)), 448);
        assert_eq!(of(Some(254), Some(4096)), 960);
        assert_eq!(of(Some(1024), Some(256)), 256);
        assert_eq!(
            (of(Some(8), Some(4096)), of(Some(1), Some(4))),
            (64, 64),
            "what is shorter is for the kernel to cut"
        );
        assert_eq!(of(Some(65_535), Some(4096)), 1024);
        assert_eq!((of(None, None), of(Some(0), None)), (1024, 64));
    }
}
