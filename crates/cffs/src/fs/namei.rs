//! From names to inodes: lookup, parents, listing.

use super::{Attr, DirEntry, Fs};
use crate::cache::BufRef;
use crate::dir;
use crate::error::{Error, Result};
use crate::format::dirblock::{self, Entry, EntryKind};
use crate::format::{Corrupt, FIRST_USER_INO, Ino, NAME_MAX, ROOT_INO};
use crate::inode::{InodeLocation, read_inode};
use crate::node::Node;
use crate::trace::{Detail, Kind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries of a listing that are collected under one lock of the directory.
const LIST_BATCH: usize = 64;

impl Fs {
    /// Checks a name that is to be looked up or created.
    pub(super) fn check_name(name: &[u8]) -> Result<()> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        dirblock::check_name(name).or_else(Error::invalid)
    }

    /// Looks up a name. Returns the attributes of its file, with one more reference.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.op(
            Kind::Lookup,
            [parent, 0, 0],
            |d| {
                d.add_name(name);
            },
            || self.look_up(parent, name),
        )
    }

    fn look_up(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        let dir = self.node(parent)?;
        // A link whose file is removed between two steps is looked up again.
        for _ in 0..16 {
            let Some(node) = self.find_node(&dir, name)? else { return Err(Error::NotFound) };
            node.refs.fetch_add(1, Ordering::AcqRel);
            let st = node.state.read();
            if st.freed || st.orphan {
                drop(st);
                self.forget_node(&node, 1);
                continue;
            }
            if self.wants_embedding(&st) {
                drop(st);
                if let Err(e) = self.embed(&dir, name, &node) {
                    tracing::warn!("moving inode {} into its directory: {e}", node.ino);
                }
                return Ok(self.attr(&node, &node.state.read()));
            }
            return Ok(self.attr(&node, &st));
        }
        Err(Error::NotFound)
    }

    /// The node behind a name.
    pub(super) fn find_node(&self, dir: &Arc<Node>, name: &[u8]) -> Result<Option<Arc<Node>>> {
        let st = dir.state.read();
        let Some(state) = &st.dir else { return Err(Error::NotDir) };
        if st.freed {
            return Ok(None);
        }
        let Some(found) = dir::lookup(&self.search_cx(st.location), &st.inode, state, name)? else { return Ok(None) };
        if found.kind == EntryKind::Embedded {
            return self.embedded(found.buf(), found.offset, found.ino).map(Some);
        }
        self.linked(found.ino).map(Some)
    }

    /// The node of an external link. Its directory is locked, because otherwise the file could be removed and its
    /// number reused.
    fn linked(&self, ino: Ino) -> Result<Arc<Node>> {
        match self.inodes.get(&self.cache, ino) {
            Err(Error::Stale) => Err(Corrupt(format!("inode {ino} has a name and is not in the locator table")).into()),
            found => found,
        }
    }

    /// The node of an inode embedded in an entry of a locked directory. (The lock keeps the name, but the inode may
    /// leave the entry when its file gets another name.)
    pub(super) fn embedded(&self, buf: &BufRef, entry: usize, ino: Ino) -> Result<Arc<Node>> {
        let mut left = false;
        let node = self.inodes.get_or_load(ino, || {
            let b = buf.read();
            let bad = || Corrupt(format!("directory block {}: no inode at byte {entry}", buf.addr()));
            let e = dirblock::entry_at(&b, entry).filter(|e| e.is_name() && e.ino == ino).ok_or_else(bad)?;
            if e.kind == EntryKind::Link {
                left = true;
                return Err(Error::Stale);
            }
            let at = e.inode_offset();
            let inode = read_inode(&self.geo, &b[at..e.offset + e.len])?;
            Ok((inode, InodeLocation::Embedded { block: buf.addr(), entry, inode: at }))
        });
        if left { self.linked(ino) } else { node }
    }

    /// Attributes of an inode that is found by its number alone, with one more reference. Nobody needs to have a reference
    /// already: a file handle may be older than the mount. Whether the number still belongs to the same file is told by
    /// [`Attr::generation`], which the caller compares.
    ///
    /// # Errors
    /// [`Error::Stale`] for a number that no file has, or one of the file system's own, and for a file without a name that
    /// nobody has a reference to, because it is only waiting to be freed; [`Error::Corrupt`], and errors of the device.
    pub fn reference(&self, ino: Ino) -> Result<Attr> {
        self.op(Kind::Lookup, [ino, 0, 0], |_| {}, || self.take_reference(ino))
    }

    fn take_reference(&self, ino: Ino) -> Result<Attr> {
        let possible = ino == ROOT_INO || (FIRST_USER_INO..=self.geo.inodes_max()).contains(&ino);
        if !possible {
            self.journal.check_not_shut_down()?;
            return Err(Error::Stale);
        }
        let node = self.node(ino)?;
        // While the node is locked it is not unlinked, and an orphan with a reference is not freed.
        let st = node.state.read();
        let more = |refs: u64| (!st.orphan || refs > 0).then_some(refs + 1);
        if st.freed || node.refs.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            return Err(Error::Stale);
        }
        Ok(self.attr(&node, &st))
    }

    /// The parent of a directory (the root's is the root). That of a removed directory may be removed too, and its number
    /// another file's: [`Fs::reference`] tells.
    pub fn parent(&self, dir: Ino) -> Result<Ino> {
        self.op(Kind::Lookup, [dir, 0, 0], |_| {}, || self.parent_of(dir))
    }

    fn parent_of(&self, dir: Ino) -> Result<Ino> {
        let node = self.node(dir)?;
        let st = node.state.read();
        if !st.inode.is_dir() {
            return Err(Error::NotDir);
        }
        if st.freed {
            return Err(Error::Stale);
        }
        Ok(st.inode.parent)
    }

    /// Lists a directory from behind position `cookie` on (0: all), in the order of its blocks. `f` returns false
    /// to stop, and then the entry counts as not listed. With attributes, each listed entry takes a reference.
    pub fn readdir(&self, dir: Ino, cookie: u64, with_attr: bool, f: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let (mut count, mut last, mut stopped) = (0u64, cookie, false);
        let counted = std::cell::Cell::new((0, cookie, false));
        let detail = |d: &mut Detail| {
            let (count, last, stopped) = counted.get();
            d.add_number(u64::from(with_attr));
            [count, last, u64::from(stopped)].iter().for_each(|n| d.add_number(*n));
        };
        self.op(Kind::Readdir, [dir, cookie, 0], detail, || {
            self.list_names(dir, cookie, with_attr, &mut |entry| {
                let position = entry.cookie;
                stopped = !f(entry);
                if !stopped {
                    (count, last) = (count + 1, position);
                }
                counted.set((count, last, stopped));
                !stopped
            })
        })
    }

    fn list_names(&self, dir: Ino, cookie: u64, with_attr: bool, f: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let node = self.node(dir)?;
        let mut cookie = cookie;
        loop {
            let mut batch: Vec<(DirEntry, Option<Arc<Node>>)> = Vec::with_capacity(LIST_BATCH);
            let walked = {
                let st = node.state.read();
                let Some(state) = &st.dir else { return Err(Error::NotDir) };
                if st.freed {
                    return Ok(());
                }
                self.note_access(&node, &st);
                dir::read(&self.search_cx(st.location), &st.inode, state, cookie, &mut |e: &Entry<'_>, cookie, buf| {
                    let Some(file_type) = e.file_type else { return Ok(true) };
                    let node = match e.kind {
                        _ if !with_attr => None,
                        EntryKind::Embedded => Some(self.embedded(buf, e.offset, e.ino)?),
                        _ => Some(self.linked(e.ino)?),
                    };
                    let entry = DirEntry { name: e.name.to_vec(), ino: e.ino, file_type, cookie, attr: None };
                    batch.push((entry, node));
                    Ok(batch.len() < LIST_BATCH)
                })
            };
            let more = batch.len() == LIST_BATCH;
            for (mut entry, node) in batch {
                cookie = entry.cookie;
                if let Some(node) = &node {
                    // A name that was removed meanwhile is left out.
                    let Some(attr) = self.entry_attr(node) else { continue };
                    entry.attr = Some(attr);
                }
                if !f(entry) {
                    if let Some(node) = &node {
                        self.forget_node(node, 1);
                    }
                    return Ok(());
                }
            }
            // Names before a damaged block have been returned. Now the error is.
            walked?;
            if !more {
                return Ok(());
            }
        }
    }

    /// Attributes of a file that was just found under a name, with one more reference; `None` if the name is gone.
    fn entry_attr(&self, node: &Arc<Node>) -> Option<Attr> {
        node.refs.fetch_add(1, Ordering::AcqRel);
        let st = node.state.read();
        if st.freed || st.orphan {
            drop(st);
            self.forget_node(node, 1);
            return None;
        }
        Some(self.attr(node, &st))
    }

    /// Whether `ancestor` is `dir` or above it. The caller keeps the tree from changing with the rename lock.
    pub(super) fn is_within(&self, dir: Ino, ancestor: Ino) -> Result<bool> {
        let mut at = dir;
        // On a damaged device a chain that does not end at the root comes back to one of the marked directories.
        let (mut mark, mut steps, mut next_mark) = (dir, 0u64, 16u64);
        loop {
            if at == ancestor {
                return Ok(true);
            }
            let up = match self.parent(at) {
                Err(Error::Stale) => return Err(Error::NotFound), // removed meanwhile, with all that was above it
                up => up?,
            };
            if up == at {
                return Ok(false);
            }
            if up == mark {
                return Err(Corrupt(format!("directory {up} is its own ancestor")).into());
            }
            at = up;
            steps += 1;
            if steps == next_mark {
                (mark, next_mark) = (at, 2 * next_mark);
            }
        }
    }
}
