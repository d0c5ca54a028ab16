//! The `ioctl`s that make a loop device out of a file.

use rustix::fd::{AsFd, AsRawFd};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl};
use std::ffi::c_void;
use std::io;

/// `LOOP_CTL_GET_FREE` and `LOOP_CONFIGURE` of `linux/loop.h`.
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
/// `LO_FLAGS_READ_ONLY` and `LO_FLAGS_AUTOCLEAR`.
const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    /// Device, inode, rdevice, offset, size limit.
    numbers: [u64; 5],
    /// Number, kind of encryption, length of its key.
    unused: [u32; 3],
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    crypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    /// Size of a sector in bytes; 0 lets the kernel choose.
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

struct GetFree;

// SAFETY: LOOP_CTL_GET_FREE takes no argument; its result is the return value of the call. Nothing is made of the pointer.
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<Self::Output> {
        Ok(out.unsigned_abs())
    }
}

/// The number of a loop device that is free now, according to `control` (`/dev/loop-control`). Another program may be
/// faster in taking it. Fails with `ENOTTY` on any other file.
pub fn free_loop_device(control: impl AsFd) -> io::Result<u32> {
    // SAFETY: the call neither reads nor writes memory of ours; on any other file the request number is unknown.
    unsafe { Ok(ioctl(control, GetFree)?) }
}

/// Makes the loop device `device` show the file `backing`, read-only if asked to or if `backing` is not open for writing
/// (Linux 5.8). The device is freed when its last user closes it. Fails with `EBUSY` if it is not free.
pub fn configure_loop_device(device: impl AsFd, backing: impl AsFd, name: &[u8], read_only: bool) -> io::Result<()> {
    let mut file_name = [0; 64];
    // The last byte stays zero. The name is for people who list loop devices.
    let shown = name.len().min(63);
    file_name[..shown].copy_from_slice(&name[..shown]);
    let info = LoopInfo {
        numbers: [0; 5],
        unused: [0; 3],
        flags: AUTOCLEAR | if read_only { READ_ONLY } else { 0 },
        file_name,
        crypt_name: [0; 64],
        crypt_key: [0; 32],
        init: [0; 2],
    };
    let fd = backing.as_fd().as_raw_fd().unsigned_abs();
    let config = LoopConfig { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, of which LoopConfig is the layout, and writes nothing. The
    // kernel takes a reference of its own to the file, which `backing` keeps open for the call. On any other file the
    // request number is unknown.
    unsafe { Ok(ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config))?) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::mem::size_of;

    #[test]
    fn the_layouts_are_those_of_the_kernel() {
        assert_eq!((size_of::<LoopInfo>(), size_of::<LoopConfig>()), (232, 304));
    }

    #[test]
    fn refused_on_what_is_no_loop_device() {
        let null = File::open("/dev/null").unwrap();
        let notty = Some(rustix::io::Errno::NOTTY.raw_os_error());
        assert_eq!(free_loop_device(&null).unwrap_err().raw_os_error(), notty);
        assert_eq!(configure_loop_device(&null, &null, b"null", true).unwrap_err().raw_os_error(), notty);
    }
}
