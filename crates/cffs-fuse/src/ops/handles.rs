//! Messages that open and close files. They exist on mounts where the kernel does not do that alone.

use super::context::{Ops, Reply};
use crate::protocol::opcode::Opcode;
use cffs::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE};
use cffs::{Error, Ino};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// `FOPEN_KEEP_CACHE`, `FOPEN_CACHE_DIR`, `FOPEN_NOFLUSH`.
const KEEP_CACHE: u32 = 1 << 1;
const CACHE_DIR: u32 = 1 << 3;
const NOFLUSH: u32 = 1 << 5;

impl Ops {
    /// Flags of the reply to OPEN, if it is answered at all. A file that may not be changed is not opened for that.
    pub(crate) fn open(&self, ino: Ino, flags: u32) -> Reply<u32> {
        if self.capabilities.no_open {
            self.state.count(Opcode::Open);
            return Err(Errno::NOSYS);
        }
        let flags = OFlags::from_bits_retain(flags);
        let writes = !(flags & OFlags::ACCMODE).is_empty();
        self.state.call(Opcode::Open, ino, |fs| {
            if writes && !crate::stats_file::is_stats_file(ino) {
                let of_file = fs.getattr(ino)?.flags;
                if of_file & FLAG_IMMUTABLE != 0 || (of_file & FLAG_APPEND != 0 && !flags.contains(OFlags::APPEND)) {
                    return Err(Error::NotPermitted);
                }
            }
            // With strictatime each open drops the cached pages, so that a READ reports the access.
            Ok(if self.state.strict_atime() { NOFLUSH } else { NOFLUSH | KEEP_CACHE })
        })
    }

    /// The same for OPENDIR.
    pub(crate) fn opendir(&self) -> Reply<u32> {
        self.state.count(Opcode::OpenDir);
        match self.capabilities.no_opendir {
            true => Err(Errno::NOSYS),
            false if self.state.strict_atime() => Ok(0),
            false => Ok(CACHE_DIR | KEEP_CACHE),
        }
    }

    /// Flags of a file that was just made and opened.
    pub(crate) fn created(&self) -> u32 {
        KEEP_CACHE | NOFLUSH
    }
}
