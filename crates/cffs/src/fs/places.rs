//! Where inodes are in the name space, for people to read.

use super::Fs;
use crate::error::{Error, Result};
use crate::extent;
use crate::format::dirblock::{EntryKind, entry_at};
use crate::format::table::Location;
use crate::format::{BlockId, BlockKind, Extent, Ino, ROOT_INO};
use serde::{Deserialize, Serialize};

/// Greatest depth for which a path is looked up.
const DEPTH_MAX: usize = 4096;

/// A piece of a file on the device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Where it begins.
    pub start: u64,
    /// How long it is.
    pub len: u64,
}

impl Fs {
    /// Where a file or directory lies: its extents, in the order of the file; none when its contents are in the inode, or not
    /// written back yet. In the log layout the addresses are those of the logical disk.
    ///
    /// # Errors
    /// [`Error::Stale`], and those of reading extents.
    pub fn pieces(&self, ino: Ino) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        self.for_each_piece(ino, &mut |_, piece| pieces.push(piece))?;
        Ok(pieces)
    }

    /// Where the written data of a file lies: the byte in the file where each extent begins, and the extent. What was allocated and not written
    /// is left out. In the log layout the addresses are those of the logical disk.
    ///
    /// # Errors
    /// As [`Fs::pieces`].
    pub fn written_pieces(&self, ino: Ino) -> Result<Vec<(u64, Piece)>> {
        let mut pieces = Vec::new();
        self.for_each_piece(ino, &mut |e, piece| {
            pieces.extend((!e.unwritten).then_some((e.logical << self.geo.frag_shift, piece)));
        })?;
        Ok(pieces)
    }

    fn for_each_piece(&self, ino: Ino, f: &mut dyn FnMut(&Extent, Piece)) -> Result<()> {
        let node = self.node(ino)?;
        let st = node.state.read();
        if st.freed {
            return Err(Error::Stale);
        }
        let shift = self.geo.frag_shift;
        extent::for_each(&self.cache, &st.inode, 0..u64::MAX, |e| {
            f(&e, Piece { start: e.start << shift, len: e.len << shift });
            Ok(())
        })
    }

    /// A path of an inode, by the entries in which it and its directories are embedded: `None` for one that is outside of
    /// directories. Names may change meanwhile, so the path is only for people to read.
    pub fn path_of(&self, ino: Ino) -> Option<String> {
        let (mut at, mut names) = (ino, Vec::new());
        while at != ROOT_INO {
            let Location::Embedded { block, offset } = self.inodes.locate(&self.cache, at).ok()? else { return None };
            let parent = self.inodes.get(&self.cache, at).ok()?.state.read().inode.parent;
            let buf = self.cache.read_meta(BlockId { kind: BlockKind::Dir, addr: block, owner: parent }).ok()?;
            let bytes = buf.read();
            let entry = entry_at(&bytes, offset).filter(|e| e.kind == EntryKind::Embedded && e.ino == at)?;
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            if names.len() > DEPTH_MAX {
                return None;
            }
            at = parent;
        }
        names.push(String::new());
        names.reverse();
        Some(if names.len() == 1 { "/".into() } else { names.join("/") })
    }

    /// The directory of an inode, or itself if it is one, with its path.
    pub fn directory_of(&self, ino: Ino) -> Option<(Ino, String)> {
        let directory = {
            let node = self.inodes.get(&self.cache, ino).ok()?;
            let st = node.state.read();
            if st.inode.is_dir() { ino } else { st.inode.parent }
        };
        Some((directory, self.path_of(directory)?))
    }
}
