//! An `ioctl` as it is received.

use crate::protocol::wire::Credentials;
use cffs::Ino;

/// An `ioctl` as it is received.
pub(crate) struct Call<'a> {
    /// The caller.
    pub(crate) who: Credentials,
    /// The file.
    pub(crate) ino: Ino,
    /// The number.
    pub(crate) cmd: u32,
    /// Its argument: mostly an address in the memory of the caller.
    pub(crate) arg: u64,
    /// The bytes that came with it, if its number includes input.
    pub(crate) input: &'a [u8],
    /// Most bytes of the answer.
    pub(crate) out_size: usize,
}
