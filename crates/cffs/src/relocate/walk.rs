//! The tree in the order of the name space: a directory's blocks and files, then its subdirectories.

use super::{MoveCtx, meta};
use crate::colocation::{self, ColocationKey, Mark, Order};
use crate::dir;
use crate::error::{Error, Result};
use crate::extent;
use crate::format::dirblock::{Entry, EntryKind};
use crate::format::extent::LOGICAL_END;
use crate::format::{BlockAddr, Corrupt, Extent, FileType, Ino, Inode, InodeFormat, ROOT_INO};
use std::io::ErrorKind;

/// Deeper trees are damaged: no path names something in them.
pub const DEPTH_MAX: usize = 4096;

/// Who is told what is found.
pub(super) trait Visitor {
    /// A directory was found. False: nothing below it is looked at.
    fn directory(&mut self, ino: Ino) -> Result<bool>;
    /// Whether blocks are asked for, and files.
    fn wants(&self) -> [bool; 2] {
        [false, true]
    }
    /// Its next block: the number within the directory, and the address.
    fn block(&mut self, _dir: Ino, _lblock: u64, _addr: BlockAddr) -> Result<()> {
        Ok(())
    }
    /// Its next file with data outside of the inode: the size in bytes, and the extents.
    fn file(&mut self, ino: Ino, size: u64, extents: &[Extent]) -> Result<()>;
    /// A file that is placed with those of a unit, which is not its directory.
    fn file_of_unit(&mut self, _unit: (Ino, Order), ino: Ino, size: u64, extents: &[Extent]) -> Result<()> {
        self.file(ino, size, extents)
    }
    /// Whether inodes of all kinds are asked for. Then no external ones are named, nor their extents: the external table has them
    /// all, and a name need not lead to the directory that such an inode names.
    fn wants_inodes(&self) -> bool {
        false
    }
    /// Its next inode, or that of the directory itself.
    fn inode(&mut self, _ino: Ino) -> Result<()> {
        Ok(())
    }
}

/// A directory that is not complete.
struct Open {
    dir: Ino,
    /// Position of the last name that was looked at.
    after: u64,
    /// By what its files are placed.
    key: ColocationKey,
}

/// Goes through a subtree. What is removed meanwhile is left out, and so is what cannot be read.
pub(super) fn walk(cx: &MoveCtx<'_>, root: Ino, visitor: &mut dyn Visitor) -> Result<()> {
    let mut open: Vec<Open> = Vec::new();
    let mut next = Some(root);
    let key_above = skip_lost(key_above(cx, root))?.unwrap_or_default();
    // Names of a damaged device may lead to one directory many times.
    let mut left = cx.file.cache.geometry().inodes_max();
    loop {
        if let Some(dir) = next.take() {
            if left == 0 {
                return Err(Corrupt("more names of directories than there can be inodes".into()).into());
            }
            left -= 1;
            if open.len() >= DEPTH_MAX {
                return Err(Corrupt(format!("directory {dir} lies more than {DEPTH_MAX} directories deep")).into());
            }
            if visitor.directory(dir)? {
                let own = skip_lost(own_key(cx, dir))?.flatten();
                let key = own.unwrap_or_else(|| open.last().map_or(&key_above, |above| &above.key).clone());
                if skip_lost(contents(cx, dir, &key, visitor))?.is_some() {
                    open.push(Open { dir, after: 0, key });
                }
            }
        }
        let Some(Open { dir, after, .. }) = open.last_mut() else { return Ok(()) };
        match skip_lost(next_directory(cx, *dir, *after))?.flatten() {
            Some((position, below)) => {
                let above = *dir;
                *after = position;
                next = skip_lost(parent(cx, below))?.filter(|p| *p == above).map(|_| below);
            }
            None => drop(open.pop()),
        }
    }
}

