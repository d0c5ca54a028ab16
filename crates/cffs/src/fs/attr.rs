//! Attributes.

use super::traced::note_caller;
use super::xattr::chmod_acl;
use super::{AtimeMode, Attr, Caller, Fs, SetAttr, TimeSpec, flags, now};
use crate::error::{Error, Result};
use crate::file::truncate;
use crate::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE, FLAG_NOATIME, INLINE_MAX, INODE_CORE_SIZE};
use crate::format::xattr::Namespace;
use crate::format::{FILE_SIZE_MAX, FileType, Ino, Inode};
use crate::node::{Node, NodeState};
use crate::trace::{Detail, Kind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// With relatime, an access time older than this is updated at the next access.
const RELATIME_MAX_NS: i64 = 24 * 3600 * 1_000_000_000;

/// What a change of attributes changes.
fn note_set(d: &mut Detail, c: Caller, set: &SetAttr) {
    let set_bits = [
        set.perm.is_some(),
        set.uid.is_some(),
        set.gid.is_some(),
        set.size.is_some(),
        set.atime.is_some(),
        set.mtime.is_some(),
    ];
    d.add_number(set_bits.iter().rev().fold(0, |bits, set| bits << 1 | u64::from(*set)));
    d.add_number(set.perm.unwrap_or_default().into());
    d.add_number(set.uid.unwrap_or_default().into());
    d.add_number(set.gid.unwrap_or_default().into());
    d.add_number(set.size.unwrap_or_default());
    note_caller(d, c);
}

impl Fs {
    /// Attributes of a node.
    pub(super) fn attr(&self, node: &Node, st: &NodeState) -> Attr {
        let i = &st.inode;
        let file_type = i.file_type();
        let device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
        let transfer = if file_type == FileType::Regular { self.geo.group_size() } else { self.geo.block_size() };
        let frags = i.frags + st.data.reserved();
        Attr {
            ino: i.ino,
            generation: i.generation,
            file_type,
            perm: i.mode & 0o7777,
            nlink: i.nlink,
            uid: i.uid,
            gid: i.gid,
            rdev: if device { i.aux as u32 } else { 0 },
            size: i.size,
            blocks: (frags << self.geo.frag_shift) / 512,
            atime: i.atime.max(node.pending_atime.load(Ordering::Relaxed)),
            mtime: i.mtime,
            ctime: i.ctime,
            btime: i.btime,
            flags: i.flags,
            transfer: transfer as u32,
        }
    }

    /// Attributes of a file.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.op(Kind::Getattr, [ino, 0, 0], |_| {}, || self.read_attributes(ino))
    }

    fn read_attributes(&self, ino: Ino) -> Result<Attr> {
        let node = self.node(ino)?;
        let st = node.state.read();
        if st.freed {
            return Err(Error::Stale);
        }
        Ok(self.attr(&node, &st))
    }

    /// Records an access time as the mount options require. This is cheap, because nothing is written for it alone.
    pub(super) fn note_access(&self, node: &Arc<Node>, st: &NodeState) {
        if self.opts.read_only || self.opts.atime == AtimeMode::Noatime {
            return;
        }
        let i = &st.inode;
        if i.flags & FLAG_NOATIME != 0 {
            return;
        }
        let now = now();
        let stale = i.atime <= i.mtime || i.atime <= i.ctime || now.saturating_sub(i.atime) > RELATIME_MAX_NS;
        // A read of a device that is full of snapshots takes no space.
        if (self.opts.atime == AtimeMode::Strictatime || stale) && self.space.may_change() {
            node.pending_atime.store(now, Ordering::Relaxed);
            self.list_dirty(node);
        }
    }

    /// Changes attributes.
    pub fn setattr(&self, c: Caller, ino: Ino, set: SetAttr) -> Result<Attr> {
        self.op(
            Kind::Setattr,
            [ino, 0, 0],
            |d| {
                note_set(d, c, &set);
            },
            || self.set_attributes(c, ino, set),
        )
    }

    fn set_attributes(&self, c: Caller, ino: Ino, set: SetAttr) -> Result<Attr> {
        self.writable()?;
        let node = self.node(ino)?;
        {
            let touched = |t: Option<TimeSpec>| matches!(t, Some(TimeSpec::At(_)));
            let more = set.perm.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some();
            let fixed = more || touched(set.atime) || touched(set.mtime);
            // An append-only file may still have its times set to the present.
            let forbidden = if fixed { FLAG_IMMUTABLE | FLAG_APPEND } else { FLAG_IMMUTABLE };
            flags::forbid(&node.state.read(), forbidden)?;
        }
        if let Some(size) = set.size {
            self.set_size(c, &node, size)?;
        }
        let rest = SetAttr { size: None, ..set };
        let others = rest.perm.is_some()
            || rest.uid.is_some()
            || rest.gid.is_some()
            || rest.atime.is_some()
            || rest.mtime.is_some();
        if !others {
            let st = node.state.read();
            return Ok(self.attr(&node, &st));
        }
        let ids = |i: &Inode| [rest.uid.unwrap_or(i.uid), rest.gid.unwrap_or(i.gid), i.projid];
        if rest.uid.is_some() || rest.gid.is_some() {
            let ids = ids(&node.state.read().inode);
            self.prepare_quota(ids)?;
        }
        let now = now();
        let time = |t: TimeSpec| match t {
            TimeSpec::Now => now,
            TimeSpec::At(ns) => ns,
        };
        let apply = |i: &mut Inode| {
            if let Some(perm) = rest.perm {
                i.mode = (i.mode & 0o170000) | (perm & 0o7777);
            }
            i.uid = rest.uid.unwrap_or(i.uid);
            i.gid = rest.gid.unwrap_or(i.gid);
            i.atime = rest.atime.map_or(i.atime, time);
            i.mtime = rest.mtime.map_or(i.mtime, time);
            i.ctime = now;
        };
        loop {
            // New permissions change the access control list too.
            if rest.perm.is_some() && node.state.read().inode.has_xattrs() {
                self.change_xattrs(c, &node, &|i, all| {
                    apply(i);
                    chmod_acl(all, i.mode)?;
                    Ok(true)
                })?;
                if rest.atime.is_some() {
                    node.pending_atime.store(i64::MIN, Ordering::Relaxed);
                }
                return Ok(self.attr(&node, &node.state.read()));
            }
            let txn = self.journal.begin(INODE_CORE_SIZE + INLINE_MAX + 256)?;
            let mut st = node.state.write();
            if st.freed {
                return Err(Error::Stale);
            }
            if rest.perm.is_some() && st.inode.has_xattrs() {
                continue;
            }
            let _reservation = self.quota_for_new_owner(c, &st, ids(&st.inode))?;
            apply(&mut st.inode);
            if rest.atime.is_some() {
                node.pending_atime.store(i64::MIN, Ordering::Relaxed);
            }
            crate::node::store(&txn, &mut st)?;
            return Ok(self.attr(&node, &st));
        }
    }

    /// Truncates or extends.
    fn set_size(&self, c: Caller, node: &Arc<Node>, size: u64) -> Result<()> {
        if size > FILE_SIZE_MAX {
            return Err(Error::FileTooLarge);
        }
        let _write_lock = node.write_lock.lock();
        // Extents behind the new size need not be committed first.
        if size > node.state.read().disk_size {
            crate::file::flush_deferred(&self.file_cx(), node)?;
        }
        let outcome = self.with_space(|| self.set_size_once(c, node, size));
        self.flush_if_needed(node);
        outcome
    }

    /// [`Node::write_lock`] is held.
    fn set_size_once(&self, c: Caller, node: &Arc<Node>, size: u64) -> Result<()> {
        let cx = self.file_cx();
        let grows = {
            let mut st = node.state.write();
            match st.inode.file_type() {
                FileType::Regular => {}
                FileType::Directory => return Err(Error::IsDir),
                _ => return Error::invalid("only regular files have a size to set"),
            }
            if st.freed {
                return Err(Error::Stale);
            }
            // Truncating a file to its own size frees what was preallocated behind the end.
            let trims = size == st.inode.size && crate::file::preallocate::has_space_behind_end(&cx, &st)?;
            if size >= st.inode.size && !trims {
                let now = now();
                if size > st.inode.size
                    && let Err(e) = crate::file::extend(&cx, &mut st, size, c.privileged())
                {
                    // The steps before may have left a dirty page.
                    self.list_dirty(node);
                    return Err(e);
                }
                (st.inode.mtime, st.inode.ctime) = (now, now);
                st.dirty = true;
                true
            } else {
                false
            }
        };
        if grows {
            self.list_dirty(node);
            return Ok(());
        }
        loop {
            let (limit, log_bytes) = truncate::plan(&cx, &node.state.read().inode);
            node.wait_writeback();
            let txn = self.journal.begin(log_bytes)?;
            txn.begin_critical();
            let mut st = node.state.write();
            if node.under_way.is_busy() {
                continue;
            }
            let (now, times) = (now(), (st.inode.mtime, st.inode.ctime));
            (st.inode.mtime, st.inode.ctime) = (now, now);
            let more = truncate::shrink_step(&cx, &txn, &mut st, size, limit).inspect_err(|_| {
                // Nothing has changed, so nothing will be stored: fsync must not promise other times.
                (st.inode.mtime, st.inode.ctime) = times;
            })?;
            txn.end_critical();
            if !more {
                return Ok(());
            }
        }
    }

    /// Removes set-user-id, set-group-id and capabilities after a write by a user who may not keep them. True if the
    /// file had any. Set-group-id without group execution stays where `in_group` says that the user is in this group.
    pub fn clear_set_id(&self, ino: Ino, in_group: impl Fn(u32) -> bool) -> Result<bool> {
        let _span = self.span(Kind::Setattr, [ino, 0, 0]);
        let node = self.node(ino)?;
        let (drop, attributes) = {
            let inode = &node.state.read().inode;
            if inode.file_type() != FileType::Regular {
                return Ok(false);
            }
            let capable = crate::xattr::get(&self.cache, inode, Namespace::Security, b"capability")?.is_some();
            let locks = inode.mode & 0o2010 == 0o2000 && !in_group(inode.gid);
            (set_id_bits(inode.mode) | if locks { 0o2000 } else { 0 }, capable)
        };
        if attributes {
            self.writable()?;
            let mut found = false;
            match self.removexattr(Caller::ROOT, ino, b"security.capability") {
                Ok(()) => found = true,
                Err(Error::NoAttribute) => {}
                Err(e) => return Err(e),
            }
            if drop == 0 {
                return Ok(found);
            }
        }
        if drop == 0 {
            return Ok(false);
        }
        self.writable()?;
        let txn = self.journal.begin(INODE_CORE_SIZE + INLINE_MAX + 256)?;
        let mut st = node.state.write();
        if st.freed {
            return Err(Error::Stale);
        }
        st.inode.mode &= !drop;
        st.inode.ctime = now();
        crate::node::store(&txn, &mut st)?;
        Ok(true)
    }
}

/// Bits that a write clears. Set-group-id without group execution marks mandatory locking, not an identity.
fn set_id_bits(mode: u16) -> u16 {
    mode & 0o4000 | if mode & 0o010 != 0 { mode & 0o2000 } else { 0 }
}
