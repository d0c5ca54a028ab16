//! The messages of the kernel, executed: one function for each, whichever way it was received.
//!
//! [`crate::server`] receives the messages that fuser reads from `/dev/fuse`, [`crate::ring`] those through io_uring.

use crate::config::MountConfig;
use crate::control::Asker;
use crate::convert;
use crate::ioctl;
use crate::kernel::Capabilities;
use crate::messages::Message;
use crate::mount_state::MountState;
use crate::ranges;
use crate::stats_file::{STATS_FILE, is_stats_file};
use cffs::{Attr, Caller, Error, FileType, Ino, ROOT_INO, RenameFlags, Result, SetAttr, StatFs};
use fuser::{Errno, INodeNo};
use std::sync::{Arc, OnceLock};

/// Positions in a listing for `.` and `..`, which the engine does not list. Its own positions begin at 64.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// `whence` of lseek(2), as far as the kernel does not handle it itself.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// `RENAME_NOREPLACE` and `RENAME_EXCHANGE` of renameat2(2).
const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// The result for the sender of a message.
pub(crate) type Reply<T> = std::result::Result<T, Errno>;

/// The sender of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

impl Credentials {
    pub(crate) fn caller(self) -> Caller {
        Caller { uid: self.uid, gid: self.gid }
    }
}

/// The result of a lookup.
pub(crate) enum Found {
    Entry(Attr),
    /// The attributes may be cached, but not the name, which refers to another file next time.
    Uncached(Attr),
    /// There is no such name, and the kernel may cache that.
    Nothing,
}

/// An entry of a listing.
pub(crate) struct Listed<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) ino: Ino,
    pub(crate) file_type: FileType,
    /// The position to continue from.
    pub(crate) next: u64,
    /// For a listing with attributes, which takes a reference for the kernel. The directory itself and its parent have
    /// no attributes here, and get no reference.
    pub(crate) attr: Option<&'a Attr>,
}

/// A mounted file system, as it answers the kernel.
pub(crate) struct Ops {
    pub(crate) shared: Arc<MountState>,
    pub(crate) config: MountConfig,
    capabilities: OnceLock<Capabilities>,
}

/// Whether a name is that of the stats file.
fn is_stats(parent: Ino, name: &[u8]) -> bool {
    parent == ROOT_INO && name == STATS_FILE.as_bytes()
}

fn reserved(parent: Ino, name: &[u8]) -> Result<()> {
    if is_stats(parent, name) { Err(Error::NotPermitted) } else { Ok(()) }
}

fn not_a_stats_file(ino: Ino) -> Result<()> {
    if is_stats_file(ino) { Err(Error::NotPermitted) } else { Ok(()) }
}

impl Ops {
    pub(crate) fn new(shared: Arc<MountState>, config: &MountConfig) -> Ops {
        Ops { shared, config: config.clone(), capabilities: OnceLock::new() }
    }

    /// Sets what was negotiated with the kernel; once.
    pub(crate) fn agreed(&self, capabilities: Capabilities) {
        let _ = self.capabilities.set(capabilities);
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.capabilities.get().copied().unwrap_or_default()
    }

