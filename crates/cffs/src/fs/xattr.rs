//! Extended attributes and access control lists.

use super::traced::note_caller;
use super::{Caller, Fs, Locked, NewPerm, SetXattr, as_dir, flags, now};
use crate::acl::Acl;
use crate::colocation;
use crate::dir;
use crate::error::{Error, Result};
use crate::file::reserve_tree;
use crate::format::dirblock;
use crate::format::extent::EXTENT_SIZE;
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE, INLINE_DEFAULT, INLINE_LEAST, INLINE_MAX, INODE_CORE_SIZE};
use crate::format::xattr::{
    COLOCATE, LEARNED, Namespace, XATTR_LIST_MAX, XATTR_NAME_MAX, XATTR_TOTAL_MAX, XATTR_VALUE_MAX, Xattr,
};
use crate::format::{BlockAddr, BlockKind, FileType, Ino, Inode, InodeFormat, align8};
use crate::inode::{InodeLocation, table};
use crate::node::{Node, NodeState};
use crate::quota::ids_of;
use crate::reservation::Reservation;
use crate::trace::{Detail, Kind};
use crate::xattr::{self, Fresh, Packed};
use std::sync::Arc;

/// Longest inline area of an inode with extended attributes in it. With it the inode fits a slot of the external inode
/// table, so that it can always move there.
pub(super) const INLINE_WITH_XATTRS: usize = INODE_SLOT_SIZE - INODE_CORE_SIZE;
/// Longest access control list in bytes: 511 entries, as many as the kernel takes from a file system in user space.
const ACL_MAX: usize = 4096;
/// Bytes of the inline area that attributes leave for extents if possible, and those that they always leave.
const KEPT: usize = 2 * EXTENT_SIZE;
const KEPT_LEAST: usize = INLINE_LEAST;
/// What is wrong with a value that says what a directory, or a file, is placed with.
const NO_KEY: &str = "user.cffs.colocate of a directory is directory, owner, process, age, learned, or label: and 1 to 32 letters, \
    digits, dots, hyphens or underscores";
const NO_MARK: &str = "user.cffs.colocate of a file is label: and 1 to 32 letters, digits, dots, hyphens or underscores, or list:, \
    such a name, a colon and a number";

/// Divides attributes between an inode and its chain of blocks. `need` bytes of the inline area are in use; the area is
/// `now` bytes long and can grow to `most`. Also returns the new length of the inline area.
pub(super) fn place(all: &[Xattr], need: usize, now: usize, most: usize) -> (Packed, usize) {
    let wanted = all.iter().map(Xattr::encoded_len).sum::<usize>().next_multiple_of(8);
    let most = most.max(now);
    if now > INLINE_WITH_XATTRS {
        // The long target of a symbolic link. It must be able to move out of the inode, so that the inode can move to a
        // slot.
        return (xattr::pack(all, 0), now);
    }
    let most = most.min(INLINE_WITH_XATTRS);
    let fits = |len: usize, kept: usize| wanted == 0 || need.max(kept) + wanted <= len;
    let (len, kept) = if fits(now, KEPT) {
        (now, KEPT)
    } else if fits(most, KEPT) {
        (now.max(need.max(KEPT) + wanted), KEPT)
    } else if fits(now, KEPT_LEAST) {
        (now, KEPT_LEAST)
    } else if fits(most, KEPT_LEAST) {
        (need.max(KEPT_LEAST) + wanted, KEPT_LEAST)
    } else {
        (most, KEPT)
    };
    let packed = xattr::pack(all, len.saturating_sub(need.max(kept)));
    let len = now.max((need.max(kept) + packed.inline.len()).min(len));
    (packed, len)
}

/// Bytes of the inline area that contents or extents use now or may use soon.
fn inline_need(inode: &Inode) -> usize {
    let small = inode.size as usize <= inode.data_room() && inode.file_type() == FileType::Regular;
    let coming = if small { inode.size as usize } else { 0 };
    match &inode.format {
        InodeFormat::Inline(d) => align8(d.len().max(coming)),
        // Data written to an empty file may be about to go into the inode.
        InodeFormat::Extents(list) if list.is_empty() => align8(coming),
        InodeFormat::Extents(list) => list.len() * EXTENT_SIZE,
        InodeFormat::Tree { children, .. } => children.len() * EXTENT_SIZE,
    }
}

