//! The one `ioctl` on block devices that rustix has no function for.

use rustix::fd::AsFd;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::io;

/// `BLKDISCARD` of `linux/fs.h`.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Tells the block device `fd` that `len` bytes from `offset` on are unused (`BLKDISCARD`). Both must be multiples of
/// its sector size. Fails with `ENOTTY` on what is no block device, `EOPNOTSUPP` where the device cannot discard.
pub fn discard_blocks(fd: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: BLKDISCARD reads two u64 (start, length) from the pointer that Setter passes and writes nothing; on any
    // other kind of file the request number is unknown and refused.
    unsafe { Ok(ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len]))?) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_on_what_is_no_block_device() {
        let e = discard_blocks(std::fs::File::open("/dev/null").unwrap(), 0, 4096).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(rustix::io::Errno::NOTTY.raw_os_error()));
    }
}
