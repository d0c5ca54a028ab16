//! Messages about the contents of files, and those that make them durable.

use super::context::{Ops, Reply, caller, not_a_stats_file};
use crate::protocol::opcode::Opcode;
use crate::protocol::wire::Credentials;
use crate::stats_file::is_stats_file;
use cffs::{Error, Ino, ROOT_INO};
use rustix::io::Errno;

/// `whence` of lseek(2), as far as the kernel does not handle it itself.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

impl Ops {
    /// Fills `out` from `offset` on. Returns the number of bytes.
    pub(crate) fn read(&self, who: Credentials, ino: Ino, offset: u64, out: &mut [u8]) -> Reply<usize> {
        if is_stats_file(ino) {
            let text = self.state.stats_files.text(ino).ok_or(Errno::STALE)?;
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
            let n = out.len().min(text.len() - from);
            out[..n].copy_from_slice(&text.as_bytes()[from..from + n]);
            return Ok(n);
        }
        self.state.call(Opcode::Read, ino, |fs| {
            // The kernel names no process where it reads for itself.
            if self.config.learn && who.pid != 0 {
                fs.note_read(who.pid, ino, offset, out.len());
                if fs.reads_parts() {
                    self.state.readahead.note_parts();
                }
            }
            fs.read(ino, offset, out)
        })
    }

    /// With `privileges_fall` the set-id bits and capabilities of the file are dropped.
    pub(crate) fn write(
        &self,
        who: Credentials,
        ino: Ino,
        offset: u64,
        data: &[u8],
        privileges_fall: bool,
    ) -> Reply<usize> {
        self.state.call(Opcode::Write, ino, |fs| {
            not_a_stats_file(ino)?;
            if privileges_fall {
                self.drop_privileges(fs, who, ino)?;
            }
            fs.write(caller(who), ino, offset, data)
        })
    }

    pub(crate) fn fsync(&self, ino: Ino, data_only: bool) -> Reply<()> {
        self.state.call(Opcode::Fsync, ino, |fs| if is_stats_file(ino) { Ok(()) } else { fs.fsync(ino, data_only) })
    }

    pub(crate) fn fsyncdir(&self, ino: Ino, data_only: bool) -> Reply<()> {
        self.state.call(Opcode::FsyncDir, ino, |fs| {
            // Where the mount is of type `fuse`, Linux does not pass sync(2) and syncfs(2) on. Programs can ask for the
            // same with `sync DIR` on the mount point.
            if ino == ROOT_INO { fs.sync() } else { fs.fsync(ino, data_only) }
        })
    }

    /// sync(2) and syncfs(2).
    pub(crate) fn syncfs(&self) -> Reply<()> {
        self.state.call(Opcode::SyncFs, ROOT_INO, |fs| fs.sync())
    }

    pub(crate) fn lseek(&self, ino: Ino, offset: i64, whence: i32) -> Reply<u64> {
        self.state.call(Opcode::Lseek, ino, |fs| {
            if !matches!(whence, SEEK_DATA | SEEK_HOLE) {
                return Error::invalid(format!("seek with whence {whence}"));
            }
            // A negative position is outside of the file, as one behind its end is.
            let from = u64::try_from(offset).map_err(|_| Error::NoDataBeyond)?;
            if is_stats_file(ino) {
                let size = self.state.stats_files.attr(ino).ok_or(Error::Stale)?.size;
                return match from {
                    _ if from >= size => Err(Error::NoDataBeyond),
                    _ => Ok(if whence == SEEK_DATA { from } else { size }),
                };
            }
            if whence == SEEK_DATA { fs.seek_data(ino, from) } else { fs.seek_hole(ino, from) }
        })
    }
}
