//! A quota file: a sparse file of blocks of records.

use crate::cache::{BufRef, Cache};
use crate::error::{Error, Result};
use crate::extent::{self, Mapping};
use crate::format::Run;
use crate::format::extent::LOGICAL_END;
use crate::format::inode::{INLINE_MAX, INODE_AUX, INODE_CORE_SIZE};
use crate::format::quota::{self, QUOTA_LBLOCK, QUOTA_RECORD_SIZE};
use crate::format::{BlockAddr, BlockId, BlockKind, Corrupt, Extent, Geometry, Inode, QuotaKind, QuotaRecord, get_u64};
use crate::inode::table::{load_system_inode, store_system_inode};
use crate::journal::Txn;
use crate::space::Space;

pub(super) struct QuotaFile {
    kind: QuotaKind,
    inode: Inode,
    /// The block that the inode stands in, and where: held, so that [`QuotaFile::clear_counted`] cannot fail.
    location: (BufRef, usize),
}

/// A block of a quota file.
pub(super) fn read_block(cache: &Cache, kind: QuotaKind, addr: BlockAddr) -> Result<BufRef> {
    cache.read_meta(BlockId { kind: BlockKind::Quota, addr, owner: kind.ino() })
}

impl QuotaFile {
    pub(super) fn load(cache: &Cache, kind: QuotaKind) -> Result<QuotaFile> {
        let inode = load_system_inode(cache, kind.ino())?;
        let (addr, offset) = cache.geometry().system_inode(kind.ino());
        let buf = cache.read_meta(BlockId { kind: BlockKind::SystemInodes, addr, owner: 0 })?;
        Ok(QuotaFile { kind, inode, location: (buf, offset) })
    }

    pub(super) fn is_counted(&self) -> bool {
        self.inode.aux != 0
    }

    pub(super) fn set_counted(&mut self, txn: &Txn<'_>, counted: bool) -> Result<()> {
        self.inode.aux = u64::from(counted);
        store_system_inode(txn, &self.inode)
    }

    /// Notes in the transaction that the records are not exact any more; false if that was known.
    pub(super) fn clear_counted(&mut self, txn: &Txn<'_>) -> bool {
        if self.inode.aux == 0 {
            return false;
        }
        self.inode.aux = 0;
        let (buf, offset) = &self.location;
        txn.write(buf, offset + INODE_AUX, &0u64.to_le_bytes());
        true
    }

    /// Device block of a block of the file.
    fn locate(&self, cache: &Cache, lblock: u64) -> Result<Option<BlockAddr>> {
        let g = cache.geometry();
        let logical = g.frag_of_block(lblock);
        match extent::lookup(cache, &self.inode, logical)? {
            Mapping::Hole { .. } => Ok(None),
            Mapping::Data(e) => {
                let frag = e.start + (logical - e.logical);
                if e.unwritten || !frag.is_multiple_of(g.frags_per_block()) {
                    let what = format!("{} quota file: block {lblock} is not a block", self.kind.name());
                    return Err(Corrupt(what).into());
                }
                Ok(Some(g.block_of_frag(frag)))
            }
        }
    }

    fn block(&self, cache: &Cache, lblock: u64, addr: BlockAddr) -> Result<BufRef> {
        let buf = read_block(cache, self.kind, addr)?;
        let found = get_u64(&buf.read(), QUOTA_LBLOCK);
        if found != lblock {
            let what = format!("{} quota file: block {addr} is number {found}, expected {lblock}", self.kind.name());
            return Err(Corrupt(what).into());
        }
        Ok(buf)
    }

    /// Place and contents of an id's record; `None` if its block does not exist.
    pub(super) fn read(&self, cache: &Cache, id: u32) -> Result<Option<(BlockAddr, usize, QuotaRecord)>> {
        let (lblock, offset) = quota::place(cache.geometry().block_size(), id);
        let Some(addr) = self.locate(cache, lblock)? else { return Ok(None) };
        let buf = self.block(cache, lblock, addr)?;
        let b = buf.read();
        Ok(Some((addr, offset, QuotaRecord::decode(&b[offset..offset + QUOTA_RECORD_SIZE]))))
    }

    /// All records that say something. Blocks that cannot be read are left out, with a line in the log.
    pub(super) fn list(&self, cache: &Cache) -> Result<Vec<(u32, QuotaRecord)>> {
        let mut all = Vec::new();
        self.for_each_block(cache, |lblock, _, outcome| match outcome {
            Ok(buf) => all.extend(quota::records(&buf.read(), lblock)),
            Err(e) => tracing::error!("{} quota file: {e}", self.kind.name()),
        })?;
        Ok(all)
    }

    /// The blocks that are not what they should be: number and address. An error if one cannot be read at all: what it
    /// says is not known then.
    pub(super) fn damaged(&self, cache: &Cache) -> Result<Vec<(u64, BlockAddr)>> {
        let mut all = Vec::new();
        let mut failed = None;
        self.for_each_block(cache, |lblock, addr, outcome| match outcome {
            Ok(_) => {}
            Err(Error::Corrupt(_)) => all.push((lblock, addr)),
            Err(e) => failed = Some(e),
        })?;
        failed.map_or(Ok(all), Err)
    }

