//! Messages about ranges of files: FALLOCATE and COPY_FILE_RANGE.

use super::context::{Ops, Reply, caller, not_a_stats_file};
use crate::protocol::opcode::Opcode;
use crate::protocol::wire::Credentials;
use crate::stats_file::is_stats_file;
use cffs::{Error, Fallocate, Ino, Result};

/// Most bytes copied for one message. The calling program cannot be interrupted meanwhile, and asks again for the rest.
const COPY_MAX: u64 = 16 << 20;

const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const COLLAPSE_RANGE: i32 = 8;
const ZERO_RANGE: i32 = 0x10;
const INSERT_RANGE: i32 = 0x20;

/// The operation for a mode of fallocate(2).
fn what(mode: i32) -> Result<Fallocate> {
    let keep_size = mode & KEEP_SIZE != 0;
    Ok(match mode & !KEEP_SIZE {
        0 => Fallocate::Allocate { keep_size },
        ZERO_RANGE => Fallocate::Zero { keep_size },
        PUNCH_HOLE if keep_size => Fallocate::PunchHole,
        // Linux does not pass these two on yet. They are here in case it does one day.
        COLLAPSE_RANGE if !keep_size => Fallocate::Collapse,
        INSERT_RANGE if !keep_size => Fallocate::Insert,
        _ => return Err(Error::Unsupported),
    })
}

impl Ops {
    /// Changes the space of a range. The kernel leaves it to the server to drop set-id bits.
    pub(crate) fn fallocate(&self, who: Credentials, ino: Ino, offset: u64, length: u64, mode: i32) -> Reply<()> {
        self.state.call(Opcode::Fallocate, ino, |fs| {
            not_a_stats_file(ino)?;
            let what = what(mode)?;
            if who.uid != 0 {
                self.drop_privileges(fs, who, ino)?;
            }
            fs.fallocate(caller(who), ino, what, offset, length)
        })
    }

    /// Copies from one file to another, or within one.
    pub(crate) fn copy(&self, who: Credentials, from: (Ino, u64), to: (Ino, u64), len: u64) -> Reply<u64> {
        self.state.call(Opcode::CopyFileRange, from.0, |fs| {
            if is_stats_file(from.0) || is_stats_file(to.0) {
                // The kernel then copies through the page cache, and checks permission to write itself.
                return Err(Error::Unsupported);
            }
            if who.uid != 0 {
                self.drop_privileges(fs, who, to.0)?;
            }
            fs.copy_range(caller(who), from.0, from.1, to.0, to.1, len.min(COPY_MAX))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_fallocate() {
        assert_eq!(what(0).unwrap(), Fallocate::Allocate { keep_size: false });
        assert_eq!(what(KEEP_SIZE).unwrap(), Fallocate::Allocate { keep_size: true });
        assert_eq!(what(PUNCH_HOLE | KEEP_SIZE).unwrap(), Fallocate::PunchHole);
        assert_eq!(what(ZERO_RANGE).unwrap(), Fallocate::Zero { keep_size: false });
        assert_eq!(what(ZERO_RANGE | KEEP_SIZE).unwrap(), Fallocate::Zero { keep_size: true });
        assert_eq!(what(COLLAPSE_RANGE).unwrap(), Fallocate::Collapse);
        assert_eq!(what(INSERT_RANGE).unwrap(), Fallocate::Insert);
        for mode in [PUNCH_HOLE, COLLAPSE_RANGE | KEEP_SIZE, 0x40, 0x80, PUNCH_HOLE | ZERO_RANGE, 4] {
            assert!(matches!(what(mode), Err(Error::Unsupported)), "{mode:#x}");
        }
    }
}