/// The directory that a directory says it is in. Others that have a name for it are damaged, or it was renamed.
fn parent(cx: &MoveCtx<'_>, dir: Ino) -> Result<Ino> {
    Ok(cx.inodes.get(cx.file.cache, dir)?.state.read().inode.parent)
}

/// The key that a directory names.
fn own_key(cx: &MoveCtx<'_>, dir: Ino) -> Result<Option<ColocationKey>> {
    let node = cx.inodes.get(cx.file.cache, dir)?;
    let st = node.state.read();
    colocation::key_of(cx.file.cache, &st.inode)
}

/// The key that the directories above this one name.
fn key_above(cx: &MoveCtx<'_>, dir: Ino) -> Result<ColocationKey> {
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == ROOT_INO {
            break;
        }
        at = parent(cx, at)?;
        if let Some(key) = own_key(cx, at)? {
            return Ok(key);
        }
    }
    Ok(ColocationKey::default())
}

/// What is gone, or cannot be read, does not end a walk.
pub(super) fn skip_lost<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(Error::Stale | Error::NotDir | Error::NotFound) => Ok(None),
        // That is a stop.
        Err(Error::Io(e)) if e.kind() == ErrorKind::Interrupted => Err(Error::Io(e)),
        Err(e @ (Error::Corrupt(_) | Error::Io(_))) => {
            tracing::warn!("a regroup leaves out what it cannot read: {e}");
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// The first subdirectory behind a position, with its own.
fn next_directory(cx: &MoveCtx<'_>, dir: Ino, after: u64) -> Result<Option<(u64, Ino)>> {
    let mut found = None;
    each_entry(cx, dir, after, &mut |e, position| {
        found = (e.file_type == Some(FileType::Directory)).then_some((position, e.ino));
        Ok(found.is_none())
    })?;
    Ok(found)
}

fn each_entry(
    cx: &MoveCtx<'_>,
    dir: Ino,
    after: u64,
    f: &mut dyn FnMut(&Entry<'_>, u64) -> Result<bool>,
) -> Result<()> {
    let node = cx.inodes.get(cx.file.cache, dir)?;
    let st = node.state.read();
    let Some(state) = &st.dir else { return Err(Error::NotDir) };
    if st.freed || st.orphan {
        return Err(Error::Stale);
    }
    dir::read(&cx.dir, &st.inode, state, after, &mut |e, position, _| f(e, position))
}

/// The blocks of a directory and its files.
fn contents(cx: &MoveCtx<'_>, dir: Ino, key: &ColocationKey, visitor: &mut dyn Visitor) -> Result<()> {
    let [blocks, files] = visitor.wants();
    if visitor.wants_inodes() {
        visitor.inode(dir)?;
    }
    if blocks {
        each_block(cx, dir, visitor)?;
    }
    if files || visitor.wants_inodes() { each_file(cx, dir, key, visitor) } else { Ok(()) }
}

fn each_block(cx: &MoveCtx<'_>, dir: Ino, visitor: &mut dyn Visitor) -> Result<()> {
    let blocks = {
        let node = cx.inodes.get(cx.file.cache, dir)?;
        let st = node.state.read();
        let Some(state) = &st.dir else { return Err(Error::NotDir) };
        dir::blocks_of(&cx.dir, &st.inode, state)?
    };
    for (lblock, addr) in blocks {
        visitor.block(dir, lblock, addr)?;
    }
    Ok(())
}

fn each_file(cx: &MoveCtx<'_>, dir: Ino, key: &ColocationKey, visitor: &mut dyn Visitor) -> Result<()> {
    // Collected first: whoever is told may lock the directory, and files are not looked at while it is locked.
    let mut files: Vec<(Ino, bool, bool)> = Vec::new();
    let all = visitor.wants_inodes();
    let mut after = 0;
    loop {
        let mut last = None;
        each_entry(cx, dir, after, &mut |e, position| {
            last = Some(position);
            let regular = e.file_type == Some(FileType::Regular);
            if regular || all && e.file_type.is_some_and(|t| t != FileType::Directory) {
                files.push((e.ino, e.kind == EntryKind::Embedded, regular));
            }
            Ok(files.len() < FILES_AT_ONCE)
        })?;
        let full = files.len() >= FILES_AT_ONCE;
        for (ino, embedded, regular) in files.drain(..) {
            if all && !embedded {
                continue;
            }
            let of = if embedded { None } else { Some(dir) };
            let found = if regular { skip_lost(file(cx, of, ino))?.flatten() } else { None };
            if let Some(f) = found {
                let (mark, learned) = (f.mark.as_ref(), cx.learned.place(ino, f.inode.size));
                match colocation::unit_of(key, mark, &f.inode, cx.now, learned) {
                    Some(unit) => visitor.file_of_unit(unit, ino, f.inode.size, &f.extents)?,
                    None => visitor.file(ino, f.inode.size, &f.extents)?,
                }
            }
            if all {
                visitor.inode(ino)?;
            }
        }
        match last {
            Some(position) if full => after = position,
            _ => return Ok(()),
        }
    }
}

/// Files that are collected before they are handed on.
const FILES_AT_ONCE: usize = 1024;

/// Names the files of the external table and their extents, and other inodes there but directories.
pub(super) fn external(cx: &MoveCtx<'_>, visitor: &mut dyn Visitor) -> Result<()> {
    for ino in skip_lost(meta::external_inodes(cx))?.unwrap_or_default() {
        let Some(kind) = skip_lost(kind(cx, ino))?.flatten() else { continue };
        if kind == FileType::Regular
            && let Some(f) = skip_lost(file(cx, None, ino))?.flatten()
        {
            visitor.file(ino, f.inode.size, &f.extents)?;
        }
        visitor.inode(ino)?;
    }
    Ok(())
}

/// What an inode is. `None`: a directory, or one that waits to be freed and cannot be moved.
fn kind(cx: &MoveCtx<'_>, ino: Ino) -> Result<Option<FileType>> {
    let node = cx.inodes.get(cx.file.cache, ino)?;
    let st = node.state.read();
    Ok((!st.freed && !st.orphan && !st.inode.is_dir()).then(|| st.inode.file_type()))
}

/// A file with data of its own.
pub(super) struct Found {
    /// Its inode.
    pub inode: Inode,
    /// What it says of itself.
    pub mark: Option<Mark>,
    /// Its extents.
    pub extents: Vec<Extent>,
}

/// A file. `None` if it has no data of its own, or belongs to another directory than this one: a file with several names goes with
/// the directory that its inode names.
pub(super) fn file(cx: &MoveCtx<'_>, dir: Option<Ino>, ino: Ino) -> Result<Option<Found>> {
    let node = cx.inodes.get(cx.file.cache, ino)?;
    let st = node.state.read();
    let elsewhere = dir.is_some_and(|dir| st.inode.parent != dir);
    if st.freed || elsewhere || matches!(st.inode.format, InodeFormat::Inline(_)) {
        return Ok(None);
    }
    let mut extents = Vec::new();
    extent::for_each(cx.file.cache, &st.inode, 0..LOGICAL_END, |e| {
        extents.push(e);
        Ok(())
    })?;
    if extents.is_empty() {
        return Ok(None);
    }
    let mark = colocation::mark_of(&st.inode)?;
    Ok(Some(Found { inode: st.inode.clone(), mark, extents }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_stop_ends_the_walk_and_what_cannot_be_read_does_not() {
        let outcome = |kind: ErrorKind| skip_lost::<()>(Err(io::Error::from(kind).into()));
        assert!(matches!(outcome(ErrorKind::Interrupted), Err(Error::Io(e)) if e.kind() == ErrorKind::Interrupted));
        assert!(matches!(outcome(ErrorKind::Other), Ok(None)));
        assert!(matches!(skip_lost::<()>(Err(Error::Stale)), Ok(None)));
    }
}
