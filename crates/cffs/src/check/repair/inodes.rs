//! Inodes: their numbers, fields and contents.

use super::extent_map::Map;
use super::findings::{Disconnected, Known, inode_place};
use super::repairer::Repairer;
use crate::check::Class;
use crate::error::Result;
use crate::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE, FLAGS};
use crate::format::table::Location;
use crate::format::{
    BlockAddr, BlockId, BlockKind, FIRST_USER_INO, FileType, Ino, Inode, InodeFormat, QuotaKind, SYMLINK_MAX,
    block_owner,
};

/// How an inode was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Named,
    External,
}

/// The result of checking an inode's number.
pub(super) enum Numbered {
    Same,
    Another,
    Remove,
    Link,
}

impl Repairer<'_> {
    /// Checks an inode's number; gives it another one if it cannot have this one.
    pub(super) fn number(&mut self, inode: &mut Inode, block: BlockAddr, offset: u32, place: &str) -> Result<Numbered> {
        let ino = inode.ino;
        let known = self.found.inodes.get(&ino).copied();
        if let Some(k) = known
            && (k.generation, k.btime, k.file_type) == (inode.generation, inode.btime, inode.file_type())
        {
            if k.external {
                let what = format!("inode {ino} is both in its entry and in the external table");
                self.must_fix(Class::InodeNumber, place, what, "make the entry a link")?;
                if inode.is_dir() && k.names > 0 {
                    return Ok(Numbered::Remove);
                }
                if let Some(k) = self.found.inodes.get_mut(&ino) {
                    k.names += 1;
                }
                return Ok(Numbered::Link);
            }
            self.note_later_entry(inode, (block, offset), (k.block, k.offset));
            let what = format!("a second entry of inode {ino}");
            self.must_fix(Class::InodeNumber, place, what, "remove it")?;
            return Ok(Numbered::Remove);
        }
        let possible = (FIRST_USER_INO..=self.g.inodes_max()).contains(&ino);
        if possible && known.is_none() {
            // A file whose other entry is not found may keep this one, with another number.
            if inode.is_dir()
                && let Some(Location::Embedded { block: b, offset: o }) = self.located(ino)
            {
                self.note_later_entry(inode, (block, offset), (b, o as u32));
            }
            if !self.stands_elsewhere(ino, block, offset) {
                return Ok(Numbered::Same);
            }
            if self.evidence.later_entries.contains_key(&ino) {
                self.must_fix(Class::InodeNumber, place, format!("an older entry of inode {ino}"), "remove it")?;
                return Ok(Numbered::Remove);
            }
        }
        let what = match known {
            Some(_) => format!("a second inode with number {ino}"),
            None if possible => format!("the inode with number {ino} is elsewhere, by the locator table"),
            None => format!("a file with the impossible number {ino}"),
        };
        if inode.is_dir() {
            // The blocks of a directory name their owner.
            if let Some(owner) = self.owner_of_blocks(inode) {
                self.must_fix(Class::InodeNumber, place, what, "give it the number that its blocks carry")?;
                inode.ino = owner;
                return Ok(Numbered::Another);
            }
            if inode.size > 0 {
                let how = "remove the entry; what its blocks hold is looked for by their owner";
                self.must_fix(Class::InodeNumber, place, what, how)?;
                return Ok(Numbered::Remove);
            }
        }
        let new = self.new_ino();
        self.must_fix(Class::InodeNumber, place, what, "give it another number")?;
        inode.ino = new;
        Ok(Numbered::Another)
    }

    /// The directory whose blocks an inode maps, if no inode of that directory was found so far.
    pub(super) fn owner_of_blocks(&mut self, inode: &Inode) -> Option<Ino> {
        let first = *self.read_map(inode).extents.first()?;
        let block = self.vol.get(self.g.block_of_frag(first.start)).ok()?;
        let owner = block_owner(&block);
        let id = BlockId { kind: BlockKind::Dir, addr: self.g.block_of_frag(first.start), owner };
        let free = (FIRST_USER_INO..=self.g.inodes_max()).contains(&owner) && !self.found.inodes.contains_key(&owner);
        (free && owner != inode.ino && self.vol.meta(id).is_ok()).then_some(owner)
    }

    /// Fields and contents of an inode, whatever its role. `owner`: number that its metadata blocks carry. False if
    /// nothing useful is left of it.
    pub(super) fn contents(&mut self, inode: &mut Inode, owner: Ino, role: Role) -> Result<bool> {
        let place = inode_place(inode.ino);
        if !self.fields(inode, role, &place)? {
            return Ok(false);
        }
        let had_attributes = inode.xattr_block != 0;
        self.attributes(inode, owner, &place)?;
        let lost_attributes = had_attributes && inode.xattr_block == 0;
        if inode.is_dir() {
            return Ok(true);
        }
        let mut map = self.read_map_as(inode, owner);
        self.drop_beyond_size(inode, &mut map);
        self.claim_nodes(&map);
        for e in &map.extents {
            self.space.claim_data(e.start, e.len);
            self.found.unwritten += e.unwritten_units(self.g.frag_shift);
        }
        let fpb = self.g.frags_per_block();
        let xattr = self.xattr_frags(inode);
        if map.guessed {
            self.evidence.guessed.insert(inode.ino);
        }
        self.note_map(inode.ino, &map);
        let written_end = map.extents.iter().filter(|e| !e.unwritten).map(|e| e.end()).max().unwrap_or(0);
        if written_end > self.g.frags_for(inode.size).next_multiple_of(fpb) {
            let size = (written_end << self.g.frag_shift).min(crate::format::FILE_SIZE_MAX);
            let what = format!("size {} but written space up to fragment {written_end}", inode.size);
            if self.fix(Class::InodeSize, &place, what, "set the size to the end of that")? {
                inode.size = size;
            }
        }
        if inode.file_type() == FileType::Symlink && matches!(inode.format, InodeFormat::Extents(_)) {
            let whole = map.extents.first().is_some_and(|e| e.logical == 0 && !e.unwritten);
            if !whole {
                self.must_fix(Class::InodeField, &place, "the target of a symbolic link is gone".into(), "remove it")?;
                self.unclaim(&map);
                return Ok(false);
            }
        }
        let wrong = match (&map.wrong, owner != inode.ino && !map.nodes.is_empty()) {
            (Some(what), _) => Some(what.clone()),
            (None, true) => Some(format!("its extent tree belongs to {owner}")),
            _ => None,
        };
        if let Some(what) = wrong {
            let class = if map.lost_nodes { Class::ExtentNode } else { Class::Extent };
            self.must_fix(class, &place, what, "write the map of what is left anew")?;
            self.planned.maps.insert(inode.ino, map.extents.clone());
            self.planned.node_owners.insert(inode.ino, owner);
        } else if inode.frags != map.frags(&self.g) + xattr {
            let frags = map.frags(&self.g) + xattr;
            let of_attributes = inode.frags.checked_sub(frags).is_some_and(|more| more.is_multiple_of(fpb));
            if !(lost_attributes && of_attributes) {
                // The map may be wrong instead: other claims of the same space win.
                self.evidence.inconsistent.insert(inode.ino);
            }
            let what = format!("says {} fragments are allocated, but {frags} are", inode.frags);
            if self.fix(Class::InodeSpace, &place, what, "correct it")? {
                inode.frags = frags;
            }
        }
        Ok(true)
    }

    /// Drops written space behind the size, if the count of fragments contradicts the map too: then the map is wrong. What is
    /// left ends with a block, or with the size if that makes the count right.
    pub(super) fn drop_beyond_size(&mut self, inode: &Inode, map: &mut Map) {
        let fpb = self.g.frags_per_block();
        let xattr = self.xattr_frags(inode);
        let end = self.g.frags_for(inode.size).next_multiple_of(fpb);
        if inode.frags == map.frags(&self.g) + xattr || !map.extents.iter().any(|e| !e.unwritten && e.end() > end) {
            return;
        }
        map.wrong.get_or_insert("extents behind the size, and another number of fragments".into());
        self.evidence.inconsistent.insert(inode.ino);
        let mut cut = |end: u64| {
            map.extents.retain_mut(|e| {
                if !e.unwritten && e.end() > end {
                    e.len = end.saturating_sub(e.logical);
                }
                e.len > 0
            });
            map.frags(&self.g) + xattr
        };
        let end = self.g.frags_for(inode.size);
        if cut(end.next_multiple_of(fpb)) > inode.frags {
            cut(end);
        }
    }

    /// Fields and attributes of a file of the system.
    pub(super) fn contents_of_system_file(&mut self, inode: &mut Inode) -> Result<()> {
        let place = inode_place(inode.ino);
        self.fields(inode, Role::External, &place)?;
        self.attributes(inode, inode.ino, &place)
    }

    /// Fields that depend on nothing else. False if nothing useful is left.
    pub(super) fn fields(&mut self, inode: &mut Inode, role: Role, place: &str) -> Result<bool> {
        let file_type = inode.file_type();
        let dir = file_type == FileType::Directory;
        let device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
        if inode.generation == 0 && self.fix(Class::InodeField, place, "generation 0".into(), "make it 1")? {
            inode.generation = 1;
        }
        if inode.flags & !FLAGS != 0 {
            let what = format!("unknown flags {:#x}", inode.flags & !FLAGS);
            if self.fix(Class::InodeField, place, what, "clear them")? {
                inode.flags &= FLAGS;
            }
        }
        self.immutable_files |= inode.flags & (FLAG_IMMUTABLE | FLAG_APPEND) != 0;
        if inode.index_buckets != 0 && !dir {
            let what = format!("{} index buckets, but not a directory", inode.index_buckets);
            if self.fix(Class::InodeField, place, what, "clear the field")? {
                inode.index_buckets = 0;
            }
        }
        let quota_file = QuotaKind::ALL.iter().any(|k| k.ino() == inode.ino);
        if inode.aux != 0 && !dir && !device && !quota_file {
            let what = format!("auxiliary field {} on a file of type {file_type:?}", inode.aux);
            if self.fix(Class::InodeField, place, what, "clear the field")? {
                inode.aux = 0;
            }
        }
        let data = matches!(file_type, FileType::Regular | FileType::Symlink | FileType::Directory);
        if !data && (inode.size != 0 || inode.format != InodeFormat::Extents(Vec::new())) {
            let what = format!("a file of type {file_type:?} with contents");
            if self.fix(Class::InodeField, place, what, "remove them")? {
                (inode.size, inode.format) = (0, InodeFormat::Extents(Vec::new()));
            }
        }
        if file_type == FileType::Symlink && !(1..=SYMLINK_MAX as u64).contains(&inode.size) {
            let what = format!("a symbolic link with a target of {} bytes", inode.size);
            self.must_fix(Class::InodeField, place, what, "remove it")?;
            return Ok(false);
        }
        if role == Role::Named && !dir && inode.nlink != 1 {
            let what = format!("link count {} instead of 1", inode.nlink);
            if self.fix(Class::InodeLinks, place, what, "correct it")? {
                inode.nlink = 1;
            }
        }
        Ok(true)
    }

    pub(super) fn claim_nodes(&mut self, map: &Map) {
        for node in &map.nodes {
            // Nodes name their owner, so that no other inode can have claimed them as its nodes.
            self.space.claim_meta(*node);
        }
    }

    pub(super) fn unclaim(&mut self, map: &Map) {
        for node in &map.nodes {
            self.space.release_block(*node);
        }
        for e in &map.extents {
            self.space.used.remove(e.start, e.start + e.len);
        }
    }

    pub(super) fn note_map(&mut self, ino: Ino, map: &Map) {
        if map.wrong.is_some() {
            self.evidence.damaged_maps.insert(ino);
        }
    }

    /// Keeps an inode that has lost its name until it gets one in lost+found.
    pub(super) fn disconnect(&mut self, dir: Ino, name: Option<String>, inode: Inode) {
        self.found.disconnected_inos.insert(inode.ino);
        if !self.vol.surveying {
            self.found.disconnected.push(Disconnected {
                inode: Some(Box::new(inode.clone())),
                ino: inode.ino,
                file_type: inode.file_type(),
                from: dir,
                name,
            });
        }
    }

    /// Registers an inode by its number.
    pub(super) fn register(&mut self, inode: &Inode, known: Known) {
        self.evidence.max_ino = self.evidence.max_ino.max(inode.ino);
        self.found.inodes.insert(inode.ino, known);
    }

    /// An unused inode number.
    pub(super) fn new_ino(&mut self) -> Ino {
        let mut next = self.evidence.max_ino.max(FIRST_USER_INO - 1) + 1;
        // An inode with the number may not be found yet: the locator table knows.
        while next <= self.g.inodes_max() && self.located(next).is_some_and(|at| at != Location::Free) {
            next += 1;
        }
        if next <= self.g.inodes_max() {
            self.evidence.max_ino = next;
            return next;
        }
        (FIRST_USER_INO..).find(|i| !self.found.inodes.contains_key(i)).unwrap_or(FIRST_USER_INO)
    }
}