/// Splits the name of an attribute into namespace and rest, and checks it.
fn split(name: &[u8]) -> Result<(Namespace, &[u8])> {
    if name.len() > XATTR_NAME_MAX {
        return Err(Error::AttributeNameTooLong);
    }
    let (namespace, rest) = Namespace::split(name).ok_or(Error::Unsupported)?;
    if !namespace.is_acl() && rest.is_empty() {
        return Error::invalid("extended attribute without a name behind its namespace");
    }
    if rest.contains(&0) {
        return Error::invalid("extended attribute with a zero byte in its name");
    }
    Ok((namespace, rest))
}

/// Whether files of a type can have attributes of a namespace (xattr(7)).
fn allowed(namespace: Namespace, file_type: FileType) -> Result<()> {
    match (namespace, file_type) {
        (Namespace::User, FileType::Regular | FileType::Directory) => Ok(()),
        (Namespace::User, _) => Err(Error::NotPermitted),
        (Namespace::AclAccess | Namespace::AclDefault, FileType::Symlink) => Err(Error::Unsupported),
        _ => Ok(()),
    }
}

fn find(all: &[Xattr], namespace: Namespace, name: &[u8]) -> Option<usize> {
    all.iter().position(|x| x.is(namespace, name))
}

/// Fails if attributes that have grown are too long, or have too many names.
fn check_limits(all: &[Xattr], before: usize) -> Result<()> {
    let total: usize = all.iter().map(Xattr::encoded_len).sum();
    let names: usize = all.iter().map(|x| x.namespace.prefix().len() + x.name.len() + 1).sum();
    if total > before && (total > XATTR_TOTAL_MAX || names > XATTR_LIST_MAX) {
        return Err(Error::NoSpace);
    }
    Ok(())
}

/// Applies a change of the permission bits to the access list.
pub(super) fn chmod_acl(all: &mut [Xattr], mode: u16) -> Result<()> {
    if let Some(at) = find(all, Namespace::AclAccess, b"")
        && let Some(mut acl) = Acl::from_xattr(&all[at].value)?
    {
        acl.chmod(mode);
        all[at].value = acl.to_xattr();
    }
    Ok(())
}

/// What a new file inherits from its directory.
pub(super) struct Inherited {
    /// The directory's default access control list.
    pub(super) default: Option<Vec<u8>>,
    /// Permission bits.
    pub(super) perm: u16,
    all: Vec<Xattr>,
}

/// The attributes of a new file, and the blocks allocated for them.
pub(super) struct Attributes<'a> {
    pub(super) packed: Packed,
    /// Length of the inode's inline area.
    pub(super) inline_len: usize,
    /// Blocks of the chain.
    pub(super) blocks: usize,
    /// The allocated blocks; `None` if there are none.
    pub(super) fresh: Option<Fresh<'a>>,
}

/// A change of an attribute: its length, all ones where it is removed. A key of co-location is noted itself.
fn note_attribute(d: &mut Detail, c: Caller, name: &[u8], value: Option<&[u8]>) {
    d.add_name(name);
    d.add_number(value.map_or(u64::MAX, |v| v.len() as u64));
    note_caller(d, c);
    if let Some(value) = value.filter(|_| name == super::COLOCATION_ATTRIBUTE.as_bytes()) {
        d.add_name(value);
    }
}

impl Fs {
    /// The default access control list of a directory.
    pub(super) fn default_acl(&self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        xattr::get(&self.cache, inode, Namespace::AclDefault, b"")
    }