    /// The blocks without records.
    pub(super) fn empty_blocks(&self, cache: &Cache) -> Result<Vec<u64>> {
        let mut all = Vec::new();
        self.for_each_block(cache, |lblock, _, outcome| {
            if outcome.is_ok_and(|buf| quota::records(&buf.read(), lblock).next().is_none()) {
                all.push(lblock);
            }
        })?;
        Ok(all)
    }

    /// Most bytes that [`QuotaFile::remove`] logs.
    pub(super) fn log_bytes_to_remove(&self, g: &Geometry, space: &Space) -> usize {
        extent::log_bytes_for_remove(g, space, &self.inode, 1) + space.log_bytes(g.frags_per_block()) + 1024
    }

    /// Gives a block back. What may be known of its place is void.
    pub(super) fn remove(&mut self, txn: &Txn<'_>, space: &Space, lblock: u64) -> Result<()> {
        let cache = txn.cache();
        let g = *cache.geometry();
        let Some(addr) = self.locate(cache, lblock)? else { return Ok(()) };
        let per = g.frags_per_block();
        let mut freed = Vec::new();
        // Fails, if it has to, before it changes anything: when the map is damaged, or needs a node and finds no space.
        match extent::remove(txn, space, &mut self.inode, lblock * per..(lblock + 1) * per, usize::MAX, &mut freed) {
            Err(Error::NoSpace) => return Ok(()),
            outcome => drop(outcome?),
        }
        txn.begin_critical();
        txn.free_block(addr);
        for run in freed {
            space.free(txn, run)?;
        }
        let mut end = 0;
        extent::for_each(cache, &self.inode, 0..LOGICAL_END, |e| {
            end = e.end().div_ceil(per);
            Ok(())
        })?;
        self.inode.size = end << g.block_shift;
        store_system_inode(txn, &self.inode)?;
        txn.end_critical();
        Ok(())
    }

    /// Makes a block anew, without records.
    pub(super) fn empty(&mut self, txn: &Txn<'_>, lblock: u64, addr: BlockAddr) {
        tracing::warn!("{} quota file: block {lblock} was damaged; its limits are lost", self.kind.name());
        self.init(txn, lblock, addr);
    }

    fn init(&self, txn: &Txn<'_>, lblock: u64, addr: BlockAddr) {
        let buf = txn.init_block(BlockId { kind: BlockKind::Quota, addr, owner: self.kind.ino() });
        txn.write(&buf, QUOTA_LBLOCK, &lblock.to_le_bytes());
    }

    fn for_each_block(&self, cache: &Cache, mut f: impl FnMut(u64, BlockAddr, Result<BufRef>)) -> Result<()> {
        let g = cache.geometry();
        let per = g.frags_per_block();
        let last = quota::place(g.block_size(), u32::MAX).0;
        let mut runs = Vec::new();
        extent::for_each(cache, &self.inode, 0..LOGICAL_END, |e| {
            runs.push((e.logical.div_ceil(per), e.end() / per));
            Ok(())
        })?;
        for (from, to) in runs {
            for lblock in from..to.min(last + 1) {
                let Some(addr) = self.locate(cache, lblock)? else { continue };
                f(lblock, addr, self.block(cache, lblock, addr));
            }
        }
        Ok(())
    }

    /// Most bytes that [`QuotaFile::make`] logs.
    pub(super) fn log_bytes(&self, g: &Geometry, space: &Space) -> usize {
        // The tree may have grown by a level since.
        let tree = extent::log_bytes_for_insert(g, space, &self.inode) + 4 * (g.block_size() + 64);
        let own = 512 + INODE_CORE_SIZE + INLINE_MAX + space.log_bytes(g.frags_per_block());
        tree + own + space.log_bytes_for_next_init()
    }

    /// Most blocks that [`QuotaFile::make`] takes: its own, and nodes of a tree that never gets high.
    pub(super) const BLOCKS_FOR_GROWTH: u64 = 6;

    /// Place of an id's record, in a block made for it if there is none.
    pub(super) fn make(&mut self, txn: &Txn<'_>, space: &Space, id: u32) -> Result<(BlockAddr, usize)> {
        let cache = txn.cache();
        let g = *cache.geometry();
        let (lblock, offset) = quota::place(g.block_size(), id);
        if let Some(addr) = self.locate(cache, lblock)? {
            return Ok((addr, offset));
        }
        let run = space.alloc_meta_near(&txn.reservation(), g.sys_start, 1, 1)?.ok_or(Error::NoSpace)?;
        let prepared = space.prepare_commit(run);
        let e = Extent { logical: g.frag_of_block(lblock), start: run.start, len: run.len, unwritten: false };
        if let Err(e) = prepared.and_then(|()| extent::insert(txn, space, &mut self.inode, e)) {
            space.cancel_meta(&txn.reservation(), run);
            return Err(e);
        }
        txn.begin_critical();
        space.commit_alloc(txn, Run { start: run.start, len: run.len })?;
        let addr = g.block_of_frag(run.start);
        self.init(txn, lblock, addr);
        self.inode.size = self.inode.size.max((lblock + 1) << g.block_shift);
        store_system_inode(txn, &self.inode)?;
        txn.end_critical();
        Ok((addr, offset))
    }
}
