//! Rename, with its flags.

use super::create::{embedded_in, write_names_ordered};
use super::quota::handed_down;
use super::traced::note_caller;
use super::{Caller, Fs, Locked, RenameFlags, as_dir, now};
use crate::dir::{self, Found};
use crate::error::{Error, Result};
use crate::format::dirblock::{self, EntryKind, NewEntry};
use crate::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE};
use crate::format::{Ino, LINK_MAX};
use crate::inode::InodeLocation;
use crate::journal::Txn;
use crate::node::Node;
use crate::trace::Kind;
use std::sync::Arc;

/// One side of a rename.
struct Side<'a> {
    dir: &'a Arc<Node>,
    name: &'a [u8],
}

impl Fs {
    /// Renames a file, perhaps into another directory. A file that has the new name is removed, unless the flags say
    /// otherwise. After a crash the new name refers to the old file or the new one, each complete.
    pub fn rename(
        &self,
        c: Caller,
        from_dir: Ino,
        from: &[u8],
        to_dir: Ino,
        to: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.op(
            Kind::Rename,
            [from_dir, to_dir, 0],
            |d| {
                d.add_name(from);
                d.add_name(to);
                d.add_number(u64::from(flags.no_replace) | u64::from(flags.exchange) << 1);
                note_caller(d, c);
            },
            || self.change_name(c, from_dir, from, to_dir, to, flags),
        )
    }

    fn change_name(
        &self,
        c: Caller,
        from_dir: Ino,
        from: &[u8],
        to_dir: Ino,
        to: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.writable()?;
        Self::check_name(from)?;
        Self::check_name(to)?;
        if flags.exchange && flags.no_replace {
            return Error::invalid("rename that exchanges and does not replace");
        }
        let (from_node, to_node) = (self.node(from_dir)?, self.node(to_dir)?);
        let a = Side { dir: &from_node, name: from };
        let b = Side { dir: &to_node, name: to };
        loop {
            let node = self.find_node(&from_node, from)?.ok_or(Error::NotFound)?;
            let target = self.find_node(&to_node, to)?;
            if flags.exchange && target.is_none() {
                return Err(Error::NotFound);
            }
            if flags.no_replace && target.is_some() {
                return Err(Error::Exists);
            }
            // The contents of a file that replaces another are written first, because a crash must not leave an empty
            // file.
            if target.is_some() && !flags.exchange {
                self.flush_node(&node)?;
            }
            if self.with_space_for_name(|blocks| self.rename_once(c, blocks, &a, &b, &node, target.as_ref(), flags))? {
                return self.sync_names(&[a.dir, b.dir]);
            }
        }
    }

    /// False if the names changed in between and the caller must look them up again.
    #[expect(clippy::too_many_arguments, reason = "two sides of a rename")]
    fn rename_once(
        &self,
        c: Caller,
        blocks: u64,
        a: &Side<'_>,
        b: &Side<'_>,
        node: &Arc<Node>,
        target: Option<&Arc<Node>>,
        flags: RenameFlags,
    ) -> Result<bool> {
        let across = a.dir.ino != b.dir.ino;
        let is_dir = |n: &Arc<Node>| n.state.read().inode.is_dir();
        // Only moving a directory to another one can create a loop. The rename lock keeps the tree fixed during the
        // check.
        let _moving = (across && (is_dir(node) || target.is_some_and(is_dir))).then(|| self.rename_lock.lock());
        if across {
            self.check_no_loop(a, b, node, target, flags.exchange)?;
        }
        let reservation = self.reserve_for_name(c.privileged(), blocks)?;
        let txn = self.journal.begin(2 * self.log_bytes_remove())?;
        txn.draw_on(&reservation);
        let mut all = vec![a.dir, b.dir, node];
        all.extend(target);
        let mut locked = Locked::new(&all);
        let Some(found) = self.find_locked(&mut locked, a.dir.ino, a.name)? else { return Err(Error::NotFound) };
        let found_to = self.find_locked(&mut locked, b.dir.ino, b.name)?;
        if found.ino != node.ino || found_to.as_ref().map(|f| f.ino) != target.map(|t| t.ino) {
            return Ok(false);
        }
        if locked.get(node.ino)?.freed || target.is_some_and(|t| locked.get(t.ino).is_ok_and(|st| st.freed)) {
            return Ok(false); // the name belongs to another file with the same number
        }
        check_rename(&mut locked, a, b, node, target, flags.exchange)?;
        let now = now();
        if let (true, Some(found_to)) = (flags.exchange, &found_to) {
            if found.ino == found_to.ino {
                return Ok(true);
            }
            self.with_tables(&txn, self.exchange(&txn, &mut locked, a, b, &found, found_to, now))?;
            txn.end_critical();
            return Ok(true);
        }
        if let Some(found_to) = &found_to {
            if found_to.ino == found.ino {
                return Ok(true); // two names of one file: POSIX leaves both
            }
            self.prepare_target(&txn, &mut locked, node.ino, found_to.ino)?;
        }
        if across && locked.get(node.ino)?.inode.is_dir() && locked.get(b.dir.ino)?.inode.nlink >= LINK_MAX {
            return Err(Error::TooManyLinks);
        }
        let moved = match self.move_name(&txn, c, &mut locked, a, b, &found, found_to.as_ref(), now) {
            Err(Error::NoSpace) if blocks == 0 && found_to.is_some() => {
                match self.replace_in_place(&txn, &mut locked, a, b, now) {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(Error::NoSpace),
                    Err(e) => Err(e),
                }
            }
            outcome => outcome,
        };
        self.with_tables(&txn, moved)?;
        txn.end_critical();
        drop(locked);
        drop(txn);
        if let Some(t) = target {
            self.reclaim_if_unused(t);
        }
        Ok(true)
    }

