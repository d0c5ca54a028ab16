//! Creating files: create, mkdir, mknod, symlink.

use super::contents::Contents;
use super::quota::LimitedAllocator;
use super::traced::note_caller;
use super::xattr::{Attributes, Inherited};
use super::{Attr, Caller, Fs, NewPerm, as_dir, flags, now};
use crate::dir::{self, DirCtx};
use crate::error::{Error, Result};
use crate::file::{Reclaim, with_space};
use crate::format::dirblock::{self, NewEntry};
use crate::format::inode::{
    FLAG_IMMUTABLE, FLAG_PROJECT_INHERIT, FLAGS_INHERITED, FLAGS_OF_DIRS, INLINE_MAX, INODE_CORE_SIZE,
};
use crate::format::{BlockAddr, FileType, Ino, Inode, InodeFormat, LINK_MAX, SYMLINK_MAX, align8};
use crate::inode::InodeLocation;
use crate::inode::table::{self, SlotRef};
use crate::journal::Txn;
use crate::node::{DirState, Node, NodeState};
use crate::quota::Ids;
use crate::reservation::Reservation;
use crate::trace::{Detail, Kind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// metadata=sync: writes a block with changed names to the device with the transaction. If the directory has gained or
/// lost blocks (it had `frags` fragments before), the block of its inode is written after it.
pub(super) fn write_names_ordered(txn: &Txn<'_>, dir: &NodeState, block: BlockAddr, frags: u64) {
    txn.write_ordered(block);
    if let (true, Some(block)) = (dir.inode.frags != frags, dir.location.block()) {
        txn.write_ordered(block);
    }
}

/// Location of an inode that is embedded in the entry of `name` in `slot`.
pub(super) fn embedded_in(slot: &dir::Slot, name: &[u8]) -> InodeLocation {
    let inode = slot.offset + dirblock::ENTRY_HEADER + align8(name.len());
    InodeLocation::Embedded { block: slot.block, entry: slot.offset, inode }
}

/// Fails if a directory cannot take a new name.
fn check_new_name(cx: &DirCtx<'_>, dir: &Inode, state: &DirState, name: &[u8], for_dir: bool) -> Result<()> {
    if dir::lookup(cx, dir, state, name)?.is_some() {
        return Err(Error::Exists);
    }
    flags::forbid_inode(dir, FLAG_IMMUTABLE)?;
    if for_dir && dir.nlink >= LINK_MAX {
        return Err(Error::TooManyLinks);
    }
    Ok(())
}

/// The file to create.
pub(super) struct NewFile<'a> {
    pub(super) file_type: FileType,
    pub(super) perm: NewPerm,
    pub(super) rdev: u32,
    pub(super) target: Option<&'a [u8]>,
}

impl Fs {
    /// Creates a regular file. Like every new file but a symbolic link it inherits the directory's default access control
    /// list, if it has one.
    pub fn create(&self, c: Caller, parent: Ino, name: &[u8], perm: impl Into<NewPerm>) -> Result<Attr> {
        let new = NewFile { file_type: FileType::Regular, perm: perm.into(), rdev: 0, target: None };
        self.make_traced(Kind::Create, c, parent, name, new)
    }

    /// Creates a directory.
    pub fn mkdir(&self, c: Caller, parent: Ino, name: &[u8], perm: impl Into<NewPerm>) -> Result<Attr> {
        let new = NewFile { file_type: FileType::Directory, perm: perm.into(), rdev: 0, target: None };
        self.make_traced(Kind::Mkdir, c, parent, name, new)
    }

    /// Creates a file of any type but directory and symbolic link. `rdev` counts for devices.
    pub fn mknod(
        &self,
        c: Caller,
        parent: Ino,
        name: &[u8],
        file_type: FileType,
        perm: impl Into<NewPerm>,
        rdev: u32,
    ) -> Result<Attr> {
        // A mount creates files this way.
        let kind = if file_type == FileType::Regular { Kind::Create } else { Kind::Mknod };
        if matches!(file_type, FileType::Directory | FileType::Symlink) {
            return Error::invalid("mknod makes neither directories nor symbolic links");
        }
        self.make_traced(kind, c, parent, name, NewFile { file_type, perm: perm.into(), rdev, target: None })
    }

