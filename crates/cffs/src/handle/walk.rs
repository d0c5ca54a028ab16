//! From a path to the inode or the name that it leads to.

use super::inode::InodeRef;
use crate::error::{Error, Result};
use crate::format::FileType;

/// Symbolic links that one path may lead through, as in Linux.
const LINKS_MAX: usize = 40;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LastLink {
    Follow,
    Keep,
}

/// Where a path leads to.
pub(super) struct Target {
    /// The directory that has the last name; without a name, the directory that the path leads to.
    pub(super) dir: InodeRef,
    /// The last name; `None` when the path ends with `.`, `..` or the root.
    pub(super) name: Option<Vec<u8>>,
    /// The file that has the name.
    pub(super) found: Option<InodeRef>,
    /// The path ends with a slash: only a directory is meant.
    pub(super) wants_dir: bool,
}

impl Target {
    /// The inode, which has to be there.
    pub(super) fn existing(self) -> Result<InodeRef> {
        match (self.name, self.found) {
            (None, _) => Ok(self.dir),
            (_, Some(found)) if self.wants_dir && !found.is_dir() => Err(Error::NotDir),
            (_, Some(found)) => Ok(found),
            (_, None) => Err(Error::NotFound),
        }
    }

    /// Directory and name, for operations on the name itself.
    pub(super) fn into_name(self) -> Result<(InodeRef, Vec<u8>)> {
        match self.name {
            Some(_) if self.wants_dir && self.found.is_some_and(|f| !f.is_dir()) => Err(Error::NotDir),
            Some(name) => Ok((self.dir, name)),
            None => Error::invalid("the path ends with no name"),
        }
    }

    /// Directory and name, for operations that make the name.
    pub(super) fn into_new(self) -> Result<(InodeRef, Vec<u8>)> {
        match (self.name, self.found) {
            (Some(name), None) => Ok((self.dir, name)),
            _ => Err(Error::Exists),
        }
    }
}

/// The parts of a path, last one first.
fn parts(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.rsplit(|b| *b == b'/').filter(|p| !p.is_empty()).map(<[u8]>::to_vec)
}

/// Follows a path from `start` on.
pub(super) fn walk(start: &InodeRef, path: &[u8], last: LastLink) -> Result<Target> {
    if path.is_empty() {
        return Err(Error::NotFound);
    }
    let mut wants_dir = path.ends_with(b"/");
    let mut todo: Vec<Vec<u8>> = parts(path).collect();
    let mut dir = if path[0] == b'/' { InodeRef::root(&start.fs)? } else { start.duplicate()? };
    let mut links = 0;
    while let Some(name) = todo.pop() {
        if !dir.is_dir() {
            return Err(Error::NotDir);
        }
        match &name[..] {
            b"." => continue,
            b".." => {
                dir = dir.parent()?;
                continue;
            }
            _ => {}
        }
        let found = match dir.child(&name) {
            Ok(found) => Some(found),
            Err(Error::NotFound) if todo.is_empty() => None,
            Err(e) => return Err(e),
        };
        let at_end = todo.is_empty();
        match found {
            Some(link) if link.file_type == FileType::Symlink && (!at_end || wants_dir || last == LastLink::Follow) => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Error::TooManySymlinks);
                }
                let to = link.fs.readlink(link.ino)?;
                if to.starts_with(b"/") {
                    dir = InodeRef::root(&start.fs)?;
                }
                wants_dir |= at_end && to.ends_with(b"/");
                todo.extend(parts(&to));
            }
            Some(found) if !at_end => dir = found,
            found => return Ok(Target { dir, name: Some(name), found, wants_dir }),
        }
    }
    if dir.is_dir() { Ok(Target { dir, name: None, found: None, wants_dir }) } else { Err(Error::NotDir) }
}