    /// What a new file gets from its directory.
    pub(super) fn inherit(&self, dir: &Arc<Node>, file_type: FileType, perm: NewPerm) -> Result<Inherited> {
        let default = self.default_acl(&dir.state.read().inode)?;
        let mut all = Vec::new();
        let of = |namespace, value: Vec<u8>| Xattr { namespace, name: Vec::new(), value };
        let acl = match &default {
            Some(value) if file_type != FileType::Symlink => Acl::from_xattr(value)?,
            _ => None,
        };
        let perm = match acl {
            Some(acl) => {
                let (access, bits) = acl.inherit(perm.bits & 0o777);
                all.extend(access.map(|a| of(Namespace::AclAccess, a.to_xattr())));
                if file_type == FileType::Directory {
                    all.push(of(Namespace::AclDefault, acl.to_xattr()));
                }
                perm.bits & !0o777 | bits
            }
            None => perm.bits & !perm.umask,
        };
        Ok(Inherited { default, perm, all })
    }

    /// Allocates space for what a new file inherits. Its inline area can be `inline_max` bytes long.
    pub(super) fn allocate_inherited(
        &self,
        c: Caller,
        reservation: &Reservation,
        dir: &Arc<Node>,
        inherited: &Inherited,
        inline_max: usize,
    ) -> Result<Attributes<'_>> {
        let g = &self.geo;
        let (packed, inline_len) = place(&inherited.all, 0, INLINE_DEFAULT.min(inline_max), inline_max);
        let blocks = xattr::blocks_for(g, &packed.chain);
        let goal = self.placement.inode_goal(dir.ino);
        reservation.reserve_blocks(blocks as u64, c.privileged())?;
        let fresh = if blocks > 0 { Some(Fresh::take(g, &self.space, reservation, goal, blocks)?) } else { None };
        Ok(Attributes { packed, inline_len, blocks, fresh })
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`] if the file has none of that name; [`Error::Unsupported`] for a name in no known
    /// namespace.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.op(
            Kind::Getxattr,
            [ino, 0, 0],
            |d| {
                d.add_name(name);
            },
            || self.read_attribute(ino, name),
        )
    }

    fn read_attribute(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let (namespace, rest) = split(name)?;
        let node = self.node(ino)?;
        let st = node.state.read();
        if st.freed {
            return Err(Error::Stale);
        }
        match allowed(namespace, st.inode.file_type()) {
            Err(Error::NotPermitted) => return Err(Error::NoAttribute),
            other => other?,
        }
        xattr::get(&self.cache, &st.inode, namespace, rest)?.ok_or(Error::NoAttribute)
    }

    /// The names of a file's extended attributes.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.op(Kind::Getxattr, [ino, 0, 0], |_| {}, || self.list_attributes(ino))
    }

    fn list_attributes(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let node = self.node(ino)?;
        let st = node.state.read();
        if st.freed {
            return Err(Error::Stale);
        }
        if !st.inode.has_xattrs() {
            return Ok(Vec::new());
        }
        let all = xattr::load(&self.cache, &st.inode)?.0;
        let listed = all.iter().filter(|x| !x.is(Namespace::Trusted, LEARNED));
        Ok(listed.map(Xattr::full_name).collect())
    }

    /// Sets an extended attribute. An access control list also sets the permission bits, and is not stored if these
    /// express all of it. The caller has checked permissions.
    ///
    /// # Errors
    /// [`Error::Exists`] and [`Error::NoAttribute`] as `how` asks; [`Error::NotPermitted`] for `user.` attributes of
    /// anything but files and directories; [`Error::Unsupported`] for a name in no known namespace, and access control
    /// lists of symbolic links; [`Error::Denied`] for a default list of anything but a directory;
    /// [`Error::AttributeNameTooLong`], [`Error::ValueTooLong`]; [`Error::NoSpace`] if there is no space, or the file
    /// has too many attributes already.
    pub fn setxattr(&self, c: Caller, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.op(
            Kind::Setxattr,
            [ino, 0, 0],
            |d| note_attribute(d, c, name, Some(value)),
            || self.set_attribute(c, ino, name, value, how),
        )
    }

    fn set_attribute(&self, c: Caller, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.writable()?;
        let (namespace, rest) = split(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::ValueTooLong);
        }
        if namespace.is_acl() && value.len() > ACL_MAX {
            return Err(Error::ValueTooLong);
        }
        let acl = if namespace.is_acl() { Acl::from_xattr(value)? } else { None };
        if acl.as_ref().is_some_and(|acl| !acl.is_minimal() || namespace == Namespace::AclDefault) {
            self.mark_acl()?;
        }
        let node = self.node(ino)?;
        let colocates = namespace == Namespace::User && rest == COLOCATE;
        self.change_xattrs(c, &node, &|inode, all| {
            flags::forbid_inode(inode, FLAG_IMMUTABLE | FLAG_APPEND)?;
            allowed(namespace, inode.file_type())?;
            if colocates && !colocation::is_valid(value, inode.is_dir()) {
                return Error::invalid(if inode.is_dir() { NO_KEY } else { NO_MARK });
            }
            let at = find(all, namespace, rest);
            if how.create && at.is_some() {
                return Err(Error::Exists);
            }
            if how.replace && at.is_none() {
                return Err(Error::NoAttribute);
            }
            // An empty list means no list. A list that the mode can express is not stored.
            let mut keep = true;
            if namespace.is_acl() {
                if namespace == Namespace::AclDefault && !inode.is_dir() {
                    return if acl.is_some() { Err(Error::Denied) } else { Ok(false) };
                }
                keep = acl.is_some();
                if let (Namespace::AclAccess, Some(acl)) = (namespace, &acl) {
                    inode.mode = inode.mode & !0o777 | acl.mode();
                    if how.drop_sgid {
                        inode.mode &= !0o2000;
                    }
                    keep = !acl.is_minimal();
                }
            }
            let new = || Xattr { namespace, name: rest.to_vec(), value: value.to_vec() };
            match at {
                Some(at) if keep => all[at] = new(),
                Some(at) => drop(all.remove(at)),
                None if keep => all.push(new()),
                None => {}
            }
            Ok(true)
        })?;
        self.colocation_changed(&node, colocates);
        Ok(())
    }

    /// Removes an extended attribute. Removing an access control list leaves the permission bits as they are.
    ///
    /// # Errors
    /// [`Error::NoAttribute`] if there is none of that name (an access control list may be missing); otherwise as
    /// [`Fs::setxattr`].
    pub fn removexattr(&self, c: Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.op(
            Kind::Setxattr,
            [ino, 0, 0],
            |d| note_attribute(d, c, name, None),
            || self.remove_attribute(c, ino, name),
        )
    }

    fn remove_attribute(&self, c: Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.writable()?;
        let (namespace, rest) = split(name)?;
        let node = self.node(ino)?;
        self.change_xattrs(c, &node, &|inode, all| {
            flags::forbid_inode(inode, FLAG_IMMUTABLE | FLAG_APPEND)?;
            allowed(namespace, inode.file_type())?;
            match find(all, namespace, rest) {
                Some(at) => {
                    all.remove(at);
                    Ok(true)
                }
                None if namespace.is_acl() => Ok(false),
                None => Err(Error::NoAttribute),
            }
        })?;
        self.colocation_changed(&node, namespace == Namespace::User && rest == COLOCATE);
        Ok(())
    }

    /// The key of a directory may have changed: placement is told.
    fn colocation_changed(&self, node: &Arc<Node>, changed: bool) {
        let st = node.state.read();
        if changed && st.inode.is_dir() && !st.freed {
            self.placement.track(&self.cache, &st.inode);
        }
    }

    /// Changes attributes of a file together with its inode (mode, owner, times). `edit` returns whether there is a
    /// change. It may be called several times. If it fails, nothing changes.
    pub(super) fn change_xattrs(
        &self,
        c: Caller,
        node: &Arc<Node>,
        edit: &dyn Fn(&mut Inode, &mut Vec<Xattr>) -> Result<bool>,
    ) -> Result<()> {
        self.change_xattrs_seen(c, node, true, edit)
    }

    /// Sets an attribute that nobody sees, so no time of the file changes.
    pub(super) fn set_hidden_xattr(
        &self,
        node: &Arc<Node>,
        namespace: Namespace,
        name: &[u8],
        value: &[u8],
    ) -> Result<()> {
        self.change_xattrs_seen(Caller::ROOT, node, false, &|_, all| {
            all.retain(|x| !x.is(namespace, name));
            all.push(Xattr { namespace, name: name.to_vec(), value: value.to_vec() });
            Ok(true)
        })
    }

    /// As [`Fs::change_xattrs`]; where nobody sees the change, the change time stays.
    fn change_xattrs_seen(
        &self,
        c: Caller,
        node: &Arc<Node>,
        seen: bool,
        edit: &dyn Fn(&mut Inode, &mut Vec<Xattr>) -> Result<bool>,
    ) -> Result<()> {
        // The lock keeps others from changing attributes, and from writing data that would need room in the inode.
        let _write_lock = self.lock_for_change(node)?;
        while !self.with_space(|| self.change_xattrs_once(c, node, seen, edit))? {}
        Ok(())
    }

    /// False if the inode was changed or moved in between.
    fn change_xattrs_once(
        &self,
        c: Caller,
        node: &Arc<Node>,
        seen: bool,
        edit: &dyn Fn(&mut Inode, &mut Vec<Xattr>) -> Result<bool>,
    ) -> Result<bool> {
        node.wait_writeback();
        let (old, location, mut all, chain) = {
            let st = node.state.read();
            if st.freed {
                return Err(Error::Stale);
            }
            let (all, chain) = xattr::load(&self.cache, &st.inode)?;
            (st.inode.clone(), st.location, all, chain)
        };
        let mut new = old.clone();
        let before: usize = all.iter().map(Xattr::encoded_len).sum();
        if !edit(&mut new, &mut all)? {
            return Ok(true);
        }
        if seen {
            new.ctime = now();
        }
        check_limits(&all, before)?;
        let inline_most = match self.inline_most(&old, location) {
            // It was moved meanwhile, and what is there now is something else.
            Err(_) if node.state.read().location != location => return Ok(false),
            most => most?,
        };
        let (packed, len) = place(&all, inline_need(&old), old.inline_len, inline_most);
        (new.xattrs, new.inline_len) = (packed.inline, len);

        let g = &self.geo;
        let (have, need) = (chain.blocks.len(), xattr::blocks_for(g, &packed.chain));
        let more = need.saturating_sub(have);
        let goal = match location {
            InodeLocation::Embedded { block, .. } | InodeLocation::External { block, .. } => block,
            InodeLocation::System => g.sys_start,
        };
        let (_reservation, fresh) = self.chain_blocks(c, &new, goal, more)?;
        let log_bytes = INODE_CORE_SIZE + INLINE_MAX + 256 + xattr::log_bytes(g, &self.space, have, need);
        let grows = len > old.inline_len;
        let dir = match grows.then(|| self.directory_around(location)).transpose() {
            Ok(dir) => dir.flatten(),
            // The inode has moved out of a directory that was removed.
            Err(_) if node.state.read().location != location => return Ok(false),
            Err(e) => return Err(e),
        };
        let txn = self.journal.begin(log_bytes + self.space.log_bytes_for_init())?;
        let mut nodes = vec![node];
        nodes.extend(dir.as_ref());
        let mut locked = Locked::new(&nodes);
        let _for_new_owner = self.quota_for_new_owner(c, locked.get(node.ino)?, ids_of(&new))?;
        let st = locked.get(node.ino)?;
        if st.freed {
            return Err(Error::Stale);
        }
        if node.under_way.is_busy() || st.inode != old || st.location != location {
            return Ok(false);
        }
        // Read before anything changes, and not before it is known to be there: until the lock it may have moved.
        let _inode_block = match location {
            InodeLocation::System => table::load_system_inode(&self.cache, node.ino).map(|_| None)?,
            location => Some(self.inode_block(location)?),
        };
        self.replace_inode(c, st, new)?;
        if let (InodeLocation::Embedded { block, entry, inode }, Some(dir)) = (location, &dir) {
            let (dir_inode, state) = as_dir(locked.get(dir.ino)?)?;
            let entry_len = inode - entry + dirblock::inode_room(len);
            if !dir::grow_entry(&self.dir_cx(), &txn, dir_inode, state, block, entry, entry_len)? {
                locked.get(node.ino)?.inode = old;
                return Ok(false);
            }
        }
        txn.begin_critical();
        let st = locked.get(node.ino)?;
        xattr::write_chain(&txn, &self.space, &mut st.inode, &chain, fresh, &packed.chain)?;
        crate::node::store(&txn, st)?;
        txn.end_critical();
        Ok(true)
    }

    /// Replaces an inode in memory by `new`. Pending extents may need tree blocks if they no longer fit the inode;
    /// without space for these the inode stays as it was.
    fn replace_inode(&self, c: Caller, st: &mut NodeState, new: Inode) -> Result<()> {
        let old = std::mem::replace(&mut st.inode, new);
        if !st.data.pages.is_empty()
            && let Err(e) = reserve_tree(&self.file_cx(), st, c.privileged())
        {
            st.inode = old;
            return Err(e);
        }
        Ok(())
    }

    /// Allocates the blocks by which an attribute chain grows. Their quota is in the reservation.
    fn chain_blocks(
        &self,
        c: Caller,
        inode: &Inode,
        goal: BlockAddr,
        blocks: usize,
    ) -> Result<(Reservation, Fresh<'_>)> {
        let reservation = self.space.reservation(None, c.privileged());
        reservation.reserve_blocks(blocks as u64, c.privileged())?;
        let fresh = Fresh::take(&self.geo, &self.space, &reservation, goal, blocks)?;
        if let (Some(quota), true) = (&self.quota, blocks > 0) {
            let frags = blocks as u64 * self.geo.frags_per_block();
            reservation.merge(quota.reservation(ids_of(inode), frags, 0, c.privileged())?);
        }
        Ok((reservation, fresh))
    }

    /// The greatest length of an inode's inline area at its location.
    fn inline_most(&self, inode: &Inode, location: InodeLocation) -> Result<usize> {
        let InodeLocation::Embedded { block, entry, inode: at } = location else { return Ok(INLINE_WITH_XATTRS) };
        let buf = self.cache.read_meta_any_owner(BlockKind::Dir, block)?;
        let b = buf.read();
        let free = match dirblock::entry_at(&b, entry) {
            Some(e) if e.ino == inode.ino => dirblock::grown_max(&b, entry),
            // The inode has just moved, which the caller will notice.
            _ => return Ok(inode.inline_len),
        };
        Ok(free.saturating_sub(at - entry + INODE_CORE_SIZE) & !7)
    }

    /// Frees the blocks of an orphan's attributes.
    pub(super) fn reclaim_xattrs(&self, node: &Arc<Node>) -> Result<()> {
        let chain = {
            let st = node.state.read();
            if st.freed || st.inode.xattr_block == 0 {
                return Ok(());
            }
            xattr::read_chain(&self.cache, &st.inode)?
        };
        let g = &self.geo;
        let bytes = INODE_CORE_SIZE + INLINE_MAX + 256 + xattr::log_bytes(g, &self.space, chain.blocks.len(), 0);
        let txn = self.journal.begin(bytes)?;
        let mut st = node.state.write();
        let unused = node.refs.load(std::sync::atomic::Ordering::Acquire) == 0;
        if st.freed || !unused || st.inode.xattr_block != chain.blocks.first().map_or(0, |b| b.addr()) {
            return Ok(());
        }
        let _inode_block = self.inode_block(st.location)?;
        txn.begin_critical();
        let fresh = Fresh::take(g, &self.space, &Reservation::none(), 0, 0)?;
        xattr::write_chain(&txn, &self.space, &mut st.inode, &chain, fresh, &[])?;
        crate::node::store(&txn, &mut st)?;
        txn.end_critical();
        Ok(())
    }
}
