//! The `ioctl` of a mounted cffs: hands a buffer to the process that serves the mount, and takes its answer back.

use rustix::fd::AsFd;
use rustix::fs::{FileType, fstat, fstatfs};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use std::ffi::c_void;
use std::io;

/// Bytes that go both ways: the most that the number of an `ioctl` can say (14 bits), in whole words.
pub const CONTROL_LEN: usize = 16_376;

/// The number of the `ioctl`: `_IOWR(0xCF, 1, char[16376])`.
pub const CONTROL_IOCTL: u32 = opcode::read_write::<[u8; CONTROL_LEN]>(0xCF, 1) as u32;

/// `FUSE_SUPER_MAGIC` of `linux/magic.h`.
const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;

struct Control<'a>(&'a mut [u8; CONTROL_LEN]);

// SAFETY: the opcode says that the buffer is read and written and has CONTROL_LEN bytes, and that is what `as_ptr`
// points to. Nothing is made of the pointer in `output_from_ptr`.
unsafe impl Ioctl for Control<'_> {
    type Output = IoctlOutput;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        CONTROL_IOCTL as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<Self::Output> {
        Ok(out)
    }
}

/// Sends `buffer` to the process that serves the FUSE mount which the directory or regular file `fd` is on; afterwards it
/// holds the answer. Fails with `ENOTTY` on what is no FUSE mount, or one of another program.
pub fn control_ioctl(fd: impl AsFd, buffer: &mut [u8; CONTROL_LEN]) -> io::Result<()> {
    let fd = fd.as_fd();
    // Device files can lie on FUSE, and an ioctl on one of them goes to its driver.
    let plain = matches!(FileType::from_raw_mode(fstat(fd)?.st_mode), FileType::Directory | FileType::RegularFile);
    if !plain || fstatfs(fd)?.f_type as u64 != FUSE_SUPER_MAGIC {
        return Err(Errno::NOTTY.into());
    }
    // SAFETY: `fd` is a directory or regular file of a FUSE mount, and the VFS has no ioctl of this number. FUSE lets the
    // server see and change just the bytes that the number tells, which are those of the buffer; what they are has no
    // meaning to the kernel.
    unsafe { ioctl(fd, Control(buffer))? };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_says_how_many_bytes_go_both_ways() {
        assert_eq!(CONTROL_IOCTL >> 30, 3, "read and written");
        assert_eq!((CONTROL_IOCTL >> 16) & 0x3fff, CONTROL_LEN as u32);
        assert_eq!(CONTROL_IOCTL & 0xffff, 0xCF01);
    }

    #[test]
    fn refused_on_what_is_no_fuse_mount() {
        for path in ["/proc", "/dev/null", "/proc/self/stat"] {
            let file = std::fs::File::open(path).unwrap();
            let e = control_ioctl(file, &mut [0; CONTROL_LEN]).unwrap_err();
            assert_eq!(e.raw_os_error(), Some(Errno::NOTTY.raw_os_error()), "{path}");
        }
    }
}
