//! The `ioctl`s that a mount answers, by number.
//!
//! FUSE passes as many bytes in and out as the number says (direction and size are part of it), at most 16 KiB, and
//! does not look at the contents. Unknown numbers get `ENOTTY`, which probing programs understand.

use crate::control::{self, Asker};
use crate::flags;
use crate::messages::Message;
use crate::mount_state::MountState;
use cffs::{Caller, Error, Fs, Ino, TrimRange, Tune};
use fuser::Errno;

/// `FITRIM` of `linux/fs.h`: `_IOWR('X', 121, struct fstrim_range)`.
const FITRIM: u32 = 0xC018_5879;
/// `_IOR(0x94, 49, char[256])`.
const FS_IOC_GETFSLABEL: u32 = 0x8100_9431;
/// `_IOW(0x94, 50, char[256])`.
const FS_IOC_SETFSLABEL: u32 = 0x4100_9432;
/// Bytes of a label in the last two.
const LABEL_ROOM: usize = 256;

/// An `ioctl` as received.
pub(crate) struct Call<'a> {
    /// The caller.
    pub(crate) asker: Asker,
    /// The same, for the engine.
    pub(crate) caller: Caller,
    /// The file.
    pub(crate) ino: Ino,
    /// The number.
    pub(crate) cmd: u32,
    /// The bytes that came with it, if its number includes input.
    pub(crate) input: &'a [u8],
    /// Most bytes of the answer.
    pub(crate) out_size: usize,
}

/// Executes an `ioctl`. Returns the bytes of the answer; the system call then returns 0.
pub(crate) fn dispatch(shared: &MountState, call: &Call<'_>) -> Result<Vec<u8>, Errno> {
    match call.cmd {
        cffs_buf::CONTROL_IOCTL => shared.call(Message::Ioctl, call.ino, |fs| {
            let answer = control::answer(shared, fs, call.asker, call.input);
            let answer = answer.ok_or_else(|| Error::Invalid("not a request".into()))?;
            Ok(answer[..answer.len().min(call.out_size)].to_vec())
        }),
        FITRIM => change(shared, call, |fs| trim(fs, call.input)),
        FS_IOC_GETFSLABEL => shared.call(Message::Ioctl, call.ino, |fs| {
            let mut label = fs.superblock().label.to_vec();
            label.resize(LABEL_ROOM, 0);
            Ok(label)
        }),
        FS_IOC_SETFSLABEL => change(shared, call, |fs| set_label(fs, call.input)),
        _ => flags::dispatch(shared, call).unwrap_or_else(|| {
            shared.count(Message::Unsupported);
            Err(Errno::ENOTTY)
        }),
    }
}

/// Executes a change that only root or the user who mounted may make.
fn change(
    shared: &MountState,
    call: &Call<'_>,
    f: impl FnOnce(&Fs) -> Result<Vec<u8>, Error>,
) -> Result<Vec<u8>, Errno> {
    shared.call(Message::Ioctl, call.ino, |fs| if call.asker.may_change() { f(fs) } else { Err(Error::NotPermitted) })
}

/// `struct fstrim_range`: start, length and least length in bytes. The length is replaced by the number of discarded
/// bytes.
fn trim(fs: &Fs, input: &[u8]) -> Result<Vec<u8>, Error> {
    let words: Vec<u64> = input.as_chunks().0.iter().map(|b| u64::from_ne_bytes(*b)).collect();
    let [start, len, min_len] = words[..] else { return Error::invalid("not a range") };
    let discarded = fs.trim(TrimRange { start, len, min_len })?;
    Ok([start, discarded, min_len].iter().flat_map(|n| n.to_ne_bytes()).collect())
}

/// The label up to its first zero.
fn set_label(fs: &Fs, input: &[u8]) -> Result<Vec<u8>, Error> {
    let end = input.iter().position(|b| *b == 0).unwrap_or(input.len());
    let label = std::str::from_utf8(&input[..end]).map_err(|_| Error::Invalid("a label is UTF-8".into()))?;
    fs.tune(&Tune::default().label(Some(label.to_owned())))?;
    Ok(Vec::new())
}
