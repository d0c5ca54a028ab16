//! Structures at fixed locations: superblocks, log header, counters, system inodes, allocation groups.

use super::{Place, Walk};
use crate::error::{Error, Result};
use crate::format::superblock::SUPERBLOCK_SIZE;
use crate::format::{BlockId, BlockKind, Superblock};
use crate::superblocks::{backup_ags, read_superblock, read_superblock_copy};
use cffs_device::{Device, IoKind};

/// The fields in which all superblocks of a file system agree.
fn identity(sb: &Superblock) -> impl PartialEq + use<> {
    let shape = (sb.block_shift, sb.frag_shift, sb.group_shift, sb.ag_blocks, sb.sys_start);
    (sb.fsid(), shape, sb.log_start, sb.log_blocks, sb.hash_seed, sb.version)
}

impl Walk<'_> {
    pub(super) fn superblocks(&mut self) -> Result<()> {
        self.check_stopped()?;
        let found = {
            // The locks keep the file system from growing and settings from being written.
            let _grow_lock = self.fs.grow_lock.lock();
            let sb = self.fs.sb.lock();
            let g = crate::format::Geometry::new(&sb)?;
            let dev: &dyn Device = &*self.fs.dev;
            if self.has_copies() {
                std::iter::once(0).chain(backup_ags(&g)).for_each(|ag| self.equal_superblocks(g.ag_start(ag), &sb));
            }
            let copies = backup_ags(&g).map(|ag| (ag, read_superblock_copy(dev, &g, ag)));
            let all = std::iter::once((0, read_superblock(dev))).chain(copies);
            let wrong = all.filter_map(|(ag, read)| {
                let what = match read {
                    Ok(found) if identity(&found) == identity(&sb) => return None,
                    Ok(_) => "it belongs to another file system".into(),
                    Err(e) => e.to_string(),
                };
                Some((ag, g.ag_start(ag), what))
            });
            wrong.collect::<Vec<_>>()
        };
        for (ag, block, what) in found {
            let object =
                if ag == 0 { "superblock".into() } else { format!("superblock copy in allocation group {ag}") };
            self.report(object, what, None, block);
        }
        Ok(())
    }

    /// On a mirror: makes all copies of a superblock like the newest that is right.
    fn equal_superblocks(&self, block: u64, now: &Superblock) {
        let dev = &self.fs.dev;
        let at = block << self.g.block_shift;
        let mut all = Vec::new();
        for copy in 0..dev.copies() {
            let mut bytes = vec![0; SUPERBLOCK_SIZE.max(dev.sector_size() as usize)];
            match dev.read_copy(IoKind::Super, copy, at, &mut bytes) {
                Ok(()) => all.push((copy, Superblock::decode(&bytes).ok(), bytes)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(_) => all.push((copy, None, bytes)),
            }
        }
        let right = all.iter().filter(|(_, sb, _)| sb.as_ref().is_some_and(|sb| identity(sb) == identity(now)));
        let newest = right.max_by_key(|(_, sb, _)| sb.as_ref().map(|sb| (sb.mount_count, sb.mounted)));
        let Some((copy, _, good)) = newest else { return };
        if all.iter().any(|(_, sb, bytes)| sb.is_none() || bytes[..SUPERBLOCK_SIZE] != good[..SUPERBLOCK_SIZE]) {
            // Nobody writes one meanwhile, and nothing else may be waited for with the lock held.
            self.count_repair(
                at,
                if self.fs.is_read_only() { Ok(false) } else { dev.repair(IoKind::Super, *copy, at, good) },
            );
        }
    }

    pub(super) fn log_header(&mut self) -> Result<()> {
        self.check_stopped()?;
        let sb = self.fs.superblock();
        let dev: &dyn Device = self.fs.log_dev.as_ref().map_or(&*self.fs.dev as &dyn Device, |d| &**d);
        let wrong: Vec<Error> = match self.fs.journal.quiesce(|| crate::journal::read_headers(dev, &sb)) {
            Ok(both) => both.into_iter().filter_map(Result::err).collect(),
            Err(e) => vec![e],
        };
        // A crash may have torn one of the two headers. A mount for writing repairs that, a read-only mount does not.
        let torn = usize::from(self.fs.options().read_only && wrong.len() == 1);
        if let Some(e) = wrong.into_iter().nth(torn) {
            self.report("log".into(), e.to_string(), None, sb.log_start);
        }
        Ok(())
    }

    pub(super) fn groups(&mut self) -> Result<()> {
        let g = self.g;
        let ags = self.fs.space.counters().ags.min(g.ag_count);
        let system = (0..g.sys_blocks()).map(|i| {
            let kind = if i == 0 { BlockKind::Counters } else { BlockKind::SystemInodes };
            BlockId { kind, addr: g.sys_start + i, owner: 0 }
        });
        let groups = (0..ags).flat_map(|ag| {
            let header = BlockId { kind: BlockKind::AgHeader, addr: g.ag_header(ag), owner: ag };
            let bitmaps = (0..g.bitmap_blocks()).map(move |i| BlockId {
                kind: BlockKind::Bitmap,
                addr: g.bitmap_block(ag, i),
                owner: ag,
            });
            std::iter::once(header).chain(bitmaps)
        });
        for id in system.chain(groups) {
            let block = self.meta(id, Place::Fixed)?;
            if id.kind == BlockKind::AgHeader && g.data_sums {
                // The header may be newer in memory.
                let cached = || self.fs.cache.peek(id.addr).filter(|b| b.is_verified()).map(|b| b.read().to_vec());
                if let Some(header) = block.map(|b| b.to_vec()).or_else(cached) {
                    self.sum_tables(id.owner, &header)?;
                }
            }
        }
        Ok(())
    }
}
