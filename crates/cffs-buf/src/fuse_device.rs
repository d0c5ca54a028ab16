//! The `ioctl` of `/dev/fuse` that rustix has no function for.

use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::io;

/// `FUSE_DEV_IOC_CLONE` of `linux/fuse.h`: `_IOR(229, 0, uint32_t)`.
const FUSE_DEV_IOC_CLONE: Opcode = opcode::read::<u32>(229, 0);

/// Makes `own`, freshly opened from `/dev/fuse`, one more descriptor of the connection `fuse`, with a queue of its own for
/// the messages that are read from it. Fails with `EINVAL` where `fuse` is no connection or `own` has one.
pub fn clone_fuse_device(own: impl AsFd, fuse: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: FUSE_DEV_IOC_CLONE reads a u32, the number of a descriptor, from the pointer that Setter passes and writes
    // nothing; on any other kind of file the request number is unknown and refused.
    unsafe { Ok(ioctl(own, Setter::<FUSE_DEV_IOC_CLONE, u32>::new(fuse.as_raw_fd() as u32))?) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_on_what_is_no_connection() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let e = clone_fuse_device(&null, null.as_fd()).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(rustix::io::Errno::NOTTY.raw_os_error()));
    }
}
