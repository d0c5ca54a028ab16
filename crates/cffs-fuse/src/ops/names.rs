//! Messages about names: finding, making, removing and renaming files.

use super::context::{Ops, Reply, caller, not_a_stats_file, note_creator};
use crate::protocol::opcode::Opcode;
use crate::protocol::wire::{Credentials, mode_type};
use crate::stats_file::{STATS_FILE, is_stats_file};
use cffs::{Attr, Error, FileType, Ino, ROOT_INO, RenameFlags, Result};
use rustix::io::Errno;

/// `RENAME_NOREPLACE` and `RENAME_EXCHANGE` of renameat2(2).
const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// The result of a lookup.
pub(crate) enum Found {
    Entry(Attr),
    /// The attributes may be cached, but not the name, which refers to another file next time.
    Uncached(Attr),
    /// There is no such name, and the kernel may cache that.
    Nothing,
}

/// Whether a name is that of the stats file.
fn is_stats(parent: Ino, name: &[u8]) -> bool {
    parent == ROOT_INO && name == STATS_FILE.as_bytes()
}

fn reserved(parent: Ino, name: &[u8]) -> Result<()> {
    if is_stats(parent, name) { Err(Error::NotPermitted) } else { Ok(()) }
}

impl Ops {
    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Reply<Found> {
        if is_stats(parent, name) {
            return match self.state.stats_text() {
                Ok(text) => Ok(Found::Uncached(self.state.stats_files.make(text))),
                Err(e) => Err(Errno::from_raw_os_error(e.errno())),
            };
        }
        if matches!(name, b"." | b"..") {
            return self.by_number(parent, name).map(Found::Entry);
        }
        match self.state.call(Opcode::Lookup, parent, |fs| fs.lookup(parent, name)) {
            Ok(a) => Ok(Found::Entry(a)),
            Err(Errno::NOENT) => Ok(Found::Nothing),
            Err(e) => Err(e),
        }
    }

    /// The kernel asks so for an inode that it has forgotten and that a file handle names, and for the parent of a
    /// directory that it has found in this way.
    fn by_number(&self, ino: Ino, name: &[u8]) -> Reply<Attr> {
        self.state.call(Opcode::Lookup, ino, |fs| {
            if is_stats_file(ino) {
                return Err(Error::Stale);
            }
            if name == b"." { fs.reference(ino) } else { fs.reference(fs.parent(ino)?) }
        })
    }

    pub(crate) fn forget(&self, ino: Ino, nlookup: u64) {
        if is_stats_file(ino) {
            self.state.stats_files.forget(ino);
        } else {
            // FORGET has no reply, so an error cannot be reported; the engine has none that matters here.
            let _ = self.state.call(Opcode::Forget, ino, |fs| {
                fs.forget(ino, nlookup);
                Ok(())
            });
        }
    }

    pub(crate) fn readlink(&self, ino: Ino) -> Reply<Vec<u8>> {
        self.state.call(Opcode::ReadLink, ino, |fs| fs.readlink(ino))
    }

    /// The kernel also sends this for open(2) with `O_CREAT`, because CREATE is declined.
    pub(crate) fn mknod(
        &self,
        who: Credentials,
        parent: Ino,
        name: &[u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Reply<Attr> {
        self.state.call(Opcode::MkNod, parent, |fs| {
            reserved(parent, name)?;
            let perm = self.new_permissions(mode, umask);
            match mode_type(mode) {
                None => Err(Error::Invalid(format!("mode {mode:o} has no file type"))),
                Some(FileType::Regular) => {
                    fs.create(caller(who), parent, name, perm).inspect(|a| note_creator(fs, who, parent, a))
                }
                Some(t) => fs.mknod(caller(who), parent, name, t, perm, rdev),
            }
        })
    }

    /// Makes and opens a file.
    pub(crate) fn create(&self, who: Credentials, parent: Ino, name: &[u8], mode: u32, umask: u32) -> Reply<Attr> {
        if self.capabilities.no_open {
            // MKNOD and an open without a message are one message in all. CREATE would need a RELEASE in addition.
            self.state.count(Opcode::Create);
            return Err(Errno::NOSYS);
        }
        self.state.call(Opcode::Create, parent, |fs| {
            reserved(parent, name)?;
            let made = fs.create(caller(who), parent, name, self.new_permissions(mode, umask));
            made.inspect(|a| note_creator(fs, who, parent, a))
        })
    }

    /// Makes a file without a name, in the way of files in a directory.
    pub(crate) fn tmpfile(&self, who: Credentials, dir: Ino, mode: u32, umask: u32) -> Reply<Attr> {
        self.state.call(Opcode::TmpFile, dir, |fs| fs.tmpfile(caller(who), dir, self.new_permissions(mode, umask)))
    }

    pub(crate) fn mkdir(&self, who: Credentials, parent: Ino, name: &[u8], mode: u32, umask: u32) -> Reply<Attr> {
        self.state.call(Opcode::MkDir, parent, |fs| {
            reserved(parent, name)?;
            fs.mkdir(caller(who), parent, name, self.new_permissions(mode, umask))
        })
    }

    pub(crate) fn unlink(&self, parent: Ino, name: &[u8]) -> Reply<()> {
        self.state.call(Opcode::Unlink, parent, |fs| {
            reserved(parent, name)?;
            fs.unlink(parent, name)
        })
    }

    pub(crate) fn rmdir(&self, parent: Ino, name: &[u8]) -> Reply<()> {
        self.state.call(Opcode::RmDir, parent, |fs| fs.rmdir(parent, name))
    }

    pub(crate) fn symlink(&self, who: Credentials, parent: Ino, name: &[u8], target: &[u8]) -> Reply<Attr> {
        self.state.call(Opcode::SymLink, parent, |fs| {
            reserved(parent, name)?;
            fs.symlink(caller(who), parent, name, target)
        })
    }

    pub(crate) fn rename(&self, who: Credentials, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: u32) -> Reply<()> {
        self.state.call(Opcode::Rename, from.0, |fs| {
            reserved(from.0, from.1)?;
            reserved(to.0, to.1)?;
            let both = NOREPLACE | EXCHANGE;
            if flags & !both != 0 || flags == both {
                return Err(Error::Invalid(format!("rename flags {flags:#x}")));
            }
            let flags = RenameFlags { no_replace: flags & NOREPLACE != 0, exchange: flags & EXCHANGE != 0 };
            fs.rename(caller(who), from.0, from.1, to.0, to.1, flags)
        })
    }

    pub(crate) fn link(&self, who: Credentials, ino: Ino, parent: Ino, name: &[u8]) -> Reply<Attr> {
        self.state.call(Opcode::Link, ino, |fs| {
            reserved(parent, name)?;
            not_a_stats_file(ino)?;
            fs.link(caller(who), ino, parent, name)
        })
    }
}
