//! The `ioctl`s that a mount answers, by number.
//!
//! FUSE passes as many bytes in and out as the number says (direction and size are part of it), at most 16 KiB, and
//! does not look at the contents. Unknown numbers get `ENOTTY`, which probing programs understand.

use super::context::{Ops, Reply};
use super::ioctl_call::Call;
use crate::control::{self, Asker};
use crate::protocol::opcode::Opcode;
use cffs::{Error, Fs, Shutdown, TrimRange, Tune};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// `FITRIM` of `linux/fs.h`: `_IOWR('X', 121, struct fstrim_range)`.
const FITRIM: u32 = 0xC018_5879;
/// `_IOR('X', 125, __u32)`, which XFS and ext4 have too.
const FS_IOC_SHUTDOWN: u32 = 0x8004_587D;
/// `_IOR(0x94, 49, char[256])`.
const FS_IOC_GETFSLABEL: u32 = 0x8100_9431;
/// `_IOW(0x94, 50, char[256])`.
const FS_IOC_SETFSLABEL: u32 = 0x4100_9432;
/// Bytes of a label in the last two.
const LABEL_ROOM: usize = 256;

impl Ops {
    /// Executes an `ioctl`. Returns the bytes of the answer; the system call then returns 0.
    pub(crate) fn ioctl(&self, call: &Call<'_>) -> Reply<Vec<u8>> {
        match call.cmd {
            cffs_buf::CONTROL_IOCTL => self.state.call(Opcode::Ioctl, call.ino, |fs| {
                let answer = control::answer(&self.state, fs, asker(call), call.input);
                let answer = answer.ok_or_else(|| Error::Invalid("not a request".into()))?;
                Ok(answer[..answer.len().min(call.out_size)].to_vec())
            }),
            FITRIM => self.change(call, |fs| trim(fs, call.input)),
            FS_IOC_SHUTDOWN => {
                let mut stopped = false;
                let answer = self.change(call, |fs| {
                    let how = shutdown_flags(call)?;
                    // It stops also where not everything could be written.
                    stopped = true;
                    fs.shutdown(how)?;
                    Ok(Vec::new())
                });
                if stopped {
                    self.state.contents_gone();
                }
                answer
            }
            FS_IOC_GETFSLABEL => self.state.call(Opcode::Ioctl, call.ino, |fs| {
                let mut label = fs.superblock().label.to_vec();
                label.resize(LABEL_ROOM, 0);
                Ok(label)
            }),
            FS_IOC_SETFSLABEL => self.change(call, |fs| set_label(fs, call.input)),
            _ => self.flags_ioctl(call).unwrap_or_else(|| {
                self.state.unsupported();
                Err(Errno::NOTTY)
            }),
        }
    }

    /// Executes a change that only root or the user who mounted may make.
    fn change(&self, call: &Call<'_>, f: impl FnOnce(&Fs) -> Result<Vec<u8>, Error>) -> Reply<Vec<u8>> {
        let may = asker(call).may_change();
        self.state.call(Opcode::Ioctl, call.ino, |fs| if may { f(fs) } else { Err(Error::NotPermitted) })
    }
}

fn asker(call: &Call<'_>) -> Asker {
    Asker { uid: call.who.uid, pid: call.who.pid }
}

/// How to end all work at once, for tests of crashes. The number of this `ioctl` says that the kernel writes to the caller,
/// although a file system reads: FUSE brings nothing along, so that the word is read from the caller's memory.
fn shutdown_flags(call: &Call<'_>) -> Result<Shutdown, Error> {
    match caller_word(call)? {
        0 => Ok(Shutdown::Flush),
        1 => Ok(Shutdown::LogFlush),
        2 => Ok(Shutdown::NoLogFlush),
        n => Error::invalid(format!("shutdown with flags {n:#x}")),
    }
}

/// The word at the address that is the argument.
fn caller_word(call: &Call<'_>) -> Result<u32, Error> {
    let memory = File::open(format!("/proc/{}/mem", call.who.pid))?;
    let mut word = [0; 4];
    memory.read_exact_at(&mut word, call.arg)?;
    Ok(u32::from_ne_bytes(word))
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
