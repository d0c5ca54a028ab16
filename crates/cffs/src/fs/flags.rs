//! Flags of inodes: what chattr(1) sets.

use super::traced::note_caller;
use super::{Attr, Caller, Fs, now};
use crate::error::{Error, Result};
use crate::format::inode::{
    FLAG_APPEND, FLAG_DIRSYNC, FLAG_IMMUTABLE, FLAG_SYNC, FLAGS, FLAGS_OF_DIRS, INLINE_MAX, INODE_CORE_SIZE,
};
use crate::format::{FileType, Ino, Inode};
use crate::node::{Node, NodeState};
use crate::trace::{Detail, Kind};
use std::sync::Arc;

/// [`Error::NotPermitted`] if the file has one of the flags.
pub(super) fn forbid(st: &NodeState, flags: u32) -> Result<()> {
    forbid_inode(&st.inode, flags)
}

/// The same for an inode.
pub(super) fn forbid_inode(inode: &Inode, flags: u32) -> Result<()> {
    if inode.flags & flags == 0 { Ok(()) } else { Err(Error::NotPermitted) }
}

/// A change of attributes that sets flags.
fn note_flags(d: &mut Detail, c: Caller, flags: u32) {
    [1 << 6, u64::from(flags), 0, 0, 0].iter().for_each(|n| d.add_number(*n));
    note_caller(d, c);
}

impl Fs {
    /// Sets the flags of a file or directory ([`crate::format::inode::FLAGS`]).
    ///
    /// [`Error::NotPermitted`] unless the caller owns it or is privileged; only a privileged caller may set or clear
    /// *immutable* and *append-only*. [`Error::Unsupported`] for unknown flags, and for flags that this type of file
    /// cannot have.
    pub fn set_flags(&self, c: Caller, ino: Ino, flags: u32) -> Result<Attr> {
        self.op(Kind::Setattr, [ino, 0, 0], |d| note_flags(d, c, flags), || self.change_flags(c, ino, flags))
    }

    fn change_flags(&self, c: Caller, ino: Ino, flags: u32) -> Result<Attr> {
        self.writable()?;
        let node = self.node(ino)?;
        let locks = FLAG_IMMUTABLE | FLAG_APPEND;
        if flags & locks != 0 && c.privileged() {
            self.mark_immutable_files()?;
        }
        let txn = self.journal.begin(INODE_CORE_SIZE + INLINE_MAX + 256)?;
        let mut st = node.state.write();
        if st.freed {
            return Err(Error::Stale);
        }
        let allowed = match st.inode.file_type() {
            FileType::Directory => FLAGS,
            FileType::Regular => FLAGS & !FLAGS_OF_DIRS,
            _ => return Err(Error::Unsupported),
        };
        if flags & !allowed != 0 {
            return Err(Error::Unsupported);
        }
        let changes_locks = (flags ^ st.inode.flags) & locks != 0;
        if !c.privileged() && (changes_locks || c.uid != st.inode.uid) {
            return Err(Error::NotPermitted);
        }
        st.inode.flags = flags;
        st.inode.ctime = now();
        crate::node::store(&txn, &mut st)?;
        Ok(self.attr(&node, &st))
    }

    /// Commits changed names if one of the directories is synchronous.
    pub(super) fn sync_names(&self, dirs: &[&Arc<Node>]) -> Result<()> {
        let asks = |n: &&Arc<Node>| n.state.read().inode.flags & (FLAG_SYNC | FLAG_DIRSYNC) != 0;
        if dirs.iter().any(asks) { self.journal.commit() } else { Ok(()) }
    }
}
