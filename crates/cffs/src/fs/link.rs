//! Hard links. An inode with several names stands in the external inode table; all its names are external links. When
//! one name is left, the inode moves back into that name's directory, the next time the name is looked up. A file that was
//! made without a name ([`super::tmpfile`]) stands there from the start.

use super::create::write_names_ordered;
use super::quota::handed_down;
use super::traced::note_caller;
use super::{Attr, Caller, Fs, Locked, as_dir, flags, now};
use crate::dir;
use crate::error::{Error, Result};
use crate::format::dirblock::{self, EntryKind, NewEntry};
use crate::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE, INLINE_DEFAULT};
use crate::format::{BlockKind, Ino, LINK_MAX};
use crate::inode::InodeLocation;
use crate::journal::Txn;
use crate::node::{Node, NodeState};
use crate::trace::Kind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Fs {
    /// Gives a file one more name, or its first one to a file of [`Fs::tmpfile`].
    ///
    /// [`Error::NotFound`] for any other file without a name.
    pub fn link(&self, c: Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.op(
            Kind::Link,
            [parent, ino, 0],
            |d| {
                d.add_name(name);
                note_caller(d, c);
            },
            || self.give_name(c, ino, parent, name),
        )
    }

    fn give_name(&self, c: Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.writable()?;
        Self::check_name(name)?;
        let node = self.node(ino)?;
        let dir_node = self.node(parent)?;
        let attr = self.with_space_for_name(|blocks| self.link_once(c, blocks, &node, &dir_node, name))?;
        self.sync_names(&[&dir_node])?;
        Ok(attr)
    }

    fn link_once(&self, c: Caller, blocks: u64, node: &Arc<Node>, dir_node: &Arc<Node>, name: &[u8]) -> Result<Attr> {
        let (ino, parent) = (node.ino, dir_node.ino);
        let reservation = self.reserve_for_name(c.privileged(), blocks)?;
        let txn = self.journal.begin(self.log_bytes_names() + self.log_bytes_remove())?;
        txn.draw_on(&reservation);
        let mut locked = Locked::new(&[dir_node, node]);
        check_linkable(locked.get(ino)?)?;
        let dir_st = locked.get(parent)?;
        if dir_st.freed || dir_st.orphan {
            return Err(Error::NotFound);
        }
        let project = handed_down(&dir_st.inode);
        if project.is_some_and(|p| locked.get(ino).is_ok_and(|st| st.inode.projid != p)) {
            return Err(Error::CrossDevice);
        }
        let dir_st = locked.get(parent)?;
        let cx = self.dir_cx();
        let (dir_inode, dir_state) = as_dir(dir_st)?;
        if dir::lookup(&cx, dir_inode, dir_state, name)?.is_some() {
            return Err(Error::Exists);
        }
        flags::forbid(locked.get(parent)?, FLAG_IMMUTABLE)?;
        // Read before anything changes, so that nothing fails half way.
        let old_location = locked.get(ino)?.location;
        let _inode_block = self.inode_block(old_location)?;
        let dir_st = locked.get(parent)?;
        let frags = dir_st.inode.frags;
        // The new name keeps room for the inode, which may be embedded there later.
        let room = self.link_room(name.len());
        let slot = self.slot_for_name(&txn, c, dir_st, name, room)?;
        if let Err(e) = self.externalize(&txn, locked.get(ino)?) {
            return Err(self.give_up_slot(&txn, locked.get(parent)?, slot, e));
        }
        if let Err(e) = self.begin_link(&txn, locked.get(ino)?) {
            return Err(self.give_up_slot(&txn, locked.get(parent)?, slot, e));
        }
        // Order of writes: the inode, its old name if it was embedded there, then the new name.
        let location = locked.get(ino)?.location;
        self.write_inode_ordered(&txn, location)?;
        old_location.block().into_iter().for_each(|b| txn.write_ordered(b));
        let slot_block = slot.block;
        let file_type = locked.get(ino)?.inode.file_type();
        let entry = NewEntry { name, hash: 0, ino, file_type, inode: None, inode_room: room };
        let dir_st = locked.get(parent)?;
        let (dir_inode, dir_state) = as_dir(dir_st)?;
        dir::insert(&cx, &txn, dir_inode, dir_state, slot, &entry)?;
        let now = now();
        self.changed_dir(&txn, dir_st, now)?;
        write_names_ordered(&txn, dir_st, slot_block, frags);
        let st = locked.get(ino)?;
        if st.inode.nlink == 0 {
            st.inode.parent = parent;
        }
        st.inode.nlink += 1;
        st.inode.ctime = now;
        crate::node::store(&txn, st)?;
        self.store_tables(&txn)?;
        txn.end_critical();
        node.refs.fetch_add(1, Ordering::AcqRel);
        Ok(self.attr(node, st))
    }

    /// Begins the part of a link that must not stop half way: a file without a name leaves the orphan list, in the
    /// transaction in which it gets one. After an error nothing has changed.
    fn begin_link(&self, txn: &Txn<'_>, st: &mut NodeState) -> Result<()> {
        if !st.orphan {
            txn.begin_critical();
            return Ok(());
        }
        let ino = st.inode.ino;
        let mut list = self.orphans.lock();
        let before = list.before(ino)?.map(|location| self.inode_block(location)).transpose()?;
        txn.begin_critical();
        self.pull_orphan(txn, &mut list, ino, before.as_ref());
        (st.orphan, st.linkable) = (false, false);
        Ok(())
    }

    /// Room for an inode that an external link keeps.
    pub(super) fn link_room(&self, name_len: usize) -> usize {
        if self.embeds() { dirblock::inode_room(INLINE_DEFAULT.min(self.inline_max(name_len))) } else { 0 }
    }

    /// Moves an embedded inode into the external inode table; its entry becomes an external link.
    pub(super) fn externalize(&self, txn: &Txn<'_>, st: &mut NodeState) -> Result<()> {
        let InodeLocation::Embedded { block, entry, .. } = st.location else { return Ok(()) };
        let buf = self.cache.read_meta_any_owner(BlockKind::Dir, block)?;
        self.move_to_slot(txn, st)?;
        dirblock::make_link(&mut txn.edit(&buf), entry);
        Ok(())
    }

    /// Moves an embedded inode to a slot of the external inode table. The caller changes its entry.
    fn move_to_slot(&self, txn: &Txn<'_>, st: &mut NodeState) -> Result<()> {
        let InodeLocation::Embedded { block, .. } = st.location else { return Ok(()) };
        let ino = st.inode.ino;
        // The blocks that the changes below read are pinned, so that none of them fails half way.
        let _held = self.inodes.locator.find(&self.cache, ino)?;
        let slot = self.inodes.external.alloc(txn, &self.space, block)?;
        if st.inode.encoded_len() > crate::format::geometry::INODE_SLOT_SIZE
            && let Err(e) = self.fit_slot(txn, st)
        {
            self.inodes.external.free(txn, &self.space, slot.index)?;
            return Err(e);
        }
        let size = std::mem::replace(&mut st.inode.size, st.disk_size);
        crate::inode::write_inode(txn, &slot.buf, slot.offset, &st.inode, false);
        st.inode.size = size;
        if let Some(account) = &st.data.account {
            account.charge_delta(txn, &st.inode); // long contents may have got a block
        }
        st.location = InodeLocation::External { block: slot.buf.addr(), offset: slot.offset };
        self.inodes.relocate(txn, ino, st.location)
    }

    /// Moves the contents of an inode whose inline area does not fit a slot (a symbolic link) to a block.
    pub(super) fn fit_slot(&self, txn: &Txn<'_>, st: &mut NodeState) -> Result<()> {
        use crate::format::InodeFormat;
        let InodeFormat::Inline(data) = std::mem::replace(&mut st.inode.format, InodeFormat::Extents(Vec::new()))
        else {
            return Err(Error::Unsupported);
        };
        let reservation = self.space.reservation(None, true);
        let contents = match self.allocate_contents(&reservation, st.inode.parent, &data) {
            Ok(contents) => contents,
            Err(e) => {
                st.inode.format = InodeFormat::Inline(data.clone());
                return Err(e);
            }
        };
        st.inode.inline_len = INLINE_DEFAULT;
        self.log_contents(txn, &mut st.inode, &contents)
    }

    /// Moves the inode of a file with one name left into the entry of that name, if it has room.
    pub(super) fn embed(&self, dir_node: &Arc<Node>, name: &[u8], node: &Arc<Node>) -> Result<()> {
        let txn = self.journal.begin(self.log_bytes_remove())?;
        let mut locked = Locked::new(&[dir_node, node]);
        let Some(found) = self.find_locked(&mut locked, dir_node.ino, name)? else { return Ok(()) };
        if found.ino != node.ino || found.kind != EntryKind::Link {
            return Ok(());
        }
        let st = locked.get(node.ino)?;
        let InodeLocation::External { block, offset } = st.location else { return Ok(()) };
        if st.inode.nlink != 1 || st.freed || st.orphan {
            return Ok(());
        }
        let at = {
            let b = found.buf().read();
            let e = dirblock::known_entry(&b, found.offset);
            if e.inode_room() < st.inode.encoded_len() {
                return Ok(());
            }
            e.inode_offset()
        };
        // What can fail comes first. The slot is in memory.
        let _held = self.inodes.locator.find(&self.cache, node.ino)?;
        txn.begin_critical();
        self.free_external(&txn, block, offset)?;
        st.inode.parent = dir_node.ino;
        let size = std::mem::replace(&mut st.inode.size, st.disk_size);
        dirblock::make_embedded(&mut txn.edit(found.buf()), found.offset, &st.inode);
        st.inode.size = size;
        st.location = InodeLocation::Embedded { block: found.block, entry: found.offset, inode: at };
        // Written before the slot can be reused.
        txn.write_ordered(found.block);
        self.inodes.relocate(&txn, node.ino, st.location)?;
        self.store_tables(&txn)?;
        txn.end_critical();
        Ok(())
    }

    /// Whether a file that was reached through an external link should move into it.
    pub(super) fn wants_embedding(&self, st: &NodeState) -> bool {
        self.embeds()
            && st.inode.nlink == 1
            && !st.inode.is_dir()
            && !st.orphan
            && !st.freed
            && matches!(st.location, InodeLocation::External { .. })
            && !self.is_read_only()
    }
}

/// Fails if a file cannot have one more name.
fn check_linkable(st: &NodeState) -> Result<()> {
    if st.inode.is_dir() {
        return Err(Error::NotPermitted);
    }
    if st.freed || st.orphan && !st.linkable {
        return Err(Error::NotFound);
    }
    flags::forbid(st, FLAG_IMMUTABLE | FLAG_APPEND)?;
    if st.inode.nlink >= LINK_MAX {
        return Err(Error::TooManyLinks);
    }
    Ok(())
}
