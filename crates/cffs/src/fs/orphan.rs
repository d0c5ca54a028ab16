//! Orphans: files without a name that still have references, because they were unlinked or never had one
//! ([`super::tmpfile`]). They form a list on the device, so that a mount after a
//! crash finds them.

use super::orphan_list::{Link, OrphanList};
use super::{Fs, Locked};
use crate::cache::BufRef;
use crate::dir;
use crate::error::{Error, Result};
use crate::format::dirblock::BlockEdit;
use crate::format::inode::INODE_HINT;
use crate::format::{BlockId, BlockKind, Corrupt, EXTERNAL_INO, Ino, block_owner, put_u64};
use crate::inode::InodeLocation;
use crate::journal::Txn;
use crate::node::{Node, NodeState};
use crate::trace::{Classes, Kind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Drops references of a node. Whether these were the last ones, and it has no name, so that it is to be freed.
fn drop_references(node: &Node, n: u64) -> bool {
    let before = node.refs.fetch_update(Ordering::AcqRel, Ordering::Acquire, |r| Some(r.saturating_sub(n)));
    before.is_ok_and(|r| r <= n) && node.state.read().orphan
}

impl Fs {
    /// The block of an inode, and the offset in it. While the caller holds the block, changing the inode in a
    /// transaction cannot fail.
    pub(super) fn inode_block(&self, location: InodeLocation) -> Result<(BufRef, usize)> {
        match location {
            InodeLocation::Embedded { block, inode, .. } => {
                Ok((self.cache.read_meta_any_owner(BlockKind::Dir, block)?, inode))
            }
            InodeLocation::External { block, offset } => {
                let id = BlockId { kind: BlockKind::ExternalInodes, addr: block, owner: EXTERNAL_INO };
                Ok((self.cache.read_meta(id)?, offset))
            }
            InodeLocation::System => Err(Error::NotPermitted),
        }
    }

    fn write_link(&self, txn: &Txn<'_>, location: InodeLocation, next: Ino) -> Result<()> {
        let (buf, at) = self.inode_block(location)?;
        put_u64(txn.edit(&buf).range(at + INODE_HINT, 8), 0, next);
        Ok(())
    }

    /// Puts a file at the head of the list. Its link count is 0 already, and its location does not change any more.
    pub(super) fn push_orphan(&self, txn: &Txn<'_>, st: &mut NodeState) -> Result<()> {
        let mut list = self.orphans.lock();
        let (ino, after) = (st.inode.ino, list.head);
        self.write_link(txn, st.location, after)?;
        if let Some(l) = list.links.get_mut(&after) {
            l.before = ino;
        }
        list.links.insert(ino, Link { before: 0, after, location: st.location });
        list.head = ino;
        st.orphan = true;
        self.space.with_counters(|c| c.orphan_head = ino);
        Ok(())
    }

    /// Removes a file from the list. The caller has locked the list since it read `before` ([`OrphanList::before`]).
    pub(super) fn pull_orphan(&self, txn: &Txn<'_>, list: &mut OrphanList, ino: Ino, before: Option<&(BufRef, usize)>) {
        let Some(link) = list.links.remove(&ino) else { return };
        match before {
            Some((buf, at)) => put_u64(txn.edit(buf).range(at + INODE_HINT, 8), 0, link.after),
            None => {
                list.head = link.after;
                self.space.with_counters(|c| c.orphan_head = link.after);
            }
        }
        if let Some(b) = list.links.get_mut(&link.before) {
            b.after = link.after;
        }
        if let Some(a) = list.links.get_mut(&link.after) {
            a.before = link.before;
        }
    }

    /// Drops references. A file without a name is freed with the last one.
    pub fn forget(&self, ino: Ino, n: u64) {
        // A replay needs to know of references; otherwise there is nothing to tell of one that frees nothing.
        if self.tracer().classes().meets(Classes::REPLAY) {
            let forget = || {
                self.inodes.release(ino, n).iter().for_each(|node| self.forget_node(node, n));
                Ok(())
            };
            // Nothing of it can fail.
            let _ = self.op(Kind::Forget, [ino, 0, 0], |d| d.add_number(n), forget);
        } else if let Some(node) = self.inodes.release(ino, n).filter(|node| drop_references(node, n)) {
            let _span = self.span(Kind::Forget, [ino, 0, 0]);
            self.reclaim_or_log(&node);
        }
    }

    /// As [`Fs::forget`], for a caller with the node, because its number may belong to another file by now.
    pub(super) fn forget_node(&self, node: &Arc<Node>, n: u64) {
        if drop_references(node, n) {
            self.reclaim_or_log(node);
        }
    }

    pub(super) fn reclaim_or_log(&self, node: &Arc<Node>) {
        if self.is_read_only() {
            return; // the next mount does it
        }
        if let Err(e) = self.reclaim(node) {
            tracing::error!("giving back the space of inode {}: {e}", node.ino);
        }
    }

    /// Frees an orphan completely, and then orphans that waited for it because it was embedded in their blocks.
    pub(super) fn reclaim(&self, node: &Arc<Node>) -> Result<()> {
        let mut next = node.clone();
        loop {
            if !self.reclaim_contents(&next)? {
                return Ok(());
            }
            self.reclaim_xattrs(&next)?;
            let Some(dir) = self.remove_orphan(&next)? else { return Ok(()) };
            if dir.refs.load(Ordering::Acquire) > 0 || !dir.state.read().orphan {
                return Ok(());
            }
            next = dir;
        }
    }

    /// Frees the data and tree of an orphan, in as many transactions as that needs. Returns false if it is no orphan
    /// any more, or has references.
    fn reclaim_contents(&self, node: &Arc<Node>) -> Result<bool> {
        let cx = self.file_cx();
        loop {
            let (limit, log_bytes) = {
                let st = node.state.read();
                if st.freed || !st.orphan || node.refs.load(Ordering::Acquire) > 0 {
                    return Ok(false);
                }
                if st.inode.is_dir() || (st.inode.frags == 0 && st.data.is_clean()) {
                    return Ok(true);
                }
                crate::file::truncate::plan(&cx, &st.inode)
            };
            node.wait_writeback();
            let txn = self.journal.begin(log_bytes)?;
            txn.begin_critical();
            let mut st = node.state.write();
            if node.under_way.is_busy() {
                continue;
            }
            if st.freed || node.refs.load(Ordering::Acquire) > 0 {
                return Ok(false);
            }
            let more = crate::file::truncate::shrink_step(&cx, &txn, &mut st, 0, limit)?;
            txn.end_critical();
            if !more {
                return Ok(true);
            }
        }
    }

    /// The directory with the block in which an inode is embedded.
    pub(super) fn directory_around(&self, location: InodeLocation) -> Result<Option<Arc<Node>>> {
        let InodeLocation::Embedded { block, .. } = location else { return Ok(None) };
        let owner = block_owner(&self.cache.read_meta_any_owner(BlockKind::Dir, block)?.read());
        self.node(owner).map(Some)
    }

    /// Pins the blocks that the removal of an orphan reads, so that none of its changes fails half way.
    fn hold_for_removal(
        &self,
        locked: &mut Locked<'_>,
        ino: Ino,
        location: InodeLocation,
        dir: Option<&Arc<Node>>,
    ) -> Result<Vec<BufRef>> {
        let mut held = vec![self.inode_block(location)?.0];
        held.extend(self.inodes.locator.prepare_free(&self.cache, ino)?);
        match (location, dir) {
            (InodeLocation::Embedded { block, entry, .. }, Some(dir)) => {
                let st = locked.get(dir.ino)?;
                if let InodeLocation::Embedded { .. } | InodeLocation::External { .. } = st.location {
                    held.push(self.inode_block(st.location)?.0);
                }
                let (inode, state) = super::as_dir(st)?;
                dir::find_orphan(&self.dir_cx(), inode, state, block, entry)?;
            }
            (InodeLocation::External { offset, .. }, _) => {
                let index = self.inodes.external.index_at(&held[0], offset);
                let index = index.ok_or_else(|| Corrupt(format!("inode {ino}: its block is not in its table")))?;
                held.extend(self.inodes.external.prepare_free(&self.cache, index)?);
            }
            _ => {}
        }
        Ok(held)
    }

    /// Frees the inode itself, which has no contents any more; a directory only if no orphans are embedded in its
    /// blocks. Returns the directory in which it was embedded.
    fn remove_orphan(&self, node: &Arc<Node>) -> Result<Option<Arc<Node>>> {
        let ino = node.ino;
        let location = { node.state.read().location };
        // An embedded orphan is removed from a block of its directory, so the directory is locked too.
        let dir = match self.directory_around(location) {
            Ok(dir) => dir,
            // Another thread was faster and has freed the inode, and the block with it.
            Err(_) if node.state.read().freed => return Ok(None),
            Err(e) => return Err(e),
        };
        let txn = self.journal.begin(self.log_bytes_remove())?;
        let mut nodes = vec![node];
        nodes.extend(dir.as_ref());
        let mut locked = Locked::new(&nodes);
        {
            let st = locked.get(ino)?;
            // A writeback of times alone may be under way. It finds the node freed and leaves the old location alone.
            if st.freed || node.refs.load(Ordering::Acquire) > 0 {
                return Ok(None);
            }
            if st.inode.is_dir() && !self.release_blocks(&txn, &mut locked, ino)? {
                return Ok(None);
            }
            locked.get(ino)?.data.clear(&self.cache, &self.space);
        }
        let _held = self.hold_for_removal(&mut locked, ino, location, dir.as_ref())?;
        {
            let mut list = self.orphans.lock();
            let before = list.before(ino)?.map(|location| self.inode_block(location)).transpose()?;
            txn.begin_critical();
            self.pull_orphan(&txn, &mut list, ino, before.as_ref());
        }
        match (location, &dir) {
            (InodeLocation::Embedded { block, entry, .. }, Some(dir)) => {
                let st = locked.get(dir.ino)?;
                {
                    let (inode, state) = super::as_dir(st)?;
                    dir::remove_orphan(&self.dir_cx(), &txn, &self.space, inode, state, block, entry)?;
                }
                st.disk_size = st.inode.size;
                crate::node::store(&txn, st)?;
            }
            (InodeLocation::External { block, offset }, _) => self.free_external(&txn, block, offset)?,
            _ => return Err(Error::NotPermitted),
        }
        let st = locked.get(ino)?;
        st.freed = true;
        st.orphan = false;
        if let Some(account) = &st.data.account {
            account.close(&txn);
        }
        st.dirty = false;
        self.tracer().forget_dirty(ino);
        let was_dir = st.inode.is_dir();
        if was_dir {
            self.placement.untrack(ino);
        }
        self.inodes.locator.free(&txn, &self.space, ino)?;
        // Only now, because whoever looks for the number without finding a node would load what the table still says. The
        // next owner of the number may have inserted a node of its own already, which stays.
        self.inodes.remove(node);
        self.space.with_counters(|c| c.inodes = c.inodes.saturating_sub(1));
        self.store_tables(&txn)?;
        txn.end_critical();
        drop(locked);
        Ok(dir)
    }

    /// Frees a slot of the external inode table.
    pub(super) fn free_external(&self, txn: &Txn<'_>, block: u64, offset: usize) -> Result<()> {
        let id = BlockId { kind: BlockKind::ExternalInodes, addr: block, owner: EXTERNAL_INO };
        let buf = self.cache.read_meta(id)?;
        let index = self.inodes.external.index_at(&buf, offset);
        let index = index.ok_or_else(|| Corrupt(format!("external inode block {block}: not in its table")))?;
        drop(buf);
        self.inodes.external.free(txn, &self.space, index)
    }

    /// Most bytes that removing a name or an inode logs.
    pub(super) fn log_bytes_remove(&self) -> usize {
        dir::log_bytes_for_remove(&self.geo) + self.log_bytes_names()
    }

    /// At mount: frees files that had no name at the time of a crash. A damaged one that cannot be freed stays on the
    /// list, where it does no harm, and the file system is marked for fsck.
    pub(super) fn reclaim_orphans(&self, head: Ino) -> Result<()> {
        let mut nodes = Vec::new();
        let mut damage = None;
        {
            let mut list = self.orphans.lock();
            list.head = head;
            let (mut before, mut ino) = (0, head);
            while ino != 0 {
                // The links of the list up to here are valid, so what follows can stay linked behind them.
                let node = match self.listed_orphan(&list, ino) {
                    Ok(node) => node,
                    Err(e @ (Error::Corrupt(_) | Error::Stale)) => {
                        damage = Some(format!("the orphan list breaks off at inode {ino}: {e}"));
                        break;
                    }
                    Err(e) => return Err(e),
                };
                let mut st = node.state.write();
                st.orphan = true;
                let after = st.inode.hint;
                list.links.insert(ino, Link { before, after, location: st.location });
                drop(st);
                (before, ino) = (ino, after);
                nodes.push(node);
            }
        }
        if !nodes.is_empty() {
            tracing::info!("{} unlinked files were open at the last stop", nodes.len());
        }
        for node in nodes {
            match self.reclaim(&node) {
                Ok(()) => {}
                // A damaged file is freed as far as possible, and no further.
                Err(e @ Error::Corrupt(_)) if !self.journal.has_failed() => {
                    damage =
                        Some(format!("the space of inode {}, which has no name, is not given back: {e}", node.ino));
                }
                Err(e) => return Err(e),
            }
        }
        match damage {
            Some(what) => self.mark_damaged(&what),
            None => Ok(()),
        }
    }

    /// The inode with which the orphan list continues, if it can be on the list.
    fn listed_orphan(&self, list: &OrphanList, ino: Ino) -> Result<Arc<Node>> {
        if list.links.contains_key(&ino) {
            return Err(Corrupt("it is on the list twice".into()).into());
        }
        if ino <= crate::format::LAST_SYSTEM_INO {
            return Err(Corrupt("an inode of the system".into()).into());
        }
        let node = self.inodes.get(&self.cache, ino)?;
        if node.state.read().inode.nlink != 0 {
            return Err(Corrupt("it has names".into()).into());
        }
        Ok(node)
    }

    /// At unmount: frees unlinked files, because references end with the mount.
    pub(super) fn reclaim_unlinked(&self) {
        let inos: Vec<Ino> = self.orphans.lock().links.keys().copied().collect();
        for ino in inos {
            if let Some(node) = self.inodes.cached(ino) {
                node.refs.store(0, Ordering::Release);
                if let Err(e) = self.reclaim(&node) {
                    tracing::error!("giving back the space of inode {ino}: {e}");
                }
            }
        }
    }
}
