//! Copying between files inside the file system: copy_file_range(2).

use super::traced::note_caller;
use super::{Caller, Fs, now};
use crate::error::{Error, Result};
use crate::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE};
use crate::format::{FILE_SIZE_MAX, FileType, Ino};
use crate::trace::Kind;

/// Bytes copied at once.
const CHUNK: u64 = 1 << 20;

impl Fs {
    /// Copies up to `len` bytes from `offset` of file `from` to `to_offset` of file `to`. Returns the number of bytes,
    /// which is smaller at the end of `from`, or if an error follows some bytes. Holes are not read, and stay holes
    /// where `to` has no bytes either.
    ///
    /// [`Error::Invalid`] when the ranges overlap in one file.
    pub fn copy_range(&self, c: Caller, from: Ino, offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64> {
        self.op(
            Kind::Copy,
            [from, to, len],
            |d| {
                d.add_number(offset);
                d.add_number(to_offset);
                note_caller(d, c);
            },
            || self.copy_pieces(c, from, offset, to, to_offset, len),
        )
    }

    fn copy_pieces(&self, c: Caller, from: Ino, offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64> {
        self.writable()?;
        let (source, target) = (self.getattr(from)?, self.getattr(to)?);
        for a in [&source, &target] {
            match a.file_type {
                FileType::Regular => {}
                FileType::Directory => return Err(Error::IsDir),
                _ => return Error::invalid("only regular files can be copied"),
            }
        }
        let len = len.min(source.size.saturating_sub(offset));
        to_offset.checked_add(len).filter(|e| *e <= FILE_SIZE_MAX).ok_or(Error::FileTooLarge)?;
        if from == to && offset.abs_diff(to_offset) < len {
            return Error::invalid("the ranges to copy from and to overlap");
        }
        // Checked here, because a copy that begins with a hole writes nothing at first.
        let locked = target.flags & FLAG_IMMUTABLE != 0 || target.flags & FLAG_APPEND != 0 && to_offset != target.size;
        if len > 0 && locked {
            return Err(Error::NotPermitted);
        }
        // What is written to it has to begin where it ends, also behind a hole.
        let appends = target.flags & FLAG_APPEND != 0;
        let mut buffer = Vec::new();
        let mut done = 0;
        while done < len {
            if appends && done > 0 && self.end_copy(c, to, to_offset + done).is_err() {
                break;
            }
            match self.copy_some(c, (from, offset + done), (to, to_offset + done), len - done, &mut buffer) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        if done > 0 {
            self.end_copy(c, to, to_offset + done)?;
        }
        Ok(done)
    }

    /// What no write did where the copied range has holes: extends the file if it is shorter, and sets its times. Others may
    /// write to it at the same time: what they append stays.
    fn end_copy(&self, c: Caller, ino: Ino, size: u64) -> Result<()> {
        let node = self.node(ino)?;
        let _write_lock = self.lock_for_change(&node)?;
        {
            let mut st = node.state.write();
            if st.freed {
                return Err(Error::Stale);
            }
            if size > st.inode.size {
                crate::file::extend(&self.file_cx(), &mut st, size, c.privileged())?;
            }
            let now = now();
            (st.inode.mtime, st.inode.ctime) = (now, now);
            st.dirty = true;
        }
        self.list_dirty(&node);
        Ok(())
    }

    /// Copies the next piece.
    fn copy_some(
        &self,
        c: Caller,
        (from, at): (Ino, u64),
        (to, to_at): (Ino, u64),
        len: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<u64> {
        let hole = distance(self.seek_data(from, at), at, len)?;
        if hole > 0 {
            let in_both = distance(self.seek_data(to, to_at), to_at, hole)?;
            if in_both > 0 {
                return Ok(in_both);
            }
        }
        // A piece ends where something begins that may stay a hole.
        let end = match hole {
            0 => distance(self.seek_hole(from, at), at, len)?,
            _ => distance(self.seek_hole(to, to_at), to_at, hole)?,
        };
        // Others may have changed the files meanwhile.
        let n = end.clamp(1, CHUNK);
        buffer.resize(n as usize, 0);
        let got = self.read(from, at, buffer)?;
        if got == 0 {
            return Ok(0);
        }
        Ok(self.write(c, to, to_at, &buffer[..got])? as u64)
    }
}

/// The number of bytes from `at` to what was sought, at most `len`, also where there is none.
fn distance(sought: Result<u64>, at: u64, len: u64) -> Result<u64> {
    match sought {
        Ok(found) => Ok(found.saturating_sub(at).min(len)),
        Err(Error::NoDataBeyond) => Ok(len),
        Err(e) => Err(e),
    }
}
