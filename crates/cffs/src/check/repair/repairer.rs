//! What the passes of a repair share, and how they reach it.

use super::findings::{Evidence, Found, Planned};
use super::report::Action;
use super::session::Session;
use super::space_map::SpaceMap;
use super::volume::Volume;
use crate::check::{Class, Phase, Progress};
use crate::error::{Error, Result};
use crate::format::dirblock::{entries, validate};
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::{
    BlockAddr, BlockId, BlockKind, EXTERNAL_INO, FragAddr, Geometry, Ino, Inode, LAST_SYSTEM_INO, ROOT_INO, Superblock,
    verify_block,
};

/// A repair under way.
pub(super) struct Repairer<'a> {
    pub(super) session: Session<'a>,
    pub(super) vol: Volume<'a>,
    pub(super) sb: Superblock,
    pub(super) g: Geometry,
    /// Time for new inodes.
    pub(super) now: i64,
    progress: Progress<'a>,
    /// Every block that looks like a directory's is believed to be one.
    pub(super) scavenging: bool,
    /// Walks so far.
    pub(super) rounds: u32,
    /// There are files that are immutable or append-only.
    pub(super) immutable_files: bool,
    /// Inodes that got a name in lost+found.
    pub(super) named: u64,
    pub(super) space: SpaceMap,
    /// Where the search for free space goes on.
    pub(super) alloc_cursor: FragAddr,
    /// The bitmap block asked last: allocation group, index, and the block as it was before the repair, if it is good.
    pub(super) old_bitmap: Option<(u64, u64, Option<Vec<u8>>)>,
    pub(super) found: Found,
    pub(super) planned: Planned,
    pub(super) evidence: Evidence,
}

/// The error of a repair that needs more space than there is.
pub(super) fn no_space(what: &str) -> Error {
    Error::Invalid(format!("no space left for {what}: make room, or repair a copy on a larger device"))
}

impl<'a> Repairer<'a> {
    pub(super) fn new(
        session: Session<'a>,
        vol: Volume<'a>,
        sb: &Superblock,
        now: i64,
        scavenging: bool,
        progress: Progress<'a>,
    ) -> Self {
        let g = vol.g;
        Repairer {
            session,
            vol,
            sb: sb.clone(),
            g,
            now,
            progress,
            scavenging,
            rounds: 0,
            immutable_files: false,
            named: 0,
            space: SpaceMap::new(sb, g),
            alloc_cursor: 0,
            old_bitmap: None,
            found: Found::default(),
            planned: Planned::default(),
            evidence: Evidence::default(),
        }
    }

    /// Asks whether to change something. The survey never asks and never changes anything.
    pub(super) fn fix(&mut self, class: Class, place: &str, text: String, action: &str) -> Result<bool> {
        Ok(!self.vol.surveying && self.session.fix(class, place, text, action))
    }

    /// Asks for a change that all others depend on. Refusing it ends the repair.
    pub(super) fn must_fix(&mut self, class: Class, place: &str, text: String, action: &str) -> Result<()> {
        if self.vol.surveying { Ok(()) } else { self.session.must(class, place, text, action) }
    }

    pub(super) fn note(&mut self, class: Class, place: &str, text: String, action: &str) {
        let action = Action { class, place: place.to_string(), text, action: action.to_string() };
        self.session.note(action);
    }

    pub(super) fn report_progress(&self, phase: Phase, done: u64, total: u64) {
        (self.progress)(phase, done, total.max(done));
    }

    pub(super) fn report_tree_progress(&self) {
        self.report_progress(Phase::Tree, self.found.inodes.len() as u64, self.found.inodes.len() as u64);
    }

    /// Reads an inode where it stands.
    pub(super) fn load(&mut self, ino: Ino) -> Option<Inode> {
        if (ROOT_INO..=LAST_SYSTEM_INO).contains(&ino) {
            let (addr, offset) = self.g.system_inode(ino);
            let b = self.vol.meta(BlockId { kind: BlockKind::SystemInodes, addr, owner: 0 }).ok()?;
            return Inode::decode(&b[offset..offset + INODE_SLOT_SIZE]).ok().filter(|i| i.ino == ino);
        }
        let k = *self.found.inodes.get(&ino)?;
        self.load_from(ino, k.block, k.offset as usize, k.external)
    }

    /// Reads an inode from a given place.
    pub(super) fn load_from(&mut self, ino: Ino, block: BlockAddr, offset: usize, external: bool) -> Option<Inode> {
        let b = self.vol.get(block).ok()?;
        let (from, to) = self.room(&b, block, offset, external)?;
        Inode::decode(&b[from..to]).ok().filter(|i| i.ino == ino)
    }

    /// The range of bytes of an inode in its block.
    pub(super) fn room(&self, b: &[u8], addr: BlockAddr, offset: usize, external: bool) -> Option<(usize, usize)> {
        if external {
            let id = BlockId { kind: BlockKind::ExternalInodes, addr, owner: EXTERNAL_INO };
            verify_block(b, self.g.fsid, id).ok()?;
            return (offset + INODE_SLOT_SIZE <= b.len()).then_some((offset, offset + INODE_SLOT_SIZE));
        }
        validate(b).ok()?;
        let e = entries(b).find(|e| e.offset >= offset).filter(|e| e.offset == offset)?;
        Some((e.inode_offset(), e.offset + e.len))
    }

    /// Writes an inode where it stands.
    pub(super) fn store(&mut self, inode: &Inode) {
        if self.vol.surveying {
            return;
        }
        let place = if (ROOT_INO..=LAST_SYSTEM_INO).contains(&inode.ino) {
            let (addr, offset) = self.g.system_inode(inode.ino);
            self.vol.get(addr).ok().map(|b| (addr, b, (offset, offset + INODE_SLOT_SIZE)))
        } else {
            self.found.inodes.get(&inode.ino).copied().and_then(|k| {
                let b = self.vol.get(k.block).ok()?;
                let room = self.room(&b, k.block, k.offset as usize, k.external)?;
                Some((k.block, b, room))
            })
        };
        let Some((addr, mut b, (from, to))) = place else { return };
        if inode.encoded_len() <= to - from {
            inode.encode(&mut b[from..from + inode.encoded_len()]);
            self.vol.put(addr, b);
        }
    }
}
