//! Checks of request ranges and copies between scattered buffers, shared by the devices.

use std::io::{self, IoSlice, IoSliceMut};

/// Bytes of a scattered read.
pub(super) fn total_mut(bufs: &[IoSliceMut<'_>]) -> usize {
    bufs.iter().map(|b| b.len()).sum()
}

/// Bytes of a gathered write.
pub(super) fn total(bufs: &[IoSlice<'_>]) -> usize {
    bufs.iter().map(|b| b.len()).sum()
}

fn check_sectors(verb: &str, sector: u32, offset: u64, len: usize) -> io::Result<()> {
    let mask = u64::from(sector) - 1;
    if (offset | len as u64) & mask != 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{verb} of {len} bytes at offset {offset} is not in whole sectors of {sector} bytes"),
        ));
    }
    Ok(())
}

/// Refuses a read that is not in whole sectors, or that leaves the device: then the image is shorter than whoever
/// asks believes.
pub fn check_read(device_len: u64, sector: u32, offset: u64, len: usize) -> io::Result<()> {
    check_sectors("read", sector, offset, len)?;
    if offset.checked_add(len as u64).is_none_or(|end| end > device_len) {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("read of {len} bytes at offset {offset} beyond the end at {device_len}: the image is truncated"),
        ));
    }
    Ok(())
}

/// Refuses a write that is not in whole sectors, or that leaves the device: a write never makes a device longer.
pub fn check_write(device_len: u64, sector: u32, offset: u64, len: usize) -> io::Result<()> {
    check_sectors("write", sector, offset, len)?;
    if offset.checked_add(len as u64).is_none_or(|end| end > device_len) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("write of {len} bytes at offset {offset} beyond the end of the device at {device_len}"),
        ));
    }
    Ok(())
}

/// The part of a discard that lies on the device, in whole sectors inside the given range. A hint is never an error.
pub fn clip_discard(device_len: u64, sector: u32, offset: u64, len: u64) -> Option<(u64, u64)> {
    let sector = u64::from(sector);
    let end = offset.saturating_add(len).min(device_len) / sector * sector;
    let start = offset.checked_next_multiple_of(sector)?;
    (start < end).then(|| (start, end - start))
}

/// The parts of the byte range `offset..offset + len` that lie in different chunks of `chunk` bytes: chunk number,
/// first byte within the chunk, number of bytes.
pub(super) fn chunks(chunk: u64, offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (number, within) = (at / chunk, at % chunk);
        let n = (chunk - within).min(end - at);
        at += n;
        Some((number, within as usize, n as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        assert!(check_read(4096, 512, 0, 4096).is_ok());
        assert!(check_read(4096, 512, 4096, 0).is_ok());
        let kind = |r: io::Result<()>| r.unwrap_err().kind();
        assert_eq!(kind(check_read(4096, 512, 3584, 1024)), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(check_read(4096, 512, u64::MAX - 511, 512)), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(check_read(4096, 512, 100, 512)), io::ErrorKind::InvalidInput);
        assert_eq!(kind(check_write(4096, 512, 4096, 512)), io::ErrorKind::InvalidInput);
        assert_eq!(kind(check_write(4096, 512, 512, 100)), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn discards_shrink_to_whole_sectors() {
        assert_eq!(clip_discard(8192, 512, 100, 2000), Some((512, 1536)));
        assert_eq!(clip_discard(8192, 512, 100, 500), None);
        assert_eq!(clip_discard(8192, 4096, 4096, u64::MAX), Some((4096, 4096)));
        assert_eq!(clip_discard(8192, 512, 10000, 5000), None);
        assert_eq!(clip_discard(u64::MAX, 512, u64::MAX - 3, 3), None);
    }

    #[test]
    fn chunks_cover_the_range() {
        assert_eq!(chunks(100, 50, 200).collect::<Vec<_>>(), [(0, 50, 50), (1, 0, 100), (2, 0, 50)]);
        assert_eq!(chunks(100, 120, 30).collect::<Vec<_>>(), [(1, 20, 30)]);
        assert_eq!(chunks(100, 100, 0).count(), 0);
    }
}