    /// Fails if a directory would move into itself.
    fn check_no_loop(
        &self,
        a: &Side<'_>,
        b: &Side<'_>,
        node: &Arc<Node>,
        target: Option<&Arc<Node>>,
        exchange: bool,
    ) -> Result<()> {
        let is_dir = |n: &Arc<Node>| n.state.read().inode.is_dir();
        let is_within = |dir: &Arc<Node>, ancestor: Ino| {
            let found = self.is_within(dir.ino, ancestor);
            // A directory that was removed has no parent: the number of that one may belong to another by now.
            if gone(&dir.state.read()) { Err(Error::NotFound) } else { found }
        };
        if is_dir(node) && is_within(b.dir, node.ino)? {
            return Error::invalid("a directory cannot move into itself");
        }
        if let Some(t) = target.filter(|t| is_dir(t))
            && is_within(a.dir, t.ino)?
        {
            return if exchange { Error::invalid("a directory cannot move into itself") } else { Err(Error::NotEmpty) };
        }
        Ok(())
    }

    /// Fails if `target` cannot be replaced by `source`. Frees the blocks of a directory that is replaced.
    fn prepare_target(&self, txn: &Txn<'_>, locked: &mut Locked<'_>, source: Ino, target: Ino) -> Result<()> {
        let source_is_dir = locked.get(source)?.inode.is_dir();
        let st = locked.get(target)?;
        match (source_is_dir, st.inode.is_dir()) {
            (true, false) => Err(Error::NotDir),
            (false, true) => Err(Error::IsDir),
            (true, true) if !dir::is_empty(&st.inode) => Err(Error::NotEmpty),
            (true, true) => self.release_blocks(txn, locked, target).map(drop),
            (false, false) => Ok(()),
        }
    }

    /// Inserts the new name, then removes the name it replaces and the old name. An embedded inode moves with the name.
    #[expect(clippy::too_many_arguments, reason = "two sides of a rename")]
    fn move_name(
        &self,
        txn: &Txn<'_>,
        c: Caller,
        locked: &mut Locked<'_>,
        a: &Side<'_>,
        b: &Side<'_>,
        found: &Found,
        found_to: Option<&Found>,
        now: i64,
    ) -> Result<()> {
        let cx = self.dir_cx();
        let ino = found.ino;
        let mut embedded = found.kind == EntryKind::Embedded;
        // The blocks that the changes below read are pinned, so that none of them fails half way.
        let _held = (
            self.inodes.locator.find(&self.cache, ino)?,
            self.inode_block(locked.get(ino)?.location)?,
            found_to.map(|to| self.inode_block(locked.get(to.ino)?.location)).transpose()?,
        );
        if embedded && !dir::fits(&self.geo, b.name.len(), locked.get(ino)?.inode.encoded_len()) {
            // The long name leaves no room for this inode in a block.
            let st = locked.get(ino)?;
            self.externalize(txn, st)?;
            self.write_inode_ordered(txn, st.location)?;
            embedded = false;
        }
        let (room, file_type) = {
            let st = locked.get(ino)?;
            let room = match (embedded, self.embeds()) {
                (true, _) => st.inode.encoded_len(),
                (false, _) => self.link_room(b.name.len()),
            };
            (room, st.inode.file_type())
        };
        let frags = locked.get(b.dir.ino)?.inode.frags;
        let slot = self.slot_for_name(txn, c, locked.get(b.dir.ino)?, b.name, room)?;
        txn.begin_critical();
        let location = embedded_in(&slot, b.name);
        let (block, apart) = (slot.block, slot.block != found.block);
        let image = {
            let st = locked.get(ino)?;
            st.inode.parent = b.dir.ino;
            st.inode.ctime = now;
            let mut image = st.inode.clone();
            image.size = st.disk_size;
            image
        };
        let inode = embedded.then_some(&image);
        let entry = NewEntry { name: b.name, hash: 0, ino, file_type, inode, inode_room: room };
        {
            // The new name is inserted before the old one is removed.
            let st = locked.get(b.dir.ino)?;
            let (inode, state) = as_dir(st)?;
            dir::insert(&cx, txn, inode, state, slot, &entry)?;
            if apart {
                write_names_ordered(txn, st, block, frags);
            }
        }
        if embedded {
            let st = locked.get(ino)?;
            st.location = location;
            self.inodes.relocate(txn, ino, location)?;
        }
        if let Some(to) = found_to {
            self.drop_replaced(txn, locked, b, to, now)?;
        }
        {
            // The old entry is removed with its inode, which is a copy by now.
            let st = locked.get(a.dir.ino)?;
            let frags = st.inode.frags;
            let (inode, state) = as_dir(st)?;
            dir::remove(&cx, txn, &self.space, inode, state, found, a.name)?;
            if apart {
                write_names_ordered(txn, st, found.block, frags);
            }
        }
        self.finish_move(txn, locked, a, b, ino, now)
    }

