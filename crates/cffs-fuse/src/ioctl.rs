//! The `ioctl`s that a mount answers, by number.
//!
//! FUSE passes as many bytes in and out as the number says (it has direction and size in it), at most 16 KiB; the contents
//! are not looked at on the way. What is no number of ours gets `ENOTTY`, which is what programs that probe understand.

use crate::control::{self, Asker};
use crate::messages::Message;
use crate::shared::Shared;
use cffs::error::Error;
use cffs::format::Ino;
use fuser::Errno;

/// An `ioctl` as it came.
pub(crate) struct Call<'a> {
    /// Who calls.
    pub(crate) asker: Asker,
    /// On which file.
    pub(crate) ino: Ino,
    /// The number.
    pub(crate) cmd: u32,
    /// The bytes that came with it, if the number says that it writes.
    pub(crate) input: &'a [u8],
    /// Most bytes that the answer can have.
    pub(crate) out_size: usize,
}

/// Carries it out; returns the bytes of the answer. The result of the system call is 0 then.
pub(crate) fn dispatch(shared: &Shared, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    match call.cmd {
        cffs_buf::CONTROL_IOCTL => shared.call(Message::Ioctl, call.ino, |fs| {
            let answer = control::answer(shared, fs, call.asker, call.input);
            let answer = answer.ok_or_else(|| Error::Invalid("not a request".into()))?;
            Ok(answer[..answer.len().min(call.out_size)].to_vec())
        }),
        _ => {
            shared.count(Message::Unsupported);
            Err(Errno::ENOTTY)
        }
    }
}
