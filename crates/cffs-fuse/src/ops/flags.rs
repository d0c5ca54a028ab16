//! Flags and project of a file, for chattr(1), lsattr(1) and quota tools.
//!
//! Linux turns these `ioctl`s into operations of its own. It checks who may change what, and passes them on with the
//! numbers below, whatever the size of a `long` in the calling program.

use super::context::{Ops, Reply, caller};
use super::ioctl_call::Call;
use crate::protocol::opcode::Opcode;
use crate::stats_file::is_stats_file;
use cffs::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE, FLAG_NOATIME, FLAG_NODUMP, FLAG_PROJECT_INHERIT, FLAG_SYNC};
use cffs::{Error, Fs, Result};

const GET_FLAGS: u32 = 0x8008_6601;
const GET_FLAGS_32: u32 = 0x8004_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const SET_FLAGS_32: u32 = 0x4004_6602;
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;

/// Bytes of `struct fsxattr`: flags, extent size, number of extents, project, extent size for copies, and room.
const XATTR_SIZE: usize = 28;

/// Flags of `struct fsxattr`, and the inode flags they stand for.
const XFLAGS: [(u32, u32); 6] = [
    (0x8, FLAG_IMMUTABLE),
    (0x10, FLAG_APPEND),
    (0x20, FLAG_SYNC),
    (0x40, FLAG_NOATIME),
    (0x80, FLAG_NODUMP),
    (0x200, FLAG_PROJECT_INHERIT),
];

impl Ops {
    /// Answers one of these `ioctl`s; `None` for any other.
    pub(super) fn flags_ioctl(&self, call: &Call<'_>) -> Option<Reply<Vec<u8>>> {
        let operation = match call.cmd {
            GET_FLAGS | GET_FLAGS_32 => get_flags,
            SET_FLAGS | SET_FLAGS_32 => set_flags,
            GET_XATTR => get_xattr,
            SET_XATTR => set_xattr,
            _ => return None,
        };
        let answer = self.state.call(Opcode::Ioctl, call.ino, |fs| {
            if is_stats_file(call.ino) {
                return Err(Error::Unsupported);
            }
            operation(fs, call)
        });
        if answer.is_ok() && matches!(call.cmd, SET_FLAGS | SET_FLAGS_32 | SET_XATTR) {
            // The kernel does not expect a new change time.
            self.state.attributes_changed(call.ino);
        }
        Some(answer)
    }
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let four = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    four.map(u32::from_ne_bytes).ok_or_else(|| Error::Invalid("too few bytes".into()))
}

/// A word, padded to the requested number of bytes.
fn padded(word: u32, call: &Call<'_>) -> Vec<u8> {
    let mut out = word.to_ne_bytes().to_vec();
    out.resize(call.out_size.clamp(4, 8), 0);
    out
}

fn get_flags(fs: &Fs, call: &Call<'_>) -> Result<Vec<u8>> {
    Ok(padded(fs.getattr(call.ino)?.flags, call))
}

fn set_flags(fs: &Fs, call: &Call<'_>) -> Result<Vec<u8>> {
    fs.set_flags(caller(call.who), call.ino, word(call.input, 0)?)?;
    Ok(Vec::new())
}

fn get_xattr(fs: &Fs, call: &Call<'_>) -> Result<Vec<u8>> {
    let flags = fs.getattr(call.ino)?.flags;
    let (project, _) = fs.project(call.ino)?;
    let xflags: u32 = XFLAGS.iter().filter(|(_, f)| flags & f != 0).map(|(x, _)| x).sum();
    let mut out = vec![0; XATTR_SIZE];
    out[0..4].copy_from_slice(&xflags.to_ne_bytes());
    out[12..16].copy_from_slice(&project.to_ne_bytes());
    Ok(out)
}

fn set_xattr(fs: &Fs, call: &Call<'_>) -> Result<Vec<u8>> {
    let (xflags, project) = (word(call.input, 0)?, word(call.input, 12)?);
    let known: u32 = XFLAGS.iter().map(|(x, _)| x).sum();
    if xflags & !known != 0 || word(call.input, 4)? != 0 || word(call.input, 16)? != 0 {
        return Err(Error::Unsupported);
    }
    let wanted: u32 = XFLAGS.iter().filter(|(x, _)| xflags & x != 0).map(|(_, f)| f).sum();
    let ours: u32 = XFLAGS.iter().map(|(_, f)| f).sum();
    let flags = fs.getattr(call.ino)?.flags;
    if fs.project(call.ino)?.0 != project {
        if !caller(call.who).privileged() {
            return Err(Error::NotPermitted);
        }
        fs.set_project(caller(call.who), call.ino, project, flags & FLAG_PROJECT_INHERIT != 0)?;
    }
    if flags & ours != wanted {
        fs.set_flags(caller(call.who), call.ino, flags & !ours | wanted)?;
    }
    Ok(Vec::new())
}
