//! Inodes: their fields and their space.

use super::checker::Checker;
use super::extents::MapWalk;
use super::inventory::{DataPlace, Found, Role, place};
use super::report::Class;
use crate::format::inode::FLAGS;
use crate::format::{
    BlockId, BlockKind, FIRST_USER_INO, FileType, Ino, Inode, InodeFormat, QuotaKind, ROOT_INO, SYMLINK_MAX,
};
use std::fmt::Display;

impl Checker<'_> {
    /// Checks an inode that is not a system inode, except for a directory's contents. False if its number is
    /// unusable or taken, so that nothing below it may be looked at.
    pub(super) fn check_inode(&mut self, inode: &Inode, found: Found, role: Role) -> Option<DataPlace> {
        let ino = inode.ino;
        if !(FIRST_USER_INO..=self.g.inodes_max()).contains(&ino) {
            let what = format_args!("a file at {} with an impossible number", place(found));
            self.inode_problem(Class::InodeNumber, ino, what);
            return None;
        }
        if !self.inventory.register.add(found) {
            let what = format_args!("a second inode with this number at {}", place(found));
            self.inode_problem(Class::InodeNumber, ino, what);
            return None;
        }
        self.count_for_quota(inode);
        let orphan = role == Role::Orphan || role == Role::External && inode.nlink == 0;
        if orphan {
            self.findings.counts.orphans += 1;
            self.inventory.register.orphans.push((ino, inode.hint));
        }
        match inode.file_type() {
            FileType::Regular => self.findings.counts.files += 1,
            FileType::Directory => self.findings.counts.dirs += 1,
            FileType::Symlink => self.findings.counts.symlinks += 1,
            _ => self.findings.counts.special += 1,
        }
        let links_ok = match role {
            Role::Orphan => inode.nlink == 0,
            Role::Named => inode.is_dir() || inode.nlink == 1,
            Role::External => true, // compared with the names at the end
        };
        if !links_ok {
            self.inode_problem(Class::InodeLinks, ino, format_args!("link count {} at {}", inode.nlink, place(found)));
        }
        self.check_fields(inode);
        self.check_xattr(inode);
        // Directories are checked block by block, by the walk of the tree.
        if inode.is_dir() { Some(DataPlace::None) } else { Some(self.check_contents(inode)) }
    }

    pub(super) fn check_fields(&mut self, inode: &Inode) {
        let file_type = inode.file_type();
        let dir = file_type == FileType::Directory;
        let device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
        let mut wrong = |what: &dyn Display| self.inode_problem(Class::InodeField, inode.ino, what);
        if inode.generation == 0 {
            wrong(&"generation 0");
        }
        if inode.flags & !FLAGS != 0 {
            wrong(&format_args!("unknown flags {:#x}", inode.flags & !FLAGS));
        }
        if inode.index_buckets != 0 && !dir {
            wrong(&format_args!("{} index buckets, but not a directory", inode.index_buckets));
        }
        let counted_quotas = inode.aux == 1 && QuotaKind::ALL.iter().any(|k| k.ino() == inode.ino);
        if inode.aux != 0 && !dir && !device && !counted_quotas {
            wrong(&format_args!("auxiliary field {} on a file of type {file_type:?}", inode.aux));
        }
        let data = matches!(file_type, FileType::Regular | FileType::Symlink | FileType::Directory);
        if !data && (inode.size != 0 || inode.format != InodeFormat::Extents(Vec::new())) {
            wrong(&format_args!("a file of type {file_type:?} with contents"));
        }
        // Its contents are freed in a transaction before that of the inode itself.
        let least = u64::from(inode.nlink > 0);
        if file_type == FileType::Symlink && !(least..=SYMLINK_MAX as u64).contains(&inode.size) {
            wrong(&format_args!("symbolic link target of {} bytes", inode.size));
        }
    }

    /// Checks the extents of a file that is no directory. Returns where its data are if it is small.
    pub(super) fn check_contents(&mut self, inode: &Inode) -> DataPlace {
        let mut walk = MapWalk::new(inode);
        let per = self.g.frags_per_block();
        // Space behind the size: up to the end of its block, or preallocated.
        let size_end = self.g.frags_for(inode.size).next_multiple_of(per);
        let (mut data, mut breaks, mut beyond) = (0u64, 0u64, None);
        let (mut first, mut previous) = (None, None);
        let mut group = DataPlace::None;
        while let Some((e, _)) = walk.next(self) {
            self.note_data(inode.ino, &e);
            if !e.unwritten && e.end() > size_end {
                beyond.get_or_insert(e);
            }
            let next_to = previous.is_some_and(|p: crate::format::Extent| p.start + p.len == e.start);
            if previous.is_some() && !next_to {
                breaks += 1;
            }
            data += e.len;
            first.get_or_insert(e.start);
            let groups = [e.start, e.start + e.len - 1].map(|f| self.g.group_of(self.g.block_of_frag(f)));
            group = match group {
                _ if groups[0] != groups[1] => DataPlace::Spread,
                DataPlace::None => DataPlace::Group(groups[0]),
                DataPlace::Group(g) if g == groups[0] => group,
                _ => DataPlace::Spread,
            };
            previous = Some(e);
        }
        // An orphan is freed in steps, so its extents may go beyond its size.
        if let Some(e) = beyond.filter(|_| inode.nlink > 0) {
            let what = format_args!("size {} but written space up to fragment {}", inode.size, e.end());
            self.inode_problem(Class::InodeSize, inode.ino, what);
        }
        self.check_space(inode, walk.frags, walk.complete);
        if inode.file_type() != FileType::Regular {
            return DataPlace::None;
        }
        let blocks = data.div_ceil(per);
        if blocks > 1 {
            self.findings.layout.following_blocks += blocks - 1;
            self.findings.layout.contiguous_blocks += (blocks - 1).saturating_sub(breaks);
        }
        if inode.size > self.g.group_size() as u64 { DataPlace::None } else { group }
    }

    /// Compares the count of fragments with what was found.
    pub(super) fn check_space(&mut self, inode: &Inode, mapped: u64, complete: bool) {
        let (attributes, whole) = self.xattr_frags(inode);
        let found = mapped + attributes;
        if complete && whole && inode.frags != found {
            let what = format_args!("says {} fragments are allocated, but {found} are", inode.frags);
            self.inode_problem(Class::InodeSpace, inode.ino, what);
        }
    }

    /// Reads a system inode.
    pub(super) fn read_system_inode(&mut self, ino: Ino) -> Option<Inode> {
        let (addr, offset) = self.g.system_inode(ino);
        let block = match self.meta(BlockId { kind: BlockKind::SystemInodes, addr, owner: 0 }) {
            Ok(block) => block,
            Err(what) => {
                self.inode_problem(Class::SystemInode, ino, what);
                return None;
            }
        };
        let slot = &block[offset..offset + crate::format::geometry::INODE_SLOT_SIZE];
        let inode = Inode::decode(slot).map_err(|c| c.0).and_then(|i| {
            if i.ino != ino {
                Err(format!("the slot holds inode {}", i.ino))
            } else if i.is_dir() != (ino == ROOT_INO) {
                Err(format!("mode {:#o}", i.mode))
            } else if ino != ROOT_INO && i.file_type() != FileType::Regular {
                Err(format!("a system file of type {:?}", i.file_type()))
            } else if matches!(i.format, InodeFormat::Inline(_)) {
                Err("a system file with its contents in the inode".into())
            } else {
                Ok(i)
            }
        });
        match inode {
            Ok(inode) => {
                if ino != ROOT_INO && inode.nlink != 1 {
                    let what = format_args!("link count {} of a system file", inode.nlink);
                    self.inode_problem(Class::InodeLinks, ino, what);
                }
                if ino != ROOT_INO && inode.has_xattrs() {
                    self.inode_problem(Class::SystemInode, ino, "extended attributes of a system file");
                }
                Some(inode)
            }
            Err(what) => {
                self.inode_problem(Class::SystemInode, ino, what);
                None
            }
        }
    }
}
