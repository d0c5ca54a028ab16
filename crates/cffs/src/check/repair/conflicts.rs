//! Space with several owners, and maps that have to be written anew.
//!
//! Metadata keeps its space, because it names its owner; contents of a file in the same place are lost. Of several files the
//! first keeps the space and the others get copies of it: the contents belong to one of them, and nothing tells to which.

use super::extent_map::join;
use super::findings::inode_place;
use super::intervals::Intervals;
use super::repairer::Repairer;
use super::volume::Copy;
use crate::check::Class;
use crate::error::Result;
use crate::format::{BlockId, BlockKind, Extent, Ino, InodeFormat};

/// What becomes of the extents of one file.
struct Share<'a> {
    /// Shared space that files before it keep; what this one keeps is added.
    taken: &'a mut Intervals,
    /// Its new extents.
    out: Vec<Extent>,
    /// Fragments that it loses, and those that it gets copies of.
    lost: u64,
    copied: u64,
}

impl Repairer<'_> {
    /// Decides who keeps shared space, and plans new maps for the others.
    pub(super) fn resolve_shared(&mut self) -> Result<()> {
        if self.space.shared.is_empty() {
            return Ok(());
        }
        let mut taken = Intervals::default();
        let mut inos: Vec<Ino> = self.found.inodes.keys().copied().collect();
        // Inodes read from damaged blocks come late, and those with inconsistent maps last.
        inos.sort_unstable_by_key(|ino| {
            (self.evidence.inconsistent.contains(ino), self.evidence.guessed.contains(ino), *ino)
        });
        inos.push(crate::format::ROOT_INO);
        for ino in inos {
            let Some(inode) = self.load(ino) else { continue };
            if matches!(inode.format, InodeFormat::Inline(_)) {
                continue;
            }
            let owner = self.planned.node_owners.get(&ino).copied().unwrap_or(ino);
            let extents = match self.planned.maps.get(&ino) {
                Some(list) => list.clone(),
                None => self.read_map_as(&inode, owner).extents,
            };
            if !extents.iter().any(|e| self.space.shared.overlaps(e.start, e.start + e.len)) {
                continue;
            }
            let guessed = self.evidence.guessed.contains(&ino) || self.evidence.inconsistent.contains(&ino);
            let mut share = Share { taken: &mut taken, out: Vec::new(), lost: 0, copied: 0 };
            for e in extents {
                self.share_extent(e, inode.is_dir().then_some(ino), guessed, &mut share);
            }
            let Share { out, lost, copied, .. } = share;
            if lost + copied == 0 {
                continue;
            }
            let fragments = |n: u64| if n == 1 { "1 fragment".to_string() } else { format!("{n} fragments") };
            let what = format!("shares {} with others", fragments(lost + copied));
            let how = match (copied, lost) {
                (_, 0) => "give it copies of its own".to_string(),
                (0, _) => format!("leave {} out", fragments(lost)),
                _ => format!("give it copies of {}, leave {} out", fragments(copied), fragments(lost)),
            };
            self.must_fix(Class::FragmentsShared, &inode_place(ino), what, &how)?;
            self.planned.maps.insert(ino, join(out));
        }
        Ok(())
    }

    /// Divides an extent into what the file keeps, gets copies of, and loses.
    fn share_extent(&mut self, e: Extent, dir: Option<Ino>, guessed: bool, share: &mut Share<'_>) {
        let Share { taken, out, lost, copied } = share;
        let end = e.start + e.len;
        let piece = |s: u64, t: u64| Extent { logical: e.logical + (s - e.start), start: s, len: t - s, ..e };
        let mut pieces: Vec<(u64, u64, bool)> =
            self.space.shared.gaps(e.start, end).into_iter().map(|(s, t)| (s, t, false)).collect();
        pieces.extend(self.space.shared.within(e.start, end).map(|(s, t)| (s, t, true)));
        pieces.sort_unstable();
        for (s, t, shared) in pieces {
            if !shared {
                out.push(piece(s, t));
                continue;
            }
            if let Some(owner) = dir {
                // A directory keeps the blocks that say they are its own, and no others.
                let fpb = self.g.frags_per_block();
                *lost += self.space.meta.gaps(s, t).iter().map(|(a, b)| b - a).sum::<u64>();
                for (a, b) in self.space.meta.within(s, t).collect::<Vec<_>>() {
                    for addr in a / fpb..b.div_ceil(fpb) {
                        let (from, to) = (a.max(addr * fpb), b.min((addr + 1) * fpb));
                        if self.vol.meta(BlockId { kind: BlockKind::Dir, addr, owner }).is_ok() {
                            out.push(piece(from, to));
                        } else {
                            *lost += to - from;
                        }
                    }
                }
                continue;
            }
            *lost += self.space.meta.within(s, t).map(|(a, b)| b - a).sum::<u64>();
            for (a, b) in self.space.meta.gaps(s, t) {
                let mine = taken.gaps(a, b);
                let theirs: Vec<(u64, u64)> = taken.within(a, b).collect();
                for (a, b) in &mine {
                    taken.insert(*a, *b);
                    out.push(piece(*a, *b));
                }
                for (a, b) in theirs {
                    let to = if guessed || self.vol.surveying { None } else { self.alloc(b - a, 1) };
                    match to {
                        Some(to) => {
                            if !e.unwritten {
                                self.vol.copies.push(Copy { from: a, to, len: b - a });
                            }
                            out.push(Extent { start: to, ..piece(a, b) });
                            *copied += b - a;
                        }
                        None => *lost += b - a,
                    }
                }
            }
        }
        out.sort_unstable_by_key(|e| e.logical);
    }

    /// Writes the maps that are to change.
    pub(super) fn write_maps(&mut self) -> Result<()> {
        for (ino, extents) in std::mem::take(&mut self.planned.maps) {
            let Some(mut inode) = self.load(ino) else { continue };
            let owner = self.planned.node_owners.get(&ino).copied().unwrap_or(ino);
            let old = self.read_map_as(&inode, owner);
            self.set_map(&mut inode, &old, extents)?;
            self.store(&inode);
        }
        Ok(())
    }
}