    /// Counts a message that is not supported: after ENOSYS the kernel does not send that kind again.
    pub(crate) fn unsupported(&self) -> Errno {
        self.shared.count(Message::Unsupported);
        Errno::ENOSYS
    }

    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Reply<Found> {
        if is_stats(parent, name) {
            return match self.shared.stats_text() {
                Ok(text) => Ok(Found::Uncached(self.shared.stats_files.make(text))),
                Err(e) => Err(Errno::from_i32(e.errno())),
            };
        }
        match self.shared.call(Message::Lookup, parent, |fs| fs.lookup(parent, name)) {
            Ok(a) => Ok(Found::Entry(a)),
            Err(e) if e == Errno::ENOENT => Ok(Found::Nothing),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn forget(&self, ino: Ino, nlookup: u64) {
        if is_stats_file(ino) {
            self.shared.stats_files.forget(ino);
        } else {
            // FORGET has no reply, so an error cannot be reported; the engine has none that matters here.
            let _ = self.shared.call(Message::Forget, ino, |fs| {
                fs.forget(ino, nlookup);
                Ok(())
            });
        }
    }

    pub(crate) fn getattr(&self, ino: Ino) -> Reply<Attr> {
        self.shared.call(Message::GetAttr, ino, |fs| {
            if is_stats_file(ino) { self.shared.stats_files.attr(ino).ok_or(Error::Stale) } else { fs.getattr(ino) }
        })
    }

    pub(crate) fn setattr(&self, who: Credentials, ino: Ino, set: SetAttr) -> Reply<Attr> {
        self.shared.call(Message::SetAttr, ino, |fs| {
            not_a_stats_file(ino)?;
            fs.setattr(who.caller(), ino, self.drop_privileges(fs, who, ino, set)?)
        })
    }

    pub(crate) fn readlink(&self, ino: Ino) -> Reply<Vec<u8>> {
        self.shared.call(Message::ReadLink, ino, |fs| fs.readlink(ino))
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
        self.shared.call(Message::MkNod, parent, |fs| {
            reserved(parent, name)?;
            let perm = self.new_permissions(mode, umask);
            match convert::mode_type(mode) {
                None => Err(Error::Invalid(format!("mode {mode:o} has no file type"))),
                Some(FileType::Regular) => fs.create(who.caller(), parent, name, perm),
                Some(t) => fs.mknod(who.caller(), parent, name, t, perm, rdev),
            }
        })
    }

    pub(crate) fn mkdir(&self, who: Credentials, parent: Ino, name: &[u8], mode: u32, umask: u32) -> Reply<Attr> {
        self.shared.call(Message::MkDir, parent, |fs| {
            reserved(parent, name)?;
            fs.mkdir(who.caller(), parent, name, self.new_permissions(mode, umask))
        })
    }

    pub(crate) fn unlink(&self, parent: Ino, name: &[u8]) -> Reply<()> {
        self.shared.call(Message::Unlink, parent, |fs| {
            reserved(parent, name)?;
            fs.unlink(parent, name)
        })
    }

    pub(crate) fn rmdir(&self, parent: Ino, name: &[u8]) -> Reply<()> {
        self.shared.call(Message::RmDir, parent, |fs| fs.rmdir(parent, name))
    }

    pub(crate) fn symlink(&self, who: Credentials, parent: Ino, name: &[u8], target: &[u8]) -> Reply<Attr> {
        self.shared.call(Message::SymLink, parent, |fs| {
            reserved(parent, name)?;
            fs.symlink(who.caller(), parent, name, target)
        })
    }

    pub(crate) fn rename(&self, who: Credentials, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: u32) -> Reply<()> {
        self.shared.call(Message::Rename, from.0, |fs| {
            reserved(from.0, from.1)?;
            reserved(to.0, to.1)?;
            let both = NOREPLACE | EXCHANGE;
            if flags & !both != 0 || flags == both {
                return Err(Error::Invalid(format!("rename flags {flags:#x}")));
            }
            let flags = RenameFlags { no_replace: flags & NOREPLACE != 0, exchange: flags & EXCHANGE != 0 };
            fs.rename(who.caller(), from.0, from.1, to.0, to.1, flags)
        })
    }

    pub(crate) fn link(&self, who: Credentials, ino: Ino, parent: Ino, name: &[u8]) -> Reply<Attr> {
        self.shared.call(Message::Link, ino, |fs| {
            reserved(parent, name)?;
            not_a_stats_file(ino)?;
            fs.link(who.caller(), ino, parent, name)
        })
    }

    /// Whether OPEN is answered at all, and if so, whether cached pages stay valid.
    pub(crate) fn open(&self) -> Reply<bool> {
        self.shared.count(Message::Open);
        // With strictatime each open drops the cached pages, so that a READ reports the access.
        if self.capabilities().no_open { Err(Errno::ENOSYS) } else { Ok(!self.shared.strict_atime()) }
    }

    /// The same for OPENDIR.
    pub(crate) fn opendir(&self) -> Reply<bool> {
        self.shared.count(Message::OpenDir);
        if self.capabilities().no_opendir { Err(Errno::ENOSYS) } else { Ok(!self.shared.strict_atime()) }
    }

    /// FLUSH needs no work.
    pub(crate) fn flush(&self) -> Errno {
        self.shared.count(Message::Flush);
        Errno::ENOSYS
    }

    pub(crate) fn release(&self) {
        self.shared.count(Message::Release);
    }

    pub(crate) fn releasedir(&self) {
        self.shared.count(Message::ReleaseDir);
    }

    pub(crate) fn create(&self, who: Credentials, parent: Ino, name: &[u8], mode: u32, umask: u32) -> Reply<Attr> {
        if self.capabilities().no_open {
            // MKNOD and an open without a message are one message in all. CREATE would need a RELEASE in addition.
            self.shared.count(Message::Create);
            return Err(Errno::ENOSYS);
        }
        self.shared.call(Message::Create, parent, |fs| {
            reserved(parent, name)?;
            fs.create(who.caller(), parent, name, self.new_permissions(mode, umask))
        })
    }

    /// Fills `out` from `offset` on. Returns the number of bytes.
    pub(crate) fn read(&self, ino: Ino, offset: u64, out: &mut [u8]) -> Reply<usize> {
        if is_stats_file(ino) {
            let text = self.shared.stats_files.text(ino).ok_or(Errno::ESTALE)?;
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
            let n = out.len().min(text.len() - from);
            out[..n].copy_from_slice(&text.as_bytes()[from..from + n]);
            return Ok(n);
        }
        self.shared.call(Message::Read, ino, |fs| fs.read(ino, offset, out))
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
        self.shared.call(Message::Write, ino, |fs| {
            not_a_stats_file(ino)?;
            if privileges_fall && fs.clear_set_id(ino)? {
                self.shared.attributes_changed(INodeNo(ino));
            }
            fs.write(who.caller(), ino, offset, data)
        })
    }

    pub(crate) fn fsync(&self, ino: Ino, data_only: bool) -> Reply<()> {
        self.shared.call(Message::Fsync, ino, |fs| if is_stats_file(ino) { Ok(()) } else { fs.fsync(ino, data_only) })
    }

    pub(crate) fn fsyncdir(&self, ino: Ino, data_only: bool) -> Reply<()> {
        self.shared.call(Message::FsyncDir, ino, |fs| {
            // Linux does not pass sync(2) and syncfs(2) on to a FUSE server. Programs can ask for the same with `sync
            // DIR` on the mount point.
            if ino == ROOT_INO { fs.sync() } else { fs.fsync(ino, data_only) }
        })
    }

    /// Lists a directory from a position on, until `add` returns that there is no room for another entry.
    pub(crate) fn readdir(
        &self,
        ino: Ino,
        offset: u64,
        with_attr: bool,
        add: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Reply<()> {
        let message = if with_attr { Message::ReadDirPlus } else { Message::ReadDir };
        self.shared.call(message, ino, |fs| {
            let mut dot = |ino, next, name| add(Listed { name, ino, file_type: FileType::Directory, next, attr: None });
            if offset < DOT && dot(ino, DOT, b".") {
                return Ok(());
            }
            if offset < DOT_DOT && dot(fs.parent(ino)?, DOT_DOT, b"..") {
                return Ok(());
            }
            fs.readdir(ino, engine_position(offset), with_attr, &mut |e| {
                let attr = e.attr.as_ref();
                if with_attr && attr.is_none() {
                    return false;
                }
                !add(Listed { name: &e.name, ino: e.ino, file_type: e.file_type, next: e.cookie, attr })
            })
        })
    }

    pub(crate) fn statfs(&self, ino: Ino) -> Reply<StatFs> {
        self.shared.call(Message::StatFs, ino, |fs| Ok(fs.statfs()))
    }

    pub(crate) fn lseek(&self, ino: Ino, offset: i64, whence: i32) -> Reply<u64> {
        self.shared.call(Message::Lseek, ino, |fs| {
            let (Ok(from), SEEK_DATA | SEEK_HOLE) = (u64::try_from(offset), whence) else {
                return Error::invalid(format!("seek to {offset}, whence {whence}"));
            };
            if is_stats_file(ino) {
                let size = self.shared.stats_files.attr(ino).ok_or(Error::Stale)?.size;
                return match from {
                    _ if from >= size => Err(Error::NoDataBeyond),
                    _ => Ok(if whence == SEEK_DATA { from } else { size }),
                };
            }
            if whence == SEEK_DATA { fs.seek_data(ino, from) } else { fs.seek_hole(ino, from) }
        })
    }

    pub(crate) fn fallocate(&self, who: Credentials, ino: Ino, offset: u64, length: u64, mode: i32) -> Reply<()> {
        ranges::fallocate(&self.shared, who.caller(), ino, offset..offset.saturating_add(length), mode)
    }

    pub(crate) fn copy(&self, who: Credentials, from: (Ino, u64), to: (Ino, u64), len: u64) -> Reply<u32> {
        ranges::copy(&self.shared, who.caller(), from, to, len)
    }

    pub(crate) fn ioctl(&self, who: Credentials, ino: Ino, cmd: u32, input: &[u8], out_size: usize) -> Reply<Vec<u8>> {
        let asker = Asker { uid: who.uid };
        ioctl::dispatch(&self.shared, &ioctl::Call { asker, caller: who.caller(), ino, cmd, input, out_size })
    }
}

/// The engine's position for continuing a listing after `offset`.
fn engine_position(offset: u64) -> u64 {
    if offset <= DOT_DOT { 0 } else { offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_a_listing() {
        assert_eq!([0, 1, 2, 64, 65].map(engine_position), [0, 0, 0, 64, 65]);
    }
}
