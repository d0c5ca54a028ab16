//! Removing names: unlink and rmdir.

use super::create::write_names_ordered;
use super::{Fs, Locked, as_dir, flags, now};
use crate::dir::{self, Found};
use crate::error::{Error, Result};
use crate::format::Ino;
use crate::format::dirblock::EntryKind;
use crate::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE};
use crate::journal::Txn;
use crate::node::Node;
use crate::trace::Kind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Fs {
    /// Removes the name of a file other than a directory.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.op(Kind::Unlink, [parent, 0, 0], |d| d.add_name(name), || self.remove_name(parent, name, false))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.op(Kind::Rmdir, [parent, 0, 0], |d| d.add_name(name), || self.remove_name(parent, name, true))
    }

    fn remove_name(&self, parent: Ino, name: &[u8], directory: bool) -> Result<()> {
        self.writable()?;
        Self::check_name(name)?;
        let dir_node = self.node(parent)?;
        self.remove_name_once(&dir_node, name, directory)
    }

    fn remove_name_once(&self, dir_node: &Arc<Node>, name: &[u8], directory: bool) -> Result<()> {
        let parent = dir_node.ino;
        loop {
            let node = self.find_node(dir_node, name)?.ok_or(Error::NotFound)?;
            let txn = self.journal.begin(self.log_bytes_remove())?;
            let mut locked = Locked::new(&[dir_node, &node]);
            let Some(found) = self.find_locked(&mut locked, parent, name)? else { return Err(Error::NotFound) };
            if found.ino != node.ino || locked.get(node.ino)?.freed {
                continue; // the name belongs to another file by now, perhaps one with the same number
            }
            {
                let st = locked.get(node.ino)?;
                match (directory, st.inode.is_dir()) {
                    (true, false) => return Err(Error::NotDir),
                    (false, true) => return Err(Error::IsDir),
                    (true, true) if !dir::is_empty(&st.inode) => return Err(Error::NotEmpty),
                    _ => {}
                }
                flags::forbid(st, FLAG_IMMUTABLE | FLAG_APPEND)?;
                flags::forbid(locked.get(parent)?, FLAG_IMMUTABLE | FLAG_APPEND)?;
            }
            if directory {
                self.release_blocks(&txn, &mut locked, node.ino)?;
            }
            let now = now();
            txn.begin_critical();
            self.drop_name(&txn, &mut locked, parent, &found, name, now)?;
            let dir_st = locked.get(parent)?;
            if directory {
                dir_st.inode.nlink = dir_st.inode.nlink.saturating_sub(1);
            }
            self.changed_dir(&txn, dir_st, now)?;
            self.store_tables(&txn)?;
            txn.end_critical();
            drop(locked);
            drop(txn);
            self.reclaim_if_unused(&node);
            return self.sync_names(&[dir_node]);
        }
    }

    /// Reclaims a file without a name at once if nobody refers to it.
    pub(super) fn reclaim_if_unused(&self, node: &Arc<Node>) {
        if node.refs.load(Ordering::Acquire) == 0 && node.state.read().orphan {
            self.reclaim_or_log(node);
        }
    }

    /// Looks for a name in a directory that is locked.
    pub(super) fn find_locked(&self, locked: &mut Locked<'_>, dir: Ino, name: &[u8]) -> Result<Option<Found>> {
        let st = locked.get(dir)?;
        if st.freed || st.orphan {
            return Ok(None);
        }
        let location = st.location;
        let (inode, state) = as_dir(st)?;
        dir::lookup(&self.search_cx(location), inode, state, name)
    }

    /// Removes the name `found` of a file, which becomes an orphan if it was the last one. File and directory are
    /// locked; the caller stores the directory.
    pub(super) fn drop_name(
        &self,
        txn: &Txn<'_>,
        locked: &mut Locked<'_>,
        dir: Ino,
        found: &Found,
        name: &[u8],
        now: i64,
    ) -> Result<()> {
        let cx = self.dir_cx();
        let (dir_st, st) = locked.pair(dir, found.ino)?;
        let last = st.inode.is_dir() || st.inode.nlink <= 1;
        // Read before anything changes, so that nothing fails half way.
        let _inode_block = self.inode_block(st.location)?;
        let frags = dir_st.inode.frags;
        {
            let (inode, state) = as_dir(dir_st)?;
            if found.kind == EntryKind::Embedded {
                // The inode stays in place until nobody refers to it.
                dir::orphan(&cx, txn, inode, state, found, name)?;
            } else {
                dir::remove(&cx, txn, &self.space, inode, state, found, name)?;
            }
        }
        if found.kind != EntryKind::Embedded {
            // The name must be gone before the inode can be reused.
            write_names_ordered(txn, dir_st, found.block, frags);
        }
        st.inode.nlink = if last { 0 } else { st.inode.nlink - 1 };
        st.inode.ctime = now;
        if last {
            self.push_orphan(txn, st)?;
        }
        crate::node::store(txn, st)
    }

    /// Frees the blocks of an empty directory that loses its name or is reclaimed. It still has blocks if there was no
    /// space to free them before, or if a creation failed. False, with nothing changed, while orphans are embedded in
    /// them: directory and blocks stay, without a name, until the last orphan is reclaimed ([`Fs::reclaim`]). So a
    /// removal needs no space.
    pub(super) fn release_blocks(&self, txn: &Txn<'_>, locked: &mut Locked<'_>, dir: Ino) -> Result<bool> {
        let st = locked.get(dir)?;
        let (inode, state) = as_dir(st)?;
        if inode.frags == 0 {
            return Ok(true);
        }
        if dir::has_orphans(&self.dir_cx(), inode, state)? {
            return Ok(false);
        }
        let frags = inode.frags;
        let outcome = dir::release(&self.dir_cx(), txn, &self.space, inode, state);
        if inode.frags != frags {
            // Stored at once, because the caller may fail and the directory stay.
            st.disk_size = st.inode.size;
            crate::node::store(txn, st)?;
        }
        outcome.map(|()| true)
    }
}
