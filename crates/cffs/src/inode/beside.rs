//! Where the files, or the directories, beside one lie, as far as cached directory blocks say.
//!
//! Embedded inodes tell it without a request: the block with an entry has the inodes of its neighbours, and the
//! directory's other blocks stand beside that one. A group read so knows which part of a group is the directory's, and a
//! walk how far the blocks of the directories reach that it comes to next.

use super::Home;
use crate::cache::{Cache, Own, Siblings};
use crate::format::dirblock::{EntryKind, entries};
use crate::format::{BlockAddr, BlockId, BlockKind, FileType, Inode, InodeFormat};
use crate::format::{block_owner, get_u32, verify_block, verify_contents};
use std::ops::Range;

/// Blocks of the directory that are looked at, on each side of the one with the entry.
const DIR_BLOCKS: u64 = 8;

/// What is known around one file or directory.
pub struct Beside<'a> {
    cache: &'a Cache,
    /// Block with its entry; `None` if the inode stands elsewhere.
    home: Option<BlockAddr>,
    file_type: FileType,
    size_max: u64,
}

impl<'a> Beside<'a> {
    /// Those of one type, up to a size, around the one whose inode stands there.
    pub fn new(cache: &'a Cache, home: Home, file_type: FileType, size_max: u64) -> Beside<'a> {
        let home = match home {
            Home::Embedded { block, .. } => Some(block),
            _ => None,
        };
        Beside { cache, home, file_type, size_max }
    }

    /// Adds the blocks of those in a directory block; false if it is not cached, or not of this directory.
    fn add(&self, addr: BlockAddr, owner: u64, out: &mut Vec<Range<BlockAddr>>) -> bool {
        // Never a request: who asks is about to make one. And nothing counts as used: nobody has asked for the names.
        let Some(buf) = self.cache.peek(addr) else { return false };
        let g = self.cache.geometry();
        let bytes = buf.read();
        if block_owner(&bytes) != owner || get_u32(&bytes, 0) != BlockKind::Dir as u32 {
            return false;
        }
        let id = BlockId { kind: BlockKind::Dir, addr, owner };
        let sound = || verify_block(&bytes, g.fsid, id).and_then(|()| verify_contents(&bytes, id.kind));
        if !buf.is_verified() && sound().is_err() {
            return false;
        }
        for e in entries(&bytes).filter(|e| e.kind == EntryKind::Embedded && e.file_type == Some(self.file_type)) {
            let room = e.inode_offset()..e.offset + e.len;
            let Ok(inode) = Inode::decode(&bytes[room]) else { continue };
            if inode.size > self.size_max {
                continue;
            }
            let InodeFormat::Extents(list) = &inode.format else { continue };
            // A damaged inode with a right checksum is told of when its file is asked for; here it counts for nothing.
            for x in list.iter().filter(|x| !x.unwritten && x.len > 0 && g.contains(x.start, x.len)) {
                out.push(g.block_of_frag(x.start)..g.block_of_frag(x.start + x.len - 1) + 1);
            }
        }
        true
    }
}

impl Siblings for Beside<'_> {
    fn own(&self) -> Option<Own> {
        let home = self.home?;
        let dir = block_owner(&self.cache.peek(home)?.read());
        let mut blocks = Vec::new();
        if !self.add(home, dir, &mut blocks) {
            return None;
        }
        (home + 1..home + DIR_BLOCKS).find(|a| !self.add(*a, dir, &mut blocks));
        (home.saturating_sub(DIR_BLOCKS)..home).rev().find(|a| !self.add(*a, dir, &mut blocks));
        blocks.sort_unstable_by_key(|r| r.start);
        blocks.dedup_by(|next, before| {
            let joins = next.start <= before.end;
            if joins {
                before.end = before.end.max(next.end);
            }
            joins
        });
        Some(Own { dir, blocks })
    }
}
