//! Where the small files of a directory lie, as far as its cached blocks say.
//!
//! Embedded inodes tell it without a request: the block with a file's entry has the inodes of its neighbours, and the
//! directory's other blocks stand beside that one. A group read so knows which part of a group is the directory's.

use super::FileCtx;
use crate::cache::{Own, Siblings};
use crate::format::dirblock::{EntryKind, entries};
use crate::format::{BlockAddr, BlockId, BlockKind, FileType, Inode, InodeFormat};
use crate::format::{block_owner, get_u32, verify_block, verify_contents};
use crate::inode::{Home, NodeState};
use std::ops::Range;

/// Blocks of the directory that are looked at, on each side of the one with the file's entry.
const DIR_BLOCKS: u64 = 8;

/// What is known around one file.
pub(super) struct Around<'a> {
    cx: FileCtx<'a>,
    /// Block with its entry; `None` if the inode stands elsewhere.
    home: Option<BlockAddr>,
}

impl<'a> Around<'a> {
    /// Around the file with this inode.
    pub(super) fn new(cx: &FileCtx<'a>, st: &NodeState) -> Around<'a> {
        let home = match st.home {
            Home::Embedded { block, .. } => Some(block),
            _ => None,
        };
        Around { cx: *cx, home }
    }

    /// Adds the blocks of small files in a directory block; false if it is not cached, or not of this directory.
    fn add(&self, addr: BlockAddr, owner: u64, out: &mut Vec<Range<BlockAddr>>) -> bool {
        let cache = self.cx.cache;
        // Never a request: who asks is about to make one. And nothing counts as used: nobody has asked for the names.
        let Some(buf) = cache.peek(addr) else { return false };
        let g = cache.geometry();
        let bytes = buf.read();
        if block_owner(&bytes) != owner || get_u32(&bytes, 0) != BlockKind::Dir as u32 {
            return false;
        }
        let id = BlockId { kind: BlockKind::Dir, addr, owner };
        let sound = || verify_block(&bytes, g.fsid, id).and_then(|()| verify_contents(&bytes, id.kind));
        if !buf.is_verified() && sound().is_err() {
            return false;
        }
        for e in entries(&bytes).filter(|e| e.kind == EntryKind::Embedded && e.file_type == Some(FileType::Regular)) {
            let room = e.inode_offset()..e.offset + e.len;
            let Ok(inode) = Inode::decode(&bytes[room]) else { continue };
            if inode.size > self.cx.placement.small_max() {
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

impl Siblings for Around<'_> {
    fn own(&self) -> Option<Own> {
        let home = self.home?;
        let dir = block_owner(&self.cx.cache.peek(home)?.read());
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
