//! Regular files without a name: open(2) with `O_TMPFILE`.
//!
//! Such a file is an orphan from the start: on the orphan list, with link count 0, freed with its last reference, or by the
//! mount after a crash. Its inode stands in the external inode table, because there is no entry to embed it in.
//! [`Fs::link`] takes it off the list when it gets its first name.

use super::create::{NewFile, Owner, ids_of_new, table_inline_max};
use super::traced::note_caller;
use super::xattr::{Attributes, Inherited};
use super::{Attr, Caller, Fs, NewPerm, flags, now};
use crate::error::{Error, Result};
use crate::format::inode::FLAG_IMMUTABLE;
use crate::format::{FileType, Ino, Inode};
use crate::inode::InodeLocation;
use crate::inode::table;
use crate::journal::Txn;
use crate::node::Node;
use crate::trace::{Detail, Kind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Fs {
    /// Creates a regular file without a name, for the caller's reference alone. Owner, group, project, flags, default access
    /// control list and placement are those of a file created in `dir`, which does not change. The file can get a name
    /// ([`Fs::link`]), in any directory; without one it is freed with its last reference.
    ///
    /// # Errors
    /// [`Error::NotDir`]; [`Error::NotFound`] for a directory that was removed; [`Error::NotPermitted`] for an immutable one;
    /// [`Error::NoSpace`], [`Error::Quota`] and [`Error::ReadOnly`].
    pub fn tmpfile(&self, c: Caller, dir: Ino, perm: impl Into<NewPerm>) -> Result<Attr> {
        let new = NewFile { file_type: FileType::Regular, perm: perm.into(), rdev: 0, target: None };
        let detail = |d: &mut Detail| {
            d.add_number(u64::from(new.perm.bits & !new.perm.umask));
            note_caller(d, c);
        };
        self.op(Kind::Tmpfile, [dir, 0, 0], detail, || self.make_nameless(c, dir, &new))
    }

    fn make_nameless(&self, c: Caller, dir: Ino, new: &NewFile<'_>) -> Result<Attr> {
        self.writable()?;
        let dir_node = self.node(dir)?;
        loop {
            if let Some(node) = self.with_space_for_name(|blocks| self.tmpfile_once(c, blocks, &dir_node, new))? {
                let st = node.state.read();
                return Ok(self.attr(&node, &st));
            }
        }
    }

    /// `None` when the directory's default access control list changed in between.
    fn tmpfile_once(
        &self,
        c: Caller,
        blocks: u64,
        dir_node: &Arc<Node>,
        new: &NewFile<'_>,
    ) -> Result<Option<Arc<Node>>> {
        let inherited = self.inherit(dir_node, new.file_type, new.perm)?;
        let reservation = self.reserve_for_name(c.privileged(), blocks)?;
        let mut attributes = self.allocate_inherited(c, &reservation, dir_node, &inherited, table_inline_max())?;
        // The directory is not locked while the file is made, because its number may be lower than the directory's.
        let dir = {
            let st = dir_node.state.read();
            if st.dir.is_none() {
                return Err(Error::NotDir);
            }
            if st.freed || st.orphan {
                return Err(Error::NotFound);
            }
            flags::forbid(&st, FLAG_IMMUTABLE)?;
            if self.default_acl(&st.inode)? != inherited.default {
                return Ok(None);
            }
            st.inode.clone()
        };
        let ids = ids_of_new(c, &dir);
        if let Some(quota) = self.quota_for_new(c, ids, attributes.blocks as u64 * self.geo.frags_per_block())? {
            reservation.merge(quota);
        }
        let log_bytes = self.log_bytes_names() + crate::xattr::log_bytes(&self.geo, &self.space, 0, attributes.blocks);
        let txn = self.journal.begin(log_bytes)?;
        txn.draw_on(&reservation);
        txn.begin_critical();
        let owner = Owner { c, ids, reservation: &reservation };
        let made = self.tmpfile_in(&txn, owner, &dir, new, &inherited, &mut attributes);
        if made.is_err() {
            // The tables keep blocks that they gained.
            self.store_tables(&txn)?;
        }
        if !matches!(made, Err(Error::Io(_) | Error::Corrupt(_))) {
            txn.end_critical();
        }
        made.map(Some)
    }

    fn tmpfile_in(
        &self,
        txn: &Txn<'_>,
        owner: Owner<'_>,
        dir: &Inode,
        new: &NewFile<'_>,
        inherited: &Inherited,
        attributes: &mut Attributes<'_>,
    ) -> Result<Arc<Node>> {
        let mut inode = self.new_inode(&owner, dir, new, true, inherited, attributes, now());
        inode.nlink = 0;
        let goal = self.placement.inode_goal(dir.ino);
        let (locator, slot) = self.allocate_external(txn, goal, goal)?;
        inode.ino = locator.index;
        if let Some(fresh) = attributes.fresh.take() {
            let list = &attributes.packed.chain;
            crate::xattr::write_chain(txn, &self.space, &mut inode, &Default::default(), fresh, list)?;
        }
        crate::inode::write_inode(txn, &slot.buf, slot.offset, &inode, false);
        let location = InodeLocation::External { block: slot.buf.addr(), offset: slot.offset };
        self.space.with_counters(|n| n.inodes += 1);
        let node = self.inodes.insert(txn, inode, location, Some(owner.reservation));
        {
            let mut st = node.state.write();
            st.linkable = true;
            self.push_orphan(txn, &mut st)?;
            // Only now others can find it by its number ([`Fs::reference`]).
            node.refs.fetch_add(1, Ordering::AcqRel);
        }
        // After the node, as for every new file.
        table::write_location(txn, &locator.buf, locator.offset, &crate::inode::location_record(location));
        self.write_inode_ordered(txn, location)?;
        self.store_tables(txn)?;
        Ok(node)
    }
}