    /// Removes the name that a rename replaces.
    fn drop_replaced(&self, txn: &Txn<'_>, locked: &mut Locked<'_>, b: &Side<'_>, to: &Found, now: i64) -> Result<()> {
        let was_dir = locked.get(to.ino)?.inode.is_dir();
        self.drop_name(txn, locked, b.dir.ino, to, b.name, now)?;
        if was_dir {
            let st = locked.get(b.dir.ino)?;
            st.inode.nlink = st.inode.nlink.saturating_sub(1);
        }
        Ok(())
    }

    /// Stores a moved inode and its directories.
    fn finish_move(
        &self,
        txn: &Txn<'_>,
        locked: &mut Locked<'_>,
        a: &Side<'_>,
        b: &Side<'_>,
        ino: Ino,
        now: i64,
    ) -> Result<()> {
        let is_dir = locked.get(ino)?.inode.is_dir();
        if is_dir && a.dir.ino != b.dir.ino {
            let (from, to) = locked.pair(a.dir.ino, b.dir.ino)?;
            from.inode.nlink = from.inode.nlink.saturating_sub(1);
            to.inode.nlink += 1;
        }
        let st = locked.get(ino)?;
        crate::node::store(txn, st)?;
        if is_dir {
            self.placement.track(&self.cache, &st.inode);
        }
        self.changed_dir(txn, locked.get(a.dir.ino)?, now)?;
        if a.dir.ino != b.dir.ino {
            self.changed_dir(txn, locked.get(b.dir.ino)?, now)?;
        }
        Ok(())
    }

    /// Replaces a name on a full device, without allocating: the two entries exchange their files, then the old name is
    /// removed together with the file that it refers to now. False, with nothing changed, if one of the inodes does not
    /// fit the other's entry.
    fn replace_in_place(
        &self,
        txn: &Txn<'_>,
        locked: &mut Locked<'_>,
        a: &Side<'_>,
        b: &Side<'_>,
        now: i64,
    ) -> Result<bool> {
        let (Some(found), Some(to)) =
            (self.find_locked(locked, a.dir.ino, a.name)?, self.find_locked(locked, b.dir.ino, b.name)?)
        else {
            return Ok(false);
        };
        let sides = [(&found, &to, b.dir.ino), (&to, &found, a.dir.ino)];
        let mut places = [0; 2];
        for ((f, other, _), at) in sides.iter().zip(&mut places) {
            let block = other.buf().read();
            let e = dirblock::known_entry(&block, other.offset);
            let len = locked.get(f.ino)?.inode.encoded_len();
            if f.kind == EntryKind::Embedded && !(len..=len + 8).contains(&e.inode_room()) {
                return Ok(false);
            }
            *at = e.inode_offset();
        }
        // The blocks that the changes below read are pinned, so that none of them fails half way.
        let _held = (
            self.inodes.locator.find(&self.cache, found.ino)?,
            self.inodes.locator.find(&self.cache, to.ino)?,
            self.inode_block(locked.get(found.ino)?.location)?,
            self.inode_block(locked.get(to.ino)?.location)?,
        );
        txn.begin_critical();
        for ((f, other, dir), inode) in sides.into_iter().zip(places) {
            let st = locked.get(f.ino)?;
            st.inode.parent = dir;
            st.inode.ctime = now;
            dirblock::set_link(&mut txn.edit(other.buf()), other.offset, f.ino, f.file_type);
            txn.write_ordered(other.block);
            if f.kind == EntryKind::Embedded {
                let size = std::mem::replace(&mut st.inode.size, st.disk_size);
                dirblock::make_embedded(&mut txn.edit(other.buf()), other.offset, &st.inode);
                st.inode.size = size;
                st.location = InodeLocation::Embedded { block: other.block, entry: other.offset, inode };
                self.inodes.relocate(txn, f.ino, st.location)?;
            }
            crate::node::store(txn, st)?;
        }
        let is_dir = locked.get(found.ino)?.inode.is_dir();
        if is_dir {
            let st = locked.get(a.dir.ino)?;
            st.inode.nlink = st.inode.nlink.saturating_sub(1);
            self.placement.track(&self.cache, &locked.get(found.ino)?.inode);
        }
        let old = self.find_locked(locked, a.dir.ino, a.name)?.ok_or(Error::Stale)?;
        self.drop_name(txn, locked, a.dir.ino, &old, a.name, now)?;
        self.changed_dir(txn, locked.get(a.dir.ino)?, now)?;
        if a.dir.ino != b.dir.ino {
            self.changed_dir(txn, locked.get(b.dir.ino)?, now)?;
        }
        Ok(true)
    }