    /// Creates a symbolic link.
    pub fn symlink(&self, c: Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > SYMLINK_MAX {
            return Err(Error::NameTooLong);
        }
        let perm = NewPerm::from(0o777);
        let new = NewFile { file_type: FileType::Symlink, perm, rdev: 0, target: Some(target) };
        self.make_traced(Kind::Symlink, c, parent, name, new)
    }

    fn make_traced(&self, kind: Kind, c: Caller, parent: Ino, name: &[u8], new: NewFile<'_>) -> Result<Attr> {
        let (perm, file_type, rdev) = (new.perm, new.file_type, new.rdev);
        let target = new.target.map_or(0, <[u8]>::len);
        let detail = |d: &mut Detail| {
            d.add_name(name);
            d.add_number(u64::from(file_type.mode_bits() | perm.bits & !perm.umask));
            note_caller(d, c);
            d.add_number(if file_type == FileType::Symlink { target as u64 } else { u64::from(rdev) });
        };
        self.op(kind, [parent, 0, 0], detail, || self.make(c, parent, name, new))
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.op(Kind::Readlink, [ino, 0, 0], |_| {}, || self.read_target(ino))
    }

    fn read_target(&self, ino: Ino) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let st = node.state.read();
        if st.inode.file_type() != FileType::Symlink {
            return Error::invalid("not a symbolic link");
        }
        self.note_access(&node, &st);
        if st.inode.size > SYMLINK_MAX as u64 {
            let what = format!("inode {ino}: a symbolic link of {} bytes", st.inode.size);
            return Err(crate::format::Corrupt(what).into());
        }
        let mut out = vec![0; st.inode.size as usize];
        let n = crate::file::read(&self.file_cx(), &st, 0, &mut out)?;
        out.truncate(n);
        Ok(out)
    }

    /// Most bytes that an operation on names logs for itself: entry, inode, locator, counters.
    pub(super) fn log_bytes_names(&self) -> usize {
        let g = &self.geo;
        let tables = self.inodes.locator.log_bytes(g, &self.space) + self.inodes.external.log_bytes(g, &self.space);
        dir::log_bytes_for_insert(g) + tables + 4 * (INODE_CORE_SIZE + INLINE_MAX) + self.space.log_bytes_for_init()
    }

    /// Most blocks that a new name takes: directory blocks and index, tables, trees.
    fn blocks_for_name(&self) -> u64 {
        8 + self.inodes.locator.blocks_for_growth() + self.inodes.external.blocks_for_growth()
    }

    /// Reserves blocks for an operation on names ([`Fs::with_space_for_name`]).
    pub(super) fn reserve_for_name(&self, privileged: bool, blocks: u64) -> Result<Reservation> {
        let reservation = self.space.reservation(None, privileged);
        reservation.reserve_blocks(blocks, privileged)?;
        Ok(reservation)
    }

    fn make(&self, c: Caller, parent: Ino, name: &[u8], new: NewFile<'_>) -> Result<Attr> {
        self.writable()?;
        Self::check_name(name)?;
        let dir_node = self.node(parent)?;
        self.track_path(parent);
        loop {
            if let Some(node) = self.with_space_for_name(|blocks| self.make_once(c, blocks, &dir_node, name, &new))? {
                self.sync_names(&[&dir_node])?;
                let st = node.state.read();
                return Ok(self.attr(&node, &st));
            }
        }
    }

    /// `None` when the directory's default access control list changed in between.
    fn make_once(
        &self,
        c: Caller,
        blocks: u64,
        dir_node: &Arc<Node>,
        name: &[u8],
        new: &NewFile<'_>,
    ) -> Result<Option<Arc<Node>>> {
        let inherited = self.inherit(dir_node, new.file_type, new.perm)?;
        let long = new.target.filter(|t| t.len() > self.inline_max(name.len()));
        let reservation = self.reserve_for_name(c.privileged(), blocks)?;
        let inline_max = self.inline_max(name.len());
        let mut attributes = self.allocate_inherited(c, &reservation, dir_node, &inherited, inline_max)?;
        let ids = ids_of_new(c, &dir_node.state.read().inode);
        if let Some(quota) = self.quota_for_new(c, ids, attributes.blocks as u64 * self.geo.frags_per_block())? {
            reservation.merge(quota);
        }
        let contents = long.map(|t| self.allocate_contents(&reservation, dir_node.ino, t)).transpose()?;
        // Without a reservation, a block that was added may have to be removed again.
        let names = if blocks > 0 { self.log_bytes_names() } else { self.log_bytes_remove() };
        let log_bytes = names
            + contents.as_ref().map_or(0, |c| self.log_bytes_contents(c))
            + crate::xattr::log_bytes(&self.geo, &self.space, 0, attributes.blocks);
        self.journal.begin(log_bytes).and_then(|txn| {
            txn.draw_on(&reservation);
            let mut st = dir_node.state.write();
            if self.default_acl(&st.inode)? != inherited.default {
                return Ok(None);
            }
            txn.begin_critical();
            let owner = Owner { c, ids, reservation: &reservation };
            let made = self.make_in(&txn, owner, &mut st, name, new, contents.as_ref(), &inherited, &mut attributes);
            if made.is_err() {
                self.keep_grown(&txn, &mut st)?;
            }
            // Without space nothing has changed, except for blocks that the directory may have gained.
            if !matches!(made, Err(Error::Io(_) | Error::Corrupt(_))) {
                txn.end_critical();
            }
            made.map(Some)
        })
    }

    /// Finds room for a new name. After an error the directory keeps the blocks that it gained.
    pub(super) fn slot_for_name(
        &self,
        txn: &Txn<'_>,
        c: Caller,
        st: &mut NodeState,
        name: &[u8],
        room: usize,
    ) -> Result<dir::Slot> {
        let allocator = LimitedAllocator::new(self, c, st);
        let (inode, state) = as_dir(st)?;
        match dir::prepare_insert(&self.dir_cx(), txn, &self.space, &allocator, inode, state, name, room) {
            Ok(slot) => Ok(slot),
            Err(e) => {
                self.keep_grown(txn, st)?;
                Err(e)
            }
        }
    }

    /// Releases the room for a name after the error `e`. Returns the error of the operation.
    pub(super) fn give_up_slot(&self, txn: &Txn<'_>, st: &mut NodeState, slot: dir::Slot, e: Error) -> Error {
        let given_up =
            as_dir(st).and_then(|(inode, state)| dir::give_up(&self.dir_cx(), txn, &self.space, inode, state, slot));
        let kept = self.keep_grown(txn, st);
        given_up.and(kept).err().unwrap_or(e)
    }

    /// Stores inodes after a failure: the directory and the tables keep blocks that they gained.
    pub(super) fn keep_grown(&self, txn: &Txn<'_>, dir: &mut NodeState) -> Result<()> {
        if !dir.freed && dir.dir.is_some() {
            dir.disk_size = dir.inode.size;
            crate::node::store(txn, dir)?;
        }
        self.store_tables(txn)
    }

    /// Room for an inline area in the entry of a name.
    pub(super) fn inline_max(&self, name_len: usize) -> usize {
        let room = self.geo.block_size() - crate::format::META_HEADER_SIZE;
        let entry = dirblock::entry_len(name_len, INODE_CORE_SIZE);
        let slot = if self.embeds() { INLINE_MAX.min(1024) } else { table_inline_max() };
        room.saturating_sub(entry).min(slot) & !7
    }

    pub(super) fn embeds(&self) -> bool {
        self.embeds
    }

    #[expect(clippy::too_many_arguments, reason = "what was prepared for it")]
    fn make_in(
        &self,
        txn: &Txn<'_>,
        owner: Owner<'_>,
        st: &mut NodeState,
        name: &[u8],
        new: &NewFile<'_>,
        contents: Option<&Contents<'_>>,
        inherited: &Inherited,
        attributes: &mut Attributes<'_>,
    ) -> Result<Arc<Node>> {
        if st.freed || st.orphan {
            return Err(Error::NotFound);
        }
        let cx = self.dir_cx();
        let now = now();
        let is_dir = new.file_type == FileType::Directory;
        let allocator = LimitedAllocator::new(self, owner.c, st);
        let (dir_inode, dir_state) = as_dir(st)?;
        check_new_name(&cx, dir_inode, dir_state, name, is_dir)?;
        let mut inode = self.new_inode(&owner, dir_inode, new, contents.is_none(), inherited, attributes, now);
        let room = if self.embeds() { inode.encoded_len() } else { 0 };
        let blocks = dir_inode.frags;
        let slot = dir::prepare_insert(&cx, txn, &self.space, &allocator, dir_inode, dir_state, name, room)?;
        let (locator, slot_outside) = match self.allocate_inode(txn, dir_inode.ino, slot.block) {
            Ok(slots) => slots,
            Err(e) => {
                dir::give_up(&cx, txn, &self.space, dir_inode, dir_state, slot)?;
                return Err(e);
            }
        };
        inode.ino = locator.index;
        if let Some(contents) = contents {
            self.log_contents(txn, &mut inode, contents)?;
        }
        if let Some(fresh) = attributes.fresh.take() {
            let list = &attributes.packed.chain;
            crate::xattr::write_chain(txn, &self.space, &mut inode, &Default::default(), fresh, list)?;
        }
        let location = match &slot_outside {
            None => embedded_in(&slot, name),
            Some(place) => {
                crate::inode::write_inode(txn, &place.buf, place.offset, &inode, false);
                InodeLocation::External { block: place.buf.addr(), offset: place.offset }
            }
        };
        let entry = NewEntry {
            name,
            hash: 0,
            ino: inode.ino,
            file_type: new.file_type,
            inode: self.embeds().then_some(&inode),
            inode_room: room,
        };
        let entry_block = slot.block;
        dir::insert(&cx, txn, dir_inode, dir_state, slot, &entry)?;
        self.space.with_counters(|n| n.inodes += 1);
        if is_dir {
            dir_inode.nlink += 1;
            // Placement state of an earlier directory with this number does not count.
            self.placement.untrack(inode.ino);
            self.placement.track(&self.cache, &inode);
        }
        let node = self.inodes.insert(txn, inode, location, Some(owner.reservation));
        node.refs.fetch_add(1, Ordering::AcqRel);
        // After the node, so that whoever finds the number in the table finds this node, and makes none of its own.
        table::write_location(txn, &locator.buf, locator.offset, &crate::inode::location_record(location));
        self.changed_dir(txn, st, now)?;
        // A name and an embedded inode share a block, so they cannot be written separately. An external inode is
        // written before its name.
        if let InodeLocation::External { .. } = location {
            self.write_inode_ordered(txn, location)?;
            write_names_ordered(txn, st, entry_block, blocks);
        }
        self.store_tables(txn)?;
        Ok(node)
    }

    /// The inode of a new file in a directory, without a number yet. `inline_target`: the target of a symbolic link
    /// fits into it.
    #[expect(clippy::too_many_arguments, reason = "what was prepared for it")]
    pub(super) fn new_inode(
        &self,
        owner: &Owner<'_>,
        dir: &Inode,
        new: &NewFile<'_>,
        inline_target: bool,
        inherited: &Inherited,
        attributes: &mut Attributes<'_>,
        now: i64,
    ) -> Inode {
        let is_dir = new.file_type == FileType::Directory;
        let mut inode = Inode::new(0, new.file_type.mode_bits() | (inherited.perm & 0o7777), now);
        inode.generation = self.next_generation();
        [inode.uid, inode.gid, inode.projid] = owner.ids;
        if is_dir {
            // A set-gid directory passes the bit on to directories, and its group to all files (System V and Linux).
            inode.mode |= dir.mode & 0o2000;
        }
        inode.flags = dir.flags & if is_dir { FLAGS_INHERITED } else { FLAGS_INHERITED & !FLAGS_OF_DIRS };
        if !matches!(new.file_type, FileType::Regular | FileType::Directory) {
            inode.flags = 0;
        }
        inode.parent = dir.ino;
        inode.nlink = if is_dir { 2 } else { 1 };
        if matches!(new.file_type, FileType::CharDevice | FileType::BlockDevice) {
            inode.aux = u64::from(new.rdev);
        }
        // The longest names leave little room in the smallest blocks.
        inode.inline_len = attributes.inline_len;
        inode.xattrs = std::mem::take(&mut attributes.packed.inline);
        if let Some(target) = new.target.filter(|_| inline_target) {
            inode.inline_len = crate::format::align8(target.len()).max(inode.inline_len);
            inode.size = target.len() as u64;
            inode.format = InodeFormat::Inline(target.to_vec());
        }
        inode
    }

    /// Allocates a number near a directory block, and a slot of the external table where inodes are not embedded.
    fn allocate_inode(&self, txn: &Txn<'_>, dir: Ino, near: BlockAddr) -> Result<(SlotRef, Option<SlotRef>)> {
        if self.embeds() {
            return Ok((self.inodes.locator.alloc(txn, &self.space, near)?, None));
        }
        let (locator, slot) = self.allocate_external(txn, near, self.placement.inode_goal(dir))?;
        Ok((locator, Some(slot)))
    }

    /// Allocates a number near a block, and a slot of the external table near another. After an error neither is.
    pub(super) fn allocate_external(
        &self,
        txn: &Txn<'_>,
        near: BlockAddr,
        slot_near: BlockAddr,
    ) -> Result<(SlotRef, SlotRef)> {
        let locator = self.inodes.locator.alloc(txn, &self.space, near)?;
        match self.inodes.external.alloc(txn, &self.space, slot_near) {
            Ok(slot) => Ok((locator, slot)),
            Err(e) => {
                self.inodes.locator.free(txn, &self.space, locator.index)?;
                Err(e)
            }
        }
    }

    /// Stores a directory after a change of its contents: times, size, and the group for its next files.
    pub(super) fn changed_dir(&self, txn: &Txn<'_>, st: &mut NodeState, now: i64) -> Result<()> {
        st.inode.mtime = now;
        st.inode.ctime = now;
        st.disk_size = st.inode.size;
        st.inode.hint = if st.orphan { st.inode.hint } else { self.placement.hint(st.inode.ino) };
        crate::node::store(txn, st)
    }

    /// metadata=sync: writes the block of an inode, and what leads to it, to the device with the transaction.
    pub(super) fn write_inode_ordered(&self, txn: &Txn<'_>, location: InodeLocation) -> Result<()> {
        location.block().into_iter().for_each(|b| txn.write_ordered(b));
        self.inodes.external.store_inode(txn)
    }

    pub(super) fn store_tables(&self, txn: &Txn<'_>) -> Result<()> {
        self.inodes.locator.store_inode(txn)?;
        self.inodes.external.store_inode(txn)
    }

    /// Ends an operation that used the tables. Their inodes are stored even if the operation failed half way, because
    /// the tables may have grown before.
    pub(super) fn with_tables<R>(&self, txn: &Txn<'_>, outcome: Result<R>) -> Result<R> {
        let stored = self.store_tables(txn);
        let done = outcome?;
        stored.map(|()| done)
    }

    /// Runs an operation that needs space. If there is none, everything is written back and committed, and the
    /// operation is tried once more. The caller holds no lock but perhaps [`Node::write_lock`].
    pub(super) fn with_space<R>(&self, attempt: impl FnMut() -> Result<R>) -> Result<R> {
        // An error is reported by fsync of the files concerned.
        let write_back = || drop(self.write_back_all(self.opts.lazytime));
        with_space(&self.file_cx(), Reclaim::WriteBack(&write_back), attempt)
    }

    /// As [`Fs::with_space`], for an operation that creates a name: `attempt` gets the number of blocks to reserve.
    /// With a worst-case reservation there is nothing to undo. If there is no space for that reservation, the operation
    /// is tried with none, because most names need no new block.
    pub(super) fn with_space_for_name<R>(&self, mut attempt: impl FnMut(u64) -> Result<R>) -> Result<R> {
        match self.with_space(|| attempt(self.blocks_for_name())) {
            Err(Error::NoSpace) => attempt(0),
            outcome => outcome,
        }
    }
}

/// Owner, group and project of a new file, and the reservation for it.
pub(super) struct Owner<'a> {
    pub(super) c: Caller,
    pub(super) ids: Ids,
    /// What was reserved for it.
    pub(super) reservation: &'a Reservation,
}

/// Owner, group and project of a file that is created in a directory.
pub(super) fn ids_of_new(c: Caller, dir: &Inode) -> Ids {
    let gid = if dir.mode & 0o2000 != 0 { dir.gid } else { c.gid };
    let project = if dir.flags & FLAG_PROJECT_INHERIT != 0 { dir.projid } else { 0 };
    [c.uid, gid, project]
}

/// Room for inline contents in a slot of the external inode table.
pub(super) const fn table_inline_max() -> usize {
    crate::format::geometry::INODE_SLOT_SIZE - INODE_CORE_SIZE
}
