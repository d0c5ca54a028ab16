//! The tree in the order of the name space: a directory's blocks and files, then its subdirectories.

use super::MoveCtx;
use crate::dir;
use crate::error::{Error, Result};
use crate::extent;
use crate::format::dirblock::{Entry, EntryKind};
use crate::format::extent::LOGICAL_END;
use crate::format::{BlockAddr, Corrupt, Extent, FileType, Ino, InodeFormat};
use std::io::ErrorKind;

/// Deeper trees are damaged: no path names something in them.
pub const DEPTH_MAX: usize = 4096;

/// Who is told what is found.
pub(super) trait Visitor {
    /// A directory was found. False: nothing below it is looked at.
    fn directory(&mut self, ino: Ino) -> Result<bool>;
    /// Whether blocks are asked for, and files.
    fn wants(&self) -> [bool; 2];
    /// Its next block: the number within the directory, and the address.
    fn block(&mut self, dir: Ino, lblock: u64, addr: BlockAddr) -> Result<()>;
    /// Its next file with data outside of the inode: the size in bytes, and the extents.
    fn file(&mut self, ino: Ino, size: u64, extents: &[Extent]) -> Result<()>;
}

/// Goes through a subtree. What is removed meanwhile is left out, and so is what cannot be read.
pub(super) fn walk(cx: &MoveCtx<'_>, root: Ino, visitor: &mut dyn Visitor) -> Result<()> {
    // Directories that are not complete, each with the position of the last name that was looked at.
    let mut open: Vec<(Ino, u64)> = Vec::new();
    let mut next = Some(root);
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
            if visitor.directory(dir)? && skip_lost(contents(cx, dir, visitor))?.is_some() {
                open.push((dir, 0));
            }
        }
        let Some((dir, after)) = open.last_mut() else { return Ok(()) };
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

/// What is gone, or cannot be read, does not end a walk.
fn skip_lost<T>(outcome: Result<T>) -> Result<Option<T>> {
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
fn contents(cx: &MoveCtx<'_>, dir: Ino, visitor: &mut dyn Visitor) -> Result<()> {
    let [blocks, files] = visitor.wants();
    if blocks {
        each_block(cx, dir, visitor)?;
    }
    if files { each_file(cx, dir, visitor) } else { Ok(()) }
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

fn each_file(cx: &MoveCtx<'_>, dir: Ino, visitor: &mut dyn Visitor) -> Result<()> {
    // Collected first: whoever is told may lock the directory, and files are not looked at while it is locked.
    let mut files: Vec<(Ino, bool)> = Vec::new();
    let mut after = 0;
    loop {
        let mut last = None;
        each_entry(cx, dir, after, &mut |e, position| {
            last = Some(position);
            if e.file_type == Some(FileType::Regular) {
                files.push((e.ino, e.kind == EntryKind::Embedded));
            }
            Ok(files.len() < FILES_AT_ONCE)
        })?;
        let full = files.len() >= FILES_AT_ONCE;
        for (ino, embedded) in files.drain(..) {
            if let Some((size, extents)) = skip_lost(file(cx, dir, ino, embedded))?.flatten() {
                visitor.file(ino, size, &extents)?;
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

/// Size and extents of a file. `None` if it has no data of its own, or belongs to another directory: one with several names
/// goes with the directory that its inode names.
fn file(cx: &MoveCtx<'_>, dir: Ino, ino: Ino, embedded: bool) -> Result<Option<(u64, Vec<Extent>)>> {
    let node = cx.inodes.get(cx.file.cache, ino)?;
    let st = node.state.read();
    if st.freed || !embedded && st.inode.parent != dir || matches!(st.inode.format, InodeFormat::Inline(_)) {
        return Ok(None);
    }
    let mut extents = Vec::new();
    extent::for_each(cx.file.cache, &st.inode, 0..LOGICAL_END, |e| {
        extents.push(e);
        Ok(())
    })?;
    Ok((!extents.is_empty()).then_some((st.inode.size, extents)))
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