    /// Exchanges two files. Embedded inodes move to the external table first, so that the entries stay where they are.
    #[expect(clippy::too_many_arguments, reason = "two sides of a rename")]
    fn exchange(
        &self,
        txn: &Txn<'_>,
        locked: &mut Locked<'_>,
        a: &Side<'_>,
        b: &Side<'_>,
        found: &Found,
        found_to: &Found,
        now: i64,
    ) -> Result<()> {
        for f in [found, found_to] {
            let st = locked.get(f.ino)?;
            self.externalize(txn, st)?;
            self.write_inode_ordered(txn, st.location)?;
        }
        txn.begin_critical();
        for (f, other, dir) in [(found, found_to, b.dir.ino), (found_to, found, a.dir.ino)] {
            dirblock::set_link(&mut txn.edit(other.buf()), other.offset, f.ino, f.file_type);
            txn.write_ordered(other.block);
            let st = locked.get(f.ino)?;
            st.inode.parent = dir;
            st.inode.ctime = now;
            crate::node::store(txn, st)?;
            if st.inode.is_dir() {
                self.placement.track(&self.cache, &st.inode);
            }
        }
        if a.dir.ino != b.dir.ino {
            let (x, y) = (locked.get(found.ino)?.inode.is_dir(), locked.get(found_to.ino)?.inode.is_dir());
            let (from, to) = locked.pair(a.dir.ino, b.dir.ino)?;
            let moved = u32::from(x);
            let came = u32::from(y);
            from.inode.nlink = from.inode.nlink + came - moved;
            to.inode.nlink = to.inode.nlink + moved - came;
            self.changed_dir(txn, locked.get(b.dir.ino)?, now)?;
        }
        self.changed_dir(txn, locked.get(a.dir.ino)?, now)
    }
}

/// Whether a directory was removed.
fn gone(st: &super::NodeState) -> bool {
    st.freed || st.orphan
}

/// Fails if directories are gone, flags forbid the rename, or a file would get into a directory of another project.
fn check_rename(
    locked: &mut Locked<'_>,
    a: &Side<'_>,
    b: &Side<'_>,
    node: &Arc<Node>,
    target: Option<&Arc<Node>>,
    exchange: bool,
) -> Result<()> {
    if gone(locked.get(a.dir.ino)?) || gone(locked.get(b.dir.ino)?) {
        return Err(Error::NotFound);
    }
    // The file and the one it replaces lose a name; both directories lose a name, or exchange names.
    if target.is_none_or(|t| t.ino != node.ino) {
        let locks = FLAG_IMMUTABLE | FLAG_APPEND;
        super::flags::forbid(locked.get(node.ino)?, locks)?;
        super::flags::forbid(locked.get(a.dir.ino)?, locks)?;
        super::flags::forbid(locked.get(b.dir.ino)?, if target.is_some() { locks } else { FLAG_IMMUTABLE })?;
        if let Some(t) = target {
            super::flags::forbid(locked.get(t.ino)?, locks)?;
        }
    }
    let mut of_other_project = |dir: &Arc<Node>, file: &Arc<Node>| -> Result<bool> {
        let project = handed_down(&locked.get(dir.ino)?.inode);
        Ok(project.is_some_and(|p| locked.get(file.ino).is_ok_and(|st| st.inode.projid != p)))
    };
    if of_other_project(b.dir, node)? || target.is_some_and(|t| exchange && of_other_project(a.dir, t).unwrap_or(false))
    {
        return Err(Error::CrossDevice);
    }
    Ok(())
}
