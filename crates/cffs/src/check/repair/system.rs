//! System inodes and quota files.

use super::entries::mend_inode;
use super::extent_map::join;
use super::findings::inode_place;
use super::repairer::Repairer;
use super::volume::BlockError;
use crate::check::Class;
use crate::error::Result;
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::quota::{QUOTA_LBLOCK, place};
use crate::format::{
    BlockId, BlockKind, FileType, Ino, Inode, InodeFormat, LAST_SYSTEM_INO, QuotaKind, ROOT_INO, block_seq, get_u64,
    init_block, put_u64,
};

impl Repairer<'_> {
    pub(super) fn system_block_id(&self, ino: Ino) -> BlockId {
        BlockId { kind: BlockKind::SystemInodes, addr: self.g.system_inode(ino).0, owner: 0 }
    }

    /// Repairs the system inodes so that the repair can use them.
    pub(super) fn system_inodes(&mut self) -> Result<()> {
        let per = self.g.inodes_per_block();
        for first in (ROOT_INO..=LAST_SYSTEM_INO).step_by(per as usize) {
            let id = self.system_block_id(first);
            let last = (first + per - 1).min(LAST_SYSTEM_INO);
            let (old, trusted, what) = match self.vol.meta(id) {
                Ok(b) => (b, true, None),
                Err(BlockError::Damaged(what, b)) => (b, false, Some(what)),
                Err(bad) => (vec![0; self.g.block_size()], false, Some(bad.text())),
            };
            let mut new = vec![0; self.g.block_size()];
            init_block(&mut new, self.g.fsid, id);
            put_u64(&mut new, 32, block_seq(&old));
            if let Some(what) = what {
                self.must_fix(
                    Class::SystemInode,
                    &format!("system inodes {first} to {last}"),
                    what,
                    "write the block anew",
                )?;
            }
            for ino in first..=last {
                let offset = self.g.system_inode(ino).1;
                let slot = &old[offset..offset + INODE_SLOT_SIZE];
                let inode = self.system_inode(ino, slot, trusted)?;
                inode.encode(&mut new[offset..offset + inode.encoded_len()]);
            }
            if !trusted || new[64..] != old[64..] {
                self.vol.put(id.addr, new);
            }
        }
        Ok(())
    }

    pub(super) fn system_inode(&mut self, ino: Ino, slot: &[u8], trusted: bool) -> Result<Inode> {
        let want = if ino == ROOT_INO { FileType::Directory } else { FileType::Regular };
        let mut bytes = slot.to_vec();
        if get_u64(&bytes, 0) != ino && trusted {
            // The number alone may be what is wrong.
            put_u64(&mut bytes, 0, ino);
        }
        let place = inode_place(ino);
        if Inode::decode(slot).is_err() {
            bytes[15] = (crate::format::inode::INLINE_DEFAULT / 8) as u8;
        }
        let found = mend_inode(&mut bytes, Some(want), &self.g).filter(|i| i.ino == ino);
        let found = found.map(|i| {
            let mode = i.mode & 0o7777 | want.mode_bits();
            if i.mode == mode { (i, false) } else { (Inode { mode, ..i }, true) }
        });
        let same = |i: &Inode| Inode::decode(slot).is_ok_and(|old| old == *i);
        let found = found.map(|(i, changed)| match i.format {
            // Inline contents cannot be those of a table.
            InodeFormat::Inline(_) => (Inode { format: InodeFormat::Extents(Vec::new()), size: 0, ..i }, true),
            _ => (i, changed),
        });
        let mut inode = match found {
            Some((i, false)) if same(&i) => i,
            Some((i, _)) => {
                self.must_fix(Class::SystemInode, &place, "the inode is damaged".into(), "keep the valid fields")?;
                self.evidence.damaged_maps.insert(ino);
                i
            }
            None => {
                self.must_fix(Class::SystemInode, &place, "the inode cannot be read".into(), "create it anew, empty")?;
                self.evidence.damaged_maps.insert(ino);
                let bits = if ino == ROOT_INO { 0o755 } else { 0o600 };
                let mut i = Inode::new(ino, want.mode_bits() | bits, self.now);
                if ino == ROOT_INO {
                    (i.nlink, i.parent) = (2, ROOT_INO);
                }
                i
            }
        };
        let inline = crate::format::inode::INLINE_DEFAULT;
        if inode.inline_len < inline {
            let what = format!("inline area of {} bytes", inode.inline_len);
            self.must_fix(Class::SystemInode, &place, what, "make it as long as that of others")?;
            inode.inline_len = inline;
        }
        if inode.encoded_len() > INODE_SLOT_SIZE {
            inode.inline_len = crate::format::inode::INLINE_DEFAULT;
        }
        if ino != ROOT_INO && inode.has_xattrs() {
            // The attributes would take room from its map.
            let what = "extended attributes of a system file".to_string();
            self.must_fix(Class::SystemInode, &place, what, "remove them")?;
            self.evidence.damaged_maps.insert(ino);
            (inode.xattrs, inode.xattr_block) = (Vec::new(), 0);
        }
        if ino != ROOT_INO && inode.nlink != 1 {
            let what = format!("link count {} of a system file", inode.nlink);
            if self.fix(Class::InodeLinks, &place, what, "make it 1")? {
                inode.nlink = 1;
            }
        }
        Ok(inode)
    }

    /// Quota files: blocks stay if they say that they belong to the file. The usage in the records is not checked: if
    /// anything else was wrong they are marked for recounting, which the next mount does.
    pub(super) fn quota_files(&mut self) -> Result<()> {
        let (bs, fpb) = (self.g.block_size() as u64, self.g.frags_per_block());
        let last_block = place(self.g.block_size(), u32::MAX).0;
        for kind in QuotaKind::ALL {
            let Some(mut inode) = self.load(kind.ino()) else { continue };
            let (before, name) = (inode.clone(), inode_place(kind.ino()));
            if inode.aux > 1
                && self.fix(Class::InodeField, &name, format!("auxiliary field {}", inode.aux), "clear it")?
            {
                inode.aux = 0;
            }
            self.contents_of_system_file(&mut inode)?;
            let map = self.read_map(&inode);
            let (mut keep, mut wrong, mut end) = (Vec::new(), map.wrong.clone(), 0);
            self.claim_nodes(&map);
            let mut useless = 0;
            for e in &map.extents {
                for n in 0..e.len / fpb {
                    let (lblock, addr) = (e.logical / fpb + n, e.start / fpb + n);
                    let whole = (e.logical | e.start | e.len).is_multiple_of(fpb) && !e.unwritten;
                    let good = whole && useless < 1 << 14 && lblock <= last_block && {
                        let id = BlockId { kind: BlockKind::Quota, addr, owner: inode.ino };
                        self.vol.meta(id).is_ok_and(|b| get_u64(&b, QUOTA_LBLOCK) == lblock)
                            && self.space.claim_meta(addr)
                    };
                    if good {
                        keep.push(self.block_extent(lblock, addr));
                        end = (lblock + 1) * bs;
                    } else {
                        useless += 1;
                        wrong.get_or_insert(format!("block {addr} does not belong to it"));
                        if useless > 1 << 14 {
                            break;
                        }
                    }
                }
            }
            if self.vol.surveying {
                continue;
            }
            if let Some(what) = wrong {
                self.must_fix(Class::QuotaBlock, &name, what, "leave out the damaged blocks")?;
                self.set_map(&mut inode, &map, join(keep))?;
                inode.aux = 0;
            } else {
                inode.frags = map.frags(&self.g) + self.xattr_frags(&inode);
            }
            if inode.size < end {
                inode.size = end;
            }
            if inode != before {
                self.must_fix(Class::InodeSpace, &name, "size or space of a quota file is wrong".into(), "correct it")?;
                self.store(&inode);
            }
        }
        Ok(())
    }

    /// After all changes: quota records that were exact are to be counted again, if anything was changed.
    pub(super) fn recount_quotas(&mut self) -> Result<()> {
        for kind in QuotaKind::ALL {
            let Some(mut inode) = self.load(kind.ino()) else { continue };
            if self.sb.has_quota(kind) && inode.aux == 1 {
                let what = "its counts may be wrong".to_string();
                if self.fix(Class::QuotaUsage, &inode_place(kind.ino()), what, "count again at the next mount")? {
                    inode.aux = 0;
                    self.store(&inode);
                }
            }
        }
        Ok(())
    }
}
